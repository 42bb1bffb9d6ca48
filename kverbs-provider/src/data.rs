// SPDX-License-Identifier: GPL-2.0
//! The data path of a connection: posting operations and completing them.
//!
//! Posting runs in any context. Each side has a lock that disables interrupts, held while work
//! requests are built and posted to the device. The memory is allocated when the endpoint is
//! created, with a slot for each operation that the endpoint may have outstanding.
//!
//! An operation is one work request, unless it is one-sided and its memory has more pieces than a
//! work request has scatter entries. Then it is several, of which the last is signaled and carries
//! the completion data. The transmit side counts work requests ("credits"). The device's queue has
//! as many entries, so it cannot overflow.
//!
//! | module | contents |
//! |---|---|
//! | [`tx`] | the transmit side: posting, completions, the probe of an idle connection |
//! | [`rx`] | the receive side |
//! | [`rma`] | work requests of one-sided operations |
//! | [`atomic`] | atomics that verbs has |
//! | [`commit`] | durable writes, after their acknowledgement |
//! | [`level`] | levels of completion that writes reach |
//! | [`local`] | scatter entries of an operation's local memory |
//! | [`deferred`] | operations that wait for ordered keys |

pub(crate) mod atomic;
mod commit;
mod deferred;
pub(crate) mod level;
mod local;
mod rma;
mod rx;
mod tx;

use core::{
    cell::Cell,
    sync::atomic::AtomicBool, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    bindings,
    prelude::*,
    sync::{
        Arc,
        ArcBorrow, //
    },
    time::{
        delay::fsleep,
        Delta, //
    }, //
};

use self::{
    rx::Rx,
    tx::Tx, //
};
use crate::{
    errno,
    ib::{
        device::Device,
        dma::DmaBuf,
        qp::{
            Completions,
            QpSize,
            QueuePair, //
        },
        wr::{
            status,
            Opcode, //
        }, //
    },
    key::group::Group,
    limits::{
        ANSWER_MS,
        ANSWER_POLLS, //
    }, //
};
use kfabric::{
    base::errno::eopnotsupp,
    ep::OpToken,
    new_irqlock,
    op::{
        OpDesc,
        OpKind, //
    },
    sys::IrqLock, //
};

/// The error of a refused operation, and the operation's token.
pub(crate) type Refused = (Error, OpToken);

/// A token in its slot. A `Cell` has no niche, so that an `Option` around it has a tag of its own.
/// With a tag inside the token, the compiler would copy whole tokens.
type Kept = Cell<OpToken>;

/// The connection to which a data path belongs.
pub(crate) trait Owner: Completions {
    /// Returns the connection's protection group.
    fn group(&self) -> &Arc<Group>;

