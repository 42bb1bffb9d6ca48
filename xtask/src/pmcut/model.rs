// SPDX-License-Identifier: MIT OR Apache-2.0

//! A model of durable writes: stores to caches, write-backs, fences and reports of two tasks, as the plug-in
//! logs them. Writers that keep the order report only durable bytes. The check of the log finds a writer
//! that breaks the order exactly when it reports bytes that are not durable.

use super::area::Area;
use super::check::check;
use super::log::{LineBytes, Log, Record};
use super::message::{bytes, sum, Message, Write, AREA, BASE, LINE};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

const SEED: u64 = 7;
/// Bytes of the area that each task writes to.
const SHARE: usize = 4096;
/// Bytes of a part, which a task stores, writes back and fences before the next one.
const PART: usize = 256;

/// What a writer does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    NoWriteBack,
    NoFence,
    LastLine,
    Misplaced,
    Early,
}

const FAULTS: [Fault; 6] = [
    Fault::None,
    Fault::NoWriteBack,
    Fault::NoFence,
    Fault::LastLine,
    Fault::Misplaced,
    Fault::Early,
];

#[derive(Debug, Clone)]
enum Step {
    Begin(Write),
    Store(Write, Range<usize>),
    WriteBack(Range<usize>),
    Fence,
    Report(Write),
}

/// Returns the steps of a write. The fault concerns its last part.
fn steps(write: Write, fault: Fault) -> Vec<Step> {
    let all = write.offset as usize..(write.offset + write.len) as usize;
    let mut steps = vec![Step::Begin(write)];
    let mut at = all.start;
    while at < all.end {
        let end = ((at / PART + 1) * PART).min(all.end);
        let fault = if end == all.end { fault } else { Fault::None };
        steps.push(Step::Store(write, at..end));
        let back = match fault {
            Fault::NoWriteBack => at..at,
            Fault::LastLine => at..(end - 1) / LINE * LINE,
            Fault::Misplaced => at + LINE..end + LINE,
            _ => at..end,
        };
        if !back.is_empty() {
            steps.push(Step::WriteBack(back));
        }
        if fault == Fault::Early {
            steps.push(Step::Report(write));
        }
        if fault != Fault::NoFence {
            steps.push(Step::Fence);
        }
        at = end;
    }
    if fault != Fault::Early {
        steps.push(Step::Report(write));
    }
    steps
}

/// The memory, and the caches before it.
struct Machine {
    cache: Vec<u8>,
    durable: Vec<u8>,
    /// The lines that each task has written back, as they were then.
    noted: [BTreeMap<usize, LineBytes>; 2],
    records: Vec<Record>,
    /// All reported bytes were durable.
    honest: bool,
}

impl Machine {
    fn new() -> Self {
        let hello = Message::Hello {
            address: BASE,
            seed: SEED,
        };
        Self {
            cache: vec![0; AREA],
            durable: vec![0; AREA],
            noted: Default::default(),
            records: vec![Record::Mark(hello.words())],
            honest: true,
        }
    }

    fn line(&self, number: usize) -> LineBytes {
        let at = number * LINE;
        let mut words = [0; LINE / 8];
        for (word, bytes) in words.iter_mut().zip(self.cache[at..].chunks_exact(8)) {
            *word = bytes
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        let offset = at as u64;
        LineBytes { offset, words }
    }

    fn keep(&mut self, lines: Vec<LineBytes>) {
        for line in &lines {
            for (i, word) in line.words.iter().enumerate() {
                let at = line.offset as usize + i * 8;
                self.durable[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        if !lines.is_empty() {
            self.records.push(Record::Durable(lines));
        }
    }

    /// The cache writes a line back on its own. An earlier write-back cannot undo that.
    fn evict(&mut self, number: usize) {
        let line = self.line(number);
        for noted in &mut self.noted {
            noted.remove(&number);
        }
        self.keep(vec![line]);
    }

    fn run(&mut self, task: usize, step: Step) {
        let message = match step {
            Step::Begin(write) => Message::Begin(write),
            Step::Store(write, part) => {
                let new = bytes(SEED, &write);
                let from = write.offset as usize;
                self.cache[part.clone()].copy_from_slice(&new[part.start - from..part.end - from]);
                return;
            }
            Step::WriteBack(part) => {
                for number in part.start / LINE..part.end.div_ceil(LINE) {
                    let line = self.line(number);
                    self.noted[task].insert(number, line);
                }
                return;
            }
            Step::Fence => {
                let noted = std::mem::take(&mut self.noted[task]);
                return self.keep(noted.into_values().collect());
            }
            Step::Report(write) => {
                let new = bytes(SEED, &write);
                let from = write.offset as usize;
                self.honest &= self.durable[from..from + new.len()] == new;
                Message::Durable {
                    number: write.number,
                    sum: sum(&new),
                }
            }
        };
        self.records.push(Record::Mark(message.words()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn check_finds_a_broken_order_if_a_reported_byte_is_lost(
        writes in prop::collection::vec((0..SHARE - 800, 1..800_usize, 0..2 * FAULTS.len()), 1..8),
        order in prop::collection::vec(0..12_usize, 0..200),
        lines in prop::collection::vec(0..2 * SHARE / LINE, 1..20),
    ) {
        let mut tasks: [VecDeque<Step>; 2] = Default::default();
        let mut faultless = true;
        for (i, (offset, len, fault)) in writes.into_iter().enumerate() {
            // Half of the writes have none.
            let fault = FAULTS.get(fault).copied().unwrap_or(Fault::None);
            faultless &= fault == Fault::None;
            let task = i % 2;
            let write = Write {
                number: i as u64 + 1,
                offset: (task * SHARE + offset) as u64,
                len: len as u64,
                by_words: true,
            };
            tasks[task].extend(steps(write, fault));
        }
        let mut machine = Machine::new();
        let mut lines = lines.into_iter().cycle();
        let rest = (0..).map(|i| i % 2);
        for choice in order.into_iter().chain(rest) {
            match choice {
                0..10 => {
                    let task = choice % 2;
                    if let Some(step) = tasks[task].pop_front() {
                        machine.run(task, step);
                    }
                }
                _ => machine.evict(lines.next().unwrap_or(0)),
            }
            if tasks.iter().all(VecDeque::is_empty) {
                break;
            }
        }
        prop_assert!(machine.honest || !faultless, "the order does not make bytes durable");
        let log = Log {
            records: machine.records,
            ..Log::default()
        };
        let verdict = check(&log, &mut vec![0; AREA], Area::start);
        prop_assert_eq!(verdict.faults.is_empty(), machine.honest, "{:?}", verdict.faults);
    }
}
