// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two `kfi` processes say to each other.
//!
//! # Connecting
//!
//! The private data of a connection request is a [`Hello`]: 16 bytes, little endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0–3 | `KFI\x01`: name and version of the protocol |
//! | 4–7 | service: 1 ping, 2 file, 3 demo |
//! | 8–13 | bytes of the largest data message, or 0 |
//! | 14–15 | data messages that may be under way in one direction |
//!
//! A refusal's private data is the reason as text; an acceptance has none.
//!
//! # Messages
//!
//! An endpoint has one queue of receives, so every receive must take any message: both sides post
//! them of one size, the larger of a control message's and the largest data message's. They post
//! as many as there may be data messages under way, and [`WINDOW`] more for control messages, so
//! that no message ever waits for a receive.
//!
//! Control messages ([`Msg`]) carry [`CTL_DATA`] as completion data, which tells them from data
//! messages. They are 64 bytes: kind, status (a positive errno, or 0) and seven numbers, little
//! endian. What the numbers mean stands with each kind. Bulk data moves by one-sided operations;
//! only the tests of messages have data messages.

/// Bytes of a control message.
pub const MSG_SIZE: usize = 64;
/// Control messages that may be under way in one direction.
pub const WINDOW: usize = 2;
/// Completion data of control messages.
pub const CTL_DATA: u64 = 0x4b46;
/// Name and version.
const MAGIC: [u8; 4] = *b"KFI\x01";
/// Default port.
pub const PORT: u16 = 7471;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `kfi ping` to `kfi serve`.
    Ping,
    /// `kfi put` and `kfi get` to `kfi export`.
    File,
    /// The two nodes of the demo.
    Demo,
}

/// First words, as private data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// What the connection is for.
    pub service: Service,
    /// Data messages, if there will be any.
    pub shape: Shape,
}

/// Data messages of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the largest.
    pub bytes: usize,
    /// How many may be under way in one direction.
    pub window: usize,
}

impl Hello {
    /// As bytes. Sizes beyond what the fields hold are cut to that.
    pub fn encode(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..4].copy_from_slice(&MAGIC);
        let service: u32 = match self.service {
            Service::Ping => 1,
            Service::File => 2,
            Service::Demo => 3,
        };
        out[4..8].copy_from_slice(&service.to_le_bytes());
        let bytes = (self.shape.bytes as u64).min((1 << 48) - 1);
        let window = u16::try_from(self.shape.window).unwrap_or(u16::MAX);
        out[8..14].copy_from_slice(&bytes.to_le_bytes()[..6]);
        out[14..].copy_from_slice(&window.to_le_bytes());
        out
    }

    /// From bytes. A transport may pad private data with zeros.
    pub fn decode(data: &[u8]) -> Option<Self> {
        let head: [u8; 16] = data.get(..16)?.try_into().ok()?;
        if head[..4] != MAGIC {
            return None;
        }
        let service = match u32::from_le_bytes([head[4], head[5], head[6], head[7]]) {
            1 => Service::Ping,
            2 => Service::File,
            3 => Service::Demo,
            _ => return None,
        };
        let bytes = head[8..14]
            .iter()
            .rev()
            .fold(0, |sum, b| sum << 8 | u64::from(*b));
        let window = u16::from_le_bytes([head[14], head[15]]);
        let shape = Shape {
            bytes: usize::try_from(bytes).ok()?,
            window: usize::from(window),
        };
        Some(Self { service, shape })
    }
}

