// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls of `/dev/kfabric`, and the completion ring.

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

use kfabric_uapi as abi;
use zerocopy::{FromZeros, IntoBytes};

use crate::ffi::{
    fi_wait_obj, FI_ENOKEY, FI_GETWAIT, FI_GETWAITOBJ, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_UNSPEC,
    FI_WAIT_YIELD,
};

/// A positive errno.
pub(crate) type Errno = i32;

/// libfabric's number of an errno of the kernel: the same, except for `ENOKEY`.
pub(crate) fn translate(errno: Errno) -> Errno {
    match errno {
        libc::ENOKEY => FI_ENOKEY as Errno,
        other => other,
    }
}

/// An open device file.
pub(crate) struct Device(File);

impl Device {
    /// Opens the device file that `path` names.
    pub(crate) fn open(path: &str) -> Result<Arc<Self>, Errno> {
        match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => Ok(Arc::new(Self(file))),
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Makes a call. Fills in the size of the structure.
    ///
    /// # Safety
    ///
    /// Pointers in `arg` are zero, or valid for what the call does with them.
    pub(crate) unsafe fn call<T: abi::Ioctl>(&self, arg: &mut T) -> Result<(), Errno> {
        let size = u32::try_from(size_of::<T>()).unwrap_or(0);
        arg.as_mut_bytes()[..4].copy_from_slice(&size.to_ne_bytes());
        loop {
            // SAFETY: the structure of this call, with its size; the caller vouches for pointers.
            let rc = unsafe {
                let at = (&raw mut *arg).cast::<libc::c_void>();
                libc::ioctl(self.0.as_raw_fd(), libc::c_ulong::from(T::NR), at)
            };
            if rc >= 0 {
                return Ok(());
            }
            let errno = std::io::Error::last_os_error();
            match errno.raw_os_error().unwrap_or(libc::EIO) {
                libc::EINTR => {}
                other => return Err(translate(other)),
            }
        }
    }

    /// Closes a handle.
    pub(crate) fn close(&self, handle: u64) -> Result<(), Errno> {
        let mut arg = abi::Close {
            handle,
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(&mut arg) }
    }

    /// Returns the kernel's offers for `hints`.
    pub(crate) fn info(&self, hints: &abi::InfoEntry) -> Result<Vec<abi::InfoEntry>, Errno> {
        let mut entries = vec![abi::InfoEntry::new_zeroed(); 64];
        let mut arg = abi::GetInfo {
            hints: address(hints),
            entries: entries.as_mut_ptr().expose_provenance() as u64,
            count: 64,
            entry_size: u32::try_from(size_of::<abi::InfoEntry>()).unwrap_or(0),
            ..Default::default()
        };
        // SAFETY: the hints and the array live through the call.
        unsafe { self.call(&mut arg)? };
        entries.truncate(arg.count as usize);
        Ok(entries)
    }

    /// Returns an object's own address, or the peer's.
    pub(crate) fn name(&self, handle: u64, peer: bool) -> Result<abi::SockAddr, Errno> {
        let mut arg = abi::GetName {
            handle,
            peer: u32::from(peer),
            ..Default::default()
        };
        // SAFETY: no pointers.
        unsafe { self.call(&mut arg)? };
        Ok(arg.addr)
    }
}

/// The address of a value, for a pointer field.
pub(crate) fn address<T>(value: &T) -> u64 {
    (&raw const *value).expose_provenance() as u64
}

/// Takes ownership of a descriptor that a call returned.
pub(crate) fn own(fd: i32) -> Result<OwnedFd, Errno> {
    if fd < 0 {
        return Err(libc::EBADF);
    }
    // SAFETY: the kernel installed the descriptor for this call, whose caller takes it once.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The wait object of a queue.
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

    /// Answers `fi_control` of a queue with the descriptor `fd`.
    ///
    /// # Safety
    ///
    /// `arg` is what the command takes.
    pub(crate) unsafe fn control(self, command: c_int, arg: *mut c_void, fd: &OwnedFd) -> c_int {
        match (command as u32, self.0) {
            // SAFETY: as the caller vouches.
            (FI_GETWAIT, FI_WAIT_FD) => unsafe { *arg.cast::<c_int>() = fd.as_raw_fd() },
            (FI_GETWAIT, _) => return -libc::ENODATA,
            // SAFETY: as the caller vouches.
            (FI_GETWAITOBJ, object) => unsafe { *arg.cast::<fi_wait_obj>() = object },
            _ => return -libc::ENOSYS,
        }
        0
    }
}

/// A new eventfd.
pub(crate) fn eventfd() -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    own(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })
}

