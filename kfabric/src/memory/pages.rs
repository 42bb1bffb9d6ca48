// SPDX-License-Identifier: GPL-2.0
//! Memory under a region: pages, as physically contiguous runs.
//!
//! Physically contiguous pages (huge pages above all) are kept as runs. The page of an offset is
//! found by a binary search over runs, so its cost does not depend on the size of the window.

use core::{
    cell::UnsafeCell,
    num::NonZero,
    ptr::{
        self,
        NonNull, //
    },
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    bindings,
    page::{
        Page,
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::{
    charge::Owner,
    dax::{
        Health,
        Opened, //
    },
    device_reg::DevicePart,
    placeholder::Filling, //
};
use crate::{
    base::errno::ehwpoison,
    pure::{
        persist::{
            Facts,
            Persistence, //
        },
        range::{
            self,
            Pieces, //
        },
    },
    sys, //
};

/// Physically contiguous pages.
pub(super) struct Run {
    /// First page of the run.
    pub(super) page: NonNull<bindings::page>,
    /// Number of pages.
    pub(super) pages: usize,
    /// Pages of all runs before it.
    pub(super) before: usize,
}

/// A physically contiguous piece of memory.
#[derive(Clone, Copy)]
pub struct Segment {
    /// Page that `offset` counts from; more pages follow it contiguously.
    pub page: *mut bindings::page,
    /// Bytes from that page's start. Less than a page.
    pub offset: usize,
    /// Bytes.
    pub len: usize,
}

impl Segment {
    /// Returns the physical address of the first byte.
    pub fn addr(&self) -> u64 {
        physical(self.page) + self.offset as u64
    }
}

/// Returns the physical address of a page.
fn physical(page: *mut bindings::page) -> u64 {
    // SAFETY: The function only computes with the pointer.
    let pfn = unsafe { sys::kf_page_to_pfn(page) };
    // CAST: The platform is 64-bit.
    (pfn as u64) << PAGE_SHIFT
}

/// Pages that are allocated between two calls of the caller of [`Memory::in_large_blocks`].
const STRETCH: usize = 256;
/// Pages that are unpinned between two points at which another task may run.
const UNPINNED: usize = 512;

/// Origin of the pages, which decides how they are released.
pub(super) enum Source {
    /// Pinned one by one; marked dirty at the unpin if `dirty` is set.
    Pinned {
        dirty: bool,
        /// The DAX devices of the pages, each once.
        devices: KVec<Device>,
        /// Address of the first descriptor of the last page's block of
        /// [`sys::KF_PAGES_OF_ONE_DEVICE`] pages, whose device is held.
        block: usize,
    },
    /// Owned pages.
    Owned(#[expect(dead_code, reason = "held for its Drop")] KVVec<Page>),
    /// Owned pages, allocated in blocks.
    Blocks(#[expect(dead_code, reason = "held for its Drop")] KVVec<Block>),
    /// Pages of a lender, which keeps them until this reference is dropped.
    Lent(#[expect(dead_code, reason = "held for its Drop")] Arc<dyn Lender>),
    /// Pages of a DAX device, which keeps them until this reference is dropped.
    Dax(Arc<Opened>),
    /// No pages: attach-on-assign.
    Placeholder,
}

/// A DAX device that cannot be removed meanwhile.
///
/// # Invariants
///
/// The value owns a reference to the device's memory map.
#[derive(PartialEq)]
pub(super) struct Device(NonNull<bindings::dev_pagemap>);

impl Device {
    /// Returns the device of a page that was pinned just now, or `None` for system RAM.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device is being removed. The page's descriptor must not be accessed.
    pub(super) fn of(page: NonNull<bindings::page>) -> Result<Option<Self>> {
        let mut device = ptr::null_mut();
        // SAFETY: `device` is writable. The function does not access the page.
        if !unsafe { sys::kf_hold_device(page.as_ptr(), &mut device) } {
            return Err(ENODEV);
        }
        // INVARIANT: The call has returned a reference.
        Ok(NonNull::new(device).map(Self))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns the reference.
        unsafe { sys::kf_release_device(self.0.as_ptr()) }
    }
}

/// Physically contiguous pages from one allocation.
///
/// # Invariants
///
/// `first` is the first of `1 << order` pages, which the block owns and frees.
pub(super) struct Block {
    first: NonNull<bindings::page>,
    order: u32,
}

impl Block {
    /// Allocates zeroed pages. With `easily`, fails instead of reclaiming much.
    fn alloc(order: u32, easily: bool) -> Result<Self> {
        // SAFETY: The function has no preconditions. Callers are in process context and may sleep.
        let first = unsafe { sys::kf_alloc_block(order, easily) };
        // INVARIANT: The pages were allocated just now.
        Ok(Self {
            first: NonNull::new(first).ok_or(ENOMEM)?,
            order,
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the block owns `1 << order` pages from `first`.
        unsafe { bindings::__free_pages(self.first.as_ptr(), self.order) }
    }
}

/// Blocks that will be the pages of a [`Memory`].
struct Blocks {
    all: KVVec<Block>,
    pages: Pages,
}

impl Blocks {
    fn with_capacity(count: usize) -> Result<Self> {
        Ok(Self {
            all: KVVec::with_capacity(count, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?,
            // INVARIANT: The runs pushed below are those of the blocks, whose addresses do not change.
            pages: Pages {
                runs: KVVec::new(),
                count: 0,
                source: Source::Owned(KVVec::new()),
            },
        })
    }

    /// Appends the pages of a block.
    fn push(&mut self, block: Block) -> Result {
        for i in 0..1 << block.order {
            // The `struct page`s of a block are contiguous.
            let page = block.first.as_ptr().wrapping_add(i);
            self.pages.push(NonNull::new(page).ok_or(EINVAL)?)?;
        }
        self.all.push(block, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        Ok(())
    }

    /// # Errors
    ///
    /// - `EINVAL` if there are no blocks.
    fn into_memory(mut self) -> Result<Arc<Memory>> {
        let len = self.pages.count << PAGE_SHIFT;
        if len == 0 {
            return Err(EINVAL);
        }
        self.pages.source = Source::Blocks(self.all);
        Memory::make(self.pages, None, 0, len, true)
    }
}

/// Keeper of pages of the kernel. Dropped when no region uses the pages any more, in process context:
/// a provider may drop its reference after the close of the region, by any task. The lender's module
/// must not unload before the drop.
pub trait Lender: Send + Sync {}

/// Pages, as contiguous runs in the order of the memory they make up.
///
/// # Invariants
///
/// - With [`Source::Pinned`] every page of `runs` is pinned once, and unpinned by the drop. The pages'
///   DAX devices are in `devices`, which is dropped later.
/// - With [`Source::Owned`] and [`Source::Blocks`] the runs are those of the owned pages.
/// - With [`Source::Lent`] and [`Source::Dax`] the pages stay valid until the lender or the device is
///   dropped.
/// - With [`Source::Placeholder`] there are no runs.
pub(super) struct Pages {
    pub(super) runs: KVVec<Run>,
    pub(super) count: usize,
    pub(super) source: Source,
}

/// Returns whether page `next` follows page `page` in memory. On x86-64 the descriptors of all pages are
/// one array.
#[inline]
fn follows(page: *mut bindings::page, next: *mut bindings::page) -> bool {
    page.wrapping_add(1) == next
}

impl Pages {
    /// Allocates capacity for `count` more runs.
    fn reserve(&mut self, count: usize) -> Result {
        // A program's size decides the length, so a failed allocation is not logged.
        let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
        Ok(self.runs.reserve(count, flags)?)
    }

    /// Appends a page. The caller has reserved capacity for a run.
    #[inline]
    fn append(&mut self, page: NonNull<bindings::page>) {
        let before = self.count;
        self.count += 1;
        if let Some(last) = self.runs.last_mut() {
            if last.page.as_ptr().wrapping_add(last.pages) == page.as_ptr() {
                last.pages += 1;
                return;
            }
        }
        let run = Run {
            page,
            pages: 1,
            before,
        };
        // Cannot fail: the caller has reserved capacity.
        let _ = self.runs.push_within_capacity(run);
    }

    /// Appends a page. On failure the caller still owns the page.
    fn push(&mut self, page: NonNull<bindings::page>) -> Result {
        self.reserve(1)?;
        self.append(page);
        Ok(())
    }

    /// Appends pages that were pinned just now, and takes over their pins. If this fails, the pins of
    /// the pages that are not appended are released, except those of a device that is being removed.
    ///
    /// # Errors
    ///
    /// - `ENODEV` if the device is being removed. Removals do not wait for pins.
    pub(super) fn push_pinned(&mut self, batch: &[*mut bindings::page]) -> Result {
        let begins = |pair: &&[*mut bindings::page]| match pair {
            [page, next] => !follows(*page, *next),
            _ => false,
        };
        let mut result = self.reserve(1 + batch.windows(2).filter(begins).count());
        for page in batch {
            let Some(page) = NonNull::new(*page) else {
                result = result.and(Err(EFAULT));
                continue;
            };
            let held = self.hold(page);
            if held.is_ok() && result.is_ok() {
                self.append(page);
                continue;
            }
            let removed = matches!(held, Err((_, None)));
            if !removed {
                // SAFETY: The page is pinned, and `self` has not taken over its pin. `held` or `self`
                // holds its device, if it has one.
                unsafe { sys::kf_unpin_range(page.as_ptr(), 1, false) };
            }
            result = result.and(held.map_err(|(e, _)| e));
        }
        result
    }

    /// Holds the device of a page that was pinned just now, if it has one.
    ///
    /// # Errors
    ///
    /// - `ENODEV` without a device if the device is being removed. The page's descriptor must not be
    ///   accessed.
    /// - `ENOMEM`, with the device, if there is no memory to keep it.
    #[inline]
    fn hold(&mut self, page: NonNull<bindings::page>) -> Result<(), (Error, Option<Device>)> {
        const SIZE: usize = size_of::<bindings::page>();
        // CAST: A small constant.
        const BLOCK: usize = sys::KF_PAGES_OF_ONE_DEVICE as usize;
        let Source::Pinned { devices, block, .. } = &mut self.source else {
            return Ok(());
        };
        let at = page.as_ptr().addr();
        if at.wrapping_sub(*block) < BLOCK * SIZE {
            return Ok(());
        }
        let device = Device::of(page).map_err(|e| (e, None))?;
        if let Some(device) = device.filter(|device| !devices.contains(device)) {
            if devices.reserve(1, GFP_KERNEL_ACCOUNT).is_err() {
                return Err((ENOMEM, Some(device)));
            }
            // Cannot fail: the capacity was reserved above.
            let _ = devices.push_within_capacity(device);
        }
        // SAFETY: A page of the kernel's memory map.
        let pfn = unsafe { sys::kf_page_to_pfn(page.as_ptr()) };
        *block = at - (pfn % BLOCK) * SIZE;
        Ok(())
    }
}

impl Run {
    /// Returns the kind of the run's memory.
    ///
    /// # Errors
    ///
    /// - `EHWPOISON` if a page of a DAX device is known to be bad.
    fn persistence(&self) -> Result<Persistence> {
        // SAFETY: The run's pages are valid, by the invariants of `Pages`.
        let found = unsafe { sys::kf_page_facts(self.page.as_ptr(), self.pages) };
        let facts = Facts {
            dax: found & sys::KF_PAGES_DAX != 0,
            for_files: found & sys::KF_PAGES_FOR_FILES != 0,
            described: found & sys::KF_PAGES_PERSISTENT != 0,
        };
        if found & sys::KF_PAGES_POISONED != 0 {
            return Err(ehwpoison());
        }
        Ok(facts.kind())
    }
}

impl Pages {
    /// Returns the kind of the memory: the weakest kind of its runs.
    ///
    /// # Errors
    ///
    /// The errors of [`Run::persistence`].
    fn persistence(&self) -> Result<Persistence> {
        // Without a device, all pinned pages are system RAM.
        if matches!(&self.source, Source::Pinned { devices, .. } if devices.is_empty()) {
            return Ok(Persistence::None);
        }
        let Some((first, rest)) = self.runs.split_first() else {
            return Ok(Persistence::None);
        };
        let first = first.persistence()?;
        rest.iter()
            .try_fold(first, |kind, run| Ok(kind.and(run.persistence()?)))
    }
}

impl range::Run for Run {
    #[inline]
    fn start(&self) -> u64 {
        (self.before << PAGE_SHIFT) as u64
    }

    #[inline]
    fn bytes(&self) -> u64 {
        (self.pages << PAGE_SHIFT) as u64
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let Source::Pinned { dirty, .. } = self.source else {
            return;
        };
        let runs = self.runs.iter();
        #[cfg(kfabric_seed_bug = "missing-unpin")]
        let runs = runs.skip(1);
        let mut since = 0;
        for run in runs {
            // SAFETY: By the type invariant the run's pages are pinned, and `self` owns the pins.
            unsafe { sys::kf_unpin_range(run.page.as_ptr(), run.pages, dirty) };
            since += run.pages;
            if since >= UNPINNED {
                since = 0;
                // SAFETY: Regions are dropped in process context, which may sleep.
                unsafe { sys::kf_cond_resched() };
            }
        }
    }
}

/// Memory under a region.
#[pin_data]
pub struct Memory {
    // Dropped in this order: pages are unpinned before their charge is returned.
    pub(super) pages: Pages,
    pub(super) owner: Option<Owner>,
    /// Offset of the first byte in the first page.
    pub(super) first: usize,
    pub(super) len: usize,
    pub(super) writable: bool,
    /// Kind by the properties of the pages alone.
    pages_kind: Persistence,
    /// Pages attached by [`Memory::fill`]; `None` if the memory has pages of its own.
    pub(super) attached: Option<UnsafeCell<Filling>>,
    /// Part of the charge that device registrations have taken over, if there is one.
    #[pin]
    pub(super) device: Mutex<Option<DevicePart>>,
}

// SAFETY: Pages and `mm` are reference counted, and any thread may use and release them.
unsafe impl Send for Memory {}
// SAFETY: All fields are only read, except the mutex and the filling. The contract of
// [`Memory::fill`] excludes concurrent readers of the filling.
unsafe impl Sync for Memory {}

impl Memory {
    /// Takes ownership of pages of the kernel, such as a consumer's buffers.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if there are no pages.
    pub fn from_pages(owned: KVVec<Page>) -> Result<Arc<Self>> {
        let len = owned.len() << PAGE_SHIFT;
        if len == 0 {
            return Err(EINVAL);
        }
        // INVARIANT: The runs pushed below are those of the owned pages, whose addresses do not
        // change.
        let mut pages = Pages {
            runs: KVVec::new(),
            count: 0,
            source: Source::Owned(KVVec::new()),
        };
        for page in owned.iter() {
            pages.push(NonNull::new(page.as_ptr()).ok_or(EINVAL)?)?;
        }
        pages.source = Source::Owned(owned);
        Self::make(pages, None, 0, len, true)
    }

    /// Allocates `count` blocks of `1 << order` zeroed pages of the kernel. Each block is
    /// physically contiguous, so few segments are mapped or registered.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `count` is 0.
    /// - `ENOMEM` if an allocation fails.
    pub fn in_blocks(count: usize, order: u32) -> Result<Arc<Self>> {
        let mut blocks = Blocks::with_capacity(count)?;
        for _ in 0..count {
            blocks.push(Block::alloc(order, false)?)?;
        }
        blocks.into_memory()
    }

    /// Allocates `count` zeroed pages of the kernel, in blocks of up to `1 << order` pages that are as
    /// large as the kernel has them, so that few segments are mapped or registered. Calls `go_on`
    /// before each block, and each [`STRETCH`] pages at most.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `count` is 0.
    /// - `ENOMEM` if an allocation fails.
    /// - Errors of `go_on`.
    pub fn in_large_blocks(
        count: usize,
        mut order: u32,
        go_on: impl Fn() -> Result,
    ) -> Result<Arc<Self>> {
        let mut blocks = Blocks::with_capacity(0)?;
        let mut next = 0;
        while let Some(rest) = NonZero::new(count - blocks.pages.count) {
            if blocks.pages.count >= next {
                go_on()?;
                next = blocks.pages.count + STRETCH;
            }
            let fits = order.min(rest.ilog2());
            match Block::alloc(fits, fits != 0) {
                Ok(block) => blocks.push(block)?,
                Err(e) if fits == 0 => return Err(e),
                // Larger blocks are not tried again.
                Err(_) => order = fits - 1,
            }
        }
        blocks.into_memory()
    }

    /// Uses `len` bytes of the kernel's memory, which `lender` keeps, from byte `first` of the
    /// first page. The drop of `lender` may come late; see [`Lender`].
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `len` is 0 or does not match the number of pages.
    /// - An error that `pages` returns.
    ///
    /// # Safety
    ///
    /// `pages` returns pages of the kernel's memory map, which all stay valid until `lender` is
    /// dropped.
    pub unsafe fn lend(
        lender: Arc<dyn Lender>,
        pages: impl Iterator<Item = Result<NonNull<bindings::page>>>,
        first: usize,
        len: usize,
    ) -> Result<Arc<Self>> {
        // SAFETY: The caller's contract is that of `keep`.
        unsafe { Self::keep(Source::Lent(lender), pages, first, len, true) }
    }

    /// Uses `len` bytes of pages that `source` keeps, from byte `first` of the first page.
    ///
    /// # Errors
    ///
    /// The errors of [`Memory::lend`].
    ///
    /// # Safety
    ///
    /// `pages` returns pages of the kernel's memory map, which all stay valid until `source` is
    /// dropped.
    pub(super) unsafe fn keep(
        source: Source,
        pages: impl Iterator<Item = Result<NonNull<bindings::page>>>,
        first: usize,
        len: usize,
        writable: bool,
    ) -> Result<Arc<Self>> {
        // INVARIANT: The runs pushed below stay until the source is dropped.
        let mut lent = Pages {
            runs: KVVec::new(),
            count: 0,
            source,
        };
        for page in pages {
            lent.push(page?)?;
        }
        if len == 0 || first >= PAGE_SIZE || (first + len).div_ceil(PAGE_SIZE) != lent.count {
            return Err(EINVAL);
        }
        Self::make(lent, None, first, len, writable)
    }

    /// The health of the memory's DAX device, if the memory is that of a [`Device`](super::dax::Device).
    pub(crate) fn health(&self) -> Option<&Arc<Health>> {
        match &self.pages.source {
            Source::Dax(device) => Some(device.health()),
            _ => None,
        }
    }

    /// Checks that the memory has not failed.
    ///
    /// # Errors
    ///
    /// - `EHWPOISON` if memory of its [DAX device](super::dax::Device) has failed.
    /// - `ENODEV` if that device is being removed.
    #[inline]
    pub(crate) fn check(&self) -> Result {
        self.health().map_or(Ok(()), |health| health.check())
    }

    pub(super) fn make(
        pages: Pages,
        owner: Option<Owner>,
        first: usize,
        len: usize,
        writable: bool,
    ) -> Result<Arc<Self>> {
        Self::of(pages, owner, first, len, writable, None)
    }

    pub(super) fn of(
        pages: Pages,
        owner: Option<Owner>,
        first: usize,
        len: usize,
        writable: bool,
        attached: Option<UnsafeCell<Filling>>,
    ) -> Result<Arc<Self>> {
        let pages_kind = pages.persistence()?;
        Arc::pin_init(
            pin_init!(Self {
                pages,
                owner,
                first,
                len,
                writable,
                pages_kind,
                attached,
                device <- new_mutex!(None),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// The runs, and the offset of the first byte in the first page.
    #[inline]
    fn runs(&self) -> (&[Run], usize) {
        match &self.attached {
            None => (&self.pages.runs, self.first),
            Some(filling) => {
                // SAFETY: The caller of [`Memory::fill`] excludes concurrent readers.
                let filling = unsafe { &*filling.get() };
                (&filling.runs, filling.first)
            }
        }
    }

    /// Number of pages; the maximum for attach-on-assign.
    pub fn page_count(&self) -> usize {
        self.pages.count
    }

    /// Bytes; the maximum for attach-on-assign.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that have pages now: all, except for attach-on-assign.
    pub(crate) fn filled(&self) -> usize {
        match &self.attached {
            None => self.len,
            // SAFETY: The caller of [`Memory::fill`] excludes concurrent readers.
            Some(filling) => unsafe { (*filling.get()).len },
        }
    }

    /// Returns whether devices may write to the memory.
    pub fn writable(&self) -> bool {
        self.writable
    }

    /// The kind of the memory, found from its pages. [`Persistence::None`] for attach-on-assign.
    ///
    /// Whether a DAX device's caches are persistent is read in each call, as the kernel's `dax_flush()`
    /// does. So a commit after an administrator's change of the device's attribute `dax/write_cache`
    /// follows the change. Context: any.
    pub fn persistence(&self) -> Persistence {
        let caches = match &self.pages.source {
            Source::Dax(device) => device.caches_persist(),
            _ => false,
        };
        self.pages_kind.with_caches(caches)
    }

    /// Pages charged to its owner; 0 for the kernel's memory.
    pub fn charged(&self) -> usize {
        self.owner.as_ref().map_or(0, |owner| owner.pages)
    }

    /// For user memory, the owner's address of the first byte.
    pub fn user(&self) -> Option<usize> {
        self.owner.as_ref().map(|owner| owner.addr)
    }

    /// Offset of the first byte in its page.
    pub fn page_offset(&self) -> usize {
        self.runs().1
    }

    /// Returns whether the current task owns the memory; true for the kernel's memory.
    pub fn is_current(&self) -> bool {
        self.owner.as_ref().is_none_or(Owner::is_current)
    }

    /// The contiguous pieces of [offset, offset + len). Empty if the range is not inside the
    /// memory, or has no attached pages.
    pub fn segments(&self, offset: usize, len: usize) -> Segments<'_> {
        let end = offset.checked_add(len);
        let inside = end.is_some_and(|end| end <= self.filled());
        if !inside {
            return Segments(Pieces::default());
        }
        let (runs, first) = self.runs();
        let at = (first + offset) as u64;
        Segments(range::pieces(runs, at, len as u64).unwrap_or_default())
    }

    /// Number of pieces that [`Memory::segments`] returns.
    pub fn segment_count(&self, offset: usize, len: usize) -> usize {
        let last = offset.saturating_add(len).saturating_sub(1);
        if len == 0 || last >= self.filled() {
            return 0;
        }
        let (runs, first) = self.runs();
        let run = |at: usize| range::run_at(runs, (first + at) as u64).unwrap_or(0);
        run(last) - run(offset) + 1
    }

    /// Returns the physical address at which the contiguous pages of a range's first piece begin, and the one
    /// at which those of the last piece end. All these pages belong to the memory.
    ///
    /// Returns `None` if the range is empty, or not in the memory.
    pub fn bounds(&self, offset: usize, len: usize) -> Option<(u64, u64)> {
        let last = offset.checked_add(len.checked_sub(1)?)?;
        if last >= self.filled() {
            return None;
        }
        let (runs, first) = self.runs();
        let run = |at: usize| runs.get(range::run_at(runs, (first + at) as u64)?);
        let (from, to) = (run(offset)?, run(last)?);
        let begin = physical(from.page.as_ptr());
        let end = physical(to.page.as_ptr()) + range::Run::bytes(to);
        Some((begin, end))
    }

    /// Returns whether the memory is attach-on-assign ([`Memory::placeholder`]).
    pub(crate) fn is_placeholder(&self) -> bool {
        self.attached.is_some()
    }

    /// Copies into the memory, for a kernel consumer. Returns the number of bytes copied; 0 for
    /// attach-on-assign memory and memory pinned for reading only.
    pub fn write(&self, offset: usize, data: &[u8]) -> usize {
        let mut done = 0;
        if self.is_placeholder() || !self.writable {
            return done;
        }
        for seg in self.segments(offset, data.len()) {
            // SAFETY: The segment's bytes belong to this memory and stay while it lives. Lowmem
            // pages are mapped (x86-64 has no others), so their address is valid for `len` bytes.
            // Peers and devices may race by design: the core does not interpret the bytes.
            unsafe {
                ptr::copy_nonoverlapping(
                    data[done..].as_ptr(),
                    sys::kf_page_address(seg.page).cast::<u8>().add(seg.offset),
                    seg.len,
                )
            };
            done += seg.len;
        }
        done
    }

    /// Copies out of the memory, for a kernel consumer. Returns the number of bytes copied; 0 for
    /// attach-on-assign memory.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        if self.is_placeholder() {
            return done;
        }
        for seg in self.segments(offset, out.len()) {
            // SAFETY: The segment's bytes belong to this memory and stay while it lives; see
            // `write`.
            unsafe {
                ptr::copy_nonoverlapping(
                    sys::kf_page_address(seg.page).cast::<u8>().add(seg.offset),
                    out[done..].as_mut_ptr(),
                    seg.len,
                )
            };
            done += seg.len;
        }
        done
    }
}

/// Iterator of [`Memory::segments`].
pub struct Segments<'a>(Pieces<'a, Run>);

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        let piece = self.0.next()?;
        // CAST: The platform is 64-bit.
        let into = piece.offset as usize;
        Some(Segment {
            // The `struct page`s of a run are contiguous: on x86-64 they are a virtually contiguous
            // array.
            page: piece.run.page.as_ptr().wrapping_add(into >> PAGE_SHIFT),
            offset: into & (PAGE_SIZE - 1),
            // CAST: The platform is 64-bit.
            len: piece.len as usize,
        })
    }
}
