// SPDX-License-Identifier: MIT OR Apache-2.0

//! A piece of a topology's tests: one boot, unless a guest dies.
//!
//! If a guest dies, the running test has failed, and another boot continues with the rest.

use super::session::{follow, listen, Failures, State};
use crate::guest::klog::{self, Complaint};
use crate::guest::run::Outcome;
use crate::guest::{Deadline, Guests, Job};
use crate::report::{Fault, Line, Report, Status};
use anyhow::Result;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Number of deaths of guests after which a piece is given up.
const DEATHS: usize = 4;
/// Maximum number of repetitions of a failed test.
const REPEATS: u32 = 2;
/// Time of a boot, a short test and the power-off.
const BOOT: Duration = Duration::from_secs(30);
/// Time limit of one repetition.
const REPETITION: Duration = Duration::from_secs(10 * 60);

/// A test, as `kfi-tests list --json` prints it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Listed {
    /// Name of the test.
    pub(super) name: String,
    /// Time limit of the test in seconds.
    #[serde(default = "default_limit")]
    pub(super) limit: u64,
}

fn default_limit() -> u64 {
    60
}

/// Boots guests: real ones, or planted ones of a test.
pub(super) trait Boots: Send + Sync {
    /// Boots the guests, runs the job on every node, and ends the guests, within `limit`.
    fn boot(&self, job: &Job, limit: Duration) -> Result<Outcome>;
}

impl Boots for Guests<'_> {
    fn boot(&self, job: &Job, limit: Duration) -> Result<Outcome> {
        self.with_timeout(limit).run(job)
    }
}

/// A topology on one kernel, with all faults around its tests so far.
pub(super) struct Stage<'a> {
    /// The guests of the stage.
    pub(super) boots: Box<dyn Boots + 'a>,
    /// The name of the topology in `kfi-tests`.
    pub(super) topology: &'static str,
    /// The name of the place in reports.
    pub(super) place: String,
    /// Latest end of the stage's tests.
    pub(super) until: Instant,
    /// All chosen tests of the stage, with their limits in seconds.
    pub(super) limits: BTreeMap<String, u64>,
    /// Treatment of failures.
    pub(super) failures: Failures,
    /// The card as which the devices behave.
    profile: Option<String>,
    around: Mutex<Around>,
}

/// Faults around the tests of a stage, in all its boots.
#[derive(Default)]
struct Around {
    kernel_log: Vec<String>,
    left: Vec<String>,
    unload: Vec<String>,
}

impl Around {
    fn take(&mut self, outcome: &Outcome) {
        for (guest, complaint) in &outcome.complaints {
            self.kernel_log.push(format!(
                "guest {guest}: {}\n{}",
                complaint.line, complaint.around
            ));
        }
        self.take_rest(outcome);
    }

    /// Adds all faults except kernel complaints.
    fn take_rest(&mut self, outcome: &Outcome) {
        self.left.extend(outcome.left.iter().cloned());
        self.unload.extend(outcome.unload.iter().cloned());
    }
}

impl<'a> Stage<'a> {
    /// Returns a stage with these tests.
    pub(super) fn new(
        boots: Box<dyn Boots + 'a>,
        topology: &'static str,
        place: impl Into<String>,
        until: Instant,
        tests: &[Listed],
        failures: Failures,
    ) -> Self {
        let limits = tests.iter().map(|test| (test.name.clone(), test.limit));
        Self {
            boots,
            topology,
            place: place.into(),
            until,
            limits: limits.collect(),
            failures,
            profile: None,
            around: Mutex::default(),
        }
    }

    /// Runs the tests over devices that behave like another card.
    pub(super) fn over(mut self, profile: &str) -> Self {
        self.profile = Some(profile.to_owned());
        self
    }

    fn around(&self) -> MutexGuard<'_, Around> {
        self.around.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports, as tests, kernel complaints, leftovers, and whether the modules unloaded.
    pub(super) fn report_around(&self, report: &Report) {
        let around = self.around();
        for (what, faults) in [
            ("kernel-log", &around.kernel_log),
            ("leftovers", &around.left),
            ("unload", &around.unload),
        ] {
            report.add(Line::check(slug(what, &self.place), &self.place, faults));
        }
    }

    /// Returns the command that runs these tests.
    fn argv(&self, names: &[String]) -> Vec<String> {
        let argv = ["kfi-tests", "run", "--topology", self.topology, "--names"];
        let mut argv: Vec<String> = argv.map(str::to_owned).to_vec();
        argv.push(names.join(","));
        if let Some(profile) = &self.profile {
            argv.extend(["--profile".to_owned(), profile.clone()]);
        }
        argv
    }

