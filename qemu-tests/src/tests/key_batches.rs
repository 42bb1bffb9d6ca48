// SPDX-License-Identifier: MIT OR Apache-2.0

//! Calls that assign or revoke many keys.

use super::keys::{hammer, try_all, Bench, Try};
use super::refused;
use crate::buf::Buf;
use crate::harness::{caps, Ctx, Test, SMOKE};
use crate::op::{self, iov};
use crate::pair::{connect, Opts, Remote, Side, LOCAL, REMOTE};
use crate::raw::Dev;
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p01_batch_assign_returned_is_valid_at_once",
        batch_of_64,
    )
    .seconds(60)
    .also(SMOKE),
    Test::pair("keys.p02_batch_of_all_sizes_keeps_each_range", all_sizes)
        .seconds(60)
        .needs(caps::WIDE_WINDOWS),
    Test::pair(
        "keys.p03_mass_revocation_under_writes_lets_no_byte_land_after_return",
        mass_revocation,
    )
    .seconds(40),
    Test::alone("keys.batch_with_refused_entry_stops_there", first_refused),
    Test::alone(
        "keys.batch_revocation_of_each_scope_spares_the_rest",
        revocation_rules,
    ),
    Test::alone(
        "keys.batch_with_unwritable_entry_keeps_no_key",
        copy_out_faults,
    ),
    Test::alone("keys.batch_of_4096_assigns_all", largest).seconds(30),
    Test::pair(
        "keys.p03_region_key_revoked_is_gone_for_good",
        own_key_revoked,
    )
    .seconds(10),
];

pub(super) const PAGE: u64 = 4096;

/// Returns an entry for the window [offset, offset + length).
pub(super) fn entry(slot: u64, offset: u64, length: u64) -> KeyEntry {
    KeyEntry {
        slot,
        offset,
        length,
        access: REMOTE,
        key: KFI_KEY_NOTAVAIL,
        ..Default::default()
    }
}

/// Assigns every entry of a batch.
pub(super) fn assign_all(dev: &Dev, entries: &mut [KeyEntry]) -> Result<()> {
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

/// Returns the slots of this process that have a key.
pub(super) fn with_key(dev: &Dev) -> Result<BTreeSet<u64>> {
    let me = std::process::id();
    let all = dev.obj_list()?;
    Ok(all
        .iter()
        .filter(|o| o.pid == me && o.kind == KFI_TYPE_KEY && o.b != 0)
        .map(|o| o.handle)
        .collect())
}

/// P1, P3: a batch of 64 works from its return on, each key in its own window. After the return of
/// one revoking call no key works.
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

/// P2: one batch assigns windows from one byte to more than `IB_WR_REG_MR` covers, of two regions
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
        // Trying three keys of each length is enough.
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

/// P3: once the call has returned, a peer that hammers windows changes not one byte of them. Each
/// window has a connection of its own, so that a refusal stops no other writer. Keys outside the
/// scope stay valid.
fn mass_revocation(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 32;
    const SIZE: usize = COUNT * PAGE as usize;
    // One window for each writer, with the first and the last to be revoked.
    const HIT: [usize; 4] = [0, 11, 21, COUNT - 1];
    let bench = Bench::new(ctx, SIZE)?;
    let cqs: Vec<_> = HIT
        .iter()
        .map(|_| bench.side.cq(0, KFI_CQ_FORMAT_DATA))
        .collect::<crate::raw::Result<_>>()?;
    for round in 0..24u64 {
        let mut eps = Vec::new();
        for cq in &cqs {
            eps.push(connect(ctx, &bench.side, &Opts::default(), cq)?.handle);
        }
        let side = &bench.side;
        let dev = &side.dev;
        if ctx.first() {
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
            let page = PAGE as usize;
            while HIT.iter().any(|i| bench.buf.get64(i * page) == 0) {
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
            // From here on no peer may change the memory.
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
            std::thread::scope(|scope| {
                let start = |((ep, cq), hit)| {
                    let (r, piece): (&Remote, _) = (&all[hit], &piece);
                    scope.spawn(move || {
                        hammer(dev, ep, cq, 4, || op::write(1, piece, r.addr, r.key))
                    })
                };
                let writers: Vec<_> = eps.iter().copied().zip(&cqs).zip(HIT).map(start).collect();
                writers
                    .into_iter()
                    .try_for_each(|writer| joined(writer).map(drop))
            })?;
            ctx.barrier("refused")?;
        }
        for ep in eps {
            dev.close(ep).context("closing a connection")?;
        }
        while dev.eq_read(side.eq.handle, 0).is_ok() {}
        for cq in &cqs {
            while cq.read().is_some() {}
        }
    }
    Ok(())
}

/// Joins a thread and returns its result.
pub(super) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow::anyhow!("panic")))
}

