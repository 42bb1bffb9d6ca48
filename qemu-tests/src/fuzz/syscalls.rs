// SPDX-License-Identifier: MIT OR Apache-2.0

//! The system calls of programs.

use super::execute::{Shared, CLOSE};
use super::os::{self, call, PAGE};
use super::program::Op;
use super::shape::{Area, Part, Sys};
use crate::sys::Errno;
use kfabric_uapi::*;
use std::mem::offset_of;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum time that a program waits for an event, in milliseconds.
const LONGEST: u64 = 200;

/// Makes an ioctl on the device.
pub(super) fn ioctl(fd: i32, nr: u32, at: u64) -> Result<u64, Errno> {
    let args = [i64::from(fd) as u64, u64::from(nr), at, 0, 0, 0];
    call(libc::SYS_ioctl, args)
}

/// Opens the device; -1 on failure.
pub(super) fn open_device() -> i32 {
    let path = c"/dev/kfabric".as_ptr() as u64;
    let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u64;
    let at = i64::from(libc::AT_FDCWD) as u64;
    call(libc::SYS_openat, [at, path, flags, 0, 0, 0]).map_or(-1, |fd| fd as i32)
}

/// Makes a system call other than an ioctl.
pub(super) fn make(shared: &Shared, sys: Sys, index: usize, op: &Op) -> Result<(), Errno> {
    let number = |name| shared.number(op.get(name));
    let fd = || shared.fd(op.get("fd"));
    let wide = |fd: i32| i64::from(fd) as u64;
    let done = |_| ();
    match sys {
        Sys::Open => {
            let fd = open_device();
            if fd < 0 {
                return Err(Errno::last());
            }
            swap_file(shared, op, "file", fd);
            Ok(())
        }
        Sys::Dup => {
            let old = wide(shared.file(op.get("file")));
            let fd = call(libc::SYS_dup, [old, 0, 0, 0, 0, 0])?;
            swap_file(shared, op, "to", fd as i32);
            Ok(())
        }
        Sys::CloseFile => {
            swap_file(shared, op, "file", -1);
            Ok(())
        }
        Sys::Close => call(libc::SYS_close, [wide(fd()), 0, 0, 0, 0, 0]).map(done),
        Sys::Mmap => mmap(shared, index, op),
        Sys::Munmap => {
            let (base, all) = ring(shared, op)?;
            let off = number("off") & 0xffff_f000;
            let len = number("len").min(all.saturating_sub(off));
            cover(base.wrapping_add(off), len)
        }
        Sys::Mprotect => {
            let (base, len) = ring(shared, op)?;
            call(libc::SYS_mprotect, [base, len, number("prot") & 7, 0, 0, 0]).map(done)
        }
        Sys::Mremap => {
            let (base, len) = ring(shared, op)?;
            let new = number("len") & 0xff_ffff;
            let mut maps = shared.maps.lock().map_err(|_| Errno(libc::EINVAL))?;
            let at = call(libc::SYS_mremap, [base, len, new, 1, 0, 0])?;
            maps.retain(|(addr, _)| *addr != base);
            maps.push((at, new));
            shared.give(index, Part::Handle, at);
            Ok(())
        }
        Sys::RingWrite => {
            let (base, _) = ring(shared, op)?;
            let wrote = os::poke(base + (number("off") & 0xffff), number("value") as u32);
            wrote.then_some(()).ok_or(Errno(libc::EFAULT))
        }
        Sys::Consume => consume(shared, op),
        Sys::Poll => {
            let fd = fd();
            if fd < 0 {
                return Err(Errno(libc::EBADF));
            }
            // A wait is worthwhile, but not in vain again and again.
            let ms = match number("ms") {
                ms @ 0..=10 => ms as u32,
                _ if shared.waits.load(Ordering::Relaxed) > 1 => 10,
                ms => ms.min(LONGEST) as u32 * shared.slow.div_ceil(2),
            };
            let events = os::poll(fd, number("events") as i16, ms as i32);
            if events == 0 && ms > 10 {
                shared.waits.fetch_add(1, Ordering::Relaxed);
            }
            // The events are distinguished like errnos.
            (events != 0).then_some(()).ok_or(Errno(libc::ETIME))
        }
        Sys::Epoll => {
            let set = os::epoll(fd(), number("events") as u32, number("ms").min(10) as i32)?;
            shared.give(index, Part::Fd, set as u64);
            Ok(())
        }
        Sys::Io => io(shared, op),
        Sys::Memory => memory(shared, op),
        Sys::Fdinfo => {
            let fd = shared.file(op.get("file"));
            std::fs::read(format!("/proc/self/fdinfo/{fd}"))
                .map(|_| ())
                .map_err(|e| Errno(e.raw_os_error().unwrap_or(0)))
        }
        Sys::Fork => fork(shared, index, op),
        Sys::Raw => {
            let nr = (number("dir") & 3) << 30
                | (number("size") & 0x3fff) << 16
                | (number("type") & 0xff) << 8
                | number("nr") & 0xff;
            ioctl(shared.file(op.get("file")), nr as u32, number("at")).map(done)
        }
        Sys::Flip => {
            let at = number("slot") % 64 * 512 + number("off") % 512;
            let at = shared.arena.addr(Area::Call, at as u32);
            shared
                .arena
                .flip(at, number("value"), number("times").min(1000));
            Ok(())
        }
        Sys::Sleep => {
            std::thread::sleep(Duration::from_millis(number("ms").min(20)));
            Ok(())
        }
        Sys::Nofile => {
            os::limit_files(shared.floor() as u64 + number("free").min(1000));
            Ok(())
        }
        Sys::Fill => fill(shared, index, op),
    }
}

