// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reproducible random numbers: a seed always gives the same choices.

use crate::buf::pattern64;

/// A generator.
#[derive(Clone, Debug)]
pub struct Rng {
    seed: u64,
    next: u64,
}

impl Rng {
    /// Returns the generator of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, next: 0 }
    }

    /// Draws any number.
    pub fn any(&mut self) -> u64 {
        self.next += 1;
        pattern64(self.seed, self.next)
    }

    /// Draws a number below `n`; 0 for 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.any() % n.max(1)
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Picks an element of `from`.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Draws random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.any() as u8).collect()
    }

    /// Draws a number that code often gets wrong: near the limits, near `near`, or any.
    pub fn edge(&mut self, near: u64) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => near.wrapping_sub(1),
            2 => near.wrapping_add(1),
            3 => u64::MAX - self.below(16),
            4 => self.any(),
            _ => near,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_again() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        assert_eq!(a.bytes(100), b.bytes(100));
        assert_ne!(a.any(), Rng::new(8).any());
        assert!((0..1000).all(|_| a.below(3) < 3));
    }
}
