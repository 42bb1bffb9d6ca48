// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages of a block-backed disk: limits, requests, completions.
//!
//! ```text
//!   REQUEST  read, write, ...     ---->
//!   <----  (data) success of one request
//!   <----  DONE    success of several requests
//!   <----  REPLY   status of one request
//!   <----  NEWS    new capacity
//! ```
//!
//! Up to [`INLINE_MAX`] bytes travel with the messages. Longer data is read or written by the
//! target with RMA, through a key in the request. That key covers only the request's bytes in one
//! direction, and is revoked before the request completes.
//!
//! The success of one request is reported by the request's number alone, as remote completion data.
//! The data belongs to the message that carries the bytes read, to an empty message, or to the
//! target's RMA write. So a successful read takes one packet. If several requests have succeeded at
//! once, one DONE message carries their numbers, unless an initiator waits for a single request.
//!
//! Each kind of head has one fixed length, so that the bytes after the head land in a buffer of
//! their own. The target only echoes a request's number and looks nothing up by it.

use super::{
    Broken,
    Geometry,
    NoRoom,
    Reader,
    Writer,
    HEAD, //
};

/// First byte of the initiator's connection data for a block-backed disk, which needs larger
/// message buffers at the target.
pub const WANTED: u8 = 1;
/// Maximum number of requests in flight on a connection.
pub const DEPTH: u32 = 32;
/// Maximum size of one request in bytes.
pub const LEN_MAX: u32 = 128 << 10;
/// Maximum number of data bytes in a message.
pub const INLINE_MAX: u32 = 4096;
/// Size of a REQUEST head in bytes.
pub const REQUEST: usize = 48;
/// Size of a REPLY or NEWS message in bytes.
pub const REPLY: usize = 16;

const KIND_REQUEST: u8 = 5;
const KIND_REPLY: u8 = 6;
const KIND_NEWS: u8 = 7;
const KIND_DONE: u8 = 8;

/// Maximum number of requests that one DONE message completes.
pub const DONE_MAX: usize = 14;
/// Maximum size of a DONE message in bytes.
pub const DONE: usize = HEAD + 4 * DONE_MAX;

/// Properties and limits of a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The device has a volatile write cache.
    pub cache: bool,
    /// The device supports forced unit access (FUA) writes.
    pub fua: bool,
    /// The device is rotational.
    pub rotational: bool,
    /// Physical block size in bytes.
    pub physical: u32,
    /// Minimum I/O size in bytes; 0 if unknown.
    pub io_min: u32,
    /// Optimal I/O size in bytes; 0 if unknown.
    pub io_opt: u32,
    /// Maximum bytes of one discard; 0 if unsupported.
    pub discard: u32,
    /// Discard granularity in bytes.
    pub granularity: u32,
    /// Maximum bytes of one write-zeroes; 0 if unsupported.
    pub zeroes: u32,
}

const CACHE: u32 = 1;
const FUA: u32 = 2;
const ROTATIONAL: u32 = 4;

