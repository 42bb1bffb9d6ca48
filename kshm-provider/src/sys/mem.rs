// SPDX-License-Identifier: GPL-2.0
//! Copies between pinned memory, kernel buffers and the current task's own memory.

use core::marker::PhantomData;
use kernel::{
    ffi::{
        c_uint,
        c_void, //
    },
    prelude::*, //
};

#[cfg(kfabric_seed_bug = "pmem-no-write-back")]
use super::raw::kshm_copy as kshm_copy_durable;
use super::raw::*;
use kfabric::{
    memory::{
        LentPiece,
        Memory, //
    },
    pure::pairs::{
        pairs,
        Run, //
    },
};

/// A contiguous piece of pinned memory, mapped in the kernel.
///
/// # Invariants
///
/// `len` bytes from `addr` on belong to a [`Memory`] that lives for `'a`. The pages of an
/// attach-on-assign region live as long as the key that names them, and a revoke of this key waits
/// for copies in progress.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    addr: usize,
    len: usize,
    _memory: PhantomData<&'a Memory>,
}

/// Returns the pieces of [offset, offset + len) of `memory`; none if the range is not inside.
pub(crate) fn pieces(
    memory: &Memory,
    offset: usize,
    len: usize,
) -> impl Iterator<Item = Piece<'_>> + '_ {
    memory.segments(offset, len).map(|seg| {
        // SAFETY: The page is one of the memory's, which is borrowed.
        let page = unsafe { kshm_page_address(seg.page) };
        // INVARIANT: The segment's bytes belong to the memory. Consecutive pages are consecutive in
        // the kernel's mapping too, which covers all pages on x86-64.
        Piece {
            addr: page.expose_provenance() + seg.offset,
            len: seg.len,
            _memory: PhantomData,
        }
    })
}

/// Returns the pieces of [offset, offset + len) of externally owned pages.
pub(crate) fn lent_pieces(
    lent: &[LentPiece],
    offset: usize,
    len: usize,
) -> impl Iterator<Item = Piece<'_>> + '_ {
    let (mut skip, mut left) = (offset, len);
    lent.iter().filter_map(move |piece| {
        // CAST: A `u32` fits into a `usize`.
        let has = piece.len as usize;
        let past = skip.min(has);
        skip -= past;
        let n = left.min(has - past);
        left -= n;
        // SAFETY: The owner of the pages keeps them until the operation completes, which is later.
        let page = unsafe { kshm_page_address(piece.page) };
        // INVARIANT: The owner keeps the bytes for as long as the operation is borrowed.
        // Consecutive pages are consecutive in the kernel's mapping too.
        (n != 0).then(|| Piece {
            addr: page.expose_provenance() + piece.offset as usize + past,
            len: n,
            _memory: PhantomData,
        })
    })
}

/// Copies until either side ends.
///
/// Programs may change the bytes meanwhile; the kernel does not interpret them.
pub(crate) fn copy<'a, 'b>(
    from: impl Iterator<Item = Piece<'a>>,
    to: impl Iterator<Item = Piece<'b>>,
) {
    let run = |piece: Piece<'_>| -> Run { (piece.addr, piece.len) };
    for pair in pairs(from.map(run), to.map(run)) {
        // SAFETY: By the invariants of the pieces, which `pairs` only divides, both ends are mapped
        // memory of that many bytes, borrowed until the return.
        unsafe { kshm_copy(pair.to as *mut c_void, pair.from as *const c_void, pair.len) };
    }
}

/// Copies to persistent memory until either side ends. Aligned words are stored whole if the source
/// has the same alignment. The bytes are durable after [`fence_durable`] on the same processor.
pub(crate) fn copy_durable<'a, 'b>(
    from: impl Iterator<Item = Piece<'a>>,
    to: impl Iterator<Item = Piece<'b>>,
) {
    let run = |piece: Piece<'_>| -> Run { (piece.addr, piece.len) };
    for pair in pairs(from.map(run), to.map(run)) {
        // SAFETY: As in `copy`.
        unsafe { kshm_copy_durable(pair.to as *mut c_void, pair.from as *const c_void, pair.len) };
    }
}

/// Copies `bytes` to persistent memory until either side ends. Aligned words are stored whole. The
/// bytes are durable after [`fence_durable`] on the same processor.
pub(crate) fn store_durable<'a>(bytes: &[u8], to: impl Iterator<Item = Piece<'a>>) {
    let from = core::iter::once((bytes.as_ptr().expose_provenance(), bytes.len()));
    for pair in pairs(from, to.map(|piece| (piece.addr, piece.len))) {
        // SAFETY: As in `copy`; the source is the borrowed slice.
        unsafe { kshm_copy_durable(pair.to as *mut c_void, pair.from as *const c_void, pair.len) };
    }
}

