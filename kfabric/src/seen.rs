// SPDX-License-Identifier: GPL-2.0
//! What is told of keys to those who look on: the tracepoints `kfabric:key_assign` and
//! `kfabric:key_revoke`, and the counters of `/sys/kernel/debug/kfabric/keys/`.
//!
//! Each is called under the slot's lock, so what is told of one slot is told in the order in which
//! it was so.

use core::ptr::from_ref;
use kernel::prelude::*;

use crate::{
    key::Key,
    pure::key::{
        KeySlot,
        State, //
    },
    stats::{
        Counter,
        Files, //
    },
    sys,
    uapi::KFI_KEY_NOTAVAIL, //
};

static ASSIGNED: Counter = Counter::new();
static FAILED: Counter = Counter::new();
static RECYCLED: Counter = Counter::new();
static REVOKED: Counter = Counter::new();
static WAITS: Counter = Counter::new();

/// Makes the counters' files.
pub(crate) fn files() -> Files {
    Files::new(
        c"keys",
        &[
            (c"assigned", &ASSIGNED),
            (c"failed", &FAILED),
            (c"recycled", &RECYCLED),
            (c"revoked", &REVOKED),
            (c"waits", &WAITS),
        ],
    )
}

/// An assignment is about to end, as `made` says.
pub(crate) fn assigning(slot: &Key, life: &KeySlot, made: Result<u64>) {
    let (State::Assigning(grant) | State::Promised { grant, .. }) = life.state() else {
        return;
    };
    match made {
        Ok(_) => ASSIGNED.add(1),
        Err(_) => FAILED.add(1),
    }
    if made.is_ok() && life.generation() > 1 {
        RECYCLED.add(1);
    }
    // SAFETY: The address is only a number there.
    unsafe {
        sys::kf_trace_key_assign(
            from_ref(slot).cast(),
            life.generation(),
            grant.offset,
            grant.len,
            grant.access,
            made.unwrap_or(KFI_KEY_NOTAVAIL),
            made.map_or_else(|e| e.to_errno(), |_| 0),
        )
    };
}

/// A revocation is about to end: the provider has ended the key.
pub(crate) fn revoking(slot: &Key, life: &KeySlot) {
    let State::Revoking { value, .. } = life.state() else {
        return;
    };
    REVOKED.add(1);
    let key = value.unwrap_or(KFI_KEY_NOTAVAIL);
    // SAFETY: The address is only a number there.
    unsafe { sys::kf_trace_key_revoke(from_ref(slot).cast(), life.generation(), key) };
}

/// A call waits for another one on the same slot.
pub(crate) fn waiting() {
    WAITS.add(1);
}
