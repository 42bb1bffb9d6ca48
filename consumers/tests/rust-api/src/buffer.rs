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
    ep::LocalMem,
    key::Region,
    memory::Memory,
    objects::domain::Domain,
    op::OpKind,
    uapi::*, //
};

/// All local rights.
pub(crate) const LOCAL: u64 = KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE;
/// All rights of peers except atomics.
pub(crate) const REMOTE: u64 = KFI_REMOTE_READ | KFI_REMOTE_WRITE;

/// Number of bytes copied at a time.
const CHUNK: usize = 256;

/// Registered pages, which need not be contiguous.
pub(crate) struct Buffer {
    /// The region.
    pub(crate) region: Arc<Region>,
}

/// Returns byte `i` of pattern `seed`. The pattern's period is longer than a page, so exchanged
/// pages are detected.
fn pattern(seed: u8, i: usize) -> u8 {
    // CAST: Takes the low byte.
    ((i.wrapping_mul(0x9e37_79b1) >> 11) as u8) ^ seed
}

impl Buffer {
    /// Registers at least `len` bytes, with all local rights and the given rights of peers.
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

    /// Registers memory with local rights only.
    pub(crate) fn local(domain: &Arc<Domain>, len: usize) -> Result<Self> {
        Self::new(domain, len, 0, false)
    }

    /// Registers memory for dynamic keys.
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

    /// Returns whether [offset, offset + len) has pattern `seed`.
    pub(crate) fn has(&self, offset: usize, len: usize, seed: u8) -> bool {
        self.all(offset, len, |i, byte| byte == pattern(seed, i))
    }

    /// Returns whether [offset, offset + len) is zero.
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

    /// Returns [offset, offset + len) as the local memory of an operation; empty if `len` is 0.
    pub(crate) fn segs(&self, kind: OpKind, offset: usize, len: usize) -> Result<LocalMem> {
        let mut segs = LocalMem::new();
        if len != 0 {
            self.add(&mut segs, kind, offset, len)?;
        }
        Ok(segs)
    }

    /// Adds [offset, offset + len) to the local memory of an operation.
    pub(crate) fn add(
        &self,
        segs: &mut LocalMem,
        kind: OpKind,
        offset: usize,
        len: usize,
    ) -> Result {
        segs.push(kind, self.region.clone(), offset as u64, len as u64)
    }
}
