// SPDX-License-Identifier: MIT OR Apache-2.0

//! Addresses and names, valid and invalid, that programs refer to by small numbers.

use super::shape::Name;
use crate::raw::{name_field, to_sockaddr, Dev};
use anyhow::{Context, Result};
use kfabric_uapi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Port on which programs listen.
const PORT: u16 = 20_000;

/// Names and addresses of this machine.
pub struct World {
    provider: String,
    fabric: String,
    domain: String,
    addrs: Vec<SockAddr>,
}

/// Number of names of each kind: the valid one, invalid ones, and those of the intra-node provider.
pub const NAMES: u64 = 16;
/// Number of the intra-node provider's name.
const INTRA_NODE: u64 = NAMES - 1;

impl World {
    /// Finds the names and addresses of the first RDMA device with an address like `addr`.
    ///
    /// # Errors
    ///
    /// If there is no device.
    pub fn find(addr: IpAddr, addr6: Option<Ipv6Addr>) -> Result<Self> {
        let mut hints = crate::raw::hints();
        hints.src_addr = to_sockaddr(SocketAddr::new(addr, 0));
        let found = Dev::open()?.getinfo(Some(&hints))?;
        let info = found.first().context("no provider has this address")?;
        let text = |field: &[u8]| crate::raw::field_text(field);
        Ok(Self {
            provider: text(&info.prov_name),
            fabric: text(&info.fabric_name),
            domain: text(&info.domain_name),
            addrs: addresses(addr, addr6.unwrap_or(Ipv6Addr::LOCALHOST)),
        })
    }

    /// Returns socket address `number`.
    pub fn addr(&self, number: u64) -> SockAddr {
        self.addrs[(number % self.addrs.len() as u64) as usize]
    }

    /// Returns the bytes of a name's field: the valid name, one that is invalid in the way of
    /// `number`, or another provider's.
    pub fn name(&self, name: Name, number: u64, width: usize) -> Vec<u8> {
        let right = match name {
            Name::Provider => &self.provider,
            Name::Fabric => &self.fabric,
            Name::Domain => &self.domain,
        };
        let put = |field: &mut Vec<u8>, text: &[u8]| {
            field.fill(0);
            field[..text.len()].copy_from_slice(text);
        };
        let mut field = name_field::<KFI_NAME_MAX>(right).to_vec();
        field.resize(width, 0);
        match number {
            0 => {}
            INTRA_NODE if name == Name::Provider => put(&mut field, b"kshm"),
            INTRA_NODE => put(&mut field, b"shm"),
            1 => field.fill(0),
            2 => field[0] = b'?',
            3 => field.fill(b'x'),
            4 => field[..2].copy_from_slice(&[0xff, 0xfe]),
            5 => field[width - 1] = 1,
            // Letters of two to four bytes, whole and cut off.
            6 => put(&mut field, "naïve € 𝄞 name".as_bytes()),
            7 => put(&mut field, b"cut off \xc3"),
            8 => put(&mut field, b"cut off \xe2\x82"),
            9 => put(&mut field, b"cut off \xf0\x9d\x84"),
            10 => put(&mut field, b"too long \xe0\x80\xaf"),
            11 => put(&mut field, b"no letter \xed\xa0\x80"),
            12 => put(&mut field, b"not the third \xf0\x9d\x20\x20"),
            13 => put(&mut field, b"not the fourth \xf0\x9d\x84\x20"),
            _ => put(
                &mut field,
                b"not the second \xc3\x20 \xe2\x82\x20 \xf5\x80\x80\x80",
            ),
        }
        field
    }
}

/// Returns a service name, the address form of the intra-node provider.
fn service(name: &[u8]) -> SockAddr {
    let mut addr = SockAddr {
        len: 28,
        ..SockAddr::default()
    };
    addr.data[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    addr.data[2..][..name.len()].copy_from_slice(name);
    addr
}

/// Returns addresses: the node's own first, then unreachable ones.
fn addresses(addr: IpAddr, addr6: Ipv6Addr) -> Vec<SockAddr> {
    let at = |ip: IpAddr, port| to_sockaddr(SocketAddr::new(ip, port));
    let four = |a, b, c, d| IpAddr::V4(Ipv4Addr::new(a, b, c, d));
    let own = at(addr, PORT);
    let bent = |change: fn(&mut SockAddr)| {
        let mut addr = own;
        change(&mut addr);
        addr
    };
    vec![
        SockAddr::default(),
        own,
        at(addr, PORT),
        at(addr, 0),
        at(addr6.into(), PORT),
        at(addr6.into(), 0),
        at(addr, PORT + 1),
        at(four(10, 77, 0, 99), PORT),
        at(four(0, 0, 0, 0), PORT),
        at(four(127, 0, 0, 1), PORT),
        at(four(224, 0, 0, 1), PORT),
        at(four(192, 0, 2, 1), PORT),
        bent(|addr| addr.data[0] = 0x55),
        bent(|addr| addr.len = 28),
        bent(|addr| addr.len = 0),
        bent(|addr| addr.len = u32::MAX),
        service(b"kfi"),
        // Every kind of byte that is written with an escape.
        service(b"a\t\r\n'\"\\\x01\x7f\x80\xff"),
        service(&[b'n'; 26]),
        service(&[0xff; 25]),
    ]
}