/// The time of `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for the time. The call cannot fail with this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Makes an eventfd readable.
pub(crate) fn raise(fd: &OwnedFd) {
    let one = 1u64;
    // SAFETY: eight bytes to read from. A full counter is readable already.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Resets an eventfd. Returns whether it was readable.
pub(crate) fn lower(fd: &OwnedFd) -> bool {
    let mut count = 0u64;
    // SAFETY: eight bytes to write to.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
}

/// Makes an epoll descriptor that is readable when one of two descriptors is.
pub(crate) fn either(a: &OwnedFd, b: &OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: no pointers.
    let both = own(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    for fd in [a, b] {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        // SAFETY: two open descriptors and a valid event.
        let rc = unsafe {
            libc::epoll_ctl(
                both.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &raw mut event,
            )
        };
        if rc < 0 {
            return Err(libc::EIO);
        }
    }
    Ok(both)
}

/// Waits until one of two descriptors is readable; `ms` below zero waits for ever.
pub(crate) fn poll(a: &OwnedFd, b: &OwnedFd, ms: i32) {
    let one = |fd: &OwnedFd| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut fds = [one(a), one(b)];
    // SAFETY: an array of two entries. The caller looks again after any outcome.
    unsafe { libc::poll(fds.as_mut_ptr(), 2, ms) };
}

/// A mapped completion ring with one reader.
///
/// # Invariants
///
/// `base` points to `len` mapped bytes: the words, then `entries` entries of `stride` bytes, a
/// multiple of 8.
pub(crate) struct Ring {
    base: NonNull<u8>,
    len: usize,
    entries: u32,
    stride: usize,
}

// SAFETY: the mapping belongs to the ring, and its words are only accessed atomically.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps the ring of a completion queue's descriptor.
    pub(crate) fn map(fd: &OwnedFd, len: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                std::ptr::null_mut(),
                len,
                prot,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        let base = match NonNull::new(at.cast::<u8>()) {
            Some(base) if at != libc::MAP_FAILED => base,
            _ => return Err(libc::ENOMEM),
        };
        let mut ring = Self {
            base,
            len,
            entries: 0,
            stride: 0,
        };
        if len < abi::KFI_CQ_RING_OFFSET {
            return Err(libc::EIO);
        }
        ring.entries = ring
            .word(offset_of!(abi::CqRing, entries))
            .load(Ordering::Relaxed);
        ring.stride = ring
            .word(offset_of!(abi::CqRing, entry_size))
            .load(Ordering::Relaxed) as usize;
        let end = ring.stride.checked_mul(ring.entries as usize);
        let fits = end.is_some_and(|end| end <= len - abi::KFI_CQ_RING_OFFSET);
        let whole = ring.stride.is_multiple_of(8) && ring.stride >= size_of::<abi::CqEntry>();
        match fits && whole && ring.entries.is_power_of_two() {
            true => Ok(ring),
            false => Err(libc::EIO),
        }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: callers pass offsets of `CqRing`, which lies in the mapping's first page.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    /// Returns the oldest entry, which stays in the ring.
    pub(crate) fn front(&self) -> Option<abi::CqEntry> {
        let tail = self
            .word(offset_of!(abi::CqRing, tail))
            .load(Ordering::Relaxed);
        // Ordering: pairs with the kernel's release store of `head`.
        let head = self
            .word(offset_of!(abi::CqRing, head))
            .load(Ordering::Acquire);
        if head == tail {
            return None;
        }
        let slot = (tail & (self.entries - 1)) as usize;
        let at = abi::KFI_CQ_RING_OFFSET + slot * self.stride;
        let mut entry = abi::CqEntry::default();
        for (i, word) in entry.as_mut_bytes().chunks_exact_mut(8).enumerate() {
            // SAFETY: by the type invariant the entry lies in the mapping.
            let from = unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at + i * 8).cast()) };
            word.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some(entry)
    }

    /// Removes the oldest entry; [`Ring::front`] has returned it.
    pub(crate) fn pop(&self) {
        let tail = self.word(offset_of!(abi::CqRing, tail));
        // Ordering: pairs with the kernel's acquire load of `tail`.
        tail.store(
            tail.load(Ordering::Relaxed).wrapping_add(1),
            Ordering::Release,
        );
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
