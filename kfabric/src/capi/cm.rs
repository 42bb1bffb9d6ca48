// SPDX-License-Identifier: GPL-2.0
//! Passive endpoints, connection requests and connections of the C API.

use core::{
    ptr,
    sync::atomic::{
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

use super::{
    auth,
    ep::EpObj,
    event::EqObj,
    fabric::FabricObj,
    info,
    obj::{
        self,
        code,
        enosys,
        kfi_error,
        Object,
        Place, //
    },
    raw, //
};
use crate::{
    auth::AuthKey,
    base::errno::eopnotsupp,
    objects::{
        conn_request::Request,
        eq::Eq,
        fabric::Fabric,
        pep::PassiveEp, //
    },
    uapi::{
        SockAddr,
        KFI_CM_DATA_MAX,
        KFI_STATE_NEW, //
    },
};

/// A connection request that a consumer has read and not answered.
///
/// C code refers to the request by a number. A number is never reused, so a stale number matches no
/// request.
struct Waiting {
    number: u64,
    /// Address of the passive endpoint that received the request.
    pep: u64,
    /// The passive endpoint's fabric.
    fabric: Arc<Fabric>,
    request: Arc<Request>,
}

/// The last request number. Numbers look like pointers to unmapped memory: a consumer that follows
/// one faults.
static LAST: AtomicU64 = AtomicU64::new(1 << 63);

kernel::sync::global_lock! {
    // SAFETY: The module's init calls `init()`, before any consumer can listen.
    unsafe(uninit) static REQUESTS: Mutex<KVec<Waiting>> = KVec::new();
}

/// Initialises the list of requests, at module load.
///
/// # Safety
///
/// Called only once.
pub(super) unsafe fn init() {
    // SAFETY: By this function's contract it runs once.
    unsafe { REQUESTS.init() }
}

/// Frees the list's memory, at module unload, when no passive endpoint is open.
pub(super) fn exit() {
    let left = core::mem::replace(&mut *REQUESTS.lock(), KVec::new());
    drop(left);
}

/// Adds a request that the passive endpoint at address `pep` received on `fabric`. Returns the
/// handle that identifies the request to C code.
pub(super) fn add_request(
    request: Arc<Request>,
    pep: u64,
    fabric: &Arc<Fabric>,
) -> Result<*mut raw::kfid> {
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    let one = Waiting {
        number,
        pep,
        fabric: fabric.clone(),
        request,
    };
    REQUESTS.lock().push(one, GFP_KERNEL)?;
    // CAST: The number is not a pointer; no code follows it.
    Ok(number as *mut raw::kfid)
}

/// Whether both objects open the same fabric: a consumer may open a fabric anew per connection.
fn is_same(a: &Fabric, b: &Fabric) -> bool {
    // A fabric that was opened without a name stands for any fabric of its provider.
    let names = a.name() == b.name() || a.name().is_empty() || b.name().is_empty();
    names && a.net().as_ptr() == b.net().as_ptr() && a.provider().name() == b.provider().name()
}

/// Runs `answer` with a request that arrived on `fabric`, through any object of that fabric. If
/// `answer` succeeds, the request is removed.
///
/// # Errors
///
/// - `EINVAL` if no such request is unanswered on this fabric.
/// - Any error of `answer`.
pub(super) fn answer_request<T>(
    handle: *mut raw::kfid,
    fabric: &Fabric,
    answer: impl FnOnce(&Arc<Request>) -> Result<T>,
) -> Result<T> {
    let request = {
        let waiting = REQUESTS.lock();
        let found = waiting
            .iter()
            .find(|one| one.number == handle as u64 && is_same(&one.fabric, fabric));
        found.map(|one| one.request.clone()).ok_or(EINVAL)?
    };
    let result = answer(&request)?;
    let used = remove_request(|one| one.number == handle as u64);
    drop(used);
    Ok(result)
}

/// Refuses the unanswered requests of a passive endpoint.
fn forget_requests(pep: u64) {
    while let Some(one) = remove_request(|one| one.pep == pep) {
        drop(one);
    }
}

fn remove_request(which: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
    let mut waiting = REQUESTS.lock();
    let at = waiting.iter().position(which)?;
    waiting.remove(at).ok()
}

/// State of a passive endpoint.
struct Listening {
    addr: SockAddr,
    /// Auth keys that a peer must prove, if any.
    auth: KVec<AuthKey>,
    backlog: u32,
    eq: Option<Arc<Eq>>,
    pep: Option<Arc<PassiveEp>>,
}

#[pin_data]
struct Inner {
    #[pin]
    state: Mutex<Listening>,
}

/// A passive endpoint.
#[repr(C)]
pub(super) struct PepObj {
    fid: Opaque<raw::kfid_pep>,
    inner: Arc<Inner>,
    fabric: Arc<Fabric>,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for PepObj {
    type C = raw::kfid_pep;
    const CLASS: u32 = raw::KFI_CLASS_PEP;
    const OPS: &'static raw::kfi_ops = &PEP;
}

static PEP: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(pep_close),
    bind: Some(pep_bind),
    control: Some(pep_control),
    ops_open: Some(obj::no_ops),
};

/// Connection calls of endpoints and passive endpoints.
pub(super) static OPS: raw::kfi_ops_cm = raw::kfi_ops_cm {
    size: size_of::<raw::kfi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(getpeer),
    connect: Some(connect),
    listen: Some(listen),
    accept: Some(accept),
    reject: Some(reject),
    shutdown: Some(shutdown),
    join: Some(join),
};

fn open(
    fabric: &FabricObj,
    info: Option<&raw::kfi_info>,
    context: *mut c_void,
) -> Result<*mut raw::kfid_pep> {
    // SAFETY: The caller's info is valid; each of its attributes is valid or null.
    let (addr, auth) = unsafe {
        let info = info.ok_or(EINVAL)?;
        let ep = info.ep_attr.as_ref();
        let domain = info.domain_attr.as_ref();
        let own = auth::of_ep(ep)?;
        let auth = match (own, domain) {
            (None, Some(domain)) => auth::key(domain.auth_key, domain.auth_key_size)?,
            (own, _) => own,
        };
        (info::src_addr(info)?, auth)
    };
    let mut keys = KVec::new();
    if let Some(key) = auth {
        keys.push(key, GFP_KERNEL)?;
    }
    let place = Place::<PepObj>::new()?;
    let state = Listening {
        addr,
        auth: keys,
        backlog: 0,
        eq: None,
        pep: None,
    };
    let inner = Arc::pin_init(
        pin_init!(Inner {
            state <- new_mutex!(state, "kfabric_capi_pep"),
        }),
        GFP_KERNEL,
    )?;
    let object = PepObj {
        fid: Opaque::uninit(),
        inner,
        fabric: fabric.fabric.clone(),
    };
    Ok(place.put(object, context, |c| {
        c.ops = ptr::from_ref(&super::ep::EP_OPS).cast_mut();
        c.cm = ptr::from_ref(&OPS).cast_mut();
    }))
}

pub(super) unsafe extern "C" fn passive_ep(
    fabric: *mut raw::kfid_fabric,
    info: *mut raw::kfi_info,
    pep: *mut *mut raw::kfid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: The consumer passes an open fabric of this module, and an info or null.
    let (fabric, info) = unsafe { (obj::get::<FabricObj, _>(fabric), info.as_ref()) };
    code(open(fabric, info, context).map(|made| {
        // SAFETY: The caller passes a valid place for the result.
        unsafe { *pep = made }
    }))
}

unsafe extern "C" fn pep_close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a passive endpoint of this module and no longer uses it.
    let this = unsafe { obj::take::<PepObj>(fid) };
    let pep = this.inner.state.lock().pep.take();
    if let Some(pep) = pep {
        pep.close();
        // Wait for readers of the event queue: a reader may be adding a request, which
        // `forget_requests()` must refuse.
        pep.unseen();
    }
    // CAST: A pointer to its address.
    forget_requests(fid as u64);
    0
}

unsafe extern "C" fn pep_bind(fid: *mut raw::kfid, bfid: *mut raw::kfid, flags: u64) -> c_int {
    // SAFETY: The consumer passes an open passive endpoint, and another open object.
    let (this, eq) = unsafe { (obj::get::<PepObj, _>(fid), obj::try_get::<EqObj>(bfid)) };
    let mut state = this.inner.state.lock();
    match eq {
        Some(eq) if flags == 0 && state.eq.is_none() => state.eq = Some(eq.eq.clone()),
        _ => return EINVAL.to_errno(),
    }
    0
}

unsafe extern "C" fn pep_control(fid: *mut raw::kfid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: The consumer passes an open passive endpoint of this module.
    let this = unsafe { obj::get::<PepObj, _>(fid) };
    // CAST: Command numbers are small and positive.
    if command as u32 != raw::KFI_BACKLOG {
        return enosys().to_errno();
    }
    // SAFETY: The argument of `KFI_BACKLOG` is a pointer to an integer.
    let backlog = unsafe { arg.cast::<c_int>().as_ref() };
    match backlog.and_then(|backlog| u32::try_from(*backlog).ok()) {
        Some(backlog) => this.inner.state.lock().backlog = backlog,
        None => return EINVAL.to_errno(),
    }
    0
}

impl PepObj {
    fn listen(&self, context: u64) -> Result {
        let mut state = self.inner.state.lock();
        if state.pep.is_some() {
            return Err(EINVAL);
        }
        let eq = state.eq.as_ref().ok_or_else(|| kfi_error(raw::KFI_ENOEQ))?;
        let pep = PassiveEp::open_for(&self.fabric, eq, &state.addr, context, &state.auth)?;
        pep.listen(state.backlog)?;
        state.pep = Some(pep);
        Ok(())
    }
}

unsafe extern "C" fn listen(pep: *mut raw::kfid_pep) -> c_int {
    // SAFETY: The consumer passes an open passive endpoint of this module.
    let this = unsafe { obj::get::<PepObj, _>(pep) };
    // CAST: The endpoint's address is the context of its events.
    code(this.listen(pep as u64))
}

/// Returns how many bytes a request to a passive endpoint can carry.
///
/// # Errors
///
/// - Any error of the provider's `request_size`.
///
/// # Safety
///
/// `fid` is an open passive endpoint of this module.
pub(super) unsafe fn request_size(fid: *mut raw::kfid) -> Result<u32> {
    // SAFETY: By this function's contract.
    let this = unsafe { obj::get::<PepObj, _>(fid) };
    let keyed = !this.inner.state.lock().auth.is_empty();
    this.fabric.request_size(keyed)
}

/// The private data of a connection request or of an answer.
///
/// # Errors
///
/// - `EINVAL` if the data is longer than `KFI_CM_DATA_MAX`.
///
/// # Safety
///
/// `data` has `len` bytes, or is null.
unsafe fn param<'a>(data: *const c_void, len: usize) -> Result<&'a [u8]> {
    if data.is_null() || len == 0 {
        return Ok(&[]);
    }
    if len > KFI_CM_DATA_MAX {
        return Err(EINVAL);
    }
    // SAFETY: By this function's contract `data` has `len` bytes; it is not null here.
    Ok(unsafe { core::slice::from_raw_parts(data.cast(), len) })
}

unsafe extern "C" fn reject(
    pep: *mut raw::kfid_pep,
    handle: raw::kfid_t,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: The consumer passes an open passive endpoint, and `len` bytes of data or null.
    let (this, data) = unsafe { (obj::get::<PepObj, _>(pep), param(data, len)) };
    code(data.and_then(|data| answer_request(handle, &this.fabric, |request| request.reject(data))))
}

/// Copies an address to the caller's buffer, truncated to the buffer's size.
///
/// # Errors
///
/// - `KFI_ETOOSMALL` if the buffer is too small.
/// - `EINVAL` if `len` is null.
///
/// # Safety
///
/// `len` is valid or null; `addr` has room for `*len` bytes, or is null.
pub(super) unsafe fn address(found: &SockAddr, addr: *mut c_void, len: *mut usize) -> Result {
    // CAST: A `u32` fits.
    let bytes = found.data.get(..found.len as usize).ok_or(EINVAL)?;
    if len.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: By this function's contract on `len` and `addr`.
    unsafe {
        // A null buffer has room for no byte.
        let room = if addr.is_null() { 0 } else { *len };
        if room != 0 {
            ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast(), bytes.len().min(room));
        }
        *len = bytes.len();
        if bytes.len() > room {
            return Err(kfi_error(raw::KFI_ETOOSMALL));
        }
    }
    Ok(())
}

