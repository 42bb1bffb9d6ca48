// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Kinds of memory, by the way a store to it becomes durable.
//!
//! The rule reads properties of pages that the kernel reports. A caller's claim is not an input.

/// Kind of a region's memory.
///
/// The kinds are in the order of their strength, which [`Persistence::and`] compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Persistence {
    /// Not known to be persistent.
    #[default]
    None,
    /// Memory behind a DAX device that the platform does not report as persistent, e.g.
    /// virtio-pmem: only a flush by the device's driver makes stores durable.
    DeviceFlush,
    /// Persistent: a write-back of the cache lines and a fence make stores durable. The name is
    /// that of the platform feature, asynchronous DRAM refresh. Memory with persistent caches also
    /// has this kind, if the kernel does not tell that the caches are persistent.
    Adr,
    /// Persistent, with persistent caches (extended ADR): a fence makes stores durable.
    Eadr,
}

/// Properties of a run of contiguous pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Each page is a `ZONE_DEVICE` page of a DAX device. False for memory that the kernel uses as
    /// system RAM, also if that memory came from a persistent device (kmem).
    pub dax: bool,
    /// Each page belongs to a DAX device that file systems can use (`MEMORY_DEVICE_FS_DAX`).
    pub for_files: bool,
    /// The platform describes the whole run as persistent memory.
    pub described: bool,
}

impl Facts {
    /// Returns the kind of the run's memory.
    ///
    /// A DAX device without the description may be volatile: device-dax also offers memory that
    /// the firmware only reserved. So such memory is [`Persistence::None`], except where file
    /// systems can use it: their `fsync()` asks the device's driver.
    pub const fn kind(self) -> Persistence {
        match (self.dax, self.described, self.for_files) {
            (true, true, _) => Persistence::Adr,
            (true, false, true) => Persistence::DeviceFlush,
            _ => Persistence::None,
        }
    }
}

impl Persistence {
    /// Returns the kind of memory that consists of memory of `self` and of `other`: the weaker one.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        // CAST: The discriminants are in the order of strength.
        match (self as u8) < (other as u8) {
            true => self,
            false => other,
        }
    }

    /// Returns the kind of memory whose pages are of the kind `self`. `persistent`: the kernel treats the
    /// caches of the memory's device as persistent. Without the pages' kind that means nothing: the
    /// kernel's `dax_flush()` also does nothing for devices whose driver does not care.
    #[must_use]
    pub const fn with_caches(self, persistent: bool) -> Self {
        match self {
            Self::Adr if persistent => Self::Eadr,
            kind => kind,
        }
    }

    /// Returns whether a processor can make stores durable, without the device's driver.
    pub const fn is_durable_by_cpu(self) -> bool {
        matches!(self, Self::Adr | Self::Eadr)
    }

    /// Returns whether stores are durable without a write-back of their cache lines.
    pub const fn has_persistent_caches(self) -> bool {
        matches!(self, Self::Eadr)
    }

    /// The name in lists of objects; empty for [`Persistence::None`].
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Adr => "adr",
            Self::Eadr => "eadr",
            Self::DeviceFlush => "device-flush",
        }
    }
}
