// SPDX-License-Identifier: GPL-2.0
//! Where one waits for another's step.

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
