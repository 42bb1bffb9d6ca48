// SPDX-License-Identifier: GPL-2.0
//! Endpoints (`fi_endpoint(3)`, `fi_msg(3)`, `fi_rma(3)`, `fi_cm(3)`).
//!
//! ```text
//!   New ──enable──▶ Enabled ──connect/accept──▶ Connecting ──▶ Connected ──▶ Down
//!                                                    └───────failed──────────▲
//! ```
//!
//! The state only goes forward; a connection that ended needs a new endpoint. It lies in one
//! atomic that events and calls move by compare-and-swap, so each step is taken once.

use core::sync::atomic::{
    AtomicU32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        lock::mutex::MutexGuard,
        Arc,
        Mutex,
        SetOnce,
        UniqueArc, //
    }, //
};

mod post;
mod rings;

pub use crate::op::Post;
use crate::{
    auth::{
        Apart,
        AuthKey,
        Under, //
    },
    bound::Bound,
    cntr::Cntr,
    cq::Cq,
    eq::{
        Eq,
        Event, //
    },
    errno::{
        ekeyrejected,
        enotconn,
        eopnotsupp, //
    },
    fabric::Domain,
    key::Key,
    object::{
        Ending,
        Held, //
    },
    op::OpKind,
    pep::Request,
    provider::{
        EndpointAttr,
        EndpointOps,
        EndpointSink,
        GroupOps, //
    },
    rings::Offer,
    sys,
    uapi::*,
};

/// Operations of a side that did not say.
const DEFAULT_SIZE: u32 = 128;

/// A bound completion queue.
struct BoundCq {
    cq: Held<Cq>,
    selective: bool,
}

/// Which operations a counter counts. Atomics count as writes, and those that fetch as reads.
const CNTR_KINDS: [(u64, OpKind); 4] = [
    (KFI_SEND, OpKind::Send),
    (KFI_RECV, OpKind::Recv),
    (KFI_READ, OpKind::Read),
    (KFI_WRITE, OpKind::Write),
];

/// The part of an endpoint that operations and the provider's events reach.
pub struct Shared {
    /// The program's handle; 0 for a consumer in the kernel.
    handle: AtomicU64,
    context: u64,
    state: AtomicU32,
    tx: SetOnce<BoundCq>,
    rx: SetOnce<BoundCq>,
    cntrs: [SetOnce<Held<Cntr>>; 4],
    eq: SetOnce<Held<Eq>>,
    outstanding: AtomicU32,
    completed: AtomicU64,
    /// It is a program's that can do with rings.
    rings: Option<Arc<Offer>>,
}

impl Shared {
    fn source(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    #[inline]
    fn cq(&self, kind: OpKind) -> Option<&BoundCq> {
        match kind {
            OpKind::Recv => self.rx.as_ref(),
            _ => self.tx.as_ref(),
        }
    }

    fn cntr(&self, kind: OpKind) -> Option<&Held<Cntr>> {
        let kind = match kind {
            OpKind::Atomic => OpKind::Write,
            OpKind::Fetch => OpKind::Read,
            other => other,
        };
        CNTR_KINDS
            .iter()
            .position(|(_, k)| *k == kind)
            .and_then(|i| self.cntrs[i].as_ref())
    }

    /// Reserves what the completion of an operation needs, in the queue of its kind.
    fn reserve(&self, queue: Option<&BoundCq>) -> Result {
        if let Some(bound) = queue {
            bound.cq.reserve()?;
        }
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn unreserve(&self, kind: OpKind) {
        if let Some(bound) = self.cq(kind) {
            bound.cq.unreserve();
        }
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn finish(&self, kind: OpKind, entry: &mut CqEntry, wanted: bool, may_sleep: bool) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.completed.fetch_add(1, Ordering::Relaxed);
        if let Some(cntr) = self.cntr(kind) {
            cntr.update(|counts| {
                if entry.err == 0 {
                    counts.value = counts.value.wrapping_add(1);
                } else {
                    counts.errors = counts.errors.wrapping_add(1);
                }
            });
        }
        if let Some(bound) = self.cq(kind) {
            if entry.err != 0 || wanted {
                entry.ep = self.handle.load(Ordering::Relaxed);
                bound.cq.push(entry, may_sleep);
            } else {
                bound.cq.unreserve();
            }
        }
    }

    fn advance(&self, from: &[u32], to: u32) -> Result {
        self.state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                from.contains(&now).then_some(to)
            })
            .map(|_| ())
            .map_err(|_| EINVAL)
    }

