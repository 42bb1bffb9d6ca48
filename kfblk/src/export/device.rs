// SPDX-License-Identifier: GPL-2.0
//! Exports of devices: requests of a connection, from the message to the device and back.
//!
//! A connection has as many slots as receives. What comes into a slot stays there, with its data and
//! its bio, until it was answered; then the slot receives again. The client's own number of a request is
//! only repeated. There are twice as many slots as a client may have requests, so that one is free for
//! the next request while the last answer's way back is not known to be over.
//!
//! Once [`Io::stop`] has returned no bio of the connection is under way, and none begins.

use core::{
    ptr,
    sync::atomic::{
        AtomicBool,
        AtomicU64,
        Ordering, //
    }, //
};
use kernel::{
    bindings,
    new_condvar,
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::{
        Arc,
        CondVar, //
    }, //
};
use kfabric::{
    cq::CqHandler,
    ep::Endpoint,
    fabric::Domain,
    new_irqlock,
    op::{
        OpKind,
        Segs, //
    },
    pure::blk::{
        device::{
            write_done,
            Carry,
            Limits,
            Op,
            Request,
            Said,
            DEPTH,
            DONE,
            DONE_MAX,
            INLINE_MAX,
            LEN_MAX,
            REPLY,
            REQUEST, //
        },
        Geometry, //
    },
    sys::IrqLock,
    uapi::*, //
};

use super::bdev::{
    Bdev,
    Bio, //
};
use crate::{
    buffer::{
        self,
        Buffer, //
    },
    config,
    hook::Hook,
    sys::Order, //
};

/// Slots of a connection.
pub(crate) const SLOTS: u32 = 2 * DEPTH;
/// Pages that those take.
pub(crate) const PAGES: usize = SLOTS as usize * LEN_MAX as usize / PAGE_SIZE;
/// Operations that a connection may have on their way: of each slot an answer, which is not waited for, and
/// one of its next request; and news.
pub(crate) const SENDS: u32 = 2 * SLOTS + 1;

/// Contexts of operations; below, the slot.
const ASKED: u64 = 2 << 32;
const FETCHED: u64 = 3 << 32;
const PUT: u64 = 4 << 32;
const SENT: u64 = 5 << 32;
const NEWS: u64 = 6 << 32;
const TOLD: u64 = 7 << 32;
const SLOT: u64 = (1 << 32) - 1;

/// Bytes between two heads.
const STRIDE: usize = 64;
const _: () = assert!(DONE <= KFI_INJECT_MAX && REPLY <= KFI_INJECT_MAX);
const _: () = assert!(SLOTS as usize * STRIDE <= buffer::RUN && REQUEST <= STRIDE);

/// Bytes that are discarded or zeroed at once, at most.
const RANGE_MAX: u64 = 32 << 20;
/// As a power of two, what a device of at most so many bytes is one chunk of.
const CHUNK_SHIFT: u32 = 30;

/// A device that is exported.
pub(crate) struct Device {
    bdev: Bdev,
    block_shift: u32,
    limits: Limits,
    read_only: bool,
    capacity: AtomicU64,
}

impl Device {
    /// Opens it, for nobody else.
    ///
    /// # Errors
    ///
    /// `EINVAL`: its blocks are too large, or it has none. `EOPNOTSUPP`: it has zones. Else those of
    /// [`Bdev::open`].
    pub(crate) fn open(
        path: &CStr,
        read_only: bool,
        holder: *const kernel::ffi::c_void,
    ) -> Result<Arc<Self>> {
        let bdev = Bdev::open(path, !read_only, holder)?;
        let looks = bdev.looks();
        // Which would have to be said, and reported.
        if looks.zoned {
            return Err(config::eopnotsupp());
        }
        let block = looks.block_size;
        let part = u64::from(block).wrapping_sub(1);
        let range = |sectors: u32| {
            let bytes = (u64::from(sectors) << 9).min(RANGE_MAX) & !part;
            // CAST: At most that.
            bytes as u32
        };
        let whole = |bytes: u32| match u64::from(bytes) & part {
            0 => bytes,
            _ => 0,
        };
        let granularity = whole(looks.granularity);
        let device = Self {
            block_shift: block.trailing_zeros(),
            limits: Limits {
                cache: looks.cache,
                fua: looks.fua,
                rotational: looks.rotational,
                physical: looks.physical,
                io_min: whole(looks.io_min),
                io_opt: whole(looks.io_opt),
                discard: if granularity == 0 {
                    0
                } else {
                    range(looks.discard)
                },
                granularity,
                zeroes: range(looks.zeroes),
            },
            read_only: read_only || looks.read_only,
            capacity: AtomicU64::new(0),
            bdev,
        };
        device.revalidate();
        let geometry = device.geometry();
        geometry.check().map_err(|_| EINVAL)?;
        device
            .limits
            .check(geometry.block_shift)
            .map_err(|_| EINVAL)?;
        Ok(Arc::new(device, GFP_KERNEL)?)
    }

