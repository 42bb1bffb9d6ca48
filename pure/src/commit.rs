// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Messages of a commit channel, by which the target's kernel makes writes durable, and the queue of
//! writes that wait for them.
//!
//! A commit channel is a connection between two kernels, beside a connection of two endpoints. The
//! initiator of the channel is the end whose writes are to be durable.
//!
//! | message | sent by | in | contents |
//! |---|---|---|---|
//! | HELLO | initiator | the connection request | [`Hello`] |
//! | WELCOME | target | the acceptance | [`Hello`] |
//! | REFUSAL | target | the refusal | [`REFUSAL`]: no such channel now or later |
//! | COMMIT | initiator | a message | up to [`RANGES_MAX`] ranges: [`write_request`], [`Request`] |
//! | ANSWER | target | a message | a [`Status`] for each range: [`write_answer`], [`Answer`] |
//!
//! The channel belongs to the connection whose queue pairs, first packet numbers and secret both ends
//! know ([`Ends`]). The packet numbers and the secret are random, and no message of a channel has them:
//! a HELLO and a WELCOME have a tag that only a party with these can compute. Under an auth key both
//! also have a MAC of the key. The packet numbers are no secret from the users of both hosts; the
//! secret is ([`wire`](super::wire)).
//!
//! All numbers are big-endian. The initiator sends a COMMIT only after the last one was answered.

use core::ops::DerefMut;

use super::{
    proof::{
        Mac,
        MAC, //
    },
    ring::FixedRing,
    scramble::Scramble,
    wire::Secret, //
};

/// The protocol version.
pub const VERSION: u8 = 1;
/// Maximum ranges of a COMMIT.
pub const RANGES_MAX: usize = 32;
/// Maximum bytes of all ranges of a COMMIT with several ranges. Bounds the time of an answer.
pub const BYTES_MAX: u64 = 64 << 20;
/// The level of a COMMIT: durable.
const DURABLE: u8 = 1;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const COMMIT: u8 = 3;
const ANSWER: u8 = 4;
const REFUSED: u8 = 5;

/// The message of a target that has no such channel, now or later. A refusal without it is one of the
/// connection manager, for a cause that may end.
pub const REFUSAL: [u8; 4] = [VERSION, REFUSED, 0, 0];

/// Size of a message's head: version, kind, level, count, 4 bytes of 0, and the number of the request.
const HEAD: usize = 16;
/// Size of a range: key, address and length.
const RANGE: usize = 24;
/// Size of the longest COMMIT in bytes.
pub const REQUEST_MAX: usize = HEAD + RANGES_MAX * RANGE;
/// Size of the longest ANSWER in bytes.
pub const ANSWER_MAX: usize = HEAD + RANGES_MAX;
/// Size of a HELLO and of a WELCOME in bytes.
pub const HELLO_LEN: usize = 4 + 8 + 8 + MAC;

/// The message violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Returns the `N` bytes from `at` on.
fn bytes<const N: usize>(message: &[u8], at: usize) -> Result<[u8; N], Malformed> {
    let found = message.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or(Malformed)
}

fn u32_at(message: &[u8], at: usize) -> Result<u32, Malformed> {
    bytes(message, at).map(u32::from_be_bytes)
}

fn u64_at(message: &[u8], at: usize) -> Result<u64, Malformed> {
    bytes(message, at).map(u64::from_be_bytes)
}

/// Stores `data` at `at`. The callers' buffers have the size of the longest message.
fn put(out: &mut [u8], at: usize, data: &[u8]) {
    if let Some(place) = out.get_mut(at..at + data.len()) {
        place.copy_from_slice(data);
    }
}

/// Keys of refused ranges that end a connection.
const WRONG_KEYS: usize = 8;
/// Refused ranges with these keys that end a connection.
const REFUSED_MAX: u32 = 4096;
/// Durable ranges after which the oldest wrong key is forgotten.
const FORGIVE: u32 = 256;
/// Least seconds from one forgotten key to the next.
const FORGIVE_SECONDS: u32 = 2;

