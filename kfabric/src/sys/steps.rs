// SPDX-License-Identifier: GPL-2.0
//! A wait for another task's step.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    error::to_result,
    prelude::*, //
};

use super::wait::WaitQueue;
use crate::sys;

/// Counted steps, and a queue of their waiters.
///
/// The kernel crate's `CondVar` has no wait that only a step or a fatal signal ends.
#[pin_data]
pub(crate) struct Steps {
    taken: AtomicU64,
    #[pin]
    queue: WaitQueue,
}

impl Steps {
    /// Creates a count of zero steps.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            taken: AtomicU64::new(0),
            queue <- WaitQueue::new(),
        })
    }

    /// Returns the number of steps taken. Locking: caller holds the lock of the awaited state.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Counts a step and wakes all waiters. Locking: caller holds the lock of the awaited state.
    pub(crate) fn take(&self) {
        self.taken.fetch_add(1, Ordering::Release);
        self.queue.wake_all();
    }

    /// Waits until more than `taken` steps were taken. Locking: none held.
    pub(crate) fn wait(&self, taken: u64) {
        // SAFETY: The head is initialised, and both head and count stay as long as `self`.
        unsafe { sys::kf_wait_moved(self.queue.head.get(), self.taken.as_ptr(), taken) }
    }

    /// As [`Steps::wait`], for at most `ms` milliseconds (0: no limit).
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task is being killed.
    pub(crate) fn wait_killable(&self, taken: u64, ms: u32) -> Result {
        let (head, count) = (self.queue.head.get(), self.taken.as_ptr());
        // SAFETY: The head is initialised, and both head and count stay as long as `self`.
        to_result(unsafe { sys::kf_wait_moved_killable(head, count, taken, ms) })
    }
}
