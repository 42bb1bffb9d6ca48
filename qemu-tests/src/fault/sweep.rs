// SPDX-License-Identifier: MIT OR Apache-2.0

//! The sweep: runs one case with each kind of failure at each place.

use super::inject::{Kind, Knobs};
use super::lab::Lab;
use super::state::Watch;
use crate::harness::leaks::Baseline;
use crate::harness::Env;
use crate::raw::{self, Dev};
use crate::sys::{patience, Errno};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::Ioctl;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// More places than any call has: a sweep that reaches it does not end.
const MOST: u32 = 3000;
/// Time limit of a quick sweep, per kind of failure.
const QUICK: Duration = Duration::from_secs(30);

/// A sweep, or the steps around one.
pub type Run<'a> = &'a mut dyn FnMut() -> Result<()>;

/// A call, made in a certain way.
pub struct Case {
    /// Name of the call: an ioctl, or `open`, `mmap`, …
    pub call: &'static str,
    /// The way, if there are several.
    pub way: &'static str,
    /// Prepares the call, makes it once through [`Shot`], and undoes it.
    pub run: fn(&mut Lab, &mut Shot<'_>) -> Result<()>,
    /// Errnos that the call may return besides those of the kinds; the case says why.
    pub also: &'static [i32],
    /// Prepares the environment of all runs, calls the sweep, and undoes it.
    pub amid: fn(&Env, Run<'_>) -> Result<()>,
    /// Whether the case takes minutes; a quick sweep skips it then.
    pub long: bool,
}

impl Case {
    /// Creates a case.
    pub const fn new(
        call: &'static str,
        way: &'static str,
        run: fn(&mut Lab, &mut Shot<'_>) -> Result<()>,
    ) -> Self {
        Self {
            call,
            way,
            run,
            also: &[],
            amid: |_, run| run(),
            long: false,
        }
    }

    /// Adds errnos that the call may return.
    #[must_use]
    pub const fn also(self, also: &'static [i32]) -> Self {
        Self { also, ..self }
    }

    /// Sets the environment of the sweep.
    #[must_use]
    pub const fn amid(self, amid: fn(&Env, Run<'_>) -> Result<()>) -> Self {
        Self { amid, ..self }
    }

    /// Marks a case that takes minutes.
    #[must_use]
    pub const fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// Returns the case's name in the table.
    pub fn name(&self) -> String {
        match self.way {
            "" => self.call.to_owned(),
            way => format!("{}.{way}", self.call),
        }
    }
}

/// Result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every check held.
    Ok,
    /// A check failed.
    Failed,
}

/// Number of injected failures of one kind, and of those that made the call fail; the call made up
/// for the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Number of injected failures.
    pub injected: u32,
    /// Number of failed calls.
    pub failed: u32,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Name of the case.
    pub name: String,
    /// Counts by kind.
    pub counts: BTreeMap<String, Count>,
    /// Answers of the call, and how often each came.
    pub errnos: BTreeMap<String, u32>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Result of the case.
    pub verdict: Verdict,
    /// Cause of a failure, else empty.
    pub detail: String,
}

impl Row {
    /// Creates an empty row.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            counts: BTreeMap::new(),
            errnos: BTreeMap::new(),
            seconds: 0.0,
            verdict: Verdict::Ok,
            detail: String::new(),
        }
    }

    /// Creates the row of a case that could not be run.
    pub fn broken(name: &str, why: &str) -> Self {
        let mut row = Self::new(name);
        row.fail(why);
        row
    }

    /// Runs a case and returns its row, with its duration. A leftover fails the case.
    pub fn of(name: &str, run: impl FnOnce(&mut Self) -> Result<()>) -> Self {
        let start = Instant::now();
        let mut row = Self::new(name);
        let mut baseline = Baseline::take();
        if let Err(e) = run(&mut row) {
            row.fail(&format!("{e:#}"));
        }
        let left = baseline.leaks();
        if !left.is_empty() {
            row.fail(&format!("left behind: {}", left.join("; ")));
        }
        row.seconds = (start.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        row
    }

    /// Records a failed check.
    pub fn fail(&mut self, why: &str) {
        self.verdict = Verdict::Failed;
        if !self.detail.is_empty() {
            self.detail += " | ";
        }
        self.detail += why;
    }

    /// Records an injected failure, and the call's answer.
    pub fn count(&mut self, kind: Kind, answer: Option<Errno>) {
        let count = self.counts.entry(kind.name().to_owned()).or_default();
        count.injected += 1;
        if let Some(errno) = answer {
            count.failed += 1;
            *self.errnos.entry(errno.name().to_owned()).or_default() += 1;
        }
    }

    /// Prints the row.
    #[must_use]
    pub fn told(self) -> Self {
        let json = serde_json::to_string(&self).unwrap_or_default();
        println!("KFI-FAULT {json}");
        self
    }
}

/// Returns the next place. The first places are all tried; in a quick sweep later ones grow sparse.
pub fn next(nth: u32, quick: bool) -> u32 {
    if quick && nth >= 8 {
        nth + nth / 2
    } else {
        nth + 1
    }
}

/// Sweeps one case.
pub fn run(case: &Case, env: &Env, knobs: &Knobs, quick: bool) -> Row {
    let kinds = if knobs.is_dry() {
        &Kind::ALL[..1]
    } else {
        &Kind::ALL
    };
    Row::of(&case.name(), |row| {
        (case.amid)(env, &mut || {
            for &kind in kinds {
                if let Err(e) = one_kind(case, env, knobs, kind, quick, row) {
                    row.fail(&format!("{e:#}"));
                }
            }
            Ok(())
        })
    })
}

fn one_kind(
    case: &Case,
    env: &Env,
    knobs: &Knobs,
    kind: Kind,
    quick: bool,
    row: &mut Row,
) -> Result<()> {
    knobs.choose(kind)?;
    let mut lab = Lab::open(env)?;
    let mut watch = Watch::open()?;
    let start = Instant::now();
    let mut nth = 1;
    loop {
        ensure!(nth < MOST, "{} {nth}: the sweep does not end", kind.name());
        let at = || format!("{} {nth}", kind.name());
        let before = watch.look().with_context(at)?;
        let mut shot = Shot {
            knobs,
            kind,
            nth,
            watch: &mut watch,
            also: case.also,
            made: false,
            hit: false,
            answer: None,
        };
        let went = (case.run)(&mut lab, &mut shot);
        let (hit, answer, made) = (shot.hit, shot.answer, shot.made);
        if hit {
            row.count(kind, answer);
        }
        went.with_context(at)?;
        ensure!(made, "the case made no call");
        // The worker of ordered keys releases its references after the keys are assigned.
        let end = Instant::now() + patience(Duration::from_secs(5));
        let mut after = watch.look().with_context(at)?;
        while after != before && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
            after = watch.look().with_context(at)?;
        }
        ensure!(
            after == before,
            "{}: left behind after the case: {}",
            at(),
            after.since(&before)
        );
        if !hit || (quick && start.elapsed() > QUICK) {
            return Ok(());
        }
        nth = next(nth, quick);
    }
}

