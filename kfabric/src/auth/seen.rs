// SPDX-License-Identifier: GPL-2.0
//! What is told of decisions: the tracepoint `kfabric:auth_decision`, and the counters of
//! `/sys/kernel/debug/kfabric/auth/`. Never an auth key's bytes.

use kernel::prelude::*;

use super::Caller;
use crate::{
    pure::grant::Miss,
    stats::{
        Counter,
        Files, //
    },
    sys,
};

/// What was decided, and why.
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
}

static COUNTS: [Counter; 10] = [const { Counter::new() }; 10];
static SWEPT: Counter = Counter::new();

const NAMES: [&CStr; 10] = [
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
];

impl Verdict {
    /// That of grants that do not do.
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

/// A process may use an auth key (its number; 0: it named none), by a grant (0: none), or not.
pub(super) fn decided(
    caller: &Caller,
    key: u64,
    rights: u32,
    grant: u64,
    verdict: Verdict,
    result: Result,
) {
    // CAST: One of few.
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

/// Endpoints and keys have ended with their grant.
pub(crate) fn swept(n: u64) {
    SWEPT.add(n);
}