unsafe extern "C" fn getname(fid: *mut raw::kfid, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: The consumer passes an open endpoint or passive endpoint of this module.
    let pep = unsafe { obj::try_get::<PepObj>(fid) };
    let found = match pep {
        Some(pep) => {
            let state = pep.inner.state.lock();
            let configured = state.addr;
            state
                .pep
                .as_ref()
                .map_or(configured, |pep| pep.local_addr())
        }
        // SAFETY: The object is not a passive endpoint, so it is an endpoint.
        None => unsafe { obj::get::<EpObj, _>(fid) }.ep.local_addr(),
    };
    // SAFETY: The caller passes a buffer of `*len` bytes, or null.
    code(unsafe { address(&found, addr, len) })
}

unsafe extern "C" fn getpeer(ep: *mut raw::kfid_ep, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: The consumer passes an open endpoint of this module.
    let peer = unsafe { obj::get::<EpObj, _>(ep) }.ep.peer_addr();
    // SAFETY: The caller passes a buffer of `*len` bytes, or null.
    code(unsafe { address(&peer, addr, len) })
}

unsafe extern "C" fn setname(fid: *mut raw::kfid, addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: The consumer passes an open endpoint or passive endpoint of this module.
    let Some(pep) = (unsafe { obj::try_get::<PepObj>(fid) }) else {
        return eopnotsupp().to_errno();
    };
    // SAFETY: The caller passes an address of `len` bytes, or null.
    let addr = unsafe { info::given_addr(addr, len) };
    let mut state = pep.inner.state.lock();
    code(addr.and_then(|addr| {
        if state.pep.is_some() {
            return Err(EINVAL);
        }
        state.addr = addr;
        Ok(())
    }))
}

