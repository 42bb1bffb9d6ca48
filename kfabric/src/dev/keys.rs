// SPDX-License-Identifier: GPL-2.0
//! The calls about keys: one at a time, and many in one.

use core::{
    array::from_fn,
    cell::Cell,
    mem::offset_of,
    slice, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use super::{
    auth,
    call::{
        domain,
        ep,
        errno,
        key,
        own_ep,
        region,
        zero,
        Made, //
    },
    file::File,
    table::{
        Entry,
        Object, //
    },
    user, //
};
use crate::{
    auth::Want,
    cq::Cq,
    key::{
        Assignment,
        Failures,
        Key,
        CHAIN, //
    },
    provider::KeyValue,
    region::Region,
    sys,
    uapi::*,
};

pub(super) fn alloc(file: &File, call: &mut KeyAlloc) -> Result<Made> {
    zero(&[call.flags, call.reserved, call.reserved2])?;
    if call.count == 0 || call.count > KFI_KEY_ALLOC_MAX {
        return Err(EINVAL);
    }
    let region = region(file, call.region)?;
    let of = own_ep(file, call.ep)?;
    let given = auth::read_key(call.auth_key, call.auth_key_size)?;
    let other = match &of {
        Some(ep) => ep.under().key.as_ref(),
        None => region.under().key.as_ref(),
    };
    // What is bound to an endpoint has its auth key.
    let bound = of.is_some() || region.bound().is_some();
    if let (true, Some(key)) = (bound, &given) {
        if other.is_none_or(|other| !other.is(key)) {
            return Err(EINVAL);
        }
    }
    let auth_key = given.or_else(|| other.cloned());
    // What another auth key's grant, or none, was charged for is charged to this one's.
    let charged = match (&region.under().key, &auth_key) {
        (Some(of), Some(key)) => of.is(key),
        (_, None) => true,
        (None, Some(_)) => false,
    };
    let pinned = if charged {
        0
    } else {
        region.memory().len() as u64
    };
    // CAST: At most `KFI_KEY_ALLOC_MAX`.
    let count = call.count as usize;
    let mut handles = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
    let mut all = || -> Result {
        for i in 0..count {
            sys::pause()?;
            let want = Want::memory(pinned, 1);
            let under = auth::under(file, region.domain(), None, auth_key.as_ref(), want)?;
            let key = Key::alloc_under(&region, of.as_deref(), under)?;
            let handle = file.publish(Object::Key(key.clone()), call.region)?;
            // There is room.
            let _ = handles.push_within_capacity(handle);
            key.under().check()?;
            user::write_entry(call.handles, HANDLE, i, handle.as_bytes())?;
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
    let cq = who_hears(file, call.flags, call.cq, call.context)?;
    let key = key(file, call.slot)?;
    let once = call.flags & KFI_KEY_SINGLE_USE != 0;
    let (offset, len, access) = (call.offset, call.length, call.access);
    let value = if call.flags & KFI_KEY_ORDERED != 0 {
        let mut one = Assignment {
            key: &key,
            offset,
            len,
            access,
            once,
            value: KeyValue::NONE,
        };
        let failures = failures(cq.as_ref(), call.context);
        Key::assign_ordered(slice::from_mut(&mut one), failures).map_err(|(_, e)| e)?;
        one.value
    } else if once {
        key.assign_once(offset, len, access)?
    } else {
        key.assign(offset, len, access)?
    };
    call.key = value.key;
    call.remote_addr = value.remote_addr;
    Ok(Made::Assigned(key, value))
}

/// The queue that hears of failures, where an assignment names one.
fn who_hears(file: &File, flags: u32, cq: u64, context: u64) -> Result<Option<Arc<Cq>>> {
    zero(&[flags & !(KFI_KEY_ORDERED | KFI_KEY_SINGLE_USE)])?;
    if (cq != 0 && flags & KFI_KEY_ORDERED == 0) || (context != 0 && cq == 0) {
        return Err(EINVAL);
    }
    if cq == 0 {
        return Ok(None);
    }
    match file.table.get(cq)? {
        Object::Cq(cq) => Ok(Some(cq)),
        _ => Err(ENOENT),
    }
}

/// What a queue hears.
fn failures(cq: Option<&Arc<Cq>>, context: u64) -> Option<Failures<'_>> {
    cq.map(|cq| Failures {
        cq,
        context,
        first: 0,
    })
}

pub(super) fn revoke(file: &File, call: &mut ObjectCall2) -> Result<Made> {
    zero(&[call.flags])?;
    key(file, call.handle)?.revoke()?;
    Ok(Made::Done)
}

// CAST: Some bytes.
const ENTRY: u32 = size_of::<KeyEntry>() as u32;
const HANDLE: u32 = size_of::<u64>() as u32;

/// Entries that are read at a time.
const PART: usize = 8;

/// A slot of a batch.
pub(super) struct Given {
    pub(super) key: Arc<Key>,
    entry: KeyEntry,
    /// The key it was given.
    pub(super) value: Cell<KeyValue>,
}

impl Given {
    /// What its entry asks for.
    fn assignment(&self, how: &How<'_>) -> Assignment<'_> {
        Assignment {
            key: &self.key,
            offset: self.entry.offset,
            len: self.entry.length,
            access: self.entry.access,
            once: how.once,
            value: KeyValue::NONE,
        }
    }
}

/// How a batch is assigned.
struct How<'a> {
    /// For one use each.
    once: bool,
    /// The keys are only told when the call returns; who hears of failures.
    ordered: Option<Option<Failures<'a>>>,
}

pub(super) fn assign_many(file: &File, call: &mut KeyAssignMany) -> Result<Made> {
    let cq = who_hears(file, call.flags, call.cq, call.context)?;
    let ordered = call.flags & KFI_KEY_ORDERED != 0;
    let how = How {
        once: call.flags & KFI_KEY_SINGLE_USE != 0,
        ordered: ordered.then(|| failures(cq.as_ref(), call.context)),
    };
    if call.count == 0 || call.count > KFI_KEY_ALLOC_MAX || call.entry_size != ENTRY {
        return Err(EINVAL);
    }
    // CAST: A `u32` fits.
    let count = call.count as usize;
    if count == 1 {
        return assign_next(file, call, &how);
    }
    let Ok(mut given) = KVVec::with_capacity(count.min(CHAIN), GFP_KERNEL_ACCOUNT) else {
        return assign_next(file, call, &how);
    };
    let mut result = Ok(());
    while given.len() < count && result.is_ok() {
        result = assign_part(file, call.entries, count, &mut given, &how);
    }
    if given.is_empty() {
        result?;
    }
    call.err = errno(result);
    // CAST: At most `count`.
    call.done = given.len() as u32;
    Ok(Made::ManyAssigned(given))
}

/// Assigns the first entry alone: where it is the only one, or there is no memory for a list.
fn assign_next(file: &File, call: &mut KeyAssignMany, how: &How<'_>) -> Result<Made> {
    let mut entry = KeyEntry::default();
    let (_, read) = user::read_entries(call.entries, ENTRY, 0, entry.as_mut_bytes());
    read?;
    let slot = Given {
        key: key(file, entry.slot)?,
        entry,
        value: Cell::new(KeyValue::NONE),
    };
    assign_found(call.entries, 0, slice::from_ref(&slot), how).map_err(|(_, e)| e)?;
    call.done = 1;
    call.err = errno(if call.count == 1 { Ok(()) } else { Err(ENOMEM) });
    Ok(Made::Assigned(slot.key, slot.value.get()))
}

/// Assigns the next entries of `array`, and adds those that succeeded and were told to `given`.
///
/// # Errors
///
/// Why the first that was not added was not.
fn assign_part(
    file: &File,
    array: u64,
    count: usize,
    given: &mut KVVec<Given>,
    how: &How<'_>,
) -> Result {
    let first = given.len();
    let mut stop = find(file, array, count.min(first + CHAIN), given);
    let found = given.get(first..).unwrap_or_default();
    let assigned = assign_found(array, first, found, how);
    let good = match assigned {
        Ok(()) => found.len(),
        Err((good, e)) => {
            stop = Err(e);
            good
        }
    };
    given.truncate(first + good);
    stop
}

/// Adds the slots of the entries of `array` to `given`, until there are `count`.
///
/// # Errors
///
/// Why the first that was not added was not.
fn find(file: &File, array: u64, count: usize, given: &mut KVVec<Given>) -> Result {
    let mut entries = [KeyEntry::default(); PART];
    while given.len() < count {
        sys::pause()?;
        let part = PART.min(count - given.len());
        let bytes = entries[..part].as_mut_bytes();
        let (there, read) = user::read_entries(array, ENTRY, given.len(), bytes);
        for entry in entries.iter().take(there) {
            let slot = Given {
                key: key(file, entry.slot)?,
                entry: *entry,
                value: Cell::new(KeyValue::NONE),
            };
            given.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        read?;
    }
    Ok(())
}

/// Assigns to slots, of which the first is that of entry `first` of `array`, and tells their keys.
///
/// # Errors
///
/// How many have their keys, and why the next has none.
fn assign_found(
    array: u64,
    first: usize,
    found: &[Given],
    how: &How<'_>,
) -> Result<(), (usize, Error)> {
    let batch = if found.len() > PART {
        KVec::with_capacity(found.len(), GFP_KERNEL_ACCOUNT).ok()
    } else {
        None
    };
    let Some(mut batch) = batch else {
        // Few at a time take no memory.
        let mut done = 0;
        for part in found.chunks(PART) {
            let mut batch: [_; PART] = from_fn(|i| part[i.min(part.len() - 1)].assignment(how));
            assign_batch(array, first + done, part, &mut batch[..part.len()], how)
                .map_err(|(n, e)| (done + n, e))?;
            done += part.len();
        }
        return Ok(());
    };
    for slot in found {
        // There is room.
        let _ = batch.push_within_capacity(slot.assignment(how));
    }
    assign_batch(array, first, found, &mut batch, how)
}

/// See [`assign_found`]; `batch` is what the slots are to be given.
fn assign_batch(
    array: u64,
    first: usize,
    found: &[Given],
    batch: &mut [Assignment<'_>],
    how: &How<'_>,
) -> Result<(), (usize, Error)> {
    let assigned = match how.ordered {
        None => Key::assign_many(batch),
        Some(failures) => {
            let failures = failures.map(|failures| Failures {
                first: first as u64,
                ..failures
            });
            Key::assign_ordered(batch, failures)
        }
    };
    let good = assigned.err().map_or(batch.len(), |(good, _)| good);
    for (i, (slot, item)) in found.iter().zip(&*batch).take(good).enumerate() {
        let out = [item.value.key, item.value.remote_addr];
        let at = user::entry_at(array, ENTRY, first + i);
        if let Err(e) = user::write_bytes(at.saturating_add(VALUE), out.as_bytes()) {
            for item in batch.iter().take(good).skip(i) {
                item.key.take_back(&item.value);
            }
            return Err((i, e));
        }
        slot.value.set(item.value);
    }
    assigned
}

/// Where an entry's key lies.
const VALUE: u64 = offset_of!(KeyEntry, key) as u64;

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
            revoke_all(file, call, &|of| {
                is_of(of, |of| core::ptr::eq(of, &*region))
            })
        }
        KFI_REVOKE_DOMAIN if unlisted => {
            let domain = domain(file, object)?;
            revoke_all(file, call, &|of| {
                is_of(of, |of| Arc::ptr_eq(of.domain(), &domain))
            })
        }
        KFI_REVOKE_EP if unlisted => {
            let ended = ep(file, object)?.revoke_keys();
            // CAST: A count of objects.
            call.revoked = ended.unwrap_or_else(|(ended, _)| ended) as u64;
            ended.map(|_| ()).map_err(|(_, e)| e)
        }
        KFI_REVOKE_AUTH if object == 0 => {
            let key = auth::read_key(call.slots, call.count)?.ok_or(EINVAL)?;
            revoke_all(file, call, &|of| {
                key_of(of).is_some_and(|of| of.under().number() == key.number())
            })
        }
        KFI_REVOKE_FILE if unlisted && object == 0 => revoke_all(file, call, &|_| true),
        _ => Err(EINVAL),
    };
    if call.done == 0 && call.revoked == 0 {
        result?;
    }
    call.err = errno(result);
    Ok(Made::Nothing)
}

/// The key that an object is or has.
#[inline(never)]
pub(super) fn key_of(object: &Object) -> Option<&Key> {
    match object {
        Object::Key(key) => Some(key),
        Object::Region(region) => region.own().map(|key| &**key),
        _ => None,
    }
}

/// The region that a key is of.
fn region_of(object: &Object) -> Option<&Region> {
    match object {
        Object::Key(key) => key.region().map(|region| &**region),
        Object::Region(region) => Some(region),
        _ => None,
    }
}

/// Whether an object has a key of a region that is `wanted`.
fn is_of(object: &Object, wanted: impl Fn(&Region) -> bool) -> bool {
    region_of(object).is_some_and(wanted)
}

/// Ends the keys of the slots that are listed.
fn revoke_listed(file: &File, call: &mut KeyRevokeMany) -> Result {
    let mut found = KVVec::new();
    let listed = list(file, call, &mut found);
    let ended = end_found(call, &mut found);
    found.iter().filter_map(key_of).for_each(Key::renew_in_turn);
    ended?;
    // CAST: At most `KFI_KEY_ALLOC_MAX`.
    call.done = found.len() as u32;
    listed
}

/// Adds the slots that are listed to `found`.
///
/// # Errors
///
/// Why the first that was not added was not.
fn list(file: &File, call: &KeyRevokeMany, found: &mut KVVec<Object>) -> Result {
    let mut handles = [0_u64; CHAIN];
    // CAST: A `u32` fits.
    let count = call.count as usize;
    while found.len() < count {
        sys::pause()?;
        let part = CHAIN.min(count - found.len());
        let bytes = handles[..part].as_mut_bytes();
        let (there, read) = user::read_entries(call.slots, HANDLE, found.len(), bytes);
        for handle in handles.iter().take(there) {
            let key = key(file, *handle)?;
            found.push(Object::Key(key), GFP_KERNEL_ACCOUNT)?;
        }
        read?;
    }
    Ok(())
}

/// Ends the keys of all objects that are `wanted`, and then has their slots reserved again.
fn revoke_all(file: &File, call: &mut KeyRevokeMany, wanted: &dyn Fn(&Object) -> bool) -> Result {
    let ended = end_all(file, call, wanted);
    if call.revoked == 0 {
        return ended;
    }
    for index in 0..file.table.cells() {
        sys::cond_resched();
        match file.table.peek(index).map(|(_, entry)| entry.object) {
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

/// Ends the keys of all objects that are `wanted`.
fn end_all(file: &File, call: &mut KeyRevokeMany, wanted: &dyn Fn(&Object) -> bool) -> Result {
    let mut left = KVVec::new();
    for index in 0..file.table.cells() {
        sys::pause()?;
        let Some((_, Entry { mut object, .. })) = file.table.peek(index) else {
            continue;
        };
        let Some(key) = key_of(&object).filter(|_| wanted(&object)) else {
            continue;
        };
        match key.try_revoke() {
            Some(had) => call.revoked += u64::from(had),
            // There is room.
            None if left.reserve(1, GFP_KERNEL_ACCOUNT).is_ok() => {
                drop(left.push_within_capacity(object))
            }
            // All others have to wait then.
            None => end_found(call, slice::from_mut(&mut object))?,
        }
    }
    // Where something else is under way it is waited for when all others have ended.
    end_found(call, &mut left)
}

/// Ends the keys of objects, waiting for what else is under way on them.
fn end_found(call: &mut KeyRevokeMany, found: &mut [Object]) -> Result {
    let (ended, result) = match Key::end_each(found, key_of) {
        Ok(ended) => (ended, Ok(())),
        Err((ended, e)) => (ended, Err(e)),
    };
    call.revoked += ended as u64;
    result
}
