// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Auth handshake: the messages by which two kernels prove to each other that they have the same
//! auth key. The messages are private data of the connection manager. They never contain the auth
//! key.
//!
//! ```text
//!  initiator                                      responder
//!     request  HELLO      nonce, MAC ----------------->    does the initiator have the auth key?
//!     <------------ CHALLENGE  cookie, MAC    refusal      (yes, or the message is a replay)
//!   does the responder have the auth key?
//!     request  PROOF      cookie, MAC, data ---------->    a fresh proof, used once?
//!     <------------ REPLY      MAC, data       answer
//!     (or REFUSAL   MAC, data       refusal)
//!     (or BUSY      MAC             refusal)         (later)
//!   is it the same responder, with its queue pair?
//! ```
//!
//! The MAC is HMAC-SHA256 of the auth key's length in one byte, followed by the text. HMAC pads a key
//! with zeros; the length makes a key and the same key followed by zeros two keys.
//!
//! Each MAC covers the kind of its message, both addresses with their ports, both GIDs of the path
//! that connects the queue pairs, and the values exchanged. A MAC of one kind is never a MAC of
//! another. If a request reaches the responder with another GID than the initiator's, the responder
//! refuses it, because its queue pair would be connected to the owner of that GID. The nonce binds
//! the CHALLENGE to the initiator. The cookie binds the PROOF to the responder; it is valid for
//! [`COOKIE_NS`] and once. The MACs of PROOF and REPLY also cover the queue pair numbers. So a
//! recorded message is useless, and application data is sent only to a peer that has proven its key.
//!
//! The first byte differs from that of every plain message ([`wire`](super::wire)), where it would
//! state a length that does not fit.

use super::addr::Address;

/// Upper four bits of the first byte; the lower four are the version.
const MARK: u8 = 0xf0;
/// The protocol version.
pub const VERSION: u8 = 4;
/// Size of a MAC in bytes.
pub const MAC: usize = 16;
/// Size of a nonce in bytes.
pub const NONCE: usize = 16;
/// Bytes of a cookie that hold the low part of its time.
const COOKIE_TIME: usize = 5;
/// Bytes of a cookie that hold its tag.
const COOKIE_TAG: usize = 8;
/// Size of a cookie in bytes.
pub const COOKIE: usize = COOKIE_TIME + COOKIE_TAG;
/// Maximum application data of a PROOF in bytes.
pub const DATA_MAX: usize = super::wire::REQUEST_MAX - 2 - COOKIE - MAC - 1;

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const REPLY: u8 = 4;
const REFUSAL: u8 = 5;
const BUSY: u8 = 6;

/// A MAC.
pub type Mac = [u8; MAC];
/// A nonce.
pub type Nonce = [u8; NONCE];
/// A cookie: the low part of the time at which it was made, and a tag of the responder's.
pub type Cookie = [u8; COOKIE];
/// A GID: the address of an RDMA port on the wire.
pub type Gid = [u8; 16];

/// A message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The initiator asks to connect.
    Hello {
        /// The initiator's nonce.
        nonce: Nonce,
        /// MAC of [`hello`].
        mac: Mac,
    },
    /// The responder has the same auth key, and demands a fresh proof.
    Challenge {
        /// The responder's cookie, which the proof must contain.
        cookie: Cookie,
        /// MAC of [`challenge`].
        mac: Mac,
    },
    /// The initiator's proof, with its connection request.
    Proof {
        /// The responder's cookie.
        cookie: Cookie,
        /// MAC of [`proof`].
        mac: Mac,
        /// Application data.
        data: &'a [u8],
    },
    /// The responder accepts the connection.
    Reply {
        /// MAC of [`reply`].
        mac: Mac,
        /// Application data.
        data: &'a [u8],
    },
    /// The responder's application refuses the connection.
    Refusal {
        /// MAC of [`refusal`].
        mac: Mac,
        /// Application data.
        data: &'a [u8],
    },
    /// The proof is right, but the responder has no memory to note that its cookie is spent.
    Busy {
        /// [`busy`].
        mac: Mac,
    },
}

