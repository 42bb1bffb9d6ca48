// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages in a byte ring that two processes share and in which neither trusts the other.
//!
//! One end puts messages in, the other takes them out. A message consists of one or more pieces.
//! Each piece follows a head of its own, and head and piece are put in as a whole.
//!
//! Each value in the shared memory is loaded once and then checked. An impossible counter, and a
//! head that contradicts the counters or the previous head, is a [`Lie`] and ends the connection.
//! Otherwise a bad peer can only send other bytes than it should.
//!
//! ```text
//!    head            tail             head + size
//!     |--- to take ---|----- free ------|
//! ```
//!
//! Sleep and wake: an end that finds nothing to do sets its sleep flag ([`Receiver::sleep`],
//! [`Sender::sleep`]) and looks again. An end that has moved a counter checks the peer's sleep flag
//! ([`Sender::wakes`], [`Receiver::wakes`]). Each end has a full barrier between its two steps, so
//! at least one end sees the other's step.

/// The shared memory. The peer may change counters and words at any time.
pub trait Memory {
    /// Loads the count of bytes put in, with acquire order.
    fn load_tail(&self) -> u32;

    /// Stores the count of bytes put in, with release order.
    fn store_tail(&self, tail: u32);

    /// Loads the count of bytes taken out, with acquire order.
    fn load_head(&self) -> u32;

    /// Stores the count of bytes taken out, with release order.
    fn store_head(&self, head: u32);

    /// Returns the sleep flag of the given end.
    fn asleep(&self, who: End) -> bool;

    /// Sets or clears the sleep flag of the given end and returns the old value.
    fn set_asleep(&self, who: End, sleeps: bool) -> bool;

    /// Executes a full memory barrier.
    fn fence(&self);

    /// Loads the word at byte `at` of the data. `at` is a multiple of 8 below the size.
    fn word(&self, at: u32) -> u64;

    /// Stores the word at byte `at` of the data.
    fn set_word(&self, at: u32, value: u64);
}

/// An end of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end that puts messages in.
    Sender,
    /// The end that takes messages out.
    Receiver,
}

/// The shared memory holds a value that no honest peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie;

/// Version of this protocol. Programs of different versions exchange no messages in this way, so each
/// change of the words (`RingWords` of the interface), the heads or their order gets another version. A
/// kernel that does not know the field `rings_version` refuses all but 0, with `EINVAL`.
pub const VERSION: u32 = 0;

/// Size of a head in bytes.
pub const HEAD: u32 = 24;
/// Flag of a head: the piece begins a message.
const FIRST: u32 = 1;
/// Flag of a head: the message has remote completion data.
const DATA: u32 = 2;
/// Flag of a head: the piece is a note, which reports an RMA write with completion data.
const WRITTEN: u32 = 4;

/// Returns whether a ring can have this size: a power of two from 256 to 2^30 bytes.
pub const fn valid_size(size: u32) -> bool {
    size.is_power_of_two() && size >= 256 && size <= 1 << 30
}

/// Returns the length of the longest piece. Several such pieces fit, so both ends can work at the
/// same time.
const fn longest(size: u32) -> u32 {
    size / 4
}

/// Returns the bytes that a piece occupies in the ring, with its head.
const fn space(len: u32) -> u32 {
    HEAD + len.next_multiple_of(8)
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Length in bytes of the message, or of the reported write.
    pub total: u64,
    /// Offset of the piece in the message.
    pub at: u64,
    /// Length of the piece in bytes.
    pub len: u32,
    /// Remote completion data. In the ring the data is in the first head only; [`Receiver::peek`]
    /// returns the data with each piece.
    pub data: Option<u32>,
    /// The piece is a note: it reports an RMA write and has no bytes.
    pub written: bool,
}

impl Piece {
    /// Returns whether the piece is the first of its message.
    pub fn is_first(&self) -> bool {
        self.at == 0
    }

    /// Returns whether the piece is the last of its message.
    pub fn is_last(&self) -> bool {
        self.written || self.at + u64::from(self.len) == self.total
    }
}