/// The refused ranges of a peer's commits on one connection.
///
/// A refused commit keeps its connection, unlike other accesses, because the key may have been revoked
/// after the writes. So a peer could guess keys by commits. This count ends the connection with the
/// eighth wrong key. Many writes may be in flight with a key when it is revoked, so these count as one
/// wrong key. Durable ranges let the count forget keys, so that a connection may live long. A peer with
/// one key can have as many durable ranges as it likes, so keys are forgotten slowly: a peer
/// that guesses gets on faster by new connections.
#[derive(Default)]
pub struct Refusals {
    keys: [u64; WRONG_KEYS],
    count: usize,
    refused: u32,
    durable: u32,
    /// Second at which a key was forgotten last.
    forgave: u32,
}

impl Refusals {
    /// Returns whether the connection must end.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.count == WRONG_KEYS || self.refused >= REFUSED_MAX
    }

    /// Counts a refused range with `key`. Returns whether the connection must end.
    pub fn refuse(&mut self, key: u64) -> bool {
        if self.refused == 0 {
            // Ranges before the refusal forgive nothing.
            self.durable = 0;
        }
        self.refused = self.refused.saturating_add(1);
        let known = self.keys.iter().take(self.count).any(|wrong| *wrong == key);
        if let (false, Some(place)) = (known, self.keys.get_mut(self.count)) {
            *place = key;
            self.count += 1;
        }
        self.is_over()
    }

    /// Counts a durable range of at least one byte. `now` returns the second of a clock that never
    /// goes back.
    pub fn succeed(&mut self, now: impl FnOnce() -> u32) {
        self.durable = self.durable.saturating_add(1);
        if self.durable < FORGIVE || self.refused == 0 || self.is_over() {
            return;
        }
        let now = now();
        if now.wrapping_sub(self.forgave) >= FORGIVE_SECONDS {
            self.forgave = now;
            self.durable = 0;
            self.refused /= 2;
            self.count = self.count.saturating_sub(1);
            self.keys.rotate_left(1);
        }
    }
}

/// One end of a connection of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// Number of the end's queue pair.
    pub qp: u32,
    /// Number of the first packet that the end sends.
    pub psn: u32,
}

/// The connection of endpoints to which a channel belongs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends {
    /// The end that initiates the channel.
    pub initiator: End,
    /// The end that serves the channel.
    pub target: End,
    /// The secrets of the connecting and of the accepting end ([`secret_of`]); 0 without.
    pub secret: u128,
}

/// Returns the secret of a connection, from the secrets of the connecting and the accepting end.
pub fn secret_of(connecting: &Secret, accepting: &Secret) -> u128 {
    let number = |secret: &Secret| u128::from(u64::from_be_bytes(*secret));
    number(connecting) << 64 | number(accepting)
}

/// Size of the text of a MAC.
const TEXT: usize = 16 + 4 + 5 * 4;

impl Ends {
    /// Returns the same connection, as the other end initiates a channel.
    #[must_use]
    pub const fn swapped(self) -> Self {
        Self {
            initiator: self.target,
            target: self.initiator,
            secret: self.secret,
        }
    }

    fn numbers(&self) -> [u32; 4] {
        [
            self.initiator.qp,
            self.initiator.psn,
            self.target.qp,
            self.target.psn,
        ]
    }

    /// Returns a number that only a party with the packet numbers and the secret can compute.
    fn tag(&self, kind: u8) -> u64 {
        let fold = |all: u128, number: &u32| all << 32 | u128::from(*number);
        let numbers = self.numbers().iter().fold(0, fold);
        Scramble::new(numbers ^ self.secret).scramble(u64::from(kind))
    }

    fn text(&self, kind: u8, channel: u32) -> [u8; TEXT] {
        let mut text = [0; TEXT];
        put(&mut text, 0, b"kfabric commits\0");
        put(&mut text, 16, &[VERSION, kind]);
        let numbers = self.numbers().into_iter().chain([channel]);
        for (i, number) in numbers.enumerate() {
            put(&mut text, 20 + 4 * i, &number.to_be_bytes());
        }
        text
    }
}

