// SPDX-License-Identifier: GPL-2.0
//! Endpoints: a queue pair and its connection.
//!
//! ```text
//!  New --enable--> Enabled --connect/accept--> Connecting --> Connected
//!                     |                            |              |
//!                     +----------------------------+--------------+--> Down --close--> Closed
//! ```
//!
//! Handlers of the connection manager and of completions only put what they know into the inbox
//! and queue the work item; [`Endpoint::run`] acts on it in process context, under the control
//! lock, and calls the sink with no lock held. Whoever destroys the queue pair or the identifier
//! does so under the control lock.

use core::sync::atomic::{
    AtomicU32,
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
        ArcBorrow,
        Mutex, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};

use crate::{
    device::Device,
    errno,
    group::Group,
    ib::{
        cm::{
            CmEvent,
            CmEventKind,
            CmHandler,
            CmId,
            ConnParam,
            REJ_CONSUMER, //
        },
        dma::DmaBuf,
        qp::{
            Completions,
            QpEvent,
            QpSize,
            QueuePair, //
        },
        work,
        wr::Wc, //
    },
    inbox::{
        Inbox,
        Todo, //
    },
    limits::{
        ACK_TIMEOUT,
        CONNECT_TICKS,
        INJECT_SIZE,
        MIN_RNR_TIMER,
        RESOLVE_MS,
        RETRY_COUNT,
        RNR_RETRY, //
    },
    path::{
        Path,
        Refused, //
    },
    request,
    shake::{
        self,
        Proven,
        Refused as ShakeRefused,
        Shake, //
    },
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
    provider::EndpointSink,
    pure::wire,
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
    qp: Option<QueuePair<Endpoint>>,
    id: Option<CmId<Endpoint>>,
    /// What the peer offered, on the accepting side.
    offered: Option<ConnParam>,
    /// Framed application data for the request.
    message: [u8; wire::REQUEST_MAX],
    message_len: usize,
    /// Where it connects with an auth key: how far it is.
    shake: Option<Shake>,
    /// Where it accepts with an auth key: what the peer has proven.
    proven: Option<Proven>,
    sink: Option<Arc<dyn EndpointSink>>,
    local: SockAddr,
    peer: SockAddr,
}

/// What the sink is to be told.
enum Call {
    Connected,
    ConnError(u32, u32, bool),
    Shutdown(u32),
}

/// An endpoint as its handlers know it.
#[pin_data]
pub(crate) struct Endpoint {
    device: Arc<Device>,
    group: Arc<Group>,
    net: Net,
    #[pin]
    ctl: Mutex<Ctl>,
    #[pin]
    path: Path,
    #[pin]
    inbox: IrqLock<Inbox>,
    #[pin]
    work: Work<Endpoint>,
    /// The task that runs the work item, while it does.
    worker: AtomicUsize,
    /// It is down, and the peer has time to disconnect: ticks.
    lingering: AtomicU32,
    /// It connects or has accepted, and the peer has time to say that it is ready: ticks.
    connecting: AtomicU32,
    /// Held throughout a close.
    #[pin]
    closing: Mutex<()>,
}

impl_has_work! {
    impl HasWork<Self> for Endpoint { self.work }
}

