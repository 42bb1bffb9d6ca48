// SPDX-License-Identifier: MIT OR Apache-2.0

//! Atomics (fabtests: `rdm_atomic`, `atomic_verify`): a domain performs every operation that it
//! offers, and concurrent operations lose no update.

use super::key_batches::{entry, joined};
use super::keys::hammer;
use super::library::Lib;
use super::refused;
use crate::buf::Buf;
use crate::harness::caps::ATOMICS;
use crate::harness::{skip, Ctx, Test, SMOKE};
use crate::lanes::{Lanes, LANES, SPAN};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, Remote, Side, LOCAL, LONG, REMOTE, WAIT};
use crate::sys;
use anyhow::{ensure, Context, Result};
use kfabric::{
    Access, AtomicForm, AtomicOp, CompFlags, Memory, Op as LibOp, RegionAttr, RemoteMem,
};
use kfabric_pure::atomic::{Datatype, Form, Op};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("atomic.each_offered_op_matches_the_model", what_is_offered)
        .seconds(20)
        .also(SMOKE)
        .needs(ATOMICS),
    Test::pair(
        "atomic.adds_from_two_connections_lose_no_update",
        nothing_is_lost,
    )
    .seconds(20)
    .needs(ATOMICS),
    Test::pair("atomic.lock_by_compare_and_swap_excludes", a_lock)
        .seconds(20)
        .needs(ATOMICS),
    Test::pair(
        "atomic.p02_access_beyond_rights_or_range_is_refused",
        rights,
    )
    .seconds(20)
    .needs(ATOMICS),
    Test::pair("atomic.p03_counters_stand_still_after_revoke", |ctx| {
        stands_still(ctx, false)
    })
    .seconds(30)
    .needs(ATOMICS),
    Test::pair(
        "atomic.p03_counters_of_ordered_keys_stand_still_after_revoke",
        |ctx| stands_still(ctx, true),
    )
    .seconds(30)
    .needs(ATOMICS),
    Test::pair("atomic.bad_arguments_are_refused", refused_arguments).needs(ATOMICS),
    Test::pair("atomic.completed_ops_count_as_reads_and_writes", counters).needs(ATOMICS),
    Test::pair("atomic.ops_by_library_match_the_model", library).needs(ATOMICS),
];

/// Rights for atomics.
const ALL: u64 = REMOTE | KFI_ATOMIC;

/// The forms, with their numbers.
const FORMS: [(u32, Form); 3] = [
    (KFI_OP_ATOMIC, Form::Base),
    (KFI_OP_FETCH_ATOMIC, Form::Fetch),
    (KFI_OP_COMPARE_ATOMIC, Form::Compare),
];

/// A sum of 8 bytes, which every provider with atomics has.
const SUM: (u32, u32) = (KFI_ATOMIC_SUM, KFI_UINT64);

/// A pair, and memory on both sides; the operations change node 1's.
struct Bench {
    pair: Pair,
    buf: Buf,
    region: u64,
    remote: Remote,
}

impl Bench {
    fn new(ctx: &mut Ctx) -> Result<Self> {
        let pair = Pair::new(ctx)?;
        Self::on(ctx, pair)
    }

    fn on(ctx: &mut Ctx, pair: Pair) -> Result<Self> {
        if pair.side.domain.caps & KFI_ATOMIC == 0 {
            return skip("the device has no atomics");
        }
        let buf = Buf::new(8192)?;
        buf.clear(0);
        let region = pair.side.reg(&buf, LOCAL | ALL)?.handle;
        let remote = if ctx.first() {
            let (_, remote) = pair.side.export(region, 0, 4096, ALL)?;
            ctx.ctl.send(&remote)?;
            remote
        } else {
            ctx.ctl.recv()?
        };
        Ok(Self {
            pair,
            buf,
            region,
            remote,
        })
    }

    fn at(&self, offset: u64) -> (u64, u64) {
        (self.remote.addr + offset, self.remote.key)
    }

    /// Runs an operation on a value at the start of the memory. Returns the bytes that it fetched.
    fn run(&self, form: u32, what: (u32, u32), values: &[u8], size: usize) -> Result<Vec<u8>> {
        let result = [iov(self.region, 4096, size as u64)];
        let result = if form == KFI_OP_ATOMIC {
            &[][..]
        } else {
            &result
        };
        self.pair
            .post(op::atomic(form, what, values, result, self.at(0)))?;
        self.pair.wait()?;
        Ok(self.buf.read(4096, size))
    }

