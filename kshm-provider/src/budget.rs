// SPDX-License-Identifier: GPL-2.0
//! How much who does operations does at a time.

use crate::sys;

/// Bytes copied before others are let run, or before it is looked whether the key still stands. Who
/// ends the key, or either end, waits for so much: a part is never preempted.
const CHUNK: u64 = 64 << 10;
/// Bytes that are copied by a caller that must not sleep; the rest is a worker's.
const AT_ONCE: u64 = 64 << 10;
/// Operations that one caller does on behalf of others before a worker goes on, and that a worker
/// does before it lets other work of the queue's run.
const TURN: u32 = 256;
/// Bytes that a worker copies before that.
const WORKER_BYTES: u64 = 16 << 20;

/// How long a driver may go on.
pub(crate) struct Budget {
    /// It may sleep.
    sleeps: bool,
    /// It is a task that does what is its own: bytes do not count, and it may be killed.
    own: bool,
    bytes: u64,
    ops: u32,
}

impl Budget {
    /// Of somebody who posts.
    pub(crate) fn caller(sleeps: bool) -> Self {
        Self {
            sleeps,
            own: sleeps,
            bytes: AT_ONCE,
            ops: TURN,
        }
    }

    /// Of a worker.
    pub(crate) fn worker() -> Self {
        Self {
            sleeps: true,
            own: false,
            bytes: WORKER_BYTES,
            ops: TURN,
        }
    }

    /// Of somebody who ends all that there is.
    pub(crate) fn all() -> Self {
        Self {
            bytes: u64::MAX,
            ops: u32::MAX,
            ..Self::worker()
        }
    }

    /// How many of `left` bytes may be copied now.
    pub(crate) fn chunk(&mut self, left: u64) -> u64 {
        if self.own {
            return left.min(CHUNK);
        }
        let n = left.min(CHUNK).min(self.bytes);
        self.bytes -= n;
        n
    }

    /// Between two parts of a copy: whether it goes on.
    pub(crate) fn goes_on(&self) -> bool {
        if self.sleeps {
            sys::cond_resched();
        }
        if self.own {
            !sys::killed()
        } else {
            self.bytes > 0
        }
    }

    /// Before another operation: whether it is to be begun.
    pub(crate) fn another(&mut self) -> bool {
        self.ops = self.ops.saturating_sub(1);
        self.ops > 0 && self.goes_on()
    }
}
