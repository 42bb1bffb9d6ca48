// SPDX-License-Identifier: GPL-2.0
//! The target: exports of memory and block devices.

mod block;
mod connection;
mod hosts;
mod memory;
mod pmem;
pub(crate) mod port;
mod protocol;
pub(crate) mod subsystem;

use core::sync::atomic::{
    AtomicU64,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::sys;

/// Random number, drawn at each load of the module.
static BOOT: AtomicU64 = AtomicU64::new(0);

/// Draws the boot number. Called once, at module load.
pub(crate) fn begin() {
    BOOT.store(u64::from_ne_bytes(sys::random()), Ordering::Relaxed);
}

/// Returns the boot number. If it has changed, an initiator knows that write caches may be lost.
pub(crate) fn boot() -> u64 {
    BOOT.load(Ordering::Relaxed)
}

/// Removes an object from a list. The caller drops it outside the list's lock.
fn take_ptr<T>(list: &mut KVec<Arc<T>>, object: &T) -> Option<Arc<T>> {
    let at = list
        .iter()
        .position(|of| core::ptr::eq::<T>(&**of, object))?;
    list.remove(at).ok()
}
