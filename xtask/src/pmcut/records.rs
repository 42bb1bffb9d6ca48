// SPDX-License-Identifier: MIT OR Apache-2.0

//! The contents of a log of `kfi-pmlog`, found as the program finds them.
//!
//! - All records are there that were there at the begin, or were reported to be durable, in this order.
//! - The record in flight may follow.

use super::check::Expected;
use super::log::LineBytes;
use super::message::{sum, text, Write};
use anyhow::{Error, Result};
use std::convert::Infallible;

/// The program's own view of the bytes.
#[path = "../../../examples/program/src/bin/kfi-pmlog/format.rs"]
mod format;

/// State of the log, as far as it is known from the messages.
pub(super) struct Records {
    seed: u64,
    /// The log's number.
    log: u64,
    /// The records that have to be there.
    known: Vec<Vec<u8>>,
    /// The record in flight.
    open: Option<(Write, Vec<u8>)>,
    /// Position behind the last record at the last look.
    end: usize,
}

/// Finds the records in the durable memory.
fn find(now: &[u8]) -> Result<format::Records, String> {
    let word = |at: u64| -> Result<u64, Infallible> {
        let bytes = now[at as usize..].first_chunk();
        Ok(bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    };
    let Ok(found) = format::Records::find(now.len() as u64, word);
    found.ok_or("there is no log".into())
}

/// Returns the bytes of each record.
fn bytes<'a>(found: &format::Records, now: &'a [u8]) -> Vec<&'a [u8]> {
    let of = |(at, len): &(u64, usize)| {
        let rest = now.get(*at as usize..).unwrap_or_default();
        rest.get(..*len).unwrap_or_default()
    };
    found.places.iter().map(of).collect()
}

/// Returns the output of `kfi-pmlog show` for the durable memory.
///
/// # Errors
///
/// If there is no log.
pub(super) fn shown(now: &[u8]) -> Result<Vec<u8>> {
    let found = find(now).map_err(Error::msg)?;
    let line = |(number, record): (usize, &[u8])| {
        format!("{number}: {}\n", String::from_utf8_lossy(record))
    };
    let lines: String = bytes(&found, now)
        .into_iter()
        .enumerate()
        .map(line)
        .collect();
    Ok(lines.into_bytes())
}

impl Records {
    /// Returns the expectation that the log keeps its present records.
    pub(super) fn start(seed: u64, now: &[u8]) -> Result<Box<dyn Expected>, String> {
        let found = find(now)?;
        Ok(Box::new(Self {
            seed,
            log: found.log,
            known: bytes(&found, now).into_iter().map(Vec::from).collect(),
            open: None,
            end: found.end as usize,
        }))
    }

    /// Compares the records.
    fn look(&mut self, now: &[u8]) -> Result<(), String> {
        let found = find(now)?;
        self.end = found.end as usize;
        if found.log != self.log {
            return Err("there is another log".into());
        }
        let found = bytes(&found, now);
        let open = self.open.iter().map(|(_, record)| record);
        let mut allowed = self.known.iter().chain(open);
        if found.len() < self.known.len() {
            let all = self.known.len();
            return Err(format!("{} of {all} records are there", found.len()));
        }
        for (number, record) in found.into_iter().enumerate() {
            let allowed = allowed.next();
            let allowed = allowed.ok_or(format!("record {number} was not appended"))?;
            if record != allowed {
                return Err(format!("record {number} has other bytes"));
            }
        }
        Ok(())
    }
}

impl Expected for Records {
    /// A record that was in flight is given up: the program was killed, and has not recovered it.
    fn begin(&mut self, write: Write) -> Result<(), String> {
        self.open = Some((write, text(self.seed, &write)));
        Ok(())
    }

    fn durable(&mut self, number: u64, reported: u64, now: &[u8]) -> Result<(), String> {
        let open = self.open.take().filter(|(write, _)| write.number == number);
        let (_, record) = open.ok_or(format!("record {number} is durable, but not in flight"))?;
        if sum(&record) != reported {
            return Err(format!("record {number} has other bytes"));
        }
        self.known.push(record);
        self.look(now)
    }

    fn arrived(&mut self, number: u64, _now: &[u8]) -> Result<bool, String> {
        Err(format!("record {number} has no completion at the target"))
    }

    fn changed(&mut self, lines: &[LineBytes], area: usize, now: &[u8]) -> Result<(), String> {
        // The search for records reads no byte behind the first invalid commit word.
        let end = area + self.end + 8;
        match lines.iter().any(|line| (line.offset as usize) < end) {
            true => self.look(now),
            false => Ok(()),
        }
    }

    fn in_flight(&self) -> bool {
        self.open.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check, Verdict};
    use super::super::log::{Log, Record};
    use super::super::message::{Message, BASE, LEN, LINE};
    use super::*;

