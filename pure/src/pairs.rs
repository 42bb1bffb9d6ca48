// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Copy plan between two lists of contiguous runs: source and destination of each part.

/// A contiguous run: start address and length in bytes.
pub type Run = (usize, usize);

/// A range that is contiguous on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Source address.
    pub from: usize,
    /// Destination address.
    pub to: usize,
    /// Length in bytes; never 0.
    pub len: usize,
}

/// Iterator returned by [`pairs`].
pub struct Pairs<A, B> {
    from: A,
    to: B,
    left: Run,
    right: Run,
}

/// Walks both lists until the shorter one ends. Empty runs are skipped.
pub fn pairs<A, B>(from: A, to: B) -> Pairs<A, B>
where
    A: Iterator<Item = Run>,
    B: Iterator<Item = Run>,
{
    Pairs {
        from,
        to,
        left: (0, 0),
        right: (0, 0),
    }
}

fn fill(run: &mut Run, more: &mut impl Iterator<Item = Run>) -> Option<()> {
    while run.1 == 0 {
        *run = more.next()?;
    }
    Some(())
}

fn advance(run: &mut Run, len: usize) -> usize {
    let at = run.0;
    *run = (at.wrapping_add(len), run.1 - len);
    at
}

impl<A, B> Iterator for Pairs<A, B>
where
    A: Iterator<Item = Run>,
    B: Iterator<Item = Run>,
{
    type Item = Pair;

    fn next(&mut self) -> Option<Pair> {
        fill(&mut self.left, &mut self.from)?;
        fill(&mut self.right, &mut self.to)?;
        let len = self.left.1.min(self.right.1);
        Some(Pair {
            from: advance(&mut self.left, len),
            to: advance(&mut self.right, len),
            len,
        })
    }
}