/// Kind of a control message, and what its numbers `n` mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Ping: client asks for a test. n: operation (0 send, 1 write, 2 read), bandwidth (0, 1), bytes,
    /// operations, verify (0, 1), window. Answer: [`Kind::Ready`].
    Test = 1,
    /// Ping: server is ready. n: address and key of its memory.
    Ready = 2,
    /// Ping: the server took messages and has room for as many more. n: count.
    Credit = 3,
    /// Ping: the test is over, says the client; n: 1 if it was its last. Answer: the same; n: messages
    /// that came, messages that were wrong.
    Done = 4,
    /// File: client wants to get. Answer: [`Kind::Offer`].
    Get = 16,
    /// File: client wants to put. n: bytes. Answer: [`Kind::Offer`].
    Put = 17,
    /// File: what there is. n: bytes, bytes of a segment.
    Offer = 18,
    /// File: client wants a segment. n: its index. Answer: [`Kind::Grant`].
    Want = 19,
    /// File: a segment's key. n: index, bytes, address, key.
    Grant = 20,
    /// File: client is through with a segment. n: index. Answer: the same, once the key is revoked.
    Release = 21,
    /// File: end of a transfer. n: bytes, then SHA-256 in 4 words. From the client, of what it got
    /// or put. Answer: after a get the same of what was exported, after a put [`Kind::Status`].
    Digest = 22,
    /// Any: how something went, in the status.
    Status = 23,
    /// Demo: node 1 tells of a step. n: as the demo says.
    Step = 32,
    /// Demo: node 2 is through with it. n: as the demo says.
    StepDone = 33,
}

impl Kind {
    fn from_u32(kind: u32) -> Option<Self> {
        const ALL: [Kind; 14] = [
            Kind::Test,
            Kind::Ready,
            Kind::Credit,
            Kind::Done,
            Kind::Get,
            Kind::Put,
            Kind::Offer,
            Kind::Want,
            Kind::Grant,
            Kind::Release,
            Kind::Digest,
            Kind::Status,
            Kind::Step,
            Kind::StepDone,
        ];
        ALL.into_iter().find(|k| *k as u32 == kind)
    }
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msg {
    /// What it is.
    pub kind: Kind,
    /// 0, or a positive errno.
    pub status: u32,
    /// Its numbers.
    pub n: [u64; 7],
}

impl Msg {
    /// A message with up to seven numbers; more are dropped.
    pub fn new(kind: Kind, numbers: &[u64]) -> Self {
        let mut n = [0; 7];
        for (to, from) in n.iter_mut().zip(numbers) {
            *to = *from;
        }
        Self { kind, status: 0, n }
    }

    /// A bad answer.
    pub fn failed(kind: Kind, errno: kfabric::Errno) -> Self {
        Self {
            status: u32::try_from(errno.0).unwrap_or(5),
            ..Self::new(kind, &[])
        }
    }

    /// As bytes.
    pub fn encode(&self) -> [u8; MSG_SIZE] {
        let mut out = [0; MSG_SIZE];
        out[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[4..8].copy_from_slice(&self.status.to_le_bytes());
        for (to, n) in out[8..].chunks_exact_mut(8).zip(self.n) {
            to.copy_from_slice(&n.to_le_bytes());
        }
        out
    }

    /// From bytes; `None` for an unknown kind or another length.
    pub fn decode(data: &[u8]) -> Option<Self> {
        let data: &[u8; MSG_SIZE] = data.try_into().ok()?;
        let u32_at =
            |at: usize| u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
        let mut n = [0; 7];
        for (to, from) in n.iter_mut().zip(data[8..].chunks_exact(8)) {
            *to = from.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
        }
        Some(Self {
            kind: Kind::from_u32(u32_at(0))?,
            status: u32_at(4),
            n,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_went() {
        let msg = Msg {
            status: 13,
            ..Msg::new(
                Kind::Grant,
                &[1, u64::MAX, 3, 0x0123_4567_89ab_cdef, 5, 6, 7],
            )
        };
        assert_eq!(Msg::decode(&msg.encode()), Some(msg));
        assert_eq!(Msg::decode(&[0; 63]), None);
        assert_eq!(Msg::decode(&[0xff; 64]), None);
    }

    #[test]
    fn hello_survives_padding_and_refuses_others() {
        let shape = Shape {
            bytes: 1 << 40,
            window: 64,
        };
        let hello = Hello {
            service: Service::File,
            shape,
        };
        let mut data = hello.encode().to_vec();
        data.resize(56, 0);
        assert_eq!(Hello::decode(&data), Some(hello));
        data[3] = 2;
        assert_eq!(Hello::decode(&data), None);
        assert_eq!(Hello::decode(&[]), None);
    }
}
