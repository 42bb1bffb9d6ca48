// SPDX-License-Identifier: GPL-2.0
//! The thin layer to `bdev.c`: the device behind an export, and bios.

use core::ptr::NonNull;
use kernel::{
    bindings,
    error::from_err_ptr,
    ffi::{
        c_char,
        c_int,
        c_void, //
    },
    prelude::*,
    str::CStr, //
};
use kfabric::op::LentPiece;

use super::device::Io;
use crate::sys::Order;

/// `struct kfblk_bio`.
#[repr(C)]
struct RawBio {
    _opaque: [u8; 0],
}

/// `struct kfblk_looks`: what a device looks like.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Looks {
    /// Bytes.
    pub(crate) block_size: u32,
    /// Bytes.
    pub(crate) physical: u32,
    /// Bytes.
    pub(crate) io_min: u32,
    /// Bytes.
    pub(crate) io_opt: u32,
    /// Sectors.
    pub(crate) discard: u32,
    /// Bytes.
    pub(crate) granularity: u32,
    /// Sectors.
    pub(crate) zeroes: u32,
    /// It has a cache.
    pub(crate) cache: bool,
    /// Single writes can go past it.
    pub(crate) fua: bool,
    /// It turns.
    pub(crate) rotational: bool,
    /// It must not be written to.
    pub(crate) read_only: bool,
    /// It is written in zones.
    pub(crate) zoned: bool,
}

#[expect(
    improper_ctypes,
    reason = "bindgen's empty structures, behind pointers as in the kernel crate's own bindings"
)]
extern "C" {
    fn kfblk_bdev_open(
        path: *const c_char,
        write: bool,
        holder: *mut c_void,
    ) -> *mut bindings::file;
    fn kfblk_bdev_close(file: *mut bindings::file);
    fn kfblk_bdev_capacity(file: *mut bindings::file) -> u64;
    fn kfblk_bdev_seq(file: *mut bindings::file) -> u64;
    fn kfblk_bdev_looks(file: *mut bindings::file, looks: *mut Looks);
    fn kfblk_bio_new() -> *mut RawBio;
    fn kfblk_bio_free(of: *mut RawBio);
    fn kfblk_bio_submit(
        of: *mut RawBio,
        file: *mut bindings::file,
        order: *const Order,
        pieces: *const LentPiece,
        count: u32,
    );
}

/// A block device that is open.
///
/// # Invariants
///
/// The file is that of a block device, and open.
pub(crate) struct Bdev(NonNull<bindings::file>);

// SAFETY: Files and block devices are for any thread.
unsafe impl Send for Bdev {}
// SAFETY: As above.
unsafe impl Sync for Bdev {}

impl Bdev {
    /// Opens it, for nobody else while `holder`, an address of the caller's own, has it.
    ///
    /// # Errors
    ///
    /// `EBUSY`: somebody has it. `ENOTBLK`: it is none. Else those of opening.
    pub(crate) fn open(path: &CStr, write: bool, holder: *const c_void) -> Result<Self> {
        // SAFETY: A C string; the holder is only compared.
        let file = unsafe { kfblk_bdev_open(path.as_char_ptr(), write, holder.cast_mut()) };
        let file = from_err_ptr(file)?;
        // INVARIANT: It was opened just now.
        Ok(Self(NonNull::new(file).ok_or(ENXIO)?))
    }

    /// Bytes.
    pub(crate) fn capacity(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { kfblk_bdev_capacity(self.0.as_ptr()) }
    }

    /// Which of all disks that there have been it is.
    pub(crate) fn seq(&self) -> u64 {
        // SAFETY: By the type invariant.
        unsafe { kfblk_bdev_seq(self.0.as_ptr()) }
    }

    /// What it looks like.
    pub(crate) fn looks(&self) -> Looks {
        let mut looks = Looks::default();
        // SAFETY: By the type invariant; `looks` is ours.
        unsafe { kfblk_bdev_looks(self.0.as_ptr(), &mut looks) };
        looks
    }
}

impl Drop for Bdev {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; whoever submits has a reference.
        unsafe { kfblk_bdev_close(self.0.as_ptr()) }
    }
}

/// A bio that was made beforehand.
///
/// # Invariants
///
/// What `kfblk_bio_new()` made.
pub(crate) struct Bio(NonNull<RawBio>);

// SAFETY: Bios are for any thread.
unsafe impl Send for Bio {}
// SAFETY: As above; who submits says that nobody else does.
unsafe impl Sync for Bio {}

impl Bio {
    /// Makes one.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: No preconditions.
        let made = unsafe { kfblk_bio_new() };
        // INVARIANT: Made just now.
        Ok(Self(NonNull::new(made).ok_or(ENOMEM)?))
    }

    /// Has the device do what `order` says, with the memory of `pieces`. May sleep; the end may be
    /// told before it returns.
    ///
    /// # Safety
    ///
    /// The bio is not under way. It, the device, the pieces' pages and the order's owner, which is an
    /// [`Io`], stay until its end was told.
    pub(crate) unsafe fn submit(&self, bdev: &Bdev, order: &Order, pieces: &[LentPiece]) {
        // SAFETY: By the type invariants and the caller's promise; C looks at the pieces during the
        // call only. CAST: Few.
        unsafe {
            kfblk_bio_submit(
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
        // SAFETY: By the type invariant; whoever has it under way keeps it.
        unsafe { kfblk_bio_free(self.0.as_ptr()) }
    }
}

/// A bio has ended. Any context.
///
/// # Safety
///
/// `owner` and `slot` are what it was submitted with, and this is its only end.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_bio_end(owner: *mut c_void, slot: u32, err: c_int) {
    // SAFETY: Who submitted it keeps the owner until this has said so.
    let io = unsafe { &*owner.cast::<Io>() };
    io.ended(slot, err.unsigned_abs());
}