/// The opening message of either end of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    kind: u8,
    initiator: u32,
    target: u32,
    tag: u64,
    mac: Mac,
}

impl Hello {
    fn new(kind: u8, ends: &Ends, channel: u32, prove: impl FnOnce(&[u8]) -> Mac) -> Self {
        Self {
            kind,
            initiator: ends.initiator.qp,
            target: ends.target.qp,
            tag: ends.tag(kind),
            mac: prove(&ends.text(kind, channel)),
        }
    }

    /// Returns the initiator's message. Its queue pair of the channel is `channel`. `prove` computes the
    /// MAC of a text; without an auth key it returns zeroes.
    pub fn request(ends: &Ends, channel: u32, prove: impl FnOnce(&[u8]) -> Mac) -> Self {
        Self::new(HELLO, ends, channel, prove)
    }

    /// Returns the target's message, like [`Hello::request`].
    pub fn welcome(ends: &Ends, channel: u32, prove: impl FnOnce(&[u8]) -> Mac) -> Self {
        Self::new(WELCOME, ends, channel, prove)
    }

    /// Returns the message's bytes.
    pub fn write(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        put(&mut out, 0, &[VERSION, self.kind]);
        put(&mut out, 4, &self.initiator.to_be_bytes());
        put(&mut out, 8, &self.target.to_be_bytes());
        put(&mut out, 12, &self.tag.to_be_bytes());
        put(&mut out, 20, &self.mac);
        out
    }

    /// Parses a message, which may have zeroes behind it.
    ///
    /// # Errors
    ///
    /// - [`Malformed`] if the message is too short, or has another version or an unknown kind.
    pub fn parse(message: &[u8]) -> Result<Self, Malformed> {
        let [version, kind] = bytes(message, 0)?;
        if version != VERSION || !matches!(kind, HELLO | WELCOME) {
            return Err(Malformed);
        }
        Ok(Self {
            kind,
            initiator: u32_at(message, 4)?,
            target: u32_at(message, 8)?,
            tag: u64_at(message, 12)?,
            mac: bytes(message, 20)?,
        })
    }

    /// Returns the number of the target's queue pair, by which the target finds the connection.
    pub const fn target(&self) -> u32 {
        self.target
    }

    fn is(
        &self,
        kind: u8,
        ends: &Ends,
        channel: u32,
        check: impl FnOnce(&[u8], &Mac) -> bool,
    ) -> bool {
        self.kind == kind
            && (self.initiator, self.target) == (ends.initiator.qp, ends.target.qp)
            && self.tag == ends.tag(kind)
            && check(&ends.text(kind, channel), &self.mac)
    }

    /// Returns whether this is the initiator's message for the connection `ends`. `check` compares
    /// the MAC of a text.
    pub fn is_request(
        &self,
        ends: &Ends,
        channel: u32,
        check: impl FnOnce(&[u8], &Mac) -> bool,
    ) -> bool {
        self.is(HELLO, ends, channel, check)
    }

    /// Returns whether this is the target's message, like [`Hello::is_request`].
    pub fn is_welcome(
        &self,
        ends: &Ends,
        channel: u32,
        check: impl FnOnce(&[u8], &Mac) -> bool,
    ) -> bool {
        self.is(WELCOME, ends, channel, check)
    }
}

/// Returns whether a message is [`REFUSAL`]. It may have zeroes behind it.
pub fn is_refusal(message: &[u8]) -> bool {
    message.starts_with(&REFUSAL)
}

/// Bytes of the target that an initiator has written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The key through which the bytes were written.
    pub key: u64,
    /// Address of the first byte.
    pub addr: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Range {
    /// Returns the offset of the range in a key's window of `len` bytes from the address `start` on.
    /// Returns `None` if the range is not inside.
    pub const fn within(&self, start: u64, len: u64) -> Option<u64> {
        let Some(into) = self.addr.checked_sub(start) else {
            return None;
        };
        if into <= len && self.len <= len - into {
            Some(into)
        } else {
            None
        }
    }
}

