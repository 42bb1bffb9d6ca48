// SPDX-License-Identifier: GPL-2.0
//! The values that keys have had since the module was loaded, on any device: none comes again (P4),
//! not even when a device was removed and begins to count anew. A value is spent when it is set
//! aside, whether or not it is given out.
//!
//! It takes 32 bytes for each hardware slot that ever had a key. There are 2^32 values (of which rxe
//! uses 2^27); when they are used up there are no keys any more, rather than old ones.

use kernel::prelude::*;

use kfabric::pure::spent::Spent;

/// Hardware slots of which the values are kept in one allocation, of a page.
const CHUNK: usize = 128;

kernel::sync::global_lock! {
    // SAFETY: Initialised in the module's init, before the client is registered.
    unsafe(uninit) static SPENT: Mutex<KVVec<KVec<Spent>>> = KVVec::new();
}

/// What is known of given keys; dropping it forgets them.
pub(crate) struct Memory(());

impl Memory {
    /// Readies it.
    ///
    /// # Safety
    ///
    /// Called once, at module load, before the client is registered.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Self {
        // SAFETY: The caller's promise.
        unsafe { SPENT.init() };
        Self(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let spent = core::mem::replace(&mut *SPENT.lock(), KVVec::new());
        drop(spent);
    }
}

fn with<R>(key: u32, act: impl FnOnce(&mut Spent) -> R) -> Result<R> {
    // CAST: 24 bits.
    let slot = (key >> 8) as usize;
    let mut spent = SPENT.lock();
    while spent.len() <= slot / CHUNK {
        spent.push(KVec::new(), GFP_KERNEL)?;
    }
    let chunk = spent.get_mut(slot / CHUNK).ok_or(EINVAL)?;
    if chunk.is_empty() {
        *chunk = KVec::from_elem(Spent::new(), CHUNK, GFP_KERNEL)?;
    }
    Ok(act(chunk.get_mut(slot % CHUNK).ok_or(EINVAL)?))
}

/// A low byte with which the hardware slot of `key` has had no key yet; `random` says which.
/// `None`: it has had all.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn draw(key: u32, random: u32) -> Result<Option<u8>> {
    with(key, |spent| spent.draw(random))
}

/// Whether `key`, which the device chose, has never been given out; from now on it has.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn take(key: u32) -> Result<bool> {
    // CAST: The low byte.
    with(key, |spent| spent.take(key as u8))
}
