// SPDX-License-Identifier: GPL-2.0
//! Handles completions: the target's answers and announcements.

use core::sync::atomic::Ordering;
use kernel::prelude::*;
use kfabric::{
    pure::blk::{
        device::{
            read_done,
            Said,
            DONE, //
        },
        Geometry, //
    },
    uapi::{
        CqEntry,
        KFI_REMOTE_CQ_DATA,
        KFI_REMOTE_WRITE, //
    }, //
};

use super::{
    state::Summary,
    Io,
    CAME,
    NUMBER,
    TAG,
    UNMADE, //
};

impl Io {
    /// Handles a completion. Context: any. Locking: one caller at a time.
    pub(super) fn completed(&self, entry: &CqEntry) -> Summary {
        let mut summary = Summary::default();
        if entry.context & !NUMBER == UNMADE {
            // CAST: The lower half of an `UNMADE` context is a tag.
            let tag = (entry.context & NUMBER) as u32;
            self.unmade
                .fetch_or(1u64.checked_shl(tag).unwrap_or(0), Ordering::AcqRel);
            summary.lost = true;
            return summary;
        }
        // Sends are selective: they have a completion only if they fail.
        if entry.err != 0 || entry.context & !NUMBER != CAME {
            summary.lost = true;
            return summary;
        }
        // CAST: `NUMBER` masks 32 bits.
        let receive = (entry.context & NUMBER) as u32;
        summary.lost = self.came(receive, entry, &mut summary).is_err();
        summary.receive = Some(receive);
        summary
    }

    /// Handles a message of the target, or a write with completion data.
    fn came(&self, receive: u32, entry: &CqEntry, summary: &mut Summary) -> Result {
        let (data, at) = self.receive_buffer(receive)?;
        if entry.flags & KFI_REMOTE_CQ_DATA != 0 {
            // A message carries the bytes that were read. With a write, the key determines the
            // bytes.
            let put = entry.flags & KFI_REMOTE_WRITE != 0;
            let len = if put { 0 } else { entry.len };
            let number = u32::try_from(entry.data)?;
            if !self.answered(number, 0, len, summary)? {
                return Ok(());
            }
            let tag = number & TAG;
            let (block, queue) = *self.queue.as_ref().ok_or(EINVAL)?;
            let piece = data.piece(at, u32::try_from(len)?).ok_or(EINVAL)?;
            // SAFETY: The tag's request is in flight. It is marked as answered, so only this call
            // ends it.
            unsafe { block.copy(queue, tag, &[piece], true) };
            let mut states = self.states.lock();
            states
                .get_mut(tag as usize)
                .ok_or(EINVAL)?
                .end(tag, summary);
            return Ok(());
        }
        let mut message = [0; DONE];
        let len = usize::try_from(entry.len)?;
        let message = message.get_mut(..len).ok_or(EINVAL)?;
        // Copied once, so that the target cannot change the bytes after they are checked.
        data.read(at, message);
        if let Ok(numbers) = read_done(message) {
            for number in numbers {
                self.answered(number, 0, 0, summary)?;
            }
            return Ok(());
        }
        let head = message.first_chunk().ok_or(EINVAL)?;
        match Said::read(head, entry.len).map_err(|_| EINVAL)? {
            Said::Reply { number, status } => self.answered(number, status, 0, summary).map(drop),
            Said::News(capacity) => {
                let now = Geometry {
                    capacity,
                    ..self.geometry
                };
                now.check().map_err(|_| EINVAL)?;
                summary.capacity = Some(capacity);
                Ok(())
            }
        }
    }

    /// Handles the answer to a request, with `len` bytes of payload. Returns whether the caller
    /// copies the payload and then ends the request.
    fn answered(&self, number: u32, status: u32, len: u64, summary: &mut Summary) -> Result<bool> {
        let tag = number & TAG;
        let mut states = self.states.lock();
        let state = states.get_mut(tag as usize).ok_or(EINVAL)?;
        let ours = state.busy && state.answered.is_none() && u32::from(state.times) == number >> 16;
        let wanted = match (state.reads && !state.keyed && !state.spare, status) {
            (true, 0) => state.len,
            _ => 0,
        };
        if !ours || len != u64::from(wanted) {
            return Err(EINVAL);
        }
        state.answered = Some(status);
        if let (0, Some(unflushed)) = (status, self.unflushed.as_ref()) {
            unflushed.done(state.effect);
        }
        if state.spare {
            let fetch = state.reads && status == 0;
            drop(states);
            return self.spared(tag, fetch, summary).map(|()| false);
        }
        if state.keyed {
            self.keyed.fetch_or(1 << tag, Ordering::AcqRel);
            summary.revoke = true;
        } else if len == 0 {
            state.end(tag, summary);
        }
        Ok(len != 0)
    }

    /// Ends an answered request that uses the spare. With `fetch`, copies the bytes first.
    fn spared(&self, tag: u32, fetch: bool, summary: &mut Summary) -> Result {
        if fetch {
            let (block, queue) = *self.queue.as_ref().ok_or(EINVAL)?;
            // SAFETY: The tag's request is in flight. It is marked as answered, so only this call
            // ends it.
            unsafe { block.copy(queue, tag, self.spare.data.pieces(), true) };
        }
        self.spare.put();
        let mut states = self.states.lock();
        states
            .get_mut(tag as usize)
            .ok_or(EINVAL)?
            .end(tag, summary);
        Ok(())
    }
}
