// SPDX-License-Identifier: GPL-2.0
//! Memory that the kernel shares with programs: the completion ring, and the rings of two programs.

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

// SAFETY: All accesses below are atomic, or their callers exclude others; any thread may make them.
unsafe impl Send for RingMem {}
// SAFETY: All accesses below are atomic, or their callers exclude others.
unsafe impl Sync for RingMem {}

impl RingMem {
    /// Allocates a zeroed ring of `entries` (a power of two).
    pub(crate) fn new(entries: u32) -> Result<Self> {
        let bytes = entries as usize * size_of::<CqEntry>() + KFI_CQ_RING_OFFSET;
        let size = bytes.next_multiple_of(PAGE_SIZE);
        // SAFETY: The function has no preconditions.
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
        // SAFETY: Callers pass offsets of aligned `u32` fields of the header page, which by the
        // type invariant exists as long as `self`. Programs may write any `u32` concurrently;
        // atomics allow that.
        unsafe { &*self.base.as_ptr().byte_add(offset).cast::<AtomicU32>() }
    }

    /// The tail that the program has written: the entries that it has read.
    pub(crate) fn tail(&self) -> u32 {
        self.word(core::mem::offset_of!(CqRing, tail))
            .load(Ordering::Acquire)
    }

    /// Stores the tail, for a kernel reader.
    pub(crate) fn set_tail(&self, tail: u32) {
        self.word(core::mem::offset_of!(CqRing, tail))
            .store(tail, Ordering::Release)
    }

    /// Publishes the entries up to `head` to the reader.
    pub(crate) fn set_head(&self, head: u32) {
        self.word(core::mem::offset_of!(CqRing, head))
            .store(head, Ordering::Release)
    }

    /// Sets the alarm: the queue polls as readable until the program clears the alarm.
    pub(crate) fn set_alarm(&self) {
        self.word(core::mem::offset_of!(CqRing, alarm))
            .store(1, Ordering::Release)
    }

    /// Returns whether the alarm is set.
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

    /// Writes the entry at `index`. The caller excludes other writers of the entry.
    pub(crate) fn write(&self, index: u32, entry: &CqEntry) {
        // SAFETY: `slot` is inside the ring and aligned. A program may write the bytes
        // concurrently; the kernel never reads them back for a decision.
        unsafe { self.slot(index).write_volatile(*entry) }
    }

    /// Reads the entry at `index`, for a kernel reader.
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
    // Compiled once, for all modules that drop the last reference to a queue.
    #[inline(never)]
    fn drop(&mut self) {
        // SAFETY: By the type invariant `self` owns the allocation. Pages that a program still maps
        // stay allocated until it unmaps them.
        unsafe { super::kf_ring_free(self.base.as_ptr()) }
    }
}

/// A page that only the kernel writes, followed by memory of programs that the kernel does not
/// read.
///
/// # Invariants
///
/// `base` is a zeroed `__vmalloc()` allocation of `size` bytes, whole pages, at least one.
pub(crate) struct StatusMem {
    base: NonNull<c_void>,
    size: usize,
}

// SAFETY: The one access below is atomic, so any thread may make it.
unsafe impl Send for StatusMem {}
// SAFETY: The one access below is atomic.
unsafe impl Sync for StatusMem {}

impl StatusMem {
    /// Allocates a zeroed page, followed by `bytes` zeroed bytes (whole pages).
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let size = PAGE_SIZE + bytes;
        // SAFETY: The function has no preconditions.
        let base = NonNull::new(unsafe { super::kf_ring_alloc(size) }).ok_or(ENOMEM)?;
        // INVARIANT: `kf_ring_alloc()` has just allocated `size` zeroed bytes.
        Ok(Self { base, size })
    }

    /// Marks the connection as ended. A program that reads the mark sees all earlier writes to the
    /// memory.
    pub(crate) fn set_ended(&self) {
        let at = core::mem::offset_of!(RingsStatus, ended);
        // SAFETY: By the type invariant the first page exists, and programs only read it; the field
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
        // SAFETY: By the type invariant `self` owns the allocation; mapped pages outlive this call.
        unsafe { super::kf_ring_free(self.base.as_ptr()) }
    }
}
