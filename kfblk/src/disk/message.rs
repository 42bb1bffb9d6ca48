// SPDX-License-Identifier: GPL-2.0
//! Requests of a disk that is a device: as messages, and back.
//!
//! Each of a connection's tags has memory of its own, which the request's bytes are copied to or from,
//! and a key slot. Few bytes go with the messages; for more, the target gets a key for just those bytes
//! and that one way. It is told at once, and is valid before the message takes effect. It is dead before
//! the request ends, and before anybody looks at what came by it: [`Io`]'s work does that, for all that
//! were answered meanwhile together.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex,
        SetOnce, //
    },
    workqueue::{
        Work,
        WorkItem, //
    }, //
};
use kfabric::{
    ep::Endpoint,
    fabric::Domain,
    key::{
        Assignment,
        Key, //
    },
    new_irqlock,
    op::{
        OpKind,
        Segs, //
    },
    provider::KeyValue,
    pure::blk::device::{
        Carry,
        Op,
        Request,
        Said,
        DEPTH,
        INLINE_MAX,
        REPLY,
        REQUEST, //
    },
    sys::IrqLock,
    uapi::*, //
};

use crate::{
    buffer::{
        self,
        Buffer, //
    },
    config,
    sys::{
        self,
        Block,
        Verdict, //
    }, //
};

/// Bytes of a message that goes with its head.
const INLINE: usize = INLINE_MAX as usize;
/// Answers that fit into one piece of memory.
const INBOXES_OF_ONE: u32 = (buffer::RUN / INLINE) as u32;
/// Answers that may come at once: one for each request, and news.
const INBOXES: u32 = DEPTH + INBOXES_OF_ONE;
/// Operations that a connection may have on their way: a request's answer may come before it is known
/// that the request went.
pub(crate) const SENDS: u32 = 2 * DEPTH;
/// Receives of a connection.
pub(crate) const RECEIVES: u32 = INBOXES;

/// Contexts of operations; below, the tag or the inbox.
const CAME: u64 = 2 << 32;
const WENT: u64 = 3 << 32;
const NUMBER: u64 = (1 << 32) - 1;

/// Bytes between two heads.
const STRIDE: usize = 64;
/// Where the heads begin that come.
const HEADS: usize = DEPTH as usize * STRIDE;
const _: () = assert!(HEADS + INBOXES as usize * STRIDE <= buffer::RUN);
const _: () = assert!(REQUEST <= STRIDE && REPLY <= STRIDE);

/// What belongs to a tag.
struct Slot {
    data: Buffer,
    key: Arc<Key>,
}

/// A tag's request.
#[derive(Clone, Copy, Default)]
struct Way {
    /// There is one.
    busy: bool,
    /// How many there were.
    times: u16,
    reads: bool,
    keyed: bool,
    len: u32,
    /// It has been answered, with this.
    answered: Option<u32>,
    /// Its message is known to have gone, or nothing of it is needed any more.
    went: bool,
}

/// How a request came to its end.
#[derive(Clone, Copy)]
pub(crate) enum End {
    /// Not yet.
    Open,
    /// By this answer: 0, or an errno.
    Answered(u32, u32),
    /// The connection has ended, or the target does not keep to the rules.
    Lost,
}

/// What a completion says.
pub(crate) struct News {
    /// How the request ended that it is about.
    pub(crate) end: End,
    /// A request was answered.
    pub(crate) answered: bool,
    /// The inbox that can receive again.
    pub(crate) inbox: Option<u32>,
}

/// The requests of a connection.
#[pin_data]
pub(crate) struct Io {
    ep: Arc<Endpoint>,
    slots: KVec<Slot>,
    inboxes: KVec<Buffer>,
    heads: Buffer,
    #[pin]
    ways: IrqLock<[Way; DEPTH as usize]>,
    /// Whose requests they are.
    queue: SetOnce<(Block, u32)>,
    /// Tags whose requests were answered and have a key yet.
    keyed: AtomicU64,
    /// The capacity that the target has told of; 0: it has not.
    capacity: AtomicU64,
    /// It has ended. Held while requests end that had keys.
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
        let _no_io = sys::NoIo::new();
        let closed = this.closed.lock();
        if !*closed {
            this.settle();
        }
    }
}

