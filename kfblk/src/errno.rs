// SPDX-License-Identifier: GPL-2.0
//! Error codes that the kernel crate has no constants for.

use kernel::{
    bindings,
    error::Error, //
};

pub(crate) use kfabric::base::errno::{
    ecanceled,
    edquot,
    ekeyrevoked,
    emediumtype,
    enodata,
    enotconn,
    eopnotsupp,
    eproto,
    estale, //
};

/// Returns `EPROTONOSUPPORT`: the initiator does not know the kind of the export.
pub(crate) fn eprotonosupport() -> Error {
    // CAST: An errno is a small number.
    Error::from_errno(-(bindings::EPROTONOSUPPORT as i32))
}

/// Returns `EHWPOISON`: memory has a known bad block.
pub(crate) fn ehwpoison() -> Error {
    // CAST: An errno is a small number.
    Error::from_errno(-(bindings::EHWPOISON as i32))
}

/// Returns `EREMOTEIO`; see `kfblk_rs_send()`.
pub(crate) fn eremoteio() -> Error {
    // CAST: An errno is a small number.
    Error::from_errno(-(bindings::EREMOTEIO as i32))
}