/// Why private data is not a message of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFrame {
    /// A plain message: the peer uses no auth key.
    Plain,
    /// Another protocol version, which is given.
    Version(u8),
    /// Too short, or of an unknown kind.
    Broken,
}

/// The data is too long, or the buffer is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Removes `N` bytes from the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], NotFrame> {
    let (first, behind) = rest.split_first_chunk().ok_or(NotFrame::Broken)?;
    *rest = behind;
    Ok(*first)
}

fn take_data<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], NotFrame> {
    let [len] = take(rest)?;
    rest.get(..usize::from(len)).ok_or(NotFrame::Broken)
}

impl<'a> Frame<'a> {
    /// Decodes a message. Bytes after the message are padding.
    ///
    /// # Errors
    ///
    /// - [`NotFrame`] if the bytes are not a message of the handshake.
    pub fn parse(message: &'a [u8]) -> Result<Self, NotFrame> {
        let mut rest = message;
        let Ok([mark]) = take(&mut rest) else {
            return Err(NotFrame::Plain);
        };
        if mark & MARK != MARK {
            return Err(NotFrame::Plain);
        }
        if mark & !MARK != VERSION {
            return Err(NotFrame::Version(mark & !MARK));
        }
        let [kind] = take(&mut rest)?;
        let rest = &mut rest;
        Ok(match kind {
            HELLO => Self::Hello {
                nonce: take(rest)?,
                mac: take(rest)?,
            },
            CHALLENGE => Self::Challenge {
                cookie: take(rest)?,
                mac: take(rest)?,
            },
            PROOF => Self::Proof {
                cookie: take(rest)?,
                mac: take(rest)?,
                data: take_data(rest)?,
            },
            REPLY => Self::Reply {
                mac: take(rest)?,
                data: take_data(rest)?,
            },
            REFUSAL => Self::Refusal {
                mac: take(rest)?,
                data: take_data(rest)?,
            },
            BUSY => Self::Busy { mac: take(rest)? },
            _ => return Err(NotFrame::Broken),
        })
    }

    /// Encodes the message into `out` and returns its length in bytes.
    ///
    /// # Errors
    ///
    /// - [`TooLong`] if `out` is too short, or the data has more than 255 bytes.
    pub fn write(&self, out: &mut [u8]) -> Result<usize, TooLong> {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            let end = at + bytes.len();
            out.get_mut(at..end).ok_or(TooLong)?.copy_from_slice(bytes);
            at = end;
            Ok(())
        };
        let size = |data: &[u8]| u8::try_from(data.len()).map_err(|_| TooLong);
        let head = |kind| [MARK | VERSION, kind];
        match self {
            Self::Hello { nonce, mac } => {
                put(&head(HELLO))?;
                put(nonce)?;
                put(mac)?;
            }
            Self::Challenge { cookie, mac } => {
                put(&head(CHALLENGE))?;
                put(cookie)?;
                put(mac)?;
            }
            Self::Proof { cookie, mac, data } => {
                put(&head(PROOF))?;
                put(cookie)?;
                put(mac)?;
                put(&[size(data)?])?;
                put(data)?;
            }
            Self::Reply { mac, data } => {
                put(&head(REPLY))?;
                put(mac)?;
                put(&[size(data)?])?;
                put(data)?;
            }
            Self::Refusal { mac, data } => {
                put(&head(REFUSAL))?;
                put(mac)?;
                put(&[size(data)?])?;
                put(data)?;
            }
            Self::Busy { mac } => {
                put(&head(BUSY))?;
                put(mac)?;
            }
        }
        Ok(at)
    }
}

/// Size in bytes of an end's address: host and port.
const PLACE: usize = 18;