    /// Looks how large it is; whether it is another size than before.
    pub(crate) fn revalidate(&self) -> bool {
        let part = (1u64 << self.block_shift) - 1;
        let now = self.bdev.capacity() & !part;
        self.capacity.swap(now, Ordering::AcqRel) != now
    }

    /// Bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// What a disk of it is like.
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            capacity: self.capacity(),
            block_shift: self.block_shift,
            chunk_shift: CHUNK_SHIFT,
        }
    }

    /// See [`Welcome::seq`](kfabric::pure::blk::Welcome::seq).
    pub(crate) fn seq(&self) -> u64 {
        self.bdev.seq()
    }

    /// What it can do.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Nobody may write to it.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }
}

/// A request's place.
struct Slot {
    data: Buffer,
    bio: Bio,
}

struct Gate {
    /// No bio begins any more.
    over: bool,
    /// Bios that are under way.
    busy: u32,
    device: Option<Arc<Device>>,
    /// What each slot has.
    requests: KVec<Option<Request>>,
    /// The slot whose bio is just being submitted.
    starting: Option<u32>,
    /// Requests that have gone well meanwhile, which the client is still to be told.
    done: [u32; DONE_MAX],
    /// As many.
    count: usize,
}

/// News of the device's size, of which one is under way at a time.
#[derive(Default)]
struct Telling {
    under_way: bool,
    /// What the client is to be told next.
    owed: Option<u64>,
}

/// The requests of a connection.
#[pin_data(PinnedDrop)]
pub(crate) struct Io {
    ep: Arc<Endpoint>,
    hook: Arc<Hook>,
    slots: KVec<Slot>,
    heads: Buffer,
    /// Something could not be posted.
    broken: AtomicBool,
    #[pin]
    gate: IrqLock<Gate>,
    #[pin]
    idle: CondVar,
    #[pin]
    telling: IrqLock<Telling>,
}

