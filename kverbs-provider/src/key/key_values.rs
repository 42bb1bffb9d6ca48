// SPDX-License-Identifier: GPL-2.0
//! Key values issued since the module was loaded, on any device. No value is issued twice (P4), not
//! even if a device is removed and its replacement starts to count anew. A value is recorded when a
//! slot reserves it. If the slot ends before the value was in a key or was returned to a caller,
//! the record forgets the value ([`Values::give_back`]): reservations exhaust nothing.
//!
//! There is one exception, on request: an endpoint with endpoint-scoped keys may reuse values that
//! other such endpoints have had. Only the endpoint's peer can access the memory of its group.
//! Therefore, it is enough that the value is new in the group. [`kfabric::pure::key_values`] says
//! how the two kinds are kept apart.
//!
//! The record takes 48 bytes for each hardware slot that ever had a key. It takes 16 more in each
//! group that reuses values and had a key with that slot. There are 2^32 values (rxe uses 2^27),
//! half of them for keys whose values are never reused. When those are exhausted, assignments of
//! such keys fail. Each endpoint that reuses values has as many.
//!
//! A task that owns one of the locks does not allocate: memory reclaim may depend on another task
//! that waits for the lock.

use core::ops::DerefMut;
use kernel::{
    alloc::Flags,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        new_mutex,
        Mutex, //
    }, //
};

use kfabric::pure::key_values::{
    Issued,
    IssuedOwn, //
};

/// Number of hardware slots whose values are recorded in one allocation of at most a page.
const CHUNK: usize = kernel::page::PAGE_SIZE / size_of::<Issued>();

/// Records of hardware slots, in units of [`CHUNK`]; `None` before the first record.
type Map<T> = Option<RBTree<usize, KVec<T>>>;

kernel::sync::global_lock! {
    // SAFETY: `Memory::new` initialises the lock at module load, before the client is registered.
    unsafe(uninit) static ISSUED: Mutex<Map<Issued>> = None;
}

/// Owns the record of issued key values. Dropping it frees the record.
pub(crate) struct Memory(());

impl Memory {
    /// Initialises the record of issued key values.
    ///
    /// # Safety
    ///
    /// The caller calls this function once, at module load, before the client is registered.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller calls `new` once, before any use of the lock.
        unsafe { ISSUED.init() };
        Self(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let issued = ISSUED.lock().take();
        drop(issued);
    }
}

/// Calls `act` with the record of the hardware slot of `key` in the map behind `lock`.
///
/// # Errors
///
/// - `ENOMEM` if there is no memory for the record.
fn with<T, G, R>(
    lock: impl Fn() -> G,
    key: u32,
    flags: Flags,
    act: impl FnOnce(&mut T) -> R,
) -> Result<R>
where
    T: Clone + Default,
    G: DerefMut<Target = Map<T>>,
{
    // CAST: The value has 24 bits.
    let slot = (key >> 8) as usize;
    let mut fresh = None;
    loop {
        {
            let mut guard = lock();
            let map = guard.get_or_insert_with(RBTree::new);
            if map.get(&(slot / CHUNK)).is_none() {
                if let Some(fresh) = fresh.take() {
                    // Cannot replace an entry: the lookup above found none with this number.
                    let _ = map.insert(fresh);
                }
            }
            if let Some(chunk) = map.get_mut(&(slot / CHUNK)) {
                return Ok(act(chunk.get_mut(slot % CHUNK).ok_or(EINVAL)?));
            }
        }
        let chunk = KVec::from_elem(T::default(), CHUNK, flags)?;
        fresh = Some(RBTreeNode::new(slot / CHUNK, chunk, flags)?);
    }
}

/// Calls `act` with the record of `key`'s hardware slot that all groups share.
fn with_all<R>(key: u32, act: impl FnOnce(&mut Issued) -> R) -> Result<R> {
    // UNACCOUNTED: The record of key values serves all programs until the module unloads.
    with(|| ISSUED.lock(), key, GFP_KERNEL, act)
}

/// Source of the values of a group's keys.
#[pin_data]
pub(crate) struct Values {
    /// True for a group of one endpoint that reuses values of other such groups.
    reuses: bool,
    /// Values that this group has had, if it reuses values.
    #[pin]
    had: Mutex<Map<IssuedOwn>>,
}

impl Values {
    /// Returns the source for a group. `reuses` is for a group of one endpoint that reuses values.
    pub(crate) fn new(reuses: bool) -> impl PinInit<Self> {
        pin_init!(Self {
            reuses,
            had <- new_mutex!(None, "kverbs_key_values"),
        })
    }

    /// Returns whether the group reuses values.
    pub(crate) fn reuses(&self) -> bool {
        self.reuses
    }

    fn with_own<R>(&self, key: u32, act: impl FnOnce(&mut IssuedOwn) -> R) -> Result<R> {
        with(|| self.had.lock(), key, GFP_KERNEL_ACCOUNT, act)
    }

    /// Draws a low byte for a key with the hardware slot of `key`, such that no peer with access to
    /// the group has seen the value. `random` selects among the free bytes.
    ///
    /// Returns `None` if the slot's values are exhausted.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory for the record.
    pub(crate) fn draw(&self, key: u32, random: u32) -> Result<Option<u8>> {
        if !self.reuses {
            return with_all(key, |issued| issued.draw(random));
        }
        // Create the shared record first, so that the call below does not allocate under the other
        // lock.
        with_all(key, |_| ())?;
        self.with_own(key, |own| with_all(key, |all| own.draw(all, random)))?
    }

    /// Removes the value of `key`, which [`Values::draw`] issued, from the record. The device has
    /// never received the value, and no caller has seen it.
    pub(crate) fn give_back(&self, key: u32) {
        // CAST: Keeps the low byte.
        let byte = key as u8;
        // Neither call can fail or allocate: `draw` has created the record.
        if self.reuses {
            let _ = self.with_own(key, |own| own.give_back(byte));
        } else {
            let _ = with_all(key, |issued| issued.give_back(byte));
        }
    }

    /// Records `key`, which the device chose, as issued. Returns whether the value is new.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory for the record.
    pub(crate) fn take(&self, key: u32) -> Result<bool> {
        // CAST: Keeps the low byte.
        let byte = key as u8;
        let new = with_all(key, |issued| issued.take(byte))?;
        if new && self.reuses {
            self.with_own(key, |issued| issued.take(byte))?;
        }
        Ok(new)
    }
}
