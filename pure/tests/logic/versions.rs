// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The versions of protocols, as the document states them.

use kfabric_pure::{blk, proof};

const TEXT: &str = include_str!("../../../docs/versioning.md");

/// The first number of a table row's second column.
fn stated(row: &str) -> u8 {
    let line = TEXT.lines().find(|line| line.contains(row)).expect(row);
    let cell = line.split('|').nth(2).expect(row);
    let digits: String = cell
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().expect(row)
}

#[test]
fn document_of_versions_states_those_of_the_protocols() {
    assert_eq!(stated("`pure/src/proof.rs`"), proof::VERSION);
    assert_eq!(stated("`pure/src/blk.rs`"), blk::VERSION);
}
