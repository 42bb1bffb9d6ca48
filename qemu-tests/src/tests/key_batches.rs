// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many keys in one call: assigned, and revoked.

use super::keys::{hammer, try_all, Bench, Try};
use super::refused;
use crate::buf::Buf;
use crate::harness::{Ctx, Test, SMOKE};
use crate::op::{self, iov};
use crate::pair::{Remote, Side, LOCAL, REMOTE};
use crate::raw::Dev;
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("keys.p1_batch_is_valid_when_it_returns", batch_of_64)
        .seconds(60)
        .also(SMOKE),
    Test::pair("keys.p2_batch_of_all_sizes", all_sizes).seconds(60),
    Test::pair("keys.p3_mass_revocation_is_synchronous", mass_revocation).seconds(40),
    Test::alone("keys.batch_stops_at_the_first_refused", first_refused),
    Test::alone("keys.batch_revocation_rules", revocation_rules),
    Test::alone("keys.batch_copy_out_faults", copy_out_faults),
    Test::alone("keys.batch_of_4096", largest).seconds(30),
    Test::alone("keys.p4_batches_race", race).seconds(30),
    Test::alone("keys.p3_batches_race_with_death", death).seconds(30),
];

const PAGE: u64 = 4096;

/// An entry for the window [offset, offset + length).
fn entry(slot: u64, offset: u64, length: u64) -> KeyEntry {
    KeyEntry {
        slot,
        offset,
        length,
        access: REMOTE,
        key: KFI_KEY_NOTAVAIL,
        ..Default::default()
    }
}

/// Assigns all of a batch.
fn assign_all(dev: &Dev, entries: &mut [KeyEntry]) -> Result<()> {
    let got = dev.key_assign_many(entries)?;
    ensure!(got == (entries.len(), 0), "assigned: {got:?}");
    Ok(())
}

fn remotes(entries: &[KeyEntry]) -> Vec<Remote> {
    let remote = |e: &KeyEntry| Remote {
        addr: e.remote_addr,
        key: e.key,
        len: e.length,
    };
    entries.iter().map(remote).collect()
}

/// The slots of this process that have a key.
fn with_key(dev: &Dev) -> Result<BTreeSet<u64>> {
    let me = std::process::id();
    let all = dev.obj_list()?;
    Ok(all
        .iter()
        .filter(|o| o.pid == me && o.kind == KFI_TYPE_KEY && o.b != 0)
        .map(|o| o.handle)
        .collect())
}

/// P1, P3: a batch of 64 works from its return on, each key in its own window; after the return of
/// one revoking call none does.
fn batch_of_64(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u64 = 64;
    let mut bench = Bench::new(ctx, (COUNT * PAGE) as usize)?;
    bench.fresh(ctx)?;
    let mut list = Vec::new();
    if ctx.first() {
        bench.buf.clear(0);
        let dev = &bench.side.dev;
        let slots = dev.key_alloc(bench.region, COUNT as u32)?;
        let mut entries: Vec<_> = (0..COUNT)
            .map(|i| entry(slots[i as usize], i * PAGE + i, PAGE - COUNT))
            .collect();
        assign_all(dev, &mut entries)?;
        let keys: BTreeSet<_> = entries.iter().map(|e| e.key).collect();
        ensure!(keys.len() == 64, "{} different keys", keys.len());
        ctx.ctl.send(&remotes(&entries))?;
        ctx.barrier("written")?;
        for i in 0..COUNT {
            let (at, len) = ((i * PAGE + i) as usize, (PAGE - COUNT) as usize);
            bench
                .buf
                .check_part(at, len, i)
                .with_context(|| format!("window {i}"))?;
        }
        let got = dev.key_revoke_slots(&slots)?;
        ensure!(
            (got.done, got.err, got.revoked) == (64, 0, 64),
            "revoked: {got:?}"
        );
        ensure!(with_key(dev)?.is_empty(), "a slot still has a key");
        bench.buf.clear(0x5a);
        for (i, r) in remotes(&entries).iter().enumerate() {
            let what = format!("revoked key {i}");
            list.push(Try::new(&what, i % 2 == 0, 8, r.addr, r.key, false));
        }
    } else {
        let all: Vec<Remote> = ctx.ctl.recv()?;
        for (i, r) in all.iter().enumerate() {
            bench.buf.fill_part(0, r.len as usize, i as u64);
            ensure!(bench.write(r.len, r.addr, r.key)? == 0, "window {i}");
        }
        ctx.barrier("written")?;
    }
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        bench
            .buf
            .check_value(0, (COUNT * PAGE) as usize, 0x5a)
            .context("a revoked key moved bytes")?;
    }
    ctx.barrier("done")
}

