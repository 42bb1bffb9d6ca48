// SPDX-License-Identifier: GPL-2.0
//! Connection manager identifiers: a listening address, a request, one end of a connection.
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
    errno::{
        enotconn,
        eopnotsupp, //
    },
    fault,
    net::Net,
    uapi::SockAddr, //
};

/// Bytes of private data in any message of the connection manager, at most.
pub(crate) const DATA_MAX: usize = 255;

/// The connection manager's reason "the peer refused", which may carry data.
pub(crate) const REJ_CONSUMER: i32 = raw::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as i32;

/// What happened to an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CmEventKind {
    /// The address is resolved and a device chosen.
    AddrResolved,
    /// The route is resolved.
    RouteResolved,
    /// There is no way to the address.
    Unresolved,
    /// The peer accepted; its data.
    Response,
    /// The connection is up.
    Established,
    /// Connecting failed.
    ConnectError,
    /// The peer does not answer.
    Unreachable,
    /// The peer, or its connection manager, refused; its data.
    Rejected,
    /// The peer ended the connection, or answered that we did.
    Disconnected,
    /// The device is going.
    DeviceRemoval,
    /// The address moved to another device.
    AddrChange,
    /// The peer can no longer send anything old.
    TimewaitExit,
}

/// An event of an identifier.
pub(crate) struct CmEvent<'a> {
    /// What happened.
    pub(crate) kind: CmEventKind,
    /// Negative errno, or for [`CmEventKind::Rejected`] the reason.
    pub(crate) status: i32,
    /// The peer's private data.
    pub(crate) data: &'a [u8],
    /// With [`CmEventKind::Response`]: the peer's queue pair.
    pub(crate) qp_num: u32,
}

/// Who hears of an identifier's events. Called in process context with the identifier locked:
/// must only schedule.
pub(crate) trait CmHandler: Send + Sync + Sized + 'static {
    /// Something happened.
    fn event(this: ArcBorrow<'_, Self>, event: CmEvent<'_>);

    /// On a listening identifier: a peer asks to connect. To keep the request, adopt it.
    ///
    /// # Errors
    ///
    /// The request is then dropped, and refused by the connection manager.
    fn request(_this: ArcBorrow<'_, Self>, _request: Incoming<'_>) -> Result {
        Err(eopnotsupp())
    }
}

/// Parameters of a connection, as this side wants them or as the peer offers them.
#[derive(Clone, Copy, Default)]
pub(crate) struct ConnParam {
    /// Reads of the peer's that may be in flight towards us.
    pub(crate) responder_resources: u8,
    /// Reads of ours that may be in flight.
    pub(crate) initiator_depth: u8,
    /// Times that an unanswered packet is sent again; below 7, which rxe takes for "for ever".
    pub(crate) retry_count: u8,
    /// Times that a message is sent again when the peer has no receive posted.
    pub(crate) rnr_retry_count: u8,
    /// Our queue pair.
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

/// A request as it comes in, inside the handler of the listening identifier.
pub(crate) struct Incoming<'a> {
    id: NonNull<raw::rdma_cm_id>,
    adopted: &'a mut bool,
    /// What the peer offers.
    pub(crate) param: ConnParam,
    /// The peer's private data.
    pub(crate) data: &'a [u8],
}

impl Incoming<'_> {
    /// Whether it came in on `device`.
    pub(crate) fn is_on(&self, device: &Device) -> bool {
        // SAFETY: The identifier is locked and alive during the handler.
        device.is(unsafe { (*self.id.as_ptr()).device })
    }

    /// Takes the request over; its further events go to `handler`.
    pub(crate) fn adopt<H: CmHandler>(self, handler: Arc<H>) -> CmId<H> {
        // SAFETY: The identifier is locked, so no other event is being handled.
        unsafe { CmId::<H>::aim(self.id, &handler) };
        *self.adopted = true;
        // INVARIANT: It is ours since the C handler will return 0, and its events go to `handler`.
        CmId {
            id: self.id,
            handler,
        }
    }
}

/// A connection manager identifier.
///
/// To be dropped in process context, not by its own handler.
///
/// # Invariants
///
/// `id` is ours; its handler is [`handle`] with `handler` as context.
pub(crate) struct CmId<H: CmHandler> {
    id: NonNull<raw::rdma_cm_id>,
    handler: Arc<H>,
}

// SAFETY: The C object may be used by any thread.
unsafe impl<H: CmHandler> Send for CmId<H> {}
// SAFETY: As above; the connection manager locks.
unsafe impl<H: CmHandler> Sync for CmId<H> {}

