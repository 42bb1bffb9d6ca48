// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What a device has acknowledged, and would lose with its power.
//!
//! Writes are counted when they are acknowledged. A flush covers those that had been when it was sent,
//! and not what is acknowledged while it is under way.

use super::super::sync::{
    AtomicU64,
    Ordering, //
};
use super::device::{
    Op,
    PAST_CACHE, //
};

/// What a request does, once it has gone well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    #[default]
    Nothing,
    /// Something is in the cache.
    Fills,
    /// The first so many of what there was are past it.
    Covers(u64),
}

/// How many writes were acknowledged, and how many of them were flushed.
#[derive(Default)]
pub struct Unflushed {
    acknowledged: AtomicU64,
    covered: AtomicU64,
}

impl Unflushed {
    /// What a request does that is about to be sent.
    pub fn effect(&self, op: Op, flags: u8) -> Effect {
        match op {
            Op::Write | Op::Zeroes if flags & PAST_CACHE == 0 => Effect::Fills,
            Op::Flush => Effect::Covers(self.acknowledged.load(Ordering::Acquire)),
            // What is discarded may be what it was.
            Op::Read | Op::Write | Op::Zeroes | Op::Discard => Effect::Nothing,
        }
    }

    /// A request has gone well. Before anybody is told of it, who may flush then.
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

    /// Whether something was acknowledged and not flushed. Nothing is under way.
    pub fn is_any(&self) -> bool {
        self.acknowledged.load(Ordering::Acquire) != self.covered.load(Ordering::Acquire)
    }

    /// It is another device. Nothing is under way.
    pub fn forget(&self) {
        let count = self.acknowledged.load(Ordering::Acquire);
        self.covered.store(count, Ordering::Release);
    }
}
