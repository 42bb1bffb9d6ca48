// SPDX-License-Identifier: GPL-2.0
//! Requests of a connection to a block-backed export: from the message to the block device, and
//! back.
//!
//! A connection has one receive per slot. A request keeps its slot, with data buffer and bio, until
//! it is answered. Then the slot's receive is posted again. The answer repeats the initiator's
//! number of the request. There are twice as many slots as requests that an initiator may have
//! outstanding. So a slot is free for the next request while the send of the last answer is
//! outstanding.
//!
//! After [`Service::stop`] has returned, no bio of the connection is in flight, and none starts.

use core::{
    ptr,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
};
use kernel::{
    bindings,
    new_condvar,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        CondVar, //
    }, //
};
use kfabric::{
    ep::{
        Endpoint,
        LocalMem, //
    },
    new_irqlock,
    objects::{
        cq::CqHandler,
        domain::Domain, //
    },
    op::OpKind,
    pure::blk::device::{
        write_done,
        Carry,
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
    sys::IrqLock,
    uapi::*,
};

use super::{
    bdev::Bio,
    device::Device, //
};
use crate::{
    buffer::{
        self,
        Buffer, //
    },
    export::protocol::Service,
    sys::{
        Counts,
        Order, //
    }, //
};

/// Slots of a connection.
const SLOTS: u32 = 2 * DEPTH;
/// Pages of the slots' data buffers.
pub(crate) const PAGES: usize = SLOTS as usize * LEN_MAX as usize / PAGE_SIZE;
/// Send queue size: per slot, an answer whose send is outstanding and an operation of the slot's
/// next request; and one announcement.
const SENDS: u32 = 2 * SLOTS + 1;

/// Kinds of operation contexts. The lower 32 bits hold the slot.
const ASKED: u64 = 2 << 32;
const FETCHED: u64 = 3 << 32;
const PUT: u64 = 4 << 32;
const SENT: u64 = 5 << 32;
const NEWS: u64 = 6 << 32;
const TOLD: u64 = 7 << 32;
const SLOT: u64 = (1 << 32) - 1;

/// Distance between two message heads, in bytes.
const STRIDE: usize = 64;
const _: () = assert!(DONE <= KFI_INJECT_MAX && REPLY <= KFI_INJECT_MAX);
const _: () = assert!(SLOTS as usize * STRIDE <= buffer::RUN && REQUEST <= STRIDE);

/// Data buffer and bio of a request.
struct RequestSlot {
    data: Buffer,
    bio: Bio,
}

struct Gate {
    /// No bio starts any more.
    over: bool,
    /// Number of bios in flight.
    busy: u32,
    /// Counters of the connection's requests.
    counts: Counts,
    device: Option<Arc<Device>>,
    /// The request of each slot.
    requests: KVec<Option<Request>>,
    /// The slot whose bio is being submitted.
    starting: Option<u32>,
    /// Numbers of succeeded requests whose answer [`Service::answer`] sends.
    done: [u32; DONE_MAX],
    /// Number of valid entries of `done`.
    count: usize,
}

impl Counts {
    /// Counts a request that the block device has completed.
    fn count(&mut self, request: &Request, err: u32) {
        match request.op {
            _ if err != 0 => self.errors += 1,
            Op::Read => {
                self.reads += 1;
                self.read_bytes += u64::from(request.len);
            }
            Op::Write => {
                self.writes += 1;
                self.written_bytes += u64::from(request.len);
            }
            _ => self.others += 1,
        }
    }
}

/// State of the announcements of capacity, of which at most one is outstanding.
#[derive(Default)]
struct Telling {
    under_way: bool,
    /// Capacity to announce next.
    owed: Option<u64>,
}

/// The requests of a connection.
#[pin_data(PinnedDrop)]
pub(crate) struct Io {
    ep: Arc<Endpoint>,
    waiter: Arc<dyn CqHandler>,
    slots: KVec<RequestSlot>,
    heads: Buffer,
    /// An operation could not be posted.
    broken: AtomicBool,
    #[pin]
    gate: IrqLock<Gate>,
    #[pin]
    idle: CondVar,
    #[pin]
    telling: IrqLock<Telling>,
}

impl Io {
    /// Allocates slots and buffers for a connection's requests.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        ep: &Arc<Endpoint>,
        waiter: Arc<dyn CqHandler>,
    ) -> Result<Arc<Self>> {
        let count = SLOTS as usize;
        let mut slots = KVec::with_capacity(count, GFP_KERNEL)?;
        let mut requests = KVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            let access = KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE;
            let slot = RequestSlot {
                data: Buffer::new(domain, access)?,
                bio: Bio::new()?,
            };
            slots.push(slot, GFP_KERNEL)?;
            requests.push(None, GFP_KERNEL)?;
        }
        let gate = Gate {
            over: false,
            busy: 0,
            counts: Counts::default(),
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
                waiter,
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

    /// Starts to receive requests for `device`.
    ///
    /// # Errors
    ///
    /// - `EIO` if [`Service::stop`] was called.
    /// - Errors of posting the receives.
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

    /// Posts the receive of a slot.
    fn listen(&self, slot: u32) -> Result {
        let place = self.slot(slot)?;
        let mut segs = LocalMem::new();
        let at = slot as usize * STRIDE;
        self.heads.add(&mut segs, OpKind::Recv, at, REQUEST)?;
        let len = INLINE_MAX as usize;
        place.data.add(&mut segs, OpKind::Recv, 0, len)?;
        buffer::post(&self.ep, OpKind::Recv, ASKED | u64::from(slot), segs)
    }

    fn slot(&self, slot: u32) -> Result<&RequestSlot> {
        self.slots.get(slot as usize).ok_or(EIO)
    }

    /// Handles a request that has arrived: `len` bytes, including its head.
    fn asked(&self, slot: u32, len: u64) -> Result {
        let mut head = [0; REQUEST];
        // Copied once, so that the initiator cannot change the head after it is checked.
        self.heads.read(slot as usize * STRIDE, &mut head);
        let request = Request::read(&head, len).map_err(|_| EINVAL)?;
        let device = {
            let mut gate = self.gate.lock();
            *gate.requests.get_mut(slot as usize).ok_or(EIO)? = Some(request);
            gate.device.clone().ok_or(EIO)?
        };
        request
            .check(&device.geometry(), device.limits())
            .map_err(|_| EINVAL)?;
        if request.op.changes() && device.is_read_only() {
            return self.answer_request(slot, &request, bindings::EROFS);
        }
        // The device may have shrunk since the last announcement.
        if !request.inside(device.capacity()) {
            return self.answer_request(slot, &request, bindings::EIO);
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

    /// Returns segments for the first bytes of a slot's data buffer.
    fn data_of(&self, slot: u32, kind: OpKind, len: u32) -> Result<LocalMem> {
        let mut segs = LocalMem::new();
        let data = &self.slot(slot)?.data;
        data.add(&mut segs, kind, 0, len as usize)?;
        Ok(segs)
    }

    /// Submits the request's bio.
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
            owner: ptr::from_ref(self).cast_mut().cast(),
            pos: request.pos,
            len: request.len,
            slot,
            op: request.op as u8,
            flags: request.flags,
            moves: request.op.moves(),
        };
        // SAFETY: A slot has one request at a time. While a bio is in flight, `stop` keeps `self`
        // and the slot's buffer alive. `device` and the gate keep the block device.
        unsafe { place.bio.submit(device.bdev(), &order, place.data.pieces()) };
        self.gate.lock().starting = None;
        Ok(())
    }

    /// Handles the end of a slot's bio. Context: any.
    pub(crate) fn ended(&self, slot: u32, err: u32) {
        let (request, starting) = {
            let mut gate = self.gate.lock();
            let place = gate.requests.get_mut(slot as usize);
            let request = place.and_then(Option::take);
            if let Some(request) = &request {
                gate.counts.count(request, err);
            }
            (request, gate.starting == Some(slot))
        };
        let answered = request.map(|request| {
            // The task that submits bios sends these answers afterwards.
            if starting && err == 0 && request.op != Op::Read && !request.alone {
                // Post the receive first: after the answer, the initiator may send the next
                // request.
                self.listen(slot)?;
                if self.put_off(slot, request.number) {
                    return Ok(());
                }
                return buffer::inject(&self.ep, TOLD, &[], Some(request.number));
            }
            self.answer_request(slot, &request, err)
        });
        if !matches!(answered, Some(Ok(()))) {
            self.broken.store(true, Ordering::Release);
            self.waiter.completed();
        }
        let mut gate = self.gate.lock();
        gate.busy -= 1;
        if gate.busy == 0 && gate.over {
            // Notified under the lock: a waiter that gets the lock may free `self`.
            self.idle.notify_all();
        }
    }

    /// Leaves an answer to [`Service::answer`] if the request's bio is still being submitted. The
    /// submitting task calls that method afterwards. Returns `false` if the caller must answer.
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

    /// Sends a request's answer. Context: any.
    fn answer_request(&self, slot: u32, request: &Request, status: u32) -> Result {
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
        // Post the receive first: after the answer, the initiator may send the next request.
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

    /// Sends the next announcement, if there is one. The previous one has completed.
    fn tell_size(&self) {
        let capacity = {
            let mut telling = self.telling.lock();
            telling.under_way = telling.owed.is_some();
            telling.owed.take()
        };
        let Some(capacity) = capacity else { return };
        let posted = buffer::inject_completing(&self.ep, NEWS, &Said::News(capacity).write());
        if posted.is_err() {
            // The queue has a slot for it, so only a disconnect fails it. The next connection
            // reports the capacity.
            self.telling.lock().under_way = false;
        }
    }
}

impl Service for Io {
    const OPERATIONS: (u32, u32) = (SENDS, SLOTS);
    const SERVES_IN_COMPLETION: bool = true;

    // Prevents further bios, and waits until those in flight have ended.
    fn stop(&self) {
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

    // The connection receives requests, or did before it was stopped.
    fn is_open(&self) -> bool {
        let gate = self.gate.lock();
        gate.device.is_some() || gate.over
    }

    fn takes_requests(&self) -> bool {
        self.is_open()
    }

    fn counts(&self) -> Counts {
        self.gate.lock().counts
    }

    // The last announcement carries the last capacity.
    fn announce(&self, capacity: u64) {
        {
            let mut telling = self.telling.lock();
            telling.owed = Some(capacity);
            if core::mem::replace(&mut telling.under_way, true) {
                return;
            }
        }
        self.tell_size();
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    // `EIO` if the operation has failed, `EINVAL` if the initiator violates the protocol.
    fn completed(&self, entry: &CqEntry) -> Result {
        if entry.err != 0 {
            return Err(EIO);
        }
        // CAST: `SLOT` masks 32 bits.
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

    fn has_answers(&self) -> bool {
        self.gate.lock().count != 0
    }

    // Sends one answer for the requests that succeeded while their bios were submitted.
    fn answer(&self) -> Result {
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
}

#[pinned_drop]
impl PinnedDrop for Io {
    fn drop(self: Pin<&mut Self>) {
        self.stop();
    }
}