    /// Moves from one state to the next and tells of it, in one step: events come in the order of
    /// the states. Nothing happens in any other state.
    fn step(&self, (from, to): (u32, u32), kind: u32, err: (u32, u32), data: &[u8]) {
        let Some(eq) = self.eq.as_ref() else { return };
        let mut copy = KVec::new();
        // Short of memory the event comes without the peer's data rather than not at all.
        let _ = copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT);
        let (err, prov_errno) = err;
        let event = Event {
            kind,
            object: self.handle.load(Ordering::Relaxed),
            context: self.context,
            err,
            prov_errno,
            data: copy,
            request: None,
            source: self.source(),
        };
        // A program that reads the event finds the pages given back, if there are no rings.
        if let Some(rings) = &self.rings {
            rings.settle();
        }
        eq.push_owed(event, || self.advance(&[from], to).is_ok());
        if let Some(rings) = &self.rings {
            if to == KFI_STATE_DOWN {
                rings.end();
            }
            self.alarm();
        }
    }
}

impl EndpointSink for Shared {
    fn connected(&self, data: &[u8]) {
        let step = (KFI_STATE_CONNECTING, KFI_STATE_CONNECTED);
        self.step(step, KFI_CONNECTED, (0, 0), data);
    }

    fn conn_error(&self, err: u32, prov_errno: u32, data: &[u8]) {
        let step = (KFI_STATE_CONNECTING, KFI_STATE_DOWN);
        self.step(step, KFI_CONN_ERROR, (err, prov_errno), data);
    }

    fn shutdown(&self, err: u32) {
        let step = (KFI_STATE_CONNECTED, KFI_STATE_DOWN);
        self.step(step, KFI_SHUTDOWN, (err, 0), &[]);
    }

    fn rings(&self) -> Option<Arc<Offer>> {
        self.rings.clone()
    }
}

/// Sizes wanted of an endpoint; zero: the default.
#[derive(Clone, Copy, Default)]
pub struct EpAttr {
    /// Operations of the transmit side.
    pub tx_size: u32,
    /// Receives of the receive side.
    pub rx_size: u32,
    /// Scatter entries of one operation.
    pub iov_limit: u32,
    /// Address to connect from; `len` 0: by route.
    pub src_addr: SockAddr,
    /// The consumer's value, returned in events.
    pub context: u64,
    /// It has keys of its own: its peer reaches by it what is bound to it
    /// ([`Key::alloc_for`], [`Region::register_for`](crate::region::Region::register_for)), and
    /// nothing else of its domain.
    pub own_keys: bool,
    /// The values of its own keys come again as those of other endpoints that are opened so, at other
    /// addresses, and as no others. On itself none comes twice. It is for who takes very many, one for each
    /// operation: the values of all others never come again, and so come to an end (over rxe after 2^26).
    /// Whoever is told such a key uses it by this connection and by no other.
    pub reuse_values: bool,
}

/// Keys of an endpoint's own.
struct OwnKeys {
    group: Arc<dyn GroupOps>,
    bound: Arc<Bound>,
}

/// An endpoint.
#[pin_data(PinnedDrop)]
pub struct Endpoint {
    // Dropped first, before the hold on the domain.
    ops: Arc<dyn EndpointOps>,
    shared: Arc<Shared>,
    attr: EndpointAttr,
    /// Held while something is bound and while it is enabled, so that what operations use is
    /// complete before the first of them, and nothing is bound to one that is closed.
    #[pin]
    setup: Mutex<()>,
    #[pin]
    ending: Ending,
    own: Option<OwnKeys>,
    auth: Apart,
    domain: Held<Domain>,
}

impl Endpoint {
    /// Opens an endpoint; with `request`, one to accept it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: sizes beyond the domain's, or the request came in on another device. `ENOENT`:
    /// the request was answered before. `EOPNOTSUPP`: keys of its own are not offered.
    /// `EKEYREJECTED`: the request's peer has not proven to have the endpoint's auth key, or has one
    /// that the endpoint has not.
    pub fn open(
        domain: &Arc<Domain>,
        attr: &EpAttr,
        request: Option<&Arc<Request>>,
    ) -> Result<Arc<Self>> {
        Self::open_under(domain, attr, request, Under::of(domain.auth()), false)
    }

