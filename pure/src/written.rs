// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ranges that an endpoint has written since they were last committed.
//!
//! One-sided writes are known to the initiator alone. A consumer that commits everything at certain
//! moments notes each write here, and then commits the ranges that [`Written::take`] returns. A range is
//! noted again if its commit was not posted, or completed with an error. Before a key is revoked, its
//! ranges are committed or forgotten: the peer counts commits under keys that have ended.

use super::commit::Range;

/// A range of bytes, with the address of its last byte so that it can end where addresses end.
#[derive(Clone, Copy, Debug)]
struct Span {
    key: u64,
    first: u64,
    last: u64,
}

impl Span {
    const NONE: Self = Self {
        key: 0,
        first: 0,
        last: 0,
    };

    /// Returns whether a range of the same key overlaps this one or borders on it.
    fn touches(&self, other: &Self) -> bool {
        self.key == other.key
            && self.first <= other.last.saturating_add(1)
            && other.first <= self.last.saturating_add(1)
    }

    /// Returns the bytes between this range and a later one of the same key.
    fn gap(&self, later: &Self) -> Option<u64> {
        (self.key == later.key).then(|| later.first.saturating_sub(self.last))
    }

    /// Returns the shortest range that has the bytes of both, which have the same key.
    fn with(&self, other: &Self) -> Self {
        Self {
            key: self.key,
            first: self.first.min(other.first),
            last: self.last.max(other.last),
        }
    }
}

/// The set has `N` ranges, each of another key. The consumer commits these, and then notes its write again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// At most `N` ranges that were written.
///
/// Writes that touch are one range. If more ranges are needed, the two of one key with the fewest bytes
/// between them become one. A commit of bytes that were not written is harmless: they are between two
/// ranges of one key, so the key permits it.
#[derive(Clone, Debug)]
pub struct Written<const N: usize> {
    /// Sorted by key and address. No two touch.
    spans: [Span; N],
    len: usize,
}

impl<const N: usize> Written<N> {
    /// Returns an empty set.
    pub const fn new() -> Self {
        Self {
            spans: [Span::NONE; N],
            len: 0,
        }
    }

    /// Returns the number of ranges.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Notes a write that was posted. A range that passes the end of addresses is ignored: no write to it
    /// is accepted.
    ///
    /// # Errors
    ///
    /// - [`Full`] if `N` ranges of other keys were written, no two of the same key. Nothing is noted.
    pub fn note(&mut self, range: Range) -> Result<(), Full> {
        let last = |more| range.addr.checked_add(more);
        let Some(last) = range.len.checked_sub(1).and_then(last) else {
            return Ok(());
        };
        let mut new = Span {
            key: range.key,
            first: range.addr,
            last,
        };
        let at = self.unite(&mut new);
        if self.len == N {
            return self.squeeze(new, at);
        }
        self.insert(at, new);
        Ok(())
    }

    /// Forgets the ranges of a key.
    pub fn forget(&mut self, key: u64) {
        let mut kept = 0;
        for at in 0..self.len {
            if self.spans[at].key != key {
                self.spans[kept] = self.spans[at];
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Removes and returns a range of at most `most` bytes; `None` if there is none.
    pub fn take(&mut self, most: u64) -> Option<Range> {
        let end = self.len.checked_sub(1)?;
        let span = self.spans.get_mut(end)?;
        let rest = span.last - span.first;
        let len = match rest.checked_add(1) {
            Some(len) => len.min(most.max(1)),
            None => most.max(1),
        };
        let range = Range {
            key: span.key,
            addr: span.first,
            len,
        };
        match rest.checked_sub(len) {
            Some(_) => span.first += len,
            None => self.len = end,
        }
        Some(range)
    }

    /// Removes the ranges that touch `new`, and adds their bytes to it. Returns the place of `new`.
    fn unite(&mut self, new: &mut Span) -> usize {
        let spans = &self.spans[..self.len];
        let before = |span: &Span| (span.key, span.last.saturating_add(1)) < (new.key, new.first);
        let at = spans.partition_point(before);
        let touching = |span: &&Span| span.touches(new);
        let count = spans[at..].iter().take_while(touching).count();
        for span in &spans[at..at + count] {
            *new = new.with(span);
        }
        self.spans.copy_within(at + count..self.len, at);
        self.len -= count;
        at
    }

    fn insert(&mut self, at: usize, new: Span) {
        self.spans.copy_within(at..self.len, at + 1);
        self.spans[at] = new;
        self.len += 1;
    }

    /// Inserts `new` at a place of a full set, and makes two ranges of one key one.
    fn squeeze(&mut self, new: Span, at: usize) -> Result<(), Full> {
        let behind = |i: usize| Some((self.spans[i].gap(self.spans.get(i + 1)?)?, i));
        let old = (0..N).filter(|i| i + 1 != at).filter_map(behind).min();
        let left = at.checked_sub(1).and_then(|i| self.spans[i].gap(&new));
        let right = self.spans.get(at).and_then(|span| new.gap(span));
        let beside = match (left, right) {
            (Some(left), Some(right)) if left <= right => Some((left, at - 1)),
            (_, Some(right)) => Some((right, at)),
            (Some(left), None) => Some((left, at - 1)),
            (None, None) => None,
        };
        match (old, beside) {
            (_, Some((near, i))) if old.is_none_or(|(gap, _)| near <= gap) => {
                self.spans[i] = self.spans[i].with(&new);
            }
            (Some((_, i)), _) => {
                self.spans[i] = self.spans[i].with(&self.spans[i + 1]);
                self.spans.copy_within(i + 2..N, i + 1);
                self.len -= 1;
                self.insert(if i < at { at - 1 } else { at }, new);
            }
            _ => return Err(Full),
        }
        Ok(())
    }
}

impl<const N: usize> Default for Written<N> {
    fn default() -> Self {
        Self::new()
    }
}
