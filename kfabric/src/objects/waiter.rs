// SPDX-License-Identifier: GPL-2.0
//! The completion waiter of a kernel consumer: a handler of queues, and the wait for its calls.
//!
//! A consumer passes a [`Waiter`] to [`Cq::open`](crate::objects::cq::Cq::open) and
//! [`Eq::open`](crate::objects::eq::Eq::open), and reads the queues inside [`Waiter::until`]. One waiter may
//! serve several queues. The consumer's module has one static [`Live`], and does not unload before
//! [`Live::count`] is 0.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    new_condvar,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        CondVarTimeoutResult, //
    },
    time::{
        msecs_to_jiffies,
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    new_irqlock,
    objects::{
        cq::CqHandler,
        eq::EqHandler, //
    },
    sys::IrqLock, //
};

/// Number of a module's waiters.
pub struct Live(AtomicU32);

impl Live {
    /// Makes the counter of a module without waiters.
    pub const fn zero() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns the number of waiters. Queues may drop their waiters after they are closed.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// Counts a waiter until it is dropped.
struct Counted(&'static Live);

impl Counted {
    fn new(live: &'static Live) -> Self {
        live.0.fetch_add(1, Ordering::Relaxed);
        Self(live)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let Self(live) = self;
        live.0.fetch_sub(1, Ordering::Release);
    }
}

/// Wakes the task that waits for a queue.
#[pin_data]
pub struct Waiter {
    /// Number of calls of the handler.
    #[pin]
    calls: IrqLock<u64>,
    #[pin]
    changed: CondVar,
    // Dropped last.
    _counted: Counted,
}

impl Waiter {
    /// Makes a waiter, which `live` counts.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if the allocation fails.
    pub fn new(live: &'static Live) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                calls <- new_irqlock!(0, "kfi_waiter"),
                changed <- new_condvar!("kfi_waiter"),
                _counted: Counted::new(live),
            }),
            // UNACCOUNTED: A kernel consumer's waiter belongs to no program.
            GFP_KERNEL,
        )
    }

    /// Returns the number of calls of the handler.
    pub fn calls(&self) -> u64 {
        *self.calls.lock()
    }

    /// Wakes the waiting task. Context: any.
    pub fn wake(&self) {
        *self.calls.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until `look` returns a value. Calls `look` after each call of the handler. May sleep.
    ///
    /// # Errors
    ///
    /// - `ETIMEDOUT` if the wait takes longer than `ms` milliseconds.
    /// - `EINTR` if a signal is pending.
    /// - Errors of `look`.
    pub fn until<T>(&self, ms: u32, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let start = Instant::<Monotonic>::now();
        loop {
            // Read the counter before `look`, so that no call in between is lost.
            let before = self.calls();
            if let Some(found) = look()? {
                return Ok(found);
            }
            if start.elapsed().as_millis() > i64::from(ms) {
                return Err(ETIMEDOUT);
            }
            self.sleep(before, ms)?;
        }
    }

    /// Sleeps until the handler is called, unless the number of calls is no longer `before`.
    fn sleep(&self, before: u64, ms: u32) -> Result {
        let mut calls = self.calls.lock();
        if *calls != before {
            return Ok(());
        }
        let wait = msecs_to_jiffies(ms);
        match self.changed.wait_interruptible_timeout(&mut calls, wait) {
            CondVarTimeoutResult::Signal { .. } => Err(EINTR),
            _ => Ok(()),
        }
    }
}

impl CqHandler for Waiter {
    fn completed(&self) {
        self.wake();
    }
}

impl EqHandler for Waiter {
    fn event(&self) {
        self.wake();
    }
}
