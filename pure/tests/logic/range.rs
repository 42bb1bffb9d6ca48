// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::range::{
    largest_page, non_empty_sub_range, pages_spanned, pieces, run_at, sub_range, Piece, RangeError,
    Run, SubRange,
};
use proptest::prelude::*;

/// A run with any start and length.
#[derive(Debug, PartialEq)]
struct Said(u64, u64);

impl Run for Said {
    fn start(&self) -> u64 {
        self.0
    }

    fn bytes(&self) -> u64 {
        self.1
    }
}

/// Returns runs of these lengths, laid end to end.
fn end_to_end(lens: &[u64]) -> Vec<Said> {
    let mut at = 0;
    let run = |len: &u64| {
        at += len;
        Said(at - len, *len)
    };
    lens.iter().map(run).collect()
}

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

/// 4 KiB, 64 KiB and 2 MiB.
const SIZES: u64 = 1 << 12 | 1 << 16 | 1 << 21;
/// All memory may be shown.
const ALL: (u64, u64) = (0, u64::MAX);

#[test]
fn largest_page_of_huge_pages_is_theirs_at_any_offset() {
    const HUGE: u64 = 1 << 21;
    let whole = [(3 * HUGE, HUGE), (9 * HUGE, HUGE)];
    assert_eq!(largest_page(whole, ALL, 0, SIZES), Some(HUGE));
    // A begin and an end within a page.
    let part = [(4 * HUGE - 777, 777), (9 * HUGE, 5)];
    assert_eq!(largest_page(part, ALL, HUGE - 777, SIZES), Some(HUGE));
    // The address has another offset in its huge page, or in its page.
    assert_eq!(
        largest_page(part, ALL, (1 << 16) - 777, SIZES),
        Some(1 << 16)
    );
    assert_eq!(largest_page(part, ALL, 0, SIZES), None);
}

#[test]
fn largest_page_of_scattered_memory_is_the_smallest() {
    let pages = [(0x20_0000, 0x1000), (0x60_1000, 0x1000)];
    assert_eq!(largest_page(pages, ALL, 0, SIZES), Some(0x1000));
    assert_eq!(largest_page(pages, ALL, 0, SIZES & !0x1000), None);
    // The gap is at the begin of the second, or at the end of the first piece only.
    let begin = [(0x20_0000, 0x20_0000), (0x60_1000, 0x1000)];
    assert_eq!(largest_page(begin, ALL, 0, SIZES), Some(0x1000));
    let end = [(0x20_0000, 0x1000), (0x60_0000, 0x20_0000)];
    assert_eq!(largest_page(end, ALL, 0, SIZES), Some(0x1000));
    // Adjacent pieces have no gap.
    let adjacent = [(0x20_0000, 0x1000), (0x20_1000, 0x30_0000)];
    assert_eq!(largest_page(adjacent, ALL, 0, SIZES), Some(1 << 21));
    assert_eq!(largest_page([], ALL, 0, SIZES), None);
    assert_eq!(
        largest_page([(u64::MAX, 1)], (u64::MAX, 0), 0, u64::MAX),
        Some(1)
    );
}

#[test]
fn largest_page_shows_no_memory_outside_the_bounds() {
    const HUGE: u64 = 1 << 21;
    const SMALL: u64 = 1 << 12;
    let window = [(3 * HUGE + 777, HUGE - 777), (9 * HUGE, 5)];
    let page = |begin, end| largest_page(window, (begin, end), HUGE + 777, SIZES);
    assert_eq!(page(3 * HUGE, 10 * HUGE), Some(HUGE));
    assert_eq!(page(2 * HUGE, 11 * HUGE), Some(HUGE));
    // The region begins, or ends, within a huge page.
    assert_eq!(page(3 * HUGE + 1, 10 * HUGE), None);
    assert_eq!(page(3 * HUGE, 10 * HUGE - SMALL), Some(1 << 16));
    assert_eq!(page(3 * HUGE, 9 * HUGE + SMALL), Some(SMALL));
    let late = [(3 * HUGE + SMALL, HUGE)];
    assert_eq!(
        largest_page(late, (3 * HUGE + SMALL, 5 * HUGE), SMALL, SIZES),
        Some(SMALL)
    );
    // Pieces outside the bounds.
    assert_eq!(page(3 * HUGE + 778, 10 * HUGE), None);
    assert_eq!(page(3 * HUGE, 9 * HUGE + 4), None);
}

