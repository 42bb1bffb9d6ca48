// SPDX-License-Identifier: GPL-2.0
//! Where programs that poll a queue wait, and who waits for another's step.
//!
//! The kernel crate's `PollCondVar` waits for an RCU grace period when it is dropped, because it
//! may go before a file that polls it. Ours cannot: the file holds the queue. And a completion
//! that nobody waits for takes no lock here.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    bindings,
    error::to_result,
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
    head: Opaque<bindings::wait_queue_head>,
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

/// Steps that are waited for.
///
/// The kernel crate's `CondVar` cannot be waited on by one whom nothing wakes but a step or a
/// signal that kills.
#[pin_data]
pub(crate) struct Steps {
    taken: AtomicU64,
    #[pin]
    queue: WaitQueue,
}

impl Steps {
    /// None taken yet.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            taken: AtomicU64::new(0),
            queue <- WaitQueue::new(),
        })
    }

    /// How many were taken. To be asked under the lock that what is waited for is under.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Takes one, and wakes who waits. To be called under that lock.
    pub(crate) fn take(&self) {
        self.taken.fetch_add(1, Ordering::Release);
        self.queue.wake_all();
    }

    /// Waits until there are more than `taken`. Holding no lock.
    pub(crate) fn wait(&self, taken: u64) {
        // SAFETY: The head is initialised, and it and the count stay as long as `self`.
        unsafe { sys::kf_wait_moved(self.queue.head.get(), self.taken.as_ptr(), taken) }
    }

    /// As [`Steps::wait`], but no longer than `ms` milliseconds (0: without end).
    ///
    /// # Errors
    ///
    /// `EINTR`: the task is being killed.
    pub(crate) fn wait_killable(&self, taken: u64, ms: u32) -> Result {
        let (head, count) = (self.queue.head.get(), self.taken.as_ptr());
        // SAFETY: As in `wait`.
        to_result(unsafe { sys::kf_wait_moved_killable(head, count, taken, ms) })
    }
}
