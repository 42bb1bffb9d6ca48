// SPDX-License-Identifier: GPL-2.0
//! RMA with unregistered local memory of the posting task.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};

use super::{
    budget::Budget,
    path::{
        DataPath,
        Owner,
        Refused, //
    },
    schedule::Step,
    tx::TxOp, //
};
use crate::{
    key::table::Window,
    sys::mem, //
};
use kfabric::{
    base::errno::enotconn,
    ep::OpToken,
    op::{
        OpDesc,
        OpKind, //
    },
    pure::sendq::{
        Event,
        State, //
    },
};

/// Bytes of unregistered memory that are faulted in at a time.
const PART: u64 = 64 << 10;
/// Maximum number of consecutive faults without a byte copied.
const FAILURES_MAX: u32 = 1000;

impl<E: Owner> DataPath<E> {
    /// Takes the next operation of the send queue. `left`: the task was outside of the gate before.
    /// Returns `None` if another party has taken over the send queue meanwhile.
    fn reenter(&self, left: bool) -> Option<Option<TxOp>> {
        let mut tx = self.tx.lock();
        let is_back = self.scheduler.apply(Event::Return).is_some();
        (is_back || !left).then(|| tx.waiting.pop())
    }

    /// Puts an operation back before the task leaves the gate. Returns `false` if the transmit side
    /// is closed: the caller must then cancel the operation itself.
    fn leave(&self, place: &mut Option<TxOp>) -> bool {
        let Some(op) = place.take() else { return false };
        let mut tx = self.tx.lock();
        let lost = tx.waiting.push_front(op);
        let away = self.scheduler.apply(Event::Leave).is_some();
        drop(tx);
        // Cannot fail: the operation had a place before. A failure would cancel the operation.
        drop(lost);
        away
    }

    /// As [`DataPath::post_send`], with unregistered local memory of the task.
    ///
    /// Missing pages are faulted in outside of the gate, because that takes as long as their pager
    /// likes. Meanwhile the operation is in the send queue, where a close finds it. No other party
    /// runs the send queue meanwhile.
    pub(super) fn post_unregistered(
        endpoint: &Arc<E>,
        op: &OpDesc<'_>,
        token: OpToken,
    ) -> Result<(), Refused> {
        let this = endpoint.path();
        let (kind, len) = (op.kind, op.len);
        let Some(memory) = token.unregistered() else {
            return Err((EINVAL, token));
        };
        {
            let Some(_visit) = this.visit() else {
                return Err((enotconn(), token));
            };
            let mut tx = this.tx.lock();
            let state = this.scheduler.state();
            if !state.is_open() {
                return Err((enotconn(), token));
            }
            // Behind other operations a worker would have to execute it, which cannot access this
            // memory.
            if state != State::Idle || this.used.load(Ordering::Acquire) >= this.tx_size {
                return Err((EAGAIN, token));
            }
            if let Err(op) = tx.waiting.push(TxOp::new(op, token)) {
                return Err((EAGAIN, op.token));
            }
            this.used.fetch_add(1, Ordering::Relaxed);
            let _ = this.scheduler.apply(Event::PostAway);
        }
        let budget = &mut Budget::caller(true);
        let (mut missing, mut failures, mut left) = (false, 0, true);
        loop {
            let (away, done) = {
                // A close is in progress and cancels the operation.
                let Some(_visit) = this.visit() else {
                    return Ok(());
                };
                let Some(mut first) = this.reenter(left) else {
                    return Ok(());
                };
                let (Some(op), Some(peer)) = (&mut first, this.peer()) else {
                    Self::run(endpoint, first, budget);
                    return Ok(());
                };
                let before = op.done;
                let killed = !budget.goes_on();
                let step = match (killed, missing) {
                    (true, _) => Some(Step::Failed(bindings::ECANCELED, bindings::EREMOTEIO)),
                    (_, true) => Some(Step::Failed(bindings::EFAULT, bindings::EREMOTEIO)),
                    _ => this.execute_part(&peer, op, budget),
                };
                failures = if op.done == before { failures + 1 } else { 0 };
                let done = op.done;
                if let Some(step) = step {
                    let err = match step {
                        Step::Failed(bindings::EFAULT, _) => Some(EFAULT),
                        _ => killed.then_some(EINTR),
                    };
                    if let (Some(err), 0) = (err, done) {
                        // No byte was copied yet, so the post can be refused.
                        if op.claimed {
                            let _ = this.table.with(op.key, Window::unclaim);
                        }
                        let refused = first.take();
                        this.used.fetch_sub(1, Ordering::Release);
                        Self::run(endpoint, None, budget);
                        return match refused {
                            Some(op) => Err((err, op.token)),
                            None => Ok(()),
                        };
                    }
                    if Self::conclude(endpoint, &peer, &mut first, step) {
                        Self::run(endpoint, None, budget);
                    }
                    return Ok(());
                }
                (this.leave(&mut first), done)
            };
            left = away;
            if away && failures != 0 {
                let at = memory.addr.wrapping_add(done);
                // CAST: At most `PART`.
                let n = (len - done).min(PART) as usize;
                let present = mem::fault_in(at, n, kind == OpKind::Read);
                missing = present == 0 || failures > FAILURES_MAX;
            }
        }
    }
}
