// SPDX-License-Identifier: MIT OR Apache-2.0

//! The sweep: one case, every kind of failure, every place.

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

/// More places than any call has: reaching it means that a sweep does not end.
const MOST: u32 = 3000;
/// How long a quick sweep goes on with failures of one kind.
const QUICK: Duration = Duration::from_secs(30);

/// A sweep, or all that is around one.
pub type Run<'a> = &'a mut dyn FnMut() -> Result<()>;

/// One call, made in one way.
pub struct Case {
    /// The call: an ioctl's name, or `open`, `mmap`, …
    pub call: &'static str,
    /// The way, if there are several.
    pub way: &'static str,
    /// Makes it once: readies what it needs, makes it through [`Shot`], undoes it.
    pub run: fn(&mut Lab, &mut Shot<'_>) -> Result<()>,
    /// What it may answer beside the errnos of the kinds, and why is in the case.
    pub also: &'static [i32],
    /// Has it swept amid what all its runs need, and takes that away.
    pub amid: fn(&Env, Run<'_>) -> Result<()>,
    /// It takes minutes: a quick sweep of all does without.
    pub long: bool,
}

impl Case {
    /// A case.
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

    /// … that may answer these too.
    #[must_use]
    pub const fn also(self, also: &'static [i32]) -> Self {
        Self { also, ..self }
    }

    /// … that is swept amid this.
    #[must_use]
    pub const fn amid(self, amid: fn(&Env, Run<'_>) -> Result<()>) -> Self {
        Self { amid, ..self }
    }

    /// … that takes minutes.
    #[must_use]
    pub const fn long(self) -> Self {
        Self { long: true, ..self }
    }

    /// Its name in the table.
    pub fn name(&self) -> String {
        match self.way {
            "" => self.call.to_owned(),
            way => format!("{}.{way}", self.call),
        }
    }
}

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All held.
    Ok,
    /// Something did not.
    Failed,
}

/// Failures of one kind: how many were injected, and how many of them the call failed with (the
/// rest it made up for).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Injected.
    pub injected: u32,
    /// Failed with.
    pub failed: u32,
}

/// A row of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// The case.
    pub name: String,
    /// By kind.
    pub counts: BTreeMap<String, Count>,
    /// What the call answered, and how often.
    pub errnos: BTreeMap<String, u32>,
    /// Seconds it took.
    pub seconds: f64,
    /// How it ended.
    pub verdict: Verdict,
    /// Why, unless it was well.
    pub detail: String,
}

impl Row {
    /// An empty row.
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

    /// A row of something that could not be run.
    pub fn broken(name: &str, why: &str) -> Self {
        let mut row = Self::new(name);
        row.fail(why);
        row
    }

    /// The row of something that is run: how long it took, and what it left behind, which fails it.
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

    /// Notes that something did not hold.
    pub fn fail(&mut self, why: &str) {
        self.verdict = Verdict::Failed;
        if !self.detail.is_empty() {
            self.detail += " | ";
        }
        self.detail += why;
    }

    /// Notes an injected failure, and what the call answered.
    pub fn count(&mut self, kind: Kind, answer: Option<Errno>) {
        let count = self.counts.entry(kind.name().to_owned()).or_default();
        count.injected += 1;
        if let Some(errno) = answer {
            count.failed += 1;
            *self.errnos.entry(errno.name().to_owned()).or_default() += 1;
        }
    }

    /// Prints it.
    #[must_use]
    pub fn told(self) -> Self {
        let json = serde_json::to_string(&self).unwrap_or_default();
        println!("KFI-FAULT {json}");
        self
    }
}

/// The next place: each of the first, and in a quick sweep fewer and fewer of the others.
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
        // What the worker of ordered keys holds is let go of after the keys are there.
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

/// The one call of a case that is made with a failure in it.
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
    /// What is made to fail.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Whether the failure has happened.
    pub fn hit(&self) -> bool {
        self.hit
    }

    /// Whether the call has failed.
    pub fn failed(&self) -> bool {
        self.answer.is_some()
    }

    /// Makes the call once; its answer. A failure must be one that is explained.
    ///
    /// # Errors
    ///
    /// When it is not.
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

    /// Makes the call; if it fails, nothing must have changed, and again it must succeed.
    ///
    /// # Errors
    ///
    /// When that is not so.
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

    /// Makes an ioctl as [`Shot::call`] does; its answer. One that fails must not have written.
    ///
    /// # Errors
    ///
    /// As there.
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
