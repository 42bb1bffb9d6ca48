// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask selftest`: the tests tested.
//!
//! Each bug of [`SeedBug`] is built into the modules in turn, and the tests
//! that are there for bugs of its class are run. It is caught when one of them
//! fails or the kernel complains, and when the same tests find nothing in the
//! modules as they are.
//!
//! The test run is tested too: tests that fail on purpose are judged as they must be.

use crate::context::{Context, SeedBug};
use crate::guest::output::by_line;
use crate::guest::run::Outcome;
use crate::guest::{Guests, Job, Kernel, Nodes, Options};
use crate::progress::clock;
use crate::report::{Line, Report, Status};
use crate::setup::Which;
use crate::test;
use anyhow::Result;
use clap::ValueEnum as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long the tests of a bug may take, on a kernel with every checker.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// Where the tests run.
const PLACE: &str = "netns";

/// The arguments of `selftest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this bug; may be given more than once.
    #[arg(long, value_enum, value_name = "BUG")]
    pub bug: Vec<SeedBug>,
    /// Only the test of the test run itself: planted tests, each judged as TESTING.md says. With a
    /// name, only the planted tests whose names contain it.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    pub planted: Option<String>,
    /// The kernel to run on: not every bug shows on the distribution's.
    #[arg(long, value_enum, default_value = "debug")]
    pub kernel: Kernel,
    /// Write results there as they come, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// The tests that are there for bugs of this class.
fn tests(bug: SeedBug) -> &'static [&'static str] {
    match bug {
        SeedBug::MissingUnpin => &["mr.pins_and_unpins"],
        SeedBug::LockOrder => &["cm.connect_and_shutdown"],
        SeedBug::UseAfterFree => &["share.descriptors_outlive_their_queue"],
        SeedBug::DoubleFetch => &["classes.double_fetch_what_is_checked_is_what_is_used"],
        SeedBug::LostCompletion => &["cq.p09_flush_completes_each_once"],
        SeedBug::MissedError => &["keys.alloc_limits"],
    }
}

/// Runs `selftest`; returns the exit status.
///
/// # Errors
///
/// When there is no way to run tests at all.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let started = Instant::now();
    let report = Report::new(args.report.as_deref())?;
    if args.bug.is_empty() {
        let only = args.planted.as_deref().unwrap_or_default();
        test::planted::run(ctx, only, &report)?;
    }
    if args.planted.is_some() {
        return Ok(report.finish());
    }
    let bugs = match args.bug.as_slice() {
        [] => SeedBug::value_variants(),
        some => some,
    };
    let mut all: Vec<&str> = bugs.iter().flat_map(|bug| tests(*bug)).copied().collect();
    all.sort_unstable();
    all.dedup();
    let sound = found(ctx, None, args.kernel, &all)?;
    report.add(Line {
        seconds: started.elapsed().as_secs_f64(),
        ..Line::check("selftest.without-a-bug", PLACE, &sound)
    });
    for bug in bugs {
        let started = Instant::now();
        let mut line = match found(ctx, Some(*bug), args.kernel, tests(*bug)) {
            Ok(what) => verdict(*bug, &what),
            Err(error) => Line::failed(name(*bug), PLACE, 0.0, format!("{error:#}")),
        };
        line.seconds = started.elapsed().as_secs_f64();
        report.add(line);
    }
    println!("\ntook {}", clock(started.elapsed().as_secs()));
    Ok(report.finish())
}

fn name(bug: SeedBug) -> String {
    format!("selftest.{}", bug.name())
}

/// What is to be said of a bug, of which the tests and the kernel said this.
fn verdict(bug: SeedBug, found: &[String]) -> Line {
    if found.is_empty() {
        return Line::failed(name(bug), PLACE, 0.0, "NOT caught");
    }
    for what in found {
        let first = what.lines().next().unwrap_or_default();
        println!("    {} is caught by {first}", bug.name());
    }
    Line {
        detail: format!("caught by {}", found.join("; ")),
        ..Line::check(name(bug), PLACE, &[])
    }
}

