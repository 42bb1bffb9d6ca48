// SPDX-License-Identifier: GPL-2.0
//! Reports of key events: the tracepoints `kfabric:key_assign` and `kfabric:key_revoke`, and the
//! counters of `/sys/kernel/debug/kfabric/keys/`.
//!
//! Each function is called under the slot's lock, so the events of one slot are reported in order.

use kernel::{
    ffi::c_void,
    prelude::*, //
};

use crate::{
    base::stats::{
        Counter,
        Files, //
    },
    pure::key::{
        KeySlot,
        State, //
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

/// Reports an assignment that is about to complete with the result `made`.
pub(crate) fn assigning(slot: usize, life: &KeySlot, made: Result<u64>) {
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
    // SAFETY: The tracepoint uses the address as a number only.
    unsafe {
        sys::kf_trace_key_assign(
            slot as *const c_void,
            life.generation(),
            grant.offset,
            grant.len,
            grant.access,
            made.unwrap_or(KFI_KEY_NOTAVAIL),
            made.map_or_else(|e| e.to_errno(), |_| 0),
        )
    };
}

/// Reports a revocation that is about to complete: the provider has revoked the key.
pub(crate) fn revoking(slot: usize, life: &KeySlot) {
    let State::Revoking { value, .. } = life.state() else {
        return;
    };
    REVOKED.add(1);
    let key = value.unwrap_or(KFI_KEY_NOTAVAIL);
    // SAFETY: The tracepoint uses the address as a number only.
    unsafe { sys::kf_trace_key_revoke(slot as *const c_void, life.generation(), key) };
}

/// Counts a call that waits for another call's step on the same slot.
pub(crate) fn waiting() {
    WAITS.add(1);
}
