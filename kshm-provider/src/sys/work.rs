// SPDX-License-Identifier: GPL-2.0
//! Work queues of the module.

use kernel::{
    prelude::*,
    workqueue::Queue, //
};
use kfabric::sys::wq::{
    ModuleQueue,
    QueueOwner, //
};

pub(crate) use kfabric::sys::wq::flush;

/// Queue of connection events for applications.
static EVENTS: ModuleQueue = ModuleQueue::new();
/// Queue of workers that continue send queues. A separate queue, so that events do not wait for
/// copies.
static COPIES: ModuleQueue = ModuleQueue::new();

/// Keeps the queues alive. The drop runs all queued work items and waits for them.
pub(crate) struct WorkQueues {
    // Dropped in this order: a copy may queue an event.
    _copies: QueueOwner,
    events: QueueOwner,
}

impl WorkQueues {
    /// Creates the queues. Called once, at module load.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            events: EVENTS.create(c"kshm", 0)?,
            _copies: COPIES.create(c"kshm_copy", 0)?,
        })
    }
}

impl Drop for WorkQueues {
    fn drop(&mut self) {
        // An event may queue a copy.
        self.events.flush();
    }
}

/// Returns the queue of connection events. Valid only while the module is loaded and an endpoint or
/// listener exists.
pub(crate) fn events() -> &'static Queue {
    // SAFETY: Endpoints and listeners, the only users, exist only between load and unload, when
    // the queue's owner exists.
    unsafe { EVENTS.get() }
}

/// Returns the queue of workers that continue send queues. Valid as [`events`].
pub(crate) fn copies() -> &'static Queue {
    // SAFETY: As above.
    unsafe { COPIES.get() }
}
