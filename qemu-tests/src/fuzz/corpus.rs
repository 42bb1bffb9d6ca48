// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs worth keeping: each showed something that none before it had.

use super::program::{join, split, Program};
use super::rng::Rng;
use anyhow::{Context, Result};
use std::collections::HashSet;

/// The corpus of the repository.
const KEPT: &str = include_str!("../../fuzz-corpus/ioctl.txt");
/// What was written by hand, for what chance does not come by.
const WRITTEN: &str = include_str!("../../fuzz-corpus/written.txt");

/// Programs to make others of.
#[derive(Default)]
pub struct Corpus {
    programs: Vec<Program>,
    /// Programs that are made or written, and need not be kept.
    given: HashSet<String>,
}

impl Corpus {
    /// That of the repository.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn kept() -> Result<Vec<Program>> {
        split(KEPT).context("the corpus")
    }

    /// The programs written by hand.
    ///
    /// # Errors
    ///
    /// When they cannot be read.
    pub fn written() -> Result<Vec<Program>> {
        split(WRITTEN).context("the programs written by hand")
    }

    /// Adds one that will be there the next time, too.
    pub fn give(&mut self, program: Program) {
        self.given.insert(program.text());
        self.programs.push(program);
    }

    /// Adds one.
    pub fn add(&mut self, program: Program) {
        self.programs.push(program);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.programs.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// One of them, new ones more often.
    pub fn pick<'a>(&'a self, rng: &mut Rng) -> Option<&'a Program> {
        if self.programs.is_empty() {
            return None;
        }
        let newest = self.programs.len().saturating_sub(32);
        let from = if rng.chance(30) { newest } else { 0 };
        Some(rng.pick(&self.programs[from..]))
    }

    /// The text of those to keep.
    pub fn text(&self) -> String {
        let kept = |program: &&Program| !self.given.contains(&program.text());
        let kept: Vec<_> = self.programs.iter().filter(kept).cloned().collect();
        join(&kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_not_kept() {
        let mut corpus = Corpus::default();
        corpus.give(Program::parse("fabric_open").unwrap());
        corpus.add(Program::parse("open").unwrap());
        assert_eq!(corpus.len(), 2);
        assert_eq!(split(&corpus.text()).unwrap().len(), 1);
    }

    #[test]
    fn the_kept_corpus_is_read_and_small() {
        assert!(!Corpus::kept().unwrap().is_empty());
        assert!(!Corpus::written().unwrap().is_empty());
        assert!(KEPT.len() < 300 << 10, "{} bytes", KEPT.len());
    }

    /// An operation written where the structure once ended is no operation.
    #[test]
    fn what_must_work_names_whole_operations() {
        let text = include_str!("../../fuzz-corpus/well.txt");
        let places: Vec<_> = text.split("ops=&ops+").skip(1).collect();
        assert!(!places.is_empty());
        for place in places {
            let number = place.split_whitespace().next().unwrap();
            let at = usize::from_str_radix(number.trim_start_matches("0x"), 16).unwrap();
            assert_eq!(at % size_of::<kfabric_uapi::OpEntry>(), 0, "{number}");
        }
    }
}
