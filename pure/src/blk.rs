// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What kfblk's two ends say to each other, and which byte of a disk is behind which key.
//!
//! An initiator asks, the target answers, one question at a time on each connection:
//!
//! ```text
//!   HELLO  who, which subsystem  ---->
//!   <----  WELCOME  what it is like, or why not
//!   KEYS   from which on         ---->
//!   <----  TABLE    up to [`TABLE_MAX`] keys
//! ```
//!
//! A disk of memory is in chunks, each with a key of its own; no request goes across the border of two.
//! What else is said of a disk that is a device is in [`device`]. All numbers are little endian. Nothing
//! of what the peer says is believed before it is checked here.

pub mod cache;
pub mod device;

use device::Limits;

/// First bytes of each message.
const MAGIC: u32 = 0x314b_424b;
/// The version spoken.
pub const VERSION: u8 = 4;
/// Bytes of a name, at most; what follows it is zero.
pub const NAME_MAX: usize = 64;
/// Bytes of a session's number.
pub const SESSION: usize = 16;
/// Keys in one answer, at most.
pub const TABLE_MAX: usize = 64;
/// Bytes of the longest message.
pub const MESSAGE_MAX: usize = HEAD + 8 + TABLE_MAX * ENTRY;
/// Bytes of the longest question.
pub const QUESTION_MAX: usize = HEAD + 8 + SESSION + 8 + 2 * NAME_MAX;
/// Connections of a session, at most.
pub const QUEUES_MAX: u16 = 16;
/// Keys of a disk, at most.
pub const KEYS_MAX: u64 = 1 << 20;

/// The disk must not be written to.
pub const READ_ONLY: u32 = 1;
/// It is a device; what it can do follows.
const DEVICE: u32 = 2;

const HEAD: usize = 8;
const ENTRY: usize = 16;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const KEYS: u8 = 3;
const TABLE: u8 = 4;

/// Why a message is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Too short, not of this protocol, or not of those that are expected.
    Message,
    /// Of another version, which is said.
    Version(u8),
    /// A name that is none.
    Name,
    /// A disk as there can be none.
    Geometry,
}

/// There is no room for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// A name: 1 to 63 printable characters of ASCII, none of them a slash or a space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name([u8; NAME_MAX]);

impl Name {
    /// Checks a text.
    ///
    /// # Errors
    ///
    /// [`Broken::Name`].
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

    /// The text, and zeroes behind it, one at least.
    pub fn bytes(&self) -> &[u8; NAME_MAX] {
        &self.0
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|c| *c == 0).unwrap_or(NAME_MAX);
        let text = self.0.get(..end).unwrap_or_default();
        core::str::from_utf8(text).unwrap_or_default()
    }

    /// A number, which is seldom another name's.
    pub fn number(&self) -> u64 {
        device::hash(self.0.iter())
    }
}

/// An initiator's first question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which of the session's connections this is.
    pub queue: u16,
    /// How many it has.
    pub queues: u16,
    /// How many times the session has connected: connections of an earlier time are over.
    pub epoch: u32,
    /// The session: a disk of the initiator's, from when it was made until it is removed.
    pub session: [u8; SESSION],
    /// [`Name::number`] of what the initiator calls the disk. Of one name a client has one at a time, and
    /// what was of that name before is over.
    pub disk: u64,
    /// Who asks.
    pub client: Name,
    /// What it asks for.
    pub subsystem: Name,
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The first.
    Hello(Hello),
    /// The keys of this chunk and those that follow.
    Keys(u32),
}

/// What a disk is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes.
    pub capacity: u64,
    /// Bytes of a block, as a power of two.
    pub block_shift: u32,
    /// Bytes of a chunk, as a power of two.
    pub chunk_shift: u32,
}

/// The answer to the first question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// 0, or the errno of the refusal.
    pub status: u32,
    /// [`READ_ONLY`], or nothing.
    pub flags: u32,
    /// What it is like; of no meaning in a refusal.
    pub geometry: Geometry,
    /// What it can do, if it is a device.
    pub device: Option<Limits>,
    /// What the client was let in to: another number whenever the contents are others, and when it
    /// was fenced meanwhile.
    pub instance: u64,
    /// Another number whenever the target has started.
    pub boot: u64,
    /// Of a device: which of all that this kernel of the target's has had it is. Until the target starts
    /// again: then others count.
    pub seq: u64,
}

/// A key, and the address that it begins at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: u64,
    /// The address.
    pub addr: u64,
}

/// Puts a message together.
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

