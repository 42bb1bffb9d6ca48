// SPDX-License-Identifier: GPL-2.0
//! Endpoints: one end of a connection.
//!
//! ```text
//!  New --enable--> Enabled --connect/accept--> Connecting --> Connected
//!                     |                            |              |
//!                     +----------------------------+--------------+--> Down --close--> Closed
//! ```
//!
//! What one end has to say to the other it puts into the other's inbox and queues the other's work
//! item, which acts on it in process context under the control lock, and calls the sink with no lock
//! held. Nobody ever takes the control locks of two endpoints.
//!
//! Accepting: the accepting end lets the peer in, and tells it; the connecting end lets the peer
//! in, is connected, and tells it; then the accepting end is connected.

use core::sync::atomic::{
    AtomicUsize,
    Ordering, //
};
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

use crate::{
    errno,
    group::Group,
    inbox::{
        Inbox,
        Todo, //
    },
    listener,
    names::{
        set_port,
        Name, //
    },
    path::{
        Path,
        Refused, //
    },
    provider::Host,
    request::Request,
    sys, //
};
use kfabric::{
    errno::{
        ekeyrejected,
        enotconn, //
    },
    net::Net,
    new_irqlock,
    op::{
        OpDesc,
        OpToken, //
    },
    provider::{
        EndpointAttr,
        EndpointOps,
        EndpointSink, //
    },
    rings::{
        self,
        Offer, //
    },
    sys::IrqLock,
    uapi::SockAddr, //
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    New,
    Enabled,
    Connecting,
    Connected,
    Down,
    Closed,
}

/// What the control lock protects.
struct Ctl {
    phase: Phase,
    /// Who asked, until it is answered.
    initiator: Option<Arc<Endpoint>>,
    sink: Option<Arc<dyn EndpointSink>>,
    /// Until it is closed.
    net: Option<Net>,
    local: SockAddr,
    peer: SockAddr,
}

/// What the sink is to be told.
enum Call {
    Connected(KVec<u8>),
    ConnError(u32, KVec<u8>),
    Shutdown(u32),
}

/// An endpoint.
#[pin_data]
pub(crate) struct Endpoint {
    host: Arc<Host>,
    #[pin]
    ctl: Mutex<Ctl>,
    #[pin]
    path: Path,
    #[pin]
    inbox: IrqLock<Inbox>,
    #[pin]
    events: Work<Endpoint, 0>,
    #[pin]
    copies: Work<Endpoint, 1>,
    /// What its program has for the peer's to join.
    rings: Option<Arc<Offer>>,
    /// The task that runs the work item of events, while it does.
    worker: AtomicUsize,
    /// Held throughout a close.
    #[pin]
    closing: Mutex<()>,
}

impl_has_work! {
    impl HasWork<Self, 0> for Endpoint { self.events }
    impl HasWork<Self, 1> for Endpoint { self.copies }
}

