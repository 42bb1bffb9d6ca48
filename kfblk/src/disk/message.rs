// SPDX-License-Identifier: GPL-2.0
//! Requests of a disk that is a device: as messages, and back.
//!
//! Few bytes are copied, and go with the messages. For more, the target gets a key for just the request's
//! own pages and that one way: each of a connection's tags has a key slot, of a [room](Memory::room). It is
//! told at once, and is valid before the message takes effect. It is dead before the request ends, and
//! before anybody looks at what came by it: who hears of the answer does that, or [`Io`]'s work where that
//! must not sleep, for all that were answered meanwhile together.

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
    cq::Cq,
    ep::Endpoint,
    fabric::Domain,
    key::{
        Assignment,
        Failures,
        Key, //
    },
    memory::Memory,
    new_irqlock,
    op::{
        LentPiece,
        OpKind,
        Segs, //
    },
    provider::KeyValue,
    pure::blk::cache::{
        Effect,
        Unflushed, //
    },
    pure::blk::device::{
        read_done,
        Carry,
        Op,
        Request,
        Said,
        DEPTH,
        DONE,
        INLINE_MAX,
        LEN_MAX,
        REPLY,
        REQUEST, //
    },
    pure::blk::Geometry,
    region::Region,
    sys::{
        IrqLock,
        NoIo, //
    },
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
/// Keys that may turn out not to have been made.
pub(crate) const ASSIGNS: u32 = DEPTH;

/// Contexts of operations; below, the tag or the inbox.
const CAME: u64 = 2 << 32;
const WENT: u64 = 3 << 32;
const UNMADE: u64 = 4 << 32;
const NUMBER: u64 = (1 << 32) - 1;
/// What of a request's number is its tag.
const TAG: u32 = 0xffff;

/// How long the device may have nothing for a key before the connection is given up, in milliseconds.
const SHORT_MS: u64 = 10_000;

/// Bytes between two heads.
const STRIDE: usize = 64;
const _: () = assert!(DEPTH as usize * STRIDE <= buffer::RUN && REQUEST <= STRIDE);
const _: () = assert!(DEPTH as usize * INLINE <= LEN_MAX as usize);
const _: () = assert!(REPLY <= INLINE && DONE <= INLINE);

/// What belongs to a tag.
struct Slot {
    /// A room for the request's pages, while `key` gives them.
    room: Arc<Region>,
    key: Arc<Key>,
}

impl Slot {
    /// Has its keys be for these pieces. See [`Memory::fill`].
    ///
    /// # Safety
    ///
    /// There is no key, nor is one being made; and the pieces stay until it is empty.
    unsafe fn fill(&self, pieces: &[LentPiece]) -> Result {
        // SAFETY: The caller's promise; but for keys nothing looks at a room of ours.
        unsafe { self.room.memory().fill(pieces) }
    }

    /// Has it be for none.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn empty(&self) {
        // SAFETY: The caller's promise. Nothing is not too much.
        let _ = unsafe { self.fill(&[]) };
    }
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
    /// What it does to the device's cache.
    effect: Effect,
    /// It has been answered, with this.
    answered: Option<u32>,
}

/// What a completion says.
#[derive(Default)]
pub(crate) struct News {
    /// Requests, by their tags, that have ended well.
    pub(crate) done: u64,
    /// One that has ended with an errno.
    pub(crate) failed: Option<(u32, u32)>,
    /// The connection has ended, or the target does not keep to the rules.
    pub(crate) lost: bool,
    /// The inbox that can receive again.
    pub(crate) inbox: Option<u32>,
    /// A key is to end ([`Io::settle_soon`]).
    pub(crate) settle: bool,
    /// The capacity that the target has told of.
    pub(crate) capacity: Option<u64>,
}

