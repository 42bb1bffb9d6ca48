// SPDX-License-Identifier: GPL-2.0
//! Differences between the supported kernel series.

/// Converts a limit of a device: signed in 7.2, where no value is negative, and unsigned in 7.3.
pub(super) fn limit(value: impl Into<i64>) -> u32 {
    u32::try_from(value.into()).unwrap_or(0)
}
