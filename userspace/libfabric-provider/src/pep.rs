// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passive endpoints. The kernel's object is opened when the address and the event queue are
//! known.

use std::ffi::{c_int, c_void};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kfabric::uapi::KFI_AUTH_CM_DATA;
use kfabric::{Hints, PassiveEndpoint};
use kfauth::AuthKey;

use crate::asked::Asked;
use crate::eq::{param, Eq, Queue, Requests};
use crate::error::{errno, Errno, Ours};
use crate::fabric::Fabric;
use crate::fork::{self, Disabled};
use crate::object::{self, status, Kind};
use crate::{addr, auth, ffi::*, info};

#[derive(Default)]
struct State {
    addr: Option<SocketAddr>,
    eq: Option<Arc<Queue>>,
    pep: Option<PassiveEndpoint>,
    listens: bool,
    /// Greatest number of pending requests; 0 for a default.
    backlog: u32,
    /// An active endpoint has taken the address.
    taken: bool,
}

/// A passive endpoint.
pub(crate) struct Passive {
    /// The address of the object, which is the context of its events.
    at: usize,
    fabric: Arc<kfabric::Fabric>,
    requests: Arc<Requests>,
    cm_data: usize,
    /// Auth keys of the endpoint's and the domain's attributes. Connection requests return them.
    ep_key: Option<AuthKey>,
    domain_key: Option<AuthKey>,
    wanted: Asked,
    state: Mutex<State>,
}

static FID: Table<fi_ops> = object::ops::<Passive>(Some(bind), Some(control));
pub(crate) static OPS: Table<fi_ops_ep> = Table(fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: absent(),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: absent(),
    rx_ctx: absent(),
    rx_size_left: absent(),
    tx_size_left: absent(),
});
pub(crate) static CM: Table<fi_ops_cm> = Table(fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: absent(),
    connect: absent(),
    listen: Some(listen),
    accept: absent(),
    reject: Some(reject),
    shutdown: absent(),
    join: None,
});

impl Kind for Passive {
    type Head = fid_pep;
    const CLASS: u32 = FI_CLASS_PEP;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, _: *mut c_void) -> fid_pep {
        fid_pep {
            fid,
            ops: OPS.get(),
            cm: CM.get(),
        }
    }

    fn disable(head: &mut fid_pep) {
        head.ops = Disabled::of(&fork::OPS);
        head.cm = Disabled::of(&fork::OPS);
    }

    fn end(mut self) -> Result<(), (Self, Errno)> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(returned)) = state.pep.take().map(PassiveEndpoint::close) {
            state.pep = Some(returned.object);
            return Err((self, errno(&returned.error)));
        }
        if let Some(eq) = &state.eq {
            eq.forget(self.at);
        }
        self.requests.remove_passive(self.at);
        Ok(())
    }
}

/// Returns the most connection data of a fabric's endpoints.
fn data_size(fabric: &Fabric, keyed: bool) -> Result<usize, Errno> {
    let hints = Hints::new().provider(&fabric.prov).fabric(&fabric.name);
    let offers = fabric.device.info(&hints).ours()?;
    let sizes = offers.iter().map(|offer| offer.raw().cm_data_size as usize);
    let least = sizes.min().ok_or(libc::ENODEV)?;
    Ok(match keyed {
        true => least.min(KFI_AUTH_CM_DATA),
        false => least,
    })
}

