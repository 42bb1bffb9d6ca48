// SPDX-License-Identifier: MIT OR Apache-2.0

//! Output of `kfi-tests`, and its conversion to results.
//!
//! Node 1 prints `KFI-START name` before a test and `KFI-RESULT {…}` after it. All other output of
//! both nodes is passed on.

use crate::guest::output::{by_line, Sink};
use crate::guest::protocol::Stream;
use crate::guest::Deadline;
use crate::report::{Line, Report, Status};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time that a test may take beyond its own limit, which `kfi-tests` enforces, before the guest is
/// killed.
const PATIENCE: Duration = Duration::from_secs(150);
/// Number of lines kept for a run that ends badly.
const KEPT: usize = 12;

/// State of a run.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The running test, and its start.
    pub(super) running: Option<(String, Instant)>,
    /// The tests that have ended.
    pub(super) ended: Vec<String>,
    /// Number of failed tests.
    pub(super) failed: usize,
    /// Failures that the running test printed beside its own result.
    parts: Vec<Line>,
    /// The last lines without results.
    words: VecDeque<String>,
}

/// Meaning of a line of a node's output.
#[derive(Debug, PartialEq)]
enum Said {
    /// Not a result.
    Nothing,
    /// A result of the running test beside its own, which is a success.
    Part(Line),
    /// A test's own result, and the failures that it printed beside this result.
    Result(Line, Vec<Line>),
}

impl State {
    /// Returns the last lines without results.
    pub(super) fn words(&self) -> String {
        self.words.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// Handles a line of a node's output.
    fn take(&mut self, node: u8, line: &str) -> Said {
        if node == 1 {
            if let Some(name) = line.strip_prefix("KFI-START ") {
                self.running = Some((name.trim().to_owned(), Instant::now()));
                return Said::Nothing;
            }
            let result = line.strip_prefix("KFI-RESULT ");
            if let Some(result) = result.and_then(|text| serde_json::from_str::<Line>(text).ok()) {
                return self.result(result);
            }
        }
        if line.starts_with('#') || line.trim().is_empty() {
            return Said::Nothing;
        }
        self.words.push_back(format!("[{node}] {line}"));
        if self.words.len() > KEPT {
            self.words.pop_front();
        }
        eprintln!("    [{node}] {line}");
        Said::Nothing
    }

    fn result(&mut self, result: Line) -> Said {
        let failed = result.status == Status::Failed;
        let own = !matches!(&self.running, Some((name, _)) if *name != result.name);
        self.failed += usize::from(failed);
        self.ended.push(result.name.clone());
        if own {
            self.running = None;
            return Said::Result(result, std::mem::take(&mut self.parts));
        }
        if failed {
            self.parts.push(result);
            return Said::Nothing;
        }
        Said::Part(result)
    }
}

/// Treatment of a failed test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failures {
    /// The test counts as failed.
    Count,
    /// The test runs again by itself after all others, unless its fault excludes that.
    Repeat,
}

/// Returns a sink that adds results to `report`, with `place`. The sink sets `deadline` to the end
/// of the running test's time (`limits`, in seconds).
pub(super) fn listen(
    state: &Arc<Mutex<State>>,
    report: &Arc<Report>,
    place: &str,
    limits: &BTreeMap<String, u64>,
    deadline: &Deadline,
    failures: Failures,
) -> Sink {
    let report = Arc::clone(report);
    let place = place.to_owned();
    follow(state, limits, deadline, move |line, parts| {
        let at = |line: Line| Line {
            place: place.clone(),
            ..line
        };
        let repeat = failures == Failures::Repeat
            && line.status == Status::Failed
            && line.fault.is_none()
            && parts.iter().all(|part| part.fault.is_none());
        if !repeat {
            parts.into_iter().for_each(|part| report.add(at(part)));
            return report.add(at(line));
        }
        // The parts run again with the test, so until then they are part of its detail.
        let mut line = at(line);
        for part in parts {
            line.detail += &format!("\n{}: {}", part.name, part.detail);
        }
        report.postpone(line);
    })
}

/// Returns a sink that calls `result` with each result and the failures beside it. The sink sets
/// `deadline` to the end of the running test's time.
pub(super) fn follow(
    state: &Arc<Mutex<State>>,
    limits: &BTreeMap<String, u64>,
    deadline: &Deadline,
    result: impl Fn(Line, Vec<Line>) + Send + Sync + 'static,
) -> Sink {
    let (state, limits, deadline) = (Arc::clone(state), limits.clone(), deadline.clone());
    by_line(move |node, _: Stream, line| {
        let Ok(mut state) = state.lock() else { return };
        let said = state.take(node, line);
        let limit = match &state.running {
            Some((name, _)) => limits.get(name).copied().unwrap_or(60),
            None => 60,
        };
        deadline.set(Instant::now() + Duration::from_secs(limit) + PATIENCE);
        match said {
            Said::Nothing => {}
            Said::Part(line) => result(line, Vec::new()),
            Said::Result(line, parts) => result(line, parts),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_followed_by_what_node_1_says() {
        let mut state = State::default();
        assert_eq!(state.take(1, "KFI-START a.b"), Said::Nothing);
        assert_eq!(state.running.as_ref().map(|(n, _)| n.as_str()), Some("a.b"));
        assert_eq!(state.take(2, "KFI-START c"), Said::Nothing);
        assert_eq!(state.running.as_ref().map(|(n, _)| n.as_str()), Some("a.b"));
        let line =
            r#"KFI-RESULT {"name":"a.b","status":"ok","seconds":0.5,"where":"netns","detail":""}"#;
        let Said::Result(result, parts) = state.take(1, line) else {
            panic!("no result");
        };
        assert!(parts.is_empty());
        assert_eq!((result.status, result.seconds), (Status::Ok, 0.5));
        assert!(state.running.is_none());
        assert_eq!(state.ended, ["a.b"]);
    }

    #[test]
    fn the_last_words_are_kept() {
        let mut state = State::default();
        for number in 0..100 {
            state.take(1, &format!("word {number}"));
        }
        state.take(1, "# a remark");
        assert!(state.words().ends_with("[1] word 99"));
        assert_eq!(state.words().lines().count(), KEPT);
    }

    #[test]
    fn failed_parts_come_with_the_result_of_their_test() {
        let mut state = State::default();
        let line = |name: &str, status: &str| {
            format!(
                r#"KFI-RESULT {{"name":"{name}","status":"{status}","seconds":0.5,"where":"netns"}}"#
            )
        };
        state.take(1, "KFI-START kernel.sample");
        assert!(matches!(
            state.take(1, &line("sample.one", "ok")),
            Said::Part(_)
        ));
        assert_eq!(state.take(1, &line("sample.two", "failed")), Said::Nothing);
        assert!(state.running.is_some());
        let Said::Result(own, parts) = state.take(1, &line("kernel.sample", "failed")) else {
            panic!("no result");
        };
        assert_eq!((own.name.as_str(), parts.len()), ("kernel.sample", 1));
    }
}
