// SPDX-License-Identifier: GPL-2.0
//! What all objects of the C API share: how they are made, found and freed.

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

/// A box that a consumer has by a pointer to the structure that it begins with.
///
/// # Safety
///
/// `repr(C)`, and begins with `Opaque<C>`, where `C` is the API's structure of the class `CLASS`, which
/// begins with `struct kfid`.
pub(super) unsafe trait Object: Sized {
    /// The API's structure.
    type C;
    /// `KFI_CLASS_*`.
    const CLASS: u32;
    /// Calls that every object has.
    const OPS: &'static raw::kfi_ops;
}

/// A place for an object that is not made yet, but has its address.
pub(super) struct Place<T: Object>(KBox<MaybeUninit<T>>);

impl<T: Object> Place<T> {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(KBox::new_uninit(GFP_KERNEL)?))
    }

    /// Where the object will be.
    pub(super) fn ptr(&self) -> *mut T::C {
        ptr::from_ref(&*self.0).cast_mut().cast()
    }

    /// Puts it there. `set` fills in the rest of the API's structure, which is zero.
    pub(super) fn put(
        self,
        object: T,
        context: *mut c_void,
        set: impl FnOnce(&mut T::C),
    ) -> *mut T::C {
        let made: *mut T = KBox::into_raw(KBox::write(self.0, object));
        let c: *mut T::C = made.cast();
        // SAFETY: The object begins with a `T::C`, by the contract of `Object`, which nobody else
        // knows of yet. All of these structures are plain data, for which zero is a value.
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

/// The object.
///
/// # Safety
///
/// `c` is one of `T`'s, and is not closed while the reference lives.
pub(super) unsafe fn get<'a, T: Object, P>(c: *mut P) -> &'a T {
    // SAFETY: The caller's promise.
    unsafe { &*c.cast::<T>() }
}

/// The object, if it is of the class, and one of ours.
///
/// # Safety
///
/// `fid` is that of an open object of whatever kind, or null.
pub(super) unsafe fn try_get<'a, T: Object>(fid: *mut raw::kfid) -> Option<&'a T> {
    if fid.is_null() {
        return None;
    }
    // SAFETY: The caller's promise.
    let (class, ops) = unsafe { ((*fid).fclass, (*fid).ops) };
    // The table tells one of ours from one of a provider in C.
    if class != T::CLASS as usize || !ptr::eq(ops, T::OPS) {
        return None;
    }
    // SAFETY: As just seen it is a `T`'s.
    Some(unsafe { get::<T, _>(fid) })
}

/// Takes the object back.
///
/// # Safety
///
/// `fid` is one of `T`'s, and nobody uses it any more.
pub(super) unsafe fn take<T: Object>(fid: *mut raw::kfid) -> KBox<T> {
    // SAFETY: `Place::put` made the pointer from a box; the caller's promise.
    unsafe { KBox::from_raw(fid.cast()) }
}

/// 0 or a negative error number.
pub(super) fn code(result: Result) -> c_int {
    result.map_or_else(|e| e.to_errno(), |()| 0)
}

/// An error number of the API's own.
pub(super) fn kfi_error(errno: u32) -> Error {
    // CAST: Below 4096.
    Error::from_errno(-(errno as c_int))
}

/// `ENOSYS`.
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
