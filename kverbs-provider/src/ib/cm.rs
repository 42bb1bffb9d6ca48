// SPDX-License-Identifier: GPL-2.0
//! Connection manager identifiers: a listening address, a request, or one end of a connection.
//!
//! C header: [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)

use core::ptr::NonNull;
use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_ulong,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    device::Device,
    raw,
    sockaddr::Storage,
    traced::Traced,
    CALLER, //
};
use kfabric::{
    base::{
        errno::{
            enotconn,
            eopnotsupp, //
        },
        fault, //
    },
    pure::proof::Gid,
    sys::net::Net,
    uapi::SockAddr, //
};

/// Maximum bytes of private data in any message of the connection manager.
pub(crate) const DATA_MAX: usize = 255;

/// The connection manager's reason for a refusal by the peer's consumer, which may carry data.
pub(crate) const REJ_CONSUMER: i32 = raw::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as i32;

/// The reason for a refusal without a listener.
pub(crate) const REJ_NO_LISTENER: i32 = raw::ib_cm_rej_reason_IB_CM_REJ_INVALID_SERVICE_ID as i32;

/// The kind of an event of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmEventKind {
    /// The address is resolved, and the connection manager has chosen a device.
    AddrResolved,
    /// The route is resolved.
    RouteResolved,
    /// No route leads to the address.
    Unresolved,
    /// The peer accepted. Carries the peer's data.
    Response,
    /// The connection is established.
    Established,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer or its connection manager refused. Carries the peer's data.
    Rejected,
    /// The peer ended the connection, or confirmed the local end.
    Disconnected,
    /// The device is being removed.
    DeviceRemoval,
    /// The address moved to another device.
    AddrChange,
    /// The peer can no longer send old packets.
    TimewaitExit,
}

/// An event of an identifier.
pub(crate) struct CmEvent<'a> {
    /// The kind of the event.
    pub(crate) kind: CmEventKind,
    /// A negative errno, or the reason for [`CmEventKind::Rejected`].
    pub(crate) status: i32,
    /// The peer's private data.
    pub(crate) data: &'a [u8],
    /// The peer's queue pair, for [`CmEventKind::Response`].
    pub(crate) qp_num: u32,
}

/// Handler of an identifier's events. The handler may only schedule work.
///
/// Context: process. Locking: the identifier is locked.
pub(crate) trait CmHandler: Send + Sync + Sized + 'static {
    /// Handles an event of the identifier.
    fn event(this: ArcBorrow<'_, Self>, event: CmEvent<'_>);

    /// Handles a connection request on a listening identifier. To keep the request, the handler
    /// adopts it.
    ///
    /// # Errors
    ///
    /// - Any error: the request is dropped, and the connection manager refuses it.
    fn request(_this: ArcBorrow<'_, Self>, _request: Incoming<'_>) -> Result {
        Err(eopnotsupp())
    }
}

/// Parameters of a connection, as this side wants or the peer offers.
#[derive(Clone, Copy, Default)]
pub(crate) struct ConnParam {
    /// Maximum of the peer's reads in flight towards this side.
    pub(crate) responder_resources: u8,
    /// Maximum of this side's reads in flight.
    pub(crate) initiator_depth: u8,
    /// Retries of an unanswered packet; below 7, which means "for ever" on rxe.
    pub(crate) retry_count: u8,
    /// Retries of a message while the peer has no receive posted.
    pub(crate) rnr_retry_count: u8,
    /// Number of the local queue pair.
    pub(crate) qp_num: u32,
}

impl ConnParam {
    fn raw(&self, data: &[u8]) -> Result<raw::rdma_conn_param> {
        Ok(raw::rdma_conn_param {
            private_data: data.as_ptr().cast(),
            private_data_len: u8::try_from(data.len()).map_err(|_| EINVAL)?,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: 1,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            qp_num: self.qp_num,
            ..Default::default()
        })
    }
}

/// A connection request inside the handler of the listening identifier.
pub(crate) struct Incoming<'a> {
    id: NonNull<raw::rdma_cm_id>,
    adopted: &'a mut bool,
    /// The peer's parameters.
    pub(crate) param: ConnParam,
    /// The peer's private data.
    pub(crate) data: &'a [u8],
}

