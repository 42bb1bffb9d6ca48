// SPDX-License-Identifier: GPL-2.0
//! Waiting for queues: the handler that a queue calls, and who sleeps until it does.

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
use kfabric::{
    cq::CqHandler,
    eq::EqHandler,
    new_irqlock,
    sys::IrqLock, //
};

/// How long anything may take, in milliseconds. Guests in software emulation are slow.
const PATIENCE: u32 = 20_000;

/// Handlers that exist.
static LIVE: AtomicU32 = AtomicU32::new(0);

/// Wakes who waits for a queue. One may serve several queues.
#[pin_data(PinnedDrop)]
pub(crate) struct Wake {
    /// Times it was called.
    #[pin]
    calls: IrqLock<u64>,
    #[pin]
    changed: CondVar,
}

impl Wake {
    /// A handler.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let wake = Arc::pin_init(
            pin_init!(Self {
                calls <- new_irqlock!(0, "kfi_sample_wake"),
                changed <- new_condvar!("kfi_sample_wake"),
            }),
            GFP_KERNEL,
        )?;
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(wake)
    }

    /// How many there are.
    pub(crate) fn live() -> u32 {
        LIVE.load(Ordering::Acquire)
    }

    /// Times it was called.
    pub(crate) fn calls(&self) -> u64 {
        *self.calls.lock()
    }

    fn called(&self) {
        *self.calls.lock() += 1;
        self.changed.notify_all();
    }

    /// Sleeps until `look`, which is tried after every call, finds something.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: it took too long. `EINTR`: a signal. Else what `look` says.
    pub(crate) fn until<T>(&self, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let start = Instant::<Monotonic>::now();
        loop {
            // Counted before looking, so that no call in between is lost.
            let before = self.calls();
            if let Some(found) = look()? {
                return Ok(found);
            }
            if start.elapsed().as_millis() > i64::from(PATIENCE) {
                return Err(ETIMEDOUT);
            }
            let mut calls = self.calls.lock();
            if *calls != before {
                continue;
            }
            let wait = msecs_to_jiffies(PATIENCE);
            if let CondVarTimeoutResult::Signal { .. } =
                self.changed.wait_interruptible_timeout(&mut calls, wait)
            {
                return Err(EINTR);
            }
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Wake {
    fn drop(self: Pin<&mut Self>) {
        LIVE.fetch_sub(1, Ordering::Release);
    }
}

impl CqHandler for Wake {
    fn completed(&self) {
        self.called();
    }
}

impl EqHandler for Wake {
    fn event(&self) {
        self.called();
    }
}
