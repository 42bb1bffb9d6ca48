// SPDX-License-Identifier: GPL-2.0
//! Atomics on the memory of the peer's keys.

use super::{
    local::local,
    path::{
        DataPath,
        Owner, //
    },
    schedule::Step,
    tx::TxOp, //
};
use crate::sys::mem;
use kfabric::{
    op::OpKind,
    uapi::{
        KFI_ATOMIC,
        KFI_INJECT_MAX, //
    }, //
};

impl<E: Owner> DataPath<E> {
    /// Executes an atomic as a whole, because it is short.
    pub(super) fn atomic(&self, peer: &Self, op: &mut TxOp) -> Step {
        let Some((what, ty)) = op.atomic else {
            return Step::not_allowed();
        };
        let (size, len) = (ty.size(), op.len as usize);
        let mut fetched = [0; KFI_INJECT_MAX];
        let done = self.table.with(op.key, |window| {
            let at = op.find(window, peer, KFI_ATOMIC)?;
            let values = op.inject.as_ref().map_or(&[][..], |(data, _)| data);
            for (i, old) in fetched[..len].chunks_exact_mut(size).enumerate() {
                let of = |from: usize| -> u64 {
                    let mut bytes = [0; 8];
                    if let Some(value) = values.get(from..from + size) {
                        bytes[..size].copy_from_slice(value);
                    }
                    u64::from_le_bytes(bytes)
                };
                let (operand, compare) = (of(i * size), of(len + i * size));
                let piece = mem::pieces(&window.memory, at + i * size, size).next();
                let there =
                    mem::update(piece, size, |there| what.apply(ty, there, operand, compare));
                old.copy_from_slice(&there.ok()?.to_le_bytes()[..size]);
            }
            Some(())
        });
        if done.flatten().is_none() {
            return Step::not_allowed();
        }
        if op.kind == OpKind::Fetch {
            mem::store(&fetched[..len], local(&op.token, 0, op.len));
        }
        Step::Done
    }
}
