// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Wire protocol of kfblk, and the mapping from bytes of a disk to keys.
//!
//! On each connection the initiator sends one question at a time, and the target answers:
//!
//! ```text
//!   HELLO  initiator, subsystem  ---->
//!   <----  WELCOME  geometry, or an errno
//!   KEYS   first chunk           ---->
//!   <----  TABLE    up to [`TABLE_MAX`] keys
//! ```
//!
//! A memory-backed disk consists of chunks with one key each; no request crosses the border of two
//! chunks. The messages of a block-backed disk are in [`device`]. All numbers are little endian.
//! This module checks every field of a peer's message before a caller sees it.

pub mod cache;
pub mod device;
pub mod dirty;
pub mod share;

use device::Limits;

/// Magic number: the first bytes of each message.
const MAGIC: u32 = 0x314b_424b;
/// The protocol version.
pub const VERSION: u8 = 4;
/// Size of a name field in bytes; the bytes after the name are zero.
pub const NAME_MAX: usize = 64;
/// Size of a session's identifier in bytes.
pub const SESSION: usize = 16;
/// Maximum number of keys in one TABLE message.
pub const TABLE_MAX: usize = 64;
/// Size of the longest message in bytes.
pub const MESSAGE_MAX: usize = HEAD + 8 + TABLE_MAX * ENTRY;
/// Size of the longest question in bytes.
pub const QUESTION_MAX: usize = HEAD + 8 + SESSION + 8 + 2 * NAME_MAX;
/// Maximum number of connections of a session.
pub const QUEUES_MAX: u16 = 16;
/// Maximum number of keys of a disk.
pub const KEYS_MAX: u64 = 1 << 20;

/// The disk must not be written to.
pub const READ_ONLY: u32 = 1;
/// The disk is block-backed; its [`Limits`] follow.
const DEVICE: u32 = 2;
/// The disk is persistent memory: a write that has completed is durable only after a commit, or if it
/// asked for that. Only an initiator with [`Hello::commits`] gets such a disk.
pub const PERSISTENT: u32 = 4;

/// Bit of a HELLO's third byte of the head: [`Hello::commits`]. Earlier versions of this module send
/// zero and do not read the byte.
const COMMITS: u8 = 1;
/// Bit of the same byte: [`Hello::resumes`].
const RESUMES: u8 = 2;
/// Place of that byte.
const ABILITIES: usize = 6;

const HEAD: usize = 8;
const ENTRY: usize = 16;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const KEYS: u8 = 3;
const TABLE: u8 = 4;

/// Why a message is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Too short, not of this protocol, or not of an expected kind.
    Message,
    /// Another protocol version, which is given.
    Version(u8),
    /// An invalid name.
    Name,
    /// An impossible geometry.
    Geometry,
}

/// The buffer is too short for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// A name: 1 to 63 printable ASCII characters, none of them a slash or a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name([u8; NAME_MAX]);

impl Name {
    /// Checks `text` and copies it.
    ///
    /// # Errors
    ///
    /// - [`Broken::Name`] if `text` is not a valid name.
    pub fn new(text: &[u8]) -> Result<Self, Broken> {
        let good = |c: &u8| c.is_ascii_graphic() && *c != b'/';
        if text.is_empty() || text.len() >= NAME_MAX || !text.iter().all(good) {
            return Err(Broken::Name);
        }
        let mut name = [0; NAME_MAX];
        for (to, from) in name.iter_mut().zip(text) {
            *to = *from;
        }
        Ok(Self(name))
    }

    fn padded(bytes: &[u8; NAME_MAX]) -> Result<Self, Broken> {
        let end = bytes.iter().position(|c| *c == 0).ok_or(Broken::Name)?;
        let (text, rest) = bytes.split_at_checked(end).ok_or(Broken::Name)?;
        if rest.iter().any(|c| *c != 0) {
            return Err(Broken::Name);
        }
        Self::new(text)
    }

