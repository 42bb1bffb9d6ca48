// SPDX-License-Identifier: GPL-2.0
//! Local memory of an operation: pieces of regions, borrowed pages, or memory of the posting task.

use core::ptr::NonNull;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    key::{
        region::RegionGuard,
        Region, //
    },
    memory::{
        BorrowedPages,
        LentPiece, //
    },
    objects::domain::Domain,
    op::OpKind,
    provider::RegionOps,
    uapi::KFI_IOV_MAX, //
};

/// A piece of a region.
pub struct TokenSeg {
    region: RegionGuard,
    /// First byte, counted from the region's start.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl TokenSeg {
    /// An unused entry.
    const NONE: Self = Self {
        region: RegionGuard::NONE,
        offset: 0,
        len: 0,
    };

    /// The provider's part of the region.
    pub fn region(&self) -> Option<&Arc<dyn RegionOps>> {
        self.region.ops()
    }
}

/// Memory of the posting task, by its virtual address.
#[derive(Clone, Copy)]
pub struct Unregistered {
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

/// The kinds of local memory.
enum Local {
    Regions {
        /// Number of pieces in use; the others have no region.
        count: u8,
        pieces: [TokenSeg; KFI_IOV_MAX],
    },
    Lent(BorrowedPages),
    Task(Unregistered),
}

/// Local memory of an operation: up to `KFI_IOV_MAX` pieces of regions, borrowed pages, or
/// unregistered memory of the posting task.
pub struct LocalMem(Local);

impl Default for LocalMem {
    #[inline(always)]
    fn default() -> Self {
        Self::new()
    }
}

impl LocalMem {
    // A constant is written in place; otherwise the compiler builds the value elsewhere and copies
    // it.
    const NONE: Self = Self(Local::Regions {
        count: 0,
        pieces: [TokenSeg::NONE; KFI_IOV_MAX],
    });

    /// Creates an empty list.
    #[inline(always)]
    pub fn new() -> Self {
        Self::NONE
    }

    /// Borrows `count` pieces of unregistered kernel memory, for one read or write. The provider
    /// maps them when the operation is posted, without an allocation.
    ///
    /// # Safety
    ///
    /// `list` points to `count` pieces of the kernel's memory map, which may be written to if the
    /// operation reads. Pieces and pages stay valid, and no other code accesses the pieces, until
    /// the operation has completed or was refused.
    pub unsafe fn lend(list: NonNull<LentPiece>, count: usize) -> Self {
        // SAFETY: The caller's contract is that of the function.
        Self(Local::Lent(unsafe { BorrowedPages::new(list, count) }))
    }

    /// Memory of the posting task, for one read or write that completes inside the posting call.
    pub(crate) fn unregistered(addr: u64, len: u64) -> Self {
        Self(Local::Task(Unregistered { addr, len }))
    }

    /// Returns the posting task's memory, if the list is of that kind.
    #[inline]
    pub(crate) fn task(&self) -> Option<Unregistered> {
        match self.0 {
            Local::Task(memory) => Some(memory),
            _ => None,
        }
    }

    /// The borrowed pages; empty if the memory is of another kind.
    #[inline]
    pub(super) fn lent(&self) -> &[LentPiece] {
        match &self.0 {
            Local::Lent(lent) => lent.pieces(),
            _ => &[],
        }
    }

    /// As [`LocalMem::lent`], to be changed by the provider.
    pub(super) fn lent_mut(&mut self) -> &mut [LentPiece] {
        match &mut self.0 {
            Local::Lent(lent) => lent.pieces_mut(),
            _ => &mut [],
        }
    }

    /// Returns whether the memory is pieces of regions, or empty.
    #[inline(always)]
    pub(super) fn is_registered(&self) -> bool {
        matches!(self.0, Local::Regions { .. })
    }

    /// Returns whether the memory is borrowed pages.
    #[inline]
    pub(crate) fn has_lent(&self) -> bool {
        matches!(self.0, Local::Lent(_))
    }

    /// Bytes of the longest borrowed piece.
    pub(crate) fn longest_lent(&self) -> u32 {
        let lent = self.lent().iter().map(|piece| piece.len);
        lent.max().unwrap_or(0)
    }

    /// Adds [offset, offset + len) of `region`, for an operation of `kind`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the range is not inside the region, or there are too many pieces.
    /// - `EINVAL` if the list has memory without a region.
    /// - `EACCES` if the region is not registered for `kind`.
    #[inline]
    pub fn push(&mut self, kind: OpKind, region: Arc<Region>, offset: u64, len: u64) -> Result {
        #[cfg(not(kfabric_seed_bug = "double-fetch"))]
        region.check(kind, offset, len)?;
        #[cfg(kfabric_seed_bug = "double-fetch")]
        let _ = kind;
        let Local::Regions { count, pieces } = &mut self.0 else {
            return Err(EINVAL);
        };
        let place = pieces.get_mut(usize::from(*count)).ok_or(EINVAL)?;
        *place = TokenSeg {
            region: RegionGuard::new(region),
            // CAST: Inside the region, whose length is a `usize`.
            offset: offset as usize,
            len: len as usize,
        };
        *count += 1;
        Ok(())
    }

    /// Bytes of all pieces.
    #[inline]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Local::Regions { .. } => self.regions().iter().map(|seg| seg.len as u64).sum(),
            Local::Lent(lent) => lent.len(),
            Local::Task(memory) => memory.len,
        }
    }

    /// Returns whether there are no pieces.
    #[inline]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Local::Regions { count: 0, .. })
    }

    /// Number of pieces of regions.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        match &self.0 {
            Local::Regions { count, .. } => usize::from(*count),
            _ => 0,
        }
    }

    /// Returns the bytes of all pieces, and whether all regions belong to `domain`.
    #[inline(always)]
    pub(crate) fn measure(&self, domain: &Arc<Domain>) -> (u64, bool) {
        if !matches!(self.0, Local::Regions { .. }) {
            return (self.len(), true);
        }
        let (mut len, mut inside) = (0, true);
        for seg in self.regions() {
            len += seg.len as u64;
            inside &= seg.region.in_domain(domain);
        }
        (len, inside)
    }

    /// The pieces of regions.
    #[inline]
    pub(super) fn regions(&self) -> &[TokenSeg] {
        match &self.0 {
            Local::Regions { count, pieces } => {
                pieces.get(..usize::from(*count)).unwrap_or_default()
            }
            _ => &[],
        }
    }
}
