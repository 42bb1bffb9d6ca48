// SPDX-License-Identifier: GPL-2.0
//! Reports of decisions: the tracepoint `kfabric:auth_decision`, and the counters of
//! `/sys/kernel/debug/kfabric/auth/`. Neither contains an auth key's bytes.

use kernel::prelude::*;

use super::Caller;
use crate::{
    base::stats::{
        Counter,
        Files, //
    },
    pure::grant::Miss,
    sys, //
};

/// A decision and its reason.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Granted,
    Denied,
    NoKey,
    NoAgent,
    TimedOut,
    OverLimit,
    Revoked,
    Expired,
    Busy,
    Withdrawn,
    Short,
}

static COUNTS: [Counter; 11] = [const { Counter::new() }; 11];
static SWEPT: Counter = Counter::new();

const NAMES: [&CStr; 11] = [
    c"granted",
    c"denied",
    c"no_key",
    c"no_agent",
    c"timed_out",
    c"over_limit",
    c"revoked",
    c"expired",
    c"busy",
    c"withdrawn",
    c"short",
];

impl Verdict {
    /// The verdict if no grant covers the request.
    pub(super) fn of_miss(miss: Miss) -> Self {
        match miss {
            Miss::Nothing => Self::NoAgent,
            Miss::Expired => Self::Expired,
            Miss::Revoked => Self::Revoked,
            Miss::OverLimit => Self::OverLimit,
        }
    }
}

/// Makes the counters' files.
pub(crate) fn files() -> Files {
    let mut all = [(c"swept", &SWEPT); NAMES.len() + 1];
    for (place, counter) in all.iter_mut().zip(NAMES.iter().zip(&COUNTS)) {
        *place = (*counter.0, counter.1);
    }
    Files::new(c"auth", &all)
}

/// Reports a decision. `key` is the auth key's number (0: none), `grant` the grant's id (0: none).
pub(super) fn decided(
    caller: &Caller,
    key: u64,
    rights: u32,
    grant: u64,
    verdict: Verdict,
    result: Result,
) {
    // CAST: The enum has few values.
    let index = verdict as usize;
    let (Some(count), Some(name)) = (COUNTS.get(index), NAMES.get(index)) else {
        return;
    };
    count.add(1);
    // SAFETY: The name ends with a NUL, and is copied.
    unsafe {
        sys::kf_trace_auth_decision(
            caller.task.process,
            caller.task.uid,
            key,
            grant,
            rights,
            name.as_char_ptr(),
            result.map_or_else(|e| e.to_errno(), |()| 0),
        )
    };
}

/// Counts endpoints and keys that have ended with their grant.
pub(crate) fn swept(n: u64) {
    SWEPT.add(n);
}
