// SPDX-License-Identifier: MIT OR Apache-2.0

//! Endpoint-scoped keys: valid on one endpoint alone, and revoked before the endpoint is closed.

use super::key_batches::{assign_all, entry, joined, with_key, PAGE};
use super::keys::hammer;
use super::refused;
use crate::buf::Buf;
use crate::harness::leaks::vm_pin;
use crate::harness::{skip, Ctx, Test};
use crate::lanes::{Lanes, LANES, SPAN, WRITTEN};
use crate::op::{self, iov};
use crate::pair::{Remote, Side, LOCAL, LONG, REMOTE, WAIT};
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p02_endpoint_key_on_other_endpoint_is_refused",
        there_alone,
    )
    .seconds(10),
    Test::pair(
        "keys.p02_endpoint_keys_in_mixed_batch_work_on_their_endpoint",
        mixed,
    )
    .seconds(20),
    Test::pair(
        "keys.p03_endpoint_closed_under_writers_revokes_its_keys_first",
        close_revokes,
    )
    .seconds(20),
    Test::pair(
        "keys.p03_endpoint_mass_revocation_revokes_its_keys_only",
        mass_revocation,
    )
    .seconds(20),
    Test::pair(
        "keys.endpoint_in_local_ops_accepts_own_regions_only",
        local_use,
    )
    .seconds(10),
    Test::alone("keys.endpoint_binding_with_bad_arguments_is_refused", rules),
    Test::alone("keys.endpoint_races_with_close_leave_nothing", races).seconds(20),
];

/// Number of node 1's connections with endpoint-scoped keys.
const OWN: usize = LANES / 2;

/// Opens connections, of which the first [`OWN`] of node 1 have endpoint-scoped keys.
fn lanes(ctx: &mut Ctx) -> Result<Lanes> {
    let mut lanes = Lanes::new(ctx)?;
    lanes.own_keys = if ctx.first() { OWN } else { 0 };
    if ctx.first() && lanes.side.domain.caps & KFI_EP_KEYS == 0 {
        skip("no keys of an endpoint's own")?;
    }
    lanes.connect(ctx)?;
    Ok(lanes)
}

/// Node 2 tries a list of (connection, write, remote, whether it works); a refusal ends the
/// connection.
fn try_on(ctx: &mut Ctx, lanes: &Lanes, list: &[(usize, bool, Remote, bool)]) -> Result<()> {
    if ctx.first() {
        ctx.ctl.send(&list)?;
    } else {
        let list: Vec<(usize, bool, Remote, bool)> = ctx.ctl.recv()?;
        for (lane, write, r, fine) in list {
            let errno = lanes.attempt(lane, write, r.len, r.addr, r.key)?;
            let wanted = if fine { 0 } else { libc::EACCES };
            ensure!(
                errno == wanted,
                "lane {lane}, write {write}: errno {errno}, not {wanted}"
            );
        }
    }
    ctx.barrier("tried")
}

/// P2: a key that is bound to an endpoint works on that endpoint and on no other. On an endpoint
/// with endpoint-scoped keys no key of the domain works.
fn there_alone(ctx: &mut Ctx) -> Result<()> {
    let mut lanes = lanes(ctx)?;
    let buf = Buf::new(4 * PAGE as usize)?;
    let mut list = Vec::new();
    if ctx.first() {
        buf.clear(0x5a);
        let side = &lanes.side;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let (_, common) = side.export(region, 0, PAGE, REMOTE)?;
        let bound = |ep: u64, page: u64| -> Result<Remote> {
            let slot = side.dev.key_alloc_for(region, ep, 1)?[0];
            side.assign(slot, page * PAGE, PAGE, REMOTE)
        };
        let first = bound(lanes.eps[0], 1)?;
        let second = bound(lanes.eps[1], 2)?;
        // A region that is bound itself, with a key from the start.
        let whole = side.dev.call_region(&RegionReg {
            domain: side.domain.handle,
            addr: buf.addr() + 3 * PAGE,
            len: PAGE,
            access: LOCAL | REMOTE,
            ep: lanes.eps[2],
            ..Default::default()
        })?;
        ensure!(whole.key != KFI_KEY_NOTAVAIL, "a bound region has no key");
        let whole = Remote {
            addr: whole.remote_addr,
            key: whole.key,
            len: PAGE,
        };
        for write in [false, true] {
            list.push((0, write, first, true));
            list.push((1, write, second, true));
            list.push((2, write, whole, true));
            list.push((OWN, write, common, true));
        }
        // Each access ends its connection, so each has one of its own.
        list.push((0, true, second, false));
        list.push((1, false, first, false));
        list.push((2, true, common, false));
        list.push((3, false, common, false));
        list.push((4, true, whole, false));
        list.push((OWN, true, first, false));
        list.push((OWN + 1, false, second, false));
        list.push((OWN + 2, true, whole, false));
        list.push((OWN + 3, false, common, true));
    }
    try_on(ctx, &lanes, &list)?;
    if ctx.first() {
        buf.check_value(0, 4 * PAGE as usize, WRITTEN)?;
    }
    lanes.connect(ctx)
}

