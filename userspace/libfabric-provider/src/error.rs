// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers of errors.

use crate::ffi::FI_ENOKEY;

/// A positive errno of libfabric.
pub(crate) type Errno = i32;

/// libfabric's number of an errno of the kernel: the same, except for `ENOKEY`.
pub(crate) fn translate(errno: kfabric::Errno) -> Errno {
    match errno.0 {
        libc::ENOKEY => FI_ENOKEY as Errno,
        other => other.max(1),
    }
}

/// The number of an error of libkfabric.
pub(crate) fn errno(error: &kfabric::Error) -> Errno {
    error.errno().map_or(libc::EIO, translate)
}

/// Conversion of results to libfabric's numbers.
pub(crate) trait Ours<T> {
    /// Converts the error.
    fn ours(self) -> Result<T, Errno>;
}

impl<T> Ours<T> for kfabric::Result<T> {
    fn ours(self) -> Result<T, Errno> {
        self.map_err(|error| errno(&error))
    }
}

impl<T> Ours<T> for std::io::Result<T> {
    fn ours(self) -> Result<T, Errno> {
        self.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))
    }
}
