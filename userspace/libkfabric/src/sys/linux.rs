// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel as a [`Backend`].

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use kfabric_uapi as abi;

use super::{Backend, Buf, BufData, Deadline, Mapping};
use crate::errno::Errno;

/// An open device file.
pub(crate) struct Kernel {
    file: File,
}

impl Kernel {
    pub(crate) fn open(path: &Path) -> Result<Self, Errno> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        Ok(Self {
            file: file.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?,
        })
    }
}

impl Backend for Kernel {
    fn call(&self, nr: u32, arg: &mut [u8], bufs: &mut [Buf<'_>]) -> Result<(), Errno> {
        for buf in bufs.iter_mut() {
            let address = match &mut buf.data {
                BufData::In([]) | BufData::Out([]) => 0,
                BufData::In(data) => data.as_ptr().expose_provenance(),
                BufData::Out(data) => data.as_mut_ptr().expose_provenance(),
            };
            arg[buf.at..buf.at + 8].copy_from_slice(&(address as u64).to_ne_bytes());
        }
        loop {
            // SAFETY: `arg` is the structure of call `nr`, with its own length in its first field,
            // so the kernel stays inside it. Its pointers are those of `bufs`, borrowed for the
            // call. The callers (this crate's typed layer) set the counts from the lengths of those
            // slices. Memory to register is passed as a number only: the kernel pins its pages, and
            // `Memory` never returns them as a slice.
            let rc = unsafe {
                libc::ioctl(
                    self.file.as_raw_fd(),
                    libc::c_ulong::from(nr),
                    arg.as_mut_ptr(),
                )
            };
            if rc >= 0 {
                return Ok(());
            }
            // Every call may be repeated after a signal: a call that fails with `EINTR` changed
            // nothing, and deadlines are absolute. Whether a wait for a counter goes on is the
            // caller's choice.
            let errno = Errno::last();
            if errno != Errno::EINTR || nr == abi::KFI_IOC_CNTR_WAIT {
                return Err(errno);
            }
        }
    }

    fn take_fd(&self, fd: i32) -> Result<OwnedFd, Errno> {
        if fd < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: the kernel installed this descriptor in a successful call, and the caller takes
        // each returned descriptor once.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn map(&self, fd: BorrowedFd<'_>, len: usize) -> Result<Mapping, Errno> {
        Mapping::shared(fd, len)
    }

    fn device_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

/// Waits until `fd` is readable, has an error or is hung up. Returns `false` if the timeout expires
/// first.
pub(crate) fn wait_readable(fd: BorrowedFd<'_>, timeout: Duration) -> Result<bool, Errno> {
    poll(&mut [polled(&fd)], timeout)
}

/// Like [`wait_readable`], for any one of `fds`.
pub(crate) fn wait_any_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool, Errno> {
    poll(&mut fds.iter().map(polled).collect::<Vec<_>>(), timeout)
}

fn polled(fd: &BorrowedFd<'_>) -> libc::pollfd {
    libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }
}

fn poll(fds: &mut [libc::pollfd], timeout: Duration) -> Result<bool, Errno> {
    let deadline = Deadline::after(timeout);
    loop {
        let left = deadline.left();
        // Rounded up: a timeout of 0 ms would make the last part of the wait a busy loop.
        let ms = i32::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        // SAFETY: a valid array of pollfds and its length, for the duration of the call.
        let rc = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
        match rc {
            0 if left.is_zero() || deadline.left().is_zero() => return Ok(false),
            0 => {}
            1.. => return Ok(true),
            _ => match Errno::last() {
                Errno::EINTR => {}
                errno => return Err(errno),
            },
        }
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a valid timespec to write to; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    u64::try_from(ts.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(ts.tv_nsec).unwrap_or(0)
}

/// Supplementary groups of the process that connected a local socket.
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> Result<Vec<u32>, Errno> {
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let room = groups.len() * size_of::<u32>();
        let mut len = libc::socklen_t::try_from(room).unwrap_or(0);
        // SAFETY: the option's value is an array of ids; pointer and length describe `groups`.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let needed = usize::try_from(len).unwrap_or(0) / size_of::<u32>();
        match (rc, Errno::last()) {
            (0, _) => {
                groups.truncate(needed);
                return Ok(groups);
            }
            (_, Errno::ERANGE) if needed > groups.len() => groups.resize(needed, 0),
            (_, e) => return Err(e),
        }
    }
}

/// `SO_PEERGROUPS`; some C libraries' headers lack it.
const SO_PEERGROUPS: libc::c_int = 59;

/// Number of a network interface, in the calling thread's network namespace.
pub(crate) fn interface_index(name: &str) -> Option<u32> {
    let name = std::ffi::CString::new(name).ok()?;
    // SAFETY: a C string, for the duration of the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

/// Cookie of the calling thread's network namespace.
pub(crate) fn netns_cookie() -> Result<u64, Errno> {
    let socket = std::os::unix::net::UnixDatagram::unbound()
        .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(0);
    // SAFETY: the option's value is a u64; pointer and length describe `cookie`.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &mut len,
        )
    };
    if rc < 0 {
        return Err(Errno::last());
    }
    Ok(cookie)
}