/// P2: one call assigns slots of the domain and of many endpoints, waited-for or ordered. A message
/// that is posted at once, on an endpoint of another protection group, carries the keys, and each
/// key works on its own endpoint.
fn mixed(ctx: &mut Ctx) -> Result<()> {
    let rounds = if sys::slowness() > 1 { 12 } else { 150 };
    let lanes = lanes(ctx)?;
    let speaker = LANES - 1;
    let messages = Buf::new(4096)?;
    let local = lanes.side.reg(&messages, LOCAL)?.handle;
    let dev = &lanes.side.dev;
    let mut slots = Vec::new();
    let buf = Buf::new(LANES * PAGE as usize)?;
    if ctx.first() {
        let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
        for lane in 0..speaker {
            let slot = match lane < OWN {
                true => dev.key_alloc_for(region, lanes.eps[lane], 1)?,
                false => dev.key_alloc(region, 1)?,
            };
            slots.extend(slot);
        }
    }
    let message = [iov(local, 0, 16 * speaker as u64)];
    for round in 0..rounds {
        if ctx.first() {
            // The peer has posted its receive: from the order on no call waits.
            ctx.barrier("posted")?;
            let of = |(i, slot): (usize, &u64)| entry(*slot, i as u64 * PAGE, PAGE);
            let mut entries: Vec<_> = slots.iter().enumerate().map(of).collect();
            // Connections of one protection group are never neighbours in this order.
            entries.sort_by_key(|e| (e.offset / PAGE * 5) % 16);
            if round % 3 == 0 {
                assign_all(dev, &mut entries)?;
            } else {
                let got = dev.key_assign_ordered(&mut entries, 0, 0)?;
                ensure!(got == (entries.len(), 0), "ordered: {got:?}");
            }
            for e in &entries {
                let at = (e.offset / PAGE) as usize * 16;
                messages.set64(at, e.remote_addr);
                messages.set64(at + 8, e.key);
            }
            dev.submit(lanes.eps[speaker], &[op::send(1, &message)])?;
            let sent = lanes.cqs[speaker].wait(LONG)?;
            ensure!(sent.err == 0, "round {round}: {sent:?}");
            ctx.barrier("used")?;
            let ended = dev.key_revoke_slots(&slots)?.revoked;
            ensure!(ended == speaker as u64, "round {round}: {ended} revoked");
            let wrong = (0..speaker).find(|lane| buf.get(lane * PAGE as usize) != WRITTEN);
            ensure!(wrong.is_none(), "round {round}: nothing came by {wrong:?}");
            buf.clear(0);
        } else {
            dev.submit(lanes.eps[speaker], &[op::recv(1, &message)])?;
            ctx.barrier("posted")?;
            let got = lanes.cqs[speaker].wait(LONG)?;
            ensure!(got.err == 0, "round {round}: {got:?}");
            for lane in 0..speaker {
                let (addr, key) = (messages.get64(lane * 16), messages.get64(lane * 16 + 8));
                let errno = lanes.attempt(lane, true, PAGE, addr, key)?;
                ensure!(errno == 0, "round {round}, lane {lane}: errno {errno}");
            }
            ctx.barrier("used")?;
        }
    }
    ctx.barrier("done")
}

