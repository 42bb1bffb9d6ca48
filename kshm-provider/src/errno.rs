// SPDX-License-Identifier: GPL-2.0
//! Errors that the kernel crate has no constants for.

use kernel::{
    bindings,
    error::Error, //
};

/// `errno` as an error.
fn of(errno: u32) -> Error {
    // CAST: An errno is a small number.
    Error::from_errno(-(errno as i32))
}

/// `EADDRINUSE`: somebody listens there.
pub(crate) fn eaddrinuse() -> Error {
    of(bindings::EADDRINUSE)
}

/// `EADDRNOTAVAIL`: it is not an address of this host's.
pub(crate) fn eaddrnotavail() -> Error {
    of(bindings::EADDRNOTAVAIL)
}

/// `ECONNABORTED`: the peer did not wait.
pub(crate) fn econnaborted() -> Error {
    of(bindings::ECONNABORTED)
}