    /// Writes a value at the start of the peer's memory.
    fn put(&self, bytes: &[u8]) -> Result<()> {
        self.buf.write(4096, bytes);
        let (addr, key) = self.at(0);
        let len = bytes.len() as u64;
        self.pair.write(self.region, 4096, len, addr, key)
    }

    /// Reads the value at the start of the peer's memory.
    fn look(&self, size: usize) -> Result<u64> {
        let (addr, key) = self.at(0);
        self.pair.read(self.region, 4096, size as u64, addr, key)?;
        Ok(value(&self.buf.read(4096, size)))
    }
}

fn value(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// Tries every operation of every form and type: it matches the model, or is refused as
/// unsupported.
fn what_is_offered(ctx: &mut Ctx) -> Result<()> {
    const VALUES: [u64; 6] = [
        0,
        1,
        0x7f7f_7f7f_7f7f_7f7f,
        u64::MAX,
        1 << 63,
        0x0123_4567_89ab_cdef,
    ];
    let bench = Bench::new(ctx)?;
    if ctx.first() {
        return ctx.barrier("done");
    }
    let (dev, domain) = (bench.pair.dev(), bench.pair.side.domain.handle);
    let (mut offered, mut all) = (0, 0);
    for (number, form) in FORMS {
        for what in 0..20 {
            for datatype in 0..9 {
                let count = dev.query_atomic(domain, number, what, datatype);
                let title = format!("form {number}, operation {what}, type {datatype}");
                let op = Op::new(what).filter(|op| op.has(form));
                let (Some(op), Some(ty)) = (op, Datatype::new(datatype)) else {
                    refused(count, libc::EINVAL, &title)?;
                    continue;
                };
                all += 1;
                let size = ty.size();
                let wants = if form == Form::Compare { 2 } else { 1 };
                let count = match count {
                    Ok(count) => count,
                    Err(e) => {
                        refused(Err::<(), _>(e), libc::EOPNOTSUPP, &title)?;
                        let values = vec![0; wants * size];
                        let values = if op.has_operand() { &values[..] } else { &[] };
                        let result = [iov(bench.region, 4096, size as u64)];
                        let result = if form == Form::Base { &[][..] } else { &result };
                        let post =
                            op::atomic(number, (what, datatype), values, result, bench.at(0));
                        refused(bench.pair.post(post), libc::EOPNOTSUPP, &title)?;
                        continue;
                    }
                };
                ensure!(count >= 1, "{title}: {count} at a time");
                offered += 1;
                let picks = |i: usize| (VALUES[i % 6], VALUES[(i / 2) % 6], VALUES[(i / 3) % 6]);
                for (there, operand, compare) in (0..12).map(picks) {
                    let low = |v: u64| v.to_le_bytes()[..size].to_vec();
                    bench.put(&low(there))?;
                    let mut values = Vec::new();
                    if op.has_operand() {
                        values.extend(low(operand));
                    }
                    if form == Form::Compare {
                        values.extend(low(compare));
                    }
                    let old = bench
                        .run(number, (what, datatype), &values, size)
                        .with_context(|| title.clone())?;
                    let there = value(&low(there));
                    if form != Form::Base {
                        ensure!(
                            value(&old) == there,
                            "{title}: fetched {old:x?} of {there:#x}"
                        );
                    }
                    let wanted = op.apply(ty, there, operand, compare).unwrap_or(there);
                    let now = bench.look(size)?;
                    ensure!(
                        now == wanted,
                        "{title}: {there:#x} with {operand:#x}, {compare:#x} is {now:#x}, not {wanted:#x}"
                    );
                }
            }
        }
    }
    ensure!(offered >= 8, "{offered} offered");
    // A processor performs all of them.
    let lacks = ctx.provider() == "kshm" && offered < all;
    ensure!(!lacks, "{offered} offered of {all}");
    eprintln!("{offered} kinds of atomics");
    ctx.barrier("done")
}

/// Two connections add to one value at once, fetching and not: every sum counts, and no two fetch
/// the same value.
fn nothing_is_lost(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: usize = 300;
    let bench = Bench::new(ctx)?;
    let other = Pair::on(ctx, Side::open(ctx)?, &Opts::default())?;
    // The second connection is of another domain, so it has a key of its own on the same bytes.
    let remote: Remote = if ctx.first() {
        let region = other.side.reg(&bench.buf, LOCAL | ALL)?.handle;
        let (_, remote) = other.side.export(region, 0, 4096, ALL)?;
        ctx.ctl.send(&remote)?;
        ctx.barrier("added")?;
        let sum = bench.buf.get64(0);
        ensure!(
            sum == 3 * ROUNDS as u64,
            "{sum} after {} additions",
            3 * ROUNDS
        );
        return ctx.barrier("done");
    } else {
        ctx.ctl.recv()?
    };
    let results = Buf::new(ROUNDS * 8)?;
    let mine = other.side.reg(&results, LOCAL)?.handle;
    let one = 1u64.to_ne_bytes();
    let room = [iov(bench.region, 4096, 8)];
    let (mut sent, mut done) = ([0, 0, 0], 0);
    while done < 3 * ROUNDS {
        for (kind, sent) in sent.iter_mut().enumerate() {
            if *sent == ROUNDS {
                continue;
            }
            let at = [iov(mine, 8 * *sent as u64, 8)];
            let (pair, post) = match kind {
                0 => (
                    &other,
                    op::atomic(
                        KFI_OP_FETCH_ATOMIC,
                        SUM,
                        &one,
                        &at,
                        (remote.addr, remote.key),
                    ),
                ),
                1 => (
                    &bench.pair,
                    op::atomic(KFI_OP_ATOMIC, SUM, &one, &[], bench.at(0)),
                ),
                _ => (
                    &bench.pair,
                    op::atomic(KFI_OP_FETCH_ATOMIC, SUM, &one, &room, bench.at(0)),
                ),
            };
            match pair.post(post) {
                Ok(()) => *sent += 1,
                Err(e) if e.errno.0 == libc::EAGAIN => {}
                Err(e) => return Err(e.into()),
            }
        }
        for pair in [&other, &bench.pair] {
            while let Some(entry) = pair.cq.read() {
                ensure!(entry.err == 0, "{entry:?}");
                done += 1;
            }
        }
    }
    let mut fetched: Vec<_> = (0..ROUNDS).map(|i| results.get64(8 * i)).collect();
    ensure!(
        fetched.is_sorted(),
        "of one connection, later ones fetched less: {fetched:?}"
    );
    fetched.dedup();
    ensure!(fetched.len() == ROUNDS, "two fetched the same");
    ctx.barrier("added")?;
    ctx.barrier("done")
}

/// A plain counter under a lock by compare-and-swap: two connections, one at a time.
fn a_lock(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 40;
    let bench = Bench::new(ctx)?;
    if ctx.first() {
        ctx.barrier("counted")?;
        let (lock, count) = (bench.buf.get64(0), bench.buf.get64(8));
        ensure!((lock, count) == (0, ROUNDS), "lock {lock}, count {count}");
        return ctx.barrier("done");
    }
    let cswap = (KFI_ATOMIC_CSWAP, KFI_UINT64);
    let both = |new: u64, old: u64| [new.to_ne_bytes(), old.to_ne_bytes()].concat();
    let (addr, key) = bench.at(8);
    let pair = &bench.pair;
    for round in 0..ROUNDS {
        // Another owner has the lock first, now and then.
        if round % 4 == 0 {
            let old = bench.run(KFI_OP_COMPARE_ATOMIC, cswap, &both(7, 0), 8)?;
            ensure!(value(&old) == 0, "the lock was {old:?}");
            let old = bench.run(KFI_OP_COMPARE_ATOMIC, cswap, &both(9, 0), 8)?;
            ensure!(
                value(&old) == 7 && bench.look(8)? == 7,
                "taken twice: {old:?}"
            );
            bench.run(KFI_OP_COMPARE_ATOMIC, cswap, &both(0, 7), 8)?;
        }
        let old = bench.run(KFI_OP_COMPARE_ATOMIC, cswap, &both(9, 0), 8)?;
        ensure!(value(&old) == 0, "round {round}: the lock was {old:?}");
        pair.read(bench.region, 4096, 8, addr, key)?;
        let count = bench.buf.get64(4096);
        ensure!(count == round, "round {round}: {count}");
        bench.buf.set64(4096, count + 1);
        pair.write(bench.region, 4096, 8, addr, key)?;
        let old = bench.run(KFI_OP_COMPARE_ATOMIC, cswap, &both(0, 9), 8)?;
        ensure!(value(&old) == 9, "round {round}: the lock was {old:?}");
    }
    ctx.barrier("counted")?;
    ctx.barrier("done")
}

/// P2: a key allows atomics only if that was requested, and on its own bytes alone. Its region must
/// allow them, too.
fn rights(ctx: &mut Ctx) -> Result<()> {
    let bench = Bench::new(ctx)?;
    let side = &bench.pair.side;
    let read_write = side.reg(&bench.buf, LOCAL | REMOTE)?.handle;
    let slot = side.dev.key_alloc(read_write, 1)?[0];
    let more = side.dev.key_assign(slot, 0, 64, ALL);
    refused(more, libc::EACCES, "more than the region allows")?;
    for access in [
        KFI_ATOMIC,
        KFI_ATOMIC | KFI_REMOTE_READ,
        KFI_ATOMIC | KFI_REMOTE_WRITE,
    ] {
        let slot = side.dev.key_alloc(bench.region, 1)?[0];
        let alone = side.dev.key_assign(slot, 0, 64, access);
        refused(alone, libc::EINVAL, &format!("access {access:#x}"))?;
        let alone = side.reg(&bench.buf, LOCAL | access);
        refused(alone, libc::EINVAL, &format!("a region for {access:#x}"))?;
        side.dev.close(slot)?;
    }
    // Each case ends its connection, so it has one of its own.
    for case in 0..6 {
        let pair = Pair::on(ctx, Side::open(ctx)?, &Opts::default())?;
        if ctx.first() {
            let buf = Buf::new(4096)?;
            buf.clear(0);
            let region = pair.side.reg(&buf, LOCAL | ALL)?.handle;
            let access = [REMOTE, KFI_REMOTE_READ, KFI_REMOTE_WRITE, ALL, ALL, ALL][case];
            let (slot, remote) = pair.side.export(region, 64, 64, access)?;
            // Behind the key, before it, and at its old place.
            let addr = remote
                .addr
                .wrapping_add([0, 0, 0, 64, 0u64.wrapping_sub(8), 0][case]);
            if case == 5 {
                pair.dev().key_revoke(slot)?;
            }
            ctx.ctl.send(&Remote { addr, ..remote })?;
            ctx.barrier("tried")?;
            buf.check_value(0, buf.len(), 0)?;
        } else {
            let remote: Remote = ctx.ctl.recv()?;
            let one = 1u64.to_ne_bytes();
            let buf = Buf::new(4096)?;
            buf.clear(0x55);
            let region = pair.side.reg(&buf, LOCAL)?.handle;
            let at = (remote.addr, remote.key);
            let room = [iov(region, 0, 8)];
            let make = || op::atomic(KFI_OP_FETCH_ATOMIC, SUM, &one, &room, at);
            let done = hammer(pair.dev(), pair.ep, &pair.cq, 1, make)?;
            ensure!(done == 0, "case {case}: {done} were done");
            buf.check_value(0, buf.len(), 0x55)?;
            ctx.barrier("tried")?;
        }
    }
    ctx.barrier("done")
}

/// Form, operation and type, operands, result memory, and the fault.
type Case<'a> = (u32, (u32, u32), &'a [u8], &'a [Iov], &'a str);