/// P2: in one batch windows of a byte and of more than a fast registration reaches, of two regions
/// in two domains.
fn all_sizes(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 6 << 20;
    const LENS: [u64; 6] = [1, 4095, 4097, 1 << 20, (1 << 20) + 1, 5 << 20];
    let mut bench = Bench::new(ctx, SIZE as usize)?;
    let mut list = Vec::new();
    let other = if ctx.first() {
        bench.buf.clear(0x5a);
        let dev = &bench.side.dev;
        let name = crate::pair::own_info(dev, &ctx.env)?.domain_name;
        let domain = dev.domain_open(bench.side.fabric, &crate::raw::field_text(&name))?;
        let buf = Buf::new(64 << 10)?;
        let region = dev.region_reg(
            domain.handle,
            buf.addr(),
            buf.len() as u64,
            LOCAL | REMOTE,
            KFI_REGION_DYNAMIC_KEYS,
        )?;
        let mut entries = Vec::new();
        for _ in 0..25 {
            let slots = dev.key_alloc(bench.region, LENS.len() as u32)?;
            for (slot, len) in slots.into_iter().zip(LENS) {
                entries.push(entry(slot, 777, len));
            }
            let slot = dev.key_alloc(region.handle, 1)?[0];
            entries.push(entry(slot, 5, 100));
        }
        assign_all(dev, &mut entries)?;
        let keys: BTreeSet<_> = entries.iter().map(|e| e.key).collect();
        ensure!(keys.len() == entries.len(), "a key came twice");
        // Three of each length are enough to try.
        let some = entries.iter().enumerate();
        for (i, e) in some.filter(|(i, _)| [0, 12, 24].contains(&(i / 7))) {
            if i % 7 == 6 {
                continue;
            }
            let (at, last) = (e.remote_addr, e.remote_addr + e.length - 1);
            let what = |s: &str| format!("{s} entry {i}, {} bytes", e.length);
            list.push(Try::new(&what("first of"), true, 1, at, e.key, true));
            list.push(Try::new(&what("last of"), false, 1, last, e.key, true));
            let beyond = what("beyond");
            list.push(Try::new(&beyond, i % 2 == 0, 1, last + 1, e.key, false));
        }
        let foreign = entries.get(6).context("entry 6")?;
        list.push(Try::new(
            "the other domain's",
            true,
            1,
            foreign.remote_addr,
            foreign.key,
            false,
        ));
        Some(buf)
    } else {
        None
    };
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        let dev = &bench.side.dev;
        let revoked = dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
        ensure!(revoked == 25 * 7, "{revoked} revoked");
    }
    drop(other);
    ctx.barrier("done")
}

