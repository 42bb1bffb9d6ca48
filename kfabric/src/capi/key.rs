// SPDX-License-Identifier: GPL-2.0
//! Key slots: allocate, assign, revoke (`kfi_key.h`).

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
    auth::Authorization,
    key::{
        Assignment,
        Failures,
        Key, //
    },
    provider::KeyValue, //
};

/// A key slot.
#[repr(C)]
pub(super) struct KeyObj {
    fid: Opaque<raw::kfid_key>,
    key: Arc<Key>,
}

// SAFETY: The `repr(C)` object begins with the C structure of this class.
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

/// Allocates `alloc.count` slots of a region, or none.
///
/// # Safety
///
/// `alloc` is valid as `kfi_key.h` describes.
pub(super) unsafe fn alloc(mr: &MrObj, alloc: &raw::kfi_key_alloc) -> Result {
    if alloc.count == 0 || alloc.count > raw::KFI_KEY_BATCH_MAX as usize {
        return Err(EINVAL);
    }
    let ep = match alloc.ep.is_null() {
        true => None,
        // SAFETY: By this function's contract `alloc.ep` is an open object, or null.
        false => Some(unsafe { obj::try_get::<EpObj>(alloc.ep.cast()) }.ok_or(EINVAL)?),
    };
    // SAFETY: By this function's contract the auth key has as many bytes as its size states, or is
    // null.
    let auth = unsafe { auth::key(alloc.auth_key, alloc.auth_key_size)? };
    for i in 0..alloc.count {
        let made = || -> Result<*mut raw::kfid_key> {
            let place = Place::<KeyObj>::new()?;
            let region = mr.region()?;
            let key = match (&auth, ep) {
                (Some(auth), ep) => {
                    let ep = ep.map(|ep| &*ep.ep);
                    Key::alloc_under(region, ep, Authorization::of(Some(auth)))?
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
            // SAFETY: By this function's contract `alloc.keys` has room for `count` slots.
            Ok(key) => unsafe { *alloc.keys.add(i) = key },
            Err(e) => {
                for at in 0..i {
                    // SAFETY: This call allocated the slot and has not returned it, so no other
                    // task uses it.
                    unsafe { close((*alloc.keys.add(at)).cast()) };
                }
                return Err(e);
            }
        }
    }
    Ok(())
}

unsafe extern "C" fn close(fid: *mut raw::kfid) -> c_int {
    // SAFETY: The consumer closes a slot of this module and no longer uses it.
    let this = unsafe { obj::take::<KeyObj>(fid) };
    this.key.close();
    0
}

/// Stores how many slots of a batch were assigned or revoked, and returns the error number.
///
/// # Safety
///
/// `done` is a valid place, or null.
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
        // SAFETY: By this function's contract `done` is valid; it is not null here.
        unsafe { *done = count }
    }
    code(result)
}

/// Stores a slot's key value and address in the slot's C structure.
///
/// # Safety
///
/// `key` is an open slot of this module.
unsafe fn show(key: *mut raw::kfid_key, value: KeyValue) {
    // SAFETY: By this function's contract `key` is an open slot.
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
        // SAFETY: The caller passes a batch of `count` assignments.
        let wanted = unsafe { core::slice::from_raw_parts(batch, count) };
        let mut list = KVec::with_capacity(count, GFP_KERNEL).map_err(|e| (0, e.into()))?;
        for one in wanted {
            let item = Assignment {
                // SAFETY: The consumer passes open slots of this module.
                key: &unsafe { obj::get::<KeyObj, _>(one.key) }.key,
                offset: one.offset,
                len: one.len,
                access: one.access,
                once: flags & raw::KFI_KEY_SINGLE_USE != 0,
                value: KeyValue::NONE,
            };
            list.push(item, GFP_KERNEL).map_err(|e| (0, e.into()))?;
        }
        // SAFETY: The caller passes a valid `failures`, or null.
        let told = match unsafe { failures.as_ref() } {
            // SAFETY: The consumer passes an open object, or null.
            Some(told) => match unsafe { obj::try_get::<CqObj>(told.cq.cast()) } {
                Some(cq) => Some(Failures {
                    cq: &cq.cq,
                    // CAST: The consumer's pointer fits in 64 bits; the core does not follow it.
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
            // SAFETY: The consumer passes open slots of this module.
            unsafe { show(one.key, item.value) };
        }
        result
    };
    // SAFETY: The caller passes a valid place for the number, or null.
    unsafe { tell(go(), |()| count, done) }
}

/// A slot in a consumer's list.
#[repr(transparent)]
struct Listed(*mut raw::kfid_key);

impl AsRef<Key> for Listed {
    fn as_ref(&self) -> &Key {
        // SAFETY: Only `revoke()` makes lists, and its consumer passes open slots of this module.
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
    // SAFETY: The caller passes a list of `count` open slots of this module. `Listed` is
    // transparent.
    let list = unsafe { core::slice::from_raw_parts_mut(keys.cast::<Listed>(), count) };
    let ended = Key::revoke_many(list);
    for one in list {
        if one.as_ref().value().is_none() {
            // SAFETY: The consumer passes open slots of this module.
            unsafe { show(one.0, KeyValue::NONE) };
        }
    }
    // SAFETY: The caller passes a valid place for the number, or null.
    unsafe { tell(ended, |ended| ended, done) }
}
