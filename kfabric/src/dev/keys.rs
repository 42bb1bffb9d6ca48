// SPDX-License-Identifier: GPL-2.0
//! The calls about keys: one at a time, and many in one.

use core::mem::offset_of;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use zerocopy::{
    FromBytes,
    IntoBytes, //
};

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
        Key,
        CHAIN, //
    },
    provider::KeyValue,
    region::Region,
    sys,
    uapi::*,
};

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

/// Reads entries of `array` from `first` on, and returns how many there are up to the first that
/// cannot be read, and why that cannot.
fn read_part<T: IntoBytes + FromBytes>(array: u64, first: usize, out: &mut [T]) -> (usize, Result) {
    let at = |index| entry_at(array, first + index, size_of::<T>());
    if at(0)
        .and_then(|at| user::read_bytes(at, out.as_mut_bytes()))
        .is_ok()
    {
        return (out.len(), Ok(()));
    }
    // Nothing was used of what came.
    for (i, entry) in out.iter_mut().enumerate() {
        let read = at(i).and_then(|at| user::read_bytes(at, entry.as_mut_bytes()));
        if read.is_err() {
            return (i, read);
        }
    }
    (out.len(), Ok(()))
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
    let mut entries = KVec::from_elem(KeyEntry::default(), CHAIN.min(count), GFP_KERNEL)?;
    let mut result = Ok(());
    while given.len() < count && result.is_ok() {
        let part = CHAIN.min(count - given.len());
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
    let (there, mut found) = read_part(array, first, entries);
    let mut keys = KVec::with_capacity(there, GFP_KERNEL)?;
    for entry in entries.iter().take(there) {
        match key(file, entry.slot) {
            // There is room.
            Ok(key) => drop(keys.push_within_capacity(key)),
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
        // There is room.
        let _ = batch.push_within_capacity(assignment);
    }
    let assigned = Key::assign_many(&mut batch);
    let good = assigned.err().map_or(batch.len(), |(good, _)| good);
    for (i, (item, key)) in batch.iter().zip(&keys).take(good).enumerate() {
        let value = item.value;
        let told = entry_at(array, first + i, size_of::<KeyEntry>()).and_then(|at| {
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
    let mut handles = [0_u64; CHAIN];
    // CAST: A `u32` fits.
    let count = call.count as usize;
    let mut keys = KVVec::with_capacity(count, GFP_KERNEL)?;
    let mut result = Ok(());
    while keys.len() < count && result.is_ok() {
        sys::pause()?;
        let part = CHAIN.min(count - keys.len());
        let (there, read) = read_part(call.slots, keys.len(), &mut handles[..part]);
        result = read;
        for handle in handles.iter().take(there) {
            match key(file, *handle) {
                // There is room.
                Ok(key) => drop(keys.push_within_capacity(key)),
                Err(e) => {
                    result = Err(e);
                    break;
                }
            }
        }
    }
    match Key::revoke_many(&mut keys) {
        Ok(ended) => {
            call.revoked = ended as u64;
            // CAST: At most `count`.
            call.done = keys.len() as u32;
        }
        Err((ended, e)) => {
            call.revoked = ended as u64;
            result = Err(e);
        }
    }
    result
}

/// A key of a scope. Dropped in this order: a region's own key does not keep its provider.
struct Found {
    key: Arc<Key>,
    _region: Option<Arc<Region>>,
}

impl AsRef<Key> for Found {
    fn as_ref(&self) -> &Key {
        &self.key
    }
}

/// Ends the keys of all regions that are `wanted`.
fn revoke_all(file: &File, call: &mut KeyRevokeMany, wanted: impl Fn(&Region) -> bool) -> Result {
    let found = |index| -> Option<Found> {
        let of = |object: &Object| match object {
            Object::Key(key) if key.region().is_some_and(|of| wanted(of)) => Some(Found {
                key: key.clone(),
                _region: None,
            }),
            Object::Region(region) if wanted(region) => Some(Found {
                key: region.own()?.clone(),
                _region: Some(region.clone()),
            }),
            _ => None,
        };
        file.table
            .peek(index, |_, entry| of(&entry.object))
            .flatten()
    };
    let mut left = KVVec::new();
    for index in 0..file.table.cells() {
        sys::pause()?;
        let Some(found) = found(index) else { continue };
        match found.key.try_revoke() {
            Some(had) => call.revoked += u64::from(had),
            None if left.reserve(1, GFP_KERNEL).is_ok() => {
                // There is room.
                let _ = left.push_within_capacity(found);
            }
            // All others have to wait then.
            None => revoke_left(call, &mut [found])?,
        }
    }
    // Where something else is under way it is waited for when all others have ended.
    revoke_left(call, &mut left)
}

fn revoke_left(call: &mut KeyRevokeMany, left: &mut [Found]) -> Result {
    let (ended, result) = match Key::revoke_many(left) {
        Ok(ended) => (ended, Ok(())),
        Err((ended, e)) => (ended, Err(e)),
    };
    call.revoked += ended as u64;
    result
}
