// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys and their promises P1, P2, P3, P5.
//!
//! A refused access ends the connection on both sides (a rule of the fabric), so tests of refusals
//! connect anew for each.

use super::modules::{add_link, delete_link};
use super::refused;
use crate::buf::Buf;
use crate::harness::caps::{FENCED_READS, READ_RIGHTS, REMOTE_ERRORS, WIDE_WINDOWS};
use crate::harness::leaks::vm_pin;
use crate::harness::{skip, Ctx, Test, NETNS, SMOKE};
use crate::op::{self, iov};
use crate::pair::{connect, Opts, Pair, Remote, Side, LOCAL, LONG, REMOTE};
use crate::raw::{Cq, Dev};
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p01_region_without_key_is_unreachable",
        no_key_no_reach,
    )
    .seconds(15),
    Test::pair("keys.p01_region_without_key_works_locally", local_use),
    Test::pair("keys.p02_access_beyond_range_is_refused", range_is_exact).seconds(20),
    Test::pair("keys.p02_access_beyond_rights_is_refused", rights_are_exact)
        .seconds(8)
        .needs(READ_RIGHTS),
    Test::pair("keys.p02_key_on_other_domain_is_refused", other_domain).seconds(8),
    Test::pair("keys.p02_access_beyond_large_range_is_refused", large_range)
        .seconds(15)
        .needs(WIDE_WINDOWS),
    Test::pair(
        "keys.p02_writes_through_adjacent_windows_stay_within_each",
        many_windows,
    )
    .seconds(10),
    Test::pair("keys.p03_access_after_revoke_is_refused", revoke_refuses)
        .seconds(8)
        .also(SMOKE),
    Test::pair(
        "keys.p03_revoke_under_writes_lets_no_byte_land_after_return",
        revoke_is_synchronous,
    )
    .seconds(40),
    Test::pair(
        "keys.p03_revoke_under_reads_shows_no_later_byte",
        revoke_under_reads,
    )
    .needs(FENCED_READS)
    .seconds(15),
    Test::pair("keys.p04_stale_key_after_reassign_is_refused", stale_key).seconds(30),
    Test::pair(
        "keys.p04_keys_of_recreated_device_never_repeat",
        no_key_twice,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair("keys.p05_pages_under_live_key_stay_pinned", pages_stay),
    Test::pair(
        "keys.cve_2023_25775_zero_length_grants_nothing",
        zero_length,
    )
    .needs(REMOTE_ERRORS)
    .seconds(12),
];

/// A side with queue and buffer that connects again and again.
pub(super) struct Bench {
    pub(super) side: Side,
    pub(super) cq: Cq,
    pub(super) buf: Buf,
    pub(super) region: u64,
    /// A refused operation completes with the reason.
    remote_errors: bool,
    ep: Option<u64>,
}

impl Bench {
    pub(super) fn new(ctx: &Ctx, len: usize) -> Result<Self> {
        Self::over(ctx, Buf::new(len)?)
    }

    /// Opens a side whose queue pairs use `buf`.
    pub(super) fn over(ctx: &Ctx, buf: Buf) -> Result<Self> {
        let side = Side::open(ctx)?;
        let cq = side.cq(0, KFI_CQ_FORMAT_DATA)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        Ok(Self {
            side,
            cq,
            buf,
            region,
            remote_errors: ctx.has(REMOTE_ERRORS)?,
            ep: None,
        })
    }

    /// Makes a fresh connection; both nodes call this.
    pub(super) fn fresh(&mut self, ctx: &mut Ctx) -> Result<u64> {
        if let Some(ep) = self.ep.take() {
            self.side
                .dev
                .close(ep)
                .context("closing the last endpoint")?;
            while self.side.dev.eq_read(self.side.eq.handle, 0).is_ok() {}
            while self.cq.read().is_some() {}
        }
        let ep = connect(ctx, &self.side, &Opts::default(), &self.cq)?.handle;
        self.ep = Some(ep);
        Ok(ep)
    }

    /// Runs one operation on the live connection. Returns its errno, 0 for a success.
    pub(super) fn run(&self, op: OpEntry) -> Result<i32> {
        let ep = self.ep.context("no connection")?;
        self.side.dev.submit(ep, &[op])?;
        Ok(self.cq.wait(LONG)?.err as i32)
    }

