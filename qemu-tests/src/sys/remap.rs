// SPDX-License-Identifier: MIT OR Apache-2.0

//! Mappings that change: their rights, their place, and what lies under them.

use super::{check, Errno, Map};
use std::os::fd::{AsRawFd, BorrowedFd};

impl Map {
    /// Changes what may be done with a part of it; a part that may not be
    /// read or written must not be.
    ///
    /// # Errors
    ///
    /// What `mprotect(2)` answers.
    pub fn protect(&self, off: usize, len: usize, prot: i32) -> Result<(), Errno> {
        let p = self.at(off, len);
        // SAFETY: Our own mapping, which stays mapped.
        let r = unsafe { libc::mprotect(p.cast(), len, prot) };
        check(i64::from(r)).map(|_| ())
    }

    /// Moves its pages to another address, where the mapping that is returned
    /// has them, and puts fresh anonymous memory in their place.
    ///
    /// # Errors
    ///
    /// What `mmap(2)` or `mremap(2)` answers.
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

    /// Puts fresh anonymous memory in its place.
    ///
    /// # Errors
    ///
    /// What `mmap(2)` answers.
    pub fn replace(&mut self) -> Result<(), Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: What is mapped over is our own mapping, or the hole it left.
        let p = unsafe { libc::mmap(self.addr.cast(), self.len, prot, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(())
    }

    /// The first `piece` bytes of a file, shared, `count` times one after the
    /// other: much address space with little memory.
    ///
    /// # Errors
    ///
    /// What `mmap(2)` answers.
    pub fn repeated(fd: BorrowedFd<'_>, piece: usize, count: usize) -> Result<Self, Errno> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // What may not be touched asks for no memory.
        let map = Map::mmap(piece * count, libc::PROT_NONE, flags, -1, 0)?;
        for i in 0..count {
            let at = map.at(i * piece, piece);
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: What is mapped over is a part of our own mapping.
            let p = unsafe { libc::mmap(at.cast(), piece, prot, flags, fd.as_raw_fd(), 0) };
            if p == libc::MAP_FAILED {
                return Err(Errno::last());
            }
        }
        Ok(map)
    }
}

/// Runs the calling thread on one processor only.
///
/// # Errors
///
/// What `sched_setaffinity(2)` answers.
pub fn run_on_cpu(cpu: usize) -> Result<(), Errno> {
    // SAFETY: All zeroes is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: The set is valid; a number beyond it is ignored.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: A valid set of the size that is said.
    let r = unsafe { libc::sched_setaffinity(0, std::mem::size_of_val(&set), &raw const set) };
    check(i64::from(r)).map(|_| ())
}
