// SPDX-License-Identifier: GPL-2.0
//! The module's work queues, and cancelling of work items, which the kernel crate lacks.

use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    workqueue::{
        HasWork,
        Queue,
        Work,
        WorkItem, //
    }, //
};
use kfabric::sys::wq::{
    ModuleQueue,
    QueueOwner, //
};

pub(crate) use kfabric::sys::wq::flush;

/// Work queue of endpoints, listeners and devices.
static QUEUE: ModuleQueue = ModuleQueue::new();
/// Work queue of items without waiters. A program can cause many, so they have a queue of their
/// own.
static SPARE: ModuleQueue = ModuleQueue::new();
/// Work queue of the end of idle key queues, which may wait for the device.
static IDLE: ModuleQueue = ModuleQueue::new();
/// Work queue of the creation and the end of channels, which may wait for memory or for the device.
static CHANNELS: ModuleQueue = ModuleQueue::new();
/// Work queue of commits, with one item for each user. Peers cause these items, so they have a queue of
/// their own. They allocate nothing, and wait for no task that does.
static COMMITS: ModuleQueue = ModuleQueue::new();
/// Work queue of completions of durable writes. These items run consumers' handlers, which may wait for
/// an item of any other queue.
static COMPLETIONS: ModuleQueue = ModuleQueue::new();

/// Maximum items of the queue of commits that run at once, on the host.
const COMMITTING: c_int = 4;

/// Owns the queues. The drop runs queued items and waits for them.
pub(crate) struct WorkQueues {
    _queue: QueueOwner,
    _spare: QueueOwner,
    _idle: QueueOwner,
    _channels: QueueOwner,
    _commits: QueueOwner,
    _completions: QueueOwner,
}

impl WorkQueues {
    /// Creates the queues. Called once, at module load.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            _queue: QUEUE.create(c"kverbs", 0)?,
            _spare: SPARE.create(c"kverbs_spare", 1)?,
            _idle: IDLE.create(c"kverbs_idle", 1)?,
            _channels: CHANNELS.create(c"kverbs_channel", 0)?,
            _commits: COMMITS.create(c"kverbs_commit", COMMITTING)?,
            _completions: COMPLETIONS.create(c"kverbs_durable", 0)?,
        })
    }
}

/// Waits in its drop until the items of all queues have run. Items can hold the last reference to a closed
/// endpoint, whose drop needs the module's other parts.
pub(crate) struct Drain(());

impl Drain {
    /// # Safety
    ///
    /// The drop comes before that of [`WorkQueues`].
    pub(crate) unsafe fn new() -> Self {
        Self(())
    }
}

impl Drop for Drain {
    fn drop(&mut self) {
        for queue in [&QUEUE, &CHANNELS, &COMMITS, &COMPLETIONS, &SPARE, &IDLE] {
            // SAFETY: By the contract of `new` the owner of the queue exists.
            unsafe { queue.flush() };
        }
    }
}

/// Returns the main queue. Callers use it only while an object of the module exists.
pub(crate) fn queue() -> &'static Queue {
    // SAFETY: Devices, endpoints and listeners, the only users, exist only between load and unload,
    // when the queue's owner exists.
    unsafe { QUEUE.get() }
}

/// Returns the queue for items without waiters, which executes one item at a time. Callers use it
/// only while a key of the module exists.
pub(crate) fn spare() -> &'static Queue {
    // SAFETY: Keys, the only users, exist only between load and unload, when the queue's owner
    // exists.
    unsafe { SPARE.get() }
}

/// Returns the queue of the end of idle key queues, which executes one item at a time. Callers use it only
/// while a protection group of the module exists.
pub(crate) fn idle() -> &'static Queue {
    // SAFETY: Groups, the only users, exist only between load and unload, when the queue's owner exists.
    unsafe { IDLE.get() }
}

/// Returns the queue of the creation and the end of channels. Callers use it only while an endpoint or a
/// listener of the module exists.
pub(crate) fn channels() -> &'static Queue {
    // SAFETY: Endpoints and listeners, the only users, exist only between load and unload, when the
    // queue's owner exists.
    unsafe { CHANNELS.get() }
}

/// Returns the queue of commits. Callers use it only while an endpoint of the module exists.
pub(crate) fn commits() -> &'static Queue {
    // SAFETY: Endpoints, the only users, exist only between load and unload, when the queue's owner
    // exists.
    unsafe { COMMITS.get() }
}

/// Returns the queue of completions of durable writes. Callers use it only while an endpoint of the
/// module exists.
pub(crate) fn completions() -> &'static Queue {
    // SAFETY: Endpoints, the only users, exist only between load and unload, when the queue's owner
    // exists.
    unsafe { COMPLETIONS.get() }
}

fn raw_work<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) -> *mut bindings::work_struct {
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it.
    unsafe { Work::raw_get(T::raw_get_work(Arc::as_ptr(this).cast_mut())) }
}

/// Removes a work item from the queue, if it is queued. Does not wait for a run in progress.
pub(crate) fn cancel<T, const ID: u64>(this: &Arc<T>)
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasWork<T, ID>,
{
    // SAFETY: `this` points to a live `T`, whose work item is initialised with it.
    if unsafe { bindings::cancel_work(raw_work(this)) } {
        // SAFETY: The item was queued as an `Arc<T>` and will not run, so this function owns the
        // queue's reference.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
    }
}

/// Removes a delayed work item that waits for its time, or is queued. Does not wait for a run in progress,
/// so the item itself may call this.
///
/// # Safety
///
/// The item `ID` of `T` is a `DelayedWork`, and is queued only as `Arc<T>`.
unsafe fn cancel_pause_raw<T: HasWork<T, ID>, const ID: u64>(this: &Arc<T>) {
    // SAFETY: By the caller's contract it is a delayed work item, which starts with its work item.
    if unsafe { bindings::cancel_delayed_work(raw_work(this).cast()) } {
        // SAFETY: The item was queued and will not run, so this function owns the queue's
        // reference.
        drop(unsafe { Arc::from_raw(Arc::as_ptr(this)) });
    }
}

/// Removes a delayed work item that waits for its time, or is queued. Does not wait for a run in progress,
/// so the item itself may call this.
pub(crate) fn cancel_pause<T, const ID: u64>(this: &Arc<T>)
where
    T: HasWork<T, ID> + kernel::workqueue::HasDelayedWork<T, ID>,
{
    // SAFETY: `HasDelayedWork` guarantees a `DelayedWork`. The kernel crate queues it by `Arc`,
    // because the implementations' pointers in this crate are all `Arc`s.
    unsafe { cancel_pause_raw(this) }
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
