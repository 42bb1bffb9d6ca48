// SPDX-License-Identifier: MIT OR Apache-2.0

//! Results of tests, and the lines that report them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Status of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every check held.
    Ok,
    /// A check failed.
    Failed,
    /// The test cannot run here; the detail says why.
    Skipped,
}

/// A finding of a failed test that excludes a repetition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fault {
    /// Bytes differ from those that were written.
    Data,
    /// An object outlived the test.
    Leftover,
}

/// Prefix of an error about bytes that differ from those written. A thread or a process may have
/// passed the error on as text, so the runner searches the text.
pub const WRONG_DATA: &str = "wrong data: ";

/// A result that a test reports beside its own, one of many.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    /// Name of the result.
    pub name: String,
    /// Status of the result.
    pub status: Status,
    /// Cause of a failure, else empty.
    pub detail: String,
}

/// Result of one half of a test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// Status of the half.
    pub status: Status,
    /// Duration in seconds.
    pub seconds: f64,
    /// Cause of a failure, else empty.
    pub detail: String,
    /// Additional results.
    pub parts: Vec<Part>,
}

/// The result line of a test, as the build tool reads it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    /// Name of the test.
    pub name: String,
    /// Status of the test.
    pub status: Status,
    /// Duration in seconds.
    pub seconds: f64,
    /// Topology: `netns`, `2 nodes`, `1 node`.
    #[serde(rename = "where")]
    pub place: String,
    /// Cause of a failure, else empty.
    pub detail: String,
    /// The finding that excludes a repetition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

impl Line {
    /// Prints the line.
    pub fn print(&self) {
        let json = serde_json::to_string(self).unwrap_or_default();
        println!("KFI-RESULT {json}");
    }
}

/// Returns the fault in a test's words, or in `leaks`, the result of the leftover check.
pub fn fault_of(status: Status, detail: &str, leaks: &[String]) -> Option<Fault> {
    if status != Status::Failed {
        return None;
    }
    match (detail.contains(WRONG_DATA), leaks.is_empty()) {
        (true, _) => Some(Fault::Data),
        (false, false) => Some(Fault::Leftover),
        (false, true) => None,
    }
}

/// Joins the results of both halves and of the leftover check.
pub fn join(halves: &[(u8, Outcome)], leaks: &[String]) -> (Status, String) {
    let mut status = Status::Ok;
    let mut detail = Vec::new();
    // A half that only reports the end of the other one is not the cause.
    let cause = |o: &Outcome| o.status == Status::Failed && !o.detail.contains(PEER_GONE);
    let caused = halves.iter().any(|(_, o)| cause(o));
    let skipped = halves.iter().any(|(_, o)| o.status == Status::Skipped);
    for (node, outcome) in halves {
        match outcome.status {
            Status::Ok => {}
            Status::Skipped if status == Status::Ok => {
                status = Status::Skipped;
                detail.push(outcome.detail.clone());
            }
            Status::Skipped => {}
            // The other half was skipped, which ended this one.
            Status::Failed if skipped && !caused => {}
            Status::Failed => {
                status = Status::Failed;
                if !caused || cause(outcome) {
                    detail.push(format!("node {node}: {}", outcome.detail));
                }
            }
        }
    }
    if !leaks.is_empty() {
        status = Status::Failed;
        detail.push(format!("left behind: {}", leaks.join("; ")));
    }
    (status, detail.join(" | "))
}

/// Words of a half whose other half has ended.
pub const PEER_GONE: &str = "the other half of the test is gone";

/// The error of a test that cannot run here.
#[derive(Debug)]
pub struct Skip(pub String);

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Skip {}

/// Ends a test that cannot run here.
///
/// # Errors
///
/// Always.
pub fn skip<T>(why: impl Into<String>) -> anyhow::Result<T> {
    Err(Skip(why.into()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(status: Status, detail: &str) -> Outcome {
        Outcome {
            status,
            seconds: 0.0,
            detail: detail.into(),
            parts: Vec::new(),
        }
    }

    #[test]
    fn both_well_is_well() {
        let halves = [(1, half(Status::Ok, "")), (2, half(Status::Ok, ""))];
        assert_eq!(join(&halves, &[]), (Status::Ok, String::new()));
        assert_eq!(join(&halves, &["a key".into()]).0, Status::Failed);
    }

    #[test]
    fn half_that_a_skip_has_ended_is_no_failure() {
        let halves = |other: &str| {
            [
                (1, half(Status::Skipped, "no nfit")),
                (2, half(Status::Failed, other)),
            ]
        };
        let skipped = (Status::Skipped, "no nfit".into());
        assert_eq!(join(&halves(PEER_GONE), &[]), skipped);
        assert_eq!(join(&halves("EIO"), &[]).0, Status::Failed);
    }

    #[test]
    fn the_cause_is_shown_alone() {
        let halves = [
            (1, half(Status::Failed, PEER_GONE)),
            (2, half(Status::Failed, "EIO")),
        ];
        assert_eq!(join(&halves, &[]), (Status::Failed, "node 2: EIO".into()));
        let halves = [
            (1, half(Status::Failed, PEER_GONE)),
            (2, half(Status::Ok, "")),
        ];
        assert!(join(&halves, &[]).1.contains("node 1"));
    }

    #[test]
    fn a_failure_outweighs_a_skip() {
        let halves = [
            (1, half(Status::Skipped, "no")),
            (2, half(Status::Failed, "EIO")),
        ];
        assert_eq!(join(&halves, &[]).0, Status::Failed);
        let halves = [(1, half(Status::Skipped, "no")), (2, half(Status::Ok, ""))];
        assert_eq!(join(&halves, &[]), (Status::Skipped, "no".into()));
    }

    #[test]
    fn the_line_is_what_the_build_tool_reads() {
        let line = Line {
            name: "a.b".into(),
            status: Status::Ok,
            seconds: 0.5,
            place: "netns".into(),
            detail: String::new(),
            fault: None,
        };
        assert_eq!(
            serde_json::to_string(&line).unwrap(),
            r#"{"name":"a.b","status":"ok","seconds":0.5,"where":"netns","detail":""}"#
        );
    }

    #[test]
    fn wrong_data_and_leftovers_are_faults_of_a_failed_test() {
        let words = format!("round 3: {WRONG_DATA}byte 1 of 2 is 0x00, not 0x01");
        assert_eq!(fault_of(Status::Failed, &words, &[]), Some(Fault::Data));
        assert_eq!(fault_of(Status::Ok, &words, &[]), None);
        let leaks = ["a key".to_owned()];
        assert_eq!(
            fault_of(Status::Failed, "EIO", &leaks),
            Some(Fault::Leftover)
        );
        assert_eq!(fault_of(Status::Failed, "EIO", &[]), None);
    }
}
