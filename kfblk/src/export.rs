// SPDX-License-Identifier: GPL-2.0
//! The exporting end.

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};

use crate::sys;

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

/// Another number whenever the module is loaded.
static BOOT: AtomicU64 = AtomicU64::new(0);

/// Draws that number. Once, at module load.
pub(crate) fn begin() {
    BOOT.store(u64::from_ne_bytes(sys::random()), Ordering::Relaxed);
}

/// By it a client knows that what this host's devices had in their caches may be gone.
pub(crate) fn boot() -> u64 {
    BOOT.load(Ordering::Relaxed)
}
