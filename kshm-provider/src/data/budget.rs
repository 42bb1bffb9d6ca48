// SPDX-License-Identifier: GPL-2.0
//! Limits of the work that one party does for a send queue at a time.

use crate::sys::task;
use kfabric::pure::parts::{
    Limit,
    PART, //
};

/// Maximum bytes copied by a poster that must not sleep; a worker copies the rest.
const AT_ONCE: u64 = PART;
/// Maximum operations that a poster executes before a worker continues, and that a worker executes
/// before other work items of its queue run.
const TURN: u32 = 256;
/// Maximum bytes that a worker copies before other work items of its queue run.
const WORKER_BYTES: u64 = 16 << 20;

// Otherwise a party could copy no part of its first operation.
const _: () = assert!(AT_ONCE >= PART && WORKER_BYTES >= PART);

/// Limits of one run of a send queue.
pub(crate) struct Budget {
    /// The party may sleep.
    sleeps: bool,
    /// The party is a task that executes its own operation. The task may be killed.
    own: bool,
    bytes: Limit,
    ops: u32,
}

impl Budget {
    /// Returns the limits of a poster. `sleeps`: the poster may sleep.
    pub(crate) fn caller(sleeps: bool) -> Self {
        Self {
            sleeps,
            own: sleeps,
            bytes: match sleeps {
                true => Limit::NONE,
                false => Limit::of(AT_ONCE),
            },
            ops: TURN,
        }
    }

    /// Returns the limits of a worker.
    pub(crate) fn worker() -> Self {
        Self {
            sleeps: true,
            own: false,
            bytes: Limit::of(WORKER_BYTES),
            ops: TURN,
        }
    }

    /// Returns limits that suffice for all operations.
    pub(crate) fn all() -> Self {
        Self {
            bytes: Limit::NONE,
            ops: u32::MAX,
            ..Self::worker()
        }
    }

    /// Returns the number of bytes to copy now, of the `left` ones, as [`Limit::next`].
    ///
    /// A revoke of the key and a close of either end wait for one part, because a part is never
    /// preempted.
    pub(crate) fn chunk(&mut self, left: u64) -> u64 {
        self.bytes.next(left)
    }

    /// Returns whether the copy continues with another part.
    pub(crate) fn goes_on(&self) -> bool {
        if self.sleeps {
            task::cond_resched();
        }
        if self.own {
            !task::killed()
        } else {
            self.bytes.is_left()
        }
    }

    /// Counts an operation. Returns whether the party may begin another one.
    pub(crate) fn another(&mut self) -> bool {
        self.ops = self.ops.saturating_sub(1);
        self.ops > 0 && self.goes_on()
    }
}