/// What is not known of an error yet is tried again.
fn later(e: Error) -> Error {
    if e == ENOSPC || e == EINVAL {
        EIO
    } else {
        EAGAIN
    }
}

impl Io {
    /// Room for a connection's requests, which can be answered from now on.
    pub(crate) fn new(domain: &Arc<Domain>, ep: &Arc<Endpoint>) -> Result<Arc<Self>> {
        let mut slots = KVec::with_capacity(DEPTH as usize, GFP_KERNEL)?;
        for _ in 0..DEPTH {
            let access = KFI_SEND | KFI_REMOTE_READ | KFI_REMOTE_WRITE;
            let data = Buffer::new(domain, access, true)?;
            let key = Key::alloc_for(data.region(), ep)?;
            slots.push(Slot { data, key }, GFP_KERNEL)?;
        }
        let mut inboxes = KVec::new();
        for _ in 0..INBOXES / INBOXES_OF_ONE {
            inboxes.push(Buffer::run(domain, KFI_RECV)?, GFP_KERNEL)?;
        }
        let heads = Buffer::run(domain, KFI_SEND | KFI_RECV)?;
        let io = Arc::pin_init(
            pin_init!(Self {
                ep: ep.clone(),
                slots,
                inboxes,
                heads,
                ways <- new_irqlock!([Way::default(); DEPTH as usize], "kfblk_ways"),
                queue: SetOnce::new(),
                keyed: AtomicU64::new(0),
                capacity: AtomicU64::new(0),
                closed <- new_mutex!(false, "kfblk_closed"),
                work <- new_work!("Io::work"),
            }),
            GFP_KERNEL,
        )?;
        (0..INBOXES).try_for_each(|inbox| io.listen(inbox))?;
        Ok(io)
    }

    /// Says whose requests they are.
    pub(crate) fn attach(&self, block: Block, queue: u32) {
        // Once: a connection is for one.
        let _ = self.queue.populate((block, queue));
    }

    fn inbox(&self, inbox: u32) -> Result<(&Buffer, usize)> {
        let of = inbox / INBOXES_OF_ONE;
        let at = (inbox % INBOXES_OF_ONE) as usize * INLINE;
        Ok((self.inboxes.get(of as usize).ok_or(EIO)?, at))
    }

    /// Has an inbox receive. Any context.
    fn listen(&self, inbox: u32) -> Result {
        let (data, at) = self.inbox(inbox)?;
        let mut segs = Segs::new();
        let head = HEADS + inbox as usize * STRIDE;
        self.heads.add(&mut segs, OpKind::Recv, head, REPLY)?;
        data.add(&mut segs, OpKind::Recv, at, INLINE)?;
        buffer::post(&self.ep, OpKind::Recv, CAME | u64::from(inbox), segs)
    }

    /// Has an inbox receive again.
    pub(crate) fn listen_again(&self, inbox: u32) {
        // It fails only when the connection has ended.
        let _ = self.listen(inbox);
    }

    /// Sends a request. May wait.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: not now. `EIO`: never.
    pub(crate) fn send(&self, tag: u32, op: Op, flags: u8, pos: u64, len: u32) -> Result {
        let (block, queue) = *self.queue.as_ref().ok_or(EAGAIN)?;
        let slot = self.slots.get(tag as usize).ok_or(EIO)?;
        if op == Op::Write {
            // SAFETY: The request is that of the tag, and has not ended.
            unsafe { block.copy(queue, tag, slot.data.pieces(), false) };
        }
        let keyed = op.moves() && len > INLINE_MAX;
        let carry = match keyed {
            true => self.assign(slot, op, len)?,
            false => Carry::Message,
        };
        let behind = op == Op::Write && !keyed;
        let number = {
            let mut ways = self.ways.lock();
            let way = ways.get_mut(tag as usize).ok_or(EIO)?;
            *way = Way {
                busy: true,
                times: way.times.wrapping_add(1),
                reads: op == Op::Read,
                keyed,
                len,
                answered: None,
                went: !behind,
            };
            (u32::from(way.times) << 16) | tag
        };
        let request = Request {
            op,
            flags,
            number,
            pos,
            len,
            carry,
        };
        self.post(tag, slot, &request, behind).inspect_err(|_| {
            // Nobody has it.
            if let Some(way) = self.ways.lock().get_mut(tag as usize) {
                way.busy = false;
            }
            if keyed {
                let _ = slot.key.revoke();
            }
        })
    }

