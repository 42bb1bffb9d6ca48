// SPDX-License-Identifier: GPL-2.0
//! Thin layer to `pmem.c`: the persistent memory behind an export.
//!
//! The memory is that of a block device with a DAX device. When memory of the device fails, or the
//! device is removed, [`kfblk_rs_pmem_failed`] schedules the work that ends the export.

use core::{
    mem::ManuallyDrop,
    ptr::NonNull, //
};
use kernel::{
    bindings,
    error::from_err_ptr,
    ffi::c_void,
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::Arc, //
};
use kfabric::{
    memory::{
        Lender,
        Memory, //
    },
    pure::blk::Geometry, //
};

use super::{
    memory::geometry,
    subsystem::Subsystem, //
};
use crate::sys;

/// Pages that are looked at before the task reschedules.
const STRETCH: u64 = 1 << 16;

/// An open block device whose memory is exported. It holds a reference to the module, because the core
/// may drop memory, and so close its device, after the export has ended.
///
/// # Invariants
///
/// The pointer comes from `kfblk_pmem_open()`, and is not closed.
struct Device(NonNull<sys::kfblk_pmem>);

// SAFETY: The C object can be used by any thread.
unsafe impl Send for Device {}
// SAFETY: Several threads use the C object only through `kfblk_pmem_watch`, which locks, and
// `kfblk_pmem_has_failed`, which reads one flag. All else is called by the task that opens the
// device, before other threads have it, or closes it.
unsafe impl Sync for Device {}

impl Lender for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: By the type invariant. The memory that has the pages is gone: it holds a reference.
        unsafe { sys::kfblk_pmem_close(self.0.as_ptr()) }
    }
}

/// Iterates over the pages of a device.
struct Pages<'a> {
    device: &'a Device,
    /// The next page of the contiguous ones, and how many are left.
    run: (*mut bindings::page, u64),
    /// Number of pages that were returned.
    done: u64,
    count: u64,
}

impl Pages<'_> {
    fn look(&mut self) -> Result<NonNull<bindings::page>> {
        if self.done % STRETCH == 0 {
            sys::breathe()?;
        }
        let (page, left) = match self.run {
            (_, 0) => {
                let (index, most) = (self.done, self.count - self.done);
                let mut found = 0;
                // SAFETY: By the type invariant of `Device`. `found` is a local variable.
                let page = unsafe {
                    sys::kfblk_pmem_pages(self.device.0.as_ptr(), index, most, &mut found)
                };
                (from_err_ptr(page)?, found)
            }
            run => run,
        };
        // The `struct page`s of contiguous pages are contiguous.
        self.run = (page.wrapping_add(1), left.saturating_sub(1));
        self.done += 1;
        NonNull::new(page).ok_or(EIO)
    }
}

impl Iterator for Pages<'_> {
    type Item = Result<NonNull<bindings::page>>;

    fn next(&mut self) -> Option<Self::Item> {
        (self.done < self.count).then(|| self.look())
    }
}

/// The block device of an export, as long as the export exists. A failure of the device ends the
/// export.
pub(super) struct Watched(Arc<Device>);

/// Properties of an opened block device.
pub(super) struct Opened {
    pub(super) device: Watched,
    pub(super) memory: Arc<Memory>,
    pub(super) geometry: Geometry,
    pub(super) read_only: bool,
}

impl Watched {
    /// Opens a block device exclusively, and uses its memory. May sleep.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if another holder has the device.
    /// - `ENOTBLK` if the path names no block device.
    /// - `EOPNOTSUPP` if the device has no memory with pages, another user has its DAX device, or the
    ///   device is stacked.
    /// - `EINVAL` if the device is too large, or its blocks are.
    /// - `EHWPOISON` if the device has a known bad block.
    /// - `EIO` if memory of the device has failed meanwhile.
    /// - `ENODEV` if the device is being removed, or the module is being unloaded.
    /// - `EINTR` if the task is being killed.
    pub(super) fn open(path: &CStr, read_only: bool, subsystem: &Arc<Subsystem>) -> Result<Opened> {
        // SAFETY: The path is a C string.
        let device = unsafe { sys::kfblk_pmem_open(path.as_char_ptr(), !read_only) };
        let device = NonNull::new(from_err_ptr(device)?).ok_or(ENXIO)?;
        // INVARIANT: `kfblk_pmem_open` has opened the device.
        let device = Arc::new(Device(device), GFP_KERNEL)?;
        let mut looks = sys::kfblk_looks::default();
        // SAFETY: By the type invariant. `looks` is a local variable.
        let size = unsafe {
            let file = sys::kfblk_pmem_file(device.0.as_ptr());
            sys::kfblk_bdev_looks(file, &mut looks);
            sys::kfblk_bdev_capacity(file)
        };
        let geometry = geometry(size, looks.block_size.trailing_zeros());
        // Before the look at each page.
        geometry.check().map_err(|_| EINVAL)?;
        let len = usize::try_from(size).map_err(|_| EINVAL)?;
        let pages = Pages {
            device: &device,
            run: (core::ptr::null_mut(), 0),
            done: 0,
            count: size.div_ceil(PAGE_SIZE as u64),
        };
        // SAFETY: The pages are the device's, which stay until the drop of `device` closes it.
        let memory = unsafe { Memory::lend(device.clone(), pages, 0, len)? };
        let device = Self(device);
        // SAFETY: By the type invariant. The subsystem has the export, so it exists until the drop
        // below has ended the use of its address.
        unsafe {
            let owner = Arc::as_ptr(subsystem).cast_mut().cast();
            sys::kfblk_pmem_watch(device.0 .0.as_ptr(), owner);
        }
        if device.has_failed() {
            return Err(EIO);
        }
        Ok(Opened {
            device,
            memory,
            geometry,
            read_only: read_only || looks.read_only,
        })
    }

    /// Returns whether memory of the device has failed, or the device is removed.
    pub(super) fn has_failed(&self) -> bool {
        // SAFETY: By the type invariant.
        unsafe { sys::kfblk_pmem_has_failed(self.0 .0.as_ptr()) }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { sys::kfblk_pmem_watch(self.0 .0.as_ptr(), core::ptr::null_mut()) }
    }
}

/// Reports that memory of an export's device has failed, or that the device is being removed.
///
/// # Safety
///
/// `owner` was passed to `kfblk_pmem_watch()`, and is still the device's owner.
#[no_mangle]
unsafe extern "C" fn kfblk_rs_pmem_failed(owner: *mut c_void) {
    let owner = owner.cast::<Subsystem>().cast_const();
    // SAFETY: By the caller's contract the subsystem exists. `ManuallyDrop` leaves its owners their
    // references.
    let subsystem = ManuallyDrop::new(unsafe { Arc::from_raw(owner) });
    // Queued work needs no second entry: it looks at the export when it runs.
    let _ = sys::exports().enqueue(Arc::clone(&subsystem));
}

kfabric::same_prototype!(sys: kfblk_rs_pmem_failed);
