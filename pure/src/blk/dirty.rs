// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Marks of the bytes of a disk on persistent memory that were written and not yet committed.
//!
//! Each chunk has one range, which grows to cover all writes to the chunk. A range is counted in parts
//! of a chunk. A mark is set when a write has completed. A flush takes the marks, commits their
//! ranges, and sets them again if a commit fails.

use super::super::sync::{
    AtomicU32,
    AtomicU64,
    Ordering, //
};

/// Base-2 logarithm of the number of parts of a chunk.
const PARTS_SHIFT: u32 = 8;
/// Chunks of one word of the summary.
const GROUP: usize = 64;
/// A range of this chunk is marked; below are its first and its last part.
const MARKED: u32 = 1 << 16;

/// A range of parts of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The chunk.
    pub chunk: u32,
    /// The first part.
    pub first: u8,
    /// The last part.
    pub last: u8,
}

impl Range {
    /// Returns the range of `len` bytes from byte `at` of a chunk on. The bytes are inside of the
    /// chunk, which has `1 << chunk_shift` bytes.
    pub fn of(chunk: u32, at: u64, len: u64, chunk_shift: u32) -> Self {
        let part = |byte: u64| {
            let part = byte.checked_shr(chunk_shift.saturating_sub(PARTS_SHIFT));
            u8::try_from(part.unwrap_or(0)).unwrap_or(u8::MAX)
        };
        Self {
            chunk,
            first: part(at),
            last: part(at.saturating_add(len).saturating_sub(1)),
        }
    }

    /// Returns the first byte in the chunk and the number of bytes. The chunk has `window` bytes of
    /// at most `1 << chunk_shift`.
    pub fn bytes(self, chunk_shift: u32, window: u64) -> (u64, u64) {
        let shift = chunk_shift.saturating_sub(PARTS_SHIFT);
        let start = u64::from(self.first) << shift;
        let end = ((u64::from(self.last) + 1) << shift).min(window);
        (start, end.saturating_sub(start))
    }

    /// Returns the range as a number below `1 << 48`.
    pub fn pack(self) -> u64 {
        u64::from(self.chunk) << 16 | u64::from(self.first) << 8 | u64::from(self.last)
    }

    /// Returns the range of a number that [`Range::pack`] has returned.
    pub fn unpack(number: u64) -> Self {
        // CAST: The parts of the number.
        Self {
            chunk: (number >> 16) as u32,
            first: (number >> 8) as u8,
            last: number as u8,
        }
    }
}

/// The marks of a disk, in memory of the caller.
#[derive(Clone, Copy)]
pub struct Dirty<'a> {
    /// The range of each chunk; 0 if nothing is marked.
    ranges: &'a [AtomicU32],
    /// A bit for each chunk that may be marked.
    groups: &'a [AtomicU64],
}

impl<'a> Dirty<'a> {
    /// Returns the number of words of the summary for `chunks` chunks.
    pub const fn groups(chunks: usize) -> usize {
        chunks.div_ceil(GROUP)
    }

    /// Uses `ranges`, one for each chunk, and `groups`, of which there are [`Dirty::groups`].
    pub fn new(ranges: &'a [AtomicU32], groups: &'a [AtomicU64]) -> Self {
        Self { ranges, groups }
    }

    /// Marks a range. A range of no chunk of the disk is ignored. Context: any.
    pub fn mark(self, range: Range) {
        // CAST: Numbers of chunks fit.
        let chunk = range.chunk as usize;
        let (Some(of), Some(group)) = (self.ranges.get(chunk), self.groups.get(chunk / GROUP))
        else {
            return;
        };
        let mut now = of.load(Ordering::Relaxed);
        loop {
            let (mut first, mut last) = (u32::from(range.first), u32::from(range.last));
            if now & MARKED != 0 {
                first = first.min(now >> 8 & 0xff);
                last = last.max(now & 0xff);
            }
            let new = MARKED | first << 8 | last;
            match of.compare_exchange(now, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        // After the range: who takes this bit finds the range.
        group.fetch_or(1 << (chunk % GROUP), Ordering::AcqRel);
    }

    /// Marks all chunks. Context: any.
    pub fn mark_all(self) {
        for chunk in 0..self.ranges.len() {
            self.mark(Range {
                // CAST: Numbers of chunks fit.
                chunk: chunk as u32,
                first: 0,
                last: u8::MAX,
            });
        }
    }

    /// Returns whether a chunk is marked. Context: any.
    pub fn is_any(self) -> bool {
        let marked = |of: &AtomicU32| of.load(Ordering::Acquire) & MARKED != 0;
        let groups = self.groups.iter().zip(self.ranges.chunks(GROUP));
        groups
            .filter(|(group, _)| group.load(Ordering::Acquire) != 0)
            .any(|(_, ranges)| ranges.iter().any(marked))
    }

    /// Takes the mark of the first marked chunk from `*at` on, and sets `*at` to the chunk behind it.
    /// Returns `None` if no such chunk is marked. Context: any.
    pub fn take(self, at: &mut u32) -> Option<Range> {
        // CAST: Numbers of chunks fit.
        let mut chunk = *at as usize;
        while chunk < self.ranges.len() {
            let group = self.groups.get(chunk / GROUP)?;
            let rest = group.load(Ordering::Acquire) >> (chunk % GROUP);
            if rest == 0 {
                chunk = (chunk / GROUP + 1) * GROUP;
                continue;
            }
            // CAST: A `u32` fits.
            chunk += rest.trailing_zeros() as usize;
            group.fetch_and(!(1 << (chunk % GROUP)), Ordering::AcqRel);
            let marked = self.ranges.get(chunk)?.swap(0, Ordering::AcqRel);
            // CAST: Numbers of chunks fit.
            let found = chunk as u32;
            chunk += 1;
            if marked & MARKED != 0 {
                *at = found + 1;
                return Some(Range {
                    chunk: found,
                    // CAST: The parts of the number.
                    first: (marked >> 8) as u8,
                    last: marked as u8,
                });
            }
        }
        *at = u32::try_from(self.ranges.len()).unwrap_or(u32::MAX);
        None
    }
}