impl Passive {
    unsafe fn new(fabric: &Fabric, of: &fi_info, at: usize) -> Result<Self, Errno> {
        // SAFETY: an info's parts, if any, have auth keys of their sizes, or none; its address has
        // its length.
        let (ep_key, domain_key, own, wanted) = unsafe {
            let (ep, domain) = (of.ep_attr.as_ref(), of.domain_attr.as_ref());
            let wanted = Asked::of(of);
            let ep = ep.map(|a| auth::copy(a.auth_key, a.auth_key_size));
            let domain = domain.map(|a| auth::copy(a.auth_key, a.auth_key_size));
            (
                ep.transpose()?.flatten(),
                domain.transpose()?.flatten(),
                addr::from(of.src_addr, of.src_addrlen),
                wanted,
            )
        };
        let keyed = ep_key.is_some() || domain_key.is_some() || auth::default()?.is_some();
        let cm_data = data_size(fabric, keyed)?;
        fabric.requests.add_passive(at);
        Ok(Self {
            at,
            fabric: fabric.fabric.clone(),
            requests: fabric.requests.clone(),
            cm_data,
            ep_key,
            domain_key,
            wanted,
            state: Mutex::new(State {
                addr: own,
                ..State::default()
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the kernel's object, unless it is open.
    fn ensure<'a>(&self, state: &'a mut State) -> Result<&'a PassiveEndpoint, Errno> {
        if state.taken {
            return Err(libc::EINVAL);
        }
        if state.pep.is_none() {
            let eq = state.eq.as_ref().ok_or(FI_ENOEQ as Errno)?;
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            let own = self.ep_key.as_ref().or(self.domain_key.as_ref());
            let key = match own {
                Some(key) => Some(auth::given(key)?),
                None => auth::default()?.as_ref().map(auth::given).transpose()?,
            };
            let (addr, at) = (state.addr.unwrap_or(any), self.at as u64);
            let keys = key.as_slice();
            let opened = self.fabric.passive_endpoint_under(&eq.eq, addr, at, keys);
            state.pep = Some(opened.ours()?);
        }
        state.pep.as_ref().ok_or(libc::EINVAL)
    }

    fn listen(&self) -> Result<(), Errno> {
        let mut state = self.state();
        let backlog = state.backlog;
        self.ensure(&mut state)?.listen(backlog).ours()?;
        state.listens = true;
        Ok(())
    }

    fn set_name(&self, addr: SocketAddr) -> Result<(), Errno> {
        let mut state = self.state();
        if state.listens || state.taken {
            return Err(libc::EINVAL);
        }
        close_kept(&mut state)?;
        state.addr = Some(addr);
        Ok(())
    }

    fn name(&self) -> Result<SocketAddr, Errno> {
        let mut state = self.state();
        match self.ensure(&mut state) {
            Ok(pep) => pep.local_addr().ours(),
            Err(errno) => state.addr.ok_or(errno),
        }
    }

    /// Takes the address of a passive endpoint that does not listen, for an active endpoint. The
    /// passive endpoint keeps only the name.
    pub(crate) fn take_address(&self) -> Result<Option<SocketAddr>, Errno> {
        let mut state = self.state();
        if state.listens || state.taken {
            return Err(libc::EINVAL);
        }
        if let Some(pep) = &state.pep {
            state.addr = Some(pep.local_addr().ours()?);
        }
        close_kept(&mut state)?;
        state.taken = true;
        Ok(state.addr)
    }

    /// Takes the address back from an active endpoint that could not be opened.
    pub(crate) fn return_address(&self) {
        self.state().taken = false;
    }
}

/// Closes the kernel's object, if it is open.
fn close_kept(state: &mut State) -> Result<(), Errno> {
    match state.pep.take().map(PassiveEndpoint::close) {
        Some(Err(returned)) => {
            state.pep = Some(returned.object);
            Err(errno(&returned.error))
        }
        _ => Ok(()),
    }
}

/// `fi_passive_ep`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    of: *mut fi_info,
    to: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the fabric is ours.
    unsafe {
        object::open(to, context, |at| {
            Passive::new(object::body(fabric), &*of, at)
        })
    }
}

/// Gives the info of a connection request the attributes and the auth keys of the passive endpoint's
/// info.
///
/// # Safety
///
/// `pep` is the address of a passive endpoint, and `info` comes from [`info::make`].
pub(crate) unsafe fn complete(pep: usize, info: *mut fi_info) {
    // SAFETY: as the caller vouches.
    unsafe {
        let pep = object::body::<Passive>(std::ptr::with_exposed_provenance::<fid>(pep));
        pep.wanted.complete(&mut *info);
        info::put_keys(
            info,
            pep.ep_key.as_ref().map(AuthKey::expose),
            pep.domain_key.as_ref().map(AuthKey::expose),
        );
    }
}

unsafe extern "C" fn bind(fid: *mut fid, object: *mut fid, flags: u64) -> c_int {
    if flags != 0 {
        return -(FI_EBADFLAGS as c_int);
    }
    // SAFETY: two valid fids, the first one of a passive endpoint.
    unsafe {
        let mut state = object::body::<Passive>(fid).state();
        match object::body_of_class::<Eq>(object) {
            Some(eq) if state.eq.is_none() => state.eq = Some(eq.0.clone()),
            _ => return -libc::EINVAL,
        }
    }
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command as u32 != FI_BACKLOG {
        return -libc::ENOSYS;
    }
    // SAFETY: a passive endpoint, and the number that the command takes.
    let (pep, backlog) = unsafe { (object::body::<Passive>(fid), *arg.cast::<c_int>()) };
    let mut state = pep.state();
    match u32::try_from(backlog) {
        Ok(backlog) if !state.listens => state.backlog = backlog,
        _ => return -libc::EINVAL,
    }
    0
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    // SAFETY: a passive endpoint.
    status(unsafe { object::body::<Passive>(pep) }.listen())
}

unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: a passive endpoint, and the caller's address.
    let (pep, addr) = unsafe { (object::body::<Passive>(fid), addr::from(addr, len)) };
    status(addr.ok_or(libc::EINVAL).and_then(|addr| pep.set_name(addr)))
}

unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: a passive endpoint, and the caller's buffer.
    unsafe {
        match object::body::<Passive>(fid).name() {
            Ok(known) => addr::store(&known, addr, len),
            Err(errno) => -errno,
        }
    }
}

unsafe extern "C" fn reject(
    pep: *mut fid_pep,
    handle: fid_t,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: a passive endpoint, and the caller's data.
    let (pep, data) = unsafe { (object::body::<Passive>(pep), param(data, len)) };
    let refused = pep
        .requests
        .answer(handle, |request| request.try_reject(data).map_err(Box::new));
    status(refused)
}

/// Answers `fi_getopt` for the one option that endpoints have.
///
/// # Safety
///
/// `to` has `*len` bytes.
pub(crate) unsafe fn option(
    cm_data: usize,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    if level as u32 != FI_OPT_ENDPOINT || name as u32 != FI_OPT_CM_DATA_SIZE {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: as the caller vouches.
    unsafe {
        let room = std::mem::replace(&mut *len, size_of::<usize>());
        if room < size_of::<usize>() {
            return -(FI_ETOOSMALL as c_int);
        }
        to.cast::<usize>().write_unaligned(cm_data);
    }
    0
}

unsafe extern "C" fn getopt(
    fid: fid_t,
    level: c_int,
    name: c_int,
    to: *mut c_void,
    len: *mut usize,
) -> c_int {
    // SAFETY: a passive endpoint, and the caller's buffer.
    unsafe { option(object::body::<Passive>(fid).cm_data, level, name, to, len) }
}

/// Refuses `fi_setopt`: the one option that endpoints have is read only.
pub(crate) unsafe extern "C" fn setopt(
    _: fid_t,
    _: c_int,
    _: c_int,
    _: *const c_void,
    _: usize,
) -> c_int {
    -libc::ENOPROTOOPT
}
