// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that devices and peers change at any time: copied in and out, never returned as a slice.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::errno::Errno;

/// A range of memory of this process, unmapped when dropped if it was mapped here.
///
/// # Invariants
///
/// `base` points to `len` bytes, readable (and writable if `writable`), that stay mapped for the
/// life of this object.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    owned: bool,
}

// SAFETY: the object is a range of plain memory; all access goes through copies and atomics that
// tolerate other writers, on any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn map(len: usize, prot: i32, flags: i32, fd: i32) -> Result<Self, Errno> {
        Self::map_at(len, prot, flags, fd, 0)
    }

    fn map_at(len: usize, prot: i32, flags: i32, fd: i32, at: i64) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, fd, at) };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        let base = NonNull::new(base.cast()).ok_or(Errno::EFAULT)?;
        // INVARIANT: mmap returned `len` bytes with these rights, unmapped only in `drop`.
        Ok(Self {
            base,
            len,
            writable: prot & libc::PROT_WRITE != 0,
            owned: true,
        })
    }

    /// Maps zeroed private memory.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Errno> {
        Self::map(
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
        )
    }

    /// Maps a file's page cache, read-only.
    pub(crate) fn file(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        Self::map(len, libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd())
    }

    /// Maps a file; writes stay in this process.
    pub(crate) fn private_file(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        Self::map(len, prot, libc::MAP_PRIVATE, fd.as_raw_fd())
    }

    /// Maps memory that is shared with the kernel or other processes.
    pub(crate) fn shared(fd: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        Self::map(
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
        )
    }

    /// Maps `len` bytes at offset `at` of a descriptor.
    pub(crate) fn part(
        fd: BorrowedFd<'_>,
        at: usize,
        len: usize,
        writable: bool,
    ) -> Result<Self, Errno> {
        let prot = if writable { libc::PROT_WRITE } else { 0 } | libc::PROT_READ;
        let at = i64::try_from(at).map_err(|_| Errno::EINVAL)?;
        Self::map_at(len, prot, libc::MAP_SHARED, fd.as_raw_fd(), at)
    }

    /// Wraps memory that the caller owns.
    ///
    /// # Safety
    ///
    /// `base` points to `len` bytes, readable (and writable if `writable`), that stay mapped while
    /// the result lives. No reference to the bytes is used while a peer or the device may write.
    pub(crate) unsafe fn borrowed(base: NonNull<u8>, len: usize, writable: bool) -> Self {
        // INVARIANT: by the caller's contract.
        Self {
            base,
            len,
            writable,
            owned: false,
        }
    }

    /// Advises the kernel to use huge pages. A failure changes nothing.
    pub(crate) fn advise_huge(&self) {
        // SAFETY: the range is this mapping's own; the advice changes no content.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_HUGEPAGE) };
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn writable(&self) -> bool {
        self.writable
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    /// Returns the address of byte `at` if `len` bytes from there on are within the mapping.
    pub(super) fn check(&self, at: usize, len: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: `at` is within the mapping.
        Some(unsafe { self.base.add(at) })
    }

    /// Copies out; `None` if the range is not within the mapping. Locking: no other thread copies
    /// in.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Option<()> {
        let from = self.check(at, to.len())?;
        // SAFETY: both ranges are valid for the length. They cannot overlap, because no references
        // into a mapping exist. A device writing at the same time yields old or new bytes.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies in; `None` if the range is not within the mapping, or the mapping is read-only.
    /// Locking: no other thread copies.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> Option<()> {
        if !self.writable {
            return None;
        }
        let to = self.check(at, from.len())?;
        // SAFETY: as in `read`, and the memory is writable.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
        Some(())
    }

    /// Sets `len` bytes at `at` to `byte`; `None` as for [`Mapping::write`].
    pub(crate) fn fill(&self, at: usize, len: usize, byte: u8) -> Option<()> {
        if !self.writable {
            return None;
        }
        let to = self.check(at, len)?;
        // SAFETY: the range is valid and writable.
        unsafe { std::ptr::write_bytes(to.as_ptr(), byte, len) };
        Some(())
    }

    /// Returns a shared 32-bit word; `None` if it is not within the mapping, aligned and writable.
    pub(crate) fn word32(&self, at: usize) -> Option<&AtomicU32> {
        let word = self.check(at, 4)?;
        if !self.writable || !word.addr().get().is_multiple_of(align_of::<AtomicU32>()) {
            return None;
        }
        // SAFETY: valid, aligned, writable for the life of `self`, and only used atomically.
        Some(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
    }

    /// Loads a shared 32-bit word, of read-only memory, too; `None` if it is not within the mapping
    /// and aligned. Ordering: acquire; pairs with the release store of the word's writer.
    pub(crate) fn look32(&self, at: usize) -> Option<u32> {
        let word = self.check(at, 4)?;
        if !word.addr().get().is_multiple_of(align_of::<AtomicU32>()) {
            return None;
        }
        // SAFETY: valid and aligned for the life of `self`; loads of this size need no right to write.
        Some(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }.load(Ordering::Acquire))
    }

    /// Returns a shared 64-bit word; `None` as for [`Mapping::word32`].
    pub(crate) fn word64(&self, at: usize) -> Option<&AtomicU64> {
        let word = self.check(at, 8)?;
        if !self.writable || !word.addr().get().is_multiple_of(align_of::<AtomicU64>()) {
            return None;
        }
        // SAFETY: as in `word32`.
        Some(unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: mapped by this object with this length, and no references into the mapping
            // exist. Pages that the kernel has pinned stay until their last operation has
            // completed.
            unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

impl crate::Memory {
    /// Wraps memory that the caller owns, for example a part of its own arena.
    ///
    /// # Safety
    ///
    /// `base` points to `len` bytes, readable (and writable if `writable`), that stay mapped while
    /// the result lives. No reference to the bytes is used while a peer or the device may write.
    pub unsafe fn from_raw_parts(base: NonNull<u8>, len: usize, writable: bool) -> Self {
        // SAFETY: by the caller's contract, which is the same.
        Self::from_mapping(unsafe { Mapping::borrowed(base, len, writable) })
    }
}
