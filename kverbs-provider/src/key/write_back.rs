// SPDX-License-Identifier: GPL-2.0
//! Writing bytes under a key back to persistent memory, for a peer's commit.
//!
//! A commit names the key by its value. The search goes through the keys of the connection's group
//! alone, in the group's index. The slot's lock is the gate: a revocation takes it too, so it waits
//! for one stretch of [`STRETCH`] bytes at most: while it waits, no commit takes the lock again
//! ([`KeySlot::is_ending`]). A commit does not wait for the lock, whose owner may wait for memory.

use kernel::sync::Arc;

use super::{
    group::Group,
    slot::{
        KeySlot,
        Slot,
        State, //
    }, //
};
use crate::{
    ib::{
        mr::{
            Access,
            Mr, //
        },
        persist, //
    },
    key::window::Window, //
};
use kfabric::pure::commit::{
    Range,
    Status, //
};

/// Bytes that are written back with the slot locked.
const STRETCH: u64 = 64 << 10;

/// Why no bytes were written back.
pub(crate) enum Unwritten {
    /// Another task has the lock of the key's slot.
    Busy,
    /// The range has ended.
    Ended(Status),
}

impl Slot {
    /// Returns the window of the key `value`, and the rights of peers, if that is the slot's key.
    fn window(&self, value: u64) -> Option<(Window, Access)> {
        let mr = match &self.state {
            State::Fast(mr) => mr,
            State::Full(full) => &full.mr,
            State::Free(_) | State::Taken => return None,
        };
        self.open.filter(|_| u64::from(mr.rkey()) == value)
    }
}

impl KeySlot {
    /// Records the slot's new key.
    pub(super) fn opened(
        self: &Arc<Self>,
        slot: &mut Slot,
        mr: &Mr,
        window: Window,
        access: Access,
    ) {
        slot.open = Some((window, access));
        self.group.index().set(&mut slot.entry, self, mr.rkey());
    }

    /// Writes the next bytes of a range back, after the first `done` bytes. Returns the number of
    /// bytes, or `None` if the slot does not have the range's key.
    ///
    /// The bytes are durable after the fence of the [`persist::Flush`].
    ///
    /// Context: process. Locking: none held.
    fn write_back(
        &self,
        flush: &persist::Flush,
        range: &Range,
        done: u64,
    ) -> Option<Result<u64, Unwritten>> {
        if self.is_ending() {
            return Some(Err(Unwritten::Busy));
        }
        let Some(slot) = self.place.try_lock() else {
            return Some(Err(Unwritten::Busy));
        };
        let (window, access) = slot.window(range.key)?;
        // CAST: A `usize` has at most 64 bits.
        let inside = range.within(window.iova, window.len as u64);
        let Some(into) = inside.filter(|_| access.lets_write()) else {
            return Some(Err(Unwritten::Ended(Status::Refused)));
        };
        if !self.mem.persistence().is_durable_by_cpu() {
            return Some(Err(Unwritten::Ended(Status::Unsupported)));
        }
        let n = range.len.saturating_sub(done).min(STRETCH);
        // CAST: The range is inside the memory, whose length is a `usize`.
        let at = match cfg!(kfabric_seed_bug = "pmem-wrong-range") {
            true => window.offset,
            false => window.offset + (into + done) as usize,
        };
        // CAST: At most `STRETCH`.
        flush.write_back(&self.mem, at, n as usize);
        Some(Ok(n))
    }
}

impl Group {
    /// Writes the next bytes of a range back, after the first `done` bytes, at most [`STRETCH`].
    /// Returns the number of bytes, at least one unless the range has none left.
    ///
    /// The bytes are durable after the fence of the [`persist::Flush`].
    ///
    /// Context: process; may sleep. Locking: none held.
    ///
    /// # Errors
    ///
    /// - [`Unwritten::Busy`]: the caller tries again.
    /// - [`Unwritten::Ended`] with [`Status::Revoked`] if the group has no such key.
    /// - [`Unwritten::Ended`] with [`Status::Refused`] if the key does not let peers write the range.
    /// - [`Unwritten::Ended`] with [`Status::Unsupported`] if the processor cannot make the memory durable.
    pub(crate) fn write_back(
        &self,
        flush: &persist::Flush,
        range: &Range,
        done: u64,
    ) -> Result<u64, Unwritten> {
        let mut busy = false;
        let write = |slot: &KeySlot| match slot.write_back(flush, range, done) {
            // Another slot may have the key: entries may be out of date.
            Some(Err(Unwritten::Busy)) => {
                busy = true;
                None
            }
            done => done,
        };
        let found = self.index().find(range.key, write);
        found.unwrap_or(Err(match busy {
            true => Unwritten::Busy,
            false => Unwritten::Ended(Status::Revoked),
        }))
    }
}
