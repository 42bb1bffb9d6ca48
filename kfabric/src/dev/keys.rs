// SPDX-License-Identifier: GPL-2.0
//! The calls about keys: one at a time, and many in one.

use core::mem::offset_of;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use super::{
    call::{
        domain,
        key,
        region,
        zero,
        Made, //
    },
    file::File,
    table::Object,
    user, //
};
use crate::{
    key::{
        Assignment,
        Key, //
    },
    provider::KeyValue,
    region::Region,
    sys,
    uapi::*,
};

/// Entries fetched at a time; what the core makes one chain of.
const PART: usize = 64;

pub(super) fn alloc(file: &File, call: &mut KeyAlloc) -> Result<Made> {
    zero(&[call.flags, call.reserved])?;
    if call.count == 0 || call.count > KFI_KEY_ALLOC_MAX {
        return Err(EINVAL);
    }
    let region = region(file, call.region)?;
    // CAST: At most `KFI_KEY_ALLOC_MAX`.
    let count = call.count as usize;
    let mut handles = KVec::with_capacity(count, GFP_KERNEL)?;
    let mut all = || -> Result {
        for i in 0..count {
            sys::pause()?;
            let key = Key::alloc(&region)?;
            let handle = file.publish(Object::Key(key), call.region)?;
            // There is room.
            let _ = handles.push_within_capacity(handle);
            user::write_entry(call.handles, size_of::<u64>() as u32, i, handle.as_bytes())?;
        }
        Ok(())
    };
    let result = all();
    let made = Made::Objects(handles);
    match result {
        Ok(()) => Ok(made),
        Err(e) => {
            #[cfg(not(kfabric_seed_bug = "missed-error"))]
            made.undo(file);
            Err(e)
        }
    }
}

pub(super) fn assign(file: &File, call: &mut KeyAssign) -> Result<Made> {
    zero(&[call.flags])?;
    if call.reserved != 0 {
        return Err(EINVAL);
    }
    let key = key(file, call.slot)?;
    let value = key.assign(call.offset, call.length, call.access)?;
    call.key = value.key;
    call.remote_addr = value.remote_addr;
    Ok(Made::Assigned(key, value))
}

pub(super) fn revoke(file: &File, call: &mut ObjectCall2) -> Result<Made> {
    zero(&[call.flags])?;
    key(file, call.handle)?.revoke()?;
    Ok(Made::Done)
}

/// A positive errno.
fn errno(result: Result) -> u32 {
    result.map_or_else(|e| u32::try_from(-e.to_errno()).unwrap_or(0), |()| 0)
}

/// The address of entry `index` of an array.
fn entry_at(array: u64, index: usize, size: usize) -> Result<u64> {
    // The product is small: no array has more than `KFI_KEY_ALLOC_MAX` entries.
    array.checked_add((index * size) as u64).ok_or(EFAULT)
}

/// Keys that were assigned and told, in order.
type Given = KVVec<(Arc<Key>, KeyValue)>;

pub(super) fn assign_many(file: &File, call: &mut KeyAssignMany) -> Result<Made> {
    zero(&[call.flags])?;
    // CAST: A `u32` fits.
    let (count, size) = (call.count as usize, call.entry_size as usize);
    if count == 0 || call.count > KFI_KEY_ALLOC_MAX || size != size_of::<KeyEntry>() {
        return Err(EINVAL);
    }
    let mut given = Given::with_capacity(count, GFP_KERNEL)?;
    let mut entries = KVec::from_elem(KeyEntry::default(), PART.min(count), GFP_KERNEL)?;
    let mut result = Ok(());
    while given.len() < count && result.is_ok() {
        let part = PART.min(count - given.len());
        result = assign_part(file, call.entries, &mut entries[..part], &mut given);
    }
    match result {
        Err(e) if given.is_empty() => return Err(e),
        result => call.err = errno(result),
    }
    // CAST: At most `count`.
    call.done = given.len() as u32;
    Ok(Made::ManyAssigned(given))
}

