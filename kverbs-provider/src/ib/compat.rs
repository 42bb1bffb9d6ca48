// SPDX-License-Identifier: GPL-2.0
//! Where the supported kernel series differ.

/// A limit of a device's: signed in 7.2, where nothing below 0 is meant, unsigned in 7.3.
pub(super) fn limit(value: impl Into<i64>) -> u32 {
    u32::try_from(value.into()).unwrap_or(0)
}
