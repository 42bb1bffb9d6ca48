// SPDX-License-Identifier: GPL-2.0 OR MIT
//! First in, first out, in storage the caller provides.
//!
//! The storage is anything that derefs to a slice of `Option<T>` (a vector, a box, a borrowed
//! array); nothing is allocated here, so pushing works under any lock. It grows by being handed
//! larger storage, which the caller made before it took the lock.

use core::ops::DerefMut;

/// A bounded queue. An empty cell of the storage is `None`.
///
/// # Invariants
///
/// `len` items lie in the cells from `head` on, wrapping at the end; all other cells are `None`.
/// `head` is within the storage, or 0.
pub struct FixedRing<S> {
    cells: S,
    head: usize,
    len: usize,
}

impl<T, S: DerefMut<Target = [Option<T>]>> FixedRing<S> {
    /// A queue in `cells`, empty: whatever they hold is dropped. Its capacity is their number.
    pub fn new(mut cells: S) -> Self {
        for cell in cells.iter_mut() {
            *cell = None;
        }
        Self {
            cells,
            head: 0,
            len: 0,
        }
    }

    /// Items it can hold.
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Items waiting.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is no room.
    pub fn is_full(&self) -> bool {
        self.len >= self.cells.len()
    }

    /// The cell of the item `nth` from the front; `nth` below the capacity.
    fn index(&self, nth: usize) -> usize {
        // Storage is at most isize::MAX cells, so that the sum does not overflow.
        let sum = self.head + nth;
        if sum >= self.cells.len() {
            sum - self.cells.len()
        } else {
            sum
        }
    }

    /// Adds an item at the back.
    ///
    /// # Errors
    ///
    /// Gives the item back when there is no room.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        let index = self.index(self.len);
        match self.cells.get_mut(index) {
            Some(cell) => *cell = Some(item),
            None => return Err(item),
        }
        self.len += 1;
        Ok(())
    }

    /// Adds an item at the front: one that was taken and is not done with.
    ///
    /// # Errors
    ///
    /// Gives the item back when there is no room.
    pub fn push_front(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        let index = self.index(self.cells.len() - 1);
        match self.cells.get_mut(index) {
            Some(cell) => *cell = Some(item),
            None => return Err(item),
        }
        self.head = index;
        self.len += 1;
        Ok(())
    }

    /// Takes the item at the front.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.cells.get_mut(self.head)?.take()?;
        self.head = self.index(1);
        self.len -= 1;
        Some(item)
    }

    /// The item at the front.
    pub fn peek(&self) -> Option<&T> {
        self.cells.get(self.head)?.as_ref()
    }

    /// The item at the front, to change.
    pub fn peek_mut(&mut self) -> Option<&mut T> {
        self.cells.get_mut(self.head)?.as_mut()
    }

    /// The items from front to back.
    pub fn iter<'a>(&'a self) -> impl Iterator<Item = &'a T> + 'a
    where
        T: 'a,
    {
        (0..self.len).filter_map(|nth| self.cells.get(self.index(nth))?.as_ref())
    }

    /// Moves the items, in order, to `cells` and returns the old storage, empty.
    ///
    /// Whatever `cells` held is dropped.
    ///
    /// # Errors
    ///
    /// Gives `cells` back, untouched, when the items have no room there.
    pub fn replace_storage(&mut self, mut cells: S) -> Result<S, S> {
        if cells.len() < self.len {
            return Err(cells);
        }
        for cell in cells.iter_mut() {
            *cell = self.pop();
        }
        // All items are moved, as there are at least as many cells.
        let mut moved = Self {
            len: cells.iter().take_while(|cell| cell.is_some()).count(),
            cells,
            head: 0,
        };
        core::mem::swap(self, &mut moved);
        Ok(moved.cells)
    }
}
