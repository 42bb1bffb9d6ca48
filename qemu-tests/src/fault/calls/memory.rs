// SPDX-License-Identifier: MIT OR Apache-2.0

//! Regions and keys.

use crate::fault::inject::Kind;
use crate::fault::lab::Lab;
use crate::fault::sweep::{Case, Shot};
use crate::pair::{LOCAL, REMOTE};
use crate::sys::{self, Map};
use anyhow::{ensure, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The cases.
pub const CASES: &[Case] = &[
    Case::new("KFI_IOC_REGION_REG", "contiguous", reg_contiguous),
    Case::new("KFI_IOC_REGION_REG", "scattered", reg_scattered),
    Case::new("KFI_IOC_REGION_REG", "large", reg_large),
    Case::new("KFI_IOC_REGION_REG", "own_key", reg_own_key),
    Case::new("KFI_IOC_REGION_REG", "bound_own_key", reg_bound).also(NO_SOCKET),
    Case::new("KFI_IOC_KEY_ALLOC", "", key_alloc),
    Case::new("KFI_IOC_KEY_ALLOC", "first", key_alloc_first).also(NO_SOCKET),
    Case::new("KFI_IOC_KEY_ALLOC", "bound", key_alloc_bound).also(NO_SOCKET),
    Case::new("KFI_IOC_KEY_ASSIGN", "first", assign_first),
    Case::new("KFI_IOC_KEY_ASSIGN", "small", assign_small),
    Case::new("KFI_IOC_KEY_ASSIGN", "large", assign_large),
    Case::new("KFI_IOC_KEY_REVOKE", "small", revoke_small),
    Case::new("KFI_IOC_KEY_REVOKE", "large", revoke_large),
    Case::new("KFI_IOC_KEY_ASSIGN_MANY", "first", assign_many_first),
    Case::new("KFI_IOC_KEY_ASSIGN_MANY", "small", assign_many_small),
    Case::new("KFI_IOC_KEY_ASSIGN_MANY", "mixed", assign_many_mixed),
    Case::new("KFI_IOC_KEY_ASSIGN", "ordered", assign_one_ordered),
    Case::new("KFI_IOC_KEY_ASSIGN_MANY", "ordered", assign_ordered),
    Case::new("KFI_IOC_KEY_REVOKE_MANY", "slots", revoke_slots),
    Case::new("KFI_IOC_KEY_REVOKE_MANY", "region", revoke_region),
    Case::new("KFI_IOC_KEY_REVOKE_MANY", "file", revoke_file),
    Case::new("KFI_IOC_KEY_REVOKE_MANY", "endpoint", revoke_endpoint),
    Case::new("KFI_IOC_CLOSE", "region", close_region),
    Case::new("KFI_IOC_CLOSE", "region_own_key", close_region_own_key),
    Case::new("KFI_IOC_CLOSE", "key", close_key),
    Case::new("KFI_IOC_CLOSE", "endpoint_with_keys", close_endpoint),
];

/// rxe's errno if it cannot get a queue pair's socket.
pub const NO_SOCKET: &[i32] = &[libc::ENFILE];

const PAGE: usize = 4096;

/// Populates every page of a mapping in scattered order, so that neighbours are rarely adjacent in
/// memory.
pub fn touch(map: &Map) {
    // A mapping of huge pages would be one piece.
    let _ = map.advise(libc::MADV_NOHUGEPAGE);
    let pages = map.len() / PAGE;
    for from in [0, 2, 1, 3] {
        for page in (from..pages)
            .step_by(4)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            map.set(page * PAGE, 1);
        }
    }
}

fn want(lab: &Lab, map: &Map, access: u64, flags: u32) -> RegionReg {
    RegionReg {
        flags,
        domain: lab.domain,
        addr: map.addr(),
        len: map.len() as u64,
        access,
        ..Default::default()
    }
}

/// Registers the whole mapping.
///
/// # Errors
///
/// The call's errno.
pub fn register(lab: &Lab, map: &Map, flags: u32) -> Result<u64> {
    let mut arg = want(lab, map, LOCAL | REMOTE | KFI_ATOMIC, flags);
    lab.dev.call(&mut arg)?;
    Ok(arg.handle)
}

