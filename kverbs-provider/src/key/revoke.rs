// SPDX-License-Identifier: GPL-2.0
//! Revoking keys: a deregistration for each, or a chain of local invalidations for many.
//!
//! A local invalidation leaves the region to the slot, with the next value of the region's index. If
//! it fails, the regions are deregistered, which is a fence on every device.
//!
//! Locking: the lock of a slot and the lock of a group's registrar are never held at once here.

use core::slice;
use kernel::sync::Arc;

use super::{
    group::Group,
    policy::Revocation,
    slot::{
        Key,
        KeySlot,
        State, //
    }, //
};
use crate::{
    device::Device,
    ib::device::Live,
    stats, //
};
use kfabric::{
    key::CHAIN,
    provider::KeyOps, //
};

/// Revokes the keys of slots. See [`DomainOps::revoke_keys`].
///
/// [`DomainOps::revoke_keys`]: kfabric::provider::DomainOps::revoke_keys
pub(crate) fn revoke(device: &Device, slots: &[&dyn KeyOps]) {
    let live = match Revocation::of(device.ib()) {
        Revocation::Invalidate => device.enter().ok(),
        Revocation::Deregister => None,
    };
    let mut rest = slots;
    while let [first, ..] = rest {
        let Some((live, first)) = live.as_ref().zip(slot_of(*first)) else {
            return rest
                .iter()
                .filter_map(|slot| slot_of(*slot))
                .for_each(deregister);
        };
        let group = &first.group;
        let of_group = |slot: &&&dyn KeyOps| {
            slot_of(**slot).is_some_and(|slot| Arc::ptr_eq(&slot.group, group))
        };
        let count = rest.iter().take(CHAIN).take_while(of_group).count();
        let (of, others) = rest.split_at(count);
        invalidate(live, group, of);
        rest = others;
    }
}

/// Revokes the key of one slot, which gets another key.
pub(super) fn revoke_one(key: &Key) {
    let key: &dyn KeyOps = key;
    if let Some(slot) = slot_of(key) {
        revoke(slot.group.device(), slice::from_ref(&key));
    }
}

/// Returns the slot of this provider behind the core's reference.
fn slot_of(slot: &dyn KeyOps) -> Option<&KeySlot> {
    let key: &Key = slot.as_any().downcast_ref()?;
    Some(&key.inner)
}

/// Revokes the slot's key by deregistration.
fn deregister(slot: &KeySlot) {
    let _ending = slot.ending();
    slot.revoke(&mut slot.place.lock());
}

/// Revokes the keys of up to [`CHAIN`] slots of `group`: those by fast registration are invalidated,
/// and then the others are deregistered.
fn invalidate(live: &Live<'_>, group: &Group, slots: &[&dyn KeyOps]) {
    let slots = || slots.iter().filter_map(|slot| slot_of(*slot));
    let mut keys = [0; CHAIN];
    let mut count = 0;
    for (place, key) in keys.iter_mut().zip(slots().filter_map(KeySlot::fast_key)) {
        *place = key;
        count += 1;
    }
    let keys = keys.get(..count).unwrap_or_default();
    if !keys.is_empty() && group.invalidate(live, keys).is_ok() {
        slots().for_each(KeySlot::invalidated);
    }
    slots().for_each(deregister);
}

impl KeySlot {
    /// Returns the value of the slot's key, if it is by fast registration.
    fn fast_key(&self) -> Option<u32> {
        let _ending = self.ending();
        match &self.place.lock().state {
            State::Fast(mr) => Some(mr.rkey()),
            _ => None,
        }
    }

    /// Completes the revocation of the slot's key, if it is by fast registration. The device has
    /// invalidated the key.
    fn invalidated(&self) {
        let _ending = self.ending();
        let mut slot = self.place.lock();
        match core::mem::replace(&mut slot.state, State::Free(None)) {
            State::Fast(mr) => {
                stats::INVALIDATED.add(1);
                slot.keep(mr, self.group.values());
            }
            other => slot.state = other,
        }
    }
}