    fn assign(&self, slot: &Slot, op: Op, len: u32) -> Result<Carry> {
        // A slot that has nothing in reserve gets it here, which must not come back to us.
        let _no_io = sys::NoIo::new();
        let mut one = [Assignment {
            key: &slot.key,
            offset: 0,
            len: len.into(),
            access: match op {
                Op::Read => KFI_REMOTE_WRITE,
                _ => KFI_REMOTE_READ,
            },
            once: false,
            value: KeyValue::NONE,
        }];
        // Should it not come to be, the target's operation fails, and the connection with it.
        Key::assign_ordered(&mut one, None).map_err(|(_, e)| later(e))?;
        let [one] = one;
        Ok(Carry::Key {
            key: one.value.key,
            addr: one.value.remote_addr,
        })
    }

    fn post(&self, tag: u32, slot: &Slot, request: &Request, behind: bool) -> Result {
        let head = request.write();
        let context = WENT | u64::from(tag);
        let posted = if behind {
            let at = tag as usize * STRIDE;
            self.heads.write(at, &head);
            let mut segs = Segs::new();
            self.heads.add(&mut segs, OpKind::Send, at, REQUEST)?;
            let len = request.len as usize;
            slot.data.add(&mut segs, OpKind::Send, 0, len)?;
            buffer::post(&self.ep, OpKind::Send, context, segs)
        } else {
            buffer::inject(&self.ep, context, &head)
        };
        posted.map_err(|e| {
            // What has ended is being made again.
            let later = [EAGAIN, ENOENT, config::enotconn()];
            if later.contains(&e) {
                EAGAIN
            } else {
                EIO
            }
        })
    }

    /// An operation has ended. Any context; one caller at a time.
    pub(crate) fn completed(this: &Arc<Self>, entry: &CqEntry) -> News {
        let mut news = News {
            end: End::Lost,
            answered: false,
            inbox: None,
        };
        if entry.err != 0 {
            return news;
        }
        // CAST: What is below.
        let number = (entry.context & NUMBER) as u32;
        match entry.context & !NUMBER {
            CAME => {
                let came = Self::came(this, number, entry.len);
                news.answered = came.is_ok();
                news.end = came.unwrap_or(End::Lost);
                news.inbox = Some(number);
            }
            WENT => news.end = this.went(number),
            _ => {}
        }
        news
    }

    /// Whether a request is on its way. Any context.
    pub(crate) fn is_busy(&self) -> bool {
        self.ways.lock().iter().any(|way| way.busy)
    }

    fn went(&self, tag: u32) -> End {
        let mut ways = self.ways.lock();
        let Some(way) = ways.get_mut(tag as usize) else {
            return End::Lost;
        };
        way.went = true;
        way.over(tag)
    }

