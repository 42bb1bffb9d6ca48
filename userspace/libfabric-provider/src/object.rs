// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects of libfabric: libfabric's structure first, then the plug-in's part. Every object is
//! opened, borrowed and closed here.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::addr_of;

use kfabric::Returned;

use crate::error::{errno, Errno, Ours};
use crate::ffi::*;

/// The plug-in's part of an object.
pub(crate) trait Kind: Sized + 'static {
    /// libfabric's structure, which begins with a `fid`.
    type Head;
    /// `FI_CLASS_*` of the object.
    const CLASS: u32;

    /// Returns the operations of the object's fid.
    fn ops() -> *mut fi_ops;

    /// Makes libfabric's structure. `at` is the object's address.
    fn head(&self, fid: fid, at: *mut c_void) -> Self::Head;

    /// Closes the object. On failure the object is returned unchanged.
    fn end(self) -> Result<(), (Self, Errno)>;
}

#[repr(C)]
struct Object<K: Kind> {
    head: K::Head,
    body: K,
}

/// Opens an object. `make` gets the object's address.
///
/// # Safety
///
/// `to` has room for the result.
pub(crate) unsafe fn open<K: Kind>(
    to: *mut *mut K::Head,
    context: *mut c_void,
    make: impl FnOnce(usize) -> Result<K, Errno>,
) -> c_int {
    let place = Box::into_raw(Box::new(MaybeUninit::<Object<K>>::uninit()));
    let at: *mut Object<K> = place.cast();
    match make(at.expose_provenance()) {
        Ok(body) => {
            let fid = fid {
                fclass: K::CLASS as usize,
                context,
                ops: K::ops(),
            };
            let head = body.head(fid, at.cast());
            // SAFETY: the place was just allocated; the caller's place for the result.
            unsafe {
                at.write(Object { head, body });
                *to = at.cast();
            }
            0
        }
        Err(errno) => {
            // SAFETY: boxed above, and without contents.
            drop(unsafe { Box::from_raw(place) });
            -errno
        }
    }
}

/// Borrows the plug-in's part of an object.
///
/// # Safety
///
/// `at` points to an open object of this kind, which the program does not close meanwhile.
pub(crate) unsafe fn body<'a, K: Kind>(at: *const impl Sized) -> &'a K {
    // SAFETY: as the caller vouches. The reference does not cover libfabric's structure, which
    // libfabric and programs may write to.
    unsafe { &*addr_of!((*at.cast::<Object<K>>()).body) }
}

/// Borrows the plug-in's part of an object that may be of another kind, or null.
///
/// # Safety
///
/// `at` is null, or points to an open object of any provider.
pub(crate) unsafe fn body_of_class<'a, K: Kind>(at: *const fid) -> Option<&'a K> {
    // SAFETY: as the caller vouches. Equal operations mean that the object is ours.
    unsafe {
        let class = at.as_ref()?;
        let ours = class.fclass == K::CLASS as usize && std::ptr::eq(class.ops, K::ops());
        ours.then(|| body(at))
    }
}

/// Borrows libfabric's structure of an object.
///
/// # Safety
///
/// As for [`body`], and `at` is the object that the plug-in opened.
pub(crate) unsafe fn head<K: Kind>(at: usize) -> *mut K::Head {
    std::ptr::with_exposed_provenance_mut::<K::Head>(at)
}

/// `fi_close` of an object.
///
/// # Safety
///
/// `fid` points to an open object of this kind. On success the program does not use it any more.
pub(crate) unsafe extern "C" fn close<K: Kind>(fid: *mut fid) -> c_int {
    let at = fid.cast::<Object<K>>();
    // SAFETY: the object was boxed by `open`. The part is moved out, and either moved back or the
    // box is freed without it.
    unsafe {
        let part = &raw mut (*at).body;
        match part.read().end() {
            Ok(()) => {
                drop(Box::from_raw(at.cast::<MaybeUninit<Object<K>>>()));
                0
            }
            Err((body, errno)) => {
                part.write(body);
                -errno
            }
        }
    }
}

/// The operations of a fid.
pub(crate) const fn ops<K: Kind>(
    bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
    control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
) -> Table<fi_ops> {
    Table(fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close::<K>),
        bind,
        control,
        ops_open: absent(),
        tostr: None,
        ops_set: None,
    })
}

/// Turns the outcome of a close of libkfabric into that of [`Kind::end`]; `back` makes the part of
/// the returned object.
pub(crate) fn ended<T, K>(
    outcome: Result<(), Returned<T>>,
    back: impl FnOnce(T) -> K,
) -> Result<(), (K, Errno)> {
    outcome.map_err(|returned| (back(returned.object), errno(&returned.error)))
}

/// Converts a result to libfabric's status: zero, or a negative errno.
pub(crate) fn status<T>(result: Result<T, Errno>) -> c_int {
    match result {
        Ok(_) => 0,
        Err(errno) => -errno,
    }
}

/// As [`status`], for a call of libkfabric.
pub(crate) fn called<T>(result: kfabric::Result<T>) -> c_int {
    status(result.ours())
}
