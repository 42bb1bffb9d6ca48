// SPDX-License-Identifier: GPL-2.0
//! `struct kfi_written` of the C API: the ranges to commit.

use core::ptr;
use kernel::prelude::*;

use super::{
    obj::code,
    raw, //
};
use crate::pure::{
    commit::Range,
    written::Written, //
};

/// The value behind a `struct kfi_written`.
struct Ranges(Written<{ raw::KFI_WRITTEN_RANGES as usize }>);

/// Returns the value behind a pointer of the consumer.
///
/// # Safety
///
/// `written` is from `kf_c_written_alloc` and not freed. Nothing else uses it during `'a`.
unsafe fn of<'a>(written: *mut raw::kfi_written) -> &'a mut Ranges {
    // SAFETY: By this function's contract the pointer is that of a `Ranges`, which nothing else uses.
    unsafe { &mut *written.cast::<Ranges>() }
}

/// Implements `kfi_written_alloc()`.
///
/// # Safety
///
/// No preconditions; unsafe because bindgen declares it so.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_written_alloc() -> *mut raw::kfi_written {
    KBox::new(Ranges(Written::new()), GFP_KERNEL_ACCOUNT)
        .map_or(ptr::null_mut(), |written| KBox::into_raw(written).cast())
}

/// Implements `kfi_written_free()`.
///
/// # Safety
///
/// `written` is from `kf_c_written_alloc` and used no more, or null.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_written_free(written: *mut raw::kfi_written) {
    if !written.is_null() {
        // SAFETY: By this function's contract the caller owns the box.
        drop(unsafe { KBox::from_raw(written.cast::<Ranges>()) });
    }
}

/// Implements `kfi_written_note()`.
///
/// # Safety
///
/// `written` and `range` are valid as `kfi_rma.h` describes.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_written_note(
    written: *mut raw::kfi_written,
    range: *const raw::kfi_rma_iov,
) -> c_int {
    // SAFETY: By this function's contract both are valid, and no other call uses `written`.
    let (written, range) = unsafe { (of(written), &*range) };
    let noted = written.0.note(Range {
        key: range.key,
        addr: range.addr,
        // CAST: A `usize` has at most 64 bits.
        len: range.len as u64,
    });
    code(noted.map_err(|_| ENOSPC))
}

/// Implements `kfi_written_forget()`.
///
/// # Safety
///
/// `written` is valid as `kfi_rma.h` describes.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_written_forget(written: *mut raw::kfi_written, key: u64) {
    // SAFETY: By this function's contract it is valid, and no other call uses it.
    unsafe { of(written) }.0.forget(key);
}

/// Implements `kfi_written_take()`.
///
/// # Safety
///
/// `written` and `range` are valid as `kfi_rma.h` describes.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_written_take(
    written: *mut raw::kfi_written,
    most: usize,
    range: *mut raw::kfi_rma_iov,
) -> bool {
    // SAFETY: By this function's contract both are valid, and no other call uses `written`.
    let (written, range) = unsafe { (of(written), &mut *range) };
    // CAST: A `usize` has at most 64 bits.
    let Some(taken) = written.0.take(most as u64) else {
        return false;
    };
    *range = raw::kfi_rma_iov {
        addr: taken.addr,
        // CAST: At most `most`, or 1.
        len: taken.len as usize,
        key: taken.key,
    };
    true
}

crate::same_prototype!(
    raw:
    kf_c_written_alloc, kf_c_written_free, kf_c_written_note, kf_c_written_forget,
    kf_c_written_take,
);