/// Runs tests with a bug in the modules, or none; what they and the kernel found.
///
/// # Errors
///
/// When they could not be run, or not to their end for no reason the kernel
/// gave.
fn found(
    ctx: &Context,
    bug: Option<SeedBug>,
    kernel: Kernel,
    names: &[&str],
) -> Result<Vec<String>> {
    let ctx = Context {
        seed_bug: bug,
        ..ctx.clone()
    };
    let options = Options {
        nodes: Nodes::Netns,
        kernel,
        ..Options::default()
    };
    let guests = Guests::prepare(&ctx, Which::Main, &options)?.with_timeout(LIMIT);
    let results = Arc::new(Mutex::new(Vec::new()));
    let taken = Arc::clone(&results);
    let sink = by_line(move |node, _, line| {
        let result = line.strip_prefix("KFI-RESULT ").filter(|_| node == 1);
        match result.and_then(|text| serde_json::from_str::<Line>(text).ok()) {
            Some(result) => {
                if let Ok(mut taken) = taken.lock() {
                    taken.push(result);
                }
            }
            None => eprintln!("    [{node}] {line}"),
        }
    });
    let argv = ["kfi-tests", "run", "--topology", "netns", "--names"];
    let mut argv: Vec<String> = argv.map(str::to_owned).to_vec();
    argv.push(names.join(","));
    let outcome = guests.run(&Job::new(argv, sink))?;
    let results = results.lock().map(|mut r| std::mem::take(&mut *r));
    judge(&outcome, &results.unwrap_or_default(), names)
}

/// What a run found.
fn judge(outcome: &Outcome, results: &[Line], names: &[&str]) -> Result<Vec<String>> {
    let failed = results.iter().filter(|line| line.status == Status::Failed);
    let mut found: Vec<String> = failed
        .map(|line| format!("{}: {}", line.name, line.detail))
        .collect();
    for (_, complaint) in &outcome.complaints {
        found.push(format!("the kernel: {}", complaint.line));
    }
    found.extend(outcome.left.iter().cloned());
    found.extend(outcome.unload.iter().cloned());
    let passed = |name: &&str| {
        let mut of = results.iter().filter(|line| line.name == **name);
        of.any(|line| line.status == Status::Ok)
    };
    if found.is_empty() && !names.iter().all(passed) {
        anyhow::bail!(
            "{} of {} tests were run: {}",
            results.len(),
            names.len(),
            outcome.problems.join("; ")
        );
    }
    Ok(found)
}

#[cfg(test)]
mod selftests {
    use super::*;

    fn result(name: &str, status: Status) -> Line {
        Line {
            status,
            ..Line::failed(name, PLACE, 0.0, "why")
        }
    }

    #[test]
    fn every_bug_has_tests() {
        for bug in SeedBug::value_variants() {
            assert!(!tests(*bug).is_empty(), "{}", bug.name());
        }
    }

    #[test]
    fn a_failed_test_or_a_complaint_catches() {
        let mut outcome = Outcome::default();
        let fine = [result("a.b", Status::Ok)];
        assert!(judge(&outcome, &fine, &["a.b"]).unwrap().is_empty());
        let failed = [result("a.b", Status::Failed)];
        assert_eq!(judge(&outcome, &failed, &["a.b"]).unwrap(), ["a.b: why"]);
        outcome.left.push("a page".into());
        assert_eq!(judge(&outcome, &fine, &["a.b"]).unwrap(), ["a page"]);
    }

    #[test]
    fn what_did_not_run_caught_nothing() {
        let outcome = Outcome::default();
        assert!(judge(&outcome, &[], &["a.b"]).is_err());
        let skipped = [result("a.b", Status::Skipped)];
        assert!(judge(&outcome, &skipped, &["a.b"]).is_err());
        assert_eq!(verdict(SeedBug::LockOrder, &[]).status, Status::Failed);
    }
}