/// P3: once the call has returned, a peer that hammers all windows changes not one byte of them.
/// What is not in the scope lives on.
fn mass_revocation(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 32;
    const SIZE: usize = COUNT * PAGE as usize;
    let mut bench = Bench::new(ctx, SIZE)?;
    for round in 0..24u64 {
        let ep = bench.fresh(ctx)?;
        if ctx.first() {
            let side = &bench.side;
            let dev = &side.dev;
            let slots = dev.key_alloc(bench.region, COUNT as u32)?;
            let mut entries: Vec<_> = (0u64..)
                .zip(&slots)
                .map(|(i, slot)| entry(*slot, i * PAGE, PAGE))
                .collect();
            assign_all(dev, &mut entries)?;
            let near = Buf::new(4096)?;
            let neighbour = side.reg(&near, LOCAL | REMOTE)?.handle;
            let (kept, _) = side.export(neighbour, 0, 4096, REMOTE)?;
            bench.buf.clear(0);
            ctx.ctl.send(&remotes(&entries))?;
            let end = Instant::now() + sys::patience(Duration::from_secs(20));
            while bench.buf.get64(0) == 0 && bench.buf.get64(SIZE - 8) == 0 {
                ensure!(Instant::now() < end, "round {round}: no write arrives");
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(round * 137 % 3000));
            let (revoked, wanted) = match round % 4 {
                0 => (dev.key_revoke_slots(&slots)?.revoked, 32),
                1 => (dev.key_revoke_all(KFI_REVOKE_REGION, bench.region)?, 32),
                2 => {
                    let domain = side.domain.handle;
                    (dev.key_revoke_all(KFI_REVOKE_DOMAIN, domain)?, 33)
                }
                _ => (dev.key_revoke_all(KFI_REVOKE_FILE, 0)?, 33),
            };
            // From here on the memory is ours alone.
            bench.buf.clear(0);
            for _ in 0..20 {
                let bad = (0..SIZE).step_by(8).find(|i| bench.buf.get64(*i) != 0);
                if let Some(at) = bad {
                    bail!("round {round}: the bytes at {at} changed after the call had returned");
                }
            }
            ensure!(revoked == wanted, "round {round}: {revoked} revoked");
            let left = with_key(dev)?;
            let only: BTreeSet<_> = (round % 4 < 2).then_some(kept).into_iter().collect();
            ensure!(left == only, "round {round}: {left:?} have keys");
            for slot in slots.iter().chain([&kept]) {
                dev.close(*slot)?;
            }
            dev.close(neighbour)?;
            ctx.barrier("refused")?;
            bench.buf.check_value(0, SIZE, 0)?;
        } else {
            let all: Vec<Remote> = ctx.ctl.recv()?;
            bench.buf.clear(0xff);
            let piece = [iov(bench.region, 0, PAGE)];
            let mut next = (0..COUNT).cycle();
            hammer(&bench.side.dev, ep, &bench.cq, 16, || {
                let r = &all[next.next().unwrap_or(0)];
                op::write(1, &piece, r.addr, r.key)
            })?;
            ctx.barrier("refused")?;
        }
    }
    Ok(())
}

/// Slots of one page each of a region of 128.
struct Slots {
    side: Side,
    region: u64,
    slots: Vec<u64>,
    _buf: Buf,
}