    /// Runs tests, in as many boots as necessary.
    pub(super) fn run(&self, mut rest: Vec<String>, report: &Arc<Report>) {
        let place = self.place.as_str();
        let mut deaths = 0;
        let mut again = BTreeSet::new();
        let give_up = loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left < BOOT {
                break format!("there was no time left for the tests of {place}");
            }
            let state = Arc::new(Mutex::new(State::default()));
            let deadline = Deadline::default();
            let sink = listen(
                &state,
                report,
                place,
                &self.limits,
                &deadline,
                self.failures,
            );
            let job = Job {
                deadline: Some(deadline.clone()),
                ..Job::new(self.argv(&rest), sink)
            };
            let outcome = self.boots.boot(&job, left);
            let state = taken(&state);
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error) => break format!("{error:#}"),
            };
            rest.retain(|name| !state.ended.contains(name));
            let why = reason(&outcome, &state);
            let once_more = match &state.running {
                Some((name, _)) if not_ours(&outcome) => again.insert(name.clone()),
                _ => false,
            };
            if once_more {
                eprintln!("  {place}: not caused by our modules (see TESTING.md); the test runs once more:\n{why}");
                self.around().take_rest(&outcome);
            } else {
                self.around().take(&outcome);
            }
            if once_more {
                // The test is among the rest, so it runs again.
            } else if let Some((name, since)) = &state.running {
                report.add(Line {
                    fault: Some(Fault::Guest),
                    ..Line::failed(name, place, since.elapsed().as_secs_f64(), &why)
                });
                rest.retain(|other| other != name);
            } else if rest.is_empty() && !ended_well(&outcome, &state) {
                report.add(Line::failed(slug("exit", place), place, 0.0, &why));
            }
            if rest.is_empty() {
                return;
            }
            if state.running.is_none() && state.ended.is_empty() {
                break why;
            }
            if outcome.died || outcome.timed_out {
                deaths += 1;
            }
            if deaths >= DEATHS {
                break format!("given up after {DEATHS} guests died; the last: {why}");
            }
            eprintln!("  {place}: {} tests left, in another boot", rest.len());
        };
        for name in &rest {
            let why = format!("not run: {give_up}");
            report.add(Line::failed(name, place, 0.0, why));
        }
    }

    /// Runs a failed test again by itself, in fresh boots, and returns its final result.
    ///
    /// A test that passes in one of them is flaky, and keeps the text of its first failure. A
    /// repetition ends early if it finds a fault after which no test is repeated.
    pub(super) fn repeat(&self, first: Line) -> Line {
        let mut line = first;
        for attempt in 1..=REPEATS {
            let left = self.until.saturating_duration_since(Instant::now());
            if left < BOOT {
                line.detail += "\nnot run again: there was no time left";
                return line;
            }
            let again = self.once(&line.name, attempt, left.min(REPETITION));
            let (status, fault, detail) = (again.status, again.fault, again.detail);
            if fault.is_some() {
                line.fault = fault;
                line.detail += &format!("\nagain, {attempt}: {detail}");
                return line;
            }
            match status {
                Status::Ok => {
                    line.detail += &format!("\nagain, {attempt}: passed");
                    line.status = Status::Flaky;
                    return line;
                }
                _ => line.detail += &format!("\nagain, {attempt}: {detail}"),
            }
        }
        line
    }

    /// Runs one test in one boot and returns its result, with the boot's own faults.
    fn once(&self, name: &str, attempt: u32, limit: Duration) -> Line {
        let state = Arc::new(Mutex::new(State::default()));
        let deadline = Deadline::default();
        let result = Arc::new(Mutex::new(None));
        let sink = follow(&state, &self.limits, &deadline, {
            let (result, name) = (Arc::clone(&result), name.to_owned());
            move |line, parts| {
                let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                if line.name == name {
                    let fault = parts.iter().find_map(|part| part.fault);
                    *result = Some(Line {
                        fault: line.fault.or(fault),
                        ..line
                    });
                }
            }
        });
        let mut job = Job {
            deadline: Some(deadline),
            ..Job::new(self.argv(&[name.to_owned()]), sink)
        };
        job.env.insert("KFI_ATTEMPT".into(), attempt.to_string());
        let failed = |why: String, fault| Line {
            fault,
            ..Line::failed(name, &self.place, 0.0, why)
        };
        let outcome = match self.boots.boot(&job, limit) {
            Ok(outcome) => outcome,
            Err(error) => return failed(format!("{error:#}"), Some(Fault::Guest)),
        };
        let why = reason(&outcome, &taken(&state));
        if not_ours(&outcome) {
            return failed(why, None);
        }
        if !outcome.clean() || outcome.timed_out {
            self.around().take(&outcome);
            return failed(why, Some(Fault::Guest));
        }
        let result = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| failed(why, None))
    }
}

