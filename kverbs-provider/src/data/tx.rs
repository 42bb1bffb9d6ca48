// SPDX-License-Identifier: GPL-2.0
//! The transmit side of a data path: posting sends, one-sided operations and atomics, their
//! completions, and the probe of an idle connection.

use core::{
    cell::Cell,
    sync::atomic::Ordering, //
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
        Instant,
        Monotonic, //
    }, //
};

use super::{
    all_free,
    atomic,
    commit::{
        self,
        Acknowledged,
        Commits,
        Durable,
        Ended, //
    },
    fatal,
    local,
    rma,
    DataPath,
    Kept,
    Owner,
    Refused, //
};
use crate::{
    errno,
    ib::{
        dma::DmaBuf,
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
    key::group::Group,
    limits::{
        INJECT_SIZE,
        STALL_BYTES_PER_MS,
        STALL_MS, //
    }, //
};
use kfabric::{
    base::errno::{
        enotconn,
        eopnotsupp, //
    },
    ep::OpToken,
    op::{
        OpDesc,
        OpKind,
        Outcome, //
    },
    pure::hold::{
        Held,
        Taken,
        Waiting, //
    },
};

/// The parameters of an operation that are needed to post it, without its local memory.
pub(super) struct Posting {
    pub(super) wr: SendWr,
    pub(super) imm: Option<u32>,
    /// Bytes in the slot's part of `Tx::inject`: injected payload, or space for a result.
    injected: u32,
}

/// An outstanding operation of the transmit side.
#[derive(Default)]
pub(super) struct TxSlot {
    pub(super) token: Option<Kept>,
    /// Parameters of a deferred operation, which has not been posted to the device.
    pub(super) held: Option<Posting>,
    /// Number of the operation's work requests.
    credits: u32,
    /// Status of the first work request, except the last, that failed.
    failed: Option<u32>,
    /// State of a durable write.
    pub(super) durable: Option<Durable>,
}

/// Slots of deferred operations, in order.
type Deferred = Held<KVVec<Option<Waiting>>>;

/// State of the transmit side.
pub(super) struct Tx<H: Owner> {
    pub(super) qp: Option<QueuePair<H>>,
    /// True if consumers' handlers may sleep.
    pub(super) may_sleep: bool,
    /// True while operations may be posted.
    pub(super) open: bool,
    /// True if the device accepted only a part of an operation.
    pub(super) torn: bool,
    pub(super) slots: KVVec<TxSlot>,
    free: KVVec<u32>,
    /// Slots of deferred operations. The capacity is the number of all slots.
    pub(super) held: Deferred,
    /// Number of work requests that may be posted.
    credits: u32,
    /// Payload of injected operations, or a result: [`INJECT_SIZE`] bytes for each slot.
    pub(super) inject: Option<DmaBuf>,
    /// Bytes of all outstanding operations.
    bytes: u64,
    /// True while a probe is outstanding.
    probing: bool,
    /// True if a work request completed since the last tick.
    active: bool,
    /// Time of the first tick without a completion while operations were outstanding.
    stalled: Option<Instant<Monotonic>>,
    /// Error for the oldest outstanding operation if it gets flushed: it caused the connection's
    /// end.
    verdict: Option<u32>,
    /// Acknowledged writes that wait for a commit. Their slots have no work request on the device.
    pub(super) commits: Commits,
    /// Writes whose commit has ended. Their slots have no work request on the device.
    pub(super) ended: Ended,
    /// Number of slots with a durable write.
    durables: u32,
}

/// Returns `n` empty entries for deferred operations.
fn none_held(n: u32, flags: Flags) -> Result<KVVec<Option<Waiting>>> {
    let mut places = KVVec::with_capacity(n as usize, flags)?;
    for _ in 0..n {
        places.push(None, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(places)
}

impl<H: Owner> Tx<H> {
    /// Allocates `n` slots. Durable writes need as many places in a queue.
    pub(super) fn new(n: u32, durable: bool) -> Result<Self> {
        // The application chose the size, so a failure to allocate is not logged.
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        let (commits, ended) = commit::queues(if durable { n } else { 0 }, flags)?;
        let mut slots = KVVec::with_capacity(n as usize, flags)?;
        for _ in 0..n {
            slots.push(TxSlot::default(), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(Self {
            qp: None,
            may_sleep: false,
            open: false,
            torn: false,
            slots,
            free: all_free(n)?,
            held: Held::new(none_held(n, flags)?),
            credits: n,
            inject: None,
            bytes: 0,
            probing: false,
            active: false,
            stalled: None,
            verdict: None,
            commits,
            ended,
            durables: 0,
        })
    }

    /// Returns whether no operation is outstanding.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// Prepares a slot for an accepted operation of `len` bytes and `credits` work requests, and
    /// returns it without a token.
    #[inline(always)]
    fn occupy(&mut self, slot: u32, len: u64, credits: u32) -> &mut TxSlot {
        self.credits -= credits;
        self.bytes += len;
        let place = &mut self.slots[slot as usize];
        // The slot is free. This store tells the compiler, which would otherwise copy the old
        // token.
        place.token = None;
        place.credits = credits;
        place.failed = None;
        place
    }

    /// Frees a slot, and returns its operation's token as the slot kept it.
    #[inline(always)]
    pub(super) fn vacate(&mut self, slot: u32) -> Option<Kept> {
        let place = self.slots.get_mut(slot as usize)?;
        let mut token = place.token.take()?;
        if place.durable.is_some() {
            place.durable = None;
            self.durables -= 1;
        }
        self.credits += core::mem::take(&mut place.credits);
        self.bytes -= token.get_mut().len();
        let _ = self.free.push_within_capacity(slot);
        Some(token)
    }
}

/// The means to post the operation of a slot.
pub(super) struct Poster<'a, H: Owner> {
    /// The connection's protection group.
    pub(super) group: &'a Arc<Group>,
    pub(super) qp: &'a QueuePair<H>,
    /// `Tx::inject`.
    pub(super) inject: Option<&'a DmaBuf>,
    pub(super) slot: u32,
    /// The size of the queue pair.
    pub(super) size: QpSize,
}

/// An operation that the transmit side can try to post.
struct Plan {
    posting: Posting,
    /// Number of work requests.
    credits: u32,
    /// True if the operation is one work request, whose scatter entries are all gathered.
    gathered: bool,
}

/// The state of an accepted operation.
enum Accepted {
    /// The device has the whole operation.
    Posted,
    /// The operation waits for a resume.
    Deferred,
    /// The device has only a part of the operation.
    Torn,
}

/// Stores the bytes that an operation sends without registered memory in the slot's part of
/// `Tx::inject`. Returns the number of bytes there that belong to the work request.
#[inline(always)]
fn store_payload(inject: &mut Option<DmaBuf>, slot: u32, op: &OpDesc<'_>) -> u32 {
    if let (Some(data), Some(inject)) = (atomic::payload(op), inject) {
        // The core has checked the length, and the slot's part of the buffer exists.
        let data = &data[..data.len().min(INJECT_SIZE)];
        if !data.is_empty() {
            inject.store(slot as usize * INJECT_SIZE, data);
        }
        // CAST: The length is at most `INJECT_SIZE`.
        return data.len() as u32;
    }
    match op.kind {
        // The device writes the result of a non-fetching atomic there; it is not read.
        OpKind::Atomic => atomic::SIZE,
        _ => 0,
    }
}

impl<H: Owner> Poster<'_, H> {
    /// Returns the scatter entry of the slot's part of `Tx::inject`, if the operation uses it.
    pub(super) fn injected(&self, posting: &Posting) -> Option<Sge> {
        match (self.inject, posting.injected) {
            (Some(inject), 1..) => {
                let addr = inject.addr_of(self.slot as usize * INJECT_SIZE);
                Some(Sge::new(addr, posting.injected, self.group.lkey()))
            }
            _ => None,
        }
    }

    /// Posts an operation as one work request, whose scatter entries are gathered.
    #[inline(always)]
    fn post_gathered(&self, posting: &mut Posting, sges: &mut SgeList<'_>) -> Result {
        // An operation that uses the slot's part of the buffer has no other memory.
        if let Some(sge) = self.injected(posting) {
            sges.push(sge);
        }
        posting.wr.imm = posting.imm;
        self.qp.post_send(self.slot, &posting.wr, sges.get(), true)
    }

    /// Defers an operation, or posts it to the device.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if no further operation can be deferred.
    /// - `ENOTCONN` if the device refused the operation.
    #[inline(always)]
    fn submit(
        &self,
        held: &mut Deferred,
        plan: &mut Plan,
        token: &OpToken,
        sges: &mut SgeList<'_>,
    ) -> Result<Accepted> {
        let holds = self.group.holds();
        let until = holds.holds();
        // An operation after a deferred one is deferred too, to keep the order.
        if !held.is_empty() || until > holds.resumed() {
            let slot = self.slot;
            held.push(Waiting { slot, until }).map_err(|_| EAGAIN)?;
            return Ok(Accepted::Deferred);
        }
        if plan.gathered {
            let posted = self.post_gathered(&mut plan.posting, sges);
            return posted.map(|()| Accepted::Posted).map_err(|_| enotconn());
        }
        match self.post_parts(&mut plan.posting, token) {
            Taken::All => Ok(Accepted::Posted),
            Taken::Part => Ok(Accepted::Torn),
            Taken::Nothing => Err(enotconn()),
        }
    }
}

impl<H: Owner> DataPath<H> {
    /// Gathers the scatter entries of an operation, and checks its size and key.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the key is not one of verbs.
    /// - `EMSGSIZE` if the operation has too many pieces.
    /// - `EOPNOTSUPP` for a read into borrowed pages on iWARP, and for some messages of several pieces
    ///   on siw ([`local::is_mixed_up`]).
    /// - The errors of [`local::gather`].
    #[inline(always)]
    fn plan(
        &self,
        owner: &H,
        op: &OpDesc<'_>,
        token: &OpToken,
        opcode: Opcode,
        sges: &mut SgeList<'_>,
    ) -> Result<Plan> {
        let rkey = rma::remote_key(opcode, op.key)?;
        if opcode == Opcode::Read && token.has_lent() && self.device.is_iwarp() {
            // Borrowed pages have no key of their own, and the request tells the peer the key.
            return Err(eopnotsupp());
        }
        let entries = local::gather(owner.group(), token, self.size.sge, sges)?;
        let one_sided = matches!(opcode, Opcode::Read | Opcode::Write);
        if entries > 1 && !one_sided && local::is_mixed_up(&self.device, token) {
            return Err(eopnotsupp());
        }
        let credits = rma::work_requests(opcode, entries, self.size)?;
        let (remote_addr, rkey) = match op.kind {
            // The device must not look at a key that may have been revoked.
            OpKind::Commit => (0, 0),
            _ => (op.remote_addr, rkey),
        };
        Ok(Plan {
            posting: Posting {
                wr: SendWr {
                    opcode,
                    imm: None,
                    fence: op.fence,
                    remote_addr,
                    rkey,
                },
                // The completion data of a durable write follow the commit.
                imm: op.imm.filter(|_| !Durable::is_wanted(op)),
                injected: 0,
            },
            credits,
            gathered: credits == 1 && !token.has_lent(),
        })
    }

    /// Takes a free slot for an operation, and posts or defers the operation. On a failure the slot
    /// is free again and no page is mapped.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if there is no connection, or if the device refused the operation.
    /// - `EAGAIN` if the queue is full, or if the device has no mapping resources left for now.
    /// - `EAGAIN` if the operation has a fence, and a durable write before it has not completed.
    #[inline(always)]
    fn accept(
        &self,
        tx: &mut Tx<H>,
        owner: &H,
        op: &OpDesc<'_>,
        token: &mut OpToken,
        plan: &mut Plan,
        sges: &mut SgeList<'_>,
    ) -> Result<(u32, Accepted)> {
        let (true, Some(qp)) = (tx.open, &tx.qp) else {
            return Err(enotconn());
        };
        if tx.credits < plan.credits {
            return Err(EAGAIN);
        }
        // The device does not know the commits of earlier writes. The caller posts again after the
        // completion of one.
        if op.fence && tx.durables != 0 {
            return Err(EAGAIN);
        }
        let slot = tx.free.pop().ok_or(EAGAIN)?;
        if let Err(e) = local::map_lent(&self.device, token) {
            let _ = tx.free.push_within_capacity(slot);
            return Err(e);
        }
        plan.posting.injected = store_payload(&mut tx.inject, slot, op);
        let poster = Poster {
            group: owner.group(),
            qp,
            inject: tx.inject.as_ref(),
            slot,
            size: self.size,
        };
        match poster.submit(&mut tx.held, plan, token, sges) {
            Ok(accepted) => Ok((slot, accepted)),
            Err(e) => {
                local::unmap_lent(&self.device, token);
                let _ = tx.free.push_within_capacity(slot);
                Err(e)
            }
        }
    }

    /// Posts an operation of the transmit side with the device's `opcode`.
    pub(super) fn post_send(
        &self,
        owner: ArcBorrow<'_, H>,
        op: &OpDesc<'_>,
        mut token: OpToken,
        opcode: Opcode,
    ) -> Result<(), Refused> {
        let mut room = SgeRoom::new();
        let mut sges = SgeList::new(&mut room);
        let mut plan = match self.plan(&owner, op, &token, opcode, &mut sges) {
            Ok(plan) => plan,
            Err(e) => return Err((e, token)),
        };
        let mut guard = self.tx.lock();
        let tx = &mut *guard;
        let (slot, accepted) = match self.accept(tx, &owner, op, &mut token, &mut plan, &mut sges) {
            Ok(accepted) => accepted,
            Err(e) => return Err((e, token)),
        };
        let is_durable = Durable::is_wanted(op);
        tx.durables += u32::from(is_durable);
        // The operation's completion waits for the lock.
        let place = tx.occupy(slot, op.len, plan.credits);
        place.token = Some(Cell::new(token));
        if is_durable {
            place.durable = Some(Durable::new(op));
        }
        match accepted {
            Accepted::Posted =>
            {
                #[cfg(kfabric_seed_bug = "pmem-early-commit")]
                if tx.commit_early(slot) {
                    drop(guard);
                    H::commit(owner);
                }
            }
            Accepted::Deferred => {
                place.held = Some(plan.posting);
                self.holding.store(true, Ordering::SeqCst);
                drop(guard);
                // A resume in parallel may have checked before this operation was deferred.
                self.resume(owner);
            }
            Accepted::Torn => {
                tx.open = false;
                tx.torn = true;
                drop(guard);
                H::fail(owner, bindings::EIO);
            }
        }
        Ok(())
    }

    /// Handles the completion of a work request of the transmit side. Returns the errno with which
    /// the connection must end, if it must.
    ///
    /// Context: process if the queue pair's handlers may sleep, otherwise any. Locking: none held.
    pub(crate) fn sent(
        &self,
        owner: ArcBorrow<'_, H>,
        slot: u32,
        last: bool,
        wc: &Wc,
    ) -> Option<u32> {
        let got = self.sent_status(wc.status);
        let mut guard = self.tx.lock();
        let tx = &mut *guard;
        tx.active = true;
        tx.stalled = None;
        let place = tx.slots.get_mut(slot as usize)?;
        if !last {
            place.failed.get_or_insert(got);
            return fatal(got);
        }
        let code = place.failed.take().unwrap_or(got);
        let mut verdict = None;
        if place.durable.is_some() && code == status::SUCCESS {
            match tx.acknowledged(slot, &self.device) {
                Acknowledged::Queued => {
                    drop(guard);
                    H::commit(owner);
                    return None;
                }
                Acknowledged::Complete => {}
                Acknowledged::Late => verdict = Some(bindings::ECANCELED),
            }
        }
        let mut token = tx.vacate(slot)?.into_inner();
        if code == status::FLUSH {
            verdict = tx.verdict.take();
        }
        let may_sleep = tx.may_sleep;
        drop(guard);
        local::unmap_lent(&self.device, &mut token);
        let outcome = Outcome {
            err: verdict.unwrap_or_else(|| errno::of_status(code)),
            prov_errno: code,
            ..Outcome::default()
        };
        token.complete_where(outcome, may_sleep);
        fatal(code)
    }

    /// Handles the completion of the probe. Returns the errno with which the connection must end,
    /// if it must.
    ///
    /// Context: any. Locking: none held.
    pub(crate) fn probed(&self, wc: &Wc) -> Option<u32> {
        self.tx.lock().probing = false;
        self.fatal_unless_ended(wc.status)
    }

    /// Probes an idle connection. Returns the errno with which the connection must end if the peer
    /// has made no progress for too long.
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
            // Deferred operations wait for a local assignment, not for the peer.
            tx.stalled = None;
            return None;
        }
        if tx.free.len() + tx.commits.len() + tx.ended.len() == tx.slots.len() {
            // No operation is outstanding, so only a probe detects that the peer has disappeared.
            if !tx.probing && qp.post_probe().is_ok() {
                tx.probing = true;
            }
            return None;
        }
        // Measure by the clock: ticks are late on a busy machine.
        let since = tx.stalled.get_or_insert_with(Instant::now);
        // CAST: The elapsed time is positive: the clock is monotonic.
        let stalled = since.elapsed().as_millis() as u64;
        if stalled > STALL_MS + tx.bytes / STALL_BYTES_PER_MS {
            tx.verdict = Some(bindings::ENOBUFS);
            return Some(bindings::ENOBUFS);
        }
        None
    }
}
