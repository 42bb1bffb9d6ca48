// SPDX-License-Identifier: MIT OR Apache-2.0

//! Mappings that change: their protection, their place, and their pages.

use super::{check, Errno, Map};
use std::os::fd::{AsRawFd, BorrowedFd};

impl Map {
    /// Changes the protection of a part, which callers must not access against it.
    ///
    /// # Errors
    ///
    /// The errno of `mprotect(2)`.
    pub fn protect(&self, off: usize, len: usize, prot: i32) -> Result<(), Errno> {
        let p = self.at(off, len);
        // SAFETY: Our own mapping, which stays mapped.
        let r = unsafe { libc::mprotect(p.cast(), len, prot) };
        check(i64::from(r)).map(|_| ())
    }

    /// Moves the pages to another address, returns the mapping there, and puts fresh anonymous
    /// memory in their place.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)` or `mremap(2)`.
    pub fn move_away(&mut self) -> Result<Map, Errno> {
        let moved = Map::anon(self.len)?;
        // SAFETY: Both mappings are ours and as long as is said. The new one's
        // pages go, and the old one's come in their place.
        let p = unsafe {
            libc::mremap(
                self.addr.cast(),
                self.len,
                self.len,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                moved.addr,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        self.replace()?;
        Ok(moved)
    }

    /// Puts fresh anonymous memory in the mapping's place.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn replace(&mut self) -> Result<(), Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: The new mapping replaces our own mapping, or the hole it left.
        let p = unsafe { libc::mmap(self.addr.cast(), self.len, prot, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(())
    }

    /// Maps the first `piece` bytes of a file, shared, `count` times one after the other: much
    /// address space with little memory.
    ///
    /// # Errors
    ///
    /// The errno of `mmap(2)`.
    pub fn repeated(fd: BorrowedFd<'_>, piece: usize, count: usize) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // Memory without access is not accounted.
        let map = Map::mmap(piece * count, libc::PROT_NONE, flags, -1, 0)?;
        for i in 0..count {
            let at = map.at(i * piece, piece);
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: The new mapping replaces a part of our own mapping.
            let p = unsafe { libc::mmap(at.cast(), piece, prot, flags, fd.as_raw_fd(), 0) };
            if p == libc::MAP_FAILED {
                return Err(Errno::last());
            }
        }
        Ok(map)
    }
}

/// Pins the calling thread to one processor.
///
/// # Errors
///
/// The errno of `sched_setaffinity(2)`.
pub fn run_on_cpu(cpu: usize) -> Result<(), Errno> {
    // SAFETY: All zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: The set is valid; a number beyond it is ignored.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: A valid set of the size that is said.
    let r = unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &raw const set) };
    check(i64::from(r)).map(|_| ())
}
