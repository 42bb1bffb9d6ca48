// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private data of connection messages: what comes from a peer is cut to the
//! data in it, and what is sent is what the other end cuts out.
//!
//! Input: one byte, the room for a message; the rest is the message that came,
//! and the data to be sent.

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

    // Room around the message that must stay as it is.
    let room = usize::from(room);
    let mut out = vec![0xa5; room + 8];
    match encode(bytes, &mut out[..room]) {
        Ok(len) => {
            assert_eq!(len, HEADER + bytes.len());
            assert_eq!(decode(&out[..len]), bytes);
            // The connection manager pads it with whatever it has.
            assert_eq!(decode(&out), bytes);
            assert!(out[len..].iter().all(|byte| *byte == 0xa5));
        }
        Err(TooLong) => {
            assert!(bytes.len() > DATA_MAX || HEADER + bytes.len() > room);
            assert!(out.iter().all(|byte| *byte == 0xa5));
        }
    }
});
