// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wait objects of queues and counters: descriptors, and waiting for them.

use std::ffi::{c_int, c_void};
use std::io::Error;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::error::{Errno, Ours};
use crate::ffi::{
    fi_wait_obj, FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC, FI_WAIT_YIELD,
};

/// The kind of wait object that an object has.
#[derive(Clone, Copy)]
pub(crate) struct Wait(fi_wait_obj);

impl Wait {
    /// Returns the wait object for the one that the program asks for. `ENOSYS` for sets and for
    /// mutexes with conditions.
    pub(crate) fn new(asked: fi_wait_obj) -> Result<Self, Errno> {
        match asked {
            FI_WAIT_UNSPEC => Ok(Self(FI_WAIT_FD)),
            FI_WAIT_NONE | FI_WAIT_FD | FI_WAIT_YIELD => Ok(Self(asked)),
            _ => Err(libc::ENOSYS),
        }
    }

    /// The wait object of an object without a descriptor, unless the program asks for one.
    pub(crate) fn without_fd(asked: fi_wait_obj) -> Result<Self, Errno> {
        match asked {
            FI_WAIT_UNSPEC => Ok(Self(FI_WAIT_UNSPEC)),
            asked => Self::new(asked),
        }
    }

    /// Whether the program may have the descriptor.
    pub(crate) fn is_fd(self) -> bool {
        self.0 == FI_WAIT_FD
    }

    /// Answers `fi_control`.
    ///
    /// # Safety
    ///
    /// `arg` points to an argument of the command.
    pub(crate) unsafe fn control(
        self,
        command: c_int,
        arg: *mut c_void,
        fd: Option<BorrowedFd<'_>>,
    ) -> c_int {
        match (command as u32, fd) {
            // SAFETY: as the caller vouches.
            (FI_GETWAIT, Some(fd)) if self.is_fd() => unsafe {
                *arg.cast::<c_int>() = fd.as_raw_fd();
            },
            (FI_GETWAIT, _) => return -libc::ENODATA,
            // SAFETY: as the caller vouches.
            (FI_GETWAITOBJ, _) => unsafe { *arg.cast::<fi_wait_obj>() = self.0 },
            _ => return -libc::ENOSYS,
        }
        0
    }
}

/// Takes ownership of a descriptor that a call returned.
fn own(fd: c_int) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(Error::last_os_error()).ours();
    }
    // SAFETY: the kernel made the descriptor for this call, whose caller takes it once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An eventfd that is readable while it is raised.
pub(crate) struct Flag(pub(crate) OwnedFd);

impl Flag {
    /// Makes a flag that is not raised.
    pub(crate) fn new() -> Result<Self, Errno> {
        // SAFETY: no pointers.
        own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Self)
    }

    /// Makes the descriptor readable.
    pub(crate) fn raise(&self) {
        let one = 1u64;
        // SAFETY: eight bytes to read from. A full counter is readable already.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
    }

    /// Lowers the flag. Returns whether it was raised.
    pub(crate) fn lower(&self) -> bool {
        let mut count = 0u64;
        // SAFETY: eight bytes to write to.
        unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
    }
}

/// Makes an epoll descriptor that is readable when one of two descriptors is.
pub(crate) fn either(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    let both = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    for fd in [a, b] {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (set, fd) = (both.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: two open descriptors and a valid event.
        if unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } < 0 {
            return Err(Error::last_os_error()).ours();
        }
    }
    Ok(both)
}

/// The time that a program gives a call.
pub(crate) struct Timeout(Option<Instant>);

impl Timeout {
    /// A number of milliseconds from now; for ever if negative.
    pub(crate) fn new(ms: c_int) -> Self {
        let ms = u64::try_from(ms).ok();
        Self(ms.map(|ms| Instant::now() + Duration::from_millis(ms)))
    }

    /// Returns whether no time is left.
    pub(crate) fn is_over(&self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }

    /// Waits until one of two descriptors is readable. Returns false if no time is left; else the
    /// caller looks again, whatever the outcome.
    pub(crate) fn wait(&self, a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
        let left = self
            .0
            .map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        let ms = left.map_or(-1, |left| {
            let ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            ms.saturating_add(1)
        });
        let mut fds = [a, b].map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
        // SAFETY: an array of two entries.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, ms) };
        true
    }
}