    const SEED: u64 = 3;
    const NUMBER: u64 = 77;
    /// Position of the first record's commit word.
    const FIRST: usize = 16;

    fn say(message: Message) -> Record {
        Record::Mark(message.words())
    }

    fn write(number: u64, len: u64) -> Write {
        Write {
            number,
            offset: 0,
            len,
            by_words: false,
        }
    }

    fn done(write: Write) -> Record {
        let sum = sum(&text(SEED, &write));
        let number = write.number;
        say(Message::Durable { number, sum })
    }

    /// The bytes of a log, and the lines that change.
    struct Bytes(Vec<u8>);

    impl Bytes {
        fn new() -> Self {
            let mut bytes = vec![0; LEN as usize];
            bytes[..8].copy_from_slice(&NUMBER.to_le_bytes());
            bytes[8..16].copy_from_slice(&format::head_word(NUMBER).to_le_bytes());
            Self(bytes)
        }

        /// Writes bytes, and returns their lines.
        fn put(&mut self, at: usize, bytes: &[u8]) -> Record {
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
            let line = |at: usize| {
                let mut words = [0; LINE / 8];
                for (word, bytes) in words.iter_mut().zip(self.0[at..].chunks_exact(8)) {
                    *word = u64::from_le_bytes(*bytes.first_chunk().unwrap());
                }
                let offset = at as u64;
                LineBytes { offset, words }
            };
            let first = at / LINE * LINE;
            let lines = (first..at + bytes.len()).step_by(LINE);
            Record::Durable(lines.map(line).collect())
        }

        fn record(&mut self, at: usize, write: Write) -> Record {
            self.put(at + 8, &text(SEED, &write))
        }

        fn word(&mut self, at: usize, len: u64) -> Record {
            let word = format::commit_word(NUMBER, at as u64, len);
            self.put(at, &word.to_le_bytes())
        }
    }

    fn run(records: Vec<Record>) -> Verdict {
        let hello = say(Message::Hello {
            address: BASE,
            seed: SEED,
        });
        let log = Log {
            records: [vec![hello], records].concat(),
            ..Log::default()
        };
        check(&log, &mut Bytes::new().0, Records::start)
    }

    #[test]
    fn records_in_order_pass_and_are_shown() {
        let (a, b) = (write(1, 100), write(2, 30));
        let mut bytes = Bytes::new();
        let next = FIRST + format::step(100) as usize;
        let log = vec![
            say(Message::Begin(a)),
            bytes.record(FIRST, a),
            bytes.word(FIRST, 100),
            done(a),
            say(Message::Begin(write(9, 40))),
            bytes.record(next, write(9, 40)),
            say(Message::Begin(b)),
            bytes.record(next, b),
            bytes.word(next, 30),
        ];
        let verdict = run(log);
        assert_eq!(verdict.faults, Vec::<String>::new());
        assert_eq!((verdict.durable, verdict.in_flight), (1, 8));
        let shown = String::from_utf8(shown(&bytes.0).unwrap()).unwrap();
        let text = |write| String::from_utf8(text(SEED, &write)).unwrap();
        assert_eq!(shown, format!("0: {}\n1: {}\n", text(a), text(b)));
    }

    #[test]
    fn a_commit_word_before_its_record_is_found() {
        let a = write(1, 300);
        let mut bytes = Bytes::new();
        let log = vec![say(Message::Begin(a)), bytes.word(FIRST, 300)];
        assert!(run(log).faults[0].contains("record 0 has other bytes"));
    }

    #[test]
    fn a_missing_record_is_found_when_it_is_reported() {
        let a = write(1, 300);
        let mut bytes = Bytes::new();
        let begin = say(Message::Begin(a));
        let log = vec![begin.clone(), bytes.record(FIRST, a), done(a)];
        assert!(run(log).faults[0].contains("0 of 1 records"));
        let log = vec![begin, done(write(2, 300))];
        assert!(run(log).faults[0].contains("not in flight"));
    }

    #[test]
    fn a_record_that_was_given_up_is_found_if_it_comes_back() {
        let (a, b) = (write(1, 20), write(2, 40));
        let mut bytes = Bytes::new();
        let log = vec![
            say(Message::Begin(a)),
            say(Message::Begin(b)),
            bytes.record(FIRST, a),
            bytes.word(FIRST, 20),
        ];
        assert!(run(log).faults[0].contains("record 0 has other bytes"));
    }

    #[test]
    fn a_record_without_an_append_is_found() {
        let mut bytes = Bytes::new();
        let log = vec![bytes.record(FIRST, write(1, 20)), bytes.word(FIRST, 20)];
        assert!(run(log).faults[0].contains("was not appended"));
        let log = vec![bytes.put(0, &[0; 8])];
        assert!(run(log).faults[0].contains("no log"));
    }
}
