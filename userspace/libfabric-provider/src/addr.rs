// SPDX-License-Identifier: MIT OR Apache-2.0
//! Addresses: `sockaddr` of programs, and Rust's.

use std::ffi::{c_char, c_int, c_void};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::{copy_nonoverlapping, null_mut};

use crate::error::Errno;
use crate::ffi::*;

/// Bytes of a `sockaddr_in` and of a `sockaddr_in6`.
const LEN: (usize, usize) = (16, 28);

/// An address as a program has it: its bytes and their number.
pub(crate) fn bytes(addr: &SocketAddr) -> ([u8; 28], usize) {
    let mut to = [0; 28];
    to[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(a) => {
            to[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            to[4..8].copy_from_slice(&a.ip().octets());
            (to, LEN.0)
        }
        SocketAddr::V6(a) => {
            to[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            to[4..8].copy_from_slice(&a.flowinfo().to_ne_bytes());
            to[8..24].copy_from_slice(&a.ip().octets());
            to[24..].copy_from_slice(&a.scope_id().to_ne_bytes());
            (to, LEN.1)
        }
    }
}

/// Copies a program's `sockaddr`. `None` if it is null, too short, or of another family.
///
/// # Safety
///
/// `at` is null or points to `len` bytes, which are at least a family; or `len` is larger than any
/// address, and the address has the length of its family.
pub(crate) unsafe fn from(at: *const c_void, len: usize) -> Option<SocketAddr> {
    if at.is_null() || len < 2 {
        return None;
    }
    // SAFETY: as the caller vouches.
    let family = unsafe { at.cast::<u16>().read_unaligned() };
    let need = match c_int::from(family) {
        libc::AF_INET => LEN.0,
        libc::AF_INET6 => LEN.1,
        _ => return None,
    };
    if len < need {
        return None;
    }
    let mut d = [0u8; 28];
    // SAFETY: the address has this length.
    unsafe { copy_nonoverlapping(at.cast::<u8>(), d.as_mut_ptr(), need) };
    let port = u16::from_be_bytes([d[2], d[3]]);
    if need == LEN.0 {
        return Some(SocketAddr::from(([d[4], d[5], d[6], d[7]], port)));
    }
    let octets: [u8; 16] = d[8..24].try_into().ok()?;
    let number = |at: usize| u32::from_ne_bytes([d[at], d[at + 1], d[at + 2], d[at + 3]]);
    Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, number(4), number(24)).into())
}

/// Answers `fi_getname` and `fi_getpeer`.
///
/// # Safety
///
/// `to` has `*len` bytes, or is null.
pub(crate) unsafe fn store(addr: &SocketAddr, to: *mut c_void, len: *mut usize) -> c_int {
    let (from, need) = bytes(addr);
    // SAFETY: as the caller vouches.
    unsafe {
        let room = *len;
        *len = need;
        if !to.is_null() {
            copy_nonoverlapping(from.as_ptr(), to.cast::<u8>(), need.min(room));
        }
        if room < need {
            return -(FI_ETOOSMALL as c_int);
        }
    }
    0
}

/// The format of an address.
pub(crate) fn format(addr: &SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => FI_SOCKADDR_IN,
        SocketAddr::V6(_) => FI_SOCKADDR_IN6,
    }
}

/// Resolves a node and a service: the addresses of families that `format` allows, best first. None
/// without a node and a service.
///
/// # Safety
///
/// `node` and `service` are C strings or null.
pub(crate) unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    format: u32,
) -> Result<Vec<SocketAddr>, Errno> {
    if node.is_null() && service.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: zeroes are a valid value.
    let mut wanted: libc::addrinfo = unsafe { std::mem::zeroed() };
    wanted.ai_socktype = libc::SOCK_STREAM;
    wanted.ai_family = match format {
        FI_SOCKADDR_IN => libc::AF_INET,
        FI_SOCKADDR_IN6 => libc::AF_INET6,
        // Without a node the address is a wildcard or the loopback address.
        _ if node.is_null() => libc::AF_INET,
        _ => libc::AF_UNSPEC,
    };
    if flags & FI_SOURCE != 0 {
        wanted.ai_flags |= libc::AI_PASSIVE;
    }
    if flags & FI_NUMERICHOST != 0 {
        wanted.ai_flags |= libc::AI_NUMERICHOST;
    }
    let mut list = null_mut();
    // SAFETY: C strings or null, as the caller vouches, and places of this function.
    let rc = unsafe { libc::getaddrinfo(node, service, &raw const wanted, &raw mut list) };
    if rc != 0 {
        return Err(libc::ENODATA);
    }
    // SAFETY: `getaddrinfo` made the list, whose addresses have their lengths.
    let found = unsafe {
        let found = addresses(list);
        libc::freeaddrinfo(list);
        found
    };
    match found.is_empty() {
        true => Err(libc::ENODATA),
        false => Ok(found),
    }
}