/// P3: peers count without pause, each through a key of its own. From the return of a revocation on
/// the key's counter stands still, at once and 100 ms later. With `ordered` the key is assigned by
/// an ordered batch, a message brings it to the peer, and every other key is revoked at once.
fn stands_still(ctx: &mut Ctx, ordered: bool) -> Result<()> {
    let turns = if sys::slowness() > 1 { 3 } else { 12 };
    let mut lanes = Lanes::new(ctx)?;
    if lanes.side.domain.caps & KFI_ATOMIC == 0 {
        return skip("the device has no atomics");
    }
    let buf = Buf::new(8 * 2 * LANES)?;
    let region = lanes.side.reg(&buf, LOCAL | ALL)?.handle;
    for turn in 0..turns {
        lanes.connect(ctx)?;
        if ctx.first() {
            stop_counting(ctx, &lanes, region, &buf, ordered)
                .with_context(|| format!("turn {turn}"))?;
        } else {
            count_without_pause(ctx, &lanes, region, &buf)?;
        }
    }
    ctx.barrier("done")
}

/// Plays node 2 of [`stands_still`]: each connection takes its key from a message and counts until
/// it is refused. No fetched value exceeds the last value that the owner saw.
fn count_without_pause(ctx: &mut Ctx, lanes: &Lanes, region: u64, buf: &Buf) -> Result<()> {
    buf.clear(0);
    let dev = &lanes.side.dev;
    for (lane, ep) in lanes.eps.iter().enumerate() {
        dev.submit(*ep, &[op::recv(9, &[iov(region, 16 * lane as u64, 16)])])?;
    }
    ctx.barrier("posted")?;
    let one = 1_u64.to_ne_bytes();
    let run = |lane: usize| -> Result<u64> {
        let cq = &lanes.cqs[lane];
        let told = cq.wait(LONG)?;
        ensure!((told.err, told.context) == (0, 9), "lane {lane}: {told:?}");
        let remote = (buf.get64(16 * lane), buf.get64(16 * lane + 8));
        let result = [iov(lanes.region(), SPAN + 8 * lane as u64, 8)];
        let make = || op::atomic(KFI_OP_FETCH_ATOMIC, SUM, &one, &result, remote);
        hammer(dev, lanes.eps[lane], cq, 4, make)
    };
    let counted = std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = (0..LANES)
            .map(|lane| scope.spawn(move || run(lane)))
            .collect();
        running.into_iter().map(joined).collect::<Result<Vec<_>>>()
    })?;
    ctx.ctl.send(&counted)?;
    ctx.barrier("refused")
}

