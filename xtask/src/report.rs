// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of tests: a line each as they come, a file, a summary, the count.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

/// How many flaky tests a run may have. With one more the run fails.
pub const MAX_FLAKY: usize = 5;
/// How many of the longest tests the summary names.
const LONGEST: usize = 10;

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It passed.
    Ok,
    /// It failed, and passed when it ran again by itself in a fresh boot.
    Flaky,
    /// It did not.
    Failed,
    /// It could not be run here.
    Skipped,
}

/// What a failed test found that no repetition excuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Bytes other than those that were written.
    Data,
    /// An object, a page or a process that outlived the test.
    Leftover,
    /// The kernel complained, or the guest died or hung.
    Guest,
}

/// The result of one test: one line of a report file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub status: Status,
    /// Seconds it took.
    pub seconds: f64,
    /// Where it ran: `host`, `netns`, `2 nodes`, …
    #[serde(rename = "where")]
    pub place: String,
    /// Why it failed or was skipped.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// What makes a failure one that is never repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

impl Line {
    /// A result that is no run of anything: a check.
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

    /// A failure.
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

/// Takes results in, from several threads.
pub struct Report {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    lines: Vec<Line>,
    /// Failures whose tests run again when the rest has ended.
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
    /// A report that is also written to `file`, one JSON object a line, as
    /// results come. A failure whose test runs again is written when its last
    /// run has ended.
    ///
    /// # Errors
    ///
    /// When the file cannot be made.
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

    /// Takes a result in and shows it.
    pub fn add(&self, line: Line) {
        if let Ok(mut inner) = self.inner.lock() {
            println!("{}", shown(&line));
            inner.take(line);
        }
    }

    /// Takes in a failure whose test runs again when the rest has ended, and
    /// shows it.
    pub fn postpone(&self, line: Line) {
        if let Ok(mut inner) = self.inner.lock() {
            println!("{}; runs again at the end", shown(&line));
            inner.pending.push(line);
        }
    }

    /// Hands out the failures whose tests are to run again. A failure that the
    /// caller does not [`add`](Self::add) again is lost.
    pub fn take_postponed(&self) -> Vec<Line> {
        let inner = self.inner.lock();
        inner.map_or_else(
            |_| Vec::new(),
            |mut inner| std::mem::take(&mut inner.pending),
        )
    }

    /// Notes how long a part of the run took. Parts may overlap; several times
    /// of one name are added up.
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

    /// Whether a test of this name ended at this place.
    pub fn has(&self, name: &str, place: &str) -> bool {
        self.inner.lock().is_ok_and(|inner| {
            let mut all = inner.lines.iter().chain(&inner.pending);
            all.any(|line| line.name == name && line.place == place)
        })
    }

    /// All final results.
    pub fn lines(&self) -> Vec<Line> {
        let inner = self.inner.lock();
        inner.map_or_else(|_| Vec::new(), |inner| inner.lines.clone())
    }

    /// The final result of a test at a place.
    pub fn find(&self, name: &str, place: &str) -> Option<Line> {
        let inner = self.inner.lock().ok()?;
        let mut lines = inner.lines.iter();
        lines
            .find(|line| line.name == name && line.place == place)
            .cloned()
    }

    /// Prints the parts with their times, the longest tests, every flaky and
    /// every failed test with its detail and, last, the count. Returns the exit
    /// status: 0 only when something ran, nothing failed, and at most
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

    /// Takes a final result in and writes it to the file.
    fn take(&mut self, line: Line) {
        if let Some(file) = &mut self.file {
            // A report that cannot be written must not pass for a whole one.
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

    /// Prints the tests that took longest.
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

/// The line that others read the count from.
pub fn count(passed: usize, failed: usize, skipped: usize) -> String {
    let mut text = format!("{passed} passed, {failed} failed");
    if skipped > 0 {
        text += &format!(", {skipped} skipped");
    }
    text
}

/// A result as one line for a person.
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
