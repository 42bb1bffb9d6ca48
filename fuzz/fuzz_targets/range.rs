// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ranges: offsets and lengths as a program or a peer may name them, and regions that consist of
//! runs. Results are compared with arithmetic that cannot overflow.
//!
//! Input: offset, length, size (eight bytes each), page shift (one byte), then lengths of runs, two
//! bytes each.

#![no_main]

use kfabric_pure::range::*;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

/// A run: start and length in bytes.
struct Part(u64, u64);

impl Run for Part {
    fn start(&self) -> u64 {
        self.0
    }

    fn bytes(&self) -> u64 {
        self.1
    }
}

fuzz_target!(|input: &[u8]| {
    // Input that is too short is ignored.
    let _ = run(&mut Unstructured::new(input));
});

fn run(input: &mut Unstructured<'_>) -> Result<()> {
    let (offset, len, of): (u64, u64, u64) =
        (input.arbitrary()?, input.arbitrary()?, input.arbitrary()?);
    check(offset, len, of);
    let shift = input.arbitrary::<u8>()?;
    pages(offset, len, shift.into());

    let mut runs = Vec::new();
    let mut total = 0u64;
    while !input.is_empty() && runs.len() < 64 {
        let len = u64::from(input.arbitrary::<u16>()?) + 1;
        runs.push(Part(total, len));
        total += len;
    }
    // Ranges near the region, and anywhere.
    for (offset, len) in [
        (offset, len),
        (offset % (total + 2), len % (total + 2)),
        (total, 0),
        (0, total),
    ] {
        cut(&runs, total, offset, len);
    }
    Ok(())
}

fn check(offset: u64, len: u64, of: u64) {
    let end = u128::from(offset) + u128::from(len);
    let wanted = if end > u128::from(u64::MAX) {
        Err(RangeError::Overflow)
    } else if end > u128::from(of) {
        Err(RangeError::OutOfBounds)
    } else {
        Ok(SubRange { offset, len })
    };
    assert_eq!(sub_range(offset, len, of), wanted);
    if let Ok(range) = wanted {
        assert_eq!(u128::from(range.end()), end);
    }
    let filled = non_empty_sub_range(offset, len, of);
    if len == 0 {
        assert!(filled.is_err());
    } else {
        assert_eq!(filled, wanted);
    }
}

fn pages(addr: u64, len: u64, shift: u32) {
    let end = u128::from(addr) + u128::from(len);
    let wanted = match (shift, len) {
        (64.., _) => None,
        _ if end > 1 << 64 => None,
        (_, 0) => Some(0),
        _ => Some(((end - 1) >> shift) - (u128::from(addr) >> shift) + 1),
    };
    assert_eq!(pages_spanned(addr, len, shift).map(u128::from), wanted);
}

/// The pieces are the range: in order, without a gap, each within its run.
fn cut(runs: &[Part], total: u64, offset: u64, len: u64) {
    let Ok(pieces) = pieces(runs, offset, len) else {
        let end = u128::from(offset) + u128::from(len);
        assert!(end > u128::from(total), "{offset} {len} of {total}");
        return;
    };
    let mut at = offset;
    for piece in pieces {
        let Part(start, bytes) = piece.run;
        assert!(piece.len > 0);
        assert_eq!(start + piece.offset, at);
        assert!(piece.offset + piece.len <= *bytes);
        at += piece.len;
    }
    assert_eq!(at, offset + len);
}
