// SPDX-License-Identifier: GPL-2.0
//! Messages: copies to the peer's receives.

use kernel::bindings;

use super::{
    budget::Budget,
    local::local,
    path::{
        DataPath,
        Owner, //
    },
    rx::Taken,
    schedule::Step,
    tx::TxOp, //
};
use crate::errno;
use kfabric::op::Outcome;

impl<E: Owner> DataPath<E> {
    /// Executes a part of a message. Returns `None` if more parts follow.
    pub(super) fn send_part(peer: &Self, op: &mut TxOp, budget: &mut Budget) -> Option<Step> {
        let token = match peer.take_receive() {
            Taken::Receive(token) => token,
            Taken::None => return Some(Step::Stall),
            Taken::Closed => return Some(Step::Cut),
        };
        if op.len > token.len() {
            let outcome = Outcome {
                err: bindings::EMSGSIZE,
                prov_errno: errno::code(bindings::EMSGSIZE),
                olen: op.len - token.len(),
                ..Outcome::default()
            };
            peer.complete_receive(token, outcome);
            return Some(Step::Failed(bindings::EREMOTEIO, bindings::EMSGSIZE));
        }
        let n = budget.chunk(op.len - op.done);
        op.done += op.copy_to(n, local(&token, op.done, n));
        if op.done < op.len {
            peer.put_receive(token);
            return None;
        }
        let outcome = Outcome {
            len: op.len,
            imm: op.imm,
            ..Outcome::default()
        };
        peer.complete_receive(token, outcome);
        Some(Step::Done)
    }
}