    /// Returns the text, followed by at least one zero byte.
    pub fn bytes(&self) -> &[u8; NAME_MAX] {
        &self.0
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|c| *c == 0).unwrap_or(NAME_MAX);
        let text = self.0.get(..end).unwrap_or_default();
        core::str::from_utf8(text).unwrap_or_default()
    }

    /// Returns a hash of the name; two names rarely have the same hash.
    pub fn number(&self) -> u64 {
        device::hash(self.0.iter())
    }
}

/// The initiator's first question on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The number of this connection in its session, from 0 on.
    pub queue: u16,
    /// The number of connections of the session.
    pub queues: u16,
    /// How often the session has connected. Connections of an earlier epoch are closed.
    pub epoch: u32,
    /// Identifies the session: one disk of the initiator, from its creation to its removal.
    pub session: [u8; SESSION],
    /// [`Name::number`] of the initiator's name for the disk. An initiator has one disk of a name
    /// at a time, so earlier sessions of the same name are over.
    pub disk: u64,
    /// The initiator's name.
    pub client: Name,
    /// The subsystem that the initiator wants.
    pub subsystem: Name,
    /// The initiator commits writes to persistent memory. Another one would regard each completed
    /// write as durable.
    pub commits: bool,
    /// The disk reconnects: it has requests, and marks of writes, from before.
    pub resumes: bool,
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The first question on a connection.
    Hello(Hello),
    /// Asks for the keys of this chunk and those that follow.
    Keys(u32),
}

/// Size and layout of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Capacity in bytes.
    pub capacity: u64,
    /// Base-2 logarithm of the block size in bytes.
    pub block_shift: u32,
    /// Base-2 logarithm of the chunk size in bytes.
    pub chunk_shift: u32,
}

/// The answer to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// 0, or the errno of the refusal.
    pub status: u32,
    /// [`READ_ONLY`] and [`PERSISTENT`], or nothing.
    pub flags: u32,
    /// Geometry of the disk; without meaning in a refusal.
    pub geometry: Geometry,
    /// Limits of the block device; `None` for a memory-backed disk.
    pub device: Option<Limits>,
    /// Identifies the contents that the initiator was admitted to. The number changes whenever the
    /// contents are replaced, and whenever the initiator was fenced.
    pub instance: u64,
    /// Identifies the target's run; the number changes whenever the target starts.
    pub boot: u64,
    /// Of a block-backed disk: the device's sequence number in the target's kernel (`diskseq`).
    /// Numbers of two runs of the target are not comparable.
    pub seq: u64,
}

/// A key, and the remote address of the first byte that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key value.
    pub key: u64,
    /// The remote address.
    pub addr: u64,
}

/// Encodes a message.
struct Writer<'a> {
    to: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    fn new(to: &'a mut [u8], kind: u8) -> Result<Self, NoRoom> {
        let mut writer = Self { to, at: 0 };
        writer.put(&MAGIC.to_le_bytes())?;
        writer.put(&[kind, VERSION, 0, 0])?;
        Ok(writer)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = self.at.checked_add(bytes.len()).ok_or(NoRoom)?;
        let place = self.to.get_mut(self.at..end).ok_or(NoRoom)?;
        for (to, from) in place.iter_mut().zip(bytes) {
            *to = *from;
        }
        self.at = end;
        Ok(())
    }
}

/// Decodes a message.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the message's kind, and a reader of the bytes after the head.
    fn new(from: &'a [u8]) -> Result<(u8, Self), Broken> {
        let mut reader = Self(from);
        if reader.u32()? != MAGIC {
            return Err(Broken::Message);
        }
        let [kind, version, _, _] = reader.take()?;
        if version != VERSION {
            return Err(Broken::Version(version));
        }
        Ok((kind, reader))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Broken> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Broken::Message)?;
        self.0 = rest;
        Ok(*first)
    }

    fn u16(&mut self) -> Result<u16, Broken> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, Broken> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, Broken> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn end(&self) -> Result<(), Broken> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Broken::Message)
        }
    }
}

