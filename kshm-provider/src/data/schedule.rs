// SPDX-License-Identifier: GPL-2.0
//! The party that runs a send queue: a poster, the poster of a receive, a worker, or a task that
//! stops the endpoint. [`Scheduler`](kfabric::pure::sendq::Scheduler) makes sure that there is at
//! most one.

use core::sync::atomic::{
    fence,
    Ordering, //
};
use kernel::{
    bindings,
    sync::Arc, //
};

use super::{
    budget::Budget,
    path::{
        DataPath,
        Owner, //
    },
    tx::TxOp, //
};
use crate::sys::task::NoPreempt;
use kfabric::{
    op::OpKind,
    pure::sendq::{
        Event,
        State, //
    },
};

/// Result of one step of an operation.
pub(super) enum Step {
    /// The operation is complete.
    Done,
    /// The peer has no receive posted.
    Stall,
    /// A worker must continue.
    Later,
    /// The operation failed with an errno, and no byte has changed. The connection stays.
    Refused(u32),
    /// The connection has ended.
    Cut,
    /// The operation failed, which ends the connection: the local errno, and the peer's errno.
    Failed(u32, u32),
}

impl Step {
    /// Returns the failure of an operation that the peer's key does not permit.
    pub(super) fn not_allowed() -> Self {
        Self::Failed(bindings::EACCES, bindings::EACCES)
    }
}

impl<E: Owner> DataPath<E> {
    /// Continues a peer's send queue that waits for a receive, within the budget of a poster that
    /// must not sleep.
    pub(super) fn kick(endpoint: &Arc<E>) {
        let this = endpoint.path();
        // Ordering: pairs with the fence in `stall()`. Either this party sees `Stalled`, or the
        // peer sees the receive.
        fence(Ordering::SeqCst);
        if this.scheduler.state() != State::Stalled {
            return;
        }
        let Some(_visit) = this.visit() else { return };
        if this.unstall() {
            Self::run(endpoint, None, &mut Budget::caller(false));
        }
    }

    /// Takes over the send queue if it waits for a receive and no party runs it.
    fn unstall(&self) -> bool {
        let _tx = self.tx.lock();
        self.scheduler.apply(Event::Receive).is_some()
    }

    /// Continues the send queue in a worker. The work item makes sure that at most one worker does
    /// so.
    pub(crate) fn go_on(endpoint: &Arc<E>) {
        let Some(_visit) = endpoint.path().visit() else {
            return;
        };
        Self::run(endpoint, None, &mut Budget::worker());
    }

    /// Executes `first` and then all queued operations. The caller is inside the gate, and is the
    /// party that runs the send queue.
    pub(super) fn run(endpoint: &Arc<E>, mut first: Option<TxOp>, budget: &mut Budget) {
        let this = endpoint.path();
        let Some(peer) = this.peer() else {
            // The endpoint was never connected, so no operation was accepted.
            let _tx = this.tx.lock();
            let _ = this.scheduler.apply(Event::Drained);
            return;
        };
        loop {
            if first.is_none() {
                let mut tx = this.tx.lock();
                first = tx.waiting.pop();
                if first.is_none() {
                    let _ = this.scheduler.apply(Event::Drained);
                    return;
                }
            }
            // Borrowed in place, because an operation is large.
            let step = match &mut first {
                Some(op) => this.execute(&peer, op, budget),
                None => continue,
            };
            if !Self::conclude(endpoint, &peer, &mut first, step) {
                return;
            }
            if !budget.another() && !this.tx.lock().waiting.is_empty() {
                E::go_on_later(endpoint);
                return;
            }
        }
    }

    /// Handles the result of one step. Returns whether the caller must continue the send queue.
    pub(super) fn conclude(
        endpoint: &Arc<E>,
        peer: &Arc<E>,
        place: &mut Option<TxOp>,
        step: Step,
    ) -> bool {
        let this = endpoint.path();
        match step {
            Step::Done => this.complete(place, 0),
            Step::Refused(err) => this.complete(place, err),
            Step::Cut => {
                this.cut();
                this.complete(place, bindings::ECANCELED);
            }
            Step::Failed(err, theirs) => {
                this.cut();
                // The operation and the connection's event give the same reason.
                let reported = E::fail_both(endpoint, err, peer, theirs);
                this.complete(place, if reported { err } else { bindings::ECANCELED });
                E::report_both(endpoint, peer);
            }
            Step::Later => {
                this.put_back(place);
                E::go_on_later(endpoint);
                return false;
            }
            Step::Stall => return this.stall(peer, place),
        }
        true
    }

    /// Refuses new operations, and lets the accepted ones end with `ECANCELED`.
    fn cut(&self) {
        let _tx = self.tx.lock();
        let _ = self.scheduler.apply(Event::Cut);
    }

    /// Puts an operation back that waits for a receive. Returns whether to continue, because a
    /// receive was posted meanwhile.
    fn stall(&self, peer: &Arc<E>, place: &mut Option<TxOp>) -> bool {
        self.put_back(place);
        {
            let _tx = self.tx.lock();
            if self.scheduler.apply(Event::Stall).is_none() {
                // `stop()` ran meanwhile, so this party must flush the queue.
                return true;
            }
        }
        // Ordering: pairs with the fence in `kick()`.
        fence(Ordering::SeqCst);
        peer.path().has_receive() && self.unstall()
    }

    /// Executes as much of an operation as the budget permits.
    fn execute(&self, peer: &Arc<E>, op: &mut TxOp, budget: &mut Budget) -> Step {
        loop {
            match self.execute_part(peer, op, budget) {
                Some(step) => return step,
                None if budget.goes_on() => {}
                None => return Step::Later,
            }
        }
    }

    /// Executes a part of an operation. Returns `None` if more parts follow.
    pub(super) fn execute_part(
        &self,
        peer: &Arc<E>,
        op: &mut TxOp,
        budget: &mut Budget,
    ) -> Option<Step> {
        let peer = peer.path();
        if !self.scheduler.state().is_open() {
            return Some(Step::Cut);
        }
        // While this party is inside the gate, the peer's close waits.
        let Some(_visit) = peer.visit() else {
            return Some(Step::Cut);
        };
        if !peer.serving.load(Ordering::Acquire) {
            return Some(Step::Cut);
        }
        // No other task may delay this copy, because a revoke of the key and a close of the peer
        // wait for it.
        let _short = NoPreempt::new();
        match op.kind {
            OpKind::Send => Self::send_part(peer, op, budget),
            OpKind::Write => self.write_part(peer, op, budget),
            OpKind::Commit => self.commit_part(peer, op, budget),
            OpKind::Atomic | OpKind::Fetch => Some(self.atomic(peer, op)),
            _ => self.read_part(peer, op, budget),
        }
    }
}
