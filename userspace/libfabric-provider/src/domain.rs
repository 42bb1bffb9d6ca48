// SPDX-License-Identifier: MIT OR Apache-2.0
//! Domains and memory regions.

use std::ffi::{c_int, c_void, CStr};
use std::sync::Arc;

use kfabric_uapi as abi;
use kfauth::AuthKey;
use zerocopy::FromZeros;

use crate::fabric::{put, Fabric};
use crate::ffi::*;
use crate::kernel::{Device, Errno};
use crate::{atomic, auth, cntr, cq, ep, info, status};

/// A domain.
#[repr(C)]
pub(crate) struct Domain {
    fid: fid_domain,
    pub(crate) dev: Arc<Device>,
    pub(crate) handle: u64,
    pub(crate) cm_data: usize,
    /// Whether regions with both remote rights allow atomics.
    atomics: bool,
    /// Name of the kernel's provider.
    pub(crate) prov: Arc<str>,
    /// The domain's own name.
    name: Box<str>,
}

impl Domain {
    /// Whether an offer is one of this domain.
    pub(crate) fn is(&self, offer: &abi::InfoEntry) -> bool {
        *self.prov == *info::text(&offer.prov_name) && *self.name == *info::text(&offer.domain_name)
    }
}

/// A memory region. Descriptors are addresses of regions.
#[repr(C)]
pub(crate) struct Region {
    fid: fid_mr,
    dev: Arc<Device>,
    pub(crate) handle: u64,
    pub(crate) base: u64,
}

static FID: Table<fi_ops> = Table(fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: absent(),
    control: absent(),
    ops_open: absent(),
    tostr: None,
    ops_set: None,
});
static OPS: Table<fi_ops_domain> = Table(fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: absent(),
    cq_open: Some(cq::open),
    endpoint: Some(ep::open),
    scalable_ep: absent(),
    cntr_open: Some(cntr::open),
    poll_open: absent(),
    stx_ctx: absent(),
    srx_ctx: absent(),
    query_atomic: Some(atomic::query),
    query_collective: None,
    endpoint2: None,
});
static MR: Table<fi_ops_mr> = Table(fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(reg),
    regv: Some(regv),
    regattr: Some(regattr),
});
static REGION_FID: Table<fi_ops> = Table(fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close_region),
    bind: absent(),
    control: absent(),
    ops_open: absent(),
    tostr: None,
    ops_set: None,
});

unsafe fn make(
    fabric: &Fabric,
    info: &fi_info,
    context: *mut c_void,
) -> Result<*mut Domain, Errno> {
    let mut arg = abi::DomainOpen::new_zeroed();
    arg.fabric = fabric.handle;
    // SAFETY: infos have a domain with a name.
    let name = unsafe {
        let attr = info.domain_attr.as_ref().ok_or(libc::EINVAL)?;
        if attr.name.is_null() {
            return Err(libc::EINVAL);
        }
        CStr::from_ptr(attr.name)
    };
    let name = name.to_str().map_err(|_| libc::EINVAL)?;
    put(&mut arg.name, name)?;
    // SAFETY: as above; an auth key has its size.
    let own = unsafe {
        let attr = &*info.domain_attr;
        auth::copy(attr.auth_key, attr.auth_key_size)?
    };
    let key = match own {
        Some(key) => Some(key),
        None => auth::default()?,
    };
    (arg.auth_key, arg.auth_key_size) = auth::fields(key.as_ref());
    // SAFETY: the auth key lives through the call.
    unsafe { fabric.dev.call(&mut arg)? };
    let fid = fid {
        fclass: FI_CLASS_DOMAIN as usize,
        context,
        ops: FID.get(),
    };
    Ok(Box::into_raw(Box::new(Domain {
        fid: fid_domain {
            fid,
            ops: OPS.get(),
            mr: MR.get(),
        },
        dev: fabric.dev.clone(),
        handle: arg.handle,
        cm_data: arg.cm_data_size as usize,
        atomics: info.caps & arg.caps & abi::KFI_ATOMIC != 0,
        prov: fabric.prov.clone(),
        name: name.into(),
    })))
}

