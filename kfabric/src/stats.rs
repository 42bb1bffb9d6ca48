// SPDX-License-Identifier: GPL-2.0
//! Counters for people: `/sys/kernel/debug/kfabric/`, a folder for each part, a file for each
//! counter, counted from the load of its module.
//!
//! What they are called and what they count may change; no program may depend on it. A kernel
//! without debugfs counts all the same.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*, //
};

use crate::sys;

/// A counter.
pub struct Counter(AtomicU64);

impl Counter {
    /// At zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Counts `n` more. Any context.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

/// The folder that all others are in; dropping it takes it away.
pub(crate) struct Root(());

impl Root {
    /// Makes it. Once, at module load.
    pub(crate) fn new() -> Self {
        // SAFETY: Called once, and undone by drop.
        unsafe { sys::kf_stats_init() };
        Self(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: `new` made it.
        unsafe { sys::kf_stats_exit() };
    }
}

/// The folder of a part's counters; dropping it takes it away.
///
/// # Invariants
///
/// The pointer is what `kf_stats_dir` returned, good or bad.
pub struct Files(*mut bindings::dentry);

// SAFETY: Any thread may remove a folder of debugfs, and nothing else is done with it.
unsafe impl Send for Files {}
// SAFETY: As above.
unsafe impl Sync for Files {}

impl Files {
    /// Makes the folder `name` with a file for each of `counters`, which are statics of the module
    /// that keeps this.
    #[inline(never)]
    pub fn new(name: &CStr, counters: &[(&CStr, &'static Counter)]) -> Self {
        // SAFETY: The name ends with a NUL, and is copied.
        let dir = unsafe { sys::kf_stats_dir(name.as_char_ptr()) };
        for (name, counter) in counters {
            // SAFETY: As above. The counter is there as long as its module, which drops the folder
            // before it goes; dropping waits for who reads.
            unsafe { sys::kf_stats_count(dir, name.as_char_ptr(), counter.0.as_ptr()) };
        }
        // INVARIANT: As just returned.
        Self(dir)
    }
}

impl Drop for Files {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: By the type invariant; of a bad pointer nothing is removed.
        unsafe { sys::kf_stats_remove(self.0) };
    }
}