    /// The target has said something, in `len` bytes.
    fn came(this: &Arc<Self>, inbox: u32, len: u64) -> Result<End> {
        let mut head = [0; REPLY];
        // Once: what is looked at from here on cannot change.
        let at = HEADS + inbox as usize * STRIDE;
        this.heads.read(at, &mut head);
        let (number, status, len) = match Said::read(&head, len).map_err(|_| EINVAL)? {
            Said::Reply {
                number,
                status,
                len,
            } => (number, status, len),
            Said::News(capacity) => {
                this.capacity.store(capacity.max(1), Ordering::Release);
                let _ = sys::disks().enqueue(this.clone());
                return Ok(End::Open);
            }
        };
        let tag = number & 0xffff;
        {
            let mut ways = this.ways.lock();
            let way = ways.get_mut(tag as usize).ok_or(EINVAL)?;
            let ours = way.busy && way.answered.is_none() && u32::from(way.times) == number >> 16;
            let wanted = match (way.reads && !way.keyed, status) {
                (true, 0) => way.len,
                _ => 0,
            };
            if !ours || len != wanted {
                return Err(EINVAL);
            }
            way.answered = Some(status);
            if way.keyed {
                this.keyed.fetch_or(1 << tag, Ordering::AcqRel);
                drop(ways);
                // If it is queued already it will look again.
                let _ = sys::disks().enqueue(this.clone());
                return Ok(End::Open);
            }
        }
        if len != 0 {
            let (block, queue) = *this.queue.as_ref().ok_or(EINVAL)?;
            let (data, at) = this.inbox(inbox)?;
            let piece = data.piece(at, len).ok_or(EINVAL)?;
            // SAFETY: The request is that of the tag, and nobody else ends it: it has been answered.
            unsafe { block.copy(queue, tag, &[piece], true) };
        }
        let mut ways = this.ways.lock();
        Ok(ways.get_mut(tag as usize).ok_or(EINVAL)?.over(tag))
    }

    /// Ends the keys of requests that were answered, and then those; and has the disk have the
    /// capacity that the target told of. With `closed` held.
    fn settle(&self) {
        let Some((block, queue)) = self.queue.as_ref().copied() else {
            return;
        };
        match self.capacity.swap(0, Ordering::AcqRel) {
            0 => {}
            capacity => block.resize(capacity),
        }
        let Some(first) = self.slots.first() else {
            return;
        };
        loop {
            let tags = self.keyed.swap(0, Ordering::AcqRel);
            let mut all = [&*first.key; DEPTH as usize];
            let mut count = 0;
            for (tag, slot) in self.slots.iter().enumerate() {
                if tags & (1 << tag) != 0 {
                    if let Some(place) = all.get_mut(count) {
                        *place = &*slot.key;
                        count += 1;
                    }
                }
            }
            let keys = all.get_mut(..count).unwrap_or_default();
            if keys.is_empty() {
                return;
            }
            // Who is not killed ends them all.
            let _ = Key::end_many(keys);
            for (tag, slot) in (0..).zip(&self.slots) {
                if tags & (1 << tag) != 0 {
                    self.finish(block, queue, tag, slot);
                }
            }
            Key::renew_many(keys);
        }
    }

    /// Ends a request whose key has ended.
    fn finish(&self, block: Block, queue: u32, tag: u32, slot: &Slot) {
        let way = {
            let mut ways = self.ways.lock();
            let Some(way) = ways.get_mut(tag as usize).filter(|way| way.busy) else {
                return;
            };
            way.busy = false;
            *way
        };
        let status = way.answered.unwrap_or(0);
        // SAFETY: The request is that of the tag, and this is its only end.
        unsafe {
            if status != 0 {
                return block.fail(queue, tag, status);
            }
            if way.reads {
                block.copy(queue, tag, slot.data.pieces(), true);
            }
            block.end(queue, tag, Verdict::Done);
        }
    }

    /// After the endpoint was closed, with nobody in [`Io::completed`], and nobody there to send: ends
    /// what is left, to be tried again.
    pub(crate) fn close(&self) {
        let mut closed = self.closed.lock();
        *closed = true;
        let Some((block, queue)) = self.queue.as_ref().copied() else {
            return;
        };
        for (tag, slot) in (0..).zip(&self.slots) {
            // It is dead with the endpoint.
            slot.key.close();
            let busy = {
                let mut ways = self.ways.lock();
                let way = ways.get_mut(tag as usize);
                way.is_some_and(|way| core::mem::take(&mut way.busy))
            };
            if busy {
                // SAFETY: The request is that of the tag, and this is its only end.
                unsafe { block.end(queue, tag, Verdict::Again) };
            }
        }
    }
}

impl Way {
    /// Whether it is over. Once.
    fn over(&mut self, tag: u32) -> End {
        match self.answered {
            Some(status) if self.busy && self.went && !self.keyed => {
                self.busy = false;
                End::Answered(tag, status)
            }
            _ => End::Open,
        }
    }
}