/// Splits the `len` bytes at counter `from` where the ring wraps. Calls `copy` for each part with
/// its offset in the ring, its offset in the bytes, and its length.
fn parts(size: u32, from: u32, len: u32, mut copy: impl FnMut(u32, u32, u32)) {
    let at = from & (size - 1);
    let first = len.min(size - at);
    if first != 0 {
        copy(at, 0, first);
    }
    if len > first {
        copy(0, first, len - first);
    }
}

/// The end that puts messages in.
pub struct Sender {
    size: u32,
    tail: u32,
    /// The peer's counter when last loaded.
    head: u32,
}

impl Sender {
    /// Returns the sender of an empty ring, or `None` if the size is invalid.
    pub fn new(size: u32) -> Option<Self> {
        Self::starting_at(size, 0)
    }

    /// As [`Sender::new`], with all counters at `start`. For tests of the wrap.
    pub fn starting_at(size: u32, start: u32) -> Option<Self> {
        valid_size(size).then_some(Self {
            size,
            tail: start,
            head: start,
        })
    }

    fn free(&self) -> Result<u32, Lie> {
        self.size
            .checked_sub(self.tail.wrapping_sub(self.head))
            .ok_or(Lie)
    }

    /// Returns the length of the next piece if `left` bytes of the message are left, or `None` if
    /// the ring is full.
    ///
    /// # Errors
    ///
    /// - [`Lie`] if the receiver's counter is impossible.
    pub fn room(&mut self, memory: &impl Memory, left: u64) -> Result<Option<u32>, Lie> {
        let most = longest(self.size);
        let len = u32::try_from(left).map_or(most, |left| left.min(most));
        if self.free()? >= space(len) {
            return Ok(Some(len));
        }
        self.head = memory.load_head();
        Ok((self.free()? >= space(len)).then_some(len))
    }

    /// Puts a piece into the ring. [`Sender::room`] must have returned the length of the piece
    /// before. `copy` is called with the places of the bytes: offset in the ring, offset in the
    /// piece, length.
    pub fn put(&mut self, memory: &impl Memory, piece: &Piece, copy: impl FnMut(u32, u32, u32)) {
        let mut flags = 0;
        if piece.is_first() {
            flags |= FIRST;
        }
        let data = piece.data.filter(|_| piece.is_first());
        if data.is_some() {
            flags |= DATA;
        }
        if piece.written {
            flags |= WRITTEN;
        }
        let words = [
            u64::from(piece.len) | u64::from(flags) << 32,
            piece.total,
            u64::from(data.unwrap_or(0)),
        ];
        for (i, word) in (0..).step_by(8).zip(words) {
            memory.set_word(self.tail.wrapping_add(i) & (self.size - 1), word);
        }
        parts(self.size, self.tail.wrapping_add(HEAD), piece.len, copy);
        self.tail = self.tail.wrapping_add(space(piece.len));
        memory.store_tail(self.tail);
    }

    /// Returns the end of all pieces that were put in so far, for [`Sender::taken`].
    pub fn mark(&self) -> u32 {
        self.tail
    }

    /// Returns whether the receiver has taken all pieces up to `mark`, a result of [`Sender::mark`].
    /// `mark` is valid until 2^31 bytes more were put in.
    ///
    /// # Errors
    ///
    /// - [`Lie`] if the receiver's counter is impossible.
    pub fn taken(&mut self, memory: &impl Memory, mark: u32) -> Result<bool, Lie> {
        self.head = memory.load_head();
        self.free()?;
        Ok(self.tail.wrapping_sub(self.head) <= self.tail.wrapping_sub(mark))
    }

    /// Sets the sender's sleep flag. The caller looks again with [`Sender::room`] before it sleeps.
    pub fn sleep(&self, memory: &impl Memory) {
        memory.set_asleep(End::Sender, true);
        memory.fence();
    }

    /// Returns whether the caller must wake the receiver. To be called after one or more pieces.
    pub fn wakes(&self, memory: &impl Memory) -> bool {
        memory.fence();
        memory.asleep(End::Receiver) && memory.set_asleep(End::Receiver, false)
    }
}

