// SPDX-License-Identifier: GPL-2.0
//! Request counters: sums, and the counters of a disk's queues.

use core::ptr::NonNull;
use kernel::{
    fmt,
    prelude::*, //
};

use super::raw::{
    kfblk_counts as Counts,
    kfblk_counts_add,
    kfblk_counts_free,
    kfblk_counts_new, //
};

impl Clone for Counts {
    fn clone(&self) -> Self {
        *self
    }
}

impl Copy for Counts {}

impl Counts {
    /// Adds other counters.
    pub(crate) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.others += other.others;
        self.errors += other.errors;
        self.retries += other.retries;
        self.commits += other.commits;
    }

    /// Writes the counters that both ends have, by their names.
    pub(crate) fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        write!(
            out,
            "reads {} writes {} read_bytes {} written_bytes {} others {} errors {}",
            self.reads, self.writes, self.read_bytes, self.written_bytes, self.others, self.errors
        )
    }
}

/// The counters of a disk's queues.
///
/// # Invariants
///
/// `counts` comes from `kfblk_counts_new()`, for `queues` queues, and is not freed.
pub(crate) struct QueueCounts {
    counts: NonNull<Counts>,
    queues: u32,
}

// SAFETY: The functions in C may be called by any thread.
unsafe impl Send for QueueCounts {}
// SAFETY: The functions in C may be called by several threads at once.
unsafe impl Sync for QueueCounts {}

impl QueueCounts {
    /// Makes counters, which are zero.
    pub(crate) fn new(queues: u32) -> Result<Self> {
        // SAFETY: No preconditions.
        let counts = NonNull::new(unsafe { kfblk_counts_new(queues) }).ok_or(ENOMEM)?;
        // INVARIANT: `counts` has just been made for as many queues.
        Ok(Self { counts, queues })
    }

    /// Returns a queue's counters.
    pub(crate) fn of(&self, queue: u32) -> Counts {
        let mut sum = Counts::default();
        if queue < self.queues {
            // SAFETY: By the type invariant, `counts` has a place for the queue.
            unsafe { kfblk_counts_add(self.counts.as_ptr(), queue, &mut sum) };
        }
        sum
    }

    /// Returns the sum of all queues' counters.
    pub(crate) fn all(&self) -> Counts {
        let mut sum = Counts::default();
        for queue in 0..self.queues {
            sum.add(&self.of(queue));
        }
        sum
    }

    /// Writes the statistics of a disk with `queues` queues.
    pub(crate) fn write(
        &self,
        queues: u32,
        reconnects: u32,
        renewals: u32,
        out: &mut impl fmt::Write,
    ) -> fmt::Result {
        let all = self.all();
        write!(out, "total ")?;
        all.write(out)?;
        writeln!(
            out,
            " retries {} reconnects {reconnects} commits {} renewals {renewals}",
            all.retries, all.commits
        )?;
        for queue in 0..queues {
            let of = self.of(queue);
            write!(out, "queue {queue} ")?;
            of.write(out)?;
            writeln!(out, " retries {} commits {}", of.retries, of.commits)?;
        }
        Ok(())
    }

    /// Returns the pointer for [`Shape::counts`].
    pub(crate) fn as_ptr(&self) -> *mut Counts {
        self.counts.as_ptr()
    }
}

impl Drop for QueueCounts {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. The block device that uses the counters is freed.
        unsafe { kfblk_counts_free(self.counts.as_ptr()) }
    }
}
