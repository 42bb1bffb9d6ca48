// SPDX-License-Identifier: GPL-2.0
//! Memory that a region covers: pinned pages of a process, or pages of the kernel; or a room, where keys
//! find memory that is lent for as long as they live.
//!
//! Pinning follows `ib_umem` (drivers/infiniband/core/umem.c): long term, and charged
//! ([`charge`](crate::charge)).
//! Physically contiguous pages (huge pages above all) are kept as runs; finding the page of an
//! offset is a binary search over runs, so its cost does not depend on the size of the window.
//!
//! This is not a cache: unmapping pinned memory leaves the old pages pinned until the region is
//! closed.

use core::{
    cell::UnsafeCell,
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

use crate::{
    charge::Owner,
    errno::eopnotsupp,
    fault,
    op::LentPiece,
    pure::range::{
        self,
        Pieces, //
    },
    sys, //
};

/// Pages pinned in one step; a page of pointers.
const BATCH: usize = PAGE_SIZE / size_of::<*mut bindings::page>();

/// Physically contiguous pages.
struct Run {
    /// First of them.
    page: NonNull<bindings::page>,
    /// How many.
    pages: usize,
    /// Pages of all runs before it.
    before: usize,
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

/// Where pages came from, which says how they go.
enum Source {
    /// Pinned one by one; dirty when given back if the flag says so.
    Pinned { dirty: bool },
    /// Owned.
    Owned(#[expect(dead_code, reason = "held for its Drop")] KVVec<Page>),
    /// Owned, and allocated some at a time.
    Blocks(#[expect(dead_code, reason = "held for its Drop")] KVec<Block>),
    /// Somebody else's, who waits for the drop of this before the pages go.
    Lent(#[expect(dead_code, reason = "held for its Drop")] Arc<dyn Lender>),
    /// None.
    Room,
}

/// Pages that were allocated together, side by side.
///
/// # Invariants
///
/// `first` is the first of `1 << order` pages that are ours to free.
struct Block {
    first: NonNull<bindings::page>,
    order: u32,
}

impl Block {
    fn alloc(order: u32) -> Result<Self> {
        // SAFETY: No preconditions; we may sleep.
        let first = unsafe { sys::kf_alloc_block(order) };
        // INVARIANT: They were allocated just now.
        Ok(Self {
            first: NonNull::new(first).ok_or(ENOMEM)?,
            order,
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::__free_pages(self.first.as_ptr(), self.order) }
    }
}

/// Who lends pages of the kernel's. Dropped when nothing uses them any more.
pub(crate) trait Lender: Send + Sync {}

/// Pages, as contiguous runs in the order of the memory they make up.
///
/// # Invariants
///
/// With [`Source::Pinned`] every page of `runs` is pinned once and ours to unpin; with
/// [`Source::Owned`] and [`Source::Blocks`] the runs are those of the owned pages; with [`Source::Lent`] they stay until its
/// drop. With [`Source::Room`] there are none.
struct Pages {
    runs: KVVec<Run>,
    count: usize,
    source: Source,
}

impl Pages {
    /// Appends a page. On failure the page is still the caller's.
    fn push(&mut self, page: NonNull<bindings::page>) -> Result {
        if let Some(last) = self.runs.last_mut() {
            // SAFETY: Both are pages of the kernel's memory map.
            let (a, b) = unsafe {
                (
                    sys::kf_page_to_pfn(last.page.as_ptr()),
                    sys::kf_page_to_pfn(page.as_ptr()),
                )
            };
            if a + last.pages == b {
                last.pages += 1;
                self.count += 1;
                return Ok(());
            }
        }
        let run = Run {
            page,
            pages: 1,
            before: self.count,
        };
        // As many as the program has pages, perhaps: too many are no news for the log.
        self.runs.push(run, GFP_KERNEL_ACCOUNT | __GFP_NOWARN)?;
        self.count += 1;
        Ok(())
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
        let Source::Pinned { dirty } = self.source else {
            return;
        };
        let runs = self.runs.iter();
        #[cfg(kfabric_seed_bug = "missing-unpin")]
        let runs = runs.skip(1);
        for run in runs {
            // SAFETY: By the type invariant the run's pages are pinned and ours.
            unsafe { sys::kf_unpin_range(run.page.as_ptr(), run.pages, dirty) };
            // SAFETY: We may sleep: regions are dropped in process context.
            unsafe { sys::kf_cond_resched() };
        }
    }
}

/// Memory under a region.
#[pin_data]
pub struct Memory {
    // Dropped in this order: pages are unpinned before their charge is given back.
    pages: Pages,
    owner: Option<Owner>,
    /// Offset of the first byte in the first page.
    first: usize,
    len: usize,
    writable: bool,
    /// What [`Memory::fill`] has put here, where there is nothing else.
    room: Option<UnsafeCell<Filling>>,
    /// What device registrations stand in for with their charge, if there are any.
    #[pin]
    device: Mutex<Option<Lent>>,
}

/// What a room is at a time.
struct Filling {
    /// There is room for as many as it may have pages.
    runs: KVVec<Run>,
    /// Offset of the first byte in the first page.
    first: usize,
    /// Bytes.
    len: usize,
}

/// A part of the owner's charge that device registrations have taken over: it was given back for the
/// device to charge the same pages.
///
/// Registrations of the same part are charged alike, so it does not matter which of them stands in:
/// the charge comes back with the end of the last. Before the first of them exists nothing is charged,
/// and the pages are [lent](Owner::lend).
struct Lent {
    offset: usize,
    len: usize,
    /// Registrations that are being made.
    starting: usize,
    /// Registrations that there are.
    registrations: usize,
}

impl Lent {
    fn is(&self, offset: usize, len: usize) -> bool {
        (self.offset, self.len) == (offset, len)
    }
}

// SAFETY: Pages and `mm` are reference counted and may be used and given back by any thread.
unsafe impl Send for Memory {}
// SAFETY: Everything in it is only read, but for the mutex and the filling; and who changes that has nobody
// read it meanwhile ([`Memory::fill`]).
unsafe impl Sync for Memory {}

/// Pins `count` pages from the page-aligned `start`.
fn pin(start: usize, count: usize, writable: bool) -> Result<Pages> {
    // INVARIANT: Holds nothing yet.
    let mut pages = Pages {
        runs: KVVec::new(),
        count: 0,
        source: Source::Pinned { dirty: writable },
    };
    let mut flags = bindings::FOLL_LONGTERM;
    if writable {
        flags |= bindings::FOLL_WRITE;
    }
    let mut batch = KVec::from_elem(ptr::null_mut::<bindings::page>(), BATCH, GFP_KERNEL_ACCOUNT)?;
    while pages.count < count {
        // SAFETY: No preconditions.
        if unsafe { sys::kf_fatal_signal_pending() } {
            return Err(EINTR);
        }
        fault::pin()?;
        let want = BATCH.min(count - pages.count);
        let at = start + (pages.count << PAGE_SHIFT);
        // CAST: `want` is at most `BATCH`; the flags are small constants.
        // SAFETY: `batch` has room for `want` pointers; the address is checked by the call.
        let got = unsafe {
            bindings::pin_user_pages_fast(at, want as c_int, flags as c_uint, batch.as_mut_ptr())
        };
        if got <= 0 {
            return Err(if got < 0 {
                Error::from_errno(got)
            } else {
                EFAULT
            });
        }
        // CAST: Positive, as just seen.
        let got = &batch[..got as usize];
        for (i, page) in got.iter().enumerate() {
            // INVARIANT: The call has just pinned the page for us.
            let pushed = NonNull::new(*page)
                .ok_or(EFAULT)
                .and_then(|page| pages.push(page));
            if let Err(e) = pushed {
                for page in &got[i..] {
                    // SAFETY: Pinned just now, and not taken over by `pages`.
                    unsafe { sys::kf_unpin_range(*page, 1, false) };
                }
                return Err(e);
            }
        }
        // SAFETY: We are in a system call and hold no lock.
        unsafe { sys::kf_cond_resched() };
    }
    Ok(pages)
}

impl Memory {
    /// Pins `len` bytes at `addr` of the current task, for writing too if `writable`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no bytes, or the range wraps. `ENOMEM`: beyond `RLIMIT_MEMLOCK`. `EFAULT`: not
    /// mapped, or not writable. `EOPNOTSUPP`: file-backed DAX. `EINTR`: killed meanwhile.
    pub fn pin_user(addr: usize, len: usize, writable: bool) -> Result<Arc<Self>> {
        let end = addr.checked_add(len).ok_or(EINVAL)?;
        let end = end.checked_next_multiple_of(PAGE_SIZE).ok_or(EINVAL)?;
        if len == 0 {
            return Err(EINVAL);
        }
        let first = addr & (PAGE_SIZE - 1);
        let start = addr - first;
        let count = (end - start) >> PAGE_SHIFT;
        let owner = Owner::charge(addr, count)?;
        let pages = pin(start, count, writable)?;
        Self::make(pages, Some(owner), first, len, writable)
    }

    /// Takes pages of the kernel's, e.g. a consumer's buffers.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no pages.
    pub fn from_pages(owned: KVVec<Page>) -> Result<Arc<Self>> {
        let len = owned.len() << PAGE_SHIFT;
        if len == 0 {
            return Err(EINVAL);
        }
        // INVARIANT: The runs pushed below are those of the owned pages, which do not move.
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

    /// Allocates `count` times `1 << order` pages of the kernel's, zeroed; those lie side by side. So
    /// few are mapped where other memory would have to be registered.
    ///
    /// # Errors
    ///
    /// `EINVAL`: none. `ENOMEM`.
    pub fn in_blocks(count: usize, order: u32) -> Result<Arc<Self>> {
        let mut blocks = KVec::with_capacity(count, GFP_KERNEL_ACCOUNT)?;
        // INVARIANT: The runs pushed below are those of the blocks, which do not move.
        let mut pages = Pages {
            runs: KVVec::new(),
            count: 0,
            source: Source::Owned(KVVec::new()),
        };
        for _ in 0..count {
            let block = Block::alloc(order)?;
            for i in 0..1 << order {
                // The `struct page`s of a block follow each other.
                let page = block.first.as_ptr().wrapping_add(i);
                pages.push(NonNull::new(page).ok_or(EINVAL)?)?;
            }
            blocks.push(block, GFP_KERNEL_ACCOUNT)?;
        }
        let len = pages.count << PAGE_SHIFT;
        if len == 0 {
            return Err(EINVAL);
        }
        pages.source = Source::Blocks(blocks);
        Self::make(pages, None, 0, len, true)
    }

    /// Takes `len` bytes of the kernel's memory that stays its owner's: from byte `first` of the first
    /// of `pages` on.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no bytes, or not as many as the pages have. Else what `pages` say.
    ///
    /// # Safety
    ///
    /// Pages of the kernel's memory map, all of which stay until `lender` is dropped.
    pub(crate) unsafe fn lend(
        lender: Arc<dyn Lender>,
        pages: impl Iterator<Item = Result<NonNull<bindings::page>>>,
        first: usize,
        len: usize,
    ) -> Result<Arc<Self>> {
        // INVARIANT: The runs pushed below stay until the lender is dropped.
        let mut lent = Pages {
            runs: KVVec::new(),
            count: 0,
            source: Source::Lent(lender),
        };
        for page in pages {
            lent.push(page?)?;
        }
        if len == 0 || first >= PAGE_SIZE || (first + len).div_ceil(PAGE_SIZE) != lent.count {
            return Err(EINVAL);
        }
        Self::make(lent, None, first, len, true)
    }

    /// Room for up to `len` bytes of the kernel's memory that is lent for as long as one key lives, and
    /// then other memory for the next ([`Memory::fill`]). Until then it has none, and no key of it can be
    /// made. A region of it has its keys by alloc and assign, and no local rights.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no bytes. `ENOMEM`.
    pub fn room(len: usize) -> Result<Arc<Self>> {
        if len == 0 {
            return Err(EINVAL);
        }
        let pages = Pages {
            runs: KVVec::new(),
            // The first and the last may be used in part.
            count: len.div_ceil(PAGE_SIZE) + 1,
            source: Source::Room,
        };
        let filling = Filling {
            runs: KVVec::with_capacity(pages.count, GFP_KERNEL_ACCOUNT)?,
            first: 0,
            len: 0,
        };
        Self::of(pages, None, 0, len, true, Some(UnsafeCell::new(filling)))
    }

    /// Has a room be these pieces, in their order, and nothing else. Any context; allocates nothing.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is no room, or not every piece but the first begins with a page, or not every one but
    /// the last ends with one. `EMSGSIZE`: more than there is room for. It is empty then.
    ///
    /// # Safety
    ///
    /// Nobody looks at what is in it before this returns: there is no key of a region of it, nor one being
    /// made, and no region is being registered. `pieces` are of the kernel's memory map, and their pages stay
    /// until it is filled anew, be it with nothing.
    pub unsafe fn fill(&self, pieces: &[LentPiece]) -> Result {
        let room = self.room.as_ref().ok_or(EINVAL)?;
        // SAFETY: By the caller's promise nobody else has it now.
        let filling = unsafe { &mut *room.get() };
        filling.runs.clear();
        filling.len = 0;
        filling.len = Self::lay(filling, pieces, self.len)?;
        Ok(())
    }

    /// Lays pieces end to end; how many bytes they are.
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

    fn make(
        pages: Pages,
        owner: Option<Owner>,
        first: usize,
        len: usize,
        writable: bool,
    ) -> Result<Arc<Self>> {
        Self::of(pages, owner, first, len, writable, None)
    }

    fn of(
        pages: Pages,
        owner: Option<Owner>,
        first: usize,
        len: usize,
        writable: bool,
        room: Option<UnsafeCell<Filling>>,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                pages,
                owner,
                first,
                len,
                writable,
                room,
                device <- new_mutex!(None),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    /// What it consists of, and the offset of its first byte in the first page.
    #[inline]
    fn runs(&self) -> (&[Run], usize) {
        match &self.room {
            None => (&self.pages.runs, self.first),
            Some(room) => {
                // SAFETY: Who fills it has promised that nobody looks at it meanwhile.
                let filling = unsafe { &*room.get() };
                (&filling.runs, filling.first)
            }
        }
    }

    /// Pages that it has, at most.
    pub fn page_count(&self) -> usize {
        self.pages.count
    }

    /// Bytes; of a room, at most.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that there are now: all, but for a room.
    pub(crate) fn filled(&self) -> usize {
        match &self.room {
            None => self.len,
            // SAFETY: As in `runs`.
            Some(room) => unsafe { (*room.get()).len },
        }
    }

    /// Whether the device may write to it.
    pub fn writable(&self) -> bool {
        self.writable
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

    /// Whether the current task owns the memory; true for the kernel's.
    pub fn is_current(&self) -> bool {
        self.owner.as_ref().is_none_or(Owner::is_current)
    }

    /// The contiguous pieces of [offset, offset + len). Empty when that is not inside, or not in what a
    /// room has.
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

    /// How many pieces [`Memory::segments`] gives.
    pub fn segment_count(&self, offset: usize, len: usize) -> usize {
        let last = offset.saturating_add(len).saturating_sub(1);
        if len == 0 || last >= self.filled() {
            return 0;
        }
        let (runs, first) = self.runs();
        let run = |at: usize| range::run_at(runs, (first + at) as u64).unwrap_or(0);
        run(last) - run(offset) + 1
    }

    /// Whether it is a room ([`Memory::room`]).
    pub(crate) fn is_room(&self) -> bool {
        self.room.is_some()
    }

    /// Copies into the memory, for a consumer in the kernel. Returns bytes copied; none into a room or into
    /// memory that was pinned for reading only.
    pub fn write(&self, offset: usize, data: &[u8]) -> usize {
        let mut done = 0;
        if self.is_room() || !self.writable {
            return done;
        }
        for seg in self.segments(offset, data.len()) {
            // SAFETY: The segment's bytes belong to this memory and stay while it lives; lowmem
            // pages are mapped (x86-64 has no others), so their address is valid for `len` bytes.
            // Peers and devices may race by design of the memory: bytes have no meaning to us.
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

    /// Copies out of the memory, for a consumer in the kernel. Returns bytes copied; none out of a room.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> usize {
        let mut done = 0;
        if self.is_room() {
            return done;
        }
        for seg in self.segments(offset, out.len()) {
            // SAFETY: As in `write`.
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

    /// Pages that [offset, offset + len) touches, as `ib_umem` charges them.
    fn pages_of(&self, offset: usize, len: usize) -> usize {
        let addr = (self.first + offset) as u64;
        // CAST: The platform is 64-bit, and a shift of a page is small.
        range::pages_spanned(addr, len as u64, PAGE_SHIFT as u32).unwrap_or(0) as usize
    }

    /// Runs `register`, which pins [offset, offset + len) once more through the device
    /// (`ib_reg_user_mr()`) and is given the range's user address.
    ///
    /// The device's registration charges the owner by itself. For the first of them that exists at
    /// a time the core's charge is taken back by as much, so that the memory counts once. Further
    /// ones count on top: the device pins what is mapped at the address by then, which need not be
    /// the memory that was pinned before, and must not be free of charge.
    ///
    /// # Errors
    ///
    /// `EACCES`: the current task is not the owner. `EOPNOTSUPP`: the kernel's memory. `EINVAL`:
    /// no such range. Else what `register` says.
    pub fn device_register<T>(
        &self,
        offset: usize,
        len: usize,
        register: impl FnOnce(usize) -> Result<T>,
    ) -> Result<T> {
        let owner = self.owner.as_ref().ok_or_else(eopnotsupp)?;
        if !owner.is_current() {
            return Err(EACCES);
        }
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(EINVAL);
        }
        let pages = self.pages_of(offset, len);
        let stands_in = {
            let mut lent = self.device.lock();
            match &mut *lent {
                None => {
                    *lent = Some(Lent {
                        offset,
                        len,
                        starting: 1,
                        registrations: 0,
                    });
                    owner.lend(pages);
                    true
                }
                Some(part) if part.is(offset, len) => {
                    part.starting += 1;
                    true
                }
                Some(_) => false,
            }
        };
        // Without the lock: this may wait for the program (userfaultfd), a revoke must not.
        let made = register(owner.addr + offset);
        if stands_in {
            self.registered(owner, (offset, len), made.is_ok());
        }
        made
    }

    /// A registration of a part, which was to stand in for the owner's charge, was made or was not.
    fn registered(&self, owner: &Owner, (offset, len): (usize, usize), made: bool) {
        let mut lent = self.device.lock();
        // Another part, or none: the charge came back meanwhile, and this one counts on top.
        let part = match &mut *lent {
            Some(part) if part.is(offset, len) && part.starting != 0 => part,
            _ => return,
        };
        part.starting -= 1;
        let first = part.registrations == 0;
        part.registrations += usize::from(made);
        if first && (made || part.starting == 0) {
            owner.lent(self.pages_of(offset, len), made);
        }
        if part.registrations == 0 && part.starting == 0 {
            *lent = None;
        }
    }

    /// A registration of a part ends: if that is lent to it, and to no other, the owner is charged
    /// for it again.
    fn take_back(&self, offset: usize, len: usize) {
        let mut lent = self.device.lock();
        let (Some(owner), Some(part)) = (&self.owner, &mut *lent) else {
            return;
        };
        if !part.is(offset, len) || part.registrations == 0 {
            return;
        }
        part.registrations -= 1;
        if part.registrations == 0 {
            owner.take_back(self.pages_of(offset, len));
            // Those that are being made count on top.
            *lent = None;
        }
    }

    /// Runs `unregister`, which ends what [`Memory::device_register`] of the same range made.
    pub fn device_unregister<T>(
        &self,
        offset: usize,
        len: usize,
        unregister: impl FnOnce() -> T,
    ) -> T {
        // Before the device gives its own charge back: nobody gets the room in between.
        self.take_back(offset, len);
        unregister()
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
            // The `struct page`s of a run follow each other: on x86-64 they are a virtually
            // contiguous array.
            page: piece.run.page.as_ptr().wrapping_add(into >> PAGE_SHIFT),
            offset: into & (PAGE_SIZE - 1),
            // CAST: As above.
            len: piece.len as usize,
        })
    }
}
