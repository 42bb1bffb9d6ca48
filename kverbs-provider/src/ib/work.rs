// SPDX-License-Identifier: GPL-2.0
//! The module's work queues, and what the kernel crate's work items lack: waiting and cancelling.

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

/// Connections and devices.
static QUEUE: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(core::ptr::null_mut());
/// What nobody waits for, of which a program can make much: it must not hold up the others.
static SPARE: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(core::ptr::null_mut());

/// Keeps the queues alive; dropping it runs what is queued and waits.
pub(crate) struct WorkQueue(());

impl WorkQueue {
    /// Makes the queues. Once, at module load.
    pub(crate) fn new() -> Result<Self> {
        // Dropped on a failure, it takes back what was made.
        let queues = Self(());
        for (place, name, at_once) in [(&QUEUE, c"kverbs", 0), (&SPARE, c"kverbs_spare", 1)] {
            // SAFETY: The name is a string.
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
                // SAFETY: `new` made it and nobody else frees it. The module's other parts are
                // gone, so nothing new is queued.
                unsafe { bindings::destroy_workqueue(wq) };
            }
        }
    }
}

/// The queue. Only while the module is loaded and something of it exists.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: Devices and endpoints, the only users, exist only between load and unload, when
    // the pointer is a live work queue.
    unsafe { Queue::from_raw(QUEUE.load(Ordering::Acquire)) }
}

/// The queue for what can wait: one item at a time. Only while the module is loaded and something
/// of it exists.
pub(crate) fn spare() -> &'static Queue {
    // SAFETY: As in `queue`; keys are the only users.
    unsafe { Queue::from_raw(SPARE.load(Ordering::Acquire)) }
}

fn raw_work<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) -> *mut bindings::work_struct {
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it.
    unsafe { Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut())) }
}

/// Waits until the work item, if it is queued or runs, has run. Not to be called by the item.
pub(crate) fn flush<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: The item is initialised and stays as long as `this`.
    unsafe { bindings::flush_work(raw_work(this)) };
}

/// Takes a delayed work item out of the queue, or waits until it has run; also one that queues
/// itself again. Not to be called by the item.
///
/// # Safety
///
/// The item `ID` of `T` is a `DelayedWork`, queued only as `Arc<T>`.
unsafe fn cancel_delayed_raw<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    const _: () = assert!(core::mem::offset_of!(bindings::delayed_work, work) == 0);
    // SAFETY: The caller says that it is a delayed work item, which starts with its work item.
    if unsafe { bindings::cancel_delayed_work_sync(raw_work(this).cast()) } {
        // SAFETY: It was queued and will not run, so the reference that the queue held is ours.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
    }
}

/// Takes a delayed work item out of the queue, or waits until it has run; also one that queues
/// itself again. Not to be called by the item.
pub(crate) fn cancel_delayed<T, const ID: u64>(this: &Arc<T>)
where
    T: HasWork<T, ID> + kernel::workqueue::HasDelayedWork<T, ID>,
{
    // SAFETY: `HasDelayedWork` says so, and the kernel crate queues it by `Arc` only when the
    // implementation's pointer is one, as all of this crate's are.
    unsafe { cancel_delayed_raw(this) }
}

/// Which task runs; only to be compared.
pub(crate) fn current() -> usize {
    // SAFETY: No preconditions.
    unsafe { raw::kverbs_current() }.addr()
}
