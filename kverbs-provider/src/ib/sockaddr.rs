// SPDX-License-Identifier: GPL-2.0
//! Conversion of socket addresses between kfabric's form and the kernel's.

use super::raw;
use kernel::{
    bindings,
    error::to_result,
    prelude::*, //
};
use kfabric::{
    pure::gid::Host,
    sys::net::Net,
    uapi::SockAddr, //
};

/// Address family of IPv4.
// CAST: The value is 2.
const AF_INET: u16 = bindings::AF_INET as u16;
/// Address family of IPv6.
// CAST: The value is 10.
const AF_INET6: u16 = bindings::AF_INET6 as u16;

/// A `struct sockaddr_storage`, for calls of C functions.
#[derive(Default)]
pub(super) struct Storage(bindings::__kernel_sockaddr_storage);

impl Storage {
    /// Converts an address from kfabric's form.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the address's length does not fit its family.
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

    /// Reads the address in a `struct sockaddr_storage`.
    ///
    /// # Safety
    ///
    /// `ptr` is valid for reads.
    pub(super) unsafe fn read(ptr: *const bindings::__kernel_sockaddr_storage) -> SockAddr {
        // SAFETY: By the caller's contract `ptr` is valid for reads; any bytes are a valid
        // structure.
        Self(unsafe { ptr.read() }).get()
    }

    /// Returns a pointer through which C functions write the address.
    pub(super) fn as_mut_ptr(&mut self) -> *mut bindings::__kernel_sockaddr_storage {
        &mut self.0
    }

    /// Returns a pointer for C functions that take any address.
    pub(super) fn as_sockaddr(&mut self) -> *mut bindings::sockaddr {
        self.as_mut_ptr().cast()
    }

    /// Returns the address in kfabric's form, of length 0 if the family is unknown.
    pub(super) fn get(&self) -> SockAddr {
        let mut out = SockAddr::default();
        let from = core::ptr::from_ref(&self.0).cast::<u8>();
        // SAFETY: Every address starts with its family, and the structure has more than 2 bytes.
        let family = unsafe { from.cast::<u16>().read() };
        out.len = match family {
            AF_INET => 16,
            AF_INET6 => 28,
            _ => 0,
        };
        // SAFETY: Both have at least 28 bytes.
        unsafe {
            core::ptr::copy_nonoverlapping(from, out.data.as_mut_ptr(), out.len as usize);
        }
        out
    }
}

/// Returns a host's address without a port.
pub(crate) fn of(host: Host) -> SockAddr {
    let mut out = SockAddr::default();
    match host {
        Host::V4(host) => {
            out.len = 16;
            out.data[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            out.data[4..8].copy_from_slice(&host);
        }
        Host::V6 { host, scope } => {
            out.len = 28;
            out.data[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            out.data[8..24].copy_from_slice(&host);
            out.data[24..28].copy_from_slice(&scope.to_ne_bytes());
        }
    }
    out
}

/// Returns the family of a well-formed address.
fn family(addr: &SockAddr) -> Option<u16> {
    let family = u16::from_ne_bytes([addr.data[0], addr.data[1]]);
    matches!((addr.len, family), (16, AF_INET) | (28, AF_INET6)).then_some(family)
}

/// Returns an address with another port.
pub(crate) fn with_port(addr: &SockAddr, port: u16) -> SockAddr {
    let mut out = *addr;
    // Both families have the port there.
    out.data[2..4].copy_from_slice(&port.to_be_bytes());
    out
}

/// Returns whether `addr` is an IPv6 address.
pub(crate) fn is_v6(addr: &SockAddr) -> bool {
    addr.len == 28
}

/// Returns whether both addresses have the same family and host. Ports are ignored.
pub(crate) fn same_host(a: &SockAddr, b: &SockAddr) -> bool {
    match (a.len, b.len) {
        (16, 16) => a.data[4..8] == b.data[4..8],
        (28, 28) => a.data[8..24] == b.data[8..24],
        _ => false,
    }
}

/// Returns the source address that the routes of `net` choose towards `dst`.
///
/// # Errors
///
/// - `EINVAL` if `dst` is not an address.
/// - An error of routing, e.g. `ENETUNREACH`.
pub(crate) fn route_source(net: &Net, dst: &SockAddr) -> Result<SockAddr> {
    let mut dst = Storage::new(dst)?;
    let mut src = Storage::default();
    // SAFETY: `net` keeps the namespace alive; both addresses are local variables.
    to_result(unsafe {
        raw::kverbs_route_source(net.as_ptr(), dst.as_mut_ptr(), src.as_mut_ptr())
    })?;
    Ok(src.get())
}
