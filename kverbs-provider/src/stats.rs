// SPDX-License-Identifier: GPL-2.0
//! Counters of all devices: `/sys/kernel/debug/kfabric/kverbs/`. Counts of the key values of a domain, which
//! its owner may see, too.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kfabric::{
    base::stats::{
        Counter,
        Files, //
    },
    provider::KeyCounts, //
};

/// Keys assigned by fast registration.
pub(crate) static FAST: Counter = Counter::new();
/// Keys assigned by full registration.
pub(crate) static FULL: Counter = Counter::new();
/// Keys revoked by local invalidation.
pub(crate) static INVALIDATED: Counter = Counter::new();
/// Waits for a device to execute registrations or invalidations, up to a chain at once.
pub(crate) static WAITS: Counter = Counter::new();
/// Memory regions obtained as reserves of slots.
pub(crate) static RESERVED: Counter = Counter::new();
/// Times that a slot lacked resources for its next key until a worker had obtained them.
pub(crate) static SHORT: Counter = Counter::new();
/// Key values that a slot had in reserve when it closed, and that no key has had.
pub(crate) static UNUSED: Counter = Counter::new();
/// Key values drawn for slots and for full registrations.
pub(crate) static USED: Counter = Counter::new();
/// Those that were used before: all others had been used, and had rested.
pub(crate) static REUSED: Counter = Counter::new();
/// Memory regions that were not used because no key value of theirs was available.
pub(crate) static WORN: Counter = Counter::new();
/// Indices of regions that were set aside until their key values have rested.
pub(crate) static RESTING: Counter = Counter::new();
/// Those of [`RESTING`] that are in use again.
pub(crate) static RELEASED: Counter = Counter::new();

/// Creates the files of the counters.
pub(crate) fn files() -> Files {
    Files::new(
        c"kverbs",
        &[
            (c"fast", &FAST),
            (c"full", &FULL),
            (c"invalidated", &INVALIDATED),
            (c"released", &RELEASED),
            (c"reserved", &RESERVED),
            (c"resting", &RESTING),
            (c"reused", &REUSED),
            (c"short", &SHORT),
            (c"unused", &UNUSED),
            (c"used", &USED),
            (c"waits", &WAITS),
            (c"worn", &WORN),
        ],
    )
}

/// Counts of the key values of a domain's groups.
#[derive(Default)]
pub(crate) struct DomainCounts {
    used: AtomicU64,
    reused: AtomicU64,
    worn: AtomicU64,
}

impl DomainCounts {
    /// Returns the counts, of a domain in whose user's budget `spent` values count.
    pub(crate) fn read(&self, spent: u64) -> KeyCounts {
        KeyCounts {
            used: self.used.load(Ordering::Relaxed),
            reused: self.reused.load(Ordering::Relaxed),
            worn: self.worn.load(Ordering::Relaxed),
            spent,
        }
    }

    /// Counts a draw. `again`: the value was used before.
    pub(crate) fn draw(&self, again: bool) {
        USED.add(1);
        REUSED.add(u64::from(again));
        self.used.fetch_add(1, Ordering::Relaxed);
        if again {
            self.reused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Undoes the count of a draw in the domain's counts: the value was in no key.
    pub(crate) fn give_back(&self, again: bool) {
        self.used.fetch_sub(1, Ordering::Relaxed);
        self.reused.fetch_sub(u64::from(again), Ordering::Relaxed);
    }

    /// Counts the end of a key, which has used up its region's index if `is_worn`.
    pub(crate) fn end(&self, is_worn: bool) {
        if is_worn {
            self.worn.fetch_add(1, Ordering::Relaxed);
        }
    }
}