/// Copies the usable addresses of a list, each once.
///
/// # Safety
///
/// Each entry has an address of its length, and the next entry or null.
unsafe fn addresses(mut at: *const libc::addrinfo) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    // SAFETY: as the caller vouches.
    while let Some(one) = unsafe { at.as_ref() } {
        // SAFETY: as the caller vouches.
        let addr = unsafe { from(one.ai_addr.cast(), one.ai_addrlen as usize) };
        found.extend(addr.filter(|addr| !found.contains(addr)));
        at = one.ai_next;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    /// Resolves names of this test.
    fn resolved(
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
        format: u32,
    ) -> Option<SocketAddr> {
        let at = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: C strings or null.
        let found = unsafe { resolve(at(node), at(service), flags, format) };
        found.ok().and_then(|found| found.first().copied())
    }

    #[test]
    fn all_addresses_of_a_list_are_tried_in_its_order() {
        let texts = [
            "[fd77::1]:80",
            "10.77.0.1:80",
            "[fd77::1]:80",
            "10.77.0.2:80",
        ];
        let addrs: Vec<SocketAddr> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut raw: Vec<_> = addrs.iter().map(bytes).collect();
        let mut next: *mut libc::addrinfo = null_mut();
        let mut list = Vec::new();
        for (bytes, len) in raw.iter_mut().rev() {
            // SAFETY: zeroes are a valid value.
            let mut one: Box<libc::addrinfo> = Box::new(unsafe { std::mem::zeroed() });
            one.ai_addr = bytes.as_mut_ptr().cast();
            one.ai_addrlen = *len as u32;
            one.ai_next = next;
            next = &raw mut *one;
            list.push(one);
        }
        // SAFETY: entries with addresses of their lengths.
        let found = unsafe { addresses(next) };
        assert_eq!(found, [addrs[0], addrs[1], addrs[3]]);
    }

    #[test]
    fn addresses_are_checked_for_their_size() {
        for text in ["10.1.2.3:80", "[fe80::1%7]:80"] {
            let addr: SocketAddr = text.parse().expect("an address");
            let (bytes, len) = bytes(&addr);
            let at = bytes.as_ptr().cast();
            // SAFETY: the address has 28 bytes.
            unsafe {
                assert_eq!(from(at, len), Some(addr));
                assert_eq!(from(at, len - 1), None);
                assert_eq!(from(at, 0), None);
                let (mut room, mut n) = ([1u8; 28], 3);
                let rc = store(&addr, room.as_mut_ptr().cast(), &raw mut n);
                assert_eq!((rc, n, room[3]), (-(FI_ETOOSMALL as c_int), len, 1));
                assert_eq!(store(&addr, room.as_mut_ptr().cast(), &raw mut n), 0);
                assert_eq!(room[..n], bytes[..len]);
            }
        }
        // SAFETY: null, and bytes with the family AF_UNIX.
        unsafe {
            assert_eq!(from(std::ptr::null(), 16), None);
            assert_eq!(from([1u8, 0, 0, 0].as_ptr().cast(), 4), None);
        }
    }

    #[test]
    fn node_and_service_are_resolved_by_flags_and_format() {
        let text = |addr: Option<SocketAddr>| addr.map(|addr| addr.to_string());
        let wild = resolved(None, Some(c"80"), FI_SOURCE, 0);
        assert_eq!(text(wild).as_deref(), Some("0.0.0.0:80"));
        let own = resolved(None, Some(c"80"), 0, 0);
        assert_eq!(text(own).as_deref(), Some("127.0.0.1:80"));
        let six = resolved(Some(c"::1"), None, 0, 0);
        assert_eq!(text(six).as_deref(), Some("[::1]:0"));
        assert_eq!(resolved(None, None, 0, 0), None);
        assert_eq!(resolved(Some(c"10.1.2.3"), None, 0, FI_SOCKADDR_IN6), None);
        assert_eq!(resolved(Some(c"localhost"), None, FI_NUMERICHOST, 0), None);
        assert_eq!(resolved(Some(c"10.1.2.3"), Some(c"no such"), 0, 0), None);
    }
}
