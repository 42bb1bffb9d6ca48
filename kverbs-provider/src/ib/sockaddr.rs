// SPDX-License-Identifier: GPL-2.0
//! Socket addresses between kfabric's form and the kernel's.

use super::raw;
use kernel::{
    bindings,
    error::to_result,
    prelude::*, //
};
use kfabric::{
    net::Net,
    uapi::SockAddr, //
};

/// Address family of IPv4 (`AF_INET`).
const AF_INET: u16 = 2;
/// Address family of IPv6 (`AF_INET6`).
const AF_INET6: u16 = 10;

/// A `struct sockaddr_storage`.
#[derive(Default)]
pub(super) struct Storage(bindings::__kernel_sockaddr_storage);

impl Storage {
    /// Takes over an address.
    ///
    /// # Errors
    ///
    /// `EINVAL`: length and family do not fit each other.
    pub(super) fn new(addr: &SockAddr) -> Result<Self> {
        if family(addr).is_none() {
            return Err(EINVAL);
        }
        let mut out = Self::default();
        // SAFETY: `family` has checked that `len` is 16 or 28, which is within both.
        unsafe {
            core::ptr::copy_nonoverlapping(
                addr.data.as_ptr(),
                out.as_mut_ptr().cast::<u8>(),
                addr.len as usize,
            )
        };
        Ok(out)
    }

    /// Reads the address out of a `struct sockaddr_storage`.
    ///
    /// # Safety
    ///
    /// `ptr` is valid for reads.
    pub(super) unsafe fn read(ptr: *const bindings::__kernel_sockaddr_storage) -> SockAddr {
        // SAFETY: The caller guarantees it; any bytes are a valid structure.
        Self(unsafe { ptr.read() }).get()
    }

    /// For C to write to.
    pub(super) fn as_mut_ptr(&mut self) -> *mut bindings::__kernel_sockaddr_storage {
        &mut self.0
    }

    /// For C functions that take any address.
    pub(super) fn as_sockaddr(&mut self) -> *mut bindings::sockaddr {
        self.as_mut_ptr().cast()
    }

    /// In kfabric's form; of length 0 if it is of no known family.
    pub(super) fn get(&self) -> SockAddr {
        let mut out = SockAddr::default();
        let from = core::ptr::from_ref(&self.0).cast::<u8>();
        // SAFETY: Every address starts with its family.
        let family = unsafe { from.cast::<u16>().read() };
        out.len = match family {
            AF_INET => 16,
            AF_INET6 => 28,
            _ => 0,
        };
        // SAFETY: Both hold at least 28 bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(from, out.data.as_mut_ptr(), out.len as usize);
        }
        out
    }
}

/// The family of a well-formed address.
fn family(addr: &SockAddr) -> Option<u16> {
    let family = u16::from_ne_bytes([addr.data[0], addr.data[1]]);
    matches!((addr.len, family), (16, AF_INET) | (28, AF_INET6)).then_some(family)
}

/// Whether it is an IPv6 address.
pub(crate) fn is_v6(addr: &SockAddr) -> bool {
    addr.len == 28
}

/// Whether both name the same host: family and address, whatever the port.
pub(crate) fn same_host(a: &SockAddr, b: &SockAddr) -> bool {
    match (a.len, b.len) {
        (16, 16) => a.data[4..8] == b.data[4..8],
        (28, 28) => a.data[8..24] == b.data[8..24],
        _ => false,
    }
}

/// The source address that the routes of `net` choose towards `dst`.
///
/// # Errors
///
/// `EINVAL`: no address. Else what routing says, e.g. `ENETUNREACH`.
pub(crate) fn route_source(net: &Net, dst: &SockAddr) -> Result<SockAddr> {
    let mut dst = Storage::new(dst)?;
    let mut src = Storage::default();
    // SAFETY: `net` holds the namespace; both addresses are ours.
    to_result(unsafe {
        raw::kverbs_route_source(net.as_ptr(), dst.as_mut_ptr(), src.as_mut_ptr())
    })?;
    Ok(src.get())
}
