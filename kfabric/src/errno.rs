// SPDX-License-Identifier: GPL-2.0
//! Error codes that the kernel crate has no constants for.

use kernel::{
    bindings,
    error::Error, //
};

macro_rules! errno {
    ($($(#[$meta:meta])* $name:ident = $code:ident;)*) => {
        $(
            $(#[$meta])*
            pub fn $name() -> Error {
                // CAST: An errno is a small number.
                Error::from_errno(-(bindings::$code as i32))
            }
        )*
    };
}

errno! {
    /// `EOPNOTSUPP`: the provider or the device cannot.
    eopnotsupp = EOPNOTSUPP;
    /// `ENOTCONN`: the endpoint has no connection.
    enotconn = ENOTCONN;
    /// `ENODATA`: nothing matches.
    enodata = ENODATA;
}
