// SPDX-License-Identifier: GPL-2.0
//! The module's work queues.

use core::sync::atomic::{
    AtomicPtr,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*,
    str::CStr,
    workqueue::Queue, //
};

use super::raw;

type RawQueue = AtomicPtr<bindings::workqueue_struct>;

/// Work queue of the target's connections and ports; work items are short.
static EXPORTS: RawQueue = AtomicPtr::new(core::ptr::null_mut());
/// Work queue of disks: connecting may take minutes, and the target may be this host.
static DISKS: RawQueue = AtomicPtr::new(core::ptr::null_mut());
/// Work queue of initiators' requests. It has a rescuer thread of its own, so requests end while
/// connecting disks occupy theirs.
static REQUESTS: RawQueue = AtomicPtr::new(core::ptr::null_mut());

/// Work queue of ports that listen again, which may take arbitrarily long.
static PORTS: RawQueue = AtomicPtr::new(core::ptr::null_mut());

/// Owns a work queue. The drop runs all queued work and waits for it.
pub(crate) struct WorkQueue(&'static RawQueue);

impl WorkQueue {
    /// Makes the work queue of exports. Called once, at module load.
    pub(crate) fn for_exports() -> Result<Self> {
        Self::new(&EXPORTS, c"kfblk_export")
    }

    /// Makes the work queue of disks. Called once, at module load.
    pub(crate) fn for_disks() -> Result<Self> {
        Self::new(&DISKS, c"kfblk_disk")
    }

    /// Makes the work queue of disks' requests. Called once, at module load.
    pub(crate) fn for_requests() -> Result<Self> {
        Self::new(&REQUESTS, c"kfblk_request")
    }

    /// Makes the work queue of ports. Called once, at module load.
    pub(crate) fn for_ports() -> Result<Self> {
        Self::new(&PORTS, c"kfblk_port")
    }

    fn new(place: &'static RawQueue, name: &'static CStr) -> Result<Self> {
        // SAFETY: The name is a C string.
        let wq = unsafe { raw::kfblk_wq_alloc(name.as_char_ptr()) };
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
        // SAFETY: `new` has allocated the work queue, and all users that queue work are gone.
        unsafe { raw::kfblk_wq_free(wq) };
    }
}

/// Returns the work queue of exports. Callers: objects of the loaded module only.
pub(crate) fn exports() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the pointer is a live work queue.
    unsafe { Queue::from_raw(EXPORTS.load(Ordering::Acquire)) }
}

/// Returns the work queue of disks. Callers: objects of the loaded module only.
pub(crate) fn disks() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the pointer is a live work queue.
    unsafe { Queue::from_raw(DISKS.load(Ordering::Acquire)) }
}

/// Returns the work queue of disks' requests. Its work must not wait for memory reclaim.
pub(crate) fn requests() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the pointer is a live work queue.
    unsafe { Queue::from_raw(REQUESTS.load(Ordering::Acquire)) }
}

/// Returns the work queue of ports. Callers: objects of the loaded module only.
pub(crate) fn ports() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the pointer is a live work queue.
    unsafe { Queue::from_raw(PORTS.load(Ordering::Acquire)) }
}
