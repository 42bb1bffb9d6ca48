// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fabrics. Each has an open device file of its own.

use std::ffi::{c_int, c_void, CStr};
use std::path::Path;
use std::sync::Arc;

use kfabric::{Device, Info};

use crate::cntr::Counter;
use crate::cq::Cq;
use crate::eq::{Eq, Requests};
use crate::error::{Errno, Ours};
use crate::fork::{self, Disabled};
use crate::object::{self, Kind};
use crate::{domain, eq, ffi::*, pep};

/// A fabric.
pub(crate) struct Fabric {
    /// Shared with passive endpoints, which open the kernel's object later.
    pub(crate) fabric: Arc<kfabric::Fabric>,
    pub(crate) device: Device,
    /// Name of the kernel's provider.
    pub(crate) prov: Arc<str>,
    /// The kernel's name of the fabric.
    pub(crate) name: Box<str>,
    /// Connection requests that are not answered.
    pub(crate) requests: Arc<Requests>,
}

static FID: Table<fi_ops> = object::ops::<Fabric>(absent(), absent());
pub(crate) static OPS: Table<fi_ops_fabric> = Table(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain::open),
    passive_ep: Some(pep::open),
    eq_open: Some(eq::open),
    wait_open: absent(),
    trywait: Some(trywait),
    domain2: None,
});

impl Kind for Fabric {
    type Head = fid_fabric;
    const CLASS: u32 = FI_CLASS_FABRIC;

    fn ops() -> *mut fi_ops {
        FID.get()
    }

    fn head(&self, fid: fid, _: *mut c_void) -> fid_fabric {
        fid_fabric {
            fid,
            ops: OPS.get(),
            api_version: 0,
        }
    }

    fn disable(head: &mut fid_fabric) {
        head.ops = Disabled::of(&fork::OPS);
    }

    fn end(self) -> Result<(), (Self, Errno)> {
        match Arc::try_unwrap(self.fabric) {
            Ok(fabric) => object::ended(fabric.close(), |fabric| Self {
                fabric: Arc::new(fabric),
                ..self
            }),
            Err(fabric) => Err((Self { fabric, ..self }, libc::EBUSY)),
        }
    }
}

impl Fabric {
    fn new(name: &CStr) -> Result<Self, Errno> {
        let name = name.to_str().map_err(|_| libc::ENODATA)?;
        let (prov, name) = name.split_once('/').ok_or(libc::ENODATA)?;
        let device = Device::open_path(Path::new(crate::device_path())).ours()?;
        Ok(Self {
            fabric: Arc::new(device.fabric_by_name(prov, name).ours()?),
            device,
            prov: prov.into(),
            name: name.into(),
            requests: Arc::default(),
        })
    }

    /// Whether an offer is one of this fabric.
    pub(crate) fn is(&self, offer: &Info) -> bool {
        *self.prov == *offer.provider() && *self.name == *offer.fabric()
    }
}

/// `fi_fabric`.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    to: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments; attributes hold a C string or null.
    unsafe {
        let name = (*attr).name;
        object::open(to, context, |_| match name.is_null() {
            true => Err(libc::ENODATA),
            false => Fabric::new(CStr::from_ptr(name)),
        })
    }
}

unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's array of valid fids.
        let may = unsafe {
            let fid = *fids.add(i);
            // Objects of other providers are refused.
            let cq = object::body_of_class::<Cq>(fid).map(|cq| Ok(cq.may_wait()));
            let eq = || object::body_of_class::<Eq>(fid).map(|eq| eq.0.may_wait());
            let cntr = || object::body_of_class::<Counter>(fid).map(Counter::may_wait);
            match cq.or_else(eq).or_else(cntr) {
                Some(may) => may,
                None => return -libc::EINVAL,
            }
        };
        match may {
            Ok(true) => {}
            Ok(false) => return -libc::EAGAIN,
            Err(errno) => return -errno,
        }
    }
    0
}
