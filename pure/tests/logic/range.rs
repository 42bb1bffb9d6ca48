// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::range::{
    non_empty_sub_range, pages_spanned, pieces, run_at, sub_range, Piece, RangeError, Runs, RunsBy,
    SubRange,
};
use proptest::prelude::*;

#[test]
fn sub_ranges_at_the_edges() {
    let ok = |offset, len| Ok(SubRange { offset, len });
    assert_eq!(sub_range(0, 0, 0), ok(0, 0));
    assert_eq!(sub_range(0, 10, 10), ok(0, 10));
    assert_eq!(sub_range(10, 0, 10), ok(10, 0));
    assert_eq!(sub_range(11, 0, 10), Err(RangeError::OutOfBounds));
    assert_eq!(sub_range(1, 10, 10), Err(RangeError::OutOfBounds));
    assert_eq!(sub_range(u64::MAX, 1, u64::MAX), Err(RangeError::Overflow));
    assert_eq!(sub_range(u64::MAX, 0, u64::MAX), ok(u64::MAX, 0));
    assert_eq!(sub_range(0, u64::MAX, u64::MAX), ok(0, u64::MAX));
    assert_eq!(non_empty_sub_range(3, 0, 10), Err(RangeError::Empty));
    assert_eq!(non_empty_sub_range(9, 1, 10), ok(9, 1));
    assert_eq!(sub_range(3, 4, 10).unwrap().end(), 7);
}

#[test]
fn pages_at_the_edges() {
    assert_eq!(pages_spanned(0, 0, 12), Some(0));
    assert_eq!(pages_spanned(4095, 0, 12), Some(0));
    assert_eq!(pages_spanned(0, 1, 12), Some(1));
    assert_eq!(pages_spanned(0, 4096, 12), Some(1));
    assert_eq!(pages_spanned(0, 4097, 12), Some(2));
    assert_eq!(pages_spanned(4095, 2, 12), Some(2));
    assert_eq!(pages_spanned(1, 4096, 12), Some(2));
    assert_eq!(pages_spanned(u64::MAX, 1, 12), Some(1));
    assert_eq!(pages_spanned(u64::MAX, 2, 12), None);
    assert_eq!(pages_spanned(0, u64::MAX, 12), Some(1 << 52));
    assert_eq!(pages_spanned(0, u64::MAX, 0), Some(u64::MAX));
    assert_eq!(pages_spanned(7, 1, 63), Some(1));
    assert_eq!(pages_spanned(7, 1, 64), None);
}

#[test]
fn runs_are_found() {
    let starts: &[u64] = &[0, 10, 11, 100];
    for (offset, run) in [
        (0, 0),
        (9, 0),
        (10, 1),
        (11, 2),
        (99, 2),
        (100, 3),
        (5000, 3),
    ] {
        assert_eq!(run_at(starts, offset), Some(run), "offset {offset}");
    }
    assert_eq!(run_at::<[u64]>(&[], 0), None);
    let by = RunsBy {
        count: 4,
        start: |run: usize| starts[run],
    };
    assert_eq!(run_at(&by, 99), Some(2));
}

#[test]
fn a_range_is_cut_at_runs() {
    let starts: &[u64] = &[0, 10, 20];
    let cut: Vec<_> = pieces(starts, 25, 5, 18).unwrap().collect();
    let piece = |run, offset, len| Piece { run, offset, len };
    assert_eq!(cut, [piece(0, 5, 5), piece(1, 0, 10), piece(2, 0, 3)]);
    assert_eq!(pieces(starts, 25, 25, 0).unwrap().count(), 0);
    assert_eq!(
        pieces(starts, 25, 25, 1).err(),
        Some(RangeError::OutOfBounds)
    );
    assert_eq!(
        pieces(starts, 25, 1, u64::MAX).err(),
        Some(RangeError::Overflow)
    );
    assert_eq!(
        pieces::<[u64]>(&[], 25, 0, 1).err(),
        Some(RangeError::OutOfBounds)
    );
    assert_eq!(pieces::<[u64]>(&[], 0, 0, 0).unwrap().count(), 0);
}

/// Runs that break every rule, and say so to whoever asks.
struct Hostile(Vec<u64>);

impl Runs for Hostile {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn start(&self, index: usize) -> u64 {
        self.0[index]
    }
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn sub_range_agrees_with_wide_arithmetic(offset: u64, len: u64, of: u64) {
        let fits = u128::from(offset) + u128::from(len) <= u128::from(of);
        prop_assert_eq!(sub_range(offset, len, of).is_ok(), fits);
        prop_assert_eq!(non_empty_sub_range(offset, len, of).is_ok(), fits && len != 0);
    }

    #[test]
    fn pages_agree_with_wide_arithmetic(
        addr: u64,
        len in prop_oneof![any::<u64>(), 0..100_000u64],
        shift in 0..64u32,
    ) {
        let end = u128::from(addr) + u128::from(len);
        let expected = if len == 0 {
            Some(0)
        } else if end > 1 << 64 {
            None
        } else {
            u64::try_from(((end - 1) >> shift) - (u128::from(addr) >> shift) + 1).ok()
        };
        prop_assert_eq!(pages_spanned(addr, len, shift), expected);
    }

    /// The pieces, laid end to end, are exactly the range.
    #[test]
    fn pieces_cover_exactly(
        lens in prop::collection::vec(1..50u64, 1..40),
        a in 0..3000u64,
        b in 0..3000u64,
    ) {
        let mut starts = vec![];
        let mut total = 0;
        for len in &lens {
            starts.push(total);
            total += len;
        }
        let (offset, len) = (a % (total + 1), b % (total + 1));
        match pieces(starts.as_slice(), total, offset, len) {
            Err(error) => {
                prop_assert_eq!(error, RangeError::OutOfBounds);
                prop_assert!(offset + len > total);
            }
            Ok(cut) => {
                let mut at = offset;
                let mut last_run = None;
                for piece in cut {
                    prop_assert!(piece.len > 0);
                    prop_assert!(piece.offset + piece.len <= lens[piece.run]);
                    prop_assert_eq!(starts[piece.run] + piece.offset, at);
                    prop_assert!(last_run.is_none_or(|run| run + 1 == piece.run));
                    last_run = Some(piece.run);
                    at += piece.len;
                }
                prop_assert_eq!(at, offset + len);
            }
        }
    }

    #[test]
    fn run_at_agrees_with_a_scan(
        mut starts in prop::collection::vec(any::<u64>(), 0..20),
        offset: u64,
    ) {
        starts.sort_unstable();
        let expected = starts.iter().rposition(|start| *start <= offset);
        prop_assert_eq!(run_at(starts.as_slice(), offset), expected);
    }

    /// Runs that are no runs give wrong pieces, no panic and no end without one.
    #[test]
    fn hostile_runs_do_no_harm(
        starts in prop::collection::vec(any::<u64>(), 0..20),
        total: u64,
        offset: u64,
        len: u64,
    ) {
        let runs = Hostile(starts);
        if let Ok(cut) = pieces(&runs, total, offset, len) {
            let cut: Vec<_> = cut.collect();
            prop_assert!(cut.len() <= runs.count());
            let sum: u128 = cut.iter().map(|piece| u128::from(piece.len)).sum();
            prop_assert!(sum <= u128::from(len));
        }
    }
}
