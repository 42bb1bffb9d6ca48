// SPDX-License-Identifier: GPL-2.0
//! Limits of the work that one party does for a send queue at a time.

use crate::sys::task;

/// Maximum bytes of one part of a copy. A revoke of the key and a close of either end wait for one
/// part, because a part is never preempted.
const CHUNK: u64 = 64 << 10;
/// Maximum bytes copied by a poster that must not sleep; a worker copies the rest.
const AT_ONCE: u64 = 64 << 10;
/// Maximum operations that a poster executes before a worker continues, and that a worker executes
/// before other work items of its queue run.
const TURN: u32 = 256;
/// Maximum bytes that a worker copies before other work items of its queue run.
const WORKER_BYTES: u64 = 16 << 20;

/// Limits of one run of a send queue.
pub(crate) struct Budget {
    /// The party may sleep.
    sleeps: bool,
    /// The party is a task that executes its own operation. Bytes are unlimited, and the task may
    /// be killed.
    own: bool,
    bytes: u64,
    ops: u32,
}

impl Budget {
    /// Returns the limits of a poster. `sleeps`: the poster may sleep.
    pub(crate) fn caller(sleeps: bool) -> Self {
        Self {
            sleeps,
            own: sleeps,
            bytes: AT_ONCE,
            ops: TURN,
        }
    }

    /// Returns the limits of a worker.
    pub(crate) fn worker() -> Self {
        Self {
            sleeps: true,
            own: false,
            bytes: WORKER_BYTES,
            ops: TURN,
        }
    }

    /// Returns limits that suffice for all operations.
    pub(crate) fn all() -> Self {
        Self {
            bytes: u64::MAX,
            ops: u32::MAX,
            ..Self::worker()
        }
    }

    /// Returns the number of bytes to copy now, of the `left` ones; 0 if they exceed the budget. A part is
    /// never shorter than that: so parts begin at multiples of [`CHUNK`] from the first byte, and divide
    /// no word of a durable write that begins at a word.
    pub(crate) fn chunk(&mut self, left: u64) -> u64 {
        let n = left.min(CHUNK);
        if self.own {
            return n;
        }
        if n > self.bytes {
            self.bytes = 0;
            return 0;
        }
        self.bytes -= n;
        n
    }

    /// Returns whether the copy continues with another part.
    pub(crate) fn goes_on(&self) -> bool {
        if self.sleeps {
            task::cond_resched();
        }
        if self.own {
            !task::killed()
        } else {
            self.bytes > 0
        }
    }

    /// Counts an operation. Returns whether the party may begin another one.
    pub(crate) fn another(&mut self) -> bool {
        self.ops = self.ops.saturating_sub(1);
        self.ops > 0 && self.goes_on()
    }
}
