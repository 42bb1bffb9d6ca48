// SPDX-License-Identifier: MIT OR Apache-2.0
//! Socket addresses: conversion to and from the kernel interface, and resolution of names.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use kfabric_uapi::SockAddr;

use crate::error::{Error, Result};
use crate::sys;

/// Length of a `sockaddr_in` in bytes.
const IN_LEN: u32 = 16;
/// Length of a `sockaddr_in6` in bytes.
const IN6_LEN: u32 = 28;

/// Converts an address to a C `sockaddr`; `None` becomes an empty one.
pub(crate) fn to_abi(addr: Option<SocketAddr>) -> SockAddr {
    let mut out = SockAddr::default();
    match addr {
        None => {}
        Some(SocketAddr::V4(a)) => {
            out.len = IN_LEN;
            out.data[0..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            out.data[2..4].copy_from_slice(&a.port().to_be_bytes());
            out.data[4..8].copy_from_slice(&a.ip().octets());
        }
        Some(SocketAddr::V6(a)) => {
            out.len = IN6_LEN;
            out.data[0..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            out.data[2..4].copy_from_slice(&a.port().to_be_bytes());
            out.data[4..8].copy_from_slice(&a.flowinfo().to_ne_bytes());
            out.data[8..24].copy_from_slice(&a.ip().octets());
            out.data[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
        }
    }
    out
}

/// Converts a C `sockaddr`; `None` if it is empty or of an unknown family.
pub(crate) fn from_abi(addr: &SockAddr) -> Option<SocketAddr> {
    let d = &addr.data;
    let family = i32::from(u16::from_ne_bytes([d[0], d[1]]));
    let port = u16::from_be_bytes([d[2], d[3]]);
    match (addr.len, family) {
        (IN_LEN, libc::AF_INET) => {
            let ip = Ipv4Addr::new(d[4], d[5], d[6], d[7]);
            Some(SocketAddrV4::new(ip, port).into())
        }
        (IN6_LEN, libc::AF_INET6) => {
            let octets: [u8; 16] = d[8..24].try_into().ok()?;
            let flow = u32::from_ne_bytes([d[4], d[5], d[6], d[7]]);
            let scope = u32::from_ne_bytes([d[24], d[25], d[26], d[27]]);
            Some(SocketAddrV6::new(Ipv6Addr::from(octets), port, flow, scope).into())
        }
        _ => None,
    }
}

/// Converts a node and a port to an address. Numeric nodes (`192.0.2.1`, `2001:db8::1`,
/// `fe80::1%eth0`, IPv6 also in brackets) are parsed. Other nodes are names for the system's
/// resolver.
///
/// # Errors
///
/// - [`Error::Resolve`] if the node is neither a numeric address nor a name that resolves.
pub fn resolve(node: &str, port: u16) -> Result<SocketAddr> {
    let inner = node.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let six = inner.unwrap_or(node);
    let (ip, zone) = match six.split_once('%') {
        Some((ip, zone)) => (ip, Some(zone)),
        None => (six, None),
    };
    match (ip.parse::<IpAddr>(), zone) {
        (Ok(IpAddr::V6(ip)), Some(zone)) => {
            let scope = scope_id(zone).ok_or_else(|| failed(node, port, "no such interface"))?;
            return Ok(SocketAddrV6::new(ip, port, 0, scope).into());
        }
        (Ok(ip), None) if inner.is_none() || ip.is_ipv6() => {
            return Ok(SocketAddr::new(ip, port));
        }
        _ if inner.is_some() => return Err(failed(node, port, "no IPv6 address in the brackets")),
        _ => {}
    }
    let mut found = (node, port)
        .to_socket_addrs()
        .map_err(|e| failed(node, port, &e.to_string()))?;
    found.next().ok_or_else(|| failed(node, port, "no address"))
}

/// The host of an address, as [`resolve`] parses it.
pub(crate) fn host(addr: &SocketAddr) -> String {
    match addr {
        SocketAddr::V6(a) if a.scope_id() != 0 => format!("{}%{}", a.ip(), a.scope_id()),
        other => other.ip().to_string(),
    }
}

fn failed(node: &str, port: u16, why: &str) -> Error {
    Error::Resolve {
        name: format!("{node} port {port}"),
        why: why.to_owned(),
    }
}

/// Returns the number of an IPv6 zone, which is a number or an interface's name.
fn scope_id(zone: &str) -> Option<u32> {
    if let Ok(index) = zone.parse() {
        return Some(index);
    }
    // In the caller's network namespace, which may be another one than that of /sys.
    sys::interface_index(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_converted_and_back_is_equal() {
        for text in [
            "192.0.2.7:18515",
            "[2001:db8::7]:1",
            "0.0.0.0:0",
            "[fe80::1%3]:9",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_abi(&to_abi(Some(addr))), Some(addr), "{text}");
            assert_eq!(resolve(&host(&addr), addr.port()).unwrap(), addr, "{text}");
        }
        assert_eq!(from_abi(&to_abi(None)), None);
    }

    #[test]
    fn resolve_of_a_numeric_address_parses_it() {
        assert_eq!(
            resolve("192.0.2.7", 5).unwrap(),
            "192.0.2.7:5".parse().unwrap()
        );
        assert_eq!(
            resolve("fe80::1%lo", 5).unwrap(),
            "[fe80::1%1]:5".parse().unwrap()
        );
        assert!(resolve("fe80::1%no/such", 5).is_err());
    }

    #[test]
    fn resolve_of_an_ipv6_address_in_brackets_is_the_address() {
        for (text, wanted) in [
            ("[fe80::1%lo]", "[fe80::1%1]:5"),
            ("[fe80::1%7]", "[fe80::1%7]:5"),
            ("[2001:db8::1]", "[2001:db8::1]:5"),
        ] {
            assert_eq!(resolve(text, 5).unwrap(), wanted.parse().unwrap(), "{text}");
        }
        for text in [
            "[192.0.2.7]",
            "[fe80::1",
            "[]",
            "[name]",
            "fe80::1%",
            "fe80::1%nosuchif0",
        ] {
            assert!(resolve(text, 5).is_err(), "{text}");
        }
    }
}