/// Assigns a key for the first `len` bytes.
///
/// # Errors
///
/// The call's errno.
pub fn assign(lab: &Lab, slot: u64, len: u64) -> Result<KeyAssign> {
    Ok(lab.dev.key_assign(slot, 0, len, KFI_REMOTE_READ)?)
}

fn reg(lab: &Lab, shot: &mut Shot<'_>, map: &Map, access: u64, flags: u32) -> Result<RegionReg> {
    let got = shot.ioctl(&lab.dev, &want(lab, map, access, flags))?;
    ensure!(
        got.pages as usize == map.len() / PAGE,
        "{} pages charged",
        got.pages
    );
    lab.dev.close(got.handle)?;
    Ok(got)
}

fn reg_contiguous(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(PAGE)?;
    map.set(0, 1);
    reg(lab, shot, &map, LOCAL, 1).map(|_| ())
}

/// Many pieces: a fast registration covers them.
fn reg_scattered(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(64 * PAGE)?;
    touch(&map);
    reg(lab, shot, &map, LOCAL | REMOTE, 1).map(|_| ())
}

/// More than one batch of pins, so that some pages are pinned if one fails. Fast registrations do not
/// cover them: the device registers them by `ib_reg_user_mr`.
fn reg_large(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(1100 * PAGE)?;
    touch(&map);
    reg(lab, shot, &map, KFI_SEND, 1).map(|_| ())
}

fn reg_own_key(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(PAGE)?;
    map.set(0, 1);
    let got = reg(lab, shot, &map, LOCAL | REMOTE, 0)?;
    ensure!(got.key != KFI_KEY_NOTAVAIL, "it has no key");
    Ok(())
}

/// Opens an endpoint with endpoint-scoped keys.
fn own_ep(lab: &Lab) -> Result<u64> {
    let ep = lab.dev.ep_open(&EpOpen {
        flags: KFI_EP_OWN_KEYS,
        domain: lab.domain,
        ..Default::default()
    })?;
    Ok(ep.handle)
}

/// The key is assigned through a queue pair that serves the endpoint's keys alone.
fn reg_bound(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(PAGE)?;
    map.set(0, 1);
    let ep = own_ep(lab)?;
    let want = RegionReg {
        ep,
        ..want(lab, &map, LOCAL | REMOTE, 0)
    };
    let got = shot.ioctl(&lab.dev, &want)?;
    ensure!(got.key != KFI_KEY_NOTAVAIL, "it has no key");
    lab.dev.close(got.handle)?;
    Ok(lab.dev.close(ep)?)
}

/// A region with slots that are bound to an endpoint, and have keys.
struct BoundSlots {
    _map: Map,
    region: u64,
    ep: u64,
    slots: Vec<u64>,
}

impl BoundSlots {
    fn new(lab: &Lab) -> Result<Self> {
        let map = Map::anon(PAGE)?;
        map.set(0, 1);
        let region = register(lab, &map, 1)?;
        let ep = own_ep(lab)?;
        let slots = lab.dev.key_alloc_for(region, ep, 3)?;
        for slot in &slots {
            assign(lab, *slot, 64)?;
        }
        Ok(Self {
            _map: map,
            region,
            ep,
            slots,
        })
    }

    fn end(self, lab: &Lab) -> Result<()> {
        for slot in self.slots {
            lab.dev.close(slot)?;
        }
        Ok(lab.dev.close(self.region)?)
    }
}

fn key_alloc_bound(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bound = BoundSlots::new(lab)?;
    let mut handles = [0u64; 3];
    shot.ioctl(
        &lab.dev,
        &KeyAlloc {
            region: bound.region,
            count: handles.len() as u32,
            handles: handles.as_mut_ptr() as u64,
            ep: bound.ep,
            ..Default::default()
        },
    )?;
    for slot in handles {
        lab.dev.close(slot)?;
    }
    lab.dev.close(bound.ep)?;
    bound.end(lab)
}

fn revoke_endpoint(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bound = BoundSlots::new(lab)?;
    let mut got = KeyRevokeMany {
        scope: KFI_REVOKE_EP,
        object: bound.ep,
        ..Default::default()
    };
    // Keys stay revoked even if the answer cannot be delivered.
    if shot.once(|| lab.dev.call(&mut got))?.is_ok() {
        ensure!((got.err, got.revoked) == (0, 3), "{got:?}");
    }
    lab.dev.key_revoke_all(KFI_REVOKE_EP, bound.ep)?;
    for slot in &bound.slots {
        assign(lab, *slot, 64)?;
    }
    lab.dev.close(bound.ep)?;
    bound.end(lab)
}

