// SPDX-License-Identifier: GPL-2.0
//! A channel: its queue pair and its connection.
//!
//! As for endpoints, handlers only put events into the inbox and queue a work item:
//!
//! | work item | does |
//! |---|---|
//! | events | creates the channel's objects, and ends the channel; may wait for memory |
//! | its user's ([`User`]) | sends and serves COMMITs; allocates nothing |

use core::{
    mem,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
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
    channels::Identity,
    serve::{
        Left,
        Serving, //
    },
    user::User,
    Owner,
    PORT,
    SENDS,
    SIZE, //
};
use crate::{
    conn::inbox::{
        Inbox,
        Todo, //
    },
    data, errno,
    ib::{
        cm::{
            CmEvent,
            CmEventKind,
            CmHandler,
            CmId,
            ConnParam,
            REJ_NO_LISTENER, //
        },
        device::Live,
        dma::DmaBuf,
        qp::{
            Completions,
            Handling,
            QpEvent,
            QueuePair, //
        },
        sockaddr,
        work,
        wr::{
            Opcode,
            SendWr,
            Sge,
            Wc, //
        }, //
    },
    limits::{
        ACK_TIMEOUT,
        ANSWER_TICKS,
        CONNECT_TICKS,
        MIN_RNR_TIMER,
        RESOLVE_MS,
        RETRY_COUNT,
        RNR_RETRY, //
    },
};
use kfabric::{
    base::errno::{
        econnaborted,
        enotconn,
        eopnotsupp, //
    },
    new_irqlock,
    pure::{
        commit::{
            is_refusal,
            write_request,
            Ends,
            Hello,
            Range,
            ANSWER_MAX,
            RANGES_MAX,
            REQUEST_MAX, //
        },
        proof::Mac,
        turns::{
            Place,
            Turn, //
        }, //
    },
    sys::IrqLock, //
};

/// Offset of the received message in a channel's buffer. The message to send is in front.
const RECEIVED: usize = 1024;
/// Size of a channel's buffer in bytes.
const BUFFER: usize = 2 * RECEIVED;
const _: () = assert!(REQUEST_MAX <= RECEIVED && ANSWER_MAX <= RECEIVED);

/// The side of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Sends COMMITs for the writes of the connection.
    Initiator,
    /// Answers them.
    Target,
}

/// The fields that the control lock protects.
struct Ctl<H: Owner> {
    id: Option<CmId<Channel<H>>>,
    qp: Option<QueuePair<Channel<H>>>,
    buf: Option<DmaBuf>,
    /// Number of sent messages.
    sends: u32,
    /// The local key for the buffer.
    lkey: u32,
    /// Why the channel has ended, if it has.
    ended: Option<Error>,
    /// The work item has handled the end.
    failed: bool,
}

/// Events of the queue pair, and of the identifier.
struct Events {
    events: Inbox,
    /// Length of the received message.
    received: Option<u32>,
    /// A message with a send completion is on the device.
    sending: bool,
    /// A turn waits for the send completion.
    stalled: bool,
    /// Ticks that the peer has left to open the channel or to answer; 0: none runs.
    patience: u32,
    /// Ticks that the initiator's device has left for the send completion; 0: none runs. A peer without
    /// a receive keeps the message there, whether it answers or not.
    drain: u32,
}

impl Events {
    /// Stops the peer's time.
    fn in_time(&mut self) {
        self.patience = 0;
        self.events.in_time();
    }
}

/// A channel.
#[pin_data]
pub(crate) struct Channel<H: Owner> {
    pub(super) conn: Arc<H>,
    side: Side,
    ends: Ends,
    #[pin]
    ctl: Mutex<Ctl<H>>,
    #[pin]
    inbox: IrqLock<Events>,
    /// The user that has created the endpoint.
    user: Arc<User<H>>,
    /// The place in the user's queue.
    place: Place,
    /// The COMMIT of the peer. Locked during a turn.
    #[pin]
    serving: Mutex<Serving>,
    #[pin]
    work: Work<Channel<H>>,
    /// True while the channel is open, so that turns have something to do. Written under the control
    /// lock, whose owner waits at most for the device from then on.
    ready: AtomicBool,
    /// True if the channel is ending: the target stops writing back.
    pub(super) stopping: AtomicBool,
}

