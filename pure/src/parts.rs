// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Division of a copy into parts, among parties that may copy a limited number of bytes.
//!
//! An operation's bytes are copied by one party after the other: a poster that must not sleep copies a
//! bounded number of bytes, and a worker goes on. A power failure may fall between two parts. So a limit
//! decides whether a party copies the next part, never how long the part is.

/// Maximum bytes of a part.
pub const PART: u64 = 64 << 10;

/// Bytes that a party may still copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit(Option<u64>);

impl Limit {
    /// The limit of a party that copies any number of bytes.
    pub const NONE: Self = Self(None);

    /// Returns the limit of a party that copies `bytes` at most. Such a party copies a part of its first
    /// operation, if `bytes` is at least [`PART`].
    pub const fn of(bytes: u64) -> Self {
        Self(Some(bytes))
    }

    /// Returns the length of an operation's next part, of which `left` bytes are not copied. If the part
    /// exceeds the limit, returns 0 and leaves no more bytes: another party copies the part.
    ///
    /// Each part but the last one has [`PART`] bytes. So parts begin at multiples of [`PART`] from the
    /// operation's first byte, and divide no aligned word if the operation begins at a word.
    pub fn next(&mut self, left: u64) -> u64 {
        let part = left.min(PART);
        let Some(bytes) = self.0 else {
            return part;
        };
        if part > bytes {
            self.0 = Some(0);
            return 0;
        }
        self.0 = Some(bytes - part);
        part
    }

    /// Returns whether the party may copy more bytes.
    pub const fn is_left(self) -> bool {
        !matches!(self.0, Some(0))
    }
}