/// The addresses of both ends, and the GIDs of the path between them. Both ends must see the same
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    initiator: [u8; PLACE],
    responder: [u8; PLACE],
    gids: [Gid; 2],
}

/// Encodes host and port of a socket address, without the scope, which has a meaning on its own
/// host only.
fn place(raw: &[u8]) -> [u8; PLACE] {
    let mut place = [0; PLACE];
    let (host, port) = place.split_at_mut(16);
    match Address::parse(raw) {
        Address::V4 { host: v4, port: p } => {
            // As an IPv4-mapped IPv6 address.
            host[10..12].fill(0xff);
            host[12..].copy_from_slice(&v4);
            port.copy_from_slice(&p.to_be_bytes());
        }
        Address::V6 {
            host: v6, port: p, ..
        } => {
            host.copy_from_slice(&v6);
            port.copy_from_slice(&p.to_be_bytes());
        }
        _ => {}
    }
    place
}

impl Ends {
    /// Encodes two socket addresses, with the GIDs that RoCE derives from them.
    pub fn new(initiator: &[u8], responder: &[u8]) -> Self {
        let (initiator, responder) = (place(initiator), place(responder));
        let gid = |place: &[u8; PLACE]| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&place[..16]);
            gid
        };
        Self {
            initiator,
            responder,
            gids: [gid(&initiator), gid(&responder)],
        }
    }

    /// The same, with these GIDs.
    pub fn between(self, initiator: Gid, responder: Gid) -> Self {
        Self {
            gids: [initiator, responder],
            ..self
        }
    }
}

/// First bytes of the text of every MAC.
const LABEL: &[u8; 16] = b"kfabric auth key";
/// Size of the longest text in bytes.
const TEXT: usize = LABEL.len() + 2 + 2 * PLACE + 2 * 16 + 2 * NONCE + 8 + MAC + 1 + 255;

/// The text that a MAC covers.
pub struct Text {
    bytes: [u8; TEXT],
    len: usize,
}

impl Text {
    fn new(kind: u8, ends: &Ends) -> Self {
        let text = Self {
            bytes: [0; TEXT],
            len: 0,
        };
        text.with(LABEL)
            .with(&[VERSION, kind])
            .with(&ends.initiator)
            .with(&ends.responder)
            .with(&ends.gids[0])
            .with(&ends.gids[1])
    }

    /// Appends `bytes`. They always fit: [`TEXT`] covers the longest text below. Bytes that did not
    /// fit would be missing at both ends alike.
    fn with(mut self, bytes: &[u8]) -> Self {
        let end = self.len + bytes.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
        self
    }

