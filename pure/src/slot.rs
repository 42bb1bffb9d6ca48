// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A handle-table cell that is read without a lock, and the handle that names it.
//!
//! A cell's whole state is one word: generation, whether a value is in it, and how many readers
//! are looking at it. A reader enters only if the generation it holds is the current one, so a
//! stale handle never reaches a newer value.
//!
//! | state | who may touch the value | leads to |
//! |---|---|---|
//! | empty | nobody | busy, by [`Slot::publish`] |
//! | busy, no readers | its one owner: the publisher or the retirer | live; empty of the next generation |
//! | live, n readers | readers, shared | busy, by [`Slot::retire`] |
//! | busy, n readers | those readers, shared; the retirer waits | busy, no readers |
//! | exhausted | nobody | nothing: generations never repeat |

use super::sync::{
    const_fn,
    AtomicU64,
    Ordering,
    UnsafeCell, //
};

/// Names a cell and the generation of the value meant: `generation << 32 | index` on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Which cell.
    pub index: u32,
    /// Which of the values it has held. 0 is never used, so the handle 0 names nothing.
    pub generation: u32,
}

impl Handle {
    /// The number user space sees.
    pub const fn pack(self) -> u64 {
        // CAST: widening; `From` is not const.
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// The parts of a number, whether or not it names anything.
    pub const fn unpack(raw: u64) -> Self {
        Self {
            // CAST: the low half is meant.
            index: raw as u32,
            generation: (raw >> 32) as u32,
        }
    }
}

/// A value is there to be read.
const LIVE: u64 = 1 << 31;
/// One party owns the value: it is being put in or taken out.
const BUSY: u64 = 1 << 30;
/// Readers inside.
const READERS: u64 = BUSY - 1;

/// The state word of an empty cell of `generation`.
const fn empty(generation: u32) -> u64 {
    // CAST: widening; `From` is not const.
    (generation as u64) << 32
}

/// The generation in a state word.
const fn generation_of(state: u64) -> u32 {
    (state >> 32) as u32
}

/// One cell of a handle table.
///
/// # Invariants
///
/// * The value is written or moved only by the party that set [`BUSY`], before any reader is in
///   (publisher) or after the last one left (retirer).
/// * With [`LIVE`] set, or readers counted, the cell holds a value that nobody changes.
/// * Readers are only added while [`LIVE`] is set.
pub struct Slot<T> {
    state: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: Readers on any thread get `&T` at the same time (`T: Sync`), and the value may be put in
// by one thread and taken out by another (`T: Send`). Access is ordered by `state`.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// Counts a reader in; counts it out when dropped, also when the reader's closure unwinds.
struct Reading<'a, T>(&'a Slot<T>);

impl<T> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        // Release: the reads happen before the retirer, which sees the count, takes the value.
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Slot<T> {
    const_fn! {
        /// An empty cell.
        pub fn new() -> Self {
            Self::starting_at(1)
        }
    }

    const_fn! {
        /// An empty cell whose first value has this generation. 0: exhausted from the start.
        pub fn starting_at(generation: u32) -> Self {
            Self {
                state: AtomicU64::new(empty(generation)),
                value: UnsafeCell::new(None),
            }
        }
    }

    /// Puts a value in and returns the generation that names it.
    ///
    /// # Errors
    ///
    /// Gives the value back when the cell is not empty, or exhausted.
    pub fn publish(&self, value: T) -> Result<u32, T> {
        let was = self.state.load(Ordering::Relaxed);
        let generation = generation_of(was);
        if generation == 0
            || was != empty(generation)
            || self
                .state
                // Acquire: pairs with the retirer's release of the emptied cell.
                .compare_exchange(was, was | BUSY, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return Err(value);
        }
        // SAFETY: The cell was empty and this call set `BUSY`, so by the type invariants nobody
        // else touches the value.
        self.value.with_mut(|place| unsafe { *place = Some(value) });
        // Release: the value is seen by whoever sees `LIVE`.
        self.state.store(was | LIVE, Ordering::Release);
        Ok(generation)
    }

    /// Counts a reader in if the cell is live and `accepts` its generation.
    fn read(&self, accepts: impl Fn(u32) -> bool) -> Option<(Reading<'_, T>, u32)> {
        let mut state = self.state.load(Ordering::Relaxed);
        while state & LIVE != 0 && accepts(generation_of(state)) && state & READERS != READERS {
            match self.state.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some((Reading(self), generation_of(state))),
                Err(now) => state = now,
            }
        }
        None
    }

    /// Shows the value to `f` if it is there and of this generation.
    ///
    /// Any number of readers at once, no lock. `f` is to be short, because a retirer waits for it:
    /// clone a reference and return, where the retirer spins. It must not retire the same cell. (With 2^30 readers inside, the
    /// next finds nothing; no machine has that many threads.)
    pub fn with<R>(&self, generation: u32, f: impl FnOnce(&T) -> R) -> Option<R> {
        let (reading, _) = self.read(|current| current == generation)?;
        Self::show(&reading, f)
    }

    /// Shows the value to `f`, with its generation, whatever that is: for those who list a table.
    ///
    /// What [`Slot::with`] says of `f` holds here too.
    pub fn with_current<R>(&self, f: impl FnOnce(u32, &T) -> R) -> Option<R> {
        let (reading, generation) = self.read(|_| true)?;
        Self::show(&reading, |value| f(generation, value))
    }

    fn show<R>(reading: &Reading<'_, T>, f: impl FnOnce(&T) -> R) -> Option<R> {
        reading.0.value.with(|place| {
            // SAFETY: A reader is counted in, so by the type invariants the value is there and
            // nobody changes it until `reading` is dropped, which is after this borrow.
            unsafe { &*place }.as_ref().map(f)
        })
    }

    /// Takes the value of this generation out. Of many that try, exactly one gets it.
    ///
    /// The one that does calls `relax` again and again until the readers inside have left; from
    /// the start no new one enters. Afterwards the cell is empty, of the next generation.
    pub fn retire(&self, generation: u32, mut relax: impl FnMut()) -> Option<T> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & LIVE == 0 || generation_of(state) != generation {
                return None;
            }
            // Acquire: the publisher's value is seen also when no reader ever came.
            match self.state.compare_exchange_weak(
                state,
                (state & !LIVE) | BUSY,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // Acquire: pairs with each leaving reader's release.
        while self.state.load(Ordering::Acquire) & READERS != 0 {
            relax();
        }
        // SAFETY: This call set `BUSY` on a live cell and all readers have left, so by the type
        // invariants nobody else touches the value.
        let value = self.value.with_mut(|place| unsafe { (*place).take() });
        // Wrapping leads to 0, which is exhausted: no generation is ever used twice.
        self.state
            .store(empty(generation.wrapping_add(1)), Ordering::Release);
        value
    }

    /// Whether the cell has used up its generations and can never hold a value again.
    pub fn is_exhausted(&self) -> bool {
        generation_of(self.state.load(Ordering::Relaxed)) == 0
    }

    /// Whether a value can be put in at this moment.
    pub fn is_empty(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        generation_of(state) != 0 && state == empty(generation_of(state))
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self::new()
    }
}
