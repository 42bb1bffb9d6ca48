// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What two kernels say to each other, in the connection manager's private data, to prove that they
//! have the same auth key. The auth key itself is never said.
//!
//! ```text
//!  initiator                                      responder
//!     request  HELLO      nonce, MAC ----------------->    has the initiator the auth key?
//!     <------------ CHALLENGE  cookie, MAC    refusal      (it has, or somebody repeats it)
//!   has the responder the auth key?
//!     request  PROOF      cookie, MAC, data ---------->    is it the initiator now, once?
//!     <------------ REPLY      MAC, data       answer
//!     (or REFUSAL   MAC, data       refusal)
//!   is it the same responder, and its queue pair?
//! ```
//!
//! Each MAC is over what it is (a MAC of one is never one of another), both addresses with their
//! ports, and what was said. The nonce makes the CHALLENGE the initiator's own, the cookie the PROOF
//! the responder's own, good for a short time and once; queue pairs' numbers are in the PROOF's and
//! the REPLY's. So what was recorded is good for nothing, and data is sent only to who has proven.
//!
//! The first byte is one that no plain message has ([`wire`](super::wire)): its size byte would say
//! more than fits.

use super::addr::Address;

/// First byte: this, and the version.
const MARK: u8 = 0xf0;
/// The version spoken.
pub const VERSION: u8 = 1;
/// Bytes of a MAC.
pub const MAC: usize = 16;
/// Bytes of a nonce, and of a cookie.
pub const NONCE: usize = 16;
/// Application data that a PROOF has room for.
pub const DATA_MAX: usize = super::wire::REQUEST_MAX - 2 - NONCE - MAC - 1;

const HELLO: u8 = 1;
const CHALLENGE: u8 = 2;
const PROOF: u8 = 3;
const REPLY: u8 = 4;
const REFUSAL: u8 = 5;

/// A MAC.
pub type Mac = [u8; MAC];
/// A nonce or a cookie.
pub type Nonce = [u8; NONCE];

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// The initiator wants to connect.
    Hello {
        /// Its nonce.
        nonce: Nonce,
        /// [`hello`].
        mac: Mac,
    },
    /// The responder has the auth key too, and wants the initiator to prove it now.
    Challenge {
        /// What the proof has to be about.
        cookie: Nonce,
        /// [`challenge`].
        mac: Mac,
    },
    /// The initiator's request.
    Proof {
        /// The responder's cookie.
        cookie: Nonce,
        /// [`proof`].
        mac: Mac,
        /// Of the application.
        data: &'a [u8],
    },
    /// The responder accepts.
    Reply {
        /// [`reply`].
        mac: Mac,
        /// Of the application.
        data: &'a [u8],
    },
    /// The responder's application refuses.
    Refusal {
        /// [`refusal`].
        mac: Mac,
        /// Of the application.
        data: &'a [u8],
    },
}

/// Why a message is none of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFrame {
    /// The peer says nothing about auth keys.
    Plain,
    /// Another version, which is said.
    Version(u8),
    /// Too short, or unknown.
    Broken,
}

/// The data, or the buffer for it, does not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Takes bytes off the front.
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
    /// Reads a message. What follows it is padding.
    ///
    /// # Errors
    ///
    /// Why it is none.
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
            _ => return Err(NotFrame::Broken),
        })
    }

    /// Writes it into `out` and returns how many bytes it is.
    ///
    /// # Errors
    ///
    /// [`TooLong`]: there is no room.
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
        }
        Ok(at)
    }
}

/// Bytes of a place: host and port.
const PLACE: usize = 18;

/// The addresses of both ends, as both ends know them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    initiator: [u8; PLACE],
    responder: [u8; PLACE],
}

/// A socket address without what is only its own host's matter.
fn place(raw: &[u8]) -> [u8; PLACE] {
    let mut place = [0; PLACE];
    let (host, port) = place.split_at_mut(16);
    match Address::parse(raw) {
        Address::V4 { host: v4, port: p } => {
            // As IPv6 has it.
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
    /// Of two socket addresses.
    pub fn new(initiator: &[u8], responder: &[u8]) -> Self {
        Self {
            initiator: place(initiator),
            responder: place(responder),
        }
    }
}

/// What every MAC's text begins with.
const LABEL: &[u8; 16] = b"kfabric auth key";
/// Bytes of the longest text.
const TEXT: usize = LABEL.len() + 2 + 2 * PLACE + 2 * NONCE + 8 + MAC + 1 + 255;

/// What a MAC is over.
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
    }

    /// There is room for all that the functions below put in; were there not, it would be missing
    /// at both ends.
    fn with(mut self, bytes: &[u8]) -> Self {
        let end = self.len + bytes.len();
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(bytes);
            self.len = end;
        }
        self
    }

    /// The text.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The text of a [`Frame::Hello`] from queue pair `qp`.
pub fn hello(ends: &Ends, nonce: &Nonce, qp: u32) -> Text {
    Text::new(HELLO, ends).with(nonce).with(&qp.to_be_bytes())
}

/// The text of a [`Frame::Challenge`] that answers a hello of `nonce`.
pub fn challenge(ends: &Ends, nonce: &Nonce, cookie: &Nonce) -> Text {
    Text::new(CHALLENGE, ends).with(nonce).with(cookie)
}

/// The text of a [`Frame::Proof`] from queue pair `qp`.
pub fn proof(ends: &Ends, cookie: &Nonce, qp: u32, data: &[u8]) -> Text {
    Text::new(PROOF, ends)
        .with(cookie)
        .with(&qp.to_be_bytes())
        .with(data)
}

/// The text of a [`Frame::Reply`] from queue pair `qp` to a proof of `mac`, which is about the rest.
pub fn reply(ends: &Ends, mac: &Mac, qp: u32, data: &[u8]) -> Text {
    Text::new(REPLY, ends)
        .with(mac)
        .with(&qp.to_be_bytes())
        .with(data)
}

/// The text of a [`Frame::Refusal`] of a proof of `mac`.
pub fn refusal(ends: &Ends, mac: &Mac, data: &[u8]) -> Text {
    Text::new(REFUSAL, ends).with(mac).with(data)
}

/// How long a cookie is good, in nanoseconds.
pub const COOKIE_NS: u64 = 30_000_000_000;

/// The time that a cookie was made at.
pub fn made_at(cookie: &Nonce) -> u64 {
    let mut time = [0; 8];
    time.copy_from_slice(&cookie[..8]);
    u64::from_be_bytes(time)
}

/// Whether a cookie made at `made` is good at `now`.
pub fn is_fresh(made: u64, now: u64) -> bool {
    made <= now && now - made <= COOKIE_NS
}
