// SPDX-License-Identifier: GPL-2.0
//! Registered memory for requests of a device, in few pieces, which C knows too.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    ep::{
        Endpoint,
        Post, //
    },
    fabric::Domain,
    memory::Memory,
    op::{
        LentPiece,
        OpKind,
        Segs, //
    },
    pure::blk::device::LEN_MAX,
    region::Region,
    uapi::{
        KFI_COMPLETION,
        KFI_INJECT,
        KFI_REMOTE_CQ_DATA, //
    }, //
};

/// Pages that lie side by side, as a power of two: what there is of them when memory is in pieces.
const ORDER: u32 = 3;
/// Pieces that memory for a request is in, at most; as in `helpers.h`.
const RUNS: usize = 4;
/// Bytes of such a piece.
pub(crate) const RUN: usize = kernel::page::PAGE_SIZE << ORDER;
const _: () = assert!(RUN * RUNS == LEN_MAX as usize);

/// Memory that is registered.
pub(crate) struct Buffer {
    region: Arc<Region>,
    pieces: KVec<LentPiece>,
}

// SAFETY: The pieces name pages that the region keeps, and are only read.
unsafe impl Send for Buffer {}
// SAFETY: As above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Room for the bytes of a request.
    pub(crate) fn new(domain: &Arc<Domain>, access: u64) -> Result<Self> {
        Self::of(domain, RUNS, access)
    }

    /// One piece.
    pub(crate) fn run(domain: &Arc<Domain>, access: u64) -> Result<Self> {
        Self::of(domain, 1, access)
    }

    fn of(domain: &Arc<Domain>, runs: usize, access: u64) -> Result<Self> {
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
            region: Region::register(domain, memory, access, false)?,
            pieces,
        })
    }

    /// Its pieces, in order.
    pub(crate) fn pieces(&self) -> &[LentPiece] {
        &self.pieces
    }

    /// `len` bytes from `at` on, inside one of its pieces.
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

    /// Copies in; how many bytes.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> usize {
        self.region.memory().write(at, bytes)
    }

    /// Copies out; how many bytes.
    pub(crate) fn read(&self, at: usize, bytes: &mut [u8]) -> usize {
        self.region.memory().read(at, bytes)
    }

    /// Adds a part to an operation's memory.
    pub(crate) fn add(&self, segs: &mut Segs, kind: OpKind, at: usize, len: usize) -> Result {
        segs.push(kind, self.region.clone(), at as u64, len as u64)
    }
}

/// Posts a message, or a receive. Any context.
pub(crate) fn post(ep: &Endpoint, kind: OpKind, context: u64, segs: Segs) -> Result {
    post_rma(ep, kind, context, segs, (0, 0), None)
}

/// Posts an operation on what is behind a key, from an address on; or a message, with none. `data`: the
/// peer's completion has that.
pub(crate) fn post_rma(
    ep: &Endpoint,
    kind: OpKind,
    context: u64,
    segs: Segs,
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

/// Sends a short message, which is taken at once. It completes only if it fails. `data`: as above.
pub(crate) fn inject(ep: &Endpoint, context: u64, message: &[u8], data: Option<u32>) -> Result {
    inject_with(ep, context, message, data, 0)
}

/// The same, but completes in any case.
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
        segs: Segs::new(),
    })
}

fn with(data: Option<u32>) -> u64 {
    match data {
        Some(_) => KFI_REMOTE_CQ_DATA,
        None => 0,
    }
}
