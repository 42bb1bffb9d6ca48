// SPDX-License-Identifier: GPL-2.0
//! The calls on single key slots: allocate, assign, revoke.

use core::slice;
use kernel::{
    page::PAGE_SHIFT,
    prelude::*,
    sync::Arc, //
};
use zerocopy::IntoBytes;

use crate::{
    auth::ResourceRequest,
    chardev::{
        admission::{
            admit_on,
            read_auth_key, //
        },
        args::zero,
        file::File,
        handles::Object,
        undo::Undo,
        user, //
    },
    key::{
        Assignment,
        Failures,
        Key, //
    },
    objects::cq::Cq,
    provider::KeyValue,
    sys,
    uapi::*,
};

/// Bytes of a handle in a program's array.
// CAST: 8.
pub(super) const HANDLE: u32 = size_of::<u64>() as u32;

pub(crate) fn alloc(file: &File, call: &mut KeyAlloc) -> Result<Undo> {
    zero(&[call.flags, call.reserved, call.reserved2])?;
    if call.count == 0 || call.count > KFI_KEY_ALLOC_MAX {
        return Err(EINVAL);
    }
    let region = file.handles.region(call.region)?;
    let of = file.handles.optional_ep(call.ep)?;
    let given = read_auth_key(call.auth_key, call.auth_key_size)?;
    let other = match &of {
        Some(ep) => ep.under().key.as_ref(),
        None => region.under().key.as_ref(),
    };
    // A slot that is bound to an endpoint has the endpoint's auth key.
    let bound = of.is_some() || region.bound().is_some();
    if let (true, Some(key)) = (bound, &given) {
        if other.is_none_or(|other| !other.is(key)) {
            return Err(EINVAL);
        }
    }
    let auth_key = given.or_else(|| other.cloned());
    // A region that is charged to another auth key's grant, or to none, is charged to this one's.
    let charged = match (&region.under().key, &auth_key) {
        (Some(of), Some(key)) => of.is(key),
        (_, None) => true,
        (None, Some(_)) => false,
    };
    let pinned = if charged {
        0
    } else {
        (region.memory().page_count() << PAGE_SHIFT) as u64
    };
    // CAST: At most `KFI_KEY_ALLOC_MAX`.
    let count = call.count as usize;
    let mut handles = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
    let mut all = || -> Result {
        for i in 0..count {
            sys::pause()?;
            let want = ResourceRequest::memory(pinned, 1);
            let under = admit_on(file, region.domain(), None, auth_key.as_ref(), want)?;
            let key = Key::alloc_under(&region, of.as_deref(), under)?;
            let handle = file.publish(Object::Key(key.clone()), call.region)?;
            // Cannot fail: the capacity was reserved above.
            let _ = handles.push_within_capacity(handle);
            key.under().check()?;
            user::write_entry(call.handles, HANDLE, i, handle.as_bytes())?;
        }
        Ok(())
    };
    let result = all();
    let undo = Undo::Objects(handles);
    match result {
        Ok(()) => Ok(undo),
        Err(e) => {
            #[cfg(not(kfabric_seed_bug = "missed-error"))]
            undo.roll_back(file);
            Err(e)
        }
    }
}

pub(crate) fn assign(file: &File, call: &mut KeyAssign) -> Result<Undo> {
    let cq = failure_queue(file, call.flags, call.cq, call.context)?;
    let key = file.handles.key(call.slot)?;
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
    Ok(Undo::Key(key, value))
}

/// Returns the queue for assignment failures, if the call names one.
pub(super) fn failure_queue(
    file: &File,
    flags: u32,
    cq: u64,
    context: u64,
) -> Result<Option<Arc<Cq>>> {
    zero(&[flags & !(KFI_KEY_ORDERED | KFI_KEY_SINGLE_USE)])?;
    if (cq != 0 && flags & KFI_KEY_ORDERED == 0) || (context != 0 && cq == 0) {
        return Err(EINVAL);
    }
    if cq == 0 {
        return Ok(None);
    }
    file.handles.cq(cq).map(Some)
}

/// Builds the report of failures to `cq`.
pub(super) fn failures(cq: Option<&Arc<Cq>>, context: u64) -> Option<Failures<'_>> {
    cq.map(|cq| Failures {
        cq,
        context,
        first: 0,
    })
}

pub(crate) fn revoke(file: &File, call: &mut ObjectCall2) -> Result<Undo> {
    zero(&[call.flags])?;
    file.handles.key(call.handle)?.revoke()?;
    Ok(Undo::NoAnswer)
}
