// SPDX-License-Identifier: GPL-2.0
//! Addresses of this host.

use kernel::{
    bindings,
    error::to_result,
    prelude::*, //
};

use super::raw::*;
use kfabric::{
    sys::net::Net,
    uapi::SockAddr, //
};

type Storage = bindings::__kernel_sockaddr_storage;

/// Calls `each` with every address of this host in `net`, without a port.
pub(crate) fn for_each_addr(net: &Net, mut each: impl FnMut(SockAddr) -> Result) -> Result {
    for index in 0.. {
        let mut storage = Storage::default();
        // SAFETY: `net` holds the namespace; the address is a local variable.
        if to_result(unsafe { kshm_addr(net.as_ptr(), index, &mut storage) }).is_err() {
            return Ok(());
        }
        let mut addr = SockAddr::default();
        // SAFETY: Both buffers have that many bytes; the C side has initialised all of them.
        unsafe {
            core::ptr::copy_nonoverlapping(
                (&raw const storage).cast::<u8>(),
                addr.data.as_mut_ptr(),
                addr.data.len(),
            )
        };
        addr.len = match u32::from(u16::from_ne_bytes([addr.data[0], addr.data[1]])) {
            bindings::AF_INET => 16,
            _ => 28,
        };
        each(addr)?;
    }
    Ok(())
}

/// Returns whether `addr` is an address of this host in `net`.
pub(crate) fn is_local(net: &Net, addr: &SockAddr) -> bool {
    let mut storage = Storage::default();
    // SAFETY: Both buffers have that many bytes.
    unsafe {
        core::ptr::copy_nonoverlapping(
            addr.data.as_ptr(),
            (&raw mut storage).cast::<u8>(),
            addr.data.len(),
        )
    };
    // SAFETY: `net` holds the namespace; the address is a local variable.
    unsafe { kshm_is_local(net.as_ptr(), &storage) }
}

/// Returns whether a listener at the "any" address of IPv6 in `net` also accepts IPv4 connections.
pub(crate) fn is_dual(net: &Net) -> bool {
    // SAFETY: `net` holds the namespace.
    unsafe { kshm_is_dual(net.as_ptr()) }
}