impl Slots {
    fn new(ctx: &Ctx, count: u32) -> Result<Self> {
        let side = Side::open(ctx)?;
        let buf = Buf::new(128 * PAGE as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slots = side.dev.key_alloc(region, count)?;
        Ok(Self {
            side,
            region,
            slots,
            _buf: buf,
        })
    }

    fn entries(&self) -> Vec<KeyEntry> {
        (0u64..)
            .zip(&self.slots)
            .map(|(i, slot)| entry(*slot, i % 128 * PAGE, PAGE))
            .collect()
    }
}

/// What is before the refused entry is assigned and told; what is after is as it was.
fn first_refused(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 130;
    let all = Slots::new(ctx, COUNT as u32)?;
    let dev = &all.side.dev;
    let taken = dev.key_alloc(all.region, 1)?[0];
    dev.key_assign(taken, 0, 1, REMOTE)?;
    type Spoil<'a> = &'a dyn Fn(&mut [KeyEntry], usize);
    let ways: [(&str, i32, Spoil<'_>); 6] = [
        ("no such slot", libc::ENOENT, &|e, k| e[k].slot = 1 << 40),
        ("a region", libc::ENOENT, &|e, k| e[k].slot = all.region),
        ("no bytes", libc::EINVAL, &|e, k| e[k].length = 0),
        ("beyond", libc::EINVAL, &|e, k| e[k].offset = 128 * PAGE - 1),
        ("no rights", libc::EINVAL, &|e, k| e[k].access = 0),
        ("a slot with a key", libc::EBUSY, &|e, k| e[k].slot = taken),
    ];
    for (what, errno, spoil) in ways {
        for k in [0, 1, 63, 64, 65, COUNT - 1] {
            let what = format!("{what} at {k}");
            let mut entries = all.entries();
            spoil(&mut entries, k);
            let got = dev.key_assign_many(&mut entries);
            if k == 0 {
                refused(got, errno, &what)?;
            } else {
                let got = got.with_context(|| what.clone())?;
                ensure!(got == (k, errno), "{what}: {got:?}");
            }
            let told: Vec<_> = entries.iter().map(|e| e.key != KFI_KEY_NOTAVAIL).collect();
            let wanted: Vec<_> = (0..COUNT).map(|i| i < k).collect();
            ensure!(told == wanted, "{what}: other keys are told");
            let wanted = all.slots.iter().copied().take(k).chain([taken]).collect();
            ensure!(with_key(dev)? == wanted, "{what}: other slots have keys");
            let revoked = dev.key_revoke_slots(&all.slots)?.revoked;
            ensure!(revoked == k as u64, "{what}: {revoked} revoked");
        }
    }
    // A slot that is there twice has its key by then.
    let mut entries = all.entries();
    entries[20].slot = entries[3].slot;
    let got = dev.key_assign_many(&mut entries)?;
    ensure!(got == (20, libc::EBUSY), "a slot twice: {got:?}");
    for count in [0, KFI_KEY_ALLOC_MAX + 1] {
        let mut arg = KeyAssignMany {
            entries: entries.as_mut_ptr() as u64,
            count,
            entry_size: 48,
            ..Default::default()
        };
        refused(dev.call(&mut arg), libc::EINVAL, "count")?;
    }
    for entry_size in [0, 40, 47, 49, 56] {
        let mut arg = KeyAssignMany {
            entries: entries.as_mut_ptr() as u64,
            count: 1,
            entry_size,
            ..Default::default()
        };
        refused(dev.call(&mut arg), libc::EINVAL, "entry_size")?;
    }
    Ok(())
}

fn revocation_rules(ctx: &mut Ctx) -> Result<()> {
    let all = Slots::new(ctx, 100)?;
    let dev = &all.side.dev;
    let own = Buf::new(4096)?;
    let domain = all.side.domain.handle;
    // A region with a key of its own loses it with all others.
    let own_key = dev.region_reg(domain, own.addr(), 4096, LOCAL | REMOTE, 0)?;
    let mut entries = all.entries();
    assign_all(dev, &mut entries)?;
    // Slots without keys, and a slot twice, are passed over.
    let twice = [all.slots[0], all.slots[1], all.slots[0]];
    let got = dev.key_revoke_slots(&twice)?;
    ensure!((got.done, got.revoked) == (3, 2), "{got:?}");
    let got = dev.key_revoke_slots(&twice)?;
    ensure!((got.done, got.revoked) == (3, 0), "{got:?}");
    // A handle of another kind ends the list.
    let mut list = all.slots[2..90].to_vec();
    list[70] = all.region;
    let got = dev.key_revoke_slots(&list)?;
    ensure!(
        (got.done, got.err, got.revoked) == (70, libc::ENOENT as u32, 70),
        "{got:?}"
    );
    refused(dev.key_revoke_slots(&[domain]), libc::ENOENT, "a domain")?;
    ensure!(with_key(dev)?.len() == 28, "other slots have keys");
    let region = dev.key_revoke_all(KFI_REVOKE_REGION, all.region)?;
    ensure!(region == 28, "{region} of the region");
    let rest = dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    ensure!(rest == 1, "{rest} of the file, not the region's own");
    ensure!(dev.key_revoke_all(KFI_REVOKE_DOMAIN, domain)? == 0, "none");
    // Slots are reserved as before.
    assign_all(dev, &mut entries)?;
    for (what, arg) in [
        ("scope", (4, 0, 0, 0)),
        ("no list", (KFI_REVOKE_SLOTS, 0, 0, 0)),
        ("a list and an object", (KFI_REVOKE_SLOTS, 1, 0, all.region)),
        (
            "a long list",
            (KFI_REVOKE_SLOTS, KFI_KEY_ALLOC_MAX + 1, 0, 0),
        ),
        (
            "a region and a count",
            (KFI_REVOKE_REGION, 1, 0, all.region),
        ),
        ("a region and a list", (KFI_REVOKE_REGION, 0, 8, all.region)),
        ("a file and an object", (KFI_REVOKE_FILE, 0, 0, all.region)),
    ] {
        let (scope, count, slots, object) = arg;
        let list = all.slots.as_ptr() as u64;
        let mut arg = KeyRevokeMany {
            scope,
            count,
            object,
            slots: if scope == 0 { list } else { slots },
            ..Default::default()
        };
        refused(dev.call(&mut arg), libc::EINVAL, what)?;
    }
    for (scope, object) in [
        (KFI_REVOKE_REGION, domain),
        (KFI_REVOKE_REGION, all.slots[0]),
        (KFI_REVOKE_DOMAIN, all.region),
        (KFI_REVOKE_DOMAIN, 0),
    ] {
        refused(
            dev.key_revoke_all(scope, object),
            libc::ENOENT,
            "another kind",
        )?;
    }
    ensure!(with_key(dev)?.len() == 100, "a refused call revoked");
    dev.close(own_key.handle)?;
    Ok(())
}

/// A key whose value cannot be stored does not stay.
fn copy_out_faults(ctx: &mut Ctx) -> Result<()> {
    let all = Slots::new(ctx, 128)?;
    let dev = &all.side.dev;
    let entries = all.entries();
    let bytes = zerocopy::IntoBytes::as_bytes(entries.as_slice());
    let map = Map::anon(3 * PAGE as usize)?;
    // The second page can be read only; entry 85 lies across its start.
    let size = std::mem::size_of::<KeyEntry>();
    for (start, good) in [(0, 85), (PAGE as usize - 40 * size, 40), (PAGE as usize, 0)] {
        map.protect(0, map.len(), libc::PROT_READ | libc::PROT_WRITE)?;
        map.write(start, bytes);
        map.protect(PAGE as usize, 2 * PAGE as usize, libc::PROT_READ)?;
        let mut arg = KeyAssignMany {
            entries: map.addr() + start as u64,
            count: 128,
            entry_size: size as u32,
            ..Default::default()
        };
        let got = dev.call(&mut arg);
        if good == 0 {
            refused(got, libc::EFAULT, "all of it")?;
        } else {
            got?;
            ensure!(
                (arg.done, arg.err) == (good, libc::EFAULT as u32),
                "from {start}: {arg:?}"
            );
        }
        let wanted: BTreeSet<_> = all.slots.iter().copied().take(good as usize).collect();
        ensure!(with_key(dev)? == wanted, "from {start}: others have keys");
        let ended = dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
        ensure!(ended == u64::from(good), "from {start}: {ended} revoked");
    }
    // A list of slots that ends in nothing.
    let mut entries = entries;
    assign_all(dev, &mut entries)?;
    map.protect(0, map.len(), libc::PROT_READ | libc::PROT_WRITE)?;
    let handles = zerocopy::IntoBytes::as_bytes(all.slots.as_slice());
    let at = 3 * PAGE as usize - 64 * 8;
    map.write(at, &handles[..64 * 8]);
    let mut arg = KeyRevokeMany {
        scope: KFI_REVOKE_SLOTS,
        count: 128,
        slots: map.addr() + at as u64,
        ..Default::default()
    };
    dev.call(&mut arg)?;
    // What lies behind the mapping is not ours to know; if nothing does, the list ends there.
    ensure!(arg.done >= 64 && arg.revoked == 64, "{arg:?}");
    Ok(())
}

fn largest(ctx: &mut Ctx) -> Result<()> {
    let all = Slots::new(ctx, KFI_KEY_ALLOC_MAX)?;
    let dev = &all.side.dev;
    let mut had = BTreeSet::new();
    let rounds = if sys::slowness() > 1 { 1 } else { 2 };
    for _ in 0..rounds {
        let mut entries = all.entries();
        assign_all(dev, &mut entries)?;
        for e in &entries {
            ensure!(had.insert(e.key), "{:#x} came twice", e.key);
        }
        let got = dev.key_revoke_slots(&all.slots)?;
        ensure!((got.done, got.revoked) == (4096, 4096), "{got:?}");
    }
    Ok(())
}

/// Keys that were told, of which none may come twice.
struct Told(Mutex<BTreeSet<u64>>);

impl Told {
    fn note(&self, key: u64) -> Result<()> {
        let mut all = self.0.lock().unwrap_or_else(|e| e.into_inner());
        ensure!(all.insert(key), "{key:#x} came twice");
        Ok(())
    }
}

/// Fails on what no race explains.
fn may<T>(result: crate::raw::Result<T>, what: &str) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if [libc::EBUSY, libc::EINVAL, libc::ENOENT].contains(&e.errno.0) => Ok(None),
        Err(e) => Err(anyhow::Error::from(e).context(what.to_owned())),
    }
}

