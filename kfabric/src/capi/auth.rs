// SPDX-License-Identifier: GPL-2.0
//! Auth keys as C has them, and grants (`kfi_auth.h`).

use kernel::{
    ffi::c_int,
    prelude::*, //
};

use super::{
    obj::code,
    raw, //
};
use crate::{
    auth::{
        self,
        ask,
        grant::{
            self,
            Offer, //
        },
        sweep,
        AuthKey, //
    },
    pure::grant::{
        Limits,
        Rule, //
    },
    uapi::{
        self,
        KFI_AUTH_KEY_MAX, //
    },
};

// What is passed on as it is.
const _: () = {
    assert!(raw::KFI_AUTH_KEY_MAX as usize == KFI_AUTH_KEY_MAX);
    assert!(raw::KFI_AUTH_EP == uapi::KFI_AUTH_EP && raw::KFI_AUTH_KEYS == uapi::KFI_AUTH_KEYS);
    assert!(raw::KFI_MATCH_UID == uapi::KFI_MATCH_UID);
    assert!(raw::KFI_MATCH_GID == uapi::KFI_MATCH_GID);
    assert!(raw::KFI_MATCH_CGROUP == uapi::KFI_MATCH_CGROUP);
    assert!(raw::KFI_MATCH_NETNS == uapi::KFI_MATCH_NETNS);
    assert!(raw::KFI_MATCH_PROCESS == uapi::KFI_MATCH_PROCESS);
};

/// The auth key of so many bytes; none where there are none.
///
/// # Errors
///
/// `EINVAL`: more than one has, or a pointer to none.
///
/// # Safety
///
/// `bytes` has `len` bytes, or is null.
pub(super) unsafe fn key(bytes: *const u8, len: usize) -> Result<Option<AuthKey>> {
    if len == 0 {
        return Ok(None);
    }
    if bytes.is_null() || len > KFI_AUTH_KEY_MAX {
        return Err(EINVAL);
    }
    // SAFETY: The caller's promise.
    AuthKey::new(unsafe { core::slice::from_raw_parts(bytes, len) }).map(Some)
}

/// The auth key of an endpoint's attributes.
///
/// # Errors
///
/// As [`key`].
///
/// # Safety
///
/// The attributes are as the header says.
pub(super) unsafe fn of_ep(attr: Option<&raw::kfi_ep_attr>) -> Result<Option<AuthKey>> {
    match attr {
        // SAFETY: The caller's promise.
        Some(attr) => unsafe { key(attr.auth_key, attr.auth_key_size) },
        None => Ok(None),
    }
}

/// Adds a grant; its number.
///
/// # Safety
///
/// The attributes are as the header says.
unsafe fn add(attr: &raw::kfi_grant_attr, netns: u64, process: u64) -> Result<u64> {
    // SAFETY: The caller's promise.
    let key = unsafe { key(attr.auth_key, attr.auth_key_size)? }.ok_or(EINVAL)?;
    let id = grant::add(Offer {
        key: key.clone(),
        rule: Rule {
            what: attr.match_,
            uid: attr.uid,
            gid: attr.gid,
            cgroup: attr.cgroup,
            netns,
            process,
        },
        rights: attr.rights,
        limits: Limits {
            pinned: attr.max_pinned,
            keys: attr.max_keys,
            eps: attr.max_eps,
        },
        lifetime: attr.lifetime_ms,
        answered: None,
    })?;
    ask::look(&key);
    Ok(id)
}

/// See `kfi_grant_add()`, whose C part says which namespace and which process are meant.
///
/// # Safety
///
/// As the header says.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_grant_add(
    attr: *const raw::kfi_grant_attr,
    netns: u64,
    process: u64,
    id: *mut u64,
) -> c_int {
    // SAFETY: The caller's attributes.
    let added = unsafe { add(&*attr, netns, process) };
    code(added.map(|added| {
        // SAFETY: The caller's place.
        unsafe { *id = added }
    }))
}

/// See `kfi_grant_limit()`.
#[no_mangle]
pub(crate) extern "C" fn kf_c_grant_limit(id: u64, pinned: u64, keys: u32, eps: u32) -> c_int {
    code(grant::change(id, Some(Limits { pinned, keys, eps }), None))
}

/// See `kfi_grant_extend()`.
#[no_mangle]
pub(crate) extern "C" fn kf_c_grant_extend(id: u64, lifetime_ms: u64) -> c_int {
    code(grant::change(id, None, Some(lifetime_ms)))
}

/// See `kfi_grant_revoke()`.
#[no_mangle]
pub(crate) extern "C" fn kf_c_grant_revoke(id: u64) -> c_int {
    code(grant::revoke(id).and_then(|()| sweep::sweep()))
}

/// See `kfi_auth_enforced()`.
#[no_mangle]
pub(crate) extern "C" fn kf_c_auth_enforced() -> bool {
    auth::enforced()
}
