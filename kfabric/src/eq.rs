// SPDX-License-Identifier: GPL-2.0
//! Event queues (`fi_eq(3)`): what happens to connections.
//!
//! An endpoint's own events (connected or failed, and shutdown) have their room from the moment
//! the endpoint is bound; what a stranger may cause, connection requests, is bounded by the
//! queue's depth and refused beyond it.

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    new_condvar,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        CondVar,
        Mutex, //
    }, //
};

use crate::{
    fabric::Fabric,
    object::{
        Children,
        Held,
        Parent, //
    },
    pep::Request,
    pure::ring::FixedRing,
    sys::wait::WaitQueue,
    uapi::*,
};

/// Waiting events of a queue that did not say.
const DEFAULT_DEPTH: u32 = 64;
/// Events of a closed source that are taken out at a time.
const SETTLED: usize = 8;
/// Events that one endpoint can cause.
const PER_ENDPOINT: usize = 2;

/// Something that happened to an endpoint or passive endpoint.
pub struct Event {
    /// `KFI_CONNREQ`, `KFI_CONNECTED`, `KFI_CONN_ERROR` or `KFI_SHUTDOWN`.
    pub kind: u32,
    /// The object's handle, for one that a program opened.
    pub object: u64,
    /// The object's context.
    pub context: u64,
    /// Positive errno, or 0.
    pub err: u32,
    /// The provider's code.
    pub prov_errno: u32,
    /// The peer's application data.
    pub data: KVec<u8>,
    /// With `KFI_CONNREQ`.
    pub request: Option<Arc<Request>>,
    /// Identifies the endpoint or passive endpoint: its address in memory.
    pub(crate) source: usize,
}

/// Told when an event was added. Runs in process context.
///
/// The queue drops it when the last user of the queue lets go, which may be a little after
/// [`Eq::close`]: a module waits for its handlers' `Drop` before it unloads.
pub trait EqHandler: Send + Sync {
    /// An event may be waiting.
    fn event(&self);
}

struct Inner {
    ring: FixedRing<KVVec<Option<Event>>>,
    /// Events that endpoints, passive ones too, may still cause; the rest of the ring is for requests.
    owed: usize,
    /// An event that was looked at and stays the oldest.
    front: Option<Event>,
    /// Source of the event that somebody is looking at, outside the lock.
    shown: Option<usize>,
    /// That event is not to come back: its source is closed.
    stale: bool,
}

impl Inner {
    fn take(&mut self) -> Option<Event> {
        self.front.take().or_else(|| self.ring.pop())
    }

    fn count(&self) -> usize {
        let shown = self.shown.is_some() && !self.stale;
        self.ring.len() + usize::from(self.front.is_some()) + usize::from(shown)
    }
}

/// An event queue.
#[pin_data]
pub struct Eq {
    #[pin]
    inner: Mutex<Inner>,
    /// Where readers wait for the one that is looking at an event.
    #[pin]
    turn: CondVar,
    /// Events waiting, for those who only want to know how many.
    waiting: AtomicU32,
    depth: usize,
    #[pin]
    wait: WaitQueue,
    handler: Option<Arc<dyn EqHandler>>,
    children: Children,
    fabric: Held<Fabric>,
}

impl Parent for Eq {
    fn children(&self) -> &Children {
        &self.children
    }
}

/// A deep queue's cells are more than `kmalloc()` gives, and the program's to pay for; that it
/// wants too many is no news for the log.
fn cells(count: usize) -> Result<KVVec<Option<Event>>> {
    let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
    let mut cells = KVVec::with_capacity(count, flags)?;
    for _ in 0..count {
        cells.push(None, flags)?;
    }
    Ok(cells)
}

