// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fabrics. Each has an open device file of its own.

use std::ffi::{c_int, c_void, CStr};
use std::sync::Arc;

use kfabric_uapi as abi;
use zerocopy::FromZeros;

use crate::ffi::*;
use crate::kernel::{Device, Errno};
use crate::{cq, domain, eq, info, pep, status};

/// A fabric.
#[repr(C)]
pub(crate) struct Fabric {
    pub(crate) fid: fid_fabric,
    pub(crate) dev: Arc<Device>,
    pub(crate) handle: u64,
    /// Name of the kernel's provider.
    pub(crate) prov: Arc<str>,
    /// The kernel's name of the fabric.
    pub(crate) name: Box<str>,
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
static OPS: Table<fi_ops_fabric> = Table(fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain::open),
    passive_ep: Some(pep::open),
    eq_open: Some(eq::open),
    wait_open: absent(),
    trywait: Some(trywait),
    domain2: None,
});

impl Fabric {
    /// Whether an offer is one of this fabric.
    pub(crate) fn is(&self, offer: &abi::InfoEntry) -> bool {
        *self.prov == *info::text(&offer.prov_name) && *self.name == *info::text(&offer.fabric_name)
    }
}

/// Copies a name to a NUL-padded array.
pub(crate) fn put(to: &mut [u8], name: &str) -> Result<(), Errno> {
    if name.len() >= to.len() {
        return Err(libc::EINVAL);
    }
    to[..name.len()].copy_from_slice(name.as_bytes());
    Ok(())
}

unsafe fn make(attr: *mut fi_fabric_attr, context: *mut c_void) -> Result<*mut Fabric, Errno> {
    // SAFETY: the caller's attributes hold a C string.
    let name = unsafe {
        let name = (*attr).name;
        if name.is_null() {
            return Err(libc::ENODATA);
        }
        CStr::from_ptr(name).to_str().map_err(|_| libc::ENODATA)?
    };
    let (prov, fabric) = name.split_once('/').ok_or(libc::ENODATA)?;
    let dev = Device::open(crate::device_path())?;
    let mut arg = abi::FabricOpen::new_zeroed();
    put(&mut arg.prov_name, prov)?;
    put(&mut arg.fabric_name, fabric)?;
    // SAFETY: no pointers.
    unsafe { dev.call(&mut arg)? };
    let fid = fid {
        fclass: FI_CLASS_FABRIC as usize,
        context,
        ops: FID.get(),
    };
    Ok(Box::into_raw(Box::new(Fabric {
        fid: fid_fabric {
            fid,
            ops: OPS.get(),
            api_version: 0,
        },
        dev,
        handle: arg.handle,
        prov: prov.into(),
        name: fabric.into(),
    })))
}

/// `fi_fabric`.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi_fabric_attr,
    to: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments.
    status(unsafe { make(attr, context).map(|fabric| *to = fabric.cast()) })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: the fid of a fabric, which `make` boxed and the caller gives up.
    unsafe {
        let fabric = fid.cast::<Fabric>();
        let done = (*fabric).dev.close((*fabric).handle);
        if done.is_ok() {
            drop(Box::from_raw(fabric));
        }
        status(done)
    }
}

unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    for i in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's array of valid fids.
        let ready = unsafe {
            let fid = *fids.add(i);
            match (*fid).fclass as u32 {
                FI_CLASS_CQ => cq::ready(fid),
                FI_CLASS_EQ => eq::ready(fid),
                _ => return -libc::EINVAL,
            }
        };
        if ready {
            return -libc::EAGAIN;
        }
    }
    0
}
