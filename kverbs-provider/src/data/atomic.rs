// SPDX-License-Identifier: GPL-2.0
//! Atomics (`fi_atomic(3)`) on verbs (IBTA 9.4.5). They have one value of 8 bytes, add or compare,
//! and always return the old value.
//!
//! An atomic write of a value is an RDMA WRITE, as in libfabric's verbs provider. A kernel consumer
//! cannot post the ATOMIC WRITE of IBTA A19: rxe would take it without the peer's address. An RDMA
//! WRITE is ordered on its queue pair, but not atomic against additions and comparisons of others.
//!
//! Atomics are atomic against other atomics of the same device. They are atomic against the
//! target's processors only on devices that report `IB_ATOMIC_GLOB`; rxe does not.

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

/// Returns whether verbs has the atomic operation.
pub(crate) fn offered(form: Form, op: Op, ty: Datatype) -> bool {
    let has = match form {
        Form::Base => matches!(op, Op::Sum | Op::Write),
        Form::Fetch => matches!(op, Op::Sum | Op::Read),
        Form::Compare => op == Op::Cswap,
    };
    // CAST: The value is 8.
    has && ty.size() == SIZE as usize
}

/// Returns the device's opcode of an operation, or `None` if the operation is not [offered].
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

/// Returns the bytes that an operation sends without registered memory: injected ones, or the value
/// to write.
pub(crate) fn payload<'a>(op: &OpDesc<'a>) -> Option<&'a [u8]> {
    let atomic = op.atomic.filter(|desc| desc.op == Op::Write);
    op.inject.or(atomic.map(|desc| desc.operands))
}
