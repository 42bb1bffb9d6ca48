// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layer that talks to the kernel: typed calls, mappings, waiting.
//!
//! The rest of the crate works on [`Backend`]: the kernel ([`linux`]), or a fake in unit tests. A
//! call consists of a structure as bytes, and of the slices for its pointer fields. So only
//! [`linux`] makes pointers.

#[cfg(test)]
pub(crate) mod fake;
mod linux;
mod mapping;
mod pipe;
mod raw;
mod ring;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use kfabric_uapi::Ioctl;

use crate::errno::Errno;

pub(crate) use linux::{
    interface_index, monotonic_ns, netns_cookie, peer_groups, wait_any_readable, wait_readable,
    Kernel,
};
pub(crate) use mapping::Mapping;
pub(crate) use pipe::{Link, PipeMem, DATA};
pub(crate) use ring::{entries, Ring, Verdict};

/// A slice for a pointer field of a call's structure.
pub(crate) struct Buf<'a> {
    /// Offset of the pointer field in the structure.
    pub(crate) at: usize,
    /// The slice.
    pub(crate) data: BufData<'a>,
}

/// Direction and bytes of a [`Buf`].
pub(crate) enum BufData<'a> {
    /// The kernel reads the bytes.
    In(&'a [u8]),
    /// The kernel writes the bytes.
    Out(&'a mut [u8]),
}

impl<'a> Buf<'a> {
    pub(crate) fn input(at: usize, data: &'a [u8]) -> Self {
        Self {
            at,
            data: BufData::In(data),
        }
    }

    pub(crate) fn output(at: usize, data: &'a mut [u8]) -> Self {
        Self {
            at,
            data: BufData::Out(data),
        }
    }
}

/// The receiver of calls: the kernel, or a fake in unit tests.
pub(crate) trait Backend: Send + Sync {
    /// Makes call `nr` with a structure as bytes. Fills in the pointer of each [`Buf`]. The caller
    /// has set the fields that hold the lengths of the slices.
    fn call(&self, nr: u32, arg: &mut [u8], bufs: &mut [Buf<'_>]) -> Result<(), Errno>;

    /// Takes ownership of a descriptor that a call returned.
    fn take_fd(&self, fd: i32) -> Result<OwnedFd, Errno>;

    /// Maps `len` bytes of a completion queue's descriptor.
    fn map(&self, fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno>;

    /// Maps a connection's rings and their status page.
    fn map_rings(
        &self,
        fd: BorrowedFd<'_>,
        side: u32,
        page: usize,
        bytes: usize,
    ) -> Result<Link, Errno> {
        Link::map(fd, side, page, bytes)
    }

    /// Waits until a descriptor is readable; returns `false` if the timeout expires first.
    fn wait(&self, fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool, Errno> {
        wait_readable(fd, timeout)
    }

    /// Waits until one of `fds` is readable; returns `false` if the timeout expires first.
    fn wait_any(&self, fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool, Errno> {
        wait_any_readable(fds, timeout)
    }

    /// The device's own descriptor; `None` for the fake.
    fn device_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// The end of a wait. Works for timeouts beyond the range of [`Instant`], too.
pub(crate) struct Deadline {
    timeout: Duration,
    end: Option<Instant>,
}

impl Deadline {
    pub(crate) fn after(timeout: Duration) -> Self {
        let end = Instant::now().checked_add(timeout);
        Self { timeout, end }
    }

    /// Time that remains.
    pub(crate) fn left(&self) -> Duration {
        self.end.map_or(self.timeout, |end| {
            end.saturating_duration_since(Instant::now())
        })
    }
}

/// Makes a call's structure: its size filled in, all other fields zero.
pub(crate) fn new<T: Ioctl>() -> T {
    let mut arg = T::new_zeroed();
    let size = u32::try_from(size_of::<T>()).unwrap_or(u32::MAX);
    arg.as_mut_bytes()[..4].copy_from_slice(&size.to_ne_bytes());
    arg
}

/// Makes a call with a typed structure.
pub(crate) fn call<T: Ioctl>(
    backend: &dyn Backend,
    arg: &mut T,
    bufs: &mut [Buf<'_>],
) -> Result<(), Errno> {
    backend.call(T::NR, arg.as_mut_bytes(), bufs)
}