fn close_endpoint(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let bound = BoundSlots::new(lab)?;
    shot.ioctl(
        &lab.dev,
        &Close {
            handle: bound.ep,
            ..Default::default()
        },
    )?;
    bound.end(lab)
}

/// A region with a slot.
struct Slot {
    map: Map,
    region: u64,
    slot: u64,
}

impl Slot {
    fn new(lab: &Lab, pages: usize) -> Result<Self> {
        let map = Map::anon(pages * PAGE)?;
        touch(&map);
        let region = register(lab, &map, 1)?;
        let slot = lab.dev.key_alloc(region, 1)?[0];
        Ok(Self { map, region, slot })
    }

    fn end(self, lab: &Lab) -> Result<()> {
        lab.dev.close(self.slot)?;
        lab.dev.close(self.region)?;
        drop(self.map);
        Ok(())
    }
}

fn key_alloc(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(PAGE)?;
    map.set(0, 1);
    let region = register(lab, &map, 1)?;
    let mut handles = [0u64; 3];
    shot.ioctl(
        &lab.dev,
        &KeyAlloc {
            region,
            count: handles.len() as u32,
            handles: handles.as_mut_ptr() as u64,
            ..Default::default()
        },
    )?;
    for slot in handles {
        assign(lab, slot, 64)?;
        lab.dev.close(slot)?;
    }
    Ok(lab.dev.close(region)?)
}

/// The first slot includes the objects that a domain creates for it.
fn key_alloc_first(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let domain = lab.another_domain()?;
    let usual = std::mem::replace(&mut lab.domain, domain);
    let went = key_alloc(lab, shot);
    lab.domain = usual;
    went?;
    Ok(lab.dev.close(domain)?)
}

/// Checks that such an assignment allocates nothing beyond the slot's reserve.
fn wants_no_memory(shot: &Shot<'_>) -> Result<()> {
    let memory = matches!(shot.kind(), Kind::Slab | Kind::Page);
    ensure!(
        !memory || !shot.failed(),
        "an assignment failed for want of memory"
    );
    Ok(())
}

fn assign_slot(lab: &Lab, shot: &mut Shot<'_>, slot: &Slot) -> Result<()> {
    let length = slot.map.len() as u64;
    let got = shot.ioctl(
        &lab.dev,
        &KeyAssign {
            slot: slot.slot,
            length,
            access: KFI_REMOTE_READ,
            ..Default::default()
        },
    )?;
    ensure!(got.key != KFI_KEY_NOTAVAIL, "no key");
    ensure!(access(lab, slot.slot)? == KFI_REMOTE_READ, "no rights");
    Ok(())
}

/// Returns the rights that a slot's key grants; 0 if the slot has no key.
fn access(lab: &Lab, slot: u64) -> Result<u64> {
    let all = lab.dev.obj_list()?;
    let me = std::process::id();
    let it = all.iter().find(|o| o.pid == me && o.handle == slot);
    Ok(it.map_or(0, |o| o.b))
}

/// The first assignment in its domain.
fn assign_first(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let domain = lab.another_domain()?;
    let usual = std::mem::replace(&mut lab.domain, domain);
    let went = Slot::new(lab, 1).and_then(|slot| {
        assign_slot(lab, shot, &slot)?;
        wants_no_memory(shot)?;
        slot.end(lab)
    });
    lab.domain = usual;
    went?;
    Ok(lab.dev.close(domain)?)
}

fn assign_small(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let slot = Slot::new(lab, 4)?;
    assign_slot(lab, shot, &slot)?;
    wants_no_memory(shot)?;
    slot.end(lab)
}

/// A window beyond the slot's reserve: registered by `ib_reg_user_mr`.
fn assign_large(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let slot = Slot::new(lab, 300)?;
    assign_slot(lab, shot, &slot)?;
    slot.end(lab)
}

