// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages through a ring of bytes that two programs share, neither of which trusts the other.
//!
//! One puts in, one takes out. A message travels in one or more pieces, each behind a head of its own,
//! which is put in whole. What comes out of the shared memory is looked at once: a counter that cannot
//! be true, a head that does not fit what is there or what came before, is a [`Lie`], and ends the
//! conversation. All that a peer can do beyond that is to send other bytes than it should.
//!
//! ```text
//!    head            tail             head + size
//!     |--- to take ---|----- room ------|
//! ```
//!
//! Sleeping: who finds nothing says that it sleeps ([`Receiver::sleep`], [`Sender::sleep`]) and looks
//! again; who put something in, or took something out, looks whether the other sleeps
//! ([`Sender::wakes`], [`Receiver::wakes`]). A full barrier between the two steps of each sees to it
//! that at least one sees the other.

/// The shared memory. Counters and words may be anything at any time.
pub trait Memory {
    /// Bytes put in, with acquire order.
    fn load_tail(&self) -> u32;

    /// Bytes put in, with release order.
    fn store_tail(&self, tail: u32);

    /// Bytes taken out, with acquire order.
    fn load_head(&self) -> u32;

    /// Bytes taken out, with release order.
    fn store_head(&self, head: u32);

    /// The word by which an end says that it sleeps.
    fn asleep(&self, who: End) -> bool;

    /// Sets that word, or clears it; whether it was set.
    fn set_asleep(&self, who: End, sleeps: bool) -> bool;

    /// A full barrier.
    fn fence(&self);

    /// The word at byte `at` of the data, a multiple of 8 below the size.
    fn word(&self, at: u32) -> u64;

    /// Stores that word.
    fn set_word(&self, at: u32, value: u64);
}

/// The two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It puts in.
    Sender,
    /// It takes out.
    Receiver,
}

/// The shared memory holds what no honest peer puts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lie;

/// Bytes of a head.
pub const HEAD: u32 = 24;
/// Of its flags: it begins a message.
const FIRST: u32 = 1;
/// It has data for the completion.
const DATA: u32 = 2;
/// It tells of a write that has been done.
const WRITTEN: u32 = 4;

/// Whether a number of bytes can be a ring's: a power of two with room for some pieces.
pub const fn valid_size(size: u32) -> bool {
    size.is_power_of_two() && size >= 256 && size <= 1 << 30
}

/// Bytes of the longest piece: several fit, so that both ends work at the same time.
const fn longest(size: u32) -> u32 {
    size / 4
}

/// Bytes that a piece takes.
const fn space(len: u32) -> u32 {
    HEAD + len.next_multiple_of(8)
}

/// A piece of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the message, or of the write that it tells of.
    pub total: u64,
    /// Where it begins in the message.
    pub at: u64,
    /// Its bytes.
    pub len: u32,
    /// Data for the message's completion. They travel with the first piece; who takes out has them
    /// with each.
    pub data: Option<u32>,
    /// It tells of a write, and has no bytes.
    pub written: bool,
}

impl Piece {
    /// Whether it is the first one.
    pub fn is_first(&self) -> bool {
        self.at == 0
    }

    /// Whether it is the last one.
    pub fn is_last(&self) -> bool {
        self.written || self.at + u64::from(self.len) == self.total
    }
}

/// Splits `len` bytes at `from` where the ring ends, and gives `copy` where each part is and how far
/// into the bytes.
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

/// The end that puts in.
pub struct Sender {
    size: u32,
    tail: u32,
    /// As last seen.
    head: u32,
}

impl Sender {
    /// Of an empty ring. `None`: not a valid size.
    pub fn new(size: u32) -> Option<Self> {
        Self::starting_at(size, 0)
    }

    /// As [`Sender::new`], with all counters at `start`: for tests of what happens when they wrap.
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

    /// How long the next piece is when `left` bytes are left. `None`: there is no room for it.
    ///
    /// # Errors
    ///
    /// [`Lie`].
    pub fn room(&mut self, memory: &impl Memory, left: u64) -> Result<Option<u32>, Lie> {
        let most = longest(self.size);
        let len = u32::try_from(left).map_or(most, |left| left.min(most));
        if self.free()? >= space(len) {
            return Ok(Some(len));
        }
        self.head = memory.load_head();
        Ok((self.free()? >= space(len)).then_some(len))
    }

    /// Puts a piece in, for which [`Sender::room`] said that there is room. `copy` is told where its
    /// bytes go: where in the ring, how far into the piece, and how many.
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

    /// Says that it sleeps until there is room. It looks again before it does.
    pub fn sleep(&self, memory: &impl Memory) {
        memory.set_asleep(End::Sender, true);
        memory.fence();
    }

    /// After one or more pieces: whether the receiver is to be woken.
    pub fn wakes(&self, memory: &impl Memory) -> bool {
        memory.fence();
        memory.asleep(End::Receiver) && memory.set_asleep(End::Receiver, false)
    }
}

/// The end that takes out.
pub struct Receiver {
    size: u32,
    head: u32,
    /// As last seen.
    tail: u32,
    /// Of a message that has begun: its bytes, how many came, and its data.
    open: Option<(u64, u64, Option<u32>)>,
    /// Nothing more comes than what was there.
    over: bool,
}

impl Receiver {
    /// Of an empty ring. `None`: not a valid size.
    pub fn new(size: u32) -> Option<Self> {
        Self::starting_at(size, 0)
    }

    /// As [`Sender::starting_at`].
    pub fn starting_at(size: u32, start: u32) -> Option<Self> {
        valid_size(size).then_some(Self {
            size,
            head: start,
            tail: start,
            open: None,
            over: false,
        })
    }

    /// The sender has gone: what is there now is all, whatever it still puts in.
    pub fn finish(&mut self, memory: &impl Memory) {
        if !core::mem::replace(&mut self.over, true) {
            self.tail = memory.load_tail();
        }
    }

    /// Whether there is something. Costs a look at one counter.
    pub fn has_some(&self, memory: &impl Memory) -> bool {
        self.tail != self.head || (!self.over && memory.load_tail() != self.head)
    }

    /// Whether a message has come in part.
    pub fn has_begun(&self) -> bool {
        self.open.is_some()
    }

    /// The next piece, which stays.
    ///
    /// # Errors
    ///
    /// [`Lie`].
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
        // It goes on, and not beyond the end.
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

    /// Takes the piece that [`Receiver::peek`] has just shown; `copy` as in [`Sender::put`].
    pub fn take(&mut self, memory: &impl Memory, piece: &Piece, copy: impl FnMut(u32, u32, u32)) {
        parts(self.size, self.head.wrapping_add(HEAD), piece.len, copy);
        self.head = self.head.wrapping_add(space(piece.len));
        memory.store_head(self.head);
        let came = piece.at + u64::from(piece.len);
        self.open = (!piece.is_last()).then_some((piece.total, came, piece.data));
    }

    /// Says that it sleeps until something comes. It looks again before it does.
    pub fn sleep(&self, memory: &impl Memory) {
        memory.set_asleep(End::Receiver, true);
        memory.fence();
    }

    /// After one or more pieces: whether the sender is to be woken.
    pub fn wakes(&self, memory: &impl Memory) -> bool {
        memory.fence();
        memory.asleep(End::Sender) && memory.set_asleep(End::Sender, false)
    }
}
