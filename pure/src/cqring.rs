// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Completion ring: a reservation before each operation makes sure that its completion has a place.
//!
//! Three counters count up and wrap at 2^32. The kernel owns two: `promised` counts the
//! reservations, and `head` counts the entries written. The program owns `tail`, the count of
//! entries read. Always `tail <= head <= promised`. A reservation succeeds only while `promised -
//! tail` is below the capacity, so each one can be kept (P9).
//!
//! ```text
//!    tail            head             promised         tail + capacity
//!     |--- unread ----|--- reserved ---|----- free ------|
//! ```
//!
//! `tail` is in memory that the program writes, so the value may be wrong. A tail that is not
//! within `capacity` behind `head` is detected and counts as a full ring. Any other wrong tail only
//! makes the program miss or re-read its own entries. In neither case does the kernel write outside
//! the ring, and no other queue has to wait.

use super::sync::{
    AtomicU32,
    Ordering, //
};

/// The ring is full, or the tail is invalid: the operation is refused with `EAGAIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Returns whether a ring can have this number of entries: a power of two, at most 2^31.
pub const fn valid_capacity(entries: u32) -> bool {
    entries.is_power_of_two()
}

/// The kernel's accounting of one ring.
///
/// Reservations are made and returned without a lock. Context: any. Locking: entries are written
/// under the queue's lock, in these steps:
///
/// 1. [`Account::slot`] returns the place of the entry.
/// 2. The caller writes the entry.
/// 3. [`Account::advance`] returns the new head, which the caller stores with release order.
///
/// An overwritten entry has always been read. Entry `n`, counted from 0, is written by the `n +
/// 1`st party that takes the queue's lock. At least one of these parties raised `promised` to `n +
/// 1` or more. To do so, that party had loaded a tail that permits to overwrite entry `n`. That
/// party took the lock before the writer or is the writer, so the load happens before the write.
///
/// # Invariants
///
/// `promised - head` never exceeds the capacity; nor does `head - tail` if the program is honest.
pub struct Account {
    capacity: u32,
    promised: AtomicU32,
    head: AtomicU32,
}

impl Account {
    /// Returns an empty ring of `capacity` entries, or `None` if the capacity is invalid.
    pub fn new(capacity: u32) -> Option<Self> {
        Self::starting_at(capacity, 0)
    }

    /// Returns an empty ring of at least `depth` entries, or `None` if it would have more than
    /// 2^31.
    pub fn at_least(depth: u32) -> Option<Self> {
        depth
            .checked_next_power_of_two()
            .map(|capacity| Self::with(capacity, 0))
    }

    /// As [`Account::new`], with all counters (and the program's tail) at `start`. For tests of the
    /// wrap.
    pub fn starting_at(capacity: u32, start: u32) -> Option<Self> {
        valid_capacity(capacity).then(|| Self::with(capacity, start))
    }

    /// Returns an empty ring. The caller has checked the capacity.
    fn with(capacity: u32, start: u32) -> Self {
        Self {
            capacity,
            promised: AtomicU32::new(start),
            head: AtomicU32::new(start),
        }
    }

    /// Returns the number of entries of the ring.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Reserves one entry. `tail` is a value of the program's tail, loaded with acquire order
    /// before this call.
    ///
    /// # Errors
    ///
    /// - [`Full`] if no entry is free or `tail` is invalid.
    pub fn reserve(&self, tail: u32) -> Result<(), Full> {
        self.reserve_many(tail, 1)
    }

    /// Reserves `count` entries, all or none. See [`Account::reserve`].
    ///
    /// # Errors
    ///
    /// - [`Full`] if fewer than `count` entries are free or `tail` is invalid.
    pub fn reserve_many(&self, tail: u32, count: u32) -> Result<(), Full> {
        let mut promised = self.promised.load(Ordering::Relaxed);
        loop {
            // Loaded after the tail, so an honest tail is never ahead of this head.
            self.unread(tail).ok_or(Full)?;
            let used = promised.wrapping_sub(tail);
            match used.checked_add(count) {
                Some(total) if total <= self.capacity => {}
                _ => return Err(Full),
            }
            match self.promised.compare_exchange_weak(
                promised,
                promised.wrapping_add(count),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => promised = now,
            }
        }
    }

