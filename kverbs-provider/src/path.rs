// SPDX-License-Identifier: GPL-2.0
//! The data path of an endpoint: posting operations and completing them.
//!
//! Everything here runs in any context. Each side has a lock that interrupts cannot break into,
//! held while work requests are put together and handed to the device. Room is prepared when the
//! endpoint is made: a slot for each operation there may be, and no allocation afterwards.
//!
//! An operation is one work request, except one-sided operations on memory in more pieces than
//! one work request has scatter entries: those are several, of which the last is signaled and
//! carries the completion data. The transmit side counts work requests ("credits"), the device's
//! queue has as many places, so it cannot overflow.

use core::{
    cell::Cell,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    }, //
};
use kernel::{
    alloc::{
        flags::__GFP_NOWARN,
        Flags, //
    },
    bindings,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};

use crate::{
    atomic,
    endpoint::Endpoint,
    errno,
    ib::{
        device::Device,
        dma::{
            self,
            DmaBuf, //
        },
        qp::{
            QpSize,
            QueuePair, //
        },
        wr::{
            status,
            Opcode,
            SendWr,
            Sge,
            SgeList,
            SgeRoom,
            Wc, //
        }, //
    },
    limits::{
        ANSWER_MS,
        ANSWER_POLLS,
        INJECT_SIZE,
        STALL_BYTES_PER_MS,
        STALL_MS, //
    },
    region::Region,
};
use kfabric::{
    errno::{
        enotconn,
        eopnotsupp, //
    },
    new_irqlock,
    op::{
        OpDesc,
        OpKind,
        OpToken,
        Outcome,
        TokenSeg, //
    },
    pure::hold::{
        Held,
        Released,
        Taken,
        Waiting, //
    },
    sys::IrqLock, //
};

/// Operations that are posted at once after having been held: so long no interrupt gets through.
const SLICE: usize = 64;

/// An operation that was refused, and why.
pub(crate) type Refused = (Error, OpToken);

/// A token in its slot. Whether there is one is said beside it, and not by a byte within it, which the
/// compiler would copy it around.
type Kept = Cell<OpToken>;

/// What is to be posted of an operation, but for its local memory.
struct Posting {
    wr: SendWr,
    imm: Option<u32>,
    /// Bytes in the slot's own place: those that are injected, or room for a result.
    injected: u32,
}

/// An operation of the transmit side on its way.
#[derive(Default)]
struct TxSlot {
    token: Option<Kept>,
    /// It is held: the device has not heard of it.
    held: Option<Posting>,
    /// Work requests it consists of.
    credits: u32,
    /// Status of the first of them that failed before the last.
    failed: Option<u32>,
}

/// The transmit side.
struct Tx {
    qp: Option<QueuePair<Endpoint>>,
    /// Operations may be posted.
    open: bool,
    /// The device took only a part of one.
    torn: bool,
    slots: KVVec<TxSlot>,
    free: KVVec<u32>,
    /// Slots that are held, in order: at most all.
    held: Held<KVVec<Option<Waiting>>>,
    /// Work requests that may be posted.
    credits: u32,
    /// Payload of injected operations, or a result, [`INJECT_SIZE`] bytes for each slot.
    inject: Option<DmaBuf>,
    /// Bytes of all operations on their way.
    bytes: u64,
    /// A probe is on its way.
    probing: bool,
    /// Something completed since the last tick.
    active: bool,
    /// Since when nothing has completed while something was on its way, as a tick saw it.
    stalled: Option<Instant<Monotonic>>,
    /// What the oldest operation is told if it gets flushed, because it is why.
    verdict: Option<u32>,
}

/// The receive side.
struct Rx {
    qp: Option<QueuePair<Endpoint>>,
    slots: KVVec<Option<Kept>>,
    free: KVVec<u32>,
}

/// Both sides.
#[pin_data]
pub(crate) struct Path {
    #[pin]
    tx: IrqLock<Tx>,
    #[pin]
    rx: IrqLock<Rx>,
    /// Something is held; written under the lock of the transmit side.
    holding: AtomicBool,
    size: QpSize,
    device: Arc<Device>,
}

