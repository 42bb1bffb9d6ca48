// SPDX-License-Identifier: GPL-2.0
//! A queue pair with a completion queue of its own, and the dispatch of its completions.
//!
//! Work requests are named by slots: 0 to `tx` - 1 on the send side, 0 to `rx` - 1 on the receive
//! side. A send slot may carry several work requests of which only the last is signaled; the
//! others complete (as "not last") only if they fail.

use core::{
    ptr::{
        self,
        NonNull, //
    },
    sync::atomic::{
        AtomicBool,
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
use kfabric::fault;

/// How a queue pair failed by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum QpEvent {
    /// A peer asked for what its key or ours does not allow.
    Access,
    /// A peer sent what makes no sense.
    Request,
    /// The queue pair or the device broke.
    Fatal,
    /// A message came before the peer's "ready to use".
    Established,
}

/// Who hears of a queue pair's completions.
pub(crate) trait Completions: Send + Sync + Sized + 'static {
    /// A work request of a send slot ended. Process context, one at a time for a queue pair.
    fn sent(this: ArcBorrow<'_, Self>, slot: u32, last: bool, wc: &Wc);

    /// A receive ended. As above.
    fn received(this: ArcBorrow<'_, Self>, slot: u32, wc: &Wc);

    /// The probe ended. As above.
    fn probed(this: ArcBorrow<'_, Self>, wc: &Wc);

    /// The queue pair changed by itself. Any context: may only schedule.
    fn qp_event(this: ArcBorrow<'_, Self>, event: QpEvent);
}

/// How large a queue pair is to be.
#[derive(Clone, Copy)]
pub(crate) struct QpSize {
    /// Slots, and work requests in all, of the send side.
    pub(crate) tx: u32,
    /// Slots of the receive side.
    pub(crate) rx: u32,
    /// Scatter entries of one work request, at most [`MAX_SGE`].
    pub(crate) sge: u32,
}

impl QpSize {
    /// Send work requests that are ours: the probe, and one to drain.
    pub(crate) const TX_EXTRA: u32 = 2;
    /// The same of the receive side: one to drain.
    pub(crate) const RX_EXTRA: u32 = 1;
}

/// What a completion belongs to.
#[derive(Clone, Copy)]
enum Kind {
    Last,
    More,
    Receive,
    Probe,
}

/// What `wr_cqe` of a work request points to.
#[repr(C)]
struct Slot<H: Completions> {
    /// First, because the core hands back a pointer to it.
    cqe: raw::ib_cqe,
    handler: *const H,
    index: u32,
    kind: Kind,
}

/// The C objects and what their completions need.
///
/// # Invariants
///
/// `qp` is a queue pair of ours in `pd`, in INIT or later, with `cq` for both sides, which is
/// ours too. `slots` holds `tx` slots for last, `tx` for other work requests, `rx` for receives
/// and one for the probe; they do not move, and their `handler` is kept by `handler`.
struct Core<H: Completions> {
    qp: NonNull<raw::ib_qp>,
    cq: NonNull<raw::ib_cq>,
    slots: KVVec<Slot<H>>,
    size: QpSize,
    /// Steps of [`QueuePair::connect`] that were taken.
    steps: AtomicUsize,
    /// The device failed one of them.
    broken: AtomicBool,
    /// It was moved to ERR by us.
    ended: AtomicBool,
    handler: Arc<H>,
    pd: Arc<Pd>,
    /// For the queue pair and for its completion queue.
    _charges: [Option<Charge>; 2],
}

// SAFETY: The C objects may be used by any thread; `slots` point to what `handler` keeps.
unsafe impl<H: Completions> Send for Core<H> {}
// SAFETY: As above.
unsafe impl<H: Completions> Sync for Core<H> {}

/// A shared queue pair. The last one drops it: then every work request has completed, or never
/// will if the device did not flush it in time.
///
/// To be dropped in process context.
pub(crate) struct QueuePair<H: Completions>(Arc<Core<H>>);

impl<H: Completions> Clone for QueuePair<H> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// # Safety
///
/// Called by the RDMA core with a completion of a work request that was posted with a [`Slot`] of
/// a live [`Core`].
unsafe extern "C" fn done<H: Completions>(_cq: *mut raw::ib_cq, wc: *mut raw::ib_wc) {
    let _traced = Traced::new();
    // SAFETY: `wc` is valid during the call.
    let raw = unsafe { &*wc };
    // The union's 8 bytes are the pointer that was posted.
    let slot = raw.__bindgen_anon_1.bindgen_union_field as *const Slot<H>;
    // SAFETY: As the caller says, it is a slot of ours, whose `Core` goes only when no handler can
    // run any more: `ib_free_cq()` waits for those that do.
    let slot = unsafe { &*slot };
    // SAFETY: By the invariant of `Core` its handler is what an `Arc` holds, and is kept.
    let handler = unsafe { ArcBorrow::from_raw(slot.handler) };
    let wc = Wc::new(raw);
    match slot.kind {
        Kind::Last => H::sent(handler, slot.index, true, &wc),
        Kind::More => H::sent(handler, slot.index, false, &wc),
        Kind::Receive => H::received(handler, slot.index, &wc),
        Kind::Probe => H::probed(handler, &wc),
    }
}

/// # Safety
///
/// Called by the RDMA core with the context that the queue pair was made with, while it exists.
unsafe extern "C" fn event<H: Completions>(event: *mut raw::ib_event, context: *mut c_void) {
    // SAFETY: The context is the handler in its `Arc`, which outlives the queue pair.
    let handler = unsafe { ArcBorrow::from_raw(context.cast::<H>().cast_const()) };
    // SAFETY: `event` is valid during the call.
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

impl<H: Completions> QueuePair<H> {
    /// Makes an RC queue pair in state INIT: receives may be posted.
    ///
    /// `port` may still change when the connection's address is known.
    pub(crate) fn new(
        live: &Live<'_>,
        pd: &Arc<Pd>,
        handler: &Arc<H>,
        size: QpSize,
        port: u32,
    ) -> Result<Self> {
        if size.sge as usize > MAX_SGE {
            return Err(EINVAL);
        }
        let charges = [pd.charge(live)?, pd.charge(live)?];
        let slots = Self::slots(Arc::as_ptr(handler), size)?;
        let send = size.tx + QpSize::TX_EXTRA;
        let receive = size.rx + QpSize::RX_EXTRA;
        fault::device()?;
        // An entry for every work request there may be, also for those that complete only by
        // being flushed: the queue never overflows.
        // SAFETY: The device is registered, as `live` proves; the name is static.
        let cq = from_err_ptr(unsafe {
            raw::__ib_alloc_cq_any(
                pd.device().as_ptr(),
                core::ptr::null_mut(),
                (send + receive) as c_int,
                raw::ib_poll_context_IB_POLL_WORKQUEUE,
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
        let made = fault::device()
            .and_then(|()| {
                // SAFETY: `attr` is filled in; the protection domain and the queue are alive.
                from_err_ptr(unsafe {
                    raw::ib_create_qp_kernel(pd.as_ptr(), &mut attr, CALLER.as_char_ptr())
                })
            })
            .and_then(|qp| Self::init(qp, port));
        let qp = match made {
            Ok(qp) => qp,
            Err(e) => {
                // SAFETY: It was made above and nothing uses it.
                unsafe { raw::ib_free_cq(cq) };
                return Err(e);
            }
        };
        // `from_err_ptr` does not return null here, but the type does not say so.
        let (Some(qp), Some(cq)) = (NonNull::new(qp), NonNull::new(cq)) else {
            return Err(ENOMEM);
        };
        let core = Core {
            qp,
            cq,
            slots,
            size,
            steps: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            handler: handler.clone(),
            pd: pd.clone(),
            _charges: charges,
        };
        // INVARIANT: All as just made; if the allocation fails, dropping `core` undoes it.
        Ok(Self(Arc::new(core, GFP_KERNEL_ACCOUNT)?))
    }

    fn slots(handler: *const H, size: QpSize) -> Result<KVVec<Slot<H>>> {
        let n = 2 * size.tx as usize + size.rx as usize + 1;
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
        add(Kind::Probe, 1)?;
        Ok(slots)
    }

    /// Takes a fresh queue pair from RESET to INIT; destroys it if that fails.
    fn init(qp: *mut raw::ib_qp, port: u32) -> Result<*mut raw::ib_qp> {
        let mut attr = raw::ib_qp_attr {
            qp_state: raw::ib_qp_state_IB_QPS_INIT,
            port_num: port,
            ..Default::default()
        };
        let mask = raw::ib_qp_attr_mask_IB_QP_STATE
            | raw::ib_qp_attr_mask_IB_QP_PKEY_INDEX
            | raw::ib_qp_attr_mask_IB_QP_PORT
            | raw::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS;
        let ret = fault::device().and_then(|()| {
            // SAFETY: The queue pair was just made; `attr` is filled in as `mask` says.
            to_result(unsafe { raw::ib_modify_qp(qp, &mut attr, mask as c_int) })
        });
        if let Err(e) = ret {
            // SAFETY: Nobody else knows it yet.
            unsafe { raw::ib_destroy_qp_user(qp, core::ptr::null_mut()) };
            return Err(e);
        }
        Ok(qp)
    }

    /// Its number, for the connection manager.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: By the invariant of `Core`.
        unsafe { (*self.0.qp.as_ptr()).qp_num }
    }

    fn modify(&self, attr: &mut raw::ib_qp_attr, mask: c_int) -> Result {
        // SAFETY: By the invariant of `Core`; `attr` is filled in as `mask` says.
        to_result(unsafe { raw::ib_modify_qp(self.0.qp.as_ptr(), attr, mask) })
    }

    /// Brings it to RTS, with the parameters that `id` has agreed upon. Reads in flight are
    /// limited to what the device can do. After a failure it goes on where it was, unless it is
    /// [`QueuePair::is_broken`] now.
    ///
    /// How often we send again is ours to say: on the accepting side the connection manager hands
    /// on what the peer asked for its own, which may be 7 (on rxe for ever, so a dead peer would
    /// not be noticed) or 0.
    ///
    /// How large packets may be is the asking side's to say, in four bits of which the connection
    /// manager and rxe take any value: 0 gives rxe packets of -1 bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the peer asks for packets of no size there is. Else what the device says.
    pub(crate) fn connect<C: CmHandler>(
        &self,
        id: &CmId<C>,
        retry_count: u8,
        rnr_retry_count: u8,
    ) -> Result {
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
            fault::device()?;
            self.modify(&mut attr, mask)
                .inspect_err(|_| self.0.broken.store(true, Ordering::Relaxed))?;
            // Callers take turns: they hold the endpoint's lock.
            self.0.steps.store(step + 1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the device failed a step of connecting. What it did of that nobody knows: rxe that
    /// has no memory on the way to RTR is in RTR then, without the task that would flush receives.
    /// Such a queue pair is only to be dropped.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.broken.load(Ordering::Relaxed)
    }

    /// Whether the device has moved it to ERR by itself, and nobody has by [`QueuePair::fail`]. False
    /// where the device does not say.
    ///
    /// Of some failures it says nothing else: rxe that finds a key ended in the middle of an answer to a
    /// read raises no event, and its completions of what gets flushed may come late.
    pub(crate) fn has_failed(&self) -> bool {
        if self.is_ended() {
            return false;
        }
        let mut attr = raw::ib_qp_attr::default();
        let mut init = raw::ib_qp_init_attr::default();
        let mask = raw::ib_qp_attr_mask_IB_QP_STATE as c_int;
        // SAFETY: By the invariant of `Core`; both structures are ours.
        let ret = unsafe { raw::ib_query_qp(self.0.qp.as_ptr(), &mut attr, mask, &mut init) };
        ret == 0 && attr.qp_state == raw::ib_qp_state_IB_QPS_ERR
    }

    /// Whether [`QueuePair::fail`] was called.
    pub(crate) fn is_ended(&self) -> bool {
        // Callers of either take turns: they hold the endpoint's lock.
        self.0.ended.load(Ordering::Relaxed)
    }

    /// Moves it to ERR: what is posted gets flushed.
    pub(crate) fn fail(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
        let mut attr = raw::ib_qp_attr {
            qp_state: raw::ib_qp_state_IB_QPS_ERR,
            ..Default::default()
        };
        // From any state but RESET, in which it never is here, that is allowed.
        let _ = self.modify(&mut attr, raw::ib_qp_attr_mask_IB_QP_STATE as c_int);
    }

    fn post(&self, slot: usize, wr: &SendWr, sges: &[Sge], signaled: bool) -> Result {
        let cqe = core::ptr::from_ref(&self.0.slots.get(slot).ok_or(EINVAL)?.cqe);
        let mut head = raw::ib_send_wr::default();
        head.__bindgen_anon_1.bindgen_union_field = cqe as u64;
        head.sg_list = sges.as_ptr().cast_mut().cast();
        head.num_sge = sges.len() as c_int;
        head.opcode = wr.raw_opcode();
        if signaled {
            head.send_flags |= raw::ib_send_flags_IB_SEND_SIGNALED;
        }
        if wr.fence {
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
        // SAFETY: It is the first field of what its opcode says that it is a part of. The work
        // request and its scatter list are read during the call only; the slot that it names stays
        // until it has completed, by the invariant of `Core`.
        to_result(unsafe { raw::kverbs_post_send(self.0.qp.as_ptr(), whole, &mut bad) })
    }

    /// Posts a work request of a send slot. Any context. The caller counts work requests and
    /// stays within the queue's size.
    pub(crate) fn post_send(&self, slot: u32, wr: &SendWr, sges: &[Sge], last: bool) -> Result {
        let more = if last { 0 } else { self.0.size.tx as usize };
        self.post(slot as usize + more, wr, sges, last)
    }

    /// Posts the probe: a write of no bytes, which any RC peer answers. Any context; one at a
    /// time.
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

    /// Posts a receive. Any context; each slot once at a time.
    pub(crate) fn post_recv(&self, slot: u32, sges: &[Sge]) -> Result {
        let index = 2 * self.0.size.tx as usize + slot as usize;
        let cqe = core::ptr::from_ref(&self.0.slots.get(index).ok_or(EINVAL)?.cqe);
        let mut wr = raw::ib_recv_wr::default();
        wr.__bindgen_anon_1.bindgen_union_field = cqe as u64;
        wr.sg_list = sges.as_ptr().cast_mut().cast();
        wr.num_sge = sges.len() as c_int;
        let mut bad = core::ptr::null();
        fault::device()?;
        // SAFETY: As for sends.
        to_result(unsafe { raw::kverbs_post_recv(self.0.qp.as_ptr(), &wr, &mut bad) })
    }
}

impl<H: Completions> Drop for Core<H> {
    fn drop(&mut self) {
        // The handler has to be there for the completions that this brings about.
        let _handler = &self.handler;
        let broken = *self.broken.get_mut();
        let wait = !broken && self.pd.device().flushes();
        // SAFETY: By the type invariant both are ours. This is the last user, so nobody posts.
        let flushed = unsafe { raw::kverbs_destroy_qp(self.qp.as_ptr(), self.cq.as_ptr(), wait) };
        if wait && !flushed {
            self.pd.device().does_not_flush();
        }
    }
}
