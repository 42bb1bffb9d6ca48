// SPDX-License-Identifier: GPL-2.0 OR MIT
//! How much of a structure is copied when caller and kernel know different versions of it.
//!
//! A structure only ever grows at its end. What the caller has and the kernel does not know must
//! be zero; what the kernel knows and the caller has not counts as zero.

/// Bytes a structure may claim at most: one page, as `copy_struct_from_user` users have it.
pub const SIZE_MAX: usize = 4096;

/// Why a size was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// Below the structure's first version.
    TooSmall,
    /// Above [`SIZE_MAX`].
    TooLarge,
    /// The caller set something the kernel does not know.
    UnknownTail,
}

impl SizeError {
    /// The positive errno: `EINVAL` or `E2BIG`.
    pub const fn errno(self) -> i32 {
        match self {
            SizeError::TooSmall => 22,
            SizeError::TooLarge | SizeError::UnknownTail => 7,
        }
    }
}

/// What to do with the bytes of one structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// Bytes to copy, in either direction.
    pub copy: usize,
    /// Bytes behind them that the kernel knows and the caller has not: zero in the kernel's copy.
    pub zero: usize,
    /// Bytes behind the copied ones that the caller has and the kernel does not know: must be
    /// zero on the way in, are left alone on the way out.
    pub tail: usize,
}

/// Decides what to copy of a structure for which the caller says `user` bytes, of which the kernel
/// knows `kernel` bytes, and whose first version had `min` bytes.
///
/// # Errors
///
/// [`SizeError::TooSmall`], [`SizeError::TooLarge`]. The tail is for [`check_tail`].
pub const fn plan(user: usize, kernel: usize, min: usize) -> Result<CopyPlan, SizeError> {
    if user < min {
        return Err(SizeError::TooSmall);
    }
    if user > SIZE_MAX {
        return Err(SizeError::TooLarge);
    }
    Ok(if user < kernel {
        CopyPlan {
            copy: user,
            zero: kernel - user,
            tail: 0,
        }
    } else {
        CopyPlan {
            copy: kernel,
            zero: 0,
            tail: user - kernel,
        }
    })
}

/// Checks a part of the caller's tail.
///
/// # Errors
///
/// [`SizeError::UnknownTail`] when a byte is not zero.
pub fn check_tail(part: &[u8]) -> Result<(), SizeError> {
    if part.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(SizeError::UnknownTail)
    }
}