/// The requests of a connection.
#[pin_data]
pub(crate) struct Io {
    ep: Arc<Endpoint>,
    cq: Arc<Cq>,
    slots: KVec<Slot>,
    inboxes: KVec<Buffer>,
    heads: Buffer,
    /// Bytes that go with heads.
    bodies: Buffer,
    /// What the disk was like when it was connected to.
    geometry: Geometry,
    #[pin]
    ways: IrqLock<[Way; DEPTH as usize]>,
    /// Whose requests they are.
    queue: SetOnce<(Block, u32)>,
    /// The disk's.
    unflushed: SetOnce<Arc<Unflushed>>,
    /// Tags whose requests were answered and have a key yet.
    keyed: AtomicU64,
    /// Tags whose requests' keys were not made, which ends the connection.
    unmade: AtomicU64,
    since: Instant<Monotonic>,
    /// After how many milliseconds the device began to have no more for a key; 0: it has.
    short: AtomicU64,
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
        let _no_io = NoIo::begin();
        let closed = this.closed.lock();
        if !*closed {
            // Nobody kills us.
            let _ = this.settle();
        }
    }
}

impl Io {
    /// Room for a connection's requests, which can be answered from now on.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        ep: &Arc<Endpoint>,
        cq: &Arc<Cq>,
        geometry: Geometry,
    ) -> Result<Arc<Self>> {
        let mut slots = KVec::with_capacity(DEPTH as usize, GFP_KERNEL)?;
        for _ in 0..DEPTH {
            let access = KFI_REMOTE_READ | KFI_REMOTE_WRITE;
            let room = Memory::room(LEN_MAX as usize)?;
            let room = Region::register(domain, room, access, true)?;
            let key = Key::alloc_for(&room, ep)?;
            slots.push(Slot { room, key }, GFP_KERNEL)?;
        }
        let mut inboxes = KVec::new();
        for _ in 0..INBOXES / INBOXES_OF_ONE {
            inboxes.push(Buffer::run(domain, KFI_RECV)?, GFP_KERNEL)?;
        }
        let heads = Buffer::run(domain, KFI_SEND)?;
        let bodies = Buffer::new(domain, KFI_SEND)?;
        let io = Arc::pin_init(
            pin_init!(Self {
                ep: ep.clone(),
                cq: cq.clone(),
                slots,
                inboxes,
                heads,
                bodies,
                geometry,
                ways <- new_irqlock!([Way::default(); DEPTH as usize], "kfblk_ways"),
                queue: SetOnce::new(),
                unflushed: SetOnce::new(),
                keyed: AtomicU64::new(0),
                unmade: AtomicU64::new(0),
                since: Instant::now(),
                short: AtomicU64::new(0),
                closed <- new_mutex!(false, "kfblk_closed"),
                work <- new_work!("Io::work"),
            }),
            GFP_KERNEL,
        )?;
        (0..INBOXES).try_for_each(|inbox| io.listen(inbox))?;
        Ok(io)
    }

    /// Says whose requests they are.
    pub(crate) fn attach(&self, block: Block, queue: u32, unflushed: &Arc<Unflushed>) {
        // Once: a connection is for one.
        let _ = self.unflushed.populate(unflushed.clone());
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
    /// `EAGAIN`: not now. `EREMOTEIO`: the same, but it may be the request's own fault. `ESTALE`: not by
    /// this connection; another one may. `EIO`: never.
    pub(crate) fn send(&self, tag: u32, op: Op, flags: u8, pos: u64, len: u32) -> Result {
        let (block, queue) = *self.queue.as_ref().ok_or(EAGAIN)?;
        let slot = self.slots.get(tag as usize).ok_or(EIO)?;
        // Before the target can have it.
        let effect = self.unflushed.as_ref().ok_or(EAGAIN)?.effect(op, flags);
        let keyed = op.moves() && len > INLINE_MAX;
        let behind = op == Op::Write && !keyed;
        let carry = if keyed {
            // SAFETY: The request is that of the tag, and has not ended.
            let pieces = unsafe { block.pieces(queue, tag) };
            if pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>() != len.into() {
                return Err(EIO);
            }
            // SAFETY: The tag's last key is dead, which its request's end, or the failure to send it, waited
            // for. The pages are the request's until it ends, before which the room is empty again.
            unsafe { slot.fill(pieces) }.map_err(|_| EIO)?;
            match self.assign(tag, slot, op, len) {
                Ok(carry) => carry,
                Err(e) => {
                    // SAFETY: There is no key.
                    unsafe { slot.empty() };
                    return Err(e);
                }
            }
        } else {
            Carry::Message
        };
        if behind {
            let body = self.bodies.piece(tag as usize * INLINE, len).ok_or(EIO)?;
            // SAFETY: The request is that of the tag, and has not ended; its body is nobody else's.
            unsafe { block.copy(queue, tag, &[body], false) };
        }
        let (number, alone) = {
            let mut ways = self.ways.lock();
            let alone = !ways.iter().any(|way| way.busy);
            let way = ways.get_mut(tag as usize).ok_or(EIO)?;
            *way = Way {
                busy: true,
                times: way.times.wrapping_add(1),
                reads: op == Op::Read,
                keyed,
                len,
                effect,
                answered: None,
            };
            ((u32::from(way.times) << 16) | tag, alone)
        };
        let request = Request {
            op,
            flags,
            number,
            pos,
            len,
            carry,
            alone,
        };
        let Err(e) = self.post(tag, &request, behind) else {
            return Ok(());
        };
        // A target that guesses may have answered what it has not heard. Then that ends it, or has: it
        // may be another request's by now.
        let ours = |way: &&mut Way| {
            let same = u32::from(way.times) == number >> 16;
            way.busy && same && way.answered.is_none()
        };
        match self.ways.lock().get_mut(tag as usize).filter(ours) {
            Some(way) => way.busy = false,
            None => return Ok(()),
        }
        if let Carry::Key { key, addr } = carry {
            let _no_io = NoIo::begin();
            // Also if the task is being killed: the tag gets no other key before this one is dead.
            slot.key.take_back(&KeyValue {
                key,
                remote_addr: addr,
            });
            // SAFETY: That was waited for.
            unsafe { slot.empty() };
        }
        Err(e)
    }

    fn assign(&self, tag: u32, slot: &Slot, op: Op, len: u32) -> Result<Carry> {
        // A slot that has nothing in reserve gets it here, which must not come back to us.
        let _no_io = NoIo::begin();
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
        self.unmade.fetch_and(!(1 << tag), Ordering::AcqRel);
        // Should it not come to be, the target's operation fails, and the connection with it: the request
        // is what that counts for.
        let failures = Failures {
            cq: &self.cq,
            context: UNMADE | u64::from(tag),
            first: 0,
        };
        Key::assign_ordered(&mut one, Some(failures)).map_err(|(_, e)| self.unassigned(e))?;
        if self.short.load(Ordering::Relaxed) != 0 {
            self.short.store(0, Ordering::Relaxed);
        }
        let [one] = one;
        Ok(Carry::Key {
            key: one.value.key,
            addr: one.value.remote_addr,
        })
    }

    /// What a request is told that gets no key: what may pass is tried again. What the device has no
    /// more of others may give back, or the endpoint has used it up, which has a device's numbers for its
    /// own time only: then the next one has them.
    fn unassigned(&self, e: Error) -> Error {
        // More pages than a device has keys for.
        if e == EINVAL || e == EMSGSIZE {
            return EIO;
        }
        let passes = [
            EAGAIN,
            ENOMEM,
            EBUSY,
            EINTR,
            ENOENT,
            ETIMEDOUT,
            config::enotconn(),
        ];
        if e != ENOSPC {
            return if passes.contains(&e) {
                EAGAIN
            } else {
                config::eremoteio()
            };
        }
        // CAST: Time goes forward.
        let now = (self.since.elapsed().as_millis() as u64).max(1);
        let first = self
            .short
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed)
            .err()
            .unwrap_or(now);
        if self.ep.has_worn_keys() || now.saturating_sub(first) > SHORT_MS {
            config::estale()
        } else {
            EAGAIN
        }
    }

    fn post(&self, tag: u32, request: &Request, behind: bool) -> Result {
        let head = request.write();
        let context = WENT | u64::from(tag);
        let posted = if behind {
            let at = tag as usize * STRIDE;
            self.heads.write(at, &head);
            let mut segs = Segs::new();
            self.heads.add(&mut segs, OpKind::Send, at, REQUEST)?;
            let (at, len) = (tag as usize * INLINE, request.len as usize);
            self.bodies.add(&mut segs, OpKind::Send, at, len)?;
            buffer::post(&self.ep, OpKind::Send, context, segs)
        } else {
            buffer::inject(&self.ep, context, &head, None)
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
    pub(crate) fn completed(&self, entry: &CqEntry) -> News {
        let mut news = News::default();
        if entry.context & !NUMBER == UNMADE {
            // CAST: It is a tag.
            let tag = (entry.context & NUMBER) as u32;
            self.unmade
                .fetch_or(1u64.checked_shl(tag).unwrap_or(0), Ordering::AcqRel);
            news.lost = true;
            return news;
        }
        // Of what is sent nothing is heard but that it failed.
        if entry.err != 0 || entry.context & !NUMBER != CAME {
            news.lost = true;
            return news;
        }
        // CAST: What is below.
        let inbox = (entry.context & NUMBER) as u32;
        news.lost = self.came(inbox, entry, &mut news).is_err();
        news.inbox = Some(inbox);
        news
    }

    /// Whether a request is on its way. Any context.
    pub(crate) fn is_busy(&self) -> bool {
        self.ways.lock().iter().any(|way| way.busy)
    }

    /// The target has said something.
    fn came(&self, inbox: u32, entry: &CqEntry, news: &mut News) -> Result {
        let (data, at) = self.inbox(inbox)?;
        if entry.flags & KFI_REMOTE_CQ_DATA != 0 {
            // Bytes of a message are what was read; of a put the key says which those are.
            let put = entry.flags & KFI_REMOTE_WRITE != 0;
            let len = if put { 0 } else { entry.len };
            let number = u32::try_from(entry.data)?;
            if !self.answered(number, 0, len, news)? {
                return Ok(());
            }
            let tag = number & TAG;
            let (block, queue) = *self.queue.as_ref().ok_or(EINVAL)?;
            let piece = data.piece(at, u32::try_from(len)?).ok_or(EINVAL)?;
            // SAFETY: The request is that of the tag, and nobody else ends it: it has been answered.
            unsafe { block.copy(queue, tag, &[piece], true) };
            let mut ways = self.ways.lock();
            ways.get_mut(tag as usize).ok_or(EINVAL)?.end(tag, news);
            return Ok(());
        }
        let mut message = [0; DONE];
        let len = usize::try_from(entry.len)?;
        let message = message.get_mut(..len).ok_or(EINVAL)?;
        // Once: what is looked at from here on cannot change.
        data.read(at, message);
        if let Ok(numbers) = read_done(message) {
            for number in numbers {
                self.answered(number, 0, 0, news)?;
            }
            return Ok(());
        }
        let head = message.first_chunk().ok_or(EINVAL)?;
        match Said::read(head, entry.len).map_err(|_| EINVAL)? {
            Said::Reply { number, status } => self.answered(number, status, 0, news).map(drop),
            Said::News(capacity) => {
                let now = Geometry {
                    capacity,
                    ..self.geometry
                };
                now.check().map_err(|_| EINVAL)?;
                news.capacity = Some(capacity);
                Ok(())
            }
        }
    }

    /// A request has been answered, with `len` bytes. Whether those are to be copied before it ends.
    fn answered(&self, number: u32, status: u32, len: u64, news: &mut News) -> Result<bool> {
        let tag = number & TAG;
        let mut ways = self.ways.lock();
        let way = ways.get_mut(tag as usize).ok_or(EINVAL)?;
        let ours = way.busy && way.answered.is_none() && u32::from(way.times) == number >> 16;
        let wanted = match (way.reads && !way.keyed, status) {
            (true, 0) => way.len,
            _ => 0,
        };
        if !ours || len != u64::from(wanted) {
            return Err(EINVAL);
        }
        way.answered = Some(status);
        if let (0, Some(unflushed)) = (status, self.unflushed.as_ref()) {
            unflushed.done(way.effect);
        }
        if way.keyed {
            self.keyed.fetch_or(1 << tag, Ordering::AcqRel);
            news.settle = true;
        } else if len == 0 {
            way.end(tag, news);
        }
        Ok(len != 0)
    }

    /// Ends the keys of requests that were answered, and then those: here, if the caller `may_sleep`
    /// and nobody else is about it, or soon.
    pub(crate) fn settle_soon(this: &Arc<Self>, may_sleep: bool) {
        let closed = match may_sleep {
            true => this.closed.try_lock(),
            false => None,
        };
        if let Some(closed) = closed {
            let _no_io = NoIo::begin();
            if *closed || this.settle() {
                return;
            }
        }
        // If it is queued already it will look again.
        let _ = sys::requests().enqueue(this.clone());
    }

    /// Ends the keys of requests that were answered, and then those. With `closed` held. False: the task
    /// is being killed, and somebody else has to look.
    fn settle(&self) -> bool {
        let Some((block, queue)) = self.queue.as_ref().copied() else {
            return true;
        };
        let Some(first) = self.slots.first() else {
            return true;
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
                return true;
            }
            if Key::end_many(keys).is_err() {
                // One may be alive yet, and its request must not end before it.
                self.keyed.fetch_or(tags, Ordering::AcqRel);
                return false;
            }
            for (tag, slot) in (0..).zip(&self.slots) {
                if tags & (1 << tag) != 0 {
                    // SAFETY: Its key has ended.
                    unsafe { slot.empty() };
                    self.finish(block, queue, tag);
                }
            }
            Key::renew_many(keys);
        }
    }

    /// Ends a request whose key has ended.
    fn finish(&self, block: Block, queue: u32, tag: u32) {
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
            block.end(queue, tag, Verdict::Done);
        }
    }

    /// After the endpoint was closed, with nobody in [`Io::completed`], and nobody there to send: ends
    /// what is left, to be tried again. `served`: see [`Verdict::Suspect`].
    pub(crate) fn close(&self, served: bool) {
        let mut closed = self.closed.lock();
        *closed = true;
        let Some((block, queue)) = self.queue.as_ref().copied() else {
            return;
        };
        for (tag, slot) in (0..).zip(&self.slots) {
            // It is dead with the endpoint.
            slot.key.close();
            // SAFETY: As was just waited for.
            unsafe { slot.empty() };
            let busy = {
                let mut ways = self.ways.lock();
                let way = ways.get_mut(tag as usize);
                way.is_some_and(|way| core::mem::take(&mut way.busy))
            };
            let verdict = match self.unmade.load(Ordering::Acquire) & (1 << tag) {
                0 if served => Verdict::Suspect,
                0 => Verdict::Again,
                _ => Verdict::Blamed,
            };
            if busy {
                // SAFETY: The request is that of the tag, and this is its only end.
                unsafe { block.end(queue, tag, verdict) };
            }
        }
    }
}

impl Way {
    /// Ends one that was answered and has no key. Whether its message is known to have gone is of no
    /// importance: what was answered has come, and is not taken again.
    fn end(&mut self, tag: u32, news: &mut News) {
        self.busy = false;
        match self.answered {
            None | Some(0) => news.done |= 1 << tag,
            Some(err) => news.failed = Some((tag, err)),
        }
    }
}
