// SPDX-License-Identifier: MIT OR Apache-2.0

//! The check of a power cut at every moment of the log.
//!
//! An [`Expected`] learns from the workload's messages what the memory may contain. It looks at each change
//! of the durable bytes, and at each report that bytes are durable; nothing else can make a cut wrong.

use super::log::{apply, LineBytes, Log, Record};
use super::message::{Message, Write, BASE};

/// Result of the check of a log.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Number of checked cuts.
    pub cuts: usize,
    /// Number of writes that were reported to be durable.
    pub durable: usize,
    /// Number of writes that the target reported first.
    pub arrived: usize,
    /// Number of cuts with a write in flight.
    pub in_flight: usize,
    /// The workload has begun.
    pub begun: bool,
    /// The workload has ended by itself.
    pub ended: bool,
    /// Offset of the area in the memory.
    pub area: usize,
    /// The fault of the first wrong cut, if any.
    pub faults: Vec<String>,
}

/// The contents that the memory may have. `now` is the durable memory from the area's start on.
pub(super) trait Expected {
    /// Handles the begin of a write.
    ///
    /// # Errors
    ///
    /// If the workload may not begin it.
    fn begin(&mut self, write: Write) -> Result<(), String>;

    /// Handles the initiator's report that a write with this checksum is durable.
    ///
    /// # Errors
    ///
    /// If its bytes are not there.
    fn durable(&mut self, number: u64, sum: u64, now: &[u8]) -> Result<(), String>;

    /// Handles the target's report that a write is durable. Returns whether it comes before the
    /// initiator's.
    ///
    /// # Errors
    ///
    /// If the bytes of the write are not there.
    fn arrived(&mut self, number: u64, now: &[u8]) -> Result<bool, String>;

    /// Handles a change of lines, whose offsets count from the memory's start. The area is at the offset
    /// `area`.
    ///
    /// # Errors
    ///
    /// If no write that has begun changes the memory so.
    fn changed(&mut self, lines: &[LineBytes], area: usize, now: &[u8]) -> Result<(), String>;

    /// Returns whether a write is in flight.
    fn in_flight(&self) -> bool;
}

/// Returns the expectation at the begin of a workload with this seed, or the fault of the memory.
pub(super) type Start = fn(seed: u64, now: &[u8]) -> Result<Box<dyn Expected>, String>;

/// Checks every cut of a log. `memory` has the bytes before the log began, and has those of the
/// log's end afterwards.
pub(super) fn check(log: &Log, memory: &mut [u8], start: Start) -> Verdict {
    let mut verdict = Verdict::default();
    let mut expected: Option<Box<dyn Expected>> = None;
    for (number, record) in log.records.iter().enumerate() {
        let seen = match record {
            Record::Durable(lines) => {
                apply(lines, memory);
                let area = verdict.area;
                expected.as_mut().map_or(Ok(()), |expected| {
                    expected.changed(lines, area, &memory[area..])
                })
            }
            Record::Mark(words) => hear(*words, &mut expected, &mut verdict, memory, start),
        };
        if let Some(expected) = &expected {
            verdict.cuts += 1;
            verdict.in_flight += usize::from(expected.in_flight());
        }
        if let Err(why) = seen {
            // All later cuts would show the same.
            verdict
                .faults
                .push(format!("cut at record {number}: {why}"));
            break;
        }
    }
    verdict.begun = expected.is_some();
    verdict
}