    pub(super) fn write(&self, len: u64, addr: u64, key: u64) -> Result<i32> {
        self.run(op::write(1, &[iov(self.region, 0, len)], addr, key))
    }

    pub(super) fn read(&self, len: u64, addr: u64, key: u64) -> Result<i32> {
        self.run(op::read(1, &[iov(self.region, 0, len)], addr, key))
    }
}

impl Bench {
    /// Returns whether the peer has refused a write or read that ended with `errno`: with `EACCES`, or
    /// `EREMOTEIO` if the fabric knows no more. If the device cannot tell, the connection ends.
    fn is_refused(&self, write: bool, errno: i32) -> bool {
        match errno {
            libc::EACCES | libc::EREMOTEIO => true,
            0 if write && !self.remote_errors => self.side.event(KFI_SHUTDOWN).is_ok(),
            libc::ECANCELED if !self.remote_errors => true,
            _ => false,
        }
    }
}

/// An access that node 2 tries, and whether it must succeed.
#[derive(serde::Serialize, serde::Deserialize, Clone, Debug)]
pub(super) struct Try {
    pub(super) what: String,
    pub(super) write: bool,
    pub(super) len: u64,
    pub(super) addr: u64,
    pub(super) key: u64,
    pub(super) fine: bool,
}

impl Try {
    pub(super) fn new(what: &str, write: bool, len: u64, addr: u64, key: u64, fine: bool) -> Self {
        Self {
            what: what.into(),
            write,
            len,
            addr,
            key,
            fine,
        }
    }
}

/// Node 1 passes a list; node 2 tries each access, on a fresh connection if the last one was
/// refused ([`Bench::is_refused`]).
pub(super) fn try_all(ctx: &mut Ctx, bench: &mut Bench, list: Vec<Try>) -> Result<()> {
    let list: Vec<Try> = if ctx.first() {
        ctx.ctl.send(&list)?;
        list
    } else {
        ctx.ctl.recv()?
    };
    let mut fresh = true;
    for t in &list {
        if fresh {
            bench.fresh(ctx).with_context(|| t.what.clone())?;
        }
        fresh = !t.fine;
        if !ctx.first() {
            let errno = if t.write {
                bench.write(t.len, t.addr, t.key)?
            } else {
                bench.read(t.len, t.addr, t.key)?
            };
            let well = if t.fine {
                errno == 0
            } else {
                bench.is_refused(t.write, errno)
            };
            ensure!(well, "{}, allowed {}: errno {errno}", t.what, t.fine);
        }
        ctx.barrier(&t.what)?;
    }
    Ok(())
}

/// P1: neither a neighbour's key nor a guess reaches a region without a key.
fn no_key_no_reach(ctx: &mut Ctx) -> Result<()> {
    let mut bench = Bench::new(ctx, 16 << 10)?;
    bench.buf.clear(0x5a);
    let mut list = Vec::new();
    if ctx.first() {
        let hidden = Buf::new(8192)?;
        hidden.clear(0x66);
        let secret = bench.side.reg(&hidden, LOCAL | REMOTE)?;
        ensure!(secret.key == KFI_KEY_NOTAVAIL, "it has a key");
        let at = hidden.addr();
        let (slot, near) = bench.side.export(bench.region, 0, 4096, REMOTE)?;
        for write in [true, false] {
            list.push(Try::new(
                "the neighbour's key",
                write,
                8,
                at,
                near.key,
                false,
            ));
        }
        // Values around a key that exists: next index, next generation.
        for delta in [1u64, 0x100, 0x200, 0x1000] {
            for key in [near.key.wrapping_add(delta), near.key.wrapping_sub(delta)] {
                let key = key & 0xffff_ffff;
                list.push(Try::new(&format!("key {key:#x}"), true, 8, at, key, false));
            }
        }
        for key in [0, 1, u64::from(u32::MAX)] {
            list.push(Try::new(&format!("key {key:#x}"), false, 8, at, key, false));
        }
        try_all(ctx, &mut bench, list)?;
        hidden
            .check_value(0, 8192, 0x66)
            .context("memory without a key was changed")?;
        bench.side.dev.close(slot)?;
        return Ok(());
    }
    try_all(ctx, &mut bench, list)
}