impl Endpoint {
    /// Makes one in `group`.
    pub(crate) fn new(
        host: &Arc<Host>,
        group: Arc<Group>,
        net: &Net,
        attr: &EndpointAttr,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<Self>> {
        let path = Path::new(attr.tx_size, attr.rx_size, group, host.table.clone())?;
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
                host: host.clone(),
                ctl <- new_mutex!(ctl, "kshm_endpoint"),
                path <- path,
                inbox <- new_irqlock!(Inbox::default(), "kshm_inbox"),
                events <- new_work!("kshm_events"),
                copies <- new_work!("kshm_copies"),
                rings,
                worker: AtomicUsize::new(0),
                closing <- new_mutex!((), "kshm_closing"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Its data path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts something into the inbox. Any context.
    fn tell(this: &Arc<Self>, put: impl FnOnce(&mut Inbox)) {
        put(&mut this.inbox.lock());
        // If it is queued already it will see what was put in.
        let _ = sys::events().enqueue::<_, 0>(this.clone());
    }

    /// The connection failed with a positive errno. Any context.
    pub(crate) fn fail(this: &Arc<Self>, err: u32) {
        Self::tell(this, |inbox| inbox.fail(err));
    }

    /// The connection of two failed, for each with an errno of its own, which both hear of before
    /// either tells the other that it is gone. Any context.
    pub(crate) fn fail_both(this: &Arc<Self>, err: u32, peer: &Arc<Self>, theirs: u32) {
        peer.inbox.lock().fail(theirs);
        Self::fail(this, err);
        let _ = sys::events().enqueue::<_, 0>(peer.clone());
    }

    /// Has a worker go on with its operations. Any context.
    pub(crate) fn go_on_later(this: &Arc<Self>) {
        let _ = sys::copies().enqueue::<_, 1>(this.clone());
    }

    /// Refuses, with data if it is the application that does. Nothing if nobody waits any more.
    pub(crate) fn refuse(this: &Arc<Self>, data: Option<KVec<u8>>) {
        Self::tell(this, |inbox| inbox.reject(data));
    }

    fn take(&self) -> Option<Todo> {
        self.inbox.lock().take()
    }

    /// Ends what there is of a connection, with a positive errno or 0.
    fn down(this: &Arc<Self>, ctl: &mut Ctl, err: u32, data: KVec<u8>) -> Option<Call> {
        let call = match ctl.phase {
            Phase::Connecting => {
                let err = if err == 0 { bindings::ECONNRESET } else { err };
                Some(Call::ConnError(err, data))
            }
            Phase::Connected => Some(Call::Shutdown(err)),
            _ => None,
        };
        if ctl.phase != Phase::Closed {
            ctl.phase = Phase::Down;
        }
        Self::part(this, ctl);
        call
    }

    /// Lets nothing more happen, and tells whoever is at the other end.
    fn part(this: &Arc<Self>, ctl: &mut Ctl) {
        Path::stop(this);
        if let Some(initiator) = ctl.initiator.take() {
            Self::refuse(&initiator, None);
        }
        let in_vain = this.inbox.lock().give_up();
        for other in [in_vain, this.path.peer()].into_iter().flatten() {
            Self::tell(&other, Inbox::gone);
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
                Self::tell(&peer, Inbox::ready);
                Some(Call::Connected(data))
            }
            Todo::Accepted(peer, _) => {
                Self::tell(&peer, Inbox::gone);
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

    fn enable(&self) -> Result {
        let mut ctl = self.ctl.lock();
        match ctl.phase {
            Phase::New => {}
            Phase::Down => return Err(errno::econnaborted()),
            _ => return Err(EINVAL),
        }
        self.path.receive();
        ctl.phase = Phase::Enabled;
        Ok(())
    }

    fn connect(this: &Arc<Self>, addr: &SockAddr, data: &[u8]) -> Result {
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        if ctl.phase != Phase::Enabled || ctl.initiator.is_some() {
            return Err(EINVAL);
        }
        let net = ctl.net.as_ref().ok_or(EINVAL)?;
        let name = Name::new(net, addr)?;
        if ctl.local.len != 0 && !Name::new(net, &ctl.local)?.is_any() {
            if !sys::is_local(net, &ctl.local) {
                return Err(errno::eaddrnotavail());
            }
        } else if !name.is_service() {
            // From where the peer is.
            ctl.local = *addr;
        }
        if !name.is_service() {
            set_port(&mut ctl.local, this.host.names.ephemeral());
        }
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT)?;
        if !name.is_service() && !sys::is_local(net, addr) {
            Self::fail(this, bindings::EHOSTUNREACH);
        } else {
            let found = this.host.names.find(&name, this.path.group().proof());
            let asked = found.map(|found| {
                let (listener, proven) = found?;
                let request = Request::new(this, addr, &ctl.local, copy, proven)?;
                listener::Inner::ask(&listener, request)
            });
            match asked {
                Some(Err(e)) if e == ekeyrejected() => Self::fail(this, bindings::EKEYREJECTED),
                // Whoever does not take it drops it, which refuses it.
                Some(Err(e)) if e == ENOMEM => return Err(e),
                Some(_) => {}
                None => Self::fail(this, bindings::ECONNREFUSED),
            }
        }
        ctl.peer = *addr;
        // What was put into the inbox waits for the lock.
        ctl.phase = Phase::Connecting;
        Ok(())
    }

    /// Makes it the accepting end of `request`. `EINVAL`: that was answered.
    pub(crate) fn take_over(&self, request: &Request) -> Result {
        // Which one it is, the core sees to.
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

    fn accept(this: &Arc<Self>, data: &[u8]) -> Result {
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        match ctl.phase {
            Phase::Enabled => {}
            Phase::Down => return Err(errno::econnaborted()),
            _ => return Err(EINVAL),
        }
        if ctl.initiator.is_none() {
            return Err(EINVAL);
        }
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT)?;
        let initiator = ctl.initiator.take().ok_or(EINVAL)?;
        if let (Some(ours), Some(theirs)) = (&this.rings, &initiator.rings) {
            rings::join(ours, theirs);
        }
        this.path.serve(&initiator);
        // What comes of it waits for the lock.
        ctl.phase = Phase::Connecting;
        if let Err(copy) = Self::answer(&initiator, this, copy) {
            drop(copy);
            ctl.phase = Phase::Down;
            Path::stop(this);
            return Err(errno::econnaborted());
        }
        Ok(())
    }

    /// Tells `this` that `peer` accepts.
    fn answer(this: &Arc<Self>, peer: &Arc<Self>, data: KVec<u8>) -> Result<(), KVec<u8>> {
        this.inbox.lock().accept(peer, data)?;
        let _ = sys::events().enqueue::<_, 0>(this.clone());
        Ok(())
    }

    fn shutdown(this: &Arc<Self>) -> Result {
        let ctl = this.ctl.lock();
        match ctl.phase {
            Phase::Connecting | Phase::Connected => {
                Path::stop(this);
                Self::tell(this, Inbox::gone);
                Ok(())
            }
            _ => Err(enotconn()),
        }
    }

    fn close(this: &Arc<Self>) {
        let _closing = this.closing.lock();
        let (sink, net) = {
            let mut guard = this.ctl.lock();
            let ctl = &mut *guard;
            if ctl.phase == Phase::Closed {
                return;
            }
            ctl.phase = Phase::Closed;
            Self::part(this, ctl);
            (ctl.sink.take(), ctl.net.take())
        };
        this.path.close();
        // A call of the sink that was under way is over then.
        if this.worker.load(Ordering::Acquire) != sys::current() {
            sys::flush::<_, 0>(this);
        }
        // What the other item would go on with is over, so it does nothing any more.
        drop((sink, net));
    }
}

impl WorkItem<0> for Endpoint {
    type Pointer = Arc<Endpoint>;

    fn run(this: Arc<Endpoint>) {
        this.worker.store(sys::current(), Ordering::Release);
        while let Some(todo) = this.take() {
            let (Some(call), Some(sink)) = Self::act(&this, todo) else {
                continue;
            };
            match call {
                Call::Connected(data) => sink.connected(&data),
                Call::ConnError(err, data) => sink.conn_error(err, 0, &data),
                Call::Shutdown(err) => sink.shutdown(err),
            }
        }
        this.worker.store(0, Ordering::Release);
    }
}

impl WorkItem<1> for Endpoint {
    type Pointer = Arc<Endpoint>;

    fn run(this: Arc<Endpoint>) {
        Path::go_on(&this);
    }
}

/// An endpoint as the core has it.
pub(crate) struct Handle(pub(crate) Arc<Endpoint>);

impl Drop for Handle {
    fn drop(&mut self) {
        Endpoint::close(&self.0);
    }
}

impl EndpointOps for Handle {
    fn enable(&self) -> Result {
        self.0.enable()
    }

    fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result {
        Endpoint::connect(&self.0, addr, data)
    }

    fn accept(&self, data: &[u8]) -> Result {
        Endpoint::accept(&self.0, data)
    }

    fn shutdown(&self) -> Result {
        Endpoint::shutdown(&self.0)
    }

    fn post(&self, op: &OpDesc<'_>, token: OpToken) -> Result<(), Refused> {
        Path::post(&self.0, op, token)
    }

    fn cancel(&self, context: u64) -> Result {
        self.0.path.cancel(context)
    }

    fn local_addr(&self) -> SockAddr {
        self.0.ctl.lock().local
    }

    fn peer_addr(&self) -> SockAddr {
        self.0.ctl.lock().peer
    }

    fn close(&self) {
        Endpoint::close(&self.0)
    }
}
