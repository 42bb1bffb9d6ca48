// SPDX-License-Identifier: GPL-2.0
//! Connections: the queue pair of an endpoint, and its connection to a peer.
//!
//! Handlers of the connection manager and of completions only put events into the inbox and queue
//! the work item. The work item ([`events`](super::events)) handles the events in process context,
//! under the control lock, and calls the sink without any lock. A task that destroys the queue pair
//! or the identifier holds the control lock.

use core::sync::atomic::{
    AtomicU32,
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

use super::{
    completer::Completer,
    handshake::{
        Handshake,
        Proven, //
    },
    inbox::Inbox,
    request, //
};
use crate::{
    channel::{
        self,
        channels::{
            Channels,
            Identity, //
        },
        index::Index,
        user::{
            User,
            Users, //
        }, //
    },
    data::{
        self,
        level,
        DataPath,
        Owner,
        Refused, //
    },
    device::Device,
    errno,
    ib::{
        cm::{
            CmEventKind,
            CmId,
            ConnParam, //
        },
        dma::DmaBuf,
        memcg::MemCgroup,
        qp::{
            Completions,
            Handling,
            QpEvent,
            QpSize,
            QueuePair, //
        },
        work,
        wr::{
            status,
            Wc, //
        }, //
    },
    key::{
        deferred::Deferring,
        group::Group, //
    },
    limits::{
        ACK_TIMEOUT,
        INJECT_SIZE,
        MIN_RNR_TIMER, //
    }, //
};
use kfabric::{
    base::errno::enotconn,
    ep::OpToken,
    new_irqlock,
    op::OpDesc,
    provider::{
        helpers::{
            Ended,
            Phase,
            Worker, //
        },
        EndpointSink, //
    },
    pure::{
        commit::{
            Ends,
            Range,
            RANGES_MAX, //
        },
        wire::{
            self,
            Secret, //
        }, //
    },
    sys::{
        net::Net,
        IrqLock, //
    },
    uapi::SockAddr, //
};

/// The fields that the control lock protects.
pub(super) struct Ctl {
    pub(super) phase: Phase,
    pub(super) qp: Option<QueuePair<Connection>>,
    pub(super) id: Option<CmId<Connection>>,
    /// The peer's parameters, on the accepting side.
    pub(super) offered: Option<ConnParam>,
    /// This side's secret in the request, or the peer's, on the accepting side.
    pub(super) secret: Option<Secret>,
    /// Framed application data for the connection request.
    pub(super) message: [u8; wire::REQUEST_MAX],
    pub(super) message_len: usize,
    /// State of the auth handshake, on a connecting side with an auth key.
    pub(super) handshake: Option<Handshake>,
    /// The queue pair of the first request of an auth handshake, on iWARP. The peer refuses that
    /// request, and the driver fails the queue pair of a refused one.
    pub(super) hello_qp: Option<QueuePair<Connection>>,
    /// The peer's proof of its auth key, on an accepting side with an auth key.
    pub(super) proven: Option<Proven>,
    /// The peer of an accepted iWARP request has ended the connection before its greeting was seen.
    pub(super) over: bool,
    pub(super) sink: Option<Arc<dyn EndpointSink>>,
    pub(super) local: SockAddr,
    pub(super) peer: SockAddr,
}

/// A call of the sink to make after the control lock is released.
pub(super) enum Call {
    Connected,
    Ended {
        ended: Ended,
        prov_errno: u32,
        /// The consumer gets the data of the peer's refusal.
        with_data: bool,
    },
}

/// An endpoint's queue pair and its connection.
#[pin_data]
pub(crate) struct Connection {
    pub(super) device: Arc<Device>,
    group: Arc<Group>,
    /// The creator's memory cgroup, for channels.
    memcg: MemCgroup,
    pub(super) net: Net,
    #[pin]
    pub(super) ctl: Mutex<Ctl>,
    #[pin]
    pub(super) data: DataPath<Connection>,
    #[pin]
    pub(super) inbox: IrqLock<Inbox>,
    #[pin]
    work: Work<Connection>,
    /// The task that runs the work item.
    pub(super) worker: Worker,
    /// Ticks that the peer has left to disconnect, if the connection is down.
    pub(super) lingering: AtomicU32,
    /// Ticks that the peer has left to complete the connection, while connecting or after an
    /// accept.
    pub(super) connecting: AtomicU32,
    /// Channels for durable writes.
    #[pin]
    channels: Channels<Connection>,
    /// Makes the channel for this side's writes commit.
    #[pin]
    commit_work: Work<Connection, COMMIT>,
    /// Completes the writes whose commits have ended.
    #[pin]
    ended_work: Work<Connection, ENDED>,
    /// Runs `ended_work`.
    #[pin]
    completer: Completer,
    /// Held throughout a close.
    #[pin]
    closing: Mutex<()>,
}

kernel::sync::global_lock! {
    // SAFETY: `Indexed::new` initialises the lock at module load, before any endpoint is created.
    unsafe(uninit) static INDEX: Mutex<Option<Index<Connection>>> = None;
}

kernel::sync::global_lock! {
    // SAFETY: `Indexed::new` initialises the lock at module load, before any endpoint is created.
    unsafe(uninit) static USERS: Mutex<Option<Users<Connection>>> = None;
}

/// Owns the index of connections for channels, and the table of their users. Dropping it frees both.
pub(crate) struct Indexed(());

impl Indexed {
    /// Initialises the index and the table.
    ///
    /// # Safety
    ///
    /// The caller calls this function once, at module load, before any endpoint is created.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller calls `new` once, before any use of the locks.
        unsafe {
            INDEX.init();
            USERS.init();
        }
        Self(())
    }
}