impl Limits {
    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), NoRoom> {
        let flag = |set: bool, bit: u32| if set { bit } else { 0 };
        let flags =
            flag(self.cache, CACHE) | flag(self.fua, FUA) | flag(self.rotational, ROTATIONAL);
        for number in [
            flags,
            self.physical,
            self.io_min,
            self.io_opt,
            self.discard,
            self.granularity,
            self.zeroes,
            // Constants of the protocol, which both ends must share.
            DEPTH,
            LEN_MAX,
            INLINE_MAX,
        ] {
            writer.put(&number.to_le_bytes())?;
        }
        Ok(())
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Broken> {
        let flags = reader.u32()?;
        let limits = Self {
            cache: flags & CACHE != 0,
            fua: flags & FUA != 0,
            rotational: flags & ROTATIONAL != 0,
            physical: reader.u32()?,
            io_min: reader.u32()?,
            io_opt: reader.u32()?,
            discard: reader.u32()?,
            granularity: reader.u32()?,
            zeroes: reader.u32()?,
        };
        let same = [reader.u32()?, reader.u32()?, reader.u32()?] == [DEPTH, LEN_MAX, INLINE_MAX];
        if flags & !(CACHE | FUA | ROTATIONAL) != 0 || !same {
            return Err(Broken::Message);
        }
        Ok(limits)
    }

    /// Checks whether a device with blocks of `1 << block_shift` bytes can have these limits.
    ///
    /// # Errors
    ///
    /// - [`Broken::Geometry`] if it cannot.
    pub fn check(&self, block_shift: u32) -> Result<(), Broken> {
        let block = 1u32.checked_shl(block_shift).ok_or(Broken::Geometry)?;
        let whole = |bytes: u32| bytes & block.wrapping_sub(1) == 0;
        let sound = self.physical.is_power_of_two()
            && self.physical >= block
            && self.physical <= 1 << 20
            && [self.io_min, self.io_opt, self.discard, self.zeroes]
                .iter()
                .all(|bytes| whole(*bytes))
            && (self.discard == 0 || (self.granularity != 0 && whole(self.granularity)));
        if sound {
            Ok(())
        } else {
            Err(Broken::Geometry)
        }
    }
}

/// Operation of a request. The values are those of `enum kfblk_op` in `block.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Read data.
    Read = 0,
    /// Operation of a request. kfblk's `block.c` uses the same numbers.
    Write = 1,
    /// Write the cache to stable storage.
    Flush = 2,
    /// Discard blocks; their contents become undefined.
    Discard = 3,
    /// Write zeroes.
    Zeroes = 4,
}

impl Op {
    /// Returns the operation with this number.
    pub fn of(number: u8) -> Option<Self> {
        [
            Self::Read,
            Self::Write,
            Self::Flush,
            Self::Discard,
            Self::Zeroes,
        ]
        .into_iter()
        .find(|op| *op as u8 == number)
    }

    /// Returns whether data is transferred between initiator and target.
    pub fn moves(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Returns whether the operation changes the contents of the device.
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::Zeroes)
    }
}

/// Flag of [`Op::Write`]: complete only once the data is on stable storage (FUA).
pub const PAST_CACHE: u8 = 1;
/// Flag of [`Op::Zeroes`]: keep the blocks allocated.
pub const KEEP_ROOM: u8 = 2;

/// How the data of a request is transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// In the message, or the request has no data.
    Message,
    /// By RMA of the target through this key.
    Key {
        /// The key value.
        key: u64,
        /// The remote address of the first byte.
        addr: u64,
    },
}

const CARRY_MESSAGE: u8 = 0;
const CARRY_KEY: u8 = 1;

/// A request of the initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// [`PAST_CACHE`] or [`KEEP_ROOM`].
    pub flags: u8,
    /// The initiator's number of the request, which the target echoes.
    pub number: u32,
    /// First byte on the device.
    pub pos: u64,
    /// Length in bytes.
    pub len: u32,
    /// How the data is transferred.
    pub carry: Carry,
    /// The initiator waits for this request alone.
    pub alone: bool,
}

impl Request {
    /// Encodes the head. Inline data follows.
    pub fn write(&self) -> [u8; REQUEST] {
        let mut head = [0; REQUEST];
        let (carry, key, addr) = match self.carry {
            Carry::Message => (CARRY_MESSAGE, 0, 0),
            Carry::Key { key, addr } => (CARRY_KEY, key, addr),
        };
        let fill = |head: &mut [u8]| -> Result<(), NoRoom> {
            let mut writer = Writer::new(head, KIND_REQUEST)?;
            writer.put(&[self.op as u8, self.flags, carry, self.alone.into()])?;
            writer.put(&self.number.to_le_bytes())?;
            writer.put(&self.pos.to_le_bytes())?;
            writer.put(&u64::from(self.len).to_le_bytes())?;
            writer.put(&key.to_le_bytes())?;
            writer.put(&addr.to_le_bytes())
        };
        // Cannot fail: the fields add up to `REQUEST` bytes.
        let _ = fill(&mut head);
        head
    }