/// `fi_domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    to: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the fabric is ours.
    status(unsafe { make(&*fabric.cast(), &*info, context).map(|d| *to = d.cast()) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the fid of a domain, which `make` boxed and the caller gives up.
    unsafe {
        let domain = fid.cast::<Domain>();
        let done = (*domain).dev.close((*domain).handle);
        if done.is_ok() {
            drop(Box::from_raw(domain));
        }
        status(done)
    }
}

unsafe fn register(
    domain: *mut fid,
    addr: u64,
    len: u64,
    access: u64,
    key: Option<&AuthKey>,
    context: *mut c_void,
) -> Result<*mut fid_mr, Errno> {
    // SAFETY: a domain's fid.
    let domain = unsafe { &*domain.cast::<Domain>() };
    let rights = abi::KFI_SEND
        | abi::KFI_RECV
        | abi::KFI_READ
        | abi::KFI_WRITE
        | abi::KFI_REMOTE_READ
        | abi::KFI_REMOTE_WRITE;
    if access & !rights != 0 {
        return Err(libc::EINVAL);
    }
    // Without rights, all uses by this program, and none by peers.
    let local = abi::KFI_SEND | abi::KFI_RECV | abi::KFI_READ | abi::KFI_WRITE;
    let mut access = if access == 0 { local } else { access };
    // libfabric has no right for atomics alone.
    let remote = abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
    if domain.atomics && access & remote == remote {
        access |= abi::KFI_ATOMIC;
    }
    let mut arg = abi::RegionReg {
        domain: domain.handle,
        addr,
        len,
        access,
        ..Default::default()
    };
    (arg.auth_key, arg.auth_key_size) = auth::fields(key);
    // SAFETY: the auth key lives through the call. The memory is passed as a number. The program keeps it mapped until `fi_close`.
    unsafe { domain.dev.call(&mut arg)? };
    let fid = fid {
        fclass: FI_CLASS_MR as usize,
        context,
        ops: REGION_FID.get(),
    };
    let region = Box::into_raw(Box::new(Region {
        fid: fid_mr {
            fid,
            mem_desc: std::ptr::null_mut(),
            key: arg.key,
        },
        dev: domain.dev.clone(),
        handle: arg.handle,
        base: addr,
    }));
    // SAFETY: just made.
    unsafe { (*region).fid.mem_desc = region.cast() };
    Ok(region.cast())
}

/// A flag of utility providers such as ofi_rxm, which register memory that no cache is to hold
/// (`OFI_MR_NOCACHE`, include/ofi_mr.h of libfabric). There is no cache here.
const NOCACHE: u64 = 1 << 60;

unsafe extern "C" fn reg(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    _offset: u64,
    _key: u64,
    flags: u64,
    to: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    if flags & !NOCACHE != 0 {
        return -(FI_EBADFLAGS as c_int);
    }
    // SAFETY: the caller's arguments.
    status(unsafe {
        register(
            fid,
            buf.expose_provenance() as u64,
            len as u64,
            access,
            None,
            context,
        )
        .map(|mr| *to = mr)
    })
}

unsafe extern "C" fn regv(
    fid: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    to: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    if count != 1 {
        return -libc::EINVAL;
    }
    // SAFETY: the caller's array has one entry.
    unsafe {
        reg(
            fid,
            (*iov).iov_base,
            (*iov).iov_len,
            access,
            offset,
            key,
            flags,
            to,
            context,
        )
    }
}

unsafe extern "C" fn regattr(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    to: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: the caller's attributes; only fields that all versions have are read, except those
    // of 2.0, which the loaded library's version guards.
    unsafe {
        if (&raw const (*attr).iface).read() != FI_HMEM_SYSTEM {
            return -libc::EOPNOTSUPP;
        }
        if crate::core::version() >= 2 << 16 && !(&raw const (*attr).base_mr).read().is_null() {
            return -libc::EOPNOTSUPP;
        }
        let iov = (&raw const (*attr).__bindgen_anon_1)
            .cast::<*const iovec>()
            .read();
        let (count, access) = (
            (&raw const (*attr).iov_count).read(),
            (&raw const (*attr).access).read(),
        );
        let context = (&raw const (*attr).context).read();
        if count != 1 {
            return -libc::EINVAL;
        }
        if flags & !NOCACHE != 0 {
            return -(FI_EBADFLAGS as c_int);
        }
        let key = auth::copy(
            (&raw const (*attr).auth_key).read(),
            (&raw const (*attr).auth_key_size).read(),
        );
        status(key.and_then(|key| {
            let (base, len) = ((*iov).iov_base, (*iov).iov_len);
            let base = base.expose_provenance() as u64;
            register(fid, base, len as u64, access, key.as_ref(), context).map(|mr| *to = mr)
        }))
    }
}

unsafe extern "C" fn close_region(fid: *mut fid) -> c_int {
    // SAFETY: the fid of a region, which `register` boxed and the caller gives up.
    unsafe {
        let region = fid.cast::<Region>();
        let done = (*region).dev.close((*region).handle);
        if done.is_ok() {
            drop(Box::from_raw(region));
        }
        status(done)
    }
}
