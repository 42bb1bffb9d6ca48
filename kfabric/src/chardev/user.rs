// SPDX-License-Identifier: GPL-2.0
//! All accesses to user memory.
//!
//! Data is copied once into kernel memory, and only the copy is checked and used.

use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    uaccess::UserPtr, //
};
use zerocopy::{
    FromBytes,
    IntoBytes, //
};

use crate::{
    pure::copysize::{
        self,
        CopyPlan,
        SizeError, //
    },
    sys::uaccess,
    uapi::Ioctl,
};

fn size_error(e: SizeError) -> Error {
    Error::from_errno(-e.errno())
}

/// A user address as a `u64` of the interface.
fn ptr(addr: u64) -> Result<UserPtr> {
    Ok(UserPtr::from_addr(
        usize::try_from(addr).map_err(|_| EFAULT)?,
    ))
}

/// Copies `out.len()` bytes in.
pub(super) fn read_bytes(addr: u64, out: &mut [u8]) -> Result {
    uaccess::read(ptr(addr)?, out)
}

/// Copies bytes out.
pub(super) fn write_bytes(addr: u64, data: &[u8]) -> Result {
    uaccess::write(ptr(addr)?, data)
}

/// Checks that the caller's bytes from `addr` on are zero.
fn check_tail(addr: u64, len: usize) -> Result {
    let mut at = addr;
    let mut left = len;
    let mut part = [0; 64];
    while left != 0 {
        let n = left.min(part.len());
        read_bytes(at, &mut part[..n])?;
        copysize::check_tail(&part[..n]).map_err(size_error)?;
        at += n as u64;
        left -= n;
    }
    Ok(())
}

/// Copies in a structure of which the caller passes `user` bytes.
pub(super) fn read_struct<T: FromBytes + IntoBytes>(
    addr: u64,
    user: usize,
    min: usize,
) -> Result<(T, CopyPlan)> {
    let mut value = T::new_zeroed();
    let plan = fetch(addr, user, min, value.as_mut_bytes())?;
    Ok((value, plan))
}

/// The part of [`read_struct`] that is the same for all structures, and is compiled once.
#[inline(never)]
fn fetch(addr: u64, user: usize, min: usize, out: &mut [u8]) -> Result<CopyPlan> {
    if user > PAGE_SIZE {
        return Err(E2BIG);
    }
    let plan = copysize::plan(user, out.len(), min).map_err(size_error)?;
    read_bytes(addr, &mut out[..plan.copy])?;
    let tail = addr.checked_add(plan.copy as u64).ok_or(EFAULT)?;
    check_tail(tail, plan.tail)?;
    Ok(plan)
}

/// Copies an ioctl's structure in, by the size it carries.
pub(super) fn read_call<T: Ioctl>(addr: u64) -> Result<(T, CopyPlan)> {
    let mut value = T::new_zeroed();
    let plan = fetch_call(addr, T::MIN_SIZE, value.as_mut_bytes())?;
    Ok((value, plan))
}

/// The part of [`read_call`] that is the same for all calls, and is compiled once.
#[inline(never)]
fn fetch_call(addr: u64, min: usize, out: &mut [u8]) -> Result<CopyPlan> {
    let mut size = [0; 4];
    read_bytes(addr, &mut size)?;
    // CAST: A `u32` fits.
    let plan = fetch(addr, u32::from_ne_bytes(size) as usize, min, out)?;
    // The caller may have changed its memory since the check; use the checked size.
    out[..4].copy_from_slice(&size);
    Ok(plan)
}

/// Copies out an ioctl's structure, up to the caller's size.
pub(super) fn write_call<T: Ioctl>(addr: u64, value: &T, plan: &CopyPlan) -> Result {
    answer(addr, value.as_bytes(), plan)
}

/// As [`write_call`], compiled once.
#[inline(never)]
pub(super) fn answer(addr: u64, value: &[u8], plan: &CopyPlan) -> Result {
    write_bytes(addr, &value[..plan.copy])
}

/// Copies in an optional buffer; returns its part of `room`.
///
/// # Errors
///
/// - `EINVAL` if the buffer is longer than `room`.
pub(super) fn read_buffer(addr: u64, len: u32, room: &mut [u8]) -> Result<&[u8]> {
    // CAST: A `u32` fits.
    let buffer = room.get_mut(..len as usize).ok_or(EINVAL)?;
    if len != 0 {
        read_bytes(addr, buffer)?;
    }
    Ok(buffer)
}

/// Checks the caller's size of an entry, which is a `T` in the kernel.
///
/// # Errors
///
/// - `EINVAL` if the size is below the first version's.
/// - `E2BIG` if the size exceeds a page.
pub(super) fn check_entry_size<T>(entry_size: u32) -> Result {
    check_entry_size_from::<T>(entry_size, size_of::<T>())
}

/// As [`check_entry_size`], of entries that have grown since the first version, which had `first`
/// bytes.
pub(super) fn check_entry_size_from<T>(entry_size: u32, first: usize) -> Result {
    // CAST: A `u32` fits.
    copysize::plan(entry_size as usize, size_of::<T>(), first)
        .map(|_| ())
        .map_err(size_error)
}

/// Returns the address of entry `index` of the caller's array, whose entries have `entry_size`
/// bytes. On overflow it is the highest address, which can be neither read nor written.
pub(super) fn entry_at(array: u64, entry_size: u32, index: usize) -> u64 {
    array.saturating_add(u64::from(entry_size).saturating_mul(index as u64))
}

/// Copies in entries of the caller's array, from entry `first` on, as many as fit into `out`.
/// Returns the number of entries before the first unreadable one, and that one's error. Compiled
/// once.
#[inline(never)]
pub(super) fn read_entries(
    array: u64,
    entry_size: u32,
    first: usize,
    out: &mut [u8],
) -> (usize, Result) {
    let at = |index| entry_at(array, entry_size, index);
    // CAST: A `u32` fits.
    let size = (entry_size as usize).max(1);
    let count = out.len() / size;
    if read_bytes(at(first), out).is_ok() {
        return (count, Ok(()));
    }
    // No entry has been used yet, so copy entry by entry to find the unreadable one.
    for (i, entry) in out.chunks_exact_mut(size).enumerate() {
        let result = read_bytes(at(first + i), entry);
        if result.is_err() {
            return (i, result);
        }
    }
    (count, Ok(()))
}

/// Copies entry `index` of the caller's array out; its entries have `entry_size` bytes, of which
/// those unknown to the kernel are zeroed. Compiled once.
#[inline(never)]
pub(super) fn write_entry(array: u64, entry_size: u32, index: usize, value: &[u8]) -> Result {
    let at = entry_at(array, entry_size, index);
    // CAST: A `u32` fits.
    let size = entry_size as usize;
    let known = size.min(value.len());
    write_bytes(at, &value[..known])?;
    let zeros = [0; 64];
    let mut done = known;
    while done < size {
        let n = (size - done).min(zeros.len());
        write_bytes(at + done as u64, &zeros[..n])?;
        done += n;
    }
    Ok(())
}
