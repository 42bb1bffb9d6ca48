// SPDX-License-Identifier: GPL-2.0
//! Listening addresses: socket addresses and service names.

use kernel::{
    bindings,
    prelude::*, //
};

use kfabric::{
    pure::proof::Mac,
    sys::net::Net,
    uapi::{
        SockAddr,
        KFI_SOCKADDR,
        KFI_SOCKADDR_IN,
        KFI_SOCKADDR_IN6, //
    },
};

// CAST: Families are small numbers.
const AF_LOCAL: u16 = bindings::AF_LOCAL as u16;
pub(super) const AF_INET: u16 = bindings::AF_INET as u16;
pub(super) const AF_INET6: u16 = bindings::AF_INET6 as u16;

/// A listening address, in the order of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    /// Network namespace; 0 for a service name.
    pub(super) net: usize,
    pub(super) family: u16,
    pub(super) port: u16,
    /// Host address, or the bytes of a service name.
    pub(super) host: [u8; 26],
    /// Mark of the auth key that the service name belongs to, if any.
    pub(super) mark: Option<Mac>,
}

impl Name {
    /// Parses `addr` in the namespace `net`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `addr` is not a valid address.
    pub(crate) fn new(net: &Net, addr: &SockAddr) -> Result<Self> {
        let data = &addr.data;
        let family = u16::from_ne_bytes([data[0], data[1]]);
        let port = u16::from_be_bytes([data[2], data[3]]);
        let mut host = [0; 26];
        let net = net.as_ptr().addr();
        match (addr.len, family) {
            (16, AF_INET) => host[..4].copy_from_slice(&data[4..8]),
            (28, AF_INET6) => host[..16].copy_from_slice(&data[8..24]),
            (28, AF_LOCAL) if data[2] != 0 => {
                host.copy_from_slice(&data[2..28]);
                return Ok(Self {
                    net: 0,
                    family,
                    port: 0,
                    host,
                    mark: None,
                });
            }
            _ => return Err(EINVAL),
        }
        Ok(Self {
            net,
            family,
            port,
            host,
            mark: None,
        })
    }

    /// Returns whether this is a service name.
    pub(crate) fn is_service(&self) -> bool {
        self.family == AF_LOCAL
    }

    /// Returns whether this is a socket address with an "any" host.
    pub(crate) fn is_any(&self) -> bool {
        !self.is_service() && self.host == [0; 26]
    }

    /// Returns the "any" address of the same family and port.
    pub(super) fn at_any(&self) -> Self {
        Self {
            host: [0; 26],
            ..*self
        }
    }

    /// Returns the "any" address of `family` with the same port.
    pub(super) fn at_all(&self, family: u16) -> Self {
        Self {
            family,
            ..self.at_any()
        }
    }

    /// Returns whether both addresses have the same namespace, family and port.
    pub(super) fn same_place(&self, other: &Self) -> bool {
        (self.net, self.family, self.port) == (other.net, other.family, other.port)
    }

    /// Returns this name under each of `marks`. A service name has one entry in the table for each
    /// auth key, any other name has one.
    pub(super) fn places<'a>(
        &self,
        marks: impl Iterator<Item = Option<Mac>> + 'a,
    ) -> impl Iterator<Item = Self> + 'a {
        let (name, service) = (*self, self.is_service());
        let count = if service { usize::MAX } else { 1 };
        let place = move |mark: Option<Mac>| Self {
            mark: mark.filter(|_| service),
            ..name
        };
        marks.take(count).map(place)
    }

    /// Returns the address format (`KFI_SOCKADDR*`) of `addr`.
    pub(crate) fn format(addr: &SockAddr) -> u32 {
        match u16::from_ne_bytes([addr.data[0], addr.data[1]]) {
            AF_INET => KFI_SOCKADDR_IN,
            AF_INET6 => KFI_SOCKADDR_IN6,
            _ => KFI_SOCKADDR,
        }
    }
}

/// Sets the port of an address.
pub(crate) fn set_port(addr: &mut SockAddr, port: u16) {
    addr.data[2..4].copy_from_slice(&port.to_be_bytes());
}
