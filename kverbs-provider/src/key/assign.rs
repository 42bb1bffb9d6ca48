// SPDX-License-Identifier: GPL-2.0
//! Assigning keys: a chain of fast registrations for many slots, or one registration for one slot.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    fast::Registration,
    group::Group,
    slot::{
        Key,
        KeySlot,
        State, //
    },
    window::Window, //
};
use crate::{
    device::Device,
    ib::{
        device::Live,
        mr::Access, //
    },
    stats, //
};
use kfabric::{
    provider::{
        KeyAssign,
        KeyValue, //
    },
    uapi::{
        KFI_ATOMIC,
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    }, //
};

/// Returns the access that peers get through an assignment.
fn rights(order: &KeyAssign<'_>) -> Access {
    Access::remote(
        order.access & KFI_REMOTE_READ != 0,
        order.access & KFI_REMOTE_WRITE != 0,
        order.access & KFI_ATOMIC != 0,
    )
}

impl KeySlot {
    /// Moves the slot's reserve into a registration of `window`. The slot becomes `Taken`.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if the slot has a key or another task assigns one.
    /// - `ENOMEM` if the device has no fast registrations.
    fn begin(&self, live: &Live<'_>, window: Window, access: Access) -> Result<Registration<'_>> {
        let mut slot = self.place.lock();
        self.refill(live, &mut slot)?;
        let State::Free(reserve) = &mut slot.state else {
            return Err(EBUSY);
        };
        let mr = reserve.take().ok_or(ENOMEM)?;
        slot.state = State::Taken;
        Ok(Registration {
            mr,
            list: slot.list.take(),
            mem: &self.mem,
            window,
            page_size: PAGE_SIZE,
            access,
            posted: false,
        })
    }

    /// Commits a registration that succeeded: the slot becomes `Fast`.
    fn commit(self: &Arc<Self>, made: Registration<'_>) {
        let mut slot = self.place.lock();
        stats::FAST.add(1);
        self.opened(&mut slot, &made.mr, made.window, made.access);
        slot.state = State::Fast(made.mr);
        slot.list = made.list;
    }

    /// Rolls back a registration: the slot becomes `Free`.
    ///
    /// The region is the reserve again, unless it was posted. A posted region may be registered, so
    /// it is ended.
    fn roll_back(&self, made: Registration<'_>) {
        let Registration {
            mr,
            mut list,
            posted,
            ..
        } = made;
        let mut reserve = Some(mr);
        if let Some(mr) = reserve.take_if(|_| posted) {
            self.retire(mr.end(), &mut list);
        }
        if let Some(list) = &mut list {
            list.unmap();
        }
        let mut slot = self.place.lock();
        slot.state = State::Free(reserve);
        slot.list = list;
    }
}

/// Returns the slot of an order.
///
/// # Errors
///
/// - `EINVAL` if the slot belongs to another provider.
fn slot_of<'a>(order: &KeyAssign<'a>) -> Result<&'a Arc<KeySlot>> {
    let key = order.slot.as_any().downcast_ref::<Key>().ok_or(EINVAL)?;
    Ok(&key.inner)
}