/// One thread's turn in the race, on slots that the others use too.
fn turn(all: &Slots, told: &Told, who: u64, round: u64) -> Result<()> {
    let dev = &all.side.dev;
    let shift = (round * 7 + who * 13) as usize % all.slots.len();
    let mut entries = all.entries();
    entries.rotate_left(shift);
    // Forward and backward: batches meet in both orders.
    if who % 2 == 1 {
        entries.reverse();
    }
    match who {
        0 | 1 => {
            if let Some((done, err)) = may(dev.key_assign_many(&mut entries), "batch")? {
                entries[..done].iter().try_for_each(|e| told.note(e.key))?;
                let fine = [0, libc::EBUSY, libc::ENOENT].contains(&err);
                ensure!(fine, "a batch stopped with {err}");
            }
        }
        2 => {
            for e in entries.iter().take(20) {
                let one = dev.key_assign(e.slot, e.offset, e.length, REMOTE);
                if let Some(one) = may(one, "assign")? {
                    told.note(one.key)?;
                }
                may(dev.key_revoke(entries[0].slot), "revoke")?;
            }
        }
        3 => {
            let slots: Vec<_> = entries.iter().map(|e| e.slot).collect();
            may(dev.key_revoke_slots(&slots[..50]), "revoke list")?;
        }
        _ => {
            let (scope, object) = match round % 3 {
                0 => (KFI_REVOKE_REGION, all.region),
                1 => (KFI_REVOKE_DOMAIN, all.side.domain.handle),
                _ => (KFI_REVOKE_FILE, 0),
            };
            dev.key_revoke_all(scope, object)?;
        }
    }
    Ok(())
}

