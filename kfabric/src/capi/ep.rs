// SPDX-License-Identifier: GPL-2.0
//! Endpoints.

use core::ptr;
use kernel::{
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    atomic,
    auth,
    cm,
    event::EqObj,
    fabric::DomainObj,
    info,
    obj::{
        self,
        code,
        enosys,
        kfi_error,
        Object,
        Place, //
    },
    post,
    queue::{
        CntrObj,
        CqObj,
        Handler, //
    },
    raw, //
};
use crate::{
    ep::{
        Endpoint,
        EpAttr, //
    },
    objects::conn_request::Request,
    uapi::{
        SockAddr,
        KFI_EP_MSG, //
    },
};

/// `KFI_SHARED_CONTEXT`, as a count of contexts.
const SHARED_CONTEXT: usize = usize::MAX;

/// An endpoint.
#[repr(C)]
pub(super) struct EpObj {
    fid: Opaque<raw::kfid_ep>,
    pub(super) ep: Arc<Endpoint>,
    /// Destination address of the info, for a `kfi_connect()` without an address.
    pub(super) dest: SockAddr,
    /// Default flags of the transmit side and of the receive side, for calls without flags.
    pub(super) flags: (u64, u64),
    /// Completion handlers of the bound completion queues.
    handlers: [Option<Arc<Handler>>; 2],
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for EpObj {
    type C = raw::kfid_ep;
    const CLASS: u32 = raw::KFI_CLASS_EP;
    const OPS: &'static raw::kfi_ops = &EP;
}

static EP: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(obj::no_ops),
};

/// Table of the calls that endpoints and passive endpoints share.
pub(super) static EP_OPS: raw::kfi_ops_ep = raw::kfi_ops_ep {
    size: size_of::<raw::kfi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(tx_ctx),
    rx_ctx: Some(rx_ctx),
};

