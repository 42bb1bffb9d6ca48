// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ranges within ranges, pages, and memory that consists of runs.
//!
//! All numbers are bytes unless said otherwise. Nothing here overflows or panics, whatever the
//! input.

/// Why a range was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// It has no bytes, and none is not allowed here.
    Empty,
    /// Offset plus length is more than 64 bits hold.
    Overflow,
    /// It ends behind the end of what it should lie in.
    OutOfBounds,
}

/// `[offset, offset + len)`, known to lie within what it was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl SubRange {
    /// The byte behind the last. Cannot overflow: [`sub_range`] saw to it.
    pub const fn end(&self) -> u64 {
        self.offset.wrapping_add(self.len)
    }
}

/// Checks that `[offset, offset + len)` lies within `[0, of)`. No bytes are fine, also at the end.
///
/// # Errors
///
/// [`RangeError::Overflow`], [`RangeError::OutOfBounds`].
pub const fn sub_range(offset: u64, len: u64, of: u64) -> Result<SubRange, RangeError> {
    match offset.checked_add(len) {
        None => Err(RangeError::Overflow),
        Some(end) if end > of => Err(RangeError::OutOfBounds),
        Some(_) => Ok(SubRange { offset, len }),
    }
}

/// [`sub_range`] of at least one byte, as keys need it.
///
/// # Errors
///
/// Those of [`sub_range`], and [`RangeError::Empty`].
pub const fn non_empty_sub_range(offset: u64, len: u64, of: u64) -> Result<SubRange, RangeError> {
    if len == 0 {
        return Err(RangeError::Empty);
    }
    sub_range(offset, len, of)
}

/// How many pages of `1 << page_shift` bytes `[addr, addr + len)` touches.
///
/// `None`: the range does not fit in an address space of 64 bits (it may end exactly at its end),
/// or the shift is no shift.
pub const fn pages_spanned(addr: u64, len: u64, page_shift: u32) -> Option<u64> {
    if page_shift >= u64::BITS {
        return None;
    }
    if len == 0 {
        return Some(0);
    }
    match addr.checked_add(len - 1) {
        None => None,
        Some(last) => match ((last >> page_shift) - (addr >> page_shift)).checked_add(1) {
            Some(pages) => Some(pages),
            // Only with pages of one byte and all 2^64 of them, which a `len` cannot say.
            None => None,
        },
    }
}

/// A run: bytes that are contiguous in one way or another. Memory is a list of runs laid end to end,
/// e.g. physically contiguous pieces.
///
/// Each starts where the one before ends, and the first at 0. An implementation that breaks this gets
/// wrong pieces, never a panic.
pub trait Run {
    /// Where it starts in the whole.
    fn start(&self) -> u64;

    /// Its bytes; 1 or more.
    fn bytes(&self) -> u64;
}

/// The run that `offset` lies in: the last one that starts at or before it. `None` without one.
///
/// An offset behind the end is in the last run here; the length of the whole is the caller's.
pub fn run_at<R: Run>(runs: &[R], offset: u64) -> Option<usize> {
    runs.partition_point(|run| run.start() <= offset)
        .checked_sub(1)
}

/// The part of one run that a range covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a, R> {
    /// Which run.
    pub run: &'a R,
    /// First byte, counted from the run's start.
    pub offset: u64,
    /// Bytes; never 0.
    pub len: u64,
}

/// Cuts a range into its [`Piece`]s, in order. Made by [`pieces`]; by default of nothing.
pub struct Pieces<'a, R> {
    runs: core::slice::Iter<'a, R>,
    /// Bytes of the next run that come before the range.
    before: u64,
    left: u64,
}

impl<R> Default for Pieces<'_, R> {
    fn default() -> Self {
        Self {
            runs: [].iter(),
            before: 0,
            left: 0,
        }
    }
}

/// Cuts `[offset, offset + len)` of `runs` into pieces of one run each.
///
/// # Errors
///
/// Those of [`sub_range`].
pub fn pieces<R: Run>(runs: &[R], offset: u64, len: u64) -> Result<Pieces<'_, R>, RangeError> {
    let total = runs
        .last()
        .map_or(0, |last| last.start().saturating_add(last.bytes()));
    sub_range(offset, len, total)?;
    let first = run_at(runs, offset).unwrap_or(0);
    let rest = runs.get(first..).unwrap_or_default();
    let start = rest.first().map_or(0, Run::start);
    Ok(Pieces {
        runs: rest.iter(),
        before: offset.saturating_sub(start),
        left: len,
    })
}

impl<'a, R: Run> Iterator for Pieces<'a, R> {
    type Item = Piece<'a, R>;

    #[inline]
    fn next(&mut self) -> Option<Piece<'a, R>> {
        if self.left == 0 {
            return None;
        }
        let run = self.runs.next()?;
        let offset = self.before;
        let len = run.bytes().saturating_sub(offset).min(self.left);
        if len == 0 {
            return None;
        }
        self.before = 0;
        self.left -= len;
        Some(Piece { run, offset, len })
    }
}
