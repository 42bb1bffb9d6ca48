// SPDX-License-Identifier: GPL-2.0
//! Registered memory for block-backed requests, in few pieces that C can use.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    ep::{
        Endpoint,
        LocalMem,
        Post, //
    },
    key::Region,
    memory::{
        LentPiece,
        Memory, //
    },
    objects::domain::Domain,
    op::OpKind,
    pure::blk::device::LEN_MAX,
    uapi::{
        KFI_COMPLETION,
        KFI_INJECT,
        KFI_REMOTE_CQ_DATA,
        KFI_REMOTE_READ,
        KFI_REMOTE_WRITE, //
    },
};

/// Order of a contiguous allocation, low enough for fragmented memory.
const ORDER: u32 = 3;
/// Maximum number of pieces of the memory for a request.
// CAST: There are few pieces.
const RUNS: usize = crate::sys::KFBLK_RUNS as usize;
/// Size of a piece, in bytes.
pub(crate) const RUN: usize = kernel::page::PAGE_SIZE << ORDER;
const _: () = assert!(RUN * RUNS == LEN_MAX as usize);

/// Registered memory, in contiguous pieces.
pub(crate) struct Buffer {
    region: Arc<Region>,
    pieces: KVec<LentPiece>,
}

// SAFETY: The pieces name pages that the region keeps, and are only read.
unsafe impl Send for Buffer {}
// SAFETY: The pieces name pages that the region keeps, and are only read.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates memory for the bytes of a request.
    pub(crate) fn new(domain: &Arc<Domain>, access: u64) -> Result<Self> {
        Self::of(domain, RUNS, access)
    }

    /// Allocates a single piece.
    pub(crate) fn run(domain: &Arc<Domain>, access: u64) -> Result<Self> {
        Self::of(domain, 1, access)
    }

    /// Allocates memory for the bytes of a request, for which keys can be assigned.
    pub(crate) fn with_keys(domain: &Arc<Domain>) -> Result<Self> {
        Self::make(domain, RUNS, KFI_REMOTE_READ | KFI_REMOTE_WRITE, true)
    }

    fn of(domain: &Arc<Domain>, runs: usize, access: u64) -> Result<Self> {
        Self::make(domain, runs, access, false)
    }

    fn make(domain: &Arc<Domain>, runs: usize, access: u64, keys: bool) -> Result<Self> {
        let memory = Memory::in_blocks(runs, ORDER)?;
        let mut pieces = KVec::with_capacity(runs, GFP_KERNEL)?;
        for segment in memory.segments(0, memory.len()) {
            let piece = LentPiece {
                page: segment.page,
                offset: u32::try_from(segment.offset)?,
                len: u32::try_from(segment.len)?,
                mapped: 0,
            };
            pieces.push(piece, GFP_KERNEL)?;
        }
        Ok(Self {
            region: Region::register(domain, memory, access, keys)?,
            pieces,
        })
    }

    /// Returns the region, for keys.
    pub(crate) fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the pieces, in order.
    pub(crate) fn pieces(&self) -> &[LentPiece] {
        &self.pieces
    }

    /// Returns `len` bytes from `at` on, if one piece contains them.
    pub(crate) fn piece(&self, at: usize, len: u32) -> Option<LentPiece> {
        let mut at = u32::try_from(at).ok()?;
        for piece in &self.pieces {
            if at >= piece.len {
                at -= piece.len;
                continue;
            }
            return (len <= piece.len - at).then_some(LentPiece {
                page: piece.page,
                offset: piece.offset + at,
                len,
                mapped: 0,
            });
        }
        None
    }

    /// Copies `bytes` to offset `at`. Returns the number of bytes copied.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.region.memory().write(at, bytes)
    }

    /// Copies from offset `at` to `bytes`. Returns the number of bytes copied.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) -> usize {
        self.region.memory().read(at, bytes)
    }

    /// Adds a part of the buffer to an operation's segments.
    pub(crate) fn add(&self, segs: &mut LocalMem, kind: OpKind, at: usize, len: usize) -> Result {
        segs.push(kind, self.region.clone(), at as u64, len as u64)
    }
}

/// Posts a send or a receive. Context: any.
pub(crate) fn post(ep: &Endpoint, kind: OpKind, context: u64, segs: LocalMem) -> Result {
    post_rma(ep, kind, context, segs, (0, 0), None)
}

/// Posts a one-sided operation, or a message if the key and address are 0. `data` is the completion
/// data of the peer.
pub(crate) fn post_rma(
    ep: &Endpoint,
    kind: OpKind,
    context: u64,
    segs: LocalMem,
    (key, remote_addr): (u64, u64),
    data: Option<u32>,
) -> Result {
    ep.post(Post {
        kind,
        flags: with(data),
        context,
        data: data.unwrap_or(0).into(),
        remote_addr,
        key,
        inject: &[],
        atomic: None,
        segs,
    })
}

/// Injects a short message. It completes only if it fails. `data` is the completion data of the
/// peer.
pub(crate) fn inject(ep: &Endpoint, context: u64, message: &[u8], data: Option<u32>) -> Result {
    inject_with(ep, context, message, data, 0)
}

/// Injects a short message. It completes in any case.
pub(crate) fn inject_completing(ep: &Endpoint, context: u64, message: &[u8]) -> Result {
    inject_with(ep, context, message, None, KFI_COMPLETION)
}

fn inject_with(
    ep: &Endpoint,
    context: u64,
    message: &[u8],
    data: Option<u32>,
    flags: u64,
) -> Result {
    ep.post(Post {
        kind: OpKind::Send,
        flags: KFI_INJECT | with(data) | flags,
        context,
        data: data.unwrap_or(0).into(),
        remote_addr: 0,
        key: 0,
        inject: message,
        atomic: None,
        segs: LocalMem::new(),
    })
}

fn with(data: Option<u32>) -> u64 {
    match data {
        Some(_) => KFI_REMOTE_CQ_DATA,
        None => 0,
    }
}
