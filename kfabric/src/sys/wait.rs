// SPDX-License-Identifier: GPL-2.0
//! Where programs that poll a queue wait.
//!
//! The kernel crate's `PollCondVar` waits for an RCU grace period when it is dropped, because it
//! may go before a file that polls it. Ours cannot: the file holds the queue. And a completion
//! that nobody waits for takes no lock here.

use kernel::{
    bindings,
    ffi::c_void,
    fs::File,
    prelude::*,
    types::Opaque, //
};

use crate::sys;

/// Until when to wait.
pub(crate) struct Deadline(Option<u64>);

impl Deadline {
    /// In `ms` milliseconds; negative: never.
    pub(crate) fn in_ms(ms: i32) -> Self {
        let ms = u64::try_from(ms).ok();
        Self(ms.map(|ms| Self::now().saturating_add(ms * 1_000_000)))
    }

    /// The monotonic clock, in nanoseconds.
    fn now() -> u64 {
        // CAST: It is positive.
        // SAFETY: No preconditions.
        unsafe { bindings::ktime_get() as u64 }
    }

    /// As the clock has it; `u64::MAX`: never.
    pub(crate) fn at(&self) -> u64 {
        self.0.unwrap_or(u64::MAX)
    }

    /// Milliseconds until then, at least what is left; negative: any number.
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

// SAFETY: The C object has a lock of its own.
unsafe impl Send for WaitQueue {}
// SAFETY: As above.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    /// One without waiters.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is valid for writes, and pinned from then on.
            head <- Opaque::ffi_init(|head| unsafe { sys::kf_wait_init(head) }),
        })
    }

    /// The C object, for a consumer in C to wait by.
    pub(crate) fn as_ptr(&self) -> *mut bindings::wait_queue_head {
        self.head.get()
    }

    /// Wakes all who wait. Any context. What they wait for was written before.
    pub(crate) fn wake_all(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { sys::kf_wait_wake(self.head.get()) }
    }

    /// Waits until `ready`, up to `ms` milliseconds (negative: any number); whether it is. What it
    /// looks at is written before [`WaitQueue::wake_all`].
    ///
    /// # Errors
    ///
    /// `EINTR`: a signal.
    pub(crate) fn wait_until<F: Fn() -> bool>(&self, ready: F, ms: i32) -> Result<bool> {
        /// # Safety
        ///
        /// `arg` points to an `F`.
        unsafe extern "C" fn call<F: Fn() -> bool>(arg: *const c_void) -> bool {
            // SAFETY: The caller's promise.
            unsafe { (*arg.cast::<F>())() }
        }
        let arg = core::ptr::from_ref(&ready).cast();
        // SAFETY: By the type invariant the head is initialised; `arg` is what `call` takes, and stays
        // until the wait is over.
        let answer = unsafe { sys::kf_wait_ready(self.head.get(), call::<F>, arg, ms) };
        if answer < 0 {
            return Err(Error::from_errno(answer));
        }
        Ok(answer != 0)
    }

    /// Has a poll of `file` wait here; whether there is something to wait for is looked at after.
    ///
    /// # Safety
    ///
    /// `self` stays until `file` is released.
    pub(crate) unsafe fn poll(&self, file: &File, table: *mut bindings::poll_table) {
        // SAFETY: By the type invariant the head is initialised; the caller's promise is that it
        // outlives the file, whose release ends all waiting on its behalf.
        unsafe { sys::kf_wait_poll(file.as_ptr(), self.head.get(), table) }
    }
}
