// SPDX-License-Identifier: GPL-2.0
//! Work queues of modules: for work that sleeps, scheduled in contexts that may not sleep.
//!
//! A module has queues of its own so that its unload can wait for them; a module cannot flush the
//! system's queues.

use core::sync::atomic::{
    AtomicPtr,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*,
    str::CStr,
    sync::Arc,
    workqueue::{
        HasWork,
        Queue,
        Work, //
    }, //
};

static QUEUE: ModuleQueue = ModuleQueue::new();
static JOBS: ModuleQueue = ModuleQueue::new();

/// A work queue of a module, from the module's load to its unload. The queue is not bound to
/// processors, and works during memory reclaim.
pub struct ModuleQueue(AtomicPtr<bindings::workqueue_struct>);

impl ModuleQueue {
    /// Returns a queue that does not exist yet, for a `static`.
    pub const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Creates the queue, which runs at most `max_active` items at once; 0: the kernel's default.
    /// Called once, at module load.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`.
    pub fn create(&'static self, name: &CStr, max_active: c_int) -> Result<QueueOwner> {
        // SAFETY: The name is NUL-terminated.
        let wq = unsafe { super::kf_wq_alloc(name.as_char_ptr(), max_active) };
        if wq.is_null() {
            return Err(ENOMEM);
        }
        self.0.store(wq, Ordering::Release);
        Ok(QueueOwner(self))
    }

    /// Returns the queue.
    ///
    /// # Safety
    ///
    /// The queue's [`QueueOwner`] exists.
    pub unsafe fn get(&'static self) -> &'static Queue {
        // SAFETY: By the caller's contract the pointer is a live work queue.
        unsafe { Queue::from_raw(self.0.load(Ordering::Acquire)) }
    }

    /// Waits until the items that are queued now have run, and have dropped their references.
    ///
    /// # Safety
    ///
    /// The queue's [`QueueOwner`] exists.
    pub unsafe fn flush(&'static self) {
        // SAFETY: By the caller's contract the pointer is a live work queue.
        unsafe { super::kf_wq_flush(self.0.load(Ordering::Acquire)) };
    }
}

impl Default for ModuleQueue {
    fn default() -> Self {
        Self::new()
    }
}

/// Keeps a queue alive. The drop runs the queued work and waits for it.
pub struct QueueOwner(&'static ModuleQueue);

impl QueueOwner {
    /// Waits until the items that are queued now have run.
    pub fn flush(&self) {
        // SAFETY: `self` is the owner.
        unsafe { self.0.flush() };
    }
}

impl Drop for QueueOwner {
    fn drop(&mut self) {
        let place = &self.0 .0;
        // SAFETY: `create` created the queue, and only this function frees it. No object of the
        // module is in use, so only running items queue new ones, for which the function waits.
        unsafe { super::kf_wq_free(place.load(Ordering::Acquire)) };
        place.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// Creates [`queue`] and [`jobs`]. Called once, at module load.
pub(crate) fn create() -> Result<(QueueOwner, QueueOwner)> {
    let queue = QUEUE.create(c"kfabric", 0)?;
    Ok((queue, JOBS.create(c"kfabric_jobs", 0)?))
}

/// The general queue. Only while the module is loaded and one of its objects exists.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: Objects, the only users, exist only between load and unload, when the queue's owner
    // exists.
    unsafe { QUEUE.get() }
}

/// The queue for work that frees memory and that block devices wait for: ordered keys. Its own
/// rescuer keeps it independent of the general queue, whose items may wait for a page lock or run a
/// consumer's handler. Only while the module is loaded and one of its objects exists.
pub(crate) fn jobs() -> &'static Queue {
    // SAFETY: Objects, the only users, exist only between load and unload, when the queue's owner
    // exists.
    unsafe { JOBS.get() }
}

/// Waits until the work item, if it is queued or runs, has run and dropped its references. The item
/// itself must not call this.
pub fn flush<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it and stays as long.
    unsafe { bindings::flush_work(Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut()))) };
}
