// SPDX-License-Identifier: GPL-2.0
//! The work item that completes the durable writes of a connection, and the wait for it.
//!
//! The wait does not flush the item: the handlers in it may close other endpoints. A rescuer of the work
//! queue that runs such a handler would wait for an item that only the rescuer itself can run.

use kernel::{
    prelude::*,
    sync::{
        new_condvar,
        new_mutex,
        CondVar,
        Mutex, //
    }, //
};

use kfabric::provider::helpers::Worker;

/// Whether the item completes writes.
#[pin_data]
pub(super) struct Completer {
    worker: Worker,
    #[pin]
    running: Mutex<bool>,
    #[pin]
    idle: CondVar,
}

impl Completer {
    /// Returns the completer of an idle item.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            worker: Worker::new(),
            running <- new_mutex!(false, "kverbs_completer"),
            idle <- new_condvar!("kverbs_completer"),
        })
    }

    /// Calls `complete` as the item.
    pub(super) fn run(&self, complete: impl FnOnce()) {
        *self.running.lock() = true;
        self.worker.run(complete);
        *self.running.lock() = false;
        self.idle.notify_all();
    }

    /// Waits until the item does not complete writes. Returns at once in the item itself.
    ///
    /// Context: process; may sleep.
    pub(super) fn wait(&self) {
        if self.worker.is_current() {
            return;
        }
        let mut running = self.running.lock();
        while *running {
            self.idle.wait(&mut running);
        }
    }
}