impl Drop for Indexed {
    fn drop(&mut self) {
        let index = INDEX.lock().take();
        drop(index);
        let users = USERS.lock().take();
        drop(users);
    }
}

/// Number of the work item [`Connection::commit_work`].
const COMMIT: u64 = 1;
/// Number of the work item [`Connection::ended_work`].
const ENDED: u64 = 2;

impl_has_work! {
    impl HasWork<Self> for Connection { self.work }
    impl HasWork<Self, COMMIT> for Connection { self.commit_work }
    impl HasWork<Self, ENDED> for Connection { self.ended_work }
}

impl WorkItem<COMMIT> for Connection {
    type Pointer = Arc<Connection>;

    fn run(this: Arc<Connection>) {
        if !this.data.has_commits() {
            return;
        }
        if let Err(e) = this.memcg.charged(|| this.channels.commit(&this)) {
            <Self as channel::Owner>::fail_commits(&this, e);
        }
    }
}

impl WorkItem<ENDED> for Connection {
    type Pointer = Arc<Connection>;

    fn run(this: Arc<Connection>) {
        this.completer.run(|| this.data.complete_ended());
    }
}

impl Connection {
    /// Returns the endpoint's group.
    pub(crate) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// Returns whether the device's protocol is iWARP.
    ///
    /// There the driver connects the queue pair, the connecting side sends the first message (the
    /// greeting), and the end by the peer flushes the queue pair.
    pub(super) fn is_iwarp(&self) -> bool {
        self.device.ib().is_iwarp()
    }

    /// Records both ends of the connection, and its secret or 0, before the peer can open a channel.
    pub(super) fn identify(&self, id: &CmId<Self>, qp: &QueuePair<Self>, secret: u128) {
        let identity = Identity {
            ends: Ends {
                secret,
                ..qp.ends()
            },
            local: id.local_addr(),
            peer: id.peer_addr(),
        };
        self.channels.identify(qp.handler(), identity);
    }

    /// Queues the work item.
    pub(super) fn schedule(this: ArcBorrow<'_, Self>) {
        let this: Arc<Self> = this.into();
        // If the work item is queued already, its run finds the new event.
        let _ = work::queue().enqueue::<_, 0>(this);
    }

    /// Reports a failure, either while serving the peer or of a local operation.
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

    /// Reports a failure like [`Connection::fail`], and destroys the queue pair before it returns.
    /// Does not wait for the sink.
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

    /// Refuses further operations, and ignores the failures that follow.
    fn quiet(&self) {
        // Failures from now on are a consequence of the local stop.
        self.inbox.lock().expect_failures();
        self.data.stop();
    }

    /// Completes the writes whose commits have ended, in a work item.
    fn complete_ended(self: &Arc<Self>) {
        // If the work item is queued already, its run finds the new writes.
        let _ = work::completions().enqueue::<_, ENDED>(self.clone());
    }

    /// Stops all operations of a connection. The device flushes the outstanding ones.
    pub(super) fn halt(&self, ctl: &Ctl) {
        self.quiet();
        if let Some(qp) = &ctl.qp {
            qp.fail();
        }
        self.channels.end();
    }

    /// Ends the connection. `err` is a positive errno, or 0.
    pub(super) fn down(&self, ctl: &mut Ctl, err: u32, prov_errno: u32) -> Option<Call> {
        self.halt(ctl);
        let call = self.down_lingering(ctl, err, prov_errno);
        if let Some(id) = &ctl.id {
            id.disconnect();
        }
        self.destroy_unflushed(ctl);
        call
    }

    /// Destroys a queue pair at once if its flush does not complete all operations.
    pub(super) fn destroy_unflushed(&self, ctl: &mut Ctl) {
        if self.data.is_torn() || ctl.qp.as_ref().is_some_and(QueuePair::is_broken) {
            self.destroy(ctl);
        }
    }

