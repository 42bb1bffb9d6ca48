// SPDX-License-Identifier: GPL-2.0
//! The thin layer to C: all unsafe code except that of the device file and of pinning.
//!
//! C header: `helpers.h` beside this crate.

pub(crate) mod auth;
mod edge;
pub mod lock;
pub mod net;
mod raw;
pub mod ring;
pub mod steps;
pub(crate) mod uaccess;
pub mod wait;
pub mod wq;

use core::marker::PhantomData;
use kernel::{
    bindings,
    ffi::c_uint,
    prelude::*, //
};

pub(crate) use raw::*;

/// Yields in a loop whose length a program decides, and ends the loop if the program is killed.
///
/// # Errors
///
/// - `EINTR` if a fatal signal is pending.
pub(crate) fn pause() -> Result {
    cond_resched();
    // SAFETY: The function has no preconditions.
    if unsafe { kf_fatal_signal_pending() } {
        return Err(EINTR);
    }
    Ok(())
}

/// Yields the CPU if another task needs it. May sleep.
pub(crate) fn cond_resched() {
    // SAFETY: The function may sleep, which the callers allow.
    unsafe { kf_cond_resched() }
}

/// Returns the current task, for comparisons only.
pub(crate) fn current_task() -> *mut bindings::task_struct {
    // SAFETY: The function has no preconditions.
    unsafe { kf_current_task() }
}

/// Converts a time of the current task's `CLOCK_MONOTONIC` to the kernel's clock, in nanoseconds.
/// Values above `i64::MAX` are unchanged.
pub(crate) fn monotonic_here(ns: u64) -> u64 {
    let Ok(there) = i64::try_from(ns) else {
        return ns;
    };
    // SAFETY: The function has no preconditions.
    let here = unsafe { kf_monotonic_here(there) };
    // A time before the kernel's start is in the past.
    u64::try_from(here).unwrap_or(0)
}

/// Relaxes the CPU in a spin loop.
pub(crate) fn cpu_relax() {
    // SAFETY: The function has no preconditions.
    unsafe { kf_cpu_relax() }
}

/// While the value exists, allocations of this task do not wait for block devices. The task may do
/// work that a block device itself waits for.
pub struct NoIo(c_uint, PhantomData<*mut ()>);

impl NoIo {
    /// Begins the scope.
    #[inline(never)]
    pub fn begin() -> Self {
        // SAFETY: The drop, in the same task, restores the flags.
        Self(unsafe { kf_noio_save() }, PhantomData)
    }
}

impl Drop for NoIo {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: `begin` returned the flags, in the same task.
        unsafe { kf_noio_restore(self.0) };
    }
}

pub use lock::IrqLock;