impl_has_work! {
    impl{H: Owner} HasWork<Self> for Channel<H> { self.work }
}

impl<H: Owner> Channel<H> {
    fn new(conn: &Arc<H>, side: Side, ends: &Ends) -> Result<Arc<Self>> {
        let user = conn.user().ok_or_else(eopnotsupp)?.clone();
        Arc::pin_init(
            pin_init!(Self {
                conn: conn.clone(),
                side,
                ends: *ends,
                ctl <- new_mutex!(Ctl {
                    id: None,
                    qp: None,
                    buf: None,
                    sends: 0,
                    lkey: 0,
                    ended: None,
                    failed: false,
                }, "kverbs_channel"),
                inbox <- new_irqlock!(Events {
                    events: Inbox::new(),
                    received: None,
                    sending: false,
                    stalled: false,
                    patience: CONNECT_TICKS,
                    drain: 0,
                }, "kverbs_channel_inbox"),
                user,
                place: Place::new(),
                serving <- new_mutex!(Serving::new(), "kverbs_channel_serving"),
                work <- new_work!("kverbs_channel"),
                ready: AtomicBool::new(false),
                stopping: AtomicBool::new(false),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// Begins to open the channel for the writes of `conn`.
    pub(super) fn open(conn: &Arc<H>, identity: &Identity) -> Result<Arc<Self>> {
        let _live = conn.group().device().enter()?;
        let this = Self::new(conn, Side::Initiator, &identity.ends)?;
        let id = CmId::new(conn.net(), this.clone())?;
        id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER)?;
        let from = sockaddr::with_port(&identity.local, 0);
        let to = sockaddr::with_port(&identity.peer, PORT);
        let mut ctl = this.ctl.lock();
        id.resolve_addr(&from, &to, RESOLVE_MS)?;
        // Events of the identifier wait for the control lock.
        ctl.id = Some(id);
        drop(ctl);
        Ok(this)
    }

    /// Accepts the channel of a request with the parameters `param`, whose identifier is `id`.
    pub(super) fn accept<C: CmHandler>(
        conn: &Arc<H>,
        id: CmId<C>,
        param: ConnParam,
        ends: &Ends,
    ) -> Result<Arc<Self>> {
        let live = conn.group().device().enter()?;
        let this = Self::new(conn, Side::Target, ends)?;
        let mut guard = this.ctl.lock();
        let ctl = &mut *guard;
        // Both timers are optional.
        let _ = id.set_timers(ACK_TIMEOUT, MIN_RNR_TIMER);
        let id = id.hand_over(this.clone());
        let accepted = this.prepare(&live, ctl, id.port()).and_then(|mut own| {
            let qp = ctl.qp.as_ref().ok_or(EINVAL)?;
            own.responder_resources = own.responder_resources.min(param.responder_resources);
            own.initiator_depth = own.initiator_depth.min(param.initiator_depth);
            qp.connect(&id, RETRY_COUNT, RNR_RETRY)?;
            let welcome = Hello::welcome(ends, own.qp_num, |text| this.mac(text));
            id.accept(&own, &welcome.write())
        });
        ctl.id = Some(id);
        this.ready.store(accepted.is_ok(), Ordering::Release);
        drop(guard);
        if let Err(e) = accepted {
            this.end();
            return Err(e);
        }
        // A COMMIT may have arrived before the channel was ready.
        Self::schedule(this.as_arc_borrow());
        Ok(this)
    }

    /// Returns the MAC of a text under the connection's auth key.
    fn mac(&self, text: &[u8]) -> Mac {
        match self.conn.group().proof() {
            Some(proof) => proof.prove(text),
            None => Mac::default(),
        }
    }

    /// Creates the buffer, and the queue pair in a protection domain without keys, and posts the
    /// receive. Returns the parameters for the connection.
    fn prepare(
        self: &Arc<Self>,
        live: &Live<'_>,
        ctl: &mut Ctl<H>,
        port: u32,
    ) -> Result<ConnParam> {
        let group = self.conn.group();
        let buf = DmaBuf::new(live, group.device().ib(), BUFFER)?;
        let pd = Arc::new(group.pd()?.beside(live)?, GFP_KERNEL_ACCOUNT)?;
        let qp = QueuePair::new(live, &pd, self, SIZE, port, Handling::Worker)?;
        let param = ConnParam {
            // No side reads.
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: RETRY_COUNT,
            rnr_retry_count: RNR_RETRY,
            qp_num: qp.number(),
        };
        ctl.lkey = pd.local_dma_lkey();
        Self::post_receive(&qp, &buf, ctl.lkey)?;
        ctl.qp = Some(qp);
        ctl.buf = Some(buf);
        Ok(param)
    }

    fn post_receive(qp: &QueuePair<Self>, buf: &DmaBuf, lkey: u32) -> Result {
        // CAST: A constant.
        let sge = Sge::new(buf.addr_of(RECEIVED), RECEIVED as u32, lkey);
        qp.post_recv(0, &[sge])
    }

    /// Queues the work item of events.
    fn schedule_events(this: ArcBorrow<'_, Self>) {
        let this: Arc<Self> = this.into();
        // If the work item is queued already, its run finds the new event.
        let _ = work::channels().enqueue::<_, 0>(this);
    }

    /// Asks for a turn.
    pub(super) fn schedule(this: ArcBorrow<'_, Self>) {
        let this: Arc<Self> = this.into();
        let user = this.user.clone();
        user.ask(this);
    }

    /// Returns the place in the user's queue.
    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Waits until the ended channel has no work item of events. A turn may queue it.
    pub(super) fn flush(self: &Arc<Self>) {
        work::flush::<_, 0>(self);
    }

    /// Counts a tick of the peer's and of the device's time.
    pub(super) fn tick(this: &Arc<Self>) {
        {
            let mut inbox = this.inbox.lock();
            // An answer may take the event back, but does not end the wait for the send completion. So the
            // last tick of that wait comes again.
            let late = inbox.patience == 1 || inbox.drain == 1;
            inbox.patience = inbox.patience.saturating_sub(1);
            inbox.drain = inbox
                .drain
                .saturating_sub(1)
                .max(u32::from(inbox.drain == 1));
            if !late {
                return;
            }
            inbox.events.late();
        }
        Self::schedule_events(this.as_arc_borrow());
    }

    /// Ends the channel with its connection.
    pub(super) fn end(&self) {
        self.end_with(econnaborted());
    }

    /// Ends the channel: destroys its queue pair and its identifier. Idempotent.
    ///
    /// Context: process; may sleep.
    fn end_with(&self, why: Error) {
        self.stopping.store(true, Ordering::Release);
        let (qp, id, buf) = {
            let mut ctl = self.ctl.lock();
            ctl.ended.get_or_insert(why);
            self.ready.store(false, Ordering::Release);
            self.conn.channels().shut(self);
            if let Some(id) = &ctl.id {
                id.disconnect();
            }
            if let Some(qp) = &ctl.qp {
                qp.fail();
            }
            (ctl.qp.take(), ctl.id.take(), ctl.buf.take())
        };
        self.user.end(self);
        // The device uses the buffer until the queue pair is destroyed, whose event handler uses the
        // identifier.
        drop(qp);
        drop(id);
        drop(buf);
    }

    /// Handles an event.
    ///
    /// # Errors
    ///
    /// - The reason for which the channel has ended.
    fn handle(self: &Arc<Self>, todo: Todo) -> Result {
        let mut guard = self.ctl.lock();
        let ctl = &mut *guard;
        use CmEventKind::*;
        match todo {
            Todo::Event(AddrResolved, _) if self.side == Side::Initiator => {
                let id = ctl.id.as_ref().ok_or_else(enotconn)?;
                if !id.is_on(self.conn.group().device().ib()) {
                    return Err(eopnotsupp());
                }
                id.resolve_route(RESOLVE_MS)
            }
            Todo::Event(RouteResolved, _) if self.side == Side::Initiator => self.request(ctl),
            Todo::Event(Response, _) if self.side == Side::Initiator => self.responded(ctl),
            // Greetings are for iWARP, which has no channels.
            Todo::Event(Established, _) | Todo::Lingered | Todo::Greeted(_) => Ok(()),
            Todo::Event(Rejected, reason) => Err(self.refused(reason)),
            Todo::Event(Unresolved | Unreachable | ConnectError, status) => {
                let err = errno::of_cm(status, bindings::ETIMEDOUT);
                // CAST: An errno is a small number.
                Err(Error::from_errno(-(err as i32)))
            }
            Todo::Event(..) => Err(econnaborted()),
            // CAST: An errno is a small number.
            Todo::Failed(err, _) => Err(Error::from_errno(-(err as i32))),
            Todo::NotifyEstablished => {
                if let Some(id) = &ctl.id {
                    id.notify_established();
                }
                Ok(())
            }
            Todo::Late if self.side == Side::Target => Ok(()),
            Todo::Late => Err(ETIMEDOUT),
        }
    }

    /// Sends the connection request.
    fn request(self: &Arc<Self>, ctl: &mut Ctl<H>) -> Result {
        let live = self.conn.group().device().enter()?;
        let port = ctl.id.as_ref().ok_or_else(enotconn)?.port();
        let param = self.prepare(&live, ctl, port)?;
        let hello = Hello::request(&self.ends, param.qp_num, |text| self.mac(text));
        let id = ctl.id.as_ref().ok_or_else(enotconn)?;
        id.connect(&param, &hello.write())
    }

    /// Returns the error of a refusal by the target or its connection manager.
    fn refused(&self, reason: i32) -> Error {
        let (message, len) = self.inbox.lock().events.message();
        // No listener has the port, or the target has no use for the channel.
        if reason == REJ_NO_LISTENER || is_refusal(message.get(..len).unwrap_or_default()) {
            return eopnotsupp();
        }
        // The target has too many requests, or no memory, at the moment.
        EAGAIN
    }

    /// Confirms the connection after the target has accepted.
    fn responded(self: &Arc<Self>, ctl: &mut Ctl<H>) -> Result {
        let ((message, len), peer) = {
            let inbox = self.inbox.lock();
            (inbox.events.message(), inbox.events.peer_qp())
        };
        let check = |text: &[u8], mac: &Mac| match self.conn.group().proof() {
            Some(proof) => proof.check(text, mac),
            None => *mac == Mac::default(),
        };
        let welcome = Hello::parse(message.get(..len).unwrap_or_default());
        if !welcome.is_ok_and(|hello| hello.is_welcome(&self.ends, peer, check)) {
            return Err(eopnotsupp());
        }
        let id = ctl.id.as_ref().ok_or_else(enotconn)?;
        let qp = ctl.qp.as_ref().ok_or_else(enotconn)?;
        qp.connect(id, RETRY_COUNT, RNR_RETRY)?;
        id.establish()?;
        self.ready.store(true, Ordering::Release);
        self.conn.channels().opened(self);
        self.inbox.lock().in_time();
        Ok(())
    }

    /// Sends a message. No message with a send completion is on the device.
    ///
    /// A message without one is followed by the peer's, which answers it. So the peer has it when the
    /// next one takes its place in the buffer. A device that lacks the acknowledgement may send the new bytes
    /// as a repetition of the old message, which the peer's device acknowledges and drops (IBTA volume 1,
    /// chapter 9.7: duplicate requests).
    pub(super) fn send(&self, message: &[u8]) -> Result {
        let mut guard = self.ctl.lock();
        let ctl = &mut *guard;
        let (Some(qp), Some(buf)) = (&ctl.qp, &mut ctl.buf) else {
            return Err(enotconn());
        };
        buf.store(0, message);
        // CAST: A message is shorter than the buffer.
        let sge = Sge::new(buf.addr_of(0), message.len() as u32, ctl.lkey);
        let wr = SendWr {
            opcode: Opcode::Send,
            imm: None,
            fence: false,
            remote_addr: 0,
            rkey: 0,
        };
        ctl.sends = ctl.sends.wrapping_add(1);
        let signaled = ctl.sends % SENDS == 0;
        {
            let mut inbox = self.inbox.lock();
            inbox.sending = signaled;
            if signaled && self.side == Side::Initiator {
                inbox.drain = ANSWER_TICKS;
            }
        }
        qp.post_send(0, &wr, &[sge], signaled)
    }

    /// Copies the received message to `out` and posts the receive again. Returns the message's
    /// length, or `None` if there is no message.
    fn receive(&self, out: &mut [u8]) -> Result<Option<usize>> {
        let guard = self.ctl.lock();
        let Some(len) = self.inbox.lock().received.take() else {
            return Ok(None);
        };
        let (Some(qp), Some(buf)) = (&guard.qp, &guard.buf) else {
            return Err(enotconn());
        };
        // CAST: A `usize` has at least 32 bits.
        let len = len as usize;
        let place = out.get_mut(..len).ok_or(EMSGSIZE)?;
        buf.load(RECEIVED, place);
        Self::post_receive(qp, buf, guard.lkey)?;
        Ok(Some(len))
    }

    /// Returns whether a message with a send completion is on the device. The completion then asks for a turn.
    fn is_sending(&self) -> bool {
        let mut inbox = self.inbox.lock();
        inbox.stalled |= inbox.sending;
        inbox.sending
    }

    /// Handles the answer of the target, and sends the next COMMIT.
    fn initiate(&self) -> Result {
        let mut message = [0; ANSWER_MAX];
        if let Some(len) = self.receive(&mut message)? {
            H::committed(&self.conn, message.get(..len).unwrap_or_default())?;
        }
        if self.is_sending() {
            return Ok(());
        }
        let mut ranges = [Range::default(); RANGES_MAX];
        let Some((number, count)) = self.conn.begin_commit(&mut ranges) else {
            return Ok(());
        };
        let mut message = [0; REQUEST_MAX];
        let len = write_request(
            number,
            ranges.get(..count).unwrap_or_default(),
            &mut message,
        );
        self.inbox.lock().patience = ANSWER_TICKS;
        self.send(message.get(..len).unwrap_or_default())
    }

    /// Serves the COMMIT of the initiator, and answers it at its end.
    fn answer(self: &Arc<Self>, serving: &mut Serving) -> Result<Turn> {
        if self.is_sending() {
            return Ok(Turn::Over);
        }
        if !serving.is_busy() {
            let mut message = [0; REQUEST_MAX];
            let Some(len) = self.receive(&mut message)? else {
                return Ok(Turn::Over);
            };
            serving.begin(message.get(..len).unwrap_or_default())?;
        }
        Ok(match serving.turn(self)? {
            Left::Nothing => {
                serving.answer(self)?;
                Turn::Over
            }
            Left::More => Turn::More,
            Left::Blocked => Turn::Blocked,
        })
    }

    /// Handles all events.
    ///
    /// # Errors
    ///
    /// - The reason for which the channel has ended.
    fn handle_all(self: &Arc<Self>) -> Result {
        loop {
            let todo = self.inbox.lock().events.take();
            let Some(todo) = todo else { return Ok(()) };
            self.handle(todo)?;
        }
    }

    /// Handles the messages, for one turn.
    ///
    /// Context: process; neither allocates nor waits for a task that does. Locking: none held.
    pub(super) fn turn(self: &Arc<Self>) -> Turn {
        let result = {
            let mut serving = self.serving.lock();
            // Without the control lock: its owner may wait for memory until the channel is ready.
            if !self.ready.load(Ordering::Acquire) {
                return Turn::Over;
            }
            match self.side {
                Side::Initiator => self.initiate().map(|()| Turn::Over),
                Side::Target => self.answer(&mut serving),
            }
        };
        let why = match result {
            Ok(turn) => return turn,
            Err(why) => why,
        };
        // The work queue of events may be gone after the end.
        if !self.stopping.load(Ordering::Acquire) {
            self.inbox.lock().events.fail(errno::number(why), false);
            Self::schedule_events(self.as_arc_borrow());
        }
        Turn::Over
    }

    /// Returns why the channel has ended, if it has.
    fn ended(&self) -> Option<Error> {
        self.ctl.lock().ended
    }

    /// Ends the channel, and fails the writes that wait for it.
    fn over(self: &Arc<Self>, why: Error) {
        if mem::replace(&mut self.ctl.lock().failed, true) {
            // The flushed receive has scheduled this run. Another channel may have the writes.
            return;
        }
        self.end_with(why);
        if self.side == Side::Target {
            return;
        }
        // A turn that did not see the end may have begun a COMMIT. Later ones see it.
        drop(self.serving.lock());
        H::fail_commits(&self.conn, why);
        self.conn.channels().forget(self);
        // A write that was acknowledged meanwhile opens another channel.
        H::commit_again(&self.conn);
    }
}

impl<H: Owner> WorkItem for Channel<H> {
    type Pointer = Arc<Channel<H>>;

    fn run(this: Arc<Channel<H>>) {
        let result = match this.ended() {
            Some(why) => Err(why),
            None => this.conn.memcg().charged(|| this.handle_all()),
        };
        match result {
            // The channel may have become ready.
            Ok(()) => Self::schedule(this.as_arc_borrow()),
            Err(why) => this.over(why),
        }
    }
}

impl<H: Owner> CmHandler for Channel<H> {
    fn event(this: ArcBorrow<'_, Self>, event: CmEvent<'_>) {
        this.inbox.lock().events.put(&event);
        Self::schedule_events(this);
    }
}

impl<H: Owner> Completions for Channel<H> {
    fn sent(this: ArcBorrow<'_, Self>, _slot: u32, _last: bool, wc: &Wc) {
        let failed = data::fatal(wc.status);
        let stalled = {
            let mut inbox = this.inbox.lock();
            inbox.sending = false;
            if let Some(err) = failed {
                inbox.events.fail(err, false);
            }
            inbox.drain = 0;
            mem::take(&mut inbox.stalled)
        };
        match failed {
            Some(_) => Self::schedule_events(this),
            None if stalled => Self::schedule(this),
            None => {}
        }
    }

    fn received(this: ArcBorrow<'_, Self>, _slot: u32, wc: &Wc) {
        let failed = data::fatal(wc.status);
        {
            let mut inbox = this.inbox.lock();
            match failed {
                Some(err) => inbox.events.fail(err, false),
                None => {
                    // A turn may be a while away.
                    inbox.received = Some(wc.byte_len);
                    inbox.in_time();
                }
            }
        }
        match failed {
            Some(_) => Self::schedule_events(this),
            None => Self::schedule(this),
        }
    }

    fn probed(_this: ArcBorrow<'_, Self>, _wc: &Wc) {}

    fn greeted(_this: ArcBorrow<'_, Self>, _wc: &Wc) {}

    fn qp_event(this: ArcBorrow<'_, Self>, event: QpEvent) {
        {
            let mut inbox = this.inbox.lock();
            match event {
                QpEvent::Established => inbox.events.established(),
                failure => inbox.events.fail(errno::of_event(failure), false),
            }
        }
        Self::schedule_events(this);
    }
}