impl Question {
    /// Encodes the question and returns its size in bytes.
    ///
    /// # Errors
    ///
    /// - [`NoRoom`] if `to` is shorter than the message; [`QUESTION_MAX`] bytes always suffice.
    pub fn write(&self, to: &mut [u8]) -> Result<usize, NoRoom> {
        let mut writer;
        match self {
            Self::Hello(hello) => {
                writer = Writer::new(to, HELLO)?;
                writer.put(&hello.queue.to_le_bytes())?;
                writer.put(&hello.queues.to_le_bytes())?;
                writer.put(&hello.epoch.to_le_bytes())?;
                writer.put(&hello.session)?;
                writer.put(&hello.disk.to_le_bytes())?;
                writer.put(&hello.client.0)?;
                writer.put(&hello.subsystem.0)?;
                if let Some(abilities) = writer.to.get_mut(ABILITIES) {
                    *abilities = u8::from(hello.commits) * COMMITS;
                    *abilities |= u8::from(hello.resumes) * RESUMES;
                }
            }
            Self::Keys(first) => {
                writer = Writer::new(to, KEYS)?;
                writer.put(&first.to_le_bytes())?;
            }
        }
        Ok(writer.at)
    }

    /// Decodes a question that a peer sent.
    ///
    /// # Errors
    ///
    /// - [`Broken`] if the bytes are not a valid question.
    pub fn read(from: &[u8]) -> Result<Self, Broken> {
        let (kind, mut reader) = Reader::new(from)?;
        let question = match kind {
            HELLO => {
                let abilities = from.get(ABILITIES).copied().unwrap_or(0);
                let hello = Hello {
                    queue: reader.u16()?,
                    queues: reader.u16()?,
                    epoch: reader.u32()?,
                    session: reader.take()?,
                    disk: reader.u64()?,
                    client: Name::padded(&reader.take()?)?,
                    subsystem: Name::padded(&reader.take()?)?,
                    commits: abilities & COMMITS != 0,
                    resumes: abilities & RESUMES != 0,
                };
                if hello.queues > QUEUES_MAX || hello.queue >= hello.queues {
                    return Err(Broken::Message);
                }
                Self::Hello(hello)
            }
            KEYS => Self::Keys(reader.u32()?),
            _ => return Err(Broken::Message),
        };
        reader.end()?;
        Ok(question)
    }
}

impl Welcome {
    /// Returns a refusal with the errno `status`.
    pub fn refusal(status: u32) -> Self {
        Self {
            status,
            flags: 0,
            geometry: Geometry {
                capacity: 0,
                block_shift: 0,
                chunk_shift: 0,
            },
            device: None,
            instance: 0,
            boot: 0,
            seq: 0,
        }
    }

    /// Returns whether the export behind answer `now` is still the one that answered with `self`:
    /// the same contents with the same limits.
    ///
    /// The capacity of a block-backed disk may change, and its contents outlive the target. Once
    /// the target has started again, [`Welcome::seq`] does not identify the device any more; a
    /// device that has become smaller is then regarded as another one.
    pub fn is_still(&self, now: &Self) -> bool {
        let mut before = *self;
        if now.device.is_some() {
            let again = before.boot != now.boot;
            if again && now.geometry.capacity < before.geometry.capacity {
                return false;
            }
            before.geometry.capacity = now.geometry.capacity;
            before.boot = now.boot;
            if again {
                before.seq = now.seq;
            }
        }
        before == *now
    }

    /// Returns whether unflushed writes may be lost: the target has started again and the device
    /// has a volatile write cache.
    pub fn may_have_lost(&self, now: &Self) -> bool {
        self.boot != now.boot && self.device.is_some_and(|limits| limits.cache)
    }

