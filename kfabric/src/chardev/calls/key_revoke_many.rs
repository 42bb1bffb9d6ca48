// SPDX-License-Identifier: GPL-2.0
//! The call that revokes many keys: `KFI_IOC_KEY_REVOKE_MANY`.

use core::slice;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use super::key::HANDLE;
use crate::{
    chardev::{
        admission::read_auth_key,
        args::{
            errno,
            zero, //
        },
        file::File,
        handles::{
            Entry,
            Object, //
        },
        undo::Undo,
        user, //
    },
    key::{
        Key,
        Region,
        CHAIN, //
    },
    sys,
    uapi::*,
};

pub(crate) fn revoke_many(file: &File, call: &mut KeyRevokeMany) -> Result<Undo> {
    zero(&[call.flags])?;
    let listed = call.count != 0 && call.count <= KFI_KEY_ALLOC_MAX;
    let unlisted = call.count == 0 && call.slots == 0;
    call.done = 0;
    call.revoked = 0;
    let object = call.object;
    let result = match call.scope {
        KFI_REVOKE_SLOTS if listed && object == 0 => revoke_listed(file, call),
        KFI_REVOKE_REGION if unlisted => {
            let region = file.handles.region(object)?;
            revoke_all(file, call, &|of| {
                is_of(of, |of| core::ptr::eq(of, &*region))
            })
        }
        KFI_REVOKE_DOMAIN if unlisted => {
            let domain = file.handles.domain(object)?;
            revoke_all(file, call, &|of| {
                is_of(of, |of| Arc::ptr_eq(of.domain(), &domain))
            })
        }
        KFI_REVOKE_EP if unlisted => {
            let ended = file.handles.ep(object)?.revoke_keys();
            // CAST: A count of objects.
            call.revoked = ended.unwrap_or_else(|(ended, _)| ended) as u64;
            ended.map(|_| ()).map_err(|(_, e)| e)
        }
        KFI_REVOKE_AUTH if object == 0 => {
            let key = read_auth_key(call.slots, call.count)?.ok_or(EINVAL)?;
            revoke_all(file, call, &|of| {
                of.key()
                    .is_some_and(|of| of.under().number() == key.number())
            })
        }
        KFI_REVOKE_FILE if unlisted && object == 0 => revoke_all(file, call, &|_| true),
        _ => Err(EINVAL),
    };
    if call.done == 0 && call.revoked == 0 {
        result?;
    }
    call.err = errno(result);
    Ok(Undo::Nothing)
}

/// The region that an object is, or that its key belongs to.
fn region_of(object: &Object) -> Option<&Region> {
    match object {
        Object::Key(key) => key.region().map(|region| &**region),
        Object::Region(region) => Some(region),
        _ => None,
    }
}

/// Returns whether an object is, or has a key of, a region that is `wanted`.
fn is_of(object: &Object, wanted: impl Fn(&Region) -> bool) -> bool {
    region_of(object).is_some_and(wanted)
}

/// Revokes the keys of the listed slots.
fn revoke_listed(file: &File, call: &mut KeyRevokeMany) -> Result {
    let mut found = KVVec::new();
    let listed = find_listed(file, call, &mut found);
    let ended = end_found(call, &mut found);
    found
        .iter()
        .filter_map(Object::key)
        .for_each(Key::renew_in_turn);
    ended?;
    // CAST: At most `KFI_KEY_ALLOC_MAX`.
    call.done = found.len() as u32;
    listed
}

/// Adds the listed slots to `found`.
///
/// # Errors
///
/// The error of the first slot that was not added.
fn find_listed(file: &File, call: &KeyRevokeMany, found: &mut KVVec<Object>) -> Result {
    let mut handles = [0_u64; CHAIN];
    // CAST: A `u32` fits.
    let count = call.count as usize;
    while found.len() < count {
        sys::pause()?;
        let part = CHAIN.min(count - found.len());
        let bytes = handles[..part].as_mut_bytes();
        let (there, read) = user::read_entries(call.slots, HANDLE, found.len(), bytes);
        for handle in handles.iter().take(there) {
            let key = file.handles.key(*handle)?;
            found.push(Object::Key(key), GFP_KERNEL_ACCOUNT)?;
        }
        read?;
    }
    Ok(())
}

/// Revokes the keys of all `wanted` objects, and then refills their slots' reserves.
fn revoke_all(file: &File, call: &mut KeyRevokeMany, wanted: &dyn Fn(&Object) -> bool) -> Result {
    let ended = end_all(file, call, wanted);
    if call.revoked == 0 {
        return ended;
    }
    for index in 0..file.handles.cells() {
        sys::cond_resched();
        match file.handles.peek(index).map(|(_, entry)| entry.object) {
            Some(object) if wanted(&object) => {
                if let Object::Key(key) = &object {
                    key.renew_in_turn();
                }
            }
            _ => {}
        }
    }
    ended
}

/// Revokes the keys of all `wanted` objects.
fn end_all(file: &File, call: &mut KeyRevokeMany, wanted: &dyn Fn(&Object) -> bool) -> Result {
    let mut left = KVVec::new();
    for index in 0..file.handles.cells() {
        sys::pause()?;
        let Some((_, Entry { mut object, .. })) = file.handles.peek(index) else {
            continue;
        };
        let Some(key) = object.key().filter(|_| wanted(&object)) else {
            continue;
        };
        match key.try_revoke() {
            Some(had) => call.revoked += u64::from(had),
            // Cannot fail: the capacity was reserved just now.
            None if left.reserve(1, GFP_KERNEL_ACCOUNT).is_ok() => {
                drop(left.push_within_capacity(object))
            }
            // Without memory for the list, wait for this slot now, before the other slots.
            None => end_found(call, slice::from_mut(&mut object))?,
        }
    }
    // Wait for busy slots only after all other keys are revoked.
    end_found(call, &mut left)
}

/// Revokes the keys of objects; waits for other steps of their slots.
fn end_found(call: &mut KeyRevokeMany, found: &mut [Object]) -> Result {
    let (ended, result) = match Key::end_each(found, Object::key) {
        Ok(ended) => (ended, Ok(())),
        Err((ended, e)) => (ended, Err(e)),
    };
    call.revoked += ended as u64;
    result
}
