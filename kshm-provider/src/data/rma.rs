// SPDX-License-Identifier: GPL-2.0
//! RMA: writes to and reads from the memory of the peer's keys.

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
    op::Outcome,
    uapi::{
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    }, //
};

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
                let at = op.find(window, peer, KFI_REMOTE_WRITE)?;
                // CAST: The range is inside the window.
                let to = mem::pieces(&window.memory, at + op.done as usize, n as usize);
                Some(op.copy_to(n, to))
            });
            let Some(n) = copied.flatten() else {
                return Some(Step::not_allowed());
            };
            op.done += n;
            if op.done < op.len {
                return None;
            }
        }
        if op.imm.is_none() {
            return Some(Step::Done);
        }
        match peer.take_receive() {
            Taken::Receive(token) => {
                let outcome = Outcome {
                    len: op.len,
                    imm: op.imm,
                    remote_write: true,
                    ..Outcome::default()
                };
                peer.complete_receive(token, outcome);
                Some(Step::Done)
            }
            Taken::None => Some(Step::Stall),
            Taken::Closed => Some(Step::Cut),
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
