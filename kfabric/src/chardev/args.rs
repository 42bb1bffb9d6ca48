// SPDX-License-Identifier: GPL-2.0
//! Checks and conversions of the fields of calls.

use kernel::prelude::*;

use crate::uapi::SockAddr;

/// Converts a result to the structures' form: a positive errno, or 0.
#[inline(never)]
pub(super) fn errno(result: Result) -> u32 {
    result.map_or_else(|e| e.to_errno().unsigned_abs(), |()| 0)
}

/// Refuses flags and reserved fields that are not zero.
pub(super) fn zero(values: &[u32]) -> Result {
    if values.iter().any(|value| *value != 0) {
        return Err(EINVAL);
    }
    Ok(())
}

/// Refuses an invalid address.
pub(super) fn check_addr(addr: &SockAddr) -> Result {
    match (addr.len, u16::from_ne_bytes([addr.data[0], addr.data[1]])) {
        (0, 0) | (16, 2) | (28, 10) => Ok(()),
        // A service name, which is not empty.
        (28, 1) if addr.data[2] != 0 => Ok(()),
        _ => Err(EINVAL),
    }
}
