// SPDX-License-Identifier: MIT OR Apache-2.0

//! What `kfi-tests` says while it runs, and what is made of it.
//!
//! Node 1 prints `KFI-START name` before a test and `KFI-RESULT {…}` after
//! it; everything else it or the other node prints is passed on.

use crate::guest::output::{by_line, Sink};
use crate::guest::protocol::Stream;
use crate::guest::Deadline;
use crate::report::{Line, Report, Status};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a test may take beyond its own limit, which `kfi-tests` enforces,
/// before the whole guest is given up.
const PATIENCE: Duration = Duration::from_secs(150);
/// Lines kept to be shown when a run ends badly.
const KEPT: usize = 12;

/// What is known of a run.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The test that runs, and since when.
    pub(super) running: Option<(String, Instant)>,
    /// The tests that ended.
    pub(super) ended: Vec<String>,
    /// How many of them failed.
    pub(super) failed: usize,
    /// The last lines that were no results.
    words: VecDeque<String>,
}

impl State {
    /// The last lines that were no results.
    pub(super) fn words(&self) -> String {
        self.words.iter().cloned().collect::<Vec<_>>().join("\n")
    }

    /// Takes in a line of a node's output. Returns a test's result, if it is one.
    fn take(&mut self, node: u8, line: &str) -> Option<Line> {
        if node == 1 {
            if let Some(name) = line.strip_prefix("KFI-START ") {
                self.running = Some((name.trim().to_owned(), Instant::now()));
                return None;
            }
            let result = line.strip_prefix("KFI-RESULT ");
            if let Some(result) = result.and_then(|text| serde_json::from_str::<Line>(text).ok()) {
                self.running = None;
                self.ended.push(result.name.clone());
                self.failed += usize::from(result.status == Status::Failed);
                return Some(result);
            }
        }
        if line.starts_with('#') || line.trim().is_empty() {
            return None;
        }
        self.words.push_back(format!("[{node}] {line}"));
        if self.words.len() > KEPT {
            self.words.pop_front();
        }
        eprintln!("    [{node}] {line}");
        None
    }
}

/// A sink that takes results into `report`, as of `place`, and keeps
/// `deadline` at the end of the running test's time (`limits`, in seconds).
pub(super) fn listen(
    state: &Arc<Mutex<State>>,
    report: &Arc<Report>,
    place: &str,
    limits: &BTreeMap<String, u64>,
    deadline: &Deadline,
) -> Sink {
    let (state, report) = (Arc::clone(state), Arc::clone(report));
    let (place, limits) = (place.to_owned(), limits.clone());
    let deadline = deadline.clone();
    by_line(move |node, _: Stream, line| {
        let Ok(mut state) = state.lock() else { return };
        let result = state.take(node, line);
        let limit = match &state.running {
            Some((name, _)) => limits.get(name).copied().unwrap_or(60),
            None => 60,
        };
        deadline.set(Instant::now() + Duration::from_secs(limit) + PATIENCE);
        if let Some(mut result) = result {
            result.place.clone_from(&place);
            report.add(result);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_followed_by_what_node_1_says() {
        let mut state = State::default();
        assert_eq!(state.take(1, "KFI-START a.b"), None);
        assert_eq!(state.running.as_ref().map(|(n, _)| n.as_str()), Some("a.b"));
        assert_eq!(state.take(2, "KFI-START c"), None);
        assert_eq!(state.running.as_ref().map(|(n, _)| n.as_str()), Some("a.b"));
        let line =
            r#"KFI-RESULT {"name":"a.b","status":"ok","seconds":0.5,"where":"netns","detail":""}"#;
        let result = state.take(1, line).unwrap();
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
}