/// The one call of a case that is made with an injected failure.
pub struct Shot<'a> {
    knobs: &'a Knobs,
    kind: Kind,
    nth: u32,
    watch: &'a mut Watch,
    also: &'static [i32],
    made: bool,
    hit: bool,
    answer: Option<Errno>,
}

impl Shot<'_> {
    /// Returns the kind of the injected failure.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns whether the failure has happened.
    pub fn hit(&self) -> bool {
        self.hit
    }

    /// Returns whether the call has failed.
    pub fn failed(&self) -> bool {
        self.answer.is_some()
    }

    /// Makes the call once and returns its answer. A failed call must have an expected errno.
    ///
    /// # Errors
    ///
    /// If the errno is not expected.
    pub fn once<T>(
        &mut self,
        f: impl FnOnce() -> raw::Result<T>,
    ) -> Result<std::result::Result<T, Errno>> {
        ensure!(!self.made, "the case makes two calls");
        self.made = true;
        let (answer, hit) = self.knobs.with(self.nth, || f().map_err(|e| e.errno))?;
        self.hit = hit;
        if let Err(errno) = &answer {
            self.answer = Some(*errno);
            ensure!(hit, "the call failed though nothing did: {errno}");
            ensure!(
                errno.0 == self.kind.errno() || self.also.contains(&errno.0),
                "the call failed with {errno}"
            );
        }
        Ok(answer)
    }

    /// Makes the call. If it fails, nothing must have changed, and a second call must succeed.
    ///
    /// # Errors
    ///
    /// If either does not hold.
    pub fn call<T>(&mut self, mut f: impl FnMut() -> raw::Result<T>) -> Result<T> {
        let before = self.watch.look()?;
        match self.once(&mut f)? {
            Ok(value) => Ok(value),
            Err(errno) => {
                let after = self.watch.look()?;
                if after != before {
                    bail!("{errno} changed something: {}", after.since(&before));
                }
                f().with_context(|| format!("again, after {errno}"))
            }
        }
    }

    /// Makes an ioctl as [`Shot::call`] does, and returns its answer. A failed ioctl must not have
    /// written.
    ///
    /// # Errors
    ///
    /// The errors of [`Shot::call`].
    pub fn ioctl<T: Ioctl + Copy>(&mut self, dev: &Dev, arg: &T) -> Result<T> {
        let size = std::mem::size_of::<T>() as u32;
        let mut sent = *arg;
        sent.as_mut_bytes()[..4].copy_from_slice(&size.to_ne_bytes());
        let mut written = false;
        let answer = self.call(|| {
            let mut got = sent;
            let answer = dev.call(&mut got).map(|()| got);
            written |= answer.is_err() && got.as_bytes() != sent.as_bytes();
            answer
        })?;
        ensure!(!written, "the failed call has written its answer");
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_sweep_begins_as_a_whole_one_and_ends_sooner() {
        let places = |quick| std::iter::successors(Some(1), move |n| Some(next(*n, quick)));
        let few: Vec<u32> = places(true).take_while(|n| *n < 200).collect();
        assert_eq!(few[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(few.len() < 20, "{few:?}");
        assert_eq!(places(false).take(100).last(), Some(100));
    }

    #[test]
    fn a_row_says_what_was_injected_and_what_came_of_it() {
        let mut row = Row::new("open");
        row.count(Kind::Slab, Some(Errno(libc::ENOMEM)));
        row.count(Kind::Slab, None);
        assert_eq!(
            row.counts["slab"],
            Count {
                injected: 2,
                failed: 1
            }
        );
        assert_eq!(row.errnos["ENOMEM"], 1);
        row.fail("a");
        row.fail("b");
        assert_eq!(
            (row.verdict, row.detail.as_str()),
            (Verdict::Failed, "a | b")
        );
    }
}
