// SPDX-License-Identifier: GPL-2.0 OR MIT
//! GID tables as each kind of port has them.

use kfabric_pure::gid::{for_each, Addresses, Gid, GidType, Host, Link, Read};
use proptest::prelude::*;

/// Index of the port's own interface.
const ETH: u32 = 2;
/// Index of a VLAN's interface, or a bond's.
const UPPER: u32 = 7;

fn entry(kind: GidType, gid: [u8; 16], ifindex: u32) -> Gid {
    Gid { gid, kind, ifindex }
}

/// A GID that is an IPv4 address.
fn mapped(host: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&host);
    gid
}

/// The GID that a port has from its MAC address: an address of its link only.
fn link_local(last: u8) -> [u8; 16] {
    [
        0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, last,
    ]
}

fn global(last: u8) -> [u8; 16] {
    [0xfd, 0, 0, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

fn own(table: &[Gid], link: Link) -> Vec<Host> {
    table
        .iter()
        .filter_map(|gid| match gid.addresses(link) {
            Addresses::Own(host) => Some(host),
            _ => None,
        })
        .collect()
}

fn v6(host: [u8; 16], scope: u32) -> Host {
    Host::V6 { host, scope }
}

#[test]
fn roce_port_with_both_versions_has_each_address_once() {
    // As mlx5 and bnxt_re have it: a pair of entries for each address.
    let both = |gid, ifindex| {
        [
            entry(GidType::RoceV1, gid, ifindex),
            entry(GidType::RoceV2, gid, ifindex),
        ]
    };
    let table: Vec<Gid> = [
        both(link_local(1), ETH),
        both(mapped([192, 0, 2, 1]), ETH),
        both(mapped([198, 51, 100, 1]), UPPER),
        both(global(1), UPPER),
        both([0; 16], 0),
    ]
    .concat();
    assert_eq!(
        own(&table, Link::Roce { v2: true }),
        [
            v6(link_local(1), ETH),
            Host::V4([192, 0, 2, 1]),
            Host::V4([198, 51, 100, 1]),
            v6(global(1), 0),
        ]
    );
}

#[test]
fn roce_port_of_version_1_has_its_addresses() {
    // As an mlx4 in version 1 has it.
    let table = [
        entry(GidType::RoceV1, link_local(1), ETH),
        entry(GidType::RoceV1, mapped([192, 0, 2, 1]), ETH),
    ];
    assert_eq!(
        own(&table, Link::Roce { v2: false }),
        [v6(link_local(1), ETH), Host::V4([192, 0, 2, 1])]
    );
    assert_eq!(own(&table, Link::Roce { v2: true }), []);
}

#[test]
fn roce_port_of_ipv6_only_host_has_its_addresses() {
    // As rxe has it.
    let table = [
        entry(GidType::RoceV2, link_local(1), ETH),
        entry(GidType::RoceV2, global(1), ETH),
    ];
    assert_eq!(
        own(&table, Link::Roce { v2: true }),
        [v6(link_local(1), ETH), v6(global(1), 0)]
    );
}

#[test]
fn roce_address_of_another_namespace_is_left_out() {
    let table = [
        entry(GidType::RoceV2, mapped([192, 0, 2, 1]), 0),
        entry(GidType::RoceV2, mapped([192, 0, 2, 2]), ETH),
    ];
    assert_eq!(
        own(&table, Link::Roce { v2: true }),
        [Host::V4([192, 0, 2, 2])]
    );
}

#[test]
fn infiniband_port_has_addresses_of_its_ipoib_interfaces() {
    // The prefix of the subnet and the port's GUID. The entries have no interface.
    let guid = link_local(1);
    let alias = global(9);
    for gid in [guid, alias] {
        let entry = entry(GidType::Ib, gid, 0);
        assert_eq!(entry.addresses(Link::InfiniBand), Addresses::Ipoib(gid));
        assert_eq!(
            entry.addresses(Link::Roce { v2: true }),
            Addresses::None,
            "the entry belongs to no Ethernet port"
        );
    }
    let empty = entry(GidType::Ib, [0; 16], 0);
    assert_eq!(empty.addresses(Link::InfiniBand), Addresses::None);
}

/// A device with three ports, as an mlx4 can have two: Ethernet with both versions, InfiniBand, and Ethernet
/// of version 1. Each port has the addresses of its own table, by its own link.
#[test]
fn each_port_of_a_device_has_the_addresses_of_its_table() {
    let tables: [(u32, Link, Vec<Option<Gid>>); 3] = [
        (
            1,
            Link::Roce { v2: true },
            vec![
                Some(entry(GidType::RoceV1, mapped([192, 0, 2, 1]), ETH)),
                Some(entry(GidType::RoceV2, mapped([192, 0, 2, 1]), ETH)),
                None,
                Some(entry(GidType::RoceV2, global(1), UPPER)),
            ],
        ),
        (
            2,
            Link::InfiniBand,
            vec![Some(entry(GidType::Ib, link_local(2), 0))],
        ),
        (
            4,
            Link::Roce { v2: false },
            vec![
                None,
                Some(entry(GidType::RoceV1, mapped([192, 0, 2, 4]), 9)),
            ],
        ),
    ];
    let read = |port, index: i32| {
        let (.., table) = tables.iter().find(|(of, ..)| *of == port).unwrap();
        match table.get(index as usize) {
            Some(Some(gid)) => Read::Entry(*gid),
            Some(None) => Read::Empty,
            None => Read::End,
        }
    };
    let mut found = Vec::new();
    let ports = tables.iter().map(|(port, link, _)| (*port, *link));
    let result = for_each(ports, read, |port, addresses| {
        if addresses != Addresses::None {
            found.push((port, addresses));
        }
        Ok::<(), ()>(())
    });
    assert_eq!(result, Ok(()));
    assert_eq!(
        found,
        [
            (1, Addresses::Own(Host::V4([192, 0, 2, 1]))),
            (1, Addresses::Own(v6(global(1), 0))),
            (2, Addresses::Ipoib(link_local(2))),
            (4, Addresses::Own(Host::V4([192, 0, 2, 4]))),
        ]
    );
}

proptest! {
    /// The kernel's own rule: `ipv6_addr_type()` and `rdma_gid2ip()`.
    #[test]
    fn host_of_any_gid_matches_the_standard_library(gid: [u8; 16], ifindex in 1u32..) {
        let address = std::net::Ipv6Addr::from(gid);
        let expected = match address.to_ipv4_mapped() {
            Some(host) => Host::V4(host.octets()),
            None => v6(gid, if address.is_unicast_link_local() { ifindex } else { 0 }),
        };
        prop_assume!(gid != [0; 16]);
        let entry = entry(GidType::RoceV2, gid, ifindex);
        prop_assert_eq!(entry.addresses(Link::Roce { v2: true }), Addresses::Own(expected));
    }
}