proptest! {
    /// The page at each byte of the window holds the byte at the same offset.
    #[test]
    fn largest_page_shows_every_byte_at_its_place(
        frames in prop::collection::vec(0u64..6, 1..6),
        (start, len) in (0u64..64, 1u64..64),
        iova in 0u64..64,
        (before, after) in (0u64..40, 0u64..40),
    ) {
        // Frames of 16 bytes; addresses of the window's bytes, and its pieces.
        let bytes: Vec<u64> = frames.iter().flat_map(|f| (0..16).map(move |i| f * 16 + i)).collect();
        let start = (start as usize).min(bytes.len() - 1);
        let window: Vec<u64> = bytes[start..].iter().take(len as usize).copied().collect();
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for addr in &window {
            match pieces.last_mut() {
                Some((first, len)) if *first + *len == *addr => *len += 1,
                _ => pieces.push((*addr, 1)),
            }
        }
        let bounds = (window[0].saturating_sub(before), window[window.len() - 1] + 1 + after);
        let fits = |size: u64| {
            let page = |i: usize| (window[i] / size, (iova + i as u64) / size);
            let offset = |i: usize| window[i] % size == (iova + i as u64) % size;
            // One page of addresses shows one page of memory.
            let begin = window[0] / size * size;
            let end = (window[window.len() - 1] / size + 1) * size;
            begin >= bounds.0 && end <= bounds.1 && (0..window.len()).all(|i| offset(i) && (i == 0 || page(i).1 != page(i - 1).1 || page(i).0 == page(i - 1).0))
        };
        let sizes = [1u64, 2, 4, 8, 16, 32];
        let wanted = sizes.into_iter().rev().find(|size| fits(*size));
        prop_assert_eq!(largest_page(pieces, bounds, iova, 0x3f), wanted);
    }
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
    let runs = end_to_end(&[10, 1, 89, 7]);
    for (offset, run) in [
        (0, 0),
        (9, 0),
        (10, 1),
        (11, 2),
        (99, 2),
        (100, 3),
        (5000, 3),
    ] {
        assert_eq!(run_at(&runs, offset), Some(run), "offset {offset}");
    }
    assert_eq!(run_at::<Said>(&[], 0), None);
}

#[test]
fn a_range_is_cut_at_runs() {
    let runs = end_to_end(&[10, 10, 5]);
    let cut: Vec<_> = pieces(&runs, 5, 18).unwrap().collect();
    let piece = |run: usize, offset, len| Piece {
        run: &runs[run],
        offset,
        len,
    };
    assert_eq!(cut, [piece(0, 5, 5), piece(1, 0, 10), piece(2, 0, 3)]);
    assert_eq!(pieces(&runs, 25, 0).unwrap().count(), 0);
    let error = |runs: &[Said], offset, len| pieces(runs, offset, len).err();
    assert_eq!(error(&runs, 25, 1), Some(RangeError::OutOfBounds));
    assert_eq!(error(&runs, 1, u64::MAX), Some(RangeError::Overflow));
    assert_eq!(error(&[], 0, 1), Some(RangeError::OutOfBounds));
    assert_eq!(pieces::<Said>(&[], 0, 0).unwrap().count(), 0);
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
        let runs = end_to_end(&lens);
        let total: u64 = lens.iter().sum();
        let (offset, len) = (a % (total + 1), b % (total + 1));
        match pieces(&runs, offset, len) {
            Err(error) => {
                prop_assert_eq!(error, RangeError::OutOfBounds);
                prop_assert!(offset + len > total);
            }
            Ok(cut) => {
                let mut at = offset;
                for piece in cut {
                    let Said(start, len) = piece.run;
                    prop_assert!(piece.len > 0);
                    prop_assert!(piece.offset + piece.len <= *len);
                    prop_assert_eq!(start + piece.offset, at);
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
        let runs: Vec<_> = starts.into_iter().map(|start| Said(start, 1)).collect();
        prop_assert_eq!(run_at(&runs, offset), expected);
    }

    /// Invalid runs yield wrong pieces, but no panic and no endless iteration.
    #[test]
    fn hostile_runs_do_no_harm(
        runs in prop::collection::vec(any::<(u64, u64)>(), 0..20),
        offset: u64,
        len: u64,
    ) {
        let runs: Vec<_> = runs.into_iter().map(|(start, len)| Said(start, len)).collect();
        if let Ok(cut) = pieces(&runs, offset, len) {
            let cut: Vec<_> = cut.collect();
            prop_assert!(cut.len() <= runs.len());
            let sum: u128 = cut.iter().map(|piece| u128::from(piece.len)).sum();
            prop_assert!(sum <= u128::from(len));
        }
    }
}
