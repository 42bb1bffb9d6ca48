// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between two `kfi` processes.
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
//! | 14–15 | data messages that may be outstanding in one direction |
//!
//! If a request is refused, the private data is the reason as text. If it is accepted, there is
//! none.
//!
//! # Messages
//!
//! An endpoint has one queue of receives, so every receive must fit any message. Both sides post
//! receives of one size: the larger of a control message and the largest data message. Each side
//! posts as many as data messages may be outstanding, and [`WINDOW`] more for control messages. So
//! a message never waits for a receive.
//!
//! Control messages ([`Msg`]) carry [`CTL_DATA`] as completion data, which distinguishes them from
//! data messages. They are 64 bytes: kind, status (a positive errno, or 0) and seven numbers,
//! little endian. Each [`Kind`] describes its numbers. Bulk data moves by one-sided operations;
//! only the tests of messages have data messages.

/// Bytes of a control message.
pub const MSG_SIZE: usize = 64;
/// Number of control messages that may be outstanding in one direction.
pub const WINDOW: usize = 2;
/// Completion data of control messages.
pub const CTL_DATA: u64 = 0x4b46;
/// Name and version of the protocol.
const MAGIC: [u8; 4] = *b"KFI\x01";
/// Default port.
pub const PORT: u16 = 7471;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `kfi ping` to `kfi serve`.
    Ping,
    /// `kfi put` and `kfi get` to `kfi export`.
    File,
    /// The two nodes of the demo.
    Demo,
}

/// The private data of a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The purpose of the connection.
    pub service: Service,
    /// Data messages of the connection, if any.
    pub shape: Shape,
}

/// Sizes and number of the data messages of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Bytes of the largest data message.
    pub bytes: usize,
    /// Number of data messages that may be outstanding in one direction.
    pub window: usize,
}

impl Hello {
    /// Encodes the hello. Numbers too large for their fields are reduced to the maximum.
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

    /// Decodes a hello; `None` if it is invalid. A transport may pad private data with zeros.
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

/// Kind of a control message. Each kind describes the numbers `n` of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Ping: the client requests a test. n: operation (0 send, 1 write, 2 read), bandwidth (0, 1),
    /// bytes, operations, verify (0, 1), window. Answer: [`Kind::Ready`].
    Test = 1,
    /// Ping: the server is ready. n: address and key of its memory.
    Ready = 2,
    /// Ping: the server took messages, and has posted as many receives. n: count.
    Credit = 3,
    /// Ping: the client has finished the test. n: 1 if it was the client's last test. Answer: the
    /// same kind; n: messages received, messages with wrong data.
    Done = 4,
    /// File: the client requests a get. Answer: [`Kind::Offer`].
    Get = 16,
    /// File: the client requests a put. n: bytes, durable (0, 1). Answer: [`Kind::Offer`].
    Put = 17,
    /// File: the server's offer. n: bytes, bytes of a segment, durable (0, 1): the client commits each
    /// segment before it releases the segment.
    Offer = 18,
    /// File: the client requests a segment. n: its index. Answer: [`Kind::Grant`].
    Want = 19,
    /// File: the key of a segment. n: index, bytes, address, key.
    Grant = 20,
    /// File: the client has finished a segment. n: index. Answer: the same kind, after the key was
    /// revoked.
    Release = 21,
    /// File: end of a transfer. n: bytes, then the SHA-256 in 4 words, of the content that the
    /// client read or wrote. Answer: for a get the same kind, of the exported content; for a put
    /// [`Kind::Status`].
    Digest = 22,
    /// Any service: the outcome of a request, in the status.
    Status = 23,
    /// Demo: node 1 reports a step. n: depends on the step.
    Step = 32,
    /// Demo: node 2 has finished the step. n: depends on the step.
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
    /// Kind of the message.
    pub kind: Kind,
    /// 0, or a positive errno.
    pub status: u32,
    /// Numbers, whose meaning depends on the kind.
    pub n: [u64; 7],
}

impl Msg {
    /// Makes a message with up to seven numbers; further numbers are dropped.
    pub fn new(kind: Kind, numbers: &[u64]) -> Self {
        let mut n = [0; 7];
        for (to, from) in n.iter_mut().zip(numbers) {
            *to = *from;
        }
        Self { kind, status: 0, n }
    }

    /// Makes an answer that reports an error.
    pub fn failed(kind: Kind, errno: kfabric::Errno) -> Self {
        Self {
            status: u32::try_from(errno.0).unwrap_or(5),
            ..Self::new(kind, &[])
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; MSG_SIZE] {
        let mut out = [0; MSG_SIZE];
        out[..4].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[4..8].copy_from_slice(&self.status.to_le_bytes());
        for (to, n) in out[8..].chunks_exact_mut(8).zip(self.n) {
            to.copy_from_slice(&n.to_le_bytes());
        }
        out
    }

    /// Decodes a message; `None` for an unknown kind or another length.
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
    fn msg_encoded_and_decoded_is_equal() {
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
    fn hello_padded_is_read_and_other_versions_are_refused() {
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
