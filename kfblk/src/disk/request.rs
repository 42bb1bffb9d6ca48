// SPDX-License-Identifier: GPL-2.0
//! Requests of the block layer: from `block.c` to a connection, and back when they have ended.

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    cq::Cq,
    new_irqlock,
    op::{
        LentPiece,
        OpKind,
        Segs, //
    },
    sys::IrqLock,
    uapi::CqEntry,
};

use super::{
    lane::Lane,
    Disk,
    State, //
};
use crate::sys::{
    Block,
    Verdict, //
};

/// Ended requests that are taken at a time.
const BATCH: usize = 16;

/// Where a queue finds its connection.
#[pin_data]
pub(crate) struct Slot {
    #[pin]
    lane: IrqLock<Option<Arc<Lane>>>,
}

impl Slot {
    /// One without.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                lane <- new_irqlock!(None, "kfblk_slot"),
            }),
            GFP_KERNEL,
        )
    }

    /// It is this one from now on.
    pub(crate) fn put(&self, lane: &Arc<Lane>) {
        *self.lane.lock() = Some(lane.clone());
    }

    /// There is none from now on. The caller has it still, and ends it when nobody uses it.
    pub(crate) fn clear(&self) {
        let lane = self.lane.lock().take();
        drop(lane);
    }

    fn get(&self) -> Option<Arc<Lane>> {
        self.lane.lock().clone()
    }
}

/// How a request ended, by its errno. What may be its own fault, and nobody else's, is what the peer, or
/// the device, did not want of it; that nothing gets through is not.
fn verdict(err: u32) -> Verdict {
    match err {
        0 => Verdict::Done,
        bindings::EACCES | bindings::EFAULT | bindings::EMSGSIZE | bindings::EREMOTEIO => {
            Verdict::Blamed
        }
        _ => Verdict::Again,
    }
}

/// What a queue's completions are about.
pub(crate) struct Requests {
    disk: Arc<Disk>,
    cq: Arc<Cq>,
    block: Block,
    queue: u32,
}

/// Some that have ended.
pub(crate) struct Ended {
    block: Block,
    queue: u32,
    list: [(u32, Verdict); BATCH],
    count: usize,
}

impl Requests {
    /// Those of a queue.
    pub(crate) fn new(disk: &Arc<Disk>, cq: &Arc<Cq>, block: Block, queue: u32) -> Self {
        Self {
            disk: disk.clone(),
            cq: cq.clone(),
            block,
            queue,
        }
    }

    /// Takes some that have ended. One caller at a time; any context.
    pub(crate) fn ended(&self) -> Ended {
        let mut entries = [CqEntry::default(); BATCH];
        let read = self.cq.read(&mut entries);
        let mut ended = Ended {
            block: self.block,
            queue: self.queue,
            list: [(0, Verdict::Done); BATCH],
            count: 0,
        };
        let (mut done, mut lost) = (false, false);
        for (entry, place) in entries.iter().take(read).zip(&mut ended.list) {
            let verdict = verdict(entry.err);
            match verdict {
                Verdict::Done => done = true,
                // Every failure ends the connection.
                _ => lost = true,
            }
            // CAST: It was posted with a tag.
            *place = (entry.context as u32, verdict);
            ended.count += 1;
        }
        self.disk.note(done, lost);
        if lost {
            Disk::lost(&self.disk);
            if self.disk.state() == State::Dead {
                for (_, verdict) in &mut ended.list {
                    if *verdict != Verdict::Done {
                        *verdict = Verdict::Failed;
                    }
                }
            }
        }
        ended
    }

    /// The connection has ended.
    pub(crate) fn lost(&self) {
        Disk::lost(&self.disk);
    }
}

impl Ended {
    /// Tells the block layer; how many there were.
    pub(crate) fn finish(self) -> usize {
        for (tag, verdict) in self.list.iter().take(self.count) {
            // SAFETY: It was posted with its tag when it was taken, and this is its completion.
            unsafe { self.block.end(self.queue, *tag, *verdict) };
        }
        self.count
    }
}

/// The block layer brings a request: 0, or a negative errno; `-EAGAIN`: later.
///
/// # Safety
///
/// `owner` is what the block device was made with. The pieces are those of the request, which stay
/// until it has ended, or was not taken.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_queue(
    owner: *mut c_void,
    queue: u32,
    tag: u32,
    write: bool,
    pos: u64,
    pieces: *mut LentPiece,
    count: u32,
) -> c_int {
    // SAFETY: The block device keeps it.
    let disk = unsafe { &*owner.cast::<Disk>() };
    match disk.state() {
        State::Live | State::Leaving | State::Adding => {}
        // A connection that has failed still takes requests, only to fail them at once.
        State::Lost => return EAGAIN.to_errno(),
        State::Idle | State::Dead => return EIO.to_errno(),
    }
    let lane = disk.slot(queue).and_then(|slot| slot.get());
    let (Some(lane), Some(pieces)) = (lane, NonNull::new(pieces)) else {
        return EAGAIN.to_errno();
    };
    // SAFETY: The caller's promise. A request that reads has pages that may be written to.
    let segs = unsafe { Segs::lend(pieces, count as usize) };
    let kind = if write { OpKind::Write } else { OpKind::Read };
    lane.post(kind, tag, pos, segs)
        .map_or_else(|e| e.to_errno(), |()| 0)
}

/// A request takes too long.
///
/// # Safety
///
/// `owner` is what the block device was made with.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_timeout(owner: *mut c_void) {
    // SAFETY: The block device keeps it, and its reference stays with it.
    let disk = ManuallyDrop::new(unsafe { Arc::from_raw(owner.cast::<Disk>().cast_const()) });
    Disk::lost(&disk);
}
