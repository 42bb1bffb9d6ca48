// SPDX-License-Identifier: GPL-2.0
//! Addresses of IPoIB interfaces, by which rdma_cm connects over InfiniBand.

use kernel::prelude::*;

use super::{
    raw,
    sockaddr::Storage, //
};
use kfabric::{
    sys::net::Net,
    uapi::SockAddr, //
};

/// Maximum number of addresses that are looked at.
const MAX: usize = 4096;

/// The addresses of a network namespace's IPoIB interfaces.
pub(crate) struct Ipoib(KVec<raw::kverbs_ipoib_addr>);

impl Ipoib {
    /// Returns the addresses of the interfaces that are up, at most 4096.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`.
    pub(crate) fn read(net: &Net) -> Result<Self> {
        // SAFETY: With `max` 0 the function only counts.
        let count = unsafe { raw::kverbs_ipoib_addrs(net.as_ptr(), core::ptr::null_mut(), 0) };
        // Addresses that are added now are seen by the next call.
        let room = (count as usize).min(MAX);
        let mut list = KVec::with_capacity(room, GFP_KERNEL_ACCOUNT)?;
        while list.len() < room {
            list.push(raw::kverbs_ipoib_addr::default(), GFP_KERNEL_ACCOUNT)?;
        }
        // CAST: At most `MAX`.
        let max = list.len() as u32;
        // SAFETY: `list` has `max` elements.
        let count = unsafe { raw::kverbs_ipoib_addrs(net.as_ptr(), list.as_mut_ptr(), max) };
        list.truncate(count as usize);
        Ok(Self(list))
    }

    /// Returns the addresses of the interfaces over `gid`.
    pub(crate) fn over(&self, gid: [u8; 16]) -> impl Iterator<Item = SockAddr> + '_ {
        self.0
            .iter()
            .filter(move |entry| entry.gid == gid)
            // SAFETY: The entry is initialised.
            .map(|entry| unsafe { Storage::read(&entry.addr) })
    }
}
