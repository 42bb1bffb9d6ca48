// SPDX-License-Identifier: GPL-2.0
//! Errors without constants in the kernel crate, and provider error codes.

use kernel::{
    bindings,
    error::Error, //
};

/// Converts a positive errno.
fn of(errno: u32) -> Error {
    // CAST: An errno is a small number.
    Error::from_errno(-(errno as i32))
}

/// `EADDRINUSE`: another listener has the address.
pub(crate) fn eaddrinuse() -> Error {
    of(bindings::EADDRINUSE)
}

/// `EADDRNOTAVAIL`: the address is not one of this host.
pub(crate) fn eaddrnotavail() -> Error {
    of(bindings::EADDRNOTAVAIL)
}

/// Returns the provider error code of an operation that failed with `err`. The codes are those of
/// verbs (`ib_wc_status`), so that programs treat both providers alike.
pub(crate) fn code(err: u32) -> u32 {
    match err {
        0 => 0,
        // IB_WC_LOC_LEN_ERR, IB_WC_WR_FLUSH_ERR, IB_WC_REM_INV_REQ_ERR, IB_WC_REM_ACCESS_ERR
        bindings::EMSGSIZE => 1,
        bindings::ECANCELED => 5,
        bindings::EREMOTEIO => 9,
        bindings::EACCES => 10,
        // IB_WC_GENERAL_ERR
        _ => 21,
    }
}