/// Writes the cache lines of [offset, offset + len) of `memory` back, unless the caches are
/// persistent. The bytes are durable after [`fence_durable`] on the same processor.
pub(crate) fn write_back(memory: &Memory, offset: usize, len: usize) {
    if cfg!(kfabric_seed_bug = "pmem-no-write-back") || memory.persistence().has_persistent_caches()
    {
        return;
    }
    for piece in pieces(memory, offset, len) {
        #[cfg(kfabric_seed_bug = "pmem-last-line")]
        let piece = Piece {
            len: piece.len & !63,
            ..piece
        };
        // SAFETY: By the piece's invariant, the bytes are mapped memory, borrowed until the return.
        unsafe { kshm_write_back(piece.addr as *const c_void, piece.len) };
    }
}

/// Waits until the write-backs and [`copy_durable`]s of this processor have reached the persistence
/// domain. The caller has not been preempted since.
pub(crate) fn fence_durable() {
    if cfg!(kfabric_seed_bug = "pmem-no-fence") {
        return;
    }
    // SAFETY: The function has no preconditions.
    unsafe { kshm_durable_fence() }
}

/// Copies `bytes` to the pieces until either side ends.
pub(crate) fn store<'a>(bytes: &[u8], to: impl Iterator<Item = Piece<'a>>) {
    let from = core::iter::once((bytes.as_ptr().expose_provenance(), bytes.len()));
    for pair in pairs(from, to.map(|piece| (piece.addr, piece.len))) {
        // SAFETY: As in `copy`; the source is the borrowed slice.
        unsafe { kshm_copy(pair.to as *mut c_void, pair.from as *const c_void, pair.len) };
    }
}

/// Faults in `len` bytes of the task's own memory from `at` on, writable if `write`. Returns the
/// number of present bytes from the first on. May sleep, for as long as the pager likes.
pub(crate) fn fault_in(at: u64, len: usize, write: bool) -> usize {
    // SAFETY: The function accepts any address.
    unsafe { kshm_fault_in(at, len, write) }
}

/// Copies from the task's own memory, from `at` on, until a page is not present or the pieces end.
/// Returns the number of bytes.
pub(crate) fn copy_from_task<'a>(at: u64, to: impl Iterator<Item = Piece<'a>>) -> usize {
    each_run(at, to, |at, addr, len| {
        // SAFETY: By the piece's invariant, `addr` is mapped memory of that many bytes, borrowed
        // until the return. The function accepts any address of the task.
        unsafe { kshm_copy_from_user(addr as *mut c_void, at, len) }
    })
}

/// Copies to the task's own memory, from `at` on, until a page is not present or the pieces end.
/// Returns the number of bytes.
pub(crate) fn copy_to_task<'a>(from: impl Iterator<Item = Piece<'a>>, at: u64) -> usize {
    each_run(at, from, |at, addr, len| {
        // SAFETY: As in `copy_from_task`.
        unsafe { kshm_copy_to_user(at, addr as *const c_void, len) }
    })
}

/// Calls `copy` for each piece until one is not copied whole. Returns the number of bytes copied.
fn each_run<'a>(
    at: u64,
    pieces: impl Iterator<Item = Piece<'a>>,
    copy: impl Fn(u64, usize, usize) -> usize,
) -> usize {
    let mut done = 0;
    for piece in pieces {
        let n = copy(at.wrapping_add(done as u64), piece.addr, piece.len);
        done += n;
        if n < piece.len {
            break;
        }
    }
    done
}

/// Replaces the value of `size` bytes (1, 2, 4 or 8) at the start of `piece` by the result of
/// `change`, unless that is `None`. Returns the old value.
///
/// The update is atomic for all processors, also those of the target's tasks.
///
/// # Errors
///
/// - `EFAULT` if the piece is too short or not aligned to `size`.
pub(crate) fn update(
    piece: Option<Piece<'_>>,
    size: usize,
    change: impl Fn(u64) -> Option<u64>,
) -> Result<u64> {
    let piece = piece.ok_or(EFAULT)?;
    if !matches!(size, 1 | 2 | 4 | 8) || piece.len < size || piece.addr & (size - 1) != 0 {
        return Err(EFAULT);
    }
    // CAST: At most 8.
    let (at, bytes) = (piece.addr as *mut c_void, size as c_uint);
    // SAFETY: By the piece's invariant, that many bytes are mapped; they are aligned.
    let mut there = unsafe { kshm_read(at, bytes) };
    loop {
        let Some(new) = change(there) else {
            return Ok(there);
        };
        // SAFETY: As above.
        let found = unsafe { kshm_cmpxchg(at, bytes, there, new) };
        if found == there {
            return Ok(there);
        }
        there = found;
    }
}