/// Takes the state of a run that has ended.
fn taken(state: &Mutex<State>) -> State {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *state)
}

/// Returns whether all kernel complaints of a run have known causes outside of our modules: a
/// warning of rxe, or the emulator's stale breakpoint.
///
/// If the machine stalls for longer than the ACK timeout, a write may be acknowledged twice. The
/// second acknowledgement makes rxe forget that a read response is in progress (`check_psn()`,
/// `check_ack()` and `COMPST_UPDATE_COMP` in `rxe_comp.c`). The next part of that response is then
/// an error without a status. rxe warns of it, and a warning ends the guest.
pub(super) fn not_ours(outcome: &Outcome) -> bool {
    let rxes = |line: &str| {
        line.contains("WARNING: drivers/infiniband/sw/rxe/rxe_comp.c:")
            && line.contains(" at rxe_completer+")
    };
    let (of_rxe, others): (Vec<Complaint>, Vec<Complaint>) = outcome
        .complaints
        .iter()
        .map(|(_, complaint)| complaint.clone())
        .partition(|complaint| rxes(&complaint.line));
    match others.is_empty() {
        true => !of_rxe.is_empty(),
        false => outcome.emulated && klog::are_stale_breakpoints(&others),
    }
}

/// Returns whether a run with all results also ended correctly.
fn ended_well(outcome: &Outcome, state: &State) -> bool {
    // The exit status for failed tests is no additional fault.
    let told = state.failed > 0 || outcome.statuses.get(&1) == Some(&0);
    told && !outcome.died && !outcome.timed_out
}

/// Returns the name of a check around the tests of a place.
fn slug(what: &str, place: &str) -> String {
    format!("{what}.{}", place.replace(' ', "-"))
}