/// Plays node 1 of [`stands_still`].
fn stop_counting(
    ctx: &mut Ctx,
    lanes: &Lanes,
    region: u64,
    buf: &Buf,
    ordered: bool,
) -> Result<()> {
    let dev = &lanes.side.dev;
    buf.clear(0);
    let slots = dev.key_alloc(region, LANES as u32)?;
    ctx.barrier("posted")?;
    let counter = |lane: usize| buf.get64(16 * lane);
    let mut last = Vec::new();
    for (lane, slot) in slots.iter().enumerate() {
        let want = KeyEntry {
            access: ALL,
            ..entry(*slot, 16 * lane as u64, 8)
        };
        let got = match ordered {
            true => dev.key_order(&want, 0, 0)?,
            false => dev.key_assign(want.slot, want.offset, want.length, want.access)?,
        };
        let told = [got.remote_addr.to_ne_bytes(), got.key.to_ne_bytes()].concat();
        dev.submit(lanes.eps[lane], &[op::inject(op::send(0, &[]), &told)])?;
        if !ordered || lane % 2 == 1 {
            let end = Instant::now() + sys::patience(WAIT);
            while counter(lane) < 3 {
                ensure!(Instant::now() < end, "no count on lane {lane}");
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        dev.key_revoke(*slot)?;
        let stands = counter(lane);
        for _ in 0..1000 {
            let now = counter(lane);
            ensure!(now == stands, "lane {lane}: {stands}, then {now} at once");
        }
        last.push(stands);
    }
    let same = |when: &str| {
        let bad = (0..LANES).find(|lane| counter(*lane) != last[*lane]);
        bad.map_or(Ok(()), |lane| {
            let (was, now) = (last[lane], counter(lane));
            anyhow::bail!("lane {lane}: {was}, then {now} {when}")
        })
    };
    std::thread::sleep(Duration::from_millis(100));
    same("100 ms later")?;
    let counted: Vec<u64> = ctx.ctl.recv()?;
    // Operations that were performed but not answered are at most as many as were posted at once.
    for (lane, (done, seen)) in last.iter().zip(&counted).enumerate() {
        let fine = (*seen..=*seen + 4).contains(done);
        ensure!(fine, "lane {lane}: {done} were done, {seen} answered");
    }
    ctx.barrier("refused")?;
    same("before its peer had ended")?;
    Ok(slots.iter().try_for_each(|slot| dev.close(*slot))?)
}

/// Arguments that do not fit together are refused when posted, and the connection stays.
fn refused_arguments(ctx: &mut Ctx) -> Result<()> {
    let bench = Bench::new(ctx)?;
    if ctx.first() {
        ctx.barrier("tried")?;
        return bench.buf.check_value(0, 4096, 0);
    }
    let one = 1u64.to_ne_bytes();
    let two = [one, one].concat();
    let many = vec![0; KFI_INJECT_MAX + 8];
    let room = |len| [iov(bench.region, 4096, len)];
    let no = |post: OpEntry, errno, what: &str| refused(bench.pair.post(post), errno, what);
    let (base, fetch, compare) = (KFI_OP_ATOMIC, KFI_OP_FETCH_ATOMIC, KFI_OP_COMPARE_ATOMIC);
    let at = bench.at(0);
    let cswap = (KFI_ATOMIC_CSWAP, KFI_UINT64);
    let read = (KFI_ATOMIC_READ, KFI_UINT64);
    for offset in 1..8 {
        let post = op::atomic(base, SUM, &one, &[], bench.at(offset));
        no(post, libc::EINVAL, "an address between values")?;
    }
    let cases: &[Case<'_>] = &[
        (base, SUM, &[], &[], "no operand"),
        (base, SUM, &one[..7], &[], "a part of an operand"),
        (
            base,
            SUM,
            &one,
            &room(8),
            "memory for a result that does not come back",
        ),
        (fetch, SUM, &one, &[], "no room"),
        (fetch, SUM, &one, &room(7), "too little room"),
        (fetch, SUM, &one, &room(16), "too much room"),
        (fetch, read, &one, &room(8), "an operand of a read"),
        (fetch, read, &[], &room(7), "a read of a part"),
        (fetch, read, &[], &[], "a read of nothing"),
        (compare, cswap, &one, &room(8), "nothing to compare with"),
        (
            compare,
            cswap,
            &two[..15],
            &room(8),
            "a part to compare with",
        ),
        (base, cswap, &two, &[], "a comparison that does not fetch"),
        (fetch, cswap, &two, &room(8), "a comparison with nothing"),
        (compare, SUM, &two, &room(8), "a sum with a comparison"),
        (base, read, &[], &[], "a read that does not fetch"),
        (base, (19, KFI_UINT64), &one, &[], "an unknown operation"),
        (base, (KFI_ATOMIC_SUM, 8), &one, &[], "an unknown type"),
        (base, (u32::MAX, u32::MAX), &one, &[], "neither known"),
    ];
    for (form, what, values, result, title) in cases {
        no(
            op::atomic(*form, *what, values, result, at),
            libc::EINVAL,
            title,
        )?;
    }
    let right = op::atomic(base, SUM, &one, &[], at);
    no(op::with_data(right, 1), libc::EINVAL, "data for the peer")?;
    let fetching = op::atomic(fetch, SUM, &one, &room(8), at);
    no(
        op::with_flags(fetching, KFI_INJECT),
        libc::EINVAL,
        "a fetch that is forgotten",
    )?;
    no(
        op::atomic(base, SUM, &many, &[], at),
        libc::EMSGSIZE,
        "too many",
    )?;
    let plain = op::write(1, &room(8), at.0, at.1);
    for (atomic_op, datatype) in [(1, 0), (0, 1)] {
        let post = OpEntry {
            atomic_op,
            datatype,
            ..plain
        };
        no(post, libc::EINVAL, "a write with an atomic's fields")?;
    }
    let gone = OpEntry { inject: 8, ..right };
    no(gone, libc::EFAULT, "operands that are not there")?;
    let elsewhere = op::atomic(fetch, SUM, &one, &[iov(bench.region, 8192, 8)], at);
    no(elsewhere, libc::EINVAL, "room behind the region")?;
    let source = bench.pair.side.reg(&bench.buf, KFI_WRITE)?.handle;
    let not_there = op::atomic(fetch, SUM, &one, &[iov(source, 0, 8)], at);
    no(not_there, libc::EACCES, "room that may not be read into")?;
    // None of the refused operations changed anything.
    ensure!(bench.look(8)? == 0, "something was done");
    ctx.barrier("tried")
}

/// Atomics count as writes, fetching ones as reads; their completions say which.
fn counters(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let domain = side.domain.handle;
    let (reads, writes) = (side.dev.cntr_open(domain)?, side.dev.cntr_open(domain)?);
    let opts = Opts {
        counters: vec![(reads, KFI_READ), (writes, KFI_WRITE)],
        ..Opts::default()
    };
    let pair = Pair::on(ctx, side, &opts)?;
    let bench = Bench::on(ctx, pair)?;
    if ctx.first() {
        ctx.barrier("tried")?;
        ensure!(bench.buf.get64(0) == 3, "{} was added", bench.buf.get64(0));
        return ctx.barrier("done");
    }
    let one = 1u64.to_ne_bytes();
    let room = [iov(bench.region, 4096, 8)];
    let base = op::atomic(KFI_OP_ATOMIC, SUM, &one, &[], bench.at(0));
    let fetch = op::atomic(KFI_OP_FETCH_ATOMIC, SUM, &one, &room, bench.at(0));
    for (post, flags) in [
        (base, KFI_ATOMIC | KFI_WRITE),
        (fetch, KFI_ATOMIC | KFI_READ),
    ] {
        bench.pair.post(post)?;
        let entry = bench.pair.wait_context(1)?;
        ensure!((entry.flags, entry.len) == (flags, 8), "{entry:?}");
    }
    // An operation whose completion only the counter shows.
    bench.pair.post(op::with_flags(base, KFI_INJECT))?;
    bench.pair.dev().cntr_wait(writes, 2, WAIT)?;
    let dev = bench.pair.dev();
    let counts = (dev.cntr_read(reads)?, dev.cntr_read(writes)?);
    ensure!(counts == ((1, 0), (2, 0)), "{counts:?}");
    ensure!(
        bench.pair.cq.read().is_none(),
        "an entry of an injected operation"
    );
    ctx.barrier("tried")?;
    ctx.barrier("done")
}

/// Runs the same through libkfabric.
fn library(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let count = lib
        .domain
        .query_atomic::<u64>(AtomicForm::Fetch, AtomicOp::Sum)?;
    ensure!(count >= 1, "{count} at a time");
    let none = lib
        .domain
        .query_atomic::<u64>(AtomicForm::Base, AtomicOp::Cswap);
    ensure!(none.is_err(), "a comparison that does not fetch");
    let ep = lib.connect(ctx)?;
    let access = Access::LOCAL | Access::REMOTE | Access::ATOMIC;
    let attr = RegionAttr::new(access).dynamic_keys();
    let region = lib.domain.register_with(Memory::anonymous(4096)?, &attr)?;
    if ctx.first() {
        region.write_at(0, &40u64.to_ne_bytes());
        let keys = region.alloc_keys(1)?;
        let got = keys[0].assign(0, 8, Access::REMOTE | Access::ATOMIC)?;
        ctx.ctl.send(&(got.addr, got.key))?;
        ctx.barrier("changed")?;
        let now = region.to_vec(0, 8);
        ensure!(now == 77u64.to_ne_bytes(), "{now:?}");
        return ctx.barrier("done");
    }
    let (addr, key) = ctx.ctl.recv()?;
    let remote = RemoteMem { addr, key };
    let room = [region.segment(8..16)];
    let old = || region.to_vec(8, 8);
    ep.post(&LibOp::fetch_atomic(AtomicOp::Sum, &[2u64], &room, remote).context(5))?;
    let done = lib.cq.wait(WAIT)?.ok()?;
    let flags = CompFlags::ATOMIC | CompFlags::READ;
    ensure!(
        done.context() == 5 && done.flags().contains(flags),
        "{done:?}"
    );
    ensure!(old() == 40u64.to_ne_bytes(), "{:?}", old());
    ep.post(&LibOp::compare_atomic(
        AtomicOp::Cswap,
        &[77u64, 42],
        &room,
        remote,
    ))?;
    lib.cq.wait(WAIT)?.ok()?;
    ensure!(old() == 42u64.to_ne_bytes(), "{:?}", old());
    ctx.barrier("changed")?;
    ctx.barrier("done")
}