/// Writes the head of a message.
fn put_head(out: &mut [u8], kind: u8, count: usize, number: u64) {
    // CAST: At most `RANGES_MAX`.
    put(out, 0, &[VERSION, kind, DURABLE, count as u8, 0, 0, 0, 0]);
    put(out, 8, &number.to_be_bytes());
}

/// Parses the head of a message, and returns the count and the number.
fn head(message: &[u8], kind: u8, each: usize) -> Result<(usize, u64), Malformed> {
    let [version, found, level, count] = bytes(message, 0)?;
    let count = usize::from(count);
    let exact = message.len() == HEAD + count * each;
    if version != VERSION || found != kind || level != DURABLE || !exact {
        return Err(Malformed);
    }
    if count == 0 || count > RANGES_MAX {
        return Err(Malformed);
    }
    Ok((count, u64_at(message, 8)?))
}

/// Writes the COMMIT of this number for `ranges`, at most [`RANGES_MAX`], to `out`. Returns its
/// length in bytes.
pub fn write_request(number: u64, ranges: &[Range], out: &mut [u8; REQUEST_MAX]) -> usize {
    let count = ranges.len().min(RANGES_MAX);
    put_head(out, COMMIT, count, number);
    for (i, range) in ranges.iter().take(count).enumerate() {
        let at = HEAD + i * RANGE;
        put(out, at, &range.key.to_be_bytes());
        put(out, at + 8, &range.addr.to_be_bytes());
        put(out, at + 16, &range.len.to_be_bytes());
    }
    HEAD + count * RANGE
}

/// A COMMIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    number: u64,
    ranges: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses a COMMIT.
    ///
    /// # Errors
    ///
    /// - [`Malformed`] if the version, the level, the count or the length is invalid.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let (_, number) = head(message, COMMIT, RANGE)?;
        let ranges = message.get(HEAD..).ok_or(Malformed)?;
        Ok(Self { number, ranges })
    }

    /// Returns the number of the request, for the ANSWER.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the ranges, at least 1 and at most [`RANGES_MAX`]. A range may have any values.
    pub fn ranges(&self) -> impl Iterator<Item = Range> + 'a {
        let mut rest = self.ranges;
        core::iter::from_fn(move || {
            let (raw, after) = rest.split_first_chunk::<RANGE>()?;
            rest = after;
            Some(Range {
                key: u64_at(raw, 0).ok()?,
                addr: u64_at(raw, 8).ok()?,
                len: u64_at(raw, 16).ok()?,
            })
        })
    }
}

/// The target's verdict on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The bytes are durable.
    Durable,
    /// The target's memory, or its device, cannot make the bytes durable.
    Unsupported,
    /// The target has no such key, or has revoked the key.
    Revoked,
    /// The key does not allow the range to be written.
    Refused,
    /// The target's end of the connection is closing.
    Closing,
}

impl Status {
    const ALL: [Self; 5] = [
        Self::Durable,
        Self::Unsupported,
        Self::Revoked,
        Self::Refused,
        Self::Closing,
    ];

    /// Returns the byte in an ANSWER.
    const fn code(self) -> u8 {
        // CAST: The discriminants are small.
        self as u8
    }
}

/// Writes the ANSWER to the request of this number, at most [`RANGES_MAX`] statuses, to `out`.
/// Returns its length in bytes.
pub fn write_answer(number: u64, statuses: &[Status], out: &mut [u8; ANSWER_MAX]) -> usize {
    let count = statuses.len().min(RANGES_MAX);
    put_head(out, ANSWER, count, number);
    for (i, status) in statuses.iter().take(count).enumerate() {
        put(out, HEAD + i, &[status.code()]);
    }
    HEAD + count
}

