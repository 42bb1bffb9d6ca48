// SPDX-License-Identifier: GPL-2.0
//! Keys: alloc, assign, revoke (`kfi_key.h`).

use core::ptr;
use kernel::{
    ffi::c_int,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use super::{
    auth,
    ep::EpObj,
    mr::MrObj,
    obj::{
        self,
        code,
        Object,
        Place, //
    },
    queue::CqObj,
    raw, //
};
use crate::{
    auth::Under,
    key::{
        Assignment,
        Failures,
        Key, //
    },
    provider::KeyValue,
};

/// A slot.
#[repr(C)]
pub(super) struct KeyObj {
    fid: Opaque<raw::kfid_key>,
    key: Arc<Key>,
}

// SAFETY: Begins with its structure, whose class this is.
unsafe impl Object for KeyObj {
    type C = raw::kfid_key;
    const CLASS: u32 = raw::KFI_CLASS_KEY;
    const OPS: &'static raw::kfi_ops = &KEY;
}

static KEY: raw::kfi_ops = raw::kfi_ops {
    size: size_of::<raw::kfi_ops>(),
    close: Some(close),
    bind: Some(obj::no_bind),
    control: Some(obj::no_control),
    ops_open: Some(obj::no_ops),
};

static OPS: raw::kfi_ops_key = raw::kfi_ops_key {
    size: size_of::<raw::kfi_ops_key>(),
    assign: Some(assign),
    revoke: Some(revoke),
};

/// Reserves slots.
///
/// # Safety
///
/// What is asked for is as the header says.
pub(super) unsafe fn alloc(mr: &MrObj, alloc: &raw::kfi_key_alloc) -> Result {
    if alloc.count == 0 || alloc.count > raw::KFI_KEY_BATCH_MAX as usize {
        return Err(EINVAL);
    }
    let ep = match alloc.ep.is_null() {
        true => None,
        // SAFETY: The caller's promise.
        false => Some(unsafe { obj::try_get::<EpObj>(alloc.ep.cast()) }.ok_or(EINVAL)?),
    };
    // SAFETY: As above.
    let auth = unsafe { auth::key(alloc.auth_key, alloc.auth_key_size)? };
    for i in 0..alloc.count {
        let made = || -> Result<*mut raw::kfid_key> {
            let place = Place::<KeyObj>::new()?;
            let region = mr.region()?;
            let key = match (&auth, ep) {
                (Some(auth), ep) => {
                    let ep = ep.map(|ep| &*ep.ep);
                    Key::alloc_under(region, ep, Under::of(Some(auth)))?
                }
                (None, Some(ep)) => Key::alloc_for(region, &ep.ep)?,
                (None, None) => Key::alloc(region)?,
            };
            let object = KeyObj {
                fid: Opaque::uninit(),
                key,
            };
            Ok(place.put(object, alloc.context, |c| {
                c.ops = ptr::from_ref(&OPS).cast_mut();
                c.key = KeyValue::NONE.key;
            }))
        };
        match made() {
            // SAFETY: The caller has room for as many.
            Ok(key) => unsafe { *alloc.keys.add(i) = key },
            Err(e) => {
                for at in 0..i {
                    // SAFETY: Made above, and nobody knows it yet.
                    unsafe { close((*alloc.keys.add(at)).cast()) };
                }
                return Err(e);
            }
        }
    }
    Ok(())
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes one of ours, which nobody uses any more.
    let this = unsafe { obj::take::<KeyObj>(fid) };
    this.key.close();
    0
}

/// Writes down how many were done, for those who want to know.
///
/// # Safety
///
/// `done` is the caller's place, or null.
unsafe fn tell<T>(
    result: Result<T, (usize, Error)>,
    all: impl FnOnce(T) -> usize,
    done: *mut usize,
) -> c_int {
    let (count, result) = match result {
        Ok(value) => (all(value), Ok(())),
        Err((count, e)) => (count, Err(e)),
    };
    if !done.is_null() {
        // SAFETY: The caller's promise.
        unsafe { *done = count }
    }
    code(result)
}

/// Writes a slot's key where C sees it.
///
/// # Safety
///
/// One of ours.
unsafe fn show(key: *mut raw::kfid_key, value: KeyValue) {
    // SAFETY: The caller's promise.
    unsafe {
        (*key).key = value.key;
        (*key).addr = value.remote_addr;
    }
}

unsafe extern "C" fn assign(
    batch: *const raw::kfi_key_assignment,
    count: usize,
    flags: u64,
    failures: *const raw::kfi_key_failures,
    done: *mut usize,
) -> c_int {
    let go = || -> Result<(), (usize, Error)> {
        let known = raw::KFI_KEY_ORDERED | raw::KFI_KEY_SINGLE_USE;
        if count == 0 || count > raw::KFI_KEY_BATCH_MAX as usize || flags & !known != 0 {
            return Err((0, EINVAL));
        }
        // SAFETY: The caller's batch has as many.
        let wanted = unsafe { core::slice::from_raw_parts(batch, count) };
        let mut list = KVec::with_capacity(count, GFP_KERNEL).map_err(|e| (0, e.into()))?;
        for one in wanted {
            let item = Assignment {
                // SAFETY: The consumer passes ours.
                key: &unsafe { obj::get::<KeyObj, _>(one.key) }.key,
                offset: one.offset,
                len: one.len,
                access: one.access,
                once: flags & raw::KFI_KEY_SINGLE_USE != 0,
                value: KeyValue::NONE,
            };
            list.push(item, GFP_KERNEL).map_err(|e| (0, e.into()))?;
        }
        // SAFETY: The caller's, or null.
        let told = match unsafe { failures.as_ref() } {
            // SAFETY: A queue of ours, or anything else.
            Some(told) => match unsafe { obj::try_get::<CqObj>(told.cq.cast()) } {
                Some(cq) => Some(Failures {
                    cq: &cq.cq,
                    // CAST: The consumer's own pointer.
                    context: told.context as u64,
                    first: 0,
                }),
                None => return Err((0, EINVAL)),
            },
            None => None,
        };
        let result = if flags & raw::KFI_KEY_ORDERED != 0 {
            Key::assign_ordered(&mut list, told)
        } else {
            Key::assign_many(&mut list)
        };
        let good = match &result {
            Ok(()) => count,
            Err((good, _)) => *good,
        };
        for (one, item) in wanted.iter().zip(&list).take(good) {
            // SAFETY: As above.
            unsafe { show(one.key, item.value) };
        }
        result
    };
    // SAFETY: The caller's place, or null.
    unsafe { tell(go(), |()| count, done) }
}

/// A slot as C has it in a list.
#[repr(transparent)]
struct Listed(*mut raw::kfid_key);

impl AsRef<Key> for Listed {
    fn as_ref(&self) -> &Key {
        // SAFETY: Lists are made by `revoke` only, of our objects.
        unsafe { &obj::get::<KeyObj, _>(self.0).key }
    }
}

unsafe extern "C" fn revoke(
    keys: *mut *mut raw::kfid_key,
    count: usize,
    done: *mut usize,
) -> c_int {
    if count == 0 || count > raw::KFI_KEY_BATCH_MAX as usize {
        return EINVAL.to_errno();
    }
    // SAFETY: The caller's list has as many, of our objects; `Listed` is transparent.
    let list = unsafe { core::slice::from_raw_parts_mut(keys.cast::<Listed>(), count) };
    let ended = Key::revoke_many(list);
    for one in list {
        if one.as_ref().value().is_none() {
            // SAFETY: As above.
            unsafe { show(one.0, KeyValue::NONE) };
        }
    }
    // SAFETY: The caller's place, or null.
    unsafe { tell(ended, |ended| ended, done) }
}
