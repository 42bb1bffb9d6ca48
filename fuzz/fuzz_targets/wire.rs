// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private data of connection messages: a peer's message is cut to the data in it, and the other
//! end cuts an encoded message to the same data.
//!
//! Input: one byte with the size of the buffer; the rest is a peer's message, and the data to
//! encode.

#![no_main]

use kfabric_pure::wire::{decode, encode, TooLong, DATA_MAX, HEADER};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&room, bytes)) = input.split_first() else {
        assert!(decode(input).is_empty());
        return;
    };
    let data = decode(bytes);
    match bytes.split_first() {
        None => assert!(data.is_empty()),
        Some((&size, body)) => {
            assert_eq!(data, &body[..usize::from(size).min(body.len())]);
        }
    }

    // Bytes after the buffer, which must not change.
    let room = usize::from(room);
    let mut out = vec![0xa5; room + 8];
    match encode(bytes, &mut out[..room]) {
        Ok(len) => {
            assert_eq!(len, HEADER + bytes.len());
            assert_eq!(decode(&out[..len]), bytes);
            // The connection manager pads the message with arbitrary bytes.
            assert_eq!(decode(&out), bytes);
            assert!(out[len..].iter().all(|byte| *byte == 0xa5));
        }
        Err(TooLong) => {
            assert!(bytes.len() > DATA_MAX || HEADER + bytes.len() > room);
            assert!(out.iter().all(|byte| *byte == 0xa5));
        }
    }
});
