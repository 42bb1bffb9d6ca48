// SPDX-License-Identifier: MIT OR Apache-2.0
//! Active endpoints: opening, binding and connecting.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kfabric::uapi as abi;
use kfabric::{Bind, EndpointAttr, Reach};

use crate::closed::Drain;
use crate::cntr::Counter;
use crate::cq::Cq;
use crate::domain::Domain;
use crate::eq::{param, Eq, Queue};
use crate::error::{errno, Errno, Ours};
use crate::fork::{self, Disabled};
use crate::object::{self, called, status, Kind};
use crate::pep::{self, Passive};
use crate::{addr, atomic, auth, ffi::*, info, post};

/// Capabilities by which an endpoint transmits.
const TRANSMITS: u64 = abi::KFI_SEND | abi::KFI_READ | abi::KFI_WRITE;
/// Capabilities by which an endpoint needs receives; writes with data take some, too.
const RECEIVES: u64 = abi::KFI_RECV | abi::KFI_REMOTE_WRITE;

/// One side of an endpoint: transmissions, or receives.
pub(crate) struct Side {
    /// Operation flags of calls without flags.
    pub(crate) flags: AtomicU64,
    /// Whether a completion needs FI_COMPLETION.
    pub(crate) selective: AtomicBool,
    /// Whether a queue or a counter is bound.
    bound: AtomicBool,
    /// Whether the program never uses the side, by the capabilities of its info.
    unused: bool,
}

impl Side {
    fn new(flags: u64, unused: bool) -> Self {
        Self {
            flags: flags.into(),
            selective: AtomicBool::default(),
            bound: AtomicBool::default(),
            unused,
        }
    }
}

/// An active endpoint.
pub(crate) struct Endpoint {
    pub(crate) ep: kfabric::Endpoint,
    /// The address of the object, which is the context of its events.
    at: usize,
    pub(crate) domain: Arc<kfabric::Domain>,
    pub(crate) tx: Side,
    pub(crate) rx: Side,
    enabled: AtomicBool,
    /// Address of a completion queue that is bound; 0 for none.
    cq: AtomicUsize,
    /// All queues that were bound, with their addresses.
    queues: Mutex<Vec<(Arc<Drain>, usize)>>,
    eq: OnceLock<Arc<Queue>>,
    /// The address of a passive endpoint, which this endpoint has taken.
    name: Option<SocketAddr>,
    /// Whether operations can ask to be visible at the peer before they complete.
    pub(crate) visible: bool,
    /// Whether the endpoint asked for rings.
    pub(crate) rings: bool,
}

