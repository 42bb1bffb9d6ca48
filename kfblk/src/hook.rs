// SPDX-License-Identifier: GPL-2.0
//! What queues call: wakes who waits for a queue, or passes it on to whom the queue is linked to.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    new_condvar,
    prelude::*,
    sync::{
        Arc,
        CondVar, //
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

use crate::{
    disk::request::Requests,
    export::{
        lane::Lane,
        port::Port, //
    },
    sys,
};

/// Hooks that exist.
static LIVE: AtomicU32 = AtomicU32::new(0);

/// Who is told.
pub(crate) enum Link {
    /// A port's work: there are requests to connect.
    Port(Arc<Port>),
    /// A target's connection's work: there are questions.
    Lane(Arc<Lane>),
    /// A disk's queue: requests have ended.
    Requests(Requests),
}

/// The handler of a connection's queues.
#[pin_data(PinnedDrop)]
pub(crate) struct Hook {
    /// Times it was called with nobody linked.
    #[pin]
    calls: IrqLock<u64>,
    #[pin]
    changed: CondVar,
    #[pin]
    link: IrqLock<Option<Link>>,
}

impl Hook {
    /// One that wakes.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let hook = Arc::pin_init(
            pin_init!(Self {
                calls <- new_irqlock!(0, "kfblk_hook"),
                changed <- new_condvar!("kfblk_hook"),
                link <- new_irqlock!(None, "kfblk_link"),
            }),
            GFP_KERNEL,
        )?;
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(hook)
    }

    /// How many there are.
    pub(crate) fn live() -> u32 {
        LIVE.load(Ordering::Acquire)
    }

    /// Passes on from now on. What has come before is for the caller to look at.
    pub(crate) fn link(&self, to: Link) {
        *self.link.lock() = Some(to);
    }

    /// Passes nothing on any more.
    pub(crate) fn unlink(&self) {
        let link = self.link.lock().take();
        // Outside the lock.
        drop(link);
    }

    /// Wakes who waits.
    pub(crate) fn wake(&self) {
        *self.calls.lock() += 1;
        self.changed.notify_all();
    }

    /// Sleeps until `look`, which is tried after every call, finds something.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: it took longer than `ms`. `EINTR`: a signal. Else what `look` says.
    pub(crate) fn until<T>(
        &self,
        ms: u32,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        let start = Instant::<Monotonic>::now();
        loop {
            // Before looking, so that no call in between is lost.
            let before = *self.calls.lock();
            if let Some(found) = look()? {
                return Ok(found);
            }
            if start.elapsed().as_millis() > i64::from(ms) {
                return Err(ETIMEDOUT);
            }
            let mut calls = self.calls.lock();
            if *calls != before {
                continue;
            }
            let wait = msecs_to_jiffies(ms);
            if let kernel::sync::CondVarTimeoutResult::Signal { .. } =
                self.changed.wait_interruptible_timeout(&mut calls, wait)
            {
                return Err(EINTR);
            }
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Hook {
    fn drop(self: Pin<&mut Self>) {
        LIVE.fetch_sub(1, Ordering::Release);
    }
}

impl CqHandler for Hook {
    fn completed(&self) {
        self.look(false);
    }

    fn completed_sleeping(&self) {
        self.look(true);
    }
}

impl Hook {
    /// Looks what has completed, or has somebody look. `may_sleep`: in a task that holds no lock.
    fn look(&self, may_sleep: bool) {
        let (lane, requests) = match &*self.link.lock() {
            Some(Link::Lane(lane)) => (Some(lane.clone()), false),
            Some(Link::Requests(_)) => (None, true),
            Some(Link::Port(_)) => return,
            None => (None, false),
        };
        if let Some(lane) = lane {
            if may_sleep {
                return Lane::serve_here(&lane);
            }
            // If it is queued already it will look again.
            let _ = sys::exports().enqueue(lane);
            return;
        }
        if !requests {
            return self.wake();
        }
        // What ends a request may post the next, so none ends under the lock.
        loop {
            let ended = match &*self.link.lock() {
                Some(Link::Requests(requests)) => requests.ended(),
                _ => return,
            };
            // Each that comes later is told of by a call of its own.
            if !ended.finish(may_sleep) {
                return;
            }
        }
    }
}

impl EqHandler for Hook {
    fn event(&self) {
        {
            let link = self.link.lock();
            match &*link {
                Some(Link::Port(port)) => {
                    let _ = sys::exports().enqueue::<_, 0>(port.clone());
                    return;
                }
                Some(Link::Lane(lane)) => {
                    let _ = sys::exports().enqueue(lane.clone());
                    return;
                }
                Some(Link::Requests(requests)) => return requests.lost(),
                None => {}
            }
        }
        self.wake();
    }
}
