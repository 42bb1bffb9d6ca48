// SPDX-License-Identifier: MIT OR Apache-2.0
//! Active endpoints: opening, binding and connecting.

use std::ffi::{c_int, c_void};
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use kfabric_uapi as abi;

use crate::domain::Domain;
use crate::ffi::*;
use crate::kernel::{address, Device, Errno};
use crate::{atomic, auth, cntr, cq, eq, info, pep, post, status};

/// An active endpoint.
#[repr(C)]
pub(crate) struct Endpoint {
    fid: fid_ep,
    pub(crate) dev: Arc<Device>,
    pub(crate) handle: u64,
    /// The kernel's handle of the domain.
    pub(crate) domain: u64,
    cm_data: usize,
    /// Operation flags of calls without flags.
    pub(crate) tx_flags: AtomicU64,
    pub(crate) rx_flags: AtomicU64,
    /// Whether transmit and receive completions need FI_COMPLETION.
    pub(crate) selective: [AtomicBool; 2],
    /// Whether a queue or a counter is bound to transmits and to receives.
    bound: [AtomicBool; 2],
    enabled: AtomicBool,
    /// Whether the program never transmits or never receives, by the capabilities of its info.
    unused: [bool; 2],
    /// The kernel's handle of a queue that is bound; 0 for none.
    cq: AtomicU64,
    /// The address of a passive endpoint, which this endpoint has taken.
    name: Option<abi::SockAddr>,
    /// Address of the event queue; 0 until one is bound.
    eq: AtomicUsize,
}

static FID: Table<fi_ops> = Table(fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: absent(),
    tostr: None,
    ops_set: None,
});
static OPS: Table<fi_ops_ep> = Table(fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(pep::setopt),
    tx_ctx: absent(),
    rx_ctx: absent(),
    rx_size_left: absent(),
    tx_size_left: absent(),
});
static CM: Table<fi_ops_cm> = Table(fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: absent(),
    getname: Some(getname),
    getpeer: Some(getpeer),
    connect: Some(connect),
    listen: absent(),
    accept: Some(accept),
    reject: absent(),
    shutdown: Some(shutdown),
    join: None,
});

/// Capabilities by which an endpoint transmits.
const MSG_TX: u64 = abi::KFI_SEND | abi::KFI_READ | abi::KFI_WRITE;
/// Capabilities by which an endpoint receives; with completion data, also a target of writes.
const MSG_RX: u64 = abi::KFI_RECV | abi::KFI_REMOTE_WRITE;

/// A size of an info for a call; `EINVAL` if the kernel has no such size.
fn size(of: usize) -> Result<u32, Errno> {
    u32::try_from(of).map_err(|_| libc::EINVAL)
}

unsafe fn make(
    domain: &Domain,
    of: &fi_info,
    context: *mut c_void,
) -> Result<*mut Endpoint, Errno> {
    let fid = fid {
        fclass: FI_CLASS_EP as usize,
        context,
        ops: FID.get(),
    };
    // SAFETY: infos have these parts, or null.
    let (tx, rx, kind) = unsafe {
        let kind = of.ep_attr.as_ref().map_or(FI_EP_MSG, |e| e.type_);
        (of.tx_attr.as_ref(), of.rx_attr.as_ref(), kind)
    };
    if !matches!(kind, FI_EP_UNSPEC | FI_EP_MSG) {
        return Err(libc::EINVAL);
    }
    let limits = tx
        .map_or(1, |t| t.iov_limit)
        .max(rx.map_or(1, |r| r.iov_limit));
    let (tx_size, rx_size) = (
        size(tx.map_or(0, |t| t.size))?,
        size(rx.map_or(0, |r| r.size))?,
    );
    let iov_limit = size(limits)?;
    let ep = Box::into_raw(Box::new(Endpoint {
        fid: fid_ep {
            fid,
            ops: OPS.get(),
            cm: CM.get(),
            msg: post::MSG.get(),
            rma: post::RMA.get(),
            tagged: post::TAGGED.get(),
            atomic: atomic::OPS.get(),
            collective: collectives(),
        },
        dev: domain.dev.clone(),
        handle: 0,
        domain: domain.handle,
        cm_data: domain.cm_data,
        tx_flags: AtomicU64::new(tx.map_or(0, |t| t.op_flags)),
        rx_flags: AtomicU64::new(rx.map_or(0, |r| r.op_flags)),
        selective: Default::default(),
        bound: Default::default(),
        enabled: AtomicBool::new(false),
        unused: [MSG_TX, MSG_RX].map(|side| of.caps != 0 && of.caps & side == 0),
        cq: AtomicU64::new(0),
        name: None,
        eq: AtomicUsize::new(0),
    }));
    let open = || {
        // SAFETY: an info's endpoint attributes, if any, have an auth key of its size, or none.
        let key = unsafe {
            match of.ep_attr.as_ref() {
                Some(attr) => auth::copy(attr.auth_key, attr.auth_key_size)?,
                None => None,
            }
        };
        // SAFETY: an info's handle is null, a connection request, or a passive endpoint.
        let taken = unsafe { pep::take_address(of.handle)? };
        let connreq = match of.handle.is_null() || taken.is_some() {
            true => 0,
            false => eq::take_request(of.handle)?,
        };
        let src = match (connreq, taken) {
            (0, Some(taken)) => taken,
            (0, None) => {
                // SAFETY: the info's address.
                let src = unsafe { info::addr_from(of.src_addr, of.src_addrlen) };
                let mut src = src.unwrap_or_default();
                // The info's port is that of a listener; an active endpoint has any port.
                src.data[2..4].fill(0);
                src
            }
            _ => abi::SockAddr::default(),
        };
        let mut arg = abi::EpOpen {
            domain: domain.handle,
            connreq,
            src_addr: src,
            context: ep.expose_provenance() as u64,
            tx_size,
            rx_size,
            iov_limit,
            ..Default::default()
        };
        (arg.auth_key, arg.auth_key_size) = auth::fields(key.as_ref());
        // SAFETY: the auth key lives through the call.
        let done = unsafe { domain.dev.call(&mut arg) };
        if done.is_err() && connreq != 0 {
            // Fails only if the peer has given up.
            let _ = eq::refuse(&domain.dev, connreq, &[]);
        }
        done.map(|()| (arg.handle, arg.cm_data_size, taken))
    };
    // SAFETY: just boxed; no other reference exists yet.
    unsafe {
        match open() {
            Ok((handle, cm_data, name)) => {
                ((*ep).handle, (*ep).name) = (handle, name);
                if cm_data != 0 {
                    (*ep).cm_data = cm_data as usize;
                }
                Ok(ep)
            }
            Err(errno) => {
                drop(Box::from_raw(ep));
                Err(errno)
            }
        }
    }
}

