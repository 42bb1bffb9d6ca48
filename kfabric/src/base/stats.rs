// SPDX-License-Identifier: GPL-2.0
//! Counters for administrators: `/sys/kernel/debug/kfabric/`, with a folder for each part and a
//! file for each counter. Each counts from the load of its module.
//!
//! Names and meanings may change; no program may depend on them. Without debugfs the counters still
//! count.

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
    /// Creates a counter at zero.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`. Context: any.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }
}

impl Default for Counter {
    fn default() -> Self {
        Self::new()
    }
}

/// The top folder; the drop removes it.
pub(crate) struct Root(());

impl Root {
    /// Creates the folder. Once, at module load.
    pub(crate) fn new() -> Self {
        // SAFETY: This is called once, and the drop undoes it.
        unsafe { sys::kf_stats_init() };
        Self(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        // SAFETY: `new` created the folder.
        unsafe { sys::kf_stats_exit() };
    }
}

/// The folder of a part's counters; the drop removes it.
///
/// # Invariants
///
/// The pointer is the result of `kf_stats_dir`, which may be an error pointer.
pub struct Files(*mut bindings::dentry);

// SAFETY: The only use is to remove the folder, which any thread may do.
unsafe impl Send for Files {}
// SAFETY: A shared reference gives no access to the folder.
unsafe impl Sync for Files {}

impl Files {
    /// Creates the folder `name` with a file for each of `counters`, which are statics of the
    /// calling module.
    #[inline(never)]
    pub fn new(name: &CStr, counters: &[(&CStr, &'static Counter)]) -> Self {
        // SAFETY: The name ends with a NUL, and is copied.
        let dir = unsafe { sys::kf_stats_dir(name.as_char_ptr()) };
        for (name, counter) in counters {
            // SAFETY: The name ends with a NUL, and is copied. The counter exists as long as its
            // module, which drops the folder before its unload; the drop waits for readers.
            unsafe { sys::kf_stats_count(dir, name.as_char_ptr(), counter.0.as_ptr()) };
        }
        // INVARIANT: `dir` is the result of `kf_stats_dir`.
        Self(dir)
    }
}

impl Drop for Files {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: By the type invariant the pointer is a result of `kf_stats_dir`; an error is
        // ignored.
        unsafe { sys::kf_stats_remove(self.0) };
    }
}