    /// As [`Endpoint::open`], with an auth key of its own.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::open`]. `EOPNOTSUPP`: the provider cannot keep auth keys apart.
    pub fn open_with(
        domain: &Arc<Domain>,
        attr: &EpAttr,
        request: Option<&Arc<Request>>,
        key: &AuthKey,
    ) -> Result<Arc<Self>> {
        Self::open_under(domain, attr, request, Under::of(Some(key)), false)
    }

    /// As [`Endpoint::open`]; with `rings`, for a program that can do with them.
    pub(crate) fn open_under(
        domain: &Arc<Domain>,
        attr: &EpAttr,
        request: Option<&Arc<Request>>,
        under: Under,
        rings: bool,
    ) -> Result<Arc<Self>> {
        domain.check()?;
        if request.is_some_and(|of| of.auth().map_or(0, AuthKey::number) != under.number()) {
            return Err(ekeyrejected());
        }
        let limits = domain.attr();
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let mut got = EndpointAttr {
            tx_size: or(attr.tx_size, DEFAULT_SIZE.min(limits.max_tx_size)),
            rx_size: or(attr.rx_size, DEFAULT_SIZE.min(limits.max_rx_size)),
            iov_limit: or(attr.iov_limit, 1),
            inject_size: limits.inject_size,
            src_addr: attr.src_addr,
        };
        if got.tx_size > limits.max_tx_size
            || got.rx_size > limits.max_rx_size
            || got.iov_limit > limits.iov_limit
        {
            return Err(EINVAL);
        }
        if attr.own_keys && limits.caps & KFI_EP_KEYS == 0 {
            return Err(eopnotsupp());
        }
        if attr.reuse_values && !attr.own_keys {
            return Err(EINVAL);
        }
        let held = Held::new(domain)?;
        let own = match attr.own_keys {
            true => Some(OwnKeys {
                group: domain.ops().group(
                    match &under.key {
                        Some(key) => Some(key.prover()?),
                        None => None,
                    },
                    attr.reuse_values,
                )?,
                bound: Bound::new()?,
            }),
            false => None,
        };
        let group = match &under.key {
            Some(key) if own.is_none() => Some(domain.group(key)?),
            _ => None,
        };
        let auth = Apart { under, group };
        let group = match &own {
            Some(own) => Some(&own.group),
            None => auth.group.as_ref().map(|group| group.ops()),
        };
        let rings = match rings {
            true => Some(Offer::new()?),
            false => None,
        };
        // Before a request is used up: nothing may fail after that.
        let place = UniqueArc::new_uninit(GFP_KERNEL_ACCOUNT)?;
        let shared = Arc::new(
            Shared {
                handle: AtomicU64::new(0),
                context: attr.context,
                state: AtomicU32::new(KFI_STATE_NEW),
                tx: SetOnce::new(),
                rx: SetOnce::new(),
                cntrs: [const { SetOnce::new() }; 4],
                eq: SetOnce::new(),
                outstanding: AtomicU32::new(0),
                completed: AtomicU64::new(0),
                rings,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let sink: Arc<dyn EndpointSink> = shared.clone();
        let ops = match request {
            None => domain
                .ops()
                .endpoint(domain.fabric().net(), &mut got, None, group, sink)?,
            Some(request) => {
                let answer = request.answer()?;
                let ops = domain.ops().endpoint(
                    domain.fabric().net(),
                    &mut got,
                    Some(answer.ops()),
                    group,
                    sink,
                )?;
                answer.used();
                ops
            }
        };
        let made = place.pin_init_with(pin_init!(Self {
            ops,
            shared,
            attr: got,
            setup <- new_mutex!((), "kfabric_ep_setup"),
            ending <- Ending::new(),
            own,
            auth,
            domain: held,
        }));
        match made {
            Ok(made) => Ok(made.into()),
            Err(never) => match never {},
        }
    }

    pub(crate) fn set_handle(&self, handle: u64) {
        self.shared.handle.store(handle, Ordering::Relaxed);
        if let Some(own) = &self.own {
            own.bound.set_handle(handle);
        }
    }

    /// What it got.
    pub fn attr(&self) -> &EndpointAttr {
        &self.attr
    }

    /// Its domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// What it was opened under.
    pub(crate) fn under(&self) -> &Under {
        &self.auth.under
    }

    /// Application bytes in its connection request.
    pub fn cm_data_size(&self) -> u32 {
        self.domain.cm_data_size(self.auth.under.key.is_some())
    }

    /// Whether operations of this kind have an entry only if they ask for it (`KFI_COMPLETION`).
    pub(crate) fn is_selective(&self, kind: OpKind) -> bool {
        self.shared.cq(kind).is_some_and(|bound| bound.selective)
    }

    /// Ends it if its grant is over; whether it did. It stays for its owner to close, who hears why.
    pub(crate) fn sweep(&self) -> bool {
        let Err(e) = self.auth.under.check() else {
            return false;
        };
        // Before anything fails of it.
        let err = e.to_errno().unsigned_abs();
        self.shared.conn_error(err, 0, &[]);
        self.shared.shutdown(err);
        if let Some(own) = &self.own {
            let _ = own.bound.for_each(|key| {
                key.sweep();
                Ok(())
            });
        }
        self.ops.close();
        self.auth.under.end();
        true
    }

    /// What its own keys are made with, for memory of `domain`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it has none of its own, or is another domain's.
    pub(crate) fn own_keys(
        &self,
        domain: &Arc<Domain>,
    ) -> Result<(&Arc<dyn GroupOps>, &Arc<Bound>)> {
        match &self.own {
            Some(own) if Arc::ptr_eq(domain, self.domain.arc()) => Ok((&own.group, &own.bound)),
            _ => Err(EINVAL),
        }
    }

    /// Whether some of the values that the device has for keys of its own are used up for it, which is one
    /// that [reuses](EpAttr::reuse_values) them. Should there be no more keys then (`ENOSPC`), an endpoint
    /// that is opened anew has them all.
    pub fn has_worn_keys(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.group.is_worn())
    }

    /// Ends all keys that are bound to it, as [`Key::revoke_many`] does. Returns how many it ended.
    ///
    /// # Errors
    ///
    /// How many it ended, and why it ended no more: `EINVAL`: it has no keys of its own. `EINTR`: the
    /// task was killed while it waited.
    pub fn revoke_keys(&self) -> Result<usize, (usize, Error)> {
        let own = self.own.as_ref().ok_or((0, EINVAL))?;
        let (mut ended, mut busy) = (0, false);
        let mut result = own.bound.for_each(|key| {
            sys::cond_resched();
            match key.try_revoke() {
                Some(had) => ended += usize::from(had),
                None => busy = true,
            }
            Ok(())
        });
        if busy {
            // Where something else is under way it is waited for when all others have ended.
            result = own.bound.for_each(|key| {
                let (n, result) = match Key::end_each(&mut [key], |key| Some(key)) {
                    Ok(n) => (n, Ok(())),
                    Err((n, e)) => (n, Err(e)),
                };
                ended += n;
                result
            });
        }
        if ended != 0 {
            let _ = own.bound.for_each(|key| {
                key.renew_in_turn();
                Ok(())
            });
        }
        result.map(|()| ended).map_err(|e| (ended, e))
    }

    /// `KFI_STATE_*`.
    pub fn state(&self) -> u32 {
        self.shared.state.load(Ordering::Acquire)
    }

    /// Operations accepted and not yet completed.
    pub fn outstanding(&self) -> u32 {
        self.shared.outstanding.load(Ordering::Relaxed)
    }

    /// Operations ever completed.
    pub fn completed(&self) -> u64 {
        self.shared.completed.load(Ordering::Relaxed)
    }

    /// Begins to change what it is bound to.
    fn setup(&self) -> Result<MutexGuard<'_, ()>> {
        let setup = self.setup.lock();
        if self.ending.begun() {
            return Err(ENOENT);
        }
        if self.state() != KFI_STATE_NEW {
            return Err(EINVAL);
        }
        Ok(setup)
    }