static FID: Table<fi_ops> = object::ops::<Endpoint>(Some(bind), Some(control));
pub(crate) static OPS: Table<fi_ops_ep> = Table(fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(pep::setopt),
    tx_ctx: absent(),
    rx_ctx: absent(),
    rx_size_left: absent(),
    tx_size_left: absent(),
});
pub(crate) static CM: Table<fi_ops_cm> = Table(fi_ops_cm {
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

impl Kind for Endpoint {
    type Head = fid_ep;
    const CLASS: u32 = FI_CLASS_EP;
    const STAYS: bool = true;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, _: *mut c_void) -> fid_ep {
        fid_ep {
            fid,
            ops: OPS.get(),
            cm: CM.get(),
            msg: post::MSG.get(),
            rma: post::RMA.get(),
            tagged: post::TAGGED.get(),
            atomic: atomic::OPS.get(),
            collective: collectives(),
        }
    }

    fn queues(&self) -> Vec<Arc<Drain>> {
        let all = self.all_queues();
        all.iter().map(|(drain, _)| drain.clone()).collect()
    }

    fn disable(head: &mut fid_ep) {
        head.ops = Disabled::of(&fork::OPS);
        head.cm = Disabled::of(&fork::OPS);
        head.msg = Disabled::of(&fork::OPS);
        head.rma = Disabled::of(&fork::OPS);
        head.tagged = Disabled::of(&fork::OPS);
        head.atomic = Disabled::of(&fork::OPS);
    }

    fn end(self) -> Result<(), (Self, Errno)> {
        for (_, at) in self.all_queues().iter() {
            // SAFETY: the kernel closes no queue to which an endpoint is bound.
            unsafe { object::body::<Cq>(object::head::<Cq>(*at)) }.note_if_empty();
        }
        let Self { ep, .. } = self;
        match ep.close() {
            Ok(()) => {
                if let Some(eq) = self.eq.get() {
                    eq.forget(self.at);
                }
                Ok(())
            }
            Err(returned) => {
                let ep = returned.object;
                Err((Self { ep, ..self }, errno(&returned.error)))
            }
        }
    }
}

/// A size of an info; `EINVAL` if the kernel has no such size.
fn size(of: Option<usize>) -> Result<u32, Errno> {
    u32::try_from(of.unwrap_or(0)).map_err(|_| libc::EINVAL)
}

impl Endpoint {
    unsafe fn new(domain: &Domain, of: &fi_info, at: usize) -> Result<Self, Errno> {
        let requests = &domain.requests;
        // SAFETY: an info's parts are valid or null; an auth key and an address have their sizes;
        // the handle is an open passive endpoint, if it is one of them.
        let (tx, rx, ep, own, pep) = unsafe {
            (
                of.tx_attr.as_ref(),
                of.rx_attr.as_ref(),
                of.ep_attr.as_ref(),
                addr::from(of.src_addr, of.src_addrlen),
                requests
                    .is_passive(of.handle)
                    .then(|| object::body::<Passive>(of.handle)),
            )
        };
        if !matches!(ep.map_or(FI_EP_MSG, |e| e.type_), FI_EP_UNSPEC | FI_EP_MSG) {
            return Err(libc::EINVAL);
        }
        // SAFETY: an auth key has its size.
        let key = ep.map(|e| unsafe { auth::copy(e.auth_key, e.auth_key_size) });
        let key = key.transpose()?.flatten();
        // SAFETY: an info's parts are valid or null. The union has but one type.
        let progress = unsafe {
            let domain = of.domain_attr.as_ref();
            domain.map_or(FI_PROGRESS_UNSPEC, |d| d.__bindgen_anon_1.data_progress)
        };
        let order = tx.map_or(0, |t| t.msg_order) | rx.map_or(0, |r| r.msg_order);
        let rings = domain.rings && progress != FI_PROGRESS_AUTO && order & info::AFTER_SEND == 0;
        let iov_limit = tx.map(|t| t.iov_limit).max(rx.map(|r| r.iov_limit));
        let mut attr = EndpointAttr {
            tx_size: size(tx.map(|t| t.size))?,
            rx_size: size(rx.map(|r| r.size))?,
            iov_limit: size(iov_limit)?,
            context: at as u64,
            own_keys: domain.endpoint_keys,
            rings,
            auth_key: key.as_ref().map(auth::given).transpose()?,
            ..EndpointAttr::default()
        };
        let name = match pep {
            Some(pep) => pep.take_address()?,
            None => None,
        };
        let ep = if of.handle.is_null() || pep.is_some() {
            // The info's port is that of a listener; an active endpoint has any port.
            let mut own = own;
            if let Some(own) = &mut own {
                own.set_port(0);
            }
            attr.source = name.or(own);
            let opened = domain.domain.endpoint(&attr).ours();
            if let (Err(_), Some(pep)) = (&opened, pep) {
                pep.return_address();
            }
            opened?
        } else {
            requests.answer(of.handle, |request| {
                let opened = domain.domain.endpoint_for(request, &attr);
                opened.map_err(Box::new)
            })?
        };
        let caps = info::with_directions(of.caps);
        let unused = |bits: u64| caps != 0 && caps & bits == 0;
        Ok(Self {
            ep,
            at,
            domain: domain.domain.clone(),
            tx: Side::new(tx.map_or(0, |t| t.op_flags), unused(TRANSMITS)),
            rx: Side::new(rx.map_or(0, |r| r.op_flags), unused(RECEIVES)),
            enabled: AtomicBool::default(),
            cq: AtomicUsize::default(),
            queues: Mutex::default(),
            eq: OnceLock::new(),
            name,
            visible: domain.domain.visible() != Reach::No,
            rings,
        })
    }

    /// The sides with their bits in flags of binds.
    fn sides(&self) -> [(&Side, u64); 2] {
        [(&self.tx, abi::KFI_TRANSMIT), (&self.rx, abi::KFI_RECV)]
    }

    fn all_queues(&self) -> MutexGuard<'_, Vec<(Arc<Drain>, usize)>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bind_cq(&self, cq: &Cq, at: usize, flags: u64) -> Result<(), Errno> {
        let known = abi::KFI_TRANSMIT | abi::KFI_RECV | abi::KFI_SELECTIVE_COMPLETION;
        if flags & !known != 0 {
            return Err(FI_EBADFLAGS as Errno);
        }
        let bits = Bind::from_bits_retain(flags);
        self.ep.bind_completion_queue(&cq.cq, bits).ours()?;
        self.cq.store(at, Ordering::Relaxed);
        self.all_queues().push((cq.drain.clone(), at));
        for (side, _) in self.sides().iter().filter(|(_, bit)| flags & bit != 0) {
            side.bound.store(true, Ordering::Relaxed);
            let selective = flags & abi::KFI_SELECTIVE_COMPLETION != 0;
            side.selective.store(selective, Ordering::Relaxed);
        }
        Ok(())
    }

    fn bind_counter(&self, counter: &Counter, flags: u64) -> Result<(), Errno> {
        let remote = abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
        if flags & !(TRANSMITS | abi::KFI_RECV | remote) != 0 {
            return Err(FI_EBADFLAGS as Errno);
        }
        // The kernel does not know when a peer reads or writes, and no info has FI_RMA_EVENT, which such
        // counts need. A program may bind a counter for all that it could count, as libfabric's tests do.
        let flags = match flags & !remote {
            0 if flags != 0 => return Err(libc::ENOSYS),
            counted => counted,
        };
        let bits = Bind::from_bits_retain(flags);
        self.ep.bind_counter(&counter.counter, bits).ours()?;
        self.tx
            .bound
            .fetch_or(flags & TRANSMITS != 0, Ordering::Relaxed);
        let receives = flags & abi::KFI_RECV != 0;
        self.rx.bound.fetch_or(receives, Ordering::Relaxed);
        Ok(())
    }

    fn bind_eq(&self, eq: &Eq) -> Result<(), Errno> {
        self.ep.bind_event_queue(&eq.0.eq).ours()?;
        self.eq.set(eq.0.clone()).map_err(|_| libc::EINVAL)
    }

    /// Enables the endpoint, unless it is enabled.
    fn enable(&self) -> Result<(), Errno> {
        if self.enabled.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.eq.get().is_none() {
            return Err(FI_ENOEQ as Errno);
        }
        let cq = self.cq.load(Ordering::Relaxed);
        for (side, bit) in self.sides() {
            if side.bound.load(Ordering::Relaxed) {
                continue;
            }
            if !side.unused || cq == 0 {
                return Err(FI_ENOCQ as Errno);
            }
            // The kernel needs a queue for each side. This one gets no entries of the side.
            // SAFETY: a queue that is bound is open.
            let cq = unsafe { object::body::<Cq>(object::head::<Cq>(cq)) };
            self.bind_cq(cq, self.cq.load(Ordering::Relaxed), bit)?;
        }
        self.ep.enable().ours()?;
        self.enabled.store(true, Ordering::Release);
        Ok(())
    }

    /// Answers or changes the operation flags of a side, which `flags` names.
    fn operation_flags(&self, flags: &mut u64, change: bool) -> c_int {
        let both = abi::KFI_TRANSMIT | abi::KFI_RECV;
        let (side, known) = match *flags & both {
            abi::KFI_TRANSMIT => (&self.tx, post::FLAGS),
            abi::KFI_RECV => (&self.rx, post::RECV_FLAGS),
            _ => return -libc::EINVAL,
        };
        if !change {
            *flags = side.flags.load(Ordering::Relaxed);
        } else if *flags & !both & !known != 0 {
            return -(FI_EBADFLAGS as c_int);
        } else {
            side.flags.store(*flags & !both, Ordering::Relaxed);
        }
        0
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
    unsafe {
        object::open(to, context, |at| {
            Endpoint::new(object::body(domain), &*of, at)
        })
    }
}

unsafe extern "C" fn bind(fid: *mut fid, object: *mut fid, flags: u64) -> c_int {
    // SAFETY: two valid fids, the first one of an endpoint.
    unsafe {
        let ep = object::body::<Endpoint>(fid);
        let at = object.expose_provenance();
        if let Some(eq) = object::body_of_class::<Eq>(object) {
            return status(ep.bind_eq(eq));
        }
        if let Some(cq) = object::body_of_class::<Cq>(object) {
            return status(ep.bind_cq(cq, at, flags));
        }
        if let Some(counter) = object::body_of_class::<Counter>(object) {
            return status(ep.bind_counter(counter, flags));
        }
        match (*object).fclass as u32 {
            FI_CLASS_STX_CTX | FI_CLASS_SRX_CTX => -libc::ENOSYS,
            _ => -libc::EINVAL,
        }
    }
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: an endpoint's fid, and the argument that the command takes.
    unsafe {
        let ep = object::body::<Endpoint>(fid);
        match command as u32 {
            FI_ENABLE => status(ep.enable()),
            FI_GETOPSFLAG => ep.operation_flags(&mut *arg.cast(), false),
            FI_SETOPSFLAG => ep.operation_flags(&mut *arg.cast(), true),
            _ => -libc::ENOSYS,
        }
    }
}

unsafe extern "C" fn cancel(fid: fid_t, context: *mut c_void) -> isize {
    // SAFETY: an endpoint's fid. The context is a number to the kernel.
    let Some(ep) = (unsafe { object::body_if_open::<Endpoint>(fid) }) else {
        return -(libc::ENOENT as isize);
    };
    called(ep.ep.cancel(context.expose_provenance() as u64)) as isize
}

unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: an endpoint, and the caller's buffer.
    unsafe {
        let cm_data = object::body::<Endpoint>(fid).ep.cm_data_size();
        pep::option(cm_data, level, name, to, len)
    }
}

