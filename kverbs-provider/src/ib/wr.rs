// SPDX-License-Identifier: GPL-2.0
//! Work requests and work completions as plain values.

use core::mem::{
    offset_of,
    MaybeUninit, //
};

use super::raw;

/// Scatter entries that a work request may have at most; they are put together on the stack.
pub(crate) const MAX_SGE: usize = 16;

/// One piece of local memory.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

// It is passed as `struct ib_sge`.
const _: () = assert!(size_of::<Sge>() == size_of::<raw::ib_sge>());
const _: () = assert!(offset_of!(Sge, addr) == offset_of!(raw::ib_sge, addr));
const _: () = assert!(offset_of!(Sge, length) == offset_of!(raw::ib_sge, length));
const _: () = assert!(offset_of!(Sge, lkey) == offset_of!(raw::ib_sge, lkey));

impl Sge {
    /// Memory at a device address, under a local key.
    pub(crate) fn new(addr: u64, length: u32, lkey: u32) -> Self {
        Self { addr, length, lkey }
    }
}

/// Room for the scatter entries of one work request, which nobody clears: apart from how many there
/// are, for else the compiler would.
pub(crate) struct SgeRoom(MaybeUninit<[Sge; MAX_SGE]>);

impl SgeRoom {
    /// For a place on the stack.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }
}

/// Scatter entries of one work request.
///
/// # Invariants
///
/// The first `n` are there, and `n` is at most [`MAX_SGE`].
pub(crate) struct SgeList<'a> {
    list: &'a mut SgeRoom,
    n: usize,
}

impl<'a> SgeList<'a> {
    /// None.
    #[inline(always)]
    pub(crate) fn new(list: &'a mut SgeRoom) -> Self {
        // INVARIANT: None is there.
        Self { list, n: 0 }
    }

    /// Adds one, which is left out where there is no room.
    #[inline]
    pub(crate) fn push(&mut self, sge: Sge) {
        if self.n < MAX_SGE {
            let first: *mut Sge = self.list.0.as_mut_ptr().cast();
            // SAFETY: It is inside, as just seen.
            unsafe { first.add(self.n).write(sge) };
            // INVARIANT: It is written, and there was a place for it.
            self.n += 1;
        }
    }

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Takes all out.
    pub(crate) fn clear(&mut self) {
        // INVARIANT: None is there.
        self.n = 0;
    }

    /// Those that are there.
    #[inline]
    pub(crate) fn get(&self) -> &[Sge] {
        // SAFETY: By the type invariant the first `n` are written, and inside.
        unsafe { core::slice::from_raw_parts(self.list.0.as_ptr().cast(), self.n) }
    }

    /// Bytes of all.
    pub(crate) fn bytes(&self) -> u64 {
        self.get().iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// What a send-side work request does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opcode {
    /// Sends a message.
    Send,
    /// Reads remote memory.
    Read,
    /// Writes remote memory.
    Write,
    /// Adds to a remote value, and reads what it was.
    FetchAdd {
        /// What is added.
        add: u64,
    },
    /// Puts something in the place of a remote value if it is as expected, and reads what it was.
    CmpSwap {
        /// What is expected.
        compare: u64,
        /// What takes its place.
        swap: u64,
    },
}

impl Opcode {
    /// What an atomic compares with or adds, and what it puts there instead.
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
    /// What it does.
    pub(crate) opcode: Opcode,
    /// Completion data for the peer; with [`Opcode::Send`] and [`Opcode::Write`].
    pub(crate) imm: Option<u32>,
    /// To wait for earlier reads.
    pub(crate) fence: bool,
    /// The peer's address, where one is meant.
    pub(crate) remote_addr: u64,
    /// The peer's key, where one is meant.
    pub(crate) rkey: u32,
}

impl SendWr {
    /// The opcode as the RDMA core knows it.
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

/// How a work request ended.
#[derive(Clone, Copy)]
pub(crate) struct Wc {
    /// `enum ib_wc_status`; 0 is success, and without it the rest is not known.
    pub(crate) status: u32,
    /// For receives: bytes that came.
    pub(crate) byte_len: u32,
    /// For receives: the peer's completion data.
    pub(crate) imm: Option<u32>,
    /// For receives: it was a peer's write with completion data that used the receive up.
    pub(crate) remote_write: bool,
}

impl Wc {
    /// Takes what is known from the RDMA core's structure.
    pub(super) fn new(wc: &raw::ib_wc) -> Self {
        let ok = wc.status == raw::ib_wc_status_IB_WC_SUCCESS;
        let has_imm = ok && wc.wc_flags as u32 & raw::ib_wc_flags_IB_WC_WITH_IMM != 0;
        Self {
            status: wc.status,
            byte_len: if ok { wc.byte_len } else { 0 },
            // The union's 4 bytes are the data as it came over the wire.
            imm: has_imm.then(|| u32::from_be(wc.ex.bindgen_union_field)),
            remote_write: ok && wc.opcode == raw::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
        }
    }
}

/// Statuses that the code above tells apart (`enum ib_wc_status`).
pub(crate) mod status {
    use super::raw;

    /// It went well.
    pub(crate) const SUCCESS: u32 = raw::ib_wc_status_IB_WC_SUCCESS;
    /// The local buffer is too short, or the message too long.
    pub(crate) const LOC_LEN: u32 = raw::ib_wc_status_IB_WC_LOC_LEN_ERR;
    /// The queue pair could not do it. For a receive that is, on rxe, a message too long for it.
    pub(crate) const LOC_QP_OP: u32 = raw::ib_wc_status_IB_WC_LOC_QP_OP_ERR;
    /// Local memory may not be used so.
    pub(crate) const LOC_PROT: u32 = raw::ib_wc_status_IB_WC_LOC_PROT_ERR;
    /// Flushed after another one's failure or the connection's end.
    pub(crate) const FLUSH: u32 = raw::ib_wc_status_IB_WC_WR_FLUSH_ERR;
    /// Local memory may not be used so by a peer's operation.
    pub(crate) const LOC_ACCESS: u32 = raw::ib_wc_status_IB_WC_LOC_ACCESS_ERR;
    /// The peer does not understand it.
    pub(crate) const REM_INV_REQ: u32 = raw::ib_wc_status_IB_WC_REM_INV_REQ_ERR;
    /// The peer's key does not allow it.
    pub(crate) const REM_ACCESS: u32 = raw::ib_wc_status_IB_WC_REM_ACCESS_ERR;
    /// The peer could not do it.
    pub(crate) const REM_OP: u32 = raw::ib_wc_status_IB_WC_REM_OP_ERR;
    /// The peer does not answer.
    pub(crate) const RETRY_EXC: u32 = raw::ib_wc_status_IB_WC_RETRY_EXC_ERR;
    /// The peer has no receive posted, for too long.
    pub(crate) const RNR_RETRY_EXC: u32 = raw::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR;
    /// The peer gave up.
    pub(crate) const REM_ABORT: u32 = raw::ib_wc_status_IB_WC_REM_ABORT_ERR;
}