/// P1: a region whose keys come later has none until then, nor has a slot of it. Its owner sends
/// from it, receives into it, and writes from it to a peer's memory and reads from there all the
/// same.
fn local_use(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 4096;
    let mut bench = Bench::new(ctx, 4 * SIZE as usize)?;
    let ep = bench.fresh(ctx)?;
    let dev = &bench.side.dev;
    let piece = |part: u64| [iov(bench.region, part * SIZE, SIZE)];
    let done = |op: OpEntry| -> Result<()> {
        dev.submit(ep, &[op])?;
        let e = bench.cq.wait(LONG)?;
        ensure!(e.err == 0, "{e:?}");
        Ok(())
    };
    if !ctx.first() {
        let (_, remote) = bench.side.export(bench.region, 2 * SIZE, SIZE, REMOTE)?;
        bench.buf.clear(0);
        dev.submit(ep, &[op::recv(1, &piece(0))])?;
        ctx.ctl.send(&remote)?;
        ctx.barrier("posted")?;
        let got = bench.cq.wait(LONG)?;
        ensure!((got.err, got.len) == (0, SIZE), "{got:?}");
        bench.buf.check_part(0, SIZE as usize, 1)?;
        done(op::send(2, &piece(0)))?;
        ctx.barrier("written")?;
        bench.buf.check_part(2 * SIZE as usize, SIZE as usize, 1)?;
        // After an assign the key works, and not before.
        let key: Remote = ctx.ctl.recv()?;
        ensure!(bench.read(SIZE, key.addr, key.key)? == 0, "its key");
        bench.buf.check_part(0, SIZE as usize, 1)?;
        return ctx.barrier("read");
    }
    let again = bench.side.reg(&bench.buf, LOCAL | REMOTE)?;
    ensure!(again.key == KFI_KEY_NOTAVAIL, "it has a key: {again:?}");
    let slot = dev.key_alloc(bench.region, 1)?[0];
    let nothing_yet = || -> Result<()> {
        let all = dev.obj_list()?;
        let me = std::process::id();
        let of_slot = all.iter().find(|o| (o.pid, o.handle) == (me, slot));
        let of_slot = of_slot.context("no slot")?;
        ensure!((of_slot.a, of_slot.b) == (0, 0), "{of_slot:?}");
        Ok(())
    };
    nothing_yet()?;
    bench.buf.clear(0);
    bench.buf.fill_part(0, SIZE as usize, 1);
    let theirs: Remote = ctx.ctl.recv()?;
    ctx.barrier("posted")?;
    dev.submit(ep, &[op::recv(3, &piece(1))])?;
    dev.submit(ep, &[op::send(1, &piece(0))])?;
    // The peer answers once it has the message, which may be before the send's completion.
    let mut both = [bench.cq.wait(LONG)?, bench.cq.wait(LONG)?];
    both.sort_by_key(|e| e.context);
    let told = both.map(|e| (e.err, e.context, e.len));
    ensure!(told == [(0, 1, SIZE), (0, 3, SIZE)], "{both:?}");
    bench.buf.check_part(SIZE as usize, SIZE as usize, 1)?;
    done(op::write(4, &piece(1), theirs.addr, theirs.key))?;
    done(op::read(5, &piece(3), theirs.addr, theirs.key))?;
    bench.buf.check_part(3 * SIZE as usize, SIZE as usize, 1)?;
    ctx.barrier("written")?;
    nothing_yet()?;
    let key = bench.side.assign(slot, 3 * SIZE, SIZE, KFI_REMOTE_READ)?;
    ensure!(key.key != KFI_KEY_NOTAVAIL, "{key:?}");
    ctx.ctl.send(&key)?;
    ctx.barrier("read")
}

