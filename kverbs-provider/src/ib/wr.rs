// SPDX-License-Identifier: GPL-2.0
//! Work requests and work completions as plain values.

use core::mem::{
    offset_of,
    MaybeUninit, //
};

use super::raw;

/// Maximum number of scatter entries of a work request; they are built on the stack.
pub(crate) const MAX_SGE: usize = 16;

/// A scatter entry: one piece of local memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

// The RDMA core reads `Sge` as `struct ib_sge`.
const _: () = assert!(size_of::<Sge>() == size_of::<raw::ib_sge>());
const _: () = assert!(offset_of!(Sge, addr) == offset_of!(raw::ib_sge, addr));
const _: () = assert!(offset_of!(Sge, length) == offset_of!(raw::ib_sge, length));
const _: () = assert!(offset_of!(Sge, lkey) == offset_of!(raw::ib_sge, lkey));

impl Sge {
    /// Returns the entry for memory at a device address, under a local key.
    pub(crate) fn new(addr: u64, length: u32, lkey: u32) -> Self {
        Self { addr, length, lkey }
    }
}

/// Uninitialised space for the scatter entries of one work request.
///
/// The count is outside, in [`SgeList`]: inside, it would make the compiler clear the space.
pub(crate) struct SgeRoom(MaybeUninit<[Sge; MAX_SGE]>);

impl SgeRoom {
    /// Returns space on the stack.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }
}

/// Scatter entries of one work request.
///
/// # Invariants
///
/// The first `n` entries are written, and `n` is at most [`MAX_SGE`].
pub(crate) struct SgeList<'a> {
    list: &'a mut SgeRoom,
    n: usize,
}

impl<'a> SgeList<'a> {
    /// Returns an empty list.
    #[inline(always)]
    pub(crate) fn new(list: &'a mut SgeRoom) -> Self {
        // INVARIANT: The first 0 entries are written.
        Self { list, n: 0 }
    }

    /// Adds an entry, or drops it if the list has [`MAX_SGE`] entries.
    #[inline]
    pub(crate) fn push(&mut self, sge: Sge) {
        if self.n < MAX_SGE {
            let first: *mut Sge = self.list.0.as_mut_ptr().cast();
            // SAFETY: The entry is inside the array, by the check above.
            unsafe { first.add(self.n).write(sge) };
            // INVARIANT: The entry `n` is written, and `n` was less than `MAX_SGE`.
            self.n += 1;
        }
    }

    /// Returns the number of entries.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        // INVARIANT: The first 0 entries are written.
        self.n = 0;
    }

    /// Returns the entries.
    #[inline]
    pub(crate) fn get(&self) -> &[Sge] {
        // SAFETY: By the type invariant the first `n` entries are written and inside the array.
        unsafe { core::slice::from_raw_parts(self.list.0.as_ptr().cast(), self.n) }
    }

    /// Returns the total length of all entries in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.get().iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// The operation of a send-side work request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    /// Sends a message.
    Send,
    /// Reads remote memory.
    Read,
    /// Writes remote memory.
    Write,
    /// Adds to a remote value, and reads the old value.
    FetchAdd {
        /// The addend.
        add: u64,
    },
    /// Replaces a remote value if it equals `compare`, and reads the old value.
    CmpSwap {
        /// The comparand.
        compare: u64,
        /// The new value.
        swap: u64,
    },
}

impl Opcode {
    /// Returns the comparand or addend of an atomic, and the new value.
    pub(super) fn operands(self) -> (u64, u64) {
        match self {
            Self::FetchAdd { add } => (add, 0),
            Self::CmpSwap { compare, swap } => (compare, swap),
            Self::Send | Self::Read | Self::Write => (0, 0),
        }
    }
}

/// A send-side work request without its local memory.
#[derive(Clone, Copy)]
pub(crate) struct SendWr {
    /// The operation.
    pub(crate) opcode: Opcode,
    /// Completion data for the peer; for [`Opcode::Send`] and [`Opcode::Write`].
    pub(crate) imm: Option<u32>,
    /// True if the work request waits for earlier reads.
    pub(crate) fence: bool,
    /// The peer's address, or 0 if the operation has none.
    pub(crate) remote_addr: u64,
    /// The peer's key, or 0 if the operation has none.
    pub(crate) rkey: u32,
}

