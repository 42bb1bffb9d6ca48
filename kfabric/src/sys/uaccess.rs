// SPDX-License-Identifier: GPL-2.0
//! Copies between slices and user memory.
//!
//! The kernel crate's `UserSlice` checks for each slice that it lies in one object of the kernel
//! (`check_object_size()`), which costs as much as the copy of a small structure. A Rust slice lies in one
//! object, so these copies call the variants without the check, as `UserSliceReader::read()` does. Callers
//! bound the length.

use kernel::{
    bindings,
    prelude::*,
    uaccess::UserPtr, //
};

/// Copies `out.len()` bytes in. May sleep.
///
/// # Errors
///
/// - `EFAULT` if user memory is not readable. A part of `out` may be written.
pub(crate) fn read(from: UserPtr, out: &mut [u8]) -> Result {
    // SAFETY: The slice is valid for writes of its length. The function checks the user's range.
    let left = unsafe {
        bindings::_copy_from_user(out.as_mut_ptr().cast(), from.as_const_ptr(), out.len())
    };
    match left {
        0 => Ok(()),
        _ => Err(EFAULT),
    }
}

/// Copies bytes out. May sleep.
///
/// # Errors
///
/// - `EFAULT` if user memory is not writable. A part of it may be written.
pub(crate) fn write(to: UserPtr, data: &[u8]) -> Result {
    // SAFETY: The slice is valid for reads of its length. The function checks the user's range.
    let left =
        unsafe { bindings::_copy_to_user(to.as_mut_ptr(), data.as_ptr().cast(), data.len()) };
    match left {
        0 => Ok(()),
        _ => Err(EFAULT),
    }
}