/// Puts a file into a slot, and closes the file that was there.
fn swap_file(shared: &Shared, op: &Op, field: &str, fd: i32) {
    let old = shared.slot(op.get(field)).swap(fd, Ordering::Relaxed);
    if old >= 0 {
        let _ = call(libc::SYS_close, [old as u64, 0, 0, 0, 0, 0]);
    }
}

/// Returns the ring that a call names: address and length.
fn ring(shared: &Shared, op: &Op) -> Result<(u64, u64), Errno> {
    let at = shared.number(op.get("map"));
    let maps = shared.maps.lock().map_err(|_| Errno(libc::EINVAL))?;
    let found = maps.iter().find(|(addr, _)| *addr == at);
    found.copied().ok_or(Errno(libc::EINVAL))
}

/// Unmaps pages. Other pages take their place, so that no memory of the fuzzer is mapped there.
fn cover(at: u64, len: u64) -> Result<(), Errno> {
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    call(
        libc::SYS_mmap,
        [at, len, libc::PROT_NONE as u64, flags, u64::MAX, 0],
    )
    .map(|_| ())
}

fn mmap(shared: &Shared, index: usize, op: &Op) -> Result<(), Errno> {
    let number = |name| shared.number(op.get(name));
    let flags =
        number("flags") & !((libc::MAP_FIXED | libc::MAP_GROWSDOWN | libc::MAP_ANONYMOUS) as u64);
    let fd = i64::from(shared.fd(op.get("fd"))) as u64;
    let len = number("len");
    let at = call(
        libc::SYS_mmap,
        [
            number("hint"),
            len,
            number("prot") & 7,
            flags,
            fd,
            number("off"),
        ],
    )?;
    let whole = len.next_multiple_of(PAGE as u64);
    if let Ok(mut maps) = shared.maps.lock() {
        maps.push((at, whole));
    }
    shared.give(index, Part::Handle, at);
    Ok(())
}

/// Reads entries as a correct program does.
fn consume(shared: &Shared, op: &Op) -> Result<(), Errno> {
    let (base, _) = ring(shared, op)?;
    let head = os::peek(base + offset_of!(CqRing, head) as u64).ok_or(Errno(libc::EFAULT))?;
    let place = base + offset_of!(CqRing, tail) as u64;
    let tail = os::peek(place).ok_or(Errno(libc::EFAULT))?;
    let waiting = head.wrapping_sub(tail);
    let count = waiting.min(shared.number(op.get("count")) as u32);
    if waiting == 0 {
        return Err(Errno(libc::EAGAIN));
    }
    os::poke(place, tail.wrapping_add(count));
    // The errno of the oldest entry is distinguished as answers are.
    let entries = os::peek(base + offset_of!(CqRing, entries) as u64).unwrap_or(1);
    let entry = u64::from(tail & entries.wrapping_sub(1)) * size_of::<CqEntry>() as u64;
    let at = base + KFI_CQ_RING_OFFSET as u64 + entry + offset_of!(CqEntry, err) as u64;
    match os::peek(at) {
        Some(err @ 1..=255) => Err(Errno(err as i32)),
        _ => Ok(()),
    }
}

