// SPDX-License-Identifier: GPL-2.0
//! The module's work queues.

use kernel::{
    prelude::*,
    workqueue::Queue, //
};
use kfabric::sys::wq::{
    ModuleQueue,
    QueueOwner, //
};

/// Work queue of the target's connections and ports; work items are short.
static EXPORTS: ModuleQueue = ModuleQueue::new();
/// Work queue of disks: connecting may take minutes, and the target may be this host.
static DISKS: ModuleQueue = ModuleQueue::new();
/// Work queue of initiators' requests. It has a rescuer thread of its own, so requests end while
/// connecting disks occupy theirs.
static REQUESTS: ModuleQueue = ModuleQueue::new();
/// Work queue of ports that listen again, which may take arbitrarily long.
static PORTS: ModuleQueue = ModuleQueue::new();

/// Owns the queues. They are freed in the order of the fields.
pub(crate) struct WorkQueues {
    _ports: QueueOwner,
    _exports: QueueOwner,
    _disks: QueueOwner,
    _requests: QueueOwner,
}

impl WorkQueues {
    /// Creates the queues. Called once, at module load.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            _ports: PORTS.create(c"kfblk_port", 0)?,
            _exports: EXPORTS.create(c"kfblk_export", 0)?,
            _disks: DISKS.create(c"kfblk_disk", 0)?,
            _requests: REQUESTS.create(c"kfblk_request", 0)?,
        })
    }
}

/// Returns the work queue of exports. Callers: objects of the loaded module only.
pub(crate) fn exports() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the queue's owner exists.
    unsafe { EXPORTS.get() }
}

/// Returns the work queue of disks. Callers: objects of the loaded module only.
pub(crate) fn disks() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the queue's owner exists.
    unsafe { DISKS.get() }
}

/// Returns the work queue of disks' requests. Its work must not wait for memory reclaim.
pub(crate) fn requests() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the queue's owner exists.
    unsafe { REQUESTS.get() }
}

/// Returns the work queue of ports. Callers: objects of the loaded module only.
pub(crate) fn ports() -> &'static Queue {
    // SAFETY: Users exist only between load and unload, while the queue's owner exists.
    unsafe { PORTS.get() }
}
