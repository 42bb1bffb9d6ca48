// SPDX-License-Identifier: GPL-2.0
//! Passive endpoints: listening addresses.

use kernel::{
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        ArcBorrow,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::{
    handshake::Gatekeeper,
    request::Request, //
};
use crate::{
    device::{
        self,
        Device, //
    },
    ib::{
        cm::{
            CmEvent,
            CmEventKind,
            CmHandler,
            CmId,
            Incoming, //
        },
        traced::Traced,
        work, //
    },
    info,
    resource::{
        Class,
        Resource,
        Ticket, //
    },
};
use kfabric::{
    provider::{
        helpers::{
            deliver,
            Worker, //
        },
        ListenSink,
        ListenerOps,
        Proof, //
    },
    sys::net::Net,
    uapi::SockAddr, //
};

/// Maximum number of requests that are queued for the work item. The core limits the requests that
/// wait for the application; this limit bounds the memory that peers can use meanwhile.
const PENDING_MAX: usize = 1024;

/// Events that the handler leaves for the work item.
struct Inbox {
    requests: KVec<Arc<Request>>,
    /// True if the device of the listening address is being removed.
    gone: bool,
}

/// The fields that the control lock protects.
struct Ctl {
    id: Option<CmId<Inner>>,
    sink: Option<Arc<dyn ListenSink>>,
    local: SockAddr,
}

/// A listener as its handler refers to it.
#[pin_data]
struct Inner {
    #[pin]
    ctl: Mutex<Ctl>,
    #[pin]
    inbox: Mutex<Inbox>,
    #[pin]
    work: Work<Inner>,
    /// The task that runs the work item, or 0.
    worker: Worker,
    #[pin]
    gate: Gatekeeper,
    /// Held throughout a close.
    #[pin]
    closing: Mutex<()>,
}

impl_has_work! {
    impl HasWork<Self> for Inner { self.work }
}

impl Inner {
    fn schedule(this: ArcBorrow<'_, Self>) {
        let this: Arc<Self> = this.into();
        // If the work item is queued already, its run finds the new event.
        let _ = work::queue().enqueue(this);
    }

    fn next(&self) -> Option<Arc<Request>> {
        let mut inbox = self.inbox.lock();
        if inbox.requests.is_empty() {
            return None;
        }
        inbox.requests.remove(0).ok()
    }

    fn deliver(&self, request: Arc<Request>) {
        let sink = self.ctl.lock().sink.clone();
        let Some(sink) = sink else {
            return;
        };
        let Some(proven) = request.pass(&self.gate) else {
            return;
        };
        let (local, peer) = request.addresses();
        let entry = request
            .device()
            .enter()
            .and_then(|live| info::entry(&live, request.device(), local));
        let Ok(mut entry) = entry else {
            return;
        };
        entry.dest_addr = peer;
        deliver(&sink, request.clone(), &entry, request.data(), proven);
    }

    /// Stops listening. Returns whether the listener was listening.
    fn end(&self, ctl: &mut Ctl) -> bool {
        let Some(id) = ctl.id.take() else {
            return false;
        };
        ctl.local = id.local_addr();
        drop(id);
        true
    }
}

impl WorkItem for Inner {
    type Pointer = Arc<Inner>;

    fn run(this: Arc<Inner>) {
        let _traced = Traced::new();
        this.worker.run(|| {
            let gone = core::mem::take(&mut this.inbox.lock().gone);
            let told = gone
                .then(|| {
                    let mut ctl = this.ctl.lock();
                    let sink = ctl.sink.clone();
                    sink.filter(|_| this.end(&mut ctl))
                })
                .flatten();
            while let Some(request) = this.next() {
                this.deliver(request);
            }
            if let Some(sink) = told {
                sink.gone();
            }
        });
    }
}

impl CmHandler for Inner {
    fn event(this: ArcBorrow<'_, Self>, event: CmEvent<'_>) {
        if event.kind == CmEventKind::DeviceRemoval {
            this.inbox.lock().gone = true;
            Self::schedule(this);
        }
    }

    fn request(this: ArcBorrow<'_, Self>, incoming: Incoming<'_>) -> Result {
        let device = device::find(|d| incoming.is_on(d.ib())).ok_or(ENODEV)?;
        let _live = device.enter()?;
        {
            let mut inbox = this.inbox.lock();
            if inbox.requests.len() >= PENDING_MAX {
                return Err(EAGAIN);
            }
            inbox.requests.reserve(1, GFP_KERNEL_ACCOUNT)?;
            let request = Request::new(&device, incoming)?;
            // Cannot fail: the capacity was reserved above.
            let _ = inbox.requests.push_within_capacity(request);
        }
        Self::schedule(this);
        Ok(())
    }
}

/// A listener on the resource list of its address's device.
struct Listed(Arc<Inner>);

impl Resource for Listed {
    fn device_gone(&self) {
        self.0.inbox.lock().gone = true;
        Inner::schedule(self.0.as_arc_borrow());
        work::flush(&self.0);
    }
}

/// The core's reference to a listener.
pub(crate) struct Listener {
    inner: Arc<Inner>,
    /// Device and ticket, if the address belongs to a single device.
    listed: Option<(Arc<Device>, Ticket)>,
}

impl Listener {
    /// Creates a listener on `addr`. If there are `proofs`, peers must have one of the auth keys.
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE` if the address is in use.
    /// - `EADDRNOTAVAIL` if the address is not a local one.
    /// - `ENODEV` if no RDMA device has the address.
    pub(crate) fn new(
        net: &Net,
        addr: &SockAddr,
        proofs: KVec<Arc<dyn Proof>>,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<Self>> {
        let gate = Gatekeeper::new(proofs)?;
        let inner = Arc::pin_init(
            pin_init!(Inner {
                ctl <- new_mutex!(Ctl {
                    id: None,
                    sink: Some(sink),
                    local: *addr,
                }, "kverbs_listener"),
                inbox <- new_mutex!(Inbox {
                    requests: KVec::new(),
                    gone: false,
                }, "kverbs_requests"),
                work <- new_work!("kverbs_listener"),
                worker: Worker::new(),
                gate <- gate,
                closing <- new_mutex!((), "kverbs_closing"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let id = CmId::new(net, inner.clone())?;
        id.bind(addr)?;
        let mut listed = None;
        if id.is_bound() {
            let device = device::find(|d| id.is_on(d.ib())).ok_or(ENODEV)?;
            let _live = device.enter()?;
            let resource: Arc<dyn Resource> = Arc::new(Listed(inner.clone()), GFP_KERNEL_ACCOUNT)?;
            let ticket = device.resources.add(Class::Passive, resource)?;
            listed = Some((device.clone(), ticket));
            inner.ctl.lock().id = Some(id);
        } else {
            inner.ctl.lock().id = Some(id);
        }
        let listener = Self { inner, listed };
        Ok(Arc::new(listener, GFP_KERNEL_ACCOUNT)?)
    }
}

impl ListenerOps for Listener {
    fn listen(&self, backlog: u32) -> Result {
        let ctl = self.inner.ctl.lock();
        ctl.id.as_ref().ok_or(ENODEV)?.listen(backlog)
    }

    fn local_addr(&self) -> SockAddr {
        let ctl = self.inner.ctl.lock();
        ctl.id.as_ref().map_or(ctl.local, CmId::local_addr)
    }

    fn close(&self) {
        let inner = &self.inner;
        let _closing = inner.closing.lock();
        let sink = {
            let mut ctl = inner.ctl.lock();
            inner.end(&mut ctl);
            ctl.sink.take()
        };
        // No request is queued any more. Refuse those that were not delivered.
        while let Some(request) = inner.next() {
            drop(request);
        }
        if !inner.worker.is_current() {
            work::flush(inner);
        }
        drop(sink);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
        if let Some((device, ticket)) = self.listed.take() {
            device.resources.remove(ticket);
        }
    }
}
