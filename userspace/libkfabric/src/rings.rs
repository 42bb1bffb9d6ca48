// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages between two programs on one host, without a call ([`EndpointAttr::rings`]).
//!
//! [`EndpointAttr::rings`]: crate::EndpointAttr::rings
//!
//! An endpoint that was opened with rings keeps its posted receives in this module. After
//! connecting, the endpoint asks the kernel whether the connection has rings. The kernel decides
//! that once, for both ends, and the answer never changes.
//!
//! - Without rings, the endpoint posts the kept receives to the kernel, in order. From then on all
//!   operations go to the kernel.
//! - With rings, a send copies the message into the ring and completes at once. A thread that posts
//!   a receive or reads the completion queue takes messages out ([`kfabric_pure::pipe`]).
//!
//! One-sided operations always go to the kernel, which has executed them when the call returns. A
//! write with completion data also uses up a receive of the peer. Such a write is executed by the
//! kernel, and followed by a note of the write in the ring.
//!
//! Locking: `order` (posting to the kernel), then `rx` or `tx`, then the locks of a completion
//! queue.
#![forbid(unsafe_code)]

mod detach;
mod message;
mod post;
pub(crate) mod queue;
mod rx;
mod tx;

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use kfabric_pure::pipe::{Receiver, Sender};
use kfabric_uapi as abi;

use crate::domain::inner::{DomainInner, Holder};
use crate::errno::Errno;
use crate::handle::Shared;
use crate::object::ObjectId;
use crate::sys::{self, Link, DATA};
pub(crate) use message::Args;
pub(crate) use post::Posted;
use queue::{CqInner, Pushed};
use rx::Rx;
use tx::Tx;

/// State of `Rings::mode`: the kernel has not decided yet, or was not asked.
const UNKNOWN: u8 = 0;
/// State of `Rings::mode`: the connection has no rings; the kernel executes all operations.
const NONE: u8 = 1;
/// State of `Rings::mode`: the rings are mapped.
const SHARED: u8 = 2;
/// State of `Rings::mode`: the rings cannot be used, so the connection has ended.
const LOST: u8 = 3;

/// The completion queue of one side (transmit or receive).
struct Bound {
    cq: Arc<CqInner>,
    selective: bool,
}

impl Bound {
    /// Whether a successful operation with these flags gets a completion.
    fn wants(&self, flags: u64) -> bool {
        let asked = flags & abi::KFI_COMPLETION != 0;
        asked || (!self.selective && flags & abi::KFI_INJECT == 0)
    }

    /// Whether a waiter of the queue must be woken.
    fn is_awaited(&self) -> bool {
        self.cq.is_awaited()
    }
}

