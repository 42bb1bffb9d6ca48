// SPDX-License-Identifier: GPL-2.0
//! Thin layer to `bdev.c`: the block device behind an export, and bios.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    ffi::{
        c_int,
        c_void, //
    },
    prelude::*,
    str::CStr, //
};
use kfabric::memory::LentPiece;

use super::requests::Io;
use crate::sys::{
    self,
    Order, //
};

/// Properties of the block device.
pub(crate) use sys::kfblk_looks as Looks;

/// An open block device.
///
/// # Invariants
///
/// The file is an open block device.
pub(crate) struct Bdev(NonNull<bindings::file>);

// SAFETY: Files and block devices can be used by any thread.
unsafe impl Send for Bdev {}
// SAFETY: Files and block devices can be used by several threads at once.
unsafe impl Sync for Bdev {}

impl Bdev {
    /// Opens a block device exclusively for `holder`, a unique address of the caller.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if another holder has the device.
    /// - `ENOTBLK` if the path names no block device.
    /// - Errors of opening the file.
    pub(crate) fn open(path: &CStr, write: bool, holder: *const c_void) -> Result<Self> {
        // SAFETY: The path is a C string. The holder is only compared.
        let file = unsafe { sys::kfblk_bdev_open(path.as_char_ptr(), write, holder.cast_mut()) };
        let file = from_err_ptr(file)?;
        // INVARIANT: `kfblk_bdev_open` has opened the block device.
        Ok(Self(NonNull::new(file).ok_or(ENXIO)?))
    }

    /// Returns the capacity, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { sys::kfblk_bdev_capacity(self.0.as_ptr()) }
    }

    /// Returns the disk sequence number, which no other disk has had since boot.
    pub(crate) fn seq(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { sys::kfblk_bdev_seq(self.0.as_ptr()) }
    }

    /// Returns the block device's properties.
    pub(crate) fn looks(&self) -> Looks {
        let mut looks = Looks::default();
        // SAFETY: By the type invariant. `looks` is a local variable.
        unsafe { sys::kfblk_bdev_looks(self.0.as_ptr(), &mut looks) };
        looks
    }
}

impl Drop for Bdev {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. Each submitter of a bio holds a reference.
        unsafe { sys::kfblk_bdev_close(self.0.as_ptr()) }
    }
}

/// An allocated bio, for one request at a time.
///
/// # Invariants
///
/// The pointer comes from `kfblk_bio_new()`.
pub(crate) struct Bio(NonNull<sys::kfblk_bio>);

// SAFETY: Bios can be used by any thread.
unsafe impl Send for Bio {}
// SAFETY: Only `submit` uses a shared bio, and its contract requires that the bio is not in flight.
unsafe impl Sync for Bio {}

impl Bio {
    /// Allocates a bio.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let made = unsafe { sys::kfblk_bio_new() };
        // INVARIANT: The pointer comes from `kfblk_bio_new()`.
        Ok(Self(NonNull::new(made).ok_or(ENOMEM)?))
    }

    /// Submits `order` to the block device, with the memory of `pieces`. May sleep. The bio may end
    /// before the return.
    ///
    /// # Safety
    ///
    /// The bio is not in flight. The bio, the device, the pages of `pieces` and the order's owner,
    /// which is an [`Io`], stay until `kfblk_rs_bio_end`.
    pub(crate) unsafe fn submit(&self, bdev: &Bdev, order: &Order, pieces: &[LentPiece]) {
        // SAFETY: By the type invariants and the caller's contract. C reads the pieces during the
        // call only. CAST: There are few pieces.
        unsafe {
            sys::kfblk_bio_submit(
                self.0.as_ptr(),
                bdev.0.as_ptr(),
                order,
                pieces.as_ptr(),
                pieces.len() as u32,
            )
        }
    }
}

impl Drop for Bio {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. A submitter keeps a bio in flight alive, so it is not in
        // flight.
        unsafe { sys::kfblk_bio_free(self.0.as_ptr()) }
    }
}

/// Reports the end of a bio. Context: any.
///
/// # Safety
///
/// `owner` and `slot` were passed to the submission, and the bio ends once.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_bio_end(owner: *mut c_void, slot: u32, err: c_int) {
    // SAFETY: The submitter keeps the owner until this call has reported the end.
    let io = unsafe { &*owner.cast::<Io>() };
    io.ended(slot, err.unsigned_abs());
}

kfabric::same_prototype!(sys: kfblk_rs_bio_end);
