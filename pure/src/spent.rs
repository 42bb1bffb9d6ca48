// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which keys of a hardware slot have been given out.
//!
//! A verbs key is the number of a hardware slot and, in its low eight bits, one that its owner
//! chooses. The slot comes back to us again and again; a key must not (P4): who kept an old one
//! would reach what the new one is for. So each value is given out once, and a slot whose 256
//! values are gone has no more.

/// The low bytes that keys of one hardware slot have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent([u64; 4]);

impl Spent {
    /// None yet.
    pub const fn new() -> Self {
        Self([0; 4])
    }

    /// Values that are left.
    pub fn left(&self) -> u32 {
        self.0.iter().map(|word| word.count_zeros()).sum()
    }

    /// Takes `byte`; false when it has been taken before.
    pub fn take(&mut self, byte: u8) -> bool {
        let bit = 1 << (byte % 64);
        let Some(word) = self.0.get_mut(usize::from(byte / 64)) else {
            return false;
        };
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Takes one that is left, which of them is `random`'s to say; `None` when none is.
    pub fn draw(&mut self, random: u32) -> Option<u8> {
        let mut skip = random.checked_rem(self.left())?;
        for (word, base) in self.0.iter_mut().zip([0, 64, 128, 192]) {
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