/// The library's half of an endpoint that was opened with rings.
pub(crate) struct Rings {
    domain: Arc<DomainInner>,
    id: ObjectId,
    size: (u32, u32),
    iov_limit: u32,
    enabled: AtomicBool,
    mode: AtomicU8,
    link: OnceLock<Link>,
    rx_queue: OnceLock<Bound>,
    tx_queue: OnceLock<Bound>,
    rx: Mutex<Rx>,
    tx: Mutex<Tx>,
    /// Whether `Tx::pending` holds a message. Read without the lock.
    pending: AtomicBool,
    /// The connection has no rings, and the kernel has not accepted all kept receives yet.
    owed: AtomicBool,
    /// Held while an operation is posted to the kernel, so that messages stay in order.
    order: Mutex<()>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rings {
    pub(crate) fn new(
        domain: &Arc<DomainInner>,
        id: ObjectId,
        size: (u32, u32),
        iov_limit: u32,
    ) -> Option<Arc<Self>> {
        let data = u32::try_from(DATA).ok()?;
        let rings = Arc::new(Self {
            domain: domain.clone(),
            id,
            size,
            iov_limit,
            enabled: AtomicBool::new(false),
            mode: AtomicU8::new(UNKNOWN),
            link: OnceLock::new(),
            rx_queue: OnceLock::new(),
            tx_queue: OnceLock::new(),
            rx: Mutex::new(Rx {
                receives: VecDeque::new(),
                pipe: Receiver::new(data)?,
                over: false,
            }),
            tx: Mutex::new(Tx {
                pending: VecDeque::new(),
                pipe: Sender::new(data)?,
                over: false,
            }),
            pending: AtomicBool::new(false),
            owed: AtomicBool::new(false),
            order: Mutex::new(()),
        });
        let holder: Weak<dyn Holder> = Arc::downgrade(&(rings.clone() as Arc<dyn Holder>));
        lock(&domain.holders).push(holder);
        Some(rings)
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.id
    }

    /// Binds a completion queue to the sides in `flags`. The kernel has bound it before.
    pub(crate) fn bind(self: &Arc<Self>, cq: &Arc<CqInner>, flags: u64) {
        let selective = flags & abi::KFI_SELECTIVE_COMPLETION != 0;
        let sides = [
            (abi::KFI_RECV, &self.rx_queue),
            (abi::KFI_TRANSMIT, &self.tx_queue),
        ];
        for (_, place) in sides.iter().filter(|(side, _)| flags & side != 0) {
            let cq = cq.clone();
            let _ = place.set(Bound { cq, selective });
        }
        cq.direct.add(self);
    }

    pub(crate) fn set_enabled(&self) {
        self.enabled.store(true, Ordering::Release);
    }

    fn mode(&self) -> u8 {
        self.mode.load(Ordering::Acquire)
    }

    /// Returns whether the connection has rings; `None` until the kernel has decided.
    pub(crate) fn known(&self) -> Option<bool> {
        let pushed = self.learn();
        self.alert(pushed, None);
        match self.mode() {
            UNKNOWN if !self.is_owed() => None,
            mode => Some(mode == SHARED),
        }
    }

    fn is_owed(&self) -> bool {
        self.owed.load(Ordering::Acquire)
    }

    fn dev(&self) -> &Shared {
        &self.domain.handle.dev
    }

    /// Asks the kernel whether the connection has rings, if that is unknown. Maps the rings, or
    /// posts the kept receives to the kernel.
    pub(crate) fn learn(&self) -> Pushed {
        let mut pushed = Pushed::default();
        if self.mode() != UNKNOWN || !self.enabled.load(Ordering::Acquire) {
            return pushed;
        }
        let mut rx = lock(&self.rx);
        if self.mode() != UNKNOWN {
            return pushed;
        }
        let mut arg: abi::EpRings = sys::new();
        arg.ep = self.id.handle;
        let asked = self.dev().call(self.id, &mut arg, &mut []);
        let mode = match arg.state {
            // Final, because a receive would wait for ever if no later call asked again.
            _ if asked.is_err() => LOST,
            abi::KFI_RINGS_UNKNOWN => return pushed,
            abi::KFI_RINGS_SHARED => match self.map(&arg) {
                Some(link) => {
                    let _ = self.link.set(link);
                    SHARED
                }
                None => LOST,
            },
            _ => NONE,
        };
        if mode == NONE {
            pushed.rx = self.hand_over(&mut rx);
            if !rx.receives.is_empty() {
                self.owed.store(true, Ordering::Release);
                return pushed;
            }
            self.owed.store(false, Ordering::Release);
        }
        self.mode.store(mode, Ordering::Release);
        if mode == SHARED {
            // A waiter that sleeps already has not set its sleep flag in the rings: wake it to do
            // that.
            pushed |= Pushed {
                rx: self.queue(true).is_some_and(Bound::is_awaited),
                tx: self.queue(false).is_some_and(Bound::is_awaited),
                more: false,
            };
        }
        drop(rx);
        if mode == LOST {
            self.end();
            pushed.rx |= self.flush_rx(&mut lock(&self.rx));
        }
        pushed
    }

    fn map(&self, arg: &abi::EpRings) -> Option<Link> {
        let fd = self.dev().take_fd("EP_RINGS", self.id, arg.fd).ok()?;
        let bytes = usize::try_from(arg.map_size).ok()?;
        let page = arg.page_size as usize;
        let link = self
            .dev()
            .backend
            .map_rings(fd.as_fd(), arg.side, page, bytes);
        link.ok()
    }

    fn queue(&self, rx: bool) -> Option<&Bound> {
        match rx {
            true => self.rx_queue.get(),
            false => self.tx_queue.get(),
        }
    }

    fn reserve(&self, rx: bool) -> std::result::Result<(), Errno> {
        match self.queue(rx) {
            Some(bound) => bound.cq.reserve(),
            None => Ok(()),
        }
    }

    fn release(&self, rx: bool) {
        if let Some(bound) = self.queue(rx) {
            bound.cq.direct.release();
        }
    }

    /// Ends the connection: the peer broke the protocol, or sent more than a receive holds.
    fn end(&self) {
        let mut arg: abi::Shutdown = sys::new();
        arg.ep = self.id.handle;
        // A failure means that the connection has already ended.
        let _ = self.dev().call(self.id, &mut arg, &mut []);
    }

    /// Wakes the waiters of the peer. A failure means that the peer has disconnected.
    fn wake_peer(&self) {
        self.wake(0);
    }

    fn wake(&self, flags: u32) -> bool {
        let mut arg: abi::EpWake = sys::new();
        arg.flags = flags;
        arg.ep = self.id.handle;
        self.dev().call(self.id, &mut arg, &mut []).is_ok()
    }

    /// Wakes the waiters of the queues in `pushed`, except of `but`: the caller is reading that
    /// queue.
    #[inline]
    pub(crate) fn alert(&self, pushed: Pushed, but: Option<&CqInner>) {
        if pushed.rx || pushed.tx {
            self.alert_them(pushed, but);
        }
    }

    fn alert_them(&self, pushed: Pushed, but: Option<&CqInner>) {
        for (there, rx) in [(pushed.rx, true), (pushed.tx, false)] {
            let Some(bound) = self.queue(rx).filter(|_| there) else {
                continue;
            };
            let same = but.is_some_and(|but| std::ptr::eq(but, Arc::as_ptr(&bound.cq)));
            if !same {
                // A failure means that the endpoint was just closed; the close has woken the
                // waiters.
                self.wake_self();
            }
        }
    }

    /// Wakes the waiters of this endpoint's queues. Returns `false` if the kernel has closed the
    /// endpoint.
    fn wake_self(&self) -> bool {
        self.wake(abi::KFI_WAKE_SELF)
    }

    /// Takes received messages out of the ring, and puts pending messages in.
    pub(crate) fn progress(&self) -> Pushed {
        let Some(link) = self.link.get() else {
            return match self.is_owed() {
                true => self.learn(),
                false => Pushed::default(),
            };
        };
        let mut pushed = self.take(link, &mut lock(&self.rx));
        if self.pending.load(Ordering::Relaxed) {
            pushed.tx = self.give(link, &mut lock(&self.tx));
        }
        pushed
    }

    /// Sets this end's sleep flags in the rings. The caller looks at the rings again before it
    /// sleeps.
    pub(crate) fn sleep(&self) {
        let Some(link) = self.link.get() else { return };
        lock(&self.rx).pipe.sleep(&link.theirs);
        let tx = lock(&self.tx);
        if !tx.pending.is_empty() {
            tx.pipe.sleep(&link.ours);
        }
    }

    /// Whether one of this endpoint's queues has a waiter that must be woken.
    fn is_awaited(&self) -> bool {
        [true, false]
            .into_iter()
            .filter_map(|rx| self.queue(rx))
            .any(Bound::is_awaited)
    }

    /// Cancels the receives of an endpoint whose ring state is unknown, and wakes their waiters.
    /// Called before the kernel's endpoint is closed: the wake needs its handle.
    pub(crate) fn begin_end(&self) {
        let mut rx = lock(&self.rx);
        if self.mode() != UNKNOWN {
            return;
        }
        self.mode.store(LOST, Ordering::Release);
        let pushed = Pushed::rx(self.flush_rx(&mut rx));
        drop(rx);
        self.alert(pushed, None);
    }

    /// Called after the kernel's endpoint is closed: takes the messages that have arrived, and
    /// cancels the other operations.
    pub(crate) fn finish(self: &Arc<Self>) {
        // The kernel has woken the waiters of the queues; each of them also progresses this
        // endpoint.
        self.progress();
        {
            let mut rx = lock(&self.rx);
            self.flush_rx(&mut rx);
        }
        if let Some(link) = self.link.get() {
            self.flush_tx(link, &mut lock(&self.tx));
        }
        for bound in [&self.rx_queue, &self.tx_queue]
            .into_iter()
            .filter_map(OnceLock::get)
        {
            bound.cq.direct.remove(self);
        }
        let own = Arc::as_ptr(self).cast::<()>();
        let other = |holder: &Weak<dyn Holder>| holder.as_ptr().cast::<()>() != own;
        lock(&self.domain.holders).retain(other);
    }
}
