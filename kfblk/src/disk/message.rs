// SPDX-License-Identifier: GPL-2.0
//! The protocol of block-backed exports: requests are messages, and the target moves the bytes.
//!
//! `block.c` passes requests to [`kfblk_rs_send`]; `send` encodes them, `answer` handles the
//! answers, and `revoke` ends requests that have keys.
//!
//! Up to [`INLINE_MAX`] bytes are copied and are part of the message. For longer requests, the
//! target gets a key for only the request's own pages and only one direction. Each tag of a
//! connection has a key slot on an [attach-on-assign region](Memory::placeholder). The key value is
//! returned at once, and the key is valid before the message takes effect. The key is revoked
//! before the request ends, so no reader sees data that the target can still change. The handler of
//! the answer revokes the key. If the handler must not sleep, [`Io`]'s work revokes the keys of all
//! requests answered so far.
//!
//! If the device or memory is exhausted, no key can be assigned. Then requests use the connection's
//! [`Spare`], one at a time: memory and keys that were allocated with the connection. So requests
//! make progress even if the kernel waits for this disk before it can free memory.

mod answer;
mod keys;
mod revoke;
mod send;
mod state;

use core::{
    mem::ManuallyDrop,
    sync::atomic::{
        AtomicBool,
        AtomicU64, //
    }, //
};
use kernel::{
    ffi::{
        c_int,
        c_void, //
    },
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
    time::{
        Instant,
        Monotonic, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    ep::{
        Endpoint,
        EpAttr,
        LocalMem, //
    },
    new_irqlock,
    objects::{
        cq::Cq,
        domain::Domain, //
    },
    op::OpKind,
    provider::DomainAttr,
    pure::blk::{
        cache::Unflushed,
        device::{
            Op,
            DEPTH,
            DONE,
            INLINE_MAX,
            LEN_MAX,
            REPLY,
            REQUEST,
            WANTED, //
        },
        Geometry,
        Welcome, //
    },
    sys::{
        IrqLock,
        NoIo, //
    },
    uapi::{
        CqEntry,
        KFI_RECV,
        KFI_SELECTIVE_COMPLETION,
        KFI_SEND, //
    },
};

use super::{
    connection::{
        Conversation,
        TALK, //
    },
    protocol::{
        AnyConnection,
        Properties,
        Protocol,
        BATCH, //
    },
    Disk, //
};
use crate::{
    buffer::{
        self,
        Buffer, //
    },
    errno,
    sys::{
        self,
        Block,
        Order,
        Verdict, //
    }, //
};
use keys::{
    KeySlot,
    Spare, //
};
use state::{
    RequestState,
    Summary, //
};

/// Maximum payload that is part of a message, in bytes.
const INLINE: usize = INLINE_MAX as usize;
/// Receive slots that fit into one buffer.
const RECEIVES_PER_BUFFER: u32 = (buffer::RUN / INLINE) as u32;
/// Receive slots of a connection: one per request, and some for announcements.
const RECEIVES: u32 = DEPTH + RECEIVES_PER_BUFFER;
/// Send queue size: a request's answer may arrive before the completion of its send, so a tag can
/// have two sends outstanding.
const SENDS: u32 = 2 * DEPTH;
/// Assignments of a connection that may fail after they were accepted, at most.
const ASSIGNS: u32 = DEPTH;

/// Kinds of operation contexts. The lower 32 bits hold the tag or the receive slot.
const CAME: u64 = 2 << 32;
const WENT: u64 = 3 << 32;
const UNMADE: u64 = 4 << 32;
const NUMBER: u64 = (1 << 32) - 1;
/// The bits of a request's number that hold its tag.
const TAG: u32 = 0xffff;

/// Distance between two message heads, in bytes.
const STRIDE: usize = 64;
const _: () = assert!(DEPTH as usize * STRIDE <= buffer::RUN && REQUEST <= STRIDE);
const _: () = assert!(DEPTH as usize * INLINE <= LEN_MAX as usize);
const _: () = assert!(REPLY <= INLINE && DONE <= INLINE);

/// The outstanding requests of a connection to a block-backed export.
#[pin_data]
pub(super) struct Io {
    ep: Arc<Endpoint>,
    cq: Arc<Cq>,
    slots: KVec<KeySlot>,
    receives: KVec<Buffer>,
    heads: Buffer,
    /// Payloads of messages.
    bodies: Buffer,
    spare: Spare,
    /// The export's geometry when the connection was made.
    geometry: Geometry,
    #[pin]
    states: IrqLock<[RequestState; DEPTH as usize]>,
    /// Block device and queue that the requests belong to.
    queue: SetOnce<(Block, u32)>,
    /// The disk's list of acknowledged writes that are not flushed.
    unflushed: SetOnce<Arc<Unflushed>>,
    /// Bit mask of tags whose requests were answered and whose keys are not revoked yet.
    keyed: AtomicU64,
    /// Bit mask of tags whose assignments have failed, which ends the connection.
    unmade: AtomicU64,
    since: Instant<Monotonic>,
    /// When keys became unavailable, in milliseconds after `since`; 0 if keys are available.
    short: AtomicU64,
    /// The shortage has been logged.
    told: AtomicBool,
    /// The connection is closed. Held while requests with keys are completed.
    #[pin]
    closed: Mutex<bool>,
    #[pin]
    work: Work<Io>,
}

impl_has_work! {
    impl HasWork<Self> for Io { self.work }
}

impl WorkItem for Io {
    type Pointer = Arc<Io>;

    fn run(this: Arc<Io>) {
        let _no_io = NoIo::begin();
        let closed = this.closed.lock();
        if !*closed {
            // A workqueue thread is never killed, so `revoke_answered` does not return `false`.
            let _ = this.revoke_answered();
        }
    }
}

/// The protocol of a connection to a block-backed export.
pub(super) struct Messages {
    io: Arc<Io>,
}

/// Completions to report.
pub(super) struct Completed {
    io: Arc<Io>,
    all: [Option<Summary>; BATCH],
}

impl Protocol for Messages {
    const PROPERTIES: Properties = Properties {
        depth: DEPTH,
        len_max: LEN_MAX,
        messages: true,
        borrows_pages: false,
        resizes: true,
    };
    const CONNECT_DATA: &'static [u8] = &[WANTED];
    // Sends need no completion: the answer completes the request.
    const TRANSMIT_FLAGS: u64 = KFI_SELECTIVE_COMPLETION;
    type Handle = Arc<Io>;
    type Batch = Completed;

    fn sizes(_limits: &DomainAttr) -> (u32, EpAttr) {
        let attr = EpAttr {
            tx_size: TALK + SENDS,
            rx_size: TALK + RECEIVES,
            // A message has a head and a payload.
            iov_limit: 2,
            own_keys: true,
            // Each request has a key. Key values are reused: they are valid on this connection
            // alone.
            reuse_values: true,
            ..EpAttr::default()
        };
        (TALK + SENDS + RECEIVES + ASSIGNS, attr)
    }

    fn begin(talk: &Conversation<'_>, welcome: &Welcome) -> Result<Self> {
        if welcome.device.is_none() {
            // The export was block-backed when the target asked for messages.
            return Err(errno::estale());
        }
        let io = Io::new(talk.ep.domain(), talk.ep, talk.cq, welcome.geometry)?;
        Ok(Self { io })
    }

    fn attach(&self, disk: &Disk, block: Block, queue: u32) -> Arc<Io> {
        let io = &self.io;
        // Cannot fail: a connection is attached once.
        let _ = io.unflushed.populate(disk.unflushed().clone());
        let _ = io.queue.populate((block, queue));
        io.clone()
    }

    fn completed(io: &Arc<Io>, disk: &Arc<Disk>, entries: &[CqEntry]) -> Completed {
        let (mut completed, mut lost) = (false, false);
        let mut all = [const { None }; BATCH];
        for (entry, place) in entries.iter().zip(&mut all) {
            let summary = io.completed(entry);
            completed |= !summary.lost;
            lost |= summary.lost;
            if let Some(capacity) = summary.capacity {
                Disk::resized(disk, capacity);
            }
            *place = Some(summary);
        }
        disk.record(completed, lost && io.is_busy());
        if lost {
            Disk::lost(disk);
        }
        let io = io.clone();
        Completed { io, all }
    }

    fn report(completed: Completed, block: Block, queue: u32, may_sleep: bool) {
        let Completed { io, all } = completed;
        let mut revoke = false;
        for summary in all.iter().flatten() {
            if let Some(receive) = summary.receive {
                io.listen_again(receive);
            }
            revoke |= summary.revoke;
            let mut done = summary.done;
            while done != 0 {
                let tag = done.trailing_zeros();
                done &= done - 1;
                // SAFETY: The tag's request is in flight, and its state was cleared, so it ends
                // only here.
                unsafe { block.end(queue, tag, Verdict::Done) };
            }
            if let Some((tag, err)) = summary.failed {
                // SAFETY: The tag's request is in flight, and its state was cleared, so it ends
                // only here.
                unsafe { block.fail(queue, tag, err) };
            }
        }
        if revoke {
            Io::revoke_soon(&io, may_sleep);
        }
    }

    fn close(&self, verdict: Verdict) {
        self.io.close(verdict);
    }
}

impl Messages {
    /// Returns whether a request is outstanding. Context: any.
    pub(super) fn is_busy(&self) -> bool {
        self.io.is_busy()
    }
}

impl Io {
    /// Allocates a connection's regions, key slots and buffers, and posts all receives.
    fn new(
        domain: &Arc<Domain>,
        ep: &Arc<Endpoint>,
        cq: &Arc<Cq>,
        geometry: Geometry,
    ) -> Result<Arc<Self>> {
        let mut slots = KVec::with_capacity(DEPTH as usize, GFP_KERNEL)?;
        for _ in 0..DEPTH {
            slots.push(KeySlot::new(domain, ep)?, GFP_KERNEL)?;
        }
        let mut receives = KVec::new();
        for _ in 0..RECEIVES / RECEIVES_PER_BUFFER {
            receives.push(Buffer::run(domain, KFI_RECV)?, GFP_KERNEL)?;
        }
        let heads = Buffer::run(domain, KFI_SEND)?;
        let bodies = Buffer::new(domain, KFI_SEND)?;
        let spare = Spare::new(domain, ep)?;
        let io = Arc::pin_init(
            pin_init!(Self {
                ep: ep.clone(),
                cq: cq.clone(),
                slots,
                receives,
                heads,
                bodies,
                spare,
                geometry,
                states <- new_irqlock!([RequestState::default(); DEPTH as usize], "kfblk_requests"),
                queue: SetOnce::new(),
                unflushed: SetOnce::new(),
                keyed: AtomicU64::new(0),
                unmade: AtomicU64::new(0),
                since: Instant::now(),
                short: AtomicU64::new(0),
                told: AtomicBool::new(false),
                closed <- new_mutex!(false, "kfblk_closed"),
                work <- new_work!("Io::work"),
            }),
            GFP_KERNEL,
        )?;
        (0..RECEIVES).try_for_each(|receive| io.listen(receive))?;
        Ok(io)
    }

    /// Returns the buffer of a receive slot, and the offset of the slot.
    fn receive_buffer(&self, receive: u32) -> Result<(&Buffer, usize)> {
        let of = receive / RECEIVES_PER_BUFFER;
        let at = (receive % RECEIVES_PER_BUFFER) as usize * INLINE;
        Ok((self.receives.get(of as usize).ok_or(EIO)?, at))
    }

    /// Posts the receive of a slot. Context: any.
    fn listen(&self, receive: u32) -> Result {
        let (data, at) = self.receive_buffer(receive)?;
        let mut segs = LocalMem::new();
        data.add(&mut segs, OpKind::Recv, at, INLINE)?;
        buffer::post(&self.ep, OpKind::Recv, CAME | u64::from(receive), segs)
    }

    /// Posts the receive of a slot again. Context: any.
    fn listen_again(&self, receive: u32) {
        // Fails only if the connection has ended. The disconnect is reported separately.
        let _ = self.listen(receive);
    }

    /// Returns whether a request is outstanding. Context: any.
    fn is_busy(&self) -> bool {
        self.states.lock().iter().any(|state| state.busy)
    }
}

/// Sends a request of the block layer to a block-backed export. Returns 0 or a negative errno:
///
/// - `-EAGAIN` if the request must be retried later.
/// - `-ENOTCONN` if there is no connection.
/// - `-EREMOTEIO` if the request must be retried, unless its tries have reached the limit.
/// - `-EIO` if the request fails.
///
/// # Safety
///
/// `owner` was passed to [`Block::new`]. The request stays until it ends or this call fails.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_send(
    owner: *mut c_void,
    queue: u32,
    tag: u32,
    order: *const Order,
) -> c_int {
    // SAFETY: By the caller's contract. `ManuallyDrop` leaves the block device its reference.
    let disk = ManuallyDrop::new(unsafe { Arc::from_raw(owner.cast::<Disk>().cast_const()) });
    // SAFETY: By the caller's contract.
    let order = unsafe { &*order };
    let connection = match disk.connection(queue) {
        Ok(connection) => connection,
        Err(e) => return e.to_errno(),
    };
    let (AnyConnection::Messages(connection), Some(op)) = (connection, Op::of(order.op)) else {
        return EAGAIN.to_errno();
    };
    // The connections are replaced before an assignment fails. A disk that cannot replace them uses
    // the values that are left.
    if connection.ep().keys_worn() && Disk::renew(&disk) {
        return EAGAIN.to_errno();
    }
    let io = &connection.protocol().io;
    match io.send(tag, op, order.flags, order.pos, order.len) {
        Ok(()) => 0,
        // Other users of the device can exhaust the values before most are used.
        Err(e) if e == errno::estale() && Disk::renew(&disk) => EAGAIN.to_errno(),
        // Treated as a lost connection: the next connection sends the waiting requests.
        Err(e) if e == errno::estale() => {
            disk.record(false, true);
            Disk::lost(&disk);
            errno::enotconn().to_errno()
        }
        Err(e) => e.to_errno(),
    }
}

kfabric::same_prototype!(sys: kfblk_rs_send);
