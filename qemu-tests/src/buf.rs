// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory under test: a pattern against which every byte can be checked, and guard bytes around it
//! that must not change.

use crate::harness::result::WRONG_DATA;
use crate::sys::Map;
use anyhow::{bail, Result};

/// Minimum number of guard bytes on each side.
pub const GUARD: usize = 4096;
const GUARD_WORD: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// Returns the eight pattern bytes of `seed` at word `index` (splitmix64).
pub fn pattern64(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the pattern byte of `seed` at `offset`.
pub fn pattern8(seed: u64, offset: u64) -> u8 {
    pattern64(seed, offset / 8).to_le_bytes()[(offset % 8) as usize]
}

/// Returns `len` pattern bytes from `offset` on.
pub fn pattern_bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| pattern8(seed, offset + i))
        .collect()
}

/// A buffer at any alignment, between guard bytes.
pub struct Buf {
    map: Map,
    start: usize,
    len: usize,
}

impl Buf {
    /// Creates a buffer of `len` bytes from a page's start on.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(len: usize) -> Result<Self> {
        Self::at(len, 0)
    }

    /// Creates a buffer of `len` bytes that begins `skew` bytes into a page.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn at(len: usize, skew: usize) -> Result<Self> {
        let total = GUARD + skew + len + GUARD;
        Ok(Self::inside(
            Map::anon(total.next_multiple_of(4096))?,
            GUARD + skew,
            len,
        ))
    }

    /// Creates a buffer over `len` bytes of a mapping from `start` on, guarded by the rest.
    pub fn inside(map: Map, start: usize, len: usize) -> Self {
        assert!(start + len <= map.len());
        let buf = Self { map, start, len };
        buf.guards(|map, at| map.set(at, GUARD_WORD as u8));
        buf
    }

    /// Creates a buffer over a whole mapping, without guard bytes.
    pub fn whole(map: Map) -> Self {
        let len = map.len();
        Self { map, start: 0, len }
    }

    /// Calls `f` for each guard byte that is near enough to be checked.
    fn guards(&self, mut f: impl FnMut(&Map, usize)) {
        let end = self.start + self.len;
        (self.start.saturating_sub(GUARD)..self.start).for_each(|at| f(&self.map, at));
        (end..self.map.len().min(end + GUARD)).for_each(|at| f(&self.map, at));
    }

    /// Returns the buffer's mapping.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// Returns the buffer's mapping, to change it.
    pub fn map_mut(&mut self) -> &mut Map {
        &mut self.map
    }

    /// Returns the address of the first byte.
    pub fn addr(&self) -> u64 {
        self.map.addr() + self.start as u64
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets every byte.
    pub fn clear(&self, value: u8) {
        let word = u64::from_ne_bytes([value; 8]);
        self.each(
            0,
            self.len,
            |map, at, _| map.set64(at, word),
            |map, at, _| map.set(at, value),
        );
    }

    /// Calls `word` for every eight pattern bytes of a part and `byte` for the remaining bytes.
    fn each(
        &self,
        off: usize,
        len: usize,
        mut word: impl FnMut(&Map, usize, u64),
        mut byte: impl FnMut(&Map, usize, u64),
    ) {
        assert!(off + len <= self.len);
        let at = self.start + off;
        let mut i = 0;
        while i < len && i % 8 == 0 && len - i >= 8 {
            word(&self.map, at + i, i as u64 / 8);
            i += 8;
        }
        (i..len).for_each(|i| byte(&self.map, at + i, i as u64));
    }

    /// Fills the buffer with the pattern of `seed`.
    pub fn fill(&self, seed: u64) {
        self.fill_part(0, self.len, seed);
    }

    /// Fills a part with the pattern of `seed`, which starts with the part.
    pub fn fill_part(&self, off: usize, len: usize, seed: u64) {
        self.each(
            off,
            len,
            |map, at, i| map.set64(at, pattern64(seed, i).to_le()),
            |map, at, i| map.set(at, pattern8(seed, i)),
        );
    }

    /// Checks the buffer against the pattern of `seed`, and the guard bytes.
    ///
    /// # Errors
    ///
    /// At the first byte that differs.
    pub fn check(&self, seed: u64) -> Result<()> {
        self.check_part(0, self.len, seed)?;
        self.check_guards()
    }

    /// Checks a part against the pattern of `seed`, which starts with the part.
    ///
    /// # Errors
    ///
    /// At the first byte that differs.
    pub fn check_part(&self, off: usize, len: usize, seed: u64) -> Result<()> {
        let bad = std::cell::Cell::new(None);
        self.each(
            off,
            len,
            |map, at, i| {
                if bad.get().is_none() && map.get64(at) != pattern64(seed, i).to_le() {
                    bad.set(Some(i * 8));
                }
            },
            |map, at, i| {
                if bad.get().is_none() && map.get(at) != pattern8(seed, i) {
                    bad.set(Some(i));
                }
            },
        );
        let Some(near) = bad.get() else {
            return Ok(());
        };
        let first = (near..len as u64)
            .find(|i| self.get(off + *i as usize) != pattern8(seed, *i))
            .unwrap_or(near);
        let got = self.get(off + first as usize);
        bail!(
            "{WRONG_DATA}byte {first} of {len} is {got:#04x}, not {:#04x}",
            pattern8(seed, first)
        )
    }

    /// Checks that every byte of a part has one value.
    ///
    /// # Errors
    ///
    /// At the first byte that differs.
    pub fn check_value(&self, off: usize, len: usize, value: u8) -> Result<()> {
        match (off..off + len).find(|i| self.get(*i) != value) {
            Some(i) => bail!(
                "{WRONG_DATA}byte {i} is {:#04x}, not {value:#04x}",
                self.get(i)
            ),
            None => Ok(()),
        }
    }

    /// Checks that the guard bytes are unchanged.
    ///
    /// # Errors
    ///
    /// At the first byte that differs.
    pub fn check_guards(&self) -> Result<()> {
        let mut bad = None;
        self.guards(|map, at| {
            if map.get(at) != GUARD_WORD as u8 {
                bad = bad.or(Some(at));
            }
        });
        match bad {
            Some(at) => bail!(
                "{WRONG_DATA}guard byte at {} from the buffer's start was changed",
                at as i64 - self.start as i64
            ),
            None => Ok(()),
        }
    }

    /// Returns the byte at `off`.
    pub fn get(&self, off: usize) -> u8 {
        assert!(off < self.len);
        self.map.get(self.start + off)
    }

    /// Sets the byte at `off`.
    pub fn set(&self, off: usize, value: u8) {
        assert!(off < self.len);
        self.map.set(self.start + off, value);
    }

    /// Returns eight bytes as a number.
    pub fn get64(&self, off: usize) -> u64 {
        assert!(off + 8 <= self.len);
        self.map.get64(self.start + off)
    }

    /// Sets eight bytes.
    pub fn set64(&self, off: usize, value: u64) {
        assert!(off + 8 <= self.len);
        self.map.set64(self.start + off, value);
    }

    /// Copies bytes in.
    pub fn write(&self, off: usize, data: &[u8]) {
        assert!(off + data.len() <= self.len);
        self.map.write(self.start + off, data);
    }

    /// Copies bytes out.
    pub fn read(&self, off: usize, len: usize) -> Vec<u8> {
        assert!(off + len <= self.len);
        let mut out = vec![0; len];
        self.map.read(self.start + off, &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_buffer_checks() {
        for (len, skew) in [(0, 0), (1, 3), (63, 5), (4096, 1), (4097, 4095)] {
            let buf = Buf::at(len, skew).unwrap();
            buf.fill(7);
            buf.check(7).unwrap();
            assert_eq!(buf.read(0, len), pattern_bytes(7, 0, len));
        }
    }

    #[test]
    fn one_wrong_byte_is_found() {
        let buf = Buf::at(100, 1).unwrap();
        buf.fill(1);
        for at in [0, 50, 97, 99] {
            buf.set(at, buf.get(at) ^ 1);
            let text = buf.check(1).unwrap_err().to_string();
            assert!(
                text.starts_with(&format!("{WRONG_DATA}byte {at} of")),
                "{text}"
            );
            buf.set(at, buf.get(at) ^ 1);
        }
        buf.check(1).unwrap();
        assert!(buf.check(2).is_err());
    }

    #[test]
    fn a_touched_guard_is_found() {
        let buf = Buf::at(100, 1).unwrap();
        buf.fill(1);
        buf.map.set(GUARD, 0);
        assert!(buf.check(1).unwrap_err().to_string().contains("-1 from"));
        let buf = Buf::at(100, 0).unwrap();
        buf.map.set(GUARD + 100, 0);
        assert!(buf
            .check_guards()
            .unwrap_err()
            .to_string()
            .contains("100 from"));
    }
}
