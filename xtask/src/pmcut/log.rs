// SPDX-License-Identifier: MIT OR Apache-2.0

//! The plug-in's log (`qemu-tests/pmcut/lines.h`).

use super::message::LINE;
use anyhow::{ensure, Context as _, Result};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Offset of the first record.
const START: usize = 4096;
/// `LOG_MAGIC`.
const MAGIC: u64 = u64::from_le_bytes(*b"PMCUTLG1");
/// Kinds of records: fence, mark, store, eviction.
const KINDS: std::ops::RangeInclusive<u32> = 1..=4;
/// Kind of a mark.
const MARK: u32 = 2;

/// A line of the memory, and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LineBytes {
    /// Offset in the memory.
    pub offset: u64,
    pub words: [u64; LINE / 8],
}

/// A record: lines that became durable at one moment, or a message of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// Lines that became durable.
    Durable(Vec<LineBytes>),
    /// The words of a message.
    Mark([u64; LINE / 8]),
}

/// A log that was read.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub records: Vec<Record>,
    /// Number of lines that the guest has written back.
    pub write_backs: u64,
    /// Number of write-backs whose address the plug-in could not translate.
    pub unknown: u64,
    /// Number of fences with lines to make durable.
    pub fences: u64,
    /// Number of lines that the cache wrote back on its own.
    pub evicted: u64,
}

impl Log {
    /// Reads the log of an ended emulator.
    ///
    /// # Errors
    ///
    /// If the file is no log, or records did not fit.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| path.display().to_string())?;
        let mut head = vec![0; START];
        file.read_exact(&mut head)?;
        let [_, end, ..] = Self::head(&head)?;
        let mut records = vec![0; (end as usize).saturating_sub(START)];
        file.read_exact(&mut records)?;
        Self::parse(&head, &records)
    }

    /// Returns the words of the head.
    fn head(head: &[u8]) -> Result<[u64; 12]> {
        let mut words = [0; 12];
        for (to, from) in words.iter_mut().zip(head.chunks_exact(8)) {
            *to = word(from);
        }
        ensure!(words[0] == MAGIC, "no log of the plug-in");
        ensure!(words[2] == 0, "the log is full");
        Ok(words)
    }

    fn parse(head: &[u8], mut rest: &[u8]) -> Result<Self> {
        let head = Self::head(head)?;
        let mut log = Self {
            write_backs: head[5],
            unknown: head[6],
            fences: head[8],
            evicted: head[11],
            ..Self::default()
        };
        while !rest.is_empty() {
            let kind = word(take(&mut rest, 8)?);
            let (kind, count) = (kind as u32, (kind >> 32) as usize);
            ensure!(KINDS.contains(&kind), "a record of kind {kind}");
            take(&mut rest, 8)?;
            let mut lines = Vec::with_capacity(count);
            for line in take(&mut rest, count * (8 + LINE))?.chunks_exact(8 + LINE) {
                let mut words = [0; LINE / 8];
                for (to, from) in words.iter_mut().zip(line[8..].chunks_exact(8)) {
                    *to = word(from);
                }
                let offset = word(line);
                lines.push(LineBytes { offset, words });
            }
            log.records.push(match lines.first() {
                Some(line) if kind == MARK => Record::Mark(line.words),
                _ => Record::Durable(lines),
            });
        }
        Ok(log)
    }
}

/// Returns the word at the start of bytes.
fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Takes bytes from the front.
fn take<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (front, back) = rest.split_at_checked(len).context("a record is cut off")?;
    *rest = back;
    Ok(front)
}

/// Applies lines to the bytes of the memory.
pub(super) fn apply(lines: &[LineBytes], memory: &mut [u8]) {
    for line in lines {
        let at = line.offset as usize;
        let to = memory.get_mut(at..at + LINE).unwrap_or_default();
        for (to, word) in to.chunks_exact_mut(8).zip(line.words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(full: u64) -> Vec<u8> {
        let words = [MAGIC, 0, full, 0, 0, 0, 0, 0, 1, 1, 0, 5];
        words
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect()
    }

    fn record(kind: u64, lines: &[(u64, u64)]) -> Vec<u8> {
        let mut words = vec![kind | (lines.len() as u64) << 32, 1];
        for (offset, word) in lines {
            words.push(*offset);
            words.extend([*word; 8]);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn records_are_read_in_order() {
        let bytes = [record(1, &[(64, 7), (0, 8)]), record(2, &[(128, 9)])].concat();
        let log = Log::parse(&head(0), &bytes).unwrap();
        assert_eq!((log.fences, log.evicted), (1, 5));
        let [Record::Durable(lines), Record::Mark(words)] = log.records.as_slice() else {
            panic!("{log:?}");
        };
        assert_eq!(*words, [9; 8]);
        let mut memory = vec![0; 128];
        apply(lines, &mut memory);
        assert_eq!((word(&memory), word(&memory[120..])), (8, 7));
    }

    #[test]
    fn a_broken_log_is_refused() {
        let bytes = record(1, &[(64, 7)]);
        assert!(Log::parse(&head(0), &bytes[..40]).is_err());
        assert!(Log::parse(&head(0), &record(5, &[])).is_err());
        assert!(Log::parse(&head(1), &bytes).is_err());
        assert!(Log::parse(&[0; 96], &[]).is_err());
    }
}
