// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of tests: a line each as they come, a file, a summary, the count.

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It passed.
    Ok,
    /// It did not.
    Failed,
    /// It could not be run here.
    Skipped,
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
        }
    }
}

/// Takes results in, from several threads.
pub struct Report {
    inner: Mutex<Inner>,
}

struct Inner {
    lines: Vec<Line>,
    file: Option<File>,
}

impl Report {
    /// A report that is also written to `file`, one JSON object a line, as
    /// results come.
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
                lines: Vec::new(),
                file,
            }),
        })
    }

    /// Takes a result in and shows it.
    pub fn add(&self, line: Line) {
        let Ok(mut inner) = self.inner.lock() else {
            return;
        };
        println!("{}", shown(&line));
        if let Some(file) = &mut inner.file {
            // A report that cannot be written must not pass for a whole one.
            let written = serde_json::to_string(&line)
                .map_err(std::io::Error::other)
                .and_then(|text| writeln!(file, "{text}"));
            if let Err(error) = written {
                eprintln!("error: writing the report: {error}");
            }
        }
        inner.lines.push(line);
    }

    /// Whether a test of this name ended at this place.
    pub fn has(&self, name: &str, place: &str) -> bool {
        self.inner.lock().is_ok_and(|inner| {
            inner
                .lines
                .iter()
                .any(|line| line.name == name && line.place == place)
        })
    }

    /// Prints every failure with its detail and, last, the count. Returns the
    /// exit status: 0 only when something ran and nothing failed.
    pub fn finish(&self) -> i32 {
        let Ok(inner) = self.inner.lock() else {
            return 1;
        };
        let of = |status: Status| inner.lines.iter().filter(move |line| line.status == status);
        for line in of(Status::Skipped) {
            println!("skipped {} [{}]: {}", line.name, line.place, line.detail);
        }
        for line in of(Status::Failed) {
            println!("\nFAILED {} [{}]", line.name, line.place);
            for text in line.detail.lines() {
                println!("    {text}");
            }
        }
        let (passed, failed, skipped) = (
            of(Status::Ok).count(),
            of(Status::Failed).count(),
            of(Status::Skipped).count(),
        );
        println!("\n{}", count(passed, failed, skipped));
        i32::from(failed > 0 || passed == 0)
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
}