impl Incoming<'_> {
    /// Returns whether the request arrived on `device`.
    pub(crate) fn is_on(&self, device: &Device) -> bool {
        // SAFETY: The identifier is locked and alive during the handler.
        device.is(unsafe { (*self.id.as_ptr()).device })
    }

    /// Returns the peer's address.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        // SAFETY: The identifier is locked and alive during the handler.
        unsafe { Storage::read(&raw const (*self.id.as_ptr()).route.addr.dst_addr) }
    }

    /// Refuses the request with a message. The handler then returns an error.
    pub(crate) fn refuse(self, data: &[u8]) {
        // CAST: Messages have at most `DATA_MAX` bytes.
        let len = data.len() as u8;
        let reason = raw::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as u8;
        // SAFETY: The identifier is alive during the handler; the data is copied. If the connection
        // manager cannot send, it refuses without a message when the handler returns.
        unsafe { raw::rdma_reject(self.id.as_ptr(), data.as_ptr().cast(), len, reason) };
    }

    /// Moves the request's identifier out; its further events go to `handler`.
    pub(crate) fn adopt<H: CmHandler>(self, handler: Arc<H>) -> CmId<H> {
        // SAFETY: The identifier is locked, and the returned `CmId` keeps `handler` alive.
        unsafe { CmId::<H>::aim(self.id, &handler) };
        *self.adopted = true;
        // INVARIANT: The C handler will return 0, so the `CmId` owns it; its events go to
        // `handler`.
        CmId {
            id: self.id,
            handler,
        }
    }
}

/// A connection manager identifier.
///
/// Context of the drop: process, but not the identifier's own handler.
///
/// # Invariants
///
/// This object owns `id`, whose handler is [`handle`] with `handler` as context.
pub(crate) struct CmId<H: CmHandler> {
    id: NonNull<raw::rdma_cm_id>,
    handler: Arc<H>,
}

// SAFETY: Any thread may use the C object.
unsafe impl<H: CmHandler> Send for CmId<H> {}
// SAFETY: Any thread may use the C object; the connection manager locks.
unsafe impl<H: CmHandler> Sync for CmId<H> {}

/// # Safety
///
/// The caller is the connection manager, with an identifier whose context is a live `H` in an
/// `Arc`.
unsafe extern "C" fn handle<H: CmHandler>(
    id: *mut raw::rdma_cm_id,
    event: *mut raw::rdma_cm_event,
) -> c_int {
    let _traced = Traced::new();
    // SAFETY: By the caller's contract the context is a live `H` in an `Arc`.
    let handler = unsafe { ArcBorrow::from_raw((*id).context.cast::<H>().cast_const()) };
    // SAFETY: The connection manager passes an event that is valid during the call.
    let event = unsafe { &*event };
    use CmEventKind::*;
    let kind = match event.event {
        raw::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_REQUEST => {
            // SAFETY: This event carries connection parameters.
            let (param, data) = unsafe { conn(event) };
            let mut adopted = false;
            let Some(id) = NonNull::new(id) else {
                return 0;
            };
            let request = Incoming {
                id,
                adopted: &mut adopted,
                param,
                data,
            };
            let ret = H::request(handler, request);
            return match (adopted, ret) {
                // The adopter owns the identifier, even if the handler failed afterwards.
                (true, _) => 0,
                (false, Ok(())) => EINVAL.to_errno(),
                (false, Err(e)) => e.to_errno(),
            };
        }
        raw::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_RESOLVED => AddrResolved,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_RESOLVED => RouteResolved,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_ERROR
        | raw::rdma_cm_event_type_RDMA_CM_EVENT_ROUTE_ERROR => Unresolved,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_RESPONSE => Response,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_ESTABLISHED => Established,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_CONNECT_ERROR => ConnectError,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_UNREACHABLE => Unreachable,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_REJECTED => Rejected,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_DISCONNECTED => Disconnected,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_DEVICE_REMOVAL => DeviceRemoval,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_ADDR_CHANGE => AddrChange,
        raw::rdma_cm_event_type_RDMA_CM_EVENT_TIMEWAIT_EXIT => TimewaitExit,
        _ => return 0,
    };
    let (param, data) = match kind {
        // SAFETY: These events carry connection parameters. Those of `Established` are zeros, except
        // on the connecting side of iWARP, where they are the peer's acceptance.
        Response | Rejected | Established => unsafe { conn(event) },
        _ => (ConnParam::default(), &[][..]),
    };
    // iWARP has no reason for a refusal. Only a consumer's refusal has data.
    let status = match kind {
        Rejected if event.status < 0 && !data.is_empty() => REJ_CONSUMER,
        _ => event.status,
    };
    let told = CmEvent {
        kind,
        status,
        data,
        qp_num: param.qp_num,
    };
    H::event(handler, told);
    // With another value, the connection manager would destroy the identifier.
    0
}

