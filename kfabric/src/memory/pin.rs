// SPDX-License-Identifier: GPL-2.0
//! Pins the memory of a process.
//!
//! Pinning follows `ib_umem` (drivers/infiniband/core/umem.c): long term, and
//! [charged](super::charge). This is not a cache: if a process unmaps pinned memory, the old pages
//! stay pinned until the region is closed.

use core::ptr;
use kernel::{
    bindings,
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};

use super::{
    charge::Owner,
    pages::{
        Memory,
        Pages,
        Source, //
    }, //
};
use crate::{
    base::{
        errno::eopnotsupp,
        fault, //
    },
    sys, //
};

/// Pages pinned in one step; a page of pointers.
const BATCH: usize = PAGE_SIZE / size_of::<*mut bindings::page>();

/// Pins `count` pages from the page-aligned `start`.
fn pin(start: usize, count: usize, writable: bool) -> Result<Pages> {
    // INVARIANT: There are no runs yet.
    let mut pages = Pages {
        runs: KVVec::new(),
        count: 0,
        source: Source::Pinned {
            dirty: writable,
            devices: KVec::new(),
            // No descriptor has this address.
            block: usize::MAX,
        },
    };
    let mut flags = bindings::FOLL_LONGTERM;
    if writable {
        flags |= bindings::FOLL_WRITE;
    }
    let mut batch = KVec::from_elem(ptr::null_mut(), BATCH.min(count), GFP_KERNEL_ACCOUNT)?;
    while pages.count < count {
        // SAFETY: The function has no preconditions.
        if unsafe { sys::kf_fatal_signal_pending() } {
            return Err(EINTR);
        }
        fault::pin()?;
        let want = BATCH.min(count - pages.count);
        let at = start + (pages.count << PAGE_SHIFT);
        // CAST: `want` is at most `BATCH`; the flags are small constants.
        // SAFETY: `batch` has room for `want` pointers; the called function checks the address.
        let got = unsafe {
            bindings::pin_user_pages_fast(at, want as c_int, flags as c_uint, batch.as_mut_ptr())
        };
        if got == eopnotsupp().to_errno() {
            // The only reason for this error: the file system may move the blocks of a mapped file.
            // SAFETY: The function has no preconditions.
            unsafe { sys::kf_log_dax_file() };
        }
        if got <= 0 {
            return Err(if got < 0 {
                Error::from_errno(got)
            } else {
                EFAULT
            });
        }
        // INVARIANT: The call has just pinned the pages, and `pages` takes over the pins.
        // CAST: `got` is positive, as checked above.
        pages.push_pinned(&batch[..got as usize])?;
        // SAFETY: This runs in a system call and holds no lock.
        unsafe { sys::kf_cond_resched() };
    }
    Ok(pages)
}

impl Memory {
    /// Pins `len` bytes at `addr` of the current task, for writing too if `writable`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `len` is 0 or the range wraps.
    /// - `ENOMEM` if the charge exceeds `RLIMIT_MEMLOCK`.
    /// - `EFAULT` if the range is not mapped, or not writable.
    /// - `EOPNOTSUPP` if the range is of a file on a DAX file system. The kernel log then names
    ///   device-dax, which can be registered.
    /// - `ENODEV` if the device of the memory is being removed.
    /// - `EHWPOISON` if the kernel knows that persistent memory of the range is bad.
    /// - `EINTR` if the task was killed meanwhile.
    pub fn pin_user(addr: usize, len: usize, writable: bool) -> Result<Arc<Self>> {
        let end = addr.checked_add(len).ok_or(EINVAL)?;
        let end = end.checked_next_multiple_of(PAGE_SIZE).ok_or(EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        let first = addr & (PAGE_SIZE - 1);
        let start = addr - first;
        let count = (end - start) >> PAGE_SHIFT;
        let owner = Owner::charge(addr, count)?;
        #[cfg(not(kfabric_seed_bug = "page-under-lock"))]
        let pages = pin(start, count, writable)?;
        #[cfg(kfabric_seed_bug = "page-under-lock")]
        let pages = owner.with_lock(|| pin(start, count, writable))?;
        Self::make(pages, Some(owner), first, len, writable)
    }
}