/// A revoke never fails: if the device refuses, connections are ended instead.
fn revoke(lab: &Lab, shot: &mut Shot<'_>, pages: usize) -> Result<()> {
    let slot = Slot::new(lab, pages)?;
    assign(lab, slot.slot, (pages * PAGE) as u64)?;
    shot.ioctl(
        &lab.dev,
        &ObjectCall2 {
            handle: slot.slot,
            ..Default::default()
        },
    )?;
    ensure!(access(lab, slot.slot)? == 0, "the key lives on");
    // The next assign allocates the part of the reserve that the revoke could not.
    assign(lab, slot.slot, (pages * PAGE) as u64)?;
    slot.end(lab)
}

fn revoke_small(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    revoke(lab, shot, 1)
}

fn revoke_large(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    revoke(lab, shot, 300)
}

/// Slots of one region, and a window for each.
struct Slots {
    map: Map,
    region: u64,
    entries: Vec<KeyEntry>,
}

impl Slots {
    fn new(lab: &Lab, lens: &[usize]) -> Result<Self> {
        let map = Map::anon(300 * PAGE)?;
        touch(&map);
        let region = register(lab, &map, 1)?;
        let slots = lab.dev.key_alloc(region, lens.len() as u32)?;
        let entry = |(slot, len): (&u64, &usize)| KeyEntry {
            slot: *slot,
            length: *len as u64,
            access: KFI_REMOTE_READ,
            key: KFI_KEY_NOTAVAIL,
            ..Default::default()
        };
        let entries = slots.iter().zip(lens).map(entry).collect();
        Ok(Self {
            map,
            region,
            entries,
        })
    }

    /// Returns the number of slots with a key. They must be the first ones.
    fn assigned(&self, lab: &Lab) -> Result<usize> {
        let has = |e: &KeyEntry| Ok(access(lab, e.slot)? != 0);
        let has: Vec<bool> = self.entries.iter().map(has).collect::<Result<_>>()?;
        let count = has.iter().take_while(|has| **has).count();
        ensure!(has[count..].iter().all(|has| !has), "keys: {has:?}");
        Ok(count)
    }

    fn assign(&mut self, lab: &Lab) -> Result<()> {
        let count = self.entries.len();
        let got = lab.dev.key_assign_many(&mut self.entries)?;
        ensure!(got == (count, 0), "assigned: {got:?}");
        Ok(())
    }

    fn end(self, lab: &Lab) -> Result<()> {
        for e in &self.entries {
            lab.dev.close(e.slot)?;
        }
        lab.dev.close(self.region)?;
        drop(self.map);
        Ok(())
    }
}

/// Assigns every entry with a failure: entries that the call reports as assigned have a key and its
/// value, other entries have none. Afterwards the rest can be assigned.
fn assign_many(lab: &Lab, shot: &mut Shot<'_>, lens: &[usize]) -> Result<()> {
    assign_by(lab, shot, lens, |entries| lab.dev.key_assign_many(entries))
}

fn assign_by(
    lab: &Lab,
    shot: &mut Shot<'_>,
    lens: &[usize],
    call: impl Fn(&mut [KeyEntry]) -> crate::raw::Result<(usize, i32)>,
) -> Result<()> {
    let mut slots = Slots::new(lab, lens)?;
    let mut went = (0, 0);
    if let Ok(answer) = shot.once(|| call(&mut slots.entries))? {
        went = answer;
    }
    let (done, err) = went;
    // Ordered keys are assigned a little later.
    let end = Instant::now() + sys::patience(Duration::from_secs(5));
    while slots.assigned(lab)? < done && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(1));
    }
    let has = slots.assigned(lab)?;
    ensure!(has == done, "{has} have keys, {done} are said to");
    if done == lens.len() {
        ensure!(err == 0, "all done, but {err}");
    } else if done > 0 {
        let explained = err == shot.kind().errno() && shot.hit();
        ensure!(explained, "{done} done, then {err}");
    }
    for (i, e) in slots.entries.iter().enumerate().take(done) {
        ensure!(e.key != KFI_KEY_NOTAVAIL, "key {i} was not told");
    }
    if done < lens.len() {
        let rest = &mut slots.entries[done..];
        let count = rest.len();
        let got = lab.dev.key_assign_many(rest)?;
        ensure!(got == (count, 0), "the rest: {got:?}");
    }
    slots.end(lab)
}

fn assign_many_first(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let domain = lab.another_domain()?;
    let usual = std::mem::replace(&mut lab.domain, domain);
    let went = assign_many(lab, shot, &[PAGE; 3]);
    lab.domain = usual;
    went?;
    Ok(lab.dev.close(domain)?)
}

