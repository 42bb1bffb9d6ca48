// SPDX-License-Identifier: GPL-2.0
//! A queue pair with a completion queue of its own, and the dispatch of its completions.
//!
//! A slot identifies a work request: 0 to `tx` - 1 on the send side, 0 to `rx` - 1 on the receive
//! side. A send slot may carry several work requests, together or one after the other (channels), of which only
//! the last is signaled. The others complete (as "not last") only if they fail.

use core::{
    ptr::{
        self,
        NonNull, //
    },
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicUsize,
        Ordering, //
    }, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    error::{
        from_err_ptr,
        to_result, //
    },
    ffi::c_void,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    }, //
};

use super::{
    charge::Charge,
    cm::{
        CmHandler,
        CmId, //
    },
    device::Live,
    pd::Pd,
    raw,
    traced::Traced,
    wr::{
        Opcode,
        SendWr,
        Sge,
        Wc,
        MAX_SGE, //
    },
    CALLER, //
};
use kfabric::{
    base::fault,
    pure::commit::{
        End,
        Ends, //
    }, //
};

/// An asynchronous event of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QpEvent {
    /// An operation needed access that a key of the peer or of this side does not allow.
    Access,
    /// The peer sent an invalid request.
    Request,
    /// The queue pair or the device broke.
    Fatal,
    /// A message arrived before the peer's "ready to use".
    Established,
}

/// The context in which a queue pair's completions are handled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handling {
    /// A worker of the RDMA core: handlers may sleep.
    Worker,
    /// A soft interrupt, or a worker with PREEMPT_RT. Handlers must not sleep.
    SoftIrq,
}

