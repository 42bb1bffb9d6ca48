// SPDX-License-Identifier: GPL-2.0
//! The completion waiter of a connection: a handler of queue events that passes them to a receiver.
//!
//! While there is no receiver, an event wakes the task that waits. This module knows no receiver: a
//! receiver implements [`Receiver`].

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    new_irqlock,
    objects::{
        cq::CqHandler,
        eq::EqHandler,
        waiter::{
            Live,
            Waiter, //
        },
    },
    sys::IrqLock, //
};

/// Number of this module's waiters.
static LIVE: Live = Live::zero();

/// Returns the number of this module's waiters.
pub(crate) fn live() -> u32 {
    LIVE.count()
}

/// Makes a waiter without a receiver.
pub(crate) fn waiter() -> Result<Arc<Waiter>> {
    Waiter::new(&LIVE)
}

/// Receiver of queue events.
pub(crate) trait Receiver: Send + Unpin + Sized + 'static {
    /// Work for a completion event.
    type Batch;

    /// Returns the work for a completion event. Context: any. Locking: one caller at a time, which
    /// holds the lock of the link.
    fn completed(&self) -> Self::Batch;

    /// Does the work. Returns whether the caller must call [`Receiver::completed`] again.
    /// `may_sleep`: the caller is a task that holds no lock. Context: any.
    fn finish(batch: Self::Batch, may_sleep: bool) -> bool;

    /// Handles an event. Context: any. Locking: caller holds the lock of the link.
    fn event(&self);
}

/// The handler of a connection's queues, with a receiver after [`QueueWaiter::link`].
#[pin_data]
pub(crate) struct QueueWaiter<R: Receiver> {
    #[pin]
    link: IrqLock<Option<R>>,
    // Dropped last: it counts this handler, too.
    waiter: Arc<Waiter>,
}

impl<R: Receiver> QueueWaiter<R> {
    /// Makes a handler without a receiver.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let waiter = waiter()?;
        Arc::pin_init(
            pin_init!(Self {
                link <- new_irqlock!(None, "kfblk_link"),
                waiter,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the waiter for events without a receiver.
    pub(crate) fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    /// Links a receiver. The caller must handle earlier events.
    pub(crate) fn link(&self, to: R) {
        *self.link.lock() = Some(to);
    }

    /// Removes the receiver.
    pub(crate) fn unlink(&self) {
        let link = self.link.lock().take();
        // Dropped outside the lock.
        drop(link);
    }

    /// Handles completions, or schedules their handling. `may_sleep`: the caller holds no lock.
    fn completed_in(&self, may_sleep: bool) {
        // The end of a request may post the next one, so work is done outside the lock.
        loop {
            let batch = self.link.lock().as_ref().map(R::completed);
            let Some(batch) = batch else { break };
            // A later completion calls the handler again.
            if !R::finish(batch, may_sleep) {
                return;
            }
        }
        self.waiter.wake();
    }
}

impl<R: Receiver> CqHandler for QueueWaiter<R> {
    fn completed(&self) {
        self.completed_in(false);
    }

    fn completed_sleeping(&self) {
        self.completed_in(true);
    }
}

impl<R: Receiver> EqHandler for QueueWaiter<R> {
    fn event(&self) {
        {
            let link = self.link.lock();
            if let Some(receiver) = &*link {
                return receiver.event();
            }
        }
        self.waiter.wake();
    }
}