/// Runs the race until `stop`.
fn run_race(all: &Slots, stop: &AtomicBool) -> Result<()> {
    let told = Told(Mutex::new(BTreeSet::new()));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..5)
            .map(|who| {
                let told = &told;
                scope.spawn(move || {
                    let mut round = 0;
                    while !stop.load(Ordering::Relaxed) {
                        turn(all, told, who, round)?;
                        round += 1;
                    }
                    Ok(())
                })
            })
            .collect();
        let mut result = Ok(());
        for thread in threads {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(anyhow::anyhow!("panic")));
            result = result.and(ended);
        }
        result
    })
}

/// Batches, single calls, mass revocation and closing, all on the same slots at once: nobody waits
/// for ever, no key comes twice (P4), and in the end nothing is left.
fn race(ctx: &mut Ctx) -> Result<()> {
    let all = Slots::new(ctx, 100)?;
    let stop = AtomicBool::new(false);
    let dev = &all.side.dev;
    std::thread::scope(|scope| -> Result<()> {
        let racers = scope.spawn(|| run_race(&all, &stop));
        let end = Instant::now() + Duration::from_secs(5);
        let mut closed = 0;
        let mut closing = || -> Result<()> {
            while Instant::now() < end && !racers.is_finished() {
                std::thread::sleep(Duration::from_millis(50));
                if let Some(slot) = all.slots.get(closed).filter(|_| closed < 80) {
                    dev.close(*slot)?;
                    closed += 1;
                }
            }
            Ok(())
        };
        let closed = closing();
        stop.store(true, Ordering::Relaxed);
        let raced = racers
            .join()
            .unwrap_or_else(|_| Err(anyhow::anyhow!("panic")));
        closed.and(raced)
    })?;
    dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    ensure!(with_key(dev)?.is_empty(), "a slot still has a key");
    Ok(())
}

/// `kill -9` in the middle of all that: nothing is left of it.
fn death(ctx: &mut Ctx) -> Result<()> {
    for round in 0..12u64 {
        let buddy = || -> Result<()> {
            let all = Slots::new(ctx, 100)?;
            run_race(&all, &AtomicBool::new(false))
        };
        let pid = sys::fork(|| match buddy() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("{e:#}");
                1
            }
        })?;
        std::thread::sleep(Duration::from_millis(100 + round * 37 % 200));
        sys::kill(pid, libc::SIGKILL)?;
        let ended = sys::wait_pid(pid, sys::patience(Duration::from_secs(20)))?;
        ensure!(
            ended == Some(sys::Ended::Signal(libc::SIGKILL)),
            "round {round}: {ended:?}"
        );
        let left = Dev::open()?.obj_list()?;
        ensure!(
            left.iter().all(|o| o.pid != pid as u32),
            "round {round}: something is left"
        );
    }
    Ok(())
}
