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
    /// `EPROTO`: what the peer said is not of the protocol.
    eproto = EPROTO;
    /// `ENODATA`: nothing matches.
    enodata = ENODATA;
    /// `ENOKEY`: no auth key, or no grant of it.
    enokey = ENOKEY;
    /// `EKEYREVOKED`: the grant was revoked.
    ekeyrevoked = EKEYREVOKED;
    /// `EKEYEXPIRED`: the grant's time is over.
    ekeyexpired = EKEYEXPIRED;
    /// `EKEYREJECTED`: the peer has not proven to have the auth key.
    ekeyrejected = EKEYREJECTED;
    /// `EDQUOT`: beyond the grant's limits.
    edquot = EDQUOT;
    /// `ESTALE`: another file is the agent now.
    estale = ESTALE;
    /// `EMEDIUMTYPE`: it is another kind of thing.
    emediumtype = EMEDIUMTYPE;
    /// `EALREADY`: the file is the agent.
    ealready = EALREADY;
}