/// P2: no byte before or behind the range is reachable, at any alignment.
fn range_is_exact(ctx: &mut Ctx) -> Result<()> {
    let mut bench = Bench::new(ctx, 32 << 10)?;
    bench.buf.clear(0x5a);
    let mut list = Vec::new();
    if ctx.first() {
        for (off, len) in [(4096u64, 4096u64), (5001, 3), (8191, 4098), (1, 1)] {
            let (_, r) = bench.side.export(bench.region, off, len, REMOTE)?;
            let what = |s: &str| format!("{s} [{off}, +{len})");
            list.push(Try::new(&what("all of"), true, len, r.addr, r.key, true));
            list.push(Try::new(
                &what("the last byte of"),
                false,
                1,
                r.addr + len - 1,
                r.key,
                true,
            ));
            list.push(Try::new(
                &what("the byte before"),
                true,
                1,
                r.addr - 1,
                r.key,
                false,
            ));
            list.push(Try::new(
                &what("the byte behind"),
                true,
                1,
                r.addr + len,
                r.key,
                false,
            ));
            list.push(Try::new(
                &what("one byte too many of"),
                false,
                len + 1,
                r.addr,
                r.key,
                false,
            ));
        }
    }
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        for at in [0usize, 4095, 8192, 8190, 12_289] {
            ensure!(bench.buf.get(at) == 0x5a, "byte {at} was changed");
        }
    }
    ctx.barrier("done")
}

fn rights_are_exact(ctx: &mut Ctx) -> Result<()> {
    let mut bench = Bench::new(ctx, 8192)?;
    bench.buf.clear(0x5a);
    let mut list = Vec::new();
    if ctx.first() {
        let mut add = |access, read, write| -> Result<()> {
            let (_, r) = bench.side.export(bench.region, 100, 1000, access)?;
            list.push(Try::new(
                &format!("a read with {access:#x}"),
                false,
                1000,
                r.addr,
                r.key,
                read,
            ));
            list.push(Try::new(
                &format!("a write with {access:#x}"),
                true,
                1000,
                r.addr,
                r.key,
                write,
            ));
            Ok(())
        };
        add(KFI_REMOTE_READ, true, false)?;
        add(KFI_REMOTE_WRITE, false, true)?;
        add(REMOTE, true, true)?;
    } else {
        bench.buf.clear(0x11);
    }
    try_all(ctx, &mut bench, list)
}

/// A key of one domain is invalid on endpoints of another.
fn other_domain(ctx: &mut Ctx) -> Result<()> {
    let mut bench = Bench::new(ctx, 4096)?;
    bench.buf.clear(0x5a);
    let other = Bench::new(ctx, 4096)?;
    let mut list = Vec::new();
    if ctx.first() {
        let (_, r) = other.side.export(other.region, 0, 4096, REMOTE)?;
        list.push(Try::new(
            "another domain's key",
            true,
            8,
            r.addr,
            r.key,
            false,
        ));
        list.push(Try::new(
            "another domain's key",
            false,
            8,
            r.addr,
            r.key,
            false,
        ));
        let domain = bench.side.dev.domain_open(
            bench.side.fabric,
            &crate::raw::field_text(&crate::pair::own_info(&bench.side.dev, &ctx.env)?.domain_name),
        )?;
        let same_file =
            bench
                .side
                .dev
                .region_reg(domain.handle, other.buf.addr(), 4096, LOCAL | REMOTE, 1)?;
        let (_, r) = bench.side.export(same_file.handle, 0, 4096, REMOTE)?;
        list.push(Try::new(
            "a key of another domain of the same file",
            true,
            8,
            r.addr,
            r.key,
            false,
        ));
    }
    try_all(ctx, &mut bench, list)
}

/// Ranges longer than `IB_WR_REG_MR` covers.
fn large_range(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 20 << 20;
    let mut bench = Bench::new(ctx, SIZE as usize)?;
    bench.buf.clear(0x5a);
    let mut list = Vec::new();
    if ctx.first() {
        for (off, len) in [(4097, 2 << 20), (777, 9_000_000), (0, SIZE)] {
            let (_, r) = bench.side.export(bench.region, off, len, REMOTE)?;
            let what = |s: &str| format!("{s} [{off}, +{len})");
            list.push(Try::new(
                &what("the first byte of"),
                true,
                1,
                r.addr,
                r.key,
                true,
            ));
            list.push(Try::new(
                &what("the last byte of"),
                true,
                1,
                r.addr + len - 1,
                r.key,
                true,
            ));
            list.push(Try::new(
                &what("the byte before"),
                true,
                1,
                r.addr - 1,
                r.key,
                false,
            ));
            list.push(Try::new(
                &what("the byte behind"),
                false,
                1,
                r.addr + len,
                r.key,
                false,
            ));
        }
        let (_, r) = bench
            .side
            .export(bench.region, 5, SIZE - 5, KFI_REMOTE_READ)?;
        list.push(Try::new(
            "a write with a large key for reading",
            true,
            8,
            r.addr,
            r.key,
            false,
        ));
    }
    try_all(ctx, &mut bench, list)
}

