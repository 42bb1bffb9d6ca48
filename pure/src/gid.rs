// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Addresses of an RDMA port, found through its GID table.
//!
//! rdma_cm connects by IP addresses. An Ethernet port (RoCE) has an entry for each address of its
//! interfaces, VLANs and bonds included, and the GID is that address. An InfiniBand port has GIDs
//! of its own, and its addresses are those of the IPoIB interfaces over them: such an interface's
//! hardware address contains the GID (`cma_acquire_dev_by_src_ip()` in `drivers/infiniband/core`).

/// Type of a table's entry (`enum ib_gid_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE version 1, within an Ethernet segment.
    RoceV1,
    /// RoCE version 2, over UDP.
    RoceV2,
}

/// Link of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet.
    Roce {
        /// The port has RoCE version 2, which rdma_cm prefers.
        v2: bool,
    },
    /// iWARP, over TCP. The port has no GIDs, but one network interface.
    Iwarp,
}

/// An entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The GID.
    pub gid: [u8; 16],
    /// Its type.
    pub kind: GidType,
    /// Index of the entry's network interface in the caller's namespace; 0 means none there.
    pub ifindex: u32,
}

/// Addresses that an entry of a GID table contributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// None.
    None,
    /// The GID is the address.
    Own(Host),
    /// Those of the IPoIB interfaces with this GID.
    Ipoib([u8; 16]),
}

/// A host's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// IPv4.
    V4([u8; 4]),
    /// IPv6.
    V6 {
        /// The address.
        host: [u8; 16],
        /// The interface of a link-local address, or 0.
        scope: u32,
    },
}

impl Gid {
    /// Returns the addresses of the entry, on a port with `link`.
    ///
    /// An address of a port with both versions of RoCE has two entries. The entry of version 2
    /// counts, because rdma_cm uses version 2 by default.
    pub fn addresses(&self, link: Link) -> Addresses {
        if self.gid == [0; 16] {
            return Addresses::None;
        }
        match (link, self.kind) {
            (Link::InfiniBand, GidType::Ib) => Addresses::Ipoib(self.gid),
            (Link::Roce { v2: true }, GidType::RoceV2)
            | (Link::Roce { v2: false }, GidType::RoceV1)
                if self.ifindex != 0 =>
            {
                Addresses::Own(self.host())
            }
            _ => Addresses::None,
        }
    }

    /// Returns the GID as an address (`rdma_gid2ip()`).
    fn host(&self) -> Host {
        match self.gid {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Host::V4([a, b, c, d]),
            host => Host::V6 {
                host,
                scope: if is_link_local(&host) {
                    self.ifindex
                } else {
                    0
                },
            },
        }
    }
}

/// Result of reading a GID table at an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// An entry.
    Entry(Gid),
    /// No entry, but later ones may exist.
    Empty,
    /// The table ends before the index.
    End,
}

/// Calls `each` with the number of a port and the addresses of an entry of its table, for all entries of
/// `ports`: each port has a table and a link of its own.
///
/// # Errors
///
/// - The first error of `each`.
pub fn for_each<E>(
    ports: impl Iterator<Item = (u32, Link)>,
    read: impl Fn(u32, i32) -> Read,
    mut each: impl FnMut(u32, Addresses) -> Result<(), E>,
) -> Result<(), E> {
    for (port, link) in ports {
        for index in 0.. {
            match read(port, index) {
                Read::Entry(gid) => each(port, gid.addresses(link))?,
                Read::Empty => {}
                Read::End => break,
            }
        }
    }
    Ok(())
}

/// Returns whether an IPv6 address is valid on one link only (RFC 4291, section 2.5.6).
fn is_link_local(host: &[u8; 16]) -> bool {
    host[0] == 0xfe && host[1] & 0xc0 == 0x80
}
