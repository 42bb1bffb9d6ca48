// SPDX-License-Identifier: MIT OR Apache-2.0
//! Socket addresses, between Rust's type and the interface's, and from names.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use kfabric_uapi::SockAddr;

use crate::error::{Error, Result};

/// Bytes of a `sockaddr_in`.
const IN_LEN: u32 = 16;
/// Bytes of a `sockaddr_in6`.
const IN6_LEN: u32 = 28;

/// Lays an address out as C does.
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

/// Reads an address laid out as C does; `None` for none or an unknown family.
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

/// Turns a node and a port into an address: numeric forms (`192.0.2.1`, `2001:db8::1`,
/// `fe80::1%eth0`) without asking anybody, names by the system's resolver.
///
/// # Errors
///
/// [`Error::Resolve`] when the node is neither.
pub fn resolve(node: &str, port: u16) -> Result<SocketAddr> {
    if let Ok(ip) = node.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    if let Some((ip, zone)) = node.split_once('%') {
        if let Ok(ip) = ip.parse::<Ipv6Addr>() {
            let scope = scope_id(zone).ok_or_else(|| failed(node, port, "no such interface"))?;
            return Ok(SocketAddrV6::new(ip, port, 0, scope).into());
        }
    }
    let mut found = (node, port)
        .to_socket_addrs()
        .map_err(|e| failed(node, port, &e.to_string()))?;
    found.next().ok_or_else(|| failed(node, port, "no address"))
}

fn failed(node: &str, port: u16, why: &str) -> Error {
    Error::Resolve {
        name: format!("{node} port {port}"),
        why: why.to_owned(),
    }
}

/// Number of a zone: given as a number, or by an interface's name.
fn scope_id(zone: &str) -> Option<u32> {
    if let Ok(index) = zone.parse() {
        return Some(index);
    }
    if zone.contains('/') {
        return None;
    }
    let index = std::fs::read_to_string(format!("/sys/class/net/{zone}/ifindex")).ok()?;
    index.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for text in [
            "192.0.2.7:18515",
            "[2001:db8::7]:1",
            "0.0.0.0:0",
            "[fe80::1%3]:9",
        ] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(from_abi(&to_abi(Some(addr))), Some(addr), "{text}");
        }
        assert_eq!(from_abi(&to_abi(None)), None);
    }

    #[test]
    fn numeric_needs_no_resolver() {
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
}