/// Many adjacent keys on one region: each write lands in its own window.
fn many_windows(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 100;
    const SIZE: usize = 777;
    let mut bench = Bench::new(ctx, COUNT * SIZE)?;
    bench.fresh(ctx)?;
    if ctx.first() {
        bench.buf.clear(0);
        let slots = bench.side.dev.key_alloc(bench.region, COUNT as u32)?;
        let remotes = slots.iter().enumerate().map(|(i, s)| {
            bench
                .side
                .assign(*s, (i * SIZE) as u64, SIZE as u64, REMOTE)
        });
        ctx.ctl.send(&remotes.collect::<Result<Vec<_>>>()?)?;
        ctx.barrier("written")?;
        (0..COUNT).try_for_each(|i| bench.buf.check_part(i * SIZE, SIZE, i as u64))?;
        return bench.buf.check_guards();
    }
    let remotes: Vec<Remote> = ctx.ctl.recv()?;
    for (i, r) in remotes.iter().enumerate().rev() {
        bench.buf.fill_part(0, SIZE, i as u64);
        ensure!(bench.write(SIZE as u64, r.addr, r.key)? == 0, "window {i}");
    }
    ctx.barrier("written")
}

fn revoke_refuses(ctx: &mut Ctx) -> Result<()> {
    /// A long write is refused while it is sent.
    const LONG: u64 = 512 << 10;
    let mut bench = Bench::new(ctx, LONG as usize)?;
    bench.buf.clear(0x5a);
    for (write, len) in [(false, 4096), (true, 4096), (false, LONG), (true, LONG)] {
        bench.fresh(ctx)?;
        if ctx.first() {
            let (slot, remote) = bench.side.export(bench.region, 0, len, REMOTE)?;
            ctx.ctl.send(&remote)?;
            ctx.barrier("used")?;
            bench.side.dev.key_revoke(slot)?;
            bench.buf.clear(0x77);
            ctx.barrier("revoked")?;
            ctx.barrier("refused")?;
            bench.buf.check_value(0, LONG as usize, 0x77)?;
            continue;
        }
        let r: Remote = ctx.ctl.recv()?;
        let run = |b: &Bench| {
            if write {
                b.write(len, r.addr, r.key)
            } else {
                b.read(len, r.addr, r.key)
            }
        };
        ensure!(run(&bench)? == 0, "a key that lives");
        ctx.barrier("used")?;
        ctx.barrier("revoked")?;
        let errno = run(&bench)?;
        ensure!(
            bench.is_refused(write, errno),
            "a revoked key: errno {errno}"
        );
        ctx.barrier("refused")?;
    }
    Ok(())
}

/// Keeps `depth` operations posted until one fails. Returns the number of successes.
///
/// # Errors
///
/// If a call is refused for another reason, or nothing completes.
pub fn hammer(
    dev: &Dev,
    ep: u64,
    cq: &Cq,
    depth: usize,
    mut make: impl FnMut() -> OpEntry,
) -> Result<u64> {
    let (mut flying, mut done) = (0, 0);
    let mut failed = false;
    while !failed || flying > 0 {
        while flying < depth && !failed {
            match dev.submit(ep, &[make()]) {
                Ok(_) => flying += 1,
                Err(e) if e.errno.0 == libc::EAGAIN => break,
                Err(e) if [libc::ENOTCONN, libc::ESHUTDOWN, libc::ENODEV].contains(&e.errno.0) => {
                    failed = true
                }
                Err(e) => return Err(e.into()),
            }
        }
        if flying == 0 {
            break;
        }
        let e = cq.wait(LONG)?;
        flying -= 1;
        match e.err {
            0 => done += 1,
            _ => failed = true,
        }
    }
    Ok(done)
}