/// Makes calls that our descriptors do not support.
fn io(shared: &Shared, op: &Op) -> Result<(), Errno> {
    let fd = i64::from(shared.fd(op.get("fd"))) as u64;
    let file = i64::from(shared.file(op.get("file"))) as u64;
    let at = shared.arena.addr(Area::Data, 0);
    match shared.number(op.get("how")) {
        0 => call(libc::SYS_read, [fd, at, 64, 0, 0, 0]),
        1 => call(libc::SYS_write, [fd, at, 64, 0, 0, 0]),
        2 => call(libc::SYS_lseek, [fd, 8, 0, 0, 0, 0]),
        3 => ioctl(fd as i32, KFI_IOC_CLOSE, at),
        4 => call(libc::SYS_read, [file, at, 64, 0, 0, 0]),
        5 => call(libc::SYS_mmap, [0, 4096, 3, 1, file, 0]),
        6 => {
            os::poll(file as i32, 1, 0);
            Ok(0)
        }
        _ => call(libc::SYS_fsync, [fd, 0, 0, 0, 0, 0]),
    }
    .map(|_| ())
}

/// Changes pages that may be registered.
fn memory(shared: &Shared, op: &Op) -> Result<(), Errno> {
    let at = shared.number(op.get("at")) & !(PAGE as u64 - 1);
    let pages = shared.number(op.get("pages"));
    if !shared.arena.is_play(at, pages) {
        return Err(Errno(libc::EINVAL));
    }
    let len = pages * PAGE as u64;
    let anew = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED) as u64;
    match shared.number(op.get("how")) {
        0 => return cover(at, len),
        1 => call(libc::SYS_mprotect, [at, len, 1, 0, 0, 0]),
        2 => call(libc::SYS_mprotect, [at, len, 3, 0, 0, 0]),
        3 => call(
            libc::SYS_madvise,
            [at, len, libc::MADV_DONTNEED as u64, 0, 0, 0],
        ),
        4 => call(libc::SYS_mmap, [at, len, 3, anew, u64::MAX, 0]),
        _ => call(
            libc::SYS_madvise,
            [at, len, libc::MADV_WILLNEED as u64, 0, 0, 0],
        ),
    }
    .map(|_| ())
}

/// Opens counters until the file has no free handle that needs no memory. If the call before did
/// the same and failed for that reason, there still is none.
fn fill(shared: &Shared, index: usize, op: &Op) -> Result<(), Errno> {
    const CHUNK: u64 = 256;
    if index
        .checked_sub(1)
        .is_some_and(|before| shared.failed(before))
    {
        return Ok(());
    }
    let fd = shared.file(op.get("file"));
    let place = shared.arena.addr(Area::Call, index as u32 * 512);
    let call = CntrOpen {
        size: size_of::<CntrOpen>() as u32,
        domain: shared.number(op.get("domain")),
        ..CntrOpen::default()
    };
    for _ in 0..CHUNK {
        shared
            .arena
            .write(place, zerocopy::IntoBytes::as_bytes(&call));
        ioctl(fd, CntrOpen::NR, place)?;
        let mut handle = [0; 8];
        let at = place + offset_of!(CntrOpen, handle) as u64;
        shared.arena.read(at, &mut handle);
        if u64::from_ne_bytes(handle) % CHUNK == CHUNK - 1 {
            break;
        }
    }
    Ok(())
}

/// Forks a child with the same file: it makes a call on the file, or only exits.
fn fork(shared: &Shared, index: usize, op: &Op) -> Result<(), Errno> {
    let fd = shared.file(op.get("file"));
    let handle = shared.number(op.get("handle"));
    let how = shared.number(op.get("how"));
    let place = shared.arena.addr(Area::Call, index as u32 * 512);
    let close = Close {
        size: size_of::<Close>() as u32,
        flags: 0,
        handle,
    };
    shared
        .arena
        .write(place, zerocopy::IntoBytes::as_bytes(&close));
    let play = shared.arena.addr(Area::Play, 0);
    os::fork(|| match how {
        0 => {}
        1 => {
            let _ = ioctl(fd, CLOSE, place);
        }
        2 => {
            let _ = call(libc::SYS_close, [i64::from(fd) as u64, 0, 0, 0, 0, 0]);
        }
        _ => {
            os::poke(play, 1);
        }
    })
}
