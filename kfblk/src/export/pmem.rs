// SPDX-License-Identifier: GPL-2.0
//! The persistent memory behind an export: that of a block device with a DAX device.
//!
//! When memory of the device fails, or the device is removed, the core revokes the keys. Then
//! [`Ends::failed`] schedules the work that ends the export.

use kernel::{
    prelude::*,
    str::CStr,
    sync::Arc, //
};
use kfabric::{
    memory::{
        dax::{
            Device,
            Failure, //
        },
        Memory, //
    },
    pure::blk::Geometry, //
};

use super::{
    memory::geometry,
    subsystem::Subsystem, //
};
use crate::sys;

/// Handler of the device's failure: ends the export. The subsystem's disabling drops the device, and so
/// this reference to the subsystem.
struct Ends(Arc<Subsystem>);

impl Failure for Ends {
    fn failed(&self, _: Error) {
        // Cannot fail: the item is queued only here, once for each export. An item that still waits
        // from an earlier export looks at the present one.
        let _ = sys::exports().enqueue(self.0.clone());
    }
}

/// Properties of an opened block device.
pub(super) struct Opened {
    pub(super) device: Device,
    pub(super) memory: Arc<Memory>,
    pub(super) geometry: Geometry,
    pub(super) read_only: bool,
}

impl Opened {
    /// Opens a block device exclusively, and uses its memory. May sleep.
    ///
    /// # Errors
    ///
    /// - `EBUSY` if another holder has the device.
    /// - `ENOTBLK` if the path names no block device.
    /// - `EOPNOTSUPP` if the device has no memory with pages, another user has its DAX device, or the
    ///   device is stacked.
    /// - `EINVAL` if the device is too large, or its blocks are.
    /// - `EHWPOISON` if the device has a known bad block, or memory of the device has failed meanwhile.
    /// - `ENODEV` if the device is being removed.
    /// - `EINTR` if the task is being killed.
    pub(super) fn new(path: &CStr, read_only: bool, subsystem: &Arc<Subsystem>) -> Result<Self> {
        let device = Device::open(path, !read_only)?;
        let mut looks = sys::kfblk_looks::default();
        // SAFETY: The device is open. `looks` is a local variable.
        unsafe { sys::kfblk_bdev_looks(device.file(), &mut looks) };
        let size = device.size();
        let geometry = geometry(size, looks.block_size.trailing_zeros());
        // Before the look at each page.
        geometry.check().map_err(|_| EINVAL)?;
        let memory = device.memory(0, usize::try_from(size).map_err(|_| EINVAL)?)?;
        device.watch(Arc::new(Ends(subsystem.clone()), GFP_KERNEL)?)?;
        Ok(Self {
            device,
            memory,
            geometry,
            read_only: read_only || looks.read_only,
        })
    }
}
