// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A cell of the handle table, read without a lock, and the handle that names the cell.
//!
//! The state of a cell is one word: a generation, a flag for the presence of a value, and the
//! number of readers. A reader enters only if the reader's generation is the current one, so a
//! stale handle never reaches a newer value.
//!
//! | state | access to the value | next state |
//! |---|---|---|
//! | empty | none | busy, by [`Slot::publish`] |
//! | busy, no readers | exclusive: the publisher or the retirer | live; empty of the next generation |
//! | live, n readers | shared: the readers | busy, by [`Slot::retire`] |
//! | busy, n readers | shared: these readers; the retirer waits | busy, no readers |
//! | exhausted | none | none: generations never repeat |

use super::sync::{
    const_fn,
    AtomicU64,
    Ordering,
    UnsafeCell, //
};

/// Names a cell and the generation of its value: `generation << 32 | index` in the uapi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Index of the cell.
    pub index: u32,
    /// Generation of the value. 0 is never used, so the handle 0 is invalid.
    pub generation: u32,
}

impl Handle {
    /// Returns the number that user space sees.
    pub const fn pack(self) -> u64 {
        // CAST: widening; `From` is not const.
        ((self.generation as u64) << 32) | self.index as u64
    }

    /// Splits a number into its parts, even if the number is no valid handle.
    pub const fn unpack(raw: u64) -> Self {
        Self {
            // CAST: Takes the low half.
            index: raw as u32,
            generation: (raw >> 32) as u32,
        }
    }
}

/// The cell holds a value that readers may access.
const LIVE: u64 = 1 << 31;
/// One party owns the value exclusively: the publisher or the retirer.
const BUSY: u64 = 1 << 30;
/// Number of readers inside.
const READERS: u64 = BUSY - 1;

/// Returns the state word of an empty cell of `generation`.
const fn empty(generation: u32) -> u64 {
    // CAST: widening; `From` is not const.
    (generation as u64) << 32
}

/// Returns the generation in a state word.
const fn generation_of(state: u64) -> u32 {
    (state >> 32) as u32
}

/// A cell of a handle table.
///
/// # Invariants
///
/// * Only the party that set [`BUSY`] writes or moves the value: the publisher before any reader is
///   inside, the retirer after the last reader has left.
/// * While [`LIVE`] is set or readers are inside, the cell holds a value that no party changes.
/// * Readers are added only while [`LIVE`] is set.
pub struct Slot<T> {
    state: AtomicU64,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: Readers on several threads share `&T` (`T: Sync`). One thread may put the value in and
// another may take the value out (`T: Send`). Accesses are ordered by `state`.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

/// A reader inside the cell. The drop removes the reader, also if the reader's closure unwinds.
struct Reading<'a, T>(&'a Slot<T>);

impl<T> Drop for Reading<'_, T> {
    fn drop(&mut self) {
        // Release: the reads happen before the retirer, which loads the count, takes the value.
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Slot<T> {
    const_fn! {
        /// Returns an empty cell.
        pub fn new() -> Self {
            Self::starting_at(1)
        }
    }

    const_fn! {
        /// Returns an empty cell whose first value has this generation. 0 means exhausted.
        pub fn starting_at(generation: u32) -> Self {
            Self {
                state: AtomicU64::new(empty(generation)),
                value: UnsafeCell::new(None),
            }
        }
    }

    /// Puts a value into the cell and returns the generation that names the value.
    ///
    /// # Errors
    ///
    /// - Returns the value if the cell is not empty or is exhausted.
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
        // SAFETY: The cell was empty and this call set `BUSY`, so by the type invariants no other
        // party accesses the value.
        self.value.with_mut(|place| unsafe { *place = Some(value) });
        // Release: the value is visible to every reader that sees `LIVE`.
        self.state.store(was | LIVE, Ordering::Release);
        Ok(generation)
    }

    /// Adds a reader if the cell is live and `accepts` its generation.
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

    /// Calls `f` with the value if the cell is live and of this generation.
    ///
    /// Context: any; no lock, any number of readers at once. `f` must be short, because a retirer
    /// spins until `f` returns: clone a reference and return. `f` must not retire the same cell.
    /// With 2^30 readers inside, a further call returns `None`; no machine has that many threads.
    pub fn with<R>(&self, generation: u32, f: impl FnOnce(&T) -> R) -> Option<R> {
        let (reading, _) = self.read(|current| current == generation)?;
        Self::show(&reading, f)
    }

    /// Calls `f` with the value and its generation, if the cell is live. For listings of a table.
    ///
    /// The rules of [`Slot::with`] for `f` apply.
    pub fn with_current<R>(&self, f: impl FnOnce(u32, &T) -> R) -> Option<R> {
        let (reading, generation) = self.read(|_| true)?;
        Self::show(&reading, |value| f(generation, value))
    }

    fn show<R>(reading: &Reading<'_, T>, f: impl FnOnce(&T) -> R) -> Option<R> {
        reading.0.value.with(|place| {
            // SAFETY: A reader is inside, so by the type invariants the value is present and no
            // party changes it until `reading` is dropped, which is after this borrow.
            unsafe { &*place }.as_ref().map(f)
        })
    }

    /// Takes the value of this generation out of the cell. Of several concurrent calls, exactly one
    /// returns the value.
    ///
    /// That call admits no new reader and calls `relax` until the readers inside have left.
    /// Afterwards the cell is empty and of the next generation.
    pub fn retire(&self, generation: u32, mut relax: impl FnMut()) -> Option<T> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & LIVE == 0 || generation_of(state) != generation {
                return None;
            }
            // Acquire: the publisher's value is visible even if no reader ever entered.
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
        // invariants no other party accesses the value.
        let value = self.value.with_mut(|place| unsafe { (*place).take() });
        // Wrapping leads to 0, which means exhausted: no generation is used twice.
        self.state
            .store(empty(generation.wrapping_add(1)), Ordering::Release);
        value
    }

    /// Returns whether the cell has used all generations and can never hold a value again.
    pub fn is_exhausted(&self) -> bool {
        generation_of(self.state.load(Ordering::Relaxed)) == 0
    }

    /// Returns whether [`Slot::publish`] would succeed at this moment.
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