/// Handler of a queue pair's completions.
pub(crate) trait Completions: Send + Sync + Sized + 'static {
    /// Handles the end of a work request of a send slot.
    ///
    /// Context: as the queue pair's [`Handling`]. Calls for one queue pair do not overlap.
    fn sent(this: ArcBorrow<'_, Self>, slot: u32, last: bool, wc: &Wc);

    /// Handles the end of a receive.
    ///
    /// Context: as the queue pair's [`Handling`]. Calls for one queue pair do not overlap.
    fn received(this: ArcBorrow<'_, Self>, slot: u32, wc: &Wc);

    /// Handles the end of the receive for the greeting ([`QueuePair::post_greeting`]).
    ///
    /// Context: as the queue pair's [`Handling`]. Calls for one queue pair do not overlap.
    fn greeted(this: ArcBorrow<'_, Self>, wc: &Wc);

    /// Handles the end of the probe, or of the greeting.
    ///
    /// Context: as the queue pair's [`Handling`]. Calls for one queue pair do not overlap.
    fn probed(this: ArcBorrow<'_, Self>, wc: &Wc);

    /// Handles an asynchronous event of the queue pair. The handler may only schedule work.
    ///
    /// Context: any.
    fn qp_event(this: ArcBorrow<'_, Self>, event: QpEvent);
}

/// The size of a queue pair.
#[derive(Clone, Copy)]
pub(crate) struct QpSize {
    /// Slots of the send side, and the total of its work requests.
    pub(crate) tx: u32,
    /// Slots of the receive side.
    pub(crate) rx: u32,
    /// Scatter entries of one work request, at most [`MAX_SGE`].
    pub(crate) sge: u32,
    /// Scatter entries of one read, at most `sge`.
    pub(crate) read_sge: u32,
    /// Scatter entries of one write, at most `sge`.
    pub(crate) write_sge: u32,
    /// True if a worker creates the queue pair: the user of the protection domain is charged, not
    /// the current task.
    pub(crate) of_owner: bool,
}

impl QpSize {
    /// Send work requests of the provider itself: the probe, the greeting, and one to drain.
    pub(crate) const TX_EXTRA: u32 = 3;
    /// Receive work requests of the provider itself: one for the greeting, and one to drain.
    pub(crate) const RX_EXTRA: u32 = 2;

    /// The size of a queue pair for no operations.
    pub(crate) const LEAST: Self = Self {
        tx: 1,
        rx: 1,
        sge: 1,
        read_sge: 1,
        write_sge: 1,
        of_owner: false,
    };

    /// Returns the scatter entries of one work request with an opcode.
    pub(crate) fn sge_of(self, opcode: Opcode) -> u32 {
        match opcode {
            Opcode::Read => self.read_sge,
            Opcode::Write => self.write_sge,
            _ => self.sge,
        }
    }
}

/// The kind of work request to which a completion belongs.
#[derive(Clone, Copy)]
enum Kind {
    Last,
    More,
    Receive,
    Greeting,
    Probe,
}

/// The target of `wr_cqe` in a work request.
#[repr(C)]
struct Slot<H: Completions> {
    /// The first field, because the RDMA core passes a pointer to it.
    cqe: raw::ib_cqe,
    handler: *const H,
    index: u32,
    kind: Kind,
}

/// The C objects, and the state that their completions need.
///
/// # Invariants
///
/// This object owns `qp` and `cq`. `qp` is a queue pair in `pd`, in INIT or later, with `cq` for
/// both sides. `slots` holds `tx` slots for last work requests, `tx` for others, `rx` for receives
/// one for the greeting's receive and one for the probe. The slots do not move, and `handler` keeps their `handler` alive.
struct Core<H: Completions> {
    qp: NonNull<raw::ib_qp>,
    cq: NonNull<raw::ib_cq>,
    slots: KVVec<Slot<H>>,
    size: QpSize,
    handling: Handling,
    /// True if the device's protocol is iWARP.
    iwarp: bool,
    /// Number of steps of [`QueuePair::connect`] that succeeded.
    steps: AtomicUsize,
    /// True if the device failed a step.
    broken: AtomicBool,
    /// True if [`QueuePair::fail`] was called.
    ended: AtomicBool,
    /// The peer's queue pair, the peer's first packet number, and this side's, once connected.
    peer: [AtomicU32; 3],
    handler: Arc<H>,
    pd: Arc<Pd>,
    /// Charges for the queue pair and its completion queue.
    _charges: [Option<Charge>; 2],
}

// SAFETY: Any thread may use the C objects; `handler` keeps the targets of `slots` alive.
unsafe impl<H: Completions> Send for Core<H> {}
// SAFETY: Any thread may use the C objects; `handler` keeps the targets of `slots` alive.
unsafe impl<H: Completions> Sync for Core<H> {}

/// A shared queue pair. The last reference destroys it. After that, every work request has
/// completed, or never will because the device did not flush it in time or the driver did not destroy it.
///
/// Context of the drop: process.
pub(crate) struct QueuePair<H: Completions>(Arc<Core<H>>);

impl<H: Completions> Clone for QueuePair<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// # Safety
///
/// The caller is the RDMA core, with a completion of a work request that was posted with a [`Slot`]
/// of a live [`Core`].
unsafe extern "C" fn done<H: Completions>(_cq: *mut raw::ib_cq, wc: *mut raw::ib_wc) {
    let _traced = Traced::new();
    // SAFETY: The RDMA core passes a `wc` that is valid during the call.
    let raw = unsafe { &*wc };
    // The union's 8 bytes are the posted pointer.
    let slot = raw.__bindgen_anon_1.bindgen_union_field as *const Slot<H>;
    // SAFETY: By the caller's contract it points to a slot of a live `Core`. `Core` is freed only
    // after `kverbs_destroy_qp()`, which waits for running handlers. If the driver has refused to
    // destroy the queue pair, none runs later.
    let slot = unsafe { &*slot };
    // SAFETY: By the invariant of `Core`, an `Arc` keeps the handler alive.
    let handler = unsafe { ArcBorrow::from_raw(slot.handler) };
    let wc = Wc::new(raw);
    match slot.kind {
        Kind::Last => H::sent(handler, slot.index, true, &wc),
        Kind::More => H::sent(handler, slot.index, false, &wc),
        Kind::Receive => H::received(handler, slot.index, &wc),
        Kind::Greeting => H::greeted(handler, &wc),
        Kind::Probe => H::probed(handler, &wc),
    }
}

/// # Safety
///
/// The caller is the RDMA core, with the context of a queue pair that exists.
unsafe extern "C" fn event<H: Completions>(event: *mut raw::ib_event, context: *mut c_void) {
    // SAFETY: The context is the handler in its `Arc`, which outlives the queue pair: if the driver refuses
    // to destroy the queue pair, `destroy` keeps a reference for ever.
    let handler = unsafe { ArcBorrow::from_raw(context.cast::<H>().cast_const()) };
    // SAFETY: The RDMA core passes an `event` that is valid during the call.
    let what = match unsafe { (*event).event } {
        raw::ib_event_type_IB_EVENT_QP_ACCESS_ERR => QpEvent::Access,
        raw::ib_event_type_IB_EVENT_QP_REQ_ERR => QpEvent::Request,
        raw::ib_event_type_IB_EVENT_QP_FATAL | raw::ib_event_type_IB_EVENT_DEVICE_FATAL => {
            QpEvent::Fatal
        }
        raw::ib_event_type_IB_EVENT_COMM_EST => QpEvent::Established,
        _ => return,
    };
    H::qp_event(handler, what);
}

/// Destroys a queue pair and its completion queue. With `wait`, waits for a flush in bounded time. Returns
/// false if the device did not flush, or the driver refused. No handler of completions runs afterwards.
///
/// If the driver refuses to destroy the queue pair, its protection domain and the handler of its events
/// stay for ever.
///
/// # Safety
///
/// The caller owns both, the queue pair is in `pd` and uses the completion queue for both sides, `handler`
/// is its context, and no task posts.
unsafe fn destroy<H: Completions>(
    qp: *mut raw::ib_qp,
    cq: *mut raw::ib_cq,
    wait: bool,
    handler: &Arc<H>,
    pd: &Arc<Pd>,
) -> bool {
    // SAFETY: By the caller's contract.
    let ended = unsafe { raw::kverbs_destroy_qp(qp, cq, wait) };
    if ended == raw::kverbs_ended_KVERBS_NOT_ENDED {
        core::mem::forget((handler.clone(), pd.clone()));
    }
    ended == raw::kverbs_ended_KVERBS_ENDED
}

impl<H: Completions> QueuePair<H> {
    /// Creates an RC queue pair in state INIT: receives may be posted.
    ///
    /// `port` may still change when the connection's address is known.
    ///
    /// # Errors
    ///
    /// - `EIO` if the driver has not yet deregistered the memory of a revoked key in the protection
    ///   domain.
    /// - An error of the device.
    pub(crate) fn new(
        live: &Live<'_>,
        pd: &Arc<Pd>,
        handler: &Arc<H>,
        size: QpSize,
        port: u32,
        handling: Handling,
    ) -> Result<Self> {
        if size.sge as usize > MAX_SGE {
            return Err(EINVAL);
        }
        if pd.is_tainted() {
            return Err(EIO);
        }
        let operations = size.tx.saturating_add(size.rx);
        let charges = if size.of_owner {
            [pd.charge_owner(operations)?, None]
        } else {
            [pd.charge_queues(live, operations)?, pd.charge(live)?]
        };
        let slots = Self::slots(Arc::as_ptr(handler), size)?;
        let send = size.tx + QpSize::TX_EXTRA;
        let receive = size.rx + QpSize::RX_EXTRA;
        fault::device()?;
        // One entry for every work request that may be posted, also for those that complete only by
        // a flush: the completion queue never overflows.
        // SAFETY: The device is registered, as `live` proves; the name is static.
        let cq = from_err_ptr(unsafe {
            raw::kverbs_alloc_cq(
                pd.device().as_ptr(),
                (send + receive) as c_int,
                handling == Handling::SoftIrq,
                CALLER.as_char_ptr(),
            )
        })?;
        let mut attr = raw::ib_qp_init_attr {
            event_handler: Some(event::<H>),
            qp_context: Arc::as_ptr(handler).cast_mut().cast(),
            send_cq: cq,
            recv_cq: cq,
            sq_sig_type: raw::ib_sig_type_IB_SIGNAL_REQ_WR,
            qp_type: raw::ib_qp_type_IB_QPT_RC,
            ..Default::default()
        };
        attr.cap.max_send_wr = send;
        attr.cap.max_recv_wr = receive;
        attr.cap.max_send_sge = size.sge;
        attr.cap.max_recv_sge = size.sge;
        let made = fault::device().and_then(|()| {
            // SAFETY: `attr` is filled in; the protection domain and the queue are alive.
            from_err_ptr(unsafe {
                raw::ib_create_qp_kernel(pd.as_ptr(), &mut attr, CALLER.as_char_ptr())
            })
        });
        let qp = match made {
            Ok(qp) => qp,
            Err(e) => {
                // SAFETY: The completion queue was created above, and no queue pair uses it.
                unsafe { raw::kverbs_free_cq(cq) };
                return Err(e);
            }
        };
        if let Err(e) = Self::init(qp, port, pd.device().is_iwarp()) {
            // SAFETY: Both were created above, and no other code has a pointer to them. Nothing was posted.
            unsafe { destroy(qp, cq, false, handler, pd) };
            return Err(e);
        }
        // `from_err_ptr` returned no null pointer, but its type allows one.
        let (Some(qp), Some(cq)) = (NonNull::new(qp), NonNull::new(cq)) else {
            return Err(ENOMEM);
        };
        let core = Core {
            qp,
            cq,
            slots,
            size,
            handling,
            iwarp: pd.device().is_iwarp(),
            steps: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            peer: [const { AtomicU32::new(0) }; 3],
            handler: handler.clone(),
            pd: pd.clone(),
            _charges: charges,
        };
        // INVARIANT: All fields are as created above; if the allocation fails, dropping `core`
        // frees them.
        Ok(Self(Arc::new(core, GFP_KERNEL_ACCOUNT)?))
    }

    fn slots(handler: *const H, size: QpSize) -> Result<KVVec<Slot<H>>> {
        let n = 2 * size.tx as usize + size.rx as usize + 2;
        let mut slots = KVVec::with_capacity(n, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        let mut add = |kind, count| -> Result {
            for index in 0..count {
                let cqe = raw::ib_cqe {
                    done: Some(done::<H>),
                };
                let slot = Slot {
                    cqe,
                    handler,
                    index,
                    kind,
                };
                slots.push(slot, GFP_KERNEL_ACCOUNT)?;
            }
            Ok(())
        };
        add(Kind::Last, size.tx)?;
        add(Kind::More, size.tx)?;
        add(Kind::Receive, size.rx)?;
        add(Kind::Greeting, 1)?;
        add(Kind::Probe, 1)?;
        Ok(slots)
    }

    /// Moves a new queue pair from RESET to INIT. An iWARP queue pair gets its rights now, because the driver
    /// connects it.
    fn init(qp: *mut raw::ib_qp, port: u32, iwarp: bool) -> Result {
        let mut attr = raw::ib_qp_attr {
            qp_state: raw::ib_qp_state_IB_QPS_INIT,
            port_num: port,
            ..Default::default()
        };
        if iwarp {
            let rights = raw::ib_access_flags_IB_ACCESS_REMOTE_READ
                | raw::ib_access_flags_IB_ACCESS_REMOTE_WRITE;
            // CAST: Only low bits are set.
            attr.qp_access_flags = rights as c_int;
        }
        let mask = raw::ib_qp_attr_mask_IB_QP_STATE
            | raw::ib_qp_attr_mask_IB_QP_PKEY_INDEX
            | raw::ib_qp_attr_mask_IB_QP_PORT
            | raw::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS;
        fault::device()?;
        // SAFETY: The queue pair was created by the caller; `attr` is filled in as `mask` says.
        to_result(unsafe { raw::ib_modify_qp(qp, &mut attr, mask as c_int) })
    }

    /// Returns whether the handlers of completions may sleep.
    pub(crate) fn may_sleep(&self) -> bool {
        self.0.handling == Handling::Worker
    }

    /// Returns the queue pair's number, for the connection manager.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: By the invariant of `Core` the queue pair is alive.
        unsafe { (*self.0.qp.as_ptr()).qp_num }
    }

    fn modify(&self, attr: &mut raw::ib_qp_attr, mask: c_int) -> Result {
        // SAFETY: By the invariant of `Core` the queue pair is alive; `attr` is filled in as `mask`
        // says.
        to_result(unsafe { raw::ib_modify_qp(self.0.qp.as_ptr(), attr, mask) })
    }

    /// Moves the queue pair to RTS, with the parameters that `id` has negotiated.
    ///
    /// Reads in flight are limited to the device's capability. After a failure, the next call
    /// continues with the failed step, unless [`QueuePair::is_broken`] is true.
    ///
    /// The retry counts are this side's. On the accepting side, the connection manager would use
    /// the peer's: 7 means for ever on rxe, so that a dead peer would not be noticed, and 0 is
    /// possible.
    ///
    /// The connecting side chooses the path MTU, in four bits. The connection manager and rxe
    /// accept any value: 0 makes rxe send packets of -1 bytes.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the peer asks for an undefined path MTU.
    /// - An error of the device.
    pub(crate) fn connect<C: CmHandler>(
        &self,
        id: &CmId<C>,
        retry_count: u8,
        rnr_retry_count: u8,
    ) -> Result {
        if self.0.iwarp {
            // The driver moves the queue pair to RTS.
            return Ok(());
        }
        let (initiator, responder) = self.0.pd.device().max_rd_atom();
        let steps = [
            raw::ib_qp_state_IB_QPS_INIT,
            raw::ib_qp_state_IB_QPS_RTR,
            raw::ib_qp_state_IB_QPS_RTS,
        ];
        let taken = self.0.steps.load(Ordering::Relaxed);
        for (step, state) in steps.into_iter().enumerate().skip(taken) {
            let (mut attr, mask) = id.qp_attr(state)?;
            if mask & raw::ib_qp_attr_mask_IB_QP_PATH_MTU as c_int != 0
                && !(raw::ib_mtu_IB_MTU_256..=raw::ib_mtu_IB_MTU_4096).contains(&attr.path_mtu)
            {
                return Err(EINVAL);
            }
            attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(responder);
            attr.max_rd_atomic = attr.max_rd_atomic.min(initiator);
            attr.retry_cnt = retry_count;
            attr.rnr_retry = rnr_retry_count;
            if self.0.size.of_owner {
                // The peer of a channel only sends messages.
                attr.qp_access_flags = 0;
            }
            fault::device()?;
            self.modify(&mut attr, mask)
                .inspect_err(|_| self.0.broken.store(true, Ordering::Relaxed))?;
            let [peer_qp, peer_psn, own_psn] = &self.0.peer;
            // Relaxed suffices: callers hold the endpoint's control lock.
            match state {
                raw::ib_qp_state_IB_QPS_RTR => {
                    peer_qp.store(attr.dest_qp_num, Ordering::Relaxed);
                    peer_psn.store(attr.rq_psn, Ordering::Relaxed);
                }
                raw::ib_qp_state_IB_QPS_RTS => own_psn.store(attr.sq_psn, Ordering::Relaxed),
                _ => {}
            }
            self.0.steps.store(step + 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the queue pairs and first packet numbers of both ends, after
    /// [`QueuePair::connect`]. This end is the initiator.
    pub(crate) fn ends(&self) -> Ends {
        let [peer_qp, peer_psn, own_psn] = &self.0.peer;
        // Relaxed suffices: callers hold the endpoint's control lock.
        Ends {
            initiator: End {
                qp: self.number(),
                psn: own_psn.load(Ordering::Relaxed),
            },
            target: End {
                qp: peer_qp.load(Ordering::Relaxed),
                psn: peer_psn.load(Ordering::Relaxed),
            },
            secret: 0,
        }
    }

    /// Returns the handler of the queue pair's completions.
    pub(crate) fn handler(&self) -> &Arc<H> {
        &self.0.handler
    }

    /// Returns whether the device failed a step of connecting.
    ///
    /// The queue pair's state is then unknown. Without memory on the way to RTR, rxe leaves the
    /// queue pair in RTR without the task that would flush receives. Such a queue pair can only be
    /// dropped.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::Relaxed)
    }

    /// Returns whether the device has moved the queue pair to ERR by itself, without a call of
    /// [`QueuePair::fail`]. Returns false if the device does not answer the query.
    ///
    /// Some failures have no other sign: if a key ends in the middle of an answer to a read, rxe
    /// raises no event, and the completions of flushed work requests may come late.
    ///
    /// On iWARP it returns false: an end by the peer moves the queue pair to ERR, too.
    pub(crate) fn has_failed(&self) -> bool {
        if self.is_ended() || self.0.iwarp {
            return false;
        }
        let mut attr = raw::ib_qp_attr::default();
        let mut init = raw::ib_qp_init_attr::default();
        let mask = raw::ib_qp_attr_mask_IB_QP_STATE as c_int;
        // SAFETY: By the invariant of `Core` the queue pair is alive; both structures are local.
        let ret = unsafe { raw::ib_query_qp(self.0.qp.as_ptr(), &mut attr, mask, &mut init) };
        ret == 0 && attr.qp_state == raw::ib_qp_state_IB_QPS_ERR
    }

    /// Returns whether [`QueuePair::fail`] was called.
    pub(crate) fn is_ended(&self) -> bool {
        // Relaxed suffices: callers of both functions hold the endpoint's control lock.
        self.0.ended.load(Ordering::Relaxed)
    }

    /// Moves the queue pair to ERR: the device flushes posted work requests.
    pub(crate) fn fail(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
        let mut attr = raw::ib_qp_attr {
            qp_state: raw::ib_qp_state_IB_QPS_ERR,
            ..Default::default()
        };
        // Allowed from any state but RESET, and `new` has moved the queue pair out of RESET.
        let _ = self.modify(&mut attr, raw::ib_qp_attr_mask_IB_QP_STATE as c_int);
    }

    fn post(&self, slot: usize, wr: &SendWr, sges: &[Sge], signaled: bool) -> Result {
        let mut wr = *wr;
        let iwarp = self.0.iwarp;
        if iwarp && wr.opcode == Opcode::Read && sges.is_empty() {
            // iWARP reads have one scatter entry. siw answers a read of no bytes from a list with
            // bytes of an earlier operation, if it is busy (`siw_activate_tx()`).
            wr.opcode = Opcode::Write;
        }
        let cqe = core::ptr::from_ref(&self.0.slots.get(slot).ok_or(EINVAL)?.cqe);
        let mut head = raw::ib_send_wr::default();
        head.__bindgen_anon_1.bindgen_union_field = cqe as u64;
        head.sg_list = sges.as_ptr().cast_mut().cast();
        head.num_sge = sges.len() as c_int;
        head.opcode = wr.raw_opcode();
        if signaled {
            head.send_flags |= raw::ib_send_flags_IB_SEND_SIGNALED;
        }
        // siw refuses a fence of a read (`siw_activate_tx_from_sq()`). On iWARP, reads execute in order.
        if wr.fence && !(iwarp && wr.opcode == Opcode::Read) {
            head.send_flags |= raw::ib_send_flags_IB_SEND_FENCE;
        }
        if let Some(imm) = wr.imm {
            head.ex.bindgen_union_field = imm.to_be();
        }
        let (rdma, atomic);
        let whole: *const raw::ib_send_wr = match wr.opcode {
            Opcode::Send | Opcode::Read | Opcode::Write => {
                rdma = raw::ib_rdma_wr {
                    wr: head,
                    remote_addr: wr.remote_addr,
                    rkey: wr.rkey,
                };
                ptr::from_ref(&rdma).cast()
            }
            Opcode::FetchAdd { .. } | Opcode::CmpSwap { .. } => {
                let (compare_add, swap) = wr.opcode.operands();
                atomic = raw::ib_atomic_wr {
                    wr: head,
                    remote_addr: wr.remote_addr,
                    compare_add,
                    swap,
                    rkey: wr.rkey,
                    ..Default::default()
                };
                ptr::from_ref(&atomic).cast()
            }
        };
        let mut bad = ptr::null();
        fault::device()?;
        // SAFETY: `whole` points to the structure that the opcode requires, whose first field is
        // `head`. The work request and its scatter list are read during the call only. By the
        // invariant of `Core`, the slot exists until the work request has completed.
        to_result(unsafe { raw::kverbs_post_send(self.0.qp.as_ptr(), whole, &mut bad) })
    }

    /// Posts a work request of a send slot. The caller counts work requests and stays within the
    /// queue's size.
    ///
    /// Context: any.
    pub(crate) fn post_send(&self, slot: u32, wr: &SendWr, sges: &[Sge], last: bool) -> Result {
        let more = if last { 0 } else { self.0.size.tx as usize };
        self.post(slot as usize + more, wr, sges, last)
    }

    /// Posts the probe: a write of no bytes, which any RC peer answers. The caller posts one at a
    /// time.
    ///
    /// Context: any.
    pub(crate) fn post_probe(&self) -> Result {
        let wr = SendWr {
            opcode: Opcode::Write,
            imm: None,
            fence: false,
            remote_addr: 0,
            rkey: 0,
        };
        self.post(self.0.slots.len() - 1, &wr, &[], true)
    }

    /// Posts the greeting, an empty message, as the first message of an iWARP connection's initiator.
    /// The acceptor may not send before a message has arrived (RFC 5044, section 7.1.2).
    pub(crate) fn post_greeting(&self) -> Result {
        let wr = SendWr {
            opcode: Opcode::Send,
            imm: None,
            fence: false,
            remote_addr: 0,
            rkey: 0,
        };
        self.post(self.0.slots.len() - 1, &wr, &[], true)
    }

    /// Posts the receive for the greeting, before all other receives.
    pub(crate) fn expect_greeting(&self) -> Result {
        self.post_recv(self.0.size.rx, &[])
    }

    /// Posts a receive. The caller uses each slot once at a time.
    ///
    /// Context: any.
    pub(crate) fn post_recv(&self, slot: u32, sges: &[Sge]) -> Result {
        let index = 2 * self.0.size.tx as usize + slot as usize;
        let cqe = core::ptr::from_ref(&self.0.slots.get(index).ok_or(EINVAL)?.cqe);
        let mut wr = raw::ib_recv_wr::default();
        wr.__bindgen_anon_1.bindgen_union_field = cqe as u64;
        wr.sg_list = sges.as_ptr().cast_mut().cast();
        wr.num_sge = sges.len() as c_int;
        let mut bad = core::ptr::null();
        fault::device()?;
        // SAFETY: The work request and its scatter list are read during the call only. By the
        // invariant of `Core`, the slot exists until the work request has completed.
        to_result(unsafe { raw::kverbs_post_recv(self.0.qp.as_ptr(), &wr, &mut bad) })
    }
}

impl<H: Completions> Drop for Core<H> {
    fn drop(&mut self) {
        let broken = *self.broken.get_mut();
        let wait = !broken && self.pd.device().flushes();
        let (qp, cq) = (self.qp.as_ptr(), self.cq.as_ptr());
        // SAFETY: By the type invariant this object owns both. It is the last user, so no task
        // posts.
        if !unsafe { destroy(qp, cq, wait, &self.handler, &self.pd) } {
            self.pd.device().does_not_flush();
        }
    }
}
