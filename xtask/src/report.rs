// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of tests: a line for each result, a report file, a summary, the count.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// Maximum number of flaky tests of a passing run.
pub const MAX_FLAKY: usize = 5;
/// Number of the longest tests in the summary.
const LONGEST: usize = 10;

/// Result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The test passed.
    Ok,
    /// The test failed, and passed when it ran again by itself in a fresh boot.
    Flaky,
    /// The test failed.
    Failed,
    /// The test could not run here.
    Skipped,
}

/// A finding of a failed test after which the test is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Bytes other than the written ones.
    Data,
    /// An object, a page or a process has outlived the test.
    Leftover,
    /// The kernel printed a complaint, or the guest died or hung.
    Guest,
}

/// The result of one test: one line of a report file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Name of the test.
    pub name: String,
    /// Result of the test.
    pub status: Status,
    /// Duration of the test in seconds.
    pub seconds: f64,
    /// Place of the run: `host`, `netns`, `2 nodes`, …
    #[serde(rename = "where")]
    pub place: String,
    /// Reason of a failure or a skip.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The finding after which the test is not repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

impl Line {
    /// Returns the result of a check, which is not a run of a program.
    pub fn check(name: impl Into<String>, place: &str, faults: &[String]) -> Self {
        Self {
            name: name.into(),
            status: if faults.is_empty() {
                Status::Ok
            } else {
                Status::Failed
            },
            seconds: 0.0,
            place: place.to_owned(),
            detail: faults.join("\n"),
            fault: None,
        }
    }

    /// Returns a failure.
    pub fn failed(
        name: impl Into<String>,
        place: &str,
        seconds: f64,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            status: Status::Failed,
            seconds,
            place: place.to_owned(),
            detail: detail.into(),
            fault: None,
        }
    }
}

/// Collects results from several threads.
pub struct Report {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    lines: Vec<Line>,
    /// Failures whose tests run again after all other tests.
    pending: Vec<Line>,
    stages: Vec<Stage>,
    file: Option<File>,
}

/// A part of the run, for the table at its end.
struct Stage {
    name: String,
    took: Duration,
}

impl Report {
    /// Returns a report that also writes results to `file`, one JSON object a line, as they come.
    /// The failure of a test that runs again is written after its last run.
    ///
    /// # Errors
    ///
    /// If the file cannot be created.
    pub fn new(file: Option<&Path>) -> Result<Self> {
        let file = file
            .map(|path| {
                File::create(path).with_context(|| format!("making the report {}", path.display()))
            })
            .transpose()?;
        Ok(Self {
            inner: Mutex::new(Inner {
                file,
                ..Inner::default()
            }),
        })
    }

    /// Adds a result and prints it.
    pub fn add(&self, line: Line) {
        if let Ok(mut inner) = self.inner.lock() {
            println!("{}", shown(&line));
            inner.take(line);
        }
    }

    /// Adds and prints a failure whose test runs again after all other tests.
    pub fn postpone(&self, line: Line) {
        if let Ok(mut inner) = self.inner.lock() {
            println!("{}; runs again at the end", shown(&line));
            inner.pending.push(line);
        }
    }

    /// Removes and returns the failures whose tests must run again. The caller must
    /// [`add`](Self::add) each of them again, or the failure is lost.
    pub fn take_postponed(&self) -> Vec<Line> {
        let inner = self.inner.lock();
        inner.map_or_else(
            |_| Vec::new(),
            |mut inner| std::mem::take(&mut inner.pending),
        )
    }

    /// Adds the duration of a part of the run. Parts may overlap; durations of the same name are
    /// added up.
    pub fn stage(&self, name: &str, took: Duration) {
        let Ok(mut inner) = self.inner.lock() else {
            return;
        };
        match inner.stages.iter_mut().find(|stage| stage.name == name) {
            Some(stage) => stage.took += took,
            None => inner.stages.push(Stage {
                name: name.to_owned(),
                took,
            }),
        }
    }

    /// Returns whether a test of this name has ended at this place.
    pub fn has(&self, name: &str, place: &str) -> bool {
        self.inner.lock().is_ok_and(|inner| {
            let mut all = inner.lines.iter().chain(&inner.pending);
            all.any(|line| line.name == name && line.place == place)
        })
    }

    /// Returns all final results.
    pub fn lines(&self) -> Vec<Line> {
        let inner = self.inner.lock();
        inner.map_or_else(|_| Vec::new(), |inner| inner.lines.clone())
    }

    /// Returns the final result of a test at a place.
    pub fn find(&self, name: &str, place: &str) -> Option<Line> {
        let inner = self.inner.lock().ok()?;
        let mut lines = inner.lines.iter();
        lines
            .find(|line| line.name == name && line.place == place)
            .cloned()
    }