/// P3: peers write without pause. When closing their endpoint has returned, no byte lands any more,
/// and its slots have no key and cannot be assigned one.
fn close_revokes(ctx: &mut Ctx) -> Result<()> {
    let lanes = lanes(ctx)?;
    let dev = &lanes.side.dev;
    let size = SPAN as usize;
    if !ctx.first() {
        let remotes: Vec<Remote> = ctx.ctl.recv()?;
        let piece = [lanes.source(SPAN)];
        std::thread::scope(|scope| {
            let writers: Vec<_> = remotes
                .iter()
                .zip(lanes.eps.iter().zip(&lanes.cqs))
                .map(|(r, (ep, cq))| {
                    let make = || op::write(1, &piece, r.addr, r.key);
                    scope.spawn(move || hammer(dev, *ep, cq, 4, make))
                })
                .collect();
            writers.into_iter().try_for_each(|w| joined(w).map(|_| ()))
        })?;
        return ctx.barrier("ended");
    }
    let buf = Buf::new(OWN * size)?;
    buf.clear(0);
    let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
    let mut slots = Vec::new();
    let mut remotes = Vec::new();
    for lane in 0..OWN {
        let slot = dev.key_alloc_for(region, lanes.eps[lane], 1)?[0];
        let at = (lane * size) as u64;
        remotes.push(lanes.side.assign(slot, at, SPAN, KFI_REMOTE_WRITE)?);
        slots.push(slot);
    }
    ctx.ctl.send(&remotes)?;
    let own = u64::from_ne_bytes([0x11; 8]);
    let changed = |lane: usize| {
        let at = lane * size;
        (at..at + size).step_by(8).find(|i| buf.get64(*i) != own)
    };
    for (lane, slot) in slots.iter().copied().enumerate() {
        let at = lane * size;
        let end = Instant::now() + sys::patience(WAIT);
        while buf.get64(at) == 0 {
            ensure!(Instant::now() < end, "no write arrives on lane {lane}");
            std::thread::sleep(Duration::from_micros(20));
        }
        dev.close(lanes.eps[lane])?;
        (at..at + size).step_by(8).for_each(|i| buf.set64(i, own));
        ensure!(changed(lane).is_none(), "lane {lane} changed at once");
        refused(dev.key_revoke(slot), libc::ENOENT, "revoking it")?;
        let again = dev.key_assign(slot, 0, 1, REMOTE);
        refused(again, libc::ENOENT, "assigning it")?;
        ensure!(!with_key(dev)?.contains(&slot), "the slot has a key");
    }
    std::thread::sleep(Duration::from_millis(100));
    let late = (0..OWN).find_map(changed);
    ensure!(late.is_none(), "byte {late:?} changed 100 ms later");
    ctx.barrier("ended")?;
    refused(dev.close(region), libc::EBUSY, "closing with slots")?;
    slots.iter().try_for_each(|slot| dev.close(*slot))?;
    Ok(dev.close(region)?)
}

/// P3: one call revokes all keys that are bound to an endpoint, and no others.
fn mass_revocation(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u32 = 300;
    let lanes = lanes(ctx)?;
    let mut list = Vec::new();
    let buf = Buf::new(4 * PAGE as usize)?;
    if ctx.first() {
        let dev = &lanes.side.dev;
        let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
        let bound = dev.key_alloc_for(region, lanes.eps[0], COUNT)?;
        let others = dev.key_alloc_for(region, lanes.eps[1], 3)?;
        let common = dev.key_alloc(region, 3)?;
        let all: Vec<u64> = [&bound[..], &others, &common].concat();
        let page = |slot: &u64| entry(*slot, slot % 4 * PAGE, PAGE);
        let mut entries: Vec<_> = all.iter().map(page).collect();
        assign_all(dev, &mut entries)?;
        let revoke = || dev.key_revoke_all(KFI_REVOKE_EP, lanes.eps[0]);
        let (first, again) = (revoke()?, revoke()?);
        ensure!(
            (first, again) == (u64::from(COUNT), 0),
            "{first} ended, then {again}"
        );
        ensure!(with_key(dev)?.len() == 6, "others have lost their keys");
        let without = dev.key_revoke_all(KFI_REVOKE_EP, lanes.eps[OWN]);
        refused(without, libc::EINVAL, "an endpoint without keys")?;
        let of = |e: &KeyEntry| Remote {
            addr: e.remote_addr,
            key: e.key,
            len: e.length,
        };
        let (few, many) = (COUNT as usize, entries.len());
        list.push((1, true, of(&entries[few]), true));
        list.push((OWN, true, of(&entries[many - 1]), true));
        list.push((0, true, of(&entries[7]), false));
    }
    try_on(ctx, &lanes, &list)
}

