// SPDX-License-Identifier: GPL-2.0
//! Writing bytes under a key back to persistent memory, for a peer's commit.
//!
//! A commit names the key by its value. The device's list of keys is searched without the locks of
//! the slots. The slot's lock is the gate: a revocation takes it too, so it waits for one stretch of
//! [`STRETCH`] bytes at most.

use core::sync::atomic::Ordering;

use super::slot::{
    KeySlot,
    Slot,
    State, //
};
use crate::{
    ib::{
        mr::{
            Access,
            Mr, //
        },
        persist, //
    },
    key::window::Window,
    resource::GroupId, //
};
use kfabric::pure::commit::{
    Range,
    Status, //
};

/// Bytes that are written back with the slot locked.
const STRETCH: u64 = 64 << 10;

impl Slot {
    /// Returns the window of the key `value`, and the rights of peers, if that is the slot's key.
    fn window(&self, value: u64) -> Option<(Window, Access)> {
        let mr = match &self.state {
            State::Fast(mr) | State::Full(mr, ..) => mr,
            State::Free(_) | State::Taken => return None,
        };
        self.open.filter(|_| u64::from(mr.rkey()) == value)
    }
}

impl KeySlot {
    /// Records the slot's new key.
    pub(super) fn opened(&self, slot: &mut Slot, mr: &Mr, window: Window, access: Access) {
        slot.open = Some((window, access));
        self.value.store(u64::from(mr.rkey()), Ordering::Release);
    }

    /// Returns whether the slot has or had the key `value` in `group`. Takes no lock.
    pub(crate) fn may_have(&self, group: GroupId, value: u64) -> bool {
        value != 0 && self.value.load(Ordering::Acquire) == value && self.group.id() == group
    }

    /// Writes the next bytes of a range back, after the first `done` bytes. Returns the number of
    /// bytes, or `None` if the slot does not have the range's key.
    ///
    /// The bytes are durable after the fence of the [`persist::Flush`].
    ///
    /// Context: process; may sleep. Locking: none held.
    pub(crate) fn write_back(
        &self,
        flush: &persist::Flush,
        range: &Range,
        done: u64,
    ) -> Option<Result<u64, Status>> {
        let slot = self.place.lock();
        let (window, access) = slot.window(range.key)?;
        // CAST: A `usize` has at most 64 bits.
        let inside = range.within(window.iova, window.len as u64);
        let Some(into) = inside.filter(|_| access.lets_write()) else {
            return Some(Err(Status::Refused));
        };
        if !self.mem.persistence().is_durable_by_cpu() {
            return Some(Err(Status::Unsupported));
        }
        let n = range.len.saturating_sub(done).min(STRETCH);
        // CAST: The range is inside the memory, whose length is a `usize`.
        let at = window.offset + (into + done) as usize;
        // CAST: At most `STRETCH`.
        flush.write_back(&self.mem, at, n as usize);
        Some(Ok(n))
    }
}
