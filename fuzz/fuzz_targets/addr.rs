// SPDX-License-Identifier: MIT OR Apache-2.0

//! Socket addresses as bytes from a program.
//!
//! Input: one byte with the end of the first address; two addresses.

#![no_main]

use kfabric_pure::addr::Address;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&at, bytes)) = input.split_first() else {
        return;
    };
    let (first, second) = bytes.split_at(usize::from(at).min(bytes.len()));
    let (have, want) = (Address::parse(first), Address::parse(second));

    for (raw, parsed) in [(first, have), (second, want)] {
        match parsed {
            Address::None => assert!(raw.is_empty()),
            Address::V4 { .. } => assert!(raw.len() >= 8 && raw[..2] == 2u16.to_ne_bytes()),
            Address::V6 { .. } => assert!(raw.len() >= 28 && raw[..2] == 10u16.to_ne_bytes()),
            Address::Unknown(all) => assert_eq!(all, raw),
        }
        assert!(parsed.serves(&Address::None));
        assert!(parsed.serves(&parsed));
        // Bytes after an address are ignored.
        if matches!(parsed, Address::V4 { .. } | Address::V6 { .. }) {
            let longer = [raw, &[0xff]].concat();
            assert_eq!(Address::parse(&longer), parsed);
        }
    }
    if have.serves(&want) {
        match (have, want) {
            (_, Address::None)
            | (Address::V4 { .. }, Address::V4 { .. })
            | (Address::V6 { .. }, Address::V6 { .. })
            | (Address::Unknown(_), Address::Unknown(_)) => {}
            other => panic!("{other:?}"),
        }
    }
});