/// P3: once revoke has returned, a peer that hammers the range changes not one byte of it.
fn revoke_is_synchronous(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 64 << 10;
    let rounds = if ctx.env.topology == crate::harness::Topology::Two {
        20
    } else {
        40
    };
    let mut bench = Bench::new(ctx, SIZE)?;
    for round in 0..rounds {
        let ep = bench.fresh(ctx)?;
        if ctx.first() {
            let (slot, remote) = bench.side.export(bench.region, 0, SIZE as u64, REMOTE)?;
            bench.buf.clear(0);
            ctx.ctl.send(&remote)?;
            // Do not revoke before the writes have begun.
            let end = Instant::now() + crate::sys::patience(Duration::from_secs(20));
            while bench.buf.get64(0) == 0 && bench.buf.get64(SIZE - 8) == 0 {
                ensure!(Instant::now() < end, "round {round}: no write arrives");
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(round * 137 % 3000));
            bench.side.dev.key_revoke(slot)?;
            // From here on no peer may change the memory.
            bench.buf.clear(0);
            for _ in 0..50 {
                let bad = (0..SIZE).step_by(8).find(|i| bench.buf.get64(*i) != 0);
                if let Some(at) = bad {
                    bail!("round {round}: the bytes at {at} changed after revoke had returned");
                }
            }
            bench.side.dev.close(slot)?;
            ctx.barrier("refused")?;
            bench.buf.check_value(0, SIZE, 0)?;
        } else {
            let r: Remote = ctx.ctl.recv()?;
            bench.buf.clear(0xff);
            let piece = [iov(bench.region, 0, SIZE as u64)];
            hammer(&bench.side.dev, ep, &bench.cq, 16, || {
                op::write(1, &piece, r.addr, r.key)
            })?;
            ctx.barrier("refused")?;
        }
    }
    Ok(())
}

/// P3 for reads: the peer never sees bytes that are written after revoke has returned.
fn revoke_under_reads(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 16 << 10;
    let mut bench = Bench::new(ctx, SIZE)?;
    for round in 0..15u64 {
        let ep = bench.fresh(ctx)?;
        if ctx.first() {
            bench.buf.clear(0x11);
            let (slot, remote) =
                bench
                    .side
                    .export(bench.region, 0, SIZE as u64, KFI_REMOTE_READ)?;
            ctx.ctl.send(&remote)?;
            std::thread::sleep(Duration::from_micros(2000 + round * 1171 % 20_000));
            bench.side.dev.key_revoke(slot)?;
            bench.buf.clear(0x99);
            ctx.barrier("refused")?;
            bench.side.dev.close(slot)?;
        } else {
            let r: Remote = ctx.ctl.recv()?;
            bench.buf.clear(0);
            let piece = [iov(bench.region, 0, SIZE as u64)];
            hammer(&bench.side.dev, ep, &bench.cq, 8, || {
                op::read(1, &piece, r.addr, r.key)
            })?;
            let seen = (0..SIZE).find(|i| bench.buf.get(*i) == 0x99);
            ensure!(
                seen.is_none(),
                "round {round}: a secret was read at {seen:?}"
            );
            ctx.barrier("refused")?;
        }
    }
    Ok(())
}

/// P4: a slot that is assigned again, often enough for the hardware's key bits to wrap, has another
/// key each time, and the first key stays invalid.
fn stale_key(ctx: &mut Ctx) -> Result<()> {
    let mut bench = Bench::new(ctx, 8192)?;
    bench.fresh(ctx)?;
    if ctx.first() {
        let (slot, first) = bench.side.export(bench.region, 0, 4096, REMOTE)?;
        let mut last = first;
        let mut had = BTreeSet::from([first.key]);
        for round in 0..600 {
            bench.side.dev.key_revoke(slot)?;
            last = bench.side.assign(slot, 0, 4096, REMOTE)?;
            ensure!(had.insert(last.key), "round {round}: an old key came back");
        }
        ctx.ctl.send(&(first, last))?;
        ctx.barrier("tried")?;
    } else {
        let (first, last): (Remote, Remote) = ctx.ctl.recv()?;
        ensure!(
            bench.write(8, last.addr, last.key)? == 0,
            "the key that lives"
        );
        let errno = bench.write(8, first.addr, first.key)?;
        ensure!(bench.is_refused(true, errno), "a stale key: errno {errno}");
        ctx.barrier("tried")?;
    }
    Ok(())
}