    /// Decodes a request that a peer sent: a message of `len` bytes that begins with `head`.
    ///
    /// # Errors
    ///
    /// - [`Broken`] if the head is invalid, or `len` is not the length that the head implies.
    pub fn read(head: &[u8; REQUEST], len: u64) -> Result<Self, Broken> {
        let (kind, mut reader) = Reader::new(head)?;
        if kind != KIND_REQUEST {
            return Err(Broken::Message);
        }
        let [op, flags, carry, alone] = reader.take()?;
        let op = Op::of(op).ok_or(Broken::Message)?;
        let number = reader.u32()?;
        let pos = reader.u64()?;
        let bytes = u32::try_from(reader.u64()?).map_err(|_| Broken::Message)?;
        let (key, addr) = (reader.u64()?, reader.u64()?);
        reader.end()?;
        let carry = match carry {
            CARRY_MESSAGE => Carry::Message,
            CARRY_KEY => Carry::Key { key, addr },
            _ => return Err(Broken::Message),
        };
        let request = Self {
            op,
            flags,
            number,
            pos,
            len: bytes,
            carry,
            alone: alone != 0,
        };
        let may = match op {
            Op::Write => PAST_CACHE,
            Op::Zeroes => KEEP_ROOM,
            _ => 0,
        };
        if flags & !may != 0 || alone > 1 || len != REQUEST as u64 + u64::from(request.behind()) {
            return Err(Broken::Message);
        }
        Ok(request)
    }

    /// Returns the number of bytes that follow the head.
    pub fn behind(&self) -> u32 {
        match (self.op, self.carry) {
            (Op::Write, Carry::Message) => self.len,
            _ => 0,
        }
    }

    /// Checks whether the protocol allows this request to a device with these limits.
    ///
    /// The end of the device is checked by [`Request::inside`], because the capacity may change.
    ///
    /// # Errors
    ///
    /// - [`Broken`] if the request is not allowed.
    pub fn check(&self, geometry: &Geometry, limits: &Limits) -> Result<(), Broken> {
        let part = 1u64
            .checked_shl(geometry.block_shift)
            .ok_or(Broken::Geometry)?
            .wrapping_sub(1);
        let most = match (self.op, self.carry) {
            (Op::Read | Op::Write, Carry::Message) => INLINE_MAX,
            (Op::Read | Op::Write, Carry::Key { .. }) => LEN_MAX,
            (Op::Flush, Carry::Message) => 0,
            (Op::Discard, Carry::Message) => limits.discard,
            (Op::Zeroes, Carry::Message) => limits.zeroes,
            (_, Carry::Key { .. }) => return Err(Broken::Message),
        };
        let some = (self.op == Op::Flush) == (self.len == 0);
        let whole = (self.pos | u64::from(self.len)) & part == 0;
        if some && whole && self.len <= most && (self.op != Op::Flush || self.pos == 0) {
            Ok(())
        } else {
            Err(Broken::Message)
        }
    }

    /// Returns whether the request ends within `capacity` bytes.
    pub fn inside(&self, capacity: u64) -> bool {
        self.pos
            .checked_add(self.len.into())
            .is_some_and(|end| end <= capacity)
    }
}

/// A message of the target that has a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A request is complete.
    Reply {
        /// The initiator's number of the request.
        number: u32,
        /// 0, or an errno.
        status: u32,
    },
    /// The new capacity of the device in bytes.
    News(u64),
}

