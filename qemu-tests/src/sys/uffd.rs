// SPDX-License-Identifier: MIT OR Apache-2.0

//! Page faults that wait until the test resolves them: `userfaultfd(2)`.

use super::{check, poll_in, Errno, Map};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// `_IOWR(0xaa, 0x3f, struct uffdio_api)` and its kin in `linux/userfaultfd.h`.
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const UFFD_API: u64 = 0xaa;
const MODE_MISSING: u64 = 1;

const PAGE: usize = 4096;

/// The missing pages of a mapping.
pub struct Missing<'a> {
    fd: OwnedFd,
    map: &'a Map,
}

impl<'a> Missing<'a> {
    /// Makes every access to a missing page wait from now on.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn watch(map: &'a Map) -> Result<Self, Errno> {
        // A blocking descriptor cannot be polled.
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: No pointer is passed.
        let fd = check(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?;
        // SAFETY: A descriptor that was just opened.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let this = Self { fd, map };
        this.call(UFFDIO_API, &mut [UFFD_API, 0, 0, 0])?;
        let all = [map.addr(), map.len() as u64, MODE_MISSING, 0];
        this.call(UFFDIO_REGISTER, &mut { all })?;
        Ok(this)
    }

    /// Makes the ioctl `request`; no argument has more than four words.
    fn call(&self, request: libc::c_ulong, arg: &mut [u64; 4]) -> Result<(), Errno> {
        // SAFETY: The structure is as large as the largest of the calls' and ours to write.
        let r = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, arg.as_mut_ptr()) };
        check(i64::from(r)).map(|_| ())
    }

    /// Drops all pages from `off` on.
    ///
    /// # Errors
    ///
    /// The errno of `madvise(2)`.
    pub fn drop_from(&self, off: usize) -> Result<(), Errno> {
        let len = self.map.len() - off;
        let at = self.map.at(off, len);
        // SAFETY: In our own mapping, which keeps its place.
        let r = unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTNEED) };
        check(i64::from(r)).map(|_| ())
    }

    /// Returns whether a task waits for a page, within `timeout`.
    ///
    /// # Errors
    ///
    /// The errno of `poll(2)`.
    pub fn is_waited_for(&self, timeout: Duration) -> Result<bool, Errno> {
        poll_in(self.fd.as_fd(), timeout)
    }

    /// Fills all pages from `off` on with zeroes, and wakes the waiters.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn fill_from(&self, off: usize) -> Result<(), Errno> {
        for off in (off..self.map.len()).step_by(PAGE) {
            let page = [self.map.addr() + off as u64, PAGE as u64, 0, 0];
            match self.call(UFFDIO_ZEROPAGE, &mut { page }) {
                // The page is present.
                Err(Errno(libc::EEXIST)) => {}
                other => other?,
            }
        }
        Ok(())
    }
}
