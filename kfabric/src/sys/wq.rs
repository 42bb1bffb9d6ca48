// SPDX-License-Identifier: GPL-2.0
//! The module's own work queues: what must sleep but was found out where nothing may.
//!
//! They are the module's own so that unloading can wait for them; the system's queues cannot be
//! flushed by a module.

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

/// Keeps a queue alive; dropping it runs what is queued and waits.
pub(crate) struct WorkQueue(&'static Place);

impl WorkQueue {
    /// Makes [`queue`]. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        Self::make(&QUEUE)
    }

    /// Makes [`jobs`]. Once, at module load.
    pub(crate) fn new_jobs() -> Result<Self> {
        Self::make(&JOBS)
    }

    fn make(place: &'static Place) -> Result<Self> {
        // SAFETY: No preconditions.
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
        // SAFETY: `new` made it and nobody else frees it. Nothing of the module is in use any
        // more, so nothing new is queued.
        unsafe { super::kf_wq_free(wq) };
    }
}

/// The queue. Only while the module is loaded and something of it exists.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: Objects, the only users, exist only between load and unload, when the pointer is a
    // live work queue.
    unsafe { Queue::from_raw(QUEUE.load(Ordering::Acquire)) }
}

/// The queue of what block devices may wait for, by which memory becomes free: ordered keys. It has a
/// rescuer of its own, so that items of the other queue, which may wait for the lock of a page or run a
/// consumer's handler, do not hold it up. Only while the module is loaded and something of it exists.
pub(crate) fn jobs() -> &'static Queue {
    // SAFETY: As above.
    unsafe { Queue::from_raw(JOBS.load(Ordering::Acquire)) }
}

/// Waits until the work item, if it is queued or runs, has run and let go of what it held. Not to be
/// called by the item.
pub(crate) fn flush<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it and stays as long.
    unsafe { bindings::flush_work(Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut()))) };
}