/// Returns the parameters and private data of an event.
///
/// # Safety
///
/// The event is of a kind that carries connection parameters.
unsafe fn conn(event: &raw::rdma_cm_event) -> (ConnParam, &[u8]) {
    let param = core::ptr::from_ref(&event.param).cast::<raw::rdma_conn_param>();
    // SAFETY: By the caller's contract the union holds connection parameters.
    let param = unsafe { &*param };
    let data: &[u8] = if param.private_data.is_null() {
        &[]
    } else {
        // SAFETY: The connection manager passes data of this length, valid during the call.
        unsafe {
            core::slice::from_raw_parts(
                param.private_data.cast::<u8>(),
                usize::from(param.private_data_len),
            )
        }
    };
    let param = ConnParam {
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        qp_num: param.qp_num,
    };
    (param, data)
}

impl<H: CmHandler> CmId<H> {
    /// Creates an identifier for a reliable connection in `net`.
    pub(crate) fn new(net: &Net, handler: Arc<H>) -> Result<Self> {
        fault::device()?;
        // SAFETY: `net` keeps the namespace alive, and the identifier takes its own reference. By
        // the type invariant the context lives as long as the identifier. The name is static.
        let id = from_err_ptr(unsafe {
            raw::__rdma_create_kernel_id(
                net.as_ptr(),
                Some(handle::<H>),
                Arc::as_ptr(&handler).cast_mut().cast(),
                raw::rdma_ucm_port_space_RDMA_PS_TCP,
                raw::ib_qp_type_IB_QPT_RC,
                CALLER.as_char_ptr(),
            )
        })?;
        // INVARIANT: The identifier was created above with `handle` and this handler.
        Ok(Self {
            id: NonNull::new(id).ok_or(ENOMEM)?,
            handler,
        })
    }

    /// Sets `handler` as the receiver of an identifier's events.
    ///
    /// # Safety
    ///
    /// The caller has locked the identifier, and keeps `handler` alive as long as the identifier.
    unsafe fn aim(id: NonNull<raw::rdma_cm_id>, handler: &Arc<H>) {
        // SAFETY: The lock excludes the connection manager, the only reader of these fields.
        unsafe {
            (*id.as_ptr()).context = Arc::as_ptr(handler).cast_mut().cast();
            (*id.as_ptr()).event_handler = Some(handle::<H>);
        }
    }

    /// Replaces the handler. When this returns, no call of the old handler is in progress.
    pub(crate) fn hand_over<N: CmHandler>(self, handler: Arc<N>) -> CmId<N> {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: By the type invariant the identifier is alive; it is locked around the change.
        unsafe {
            raw::rdma_lock_handler(this.id.as_ptr());
            CmId::<N>::aim(this.id, &handler);
            raw::rdma_unlock_handler(this.id.as_ptr());
        }
        // SAFETY: `this` is not used again, so `handler` is moved out once.
        drop(unsafe { core::ptr::read(&this.handler) });
        // INVARIANT: The identifier is moved, and its events go to the new handler.
        CmId {
            id: this.id,
            handler,
        }
    }

