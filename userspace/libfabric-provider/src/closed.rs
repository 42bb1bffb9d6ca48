// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of endpoints that were closed. `ofi_rxm` closes the endpoint of a lost connection first. Then
//! it reads the completions until there are none, posts a receive for each message among them, and may
//! answer the message. So the memory stays until each completion queue of the endpoint was found empty
//! or is closed, and the posts fail with -FI_ENOTCONN. A queue is found empty by a read, or when the next
//! endpoint of the queue is closed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of closed endpoints whose memory stays in any case: a thread may still work on the last
/// completion when another one finds the queue empty.
const KEPT: usize = 256;

/// Tells when a queue was found empty.
#[derive(Default)]
pub(crate) struct Drain {
    /// Number of endpoints of the queue that were closed.
    closed: AtomicU64,
    /// How many of these were closed before the queue was last found empty.
    seen: AtomicU64,
}

impl Drain {
    /// Begins a read of the queue. Returns a mark for [`Drain::found_empty`].
    #[inline]
    pub(crate) fn begin(&self) -> u64 {
        self.closed.load(Ordering::Acquire)
    }

    /// Notes that a read found no more entries. Endpoints that were closed after the read's begin do not
    /// count: their completions may have come later.
    #[inline]
    pub(crate) fn found_empty(&self, mark: u64) {
        if self.seen.load(Ordering::Relaxed) < mark {
            self.seen.fetch_max(mark, Ordering::AcqRel);
        }
    }

    /// Notes that the queue is closed.
    pub(crate) fn end(&self) {
        self.seen.store(u64::MAX, Ordering::Release);
    }

    /// Notes a closed endpoint. Returns the value of `seen` from which on its memory can be freed.
    fn ticket(&self) -> u64 {
        self.closed.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// The memory of a closed object.
struct Closed {
    at: usize,
    free: unsafe fn(usize),
    queues: Vec<(Arc<Drain>, u64)>,
}

impl Closed {
    fn is_free(&self) -> bool {
        let mut queues = self.queues.iter();
        queues.all(|(queue, ticket)| queue.seen.load(Ordering::Acquire) >= *ticket)
    }
}

/// Memory of closed objects.
pub(crate) struct Memory {
    /// The oldest first.
    all: VecDeque<Closed>,
    /// Number of objects at which the next search for free ones is made. At least twice those that were
    /// not free at the last one.
    next: usize,
}

static CLOSED: Mutex<Memory> = Mutex::new(Memory {
    all: VecDeque::new(),
    next: KEPT,
});

/// Locks the list, which no other thread changes then: for a fork.
pub(crate) fn lock() -> MutexGuard<'static, Memory> {
    CLOSED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the memory of a closed object until its queues are found empty or are closed, and [`KEPT`]
/// others are closed.
///
/// # Safety
///
/// `free` can be called once with `at`, and nothing else frees the memory.
pub(crate) unsafe fn keep(at: usize, free: unsafe fn(usize), queues: Vec<Arc<Drain>>) {
    let tickets = queues.into_iter().map(|queue| {
        let ticket = queue.ticket();
        (queue, ticket)
    });
    let queues = tickets.collect();
    let mut over = Vec::new();
    {
        let mut closed = lock();
        closed.all.push_back(Closed { at, free, queues });
        if closed.all.len() > closed.next {
            let excess = closed.all.len() - KEPT;
            let old: Vec<_> = closed.all.drain(..excess).collect();
            let (free, busy): (Vec<_>, Vec<_>) = old.into_iter().partition(Closed::is_free);
            over = free;
            closed.next = KEPT + 2 * busy.len();
            for entry in busy.into_iter().rev() {
                closed.all.push_front(entry);
            }
        }
    }
    for Closed { at, free, .. } in over {
        // SAFETY: as the caller that kept the memory vouched. The memory left the list just now.
        unsafe { free(at) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of frees of each of the test's objects.
    static FREED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

    unsafe fn free(at: usize) {
        if let Some(place) = FREED.get(at) {
            place.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn memory_stays_until_the_queue_was_found_empty() {
        let freed = || [0, 1].map(|at: usize| FREED[at].load(Ordering::Relaxed));
        let many = || {
            for _ in 0..2 * KEPT {
                // SAFETY: `free` ignores this object.
                unsafe { keep(usize::MAX, free, Vec::new()) };
            }
        };
        let (first, second) = (Arc::<Drain>::default(), Arc::<Drain>::default());
        first.found_empty(first.begin());
        // SAFETY: `free` counts, and can be called.
        unsafe {
            keep(0, free, vec![first.clone()]);
            keep(1, free, vec![first.clone(), second.clone()]);
        }
        many();
        assert_eq!(freed(), [0, 0]);
        first.found_empty(first.begin());
        assert_eq!(freed(), [0, 0]);
        many();
        assert_eq!(freed(), [1, 0]);
        second.end();
        many();
        assert_eq!(freed(), [1, 1]);
    }
}
