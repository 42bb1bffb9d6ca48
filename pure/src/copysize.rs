// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Copy rule of structures for callers and kernels of different versions.
//!
//! A structure only ever grows at its end. Bytes beyond the kernel's version must be zero. Bytes
//! beyond the caller's version count as zero.

/// Maximum size of a structure in bytes: one page, as other users of `copy_struct_from_user` have
/// it.
pub const SIZE_MAX: usize = 4096;

/// Why a size was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// The size is below that of the structure's first version.
    TooSmall,
    /// The size is above [`SIZE_MAX`].
    TooLarge,
    /// A byte beyond the kernel's version is not zero.
    UnknownTail,
}

impl SizeError {
    /// Returns the positive errno: `EINVAL` or `E2BIG`.
    pub const fn errno(self) -> i32 {
        match self {
            SizeError::TooSmall => 22,
            SizeError::TooLarge | SizeError::UnknownTail => 7,
        }
    }
}

/// The parts of a structure's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyPlan {
    /// Number of bytes to copy, in either direction.
    pub copy: usize,
    /// Number of bytes after the copied ones that only the kernel has; they are zero in the
    /// kernel's copy.
    pub zero: usize,
    /// Number of bytes after the copied ones that only the caller has. They must be zero on input
    /// and are left alone on output.
    pub tail: usize,
}

/// Plans the copy of a structure. `user` is the caller's size, `kernel` the kernel's, and `min` the
/// size of the first version.
///
/// # Errors
///
/// - [`SizeError::TooSmall`] if `user` is below `min`.
/// - [`SizeError::TooLarge`] if `user` is above [`SIZE_MAX`].
///
/// The caller checks the tail by [`check_tail`].
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
/// - [`SizeError::UnknownTail`] if a byte is not zero.
pub fn check_tail(part: &[u8]) -> Result<(), SizeError> {
    if part.iter().all(|&byte| byte == 0) {
        Ok(())
    } else {
        Err(SizeError::UnknownTail)
    }
}
