// SPDX-License-Identifier: GPL-2.0
//! Reads and writes from and to memory of the task's own, which is not registered.

use core::sync::atomic::Ordering;
use kernel::{
    bindings,
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    errno::enotconn,
    op::{
        OpDesc,
        OpKind,
        OpToken, //
    }, //
};

use super::{
    Path,
    Refused,
    Step,
    TxOp, //
};
use crate::{
    budget::Budget,
    endpoint::Endpoint,
    sys,
    table::Window, //
};

/// Bytes of a task's own memory that are brought at a time.
const PART: u64 = 64 << 10;
/// How often in a row it may be gone again before anything of it was copied.
const FAILURES_MAX: u32 = 1000;

impl Path {
    /// Takes what is to be done next, by who drives; `left`: and was away. Then somebody may have taken
    /// over, to end all: `None`, and what waits is not ours any more.
    fn back(&self, left: bool) -> Option<Option<TxOp>> {
        let mut tx = self.tx.lock();
        let away = core::mem::replace(&mut tx.away, false);
        (away || !left).then(|| tx.waiting.pop())
    }

    /// Puts an operation back, to leave for what is missing. Whether to: not once all is to end, for
    /// then it is for us to end it.
    fn leave(&self, place: &mut Option<TxOp>) -> bool {
        let Some(op) = place.take() else { return false };
        let mut tx = self.tx.lock();
        let lost = tx.waiting.push_front(op);
        tx.away = tx.open;
        let away = tx.open;
        drop(tx);
        // There is room: it was accepted. If there were not, it would be cancelled.
        drop(lost);
        away
    }

    /// As [`Path::post_send`], from or to memory of the task's own, and not inside the gate: what is not
    /// present of it comes when whoever brings it likes to. Meanwhile the operation is with those that
    /// wait, where closing finds it, and nobody else goes on with it.
    pub(super) fn post_unregistered(
        endpoint: &Arc<Endpoint>,
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
            if !tx.open {
                return Err((enotconn(), token));
            }
            // Behind others it would be somebody else's to do.
            if tx.driven || tx.stalled || this.used.load(Ordering::Acquire) >= this.tx_size {
                return Err((EAGAIN, token));
            }
            if let Err(op) = tx.waiting.push(Self::take(op, token)) {
                return Err((EAGAIN, op.token));
            }
            this.used.fetch_add(1, Ordering::Relaxed);
            tx.driven = true;
            tx.away = true;
        }
        let budget = &mut Budget::caller(true);
        let (mut missing, mut failures, mut left) = (false, 0, true);
        loop {
            let (away, done) = {
                // If it is being closed, that has ended it, or will.
                let Some(_visit) = this.visit() else {
                    return Ok(());
                };
                let Some(mut first) = this.back(left) else {
                    return Ok(());
                };
                let (Some(op), Some(peer)) = (&mut first, this.peer()) else {
                    Self::drive(endpoint, first, budget);
                    return Ok(());
                };
                let before = op.done;
                let killed = !budget.goes_on();
                let step = match (killed, missing) {
                    (true, _) => Some(Step::Failed(bindings::ECANCELED, bindings::EREMOTEIO)),
                    (_, true) => Some(Step::Failed(bindings::EFAULT, bindings::EREMOTEIO)),
                    _ => this.part(&peer, op, budget),
                };
                failures = if op.done == before { failures + 1 } else { 0 };
                let done = op.done;
                if let Some(step) = step {
                    let err = match step {
                        Step::Failed(bindings::EFAULT, _) => Some(EFAULT),
                        _ => killed.then_some(EINTR),
                    };
                    if let (Some(err), 0) = (err, done) {
                        // Nothing has happened yet.
                        if op.claimed {
                            let _ = this.table.with(op.key, Window::unclaim);
                        }
                        let refused = first.take();
                        this.used.fetch_sub(1, Ordering::Release);
                        Self::drive(endpoint, None, budget);
                        return match refused {
                            Some(op) => Err((err, op.token)),
                            None => Ok(()),
                        };
                    }
                    if Self::settle(endpoint, &peer, &mut first, step) {
                        Self::drive(endpoint, None, budget);
                    }
                    return Ok(());
                }
                (this.leave(&mut first), done)
            };
            left = away;
            if away && failures != 0 {
                let at = memory.addr.wrapping_add(done);
                // CAST: A part.
                let n = (len - done).min(PART) as usize;
                let present = sys::fault_in(at, n, kind == OpKind::Read);
                missing = present == 0 || failures > FAILURES_MAX;
            }
        }
    }
}