/// An ANSWER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    number: u64,
    statuses: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Parses an ANSWER.
    ///
    /// # Errors
    ///
    /// - [`Malformed`] if the version, the level, the count, the length or a status is invalid.
    pub fn parse(message: &'a [u8]) -> Result<Self, Malformed> {
        let (_, number) = head(message, ANSWER, 1)?;
        let statuses = message.get(HEAD..).ok_or(Malformed)?;
        let known = |code: &u8| usize::from(*code) < Status::ALL.len();
        if !statuses.iter().all(known) {
            return Err(Malformed);
        }
        Ok(Self { number, statuses })
    }

    /// Returns the number of the request.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the status of each range, in the order of the request.
    pub fn statuses(&self) -> impl ExactSizeIterator<Item = Status> + 'a {
        let of = |code: &u8| Status::ALL.get(usize::from(*code)).copied();
        // `parse` has checked each code; any other one would not be durable.
        self.statuses
            .iter()
            .map(move |code| of(code).unwrap_or(Status::Closing))
    }
}

/// Writes of an endpoint that wait for a commit: those that wait for the next COMMIT, and those of
/// the outstanding one.
///
/// A write is known by its slot. The queue allocates nothing: its storage has a place for each slot.
pub struct Queue<S> {
    waiting: FixedRing<S>,
    /// Slots of the outstanding COMMIT.
    sent: [u32; RANGES_MAX],
    /// Number of these; 0 if none is outstanding.
    count: usize,
    /// Number of the last COMMIT.
    number: u64,
}

impl<S: DerefMut<Target = [Option<u32>]>> Queue<S> {
    /// Returns an empty queue in `places`.
    pub fn new(places: S) -> Self {
        Self {
            waiting: FixedRing::new(places),
            sent: [0; RANGES_MAX],
            count: 0,
            number: 0,
        }
    }

    /// Returns the number of writes in the queue.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.count
    }

    /// Returns whether no write is in the queue.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a write, which has been acknowledged. Returns whether the queue had a place.
    pub fn push(&mut self, slot: u32) -> bool {
        self.waiting.push(slot).is_ok()
    }

    /// Begins a COMMIT, if none is outstanding and writes wait. Stores the ranges, which `range`
    /// returns for each slot, in `ranges`. Returns the number of the COMMIT and the number of ranges.
    ///
    /// The first range may be of any length. Others are added up to [`BYTES_MAX`].
    pub fn begin(
        &mut self,
        ranges: &mut [Range; RANGES_MAX],
        range: impl Fn(u32) -> Range,
    ) -> Option<(u64, usize)> {
        if self.count != 0 {
            return None;
        }
        let mut bytes = 0u64;
        for (sent, place) in self.sent.iter_mut().zip(ranges) {
            let Some(slot) = self.waiting.peek().copied() else {
                break;
            };
            let next = range(slot);
            bytes = bytes.saturating_add(next.len);
            if self.count != 0 && bytes > BYTES_MAX {
                break;
            }
            let _ = self.waiting.pop();
            (*sent, *place) = (slot, next);
            self.count += 1;
        }
        if self.count == 0 {
            return None;
        }
        self.number += 1;
        Some((self.number, self.count))
    }

    /// Ends the outstanding COMMIT with its ANSWER, and calls `each` with its slots and their
    /// statuses.
    ///
    /// # Errors
    ///
    /// - [`Malformed`] if the ANSWER is not one to the outstanding COMMIT. Nothing has changed.
    pub fn answered(
        &mut self,
        answer: &Answer<'_>,
        mut each: impl FnMut(u32, Status),
    ) -> Result<(), Malformed> {
        let statuses = answer.statuses();
        if self.count == 0 || answer.number() != self.number || statuses.len() != self.count {
            return Err(Malformed);
        }
        let count = core::mem::take(&mut self.count);
        for (slot, status) in self.sent.iter().take(count).zip(statuses) {
            each(*slot, status);
        }
        Ok(())
    }

    /// Removes a write that will not be committed, the outstanding ones first. An ANSWER to an
    /// outstanding COMMIT is then invalid.
    pub fn cancel(&mut self) -> Option<u32> {
        if let Some(last) = self.count.checked_sub(1) {
            self.count = last;
            return self.sent.get(last).copied();
        }
        self.waiting.pop()
    }
}
