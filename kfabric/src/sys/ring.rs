// SPDX-License-Identifier: GPL-2.0
//! Memory that the kernel and programs both see: the completion ring, and what two programs share.

use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicU32,
        Ordering, //
    }, //
};
use kernel::{
    ffi::c_void,
    page::PAGE_SIZE,
    prelude::*, //
};

use crate::uapi::{
    CqEntry,
    CqRing,
    RingsStatus,
    KFI_CQ_RING_OFFSET, //
};

/// A completion ring: one [`CqRing`] page, then entries.
///
/// # Invariants
///
/// `base` is a zeroed `__vmalloc()` allocation of `size` bytes, whole pages, `entries` a power of two, and the
/// header page and all entries lie inside.
pub(crate) struct RingMem {
    base: NonNull<c_void>,
    size: usize,
    entries: u32,
}

// SAFETY: It is memory; every access below is by atomics or by a caller that excludes others.
unsafe impl Send for RingMem {}
// SAFETY: As above.
unsafe impl Sync for RingMem {}

impl RingMem {
    /// Allocates a zeroed ring of `entries` (a power of two).
    pub(crate) fn new(entries: u32) -> Result<Self> {
        let bytes = entries as usize * size_of::<CqEntry>() + KFI_CQ_RING_OFFSET;
        let size = bytes.next_multiple_of(PAGE_SIZE);
        // SAFETY: No preconditions.
        let base = NonNull::new(unsafe { super::kf_ring_alloc(size) }).ok_or(ENOMEM)?;
        let ring = Self {
            base,
            size,
            entries,
        };
        ring.word(core::mem::offset_of!(CqRing, entries))
            .store(entries, Ordering::Relaxed);
        ring.word(core::mem::offset_of!(CqRing, entry_size))
            .store(size_of::<CqEntry>() as u32, Ordering::Relaxed);
        Ok(ring)
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: Callers pass offsets of aligned `u32` fields of the header page, which the type
        // invariant says is there as long as `self`; programs access it by atomics too, and what
        // they write is any `u32`.
        unsafe { &*self.base.as_ptr().byte_add(offset).cast::<AtomicU32>() }
    }

    /// What the program says it has read.
    pub(crate) fn tail(&self) -> u32 {
        self.word(core::mem::offset_of!(CqRing, tail))
            .load(Ordering::Acquire)
    }

    /// Stores the tail, for a reader in the kernel.
    pub(crate) fn set_tail(&self, tail: u32) {
        self.word(core::mem::offset_of!(CqRing, tail))
            .store(tail, Ordering::Release)
    }

    /// Shows entries up to `head` to the reader.
    pub(crate) fn set_head(&self, head: u32) {
        self.word(core::mem::offset_of!(CqRing, head))
            .store(head, Ordering::Release)
    }

    /// Makes the queue readable until the program says that it has seen to it.
    pub(crate) fn set_alarm(&self) {
        self.word(core::mem::offset_of!(CqRing, alarm))
            .store(1, Ordering::Release)
    }

    /// Whether the program has not.
    pub(crate) fn alarm(&self) -> bool {
        self.word(core::mem::offset_of!(CqRing, alarm))
            .load(Ordering::Acquire)
            != 0
    }

    fn slot(&self, index: u32) -> *mut CqEntry {
        let offset =
            KFI_CQ_RING_OFFSET + (index & (self.entries - 1)) as usize * size_of::<CqEntry>();
        // SAFETY: The masked index is below `entries`, so by the type invariant the entry lies
        // inside the allocation.
        unsafe { self.base.as_ptr().byte_add(offset) }.cast()
    }

    /// Writes the entry at `index`. The caller excludes other writers of it.
    pub(crate) fn write(&self, index: u32, entry: &CqEntry) {
        // SAFETY: `slot` is inside and aligned. A program may race by scribbling: the bytes are
        // never read back for a decision.
        unsafe { self.slot(index).write_volatile(*entry) }
    }

    /// Reads the entry at `index`, for a reader in the kernel.
    pub(crate) fn read(&self, index: u32) -> CqEntry {
        // SAFETY: `slot` is inside and aligned, and any bytes are a valid `CqEntry`.
        unsafe { self.slot(index).read_volatile() }
    }

    /// Address and bytes, for mmap.
    pub(crate) fn raw(&self) -> (*mut c_void, usize) {
        (self.base.as_ptr(), self.size)
    }
}

impl Drop for RingMem {
    // In one place, whichever module drops the last reference to a queue.
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours. Pages that a program still maps live on until
        // it unmaps them.
        unsafe { super::kf_ring_free(self.base.as_ptr()) }
    }
}

/// A page that only the kernel writes, and behind it memory of programs that it does not look at.
///
/// # Invariants
///
/// `base` is a zeroed `__vmalloc()` allocation of `size` bytes, whole pages, at least one.
pub(crate) struct StatusMem {
    base: NonNull<c_void>,
    size: usize,
}

// SAFETY: It is memory; the one access below is by an atomic.
unsafe impl Send for StatusMem {}
// SAFETY: As above.
unsafe impl Sync for StatusMem {}

impl StatusMem {
    /// Allocates a page and `bytes` behind it (whole pages), zeroed.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let size = PAGE_SIZE + bytes;
        // SAFETY: No preconditions.
        let base = NonNull::new(unsafe { super::kf_ring_alloc(size) }).ok_or(ENOMEM)?;
        // INVARIANT: Just allocated.
        Ok(Self { base, size })
    }

    /// Says that the connection is over. Whoever sees it sees what was in memory before.
    pub(crate) fn set_ended(&self) {
        let at = core::mem::offset_of!(RingsStatus, ended);
        // SAFETY: By the type invariant the first page is there, and programs only read it; the field
        // is an aligned `u32`.
        let ended = unsafe { &*self.base.as_ptr().byte_add(at).cast::<AtomicU32>() };
        ended.store(1, Ordering::SeqCst);
    }

    /// Address and bytes, for mmap.
    pub(crate) fn raw(&self) -> (*mut c_void, usize) {
        (self.base.as_ptr(), self.size)
    }
}

impl Drop for StatusMem {
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours; as for a `RingMem`.
        unsafe { super::kf_ring_free(self.base.as_ptr()) }
    }
}
