// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Accounting of the already-issued key values of a hardware slot.
//!
//! A verbs key is the number of a hardware slot plus, in the low eight bits, a byte that the owner
//! of the slot chooses. Slots are reused; keys must not be (P4). Otherwise a peer with an old key
//! would reach the memory behind the new one. So each low byte is issued once, and a slot whose
//! bytes are all issued is exhausted.
//!
//! An endpoint with endpoint-scoped keys may ask to reuse bytes, because it needs more of them than
//! a slot has. Its peer can reach only that endpoint, so a byte may be issued again to another such
//! endpoint, but never twice to the same one.
//!
//! So the low bytes are in two halves. The lower half is issued once for all ([`Issued`]). The
//! upper half is issued once for each endpoint that reuses bytes ([`IssuedOwn`]), and for no other
//! purpose. A device may choose a byte itself, from either half. Such a byte is accepted only if it
//! was never issued, and is not issued again.

/// Number of values in a half.
pub const HALF: u32 = 128;

/// The already-issued values of a half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Half([u64; 2]);

impl Half {
    fn left(&self) -> u32 {
        self.0.iter().map(|word| word.count_zeros()).sum()
    }

    /// Marks a value as issued. Returns whether the value was fresh.
    fn take(&mut self, value: u8) -> bool {
        let bit = 1 << (value % 64);
        let Some(word) = self.0.get_mut(usize::from(value / 64)) else {
            return false;
        };
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    fn has(&self, value: u8) -> bool {
        self.0
            .get(usize::from(value / 64))
            .is_some_and(|word| word & (1 << (value % 64)) != 0)
    }

    /// Returns the union of the issued values.
    fn and(&self, other: &Self) -> Self {
        let mut both = *self;
        for (word, other) in both.0.iter_mut().zip(other.0) {
            *word |= other;
        }
        both
    }

    /// Unmarks an issued value.
    fn give_back(&mut self, value: u8) {
        if let Some(word) = self.0.get_mut(usize::from(value / 64)) {
            *word &= !(1 << (value % 64));
        }
    }

    /// Issues a fresh value, selected by `random`. Returns `None` if the half is exhausted.
    fn draw(&mut self, random: u32) -> Option<u8> {
        let mut skip = random.checked_rem(self.left())?;
        for (word, base) in self.0.iter_mut().zip([0, 64]) {
            let mut free = !*word;
            if skip >= free.count_ones() {
                skip -= free.count_ones();
                continue;
            }
            for _ in 0..skip {
                free &= free.wrapping_sub(1);
            }
            let bit = free.trailing_zeros();
            *word |= 1 << bit;
            // CAST: A bit number is less than 64.
            return Some(base + bit as u8);
        }
        None
    }
}

/// First value of the upper half.
// CAST: 128 is less than 256.
const UPPER: u8 = HALF as u8;

/// The already-issued low bytes of one hardware slot, of all owners.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    lower: Half,
    /// Values of the upper half that no endpoint may reuse, because a device chose them.
    upper: Half,
    /// Values of the upper half issued to an endpoint that reuses values; another such endpoint may
    /// have them.
    reused: Half,
}

impl Issued {
    /// Returns the number of bytes that [`Issued::draw`] can still issue.
    pub fn left(&self) -> u32 {
        self.lower.left()
    }

    /// Marks `byte` as issued. Returns whether the byte was fresh.
    pub fn take(&mut self, byte: u8) -> bool {
        match byte.checked_sub(UPPER) {
            Some(value) => !self.reused.has(value) && self.upper.take(value),
            None => self.lower.take(byte),
        }
    }

    /// Issues a fresh byte of the lower half, selected by `random`. Returns `None` if the lower
    /// half is exhausted.
    pub fn draw(&mut self, random: u32) -> Option<u8> {
        self.lower.draw(random)
    }

    /// Makes a byte from [`Issued::draw`] fresh again. The byte was in no key, and no caller has
    /// seen it.
    pub fn give_back(&mut self, byte: u8) {
        if byte < UPPER {
            self.lower.give_back(byte);
        }
    }
}

/// The low bytes of one hardware slot already issued to one endpoint that reuses values.
///
/// A byte marked here must first be marked in [`Issued`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IssuedOwn(Half);

impl IssuedOwn {
    /// Returns the number of bytes that [`IssuedOwn::draw`] can still issue. `all`: the slot's
    /// bytes of all owners.
    pub fn left(&self, all: &Issued) -> u32 {
        self.0.and(&all.upper).left()
    }

    /// Marks `byte`, which the device chose, as issued to this endpoint.
    pub fn take(&mut self, byte: u8) {
        if let Some(value) = byte.checked_sub(UPPER) {
            self.0.take(value);
        }
    }

    /// Issues a fresh byte of the upper half, selected by `random`. Returns `None` if none is left.
    ///
    /// Bytes that a device chose for another owner are never issued. After this call, only
    /// endpoints that reuse values can obtain the byte.
    pub fn draw(&mut self, all: &mut Issued, random: u32) -> Option<u8> {
        let value = self.0.and(&all.upper).draw(random)?;
        self.0.take(value);
        all.reused.take(value);
        // Cannot carry: a value of a half is below `UPPER`.
        Some(value | UPPER)
    }

    /// Makes a byte from [`IssuedOwn::draw`] fresh again for this endpoint. The byte was in no key,
    /// and no caller has seen it. Only endpoints that reuse values can obtain the byte, as before.
    pub fn give_back(&mut self, byte: u8) {
        if let Some(value) = byte.checked_sub(UPPER) {
            self.0.give_back(value);
        }
    }
}
