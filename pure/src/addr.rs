// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Socket addresses as bytes: which of them can mean the same place.
//!
//! The bytes are a C `sockaddr_in` or `sockaddr_in6`: family in native byte order, the rest in
//! network byte order. What is neither is [`Address::Unknown`] and matches nothing but itself.

/// `AF_INET`.
const AF_INET: u16 = 2;
/// `AF_INET6`.
const AF_INET6: u16 = 10;

/// An address, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// None was given.
    None,
    /// IPv4.
    V4 {
        /// The host; all zero: any.
        host: [u8; 4],
        /// The port; 0: any.
        port: u16,
    },
    /// IPv6.
    V6 {
        /// The host; all zero: any.
        host: [u8; 16],
        /// The port; 0: any.
        port: u16,
        /// The interface a link-local host is on; 0: not said. In the bytes' own order.
        scope: u32,
    },
    /// Another family, or too few bytes for its own.
    Unknown(&'a [u8]),
}

/// `N` bytes from `at` on.
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
    /// Takes `raw` apart. Bytes behind the address are ignored.
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

    /// Whether something that is at `self` serves who asks for `wanted`: nothing asked for, or the
    /// same host, where "any" on the asking side is served by each of its family.
    ///
    /// Ports do not matter: they are chosen later. Scopes matter where both sides say one.
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
