// SPDX-License-Identifier: GPL-2.0
//! Auth keys that calls carry, and the admission of objects under the keys' grants.

use kernel::prelude::*;

use super::{
    file::File,
    undo::Undo,
    user, //
};
use crate::{
    auth::{
        self,
        auth_key::{
            AuthKey,
            Secret, //
        },
        Authorization,
        ResourceRequest, //
    },
    objects::domain::Domain, //
};

/// Reads an auth key from the program; `None` if the program gives no bytes.
///
/// # Errors
///
/// - `EINVAL` if there are too many bytes, or a pointer without a size.
#[inline(never)]
pub(super) fn read_auth_key(addr: u64, size: u32) -> Result<Option<AuthKey>> {
    if addr == 0 && size == 0 {
        return Ok(None);
    }
    // CAST: A `u32` fits.
    let secret = Secret::fill(size as usize, |place| user::read_bytes(addr, place))?;
    AuthKey::of(secret).map(Some)
}

/// Admits an object on `domain` under the given auth key, else under `other`.
#[inline(never)]
pub(super) fn admit_on(
    file: &File,
    domain: &Domain,
    key: Option<AuthKey>,
    other: Option<&AuthKey>,
    want: ResourceRequest,
) -> Result<Authorization> {
    let key = key.or_else(|| other.cloned());
    let lease = auth::admit(&file.net, domain.name(), key.as_ref(), want)?;
    Ok(Authorization { key, lease })
}

/// Undoes an object if its grant has ended by now. A sweep may have run before the object was
/// published; every later sweep finds the object.
pub(super) fn check_grants<'a>(
    file: &File,
    undo: Undo,
    under: impl Iterator<Item = &'a Authorization>,
) -> Result<Undo> {
    for under in under {
        if let Err(e) = under.check() {
            undo.roll_back(file);
            return Err(e);
        }
    }
    Ok(undo)
}
