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
    /// `EOPNOTSUPP`: the provider or the device does not support the operation.
    eopnotsupp = EOPNOTSUPP;
    /// `ENOTCONN`: the endpoint has no connection.
    enotconn = ENOTCONN;
    /// `EHWPOISON`: the memory is known to be bad.
    ehwpoison = EHWPOISON;
    /// `EPROTO`: the peer's message violates the protocol.
    eproto = EPROTO;
    /// `ENODATA`: no entry matches.
    enodata = ENODATA;
    /// `ENOKEY`: no auth key, or no grant of it.
    enokey = ENOKEY;
    /// `EKEYREVOKED`: the grant was revoked.
    ekeyrevoked = EKEYREVOKED;
    /// `EKEYEXPIRED`: the grant's time is over.
    ekeyexpired = EKEYEXPIRED;
    /// `EKEYREJECTED`: the auth key is too short, or the peer has not proven to have it.
    ekeyrejected = EKEYREJECTED;
    /// `EDQUOT`: beyond the grant's limits, or beyond the user's share.
    edquot = EDQUOT;
    /// `ECONNABORTED`: the connection ended before it was accepted.
    econnaborted = ECONNABORTED;
    /// `ECANCELED`: another task has ended the call.
    ecanceled = ECANCELED;
    /// `ESTALE`: another file is the agent now.
    estale = ESTALE;
    /// `EMEDIUMTYPE`: the peer's export or version is of another kind.
    emediumtype = EMEDIUMTYPE;
    /// `EALREADY`: the file is the agent.
    ealready = EALREADY;
}
