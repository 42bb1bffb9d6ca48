// SPDX-License-Identifier: MIT OR Apache-2.0

//! The contents of an area to which the workload writes at random.
//!
//! - Bytes of a write that was reported to be durable, by the initiator or by a completion at the target,
//!   are there, until a later write begins.
//! - Bytes of a write in flight are old or new. A whole aligned word is old or new as a whole, if
//!   the copy stores words and the word is inside one part of the copy.
//! - Nothing else changes.

use super::check::Expected;
use super::log::LineBytes;
use super::message::{bytes, sum, Write, AREA, LINE};
use std::ops::Range;

/// Length in bytes of the parts that kshm copies at a time, from the write's first byte on
/// (`kshm-provider/src/data/budget.rs`). A word across two parts may be torn.
const PART: usize = 64 << 10;

/// State of the area, as far as it is known from the messages.
pub(super) struct Area {
    seed: u64,
    /// The durable bytes.
    known: Vec<u8>,
    /// Writes in flight, with their bytes.
    open: Vec<(Write, Vec<u8>)>,
    /// Numbers and checksums of writes that only the target has reported to be durable.
    arrived: Vec<(u64, u64)>,
}

impl Area {
    /// Returns the expectation that the area keeps its present bytes.
    pub(super) fn start(seed: u64, now: &[u8]) -> Result<Box<dyn Expected>, String> {
        let known = now.get(..AREA);
        Ok(Box::new(Self {
            seed,
            known: known.ok_or("the area is outside of the memory")?.to_vec(),
            open: Vec::new(),
            arrived: Vec::new(),
        }))
    }

    /// Takes the write at an index from those in flight. Its bytes have to be there from now on.
    fn complete(&mut self, at: usize, now: &[u8]) -> Result<(u64, u64), String> {
        let (write, bytes) = self.open.swap_remove(at);
        let part = range(&write);
        self.known[part.clone()].copy_from_slice(&bytes);
        self.same(now, part)?;
        Ok((write.number, sum(&bytes)))
    }

    /// Compares a part of the area with the known bytes.
    fn look(&self, now: &[u8], part: Range<usize>) -> Result<(), String> {
        let mut from = part.start;
        let mut open: Vec<_> = self.open.iter().collect();
        open.sort_by_key(|(write, _)| write.offset);
        for (write, new) in open {
            let of = range(write);
            let both = of.start.max(from)..of.end.min(part.end);
            if !both.is_empty() {
                self.same(now, from..both.start)?;
                from = both.end;
                self.old_or_new(now, write, new, both)?;
            }
        }
        self.same(now, from..part.end)
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

    /// Checks a part of the bytes of a write in flight. The part has the whole of each aligned word.
    fn old_or_new(
        &self,
        now: &[u8],
        write: &Write,
        new: &[u8],
        part: Range<usize>,
    ) -> Result<(), String> {
        let all = range(write);
        let mut at = part.start;
        while at < part.end {
            let is_word = at.is_multiple_of(8) && at + 8 <= all.end;
            let from = at - all.start;
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

impl Expected for Area {
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

    fn durable(&mut self, number: u64, reported: u64, now: &[u8]) -> Result<(), String> {
        let sum = match self.arrived.iter().position(|(of, _)| *of == number) {
            Some(at) => self.arrived.swap_remove(at).1,
            None => {
                let at = self.open.iter().position(|(w, _)| w.number == number);
                let at = at.ok_or(format!("write {number} is durable, but not in flight"))?;
                self.complete(at, now)?.1
            }
        };
        match sum == reported {
            true => Ok(()),
            false => Err(format!("write {number} wrote other bytes")),
        }
    }

    fn arrived(&mut self, number: u64, now: &[u8]) -> Result<bool, String> {
        let Some(at) = self.open.iter().position(|(w, _)| w.number == number) else {
            return Ok(false);
        };
        let completed = self.complete(at, now)?;
        self.arrived.push(completed);
        Ok(true)
    }

    fn changed(&mut self, lines: &[LineBytes], area: usize, now: &[u8]) -> Result<(), String> {
        for line in lines {
            let at = (line.offset as usize).wrapping_sub(area);
            if at < AREA {
                self.look(now, at..at + LINE)?;
            }
        }
        Ok(())
    }

    fn in_flight(&self) -> bool {
        !self.open.is_empty()
    }
}

fn range(write: &Write) -> Range<usize> {
    let from = write.offset as usize;
    from..from + write.len as usize
}
