// SPDX-License-Identifier: GPL-2.0
//! Addresses of IPoIB interfaces, by which rdma_cm connects over InfiniBand, and of the interfaces of
//! iWARP devices.

use kernel::prelude::*;

use super::{
    device::Live,
    raw,
    sockaddr::Storage, //
};
use kfabric::{
    sys::net::Net,
    uapi::SockAddr, //
};

/// Maximum number of addresses that are looked at.
const MAX: usize = 4096;

/// The addresses of network interfaces.
pub(crate) struct Ipoib(KVec<raw::kverbs_ipoib_addr>);

impl Ipoib {
    /// Returns the addresses of the interfaces that are up, at most 4096.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`.
    pub(crate) fn read(net: &Net) -> Result<Self> {
        // SAFETY: `net` keeps the namespace alive; the other arguments are as the function wants.
        Self::read_by(|out, max| unsafe { raw::kverbs_ipoib_addrs(net.as_ptr(), out, max) })
    }

    /// Returns the addresses in `net` of the interface of an iWARP device's port, at most 4096.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`.
    pub(crate) fn of_port(live: &Live<'_>, port: u32, net: &Net) -> Result<Self> {
        let dev = live.device().as_ptr();
        // SAFETY: The device is registered, as `live` proves, and `net` keeps the namespace alive.
        Self::read_by(|out, max| unsafe {
            raw::kverbs_port_addrs(dev, port, net.as_ptr(), out, max)
        })
    }

    /// Reads a list with `read`, which stores up to as many entries as its second argument says at
    /// its first argument, and returns the number of all.
    fn read_by(read: impl Fn(*mut raw::kverbs_ipoib_addr, u32) -> u32) -> Result<Self> {
        let count = read(core::ptr::null_mut(), 0);
        // Addresses that are added now are seen by the next call.
        let room = (count as usize).min(MAX);
        let mut list = KVec::with_capacity(room, GFP_KERNEL_ACCOUNT)?;
        while list.len() < room {
            list.push(raw::kverbs_ipoib_addr::default(), GFP_KERNEL_ACCOUNT)?;
        }
        // CAST: At most `MAX`.
        let max = list.len() as u32;
        let count = read(list.as_mut_ptr(), max);
        list.truncate(count as usize);
        Ok(Self(list))
    }

    /// Returns all addresses.
    pub(crate) fn all(&self) -> impl Iterator<Item = SockAddr> + '_ {
        self.0
            .iter()
            // SAFETY: The entry is initialised.
            .map(|entry| unsafe { Storage::read(&entry.addr) })
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
