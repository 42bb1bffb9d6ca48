// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Division of copies into parts.

use kfabric_pure::parts::{Limit, PART};
use proptest::prelude::*;

const WORD: u64 = 8;

/// Every limit up to a part and some bytes, with lengths around the bounds.
#[test]
fn a_party_copies_whole_parts_or_nothing() {
    for bytes in 0..=PART + 2 * WORD {
        for left in [1, 7, 8, 9, PART - 1, PART, PART + 1, 3 * PART] {
            let whole = left.min(PART);
            let mut limit = Limit::of(bytes);
            let part = limit.next(left);
            let (want, rest) = match whole <= bytes {
                true => (whole, bytes - whole),
                false => (0, 0),
            };
            assert_eq!((part, limit), (want, Limit::of(rest)), "{bytes}, {left}");
            assert_eq!(limit.is_left(), rest > 0);
        }
    }
}

#[test]
fn a_party_without_a_limit_copies_every_part() {
    let mut limit = Limit::NONE;
    for (left, part) in [(3 * PART, PART), (PART + 1, PART), (1, 1), (0, 0)] {
        assert_eq!(limit.next(left), part);
        assert!(limit.is_left());
    }
}

/// Lets parties copy the operations' bytes. Returns the bytes of each operation at which a part begins.
fn copy(lengths: &[u64], mut parties: impl Iterator<Item = u64>) -> Vec<Vec<u64>> {
    let mut limit = Limit::of(0);
    let mut begins = vec![Vec::new(); lengths.len()];
    for (begins, len) in begins.iter_mut().zip(lengths) {
        let mut done = 0;
        while done < *len {
            if !limit.is_left() {
                limit = Limit::of(parties.next().expect("no party without a limit"));
            }
            let part = limit.next(len - done);
            if part > 0 {
                begins.push(done);
            }
            done += part;
        }
    }
    begins
}

proptest! {
    /// A limit that ends within a part leaves the part to the next party. Dividing the part there would
    /// tear a word: this fails for the rule `left.min(PART).min(limit)`.
    #[test]
    fn no_part_of_an_aligned_operation_begins_within_a_word(
        lengths in prop::collection::vec(1..4 * PART, 1..6),
        limits in prop::collection::vec(0..3 * PART, 0..20),
    ) {
        // The last party is a worker without other operations.
        let parties = limits.into_iter().chain([u64::MAX]);
        for (begins, len) in copy(&lengths, parties).iter().zip(&lengths) {
            let want: Vec<u64> = (0..*len).step_by(PART as usize).collect();
            prop_assert_eq!(begins, &want);
            prop_assert!(begins.iter().all(|at| at % WORD == 0));
        }
    }

    /// Each party that begins with the bytes of a part copies at least one.
    #[test]
    fn parties_of_a_part_finish_every_operation(len in 1..64 * PART, spare in 0..PART) {
        let mut done = 0;
        for _ in 0..len.div_ceil(PART) {
            let part = Limit::of(PART + spare).next(len - done);
            prop_assert!(part > 0);
            done += part;
        }
        prop_assert_eq!(done, len);
    }
}
