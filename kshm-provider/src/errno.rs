// SPDX-License-Identifier: GPL-2.0
//! Errors that the kernel crate has no constants for, and what else programs are told of one.

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

/// The provider's own code for an operation that failed with `err`: what verbs would say
/// (`ib_wc_status`), so that programs need not tell the two apart.
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
