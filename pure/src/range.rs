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

/// Memory as a list of runs laid end to end, e.g. physically contiguous pieces.
///
/// Run `i` covers the offsets from `start(i)` to `start(i + 1)`, the last one to the end. Starts
/// ascend (runs have bytes) and the first is 0. An implementation that breaks this gets wrong
/// pieces, never a panic.
pub trait Runs {
    /// How many runs there are.
    fn count(&self) -> usize;

    /// Where run `index` starts; asked only for `index < count()`.
    fn start(&self, index: usize) -> u64;
}

impl Runs for [u64] {
    fn count(&self) -> usize {
        self.len()
    }

    fn start(&self, index: usize) -> u64 {
        self.get(index).copied().unwrap_or(u64::MAX)
    }
}

/// [`Runs`] of anything: a count and a function that knows the starts.
#[derive(Clone, Copy)]
pub struct RunsBy<F> {
    /// How many runs there are.
    pub count: usize,
    /// Where run `index` starts.
    pub start: F,
}

impl<F: Fn(usize) -> u64> Runs for RunsBy<F> {
    fn count(&self) -> usize {
        self.count
    }

    fn start(&self, index: usize) -> u64 {
        (self.start)(index)
    }
}

/// The run that `offset` lies in: the last one that starts at or before it. `None` without one.
///
/// An offset behind the end is in the last run here; the length of the whole is the caller's.
pub fn run_at<R: Runs + ?Sized>(runs: &R, offset: u64) -> Option<usize> {
    let (mut low, mut high) = (0, runs.count());
    // Runs below `low` start at or before the offset, those from `high` on behind it.
    while low < high {
        let middle = low + (high - low) / 2;
        if runs.start(middle) <= offset {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.checked_sub(1)
}

/// The part of one run that a range covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which run.
    pub run: usize,
    /// First byte, counted from the run's start.
    pub offset: u64,
    /// Bytes; never 0.
    pub len: u64,
}

/// Cuts a range into its [`Piece`]s, in order. Made by [`pieces`].
pub struct Pieces<'a, R: Runs + ?Sized> {
    runs: &'a R,
    total: u64,
    run: usize,
    /// Where `run` starts: asked for once.
    start: u64,
    at: u64,
    end: u64,
}

impl<R: Runs + ?Sized> Clone for Pieces<'_, R> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

/// Cuts `[offset, offset + len)` of `runs`, which have `total` bytes, into pieces of one run each.
///
/// # Errors
///
/// Those of [`sub_range`]; [`RangeError::OutOfBounds`] also when there are bytes but no runs.
pub fn pieces<R: Runs + ?Sized>(
    runs: &R,
    total: u64,
    offset: u64,
    len: u64,
) -> Result<Pieces<'_, R>, RangeError> {
    let range = sub_range(offset, len, total)?;
    let (run, start) = match run_at(runs, offset) {
        Some(run) => (run, runs.start(run)),
        None if len == 0 => (0, 0),
        None => return Err(RangeError::OutOfBounds),
    };
    Ok(Pieces {
        runs,
        total,
        run,
        start,
        at: offset,
        end: range.end(),
    })
}

impl<R: Runs + ?Sized> Iterator for Pieces<'_, R> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        let (run, count) = (self.run, self.runs.count());
        if run >= count {
            return None;
        }
        let run_end = match run + 1 {
            next if next < count => self.runs.start(next),
            _ => self.total,
        };
        let offset = self.at.checked_sub(self.start)?;
        let len = run_end.min(self.end).checked_sub(self.at)?;
        if len == 0 {
            return None;
        }
        self.at += len;
        self.run += 1;
        self.start = run_end;
        Some(Piece { run, offset, len })
    }
}