/// P4: a recreated device numbers its keys from the beginning, so one hardware slot has more keys
/// in turn than its low byte can distinguish. No value is issued twice all the same.
fn no_key_twice(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: usize = 300;
    if sys::slowness() > 1 {
        return skip("300 devices take too long here");
    }
    let mut oldest = None;
    if ctx.first() {
        let mut had = BTreeMap::<u64, BTreeSet<u64>>::new();
        for round in 0..ROUNDS {
            delete_link(ctx)?;
            add_link(ctx)?;
            let side = Side::open(ctx)?;
            let buf = Buf::new(4096)?;
            let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
            let key = side.export(region, 0, 4096, REMOTE)?.1.key;
            let slot = had.entry(key >> 8).or_default();
            ensure!(slot.insert(key), "round {round}: {key:#x} came back");
            oldest.get_or_insert(key);
        }
        // Another test may have used some of the values.
        let most = had.values().map(BTreeSet::len).max().unwrap_or(0);
        // A device that draws its slots at random has nearly as many.
        let random = had.len() > ROUNDS * 9 / 10;
        ensure!(
            random || most > 80 && had.len() > 1,
            "{most} keys of a hardware slot, of {}",
            had.len()
        );
    }
    let mut bench = Bench::new(ctx, 8192)?;
    bench.fresh(ctx)?;
    if ctx.first() {
        let (_, remote) = bench.side.export(bench.region, 0, 4096, REMOTE)?;
        ctx.ctl.send(&(oldest, remote))?;
        ctx.barrier("tried")
    } else {
        let (oldest, remote): (Option<u64>, Remote) = ctx.ctl.recv()?;
        ensure!(
            bench.write(8, remote.addr, remote.key)? == 0,
            "the key that lives"
        );
        let oldest = oldest.context("the oldest key")?;
        let errno = bench.write(8, remote.addr, oldest)?;
        ensure!(
            bench.is_refused(true, errno),
            "the oldest key: errno {errno}"
        );
        ctx.barrier("tried")
    }
}

/// P5: pages stay pinned and charged until the key is gone, in whatever order the objects are
/// closed.
fn pages_stay(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(40_960)?;
    if ctx.first() {
        buf.fill(4);
        let region = pair.reg(&buf)?;
        let (slot, remote) = pair.side.export(region, 0, 40_960, KFI_REMOTE_READ)?;
        refused(pair.dev().close(region), libc::EBUSY, "closing the region")?;
        ensure!(vm_pin() == 40_960, "VmPin is {}", vm_pin());
        ctx.ctl.send(&remote)?;
        ctx.barrier("read")?;
        pair.dev().close(slot)?;
        pair.dev().close(region)?;
        ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    } else {
        let region = pair.reg(&buf)?;
        let remote: Remote = ctx.ctl.recv()?;
        pair.read(region, 0, 40_960, remote.addr, remote.key)?;
        buf.check(4)?;
        ctx.barrier("read")?;
    }
    ctx.barrier("done")
}

/// An operation of zero bytes moves none, whatever its key and address, and opens no way for a
/// longer one. A region or key of zero bytes is refused.
fn zero_length(ctx: &mut Ctx) -> Result<()> {
    let mut bench = Bench::new(ctx, 4096)?;
    bench.buf.clear(0x5a);
    for (addr, key) in [
        (0u64, 0u64),
        (u64::MAX, 0xffff_ffff),
        (0xffff_8880_0000_0000, 1),
    ] {
        for writes in [true, false] {
            bench.fresh(ctx)?;
            if !ctx.first() {
                let _ = match writes {
                    true => bench.write(0, addr, key)?,
                    false => bench.read(0, addr, key)?,
                };
                // The first operation may have ended the connection.
                let more = match writes {
                    true => bench.write(1, addr, key),
                    false => bench.read(1, addr, key),
                };
                ensure!(
                    !matches!(more, Ok(0)),
                    "a byte at {addr:#x} by key {key:#x}"
                );
            }
            ctx.barrier("tried")?;
        }
    }
    let (side, region) = (&bench.side, bench.region);
    let none = side.reg_at(bench.buf.addr(), 0, LOCAL | REMOTE);
    refused(none, libc::EINVAL, "a region of no bytes")?;
    let slot = side.dev.key_alloc(region, 1)?[0];
    for offset in [0, 1, 4095, 4096] {
        let none = side.dev.key_assign(slot, offset, 0, REMOTE);
        refused(none, libc::EINVAL, "a key for no bytes")?;
    }
    bench.buf.check_value(0, 4096, 0x5a)
}