/// The end that takes messages out.
pub struct Receiver {
    size: u32,
    head: u32,
    /// The peer's counter when last loaded.
    tail: u32,
    /// Of the message received in part: total length, bytes received, completion data.
    open: Option<(u64, u64, Option<u32>)>,
    /// The sender is closed; no piece beyond `tail` is accepted.
    over: bool,
}

impl Receiver {
    /// Returns the receiver of an empty ring, or `None` if the size is invalid.
    pub fn new(size: u32) -> Option<Self> {
        Self::starting_at(size, 0)
    }

    /// As [`Receiver::new`], with all counters at `start`. For tests of the wrap.
    pub fn starting_at(size: u32, start: u32) -> Option<Self> {
        valid_size(size).then_some(Self {
            size,
            head: start,
            tail: start,
            open: None,
            over: false,
        })
    }

    /// Marks the sender as closed: only pieces that are in the ring now are accepted.
    pub fn finish(&mut self, memory: &impl Memory) {
        if !core::mem::replace(&mut self.over, true) {
            self.tail = memory.load_tail();
        }
    }

    /// Returns whether the ring has bytes to take. Costs at most one load of a shared counter.
    pub fn has_some(&self, memory: &impl Memory) -> bool {
        self.tail != self.head || (!self.over && memory.load_tail() != self.head)
    }

    /// Returns whether a message was received in part.
    pub fn has_begun(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the next piece and leaves it in the ring.
    ///
    /// # Errors
    ///
    /// - [`Lie`] if the sender's counter or the head is impossible.
    pub fn peek(&mut self, memory: &impl Memory) -> Result<Option<Piece>, Lie> {
        if self.tail == self.head && !self.over {
            self.tail = memory.load_tail();
        }
        let there = self.tail.wrapping_sub(self.head);
        if there == 0 {
            return Ok(None);
        }
        if there < HEAD || there > self.size {
            return Err(Lie);
        }
        let word = |i: u32| memory.word(self.head.wrapping_add(i) & (self.size - 1));
        let (first, total, data) = (word(0), word(8), word(16));
        // CAST: One half each.
        let (len, flags) = (first as u32, (first >> 32) as u32);
        if len > longest(self.size) || space(len) > there || flags & !(FIRST | DATA | WRITTEN) != 0
        {
            return Err(Lie);
        }
        let written = flags & WRITTEN != 0;
        let data = match (flags & DATA != 0, u32::try_from(data)) {
            (false, _) => None,
            (true, Ok(data)) => Some(data),
            (true, Err(_)) => return Err(Lie),
        };
        let (total, at, data) = match (flags & FIRST != 0, self.open) {
            (true, None) => (total, 0, data),
            (false, Some(open)) if !written && data.is_none() => open,
            _ => return Err(Lie),
        };
        // A piece must make progress and must not exceed its message.
        let fits = match written {
            true => len == 0,
            false => (len != 0 || total == 0) && u64::from(len) <= total - at,
        };
        if !fits {
            return Err(Lie);
        }
        Ok(Some(Piece {
            total,
            at,
            len,
            data,
            written,
        }))
    }

    /// Takes the piece that the last [`Receiver::peek`] returned; `copy` as in [`Sender::put`].
    pub fn take(&mut self, memory: &impl Memory, piece: &Piece, copy: impl FnMut(u32, u32, u32)) {
        parts(self.size, self.head.wrapping_add(HEAD), piece.len, copy);
        self.head = self.head.wrapping_add(space(piece.len));
        memory.store_head(self.head);
        let came = piece.at + u64::from(piece.len);
        self.open = (!piece.is_last()).then_some((piece.total, came, piece.data));
    }

    /// Sets the receiver's sleep flag. The caller looks again with [`Receiver::peek`] before it
    /// sleeps.
    pub fn sleep(&self, memory: &impl Memory) {
        memory.set_asleep(End::Receiver, true);
        memory.fence();
    }

    /// Returns whether the caller must wake the sender. To be called after one or more pieces.
    pub fn wakes(&self, memory: &impl Memory) -> bool {
        memory.fence();
        memory.asleep(End::Sender) && memory.set_asleep(End::Sender, false)
    }
}
