// SPDX-License-Identifier: MIT OR Apache-2.0
//! The call that revokes many keys.
#![forbid(unsafe_code)]

use kfabric_uapi as abi;

use crate::errno::Errno;
use crate::error::{Error, Result};
use crate::handle::{Handle, Shared};
use crate::object::ObjectId;
use crate::sys::{self, Buf};

/// Revokes all keys of a region, an endpoint or a domain. Returns their number.
pub(crate) fn revoke_all(of: &Handle, scope: u32) -> Result<u64> {
    let mut arg: abi::KeyRevokeMany = sys::new();
    arg.scope = scope;
    arg.object = of.raw();
    revoked(&of.dev, of.id, &mut arg, &mut [])
}

/// Makes a revoking call. Returns the number of revoked keys, or the error that stopped the batch.
pub(crate) fn revoked(
    dev: &Shared,
    of: ObjectId,
    arg: &mut abi::KeyRevokeMany,
    bufs: &mut [Buf<'_>],
) -> Result<u64> {
    dev.call(of, arg, bufs)?;
    match stopped(arg.err) {
        None => Ok(arg.revoked),
        Some(errno) => Err(Error::Call {
            call: "KEY_REVOKE_MANY",
            object: of,
            errno,
        }),
    }
}

/// The error that stopped a batch, if any.
pub(crate) fn stopped(err: u32) -> Option<Errno> {
    (err != 0).then(|| Errno(i32::try_from(err).unwrap_or(libc::EIO)))
}
