// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Accounting of acknowledged writes that are still in the target's volatile write cache.
//!
//! Each write is counted when it is acknowledged. A flush covers the writes that were acknowledged
//! before the flush was sent, and none that are acknowledged while the flush is in flight.

use super::super::sync::{
    AtomicU64,
    Ordering, //
};
use super::device::{
    Op,
    PAST_CACHE, //
};

/// Effect of a successful request on the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// No effect.
    #[default]
    Nothing,
    /// The request has left data in the cache.
    Fills,
    /// The first this-many acknowledged writes are on stable storage.
    Covers(u64),
}

/// Counts of acknowledged writes and of flushed ones.
#[derive(Default)]
pub struct Unflushed {
    acknowledged: AtomicU64,
    covered: AtomicU64,
}

impl Unflushed {
    /// Returns the effect of a request that is about to be sent.
    pub fn effect(&self, op: Op, flags: u8) -> Effect {
        match op {
            Op::Write | Op::Zeroes if flags & PAST_CACHE == 0 => Effect::Fills,
            Op::Flush => Effect::Covers(self.acknowledged.load(Ordering::Acquire)),
            // Discarded blocks have undefined contents, so nothing can be lost.
            Op::Read | Op::Write | Op::Zeroes | Op::Discard => Effect::Nothing,
        }
    }

    /// Records the success of a request. The caller does so before it completes the request,
    /// because the completion may trigger a flush.
    pub fn done(&self, effect: Effect) {
        match effect {
            Effect::Nothing => {}
            Effect::Fills => {
                self.acknowledged.fetch_add(1, Ordering::AcqRel);
            }
            Effect::Covers(count) => {
                self.covered.fetch_max(count, Ordering::AcqRel);
            }
        }
    }

    /// Returns whether an acknowledged write is unflushed. No request may be in flight.
    pub fn is_any(&self) -> bool {
        self.acknowledged.load(Ordering::Acquire) != self.covered.load(Ordering::Acquire)
    }

    /// Treats all acknowledged writes as flushed, because the device is another one. No request may
    /// be in flight.
    pub fn forget(&self) {
        let count = self.acknowledged.load(Ordering::Acquire);
        self.covered.store(count, Ordering::Release);
    }
}