/// # Safety
///
/// Called by the connection manager with an identifier whose context is an `H` that is alive.
unsafe extern "C" fn handle<H: CmHandler>(
    id: *mut raw::rdma_cm_id,
    event: *mut raw::rdma_cm_event,
) -> c_int {
    let _traced = Traced::new();
    // SAFETY: As the caller says; it is what an `Arc` holds.
    let handler = unsafe { ArcBorrow::from_raw((*id).context.cast::<H>().cast_const()) };
    // SAFETY: The event is valid during the call.
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
                // Whoever adopted it owns it, whatever else went wrong.
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
        // SAFETY: These events carry connection parameters.
        Response | Rejected => unsafe { conn(event) },
        _ => (ConnParam::default(), &[][..]),
    };
    let told = CmEvent {
        kind,
        status: event.status,
        data,
        qp_num: param.qp_num,
    };
    H::event(handler, told);
    // Anything else would make the connection manager destroy the identifier.
    0
}

/// Parameters and private data of an event.
///
/// # Safety
///
/// It is one of those that carry them.
unsafe fn conn(event: &raw::rdma_cm_event) -> (ConnParam, &[u8]) {
    let param = core::ptr::from_ref(&event.param).cast::<raw::rdma_conn_param>();
    // SAFETY: The caller says that this is what the union holds.
    let param = unsafe { &*param };
    let data: &[u8] = if param.private_data.is_null() {
        &[]
    } else {
        // SAFETY: The connection manager gives as many bytes as it says, for the call.
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
    /// Makes an identifier for a reliable connection in `net`.
    pub(crate) fn new(net: &Net, handler: Arc<H>) -> Result<Self> {
        fault::device()?;
        // SAFETY: The namespace is held by `net` and the identifier takes its own reference; the
        // context lives as long as the identifier, by the type invariant; the name is static.
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
        // INVARIANT: It was just made so.
        Ok(Self {
            id: NonNull::new(id).ok_or(ENOMEM)?,
            handler,
        })
    }

    /// Sends the events of an identifier to `handler`.
    ///
    /// # Safety
    ///
    /// The identifier is locked, and from now on `handler` lives at least as long as it.
    unsafe fn aim(id: NonNull<raw::rdma_cm_id>, handler: &Arc<H>) {
        // SAFETY: The lock excludes the connection manager, which alone reads these.
        unsafe {
            (*id.as_ptr()).context = Arc::as_ptr(handler).cast_mut().cast();
            (*id.as_ptr()).event_handler = Some(handle::<H>);
        }
    }

    /// Gives it another handler. When this returns the old one is not being called.
    pub(crate) fn hand_over<N: CmHandler>(self, handler: Arc<N>) -> CmId<N> {
        let this = core::mem::ManuallyDrop::new(self);
        // SAFETY: By the type invariant; locked around the change.
        unsafe {
            raw::rdma_lock_handler(this.id.as_ptr());
            CmId::<N>::aim(this.id, &handler);
            raw::rdma_unlock_handler(this.id.as_ptr());
        }
        // SAFETY: `this` is not used again, so `handler` is moved out once.
        drop(unsafe { core::ptr::read(&this.handler) });
        // INVARIANT: The identifier moves over, and its events were just redirected.
        CmId {
            id: this.id,
            handler,
        }
    }

    fn as_ptr(&self) -> *mut raw::rdma_cm_id {
        self.id.as_ptr()
    }

    /// Whether it is bound to `device`.
    pub(crate) fn is_on(&self, device: &Device) -> bool {
        // SAFETY: By the type invariant; the pointer is only compared.
        device.is(unsafe { (*self.as_ptr()).device })
    }

    /// Whether it is bound to any device.
    pub(crate) fn is_bound(&self) -> bool {
        // SAFETY: By the type invariant; the pointer is only compared.
        unsafe { !(*self.as_ptr()).device.is_null() }
    }

    /// Binds it to a local address; port 0: one is chosen.
    pub(crate) fn bind(&self, addr: &SockAddr) -> Result {
        let mut addr = Storage::new(addr)?;
        fault::device()?;
        // SAFETY: By the type invariant; the address is copied.
        to_result(unsafe { raw::rdma_bind_addr(self.as_ptr(), addr.as_sockaddr()) })
    }

    /// Starts to listen.
    pub(crate) fn listen(&self, backlog: u32) -> Result {
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        fault::device()?;
        // SAFETY: By the type invariant.
        to_result(unsafe { raw::rdma_listen(self.as_ptr(), backlog) })
    }

    /// Starts to resolve `dst`, from `src` if that is an address.
    pub(crate) fn resolve_addr(&self, src: &SockAddr, dst: &SockAddr, timeout_ms: u32) -> Result {
        let mut from = Storage::default();
        let mut src_ptr = core::ptr::null_mut();
        if src.len != 0 {
            from = Storage::new(src)?;
            src_ptr = from.as_sockaddr();
        }
        let mut to = Storage::new(dst)?;
        fault::device()?;
        // SAFETY: By the type invariant; the addresses are copied.
        let ret = to_result(unsafe {
            raw::rdma_resolve_addr(
                self.as_ptr(),
                src_ptr,
                to.as_sockaddr(),
                timeout_ms as c_ulong,
            )
        });
        // `src_ptr` pointed into it.
        let _ = &from;
        ret
    }

    /// Starts to resolve the route.
    pub(crate) fn resolve_route(&self, timeout_ms: u32) -> Result {
        fault::device()?;
        // SAFETY: By the type invariant.
        to_result(unsafe { raw::rdma_resolve_route(self.as_ptr(), timeout_ms as c_ulong) })
    }

    /// Sets how long an answer is waited for: 4.096 us times 2 to the `ack_timeout`; and how long
    /// a peer is told to wait for a receive, in IBTA's encoding. Before the route is resolved or
    /// the request accepted.
    pub(crate) fn set_timers(&self, ack_timeout: u8, min_rnr_timer: u8) -> Result {
        fault::device()?;
        // SAFETY: By the type invariant.
        unsafe {
            to_result(raw::rdma_set_ack_timeout(self.as_ptr(), ack_timeout))?;
            to_result(raw::rdma_set_min_rnr_timer(self.as_ptr(), min_rnr_timer))
        }
    }

    /// Asks the peer to connect.
    pub(crate) fn connect(&self, param: &ConnParam, data: &[u8]) -> Result {
        let mut raw = param.raw(data)?;
        fault::device()?;
        // SAFETY: By the type invariant; parameters and data are copied.
        to_result(unsafe { raw::rdma_connect(self.as_ptr(), &mut raw) })
    }

    /// Accepts a request. On a failure it was refused.
    pub(crate) fn accept(&self, param: &ConnParam, data: &[u8]) -> Result {
        let mut raw = param.raw(data)?;
        // SAFETY: By the type invariant; the call wants the identifier locked.
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
        // SAFETY: By the type invariant; the call wants the identifier locked.
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
        // SAFETY: By the type invariant; the data is copied.
        to_result(unsafe {
            raw::rdma_reject(
                self.as_ptr(),
                data.as_ptr().cast(),
                len,
                raw::ib_cm_rej_reason_IB_CM_REJ_CONSUMER_DEFINED as u8,
            )
        })
    }

    /// Ends a connection, or answers that the peer did. Does nothing without one.
    pub(crate) fn disconnect(&self) {
        // SAFETY: By the type invariant. A failure says that there is nothing to end.
        unsafe { raw::rdma_disconnect(self.as_ptr()) };
    }

    /// Tells the connection manager that a message came before the peer's "ready to use".
    pub(crate) fn notify_established(&self) {
        // SAFETY: By the type invariant. A failure says that it knew already.
        unsafe { raw::rdma_notify(self.as_ptr(), raw::ib_event_type_IB_EVENT_COMM_EST) };
    }

    /// What a queue pair needs to get to `state` in this connection.
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
        // SAFETY: By the type invariant, and it is bound.
        to_result(unsafe { raw::rdma_init_qp_attr(self.as_ptr(), &mut attr, &mut mask) })?;
        Ok((attr, mask))
    }

    /// The port of the device, once bound.
    pub(crate) fn port(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { (*self.as_ptr()).port_num }
    }

    /// Its own address, as far as known.
    pub(crate) fn local_addr(&self) -> SockAddr {
        // SAFETY: By the type invariant; a torn read of an address that is just being resolved
        // gives an address, if not a useful one.
        unsafe { Storage::read(&raw const (*self.as_ptr()).route.addr.src_addr) }
    }

    /// The peer's address, as far as known.
    pub(crate) fn peer_addr(&self) -> SockAddr {
        // SAFETY: As above.
        unsafe { Storage::read(&raw const (*self.as_ptr()).route.addr.dst_addr) }
    }
}

impl<H: CmHandler> Drop for CmId<H> {
    fn drop(&mut self) {
        // The handler may be called until the identifier is destroyed.
        let _handler = &self.handler;
        // SAFETY: By the type invariant it is ours. This waits for a running handler, refuses
        // what was not answered and ends what is connected.
        unsafe { raw::rdma_destroy_id(self.as_ptr()) };
    }
}