/// Answers `fi_getname` and `fi_getpeer`; without an address with `missing`.
unsafe fn answer(
    known: kfabric::Result<SocketAddr>,
    missing: Errno,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    match known {
        // SAFETY: the caller's buffer.
        Ok(known) => unsafe { addr::store(&known, to, len) },
        Err(kfabric::Error::Argument { .. }) => -missing,
        Err(error) => -errno(&error),
    }
}

unsafe extern "C" fn getname(fid: fid_t, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an endpoint, and the caller's buffer.
    unsafe {
        let ep = object::body::<Endpoint>(fid);
        let known = ep.name.map_or_else(|| ep.ep.local_addr(), Ok);
        answer(known, libc::EADDRNOTAVAIL, to, len)
    }
}

unsafe extern "C" fn getpeer(ep: *mut fid_ep, to: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an endpoint, and the caller's buffer.
    unsafe {
        let ep = object::body::<Endpoint>(ep);
        answer(ep.ep.peer_addr(), libc::ENOTCONN, to, len)
    }
}

unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    to: *const c_void,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: an endpoint, a `sockaddr` of its family's size, and the caller's data.
    let (ep, to, data) = unsafe {
        let to = addr::from(to, size_of::<libc::sockaddr_storage>());
        (object::body::<Endpoint>(ep), to, param(data, len))
    };
    let connected = to.ok_or(libc::EINVAL).and_then(|to| {
        ep.enable()?;
        ep.ep.connect(to, data).ours()
    });
    status(connected)
}

unsafe extern "C" fn accept(ep: *mut fid_ep, data: *const c_void, len: usize) -> c_int {
    // SAFETY: an endpoint, and the caller's data.
    let (ep, data) = unsafe { (object::body::<Endpoint>(ep), param(data, len)) };
    status(ep.enable().and_then(|()| ep.ep.accept(data).ours()))
}

unsafe extern "C" fn shutdown(ep: *mut fid_ep, flags: u64) -> c_int {
    if flags != 0 {
        return -(FI_EBADFLAGS as c_int);
    }
    // SAFETY: an endpoint.
    called(unsafe { object::body::<Endpoint>(ep) }.ep.shutdown())
}