    /// Encodes the answer and returns its size in bytes.
    ///
    /// # Errors
    ///
    /// - [`NoRoom`] if `to` is shorter than the message; [`MESSAGE_MAX`] bytes always suffice.
    pub fn write(&self, to: &mut [u8]) -> Result<usize, NoRoom> {
        let mut writer = Writer::new(to, WELCOME)?;
        let flags = match self.device {
            Some(_) => self.flags | DEVICE,
            None => self.flags & !DEVICE,
        };
        writer.put(&self.status.to_le_bytes())?;
        writer.put(&flags.to_le_bytes())?;
        writer.put(&self.geometry.capacity.to_le_bytes())?;
        writer.put(&self.geometry.block_shift.to_le_bytes())?;
        writer.put(&self.geometry.chunk_shift.to_le_bytes())?;
        writer.put(&self.instance.to_le_bytes())?;
        writer.put(&self.boot.to_le_bytes())?;
        writer.put(&self.seq.to_le_bytes())?;
        if let Some(limits) = &self.device {
            limits.write(&mut writer)?;
        }
        Ok(writer.at)
    }

    /// Decodes an answer that a peer sent. Unless the answer is a refusal, its geometry and limits
    /// have been checked.
    ///
    /// # Errors
    ///
    /// - [`Broken`] if the bytes are not a valid answer.
    pub fn read(from: &[u8]) -> Result<Self, Broken> {
        let (kind, mut reader) = Reader::new(from)?;
        if kind != WELCOME {
            return Err(Broken::Message);
        }
        let (status, flags) = (reader.u32()?, reader.u32()?);
        let both = DEVICE | PERSISTENT;
        if flags & !(READ_ONLY | both) != 0 || flags & both == both {
            return Err(Broken::Message);
        }
        let mut welcome = Self {
            status,
            flags: flags & !DEVICE,
            geometry: Geometry {
                capacity: reader.u64()?,
                block_shift: reader.u32()?,
                chunk_shift: reader.u32()?,
            },
            device: None,
            instance: reader.u64()?,
            boot: reader.u64()?,
            seq: reader.u64()?,
        };
        if flags & DEVICE != 0 {
            welcome.device = Some(Limits::read(&mut reader)?);
        }
        reader.end()?;
        if welcome.status == 0 {
            welcome.geometry.check()?;
            if let Some(limits) = &welcome.device {
                limits.check(welcome.geometry.block_shift)?;
            }
        }
        Ok(welcome)
    }
}

/// Encodes a TABLE message with the keys from chunk `first` on and returns its size in bytes.
///
/// # Errors
///
/// - [`NoRoom`] if there are more than [`TABLE_MAX`] keys, or `to` is too short; [`MESSAGE_MAX`]
///   bytes always suffice.
pub fn write_table(
    to: &mut [u8],
    first: u32,
    keys: impl ExactSizeIterator<Item = Entry>,
) -> Result<usize, NoRoom> {
    if keys.len() > TABLE_MAX {
        return Err(NoRoom);
    }
    let count = u32::try_from(keys.len()).map_err(|_| NoRoom)?;
    let mut writer = Writer::new(to, TABLE)?;
    writer.put(&first.to_le_bytes())?;
    writer.put(&count.to_le_bytes())?;
    for entry in keys {
        writer.put(&entry.key.to_le_bytes())?;
        writer.put(&entry.addr.to_le_bytes())?;
    }
    Ok(writer.at)
}

/// Decodes a TABLE message with the keys from chunk `first` on and passes each to `each`. Returns
/// the number of keys, which is at least 1 and at most `most`.
///
/// # Errors
///
/// - [`Broken::Message`] if the bytes are not a valid TABLE message, or the keys begin at another
///   chunk. `each` may have been called before.
pub fn read_table(
    from: &[u8],
    first: u32,
    most: u64,
    mut each: impl FnMut(Entry),
) -> Result<u32, Broken> {
    let (kind, mut reader) = Reader::new(from)?;
    if kind != TABLE || reader.u32()? != first {
        return Err(Broken::Message);
    }
    let count = reader.u32()?;
    if count == 0 || u64::from(count) > most.min(TABLE_MAX as u64) {
        return Err(Broken::Message);
    }
    for _ in 0..count {
        each(Entry {
            key: reader.u64()?,
            addr: reader.u64()?,
        });
    }
    reader.end()?;
    Ok(count)
}

