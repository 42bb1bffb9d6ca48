// SPDX-License-Identifier: MIT OR Apache-2.0

//! Operations as a test writes them down.

use kfabric_uapi::*;

/// A piece of a region.
pub fn iov(region: u64, offset: u64, len: u64) -> Iov {
    Iov {
        region,
        offset,
        len,
    }
}

fn entry(op: u32, context: u64, iovs: &[Iov]) -> OpEntry {
    let mut entry = OpEntry {
        op,
        context,
        iov_count: iovs.len() as u32,
        ..Default::default()
    };
    entry.iov[..iovs.len()].copy_from_slice(iovs);
    entry
}

/// A send.
pub fn send(context: u64, iovs: &[Iov]) -> OpEntry {
    entry(KFI_OP_SEND, context, iovs)
}

/// A receive.
pub fn recv(context: u64, iovs: &[Iov]) -> OpEntry {
    entry(KFI_OP_RECV, context, iovs)
}

/// A write to a peer's memory.
pub fn write(context: u64, iovs: &[Iov], remote_addr: u64, key: u64) -> OpEntry {
    OpEntry {
        remote_addr,
        key,
        ..entry(KFI_OP_WRITE, context, iovs)
    }
}

/// A read of a peer's memory.
pub fn read(context: u64, iovs: &[Iov], remote_addr: u64, key: u64) -> OpEntry {
    OpEntry {
        remote_addr,
        key,
        ..entry(KFI_OP_READ, context, iovs)
    }
}

/// An atomic, its kind in `op` (`KFI_OP_ATOMIC` and others): `what` is done to values of `datatype`.
/// `values`, the operands and behind them those to compare with, must live until it is submitted.
pub fn atomic(
    op: u32,
    (what, datatype): (u32, u32),
    values: &[u8],
    result: &[Iov],
    remote: (u64, u64),
) -> OpEntry {
    OpEntry {
        remote_addr: remote.0,
        key: remote.1,
        inject: values.as_ptr() as u64,
        inject_len: values.len() as u64,
        atomic_op: what,
        datatype,
        ..entry(op, 1, result)
    }
}

/// Makes a send or write carry its payload in the call; `data` must live until it is submitted.
pub fn inject(mut entry: OpEntry, data: &[u8]) -> OpEntry {
    entry.flags |= KFI_INJECT;
    entry.inject = data.as_ptr() as u64;
    entry.inject_len = data.len() as u64;
    entry
}

/// Adds completion data for the peer.
pub fn with_data(mut entry: OpEntry, data: u64) -> OpEntry {
    entry.flags |= KFI_REMOTE_CQ_DATA;
    entry.data = data;
    entry
}

/// Adds flags.
pub fn with_flags(mut entry: OpEntry, flags: u64) -> OpEntry {
    entry.flags |= flags;
    entry
}
