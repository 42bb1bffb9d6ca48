// SPDX-License-Identifier: GPL-2.0
//! Revoking keys: a deregistration for each, or a chain of local invalidations for many.
//!
//! A local invalidation leaves the region to the slot, with the next value of the region's index. If
//! it fails, the regions are deregistered, which is a fence on every device.

use core::{
    iter,
    mem, //
};
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
    ib::{
        device::Live,
        mr::Mr, //
    },
    stats, //
};
use kfabric::{
    provider::KeyOps,
    pure::key_ledger::Draw, //
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
            return rest.iter().for_each(|slot| slot.revoke(true));
        };
        let group = &first.group;
        let of_group =
            |slot: &&&dyn KeyOps| slot_of(**slot).is_some_and(|slot| Arc::ptr_eq(&slot.group, group));
        let (of, others) = rest.split_at(rest.iter().take_while(of_group).count());
        invalidate(live, group, of.iter().filter_map(|slot| slot_of(*slot)));
        rest = others;
    }
}

/// Revokes the key of one slot, which gets another key.
pub(super) fn revoke_one(slot: &KeySlot) {
    let device = slot.group.device();
    if Revocation::of(device.ib()) == Revocation::Invalidate {
        if let Ok(live) = device.enter() {
            return invalidate(&live, &slot.group, iter::once(slot));
        }
    }
    slot.revoke(&mut slot.place.lock());
}

/// Returns the slot of this provider behind the core's reference.
fn slot_of(slot: &dyn KeyOps) -> Option<&KeySlot> {
    let key: &Key = slot.as_any().downcast_ref()?;
    Some(&key.inner)
}

/// Revokes the keys of slots of `group`, by local invalidations where there are fast registrations.
fn invalidate<'a>(
    live: &Live<'_>,
    group: &Group,
    slots: impl Iterator<Item = &'a KeySlot> + Clone,
) {
    let done = group.invalidate(live, slots.clone().filter_map(KeySlot::fast_key));
    slots.for_each(|slot| slot.invalidated(done.is_ok()));
}

impl KeySlot {
    /// Returns the value of the slot's key, if it is by fast registration.
    fn fast_key(&self) -> Option<u32> {
        match &self.place.lock().state {
            State::Fast(mr) => Some(mr.rkey()),
            _ => None,
        }
    }

    /// Completes the revocation of the slot's key. If the device has not invalidated it, the region
    /// is deregistered.
    fn invalidated(&self, done: bool) {
        let mut slot = self.place.lock();
        if !done || !matches!(slot.state, State::Fast(_)) {
            // The key has ended already if the device was removed meanwhile.
            return self.revoke(&mut slot);
        }
        stats::INVALIDATED.add(1);
        let kept = match mem::replace(&mut slot.state, State::Free(None)) {
            State::Fast(mr) => self.renewed(mr),
            _ => None,
        };
        slot.keep(kept);
    }

    /// Gives a region whose key was invalidated the next value of its index. Returns `None`, and
    /// holds or frees the region, if no value is available.
    fn renewed(&self, mut mr: Mr) -> Option<Mr> {
        match mr.next_key(self.group.values()) {
            Draw::Value(..) => Some(mr),
            _ => {
                stats::WORN.add(1);
                self.group.keep_worn(mr, self.pages());
                None
            }
        }
    }
}
