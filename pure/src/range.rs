// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Ranges within ranges, pages, and memory that consists of runs.
//!
//! Numbers are bytes unless stated otherwise. No function here overflows or panics, whatever the
//! input.

/// Why a range was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// The range is empty, but must not be.
    Empty,
    /// Offset plus length exceeds 64 bits.
    Overflow,
    /// The range ends beyond the end of the whole.
    OutOfBounds,
}

/// A range `[offset, offset + len)` that was checked to lie within a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubRange {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl SubRange {
    /// Returns the first byte after the range. Cannot overflow: [`sub_range`] has checked the sum.
    pub const fn end(&self) -> u64 {
        self.offset.wrapping_add(self.len)
    }
}

/// Checks that `[offset, offset + len)` lies within `[0, of)`. An empty range is valid, also at the
/// end.
///
/// # Errors
///
/// - [`RangeError::Overflow`] if `offset + len` exceeds 64 bits.
/// - [`RangeError::OutOfBounds`] if the range ends beyond `of`.
pub const fn sub_range(offset: u64, len: u64, of: u64) -> Result<SubRange, RangeError> {
    match offset.checked_add(len) {
        None => Err(RangeError::Overflow),
        Some(end) if end > of => Err(RangeError::OutOfBounds),
        Some(_) => Ok(SubRange { offset, len }),
    }
}

/// As [`sub_range`], but the range must have at least one byte, as a key needs it.
///
/// # Errors
///
/// The errors of [`sub_range`], and [`RangeError::Empty`] if `len` is 0.
pub const fn non_empty_sub_range(offset: u64, len: u64, of: u64) -> Result<SubRange, RangeError> {
    if len == 0 {
        return Err(RangeError::Empty);
    }
    sub_range(offset, len, of)
}

/// Returns the largest page size of `sizes` in which an address space can show `pieces` (address and length,
/// in order) from address `iova` on. `sizes` is a set of powers of two.
///
/// Pages have to begin and end where the pieces do, except at the first piece's begin and the last
/// one's end. `iova` has the same offset in its page as the first piece. Pieces that are adjacent count
/// as one.
///
/// The first and the last page may contain bytes before and behind the pieces. Their begin is at or after
/// `bounds.0`, and their end at or before `bounds.1`: a device gets no page that is partly other memory.
///
/// Returns `None` if no size is right, or there is no piece.
pub fn largest_page(
    pieces: impl IntoIterator<Item = (u64, u64)>,
    bounds: (u64, u64),
    iova: u64,
    sizes: u64,
) -> Option<u64> {
    let mut first = 0;
    let mut end = None;
    let mut fit = sizes;
    for (addr, len) in pieces {
        let borders = match end {
            None => {
                first = addr;
                addr ^ iova
            }
            Some(end) if end != addr => end | addr,
            Some(_) => 0,
        };
        end = Some(addr.wrapping_add(len));
        // A size is right if it divides all borders.
        let lowest = borders & borders.wrapping_neg();
        fit &= lowest | lowest.wrapping_sub(1);
        if fit == 0 {
            return None;
        }
    }
    let end = end?;
    let before = first.checked_sub(bounds.0)?;
    let after = bounds.1.checked_sub(end)?;
    while let Some(shift) = fit.checked_ilog2() {
        let size = 1u64 << shift;
        let within = size - 1;
        if first & within <= before && end.wrapping_neg() & within <= after {
            return Some(size);
        }
        fit ^= size;
    }
    None
}

/// Returns the number of pages of `1 << page_shift` bytes that `[addr, addr + len)` touches.
///
/// Returns `None` if the range exceeds the 64-bit address space (it may end exactly at the end), or
/// if `page_shift` is 64 or more.
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
            // Not reachable: only 2^64 pages of one byte overflow, and `len` is below 2^64.
            None => None,
        },
    }
}

/// A run of contiguous bytes. Memory is a list of runs laid end to end, e.g. physically contiguous
/// parts.
///
/// The first run starts at 0, and each other run starts at the end of the one before. An
/// implementation that breaks this rule gets wrong pieces, never a panic.
pub trait Run {
    /// Returns the start of the run in the whole.
    fn start(&self) -> u64;

    /// Returns the length of the run in bytes, at least 1.
    fn bytes(&self) -> u64;
}

/// Returns the index of the run that contains `offset`: the last run that starts at or before it.
/// Returns `None` if there is no such run.
///
/// An offset beyond the end yields the last run, because the length of the whole is not checked
/// here.
pub fn run_at<R: Run>(runs: &[R], offset: u64) -> Option<usize> {
    runs.partition_point(|run| run.start() <= offset)
        .checked_sub(1)
}

/// The part of one run that a range covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a, R> {
    /// The run.
    pub run: &'a R,
    /// First byte, counted from the start of the run.
    pub offset: u64,
    /// Length in bytes; never 0.
    pub len: u64,
}

/// Iterator over the [`Piece`]s of a range, in order. Returned by [`pieces`]; empty by default.
pub struct Pieces<'a, R> {
    runs: core::slice::Iter<'a, R>,
    /// Bytes of the next run before the start of the range.
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
/// The errors of [`sub_range`].
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