/// Checks which memory an endpoint with endpoint-scoped keys may use in its own operations.
fn local_use(ctx: &mut Ctx) -> Result<()> {
    const PIECES: usize = 16;
    let lanes = lanes(ctx)?;
    let side = &lanes.side;
    let (ep, cq) = (lanes.eps[0], &lanes.cqs[0]);
    // The same page repeated gives as many pieces.
    let file = sys::memfd(PAGE)?;
    let len = PIECES as u64 * PAGE;
    let buf = Buf::whole(Map::repeated(file.as_fd(), PAGE as usize, PIECES)?);
    let one = side.reg_at(buf.addr(), PAGE, LOCAL)?.handle;
    let many = side.reg(&buf, LOCAL)?.handle;
    if ctx.first() {
        let bound = side.dev.call_region(&RegionReg {
            flags: KFI_REGION_DYNAMIC_KEYS,
            domain: side.domain.handle,
            addr: buf.addr(),
            len,
            access: LOCAL,
            ep,
            ..Default::default()
        })?;
        ensure!(bound.key == KFI_KEY_NOTAVAIL, "it has a key");
        ctx.barrier("posted")?;
        // Only a device (kverbs) distinguishes the two registrations.
        let apart = ctx.provider() == "kverbs";
        if apart {
            let pieces = [iov(many, 0, len)];
            let sent = side.dev.submit(ep, &[op::send(1, &pieces)]);
            refused(sent, libc::EINVAL, "a region registered elsewhere")?;
        }
        for (region, len) in [(one, PAGE), (bound.handle, len)] {
            side.dev
                .submit(ep, &[op::send(2, &[iov(region, 0, len)])])?;
            let sent = cq.wait(LONG)?;
            ensure!(sent.err == 0, "{sent:?}");
        }
        if apart {
            // No endpoint of the domain may use the bound, registered region.
            let sent = side
                .dev
                .submit(lanes.eps[OWN], &[op::send(3, &[iov(bound.handle, 0, len)])]);
            refused(sent, libc::EINVAL, "a region bound to another")?;
        }
    } else {
        for i in 0..2 {
            side.dev.submit(ep, &[op::recv(i, &[iov(many, 0, len)])])?;
        }
        ctx.barrier("posted")?;
        for wanted in [PAGE, len] {
            let got = cq.wait(LONG)?;
            ensure!((got.err, got.len) == (0, wanted), "{got:?}");
        }
    }
    ctx.barrier("done")
}

/// Opens an endpoint that is not connected, with or without endpoint-scoped keys.
fn unconnected(side: &Side, own_keys: bool) -> Result<u64> {
    let flags = if own_keys { KFI_EP_OWN_KEYS } else { 0 };
    let ep = side.dev.ep_open(&EpOpen {
        flags,
        domain: side.domain.handle,
        ..Default::default()
    })?;
    Ok(ep.handle)
}

/// Checks that a slot of a strict endpoint gets no value twice.
fn never_twice(side: &Side, region: u64, ep: u64) -> Result<()> {
    /// More than the values of a device's index.
    const CYCLES: usize = 600;
    let slots = side.dev.key_alloc_for(region, ep, 1)?;
    let mut values = BTreeSet::new();
    for _ in 0..CYCLES {
        let key = side.dev.key_assign(slots[0], 0, PAGE, REMOTE)?.key;
        side.dev.key_revoke(slots[0])?;
        ensure!(values.insert(key), "the value {key:#x} twice");
    }
    side.dev.close(slots[0])?;
    Ok(side.dev.close(ep)?)
}

