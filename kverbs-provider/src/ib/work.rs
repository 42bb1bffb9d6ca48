// SPDX-License-Identifier: GPL-2.0
//! The module's work queues, and waiting for and cancelling work items, which the kernel crate
//! lacks.

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

use super::raw;

/// Work queue of endpoints, listeners and devices.
static QUEUE: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(core::ptr::null_mut());
/// Work queue of items without waiters. A program can cause many, so they have a queue of their
/// own.
static SPARE: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(core::ptr::null_mut());

/// Owns the queues. Dropping it executes queued items, waits and frees the queues.
pub(crate) struct WorkQueue(());

impl WorkQueue {
    /// Creates the queues. The caller calls this once, at module load.
    pub(crate) fn new() -> Result<Self> {
        // Dropped on a failure, it frees the queues created so far.
        let queues = Self(());
        for (place, name, at_once) in [(&QUEUE, c"kverbs", 0), (&SPARE, c"kverbs_spare", 1)] {
            // SAFETY: The name is a valid C string.
            let wq = unsafe { raw::kverbs_wq_alloc(name.as_char_ptr(), at_once) };
            if wq.is_null() {
                return Err(ENOMEM);
            }
            place.store(wq, Ordering::Release);
        }
        Ok(queues)
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        for place in [&QUEUE, &SPARE] {
            let wq = place.swap(core::ptr::null_mut(), Ordering::AcqRel);
            if !wq.is_null() {
                // SAFETY: `new` created the queue and only this function frees it. The module's
                // other parts have ended, so no new item is queued.
                unsafe { bindings::destroy_workqueue(wq) };
            }
        }
    }
}

/// Returns the main queue. Callers use it only while an object of the module exists.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: Devices, endpoints and listeners, the only users, exist only between load and unload,
    // when the pointer is a live work queue.
    unsafe { Queue::from_raw(QUEUE.load(Ordering::Acquire)) }
}

/// Returns the queue for items without waiters, which executes one item at a time. Callers use it
/// only while a key of the module exists.
pub(crate) fn spare() -> &'static Queue {
    // SAFETY: Keys, the only users, exist only between load and unload, when the pointer is a live
    // work queue.
    unsafe { Queue::from_raw(SPARE.load(Ordering::Acquire)) }
}

fn raw_work<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) -> *mut bindings::work_struct {
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it.
    unsafe { Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut())) }
}

/// Waits until the work item, if it is queued or runs, has run. The item itself must not call this.
pub(crate) fn flush<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: The item is initialised and exists as long as `this`.
    unsafe { bindings::flush_work(raw_work(this)) };
}

/// Removes a delayed work item from the queue, or waits until it has run, even if it queues itself
/// again. The item itself must not call this.
///
/// # Safety
///
/// The item `ID` of `T` is a `DelayedWork`, and is queued only as `Arc<T>`.
unsafe fn cancel_delayed_raw<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    const _: () = assert!(core::mem::offset_of!(bindings::delayed_work, work) == 0);
    // SAFETY: By the caller's contract it is a delayed work item, which starts with its work item.
    if unsafe { bindings::cancel_delayed_work_sync(raw_work(this).cast()) } {
        // SAFETY: The item was queued and will not run, so this function owns the queue's
        // reference.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
    }
}

/// Removes a delayed work item from the queue, or waits until it has run, even if it queues itself
/// again. The item itself must not call this.
pub(crate) fn cancel_delayed<T, const ID: u64>(this: &Arc<T>)
where
    T: HasWork<T, ID> + kernel::workqueue::HasDelayedWork<T, ID>,
{
    // SAFETY: `HasDelayedWork` guarantees a `DelayedWork`. The kernel crate queues it by `Arc`,
    // because the implementations' pointers in this crate are all `Arc`s.
    unsafe { cancel_delayed_raw(this) }
}
