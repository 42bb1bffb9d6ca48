// SPDX-License-Identifier: GPL-2.0
//! What all objects share: parents, children, closing.
//!
//! Every object holds its parents. A parent counts what was opened on it and refuses to close
//! (`EBUSY`) while there is any; once closed nothing new can be opened on it.

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

/// Counts children, and closes only when there are none.
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
        // It closes only without children, so nobody waits for the last.
        let _ = self.0.exit();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Closes.
    ///
    /// # Errors
    ///
    /// `EBUSY`: children are open. `ENOENT`: closed before.
    pub(crate) fn close(&self) -> Result {
        self.0.close_if_idle().map_err(|why| match why {
            NotIdle::Inside => EBUSY,
            NotIdle::Closed => ENOENT,
        })
    }
}

/// An object that others are opened on.
pub(crate) trait Parent {
    /// Its count.
    fn children(&self) -> &Children;
}

/// A child's hold on its parent.
///
/// # Invariants
///
/// Counted in the parent until `released`.
pub(crate) struct Held<T: Parent> {
    parent: Arc<T>,
    released: AtomicBool,
}

impl<T: Parent> Held<T> {
    /// Counts a child.
    ///
    /// # Errors
    ///
    /// `ENOENT`: the parent is closed.
    pub(crate) fn new(parent: &Arc<T>) -> Result<Self> {
        parent.children().add()?;
        Ok(Self {
            parent: parent.clone(),
            released: AtomicBool::new(false),
        })
    }

    /// Stops counting, so that the parent may close; the memory stays until drop.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.parent.children().remove();
        }
    }

    /// The parent.
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

/// An ending that happens once, and that everybody who asks for it waits for.
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

    /// Whether it has begun. Any context.
    pub(crate) fn begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Runs `end` unless it ran before; either way it has run when this returns.
    pub(crate) fn run(&self, end: impl FnOnce()) {
        self.begun.store(true, Ordering::Release);
        let mut done = self.lock.lock();
        if !*done {
            end();
            *done = true;
        }
    }
}

/// The text of a NUL-padded name.
///
/// # Errors
///
/// `EINVAL`: no NUL, or not UTF-8.
pub fn name_str(bytes: &[u8]) -> Result<&str> {
    let end = bytes.iter().position(|b| *b == 0).ok_or(EINVAL)?;
    core::str::from_utf8(&bytes[..end]).map_err(|_| EINVAL)
}

/// Writes `name` into a NUL-padded field, cut to leave a NUL.
pub fn set_name(field: &mut [u8], name: &str) {
    field.fill(0);
    let room = field.len().saturating_sub(1);
    let len = name.len().min(room);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
}
