// SPDX-License-Identifier: GPL-2.0
//! Endpoints (`fi_endpoint(3)`, `fi_msg(3)`, `fi_rma(3)`, `fi_cm(3)`).
//!
//! ```text
//!   New ──enable──▶ Enabled ──connect/accept──▶ Connecting ──▶ Connected ──▶ Down
//!                                                    └───────failed──────────▲
//! ```
//!
//! The state only goes forward, except that a refused connect or accept call returns it to Enabled.
//! After its connection has ended, an endpoint cannot connect again.
//! The state is one atomic that events and calls change by compare-and-swap, so each step is taken
//! once.

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

use super::shared::{
    BoundCq,
    Shared,
    CNTR_KINDS, //
};
use crate::{
    auth::{
        AuthKey,
        Authorization,
        Scope, //
    },
    base::{
        errno::{
            ekeyrejected,
            enotconn,
            eopnotsupp, //
        },
        parent::{
            Ending,
            Held, //
        },
    },
    key::{
        endpoint_keys::Bound,
        Key, //
    },
    objects::{
        cntr::Cntr,
        conn_request::Request,
        cq::Cq,
        domain::Domain,
        eq::Eq, //
    },
    op::OpKind,
    provider::{
        ring_pair::Offer,
        EndpointAttr,
        EndpointOps,
        EndpointSink,
        GroupOps,
        KeyValues, //
    },
    sys,
    uapi::*,
};

/// Default number of operations of a side.
const DEFAULT_SIZE: u32 = 128;

/// Requested sizes of an endpoint; zero selects the default.
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
    /// The endpoint has endpoint-scoped keys. Its peer can access only the slots and regions bound
    /// to the endpoint ([`Key::alloc_for`],
    /// [`Region::register_for`](crate::key::Region::register_for)).
    pub own_keys: bool,
    /// The endpoint-scoped keys have values of the endpoint's own (2^27 over rxe), which do not
    /// depend on other endpoints. On one endpoint no value is issued twice.
    ///
    /// For consumers that take very many keys of kernel memory, such as one for each operation, and
    /// that can connect anew ([`Endpoint::keys_worn`], [`Endpoint::keys_exhausted`]). A peer must use
    /// such a key over this connection only.
    pub reuse_values: bool,
    /// No value of the endpoint-scoped keys is issued twice on this endpoint. If the device offers
    /// no other value, an assignment fails (`ENOSPC`). Values that other endpoints of the host have had
    /// since this one was opened count, too. Without this option a value is issued again after all others
    /// that the device offers, and after a time of rest, unless the domain is strict
    /// ([`Domain::open_strict`]).
    pub strict_values: bool,
}

/// The protection group and bound slots of an endpoint with endpoint-scoped keys.
struct OwnKeys {
    group: Arc<dyn GroupOps>,
    bound: Arc<Bound>,
}

/// An endpoint.
#[pin_data(PinnedDrop)]
pub struct Endpoint {
    // Dropped first, before the hold on the domain.
    pub(super) ops: Arc<dyn EndpointOps>,
    pub(super) shared: Arc<Shared>,
    pub(super) attr: EndpointAttr,
    /// Locks the set-up: held while a queue is bound and while the endpoint is enabled. So all
    /// bindings precede the first operation, and a closed endpoint gets no binding.
    #[pin]
    setup: Mutex<()>,
    #[pin]
    pub(super) ending: Ending,
    own: Option<OwnKeys>,
    auth: Scope,
    pub(super) domain: Held<Domain>,
}

impl Endpoint {
    /// Opens an endpoint; with `request`, one to accept it.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if sizes exceed the domain's, or the request arrived on another device.
    /// - `EINVAL` if `reuse_values` or `strict_values` is set without `own_keys`.
    /// - `ENOENT` if the request was answered before.
    /// - `EOPNOTSUPP` if the domain has no endpoint-scoped keys.
    /// - `EKEYREJECTED` if the request's peer has not proven the endpoint's auth key.
    /// - `EKEYREJECTED` if the peer has proven an auth key that the endpoint has not.
    pub fn open(
        domain: &Arc<Domain>,
        attr: &EpAttr,
        request: Option<&Arc<Request>>,
    ) -> Result<Arc<Self>> {
        Self::open_under(
            domain,
            attr,
            request,
            Authorization::of(domain.auth()),
            None,
        )
    }

