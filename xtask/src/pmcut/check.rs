// SPDX-License-Identifier: MIT OR Apache-2.0

//! The check of a power cut: the bytes that the memory must have at any moment of the log.
//!
//! - Bytes of a write that was reported to be durable, by the initiator or by a completion at the target,
//!   are there, until a later write begins.
//! - Bytes of a write in flight are old or new. A whole aligned word is old or new as a whole, if
//!   the copy stores words and the word is inside one part of the copy.
//! - Nothing else changes.

use super::log::{apply, Log, Record};
use super::message::{bytes, sum, Message, Write, AREA, BASE};
use std::ops::Range;

/// Length in bytes of the parts that kshm copies at a time, from the write's first byte on
/// (`kshm-provider/src/data/budget.rs`). A word across two parts may be torn.
const PART: usize = 64 << 10;

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

/// State of the area, as far as it is known from the messages.
struct Area {
    seed: u64,
    /// The durable bytes.
    known: Vec<u8>,
    /// Writes in flight, with their bytes.
    open: Vec<(Write, Vec<u8>)>,
    /// Numbers and checksums of writes that only the target has reported to be durable.
    arrived: Vec<(u64, u64)>,
}

/// Checks every cut of a log. `memory` has the bytes before the log began, and has those of the
/// log's end afterwards.
pub(super) fn check(log: &Log, memory: &mut [u8]) -> Verdict {
    let mut verdict = Verdict::default();
    let mut area: Option<Area> = None;
    for (number, record) in log.records.iter().enumerate() {
        let step = match record {
            Record::Durable(lines) => {
                apply(lines, memory);
                Ok(())
            }
            Record::Mark(words) => hear(*words, &mut area, &mut verdict, memory),
        };
        let seen = step.and_then(|()| match &area {
            Some(area) => {
                verdict.cuts += 1;
                verdict.in_flight += usize::from(!area.open.is_empty());
                area.look(&memory[verdict.area..verdict.area + AREA])
            }
            None => Ok(()),
        });
        if let Err(why) = seen {
            // All later cuts would show the same.
            verdict
                .faults
                .push(format!("cut at record {number}: {why}"));
            break;
        }
    }
    verdict.begun = area.is_some();
    verdict
}

/// Handles a message.
fn hear(
    words: [u64; 8],
    area: &mut Option<Area>,
    verdict: &mut Verdict,
    memory: &[u8],
) -> Result<(), String> {
    let message = Message::of(words);
    match (message, area) {
        (Some(Message::Hello { address, seed }), area) => {
            let at = address.wrapping_sub(BASE) as usize;
            let known = memory.get(at..at.saturating_add(AREA));
            let known = known.ok_or("the area is outside of the memory")?.to_vec();
            verdict.area = at;
            *area = Some(Area {
                seed,
                known,
                open: Vec::new(),
                arrived: Vec::new(),
            });
            Ok(())
        }
        (Some(Message::Begin(write)), Some(area)) => area.begin(write),
        (Some(Message::Durable { number, sum }), Some(area)) => {
            verdict.durable += 1;
            area.durable(number, sum)
        }
        (Some(Message::Arrived { number }), Some(area)) => {
            verdict.arrived += usize::from(area.arrived(number));
            Ok(())
        }
        (Some(Message::End), Some(_)) => {
            verdict.ended = true;
            Ok(())
        }
        (message, _) => Err(format!("unexpected message {message:?} ({words:?})")),
    }
}

impl Area {
    fn begin(&mut self, write: Write) -> Result<(), String> {
        let end = write.offset.checked_add(write.len);
        let fits = end.is_some_and(|end| end <= AREA as u64);
        let apart = |(other, _): &(Write, Vec<u8>)| {
            other.offset + other.len <= write.offset || write.offset + write.len <= other.offset
        };
        if !fits || !self.open.iter().all(apart) {
            return Err(format!("the workload begins {write:?}"));
        }
        self.open.push((write, bytes(self.seed, &write)));
        Ok(())
    }

    /// Handles a report of the target. Returns whether it comes before the initiator's.
    fn arrived(&mut self, number: u64) -> bool {
        let Some(at) = self.open.iter().position(|(w, _)| w.number == number) else {
            return false;
        };
        let (write, bytes) = self.open.swap_remove(at);
        self.known[range(&write)].copy_from_slice(&bytes);
        self.arrived.push((number, sum(&bytes)));
        true
    }

    fn durable(&mut self, number: u64, reported: u64) -> Result<(), String> {
        if let Some(at) = self.arrived.iter().position(|(of, _)| *of == number) {
            let (_, sum) = self.arrived.swap_remove(at);
            return match sum == reported {
                true => Ok(()),
                false => Err(format!("write {number} wrote other bytes")),
            };
        }
        let at = self.open.iter().position(|(w, _)| w.number == number);
        let at = at.ok_or(format!("write {number} is durable, but not in flight"))?;
        let (write, bytes) = self.open.swap_remove(at);
        if sum(&bytes) != reported {
            return Err(format!("write {number} wrote other bytes"));
        }
        self.known[range(&write)].copy_from_slice(&bytes);
        Ok(())
    }

    /// Compares the area with the known bytes.
    fn look(&self, now: &[u8]) -> Result<(), String> {
        let mut open: Vec<_> = self.open.iter().collect();
        open.sort_by_key(|(write, _)| write.offset);
        let mut from = 0;
        for (write, new) in open {
            let part = range(write);
            self.same(now, from..part.start)?;
            from = part.end;
            self.old_or_new(now, write, new)?;
        }
        self.same(now, from..AREA)
    }

    /// Checks bytes that no write in flight may change.
    fn same(&self, now: &[u8], part: Range<usize>) -> Result<(), String> {
        if now[part.clone()] == self.known[part.clone()] {
            return Ok(());
        }
        let wrong: Vec<usize> = part.filter(|at| now[*at] != self.known[*at]).collect();
        Err(format!(
            "{} bytes from {:#x} on to {:#x} are not those of the last durable write",
            wrong.len(),
            wrong[0],
            wrong[wrong.len() - 1]
        ))
    }

    /// Checks the bytes of a write in flight.
    fn old_or_new(&self, now: &[u8], write: &Write, new: &[u8]) -> Result<(), String> {
        let part = range(write);
        let mut at = part.start;
        while at < part.end {
            let is_word = at.is_multiple_of(8) && at + 8 <= part.end;
            let from = at - part.start;
            let is_whole = write.by_words && from / PART == (from + 7) / PART;
            let step = if is_word && is_whole { 8 } else { 1 };
            let these = at..at + step;
            let is_old = now[these.clone()] == self.known[these.clone()];
            if !is_old && now[these] != new[from..from + step] {
                return Err(format!(
                    "{step} bytes at {at:#x} are neither old nor those of {write:?}"
                ));
            }
            at += step;
        }
        Ok(())
    }
}

fn range(write: &Write) -> Range<usize> {
    let from = write.offset as usize;
    from..from + write.len as usize
}

#[cfg(test)]
mod tests {
    use super::super::log::LineBytes;
    use super::super::message::{LEN, LINE};
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
        check(&log, &mut vec![0; LEN as usize])
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
        assert!(!check(&Log::default(), &mut []).begun);
    }
}
