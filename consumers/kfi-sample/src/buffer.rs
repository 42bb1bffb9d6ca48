// SPDX-License-Identifier: GPL-2.0
//! Registered memory with known contents.

use kernel::{
    page::{
        Page,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    fabric::Domain,
    memory::Memory,
    op::{
        OpKind,
        Segs, //
    },
    region::Region,
    uapi::*,
};

/// Everything that memory may be used for locally.
pub(crate) const LOCAL: u64 = KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE;
/// Everything that a peer may do to it.
pub(crate) const REMOTE: u64 = KFI_REMOTE_READ | KFI_REMOTE_WRITE;

/// Bytes copied at a time.
const CHUNK: usize = 256;

/// Registered pages, which need not lie side by side.
pub(crate) struct Buffer {
    /// The region.
    pub(crate) region: Arc<Region>,
}

/// The byte at `i` of pattern `seed`. Its period is longer than a page, so that exchanged pages
/// are noticed.
fn pattern(seed: u8, i: usize) -> u8 {
    // CAST: The low byte is what is wanted.
    ((i.wrapping_mul(0x9e37_79b1) >> 11) as u8) ^ seed
}

impl Buffer {
    /// `len` bytes, at least, for all local uses and the remote ones that `remote` says.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        len: usize,
        remote: u64,
        dynamic: bool,
    ) -> Result<Self> {
        let count = len.div_ceil(PAGE_SIZE).max(1);
        let mut pages = KVVec::with_capacity(count, GFP_KERNEL)?;
        for _ in 0..count {
            pages.push(Page::alloc_page(GFP_KERNEL | __GFP_ZERO)?, GFP_KERNEL)?;
        }
        let memory = Memory::from_pages(pages)?;
        Ok(Self {
            region: Region::register(domain, memory, LOCAL | remote, dynamic)?,
        })
    }

    /// One for local use.
    pub(crate) fn local(domain: &Arc<Domain>, len: usize) -> Result<Self> {
        Self::new(domain, len, 0, false)
    }

    /// One that keys can be made for.
    pub(crate) fn shared(domain: &Arc<Domain>, len: usize) -> Result<Self> {
        Self::new(domain, len, REMOTE, true)
    }

    /// Fills [offset, offset + len) with pattern `seed`.
    pub(crate) fn fill(&self, offset: usize, len: usize, seed: u8) {
        let mut chunk = [0; CHUNK];
        for at in (0..len).step_by(CHUNK) {
            let count = CHUNK.min(len - at);
            for (i, byte) in chunk[..count].iter_mut().enumerate() {
                *byte = pattern(seed, at + i);
            }
            self.region.memory().write(offset + at, &chunk[..count]);
        }
    }

    /// Whether [offset, offset + len) has pattern `seed`.
    pub(crate) fn has(&self, offset: usize, len: usize, seed: u8) -> bool {
        self.all(offset, len, |i, byte| byte == pattern(seed, i))
    }

    /// Whether [offset, offset + len) is zero.
    pub(crate) fn is_zero(&self, offset: usize, len: usize) -> bool {
        self.all(offset, len, |_, byte| byte == 0)
    }

    fn all(&self, offset: usize, len: usize, good: impl Fn(usize, u8) -> bool) -> bool {
        let mut chunk = [0; CHUNK];
        (0..len).step_by(CHUNK).all(|at| {
            let count = CHUNK.min(len - at);
            self.region.memory().read(offset + at, &mut chunk[..count]) == count
                && chunk[..count]
                    .iter()
                    .enumerate()
                    .all(|(i, byte)| good(at + i, *byte))
        })
    }

    /// [offset, offset + len) as the memory of an operation; none for no bytes.
    pub(crate) fn segs(&self, kind: OpKind, offset: usize, len: usize) -> Result<Segs> {
        let mut segs = Segs::new();
        if len != 0 {
            self.add(&mut segs, kind, offset, len)?;
        }
        Ok(segs)
    }

    /// Adds [offset, offset + len) to the memory of an operation.
    pub(crate) fn add(&self, segs: &mut Segs, kind: OpKind, offset: usize, len: usize) -> Result {
        segs.push(kind, self.region.clone(), offset as u64, len as u64)
    }
}