/// Takes a message apart.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The kind, and the rest.
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
    /// Writes it; how many bytes it has.
    ///
    /// # Errors
    ///
    /// `to` is shorter than [`QUESTION_MAX`].
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
            }
            Self::Keys(first) => {
                writer = Writer::new(to, KEYS)?;
                writer.put(&first.to_le_bytes())?;
            }
        }
        Ok(writer.at)
    }

    /// Reads what a peer sent.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn read(from: &[u8]) -> Result<Self, Broken> {
        let (kind, mut reader) = Reader::new(from)?;
        let question = match kind {
            HELLO => {
                let hello = Hello {
                    queue: reader.u16()?,
                    queues: reader.u16()?,
                    epoch: reader.u32()?,
                    session: reader.take()?,
                    disk: reader.u64()?,
                    client: Name::padded(&reader.take()?)?,
                    subsystem: Name::padded(&reader.take()?)?,
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
    /// A refusal.
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

    /// Whether what was connected to as `self` is still that: the same contents, that can do the same.
    /// A device may have another capacity, and its contents outlive the target; but then nobody has seen
    /// that it is the same, and one that has become smaller is not.
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

    /// Whether what was not flushed may have been lost since: the target has started again, and what it
    /// has, has a cache.
    pub fn may_have_lost(&self, now: &Self) -> bool {
        self.boot != now.boot && self.device.is_some_and(|limits| limits.cache)
    }

    /// Writes it; how many bytes it has.
    ///
    /// # Errors
    ///
    /// `to` is shorter than [`MESSAGE_MAX`].
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

    /// Reads what a peer sent. The geometry of one that does not refuse is sound.
    ///
    /// # Errors
    ///
    /// It is none.
    pub fn read(from: &[u8]) -> Result<Self, Broken> {
        let (kind, mut reader) = Reader::new(from)?;
        if kind != WELCOME {
            return Err(Broken::Message);
        }
        let (status, flags) = (reader.u32()?, reader.u32()?);
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

/// Writes an answer with keys, from chunk `first` on; how many bytes it has.
///
/// # Errors
///
/// More than [`TABLE_MAX`] keys, or `to` is shorter than [`MESSAGE_MAX`].
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

/// Reads an answer with keys from chunk `first` on, and has `each` take them; how many there are: one
/// or more, and not more than `most`.
///
/// # Errors
///
/// It is none, or not that one.
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
    /// Whether there can be such a disk.
    ///
    /// # Errors
    ///
    /// [`Broken::Geometry`].
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

    /// Bytes of a chunk.
    pub fn chunk(&self) -> u64 {
        1u64.checked_shl(self.chunk_shift).unwrap_or(0)
    }

    /// Chunks, the last of which may be shorter.
    pub fn chunks(&self) -> u64 {
        let whole = self.capacity.checked_shr(self.chunk_shift).unwrap_or(0);
        let rest = self.capacity & self.chunk().wrapping_sub(1);
        whole + u64::from(rest != 0)
    }

    /// The bytes of a chunk: where it begins, and how many it has. `None`: there is no such chunk.
    pub fn window(&self, chunk: u64) -> Option<(u64, u64)> {
        if chunk >= self.chunks() {
            return None;
        }
        let start = chunk.checked_shl(self.chunk_shift)?;
        Some((start, self.chunk().min(self.capacity.checked_sub(start)?)))
    }

    /// Which chunk [pos, pos + len) is in, and where. `None`: outside of the disk, in more than one,
    /// or no bytes.
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

/// Whether a connection may say that it is `client`. `owner`: whose the auth key is that its peer has
/// proven to have. `keyed`: `client` has one. `any`: clients without one are believed, too.
pub fn believes(owner: Option<&Name>, client: &Name, keyed: bool, any: bool) -> bool {
    match owner {
        // Who has one is nobody else, so that who was fenced does not come by another name.
        Some(owner) => owner == client,
        None => any && !keyed,
    }
}

/// What to do when a connection is lost or could not be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again, after so many milliseconds.
    Retry(u64),
    /// No more.
    GiveUp,
}

/// Whether to try again. `loss_tmo` and `delay` are in seconds; `loss_tmo` below 0: for ever. `since`:
/// milliseconds since the connection was lost. `err`: why the last try failed; 0: there was none yet.
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
        // Not beyond the end: it is then that requests fail.
        _ => Next::Retry(u64::from(delay).saturating_mul(1000).min(left)),
    }
}

/// `EKEYREVOKED`: what a target answers whom it has fenced.
pub const REVOKED: u32 = 128;
/// `ESTALE`: what there is now is not what was connected to, or who asks was fenced since.
pub const CHANGED: u32 = 116;