    /// Gives up one reservation, for which no entry will be written. The caller must own
    /// that reservation.
    pub fn unreserve(&self) {
        let was = self.promised.fetch_sub(1, Ordering::Relaxed);
        debug_assert_ne!(was, self.head.load(Ordering::Relaxed), "a promise is held");
    }

    /// Returns the index of the next entry. The caller owns a reservation. Locking: caller holds
    /// the queue's lock.
    pub fn slot(&self) -> u32 {
        self.head.load(Ordering::Relaxed) & (self.capacity - 1)
    }

    /// Counts one entry as written and returns the new head. The caller then stores that head in
    /// the shared memory with release order. Uses up one reservation.
    pub fn advance(&self) -> u32 {
        self.head.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    /// Returns the number of entries written so far.
    pub fn head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    /// Returns the number of reservations whose entry is not written yet.
    pub fn outstanding(&self) -> u32 {
        let head = self.head.load(Ordering::Acquire);
        // A reservation returned between the two loads may make the difference negative.
        let outstanding = self.promised.load(Ordering::Relaxed).wrapping_sub(head);
        if outstanding > self.capacity {
            0
        } else {
            outstanding
        }
    }

    /// Returns the number of unread entries according to `tail`, or `None` if `tail` is invalid.
    pub fn unread(&self, tail: u32) -> Option<u32> {
        let unread = self.head.load(Ordering::Acquire).wrapping_sub(tail);
        (unread <= self.capacity).then_some(unread)
    }
}

/// The memory of a ring, as the program maps it.
pub trait RingMemory {
    /// Type of an entry.
    type Entry;

    /// Loads the kernel's head with acquire order.
    fn load_head(&self) -> u32;

    /// Loads the program's tail.
    fn load_tail(&self) -> u32;

    /// Stores the program's tail with release order.
    fn store_tail(&self, tail: u32);

    /// Copies entry `index`, which is below the number of entries.
    fn entry(&self, index: u32) -> Self::Entry;
}

impl<M: RingMemory + ?Sized> RingMemory for &M {
    type Entry = M::Entry;

    fn load_head(&self) -> u32 {
        (**self).load_head()
    }

    fn load_tail(&self) -> u32 {
        (**self).load_tail()
    }

    fn store_tail(&self, tail: u32) {
        (**self).store_tail(tail);
    }

    fn entry(&self, index: u32) -> M::Entry {
        (**self).entry(index)
    }
}

/// The head is out of range: a party other than the kernel wrote to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// The program's side of a ring: reads each entry once, in order.
pub struct Reader<M> {
    memory: M,
    entries: u32,
    tail: u32,
}

impl<M: RingMemory> Reader<M> {
    /// Continues at the ring's tail. Returns `None` if the number of entries is invalid.
    pub fn new(memory: M, entries: u32) -> Option<Self> {
        if !valid_capacity(entries) {
            return None;
        }
        let tail = memory.load_tail();
        Some(Self {
            memory,
            entries,
            tail,
        })
    }

    /// Returns the number of unread entries.
    ///
    /// # Errors
    ///
    /// - [`Corrupt`] if the head is out of range.
    pub fn available(&self) -> Result<u32, Corrupt> {
        let waiting = self.memory.load_head().wrapping_sub(self.tail);
        if waiting <= self.entries {
            Ok(waiting)
        } else {
            Err(Corrupt)
        }
    }

    /// Reads one entry, if the ring has an unread one.
    ///
    /// # Errors
    ///
    /// - [`Corrupt`] if the head is out of range.
    pub fn read(&mut self) -> Result<Option<M::Entry>, Corrupt> {
        let mut taken = None;
        self.read_with(1, |entry| taken = Some(entry))?;
        Ok(taken)
    }

    /// Passes up to `max` entries to `take`, then frees their places. Returns the number of entries
    /// read.
    ///
    /// # Errors
    ///
    /// - [`Corrupt`] if the head is out of range.
    pub fn read_with(&mut self, max: u32, mut take: impl FnMut(M::Entry)) -> Result<u32, Corrupt> {
        let count = self.available()?.min(max);
        for _ in 0..count {
            let entry = self.memory.entry(self.tail & (self.entries - 1));
            self.tail = self.tail.wrapping_add(1);
            take(entry);
        }
        if count != 0 {
            self.memory.store_tail(self.tail);
        }
        Ok(count)
    }

    /// Returns the ring's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}