    fn as_ptr(&self) -> *mut raw::rdma_cm_id {
        self.id.as_ptr()
    }

    /// Returns whether the identifier is bound to `device`.
    pub(crate) fn is_on(&self, device: &Device) -> bool {
        // SAFETY: By the type invariant the identifier is alive; the device pointer is only
        // compared.
        device.is(unsafe { (*self.as_ptr()).device })
    }

    /// Returns whether the identifier is bound to a device.
    pub(crate) fn is_bound(&self) -> bool {
        // SAFETY: By the type invariant the identifier is alive; the device pointer is only
        // compared.
        unsafe { !(*self.as_ptr()).device.is_null() }
    }

    /// Lets an identifier that is bound to the IPv6 address of all interfaces take IPv4 requests.
    pub(crate) fn allow_ipv4(&self) -> Result {
        // SAFETY: By the type invariant the identifier is alive.
        to_result(unsafe { raw::rdma_set_afonly(self.as_ptr(), 0) })
    }

    /// Binds the identifier to a local address. For port 0, the connection manager chooses a port.
    pub(crate) fn bind(&self, addr: &SockAddr) -> Result {
        let mut addr = Storage::new(addr)?;
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive; the address is copied.
        to_result(unsafe { raw::rdma_bind_addr(self.as_ptr(), addr.as_sockaddr()) })
    }

    /// Starts to listen for connection requests.
    pub(crate) fn listen(&self, backlog: u32) -> Result {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive.
        to_result(unsafe { raw::rdma_listen(self.as_ptr(), backlog) })
    }

    /// Starts to resolve `dst`, from `src` if `src` is an address.
    pub(crate) fn resolve_addr(&self, src: &SockAddr, dst: &SockAddr, timeout_ms: u32) -> Result {
        let mut from = Storage::default();
        let mut src_ptr = core::ptr::null_mut();
        if src.len != 0 {
            from = Storage::new(src)?;
            src_ptr = from.as_sockaddr();
        }
        let mut to = Storage::new(dst)?;
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive; the addresses are copied.
        let ret = to_result(unsafe {
            raw::rdma_resolve_addr(
                self.as_ptr(),
                src_ptr,
                to.as_sockaddr(),
                timeout_ms as c_ulong,
            )
        });
        // Keep `from` until here: `src_ptr` points into it.
        let _ = &from;
        ret
    }

    /// Starts to resolve the route.
    pub(crate) fn resolve_route(&self, timeout_ms: u32) -> Result {
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive.
        to_result(unsafe { raw::rdma_resolve_route(self.as_ptr(), timeout_ms as c_ulong) })
    }

    /// Sets the time to wait for an answer: 4.096 us times 2 to the power of `ack_timeout`. Also
    /// sets the time that a peer without a posted receive has to wait, in IBTA's encoding.
    ///
    /// The caller sets both before the route is resolved or the request accepted.
    pub(crate) fn set_timers(&self, ack_timeout: u8, min_rnr_timer: u8) -> Result {
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive.
        unsafe {
            to_result(raw::rdma_set_ack_timeout(self.as_ptr(), ack_timeout))?;
            to_result(raw::rdma_set_min_rnr_timer(self.as_ptr(), min_rnr_timer))
        }
    }

    /// Sends a connection request.
    pub(crate) fn connect(&self, param: &ConnParam, data: &[u8]) -> Result {
        let mut raw = param.raw(data)?;
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive; parameters and data are copied.
        to_result(unsafe { raw::rdma_connect(self.as_ptr(), &mut raw) })
    }

    /// Accepts a request. On a failure, the connection manager has refused the request.
    pub(crate) fn accept(&self, param: &ConnParam, data: &[u8]) -> Result {
        let mut raw = param.raw(data)?;
        // SAFETY: By the type invariant the identifier is alive; it is locked, as the call
        // requires.
        unsafe {
            raw::rdma_lock_handler(self.as_ptr());
            let ret = raw::rdma_accept(self.as_ptr(), &mut raw);
            raw::rdma_unlock_handler(self.as_ptr());
            to_result(ret)
        }
    }

