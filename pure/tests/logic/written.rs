// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The ranges that were written since their last commit.

use crate::config;
use kfabric_pure::commit::Range;
use kfabric_pure::written::{Full, Written};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn range(key: u64, addr: u64, len: u64) -> Range {
    Range { key, addr, len }
}

fn all<const N: usize>(mut written: Written<N>, most: u64) -> Vec<Range> {
    std::iter::from_fn(|| written.take(most)).collect()
}

#[test]
fn writes_that_touch_are_one_range() {
    let mut written = Written::<4>::new();
    for (addr, len) in [(100, 10), (120, 10), (110, 10), (90, 10), (95, 3), (200, 0)] {
        assert_eq!(written.note(range(1, addr, len)), Ok(()));
    }
    assert_eq!(written.note(range(2, 130, 10)), Ok(()));
    assert_eq!(all(written, 1 << 20), [range(2, 130, 10), range(1, 90, 40)]);
}

#[test]
fn a_range_that_ends_where_addresses_end_is_kept() {
    let mut written = Written::<2>::new();
    assert_eq!(written.note(range(1, u64::MAX - 9, 10)), Ok(()));
    // Writes beyond the end are refused, so nothing was written.
    assert_eq!(written.note(range(1, u64::MAX, 2)), Ok(()));
    let pieces = all(written, 4);
    let starts = [u64::MAX - 9, u64::MAX - 5, u64::MAX - 1];
    let of = |(i, start): (usize, u64)| range(1, start, [4, 4, 2][i]);
    assert_eq!(
        pieces,
        starts.into_iter().enumerate().map(of).collect::<Vec<_>>()
    );
}

#[test]
fn as_many_keys_as_ranges_leave_no_place_for_another_key() {
    let mut written = Written::<3>::new();
    for key in 0..3 {
        assert_eq!(written.note(range(key, 0, 8)), Ok(()));
    }
    assert_eq!(written.note(range(3, 0, 8)), Err(Full));
    assert_eq!(written.note(range(2, 64, 8)), Ok(()));
    assert_eq!(written.len(), 3);
    assert_eq!(written.take(1 << 20), Some(range(2, 0, 72)));
    assert_eq!(written.note(range(3, 0, 8)), Ok(()));
}

#[test]
fn a_key_is_forgotten_with_all_its_ranges() {
    let mut written = Written::<4>::new();
    for (key, addr) in [(1, 0), (2, 0), (2, 100), (3, 0)] {
        assert_eq!(written.note(range(key, addr, 8)), Ok(()));
    }
    written.forget(2);
    written.forget(7);
    assert_eq!(all(written, 64), [range(3, 0, 8), range(1, 0, 8)]);
}

proptest! {
    #![proptest_config(config())]

    /// Each written byte is in a range. All bytes of a range are between the first and the last written
    /// byte of its key. The ranges do not overlap.
    #[test]
    fn no_written_byte_is_missed(
        writes in prop::collection::vec((0u64..4, 0u64..400, 0u64..24), 1..60),
        most in 1u64..64,
    ) {
        let mut written = Written::<5>::new();
        let mut bytes: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (key, addr, len) in writes {
            // Four keys always fit.
            prop_assert_eq!(written.note(range(key, addr, len)), Ok(()));
            if len > 0 {
                bytes.entry(key).or_default().extend(addr..addr + len);
            }
            prop_assert!(written.len() <= 5);
        }
        let mut seen: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for piece in all(written, most) {
            prop_assert!(piece.len > 0 && piece.len <= most);
            let of_key = &bytes[&piece.key];
            prop_assert!(of_key.first() <= Some(&piece.addr));
            prop_assert!(of_key.last() >= Some(&(piece.addr + piece.len - 1)));
            for byte in piece.addr..piece.addr + piece.len {
                prop_assert!(seen.entry(piece.key).or_default().insert(byte));
            }
        }
        for (key, of_key) in &bytes {
            prop_assert!(of_key.is_subset(&seen[key]));
        }
    }
}
