// SPDX-License-Identifier: GPL-2.0
//! Borrowed pages: memory of one operation, or of one key, that is not registered.

use core::ptr::NonNull;
use kernel::bindings;

/// A piece of borrowed pages, as a `struct bio_vec` names it.
// LAYOUT: kfblk/src/sys/raw.rs compares it with C's.
#[repr(C)]
pub struct LentPiece {
    /// Page that `offset` counts from; more pages follow it contiguously.
    pub page: *mut bindings::page,
    /// Bytes from that page's start.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// The device's address of the piece while the operation is outstanding; for the provider.
    pub mapped: u64,
}

/// Borrowed pages of one operation.
///
/// # Invariants
///
/// `list` points to `count` pieces. The pieces and their pages stay valid until the operation is
/// over, and no other code accesses the pieces until then.
pub(crate) struct BorrowedPages {
    list: NonNull<LentPiece>,
    count: usize,
}

// SAFETY: By the type invariant the owner of the value has sole access to the pieces, on any
// thread.
unsafe impl Send for BorrowedPages {}
// SAFETY: A shared reference gives read access to the pieces only.
unsafe impl Sync for BorrowedPages {}

impl BorrowedPages {
    /// Names `count` pieces, which are borrowed until the operation is over.
    ///
    /// # Safety
    ///
    /// `list` points to `count` pieces of the kernel's memory map. Pieces and pages stay valid, and
    /// no other code accesses the pieces, until the value is dropped.
    #[inline]
    pub(crate) unsafe fn new(list: NonNull<LentPiece>, count: usize) -> Self {
        // INVARIANT: The caller's contract is the type invariant.
        Self { list, count }
    }

    /// Bytes of all pieces.
    pub(crate) fn len(&self) -> u64 {
        self.pieces().iter().map(|piece| u64::from(piece.len)).sum()
    }

    /// The pieces.
    #[inline]
    pub(crate) fn pieces(&self) -> &[LentPiece] {
        // SAFETY: By the type invariant `list` points to `count` pieces, which are valid here.
        unsafe { core::slice::from_raw_parts(self.list.as_ptr(), self.count) }
    }

    /// The pieces, so that the provider can set [`LentPiece::mapped`].
    pub(crate) fn pieces_mut(&mut self) -> &mut [LentPiece] {
        // SAFETY: By the type invariant `list` points to `count` pieces, with no other access to
        // them.
        unsafe { core::slice::from_raw_parts_mut(self.list.as_ptr(), self.count) }
    }
}
