// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Socket addresses as bytes, and the rule by which two of them match.
//!
//! The bytes are a C `sockaddr_in` or `sockaddr_in6`: the family in native byte order, the rest in
//! network byte order. Bytes of any other form become [`Address::Unknown`], which matches only
//! equal bytes.

/// `AF_INET`.
const AF_INET: u16 = 2;
/// `AF_INET6`.
const AF_INET6: u16 = 10;

/// A parsed socket address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// No address: the byte string is empty.
    None,
    /// IPv4.
    V4 {
        /// The host address; all zero means any host.
        host: [u8; 4],
        /// The port; 0 means any port.
        port: u16,
    },
    /// IPv6.
    V6 {
        /// The host address; all zero means any host.
        host: [u8; 16],
        /// The port; 0 means any port.
        port: u16,
        /// The interface of a link-local host, in the byte order of `sockaddr_in6`; 0 means
        /// unspecified.
        scope: u32,
    },
    /// An address of another family, or one with too few bytes for its family.
    Unknown(&'a [u8]),
}

/// Returns the `N` bytes from offset `at` on.
fn bytes<const N: usize>(raw: &[u8], at: usize) -> Option<[u8; N]> {
    raw.get(at..)?.first_chunk().copied()
}

fn parse_v4(raw: &[u8]) -> Option<Address<'_>> {
    Some(Address::V4 {
        port: u16::from_be_bytes(bytes(raw, 2)?),
        host: bytes(raw, 4)?,
    })
}

fn parse_v6(raw: &[u8]) -> Option<Address<'_>> {
    Some(Address::V6 {
        port: u16::from_be_bytes(bytes(raw, 2)?),
        host: bytes(raw, 8)?,
        scope: u32::from_ne_bytes(bytes(raw, 24)?),
    })
}

impl<'a> Address<'a> {
    /// Parses `raw`. Bytes after the address are ignored.
    pub fn parse(raw: &'a [u8]) -> Self {
        if raw.is_empty() {
            return Address::None;
        }
        let parsed = match bytes(raw, 0).map(u16::from_ne_bytes) {
            Some(AF_INET) => parse_v4(raw),
            Some(AF_INET6) => parse_v6(raw),
            _ => None,
        };
        parsed.unwrap_or(Address::Unknown(raw))
    }

    /// Returns whether an object at address `self` serves a request for `wanted`.
    ///
    /// An absent `wanted` is served by every address. An "any" host is served by each address of
    /// its family. Otherwise the hosts must be equal.
    ///
    /// Ports are ignored, because they are chosen later. Scopes are compared only if both addresses
    /// have one.
    pub fn serves(&self, wanted: &Address<'_>) -> bool {
        match (self, wanted) {
            (_, Address::None) => true,
            (Address::V4 { host, .. }, Address::V4 { host: want, .. }) => {
                *want == [0; 4] || host == want
            }
            (
                Address::V6 { host, scope, .. },
                Address::V6 {
                    host: want,
                    scope: want_scope,
                    ..
                },
            ) => {
                *want == [0; 16]
                    || (host == want && (*scope == 0 || *want_scope == 0 || scope == want_scope))
            }
            (Address::Unknown(raw), Address::Unknown(want)) => raw == want,
            _ => false,
        }
    }
}
