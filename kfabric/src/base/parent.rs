// SPDX-License-Identifier: GPL-2.0
//! Parents, children and closing, common to all objects.
//!
//! Every object holds its parents. A parent counts its children, and refuses to close (`EBUSY`)
//! while there are any. Nothing can be opened on a closed parent.

use core::{
    ops::Deref,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};

use crate::pure::gate::{
    Gate,
    NotIdle, //
};

/// Counts the children of an object, which can close only without children.
pub(crate) struct Children(Gate);

impl Children {
    pub(crate) const fn new() -> Self {
        Self(Gate::new())
    }

    fn add(&self) -> Result {
        if self.0.enter() {
            Ok(())
        } else {
            Err(ENOENT)
        }
    }

    fn remove(&self) {
        // The gate closes only without children, so no task waits for the last one.
        let _ = self.0.exit();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Closes the object for new children.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if children are open.
    /// - `ENOENT` if the object is closed.
    pub(crate) fn close(&self) -> Result {
        self.0.close_if_idle().map_err(|why| match why {
            NotIdle::Inside => EBUSY,
            NotIdle::Closed => ENOENT,
        })
    }
}

/// An object that other objects are opened on.
pub(crate) trait Parent {
    /// Returns the count of the object's children.
    fn children(&self) -> &Children;
}

/// A child's hold on its parent.
///
/// # Invariants
///
/// The child is counted in the parent until `released`.
pub(crate) struct Held<T: Parent> {
    parent: Arc<T>,
    released: AtomicBool,
}

impl<T: Parent> Held<T> {
    /// Counts a child.
    ///
    /// # Errors
    ///
    /// - `ENOENT` if the parent is closed.
    pub(crate) fn new(parent: &Arc<T>) -> Result<Self> {
        parent.children().add()?;
        Ok(Self {
            parent: parent.clone(),
            released: AtomicBool::new(false),
        })
    }

    /// Uncounts the child, so that the parent can close. The parent's memory stays allocated until
    /// the `Held` is dropped.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.parent.children().remove();
        }
    }

    /// Returns the parent.
    pub(crate) fn arc(&self) -> &Arc<T> {
        &self.parent
    }
}

impl<T: Parent> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.parent
    }
}

impl<T: Parent> Drop for Held<T> {
    fn drop(&mut self) {
        self.release()
    }
}

/// An ending that runs once; every caller waits until it is complete.
#[pin_data]
pub(crate) struct Ending {
    begun: AtomicBool,
    #[pin]
    lock: Mutex<bool>,
}

impl Ending {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            begun: AtomicBool::new(false),
            lock <- new_mutex!(false, "kfabric_ending"),
        })
    }

    /// Returns whether the ending has begun. Context: any.
    pub(crate) fn begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Runs `end` unless it ran before. After the return it has run in either case.
    pub(crate) fn run(&self, end: impl FnOnce()) {
        self.begun.store(true, Ordering::Release);
        let mut done = self.lock.lock();
        if !*done {
            end();
            *done = true;
        }
    }
}
