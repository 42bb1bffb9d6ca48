// SPDX-License-Identifier: GPL-2.0
//! Memory cgroups, for memory that a work item allocates in the name of a program.

use kernel::bindings;

use super::raw;

/// A memory cgroup.
///
/// # Invariants
///
/// This object owns a reference to `cgroup`, which is null if the kernel has no memory cgroups.
pub(crate) struct MemCgroup {
    cgroup: *mut bindings::mem_cgroup,
}

// SAFETY: Any thread may use the C object, and drop a reference to it.
unsafe impl Send for MemCgroup {}
// SAFETY: Any thread may use the C object.
unsafe impl Sync for MemCgroup {}

impl MemCgroup {
    /// Returns the cgroup that is charged for the current task's memory.
    pub(crate) fn of_current() -> Self {
        // INVARIANT: The function returns a reference, or null.
        Self {
            // SAFETY: The current task is the caller.
            cgroup: unsafe { raw::kverbs_memcg_get() },
        }
    }

    /// Calls `act`, whose allocations with `GFP_KERNEL_ACCOUNT` are charged to this cgroup.
    ///
    /// Context: process.
    pub(crate) fn charged<T>(&self, act: impl FnOnce() -> T) -> T {
        // SAFETY: By the type invariant the cgroup stays during the call, and the task's former
        // value is restored before the return.
        let former = unsafe { raw::kverbs_memcg_enter(self.cgroup) };
        let result = act();
        // SAFETY: The value is the one that the task had before.
        unsafe { raw::kverbs_memcg_enter(former) };
        result
    }
}

impl Drop for MemCgroup {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this object owns the reference.
        unsafe { raw::kverbs_memcg_put(self.cgroup) };
    }
}