    /// Binds the event queue.
    ///
    /// # Errors
    ///
    /// `EINVAL`: bound before, enabled, or of another fabric.
    pub fn bind_eq(&self, eq: &Arc<Eq>) -> Result {
        let _setup = self.setup()?;
        if !Arc::ptr_eq(eq.fabric(), self.domain.fabric()) || self.shared.eq.as_ref().is_some() {
            return Err(EINVAL);
        }
        let held = Held::new(eq)?;
        eq.owe()?;
        if !self.shared.eq.populate(held) {
            eq.settle(0);
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Binds a completion queue to the sides that `flags` names (`KFI_TRANSMIT`, `KFI_RECV`), with
    /// `KFI_SELECTIVE_COMPLETION` for entries only on demand.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no side, an unknown flag, a side bound before, enabled, or of another domain.
    pub fn bind_cq(&self, cq: &Arc<Cq>, flags: u64) -> Result {
        let _setup = self.setup()?;
        let sides = flags & (KFI_TRANSMIT | KFI_RECV);
        if sides == 0
            || flags & !(sides | KFI_SELECTIVE_COMPLETION) != 0
            || !Arc::ptr_eq(cq.domain(), self.domain.arc())
        {
            return Err(EINVAL);
        }
        let selective = flags & KFI_SELECTIVE_COMPLETION != 0;
        let sides = [(KFI_TRANSMIT, &self.shared.tx), (KFI_RECV, &self.shared.rx)]
            .into_iter()
            .filter(|(side, _)| flags & side != 0);
        if sides.clone().any(|(_, place)| place.as_ref().is_some()) {
            return Err(EINVAL);
        }
        // All holds first: if the queue is closed meanwhile, neither side is bound.
        let mut holds = [Some(Held::new(cq)?), Some(Held::new(cq)?)].into_iter();
        for (_, place) in sides {
            let cq = holds.next().flatten().ok_or(EINVAL)?;
            if !place.populate(BoundCq { cq, selective }) {
                return Err(EINVAL);
            }
        }
        Ok(())
    }

    /// Binds a counter to the kinds of operation that `flags` names: `KFI_SEND`, `KFI_RECV`,
    /// `KFI_READ`, `KFI_WRITE`.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind_cq`].
    pub fn bind_cntr(&self, cntr: &Arc<Cntr>, flags: u64) -> Result {
        let _setup = self.setup()?;
        let all = CNTR_KINDS.iter().fold(0, |all, (bit, _)| all | bit);
        if flags & all == 0 || flags & !all != 0 || !Arc::ptr_eq(cntr.domain(), self.domain.arc()) {
            return Err(EINVAL);
        }
        let places = CNTR_KINDS
            .iter()
            .zip(&self.shared.cntrs)
            .filter(|((bit, _), _)| flags & bit != 0);
        if places.clone().any(|(_, place)| place.as_ref().is_some()) {
            return Err(EINVAL);
        }
        // All holds first: if the counter is closed meanwhile, it is bound to no kind.
        let mut holds = [const { None }; CNTR_KINDS.len()];
        for hold in &mut holds {
            *hold = Some(Held::new(cntr)?);
        }
        let mut holds = holds.into_iter();
        for (_, place) in places {
            let hold = holds.next().flatten().ok_or(EINVAL)?;
            if !place.populate(hold) {
                return Err(EINVAL);
            }
        }
        Ok(())
    }

    /// Readies it: from now on receives may be posted.
    ///
    /// # Errors
    ///
    /// `EINVAL`: enabled before, no event queue, or a side with neither queue nor counter.
    pub fn enable(&self) -> Result {
        self.auth.under.check()?;
        let _setup = self.setup()?;
        let shared = &self.shared;
        let counted = |kind| shared.cntr(kind).is_some();
        let tx = shared.tx.as_ref().is_some()
            || counted(OpKind::Send)
            || counted(OpKind::Read)
            || counted(OpKind::Write);
        let rx = shared.rx.as_ref().is_some() || counted(OpKind::Recv);
        if !tx || !rx || shared.eq.as_ref().is_none() {
            return Err(EINVAL);
        }
        self.ops.enable()?;
        shared.advance(&[KFI_STATE_NEW], KFI_STATE_ENABLED)
    }

    /// Connects (`asks`), or accepts.
    fn start(&self, asks: bool, data: &[u8], go: impl FnOnce() -> Result) -> Result {
        self.auth.under.check()?;
        // CAST: A `u32` fits.
        if data.len() > self.cm_data_size() as usize {
            return Err(EINVAL);
        }
        self.shared
            .advance(&[KFI_STATE_ENABLED], KFI_STATE_CONNECTING)?;
        if let (Some(rings), Some(queues)) = (&self.shared.rings, self.shared.queues()) {
            rings.prepare(queues, asks);
        }
        go().inspect_err(|_| {
            if let Some(rings) = &self.shared.rings {
                rings.settle();
            }
            let _ = self
                .shared
                .advance(&[KFI_STATE_CONNECTING], KFI_STATE_ENABLED);
        })
    }

    /// Starts to connect; the outcome is an event.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not enabled, connected before, or more data than `cm_data_size`.
    pub fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result {
        self.start(true, data, || self.ops.connect(addr, data))
    }

    /// Accepts the request it was opened with; the outcome is an event.
    ///
    /// # Errors
    ///
    /// `EINVAL`: not enabled, opened without a request, accepted before, or more data than
    /// `cm_data_size`. `ECONNABORTED`: it cannot be accepted any more, because the peer gave up or
    /// the device has failed it. Else the request is as before.
    pub fn accept(&self, data: &[u8]) -> Result {
        self.start(false, data, || self.ops.accept(data))
    }

    /// Starts to end the connection; the event comes at both ends.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: there is none.
    pub fn shutdown(&self) -> Result {
        match self.state() {
            KFI_STATE_CONNECTING | KFI_STATE_CONNECTED => {}
            _ => return Err(enotconn()),
        }
        self.ops.shutdown()?;
        if let Some(rings) = &self.shared.rings {
            rings.end();
        }
        Ok(())
    }

    /// Its own address.
    pub fn local_addr(&self) -> SockAddr {
        self.ops.local_addr()
    }

    /// Its peer's address.
    pub fn peer_addr(&self) -> SockAddr {
        self.ops.peer_addr()
    }

    /// Asks for one posted receive of this context to end with `ECANCELED`.
    pub fn cancel(&self, context: u64) -> Result {
        self.ops.cancel(context)
    }

    /// As [`Endpoint::close`], for a program, which may itself hold up what is under way on a key
    /// that is bound to it.
    ///
    /// # Errors
    ///
    /// `EINTR`: the task was killed while it waited for that. The endpoint stays; nothing more is
    /// bound to it.
    pub(crate) fn close_killable(&self) -> Result {
        if let Some(own) = &self.own {
            while let Some(key) = own.bound.end_next() {
                key.kill_killable()?;
            }
        }
        self.close();
        Ok(())
    }

    /// After a close: waits until nobody looks at an event of it.
    pub(crate) fn unseen(&self) {
        if let Some(eq) = self.shared.eq.as_ref() {
            eq.unseen(self.shared.source());
        }
    }

    /// Closes: when it returns every operation is completed and no event of it will come. Keys that
    /// are bound to it end before anything else.
    pub fn close(&self) {
        if let Some(own) = &self.own {
            while let Some(key) = own.bound.end_next() {
                key.kill();
            }
        }
        self.ending.run(|| {
            // Whoever binds or enables is done after this, and nobody begins to.
            drop(self.setup.lock());
            let shared = &self.shared;
            // From here on no step is taken, and so no event is added: neither by the provider nor by the
            // end of a grant. What was added before, the queue forgets below.
            shared.state.store(KFI_STATE_DOWN, Ordering::Release);
            self.ops.close();
            if let Some(rings) = &shared.rings {
                rings.leave();
            }
            if let Some(eq) = shared.eq.as_ref() {
                eq.settle(shared.source());
                eq.release();
            }
            for bound in [&shared.tx, &shared.rx]
                .into_iter()
                .flat_map(SetOnce::as_ref)
            {
                bound.cq.release();
            }
            for cntr in shared.cntrs.iter().flat_map(SetOnce::as_ref) {
                cntr.release();
            }
            self.domain.release();
            self.auth.under.end();
        });
    }
}

#[pinned_drop]
impl PinnedDrop for Endpoint {
    fn drop(self: Pin<&mut Self>) {
        self.close()
    }
}