impl Eq {
    /// Opens a queue in which `depth` requests (0: 64) may wait.
    ///
    /// # Errors
    ///
    /// `EINVAL`: deeper than `KFI_EQ_SIZE_MAX`.
    pub fn open(
        fabric: &Arc<Fabric>,
        depth: u32,
        handler: Option<Arc<dyn EqHandler>>,
    ) -> Result<Arc<Self>> {
        let depth = if depth == 0 { DEFAULT_DEPTH } else { depth };
        if depth > KFI_EQ_SIZE_MAX {
            return Err(EINVAL);
        }
        let depth = depth as usize;
        let fabric = Held::new(fabric)?;
        let ring = FixedRing::new(cells(depth)?);
        Arc::pin_init(
            pin_init!(Self {
                inner <- new_mutex!(
                    Inner { ring, owed: 0, front: None, shown: None, stale: false },
                    "kfabric_eq"
                ),
                turn <- new_condvar!("kfabric_eq_turn"),
                waiting: AtomicU32::new(0),
                depth,
                wait <- WaitQueue::new(),
                handler,
                children: Children::new(),
                fabric,
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Its fabric.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.arc()
    }

    /// Requests it has room for.
    pub fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn wait(&self) -> &WaitQueue {
        &self.wait
    }

    /// Events waiting.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Acquire)
    }

    /// Makes room for an endpoint's own events, or a passive endpoint's.
    pub(crate) fn owe(&self) -> Result {
        let mut inner = self.inner.lock();
        let want = self.depth + inner.owed + PER_ENDPOINT;
        if inner.ring.capacity() < want {
            // Doubled, so that many endpoints do not copy the ring many times.
            let larger = cells(want.max(inner.ring.capacity() * 2))?;
            inner.ring.replace_storage(larger).map_err(|_| ENOMEM)?;
        }
        inner.owed += PER_ENDPOINT;
        Ok(())
    }

    /// Forgets all about a source that is closed and will cause no more events, and its room.
    pub(crate) fn settle(&self, source: usize) {
        // Some at a time, and without an allocation: an end does not fail.
        let mut gone = [const { None }; SETTLED];
        while self.take_all(source, &mut gone) == SETTLED {
            gone.fill_with(|| None);
        }
        let mut inner = self.inner.lock();
        inner.owed = inner.owed.saturating_sub(PER_ENDPOINT);
        let first = inner.front.take_if(|event| event.source == source);
        if inner.shown == Some(source) {
            inner.stale = true;
        }
        self.count(&inner);
        drop(inner);
        drop(first);
    }

    /// Waits until nobody looks at an event of a source that has [settled](Self::settle). For who
    /// frees what its events are known by; not where a look may wait for a program.
    pub(crate) fn unseen(&self, source: usize) {
        let mut inner = self.inner.lock();
        while inner.shown == Some(source) {
            self.turn.wait(&mut inner);
        }
    }

    /// Takes events of a source out, as many as there is room for; how many. They are dropped
    /// outside the lock, which refuses requests.
    fn take_all(&self, source: usize, gone: &mut [Option<Event>; SETTLED]) -> usize {
        let mut taken = 0;
        let mut inner = self.inner.lock();
        for _ in 0..inner.ring.len() {
            let Some(event) = inner.ring.pop() else { break };
            match gone.get_mut(taken) {
                Some(place) if event.source == source => {
                    *place = Some(event);
                    taken += 1;
                }
                // Where one came out there is room for one.
                _ => {
                    let _ = inner.ring.push(event);
                }
            }
        }
        taken
    }

    fn count(&self, inner: &Inner) {
        // CAST: The ring is far below 2^32 cells.
        self.waiting.store(inner.count() as u32, Ordering::Release);
    }

    /// Adds an endpoint's own event if `happens` says that it does; its room was made by
    /// [`Eq::owe`]. Events of one endpoint are added in the order in which they happen.
    pub(crate) fn push_owed(&self, event: Event, happens: impl FnOnce() -> bool) {
        {
            let mut inner = self.inner.lock();
            if !happens() {
                return;
            }
            let full = inner.ring.push(event).is_err();
            // An endpoint causes no more than it was given room for.
            debug_assert!(!full);
            self.count(&inner);
        }
        self.notify();
    }

    /// Adds a request.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: `depth` events wait already.
    pub(crate) fn push_request(&self, event: Event) -> Result {
        {
            let mut inner = self.inner.lock();
            let room = inner.ring.capacity() - inner.ring.len();
            if inner.ring.len() >= self.depth || room <= inner.owed {
                return Err(EAGAIN);
            }
            inner.ring.push(event).map_err(|_| EAGAIN)?;
            self.count(&inner);
        }
        self.notify();
        Ok(())
    }

    fn notify(&self) {
        if let Some(handler) = &self.handler {
            handler.event();
        }
        self.wait.wake_all();
    }

    /// Takes the oldest event.
    pub fn read(&self) -> Option<Event> {
        let mut inner = self.inner.lock();
        let event = inner.take();
        self.count(&inner);
        event
    }

    /// Shows the oldest event to `look`, which says whether to take it.
    ///
    /// `look` may take as long as a program likes: no lock is held. Other readers wait, so that
    /// events are taken in order; who adds events or closes their source does not.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: none waits. `ERESTARTSYS`: a signal while another reader looks. Else what `look`
    /// says; the event then stays.
    pub(crate) fn read_with(&self, look: impl FnOnce(&Event) -> Result<bool>) -> Result {
        let event = {
            let mut inner = self.inner.lock();
            while inner.shown.is_some() {
                if self.turn.wait_interruptible(&mut inner) {
                    return Err(ERESTARTSYS);
                }
            }
            let event = inner.take().ok_or(EAGAIN)?;
            inner.shown = Some(event.source);
            inner.stale = false;
            event
        };
        let taken = look(&event);
        let mut event = Some(event);
        {
            let mut inner = self.inner.lock();
            inner.shown = None;
            if !matches!(taken, Ok(true)) && !inner.stale && !self.is_closed() {
                inner.front = event.take();
            }
            self.count(&inner);
        }
        self.turn.notify_all();
        // Outside the lock: the drop may refuse a request.
        drop(event);
        taken.map(|_| ())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.children.is_closed()
    }

    /// Closes; `EBUSY` while an endpoint uses it. Requests still waiting are refused.
    pub fn close(&self) -> Result {
        self.children.close()?;
        while let Some(event) = self.read() {
            drop(event);
        }
        self.fabric.release();
        self.wait.wake_all();
        Ok(())
    }
}