/// `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    of: *mut fi_info,
    to: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the domain is ours.
    status(unsafe { make(&*domain.cast(), &*of, context).map(|ep| *to = ep.cast()) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the fid of an endpoint, which `make` boxed and the caller gives up.
    unsafe {
        let ep = fid.cast::<Endpoint>();
        let done = (*ep).dev.close((*ep).handle);
        if done.is_ok() {
            let eq: *const eq::Queue =
                with_exposed_provenance_mut((*ep).eq.load(Ordering::Relaxed));
            if !eq.is_null() {
                (*eq).forget(ep.addr());
            }
            drop(Box::from_raw(ep));
        }
        status(done)
    }
}

unsafe extern "C" fn bind(fid: *mut fid, object: *mut fid, flags: u64) -> c_int {
    // SAFETY: two valid fids, the first one of an endpoint.
    unsafe {
        let ep = &*fid.cast::<Endpoint>();
        let (handle, bits) = match (*object).fclass as u32 {
            FI_CLASS_EQ => ((*object.cast::<eq::Queue>()).handle, 0),
            FI_CLASS_CQ => {
                let known = abi::KFI_TRANSMIT | abi::KFI_RECV | abi::KFI_SELECTIVE_COMPLETION;
                if flags & !known != 0 {
                    return -(FI_EBADFLAGS as c_int);
                }
                ((*object.cast::<cq::Queue>()).handle, flags)
            }
            FI_CLASS_CNTR => {
                let known = abi::KFI_SEND | abi::KFI_RECV | abi::KFI_READ | abi::KFI_WRITE;
                if flags & !known != 0 {
                    return -(FI_EBADFLAGS as c_int);
                }
                ((*object.cast::<cntr::Counter>()).handle, flags)
            }
            FI_CLASS_STX_CTX | FI_CLASS_SRX_CTX => return -libc::ENOSYS,
            _ => return -libc::EINVAL,
        };
        let mut arg = abi::Bind {
            ep: ep.handle,
            object: handle,
            bind_flags: bits,
            ..Default::default()
        };
        if let Err(errno) = ep.dev.call(&mut arg) {
            return -errno;
        }
        if (*object).fclass == FI_CLASS_EQ as usize {
            ep.eq.store(object.expose_provenance(), Ordering::Relaxed);
        }
        let sides = match (*object).fclass as u32 {
            FI_CLASS_CQ => [abi::KFI_TRANSMIT, abi::KFI_RECV],
            FI_CLASS_CNTR => [MSG_TX, abi::KFI_RECV],
            _ => [0; 2],
        };
        for (bound, bits) in ep.bound.iter().zip(sides) {
            bound.fetch_or(flags & bits != 0, Ordering::Relaxed);
        }
        if (*object).fclass == FI_CLASS_CQ as usize {
            ep.cq.store(handle, Ordering::Relaxed);
            for (side, bit) in ep.selective.iter().zip([abi::KFI_TRANSMIT, abi::KFI_RECV]) {
                if flags & bit != 0 {
                    side.store(
                        flags & abi::KFI_SELECTIVE_COMPLETION != 0,
                        Ordering::Relaxed,
                    );
                }
            }
        }
    }
    0
}

impl Endpoint {
    /// Enables the endpoint, unless it is enabled.
    fn enable(&self) -> Result<(), Errno> {
        if self.enabled.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.eq.load(Ordering::Relaxed) == 0 {
            return Err(FI_ENOEQ as Errno);
        }
        let cq = self.cq.load(Ordering::Relaxed);
        let sides = [abi::KFI_TRANSMIT, abi::KFI_RECV];
        for ((bound, unused), side) in self.bound.iter().zip(self.unused).zip(sides) {
            if bound.load(Ordering::Relaxed) {
                continue;
            }
            if !unused || cq == 0 {
                return Err(FI_ENOCQ as Errno);
            }
            // The kernel needs a queue for each side. This one stays without entries of the side.
            let mut arg = abi::Bind {
                ep: self.handle,
                object: cq,
                bind_flags: side | abi::KFI_SELECTIVE_COMPLETION,
                ..Default::default()
            };
            // SAFETY: no pointers.
            unsafe { self.dev.call(&mut arg)? };
            bound.store(true, Ordering::Relaxed);
        }
        let mut arg = abi::ObjectCall {
            handle: self.handle,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.dev.call(&mut arg)? };
        self.enabled.store(true, Ordering::Release);
        Ok(())
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: an endpoint's fid, and the argument that the command takes.
    unsafe {
        let ep = &*fid.cast::<Endpoint>();
        match command as u32 {
            FI_ENABLE => status(ep.enable()),
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                let at = arg.cast::<u64>();
                let sides = abi::KFI_TRANSMIT | abi::KFI_RECV;
                let flags = match *at & sides {
                    abi::KFI_TRANSMIT => &ep.tx_flags,
                    abi::KFI_RECV => &ep.rx_flags,
                    _ => return -libc::EINVAL,
                };
                if command as u32 == FI_GETOPSFLAG {
                    *at = flags.load(Ordering::Relaxed);
                } else if *at & !sides & !post::FLAGS != 0 {
                    return -(FI_EBADFLAGS as c_int);
                } else {
                    flags.store(*at & !sides, Ordering::Relaxed);
                }
                0
            }
            _ => -libc::ENOSYS,
        }
    }
}

unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    // SAFETY: an endpoint's fid. The context is a number to the kernel.
    unsafe {
        let ep = &*fid.cast::<Endpoint>();
        let context = context.expose_provenance() as u64;
        let mut arg = abi::Cancel {
            ep: ep.handle,
            context,
            ..Default::default()
        };
        status(ep.dev.call(&mut arg)) as isize
    }
}

unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: an endpoint, and the caller's buffer.
    unsafe { pep::option((*fid.cast::<Endpoint>()).cm_data, level, name, to, len) }
}

unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an endpoint, and the caller's buffer.
    unsafe {
        let ep = &*fid.cast::<Endpoint>();
        let known = match ep.name {
            Some(taken) => Ok(taken),
            None => ep.dev.name(ep.handle, false),
        };
        match known {
            Ok(known) => pep::store(&known, addr, len),
            Err(errno) => -errno,
        }
    }
}

unsafe extern "C" fn getpeer(ep: *mut fid_ep, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an endpoint, and the caller's buffer.
    unsafe {
        let ep = &*ep.cast::<Endpoint>();
        match ep.dev.name(ep.handle, true) {
            Ok(known) if known.len == 0 => -libc::ENOTCONN,
            Ok(known) => pep::store(&known, addr, len),
            Err(errno) => -errno,
        }
    }
}

unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: an endpoint, a `sockaddr` of its family's size, and the caller's data.
    unsafe {
        let ep = &*ep.cast::<Endpoint>();
        let Some(addr) = info::addr_from(addr, size_of::<libc::sockaddr_storage>()) else {
            return -libc::EINVAL;
        };
        if let Err(errno) = ep.enable() {
            return -errno;
        }
        let data = eq::param(param, len);
        let mut arg = abi::Connect {
            ep: ep.handle,
            addr,
            param: data.first().map_or(0, address),
            param_len: u32::try_from(data.len()).unwrap_or(u32::MAX),
            ..Default::default()
        };
        status(ep.dev.call(&mut arg))
    }
}

unsafe extern "C" fn accept(ep: *mut fid_ep, param: *const c_void, len: usize) -> c_int {
    // SAFETY: an endpoint, and the caller's data.
    unsafe {
        let ep = &*ep.cast::<Endpoint>();
        if let Err(errno) = ep.enable() {
            return -errno;
        }
        let data = eq::param(param, len);
        let mut arg = abi::Accept {
            ep: ep.handle,
            param: data.first().map_or(0, address),
            param_len: u32::try_from(data.len()).unwrap_or(u32::MAX),
            ..Default::default()
        };
        status(ep.dev.call(&mut arg))
    }
}

unsafe extern "C" fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    if flags != 0 {
        return -(FI_EBADFLAGS as c_int);
    }
    // SAFETY: an endpoint.
    unsafe {
        let ep = &*ep.cast::<Endpoint>();
        let mut arg = abi::Shutdown {
            ep: ep.handle,
            ..Default::default()
        };
        status(ep.dev.call(&mut arg))
    }
}
