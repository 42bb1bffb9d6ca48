// SPDX-License-Identifier: GPL-2.0
//! The call that assigns keys to many slots: `KFI_IOC_KEY_ASSIGN_MANY`.

use core::{
    array::from_fn,
    cell::Cell,
    mem::offset_of,
    slice, //
};
use kernel::prelude::*;
use zerocopy::IntoBytes;

use super::key::{
    failure_queue,
    failures, //
};
use crate::{
    chardev::{
        args::errno,
        file::File,
        undo::{
            BatchSlot,
            Undo, //
        },
        user, //
    },
    key::{
        Assignment,
        Failures,
        Key,
        CHAIN, //
    },
    provider::KeyValue,
    sys,
    uapi::*,
};

/// Bytes of an entry.
// CAST: Some bytes.
const ENTRY: u32 = size_of::<KeyEntry>() as u32;

/// Offset of the key in an entry.
const VALUE: u64 = offset_of!(KeyEntry, key) as u64;

// The value is written to the two fields after the ones that are read.
const _: () = assert!(offset_of!(KeyEntry, remote_addr) == offset_of!(KeyEntry, key) + 8);

/// Entries that are read at a time.
const PART: usize = 8;

/// Options of a batch.
struct BatchOptions<'a> {
    /// Single-use keys.
    once: bool,
    /// `None`: the call waits for the device. `Some`: ordered assignments; the inner value states
    /// where failures are reported, if anywhere.
    ordered: Option<Option<Failures<'a>>>,
}

/// Builds the assignment that a slot's entry requests.
fn assignment<'a>(slot: &'a BatchSlot, how: &BatchOptions<'_>) -> Assignment<'a> {
    Assignment {
        key: &slot.key,
        offset: slot.entry.offset,
        len: slot.entry.length,
        access: slot.entry.access,
        once: how.once,
        value: KeyValue::NONE,
    }
}

pub(crate) fn assign_many(file: &File, call: &mut KeyAssignMany) -> Result<Undo> {
    let cq = failure_queue(file, call.flags, call.cq, call.context)?;
    let ordered = call.flags & KFI_KEY_ORDERED != 0;
    let how = BatchOptions {
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
    let Ok(mut slots) = KVVec::with_capacity(count.min(CHAIN), GFP_KERNEL_ACCOUNT) else {
        return assign_next(file, call, &how);
    };
    let mut result = Ok(());
    while slots.len() < count && result.is_ok() {
        result = assign_part(file, call.entries, count, &mut slots, &how);
    }
    if slots.is_empty() {
        result?;
    }
    call.err = errno(result);
    // CAST: At most `count`.
    call.done = slots.len() as u32;
    Ok(Undo::Keys(slots))
}

/// Assigns the first entry alone, if it is the only one or there is no memory for a list.
fn assign_next(file: &File, call: &mut KeyAssignMany, how: &BatchOptions<'_>) -> Result<Undo> {
    let mut entry = KeyEntry::default();
    let (_, read) = user::read_entries(call.entries, ENTRY, 0, entry.as_mut_bytes());
    read?;
    let slot = BatchSlot {
        key: file.handles.key(entry.slot)?,
        entry,
        value: Cell::new(KeyValue::NONE),
    };
    assign_found(call.entries, 0, slice::from_ref(&slot), how).map_err(|(_, e)| e)?;
    call.done = 1;
    call.err = errno(if call.count == 1 { Ok(()) } else { Err(ENOMEM) });
    Ok(Undo::Key(slot.key, slot.value.get()))
}

/// Assigns the next entries of `array`. Adds those that succeeded and were copied out to `slots`.
///
/// # Errors
///
/// The error of the first entry that was not added.
fn assign_part(
    file: &File,
    array: u64,
    count: usize,
    slots: &mut KVVec<BatchSlot>,
    how: &BatchOptions<'_>,
) -> Result {
    let first = slots.len();
    let mut stop = find_slots(file, array, count.min(first + CHAIN), slots);
    let found = slots.get(first..).unwrap_or_default();
    let assigned = assign_found(array, first, found, how);
    let good = match assigned {
        Ok(()) => found.len(),
        Err((good, e)) => {
            stop = Err(e);
            good
        }
    };
    slots.truncate(first + good);
    stop
}

/// Adds the slots of the entries of `array` to `slots`, until there are `count`.
///
/// # Errors
///
/// The error of the first entry that was not added.
fn find_slots(file: &File, array: u64, count: usize, slots: &mut KVVec<BatchSlot>) -> Result {
    let mut entries = [KeyEntry::default(); PART];
    while slots.len() < count {
        sys::pause()?;
        let part = PART.min(count - slots.len());
        let bytes = entries[..part].as_mut_bytes();
        let (there, read) = user::read_entries(array, ENTRY, slots.len(), bytes);
        for entry in entries.iter().take(there) {
            let slot = BatchSlot {
                key: file.handles.key(entry.slot)?,
                entry: *entry,
                value: Cell::new(KeyValue::NONE),
            };
            slots.push(slot, GFP_KERNEL_ACCOUNT)?;
        }
        read?;
    }
    Ok(())
}

/// Assigns keys to the slots `found` and copies the values out. The first slot is that of entry
/// `first` of `array`.
///
/// # Errors
///
/// The number of slots that have their keys, and the next one's error.
fn assign_found(
    array: u64,
    first: usize,
    found: &[BatchSlot],
    how: &BatchOptions<'_>,
) -> Result<(), (usize, Error)> {
    let batch = if found.len() > PART {
        KVec::with_capacity(found.len(), GFP_KERNEL_ACCOUNT).ok()
    } else {
        None
    };
    let Some(mut batch) = batch else {
        // Batches of `PART` entries lie on the stack.
        let mut done = 0;
        for part in found.chunks(PART) {
            // Elements beyond the part's slots repeat the first slot and are not assigned.
            let mut batch: [_; PART] =
                from_fn(|i| assignment(part.get(i).unwrap_or(&part[0]), how));
            assign_batch(array, first + done, part, &mut batch[..part.len()], how)
                .map_err(|(n, e)| (done + n, e))?;
            done += part.len();
        }
        return Ok(());
    };
    for slot in found {
        // Cannot fail: the capacity was reserved above.
        let _ = batch.push_within_capacity(assignment(slot, how));
    }
    assign_batch(array, first, found, &mut batch, how)
}

/// As [`assign_found`], for the assignments `batch` of the slots.
fn assign_batch(
    array: u64,
    first: usize,
    found: &[BatchSlot],
    batch: &mut [Assignment<'_>],
    how: &BatchOptions<'_>,
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
