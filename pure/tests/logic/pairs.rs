// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::pairs::{pairs, Run};
use proptest::prelude::*;

/// Lays out runs of these lengths with gaps between them. Returns the runs and each byte's address.
fn lay(lens: &[usize], base: usize) -> (Vec<Run>, Vec<usize>) {
    let mut at = base;
    let mut runs = Vec::new();
    let mut bytes = Vec::new();
    for len in lens {
        runs.push((at, *len));
        bytes.extend(at..at + len);
        at += len + 7;
    }
    (runs, bytes)
}

#[test]
fn runs_are_cut_where_either_side_ends() {
    let from = [(10, 4), (100, 2)];
    let to = [(50, 3), (0, 0), (70, 9)];
    let got: Vec<_> = pairs(from.into_iter(), to.into_iter())
        .map(|p| (p.from, p.to, p.len))
        .collect();
    assert_eq!(got, [(10, 50, 3), (13, 70, 1), (100, 71, 2)]);
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn every_byte_goes_where_it_belongs(
        left in prop::collection::vec(0usize..9, 0..8),
        right in prop::collection::vec(0usize..9, 0..8),
    ) {
        let (from, wanted_from) = lay(&left, 1000);
        let (to, wanted_to) = lay(&right, 9000);
        let mut got = Vec::new();
        for pair in pairs(from.into_iter(), to.into_iter()) {
            prop_assert!(pair.len > 0);
            got.extend((0..pair.len).map(|i| (pair.from + i, pair.to + i)));
        }
        let wanted: Vec<_> = wanted_from.into_iter().zip(wanted_to).collect();
        prop_assert_eq!(got, wanted);
    }
}