/// Returns a size as a `u32`. A larger size becomes the maximum, which exceeds every domain's
/// limit.
fn size(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

fn open(
    domain: &DomainObj,
    info: &raw::kfi_info,
    context: *mut c_void,
) -> Result<*mut raw::kfid_ep> {
    // SAFETY: The caller's info is valid; each of its attributes is valid or null.
    let (tx, rx, ep) = unsafe {
        (
            info.tx_attr.as_ref(),
            info.rx_attr.as_ref(),
            info.ep_attr.as_ref(),
        )
    };
    if let Some(ep) = ep {
        if ep.type_ != raw::kfi_ep_type_KFI_EP_UNSPEC && ep.type_ != KFI_EP_MSG {
            return Err(enosys());
        }
        // Context counts are ignored: an endpoint has exactly one context of its own on each side.
        // Shared contexts are not supported.
        if ep.tx_ctx_cnt == SHARED_CONTEXT || ep.rx_ctx_cnt == SHARED_CONTEXT {
            return Err(EINVAL);
        }
    }
    let flags = (
        post::check_own_flags(tx.map_or(0, |tx| tx.op_flags))?,
        post::check_own_flags(rx.map_or(0, |rx| rx.op_flags))?,
    );
    let place = Place::<EpObj>::new()?;
    let pieces = |tx: usize, rx: usize| size(tx.max(rx));
    let attr = EpAttr {
        tx_size: size(tx.map_or(0, |tx| tx.size)),
        rx_size: size(rx.map_or(0, |rx| rx.size)),
        iov_limit: pieces(
            tx.map_or(0, |tx| tx.iov_limit),
            rx.map_or(0, |rx| rx.iov_limit),
        ),
        src_addr: if info.handle.is_null() {
            // SAFETY: The caller's info is valid, with its source address.
            unsafe { info::src_addr(info)? }
        } else {
            SockAddr::default()
        },
        // CAST: The endpoint's events carry the address of its C structure.
        context: place.ptr() as u64,
        own_keys: domain.ep_keys,
        reuse_values: false,
        strict_values: false,
    };
    // SAFETY: The caller's info is valid, with its destination address.
    let dest = unsafe { info::dest_addr(info)? };
    // SAFETY: The auth key of the attributes has as many bytes as its size states, or is null.
    let auth = unsafe { auth::of_ep(ep)? };
    let make = |request: Option<&Arc<Request>>| match &auth {
        Some(key) => Endpoint::open_with(&domain.domain, &attr, request, key),
        None => Endpoint::open(&domain.domain, &attr, request),
    };
    let ep = if info.handle.is_null() {
        make(None)?
    } else {
        let fabric = domain.domain.fabric();
        cm::answer_request(info.handle, fabric, |request| make(Some(request)))?
    };
    let object = EpObj {
        fid: Opaque::uninit(),
        ep,
        dest,
        flags,
        handlers: [const { None }; 2],
    };
    Ok(place.put(object, context, |c| {
        c.ops = ptr::from_ref(&EP_OPS).cast_mut();
        c.cm = ptr::from_ref(&cm::OPS).cast_mut();
        c.msg = ptr::from_ref(&post::MSG).cast_mut();
        c.rma = ptr::from_ref(&post::RMA).cast_mut();
        c.tagged = &raw mut raw::kf_c_no_tagged;
        c.atomic = ptr::from_ref(&atomic::OPS).cast_mut();
    }))
}

pub(super) unsafe extern "C" fn endpoint(
    domain: *mut raw::kfid_domain,
    info: *mut raw::kfi_info,
    ep: *mut *mut raw::kfid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open domain of this module, and an info or null.
    let (domain, info) = unsafe { (obj::get::<DomainObj, _>(domain), info.as_ref()) };
    let made = info
        .ok_or(EINVAL)
        .and_then(|info| open(domain, info, context));
    code(made.map(|made| {
        // SAFETY: The caller passes a valid place for the result.
        unsafe { *ep = made }
    }))
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes an endpoint of this module and makes no more calls on it.
    let this = unsafe { obj::get::<EpObj, _>(fid) };
    // Events carry the endpoint's address. Wait until no task reads such an event.
    this.ep.close();
    this.ep.unseen();
    // Every completion of the endpoint is in its queues now. Wait until the consumer's handlers
    // have returned for all of them.
    for handler in this.handlers.iter().flatten() {
        Handler::settle(handler);
    }
    // SAFETY: The consumer makes no more calls on the endpoint. No operation, event or handler call
    // refers to it any more.
    drop(unsafe { obj::take::<EpObj>(fid) });
    0
}

unsafe extern "C" fn bind(fid: *mut raw::kfid, bfid: *mut raw::kfid, flags: u64) -> c_int {
    // SAFETY: The consumer passes an open endpoint of this module and makes no other call on it
    // during a bind.
    let this = unsafe { &mut *fid.cast::<EpObj>() };
    let ep = &this.ep;
    // SAFETY: The consumer passes another open object.
    let bound = if let Some(eq) = unsafe { obj::try_get::<EqObj>(bfid) } {
        if flags == 0 {
            ep.bind_eq(&eq.eq)
        } else {
            Err(EINVAL)
        }
    // SAFETY: The consumer passes another open object.
    } else if let Some(cq) = unsafe { obj::try_get::<CqObj>(bfid) } {
        ep.bind_cq(&cq.cq, flags).inspect(|()| {
            // There is a free place: each side accepts at most one queue.
            if let Some(place) = this.handlers.iter_mut().find(|place| place.is_none()) {
                *place = cq.handler.clone();
            }
        })
    // SAFETY: The consumer passes another open object.
    } else if let Some(cntr) = unsafe { obj::try_get::<CntrObj>(bfid) } {
        ep.bind_cntr(&cntr.cntr, flags)
    } else {
        Err(EINVAL)
    };
    code(bound)
}

unsafe extern "C" fn control(fid: *mut raw::kfid, command: c_int, _arg: *mut c_void) -> c_int {
    // CAST: Commands are small positive numbers.
    if command as u32 != raw::KFI_ENABLE {
        return enosys().to_errno();
    }
    // SAFETY: The consumer passes an open endpoint of this module.
    code(unsafe { obj::get::<EpObj, _>(fid) }.ep.enable())
}

unsafe extern "C" fn cancel(fid: *mut raw::kfid, context: *mut c_void) -> isize {
    // SAFETY: The consumer passes an open endpoint or passive endpoint of this module.
    let cancelled = match unsafe { obj::try_get::<EpObj>(fid) } {
        // CAST: The consumer's pointer fits in 64 bits; the core does not follow it.
        Some(this) => this.ep.cancel(context as u64),
        None => Err(EINVAL),
    };
    // CAST: An `isize` holds every `c_int`.
    code(cancelled) as isize
}

fn no_option() -> Error {
    kfi_error(bindings::ENOPROTOOPT)
}

unsafe extern "C" fn getopt(
    fid: *mut raw::kfid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    // CAST: A negative number becomes one that no option has.
    let option = (level as u32, name as u32);
    if option != (raw::KFI_OPT_ENDPOINT, raw::KFI_OPT_CM_DATA_SIZE) {
        return no_option().to_errno();
    }
    // SAFETY: The consumer passes an open endpoint or passive endpoint of this module.
    let size = match unsafe { obj::try_get::<EpObj>(fid) } {
        Some(this) => Ok(this.ep.cm_data_size()),
        // SAFETY: The object is not an endpoint, so it is a passive endpoint.
        None => unsafe { cm::request_size(fid) },
    };
    let size = match size {
        // CAST: A `usize` holds every `u32`.
        Ok(size) => size as usize,
        Err(e) => return e.to_errno(),
    };
    if value.is_null() || len.is_null() {
        return EINVAL.to_errno();
    }
    // SAFETY: The caller passes a valid `len` and a buffer of `*len` bytes; neither is null here.
    unsafe {
        let room = *len;
        *len = size_of::<usize>();
        if room < size_of::<usize>() {
            return kfi_error(raw::KFI_ETOOSMALL).to_errno();
        }
        value.cast::<usize>().write_unaligned(size);
    }
    0
}

unsafe extern "C" fn setopt(
    _: *mut raw::kfid,
    _: c_int,
    _: c_int,
    _: *const c_void,
    _: usize,
) -> c_int {
    no_option().to_errno()
}

unsafe extern "C" fn tx_ctx(
    _: *mut raw::kfid_ep,
    _: c_int,
    _: *mut raw::kfi_tx_attr,
    _: *mut *mut raw::kfid_ep,
    _: *mut c_void,
) -> c_int {
    enosys().to_errno()
}

unsafe extern "C" fn rx_ctx(
    _: *mut raw::kfid_ep,
    _: c_int,
    _: *mut raw::kfi_rx_attr,
    _: *mut *mut raw::kfid_ep,
    _: *mut c_void,
) -> c_int {
    enosys().to_errno()
}