/// Assigns the next entries of `array`, and adds those that succeeded to `given`.
///
/// # Errors
///
/// Why the first that was not added was not.
fn assign_part(file: &File, array: u64, entries: &mut [KeyEntry], given: &mut Given) -> Result {
    sys::pause()?;
    let first = given.len();
    let at = |index| entry_at(array, index, size_of::<KeyEntry>());
    user::read_bytes(at(first)?, entries.as_mut_bytes())?;
    let mut keys = KVec::with_capacity(entries.len(), GFP_KERNEL)?;
    let mut found = Ok(());
    for entry in &*entries {
        match key(file, entry.slot) {
            Ok(key) => keys.push(key, GFP_KERNEL)?,
            Err(e) => {
                found = Err(e);
                break;
            }
        }
    }
    let mut batch = KVec::with_capacity(keys.len(), GFP_KERNEL)?;
    for (entry, key) in entries.iter().zip(&keys) {
        let assignment = Assignment {
            key,
            offset: entry.offset,
            len: entry.length,
            access: entry.access,
            value: KeyValue::NONE,
        };
        batch.push(assignment, GFP_KERNEL)?;
    }
    let assigned = Key::assign_many(&mut batch);
    let good = assigned.err().map_or(batch.len(), |(good, _)| good);
    for (i, (item, key)) in batch.iter().zip(&keys).take(good).enumerate() {
        let value = item.value;
        let told = at(first + i).and_then(|at| {
            let out = [value.key, value.remote_addr];
            user::write_bytes(at + offset_of!(KeyEntry, key) as u64, out.as_bytes())
        });
        if let Err(e) = told {
            for item in batch.iter().take(good).skip(i) {
                item.key.take_back(&item.value);
            }
            return Err(e);
        }
        // There is room.
        let _ = given.push_within_capacity((key.clone(), value));
    }
    assigned.map_err(|(_, e)| e)?;
    found
}

// The value is written behind what was read.
const _: () = assert!(offset_of!(KeyEntry, remote_addr) == offset_of!(KeyEntry, key) + 8);

pub(super) fn revoke_many(file: &File, call: &mut KeyRevokeMany) -> Result<Made> {
    zero(&[call.flags])?;
    let listed = call.count != 0 && call.count <= KFI_KEY_ALLOC_MAX;
    let unlisted = call.count == 0 && call.slots == 0;
    call.done = 0;
    call.revoked = 0;
    let object = call.object;
    let result = match call.scope {
        KFI_REVOKE_SLOTS if listed && object == 0 => revoke_listed(file, call),
        KFI_REVOKE_REGION if unlisted => {
            let region = region(file, object)?;
            revoke_all(file, call, |of| core::ptr::eq(of, &*region))
        }
        KFI_REVOKE_DOMAIN if unlisted => {
            let domain = domain(file, object)?;
            revoke_all(file, call, |of| Arc::ptr_eq(of.domain(), &domain))
        }
        KFI_REVOKE_FILE if unlisted && object == 0 => revoke_all(file, call, |_| true),
        _ => Err(EINVAL),
    };
    match result {
        Err(e) if call.done == 0 && call.revoked == 0 => return Err(e),
        result => call.err = errno(result),
    }
    Ok(Made::Nothing)
}

fn revoke_listed(file: &File, call: &mut KeyRevokeMany) -> Result {
    let mut handles = [0_u64; PART];
    // CAST: A `u32` fits.
    let (count, mut done) = (call.count as usize, 0);
    let mut keys = KVec::with_capacity(PART.min(count), GFP_KERNEL)?;
    let mut result = Ok(());
    while done < count && result.is_ok() {
        sys::pause()?;
        let handles = &mut handles[..PART.min(count - done)];
        let at = entry_at(call.slots, done, size_of::<u64>())?;
        user::read_bytes(at, handles.as_mut_bytes())?;
        keys.clear();
        for handle in handles {
            match key(file, *handle) {
                // There is room.
                Ok(key) => drop(keys.push_within_capacity(key)),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
        call.revoked += Key::revoke_many(&keys) as u64;
        done += keys.len();
        // CAST: At most `count`.
        call.done = done as u32;
    }
    result
}

/// Ends the keys of all regions that are `wanted`.
fn revoke_all(file: &File, call: &mut KeyRevokeMany, wanted: impl Fn(&Region) -> bool) -> Result {
    let key_of = |object: &Object| match object {
        Object::Key(key) => key.region().filter(|of| wanted(of)).map(|_| key.clone()),
        Object::Region(region) if wanted(region) => region.own().cloned(),
        _ => None,
    };
    // Where something else is under way it is waited for when all others have ended.
    for wait in [false, true] {
        let mut left = false;
        for index in 0..file.table.cells() {
            sys::pause()?;
            let found = file.table.peek(index, |_, entry| key_of(&entry.object));
            let Some(key) = found.flatten() else {
                continue;
            };
            match key.revoke_any(wait) {
                Some(had) => call.revoked += u64::from(had),
                None => left = true,
            }
        }
        if !left {
            break;
        }
    }
    Ok(())
}
