// SPDX-License-Identifier: GPL-2.0
//! The exporting end.

pub(crate) mod bdev;
pub(crate) mod device;
pub(crate) mod hosts;
pub(crate) mod lane;
pub(crate) mod port;
pub(crate) mod subsystem;

/// Bytes that a key is for, as a power of two: what every device can register at once.
pub(crate) const CHUNK_SHIFT: u32 = 20;
/// Bytes of a block, as a power of two.
pub(crate) const BLOCK_SHIFT: u32 = 9;
