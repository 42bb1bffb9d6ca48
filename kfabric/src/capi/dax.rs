// SPDX-License-Identifier: GPL-2.0
//! Persistent memory of block devices (`kfi_dax.h`).

use kernel::{
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::Arc,
    types::Opaque, //
};

use super::{
    obj::{
        self,
        code,
        Object,
        Place, //
    },
    raw, //
};
use crate::{
    memory::{
        dax::{
            Device,
            Failure, //
        },
        Memory, //
    },
    sys,
    uapi::{
        KFI_READ,
        KFI_WRITE, //
    },
};

/// A device of the C API.
#[repr(C)]
struct DaxObj {
    fid: Opaque<raw::kfid_dax>,
    device: Device,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
unsafe impl Object for DaxObj {
    type C = raw::kfid_dax;
    const CLASS: u32 = raw::KFI_CLASS_DAX;
    const OPS: &'static raw::kfi_ops = &DAX;
}

static DAX: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(close),
    bind: Some(obj::no_bind),
    control: Some(obj::no_control),
    ops_open: Some(obj::no_ops),
};

/// A consumer's handler, with its arguments.
struct Handler {
    call: unsafe extern "C" fn(*mut raw::kfid_dax, c_int, *mut c_void),
    dax: *mut raw::kfid_dax,
    context: *mut c_void,
}

// SAFETY: The consumer's handler may be called by any thread.
unsafe impl Send for Handler {}
// SAFETY: As above; the fields are not changed.
unsafe impl Sync for Handler {}

impl Failure for Handler {
    fn failed(&self, error: Error) {
        // SAFETY: The handler is valid until the device's close has returned, which drops this value
        // and waits for a call in progress.
        unsafe { (self.call)(self.dax, error.to_errno(), self.context) }
    }
}

/// Implements `kfi_dax_open()`.
///
/// # Safety
///
/// The arguments are valid as `kfi_dax.h` describes.
#[no_mangle]
unsafe extern "C" fn kf_c_dax_open(
    path: *const c_char,
    access: u64,
    handler: raw::kfi_dax_handler,
    dax: *mut *mut raw::kfid_dax,
    context: *mut c_void,
) -> c_int {
    let open = || {
        if access & !KFI_WRITE != KFI_READ {
            return Err(EINVAL);
        }
        let place = Place::<DaxObj>::new()?;
        // SAFETY: By this function's contract the path is a C string.
        let path = unsafe { CStr::from_char_ptr(path) };
        let device = Device::open(path, access & KFI_WRITE != 0)?;
        let size = device.size();
        let fid = Opaque::uninit();
        let made = place.put(DaxObj { fid, device }, context, |c| c.size = size);
        let watched = match handler {
            // SAFETY: The object was made above, and no other task closes it.
            Some(call) => watch(unsafe { obj::get::<DaxObj, _>(made) }, call, made, context),
            None => Ok(()),
        };
        if watched.is_err() {
            // SAFETY: The object was made above, and no other task knows it.
            drop(unsafe { obj::take::<DaxObj>(made.cast()) });
        }
        watched.map(|()| made)
    };
    code(open().map(|made| {
        // SAFETY: By this function's contract `dax` is a valid place for the result.
        unsafe { *dax = made }
    }))
}

fn watch(
    object: &DaxObj,
    call: unsafe extern "C" fn(*mut raw::kfid_dax, c_int, *mut c_void),
    dax: *mut raw::kfid_dax,
    context: *mut c_void,
) -> Result {
    let handler = Handler { call, dax, context };
    object.device.watch(Arc::new(handler, GFP_KERNEL)?)
}

/// Implements `kfi_dax_address()`.
///
/// # Safety
///
/// The arguments are valid as `kfi_dax.h` describes.
#[no_mangle]
unsafe extern "C" fn kf_c_dax_address(
    dax: *mut raw::kfid_dax,
    offset: u64,
    len: *mut u64,
) -> *mut c_void {
    // SAFETY: By this function's contract `dax` is an open device.
    let device = unsafe { &obj::get::<DaxObj, _>(dax).device };
    match device.page(offset) {
        Ok((page, bytes)) => {
            // SAFETY: By this function's contract `len` is null or a valid place.
            if let Some(len) = unsafe { len.as_mut() } {
                *len = bytes;
            }
            // SAFETY: The page is the open device's.
            let start = unsafe { sys::kf_page_address(page.as_ptr()) };
            // CAST: Less than a page.
            start.wrapping_byte_add((offset % PAGE_SIZE as u64) as usize)
        }
        Err(e) => e.to_ptr(),
    }
}

/// Returns the memory that a consumer's range names.
///
/// # Errors
///
/// - `EINVAL` if the device is not one of [`kf_c_dax_open`].
/// - The errors of [`Device::memory`].
///
/// # Safety
///
/// `range` is valid as `kfi_dax.h` describes, or null.
pub(super) unsafe fn memory(range: *const raw::kfi_dax_range) -> Result<Arc<Memory>> {
    // SAFETY: By this function's contract.
    let range = unsafe { range.as_ref() }.ok_or(EINVAL)?;
    // SAFETY: By this function's contract the device is open.
    let dax = unsafe { obj::try_get::<DaxObj>(range.dax.cast()) }.ok_or(EINVAL)?;
    let len = usize::try_from(range.len).map_err(|_| EINVAL)?;
    dax.device.memory(range.offset, len)
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a device of this module and no longer uses it.
    drop(unsafe { obj::take::<DaxObj>(fid) });
    0
}

crate::same_prototype!(raw: kf_c_dax_open, kf_c_dax_address);
