// SPDX-License-Identifier: GPL-2.0
//! What is counted of all devices: `/sys/kernel/debug/kfabric/kverbs/`.

use kfabric::stats::{
    Counter,
    Files, //
};

/// Keys made by fast registration.
pub(crate) static FAST: Counter = Counter::new();
/// Keys made by full registration.
pub(crate) static FULL: Counter = Counter::new();
/// Times that a device was waited for until registrations were done, up to a chain at once.
pub(crate) static WAITS: Counter = Counter::new();
/// Memory regions that slots were given to have in reserve.
pub(crate) static RESERVED: Counter = Counter::new();
/// Times that a slot was left without what its next key takes, until a worker had it.
pub(crate) static SHORT: Counter = Counter::new();
/// Memory regions that were not used because all their values had been.
pub(crate) static WORN: Counter = Counter::new();

/// Makes the counters' files.
pub(crate) fn files() -> Files {
    Files::new(
        c"kverbs",
        &[
            (c"fast", &FAST),
            (c"full", &FULL),
            (c"reserved", &RESERVED),
            (c"short", &SHORT),
            (c"waits", &WAITS),
            (c"worn", &WORN),
        ],
    )
}
