// SPDX-License-Identifier: GPL-2.0
//! Where programs that poll a queue wait.
//!
//! The kernel crate's `PollCondVar` waits for an RCU grace period when it is dropped, because it
//! may go before a file that polls it. Ours cannot: the file holds the queue. And a completion
//! that nobody waits for takes no lock here.

use kernel::{
    bindings,
    fs::File,
    prelude::*,
    types::Opaque, //
};

use crate::sys;

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

    /// Wakes all who wait. Any context. What they wait for was written before.
    pub(crate) fn wake_all(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { sys::kf_wait_wake(self.head.get()) }
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
