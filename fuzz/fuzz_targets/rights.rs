// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rights of regions and keys. For any bits, a key never has a right that its region lacks, and
//! memory that may change is mapped writable.
//!
//! Input: the region's bits and the key's, eight bytes each.

#![no_main]

use kfabric_pure::rights::*;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let word = |at: usize| {
        let mut bytes = [0; 8];
        let part = input.get(at..).unwrap_or_default();
        let n = part.len().min(8);
        bytes[..n].copy_from_slice(&part[..n]);
        u64::from_le_bytes(bytes)
    };
    let (region, key) = (word(0), word(8));
    if valid_region_access(region) {
        assert!(region != 0 && region & !ALL == 0);
    }
    if valid_key_access(key) {
        assert!(key != 0 && key & !REMOTE == 0);
        assert!(has_remote(key));
    }
    if key_within(key, region) {
        assert!(valid_key_access(key));
        assert_eq!(key & !region, 0);
        assert!(has_remote(region));
        // Memory that a peer may write is mapped writable.
        assert!(key & REMOTE_WRITE == 0 || needs_write(region));
    }
    // An operation that changes memory needs a writable mapping.
    for what in [Use::Recv, Use::Read] {
        assert!(!op_allowed(what, region) || needs_write(region));
    }
    for what in [Use::Send, Use::Recv, Use::Read, Use::Write] {
        assert!(
            !op_allowed(what, region & REMOTE),
            "remote rights are not local ones"
        );
    }
});
