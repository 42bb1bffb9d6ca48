// SPDX-License-Identifier: GPL-2.0
//! The configfs objects: functions that `configfs.c` calls.

use core::mem::ManuallyDrop;
use kernel::{
    ffi::{
        c_char,
        c_int,
        c_uint,
        c_void, //
    },
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::Arc, //
};
use kfabric::pure::blk::Name;

use crate::{
    attr::{
        Item,
        Text, //
    },
    disk::Disk,
    export::{
        port::Port,
        subsystem::Subsystem, //
    },
    sys, //
};

/// Runs a function with an object, whose reference the folder keeps.
///
/// # Safety
///
/// `object` is a `T` from [`kfblk_rs_make`], and [`kfblk_rs_put`] was not called for it.
unsafe fn with<T, R>(object: *mut c_void, run: impl FnOnce(&Arc<T>) -> R) -> R {
    // SAFETY: By the caller's contract. `ManuallyDrop` leaves the folder its reference.
    let object = ManuallyDrop::new(unsafe { Arc::from_raw(object.cast::<T>().cast_const()) });
    run(&object)
}

fn into<T>(object: Arc<T>) -> *mut c_void {
    object.into_raw().cast_mut().cast()
}

/// Makes the object of a new folder.
///
/// # Safety
///
/// `name` is a C string, and `err` is writable.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_make(
    kind: c_uint,
    name: *const c_char,
    err: *mut c_int,
) -> *mut c_void {
    // SAFETY: By the caller's contract.
    let name = unsafe { CStr::from_char_ptr(name) };
    let made = Name::new(name.to_bytes())
        .map_err(|_| EINVAL)
        .and_then(|name| match kind {
            sys::KFBLK_SUBSYSTEM => Subsystem::new(name).map(into),
            sys::KFBLK_PORT => Port::new().map(into),
            _ => Disk::new(name).map(into),
        });
    match made {
        Ok(object) => object,
        Err(e) => {
            // SAFETY: By the caller's contract.
            unsafe { *err = e.to_errno() };
            core::ptr::null_mut()
        }
    }
}

/// Ends the object of a removed folder.
///
/// # Safety
///
/// `object` is the object of a folder of this kind.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_end(kind: c_uint, object: *mut c_void) {
    // SAFETY: By the caller's contract.
    unsafe {
        match kind {
            sys::KFBLK_SUBSYSTEM => with(object, Subsystem::end),
            sys::KFBLK_PORT => with(object, Port::end),
            _ => with(object, Disk::end),
        }
    }
}

/// Drops the folder's reference, after its last use.
///
/// # Safety
///
/// `object` is the object of a folder of this kind, and is not used any more.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_put(kind: c_uint, object: *mut c_void) {
    // SAFETY: By the caller's contract, this is the folder's reference.
    unsafe {
        match kind {
            sys::KFBLK_SUBSYSTEM => drop(Arc::<Subsystem>::from_raw(object.cast_const().cast())),
            sys::KFBLK_PORT => drop(Arc::<Port>::from_raw(object.cast_const().cast())),
            _ => drop(Arc::<Disk>::from_raw(object.cast_const().cast())),
        }
    }
}

/// Reads an attribute.
///
/// # Safety
///
/// `object` is the object of a folder of this kind; `page` is a writable page.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_show(
    kind: c_uint,
    object: *mut c_void,
    attr: u32,
    page: *mut u8,
) -> isize {
    // SAFETY: By the caller's contract. Only this call accesses the page.
    let page = unsafe { core::slice::from_raw_parts_mut(page, PAGE_SIZE) };
    let mut text = Text::of_page(page);
    // SAFETY: By the caller's contract.
    let shown = unsafe {
        match kind {
            sys::KFBLK_SUBSYSTEM => with(object, |of: &Arc<Subsystem>| of.show(attr, &mut text)),
            sys::KFBLK_PORT => with(object, |of: &Arc<Port>| of.show(attr, &mut text)),
            _ => with(object, |of: &Arc<Disk>| of.show(attr, &mut text)),
        }
    };
    match shown {
        // CAST: The length is at most a page.
        Ok(()) => text.len() as isize,
        // CAST: An errno is small.
        Err(e) => e.to_errno() as isize,
    }
}

/// Reads a complete list of a subsystem. If `buf` is null, returns only the number of bytes.
///
/// # Safety
///
/// `object` is the object of a subsystem's folder; `buf` is null, or has `len` writable bytes.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_show_all(
    object: *mut c_void,
    attr: u32,
    buf: *mut c_void,
    len: usize,
) -> isize {
    let buf = buf.cast::<u8>();
    let mut text = match buf.is_null() {
        true => Text::count(),
        // SAFETY: By the caller's contract. Only this call accesses the `len` bytes.
        false => Text::of_list(unsafe {
            core::ptr::write_bytes(buf, b'\n', len);
            core::slice::from_raw_parts_mut(buf, len)
        }),
    };
    // SAFETY: By the caller's contract.
    let shown = unsafe { with(object, |of: &Arc<Subsystem>| of.show(attr, &mut text)) };
    match (shown, buf.is_null()) {
        // CAST: An errno is small.
        (Err(e), _) => e.to_errno() as isize,
        // CAST: A list in memory is shorter than `isize::MAX`.
        (Ok(()), true) => text.len() as isize,
        // configfs returns its whole buffer, so a list that became shorter ends in empty lines.
        (Ok(()), false) => len as isize,
    }
}

/// Writes an attribute.
///
/// # Safety
///
/// `object` is the object of a folder of this kind; `page` has `len` bytes.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_store(
    kind: c_uint,
    object: *mut c_void,
    attr: u32,
    page: *const u8,
    len: usize,
) -> c_int {
    // SAFETY: By the caller's contract.
    let bytes = unsafe { core::slice::from_raw_parts(page, len) };
    let Ok(text) = core::str::from_utf8(bytes) else {
        return EINVAL.to_errno();
    };
    let text = text.trim();
    // SAFETY: By the caller's contract.
    let stored = unsafe {
        match kind {
            sys::KFBLK_SUBSYSTEM => with(object, |of| Subsystem::store(of, attr, text)),
            sys::KFBLK_PORT => with(object, |of| Port::store(of, attr, text)),
            _ => with(object, |of| Disk::store(of, attr, text)),
        }
    };
    stored.map_or_else(|e| e.to_errno(), |()| 0)
}

/// Links a subsystem to a port.
///
/// # Safety
///
/// `port` and `subsystem` are the objects of their folders.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_link(port: *mut c_void, subsystem: *mut c_void) -> c_int {
    // SAFETY: By the caller's contract.
    let linked = unsafe {
        with(port, |port: &Arc<Port>| {
            with(subsystem, |of: &Arc<Subsystem>| Port::link(port, of))
        })
    };
    linked.map_or_else(|e| e.to_errno(), |()| 0)
}

/// Removes the link of a subsystem to a port.
///
/// # Safety
///
/// `port` and `subsystem` are the objects of their folders.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_unlink(port: *mut c_void, subsystem: *mut c_void) {
    // SAFETY: By the caller's contract.
    unsafe {
        with(port, |port: &Arc<Port>| {
            with(subsystem, |of: &Arc<Subsystem>| Port::unlink(port, of))
        })
    }
}

kfabric::same_prototype!(
    sys:
    kfblk_rs_make, kfblk_rs_end, kfblk_rs_put, kfblk_rs_show, kfblk_rs_show_all, kfblk_rs_store,
    kfblk_rs_link, kfblk_rs_unlink,
);