    /// Returns the text.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Returns the text of a [`Frame::Hello`] from queue pair `qp`.
pub fn hello(ends: &Ends, nonce: &Nonce, qp: u32) -> Text {
    Text::new(HELLO, ends).with(nonce).with(&qp.to_be_bytes())
}

/// Returns the text of a [`Frame::Challenge`] that answers a HELLO with `nonce`.
pub fn challenge(ends: &Ends, nonce: &Nonce, cookie: &Cookie) -> Text {
    Text::new(CHALLENGE, ends).with(nonce).with(cookie)
}

/// Returns the text of a [`Frame::Proof`] from queue pair `qp`.
pub fn proof(ends: &Ends, cookie: &Cookie, qp: u32, data: &[u8]) -> Text {
    Text::new(PROOF, ends)
        .with(cookie)
        .with(&qp.to_be_bytes())
        .with(data)
}

/// Returns the text of a [`Frame::Reply`] from queue pair `qp`. `mac` is the MAC of the PROOF,
/// which covers all earlier values.
pub fn reply(ends: &Ends, mac: &Mac, qp: u32, data: &[u8]) -> Text {
    Text::new(REPLY, ends)
        .with(mac)
        .with(&qp.to_be_bytes())
        .with(data)
}

/// Returns the text of a [`Frame::Refusal`]; `mac` is the MAC of the PROOF.
pub fn refusal(ends: &Ends, mac: &Mac, data: &[u8]) -> Text {
    Text::new(REFUSAL, ends).with(mac).with(data)
}

/// Returns the text of a [`Frame::Busy`]; `mac` is the MAC of the PROOF.
pub fn busy(ends: &Ends, mac: &Mac) -> Text {
    Text::new(BUSY, ends).with(mac)
}

/// Lifetime of a cookie in nanoseconds.
pub const COOKIE_NS: u64 = 30_000_000_000;

/// Mask of the part of a time that a cookie holds: 2^40 ns, 18 minutes.
const COOKIE_MASK: u64 = (1 << (8 * COOKIE_TIME)) - 1;
const _: () = assert!(COOKIE_NS < COOKIE_MASK);

/// Returns the cookie of the time `made`. `mac` covers all 64 bits of the time and a secret of the
/// responder's; its first bytes are the tag.
pub fn cookie(made: u64, mac: &Mac) -> Cookie {
    let mut cookie = [0; COOKIE];
    let (time, tag) = cookie.split_at_mut(COOKIE_TIME);
    time.copy_from_slice(&made.to_be_bytes()[8 - COOKIE_TIME..]);
    tag.copy_from_slice(&mac[..COOKIE_TAG]);
    cookie
}

/// Returns the time at which a cookie was made, if the cookie was made in the last 18 minutes before
/// `now`. For an older cookie the result is another time, whose cookie has another tag.
pub fn made_at(cookie: &Cookie, now: u64) -> u64 {
    let mut low = [0; 8];
    low[8 - COOKIE_TIME..].copy_from_slice(&cookie[..COOKIE_TIME]);
    let age = now.wrapping_sub(u64::from_be_bytes(low)) & COOKIE_MASK;
    now.wrapping_sub(age)
}

/// Returns whether a cookie made at `made` is still valid at `now`.
pub fn is_fresh(made: u64, now: u64) -> bool {
    made <= now && now - made <= COOKIE_NS
}

/// Places in a bucket of a table of spent cookies.
const BUCKET: usize = 8;

/// The outcome of spending a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spend {
    /// The cookie was good, and is spent now.
    Good,
    /// The cookie was spent before, or is too old.
    Spent,
    /// The cookie stays good: the table has no place for it.
    Full,
}

/// The places of a table where a cookie made at `made` may be.
fn bucket(table: &mut [u64], made: u64) -> Option<&mut [u64]> {
    let buckets = table.len() / BUCKET;
    // The low bits of a time may be alike in many cookies; the product's upper bits depend on all of them.
    let mixed = made.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // CAST: 32 bits.
    let first = (mixed as usize).checked_rem(buckets)? * BUCKET;
    table.get_mut(first..first + BUCKET)
}

/// Spends a cookie made at `made`. `table` has the times of spent cookies, and zeros in free places. The
/// time taken does not depend on the table's size.
pub fn spend(table: &mut [u64], made: u64, now: u64) -> Spend {
    if made == 0 || !is_fresh(made, now) {
        return Spend::Spent;
    }
    let Some(places) = bucket(table, made) else {
        return Spend::Full;
    };
    if places.contains(&made) {
        return Spend::Spent;
    }
    match places
        .iter_mut()
        .find(|at| **at == 0 || !is_fresh(**at, now))
    {
        Some(place) => {
            *place = made;
            Spend::Good
        }
        None => Spend::Full,
    }
}

/// Copies the cookies of a table that are not too old to a larger one, which is all zeros. Whether each
/// found a place; if not, the larger table is of no use.
pub fn carry(from: &[u64], to: &mut [u64], now: u64) -> bool {
    let mut fresh = from
        .iter()
        .filter(|made| **made != 0 && is_fresh(**made, now));
    fresh.all(|made| spend(to, *made, now) == Spend::Good)
}