    /// As [`Endpoint::open`], with an auth key for the endpoint.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::open`], and:
    ///
    /// - `EOPNOTSUPP` if the provider cannot keep auth keys apart.
    pub fn open_with(
        domain: &Arc<Domain>,
        attr: &EpAttr,
        request: Option<&Arc<Request>>,
        key: &AuthKey,
    ) -> Result<Arc<Self>> {
        Self::open_under(domain, attr, request, Authorization::of(Some(key)), None)
    }

    /// As [`Endpoint::open`]; with `rings`, for a program that supports rings of this version.
    pub(crate) fn open_under(
        domain: &Arc<Domain>,
        attr: &EpAttr,
        request: Option<&Arc<Request>>,
        under: Authorization,
        rings: Option<u32>,
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
        if (attr.reuse_values || attr.strict_values) && !attr.own_keys {
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
                    match attr {
                        EpAttr {
                            reuse_values: true, ..
                        } => KeyValues::Own,
                        EpAttr {
                            strict_values: true,
                            ..
                        } => KeyValues::Strict,
                        _ => domain.key_values(),
                    },
                )?,
                bound: Bound::new()?,
            }),
            false => None,
        };
        let group = match &under.key {
            Some(key) if own.is_none() => Some(domain.group(key)?),
            _ => None,
        };
        let auth = Scope { under, group };
        let group = match &own {
            Some(own) => Some(&own.group),
            None => auth.group.as_ref().map(|group| group.ops()),
        };
        let rings = match rings {
            Some(version) => Some(Offer::new(version)?),
            None => None,
        };
        // Before the request is used up: nothing may fail after that.
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

    /// Granted sizes of the endpoint.
    pub fn attr(&self) -> &EndpointAttr {
        &self.attr
    }

    /// The endpoint's domain.
    pub fn domain(&self) -> &Arc<Domain> {
        self.domain.arc()
    }

    /// The auth key and grant of the endpoint.
    pub(crate) fn under(&self) -> &Authorization {
        &self.auth.under
    }

    /// Returns the maximum number of bytes of application data in the endpoint's connection request.
    pub fn cm_data_size(&self) -> u32 {
        self.domain.cm_data_size(self.auth.under.key.is_some())
    }

    /// Returns whether successful operations of this kind have an entry only with
    /// `KFI_COMPLETION`.
    pub(crate) fn is_selective(&self, kind: OpKind) -> bool {
        self.shared.cq(kind).is_some_and(|bound| bound.selective)
    }

    /// Disconnects the endpoint if its grant has ended; returns whether it has. The owner gets an
    /// event with the reason, and still closes the endpoint.
    pub(crate) fn sweep(&self) -> bool {
        let Err(e) = self.auth.under.check() else {
            return false;
        };
        // Before the provider fails operations of the endpoint.
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

    /// Returns the group and bound list for endpoint-scoped keys for memory of `domain`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint has no endpoint-scoped keys, or belongs to another domain.
    pub(crate) fn own_keys(
        &self,
        domain: &Arc<Domain>,
    ) -> Result<(&Arc<dyn GroupOps>, &Arc<Bound>)> {
        match &self.own {
            Some(own) if Arc::ptr_eq(domain, self.domain.arc()) => Ok((&own.group, &own.bound)),
            _ => Err(EINVAL),
        }
    }

    /// Returns whether the endpoint has key values [of its own](EpAttr::reuse_values) and has
    /// exhausted them. A newly opened endpoint then has all values again.
    pub fn keys_exhausted(&self) -> bool {
        self.own
            .as_ref()
            .is_some_and(|own| own.group.is_exhausted())
    }

    /// Returns whether the endpoint has key values [of its own](EpAttr::reuse_values) and has used up
    /// 7/8 of them. A consumer connects anew then, at a moment of its choice, before an assignment
    /// fails. If other users have many of the device's regions, the values can be
    /// [exhausted](Self::keys_exhausted) earlier. Context: any.
    pub fn keys_worn(&self) -> bool {
        self.own.as_ref().is_some_and(|own| own.group.is_worn())
    }

    /// Revokes all keys that are bound to the endpoint, as [`Key::revoke_many`] does. Returns their
    /// number.
    ///
    /// # Errors
    ///
    /// The number of revoked keys, and:
    ///
    /// - `EINVAL` if the endpoint has no endpoint-scoped keys.
    /// - `EINTR` if the task was killed while it waited.
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
            // Wait for busy slots only after all other keys are revoked.
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

    /// The endpoint's state, `KFI_STATE_*`.
    pub fn state(&self) -> u32 {
        self.shared.state.load(Ordering::Acquire)
    }

    /// Number of operations accepted and not completed yet.
    pub fn outstanding(&self) -> u32 {
        self.shared.outstanding.load(Ordering::Relaxed)
    }

    /// Number of operations ever completed.
    pub fn completed(&self) -> u64 {
        self.shared.completed.load(Ordering::Relaxed)
    }

    /// Locks the set-up and checks that bindings may still change.
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
    /// - `EINVAL` if the endpoint has an event queue or is enabled, or the queue belongs to another
    ///   fabric.
    /// - `ENOENT` if the endpoint or the queue is closed.
    pub fn bind_eq(&self, eq: &Arc<Eq>) -> Result {
        let _setup = self.setup()?;
        if !Arc::ptr_eq(eq.fabric(), self.domain.fabric()) || self.shared.eq.as_ref().is_some() {
            return Err(EINVAL);
        }
        let held = Held::new(eq)?;
        eq.owe()?;
        if !self.shared.eq.populate(held) {
            eq.forget_source(0);
            return Err(EINVAL);
        }
        Ok(())
    }

    /// Binds a completion queue to the sides that `flags` names (`KFI_TRANSMIT`, `KFI_RECV`), with
    /// `KFI_SELECTIVE_COMPLETION` for entries only on demand.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `flags` names no side or has an unknown flag.
    /// - `EINVAL` if a side is bound already, the endpoint is enabled, or the queue belongs to
    ///   another domain.
    /// - `ENOENT` if the endpoint or the queue is closed.
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

    /// Enables the endpoint: from now on receives can be posted.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint is enabled, or has no event queue, or a side has neither queue
    ///   nor counter.
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
                rings.discard();
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
    /// - `EINVAL` if the endpoint is not enabled or was connected before.
    /// - `EINVAL` if `data` exceeds `cm_data_size`.
    pub fn connect(&self, addr: &SockAddr, data: &[u8]) -> Result {
        self.start(true, data, || self.ops.connect(addr, data))
    }

    /// Accepts the request that the endpoint was opened with; the outcome is an event. If this
    /// fails, the request is unchanged, except for `ECONNABORTED`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the endpoint is not enabled, was opened without a request, or has accepted
    ///   before.
    /// - `EINVAL` if `data` exceeds `cm_data_size`.
    /// - `ECONNABORTED` if the request is lost, because the peer gave up or the device has failed
    ///   it.
    pub fn accept(&self, data: &[u8]) -> Result {
        self.start(false, data, || self.ops.accept(data))
    }

    /// Starts to end the connection; both ends get the event.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if there is no connection.
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

    /// The endpoint's local address.
    pub fn local_addr(&self) -> SockAddr {
        self.ops.local_addr()
    }

    /// The peer's address.
    pub fn peer_addr(&self) -> SockAddr {
        self.ops.peer_addr()
    }

    /// Requests that one posted receive of this context completes with `ECANCELED`.
    pub fn cancel(&self, context: u64) -> Result {
        self.ops.cancel(context)
    }

    /// As [`Endpoint::close`], for a program. A program itself can delay a bound slot's step in
    /// progress, so the wait is killable.
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task was killed while it waited. The endpoint stays open, but nothing more
    ///   can be bound.
    pub(crate) fn close_killable(&self) -> Result {
        if let Some(own) = &self.own {
            while let Some(key) = own.bound.end_next() {
                key.kill_killable()?;
            }
        }
        self.close();
        Ok(())
    }

    /// After a close: waits until no task reads an event of the endpoint.
    pub(crate) fn unseen(&self) {
        if let Some(eq) = self.shared.eq.as_ref() {
            eq.unseen(self.shared.source());
        }
    }

    /// Closes the endpoint. After the return every operation is completed and no event follows. The
    /// keys that are bound to the endpoint are revoked first.
    pub fn close(&self) {
        if let Some(own) = &self.own {
            while let Some(key) = own.bound.end_next() {
                key.kill();
            }
        }
        self.ending.run(|| {
            // Waits for concurrent bind and enable calls; later ones fail, because the endpoint is
            // closing.
            drop(self.setup.lock());
            let shared = &self.shared;
            // From here on no step is taken, so neither the provider nor the end of a grant adds an
            // event. The queue forgets earlier events below.
            shared.state.store(KFI_STATE_DOWN, Ordering::Release);
            self.ops.close();
            if let Some(rings) = &shared.rings {
                rings.leave();
            }
            if let Some(eq) = shared.eq.as_ref() {
                eq.forget_source(shared.source());
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
