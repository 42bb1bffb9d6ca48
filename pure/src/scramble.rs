// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Unpredictable numbers that never repeat: a counter, encrypted with a secret permutation.
//!
//! The permutation is the block cipher Speck64/128 (Beaulieu et al., 2013). A permutation maps
//! different counters to different numbers. A party without the secret cannot tell the next number
//! from a random one.

/// Rounds of Speck64/128.
const ROUNDS: usize = 27;

/// A secret permutation of the 64-bit numbers.
pub struct Scramble {
    keys: [u32; ROUNDS],
}

const fn round(x: u32, y: u32, key: u32) -> (u32, u32) {
    let x = x.rotate_right(8).wrapping_add(y) ^ key;
    (x, y.rotate_left(3) ^ x)
}

const fn halves(number: u64) -> (u32, u32) {
    // CAST: Takes the low half.
    ((number >> 32) as u32, number as u32)
}

const fn whole(x: u32, y: u32) -> u64 {
    // CAST: Widening; `From` is not const.
    (x as u64) << 32 | y as u64
}

impl Scramble {
    /// Returns the permutation of this secret.
    pub fn new(secret: u128) -> Self {
        // CAST: Takes one quarter each.
        let quarter = |n: u32| (secret >> (32 * n)) as u32;
        let mut more = [quarter(1), quarter(2), quarter(3)];
        let mut key = quarter(0);
        let mut keys = [0; ROUNDS];
        for (i, place) in (0..).zip(&mut keys) {
            *place = key;
            let [first, second, third] = more;
            let (next, k) = round(first, key, i);
            more = [second, third, next];
            key = k;
        }
        Self { keys }
    }

    /// Returns the number that `plain` is mapped to.
    pub fn scramble(&self, plain: u64) -> u64 {
        let (mut x, mut y) = halves(plain);
        for key in &self.keys {
            (x, y) = round(x, y, *key);
        }
        whole(x, y)
    }

    /// Returns the plain number that is mapped to `number`.
    pub fn plain(&self, number: u64) -> u64 {
        let (mut x, mut y) = halves(number);
        for key in self.keys.iter().rev() {
            y = (y ^ x).rotate_right(3);
            x = (x ^ key).wrapping_sub(y).rotate_left(8);
        }
        whole(x, y)
    }
}
