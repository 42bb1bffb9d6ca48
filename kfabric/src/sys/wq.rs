// SPDX-License-Identifier: GPL-2.0
//! The module's work queues: for work that sleeps, scheduled in contexts that may not sleep.
//!
//! The queues belong to the module so that its unload can wait for them; a module cannot flush the
//! system's queues.

use core::sync::atomic::{
    AtomicPtr,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    workqueue::{
        HasWork,
        Queue,
        Work, //
    }, //
};

type Place = AtomicPtr<bindings::workqueue_struct>;

static QUEUE: Place = Place::new(core::ptr::null_mut());
static JOBS: Place = Place::new(core::ptr::null_mut());

/// Keeps a queue alive; the drop runs the queued work and waits for it.
pub(crate) struct WorkQueue(&'static Place);

impl WorkQueue {
    /// Creates [`queue`]. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        Self::make(&QUEUE)
    }

    /// Creates [`jobs`]. Once, at module load.
    pub(crate) fn new_jobs() -> Result<Self> {
        Self::make(&JOBS)
    }

    fn make(place: &'static Place) -> Result<Self> {
        // SAFETY: The function has no preconditions.
        let wq = unsafe { super::kf_wq_alloc() };
        if wq.is_null() {
            return Err(ENOMEM);
        }
        place.store(wq, Ordering::Release);
        Ok(Self(place))
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        let wq = self.0.swap(core::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: `new` created the queue, and only this frees it. No object of the module exists
        // any more, so no work is queued.
        unsafe { super::kf_wq_free(wq) };
    }
}

/// The general queue. Only while the module is loaded and one of its objects exists.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: Objects, the only users, exist only between load and unload, when the pointer is a
    // live work queue.
    unsafe { Queue::from_raw(QUEUE.load(Ordering::Acquire)) }
}

/// The queue for work that frees memory and that block devices wait for: ordered keys. Its own
/// rescuer keeps it independent of the general queue, whose items may wait for a page lock or run a
/// consumer's handler. Only while the module is loaded and one of its objects exists.
pub(crate) fn jobs() -> &'static Queue {
    // SAFETY: Objects, the only users, exist only between load and unload, when the pointer is a
    // live work queue.
    unsafe { Queue::from_raw(JOBS.load(Ordering::Acquire)) }
}

/// Waits until the work item, if it is queued or runs, has run and dropped its references. The item
/// itself must not call it.
pub(crate) fn flush<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it and stays as long.
    unsafe { bindings::flush_work(Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut()))) };
}
