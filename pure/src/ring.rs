// SPDX-License-Identifier: GPL-2.0 OR MIT
//! First-in-first-out queue in storage that the caller provides.
//!
//! The storage is any type that dereferences to a slice of `Option<T>` (a vector, a box, a borrowed
//! array). The queue allocates nothing, so `push` works under any lock. To grow the queue, the
//! caller allocates larger storage before it takes the lock, and then calls
//! [`FixedRing::replace_storage`].

use core::ops::DerefMut;

/// A bounded queue. An empty cell of the storage is `None`.
///
/// # Invariants
///
/// - `len` items lie in the cells from `head` on, wrapping at the end; all other cells are `None`.
/// - `head` is within the storage, or 0.
pub struct FixedRing<S> {
    cells: S,
    head: usize,
    len: usize,
}

impl<T, S: DerefMut<Target = [Option<T>]>> FixedRing<S> {
    /// Returns an empty queue in `cells`, whose length is the capacity. Items in `cells` are
    /// dropped.
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

    /// Returns the maximum number of items.
    pub fn capacity(&self) -> usize {
        self.cells.len()
    }

    /// Returns the number of items in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the queue is full.
    pub fn is_full(&self) -> bool {
        self.len >= self.cells.len()
    }

    /// Returns the cell of the `nth` item from the front; `nth` is below the capacity.
    fn index(&self, nth: usize) -> usize {
        // Cannot overflow: a slice has at most `isize::MAX` cells.
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
    /// - Returns the item if the queue is full.
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

    /// Adds an item at the front, such as one that was popped and is not complete.
    ///
    /// # Errors
    ///
    /// - Returns the item if the queue is full.
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

    /// Removes and returns the item at the front.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.cells.get_mut(self.head)?.take()?;
        self.head = self.index(1);
        self.len -= 1;
        Some(item)
    }

    /// Returns the item at the front.
    pub fn peek(&self) -> Option<&T> {
        self.cells.get(self.head)?.as_ref()
    }

    /// Returns the item at the front for modification.
    pub fn peek_mut(&mut self) -> Option<&mut T> {
        self.cells.get_mut(self.head)?.as_mut()
    }

    /// Iterates over the items from front to back.
    pub fn iter<'a>(&'a self) -> impl Iterator<Item = &'a T> + 'a
    where
        T: 'a,
    {
        (0..self.len).filter_map(|nth| self.cells.get(self.index(nth))?.as_ref())
    }

    /// Moves the items, in order, to `cells` and returns the old storage, empty.
    ///
    /// Items in `cells` are dropped.
    ///
    /// # Errors
    ///
    /// - Returns `cells` unchanged if its length is below the number of items.
    pub fn replace_storage(&mut self, mut cells: S) -> Result<S, S> {
        if cells.len() < self.len {
            return Err(cells);
        }
        for cell in cells.iter_mut() {
            *cell = self.pop();
        }
        // All items were moved, because `cells` has at least as many places.
        let mut moved = Self {
            len: cells.iter().take_while(|cell| cell.is_some()).count(),
            cells,
            head: 0,
        };
        core::mem::swap(self, &mut moved);
        Ok(moved.cells)
    }
}