impl SendWr {
    /// Returns the opcode of the RDMA core.
    pub(super) fn raw_opcode(&self) -> raw::ib_wr_opcode {
        match (self.opcode, self.imm) {
            (Opcode::Send, None) => raw::ib_wr_opcode_IB_WR_SEND,
            (Opcode::Send, Some(_)) => raw::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
            (Opcode::Read, _) => raw::ib_wr_opcode_IB_WR_RDMA_READ,
            (Opcode::Write, None) => raw::ib_wr_opcode_IB_WR_RDMA_WRITE,
            (Opcode::Write, Some(_)) => raw::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM,
            (Opcode::FetchAdd { .. }, _) => raw::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
            (Opcode::CmpSwap { .. }, _) => raw::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP,
        }
    }
}

/// A work completion.
#[derive(Clone, Copy)]
pub(crate) struct Wc {
    /// `enum ib_wc_status`. The other fields are valid only if it is 0 (success).
    pub(crate) status: u32,
    /// For receives: bytes received.
    pub(crate) byte_len: u32,
    /// For receives: the peer's completion data.
    pub(crate) imm: Option<u32>,
    /// For receives: true if a peer's write with completion data used up the receive.
    pub(crate) remote_write: bool,
}

impl Wc {
    /// Copies the valid fields of the RDMA core's structure.
    pub(super) fn new(wc: &raw::ib_wc) -> Self {
        let ok = wc.status == raw::ib_wc_status_IB_WC_SUCCESS;
        let has_imm = ok && wc.wc_flags as u32 & raw::ib_wc_flags_IB_WC_WITH_IMM != 0;
        Self {
            status: wc.status,
            byte_len: if ok { wc.byte_len } else { 0 },
            // The union's 4 bytes are the data in network byte order.
            imm: has_imm.then(|| u32::from_be(wc.ex.bindgen_union_field)),
            remote_write: ok && wc.opcode == raw::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
        }
    }
}

/// Statuses that the provider distinguishes (`enum ib_wc_status`).
pub(crate) mod status {
    use super::raw;

    /// The work request succeeded.
    pub(crate) const SUCCESS: u32 = raw::ib_wc_status_IB_WC_SUCCESS;
    /// The local buffer is too short, or the message too long.
    pub(crate) const LOC_LEN: u32 = raw::ib_wc_status_IB_WC_LOC_LEN_ERR;
    /// The queue pair cannot execute the operation. On rxe, a message was too long for the receive.
    pub(crate) const LOC_QP_OP: u32 = raw::ib_wc_status_IB_WC_LOC_QP_OP_ERR;
    /// Another error. On siw, the end of the connection has interrupted a read.
    pub(crate) const GENERAL: u32 = raw::ib_wc_status_IB_WC_GENERAL_ERR;
    /// The local key does not allow the operation.
    pub(crate) const LOC_PROT: u32 = raw::ib_wc_status_IB_WC_LOC_PROT_ERR;
    /// Flushed after another failure or the connection's end.
    pub(crate) const FLUSH: u32 = raw::ib_wc_status_IB_WC_WR_FLUSH_ERR;
    /// The local memory does not allow a peer's operation.
    pub(crate) const LOC_ACCESS: u32 = raw::ib_wc_status_IB_WC_LOC_ACCESS_ERR;
    /// The peer does not support the request.
    pub(crate) const REM_INV_REQ: u32 = raw::ib_wc_status_IB_WC_REM_INV_REQ_ERR;
    /// The peer's key does not allow the operation.
    pub(crate) const REM_ACCESS: u32 = raw::ib_wc_status_IB_WC_REM_ACCESS_ERR;
    /// The peer failed to execute the operation.
    pub(crate) const REM_OP: u32 = raw::ib_wc_status_IB_WC_REM_OP_ERR;
    /// The peer does not answer.
    pub(crate) const RETRY_EXC: u32 = raw::ib_wc_status_IB_WC_RETRY_EXC_ERR;
    /// The peer had no receive posted for too long.
    pub(crate) const RNR_RETRY_EXC: u32 = raw::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR;
    /// The peer aborted the operation.
    pub(crate) const REM_ABORT: u32 = raw::ib_wc_status_IB_WC_REM_ABORT_ERR;
}
