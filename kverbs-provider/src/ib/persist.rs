// SPDX-License-Identifier: GPL-2.0
//! Writing cache lines back to persistent memory.

use core::marker::PhantomData;

use super::raw;
use kfabric::memory::Memory;

/// Returns whether the kernel can write cache lines back.
pub(crate) fn is_supported() -> bool {
    // SAFETY: The function has no preconditions.
    unsafe { raw::kverbs_writes_back() }
}

/// Returns whether the administrator allows durable writes.
pub(crate) fn is_allowed() -> bool {
    // SAFETY: The function has no preconditions.
    unsafe { raw::kverbs_commits() }
}

/// Write-backs of this task. The task stays on its processor, because a fence orders only the
/// write-backs of its own processor. The drop is the fence: after it, the bytes are durable.
///
/// # Invariants
///
/// The task called `kverbs_stay()` once for this value.
pub(crate) struct Flush {
    /// The value belongs to the task.
    _task: PhantomData<*mut ()>,
}

impl Flush {
    /// Begins write-backs. The caller may sleep until the drop.
    pub(crate) fn begin() -> Self {
        // A bug, for a test of the tests: the fence comes after the answer, with the next commit.
        #[cfg(kfabric_seed_bug = "pmem-early-answer")]
        // SAFETY: The function has no preconditions.
        unsafe {
            raw::kverbs_durable_fence()
        };
        // SAFETY: The drop undoes it, in the same task: the value is not `Send`.
        unsafe { raw::kverbs_stay() };
        // INVARIANT: The task has just called the function.
        Self { _task: PhantomData }
    }

    /// Writes the cache lines of [offset, offset + len) of `memory` back, unless the caches are persistent.
    ///
    /// The pages of the range are there: the memory is pinned, or a key of it cannot end meanwhile.
    pub(crate) fn write_back(&self, memory: &Memory, offset: usize, len: usize) {
        if cfg!(kfabric_seed_bug = "pmem-no-write-back")
            || memory.persistence().has_persistent_caches()
        {
            return;
        }
        for segment in memory.segments(offset, len) {
            #[cfg(kfabric_seed_bug = "pmem-last-line")]
            let segment = kfabric::memory::Segment {
                len: segment.len & !63,
                ..segment
            };
            // SAFETY: The segment's pages are contiguous, mapped in the kernel, and stay during the
            // call, by the caller's contract.
            unsafe { raw::kverbs_write_back(segment.page, segment.offset, segment.len) };
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        if !cfg!(any(
            kfabric_seed_bug = "pmem-no-fence",
            kfabric_seed_bug = "pmem-early-answer"
        )) {
            // SAFETY: The function has no preconditions.
            unsafe { raw::kverbs_durable_fence() }
        }
        // SAFETY: By the type invariant the task called `kverbs_stay()`.
        unsafe { raw::kverbs_leave() }
    }
}

/// Lets other tasks run.
pub(crate) fn resched() {
    // SAFETY: The caller may sleep.
    unsafe { raw::kverbs_cond_resched() }
}