/// Assigns by one chain of `IB_WR_REG_MR` work requests.
fn assign_many_small(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    assign_many(lab, shot, &[PAGE; 6])?;
    wants_no_memory(shot)
}

/// Without a list.
fn assign_one_ordered(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cq = lab.dev.cq_open(lab.domain, 0, 0)?;
    assign_by(lab, shot, &[PAGE], |entries| {
        let got = lab.dev.key_order(&entries[0], cq.handle, 1)?;
        (entries[0].key, entries[0].remote_addr) = (got.key, got.remote_addr);
        Ok((1, 0))
    })?;
    ensure!(cq.read().is_none(), "a completion");
    Ok(lab.dev.close(cq.handle)?)
}

/// The keys are returned before they are assigned; a queue reports failures.
fn assign_ordered(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let cq = lab.dev.cq_open(lab.domain, 0, 0)?;
    assign_by(lab, shot, &[PAGE; 6], |entries| {
        lab.dev.key_assign_ordered(entries, cq.handle, 1)
    })?;
    ensure!(cq.read().is_none(), "a completion");
    Ok(lab.dev.close(cq.handle)?)
}

/// `IB_WR_REG_MR` windows, with `ib_reg_user_mr` windows between them.
fn assign_many_mixed(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let large = 300 * PAGE;
    assign_many(lab, shot, &[PAGE, PAGE, large, PAGE, large, PAGE])
}

/// Revokes every entry with a failure: keys that a successful call counts are revoked, and a
/// revocation stays even if its answer cannot be delivered.
fn revoke_many(lab: &Lab, shot: &mut Shot<'_>, slots: Slots, arg: &KeyRevokeMany) -> Result<()> {
    let count = slots.entries.len();
    let mut got = *arg;
    let answer = shot.once(|| lab.dev.call(&mut got))?;
    let left = slots.assigned(lab);
    if answer.is_ok() && got.err == 0 {
        ensure!(got.revoked as usize == count, "{got:?}");
        ensure!(left? == 0, "keys live on");
    }
    lab.dev.key_revoke_all(KFI_REVOKE_REGION, slots.region)?;
    ensure!(slots.assigned(lab)? == 0, "keys live on");
    let mut slots = slots;
    slots.assign(lab)?;
    slots.end(lab)
}

const MIXED: [usize; 4] = [PAGE, 300 * PAGE, 64, 2 * PAGE];

fn revoke_slots(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut slots = Slots::new(lab, &MIXED)?;
    slots.assign(lab)?;
    let list: Vec<_> = slots.entries.iter().map(|e| e.slot).collect();
    let arg = KeyRevokeMany {
        scope: KFI_REVOKE_SLOTS,
        count: list.len() as u32,
        slots: list.as_ptr() as u64,
        ..Default::default()
    };
    revoke_many(lab, shot, slots, &arg)
}

fn revoke_region(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut slots = Slots::new(lab, &MIXED)?;
    slots.assign(lab)?;
    let arg = KeyRevokeMany {
        scope: KFI_REVOKE_REGION,
        object: slots.region,
        ..Default::default()
    };
    revoke_many(lab, shot, slots, &arg)
}

fn revoke_file(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let mut slots = Slots::new(lab, &MIXED)?;
    slots.assign(lab)?;
    let arg = KeyRevokeMany {
        scope: KFI_REVOKE_FILE,
        ..Default::default()
    };
    revoke_many(lab, shot, slots, &arg)
}

fn close(lab: &Lab, shot: &mut Shot<'_>, handle: u64) -> Result<()> {
    let want = Close {
        handle,
        ..Default::default()
    };
    shot.ioctl(&lab.dev, &want).map(|_| ())
}

fn close_region(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(64 * PAGE)?;
    touch(&map);
    let region = register(lab, &map, 1)?;
    close(lab, shot, region)
}

fn close_region_own_key(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let map = Map::anon(4 * PAGE)?;
    touch(&map);
    let region = register(lab, &map, 0)?;
    close(lab, shot, region)
}

fn close_key(lab: &mut Lab, shot: &mut Shot<'_>) -> Result<()> {
    let slot = Slot::new(lab, 1)?;
    assign(lab, slot.slot, 64)?;
    close(lab, shot, slot.slot)?;
    lab.dev.close(slot.region)?;
    Ok(())
}