    /// Answers a [`CmEventKind::Response`]: this side is ready to use.
    pub(crate) fn establish(&self) -> Result {
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive; it is locked, as the call
        // requires.
        unsafe {
            raw::rdma_lock_handler(self.as_ptr());
            let ret = raw::rdma_accept(self.as_ptr(), core::ptr::null_mut());
            raw::rdma_unlock_handler(self.as_ptr());
            to_result(ret)
        }
    }

    /// Refuses a request.
    pub(crate) fn reject(&self, data: &[u8]) -> Result {
        let len = u8::try_from(data.len()).map_err(|_| EINVAL)?;
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive; the data is copied.
        to_result(unsafe {
            raw::rdma_reject(
                self.as_ptr(),
                data.as_ptr().cast(),
                len,
                raw::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as u8,
            )
        })
    }

    /// Ends a connection, or confirms the peer's end. Has no effect without a connection.
    pub(crate) fn disconnect(&self) {
        // SAFETY: By the type invariant the identifier is alive. An error means no connection to
        // end.
        unsafe { raw::rdma_disconnect(self.as_ptr()) };
    }

    /// Reports to the connection manager that a message arrived before the peer's "ready to use".
    pub(crate) fn notify_established(&self) {
        // SAFETY: By the type invariant the identifier is alive. An error means that it knew
        // already.
        unsafe { raw::rdma_notify(self.as_ptr(), raw::ib_event_type_IB_EVENT_COMM_EST) };
    }

    /// Returns the attributes with which a queue pair of this connection moves to `state`.
    pub(super) fn qp_attr(&self, state: raw::ib_qp_state) -> Result<(raw::ib_qp_attr, c_int)> {
        if !self.is_bound() {
            return Err(enotconn());
        }
        let mut attr = raw::ib_qp_attr {
            qp_state: state,
            ..Default::default()
        };
        let mut mask = 0;
        fault::device()?;
        // SAFETY: By the type invariant the identifier is alive, and it is bound.
        to_result(unsafe { raw::rdma_init_qp_attr(self.as_ptr(), &mut attr, &mut mask) })?;
        Ok((attr, mask))
    }

    /// Returns the device's port, once the identifier is bound.
    pub(crate) fn port(&self) -> u32 {
        // SAFETY: By the type invariant the identifier is alive.
        unsafe { (*self.as_ptr()).port_num }
    }

    /// Returns the local address, as far as known.
    pub(crate) fn local_addr(&self) -> SockAddr {
        // SAFETY: By the type invariant the identifier is alive. A torn read during address
        // resolution gives a valid `SockAddr` with a wrong address.
        unsafe { Storage::read(&raw const (*self.as_ptr()).route.addr.src_addr) }
    }

    /// Returns the GIDs of this side and of the peer, by which queue pairs of this connection are
    /// connected. The identifier is a request, or its route is resolved.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the connection has no path, or an alternate path too.
    pub(crate) fn path_gids(&self) -> Result<(Gid, Gid)> {
        let (mut local, mut peer) = ([0; 16], [0; 16]);
        // SAFETY: By the type invariant the identifier is alive and its path stays from then on;
        // both arrays have 16 bytes.
        to_result(unsafe {
            raw::kverbs_path_gids(self.as_ptr(), local.as_mut_ptr(), peer.as_mut_ptr())
        })?;
        Ok((local, peer))
    }

    /// Returns the peer's address, as far as known.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        // SAFETY: By the type invariant the identifier is alive. A torn read during address
        // resolution gives a valid `SockAddr` with a wrong address.
        unsafe { Storage::read(&raw const (*self.as_ptr()).route.addr.dst_addr) }
    }
}

impl<H: CmHandler> Drop for CmId<H> {
    fn drop(&mut self) {
        // Keep the handler alive: it may be called until the identifier is destroyed.
        let _handler = &self.handler;
        // SAFETY: By the type invariant this object owns the identifier. The call waits for a
        // running handler, refuses an unanswered request and ends a connection.
        unsafe { raw::rdma_destroy_id(self.as_ptr()) };
    }
}
