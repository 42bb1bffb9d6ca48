// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of the program's own allocator, used by the library by address.

use anyhow::{ensure, Result};
use kfabric::{Access, Domain, Endpoint, Errno, RawOp, Region, RegionAttr};

/// Bytes from the allocator. They are accessed by copies only, because a peer may write them.
///
/// # Invariants
///
/// `base` points to `len` bytes that were allocated as a boxed slice and are owned by this object.
pub struct Heap {
    base: *mut u8,
    len: usize,
}

impl Heap {
    /// Allocates `len` zeroed bytes.
    pub fn new(len: usize) -> Self {
        let base = Box::into_raw(vec![0u8; len].into_boxed_slice());
        // INVARIANT: the box was given up just now.
        Self {
            base: base.cast(),
            len,
        }
    }

    /// Address of byte `at`.
    pub fn at(&self, at: usize) -> *const u8 {
        self.base.wrapping_add(at)
    }

    /// Copies `from` to byte `at`.
    ///
    /// # Errors
    ///
    /// If the range is not within the memory.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<()> {
        ensure!(at + from.len() <= self.len, "outside of the memory");
        // SAFETY: within the memory. The test writes no bytes that an operation uses at that time.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.add(at), from.len()) };
        Ok(())
    }

    /// Copies `len` bytes at byte `at`.
    ///
    /// # Errors
    ///
    /// If the range is not within the memory.
    pub fn read(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        ensure!(at + len <= self.len, "outside of the memory");
        let mut to = vec![0; len];
        // SAFETY: within the memory; `to` has `len` bytes.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(at), to.as_mut_ptr(), len) };
        Ok(to)
    }

    /// Registers all of the memory.
    ///
    /// # Errors
    ///
    /// Those of [`Domain::register_raw`].
    pub fn register(&'static self, domain: &Domain, access: Access) -> kfabric::Result<Region> {
        let attr = RegionAttr::new(access);
        // SAFETY: the memory is never freed, and only accessed by copies.
        unsafe { domain.register_raw(self.base, self.len, &attr) }
    }
}

/// Posts an operation whose payload and unregistered pieces are memory of a [`Heap`].
///
/// # Errors
///
/// Those of [`Endpoint::post_raw`].
pub fn post(ep: &Endpoint, op: &RawOp<'_>) -> Result<(), Errno> {
    // SAFETY: the tests pass pieces of a `Heap`, of which other threads copy nothing meanwhile.
    unsafe { ep.post_raw(op) }
}