/// Returns the reason why a run ended before all its tests had ended.
fn reason(outcome: &Outcome, state: &State) -> String {
    let mut parts: Vec<String> = outcome
        .complaints
        .iter()
        .map(|(guest, complaint)| format!("guest {guest}: {}", complaint.line))
        .collect();
    parts.extend(outcome.problems.iter().cloned());
    for (node, status) in &outcome.statuses {
        if *status != 0 {
            parts.push(format!(
                "kfi-tests on node {node} ended with status {status}"
            ));
        }
    }
    let words = state.words();
    if !words.is_empty() {
        parts.push(format!("the last words:\n{words}"));
    }
    for log in &outcome.logs {
        parts.push(format!("kernel log: {}", log.display()));
    }
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::protocol::Stream;

    #[test]
    fn only_what_comes_without_us_is_excused() {
        let with = |lines: &[&str]| Outcome {
            complaints: lines
                .iter()
                .flat_map(|line| klog::scan(line))
                .map(|complaint| (1, complaint))
                .collect(),
            ..Outcome::default()
        };
        let own = "[ 314.4] WARNING: drivers/infiniband/sw/rxe/rxe_comp.c:827 at \
                   rxe_completer+0xb8e/0xee0 [rdma_rxe], CPU#0: kworker/u8:7/1704";
        let pool = "[ 267.9] WARNING: drivers/infiniband/sw/rxe/rxe_pool.c:212 at \
                    __rxe_cleanup+0x115/0x150 [rdma_rxe], CPU#1: kfi-tests/1626";
        assert!(not_ours(&with(&[own])));
        assert!(!not_ours(&with(&[])));
        assert!(!not_ours(&with(&[own, pool])));
        let stale = "[ 2.7] Oops: int3: 0000 [#1] SMP NOPTI\n[ 2.7] Code: ff ff 0f <1f> 44 00 00";
        assert!(!not_ours(&with(&[stale])));
        let emulated = |lines: &[&str]| Outcome {
            emulated: true,
            ..with(lines)
        };
        assert!(not_ours(&emulated(&[stale])));
        assert!(!not_ours(&emulated(&[stale, pool])));
    }

    /// Guests whose tests behave as their names say.
    struct Planted;

    impl Planted {
        /// The output of a test and the outcome of its guest, in its first run or a repetition.
        fn run(
            name: &str,
            attempt: u32,
            outcome: &mut Outcome,
        ) -> Option<(&'static str, &'static str)> {
            let complain = |outcome: &mut Outcome| {
                let found = klog::scan("[ 9.1] WARNING: CPU: 0 PID: 1 at a.c:1\n");
                outcome
                    .complaints
                    .extend(found.into_iter().map(|complaint| (1, complaint)));
                outcome.died = true;
            };
            match (name, attempt) {
                ("p.passes", _) | ("p.once", 1) | ("p.twice", 2) => Some(("ok", "")),
                ("p.leaves_when_alone", 1) => {
                    outcome.left.push("guest 1: a page".into());
                    Some(("ok", ""))
                }
                ("p.warns_when_alone", 1) | ("p.warns", _) => {
                    complain(outcome);
                    None
                }
                ("p.hangs", _) => {
                    outcome.timed_out = true;
                    outcome
                        .problems
                        .push("no sign of life for too long: ended".into());
                    None
                }
                ("p.data", _) => Some(("failed", r#","fault":"data""#)),
                ("p.leaves", _) => Some(("failed", r#","fault":"leftover""#)),
                _ => Some(("failed", "")),
            }
        }
    }

    impl Boots for Planted {
        fn boot(&self, job: &Job, _: Duration) -> Result<Outcome> {
            let mut outcome = Outcome::default();
            let attempt = job
                .env
                .get("KFI_ATTEMPT")
                .map_or(0, |text| text.parse().unwrap());
            let say = |text: String| (job.sink)(1, Stream::Out, format!("{text}\n").as_bytes());
            for name in job.argv.last().unwrap().split(',') {
                say(format!("KFI-START {name}"));
                let Some((status, more)) = Self::run(name, attempt, &mut outcome) else {
                    return Ok(outcome);
                };
                say(format!(
                    r#"KFI-RESULT {{"name":"{name}","status":"{status}","seconds":1.0,"where":"x","detail":"{status}"{more}}}"#
                ));
            }
            outcome.statuses.insert(1, 0);
            Ok(outcome)
        }
    }

    /// Returns the status of a planted test and the exit status of its run.
    fn judged(name: &str, failures: Failures) -> (Status, i32, String) {
        let report = Arc::new(Report::new(None).unwrap());
        let tests = [name, "p.passes"].map(|name| Listed {
            name: name.to_owned(),
            limit: 1,
        });
        let until = Instant::now() + Duration::from_secs(3600);
        let boots = Box::new(Planted);
        let stages = [Stage::new(boots, "netns", "netns", until, &tests, failures)];
        let names = tests.iter().map(|test| test.name.clone()).collect();
        stages[0].run(names, &report);
        super::super::guests::repeat(&stages, &report);
        assert!(report.has("p.passes", "netns"));
        let line = report.find(name, "netns").unwrap();
        (line.status, report.finish(), line.detail)
    }

    #[test]
    fn a_test_that_passes_alone_is_flaky_and_keeps_its_first_words() {
        for (name, boots) in [("p.once", 1), ("p.twice", 2)] {
            let (status, exit, detail) = judged(name, Failures::Repeat);
            assert_eq!((status, exit), (Status::Flaky, 0), "{name}");
            assert!(detail.starts_with("failed\nagain, 1: "), "{detail}");
            assert!(
                detail.ends_with(&format!("again, {boots}: passed")),
                "{detail}"
            );
        }
    }

    #[test]
    fn a_test_that_always_fails_has_failed() {
        let (status, exit, detail) = judged("p.always", Failures::Repeat);
        assert_eq!((status, exit), (Status::Failed, 1));
        assert!(detail.contains("again, 2: failed"), "{detail}");
    }

    #[test]
    fn a_strict_run_repeats_nothing() {
        let (status, exit, detail) = judged("p.once", Failures::Count);
        assert_eq!((status, exit), (Status::Failed, 1));
        assert_eq!(detail, "failed");
    }

    #[test]
    fn some_faults_are_never_repeated() {
        for name in ["p.data", "p.leaves", "p.warns", "p.hangs"] {
            let (status, exit, detail) = judged(name, Failures::Repeat);
            assert_eq!((status, exit), (Status::Failed, 1), "{name}");
            assert!(!detail.contains("again,"), "{name}: {detail}");
        }
    }

    #[test]
    fn a_repetition_that_finds_such_a_fault_excuses_nothing() {
        for name in ["p.leaves_when_alone", "p.warns_when_alone"] {
            let (status, exit, detail) = judged(name, Failures::Repeat);
            assert_eq!((status, exit), (Status::Failed, 1), "{name}");
            assert!(!detail.contains("again, 2"), "{name}: {detail}");
        }
    }
}
