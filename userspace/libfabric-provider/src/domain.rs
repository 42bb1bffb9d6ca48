// SPDX-License-Identifier: MIT OR Apache-2.0
//! Domains.

use std::ffi::{c_int, c_void, CStr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use kfabric::Info;

use crate::eq::Requests;
use crate::error::{Errno, Ours};
use crate::fabric::Fabric;
use crate::fork::{self, Disabled};
use crate::object::{self, ended, Kind};
use crate::{atomic, auth, cntr, cq, ep, ffi::*, mr};

/// A domain.
pub(crate) struct Domain {
    /// Shared with regions that are not registered yet.
    pub(crate) domain: Arc<kfabric::Domain>,
    /// Whether regions with both remote rights allow atomics.
    pub(crate) atomics: bool,
    /// Whether endpoints have keys of their own (`FI_MR_ENDPOINT`).
    pub(crate) endpoint_keys: bool,
    /// Whether endpoints ask for rings, unless their own info needs more than rings have.
    pub(crate) rings: bool,
    /// Version of the interface that the program was built for; 0 if unknown.
    pub(crate) version: u32,
    /// A number of the domain alone.
    pub(crate) id: u64,
    /// Name of the kernel's provider.
    pub(crate) prov: Arc<str>,
    /// The domain's own name.
    name: Box<str>,
    pub(crate) requests: Arc<Requests>,
}

static FID: Table<fi_ops> = object::ops::<Domain>(absent(), Some(control));
pub(crate) static OPS: Table<fi_ops_domain> = Table(fi_ops_domain {
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

impl Kind for Domain {
    type Head = fid_domain;
    const CLASS: u32 = FI_CLASS_DOMAIN;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, _: *mut c_void) -> fid_domain {
        fid_domain {
            fid,
            ops: OPS.get(),
            mr: mr::OPS.get(),
        }
    }

    fn disable(head: &mut fid_domain) {
        head.ops = Disabled::of(&fork::OPS);
        head.mr = Disabled::of(&fork::OPS);
    }

    fn end(self) -> Result<(), (Self, Errno)> {
        match Arc::try_unwrap(self.domain) {
            Ok(domain) => ended(domain.close(), |domain| Self {
                domain: Arc::new(domain),
                ..self
            }),
            Err(domain) => Err((Self { domain, ..self }, libc::EBUSY)),
        }
    }
}

impl Domain {
    unsafe fn new(fabric: &Fabric, info: &fi_info, version: u32) -> Result<Self, Errno> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        // SAFETY: an info's parts are null or valid; an auth key has its size.
        let (name, mode, progress, own) = unsafe {
            let attr = info.domain_attr.as_ref().ok_or(libc::EINVAL)?;
            if attr.name.is_null() {
                return Err(libc::EINVAL);
            }
            let own = auth::copy(attr.auth_key, attr.auth_key_size)?;
            let progress = attr.__bindgen_anon_1.data_progress;
            (CStr::from_ptr(attr.name), attr.mr_mode, progress, own)
        };
        let name = name.to_str().map_err(|_| libc::EINVAL)?;
        let key = match own {
            Some(key) => Some(key),
            None => auth::default()?,
        };
        let domain = match key {
            Some(key) => fabric
                .fabric
                .domain_by_name_under(name, &auth::given(&key)?),
            None => fabric.fabric.domain_by_name(name),
        };
        let domain = domain.ours()?;
        let caps = kfabric::Caps::from_bits_retain(info.caps) & domain.caps();
        Ok(Self {
            atomics: caps.contains(kfabric::Caps::ATOMIC),
            rings: *fabric.prov == *"kshm" && crate::wants_rings(progress),
            endpoint_keys: mode as u32 & FI_MR_ENDPOINT != 0,
            domain: Arc::new(domain),
            version,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            prov: fabric.prov.clone(),
            name: name.into(),
            requests: fabric.requests.clone(),
        })
    }

    /// Whether an offer is one of this domain.
    pub(crate) fn is(&self, offer: &Info) -> bool {
        *self.prov == *offer.provider() && *self.name == *offer.domain()
    }
}

/// `fi_domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    to: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; the fabric is ours.
    unsafe {
        object::open(to, context, |_| {
            let version = (*fabric).api_version;
            Domain::new(object::body::<Fabric>(fabric), &*info, version)
        })
    }
}

/// Raw keys, which are keys of 64 bits here (`fi_mr_map_raw`, `fi_mr_unmap_key`).
unsafe extern "C" fn control(_: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    match command as u32 {
        // SAFETY: the argument of the command, whose raw key has its size.
        FI_MAP_RAW_MR => unsafe {
            let map = &*arg.cast::<fi_mr_map_raw>();
            if map.key_size != size_of::<u64>() {
                return -libc::EINVAL;
            }
            *map.key = map.raw_key.cast::<u64>().read_unaligned();
        },
        FI_UNMAP_KEY => {}
        _ => return -libc::ENOSYS,
    }
    0
}