    /// Prints the parts with their times, the longest tests, every flaky and every failed test with
    /// its detail and, last, the count.
    ///
    /// Returns the exit status: 0 only if at least one test ran, none failed, and at most
    /// [`MAX_FLAKY`] tests were flaky.
    pub fn finish(&self) -> i32 {
        let Ok(mut inner) = self.inner.lock() else {
            return 1;
        };
        for line in std::mem::take(&mut inner.pending) {
            inner.take(line);
        }
        let flaky = inner.of(Status::Flaky).count();
        if flaky > MAX_FLAKY {
            let why = format!("{flaky} tests were flaky, and at most {MAX_FLAKY} may be");
            inner.take(Line::failed("flaky", "host", 0.0, why));
        }
        inner.show_stages();
        inner.show_longest();
        for line in inner.of(Status::Skipped) {
            println!("skipped {} [{}]: {}", line.name, line.place, line.detail);
        }
        for (word, status) in [("flaky", Status::Flaky), ("FAILED", Status::Failed)] {
            for line in inner.of(status) {
                println!("\n{word} {} [{}]", line.name, line.place);
                for text in line.detail.lines() {
                    println!("    {text}");
                }
            }
        }
        if flaky > 0 {
            println!("\n{flaky} flaky, counted as passed");
        }
        let passed = inner.of(Status::Ok).count() + flaky;
        let failed = inner.of(Status::Failed).count();
        println!(
            "\n{}",
            count(passed, failed, inner.of(Status::Skipped).count())
        );
        i32::from(failed > 0 || passed == 0)
    }
}

impl Inner {
    fn of(&self, status: Status) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.status == status)
    }

    /// Adds a final result and writes it to the file.
    fn take(&mut self, line: Line) {
        if let Some(file) = &mut self.file {
            // A truncated report must not pass for a complete one.
            let written = serde_json::to_string(&line)
                .map_err(std::io::Error::other)
                .and_then(|text| writeln!(file, "{text}"));
            if let Err(error) = written {
                eprintln!("error: writing the report: {error}");
            }
        }
        self.lines.push(line);
    }

    /// Prints the table of parts: name, tests, minutes.
    fn show_stages(&self) {
        if self.stages.is_empty() {
            return;
        }
        println!("\n{:<14} {:>6} {:>8}", "stage", "tests", "minutes");
        for Stage { name, took } in &self.stages {
            let tests = self.lines.iter().filter(|line| line.place == *name).count();
            println!(
                "{name:<14} {tests:>6} {:>8}",
                crate::progress::clock(took.as_secs())
            );
        }
    }

    /// Prints the longest tests.
    fn show_longest(&self) {
        let mut lines: Vec<&Line> = self.lines.iter().filter(|l| l.seconds >= 1.0).collect();
        lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        if !lines.is_empty() {
            println!("\nlongest tests, in seconds");
        }
        for line in lines.iter().take(LONGEST) {
            println!("{:>8.1}  {} [{}]", line.seconds, line.name, line.place);
        }
        println!();
    }
}

/// Formats the count, in a line that scripts read.
pub fn count(passed: usize, failed: usize, skipped: usize) -> String {
    let mut text = format!("{passed} passed, {failed} failed");
    if skipped > 0 {
        text += &format!(", {skipped} skipped");
    }
    text
}

/// Formats a result as one line for people.
fn shown(line: &Line) -> String {
    let word = match line.status {
        Status::Ok => "ok",
        Status::Flaky => "flaky",
        Status::Failed => "FAILED",
        Status::Skipped => "skipped",
    };
    let mut text = format!("{word:<7} {:<7} {}", line.place, line.name);
    if line.seconds >= 0.1 {
        text += &format!(" ({:.1} s)", line.seconds);
    }
    if line.status != Status::Ok {
        let first = line.detail.lines().next().unwrap_or_default();
        let short: String = first.chars().take(160).collect();
        text += &format!(": {short}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_one_line_of_json_and_one_for_people() {
        let line = Line::failed("key.revoke", "2 nodes", 1.25, "EIO\nmore");
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"name":"key.revoke","status":"failed","seconds":1.25,"where":"2 nodes","detail":"EIO\nmore"}"#
        );
        assert_eq!(shown(&line), "FAILED  2 nodes key.revoke (1.2 s): EIO");
        let line = Line {
            fault: Some(Fault::Data),
            ..Line::failed("a", "netns", 1.0, "x")
        };
        let text = serde_json::to_string(&line).unwrap();
        assert!(text.ends_with(r#""detail":"x","fault":"data"}"#), "{text}");
        let fine = Line::check("unload", "netns", &[]);
        assert_eq!(shown(&fine), "ok      netns   unload");
    }

    #[test]
    fn skipped_tests_are_counted_apart() {
        assert_eq!(count(3, 0, 0), "3 passed, 0 failed");
        assert_eq!(count(3, 1, 2), "3 passed, 1 failed, 2 skipped");
    }

    #[test]
    fn nothing_run_is_a_failure() {
        let report = Report::new(None).unwrap();
        assert_eq!(report.finish(), 1);
        report.add(Line::check("a", "host", &[]));
        assert_eq!(report.finish(), 0);
        assert!(report.has("a", "host") && !report.has("a", "netns"));
        report.add(Line::check("b", "host", &["x".into()]));
        assert_eq!(report.finish(), 1);
    }

    #[test]
    fn flaky_tests_count_as_passed_up_to_a_limit() {
        let report = Report::new(None).unwrap();
        let flaky = |number: usize| Line {
            status: Status::Flaky,
            ..Line::failed(format!("t{number}"), "netns", 1.0, "once")
        };
        (0..MAX_FLAKY).for_each(|number| report.add(flaky(number)));
        assert_eq!(report.finish(), 0);
        report.add(flaky(MAX_FLAKY));
        assert_eq!(report.finish(), 1);
    }

    #[test]
    fn a_postponed_failure_that_never_ran_again_is_a_failure() {
        let report = Report::new(None).unwrap();
        report.add(Line::check("a", "netns", &[]));
        report.postpone(Line::failed("b", "netns", 1.0, "x"));
        assert!(report.has("b", "netns"));
        assert_eq!(report.finish(), 1);
    }
}
