// SPDX-License-Identifier: GPL-2.0
//! Work queues of the module.

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

use super::raw::*;

/// A work queue of the module; null if there is none.
type Place = AtomicPtr<bindings::workqueue_struct>;

/// Queue of connection events for applications.
static EVENTS: Place = Place::new(core::ptr::null_mut());
/// Queue of workers that continue send queues. A separate queue, so that events do not wait for
/// copies.
static COPIES: Place = Place::new(core::ptr::null_mut());

/// Keeps the queues alive. The drop runs all queued work items and waits for them.
pub(crate) struct WorkQueues(());

impl WorkQueues {
    /// Creates the queues. Called once, at module load.
    pub(crate) fn new() -> Result<Self> {
        let all = Self(());
        for (place, name) in [(&EVENTS, c"kshm"), (&COPIES, c"kshm_copy")] {
            // SAFETY: The name is NUL-terminated.
            let wq = unsafe { kshm_wq_alloc(name.as_char_ptr()) };
            if wq.is_null() {
                return Err(ENOMEM);
            }
            place.store(wq, Ordering::Release);
        }
        Ok(all)
    }
}

impl Drop for WorkQueues {
    fn drop(&mut self) {
        let [events, copies] = [&EVENTS, &COPIES].map(|place| place.load(Ordering::Acquire));
        // SAFETY: `new` created the queues, if present, and no other code frees them. No object of
        // the module is in use, so only running items queue new ones. `kshm_wq_free` waits for
        // these too: an event may queue a copy, and a copy may queue an event.
        unsafe { kshm_wq_free(events, copies) };
        EVENTS.store(core::ptr::null_mut(), Ordering::Release);
        COPIES.store(core::ptr::null_mut(), Ordering::Release);
    }
}

/// Returns the queue of connection events. Valid only while the module is loaded and an endpoint or
/// listener exists.
pub(crate) fn events() -> &'static Queue {
    // SAFETY: Endpoints and listeners, the only users, exist only between load and unload, when
    // the pointer is a live work queue.
    unsafe { Queue::from_raw(EVENTS.load(Ordering::Acquire)) }
}

/// Returns the queue of workers that continue send queues. Valid as [`events`].
pub(crate) fn copies() -> &'static Queue {
    // SAFETY: As above.
    unsafe { Queue::from_raw(COPIES.load(Ordering::Acquire)) }
}

/// Waits until a queued or running work item has run. The item itself must not call this function.
pub(crate) fn flush<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: `this` points to a live `T`, which contains the initialised work item.
    unsafe { bindings::flush_work(Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut()))) };
}
