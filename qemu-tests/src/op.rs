// SPDX-License-Identifier: MIT OR Apache-2.0

//! Constructors of operations.

use kfabric_uapi::*;

/// Returns a piece of a region.
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

/// Returns a send.
pub fn send(context: u64, iovs: &[Iov]) -> OpEntry {
    entry(KFI_OP_SEND, context, iovs)
}

/// Returns a receive.
pub fn recv(context: u64, iovs: &[Iov]) -> OpEntry {
    entry(KFI_OP_RECV, context, iovs)
}

/// Returns a write to a peer's memory.
pub fn write(context: u64, iovs: &[Iov], remote_addr: u64, key: u64) -> OpEntry {
    OpEntry {
        remote_addr,
        key,
        ..entry(KFI_OP_WRITE, context, iovs)
    }
}

/// Returns a read of a peer's memory.
pub fn read(context: u64, iovs: &[Iov], remote_addr: u64, key: u64) -> OpEntry {
    OpEntry {
        remote_addr,
        key,
        ..entry(KFI_OP_READ, context, iovs)
    }
}

/// Returns a commit of `len` bytes of a peer's memory.
pub fn commit(context: u64, remote_addr: u64, key: u64, len: u64) -> OpEntry {
    OpEntry {
        remote_addr,
        key,
        inject_len: len,
        ..entry(KFI_OP_COMMIT, context, &[])
    }
}

/// Returns an atomic of form `op` (`KFI_OP_ATOMIC` and others). The pair names the atomic operation
/// and the type of its values. `values`, the operands and behind them the compare values, must live
/// until the operation is submitted.
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

/// Makes a send or write carry its payload in the call; `data` must live until the operation is
/// submitted.
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