    /// Ends the connection with a positive errno.
    ///
    /// Context: any.
    fn fail(this: ArcBorrow<'_, Self>, err: u32);

    /// Schedules a commit of the writes that wait for it.
    ///
    /// Context: any.
    fn commit(this: ArcBorrow<'_, Self>);
}

/// Both sides of a connection's data path.
#[pin_data]
pub(crate) struct DataPath<H: Owner> {
    #[pin]
    tx: IrqLock<Tx<H>>,
    #[pin]
    rx: IrqLock<Rx<H>>,
    /// True if operations may be deferred; written under the lock of the transmit side.
    holding: AtomicBool,
    size: QpSize,
    /// True if the end of a connection by the peer flushes the queue pair, as on iWARP.
    flushed_by_peer: bool,
    device: Arc<Device>,
}

/// Returns the slots 0 to `n` - 1 as a stack with 0 on top.
fn all_free(n: u32) -> Result<KVVec<u32>> {
    let mut free = KVVec::with_capacity(n as usize, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
    for slot in (0..n).rev() {
        free.push(slot, GFP_KERNEL_ACCOUNT)?;
    }
    Ok(free)
}

/// Returns the errno with which a status ends the connection: every failure ends it. A flush is
/// only the consequence of another failure.
pub(crate) fn fatal(code: u32) -> Option<u32> {
    match code {
        status::SUCCESS => None,
        status::FLUSH => Some(bindings::ECONNABORTED),
        other => Some(errno::of_status(other)),
    }
}

impl<H: Owner> DataPath<H> {
    /// Returns the status of a completion of the transmit side.
    ///
    /// On iWARP the end of the connection may interrupt an operation. siw does not call that a flush:
    /// a message or write has `IB_WC_LOC_QP_OP_ERR` (`siw_qp_sq_process()`), and a read with a part of
    /// its answer has `IB_WC_GENERAL_ERR` (`siw_rdmap_complete()`).
    fn sent_status(&self, code: u32) -> u32 {
        match code {
            status::LOC_QP_OP | status::GENERAL if self.flushed_by_peer => status::FLUSH,
            other => other,
        }
    }

    /// Returns the errno with which the status of a receive or of a probe ends the connection.
    fn fatal_unless_ended(&self, code: u32) -> Option<u32> {
        fatal(code).filter(|_| !(self.flushed_by_peer && code == status::FLUSH))
    }

    /// Allocates the slots for `size` on `device`.
    pub(crate) fn new(size: QpSize, device: Arc<Device>) -> Result<impl PinInit<Self>> {
        // A domain keeps its level if the administrator forbids durable writes meanwhile.
        let tx = Tx::<H>::new(size.tx, level::can_be_durable(&device))?;
        let rx = Rx::<H>::new(size.rx)?;
        Ok(pin_init!(Self {
            tx <- new_irqlock!(tx, "kverbs_tx"),
            rx <- new_irqlock!(rx, "kverbs_rx"),
            holding: AtomicBool::new(false),
            size,
            flushed_by_peer: device.is_iwarp(),
            device,
        }))
    }

    /// Returns the required size of the queue pair.
    pub(crate) fn size(&self) -> QpSize {
        self.size
    }

    /// Accepts receives from now on.
    pub(crate) fn install(&self, qp: &QueuePair<H>, inject: DmaBuf) {
        {
            let mut tx = self.tx.lock();
            tx.qp = Some(qp.clone());
            tx.may_sleep = qp.may_sleep();
            tx.inject = Some(inject);
        }
        let mut rx = self.rx.lock();
        rx.may_sleep = qp.may_sleep();
        rx.qp = Some(qp.clone());
    }

    /// Returns whether the device accepted only a part of an operation. No completion reports its
    /// end; it completes when the queue pair is destroyed.
    pub(crate) fn is_torn(&self) -> bool {
        self.tx.lock().torn
    }

    /// Accepts all operations from now on.
    pub(crate) fn open(&self) {
        self.tx.lock().open = true;
    }

    /// Returns whether local operations wait for the peer's answer.
    fn is_waiting(&self) -> bool {
        let tx = self.tx.lock();
        tx.open && !tx.is_idle()
    }

    /// Waits a moment for the peer's last answers.
    ///
    /// Answers and the peer's disconnect request take different ways, so an answer may arrive
    /// later. An answer says more than the flush that would otherwise complete the operation.
    pub(crate) fn await_answers(&self) {
        for _ in 0..ANSWER_POLLS {
            if !self.is_waiting() {
                break;
            }
            fsleep(Delta::from_millis(ANSWER_MS));
        }
    }

    /// Refuses further operations and cancels deferred ones. Operations on the device still
    /// complete.
    pub(crate) fn stop(&self) {
        let tx_qp = {
            let mut tx = self.tx.lock();
            tx.open = false;
            tx.qp.take()
        };
        let rx_qp = self.rx.lock().qp.take();
        // Drop the queue pairs without the locks.
        drop((tx_qp, rx_qp));
        // Deferred operations were not posted, so no completion ends them. Each completes with
        // ECANCELED.
        while let Some(mut token) = self.cancel_deferred() {
            local::unmap_lent(&self.device, &mut token);
            drop(token);
        }
        // Nor is a write on the device that waits for a commit.
        while let Some(token) = self.cancel_commit() {
            drop(token);
        }
    }

    /// Cancels the operations that a destroyed queue pair left, and frees the inject buffer.
    pub(crate) fn sweep(&self) {
        let inject = self.tx.lock().inject.take();
        drop(inject);
        for slot in 0..self.size.tx as usize {
            let token = self.tx.lock().slots[slot].token.take();
            if let Some(mut token) = token.map(Cell::into_inner) {
                local::unmap_lent(&self.device, &mut token);
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
        owner: ArcBorrow<'_, H>,
        op: &OpDesc<'_>,
        token: OpToken,
    ) -> Result<(), Refused> {
        match op.kind {
            OpKind::Recv => self.post_recv(&owner, token),
            OpKind::Send => self.post_send(owner, op, token, Opcode::Send),
            OpKind::Read => self.post_send(owner, op, token, Opcode::Read),
            // A commit is a write of no bytes, whose acknowledgement follows those of earlier writes.
            OpKind::Write | OpKind::Commit => self.post_send(owner, op, token, Opcode::Write),
            OpKind::Atomic | OpKind::Fetch => match atomic::opcode(op) {
                Some(opcode) => self.post_send(owner, op, token, opcode),
                None => Err((eopnotsupp(), token)),
            },
        }
    }
}
