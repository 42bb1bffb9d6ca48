// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of the log, and the search for its records.
//!
//! | bytes | content |
//! |---|---|
//! | 0–7 | the log's number, drawn when the log is created |
//! | 8–15 | a commit word for these 16 bytes |
//! | then, for each record: 8 bytes | the record's commit word |
//! | | the record, filled up to a multiple of 8 bytes |
//!
//! A commit word holds the length of the record and a check of the log's number, the position and
//! the length. The record is made durable first, then its commit word. So a valid word means a whole
//! record, and the first invalid word is the end of the log. Words of an older log, and torn words,
//! do not pass the check but by rare chance. Clients can forge words.

/// Bytes of the longest record.
pub(super) const LONGEST: usize = 65_536;
/// Position of the first record's commit word.
const FIRST: u64 = 16;

/// Returns the commit word of `len` bytes at a position of a log.
pub(super) fn commit_word(log: u64, at: u64, len: u64) -> u64 {
    let mut mixed = log ^ at.rotate_left(32) ^ len;
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ (mixed >> 31)).wrapping_mul(factor);
    }
    (mixed >> 32) << 32 | len
}

/// Returns the commit word of the log's number.
pub(super) fn head_word(log: u64) -> u64 {
    commit_word(log, 8, 8)
}

/// Returns the length in a commit word, if the word is valid.
fn length(log: u64, at: u64, word: u64) -> Option<usize> {
    let len = word & u64::from(u32::MAX);
    let valid = word == commit_word(log, at, len) && (1..=LONGEST as u64).contains(&len);
    valid.then_some(len as usize)
}

/// Returns the number of bytes from a record's commit word to the next one.
pub(super) fn step(len: usize) -> u64 {
    8 + len.next_multiple_of(8) as u64
}

/// The records of a log.
#[derive(Default)]
pub(super) struct Records {
    /// The log's number.
    pub(super) log: u64,
    /// Position and length of each record.
    pub(super) places: Vec<(u64, usize)>,
    /// Position behind the last record.
    pub(super) end: u64,
}

impl Records {
    /// Finds the records of the log in `size` bytes, whose words `read_word` returns. Returns `None`
    /// if there is no log.
    ///
    /// # Errors
    ///
    /// Errors of `read_word`.
    pub(super) fn find<E>(
        size: u64,
        mut read_word: impl FnMut(u64) -> Result<u64, E>,
    ) -> Result<Option<Self>, E> {
        let log = read_word(0)?;
        if read_word(8)? != head_word(log) {
            return Ok(None);
        }
        let mut found = Self {
            log,
            places: Vec::new(),
            end: FIRST,
        };
        while found.end + 8 <= size {
            let Some(len) = length(log, found.end, read_word(found.end)?) else {
                break;
            };
            found.places.push((found.end + 8, len));
            found.end += step(len);
        }
        Ok(Some(found))
    }
}