impl Geometry {
    /// Checks whether a disk can have this geometry.
    ///
    /// # Errors
    ///
    /// - [`Broken::Geometry`] if it cannot.
    pub fn check(&self) -> Result<(), Broken> {
        let sound = matches!(self.block_shift, 9..=12)
            && matches!(self.chunk_shift, 12..=30)
            && self.capacity != 0
            && self.capacity <= 1 << 50
            && self.capacity & ((1 << self.block_shift) - 1) == 0
            && self.chunks() <= KEYS_MAX;
        if sound {
            Ok(())
        } else {
            Err(Broken::Geometry)
        }
    }

    /// Returns the size of a chunk in bytes.
    pub fn chunk(&self) -> u64 {
        1u64.checked_shl(self.chunk_shift).unwrap_or(0)
    }

    /// Returns the number of chunks, of which the last may be shorter.
    pub fn chunks(&self) -> u64 {
        let whole = self.capacity.checked_shr(self.chunk_shift).unwrap_or(0);
        let rest = self.capacity & self.chunk().wrapping_sub(1);
        whole + u64::from(rest != 0)
    }

    /// Returns the first byte and the length of chunk `chunk`, or `None` if no such chunk exists.
    pub fn window(&self, chunk: u64) -> Option<(u64, u64)> {
        if chunk >= self.chunks() {
            return None;
        }
        let start = chunk.checked_shl(self.chunk_shift)?;
        Some((start, self.chunk().min(self.capacity.checked_sub(start)?)))
    }

    /// Returns the chunk that contains [pos, pos + len), and the offset of `pos` in that chunk.
    ///
    /// Returns `None` if the range is empty, outside of the disk, or in more than one chunk.
    pub fn place(&self, pos: u64, len: u64) -> Option<(u64, u64)> {
        let end = pos.checked_add(len)?;
        if len == 0 || end > self.capacity {
            return None;
        }
        let chunk = pos.checked_shr(self.chunk_shift)?;
        let at = pos & self.chunk().wrapping_sub(1);
        (at + len <= self.chunk()).then_some((chunk, at))
    }
}

/// Returns whether a connection may use the initiator name `client`.
///
/// - `owner`: the initiator to which the peer's proven auth key is assigned, if any.
/// - `keyed`: the name `client` has an auth key assigned.
/// - `any`: the target accepts names without an auth key.
pub fn believes(owner: Option<&Name>, client: &Name, keyed: bool, any: bool) -> bool {
    match owner {
        // An owner of an auth key has only its own name: a fenced initiator must not return under
        // another one.
        Some(owner) => owner == client,
        None => any && !keyed,
    }
}

/// The next step after a connection is lost or an attempt to reconnect has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Reconnect after this many milliseconds.
    Retry(u64),
    /// Fail the disk; do not reconnect.
    GiveUp,
}

/// Returns whether and when to reconnect.
///
/// - `loss_tmo`: seconds until the initiator gives up; negative means never.
/// - `delay`: seconds between two attempts.
/// - `since`: milliseconds since the connection was lost.
/// - `err`: errno of the last attempt; 0 if there was none yet.
pub fn next(loss_tmo: i32, delay: u32, since: u64, err: u32) -> Next {
    if matches!(err, REVOKED | CHANGED) {
        return Next::GiveUp;
    }
    let left = match u64::try_from(loss_tmo) {
        Ok(tmo) => tmo.saturating_mul(1000).saturating_sub(since),
        Err(_) => u64::MAX,
    };
    match err {
        _ if left == 0 => Next::GiveUp,
        0 => Next::Retry(0),
        // Not later than the end of `loss_tmo`, when requests fail.
        _ => Next::Retry(u64::from(delay).saturating_mul(1000).min(left)),
    }
}

/// `EKEYREVOKED`: the target's answer to a fenced initiator.
pub const REVOKED: u32 = 128;
/// `ESTALE`: the export's identity has changed, or the initiator was fenced since it connected.
pub const CHANGED: u32 = 116;
