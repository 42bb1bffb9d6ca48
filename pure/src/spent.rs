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
//! What a device chooses itself, from both, is taken only if nobody has ever had it.

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
    upper: Half,
}

impl Spent {
    /// Values that are left to be drawn.
    pub fn left(&self) -> u32 {
        self.lower.left()
    }

    /// Takes `byte`; false when it has been taken before.
    pub fn take(&mut self, byte: u8) -> bool {
        match byte.checked_sub(UPPER) {
            Some(value) => self.upper.take(value),
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
/// What is drawn here, or taken, has to be taken from [`Spent`] as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpentOwn(Half);

impl SpentOwn {
    /// Values that are left to be drawn.
    pub fn left(&self) -> u32 {
        self.0.left()
    }

    /// Takes `byte`, which the device chose, so that it is not drawn any more.
    pub fn take(&mut self, byte: u8) {
        if let Some(value) = byte.checked_sub(UPPER) {
            self.0.take(value);
        }
    }

    /// Takes one of the upper half that is left, which of them is `random`'s to say; `None` when none
    /// is.
    pub fn draw(&mut self, random: u32) -> Option<u8> {
        // No more than the last byte.
        self.0.draw(random).map(|value| value | UPPER)
    }
}
