// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What the ends say about a device: what it can do, what is to be done with it, what came of that.
//!
//! ```text
//!   REQUEST  read, write, ...     ---->
//!   <----  (bytes) it has gone well
//!   <----  DONE    several have gone well
//!   <----  REPLY   how it ended
//!   <----  NEWS    it has another capacity
//! ```
//!
//! Few bytes go with the messages. More the target reads or writes itself, by a key that the request
//! names, which is for those bytes, for that one way, and ends before the request does.
//!
//! That a request has gone well is told by its number alone, as the completion data of a message that is
//! the bytes that were read, or empty; or of the write by which the target puts them. So an answer is one
//! packet where the bytes are. Of several that have gone well at once the numbers go in one message, unless
//! an initiator waits for nothing else.
//!
//! Heads have one length each, so that what follows lands in memory of its own. The number by which
//! the initiator knows a request is only repeated by the target, which finds nothing by it.

use super::{
    Broken,
    Geometry,
    NoRoom,
    Reader,
    Writer,
    HEAD, //
};

/// First byte of an initiator's data when it connects for a device: the target needs more room then.
pub const WANTED: u8 = 1;
/// Requests of a connection that the initiator has on their way, at most.
pub const DEPTH: u32 = 32;
/// Bytes of one request, at most.
pub const LEN_MAX: u32 = 128 << 10;
/// Bytes that go with a message, at most.
pub const INLINE_MAX: u32 = 4096;
/// Bytes of a request's head.
pub const REQUEST: usize = 48;
/// Bytes of an answer that has a head.
pub const REPLY: usize = 16;

const KIND_REQUEST: u8 = 5;
const KIND_REPLY: u8 = 6;
const KIND_NEWS: u8 = 7;
const KIND_DONE: u8 = 8;

/// Requests of which one message says that they have gone well, at most.
pub const DONE_MAX: usize = 14;
/// Bytes of that message, at most.
pub const DONE: usize = HEAD + 4 * DONE_MAX;

/// What a device is, and can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// It has a cache that is lost with its power, unless it is flushed.
    pub cache: bool,
    /// Single writes can go past it.
    pub fua: bool,
    /// It turns.
    pub rotational: bool,
    /// Bytes that it writes at once.
    pub physical: u32,
    /// Bytes that it likes to be asked for at least; 0: nothing said.
    pub io_min: u32,
    /// Bytes that it likes best; 0: nothing said.
    pub io_opt: u32,
    /// Bytes that are discarded at once, at most; 0: none.
    pub discard: u32,
    /// In multiples of so many bytes.
    pub granularity: u32,
    /// Bytes that are zeroed at once, at most; 0: none.
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
            // What this end does, which the other has to know.
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

    /// Whether there can be such a device with blocks of `1 << block_shift` bytes.
    ///
    /// # Errors
    ///
    /// [`Broken::Geometry`].
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

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Bytes are read.
    Read = 0,
    /// Bytes are written.
    Write = 1,
    /// What is in the cache is written.
    Flush = 2,
    /// What is in the bytes is of no meaning any more.
    Discard = 3,
    /// The bytes become zero.
    Zeroes = 4,
}

impl Op {
    /// That of a number.
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

    /// Whether the bytes themselves go from one end to the other.
    pub fn moves(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether it changes what the device has.
    pub fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Discard | Self::Zeroes)
    }
}

/// It is not done before it is past the cache. Of writes.
pub const PAST_CACHE: u8 = 1;
/// Zeroes take room. Of zeroes.
pub const KEEP_ROOM: u8 = 2;

/// How the bytes of a request go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// With the message, or there are none.
    Message,
    /// The target fetches or puts them by this key.
    Key {
        /// The key.
        key: u64,
        /// Where it begins.
        addr: u64,
    },
}

const CARRY_MESSAGE: u8 = 0;
const CARRY_KEY: u8 = 1;

/// What an initiator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What is to be done.
    pub op: Op,
    /// [`PAST_CACHE`], [`KEEP_ROOM`].
    pub flags: u8,
    /// What the initiator knows it by.
    pub number: u32,
    /// First byte of the device.
    pub pos: u64,
    /// Bytes.
    pub len: u32,
    /// How they go.
    pub carry: Carry,
    /// The initiator waits for nothing else.
    pub alone: bool,
}

impl Request {
    /// Its head. What goes with it follows.
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
        // It has room for exactly these.
        let _ = fill(&mut head);
        head
    }

    /// Reads what a peer sent: a message of `len` bytes that begins with `head`.
    ///
    /// # Errors
    ///
    /// It is none, or what follows is not as much as it says.
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

    /// Bytes that follow the head.
    pub fn behind(&self) -> u32 {
        match (self.op, self.carry) {
            (Op::Write, Carry::Message) => self.len,
            _ => 0,
        }
    }

    /// Whether an initiator that keeps to the rules may ask that of a device of this kind.
    /// Where the device ends is another question ([`Request::inside`]), for that may change.
    ///
    /// # Errors
    ///
    /// [`Broken::Message`]: it may not.
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

    /// Whether it is of bytes of a device that has `capacity`.
    pub fn inside(&self, capacity: u64) -> bool {
        self.pos
            .checked_add(self.len.into())
            .is_some_and(|end| end <= capacity)
    }
}

/// What a target says in a message with a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// A request has ended.
    Reply {
        /// What the initiator knows it by.
        number: u32,
        /// 0, or an errno.
        status: u32,
    },
    /// The device has so many bytes now.
    News(u64),
}

impl Said {
    /// The message.
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
        // It has room for exactly these.
        let _ = fill(&mut head);
        head
    }

    /// Reads what a peer sent: a message of `len` bytes that begins with `head`.
    ///
    /// # Errors
    ///
    /// It is none.
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

/// Says that requests have gone well: at most [`DONE_MAX`]. How many bytes that has.
///
/// # Errors
///
/// There are more.
pub fn write_done(to: &mut [u8; DONE], numbers: &[u32]) -> Result<usize, NoRoom> {
    let mut writer = Writer::new(to, KIND_DONE)?;
    for number in numbers {
        writer.put(&number.to_le_bytes())?;
    }
    Ok(writer.at)
}

/// Reads such a message: the numbers.
///
/// # Errors
///
/// It is none.
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

/// `EMEDIUMTYPE`: what a target answers who has connected for memory and asks for a device.
pub const OTHER_KIND: u32 = 124;

/// A UUID, as its text in small letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uuid([u8; 36]);

impl Uuid {
    /// Checks a text.
    ///
    /// # Errors
    ///
    /// [`Broken::Name`].
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

    /// The text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// What a device export is known by: the same whenever the same path is exported under the same name,
/// with the same UUID if it has one, for its contents outlive the export.
pub fn identity(name: &[u8], path: &[u8], uuid: Option<&Uuid>) -> u64 {
    let uuid = uuid.map_or("", Uuid::as_str).as_bytes();
    // Only the last may have the sign between them.
    let parts = [name, b"\n", uuid, b"\n", path];
    hash(parts.into_iter().flatten())
}

/// FNV-1a: it need not be hard to find, only seldom the same.
pub(super) fn hash<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