impl Endpoint {
    /// The group that it is in.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    fn take(&self) -> Option<Todo> {
        self.inbox.lock().take()
    }

    fn schedule(this: ArcBorrow<'_, Self>) {
        let this: Arc<Self> = this.into();
        // If it is queued already it will see what was put in.
        let _ = work::queue().enqueue(this);
    }

    /// Something failed, while serving the peer or on an operation of ours.
    #[inline(always)]
    pub(crate) fn fail(this: ArcBorrow<'_, Self>, why: Option<u32>, serving: bool) {
        if let Some(err) = why {
            Self::failed(this, err, serving);
        }
    }

    #[cold]
    fn failed(this: ArcBorrow<'_, Self>, err: u32, serving: bool) {
        this.inbox.lock().fail(err, serving);
        Self::schedule(this);
    }

    /// As [`Endpoint::fail`], and when this returns there is no queue pair any more. Does not wait
    /// for the sink.
    pub(crate) fn fail_now(this: &Arc<Self>, err: u32) {
        this.inbox.lock().fail(err, false);
        {
            let mut ctl = this.ctl.lock();
            if let Some(id) = &ctl.id {
                id.disconnect();
            }
            this.destroy(&mut ctl);
        }
        Self::schedule(this.as_arc_borrow());
    }

    /// What this side wants of a connection.
    fn param(&self, ctl: &Ctl) -> Result<ConnParam> {
        let (initiator, responder) = self.device.ib().max_rd_atom();
        let mut param = ConnParam {
            responder_resources: responder,
            initiator_depth: initiator,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY,
            qp_num: ctl.qp.as_ref().ok_or(EINVAL)?.number(),
        };
        if let Some(offered) = &ctl.offered {
            param.responder_resources = responder.min(offered.responder_resources);
            param.initiator_depth = initiator.min(offered.initiator_depth);
        }
        Ok(param)
    }

    /// Takes nothing more for a connection, and reports no failure that follows.
    fn quiet(&self) {
        // That is no failure to report.
        self.inbox.lock().expect_failures();
        self.path.stop();
    }

    /// Lets nothing more happen on a connection. What is on its way gets flushed.
    fn halt(&self, ctl: &Ctl) {
        self.quiet();
        if let Some(qp) = &ctl.qp {
            qp.fail();
        }
    }

    /// Ends what there is of a connection, with a positive errno or 0.
    fn down(&self, ctl: &mut Ctl, err: u32, prov_errno: u32) -> Option<Call> {
        self.halt(ctl);
        let call = self.down_lingering(ctl, err, prov_errno);
        if let Some(id) = &ctl.id {
            id.disconnect();
        }
        self.destroy_unflushed(ctl);
        call
    }

    /// Has a queue pair go at once by whose flush not everything completes.
    fn destroy_unflushed(&self, ctl: &mut Ctl) {
        if self.path.is_torn() || ctl.qp.as_ref().is_some_and(QueuePair::is_broken) {
            self.destroy(ctl);
        }
    }

    /// The same, but leaves it to the device to fail the queue pair and to the peer to disconnect.
    ///
    /// For what failed while serving the peer: it is to learn of that from its operation. The
    /// device tells us before it answers (rxe_resp.c), and sends no answer from a queue pair that
    /// we failed meanwhile; our disconnecting could overtake the answer. What is still there some
    /// ticks later is ended then.
    fn down_lingering(&self, ctl: &mut Ctl, err: u32, prov_errno: u32) -> Option<Call> {
        self.quiet();
        let call = match ctl.phase {
            Phase::Connecting => {
                let err = if err == 0 { bindings::ECONNRESET } else { err };
                Some(Call::ConnError(err, prov_errno, false))
            }
            Phase::Connected => Some(Call::Shutdown(err)),
            _ => None,
        };
        if ctl.phase != Phase::Closed {
            ctl.phase = Phase::Down;
        }
        call
    }

    /// Destroys what the RDMA core has of it.
    fn destroy(&self, ctl: &mut Ctl) {
        self.path.stop();
        let qp = ctl.qp.take();
        let id = ctl.id.take();
        // Waits until everything posted has completed, or the device has had its time for it. The
        // queue pair goes first: its event handler is about the identifier.
        drop(qp);
        drop(id);
        self.path.sweep();
    }

    fn event(&self, ctl: &mut Ctl, kind: CmEventKind, status: i32) -> Option<Call> {
        use CmEventKind::*;
        if ctl.phase == Phase::Closed {
            return None;
        }
        let connecting = ctl.phase == Phase::Connecting;
        match kind {
            AddrResolved if connecting => self.step(ctl, Self::addr_resolved),
            RouteResolved if connecting => self.step(ctl, Self::route_resolved),
            Response if connecting => self.step(ctl, Self::responded).or_else(|| self.up(ctl)),
            Established if connecting && ctl.shake.as_ref().is_none_or(Shake::is_done) => {
                self.up(ctl)
            }
            // It was given up meanwhile; the peer would wait for it, or take it for connected.
            Response if ctl.phase == Phase::Down => {
                if let Some(id) = &ctl.id {
                    let _ = id.reject(&[]);
                }
                None
            }
            Established if ctl.phase == Phase::Down => {
                if let Some(id) = &ctl.id {
                    id.disconnect();
                }
                None
            }
            Unresolved => {
                let err = match errno::of_cm(status, bindings::EHOSTUNREACH) {
                    // No device leads there; ours is well.
                    bindings::ENODEV => bindings::EHOSTUNREACH,
                    other => other,
                };
                self.down(ctl, err, status.unsigned_abs())
            }
            Unreachable => {
                let err = errno::of_cm(status, bindings::ETIMEDOUT);
                self.down(ctl, err, status.unsigned_abs())
            }
            ConnectError => {
                let err = errno::of_cm(status, bindings::ECONNABORTED);
                self.down(ctl, err, status.unsigned_abs())
            }
            Rejected if status == REJ_CONSUMER && ctl.shake.is_none() && !self.is_plain() => {
                self.down(ctl, errno::number(ekeyrejected()), 0)
            }
            Rejected => {
                let call = self.down(ctl, bindings::ECONNREFUSED, status.unsigned_abs());
                match call {
                    // Only a refusal by the application has its data.
                    Some(Call::ConnError(err, prov, _)) => {
                        Some(Call::ConnError(err, prov, status == REJ_CONSUMER))
                    }
                    other => other,
                }
            }
            Disconnected if connecting && Self::is_accepted(ctl) => {
                // The peer was connected, or it could not disconnect: its goodbye was faster than its
                // "ready to use".
                self.inbox.lock().put_bare(kind, status);
                self.up(ctl)
            }
            Disconnected | TimewaitExit => {
                // The peer may disconnect because of what failed here, and be faster than the news of it.
                let failed =
                    |qp: &QueuePair<Self>| ctl.phase == Phase::Connected && qp.has_failed();
                let err = match ctl.qp.as_ref().is_some_and(failed) {
                    true => bindings::ECONNABORTED,
                    false => 0,
                };
                self.down(ctl, err, 0)
            }
            AddrChange => self.down(ctl, bindings::EHOSTUNREACH, 0),
            DeviceRemoval => {
                let call = self.down(ctl, bindings::ENODEV, 0);
                self.destroy(ctl);
                call
            }
            _ => None,
        }
    }

    /// Whether the peer's request was accepted, and nobody here has ended that.
    fn is_accepted(ctl: &Ctl) -> bool {
        ctl.offered.is_some() && ctl.qp.as_ref().is_some_and(|qp| !qp.is_ended())
    }

    /// Whether what the peer said last says nothing about auth keys.
    fn is_plain(&self) -> bool {
        let (message, len) = self.inbox.lock().message();
        shake::is_plain(&message[..len])
    }

    /// The peer refused a request of one that connects with an auth key, which may be to make it prove
    /// that it has it.
    fn refused(this: &Arc<Self>, ctl: &mut Ctl) -> Option<Call> {
        let (message, len) = this.inbox.lock().message();
        let refused = match &mut ctl.shake {
            Some(shake) => shake.refused(&message[..len]),
            None => Ok(ShakeRefused::Plainly),
        };
        let err = match refused {
            Ok(ShakeRefused::Again) => match Self::ask(this, ctl) {
                Ok(()) => return None,
                Err(e) => errno::number(e),
            },
            Ok(ShakeRefused::ByApplication) => {
                let call = this.down(ctl, bindings::ECONNREFUSED, REJ_CONSUMER.unsigned_abs());
                return match call {
                    Some(Call::ConnError(err, prov, _)) => Some(Call::ConnError(err, prov, true)),
                    other => other,
                };
            }
            Ok(ShakeRefused::Plainly) => bindings::ECONNREFUSED,
            Err(e) => errno::number(e),
        };
        this.down(ctl, err, REJ_CONSUMER.unsigned_abs())
    }

    /// Starts to ask the peer, with a new identifier: one that was refused can do nothing more.
    fn ask(this: &Arc<Self>, ctl: &mut Ctl) -> Result {
        // Nothing comes of it after this.
        drop(ctl.id.take());
        this.inbox.lock().forget_events();
        let id = CmId::new(&this.net, this.clone())?;
        id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER)?;
        id.resolve_addr(&ctl.local, &ctl.peer, RESOLVE_MS)?;
        ctl.id = Some(id);
        Ok(())
    }

    /// Takes a step of connecting, or fails for why it cannot be taken.
    fn step(&self, ctl: &mut Ctl, go: fn(&Self, &mut Ctl) -> Result) -> Option<Call> {
        let e = go(self, ctl).err()?;
        self.down(ctl, errno::number(e), 0)
    }

    fn addr_resolved(&self, ctl: &mut Ctl) -> Result {
        let id = ctl.id.as_ref().ok_or(EINVAL)?;
        // The routes may know better than the caller which device it is, but only this one has
        // the caller's memory.
        if !id.is_on(self.device.ib()) {
            // CAST: An errno is a small number.
            return Err(Error::from_errno(-(bindings::EHOSTUNREACH as i32)));
        }
        id.resolve_route(RESOLVE_MS)
    }

    fn route_resolved(&self, ctl: &mut Ctl) -> Result {
        let param = self.param(ctl)?;
        let id = ctl.id.as_ref().ok_or(EINVAL)?;
        if let Some(shake) = &mut ctl.shake {
            let ends = shake::ends(&id.local_addr(), &id.peer_addr());
            ctl.message_len = shake.request(ends, param.qp_num, &mut ctl.message)?;
        }
        id.connect(&param, &ctl.message[..ctl.message_len])
    }

    fn responded(&self, ctl: &mut Ctl) -> Result {
        let id = ctl.id.as_ref().ok_or(EINVAL)?;
        let qp = ctl.qp.as_ref().ok_or(EINVAL)?;
        let ((message, len), peer_qp) = {
            let inbox = self.inbox.lock();
            (inbox.message(), inbox.peer_qp())
        };
        let proven = match &mut ctl.shake {
            Some(shake) => shake.accepted(&message[..len], peer_qp),
            None if shake::is_plain(&message[..len]) => Ok(()),
            None => Err(ekeyrejected()),
        };
        if let Err(e) = proven {
            let _ = id.reject(&shake::UNPROVEN);
            return Err(e);
        }
        qp.connect(id, RETRY_COUNT, RNR_RETRY)
            .and_then(|()| id.establish())
            .inspect_err(|_| {
                // The peer has accepted. Its connection manager goes on reminding ours, which asks
                // for more time until it is told this.
                let _ = id.reject(&[]);
            })
    }

    fn up(&self, ctl: &mut Ctl) -> Option<Call> {
        if ctl.phase != Phase::Connecting {
            return None;
        }
        if let Some(id) = &ctl.id {
            ctl.local = id.local_addr();
            ctl.peer = id.peer_addr();
        }
        ctl.phase = Phase::Connected;
        self.path.open();
        Some(Call::Connected)
    }

    fn act(this: &Arc<Self>, todo: Todo) -> (Option<Call>, Option<Arc<dyn EndpointSink>>) {
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        let connects = ctl.phase == Phase::Connecting && ctl.shake.is_some();
        let call = match todo {
            Todo::Event(CmEventKind::Rejected, REJ_CONSUMER) if connects => {
                Self::refused(this, ctl)
            }
            Todo::Event(kind, status) => this.event(ctl, kind, status),
            Todo::Failed(..) if ctl.phase == Phase::Closed => None,
            Todo::Failed(err, false) => this.down(ctl, err, 0),
            Todo::Failed(err, true) => {
                // The next tick may come at once; the one after leaves the peer a whole one.
                this.lingering.store(2, Ordering::Release);
                this.down_lingering(ctl, err, 0)
            }
            Todo::Lingered => {
                this.halt(ctl);
                if let Some(id) = &ctl.id {
                    id.disconnect();
                }
                this.destroy_unflushed(ctl);
                None
            }
            Todo::Late if ctl.phase == Phase::Connecting => {
                let call = this.down(ctl, bindings::ETIMEDOUT, 0);
                // That tells the peer, and ends the reminding.
                this.destroy(ctl);
                call
            }
            Todo::Late => None,
            Todo::NotifyEstablished => {
                if let (Phase::Connecting, Some(id)) = (ctl.phase, &ctl.id) {
                    id.notify_established();
                }
                None
            }
        };
        let sink = call.as_ref().and_then(|_| ctl.sink.clone());
        (call, sink)
    }

    /// Makes one in `group`.
    pub(crate) fn new(
        group: &Arc<Group>,
        net: &Net,
        size: QpSize,
        local: SockAddr,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<Self>> {
        let path = Path::new(size, group.device().ib().clone())?;
        Arc::pin_init(
            pin_init!(Self {
                device: group.device().clone(),
                group: group.clone(),
                net: net.clone(),
                ctl <- new_mutex!(Ctl {
                    phase: Phase::New,
                    qp: None,
                    id: None,
                    offered: None,
                    message: [0; wire::REQUEST_MAX],
                    message_len: 0,
                    shake: None,
                    proven: None,
                    sink: Some(sink),
                    local,
                    peer: SockAddr::default(),
                }, "kverbs_endpoint"),
                path <- path,
                inbox <- new_irqlock!(Inbox::new(), "kverbs_inbox"),
                work <- new_work!("kverbs_endpoint"),
                worker: AtomicUsize::new(0),
                lingering: AtomicU32::new(0),
                connecting: AtomicU32::new(0),
                closing <- new_mutex!((), "kverbs_closing"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Makes it the accepting side of a request, whose identifier it takes over.
    pub(crate) fn take_over(
        this: &Arc<Self>,
        id: CmId<request::Inner>,
        param: ConnParam,
        proven: Option<Proven>,
    ) {
        let mut ctl = this.ctl.lock();
        ctl.proven = proven;
        // Both timers are only wishes; a failure leaves the connection manager's own.
        let _ = id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER);
        ctl.local = id.local_addr();
        ctl.peer = id.peer_addr();
        ctl.offered = Some(param);
        ctl.id = Some(id.hand_over(this.clone()));
    }

    /// Looks after it, every tick.
    pub(crate) fn tick(this: &Arc<Self>) {
        Self::fail(this.as_arc_borrow(), this.path.tick(), false);
        let over = |ticks: &AtomicU32| {
            let down = |n: u32| n.checked_sub(1);
            ticks.fetch_update(Ordering::AcqRel, Ordering::Acquire, down) == Ok(1)
        };
        if over(&this.lingering) {
            this.inbox.lock().lingered();
            Self::schedule(this.as_arc_borrow());
        }
        if over(&this.connecting) {
            this.inbox.lock().late();
            Self::schedule(this.as_arc_borrow());
        }
    }

    /// Its own address, as far as known.
    pub(crate) fn local_addr(&self) -> SockAddr {
        let ctl = self.ctl.lock();
        ctl.id.as_ref().map_or(ctl.local, CmId::local_addr)
    }

    /// Its peer's address, as far as known.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        self.ctl.lock().peer
    }

    /// [`EndpointOps::post`](kfabric::provider::EndpointOps::post).
    pub(crate) fn post(
        this: ArcBorrow<'_, Self>,
        op: &OpDesc<'_>,
        token: OpToken,
    ) -> Result<(), Refused> {
        this.path.post(this, op, token)
    }

    /// Posts what it has held for long enough.
    pub(crate) fn resume(this: ArcBorrow<'_, Self>) {
        this.path.resume(this);
    }

    /// What the accepting side is told when there is nothing to accept any more: its peer did not
    /// wait, or the device has failed it.
    fn given_up() -> Error {
        // CAST: An errno is a small number.
        Error::from_errno(-(bindings::ECONNABORTED as i32))
    }

    /// [`EndpointOps::enable`](kfabric::provider::EndpointOps::enable).
    pub(crate) fn enable(this: &Arc<Self>) -> Result {
        let live = this.device.enter()?;
        let mut ctl = this.ctl.lock();
        match ctl.phase {
            Phase::New => {}
            Phase::Down => return Err(Self::given_up()),
            _ => return Err(EINVAL),
        }
        let port = match &ctl.id {
            Some(id) => id.port(),
            None => this.device.ports().next().ok_or(ENODEV)?,
        };
        let size = this.path.size();
        let inject = DmaBuf::new(&live, this.device.ib(), size.tx as usize * INJECT_SIZE)?;
        let qp = QueuePair::new(&live, &this.group.pd()?, this, size, port)?;
        this.path.install(&qp, inject);
        ctl.qp = Some(qp);
        ctl.phase = Phase::Enabled;
        Ok(())
    }

    /// [`EndpointOps::connect`](kfabric::provider::EndpointOps::connect).
    pub(crate) fn connect(this: &Arc<Self>, addr: &SockAddr, data: &[u8]) -> Result {
        let _live = this.device.enter()?;
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        if ctl.phase != Phase::Enabled || ctl.id.is_some() {
            return Err(EINVAL);
        }
        match this.group.proof() {
            Some(proof) => ctl.shake = Some(Shake::new(proof, data)?),
            None => {
                ctl.message_len = wire::encode(data, &mut ctl.message).map_err(|_| EINVAL)?;
            }
        }
        let id = CmId::new(&this.net, this.clone())?;
        id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER)?;
        id.resolve_addr(&ctl.local, addr, RESOLVE_MS)?;
        ctl.peer = *addr;
        ctl.id = Some(id);
        // Its events wait for the lock.
        ctl.phase = Phase::Connecting;
        this.connecting.store(CONNECT_TICKS, Ordering::Release);
        Ok(())
    }

    /// [`EndpointOps::accept`](kfabric::provider::EndpointOps::accept).
    ///
    /// # Errors
    ///
    /// `ECONNABORTED`: it is too late, and the peer hears of a refusal. `EINVAL`: not an accepting
    /// endpoint, or not in its turn. After anything else it may be tried again.
    pub(crate) fn accept(&self, data: &[u8]) -> Result {
        let _live = self.device.enter()?;
        let mut message = [0; wire::REPLY_MAX];
        let mut guard = self.ctl.lock();
        let ctl = &mut *guard;
        if ctl.offered.is_none() {
            return Err(EINVAL);
        }
        match ctl.phase {
            Phase::Enabled => {}
            Phase::Down => return Err(Self::given_up()),
            _ => return Err(EINVAL),
        }
        let param = self.param(ctl)?;
        let (Some(id), Some(qp)) = (&ctl.id, &ctl.qp) else {
            return Err(EINVAL);
        };
        let len = match &ctl.proven {
            Some(proven) => proven.reply(param.qp_num, data, &mut message)?,
            None => wire::encode(data, &mut message).map_err(|_| EINVAL)?,
        };
        if let Err(e) = qp.connect(id, RETRY_COUNT, RNR_RETRY) {
            if qp.is_broken() {
                self.down(ctl, 0, 0);
                return Err(Self::given_up());
            }
            if e == EINVAL {
                // A peer that gave up, which we have not been told yet, or that asks for what makes
                // no sense.
                let _ = id.reject(&[]);
                return Err(Self::given_up());
            }
            return Err(e);
        }
        id.accept(&param, &message[..len])
            .map_err(|_| Self::given_up())?;
        self.connecting.store(CONNECT_TICKS, Ordering::Release);
        ctl.phase = Phase::Connecting;
        Ok(())
    }

    /// [`EndpointOps::shutdown`](kfabric::provider::EndpointOps::shutdown).
    pub(crate) fn shutdown(this: &Arc<Self>) -> Result {
        let mut guard = this.ctl.lock();
        #[cfg(kfabric_seed_bug = "lock-order")]
        let _closing = this.closing.lock();
        let ctl = &mut *guard;
        match ctl.phase {
            // The end comes as an event, also from a peer that does not answer.
            Phase::Connecting | Phase::Connected => {
                this.halt(ctl);
                if let Some(id) = &ctl.id {
                    id.disconnect();
                }
                // A connection that ends at our wish ends now, whatever the peer does.
                this.inbox.lock().put_bare(CmEventKind::Disconnected, 0);
                Self::schedule(this.as_arc_borrow());
                Ok(())
            }
            _ => Err(enotconn()),
        }
    }

    /// [`EndpointOps::close`](kfabric::provider::EndpointOps::close).
    pub(crate) fn close(this: &Arc<Self>) {
        let _closing = this.closing.lock();
        let sink = {
            let mut guard = this.ctl.lock();
            let ctl = &mut *guard;
            if ctl.phase == Phase::Closed {
                return;
            }
            ctl.phase = Phase::Closed;
            this.halt(ctl);
            if let Some(id) = &ctl.id {
                id.disconnect();
            }
            this.destroy(ctl);
            ctl.sink.take()
        };
        // A call of the sink that was under way is over then.
        if this.worker.load(Ordering::Acquire) != work::current() {
            work::flush(this);
        }
        drop(sink);
    }
}

impl WorkItem for Endpoint {
    type Pointer = Arc<Endpoint>;

    fn run(this: Arc<Endpoint>) {
        this.worker.store(work::current(), Ordering::Release);
        while let Some(todo) = this.take() {
            if let Todo::Event(kind @ CmEventKind::Disconnected, status) = todo {
                this.path.await_answers();
                // What they say goes before what the peer did for it.
                if this.inbox.lock().put_behind_failure(kind, status) {
                    continue;
                }
            }
            let (Some(call), Some(sink)) = Self::act(&this, todo) else {
                continue;
            };
            match call {
                Call::Connected => {
                    let (message, len) = this.inbox.lock().message();
                    sink.connected(shake::data(&message[..len]));
                }
                Call::ConnError(err, prov_errno, with_data) => {
                    let (message, len) = this.inbox.lock().message();
                    let len = if with_data { len } else { 0 };
                    sink.conn_error(err, prov_errno, shake::data(&message[..len]));
                }
                Call::Shutdown(err) => sink.shutdown(err),
            }
        }
        this.worker.store(0, Ordering::Release);
    }
}

impl CmHandler for Endpoint {
    fn event(this: ArcBorrow<'_, Self>, event: CmEvent<'_>) {
        this.inbox.lock().put(&event);
        Self::schedule(this);
    }
}

impl Completions for Endpoint {
    fn sent(this: ArcBorrow<'_, Self>, slot: u32, last: bool, wc: &Wc) {
        // Before nothing waits for it any more, so that a goodbye that does finds it.
        if let Some(err) = Path::fatal(wc.status) {
            this.inbox.lock().fail(err, false);
        }
        let why = this.path.sent(slot, last, wc);
        Self::fail(this, why, false);
    }

    fn received(this: ArcBorrow<'_, Self>, slot: u32, wc: &Wc) {
        let why = this.path.received(slot, wc);
        Self::fail(this, why, true);
    }

    fn probed(this: ArcBorrow<'_, Self>, wc: &Wc) {
        let why = this.path.probed(wc);
        Self::fail(this, why, false);
    }

    fn qp_event(this: ArcBorrow<'_, Self>, event: QpEvent) {
        match event {
            QpEvent::Established => {
                this.inbox.lock().established();
                Self::schedule(this);
            }
            failure => Self::fail(this, Some(errno::of_event(failure)), true),
        }
    }
}
