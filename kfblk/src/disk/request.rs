// SPDX-License-Identifier: GPL-2.0
//! Requests of the block layer: the way from `block.c` to a connection, and back after completion.
//!
//! Each protocol has its own entry for new requests ([`one_sided`](super::one_sided),
//! [`message`](super::message)).

use core::mem::ManuallyDrop;
use kernel::{
    ffi::c_void,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    new_irqlock,
    objects::cq::Cq,
    sys::IrqLock,
    uapi::CqEntry, //
};

use super::{
    protocol::{
        AnyConnection,
        Protocol,
        BATCH, //
    },
    Disk,
    State, //
};
use crate::{
    errno,
    sys::{
        self,
        Block, //
    },
    waiter::Receiver, //
};

/// Holds the connection of a disk's queue.
#[pin_data]
pub(super) struct ConnectionSlot {
    #[pin]
    connection: IrqLock<Option<AnyConnection>>,
}

impl ConnectionSlot {
    /// Makes a slot without a connection.
    pub(super) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                connection <- new_irqlock!(None, "kfblk_slot"),
            }),
            GFP_KERNEL,
        )
    }

    /// Sets the queue's connection.
    pub(super) fn put(&self, connection: &AnyConnection) {
        *self.connection.lock() = Some(connection.clone());
    }

    /// Removes the connection. The caller holds another reference, and closes it after its users
    /// have left.
    pub(super) fn clear(&self) {
        let connection = self.connection.lock().take();
        drop(connection);
    }

    fn get(&self) -> Option<AnyConnection> {
        self.connection.lock().clone()
    }
}

impl Disk {
    /// Returns the connection for a request of `queue`. Context: any.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the connection is lost, so that the request must wait or fail.
    /// - `EIO` if the disk is dead.
    /// - `EAGAIN` if there is no connection now, or if it is being replaced.
    pub(super) fn connection(&self, queue: u32) -> Result<AnyConnection> {
        match self.state() {
            State::Live | State::Leaving | State::Adding => {}
            // A lost connection accepts requests, but fails them at once.
            State::Lost => return Err(errno::enotconn()),
            // The disk's work soon holds requests back, and resumes them with new connections.
            State::Renewing => return Err(EAGAIN),
            State::Idle | State::Dead => return Err(EIO),
        }
        self.slot(queue).and_then(|slot| slot.get()).ok_or(EAGAIN)
    }
}

/// Returns the error for a request that could not be posted because of `e`: `EAGAIN` or `EIO`.
pub(super) fn retried(e: Error) -> Error {
    // If the connection has ended, the disk reconnects and retries the request.
    let later = [EAGAIN, ENOENT, errno::enotconn()];
    if later.contains(&e) {
        EAGAIN
    } else {
        EIO
    }
}

/// Handles the completions of a disk's queue.
pub(super) struct Requests<P: Protocol> {
    disk: Arc<Disk>,
    cq: Arc<Cq>,
    handle: P::Handle,
    block: Block,
    queue: u32,
}

/// Completions to report.
pub(super) struct Ended<P: Protocol> {
    block: Block,
    queue: u32,
    /// The queue may have more completions.
    more: bool,
    batch: P::Batch,
}

impl<P: Protocol> Requests<P> {
    /// Makes the handler of a queue's completions.
    pub(super) fn new(
        disk: &Arc<Disk>,
        cq: &Arc<Cq>,
        protocol: &P,
        block: Block,
        queue: u32,
    ) -> Self {
        Self {
            disk: disk.clone(),
            cq: cq.clone(),
            handle: protocol.attach(disk, block, queue),
            block,
            queue,
        }
    }
}

impl<P: Protocol> Receiver for Requests<P> {
    type Batch = Ended<P>;

    fn completed(&self) -> Ended<P> {
        let mut entries = [CqEntry::default(); BATCH];
        let count = self.cq.read(&mut entries);
        let entries = entries.get(..count).unwrap_or_default();
        Ended {
            block: self.block,
            queue: self.queue,
            more: count == BATCH,
            batch: P::completed(&self.handle, &self.disk, entries),
        }
    }

    fn finish(ended: Ended<P>, may_sleep: bool) -> bool {
        P::report(ended.batch, ended.block, ended.queue, may_sleep);
        ended.more
    }

    fn event(&self) {
        Disk::lost(&self.disk);
    }
}

/// Reports that a request is late.
///
/// # Safety
///
/// `owner` was passed to [`Block::new`].
#[no_mangle]
unsafe extern "C" fn kfblk_rs_timeout(owner: *mut c_void) {
    // SAFETY: By the caller's contract. `ManuallyDrop` leaves the block device its reference.
    let disk = ManuallyDrop::new(unsafe { Arc::from_raw(owner.cast::<Disk>().cast_const()) });
    Disk::lost(&disk);
}

/// Queues the disk's work, at the end of the delay of `kfblk_disk_look_in`.
///
/// # Safety
///
/// `owner` was passed to [`Block::new`].
#[no_mangle]
unsafe extern "C" fn kfblk_rs_look(owner: *mut c_void) {
    // SAFETY: By the caller's contract. `ManuallyDrop` leaves the block device its reference.
    let disk = ManuallyDrop::new(unsafe { Arc::from_raw(owner.cast::<Disk>().cast_const()) });
    Disk::look_again(&disk);
}

kfabric::same_prototype!(sys: kfblk_rs_timeout, kfblk_rs_look);