/// Handles a message.
fn hear(
    words: [u64; 8],
    expected: &mut Option<Box<dyn Expected>>,
    verdict: &mut Verdict,
    memory: &[u8],
    start: Start,
) -> Result<(), String> {
    let now = &memory[verdict.area..];
    match (Message::of(words), expected) {
        (Some(Message::Hello { address, seed }), expected) => {
            let at = address.wrapping_sub(BASE) as usize;
            let now = memory
                .get(at..)
                .ok_or("the area is outside of the memory")?;
            *expected = Some(start(seed, now)?);
            verdict.area = at;
            Ok(())
        }
        (Some(Message::Begin(write)), Some(expected)) => expected.begin(write),
        (Some(Message::Durable { number, sum }), Some(expected)) => {
            verdict.durable += 1;
            expected.durable(number, sum, now)
        }
        (Some(Message::Arrived { number }), Some(expected)) => {
            verdict.arrived += usize::from(expected.arrived(number, now)?);
            Ok(())
        }
        (Some(Message::End), Some(_)) => {
            verdict.ended = true;
            Ok(())
        }
        (message, _) => Err(format!("unexpected message {message:?} ({words:?})")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::area::Area;
    use super::super::message::{bytes, sum, LEN, LINE};
    use super::*;

    const AT: u64 = 4096;
    const SEED: u64 = 3;

    fn say(message: Message) -> Record {
        Record::Mark(message.words())
    }

    fn write(number: u64, offset: u64, len: u64) -> Write {
        Write {
            number,
            offset,
            len,
            by_words: true,
        }
    }

    fn done(write: Write) -> Record {
        let sum = sum(&bytes(SEED, &write));
        say(Message::Durable {
            number: write.number,
            sum,
        })
    }

    /// Returns the lines of a write to zeroed memory, from the line `from` on.
    fn lines(write: Write, from: usize) -> Record {
        let mut memory = vec![0; LEN as usize];
        let at = (AT + write.offset) as usize;
        memory[at..at + write.len as usize].copy_from_slice(&bytes(SEED, &write));
        let first = at / LINE * LINE;
        let all = (first..at + write.len as usize).step_by(LINE).map(|at| {
            let mut words = [0; LINE / 8];
            for (i, word) in words.iter_mut().enumerate() {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&memory[at + 8 * i..at + 8 * i + 8]);
                *word = u64::from_le_bytes(bytes);
            }
            let offset = at as u64;
            LineBytes { offset, words }
        });
        Record::Durable(all.skip(from).collect())
    }

    fn run(records: Vec<Record>) -> Verdict {
        let hello = say(Message::Hello {
            address: BASE + AT,
            seed: SEED,
        });
        let log = Log {
            records: [vec![hello], records].concat(),
            ..Log::default()
        };
        check(&log, &mut vec![0; LEN as usize], Area::start)
    }

    #[test]
    fn durable_writes_that_are_there_pass() {
        let (a, b) = (write(1, 10, 300), write(2, 1000, 5));
        let verdict = run(vec![
            say(Message::Begin(a)),
            lines(a, 2),
            say(Message::Begin(b)),
            lines(a, 0),
            done(a),
            say(Message::End),
        ]);
        assert_eq!(verdict.faults, Vec::<String>::new());
        assert_eq!((verdict.cuts, verdict.durable), (7, 1));
        assert!(verdict.ended && verdict.in_flight == 6);
    }

    #[test]
    fn a_missing_line_of_a_durable_write_is_found() {
        let a = write(1, 64, 128);
        let begin = say(Message::Begin(a));
        assert!(run(vec![begin.clone(), done(a)]).faults[0].contains("from 0x40"));
        let late = vec![begin.clone(), lines(a, 1), done(a), lines(a, 0)];
        assert!(run(late).faults[0].contains("from 0x40"));
        assert!(run(vec![begin, lines(a, 0), done(a)]).faults.is_empty());
    }

    #[test]
    fn a_completion_at_the_target_before_the_bytes_are_durable_is_found() {
        let a = write(1, 64, 128);
        let begin = say(Message::Begin(a));
        let arrived = say(Message::Arrived { number: 1 });
        let late = vec![begin.clone(), arrived.clone(), lines(a, 0), done(a)];
        assert!(run(late).faults[0].contains("from 0x40"));
        let verdict = run(vec![
            begin.clone(),
            lines(a, 0),
            arrived.clone(),
            done(a),
            say(Message::Begin(write(2, 100, 8))),
        ]);
        assert_eq!(verdict.faults, Vec::<String>::new());
        assert_eq!((verdict.arrived, verdict.durable), (1, 1));
        let last = run(vec![begin, lines(a, 0), done(a), arrived]);
        assert_eq!((last.arrived, last.faults.len()), (0, 0));
    }

    #[test]
    fn a_torn_word_is_found_where_words_are_stored() {
        let a = write(1, 0, 64);
        let Record::Durable(mut torn) = lines(a, 0) else {
            panic!("no lines");
        };
        torn[0].words[3] &= 0xffff;
        let of = |by_words| {
            let begin = Message::Begin(Write { by_words, ..a });
            run(vec![say(begin), Record::Durable(torn.clone())])
        };
        assert!(of(true).faults[0].contains("8 bytes at 0x18"));
        assert!(of(false).faults.is_empty());
    }

    #[test]
    fn a_change_without_a_write_is_found() {
        let a = write(1, 64, 64);
        assert!(!run(vec![lines(a, 0)]).faults.is_empty());
        assert!(!run(vec![done(a)]).faults.is_empty());
        let twice = vec![
            say(Message::Begin(a)),
            say(Message::Begin(write(2, 100, 8))),
        ];
        assert!(!run(twice).faults.is_empty());
        assert!(!check(&Log::default(), &mut [], Area::start).begun);
    }
}
