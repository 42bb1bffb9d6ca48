// SPDX-License-Identifier: GPL-2.0
//! The description of one operation, which the provider gets, and the operation's result.
//!
//! The token that completes the operation is [`OpToken`](crate::ep::OpToken).

use crate::pure::atomic::{
    Datatype,
    Op, //
};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Sends a message.
    Send,
    /// Receives a message.
    Recv,
    /// Reads remote memory into local.
    Read,
    /// Writes local memory to remote.
    Write,
    /// Changes remote values, without a result.
    Atomic,
    /// Changes or reads remote values; their former values go to local memory.
    Fetch,
    /// Makes a range of remote memory durable.
    Commit,
}

/// Parameters of an atomic operation.
#[derive(Clone, Copy)]
pub struct AtomicDesc<'a> {
    /// The operation on each value.
    pub op: Op,
    /// The type of the values.
    pub ty: Datatype,
    /// The operands, in the machine's byte order; none for [`Op::Read`].
    pub operands: &'a [u8],
    /// As many comparands, if `op` compares; else none.
    pub compare: &'a [u8],
}

/// Description of an operation for the provider. Local memory is in the token
/// ([`OpToken::segs`](crate::ep::OpToken::segs)).
#[derive(Clone, Copy)]
pub struct OpDesc<'a> {
    /// The kind.
    pub kind: OpKind,
    /// Completion data for the peer.
    pub imm: Option<u32>,
    /// Wait for all earlier operations first.
    pub fence: bool,
    /// The write completes only when its bytes are durable at the target. If the target's memory
    /// cannot do that, the operation fails with `EOPNOTSUPP`; a provider that reaches the level
    /// natively then writes no byte. Always set for a commit.
    pub durable: bool,
    /// Payload to take before `post` returns; the token then has no segments.
    pub inject: Option<&'a [u8]>,
    /// For atomics only: the parameters, which `post` reads before it returns.
    pub atomic: Option<AtomicDesc<'a>>,
    /// For one-sided operations: the peer's address.
    pub remote_addr: u64,
    /// For one-sided operations: the peer's key.
    pub key: u64,
    /// Bytes in all segments, or of the injected payload; for an atomic, bytes of the remote
    /// values.
    pub len: u64,
    /// For commits only: bytes of the remote range.
    pub commit_len: u64,
    /// The caller is a task that holds no lock: `post` may sleep until the operation is complete.
    pub may_sleep: bool,
}

impl OpDesc<'_> {
    /// Returns the bytes of remote memory that the operation makes durable.
    #[inline(always)]
    pub fn durable_len(&self) -> u64 {
        match (self.kind, self.durable) {
            (OpKind::Commit, _) => self.commit_len,
            (_, true) => self.len,
            (_, false) => 0,
        }
    }
}

/// Result of an operation.
#[derive(Clone, Copy, Default)]
pub struct Outcome {
    /// 0, or a positive errno.
    pub err: u32,
    /// The provider's own code.
    pub prov_errno: u32,
    /// For receives: bytes received. Otherwise ignored.
    pub len: u64,
    /// For receives that fail with `EMSGSIZE`: bytes that did not fit. 0 if the provider does not
    /// know the number.
    pub olen: u64,
    /// For receives: the peer's completion data.
    pub imm: Option<u32>,
    /// For receives: a peer's write with data has used up the receive.
    pub remote_write: bool,
}
