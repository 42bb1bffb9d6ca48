// SPDX-License-Identifier: GPL-2.0
//! The block device behind an export: opened exclusively, with its limits and capacity.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    prelude::*,
    str::CStr,
    sync::Arc, //
};
use kfabric::{
    objects::domain::Domain,
    pure::blk::{
        device::Limits,
        Geometry, //
    },
};

use super::bdev::Bdev;
use crate::{
    errno,
    export::{
        memory::Registration,
        protocol::{
            Access,
            Backing, //
        }, //
    }, //
};

/// Bytes that one request discards or zeroes, at most.
const RANGE_MAX: u64 = 32 << 20;
/// Chunk size of a block-backed export, as a power of two.
const CHUNK_SHIFT: u32 = 30;

/// An open block device that a subsystem exports.
pub(crate) struct Device {
    bdev: Bdev,
    block_shift: u32,
    limits: Limits,
    read_only: bool,
    capacity: AtomicU64,
}

impl Device {
    /// Opens a block device exclusively.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if its blocks are too large, or it has none.
    /// - `EOPNOTSUPP` if it has zones.
    /// - Errors of [`Bdev::open`].
    pub(crate) fn open(
        path: &CStr,
        read_only: bool,
        holder: *const kernel::ffi::c_void,
    ) -> Result<Arc<Self>> {
        let bdev = Bdev::open(path, !read_only, holder)?;
        let looks = bdev.looks();
        // The protocol can neither describe zones nor report them.
        if looks.zoned {
            return Err(errno::eopnotsupp());
        }
        let block = looks.block_size;
        let part = u64::from(block).wrapping_sub(1);
        let range = |sectors: u32| {
            let bytes = (u64::from(sectors) << 9).min(RANGE_MAX) & !part;
            // CAST: The value is at most `RANGE_MAX`.
            bytes as u32
        };
        let whole = |bytes: u32| match u64::from(bytes) & part {
            0 => bytes,
            _ => 0,
        };
        let granularity = whole(looks.granularity);
        let device = Self {
            block_shift: block.trailing_zeros(),
            limits: Limits {
                cache: looks.cache,
                fua: looks.fua,
                rotational: looks.rotational,
                physical: looks.physical,
                io_min: whole(looks.io_min),
                io_opt: whole(looks.io_opt),
                discard: if granularity == 0 {
                    0
                } else {
                    range(looks.discard)
                },
                granularity,
                zeroes: range(looks.zeroes),
            },
            read_only: read_only || looks.read_only,
            capacity: AtomicU64::new(0),
            bdev,
        };
        device.revalidate();
        let geometry = device.geometry();
        geometry.check().map_err(|_| EINVAL)?;
        device
            .limits
            .check(geometry.block_shift)
            .map_err(|_| EINVAL)?;
        Ok(Arc::new(device, GFP_KERNEL)?)
    }

    /// Reads the block device's capacity. Returns whether it has changed.
    fn revalidate(&self) -> bool {
        let part = (1u64 << self.block_shift) - 1;
        let now = self.bdev.capacity() & !part;
        self.capacity.swap(now, Ordering::AcqRel) != now
    }

    /// Returns the capacity, in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Acquire)
    }

    /// Returns the disk sequence number: [`Welcome::seq`](kfabric::pure::blk::Welcome::seq).
    pub(crate) fn seq(&self) -> u64 {
        self.bdev.seq()
    }

    /// Returns the geometry of the export.
    pub(super) fn geometry(&self) -> Geometry {
        Geometry {
            capacity: self.capacity(),
            block_shift: self.block_shift,
            chunk_shift: CHUNK_SHIFT,
        }
    }

    /// Returns whether initiators must not write.
    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Returns the block device, for bios.
    pub(super) fn bdev(&self) -> &Bdev {
        &self.bdev
    }

    /// Returns the block device's limits.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl Backing for Arc<Device> {
    fn access(&mut self, _domain: &Arc<Domain>) -> Result<Access> {
        Ok(Access::Block(self.clone()))
    }

    fn geometry(&self) -> Geometry {
        Device::geometry(self)
    }

    fn is_read_only(&self) -> bool {
        Device::is_read_only(self)
    }

    fn measure(&self) -> Option<u64> {
        self.revalidate().then(|| self.capacity())
    }

    fn is_registered(&self, _which: &dyn Fn(&Domain) -> bool) -> bool {
        false
    }

    fn take_registration(&mut self, _which: &dyn Fn(&Domain) -> bool) -> Option<Registration> {
        None
    }
}
