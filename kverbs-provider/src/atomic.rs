// SPDX-License-Identifier: GPL-2.0
//! Atomics (`fi_atomic(3)`), as far as verbs has them (IBTA 9.4.5): of 8 bytes, one at a time, an
//! addition or a comparison, and what was there always comes back.
//!
//! To write a value is an RDMA WRITE, as in libfabric's verbs provider: a kernel consumer cannot post
//! the ATOMIC WRITE of IBTA A19, which rxe takes from it without the peer's address. An RDMA WRITE is
//! ordered on its queue pair; it is not atomic against the additions and comparisons of others.
//!
//! Devices do them against each other; against the target's processors only those that say so
//! (`IB_ATOMIC_GLOB`), of which rxe is none.

use crate::ib::wr::Opcode;
use kfabric::{
    op::OpDesc,
    pure::atomic::{
        Datatype,
        Form,
        Op, //
    }, //
};

/// Bytes of a value.
pub(crate) const SIZE: u32 = 8;

/// Whether verbs has it.
pub(crate) fn offered(form: Form, op: Op, ty: Datatype) -> bool {
    let has = match form {
        Form::Base => matches!(op, Op::Sum | Op::Write),
        Form::Fetch => matches!(op, Op::Sum | Op::Read),
        Form::Compare => op == Op::Cswap,
    };
    // CAST: A small number.
    has && ty.size() == SIZE as usize
}

/// What it is for the device; nothing for what is not [offered].
pub(crate) fn opcode(op: &OpDesc<'_>) -> Option<Opcode> {
    let desc = op.atomic?;
    let value = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_ne_bytes);
    match desc.op {
        Op::Sum => Some(Opcode::FetchAdd {
            add: value(desc.operands)?,
        }),
        Op::Read => Some(Opcode::FetchAdd { add: 0 }),
        Op::Write => Some(Opcode::Write),
        Op::Cswap => Some(Opcode::CmpSwap {
            compare: value(desc.compare)?,
            swap: value(desc.operands)?,
        }),
        _ => None,
    }
}

/// What an operation sends that is no registered memory: what is injected, or the value to write.
pub(crate) fn payload<'a>(op: &OpDesc<'a>) -> Option<&'a [u8]> {
    let atomic = op.atomic.filter(|desc| desc.op == Op::Write);
    op.inject.or(atomic.map(|desc| desc.operands))
}
