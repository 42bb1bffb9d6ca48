// SPDX-License-Identifier: MIT OR Apache-2.0

//! Kept programs: each showed something new.

use super::program::{join, split, Program};
use super::rng::Rng;
use anyhow::{Context, Result};
use std::collections::HashSet;

/// The repository's corpus.
const KEPT: &str = include_str!("../../fuzz-corpus/ioctl.txt");
/// Programs written by hand, for cases that random generation does not reach.
const WRITTEN: &str = include_str!("../../fuzz-corpus/written.txt");

/// Programs that mutation starts from.
#[derive(Default)]
pub struct Corpus {
    programs: Vec<Program>,
    /// Generated or written programs, which need not be kept.
    given: HashSet<String>,
}

impl Corpus {
    /// Returns the repository's corpus.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn kept() -> Result<Vec<Program>> {
        split(KEPT).context("the corpus")
    }

    /// Returns the programs written by hand.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn written() -> Result<Vec<Program>> {
        split(WRITTEN).context("the programs written by hand")
    }

    /// Adds a program that the next run will have, too.
    pub fn give(&mut self, program: Program) {
        self.given.insert(program.text());
        self.programs.push(program);
    }

    /// Adds a program.
    pub fn add(&mut self, program: Program) {
        self.programs.push(program);
    }

    /// Returns the number of programs.
    pub fn len(&self) -> usize {
        self.programs.len()
    }

    /// Returns whether the corpus is empty.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// Picks a program, a new one more often.
    pub fn pick<'a>(&'a self, rng: &mut Rng) -> Option<&'a Program> {
        if self.programs.is_empty() {
            return None;
        }
        let newest = self.programs.len().saturating_sub(32);
        let from = if rng.chance(30) { newest } else { 0 };
        Some(rng.pick(&self.programs[from..]))
    }

    /// Returns the text of the programs to keep.
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

    /// An operation is invalid if it is written beyond the structure's end.
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