/// P3: a region that was registered with a key loses the key for good, and only if the scope
/// contains the region.
fn own_key_revoked(ctx: &mut Ctx) -> Result<()> {
    let mut bench = Bench::new(ctx, 4096)?;
    bench.buf.clear(0x5a);
    let own = Buf::new(8192)?;
    own.clear(0x66);
    let mut list = Vec::new();
    if ctx.first() {
        let side = &bench.side;
        let reg = |at| {
            side.dev
                .region_reg(side.domain.handle, own.addr() + at, 4096, LOCAL | REMOTE, 0)
        };
        let (gone, kept) = (reg(0)?, reg(4096)?);
        let revoked = side.dev.key_revoke_all(KFI_REVOKE_REGION, gone.handle)?;
        ensure!(revoked == 1, "{revoked} revoked");
        let mut add = |what, of: &RegionReg, write, fine| {
            list.push(Try::new(what, write, 8, of.remote_addr, of.key, fine));
        };
        add("a write by the key that is left", &kept, true, true);
        add("a write by the key that is gone", &gone, true, false);
        add("a read by the key that is gone", &gone, false, false);
        let again = side.dev.key_revoke_all(KFI_REVOKE_REGION, gone.handle)?;
        ensure!(again == 0, "{again} revoked again");
        refused(
            side.dev.key_alloc(gone.handle, 1),
            libc::EINVAL,
            "a slot of a region without dynamic keys",
        )?;
    }
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        own.check_value(0, 4096, 0x66).context("the revoked one")?;
    }
    ctx.barrier("done")
}

/// Slots of one page each, of a region of 128 pages.
pub(super) struct Slots {
    pub(super) side: Side,
    pub(super) region: u64,
    pub(super) slots: Vec<u64>,
    pub(super) buf: Buf,
}

impl Slots {
    pub(super) fn new(ctx: &Ctx, count: u32) -> Result<Self> {
        Self::on(Side::open(ctx)?, count)
    }

    pub(super) fn on(side: Side, count: u32) -> Result<Self> {
        let buf = Buf::new(128 * PAGE as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slots = side.dev.key_alloc(region, count)?;
        Ok(Self {
            side,
            region,
            slots,
            buf,
        })
    }

    pub(super) fn entries(&self) -> Vec<KeyEntry> {
        (0u64..)
            .zip(&self.slots)
            .map(|(i, slot)| entry(*slot, i % 128 * PAGE, PAGE))
            .collect()
    }
}

/// Entries before the refused one are assigned and their keys returned; entries after it are
/// unchanged.
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
            ensure!(told == wanted, "{what}: other keys are returned");
            let wanted = all.slots.iter().copied().take(k).chain([taken]).collect();
            ensure!(with_key(dev)? == wanted, "{what}: other slots have keys");
            let revoked = dev.key_revoke_slots(&all.slots)?.revoked;
            ensure!(revoked == k as u64, "{what}: {revoked} revoked");
        }
    }
    // The slot that is listed twice has a key by then.
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
    // A region's own key is revoked with all others.
    let own_key = dev.region_reg(domain, own.addr(), 4096, LOCAL | REMOTE, 0)?;
    let name = crate::pair::own_info(dev, &ctx.env)?.domain_name;
    let other = dev.domain_open(all.side.fabric, &crate::raw::field_text(&name))?;
    let far = dev.region_reg(
        other.handle,
        own.addr(),
        4096,
        LOCAL | REMOTE,
        KFI_REGION_DYNAMIC_KEYS,
    )?;
    let far_slot = dev.key_alloc(far.handle, 1)?[0];
    let mut entries = all.entries();
    assign_all(dev, &mut entries)?;
    // Slots without keys, and a repeated slot, are skipped.
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
    // The slots still have their reserves.
    assign_all(dev, &mut entries)?;
    // Each scope spares keys outside it.
    dev.key_assign(far_slot, 0, 1, REMOTE)?;
    let near = dev.key_revoke_all(KFI_REVOKE_DOMAIN, domain)?;
    ensure!(near == 100, "{near} of the domain");
    ensure!(with_key(dev)? == [far_slot].into(), "of the other domain");
    assign_all(dev, &mut entries)?;
    let region = dev.key_revoke_all(KFI_REVOKE_REGION, far.handle)?;
    ensure!(region == 1 && with_key(dev)?.len() == 100, "{region}");
    dev.key_assign(far_slot, 0, 1, REMOTE)?;
    let region = dev.key_revoke_all(KFI_REVOKE_REGION, all.region)?;
    ensure!(region == 100 && with_key(dev)?.len() == 1, "{region}");
    let file = dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    ensure!(file == 1, "{file} of the file");
    assign_all(dev, &mut entries)?;
    for (what, arg) in [
        ("scope", (5, 0, 0, 0)),
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
    for handle in [own_key.handle, far_slot, far.handle, other.handle] {
        dev.close(handle)?;
    }
    Ok(())
}

/// A key whose value cannot be written back is revoked.
fn copy_out_faults(ctx: &mut Ctx) -> Result<()> {
    let all = Slots::new(ctx, 128)?;
    let dev = &all.side.dev;
    let entries = all.entries();
    let bytes = zerocopy::IntoBytes::as_bytes(entries.as_slice());
    let map = Map::anon(3 * PAGE as usize)?;
    // The second page of the array is read-only. In the first case entry 85 begins before that page
    // and ends in it, so that the kernel cannot write its key value.
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
    // A list of slots that ends at an unmapped page.
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
    // The mapping's neighbour is unknown; if it is unmapped, the list ends there.
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