/// Checks which bindings are refused, and that a refusal changes nothing.
fn rules(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(2 * PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (own, other) = (unconnected(&side, true)?, unconnected(&side, true)?);
    let plain = unconnected(&side, false)?;
    let elsewhere = dev.domain_open(side.fabric, &crate::raw::field_text(&side.domain.name))?;
    let foreign = dev
        .ep_open(&EpOpen {
            flags: KFI_EP_OWN_KEYS,
            domain: elsewhere.handle,
            ..Default::default()
        })?
        .handle;
    let alloc = |region, ep| dev.key_alloc_for(region, ep, 1);
    refused(alloc(region, plain), libc::EINVAL, "no keys of its own")?;
    let strict = |flags| {
        dev.ep_open(&EpOpen {
            flags,
            domain: side.domain.handle,
            ..Default::default()
        })
    };
    refused(
        strict(KFI_EP_STRICT_KEYS),
        libc::EINVAL,
        "strict, no keys of its own",
    )?;
    never_twice(
        &side,
        region,
        strict(KFI_EP_OWN_KEYS | KFI_EP_STRICT_KEYS)?.handle,
    )?;
    refused(alloc(region, foreign), libc::EINVAL, "another domain's")?;
    refused(alloc(region, region), libc::ENOENT, "a region")?;
    refused(alloc(region, 1 << 50), libc::ENOENT, "no handle")?;
    let reg = |ep, flags| {
        dev.call_region(&RegionReg {
            flags,
            domain: side.domain.handle,
            addr: buf.addr(),
            len: PAGE,
            access: LOCAL | REMOTE,
            ep,
            ..Default::default()
        })
    };
    let pinned = vm_pin();
    for (ep, errno) in [
        (plain, libc::EINVAL),
        (foreign, libc::EINVAL),
        (region, libc::ENOENT),
    ] {
        refused(reg(ep, 0), errno, "registering for it")?;
    }
    ensure!(vm_pin() == pinned, "pages are left");
    // If a region is bound as a whole, its slots are bound to the same endpoint, and to no other.
    let bound = reg(own, KFI_REGION_DYNAMIC_KEYS)?.handle;
    refused(alloc(bound, other), libc::EINVAL, "bound to another")?;
    let slots = [dev.key_alloc(bound, 1)?[0], alloc(bound, own)?[0]];
    let whole = reg(own, 0)?.handle;
    for slot in slots {
        dev.key_assign(slot, 0, PAGE, REMOTE)?;
    }
    // The object list shows which object is bound to which endpoint.
    let listed = dev.obj_list()?;
    for (handle, ep) in [(slots[0], own), (slots[1], own), (whole, own), (region, 0)] {
        let of_this = |o: &&ObjInfo| o.pid == std::process::id() && o.handle == handle;
        let shown = listed.iter().find(of_this).context("is not listed")?;
        ensure!(shown.ep == ep, "{handle:#x} is bound to {:#x}", shown.ep);
    }
    let ended = dev.key_revoke_all(KFI_REVOKE_EP, own)?;
    ensure!(ended == 3, "{ended} keys were bound");
    dev.key_assign(slots[0], 0, PAGE, REMOTE)?;
    // The first close frees the handle; the keys were revoked before.
    dev.close(own)?;
    for slot in slots {
        let again = dev.key_assign(slot, 0, PAGE, REMOTE);
        refused(again, libc::ENOENT, "a slot of a closed endpoint")?;
        dev.close(slot)?;
    }
    refused(dev.key_alloc(bound, 1), libc::ENOENT, "a slot on the rest")?;
    dev.close(bound)?;
    dev.close(whole)?;
    // Close the slots first, then the objects that they are bound to.
    let slot = alloc(region, other)?[0];
    dev.key_assign(slot, 0, PAGE, REMOTE)?;
    dev.close(slot)?;
    dev.close(region)?;
    [other, plain, foreign, elsewhere.handle]
        .iter()
        .try_for_each(|handle| dev.close(*handle))?;
    Ok(())
}

/// Threads reserve, assign, revoke and close on endpoints that another thread closes meanwhile: in
/// every order nothing is left.
fn races(ctx: &mut Ctx) -> Result<()> {
    let rounds = if sys::slowness() > 1 { 20 } else { 200 };
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(4 * PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    for round in 0..rounds {
        let ep = unconnected(&side, true)?;
        let closed = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let users: Vec<_> = (0..3u64)
                .map(|user| {
                    let closed = &closed;
                    scope.spawn(move || -> Result<()> {
                        let gone = [libc::ENOENT, libc::EINVAL, libc::EBUSY];
                        loop {
                            let over = closed.load(Ordering::Acquire);
                            let slots = match dev.key_alloc_for(region, ep, 4) {
                                Ok(slots) => slots,
                                Err(e) if e.errno.0 == libc::ENOENT => return Ok(()),
                                Err(e) => bail!("reserving: {e}"),
                            };
                            ensure!(!over, "a slot on a closed endpoint");
                            let of = |slot: &u64| entry(*slot, user * PAGE, PAGE);
                            let mut entries: Vec<_> = slots.iter().map(of).collect();
                            let assigned = match user {
                                0 => dev.key_assign_ordered(&mut entries, 0, 0),
                                _ => dev.key_assign_many(&mut entries),
                            };
                            match assigned {
                                Ok((_, 0 | libc::ENOENT)) => {}
                                Err(e) if gone.contains(&e.errno.0) => {}
                                other => bail!("assigning: {other:?}"),
                            }
                            if user == 2 {
                                dev.key_revoke_slots(&slots)?;
                            }
                            slots.iter().try_for_each(|slot| dev.close(*slot))?;
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_micros(200 + round * 37 % 3000));
            let ended = dev.close(ep);
            closed.store(true, Ordering::Release);
            users.into_iter().try_for_each(joined)?;
            Ok(ended?)
        })
        .with_context(|| format!("round {round}"))?;
    }
    ensure!(with_key(dev)?.is_empty(), "a key is left");
    Ok(dev.close(region)?)
}