/// Assigns slots: a chain of fast registrations for the slots of each group, or a single full
/// registration. See [`DomainOps::assign_keys`].
///
/// [`DomainOps::assign_keys`]: kfabric::provider::DomainOps::assign_keys
pub(crate) fn assign(device: &Device, batch: &mut [KeyAssign<'_>]) -> Result<(), (usize, Error)> {
    let live = device.enter().map_err(|e| (0, e))?;
    if let [one] = &mut *batch {
        if assign_full(&live, one).map_err(|e| (0, e))? {
            return Ok(());
        }
    }
    let mut done = 0;
    while let Some(first) = batch.get(done) {
        let group = &slot_of(first).map_err(|e| (done, e))?.group;
        let rest = &mut batch[done..];
        let of_group = |order: &KeyAssign<'_>| {
            slot_of(order).is_ok_and(|slot| Arc::ptr_eq(&slot.group, group))
        };
        let n = rest.iter().take_while(|order| of_group(order)).count();
        // UNACCOUNTED: Freed before the call returns; the caller may be a block device that serves
        // another task.
        let chain = (n > 1).then(|| KVec::with_capacity(n, GFP_KERNEL));
        done += match chain {
            Some(Ok(chain)) => {
                assign_chain(&live, group, &mut rest[..n], chain)
                    .map_err(|(n, e)| (done + n, e))?;
                n
            }
            // A single assignment allocates no memory. It is also the fallback without memory for a
            // chain.
            _ => {
                assign_one(&live, group, &mut rest[0]).map_err(|e| (done, e))?;
                1
            }
        };
    }
    Ok(())
}

/// Assigns a key to one slot of `group`.
fn assign_one(live: &Live<'_>, group: &Group, order: &mut KeyAssign<'_>) -> Result {
    let mut made = [prepare(live, order)?];
    let result = group.register(live, &mut made).map_err(|(_, e)| e);
    let [made] = made;
    match result {
        Ok(()) => commit(order, made),
        Err(_) => roll_back(order, made),
    }
    result
}

/// Commits a slot's registration, and stores the key's value in the order.
fn commit(order: &mut KeyAssign<'_>, made: Registration<'_>) {
    // Cannot fail: `prepare` has found the slot in this order.
    let Ok(key) = slot_of(order) else { return };
    order.value = KeyValue {
        key: u64::from(made.mr.rkey()),
        remote_addr: made.window.iova,
    };
    key.commit(made);
}

/// Rolls back a slot's registration.
fn roll_back(order: &KeyAssign<'_>, made: Registration<'_>) {
    // Cannot fail: `prepare` has found the slot in this order.
    let Ok(key) = slot_of(order) else { return };
    key.roll_back(made);
}

/// Assigns slots of `group` as a `chain`, which has capacity for all of them. See [`assign`].
fn assign_chain<'a>(
    live: &Live<'_>,
    group: &Group,
    batch: &mut [KeyAssign<'a>],
    mut chain: KVec<Registration<'a>>,
) -> Result<(), (usize, Error)> {
    let mut result = Ok(());
    for order in &*batch {
        match prepare(live, order) {
            // Cannot fail: the caller reserved the capacity.
            Ok(fast) => drop(chain.push_within_capacity(fast)),
            Err(e) => {
                result = Err((chain.len(), e));
                break;
            }
        }
    }
    if chain.is_empty() {
        return result;
    }
    let mut good = chain.len();
    if let Err((n, e)) = group.register(live, &mut chain) {
        good = n;
        result = Err((n, e));
    }
    for (i, (made, order)) in chain.drain_all().zip(batch).enumerate() {
        if i < good {
            commit(order, made);
        } else {
            roll_back(order, made);
        }
    }
    result
}

/// Moves a slot's reserve into a fast registration of the ordered window.
///
/// # Errors
///
/// - `EINVAL` if the window does not fit a fast registration.
fn prepare<'a>(live: &Live<'_>, order: &KeyAssign<'a>) -> Result<Registration<'a>> {
    let key = slot_of(order)?;
    let window = key.window(order.offset, order.len)?;
    if !key.is_fast(&window) {
        return Err(EINVAL);
    }
    key.begin(live, window, rights(order))
}

/// Assigns a key by a registration of its own if the window does not fit the slot's reserve. Returns
/// whether it did.
fn assign_full(live: &Live<'_>, order: &mut KeyAssign<'_>) -> Result<bool> {
    let key = slot_of(order)?;
    let window = key.window(order.offset, order.len)?;
    if key.is_fast(&window) {
        return Ok(false);
    }
    order.value = key.assign_full(live, window, rights(order))?;
    Ok(true)
}
