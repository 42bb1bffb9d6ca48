// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which keys of a hardware slot have been given out.
//!
//! A verbs key is the number of a hardware slot and, in its low eight bits, one that its owner
//! chooses. The slot comes back to us again and again; a key must not (P4): who kept an old one
//! would reach what the new one is for. So each value is given out once, and a slot whose
//! values are gone has no more.
//!
//! An endpoint with keys of its own may ask to reuse what others of that kind have had, because it takes
//! more than there are: its peer reaches nothing else by them, so they must not come again for that one.
//! So the low bytes are in two halves. The lower is drawn from for ever ([`Spent`]), the upper for each
//! endpoint of that kind anew ([`SpentOwn`]), and nothing of the upper is ever drawn for anything else.
//! What a device chooses itself, from both, is taken only if nobody has ever had it, and is drawn by nobody
//! then.

/// Values of a half.
pub const HALF: u32 = 128;

/// Which values of a half are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Half([u64; 2]);

impl Half {
    fn left(&self) -> u32 {
        self.0.iter().map(|word| word.count_zeros()).sum()
    }

    /// Takes one; false when it has been taken before.
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

    /// What is in either.
    fn and(&self, other: &Self) -> Self {
        let mut both = *self;
        for (word, other) in both.0.iter_mut().zip(other.0) {
            *word |= other;
        }
        both
    }

    /// Takes one that is left, which of them is `random`'s to say; `None` when none is.
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
            // CAST: Less than 64.
            return Some(base + bit as u8);
        }
        None
    }
}

/// Where the upper half begins.
// CAST: It is half of a byte's values.
const UPPER: u8 = HALF as u8;

/// The low bytes that keys of one hardware slot have had, whoever had them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    lower: Half,
    /// For ever.
    upper: Half,
    /// As those of endpoints that reuse values, which may have them again.
    reused: Half,
}

impl Spent {
    /// Values that are left to be drawn.
    pub fn left(&self) -> u32 {
        self.lower.left()
    }

    /// Takes `byte`; false when it has been taken before.
    pub fn take(&mut self, byte: u8) -> bool {
        match byte.checked_sub(UPPER) {
            Some(value) => !self.reused.has(value) && self.upper.take(value),
            None => self.lower.take(byte),
        }
    }

    /// Takes one of the lower half that is left, which of them is `random`'s to say; `None` when none
    /// is.
    pub fn draw(&mut self, random: u32) -> Option<u8> {
        self.lower.draw(random)
    }
}

/// The low bytes that keys of one hardware slot have had as those of one endpoint that reuses values.
///
/// What is taken here has to be taken from [`Spent`] first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpentOwn(Half);

impl SpentOwn {
    /// Values that are left to be drawn; `all`: of everybody.
    pub fn left(&self, all: &Spent) -> u32 {
        self.0.and(&all.upper).left()
    }

    /// Takes `byte`, which the device chose, so that it is not drawn any more.
    pub fn take(&mut self, byte: u8) {
        if let Some(value) = byte.checked_sub(UPPER) {
            self.0.take(value);
        }
    }

    /// Takes one of the upper half that is left and is not for ever somebody's, which of them is
    /// `random`'s to say; `None` when none is. From now on nobody has it who does not reuse values.
    pub fn draw(&mut self, all: &mut Spent, random: u32) -> Option<u8> {
        let value = self.0.and(&all.upper).draw(random)?;
        self.0.take(value);
        all.reused.take(value);
        // No more than the last byte.
        Some(value | UPPER)
    }
}
