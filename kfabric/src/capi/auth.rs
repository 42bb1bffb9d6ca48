// SPDX-License-Identifier: GPL-2.0
//! Auth keys in the form of the C API, and grants (`kfi_auth.h`).

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
        agent,
        grant::{
            self,
            NewGrant, //
        },
        reaper,
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

// These values are passed to the core unchanged.
const _: () = {
    assert!(raw::KFI_AUTH_KEY_MAX as usize == KFI_AUTH_KEY_MAX);
    assert!(raw::KFI_AUTH_EP == uapi::KFI_AUTH_EP && raw::KFI_AUTH_KEYS == uapi::KFI_AUTH_KEYS);
    assert!(raw::KFI_MATCH_UID == uapi::KFI_MATCH_UID);
    assert!(raw::KFI_MATCH_GID == uapi::KFI_MATCH_GID);
    assert!(raw::KFI_MATCH_CGROUP == uapi::KFI_MATCH_CGROUP);
    assert!(raw::KFI_MATCH_NETNS == uapi::KFI_MATCH_NETNS);
    assert!(raw::KFI_MATCH_PROCESS == uapi::KFI_MATCH_PROCESS);
};

/// Returns the auth key of `len` bytes at `bytes`, or `None` if `len` is 0.
///
/// # Errors
///
/// - `EINVAL` if `len` is larger than `KFI_AUTH_KEY_MAX`.
/// - `EINVAL` if `bytes` is null and `len` is not 0.
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
    // SAFETY: By this function's contract `bytes` has `len` bytes; it is not null here.
    AuthKey::new(unsafe { core::slice::from_raw_parts(bytes, len) }).map(Some)
}

/// Returns the auth key in an endpoint's attributes, or `None` if they name none.
///
/// # Errors
///
/// - As [`key`].
///
/// # Safety
///
/// The auth key of the attributes has as many bytes as its size states, or is null.
pub(super) unsafe fn of_ep(attr: Option<&raw::kfi_ep_attr>) -> Result<Option<AuthKey>> {
    match attr {
        // SAFETY: By this function's contract on the auth key.
        Some(attr) => unsafe { key(attr.auth_key, attr.auth_key_size) },
        None => Ok(None),
    }
}

/// Adds a grant and returns its number.
///
/// # Safety
///
/// The auth key of the attributes has as many bytes as its size states, or is null.
unsafe fn add(attr: &raw::kfi_grant_attr, netns: u64, process: u64) -> Result<u64> {
    // SAFETY: By this function's contract on the auth key.
    let key = unsafe { key(attr.auth_key, attr.auth_key_size)? }.ok_or(EINVAL)?;
    let id = grant::add(NewGrant {
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
    agent::look(&key);
    Ok(id)
}

/// Implements `kfi_grant_add()`. Its C part chooses the network namespace and the process.
///
/// # Safety
///
/// `attr` is valid as `kfi_auth.h` describes. `id` is a valid place for the grant's number.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_grant_add(
    attr: *const raw::kfi_grant_attr,
    netns: u64,
    process: u64,
    id: *mut u64,
) -> c_int {
    // SAFETY: By this function's contract `attr` is valid.
    let added = unsafe { add(&*attr, netns, process) };
    code(added.map(|added| {
        // SAFETY: By this function's contract `id` is valid.
        unsafe { *id = added }
    }))
}

/// Implements `kfi_grant_limit()`.
///
/// # Safety
///
/// No preconditions; unsafe because bindgen declares it so.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_grant_limit(
    id: u64,
    pinned: u64,
    keys: u32,
    eps: u32,
) -> c_int {
    code(grant::change(id, Some(Limits { pinned, keys, eps }), None))
}

/// Implements `kfi_grant_extend()`.
///
/// # Safety
///
/// No preconditions; unsafe because bindgen declares it so.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_grant_extend(id: u64, lifetime_ms: u64) -> c_int {
    code(grant::change(id, None, Some(lifetime_ms)))
}

/// Implements `kfi_grant_revoke()`.
///
/// # Safety
///
/// No preconditions; unsafe because bindgen declares it so.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_grant_revoke(id: u64) -> c_int {
    code(grant::revoke(id).and_then(|()| reaper::sweep()))
}

/// Implements `kfi_auth_enforced()`.
///
/// # Safety
///
/// No preconditions; unsafe because bindgen declares it so.
#[no_mangle]
pub(crate) unsafe extern "C" fn kf_c_auth_enforced() -> bool {
    auth::enforced()
}

crate::same_prototype!(
    raw:
    kf_c_grant_add, kf_c_grant_limit, kf_c_grant_extend, kf_c_grant_revoke, kf_c_auth_enforced,
);
