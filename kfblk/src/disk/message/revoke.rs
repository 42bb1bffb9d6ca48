// SPDX-License-Identifier: GPL-2.0
//! Ends requests that have keys: the keys are revoked first. Closes the connection.

use core::sync::atomic::Ordering;
use kernel::sync::Arc;
use kfabric::{
    key::Key,
    pure::blk::device::DEPTH,
    sys::NoIo, //
};

use super::Io;
use crate::sys::{
    self,
    Block,
    Verdict, //
};

impl Io {
    /// Revokes the keys of answered requests and ends these requests. Does so here if the caller
    /// `may_sleep` and no other task is doing it; otherwise the work does it soon.
    pub(super) fn revoke_soon(this: &Arc<Self>, may_sleep: bool) {
        let closed = match may_sleep {
            true => this.closed.try_lock(),
            false => None,
        };
        if let Some(closed) = closed {
            let _no_io = NoIo::begin();
            if *closed || this.revoke_answered() {
                return;
            }
        }
        // Queued work needs no second entry: it reads `keyed` when it runs.
        let _ = sys::requests().enqueue(this.clone());
    }

    /// Revokes the keys of answered requests and ends these requests. Returns `false` if the task
    /// is killed and another task must continue. Locking: caller holds `closed`.
    pub(super) fn revoke_answered(&self) -> bool {
        let Some((block, queue)) = self.queue.as_ref().copied() else {
            return true;
        };
        let Some(first) = self.slots.first() else {
            return true;
        };
        loop {
            let tags = self.keyed.swap(0, Ordering::AcqRel);
            let mut all = [&*first.key; DEPTH as usize];
            let mut count = 0;
            for (tag, slot) in self.slots.iter().enumerate() {
                if tags & (1 << tag) != 0 {
                    if let Some(place) = all.get_mut(count) {
                        *place = &*slot.key;
                        count += 1;
                    }
                }
            }
            let keys = all.get_mut(..count).unwrap_or_default();
            if keys.is_empty() {
                return true;
            }
            if Key::end_many(keys).is_err() {
                // A key may still be valid, and its request must not end before the key is revoked.
                self.keyed.fetch_or(tags, Ordering::AcqRel);
                return false;
            }
            for (tag, slot) in (0..).zip(&self.slots) {
                if tags & (1 << tag) != 0 {
                    // SAFETY: `end_many` has revoked the tag's key.
                    unsafe { slot.empty() };
                    self.complete(block, queue, tag);
                }
            }
            Key::renew_many(keys);
        }
    }

    /// Ends a request whose key is revoked.
    fn complete(&self, block: Block, queue: u32, tag: u32) {
        let state = {
            let mut states = self.states.lock();
            let Some(state) = states.get_mut(tag as usize).filter(|state| state.busy) else {
                return;
            };
            state.busy = false;
            *state
        };
        let status = state.answered.unwrap_or(0);
        // SAFETY: The tag's request is in flight. `busy` was cleared under the lock, so only this
        // call ends it.
        unsafe {
            if status != 0 {
                return block.fail(queue, tag, status);
            }
            block.end(queue, tag, Verdict::Done);
        }
    }

    /// Ends all outstanding requests with `verdict`, with which they are retried. Requests whose
    /// assignments have failed are blamed, unless the connection is only replaced.
    ///
    /// The caller has closed the endpoint. No task is in [`Io::completed`] or [`Io::send`].
    pub(super) fn close(&self, verdict: Verdict) {
        let mut closed = self.closed.lock();
        *closed = true;
        let Some((block, queue)) = self.queue.as_ref().copied() else {
            return;
        };
        for key in &self.spare.keys {
            key.close();
        }
        for (tag, slot) in (0..).zip(&self.slots) {
            // The endpoint's close has already ended its keys; this releases the slot.
            slot.key.close();
            // SAFETY: The slot is closed, so it has no key and no assignment is outstanding.
            unsafe { slot.empty() };
            let busy = {
                let mut states = self.states.lock();
                let state = states.get_mut(tag as usize);
                state.is_some_and(|state| core::mem::take(&mut state.busy))
            };
            let unmade = self.unmade.load(Ordering::Acquire) & (1 << tag) != 0;
            let verdict = match unmade && verdict != Verdict::Renewed {
                true => Verdict::Blamed,
                false => verdict,
            };
            if busy {
                // SAFETY: The tag's request is in flight. `busy` was cleared under the lock, so
                // only this call ends it.
                unsafe { block.end(queue, tag, verdict) };
            }
        }
    }
}