    /// Ends the connection like `down`, but leaves failing the queue pair to the device and
    /// disconnecting to the peer.
    ///
    /// This is for a failure while serving the peer: the peer's operation must complete with the
    /// error. The device reports the failure before it answers (rxe_resp.c). It sends no answer
    /// from a queue pair that the driver failed meanwhile, and a local disconnect could overtake
    /// the answer. If the connection still exists some ticks later, it is ended then.
    pub(super) fn down_lingering(&self, ctl: &mut Ctl, err: u32, prov_errno: u32) -> Option<Call> {
        self.quiet();
        let ended = ctl.phase.end(err)?;
        Some(Call::Ended {
            ended,
            prov_errno,
            with_data: false,
        })
    }

    /// Destroys the queue pair and the identifier.
    pub(super) fn destroy(&self, ctl: &mut Ctl) {
        self.data.stop();
        self.channels.end();
        let qp = (ctl.qp.take(), ctl.hello_qp.take());
        let id = ctl.id.take();
        // Waits until all posted work has completed, or the device has had its time for it. The
        // queue pair is dropped first: its event handler uses the identifier.
        drop(qp);
        drop(id);
        self.data.sweep();
    }

    /// Creates the connection of an endpoint in `group`.
    pub(crate) fn new(
        group: &Arc<Group>,
        net: &Net,
        size: QpSize,
        local: SockAddr,
        sink: Arc<dyn EndpointSink>,
    ) -> Result<Arc<Self>> {
        let ib = group.device().ib();
        let data = DataPath::<Self>::new(size, ib.clone())?;
        let channels = Channels::new(level::can_be_durable(ib))?;
        Arc::pin_init(
            pin_init!(Self {
                device: group.device().clone(),
                group: group.clone(),
                memcg: MemCgroup::of_current(),
                net: net.clone(),
                ctl <- new_mutex!(Ctl {
                    phase: Phase::New,
                    qp: None,
                    id: None,
                    offered: None,
                    secret: None,
                    message: [0; wire::REQUEST_MAX],
                    message_len: 0,
                    handshake: None,
                    hello_qp: None,
                    proven: None,
                    over: false,
                    sink: Some(sink),
                    local,
                    peer: SockAddr::default(),
                }, "kverbs_endpoint"),
                data <- data,
                inbox <- new_irqlock!(Inbox::new(), "kverbs_inbox"),
                work <- new_work!("kverbs_endpoint"),
                worker: Worker::new(),
                lingering: AtomicU32::new(0),
                connecting: AtomicU32::new(0),
                channels <- channels,
                commit_work <- new_work!("kverbs_commit"),
                ended_work <- new_work!("kverbs_durable"),
                completer <- Completer::new(),
                closing <- new_mutex!((), "kverbs_closing"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Makes this the accepting side of a request, and takes the request's identifier.
    pub(crate) fn take_over(
        this: &Arc<Self>,
        id: CmId<request::Inner>,
        param: ConnParam,
        proven: Option<Proven>,
        secret: Option<Secret>,
    ) {
        let mut ctl = this.ctl.lock();
        ctl.proven = proven;
        ctl.secret = secret;
        // Both timers are optional: on failure, the connection manager keeps its defaults.
        let _ = id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER);
        ctl.local = id.local_addr();
        ctl.peer = id.peer_addr();
        ctl.offered = Some(param);
        ctl.id = Some(id.hand_over(this.clone()));
    }

    /// Checks the connection and its timeouts, once per tick.
    pub(crate) fn tick(this: &Arc<Self>) {
        Self::fail(this.as_arc_borrow(), this.data.tick(), false);
        this.channels.tick();
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

    /// Returns the endpoint's own address, as far as known.
    pub(crate) fn local_addr(&self) -> SockAddr {
        let ctl = self.ctl.lock();
        ctl.id.as_ref().map_or(ctl.local, CmId::local_addr)
    }

    /// Returns the peer's address, as far as known.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        self.ctl.lock().peer
    }

    /// Implements [`EndpointOps::post`](kfabric::provider::EndpointOps::post).
    pub(crate) fn post(
        this: ArcBorrow<'_, Self>,
        op: &OpDesc<'_>,
        token: OpToken,
    ) -> Result<(), Refused> {
        this.data.post(this, op, token)
    }

    /// Implements [`EndpointOps::enable`](kfabric::provider::EndpointOps::enable).
    pub(crate) fn enable(this: &Arc<Self>) -> Result {
        let live = this.device.enter()?;
        let mut ctl = this.ctl.lock();
        ctl.phase.check_enable()?;
        let port = match &ctl.id {
            Some(id) => id.port(),
            None => this.device.ports().next().ok_or(ENODEV)?,
        };
        let size = this.data.size();
        let inject = DmaBuf::new(&live, this.device.ib(), size.tx as usize * INJECT_SIZE)?;
        let sink = ctl.sink.as_ref();
        let handling = match sink.is_some_and(|sink| sink.completes_anywhere()) {
            true => Handling::SoftIrq,
            false => Handling::Worker,
        };
        let qp = QueuePair::new(&live, &this.group.pd()?, this, size, port, handling)?;
        if this.is_iwarp() && ctl.offered.is_some() {
            qp.expect_greeting()?;
        }
        this.data.install(&qp, inject);
        ctl.qp = Some(qp);
        ctl.phase = Phase::Enabled;
        Ok(())
    }

    /// Implements [`EndpointOps::shutdown`](kfabric::provider::EndpointOps::shutdown).
    pub(crate) fn shutdown(this: &Arc<Self>) -> Result {
        let mut guard = this.ctl.lock();
        #[cfg(kfabric_seed_bug = "lock-order")]
        let _closing = this.closing.lock();
        let ctl = &mut *guard;
        if !ctl.phase.is_active() {
            return Err(enotconn());
        }
        this.halt(ctl);
        if let Some(id) = &ctl.id {
            id.disconnect();
        }
        // A local shutdown ends the connection now, whether or not the peer answers.
        this.inbox.lock().put_bare(CmEventKind::Disconnected, 0);
        Self::schedule(this.as_arc_borrow());
        Ok(())
    }

    /// Implements [`EndpointOps::close`](kfabric::provider::EndpointOps::close).
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
        // After the flush, no call of the sink is in progress.
        if !this.worker.is_current() {
            work::flush::<_, 0>(this);
        }
        work::flush::<_, COMMIT>(this);
        this.channels.close();
        // The items above no longer end commits, and no write is left to complete.
        work::cancel::<_, ENDED>(this);
        this.completer.wait();
        drop(sink);
    }
}

impl channel::Owner for Connection {
    fn group(&self) -> &Arc<Group> {
        &self.group
    }

    fn memcg(&self) -> &MemCgroup {
        &self.memcg
    }

    fn net(&self) -> &Net {
        &self.net
    }

    fn channels(&self) -> &Channels<Self> {
        &self.channels
    }

    fn user(&self) -> Option<&Arc<User<Self>>> {
        self.channels.user()
    }

    fn with_users<T>(act: impl FnOnce(&mut Users<Self>) -> T) -> T {
        act(USERS.lock().get_or_insert_with(Users::new))
    }

    fn with_index<T>(act: impl FnOnce(&mut Index<Self>) -> T) -> T {
        act(INDEX.lock().get_or_insert_with(Index::new))
    }

    fn begin_commit(&self, ranges: &mut [Range; RANGES_MAX]) -> Option<(u64, usize)> {
        self.data.begin_commit(ranges)
    }

    fn committed(this: &Arc<Self>, message: &[u8]) -> Result {
        this.data.committed(message)?;
        this.complete_ended();
        Ok(())
    }

    fn fail_commits(this: &Arc<Self>, why: Error) {
        this.data.fail_commits(why);
        this.complete_ended();
    }

    fn commit_again(this: &Arc<Self>) {
        if this.data.has_commits() {
            <Self as Owner>::commit(this.as_arc_borrow());
        }
    }

    fn distrust(this: &Arc<Self>) {
        Self::failed(this.as_arc_borrow(), bindings::EACCES, false);
    }
}

impl Deferring for Connection {
    fn resume(self: ArcBorrow<'_, Self>) {
        self.data.resume(self);
    }
}

impl Owner for Connection {
    fn group(&self) -> &Arc<Group> {
        &self.group
    }

    #[inline(always)]
    fn fail(this: ArcBorrow<'_, Self>, err: u32) {
        Self::failed(this, err, false);
    }

    fn commit(this: ArcBorrow<'_, Self>) {
        if this.channels.commit_open() {
            return;
        }
        let this: Arc<Self> = this.into();
        // If the work item is queued already, its run finds the new write.
        let _ = work::channels().enqueue::<_, COMMIT>(this);
    }
}

impl Completions for Connection {
    fn sent(this: ArcBorrow<'_, Self>, slot: u32, last: bool, wc: &Wc) {
        // Record the failure before the operation completes, so that a disconnect caused by the
        // completion finds it.
        if let Some(err) = data::fatal(wc.status) {
            this.inbox.lock().fail(err, false);
        }
        let why = this.data.sent(this, slot, last, wc);
        Self::fail(this, why, false);
    }

    fn received(this: ArcBorrow<'_, Self>, slot: u32, wc: &Wc) {
        let why = this.data.received(slot, wc);
        Self::fail(this, why, true);
    }

    fn greeted(this: ArcBorrow<'_, Self>, wc: &Wc) {
        this.inbox.lock().greeted(wc.status == status::SUCCESS);
        Self::schedule(this);
    }

    fn probed(this: ArcBorrow<'_, Self>, wc: &Wc) {
        let why = this.data.probed(wc);
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
