// SPDX-License-Identifier: MIT OR Apache-2.0
//! Passive endpoints. The kernel's object is opened when the address and the event queue are
//! known.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kfabric_uapi as abi;
use kfauth::AuthKey;

use crate::fabric::{put, Fabric};
use crate::ffi::*;
use crate::kernel::{address, Device, Errno};
use crate::{auth, eq, info, status};

struct State {
    addr: Option<abi::SockAddr>,
    eq: *mut eq::Queue,
    handle: Option<u64>,
    listens: bool,
    /// Greatest number of pending requests; 0 for a default.
    backlog: u32,
    /// An active endpoint has taken the address.
    taken: bool,
}

/// A passive endpoint.
#[repr(C)]
pub(crate) struct Passive {
    fid: fid_pep,
    dev: Arc<Device>,
    fabric: u64,
    cm_data: usize,
    /// Auth keys of the endpoint's and the domain's attributes. Connection requests return them.
    ep_key: Option<AuthKey>,
    domain_key: Option<AuthKey>,
    state: Mutex<State>,
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
    cancel: absent(),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: absent(),
    rx_ctx: absent(),
    rx_size_left: absent(),
    tx_size_left: absent(),
});
static CM: Table<fi_ops_cm> = Table(fi_ops_cm {
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

/// `fi_passive_ep`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    of: *mut fi_info,
    to: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the fabric is ours.
    unsafe {
        let fabric = &*fabric.cast::<Fabric>();
        status(make(fabric, &*of, context).map(|pep| *to = pep.cast()))
    }
}

/// Returns the most connection data of a fabric's endpoints.
fn data_size(fabric: &Fabric, keyed: bool) -> Result<usize, Errno> {
    let mut hints = abi::InfoEntry {
        mode: u64::MAX,
        mr_mode: u64::MAX,
        ..Default::default()
    };
    put(&mut hints.prov_name, &fabric.prov)?;
    put(&mut hints.fabric_name, &fabric.name)?;
    let offers = fabric.dev.info(&hints)?;
    let least = offers.iter().map(|offer| offer.cm_data_size as usize).min();
    let least = least.ok_or(libc::ENODEV)?;
    Ok(if keyed {
        least.min(abi::KFI_AUTH_CM_DATA)
    } else {
        least
    })
}

unsafe fn make(fabric: &Fabric, of: &fi_info, context: *mut c_void) -> Result<*mut Passive, Errno> {
    // SAFETY: an info's parts, if any, have auth keys of their sizes, or none.
    let (ep_key, domain_key) = unsafe {
        (
            match of.ep_attr.as_ref() {
                Some(attr) => auth::copy(attr.auth_key, attr.auth_key_size)?,
                None => None,
            },
            match of.domain_attr.as_ref() {
                Some(attr) => auth::copy(attr.auth_key, attr.auth_key_size)?,
                None => None,
            },
        )
    };
    let keyed = ep_key.is_some() || domain_key.is_some() || auth::default()?.is_some();
    let fid = fid {
        fclass: FI_CLASS_PEP as usize,
        context,
        ops: FID.get(),
    };
    let pep = Passive {
        fid: fid_pep {
            fid,
            ops: OPS.get(),
            cm: CM.get(),
        },
        dev: fabric.dev.clone(),
        fabric: fabric.handle,
        cm_data: data_size(fabric, keyed)?,
        ep_key,
        domain_key,
        state: Mutex::new(State {
            // SAFETY: the info's address.
            addr: unsafe { info::addr_from(of.src_addr, of.src_addrlen) },
            eq: null_mut(),
            handle: None,
            listens: false,
            backlog: 0,
            taken: false,
        }),
    };
    Ok(Box::into_raw(Box::new(pep)))
}

/// Copies the auth keys of a passive endpoint to the info of a connection request.
///
/// # Safety
///
/// `pep` is the address of a passive endpoint, and `info` comes from [`info::make`].
pub(crate) unsafe fn give_keys(pep: usize, info: *mut fi_info) {
    // SAFETY: as the caller vouches.
    unsafe {
        let pep = &*with_exposed_provenance::<Passive>(pep);
        info::put_keys(
            info,
            pep.ep_key.as_ref().map(AuthKey::expose),
            pep.domain_key.as_ref().map(AuthKey::expose),
        );
    }
}

impl Passive {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the kernel's object.
    fn ensure(&self, state: &mut State) -> Result<u64, Errno> {
        if let Some(handle) = state.handle {
            return Ok(handle);
        }
        if state.taken {
            return Err(libc::EINVAL);
        }
        if state.eq.is_null() {
            return Err(FI_ENOEQ as Errno);
        }
        let mut any = abi::SockAddr {
            len: 16,
            data: [0; 28],
        };
        any.data[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
        let mut arg = abi::PepOpen {
            fabric: self.fabric,
            // SAFETY: the program keeps the queue open while the endpoint is bound to it.
            eq: unsafe { (*state.eq).handle },
            addr: state.addr.unwrap_or(any),
            context: (&raw const *self).expose_provenance() as u64,
            ..Default::default()
        };
        let file;
        let own = self.ep_key.as_ref().or(self.domain_key.as_ref());
        let key = match own {
            Some(key) => Some(key),
            None => {
                file = auth::default()?;
                file.as_ref()
            }
        };
        let (addr, size) = auth::fields(key);
        let entry = abi::AuthKeyRef {
            addr,
            size,
            reserved: 0,
        };
        if key.is_some() {
            (arg.auth_keys, arg.auth_key_count) = (address(&entry), 1);
        }
        // SAFETY: the auth key and its entry live through the call.
        unsafe { self.dev.call(&mut arg)? };
        state.handle = Some(arg.handle);
        Ok(arg.handle)
    }
}

unsafe extern "C" fn bind(fid: *mut fid, object: *mut fid, flags: u64) -> c_int {
    if flags != 0 {
        return -(FI_EBADFLAGS as c_int);
    }
    // SAFETY: two valid fids, the first one of a passive endpoint.
    unsafe {
        let mut state = (*fid.cast::<Passive>()).state();
        if (*object).fclass != FI_CLASS_EQ as usize || !state.eq.is_null() {
            return -libc::EINVAL;
        }
        state.eq = object.cast();
    }
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command as u32 != FI_BACKLOG {
        return -libc::ENOSYS;
    }
    // SAFETY: a passive endpoint, and the number that the command takes.
    unsafe {
        let Ok(backlog) = u32::try_from(*arg.cast::<c_int>()) else {
            return -libc::EINVAL;
        };
        let mut state = (*fid.cast::<Passive>()).state();
        if state.listens {
            return -libc::EINVAL;
        }
        state.backlog = backlog;
    }
    0
}

/// Takes the address of a passive endpoint that does not listen, for an active endpoint. The
/// passive endpoint keeps only the name.
///
/// # Safety
///
/// `fid` is null, or the fid of an object of libfabric.
pub(crate) unsafe fn take_address(fid: *mut fid) -> Result<Option<abi::SockAddr>, Errno> {
    // SAFETY: as the caller vouches; the class says that the object is ours.
    let pep = unsafe {
        match fid.as_ref() {
            Some(class) if class.fclass == FI_CLASS_PEP as usize => &*fid.cast::<Passive>(),
            _ => return Ok(None),
        }
    };
    let mut state = pep.state();
    if state.listens || state.taken {
        return Err(libc::EINVAL);
    }
    if let Some(handle) = state.handle {
        state.addr = Some(pep.dev.name(handle, false)?);
        pep.dev.close(handle)?;
        state.handle = None;
    }
    state.taken = true;
    Ok(state.addr)
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the fid of a passive endpoint, which `open` boxed and the caller gives up.
    unsafe {
        let pep = fid.cast::<Passive>();
        let (handle, eq) = {
            let state = (*pep).state();
            (state.handle, state.eq)
        };
        let done = handle.map_or(Ok(()), |handle| (*pep).dev.close(handle));
        if done.is_ok() {
            if !eq.is_null() {
                (*eq).forget(pep.addr());
            }
            drop(Box::from_raw(pep));
        }
        status(done)
    }
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    // SAFETY: a passive endpoint.
    let pep = unsafe { &*pep.cast::<Passive>() };
    let mut state = pep.state();
    status(pep.ensure(&mut state).and_then(|handle| {
        let mut arg = abi::Listen {
            pep: handle,
            backlog: state.backlog,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { pep.dev.call(&mut arg)? };
        state.listens = true;
        Ok(())
    }))
}

unsafe extern "C" fn setname(fid: fid_t, addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: a passive endpoint, and the caller's address.
    unsafe {
        let pep = &*fid.cast::<Passive>();
        let mut state = pep.state();
        if state.listens || state.taken {
            return -libc::EINVAL;
        }
        let Some(addr) = info::addr_from(addr, len) else {
            return -libc::EINVAL;
        };
        if let Some(handle) = state.handle.take() {
            if let Err(errno) = pep.dev.close(handle) {
                state.handle = Some(handle);
                return -errno;
            }
        }
        state.addr = Some(addr);
    }
    0
}

/// Copies an address to a program's buffer.
pub(crate) unsafe fn store(from: &abi::SockAddr, to: *mut c_void, len: *mut usize) -> c_int {
    if from.len == 0 {
        return -libc::EADDRNOTAVAIL;
    }
    // SAFETY: the caller's buffer of `*len` bytes.
    unsafe {
        let (room, need) = (*len, from.len as usize);
        *len = need;
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(from.data.as_ptr(), to.cast::<u8>(), need.min(room));
        }
        if room < need {
            return -(FI_ETOOSMALL as c_int);
        }
    }
    0
}

unsafe extern "C" fn getname(fid: fid_t, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: a passive endpoint, and the caller's buffer.
    unsafe {
        let pep = &*fid.cast::<Passive>();
        let mut state = pep.state();
        let known = match pep.ensure(&mut state) {
            Ok(handle) => pep.dev.name(handle, false),
            Err(errno) => state.addr.ok_or(errno),
        };
        match known {
            Ok(known) => store(&known, addr, len),
            Err(errno) => -errno,
        }
    }
}

unsafe extern "C" fn reject(
    pep: *mut fid_pep,
    handle: fid_t,
    param: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: a passive endpoint, and the caller's data.
    unsafe {
        let pep = &*pep.cast::<Passive>();
        let data = eq::param(param, len);
        // Data that is too long leaves the request as it is.
        let refused =
            eq::request_handle(handle).and_then(|connreq| eq::refuse(&pep.dev, connreq, data));
        match refused {
            Err(libc::EINVAL) => {}
            // Fails only if another thread has answered the request.
            _ => drop(eq::take_request(handle)),
        }
        status(refused)
    }
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

/// Answers `fi_getopt` for the one option that endpoints have.
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
    // SAFETY: the caller's buffer of `*len` bytes.
    unsafe {
        if *len < size_of::<usize>() {
            *len = size_of::<usize>();
            return -(FI_ETOOSMALL as c_int);
        }
        *to.cast::<usize>() = cm_data;
        *len = size_of::<usize>();
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
    unsafe { option((*fid.cast::<Passive>()).cm_data, level, name, to, len) }
}
