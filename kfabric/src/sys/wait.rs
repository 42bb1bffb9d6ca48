// SPDX-License-Identifier: GPL-2.0
//! The wait queue on which programs poll.
//!
//! The drop of the kernel crate's `PollCondVar` waits for an RCU grace period, because a polling
//! file may outlive it. Here the file holds the queue, so no grace period is needed. A completion
//! without a waiter takes no lock here.

use kernel::{
    bindings,
    ffi::c_void,
    fs::File,
    prelude::*,
    types::Opaque, //
};

use crate::sys;

/// End of a wait, or none.
pub(crate) struct Deadline(Option<u64>);

impl Deadline {
    /// A deadline in `ms` milliseconds; none if `ms` is negative.
    pub(crate) fn in_ms(ms: i32) -> Self {
        let ms = u64::try_from(ms).ok();
        Self(ms.map(|ms| Self::now().saturating_add(ms * 1_000_000)))
    }

    /// Returns the monotonic clock, in nanoseconds.
    fn now() -> u64 {
        // CAST: The clock is positive.
        // SAFETY: The function has no preconditions.
        unsafe { bindings::ktime_get() as u64 }
    }

    /// The deadline on the monotonic clock; `u64::MAX` for none.
    pub(crate) fn at(&self) -> u64 {
        self.0.unwrap_or(u64::MAX)
    }

    /// Milliseconds until the deadline, rounded up; negative for no deadline.
    pub(crate) fn left_ms(&self) -> i32 {
        match self.0 {
            Some(at) => {
                let left = at.saturating_sub(Self::now()).div_ceil(1_000_000);
                i32::try_from(left).unwrap_or(i32::MAX)
            }
            None => -1,
        }
    }
}

/// A `wait_queue_head`.
///
/// # Invariants
///
/// Initialised. Every file that polls it keeps it alive.
#[pin_data]
pub(crate) struct WaitQueue {
    #[pin]
    pub(super) head: Opaque<bindings::wait_queue_head>,
}

// SAFETY: The C object has its own lock, so any thread may use it.
unsafe impl Send for WaitQueue {}
// SAFETY: The C object has its own lock, so threads may share it.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    /// Creates a queue without waiters.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is valid for writes, and pinned from then on.
            head <- Opaque::ffi_init(|head| unsafe { sys::kf_wait_init(head) }),
        })
    }

    /// The C object, for a consumer in C that waits on it.
    pub(crate) fn as_ptr(&self) -> *mut bindings::wait_queue_head {
        self.head.get()
    }

    /// Wakes all waiters. Callers write the awaited state before. Context: any.
    pub(crate) fn wake_all(&self) {
        // SAFETY: By the type invariant the head is initialised.
        unsafe { sys::kf_wait_wake(self.head.get()) }
    }

    /// Waits until `ready` returns true, up to `ms` milliseconds (negative: no limit). Returns its
    /// last value. Writers change the awaited state before [`WaitQueue::wake_all`].
    ///
    /// # Errors
    ///
    /// - `EINTR` if a signal arrives.
    pub(crate) fn wait_until<F: Fn() -> bool>(&self, ready: F, ms: i32) -> Result<bool> {
        /// # Safety
        ///
        /// `arg` points to an `F`.
        unsafe extern "C" fn call<F: Fn() -> bool>(arg: *const c_void) -> bool {
            // SAFETY: By the caller's contract `arg` points to an `F`.
            unsafe { (*arg.cast::<F>())() }
        }
        let arg = core::ptr::from_ref(&ready).cast();
        // SAFETY: By the type invariant the head is initialised. `arg` points to the `F` of
        // `call`, which stays valid until the wait is over.
        let answer = unsafe { sys::kf_wait_ready(self.head.get(), Some(call::<F>), arg, ms) };
        if answer < 0 {
            return Err(Error::from_errno(answer));
        }
        Ok(answer != 0)
    }

    /// Registers a poll of `file` on this queue. The caller checks the polled state afterwards.
    ///
    /// # Safety
    ///
    /// `self` stays until `file` is released.
    pub(crate) unsafe fn poll(&self, file: &File, table: *mut bindings::poll_table) {
        // SAFETY: By the type invariant the head is initialised. By the caller's contract it
        // outlives the file, whose release ends all waits on its behalf.
        unsafe { sys::kf_wait_poll(file.as_ptr(), self.head.get(), table) }
    }
}
