// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The completion ring: room is promised before an operation starts, and never comes to lack.
//!
//! Three counters go up and wrap at 2^32. The kernel owns two: `promised`, one for every entry
//! that was or will be written, and `head`, one for every entry that was written. The program owns
//! `tail`, one for every entry it has read. Always `tail <= head <= promised`, and room is given
//! only while `promised - tail` is below the capacity, so that every promise can be kept (P9).
//!
//! ```text
//!    tail            head             promised         tail + capacity
//!     |--- unread ----|--- promised ---|----- room ------|
//! ```
//!
//! `tail` is the program's word and may lie. A tail that is not within `capacity` behind `head` is
//! recognised and counts as "no room"; one that is but lies makes the program miss or re-read its
//! own entries. Neither can make the kernel write outside the ring or another queue wait.

use super::sync::{
    AtomicU32,
    Ordering, //
};

/// No room, or a tail that cannot be true: the operation is to be refused with `EAGAIN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Whether a number of entries can be a ring's: a power of two, at most 2^31.
pub const fn valid_capacity(entries: u32) -> bool {
    entries.is_power_of_two()
}

/// The kernel's account of one ring.
///
/// Reserving and giving back is lock-free and comes from any context. Writing entries is for one
/// party at a time, which the caller sees to with the queue's own lock: [`Account::slot`], write
/// the entry, [`Account::advance`], store the head it returns with release order.
///
/// Why an entry that is overwritten has been read: entry `n`, counted from 0, is written by the
/// `n + 1`st party that takes the queue's lock. Among those parties at least one raised `promised`
/// to `n + 1` or more, for which it had loaded a tail that lets entry `n` be overwritten. It had
/// the lock earlier or has it now, so the writer sees what it saw.
///
/// # Invariants
///
/// `head - tail` of an honest program, and `promised - head`, never exceed the capacity.
pub struct Account {
    capacity: u32,
    promised: AtomicU32,
    head: AtomicU32,
}

impl Account {
    /// An empty ring of `capacity` entries. `None`: not a valid capacity.
    pub fn new(capacity: u32) -> Option<Self> {
        Self::starting_at(capacity, 0)
    }

    /// An empty ring of at least `depth` entries. `None`: it would have more than 2^31.
    pub fn at_least(depth: u32) -> Option<Self> {
        depth
            .checked_next_power_of_two()
            .map(|capacity| Self::with(capacity, 0))
    }

    /// As [`Account::new`], with all counters at `start` (also the program's tail): for tests of
    /// what happens when they wrap.
    pub fn starting_at(capacity: u32, start: u32) -> Option<Self> {
        valid_capacity(capacity).then(|| Self::with(capacity, start))
    }

    /// The capacity is valid.
    fn with(capacity: u32, start: u32) -> Self {
        Self {
            capacity,
            promised: AtomicU32::new(start),
            head: AtomicU32::new(start),
        }
    }

    /// Entries of the ring.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Promises room for one entry. `tail` is what the program's tail was, loaded with acquire
    /// order, at any time before this call.
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn reserve(&self, tail: u32) -> Result<(), Full> {
        self.reserve_many(tail, 1)
    }

    /// Promises room for `count` entries, all or none. See [`Account::reserve`].
    ///
    /// # Errors
    ///
    /// [`Full`].
    pub fn reserve_many(&self, tail: u32, count: u32) -> Result<(), Full> {
        let mut promised = self.promised.load(Ordering::Relaxed);
        loop {
            // After the tail: an honest tail is then not ahead of this head.
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

    /// Gives back one promise that no entry will be written for. The caller holds it.
    pub fn unreserve(&self) {
        let was = self.promised.fetch_sub(1, Ordering::Relaxed);
        debug_assert_ne!(was, self.head.load(Ordering::Relaxed), "a promise is held");
    }

    /// Where the next entry goes. The caller holds a promise, and the queue's lock.
    pub fn slot(&self) -> u32 {
        self.head.load(Ordering::Relaxed) & (self.capacity - 1)
    }

    /// Counts the entry written and returns the new head, which the caller stores in the shared
    /// memory with release order. It uses up one promise.
    pub fn advance(&self) -> u32 {
        self.head.fetch_add(1, Ordering::Release).wrapping_add(1)
    }

    /// Entries written so far.
    pub fn head(&self) -> u32 {
        self.head.load(Ordering::Acquire)
    }

    /// Promises for which no entry was written yet.
    pub fn outstanding(&self) -> u32 {
        let head = self.head.load(Ordering::Acquire);
        // Promises given back meanwhile may bring this below zero for a moment.
        let outstanding = self.promised.load(Ordering::Relaxed).wrapping_sub(head);
        if outstanding > self.capacity {
            0
        } else {
            outstanding
        }
    }

    /// Entries the program has not read, by its own word. `None`: its tail cannot be true.
    pub fn unread(&self, tail: u32) -> Option<u32> {
        let unread = self.head.load(Ordering::Acquire).wrapping_sub(tail);
        (unread <= self.capacity).then_some(unread)
    }
}

/// The memory of a ring as the program sees it.
pub trait RingMemory {
    /// One entry.
    type Entry;

    /// The kernel's head, with acquire order.
    fn load_head(&self) -> u32;

    /// The program's tail.
    fn load_tail(&self) -> u32;

    /// The program's tail, with release order.
    fn store_tail(&self, tail: u32);

    /// A copy of entry `index`, which is below the number of entries.
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

/// The head is where no kernel would leave it: somebody else wrote to the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// The program's side: reads entries in order, each once.
pub struct Reader<M> {
    memory: M,
    entries: u32,
    tail: u32,
}

impl<M: RingMemory> Reader<M> {
    /// Goes on where the ring's tail is. `None`: not a valid number of entries.
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

    /// Entries waiting.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
    pub fn available(&self) -> Result<u32, Corrupt> {
        let waiting = self.memory.load_head().wrapping_sub(self.tail);
        if waiting <= self.entries {
            Ok(waiting)
        } else {
            Err(Corrupt)
        }
    }

    /// Takes one entry, if one waits.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
    pub fn read(&mut self) -> Result<Option<M::Entry>, Corrupt> {
        let mut taken = None;
        self.read_with(1, |entry| taken = Some(entry))?;
        Ok(taken)
    }

    /// Takes up to `max` entries, gives each to `take`, then makes room for as many. Returns how
    /// many there were.
    ///
    /// # Errors
    ///
    /// [`Corrupt`].
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

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}