impl Io {
    /// Room for a connection's requests.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        ep: &Arc<Endpoint>,
        hook: &Arc<Hook>,
    ) -> Result<Arc<Self>> {
        let count = SLOTS as usize;
        let mut slots = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut requests = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            let access = KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE;
            let slot = Slot {
                data: Buffer::new(domain, access)?,
                bio: Bio::new()?,
            };
            slots.push(slot, GFP_KERNEL)?;
            requests.push(None, GFP_KERNEL)?;
        }
        let gate = Gate {
            over: false,
            busy: 0,
            device: None,
            requests,
            starting: None,
            done: [0; DONE_MAX],
            count: 0,
        };
        let heads = Buffer::run(domain, KFI_RECV)?;
        Arc::pin_init(
            pin_init!(Self {
                ep: ep.clone(),
                hook: hook.clone(),
                slots,
                heads,
                broken: AtomicBool::new(false),
                gate <- new_irqlock!(gate, "kfblk_gate"),
                idle <- new_condvar!("kfblk_idle"),
                telling <- new_irqlock!(Telling::default(), "kfblk_telling"),
            }),
            GFP_KERNEL,
        )
    }

    /// Takes requests for `device` from now on.
    ///
    /// # Errors
    ///
    /// `EIO`: it was stopped. Else those of posting.
    pub(crate) fn open(&self, device: &Arc<Device>) -> Result {
        {
            let mut gate = self.gate.lock();
            if gate.over {
                return Err(EIO);
            }
            gate.device = Some(device.clone());
        }
        (0..SLOTS).try_for_each(|slot| self.listen(slot))
    }

    /// Whether it takes requests, or did.
    pub(crate) fn is_open(&self) -> bool {
        let gate = self.gate.lock();
        gate.device.is_some() || gate.over
    }

    /// Something could not be answered: the connection is to end.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Lets no bio begin any more, and waits for those that are under way.
    pub(crate) fn stop(&self) {
        let device = {
            let mut gate = self.gate.lock();
            gate.over = true;
            while gate.busy != 0 {
                self.idle.wait(&mut gate);
            }
            gate.device.take()
        };
        drop(device);
    }

    /// Has a slot receive.
    fn listen(&self, slot: u32) -> Result {
        let place = self.slot(slot)?;
        let mut segs = Segs::new();
        let at = slot as usize * STRIDE;
        self.heads.add(&mut segs, OpKind::Recv, at, REQUEST)?;
        let len = INLINE_MAX as usize;
        place.data.add(&mut segs, OpKind::Recv, 0, len)?;
        buffer::post(&self.ep, OpKind::Recv, ASKED | u64::from(slot), segs)
    }

    fn slot(&self, slot: u32) -> Result<&Slot> {
        self.slots.get(slot as usize).ok_or(EIO)
    }

    /// An operation has ended.
    ///
    /// # Errors
    ///
    /// The connection is to end: the operation failed, or the client does not keep to the rules.
    pub(crate) fn completed(&self, entry: &CqEntry) -> Result {
        if entry.err != 0 {
            return Err(EIO);
        }
        // CAST: What is below.
        let slot = (entry.context & SLOT) as u32;
        match entry.context & !SLOT {
            ASKED => self.asked(slot, entry.len),
            FETCHED => {
                let request = self.gate.lock().requests.get(slot as usize).copied();
                self.start(slot, &request.flatten().ok_or(EIO)?)
            }
            PUT | SENT => self.listen(slot),
            NEWS => {
                self.tell_size();
                Ok(())
            }
            _ => Err(EIO),
        }
    }

    /// A request has come: `len` bytes, with its head.
    fn asked(&self, slot: u32, len: u64) -> Result {
        let mut head = [0; REQUEST];
        // Once: what is looked at from here on cannot change.
        self.heads.read(slot as usize * STRIDE, &mut head);
        let request = Request::read(&head, len).map_err(|_| EINVAL)?;
        let device = {
            let mut gate = self.gate.lock();
            *gate.requests.get_mut(slot as usize).ok_or(EIO)? = Some(request);
            gate.device.clone().ok_or(EIO)?
        };
        request
            .check(&device.geometry(), &device.limits)
            .map_err(|_| EINVAL)?;
        if request.op.changes() && device.read_only {
            return self.answer(slot, &request, bindings::EROFS);
        }
        // It may have become smaller since the client heard of it.
        if !request.inside(device.capacity()) {
            return self.answer(slot, &request, bindings::EIO);
        }
        match (request.op, request.carry) {
            (Op::Write, Carry::Key { key, addr }) => {
                let kind = OpKind::Read;
                let segs = self.data_of(slot, kind, request.len)?;
                let context = FETCHED | u64::from(slot);
                buffer::post_rma(&self.ep, kind, context, segs, (key, addr), None)
            }
            _ => self.start(slot, &request),
        }
    }

    /// The first bytes of a slot's memory.
    fn data_of(&self, slot: u32, kind: OpKind, len: u32) -> Result<Segs> {
        let mut segs = Segs::new();
        let data = &self.slot(slot)?.data;
        data.add(&mut segs, kind, 0, len as usize)?;
        Ok(segs)
    }

    /// Has the device do it.
    fn start(&self, slot: u32, request: &Request) -> Result {
        let place = self.slot(slot)?;
        let device = {
            let mut gate = self.gate.lock();
            let device = gate.device.clone();
            let device = device.filter(|_| !gate.over).ok_or(EIO)?;
            gate.busy += 1;
            gate.starting = Some(slot);
            device
        };
        let order = Order {
            owner: ptr::from_ref(self).cast(),
            pos: request.pos,
            len: request.len,
            slot,
            op: request.op as u8,
            flags: request.flags,
            moves: request.op.moves(),
        };
        // SAFETY: A slot has one request at a time. While it is busy `self` does not go, nor the
        // slot's memory with it; the device is kept by `device`, and by the gate until the end.
        unsafe { place.bio.submit(&device.bdev, &order, place.data.pieces()) };
        self.gate.lock().starting = None;
        Ok(())
    }

    /// Whether there is something for [`Io::tell`].
    pub(crate) fn has_to_tell(&self) -> bool {
        self.gate.lock().count != 0
    }

    /// Tells the client what has gone well while requests were started, in one message.
    ///
    /// # Errors
    ///
    /// The connection is to end.
    pub(crate) fn tell(&self) -> Result {
        let (numbers, count) = {
            let mut gate = self.gate.lock();
            (gate.done, core::mem::take(&mut gate.count))
        };
        match numbers.get(..count).unwrap_or_default() {
            [] => Ok(()),
            [number] => buffer::inject(&self.ep, TOLD, &[], Some(*number)),
            numbers => {
                let mut message = [0; DONE];
                let len = write_done(&mut message, numbers).map_err(|_| EIO)?;
                let message = message.get(..len).unwrap_or_default();
                buffer::inject(&self.ep, TOLD, message, None)
            }
        }
    }

    /// The device has done it, or could not. Any context.
    pub(crate) fn ended(&self, slot: u32, err: u32) {
        let (request, starting) = {
            let mut gate = self.gate.lock();
            let place = gate.requests.get_mut(slot as usize);
            let request = place.and_then(Option::take);
            (request, gate.starting == Some(slot))
        };
        let answered = request.map(|request| {
            // Whoever starts bios has the client told afterwards.
            if starting && err == 0 && request.op != Op::Read && !request.alone {
                // Before the client knows that it may send another.
                self.listen(slot)?;
                if self.put_off(slot, request.number) {
                    return Ok(());
                }
                return buffer::inject(&self.ep, TOLD, &[], Some(request.number));
            }
            self.answer(slot, &request, err)
        });
        if !matches!(answered, Some(Ok(()))) {
            self.broken.store(true, Ordering::Release);
            self.hook.completed();
        }
        let mut gate = self.gate.lock();
        gate.busy -= 1;
        if gate.busy == 0 && gate.over {
            // With the lock: whoever waits may let go of all this when it has it.
            self.idle.notify_all();
        }
    }

    /// Leaves it to [`Io::tell`] to tell of a request, if its bio is still being submitted: who does that
    /// looks afterwards. Whether it did, and there was room.
    fn put_off(&self, slot: u32, number: u32) -> bool {
        let mut gate = self.gate.lock();
        if gate.starting != Some(slot) {
            return false;
        }
        let count = gate.count;
        match gate.done.get_mut(count) {
            Some(place) => *place = number,
            None => return false,
        }
        gate.count += 1;
        true
    }

    /// Says how it ended. Any context.
    fn answer(&self, slot: u32, request: &Request, status: u32) -> Result {
        let number = request.number;
        if status == 0 && request.op == Op::Read {
            let (kind, context, at) = match request.carry {
                Carry::Key { key, addr } => (OpKind::Write, PUT, (key, addr)),
                Carry::Message => (OpKind::Send, SENT, (0, 0)),
            };
            let segs = self.data_of(slot, kind, request.len)?;
            let context = context | u64::from(slot);
            return buffer::post_rma(&self.ep, kind, context, segs, at, Some(number));
        }
        // Before the client knows that it may send another.
        self.listen(slot)?;
        let context = SENT | u64::from(slot);
        match status {
            0 => buffer::inject(&self.ep, context, &[], Some(number)),
            _ => {
                let reply = Said::Reply { number, status };
                buffer::inject(&self.ep, context, &reply.write(), None)
            }
        }
    }

    /// Tells the client that the device has another capacity: what it hears last is the last.
    pub(crate) fn news(&self, capacity: u64) {
        {
            let mut telling = self.telling.lock();
            telling.owed = Some(capacity);
            if core::mem::replace(&mut telling.under_way, true) {
                return;
            }
        }
        self.tell_size();
    }

    /// Tells what the client is owed, when nothing of that kind is under way any more.
    fn tell_size(&self) {
        let capacity = {
            let mut telling = self.telling.lock();
            telling.under_way = telling.owed.is_some();
            telling.owed.take()
        };
        let Some(capacity) = capacity else { return };
        let posted = buffer::inject_completing(&self.ep, NEWS, &Said::News(capacity).write());
        if posted.is_err() {
            // There is room: it has no connection any more, and hears of it with the next one.
            self.telling.lock().under_way = false;
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Io {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}
