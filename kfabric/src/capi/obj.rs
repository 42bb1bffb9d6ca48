// SPDX-License-Identifier: GPL-2.0
//! Functions that all objects of the C API share: allocate, look up, free.

use core::{
    mem::MaybeUninit,
    ptr, //
};
use kernel::{
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    prelude::*, //
};

use super::raw;

/// An object that a consumer names by a pointer to the C structure at the object's start.
///
/// # Safety
///
/// The type is `repr(C)` and begins with `Opaque<C>`. `C` is the C API's structure of the class
/// `CLASS`, and begins with `struct kfid`.
pub(super) unsafe trait Object: Sized {
    /// Structure of the C API.
    type C;
    /// Class of the object, `KFI_CLASS_*`.
    const CLASS: u32;
    /// Table of the calls that every object has.
    const OPS: &'static raw::kfi_ops;
}

/// Memory for an object whose address is needed before the object exists.
pub(super) struct Place<T: Object>(KBox<MaybeUninit<T>>);

impl<T: Object> Place<T> {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(KBox::new_uninit(GFP_KERNEL)?))
    }

    /// Returns the address that the object will have.
    pub(super) fn ptr(&self) -> *mut T::C {
        ptr::from_ref(&*self.0).cast_mut().cast()
    }

    /// Moves the object into its place. `set` fills in the rest of the C structure, which is
    /// zeroed.
    pub(super) fn put(
        self,
        object: T,
        context: *mut c_void,
        set: impl FnOnce(&mut T::C),
    ) -> *mut T::C {
        let made: *mut T = KBox::into_raw(KBox::write(self.0, object));
        let c: *mut T::C = made.cast();
        // SAFETY: By the contract of `Object` the object begins with a `T::C`. No other task has
        // its address yet. All these structures are plain data, for which zero is a valid value.
        unsafe {
            ptr::write_bytes(c, 0, 1);
            raw::kf_c_init_fid(
                c.cast(),
                T::CLASS as usize,
                context,
                ptr::from_ref(T::OPS).cast_mut(),
            );
            set(&mut *c);
        }
        c
    }
}

/// Returns the object at `c`.
///
/// # Safety
///
/// `c` is a `T` of this module, and no task closes the object during `'a`.
pub(super) unsafe fn get<'a, T: Object, P>(c: *mut P) -> &'a T {
    // SAFETY: By this function's contract `c` is a `T` that exists during `'a`.
    unsafe { &*c.cast::<T>() }
}

/// Returns the object if it is a `T` of this module.
///
/// # Safety
///
/// `fid` is an open object of any class, which no task closes during `'a`, or null.
pub(super) unsafe fn try_get<'a, T: Object>(fid: *mut raw::kfid) -> Option<&'a T> {
    if fid.is_null() {
        return None;
    }
    // SAFETY: By this function's contract `fid` is an open object; it is not null here.
    let (class, ops) = unsafe { ((*fid).fclass, (*fid).ops) };
    // The table distinguishes objects of this module from those of a provider written in C.
    if class != T::CLASS as usize || !ptr::eq(ops, T::OPS) {
        return None;
    }
    // SAFETY: Class and table show that the object is a `T` of this module.
    Some(unsafe { get::<T, _>(fid) })
}

/// Returns ownership of the object.
///
/// # Safety
///
/// `fid` is a `T` of this module, and no other task uses the object any more.
pub(super) unsafe fn take<T: Object>(fid: *mut raw::kfid) -> KBox<T> {
    // SAFETY: `Place::put()` made the pointer from a box. By this function's contract no other task
    // uses the object.
    unsafe { KBox::from_raw(fid.cast()) }
}

/// Returns a result as 0 or a negative error number.
pub(super) fn code(result: Result) -> c_int {
    result.map_or_else(|e| e.to_errno(), |()| 0)
}

/// Returns an error with a number of the C API.
pub(super) fn kfi_error(errno: u32) -> Error {
    // CAST: Error numbers are below 4096.
    Error::from_errno(-(errno as c_int))
}

/// Returns `ENOSYS`.
pub(super) fn enosys() -> Error {
    kfi_error(kernel::bindings::ENOSYS)
}

pub(super) unsafe extern "C" fn no_bind(_: *mut raw::kfid, _: *mut raw::kfid, _: u64) -> c_int {
    enosys().to_errno()
}

pub(super) unsafe extern "C" fn no_control(_: *mut raw::kfid, _: c_int, _: *mut c_void) -> c_int {
    enosys().to_errno()
}

pub(super) unsafe extern "C" fn no_ops(
    _: *mut raw::kfid,
    _: *const c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    enosys().to_errno()
}