/// Enables an endpoint that connects or accepts, unless it is enabled already.
fn ready(this: &EpObj) -> Result {
    if this.ep.state() == KFI_STATE_NEW {
        return this.ep.enable();
    }
    Ok(())
}

unsafe extern "C" fn connect(
    ep: *mut raw::kfid_ep,
    addr: *const c_void,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: The consumer passes an open endpoint, an address or null, and `len` bytes or null.
    let (this, addr, data) = unsafe {
        let this = obj::get::<EpObj, _>(ep);
        let addr = if addr.is_null() {
            Ok(this.dest)
        } else {
            info::sockaddr(addr)
        };
        (this, addr, param(data, len))
    };
    let go = || {
        let (addr, data) = (addr?, data?);
        if addr.len == 0 {
            return Err(EINVAL);
        }
        ready(this)?;
        this.ep.connect(&addr, data)
    };
    code(go())
}

unsafe extern "C" fn accept(ep: *mut raw::kfid_ep, data: *const c_void, len: usize) -> c_int {
    // SAFETY: The consumer passes an open endpoint, and `len` bytes of data or null.
    let (this, data) = unsafe { (obj::get::<EpObj, _>(ep), param(data, len)) };
    code(data.and_then(|data| {
        ready(this)?;
        this.ep.accept(data)
    }))
}

unsafe extern "C" fn shutdown(ep: *mut raw::kfid_ep, flags: u64) -> c_int {
    if flags != 0 {
        return EINVAL.to_errno();
    }
    // SAFETY: The consumer passes an open endpoint of this module.
    code(unsafe { obj::get::<EpObj, _>(ep) }.ep.shutdown())
}

unsafe extern "C" fn join(
    _: *mut raw::kfid_ep,
    _: *const c_void,
    _: u64,
    _: *mut *mut raw::kfid_mc,
    _: *mut c_void,
) -> c_int {
    enosys().to_errno()
}