/// 0 to `n` - 1, to be taken from the end.
fn all_free(n: u32) -> Result<KVVec<u32>> {
    let mut free = KVVec::with_capacity(n as usize, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
    for slot in (0..n).rev() {
        free.push(slot, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(free)
}

/// Places for `n` that are held.
fn none_held(n: u32, flags: Flags) -> Result<KVVec<Option<Waiting>>> {
    let mut places = KVVec::with_capacity(n as usize, flags)?;
    for _ in 0..n {
        places.push(None, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(places)
}

/// Maps what is lent to an operation. Under the lock of a transmit side that has its queue pair: who
/// removes the device takes that first.
///
/// # Errors
///
/// `EAGAIN`: not just now. Nothing is mapped then.
#[inline(always)]
fn map_lent(device: &Device, token: &mut OpToken) -> Result {
    if !token.has_lent() {
        return Ok(());
    }
    let writes = token.kind() == OpKind::Read;
    dma::map_lent(device, token.lent_mut(), writes)
}

/// Undoes that.
#[inline(always)]
fn unmap_lent(device: &Device, token: &mut OpToken) {
    if token.has_lent() {
        let writes = token.kind() == OpKind::Read;
        dma::unmap_lent(device, token.lent_mut(), writes);
    }
}

/// The region of a piece, if it is one of ours.
#[inline(always)]
fn region_of(seg: &TokenSeg) -> Option<&Region> {
    seg.region()?.as_any().downcast_ref()
}

/// Calls `each` with every scatter entry of an operation's local memory.
///
/// # Errors
///
/// `EINVAL`: a region of another provider, or one of another group that is registered there. Else
/// what `each` says.
#[inline(always)]
fn for_each_sge(
    endpoint: &Endpoint,
    token: &OpToken,
    mut each: impl FnMut(Sge) -> Result,
) -> Result {
    for piece in token.lent() {
        each(Sge::new(piece.mapped, piece.len, endpoint.group().lkey()))?;
    }
    for seg in token.segs() {
        let region = region_of(seg).ok_or(EINVAL)?;
        region.for_each_sge(endpoint.group(), seg.offset, seg.len, &mut each)?;
    }
    Ok(())
}

/// Puts scatter entries of an operation into `sges`, up to `max`. How many it has in all.
///
/// # Errors
///
/// As [`for_each_sge`].
fn gather(endpoint: &Endpoint, token: &OpToken, max: u32, sges: &mut SgeList<'_>) -> Result<u32> {
    // Most have one.
    let single = token.only_seg().and_then(|seg| {
        let region = region_of(seg)?;
        region.single_sge(endpoint.group(), seg.offset, seg.len)
    });
    if let Some(sge) = single {
        sges.push(sge);
        return Ok(1);
    }
    let mut n: u32 = 0;
    for_each_sge(endpoint, token, |sge| {
        if n < max {
            sges.push(sge);
        }
        n += 1;
        Ok(())
    })?;
    Ok(n)
}

/// The scatter entry of what is in a slot's own place, if there is anything.
fn injected(
    endpoint: &Endpoint,
    inject: Option<&DmaBuf>,
    slot: u32,
    posting: &Posting,
) -> Option<Sge> {
    match (inject, posting.injected) {
        (Some(inject), 1..) => {
            let addr = inject.addr_of(slot as usize * INJECT_SIZE);
            Some(Sge::new(addr, posting.injected, endpoint.group().lkey()))
        }
        _ => None,
    }
}

/// Hands an operation to the device, as one or more work requests.
#[inline(never)]
fn post_one(
    endpoint: &Endpoint,
    qp: &QueuePair<Endpoint>,
    inject: Option<&DmaBuf>,
    slot: u32,
    posting: &mut Posting,
    token: &OpToken,
    max: u32,
) -> Taken {
    let mut room = SgeRoom::new();
    let mut batch = SgeList::new(&mut room);
    if let Some(sge) = injected(endpoint, inject, slot, posting) {
        batch.push(sge);
    }
    let wr = &mut posting.wr;
    let mut posted = 0;
    let result = for_each_sge(endpoint, token, |sge| {
        if batch.len() == max as usize {
            qp.post_send(slot, wr, batch.get(), false)?;
            posted += 1;
            wr.remote_addr = wr.remote_addr.wrapping_add(batch.bytes());
            wr.fence = false;
            batch.clear();
        }
        batch.push(sge);
        Ok(())
    })
    .and_then(|()| {
        wr.imm = posting.imm;
        qp.post_send(slot, wr, batch.get(), true)
    });
    match result {
        Ok(()) => Taken::All,
        Err(_) if posted == 0 => Taken::Nothing,
        Err(_) => Taken::Part,
    }
}

impl Path {
    /// Makes room for `size`, on `device`.
    pub(crate) fn new(size: QpSize, device: Arc<Device>) -> Result<impl PinInit<Self>> {
        // The application chose the size: that it is too much is no news for the log.
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let mut tx_slots = KVVec::with_capacity(size.tx as usize, flags)?;
        for _ in 0..size.tx {
            tx_slots.push(TxSlot::default(), GFP_KERNEL_ACCOUNT)?;
        }
        let mut rx_slots = KVVec::with_capacity(size.rx as usize, flags)?;
        for _ in 0..size.rx {
            rx_slots.push(None, GFP_KERNEL_ACCOUNT)?;
        }
        let tx = Tx {
            qp: None,
            open: false,
            torn: false,
            slots: tx_slots,
            free: all_free(size.tx)?,
            held: Held::new(none_held(size.tx, flags)?),
            credits: size.tx,
            inject: None,
            bytes: 0,
            probing: false,
            active: false,
            stalled: None,
            verdict: None,
        };
        let rx = Rx {
            qp: None,
            slots: rx_slots,
            free: all_free(size.rx)?,
        };
        Ok(pin_init!(Self {
            tx <- new_irqlock!(tx, "kverbs_tx"),
            rx <- new_irqlock!(rx, "kverbs_rx"),
            holding: AtomicBool::new(false),
            size,
            device,
        }))
    }

    /// How large its queue pair has to be.
    pub(crate) fn size(&self) -> QpSize {
        self.size
    }

    /// Takes receives from now on.
    pub(crate) fn install(&self, qp: &QueuePair<Endpoint>, inject: DmaBuf) {
        {
            let mut tx = self.tx.lock();
            tx.qp = Some(qp.clone());
            tx.inject = Some(inject);
        }
        self.rx.lock().qp = Some(qp.clone());
    }

    /// Whether something is on its way of which nothing says when it is done: it completes when the
    /// queue pair goes.
    pub(crate) fn is_torn(&self) -> bool {
        self.tx.lock().torn
    }

    /// Takes all operations from now on.
    pub(crate) fn open(&self) {
        self.tx.lock().open = true;
    }

    /// Whether operations of ours wait for the peer's answer.
    fn is_waiting(&self) -> bool {
        let tx = self.tx.lock();
        tx.open && tx.free.len() < tx.slots.len()
    }

    /// Gives the peer's last answers time to come in. They take another way than its goodbye and
    /// may be behind it, and they say more than the flush that ends what is left.
    pub(crate) fn await_answers(&self) {
        for _ in 0..ANSWER_POLLS {
            if !self.is_waiting() {
                break;
            }
            fsleep(Delta::from_millis(ANSWER_MS));
        }
    }

    /// Takes none any more. What is on its way still completes.
    pub(crate) fn stop(&self) {
        let tx_qp = {
            let mut tx = self.tx.lock();
            tx.open = false;
            tx.qp.take()
        };
        let rx_qp = self.rx.lock().qp.take();
        // Not under the locks.
        drop((tx_qp, rx_qp));
        // Of what is held the device has never heard, so nothing else ends it. Each completes with
        // ECANCELED.
        while let Some(mut token) = self.unhold() {
            unmap_lent(&self.device, &mut token);
            drop(token);
        }
    }

    /// After the queue pair is gone: ends what it lost, and lets its memory go.
    pub(crate) fn sweep(&self) {
        let inject = self.tx.lock().inject.take();
        drop(inject);
        for slot in 0..self.size.tx as usize {
            let token = self.tx.lock().slots[slot].token.take();
            if let Some(mut token) = token.map(Cell::into_inner) {
                unmap_lent(&self.device, &mut token);
                // Completes with ECANCELED.
                drop(token);
            }
        }
        for slot in 0..self.size.rx as usize {
            let token = self.rx.lock().slots[slot].take();
            drop(token);
        }
    }

    /// Posts one operation.
    pub(crate) fn post(
        &self,
        endpoint: ArcBorrow<'_, Endpoint>,
        op: &OpDesc<'_>,
        token: OpToken,
    ) -> Result<(), Refused> {
        match op.kind {
            OpKind::Recv => self.post_recv(&endpoint, token),
            OpKind::Send => self.post_send(endpoint, op, token, Opcode::Send),
            OpKind::Read => self.post_send(endpoint, op, token, Opcode::Read),
            OpKind::Write => self.post_send(endpoint, op, token, Opcode::Write),
            OpKind::Atomic | OpKind::Fetch => match atomic::opcode(op) {
                Some(opcode) => self.post_send(endpoint, op, token, opcode),
                None => Err((eopnotsupp(), token)),
            },
        }
    }

    fn post_recv(&self, endpoint: &Endpoint, token: OpToken) -> Result<(), Refused> {
        let mut room = SgeRoom::new();
        let mut sges = SgeList::new(&mut room);
        match gather(endpoint, &token, self.size.sge, &mut sges) {
            Ok(n) if n <= self.size.sge => {}
            Ok(_) => return Err((EMSGSIZE, token)),
            Err(e) => return Err((e, token)),
        }
        let mut guard = self.rx.lock();
        let rx = &mut *guard;
        let Some(qp) = &rx.qp else {
            return Err((enotconn(), token));
        };
        let Some(slot) = rx.free.pop() else {
            return Err((EAGAIN, token));
        };
        if qp.post_recv(slot, sges.get()).is_err() {
            let _ = rx.free.push_within_capacity(slot);
            return Err((enotconn(), token));
        }
        // The completion waits for the lock.
        let place = &mut rx.slots[slot as usize];
        *place = None;
        *place = Some(Cell::new(token));
        Ok(())
    }

    fn post_send(
        &self,
        endpoint: ArcBorrow<'_, Endpoint>,
        op: &OpDesc<'_>,
        mut token: OpToken,
        opcode: Opcode,
    ) -> Result<(), Refused> {
        let max = self.size.sge;
        let rkey = match (opcode, u32::try_from(op.key)) {
            (Opcode::Send, _) => 0,
            (_, Ok(rkey)) => rkey,
            (_, Err(_)) => return Err((EINVAL, token)),
        };
        let mut room = SgeRoom::new();
        let mut sges = SgeList::new(&mut room);
        let credits = match gather(&endpoint, &token, max, &mut sges) {
            Ok(n) if n <= max => 1,
            Ok(n) => n.div_ceil(max),
            Err(e) => return Err((e, token)),
        };
        // All are in the list, and say where what they name is.
        let whole = credits == 1 && !token.has_lent();
        // What is not just bytes is one work request; nothing is more than the queue holds.
        let divides = matches!(opcode, Opcode::Read | Opcode::Write);
        if (!divides && credits > 1) || credits > self.size.tx {
            return Err((EMSGSIZE, token));
        }
        let mut posting = Posting {
            wr: SendWr {
                opcode,
                imm: None,
                fence: op.fence,
                remote_addr: op.remote_addr,
                rkey,
            },
            imm: op.imm,
            injected: 0,
        };

        let mut guard = self.tx.lock();
        let tx = &mut *guard;
        let (true, Some(qp)) = (tx.open, &tx.qp) else {
            return Err((enotconn(), token));
        };
        if tx.credits < credits {
            return Err((EAGAIN, token));
        }
        let Some(slot) = tx.free.pop() else {
            return Err((EAGAIN, token));
        };
        if let Err(e) = map_lent(&self.device, &mut token) {
            let _ = tx.free.push_within_capacity(slot);
            return Err((e, token));
        }
        if let (Some(data), Some(inject)) = (atomic::payload(op), &mut tx.inject) {
            // The core has checked the length, and the slot's place is there.
            let data = &data[..data.len().min(INJECT_SIZE)];
            if !data.is_empty() {
                inject.store(slot as usize * INJECT_SIZE, data);
            }
            // CAST: At most `INJECT_SIZE`.
            posting.injected = data.len() as u32;
        } else if op.kind == OpKind::Atomic {
            // Where the result goes that nobody wants.
            posting.injected = atomic::SIZE;
        }
        let holds = endpoint.group().holds();
        let until = holds.holds();
        // What comes after something that is held is, too.
        let hold = !tx.held.is_empty() || until > holds.resumed();
        let mut part = false;
        let refused = if hold {
            tx.held.push(Waiting { slot, until }).err().map(|_| EAGAIN)
        } else if whole {
            // What has something in the slot's own place has nothing else.
            if let Some(sge) = injected(&endpoint, tx.inject.as_ref(), slot, &posting) {
                sges.push(sge);
            }
            posting.wr.imm = posting.imm;
            let posted = qp.post_send(slot, &posting.wr, sges.get(), true);
            posted.err().map(|_| enotconn())
        } else {
            let inject = tx.inject.as_ref();
            let taken = post_one(&endpoint, qp, inject, slot, &mut posting, &token, max);
            part = taken == Taken::Part;
            (taken == Taken::Nothing).then(enotconn)
        };
        if let Some(e) = refused {
            unmap_lent(&self.device, &mut token);
            let _ = tx.free.push_within_capacity(slot);
            return Err((e, token));
        }
        // Accepted. The completion waits for the lock.
        tx.credits -= credits;
        tx.bytes += op.len;
        let place = &mut tx.slots[slot as usize];
        // It is free; said here, nothing is copied aside to look.
        place.token = None;
        place.token = Some(Cell::new(token));
        place.credits = credits;
        place.failed = None;
        if hold {
            place.held = Some(posting);
        }
        if part {
            tx.open = false;
            tx.torn = true;
            drop(guard);
            Endpoint::fail(endpoint, Some(bindings::EIO), false);
        } else if hold {
            self.holding.store(true, Ordering::SeqCst);
            drop(guard);
            // Whoever resumed meanwhile may have looked before, or not at all.
            self.resume(endpoint);
        }
        Ok(())
    }

    /// Posts what has been held for long enough.
    pub(crate) fn resume(&self, endpoint: ArcBorrow<'_, Endpoint>) {
        // Without the lock, for there may be many endpoints that hold nothing.
        while self.holding.load(Ordering::SeqCst) {
            // Interrupts are let in between.
            match self.release(&endpoint) {
                Some(Ok(())) => {}
                Some(Err(_)) => Endpoint::fail(endpoint, Some(bindings::EIO), false),
                None => return,
            }
        }
    }

    /// Posts some of what has been held for long enough. `None`: nothing of what is left has been,
    /// and who resumes next looks here again.
    ///
    /// # Errors
    ///
    /// The device refused one that was accepted: the connection is to end.
    fn release(&self, endpoint: &Endpoint) -> Option<Result> {
        let holds = endpoint.group().holds();
        let mut guard = self.tx.lock();
        let Tx {
            qp,
            open,
            torn,
            slots,
            held,
            inject,
            ..
        } = &mut *guard;
        // What is held when it is stopped ends with that.
        let qp = qp.as_ref().filter(|_| *open)?;
        let post = |slot: u32| {
            let Some(place) = slots.get_mut(slot as usize) else {
                return Taken::Nothing;
            };
            let (Some(token), Some(posting)) = (&mut place.token, &mut place.held) else {
                return Taken::Nothing;
            };
            let inject = inject.as_ref();
            let token = token.get_mut();
            let taken = post_one(endpoint, qp, inject, slot, posting, token, self.size.sge);
            if taken != Taken::Nothing {
                place.held = None;
            }
            taken
        };
        match held.release(SLICE, || holds.resumed(), || holds.note_held(), post) {
            Released::All => {
                self.holding.store(false, Ordering::SeqCst);
                None
            }
            Released::Some => Some(Ok(())),
            Released::Later => None,
            Released::Refused(taken) => {
                // All others that are held end with it.
                *open = false;
                *torn |= taken == Taken::Part;
                Some(Err(EIO))
            }
        }
    }

    /// Takes one that is held out; nothing more is held then for it. After [`Path::stop`].
    fn unhold(&self) -> Option<OpToken> {
        let mut guard = self.tx.lock();
        let tx = &mut *guard;
        let Some(slot) = tx.held.pop() else {
            self.holding.store(false, Ordering::SeqCst);
            return None;
        };
        let place = tx.slots.get_mut(slot as usize)?;
        place.held = None;
        let token = place.token.take()?.into_inner();
        tx.credits += core::mem::take(&mut place.credits);
        tx.bytes -= token.len();
        let _ = tx.free.push_within_capacity(slot);
        Some(token)
    }

    /// A work request of the transmit side ended. In a task that holds no lock. Returns the errno to end
    /// the connection with.
    pub(crate) fn sent(&self, slot: u32, last: bool, wc: &Wc) -> Option<u32> {
        let mut guard = self.tx.lock();
        let tx = &mut *guard;
        tx.active = true;
        tx.stalled = None;
        let place = tx.slots.get_mut(slot as usize)?;
        if !last {
            place.failed.get_or_insert(wc.status);
            return Self::fatal(wc.status);
        }
        let code = place.failed.take().unwrap_or(wc.status);
        let mut token = place.token.take()?.into_inner();
        tx.credits += core::mem::take(&mut place.credits);
        tx.bytes -= token.len();
        let _ = tx.free.push_within_capacity(slot);
        let verdict = if code == status::FLUSH {
            tx.verdict.take()
        } else {
            None
        };
        drop(guard);
        unmap_lent(&self.device, &mut token);
        token.complete_sleeping(Outcome {
            err: verdict.unwrap_or_else(|| errno::of_status(code)),
            prov_errno: code,
            ..Outcome::default()
        });
        Self::fatal(code)
    }

    /// A receive ended. As above.
    pub(crate) fn received(&self, slot: u32, wc: &Wc) -> Option<u32> {
        let mut guard = self.rx.lock();
        let rx = &mut *guard;
        let token = rx.slots.get_mut(slot as usize)?.take()?.into_inner();
        let _ = rx.free.push_within_capacity(slot);
        drop(guard);
        token.complete_sleeping(Outcome {
            err: errno::of_receive(wc.status),
            prov_errno: wc.status,
            len: u64::from(wc.byte_len),
            imm: wc.imm,
            remote_write: wc.remote_write,
        });
        Self::fatal(wc.status)
    }

    /// The probe ended. As above.
    pub(crate) fn probed(&self, wc: &Wc) -> Option<u32> {
        self.tx.lock().probing = false;
        Self::fatal(wc.status)
    }

    /// Every failure ends a connection; being flushed is only the consequence of one.
    pub(crate) fn fatal(code: u32) -> Option<u32> {
        match code {
            status::SUCCESS => None,
            status::FLUSH => Some(bindings::ECONNABORTED),
            other => Some(errno::of_status(other)),
        }
    }

    /// Looks after the connection: probes an idle one. Returns the errno to end it with if the
    /// peer has not taken anything for too long.
    pub(crate) fn tick(&self) -> Option<u32> {
        let mut guard = self.tx.lock();
        let tx = &mut *guard;
        let (true, Some(qp)) = (tx.open, &tx.qp) else {
            return None;
        };
        if core::mem::take(&mut tx.active) {
            return None;
        }
        if !tx.held.is_empty() {
            // It waits for us, not for the peer.
            tx.stalled = None;
            return None;
        }
        if tx.free.len() == tx.slots.len() {
            // Nothing on its way: nobody would notice if the peer were gone.
            if !tx.probing && qp.post_probe().is_ok() {
                tx.probing = true;
            }
            return None;
        }
        // By the clock: ticks come late on a busy machine.
        let since = tx.stalled.get_or_insert_with(Instant::now);
        // CAST: Time goes forward.
        let stalled = since.elapsed().as_millis() as u64;
        if stalled > STALL_MS + tx.bytes / STALL_BYTES_PER_MS {
            tx.verdict = Some(bindings::ENOBUFS);
            return Some(bindings::ENOBUFS);
        }
        None
    }
}
