// SPDX-License-Identifier: GPL-2.0
//! Event queues (`fi_eq(3)`): events of connections.
//!
//! The room for an endpoint's own events (connected or failed, and shutdown) is reserved when the
//! queue is bound. Connection requests come from remote peers: the queue's depth bounds them, and
//! further ones are refused.

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

use super::{
    conn_request::Request,
    fabric::Fabric, //
};
use crate::{
    base::parent::{
        Children,
        Held,
        Parent, //
    },
    pure::ring::FixedRing,
    sys::wait::WaitQueue,
    uapi::*,
};

/// Default number of events that may wait in a queue.
const DEFAULT_DEPTH: u32 = 64;
/// Events of a closed source that are removed in one step.
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
    /// The connection request, with `KFI_CONNREQ`.
    pub request: Option<Arc<Request>>,
    /// Identifies the endpoint or passive endpoint: its address in memory.
    pub(crate) source: usize,
}

/// Handler that the queue calls after an event was added. Runs in process context.
///
/// The queue drops the handler when the last reference to the queue is dropped, which may be after
/// [`Eq::close`]. A module waits for its handlers' `Drop` before it unloads.
pub trait EqHandler: Send + Sync {
    /// An event may be waiting.
    fn event(&self);
}

struct Inner {
    ring: FixedRing<KVVec<Option<Event>>>,
    /// Cells of the ring that are reserved for events of endpoints and passive endpoints; the rest
    /// is for requests. A source's cells stay reserved until the source is closed.
    owed: usize,
    /// The oldest event, returned after a reader has not taken it.
    front: Option<Event>,
    /// Source of the event that a reader examines outside the lock.
    shown: Option<usize>,
    /// The source of the examined event is closed, so that event is not returned to the queue.
    stale: bool,
    /// The program's file is released, so no event is added.
    abandoned: bool,
}

impl Inner {
    fn take(&mut self) -> Option<Event> {
        self.front.take().or_else(|| self.ring.pop())
    }

    /// Number of events that readers can still get. An examined event counts, unless its source is
    /// closed.
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
    /// Where readers wait for the reader that examines an event.
    #[pin]
    turn: CondVar,
    /// Number of waiting events, readable without the lock.
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

/// A deep queue's cells exceed `kmalloc()`'s limit, and are charged to the program. A failed
/// allocation is the program's error, so it is not logged.
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
    /// - `EINVAL` if `depth` exceeds `KFI_EQ_SIZE_MAX`.
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
                    Inner {
                        ring,
                        owed: 0,
                        front: None,
                        shown: None,
                        stale: false,
                        abandoned: false,
                    },
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

    /// The queue's fabric.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.arc()
    }

    /// Number of requests that may wait.
    pub fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn wait(&self) -> &WaitQueue {
        &self.wait
    }

    /// Number of waiting events.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Acquire)
    }

    /// Reserves room for the own events of an endpoint or passive endpoint.
    pub(crate) fn owe(&self) -> Result {
        let mut larger: Option<KVVec<Option<Event>>> = None;
        loop {
            let want = {
                let mut inner = self.inner.lock();
                let want = self.depth + inner.owed + PER_ENDPOINT;
                if inner.ring.capacity() < want {
                    if let Some(larger) = larger.take_if(|larger| larger.len() >= want) {
                        inner.ring.replace_storage(larger).map_err(|_| ENOMEM)?;
                    }
                }
                if inner.ring.capacity() >= want {
                    inner.owed += PER_ENDPOINT;
                    return Ok(());
                }
                // Doubled, so that many endpoints do not copy the ring many times.
                want.max(inner.ring.capacity() * 2)
            };
            // Allocated without the lock: the end of a grant takes the lock, and must not wait for
            // the reclaim of this program's cgroup.
            larger = Some(cells(want)?);
        }
    }

    /// Drops all events, and refuses later ones: the file of the reading program is released. Each
    /// source that is [forgotten](Self::forget_source) afterwards finds an empty queue, which avoids one walk
    /// for each source.
    pub(crate) fn abandon(&self) {
        self.inner.lock().abandoned = true;
        // One at a time, and outside the lock: the drop of an event may refuse a request.
        while let Some(event) = self.read() {
            drop(event);
        }
    }

    /// Removes all events of a closed source, and returns its reserved room.
    pub(crate) fn forget_source(&self, source: usize) {
        // In steps of `SETTLED`, without an allocation, so that a close cannot fail.
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

    /// Waits until no reader examines an event of a source that was [forgotten](Self::forget_source). For
    /// callers that free the source's handle; not in contexts that must not wait for a program.
    pub(crate) fn unseen(&self, source: usize) {
        let mut inner = self.inner.lock();
        while inner.shown == Some(source) {
            self.turn.wait(&mut inner);
        }
    }

    /// Removes events of a source, at most `SETTLED`; returns their number. The caller drops them
    /// outside the lock, because the drop refuses requests.
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
                // Cannot fail: an event was removed, so there is a free cell.
                _ => {
                    let _ = inner.ring.push(event);
                }
            }
        }
        taken
    }

    /// Stores the number of events in `waiting`. Locking: caller holds `Eq::inner`.
    fn count(&self, inner: &Inner) {
        // CAST: The ring is far below 2^32 cells.
        self.waiting.store(inner.count() as u32, Ordering::Release);
    }

    /// Adds an endpoint's own event if `happens` returns true. [`Eq::owe`] has reserved the room.
    /// Events of one endpoint are added in the order in which they happen.
    pub(crate) fn push_owed(&self, event: Event, happens: impl FnOnce() -> bool) {
        {
            let mut inner = self.inner.lock();
            if !happens() || inner.abandoned {
                return;
            }
            let full = inner.ring.push(event).is_err();
            // An endpoint causes no more events than `owe` reserved.
            debug_assert!(!full);
            self.count(&inner);
        }
        self.notify();
    }

    /// Adds a connection request.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if `depth` events wait already.
    pub(crate) fn push_request(&self, event: Event) -> Result {
        {
            let mut inner = self.inner.lock();
            let room = inner.ring.capacity() - inner.ring.len();
            if inner.abandoned || inner.ring.len() >= self.depth || room <= inner.owed {
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

    /// Removes and returns the oldest event.
    pub fn read(&self) -> Option<Event> {
        let mut inner = self.inner.lock();
        let event = inner.take();
        self.count(&inner);
        event
    }

    /// Shows the oldest event to `look`, which returns whether to remove it.
    ///
    /// `look` may block on the program: no lock is held. Other readers wait, so that events are
    /// taken in order. Tasks that add events or close their source do not wait.
    ///
    /// # Errors
    ///
    /// The error of `look`; the event then stays. And:
    ///
    /// - `EAGAIN` if no event waits.
    /// - `ERESTARTSYS` if a signal arrives while another reader examines an event.
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
        // Outside the lock: the drop of an event may refuse a request.
        drop(event);
        taken.map(|_| ())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.children.is_closed()
    }

    /// Closes the queue and refuses its waiting requests; `EBUSY` if an endpoint uses the queue.
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
