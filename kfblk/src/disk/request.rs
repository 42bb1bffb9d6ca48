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
    pure::blk::device::Op,
    sys::IrqLock,
    uapi::CqEntry,
};

use super::{
    lane::Lane,
    message::{
        Io,
        News, //
    },
    Disk,
    State, //
};
use crate::{
    config,
    sys::{
        Block,
        Order,
        Verdict, //
    }, //
};

/// Ended requests that are taken at a time. Mostly there is one, and who comes with the next looks again.
const BATCH: usize = 4;

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
///
/// `served`: the connection has served others.
fn verdict(err: u32, served: bool) -> Verdict {
    match err {
        0 => Verdict::Done,
        bindings::EACCES | bindings::EFAULT | bindings::EMSGSIZE | bindings::EREMOTEIO => {
            Verdict::Blamed
        }
        _ if served => Verdict::Suspect,
        _ => Verdict::Again,
    }
}

/// What a queue's completions are about.
pub(crate) struct Requests {
    disk: Arc<Disk>,
    cq: Arc<Cq>,
    /// Of a device.
    io: Option<Arc<Io>>,
    block: Block,
    queue: u32,
}

/// Some that have ended, or messages of a device.
pub(crate) struct Ended {
    block: Block,
    queue: u32,
    list: [(u32, Verdict); BATCH],
    count: usize,
    device: Option<(Arc<Io>, [Option<News>; BATCH])>,
}

impl Requests {
    /// Those of a queue.
    pub(crate) fn new(disk: &Arc<Disk>, lane: &Lane, block: Block, queue: u32) -> Self {
        if let Some(io) = lane.io() {
            io.attach(block, queue, disk.unflushed());
        }
        Self {
            disk: disk.clone(),
            cq: lane.cq().clone(),
            io: lane.io().cloned(),
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
            device: None,
        };
        let (mut done, mut lost) = (false, false);
        if let Some(io) = &self.io {
            let mut all = [const { None }; BATCH];
            for (entry, place) in entries.iter().take(read).zip(&mut all) {
                let news = io.completed(entry);
                done |= !news.lost;
                lost |= news.lost;
                if let Some(capacity) = news.capacity {
                    Disk::resized(&self.disk, capacity);
                }
                *place = Some(news);
                ended.count += 1;
            }
            self.disk.note(done, lost && io.is_busy());
            if lost {
                Disk::lost(&self.disk);
            }
            ended.device = Some((io.clone(), all));
            return ended;
        }
        for (entry, place) in entries.iter().take(read).zip(&mut ended.list) {
            let verdict = verdict(entry.err, self.disk.has_served());
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
    /// Tells the block layer. Whether there may be more that nobody else looks at. `may_sleep`: in a task
    /// that holds no lock.
    pub(crate) fn finish(&self, may_sleep: bool) -> bool {
        if let Some((io, all)) = &self.device {
            let mut settle = false;
            for news in all.iter().flatten() {
                if let Some(inbox) = news.inbox {
                    io.listen_again(inbox);
                }
                settle |= news.settle;
                let mut done = news.done;
                while done != 0 {
                    let tag = done.trailing_zeros();
                    done &= done - 1;
                    // SAFETY: The request was sent with its tag when it was taken, and this is its end.
                    unsafe { self.block.end(self.queue, tag, Verdict::Done) };
                }
                if let Some((tag, err)) = news.failed {
                    // SAFETY: As above.
                    unsafe { self.block.fail(self.queue, tag, err) };
                }
            }
            if settle {
                Io::settle_soon(io, may_sleep);
            }
            return self.count == BATCH;
        }
        for (tag, verdict) in self.list.iter().take(self.count) {
            // SAFETY: It was posted with its tag when it was taken, and this is its completion.
            unsafe { self.block.end(self.queue, *tag, *verdict) };
        }
        self.count == BATCH
    }
}

/// The block layer brings a request: 0, or a negative errno; `-EAGAIN`: later; `-ENOTCONN`: there is no
/// connection.
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
        State::Lost => return config::enotconn().to_errno(),
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

/// The block layer brings a request of a device: 0, or a negative errno; `-EAGAIN`: later; `-ENOTCONN`:
/// there is no connection; `-EREMOTEIO`: later, unless that has been said too often.
///
/// # Safety
///
/// `owner` is what the block device was made with. The request of this tag stays until it has ended, or
/// was not taken.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_send(
    owner: *mut c_void,
    queue: u32,
    tag: u32,
    order: *const Order,
) -> c_int {
    // SAFETY: The block device keeps it, and its reference stays with it.
    let disk = ManuallyDrop::new(unsafe { Arc::from_raw(owner.cast::<Disk>().cast_const()) });
    // SAFETY: The caller's promise.
    let order = unsafe { &*order };
    match disk.state() {
        State::Live | State::Leaving | State::Adding => {}
        State::Lost => return config::enotconn().to_errno(),
        State::Idle | State::Dead => return EIO.to_errno(),
    }
    let lane = disk.slot(queue).and_then(|slot| slot.get());
    let io = lane.as_ref().and_then(|lane| lane.io());
    let (Some(io), Some(op)) = (io, Op::of(order.op)) else {
        return EAGAIN.to_errno();
    };
    match io.send(tag, op, order.flags, order.pos, order.len) {
        Ok(()) => 0,
        // As if it had been lost: what waits goes by the next.
        Err(e) if e == config::estale() => {
            disk.note(false, true);
            Disk::lost(&disk);
            config::enotconn().to_errno()
        }
        Err(e) => e.to_errno(),
    }
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
