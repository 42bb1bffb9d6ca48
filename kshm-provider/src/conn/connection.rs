// SPDX-License-Identifier: GPL-2.0
//! Connections: the state machine of one end.
//!
//! [`Phase`] has the states.
//!
//! An end sends an event to the other end by storing it in the other's [`Inbox`] and queueing the
//! other's work item. The work item handles the event in process context under the control lock. It
//! calls the sink with no lock held. No task holds the control locks of two endpoints.
//!
//! Accept in three steps:
//!
//! 1. The accepting end admits the peer and sends `Accepted`.
//! 2. The connecting end admits the peer, becomes `Connected`, and sends `Ready`.
//! 3. The accepting end becomes `Connected`.

use kernel::{
    bindings,
    impl_has_work,
    new_work,
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use super::{
    addr::{
        set_port,
        Name, //
    },
    inbox::{
        Inbox,
        Todo, //
    },
    listener,
    names::Names,
    request::Request, //
};
use crate::{
    data::path::{
        DataPath,
        Owner, //
    },
    errno,
    key::{
        group::Group,
        table::Table, //
    },
    sys::{
        addr::is_local,
        work, //
    },
};
use kfabric::{
    base::errno::{
        econnaborted,
        ekeyrejected,
        enotconn, //
    },
    new_irqlock,
    provider::{
        helpers::{
            Ended,
            Phase,
            Worker, //
        },
        ring_pair::{
            self,
            Offer, //
        },
        EndpointAttr,
        EndpointSink, //
    },
    sys::{
        net::Net,
        IrqLock, //
    },
    uapi::SockAddr, //
};

/// State under the control lock.
struct Ctl {
    phase: Phase,
    /// The initiator of an unanswered connection request.
    initiator: Option<Arc<Connection>>,
    sink: Option<Arc<dyn EndpointSink>>,
    /// The network namespace, until the close.
    net: Option<Net>,
    local: SockAddr,
    peer: SockAddr,
}

/// A call of the sink.
enum Call {
    Connected(KVec<u8>),
    ConnError(u32, KVec<u8>),
    Shutdown(u32),
}

/// One end of a connection: the state of an endpoint.
#[pin_data]
pub(crate) struct Connection {
    names: Arc<Names>,
    #[pin]
    ctl: Mutex<Ctl>,
    #[pin]
    path: DataPath<Connection>,
    #[pin]
    inbox: IrqLock<Inbox>,
    #[pin]
    events: Work<Connection, 0>,
    #[pin]
    copies: Work<Connection, 1>,
    /// The completion rings of this endpoint's program, which an accept joins with the peer's.
    rings: Option<Arc<Offer>>,
    /// The task that runs the work item of events.
    worker: Worker,
    /// Serializes calls of `close`.
    #[pin]
    closing: Mutex<()>,
}

impl_has_work! {
    impl HasWork<Self, 0> for Connection { self.events }
    impl HasWork<Self, 1> for Connection { self.copies }
}

impl Connection {
    /// Creates an endpoint in `group`.
    pub(crate) fn new(
        names: &Arc<Names>,
        table: &Arc<Table>,
        group: Arc<Group>,
        net: &Net,
        attr: &EndpointAttr,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<Self>> {
        let path = DataPath::<Self>::new(attr.tx_size, attr.rx_size, group, table.clone())?;
        let rings = sink.rings();
        let ctl = Ctl {
            phase: Phase::New,
            initiator: None,
            sink: Some(sink),
            net: Some(net.clone()),
            local: attr.src_addr,
            peer: SockAddr::default(),
        };
        Arc::pin_init(
            pin_init!(Self {
                names: names.clone(),
                ctl <- new_mutex!(ctl, "kshm_endpoint"),
                path <- path,
                inbox <- new_irqlock!(Inbox::default(), "kshm_inbox"),
                events <- new_work!("kshm_events"),
                copies <- new_work!("kshm_copies"),
                rings,
                worker: Worker::new(),
                closing <- new_mutex!((), "kshm_closing"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Stores an event in the inbox and queues the work item. Context: any.
    fn notify(this: &Arc<Self>, put: impl FnOnce(&mut Inbox)) {
        put(&mut this.inbox.lock());
        // A work item that is queued already will see the event.
        let _ = work::events().enqueue::<_, 0>(this.clone());
    }

    /// Ends the connection with a positive errno. Context: any.
    fn fail(this: &Arc<Self>, err: u32) {
        Self::notify(this, |inbox| {
            let _ = inbox.fail(err);
        });
    }

    /// Refuses a connection request, with data if the application refuses. No effect if the
    /// initiator waits no more.
    pub(crate) fn refuse(this: &Arc<Self>, data: Option<KVec<u8>>) {
        Self::notify(this, |inbox| inbox.reject(data));
    }

    fn next_event(&self) -> Option<Todo> {
        self.inbox.lock().next_event()
    }

    /// Ends the connection, with a positive errno or 0. Returns the call of the sink that reports
    /// the end.
    fn down(this: &Arc<Self>, ctl: &mut Ctl, err: u32, data: KVec<u8>) -> Option<Call> {
        let ended = ctl.phase.end(err);
        Self::stop(this, ctl);
        match ended? {
            Ended::ConnError(err) => Some(Call::ConnError(err, data)),
            Ended::Shutdown(err) => Some(Call::Shutdown(err)),
        }
    }

    /// Stops the data path and notifies the other end.
    fn stop(this: &Arc<Self>, ctl: &mut Ctl) {
        DataPath::stop(this);
        if let Some(initiator) = ctl.initiator.take() {
            Self::refuse(&initiator, None);
        }
        let in_vain = this.inbox.lock().give_up();
        for other in [in_vain, this.path.peer()].into_iter().flatten() {
            Self::notify(&other, Inbox::gone);
        }
    }

    fn act(this: &Arc<Self>, todo: Todo) -> (Option<Call>, Option<Arc<dyn EndpointSink>>) {
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        let connecting = ctl.phase == Phase::Connecting;
        let call = match todo {
            Todo::Accepted(peer, data) if connecting => {
                this.path.serve(&peer);
                this.path.open();
                ctl.phase = Phase::Connected;
                Self::notify(&peer, Inbox::ready);
                Some(Call::Connected(data))
            }
            Todo::Accepted(peer, _) => {
                Self::notify(&peer, Inbox::gone);
                None
            }
            Todo::Rejected(data) if connecting => {
                let data = data.unwrap_or_default();
                Self::down(this, ctl, bindings::ECONNREFUSED, data)
            }
            Todo::Ready if connecting => {
                this.path.open();
                ctl.phase = Phase::Connected;
                Some(Call::Connected(KVec::new()))
            }
            Todo::Rejected(_) | Todo::Ready => None,
            _ if ctl.phase == Phase::Closed => None,
            Todo::Failed(err) => Self::down(this, ctl, err, KVec::new()),
            Todo::Gone => Self::down(this, ctl, 0, KVec::new()),
        };
        let sink = call.as_ref().and_then(|_| ctl.sink.clone());
        (call, sink)
    }

    /// [`EndpointOps::enable`](kfabric::provider::EndpointOps::enable).
    pub(crate) fn enable(&self) -> Result {
        let mut ctl = self.ctl.lock();
        ctl.phase.check_enable()?;
        self.path.receive();
        ctl.phase = Phase::Enabled;
        Ok(())
    }

    /// [`EndpointOps::connect`](kfabric::provider::EndpointOps::connect).
    pub(crate) fn connect(this: &Arc<Self>, addr: &SockAddr, data: &[u8]) -> Result {
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        if ctl.phase != Phase::Enabled || ctl.initiator.is_some() {
            return Err(EINVAL);
        }
        let net = ctl.net.as_ref().ok_or(EINVAL)?;
        let name = Name::new(net, addr)?;
        if ctl.local.len != 0 && !Name::new(net, &ctl.local)?.is_any() {
            if !is_local(net, &ctl.local) {
                return Err(errno::eaddrnotavail());
            }
        } else if !name.is_service() {
            // The peer is on this host, so its address serves as local address.
            ctl.local = *addr;
        }
        if !name.is_service() {
            set_port(&mut ctl.local, this.names.ephemeral());
        }
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT)?;
        if !name.is_service() && !is_local(net, addr) {
            Self::fail(this, bindings::EHOSTUNREACH);
        } else {
            let found = this.names.find(&name, this.path.group().proof());
            let asked = found.map(|found| {
                let (listener, proven) = found?;
                let request = Request::new(this, addr, &ctl.local, copy, proven)?;
                listener::Inner::ask(&listener, request)
            });
            match asked {
                Some(Err(e)) if e == ekeyrejected() => Self::fail(this, bindings::EKEYREJECTED),
                // If the listener does not take the request, its drop refuses the request.
                Some(Err(e)) if e == ENOMEM => return Err(e),
                Some(_) => {}
                None => Self::fail(this, bindings::ECONNREFUSED),
            }
        }
        ctl.peer = *addr;
        // Events stored meanwhile are handled after this lock is released.
        ctl.phase = Phase::Connecting;
        Ok(())
    }

    /// Makes this endpoint the accepting end of `request`. Returns `EINVAL` if the request was
    /// answered.
    pub(crate) fn take_over(&self, request: &Request) -> Result {
        // Only presence is compared here; the core compares the auth keys themselves.
        if request.proven().is_some() != self.path.group().proof().is_some() {
            return Err(EINVAL);
        }
        let (initiator, local, peer) = request.take().ok_or(EINVAL)?;
        let mut ctl = self.ctl.lock();
        ctl.initiator = Some(initiator);
        ctl.local = local;
        ctl.peer = peer;
        Ok(())
    }

    /// [`EndpointOps::accept`](kfabric::provider::EndpointOps::accept).
    pub(crate) fn accept(this: &Arc<Self>, data: &[u8]) -> Result {
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        ctl.phase.check_accept()?;
        if ctl.initiator.is_none() {
            return Err(EINVAL);
        }
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT)?;
        let initiator = ctl.initiator.take().ok_or(EINVAL)?;
        if let (Some(ours), Some(theirs)) = (&this.rings, &initiator.rings) {
            ring_pair::join(ours, theirs);
        }
        this.path.serve(&initiator);
        // The initiator's events are handled after this lock is released.
        ctl.phase = Phase::Connecting;
        if let Err(copy) = Self::answer(&initiator, this, copy) {
            drop(copy);
            ctl.phase = Phase::Down;
            DataPath::stop(this);
            return Err(econnaborted());
        }
        Ok(())
    }

    /// Sends `Accepted` from `peer` to `this`.
    fn answer(this: &Arc<Self>, peer: &Arc<Self>, data: KVec<u8>) -> Result<(), KVec<u8>> {
        this.inbox.lock().accept(peer, data)?;
        let _ = work::events().enqueue::<_, 0>(this.clone());
        Ok(())
    }

    /// [`EndpointOps::shutdown`](kfabric::provider::EndpointOps::shutdown).
    pub(crate) fn shutdown(this: &Arc<Self>) -> Result {
        let ctl = this.ctl.lock();
        if !ctl.phase.is_active() {
            return Err(enotconn());
        }
        DataPath::stop(this);
        Self::notify(this, Inbox::gone);
        Ok(())
    }

    /// [`EndpointOps::close`](kfabric::provider::EndpointOps::close).
    pub(crate) fn close(this: &Arc<Self>) {
        let _closing = this.closing.lock();
        let (sink, net) = {
            let mut guard = this.ctl.lock();
            let ctl = &mut *guard;
            if ctl.phase == Phase::Closed {
                return;
            }
            ctl.phase = Phase::Closed;
            Self::stop(this, ctl);
            (ctl.sink.take(), ctl.net.take())
        };
        this.path.close();
        // Wait for the end of a sink call in progress.
        if !this.worker.is_current() {
            work::flush::<_, 0>(this);
        }
        // The other work item finds the gate closed, so it does nothing.
        drop((sink, net));
    }

    /// Returns this end's address, as far as known.
    pub(crate) fn local_addr(&self) -> SockAddr {
        self.ctl.lock().local
    }

    /// Returns the peer's address, as far as known.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        self.ctl.lock().peer
    }
}

impl Owner for Connection {
    fn path(&self) -> &DataPath<Self> {
        &self.path
    }

    fn go_on_later(this: &Arc<Self>) {
        let _ = work::copies().enqueue::<_, 1>(this.clone());
    }

    fn fail_both(this: &Arc<Self>, err: u32, peer: &Arc<Self>, theirs: u32) -> bool {
        // Both inboxes contain the errno before either end can send `Todo::Gone` to the other.
        let _ = peer.inbox.lock().fail(theirs);
        this.inbox.lock().fail(err)
    }

    fn report_both(this: &Arc<Self>, peer: &Arc<Self>) {
        for end in [this, peer] {
            let _ = work::events().enqueue::<_, 0>(end.clone());
        }
    }
}

impl WorkItem<0> for Connection {
    type Pointer = Arc<Connection>;

    fn run(this: Arc<Connection>) {
        this.worker.run(|| {
            while let Some(todo) = this.next_event() {
                let (Some(call), Some(sink)) = Self::act(&this, todo) else {
                    continue;
                };
                match call {
                    Call::Connected(data) => sink.connected(&data),
                    Call::ConnError(err, data) => sink.conn_error(err, 0, &data),
                    Call::Shutdown(err) => sink.shutdown(err),
                }
            }
        });
    }
}

impl WorkItem<1> for Connection {
    type Pointer = Arc<Connection>;

    fn run(this: Arc<Connection>) {
        DataPath::go_on(&this);
    }
}
