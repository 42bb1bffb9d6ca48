// SPDX-License-Identifier: GPL-2.0
//! Attach-on-assign memory: a consumer attaches pages for the lifetime of one key.

use core::{
    cell::UnsafeCell,
    ptr::NonNull, //
};
use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::Arc, //
};

use super::{
    borrowed::LentPiece,
    pages::{
        Memory,
        Pages,
        Run,
        Source, //
    }, //
};

/// The pages attached to an attach-on-assign region.
pub(super) struct Filling {
    /// Has capacity for the largest possible number of runs.
    pub(super) runs: KVVec<Run>,
    /// Offset of the first byte in the first page.
    pub(super) first: usize,
    /// Bytes.
    pub(super) len: usize,
}

impl Memory {
    /// Memory of an attach-on-assign region, for up to `len` bytes. A consumer attaches pages for
    /// the lifetime of one key, and then other pages for the next ([`Memory::fill`]). Without pages
    /// no key can be assigned. Its region has dynamic keys and no local rights.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `len` is 0.
    /// - `ENOMEM` if the list of runs cannot be allocated.
    pub fn placeholder(len: usize) -> Result<Arc<Self>> {
        if len == 0 {
            return Err(EINVAL);
        }
        let pages = Pages {
            runs: KVVec::new(),
            // The first and the last page may be used in part.
            count: len.div_ceil(PAGE_SIZE) + 1,
            source: Source::Placeholder,
        };
        let filling = Filling {
            runs: KVVec::with_capacity(pages.count, GFP_KERNEL_ACCOUNT)?,
            first: 0,
            len: 0,
        };
        Self::of(pages, None, 0, len, true, Some(UnsafeCell::new(filling)))
    }

    /// Replaces the attached pages by `pieces`, in their order. Does not allocate. Context: any.
    ///
    /// # Errors
    ///
    /// On error no pages are attached.
    ///
    /// - `EINVAL` if the memory is not attach-on-assign.
    /// - `EINVAL` if a piece but the first does not begin, or one but the last does not end, at a
    ///   page boundary.
    /// - `EMSGSIZE` if the pieces exceed the memory's size.
    ///
    /// # Safety
    ///
    /// No other code reads the attached pages before this returns: no key of the memory's region is
    /// assigned or being assigned, and no region is being registered. `pieces` are of the kernel's
    /// memory map, and their pages stay valid until the next call, which may attach none.
    pub unsafe fn fill(&self, pieces: &[LentPiece]) -> Result {
        let filling = self.attached.as_ref().ok_or(EINVAL)?;
        // SAFETY: By the caller's contract no other code accesses the filling now.
        let filling = unsafe { &mut *filling.get() };
        filling.runs.clear();
        filling.len = 0;
        filling.len = Self::lay(filling, pieces, self.len)?;
        Ok(())
    }

    /// Appends the pieces as runs; returns their bytes.
    fn lay(filling: &mut Filling, pieces: &[LentPiece], room: usize) -> Result<usize> {
        let (mut len, mut before) = (0, 0);
        for (i, piece) in pieces.iter().enumerate() {
            // CAST: A `u32` fits.
            let (offset, bytes) = (piece.offset as usize, piece.len as usize);
            let into = offset % PAGE_SIZE;
            if i == 0 {
                filling.first = into;
            }
            let joins =
                (i == 0 || into == 0) && (i + 1 == pieces.len() || (into + bytes) % PAGE_SIZE == 0);
            if bytes == 0 || !joins {
                return Err(EINVAL);
            }
            len += bytes;
            if len > room {
                return Err(EMSGSIZE);
            }
            let pages = (into + bytes).div_ceil(PAGE_SIZE);
            let run = Run {
                page: NonNull::new(piece.page.wrapping_add(offset >> PAGE_SHIFT)).ok_or(EINVAL)?,
                pages,
                before,
            };
            before += pages;
            let pushed = filling.runs.push_within_capacity(run);
            pushed.map_err(|_| EMSGSIZE)?;
        }
        Ok(len)
    }
}