impl Said {
    /// Encodes the message.
    pub fn write(&self) -> [u8; REPLY] {
        let mut head = [0; REPLY];
        let fill = |head: &mut [u8]| -> Result<(), NoRoom> {
            match self {
                Self::Reply { number, status } => {
                    let mut writer = Writer::new(head, KIND_REPLY)?;
                    writer.put(&number.to_le_bytes())?;
                    writer.put(&status.to_le_bytes())
                }
                Self::News(capacity) => {
                    let mut writer = Writer::new(head, KIND_NEWS)?;
                    writer.put(&capacity.to_le_bytes())
                }
            }
        };
        // Cannot fail: the fields take at most `REPLY` bytes.
        let _ = fill(&mut head);
        head
    }

    /// Decodes a message that a peer sent: `len` bytes that begin with `head`.
    ///
    /// # Errors
    ///
    /// - [`Broken`] if the message is invalid.
    pub fn read(head: &[u8; REPLY], len: u64) -> Result<Self, Broken> {
        let (kind, mut reader) = Reader::new(head)?;
        let said = match kind {
            KIND_REPLY => Self::Reply {
                number: reader.u32()?,
                status: reader.u32()?,
            },
            KIND_NEWS => Self::News(reader.u64()?),
            _ => return Err(Broken::Message),
        };
        reader.end()?;
        if len != REPLY as u64 {
            return Err(Broken::Message);
        }
        Ok(said)
    }
}

/// Encodes a DONE message for at most [`DONE_MAX`] requests and returns its size in bytes.
///
/// # Errors
///
/// - [`NoRoom`] if there are more than [`DONE_MAX`] numbers.
pub fn write_done(to: &mut [u8; DONE], numbers: &[u32]) -> Result<usize, NoRoom> {
    let mut writer = Writer::new(to, KIND_DONE)?;
    for number in numbers {
        writer.put(&number.to_le_bytes())?;
    }
    Ok(writer.at)
}

/// Decodes a DONE message and returns the numbers of the completed requests.
///
/// # Errors
///
/// - [`Broken`] if the message is invalid.
pub fn read_done(from: &[u8]) -> Result<impl Iterator<Item = u32> + '_, Broken> {
    let (kind, reader) = Reader::new(from)?;
    let numbers = reader.0.chunks_exact(4);
    let sound = (1..=DONE_MAX).contains(&numbers.len()) && numbers.remainder().is_empty();
    if kind != KIND_DONE || !sound {
        return Err(Broken::Message);
    }
    let number = |bytes: &[u8]| bytes.first_chunk().copied().map(u32::from_le_bytes);
    Ok(numbers.filter_map(number))
}

/// `EMEDIUMTYPE`: the target's answer if the connection data was for a memory-backed disk and the
/// subsystem is block-backed.
pub const OTHER_KIND: u32 = 124;

/// A UUID, as text in small letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid([u8; 36]);

impl Uuid {
    /// Checks `text` and copies it.
    ///
    /// # Errors
    ///
    /// - [`Broken::Name`] if `text` is not a UUID.
    pub fn new(text: &[u8]) -> Result<Self, Broken> {
        let good = |(at, c): (usize, &u8)| match at {
            8 | 13 | 18 | 23 => *c == b'-',
            _ => c.is_ascii_hexdigit(),
        };
        let mut uuid: [u8; 36] = text.try_into().map_err(|_| Broken::Name)?;
        if !text.iter().enumerate().all(good) {
            return Err(Broken::Name);
        }
        uuid.make_ascii_lowercase();
        Ok(Self(uuid))
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Returns the identity of a block-backed export.
///
/// The identity depends only on subsystem name, path and UUID, because the contents of a device
/// outlive the export.
pub fn identity(name: &[u8], path: &[u8], uuid: Option<&Uuid>) -> u64 {
    let uuid = uuid.map_or("", Uuid::as_str).as_bytes();
    // Only the path, which is the last part, may contain a newline.
    let parts = [name, b"\n", uuid, b"\n", path];
    hash(parts.into_iter().flatten())
}

/// FNV-1a. Collisions must be rare, but not hard to construct.
pub(super) fn hash<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
