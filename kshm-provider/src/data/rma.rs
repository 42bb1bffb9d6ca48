// SPDX-License-Identifier: GPL-2.0
//! RMA: writes to and reads from the memory of the peer's keys.

use kernel::bindings;

use super::{
    budget::Budget,
    path::{
        DataPath,
        Owner, //
    },
    rx::Taken,
    schedule::Step,
    tx::TxOp, //
};
use crate::sys::mem;
use kfabric::{
    auth,
    op::Outcome,
    uapi::{
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    }, //
};

/// Returns the time of a clock that never goes back, in seconds.
fn seconds() -> u32 {
    // CAST: Keeps the low half.
    (auth::now_ns() / 1_000_000_000) as u32
}

impl<E: Owner> DataPath<E> {
    /// Executes a part of a write. Returns `None` if more parts follow.
    pub(super) fn write_part(
        &self,
        peer: &Self,
        op: &mut TxOp,
        budget: &mut Budget,
    ) -> Option<Step> {
        if op.done < op.len {
            let n = budget.chunk(op.len - op.done);
            let copied = self.table.with(op.key, |window| {
                if op.durable && !window.memory.persistence().is_durable_by_cpu() {
                    // Before `TxOp::find`, so that a refusal does not use up a single-use key.
                    let refused = Err(Step::Refused(bindings::EOPNOTSUPP));
                    return op
                        .is_inside(window, peer, KFI_REMOTE_WRITE)
                        .then_some(refused);
                }
                let at = op.find(window, peer, KFI_REMOTE_WRITE)?;
                // CAST: The range is inside the window.
                let at = at + op.done as usize;
                if !op.durable {
                    return Some(Ok(
                        op.copy_to(n, mem::pieces(&window.memory, at, n as usize))
                    ));
                }
                Some(Ok(op.copy_durably(n, &window.memory, at)))
            });
            match copied.flatten() {
                Some(Ok(n)) => op.done += n,
                Some(Err(step)) => return Some(step),
                None => return Some(Step::not_allowed()),
            }
            if op.done < op.len {
                return None;
            }
        }
        Some(Self::notify(peer, op, op.len))
    }

    /// Executes a part of a commit: writes the lines of the range back. Returns `None` if more parts
    /// follow. A commit is no use of a single-use key.
    pub(super) fn commit_part(
        &self,
        peer: &Self,
        op: &mut TxOp,
        budget: &mut Budget,
    ) -> Option<Step> {
        if op.done < op.len {
            let n = budget.chunk(op.len - op.done);
            let refused = self.table.with(op.key, |window| {
                let Some(at) = op.place(window, peer, KFI_REMOTE_WRITE) else {
                    return Some(bindings::EACCES);
                };
                if !window.memory.persistence().is_durable_by_cpu() {
                    return Some(bindings::EOPNOTSUPP);
                }
                // CAST: The range is inside the window.
                let (at, n) = (at + op.done as usize, n as usize);
                mem::write_back(&window.memory, at, n);
                // The next part may run on another processor.
                mem::fence_durable();
                None
            });
            // No key has the value.
            match refused.unwrap_or(Some(bindings::EKEYREVOKED)) {
                None => op.done += n,
                Some(bindings::EOPNOTSUPP) => return Some(Step::Refused(bindings::EOPNOTSUPP)),
                Some(_) if self.refusals.lock().refuse(op.key) => return Some(Step::not_allowed()),
                Some(err) => return Some(Step::Refused(err)),
            }
            if op.done < op.len {
                return None;
            }
            // Once: a commit of no bytes proves no key, and one that waits for a receive comes again.
            self.refusals.lock().succeed(seconds);
        }
        Some(Self::notify(peer, op, 0))
    }

    /// Completes a receive of the peer if the operation has completion data. The operation has
    /// written `len` bytes.
    fn notify(peer: &Self, op: &TxOp, len: u64) -> Step {
        if op.imm.is_none() {
            return Step::Done;
        }
        match peer.take_receive() {
            Taken::Receive(token) => {
                let outcome = Outcome {
                    len,
                    imm: op.imm,
                    remote_write: true,
                    ..Outcome::default()
                };
                peer.complete_receive(token, outcome);
                Step::Done
            }
            Taken::None => Step::Stall,
            Taken::Closed => Step::Cut,
        }
    }

    /// Executes a part of a read. Returns `None` if more parts follow.
    pub(super) fn read_part(
        &self,
        peer: &Self,
        op: &mut TxOp,
        budget: &mut Budget,
    ) -> Option<Step> {
        if op.len == 0 {
            return Some(Step::Done);
        }
        let n = budget.chunk(op.len - op.done);
        let copied = self.table.with(op.key, |window| {
            let at = op.find(window, peer, KFI_REMOTE_READ)?;
            // CAST: The range is inside the window.
            let from = mem::pieces(&window.memory, at + op.done as usize, n as usize);
            Some(op.copy_from(n, from))
        });
        let Some(n) = copied.flatten() else {
            return Some(Step::not_allowed());
        };
        op.done += n;
        (op.done >= op.len).then_some(Step::Done)
    }
}
