// SPDX-License-Identifier: MIT OR Apache-2.0
//! Auth keys: of attributes, and of the file that `FI_KFABRIC_AUTH_KEY_FILE` names.

use std::path::PathBuf;
use std::sync::OnceLock;

use kfabric::uapi as abi;
use kfauth::{AuthKey, KeyError};

use crate::core;
use crate::error::{Errno, Ours};

/// The file of the default auth key.
static FILE: OnceLock<PathBuf> = OnceLock::new();

/// Sets the file of the default auth key. The first one holds.
pub(crate) fn set_file(path: String) {
    let _ = FILE.set(path.into());
}

/// Reads the default auth key. `None` if no file is named.
///
/// A file that cannot be read or is not safe is an error: the program must not run without the auth
/// key that it was meant to have.
pub(crate) fn default() -> Result<Option<AuthKey>, Errno> {
    let Some(path) = FILE.get() else {
        return Ok(None);
    };
    match AuthKey::from_file(path) {
        Ok(key) => Ok(Some(key)),
        Err(error) => {
            core::warn(&format!("FI_KFABRIC_AUTH_KEY_FILE: {error}"));
            Err(match error {
                KeyError::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
                KeyError::Unsafe { .. } => libc::EACCES,
                _ => libc::EINVAL,
            })
        }
    }
}

/// Copies the auth key of an attribute. `None` if the attribute has none.
///
/// # Safety
///
/// `at` is null or has `size` bytes, if `size` is a valid size of an auth key.
pub(crate) unsafe fn copy(at: *const u8, size: usize) -> Result<Option<AuthKey>, Errno> {
    if at.is_null() || size == 0 {
        return Ok(None);
    }
    if size > abi::KFI_AUTH_KEY_MAX {
        return Err(libc::EINVAL);
    }
    // SAFETY: as the caller vouches.
    let bytes = unsafe { std::slice::from_raw_parts(at, size) };
    AuthKey::new(bytes.to_vec())
        .map(Some)
        .map_err(|_| libc::EINVAL)
}

/// Converts an auth key for libkfabric.
pub(crate) fn given(key: &AuthKey) -> Result<kfabric::AuthKey, Errno> {
    kfabric::AuthKey::new(key.expose()).ours()
}
