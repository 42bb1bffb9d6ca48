// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask selftest`: tests of the tests.
//!
//! Each bug of [`SeedBug`] is built into the modules, or into a program, in turn, and the tests for bugs of its class
//! run. The bug is caught if one of these tests fails or the kernel prints a complaint, and if the
//! same tests find nothing without the bug.
//!
//! The test run is tested too: planted tests fail on purpose, and each must be judged correctly.

use crate::context::{Context, SeedBug};
use crate::guest::output::by_line;
use crate::guest::run::Outcome;
use crate::guest::{Guests, Job, Kernel, Nodes, Options};
use crate::pmcut::{self, Provider, Target};
use crate::progress::clock;
use crate::report::{Line, Report, Status};
use crate::setup::Which;
use crate::test;
use anyhow::Result;
use clap::ValueEnum as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time limit of the tests of a bug, on a kernel with every checker.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// Place of tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    nodes: Nodes,
    topology: &'static str,
}

/// Two network namespaces of a guest.
const NETNS: Place = Place {
    nodes: Nodes::Netns,
    topology: "netns",
};
/// A guest of one node.
const ONE: Place = Place {
    nodes: Nodes::One,
    topology: "1",
};

/// A guest whose persistent memory loses its power, on the stock kernel: `cargo xtask pmcut`.
const POWER_CUT: Place = Place {
    nodes: Nodes::One,
    topology: "power-cut",
};
const POWER_CUT_VERBS: Place = Place {
    nodes: Nodes::Netns,
    topology: "power-cut-netns",
};
/// As [`POWER_CUT`], of a disk on persistent memory, and of one on a virtio-pmem device.
const POWER_CUT_DISK: Place = Place {
    nodes: Nodes::One,
    topology: "power-cut-disk",
};
const POWER_CUT_VIRTIO: Place = Place {
    nodes: Nodes::One,
    topology: "power-cut-virtio",
};
/// As [`POWER_CUT`], of the log of `kfi-pmlog`.
const POWER_CUT_LOG: Place = Place {
    nodes: Nodes::One,
    topology: "power-cut-log",
};
/// Number of power cuts at fences.
const CUTS: u64 = 300;

const PLACES: [Place; 7] = [
    NETNS,
    ONE,
    POWER_CUT,
    POWER_CUT_VERBS,
    POWER_CUT_DISK,
    POWER_CUT_VIRTIO,
    POWER_CUT_LOG,
];

/// The arguments of `selftest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only this bug; may be given more than once.
    #[arg(long, value_enum, value_name = "BUG")]
    pub bug: Vec<SeedBug>,
    /// Run only the planted tests of the test run itself, each judged as TESTING.md says. With a
    /// name, run only the planted tests whose names contain it.
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    pub planted: Option<String>,
    /// The kernel to run on; not every bug shows on the distribution's.
    #[arg(long, value_enum, default_value = "debug")]
    pub kernel: Kernel,
    /// Write results to this file as they come, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Returns the places of a bug's tests. The bug must be caught at each.
fn places(bug: SeedBug) -> &'static [Place] {
    match bug {
        SeedBug::UnaccountedAllocation | SeedBug::UnknownOpens | SeedBug::PageUnderLock => &[ONE],
        SeedBug::PmemNoWriteBack
        | SeedBug::PmemNoFence
        | SeedBug::PmemEarlyAnswer
        | SeedBug::PmemLastLine
        | SeedBug::PmemWrongRange => &[POWER_CUT, POWER_CUT_VERBS],
        SeedBug::PmemEarlyCommit => &[POWER_CUT_VERBS],
        SeedBug::DiskEarlyFlush => &[POWER_CUT_DISK],
        SeedBug::DeviceNoFlush => &[POWER_CUT_VIRTIO],
        SeedBug::LogEarlyWord => &[POWER_CUT_LOG],
        _ => &[NETNS],
    }
}

/// Returns the tests for bugs of this class.
fn tests(bug: SeedBug) -> &'static [&'static str] {
    match bug {
        SeedBug::MissingUnpin => &["mr.region_registered_stays_pinned_until_close"],
        SeedBug::LockOrder => &["cm.shutdown_after_connect_notifies_peer"],
        SeedBug::UseAfterFree => &["share.queue_descriptor_outliving_its_file_polls_hung_up"],
        SeedBug::DoubleFetch => &["classes.double_fetch_of_changing_op_uses_the_checked_value"],
        SeedBug::LostCompletion => &["cq.p09_flush_on_disconnect_completes_each_once"],
        SeedBug::MissedError => &["keys.alloc_beyond_limits_is_refused"],
        SeedBug::UnaccountedAllocation => &["memcg.objects_of_a_program_are_charged"],
        SeedBug::UnknownOpens => &["authd.p07_deny_missing_netns_denies"],
        SeedBug::PageUnderLock => &["mr.p11_registration_beside_a_missing_page_does_not_wait"],
        SeedBug::PmemNoWriteBack
        | SeedBug::PmemNoFence
        | SeedBug::PmemEarlyAnswer
        | SeedBug::PmemLastLine
        | SeedBug::PmemWrongRange
        | SeedBug::PmemEarlyCommit => &["pmcut.writes"],
        SeedBug::DiskEarlyFlush => &["pmcut.disk_writes"],
        SeedBug::DeviceNoFlush => &["pmcut.virtio_writes"],
        SeedBug::DaxKeysStay => &["kernel.c_consumer_of_dax_device_passes"],
        SeedBug::LogEarlyWord => &["pmcut.log_writes"],
    }
}

/// Runs `selftest` and returns the exit status.
///
/// # Errors
///
/// If no tests can run at all.
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
    for at in PLACES {
        let here = bugs.iter().filter(|bug| places(**bug).contains(&at));
        let mut all: Vec<&str> = here.flat_map(|bug| tests(*bug)).copied().collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() {
            continue;
        }
        let started = Instant::now();
        let sound = found(ctx, None, args.kernel, at, &all)?;
        report.add(Line {
            seconds: started.elapsed().as_secs_f64(),
            ..Line::check("selftest.without-a-bug", at.topology, &sound)
        });
    }
    for bug in bugs {
        for at in places(*bug) {
            let started = Instant::now();
            let mut line = match found(ctx, Some(*bug), args.kernel, *at, tests(*bug)) {
                Ok(what) => verdict(*bug, *at, &what),
                Err(error) => Line::failed(name(*bug), at.topology, 0.0, format!("{error:#}")),
            };
            line.seconds = started.elapsed().as_secs_f64();
            report.add(line);
        }
    }
    println!("\ntook {}", clock(started.elapsed().as_secs()));
    Ok(report.finish())
}

fn name(bug: SeedBug) -> String {
    format!("selftest.{}", bug.name())
}

/// Returns the result for a bug, from the findings of the tests and the kernel.
fn verdict(bug: SeedBug, at: Place, found: &[String]) -> Line {
    if found.is_empty() {
        return Line::failed(name(bug), at.topology, 0.0, "NOT caught");
    }
    for what in found {
        let first = what.lines().next().unwrap_or_default();
        println!("    {} is caught by {first}", bug.name());
    }
    Line {
        detail: format!("caught by {}", found.join("; ")),
        ..Line::check(name(bug), at.topology, &[])
    }
}

/// Runs tests with a bug built in, or without one. Returns the findings of the tests and the
/// kernel.
///
/// # Errors
///
/// If the tests could not run, or did not run to their end for no reason that the kernel gave.
fn found(
    ctx: &Context,
    bug: Option<SeedBug>,
    kernel: Kernel,
    at: Place,
    names: &[&str],
) -> Result<Vec<String>> {
    let ctx = Context {
        seed_bug: bug,
        ..ctx.clone()
    };
    let cut = |provider, target| pmcut::lost(&ctx, CUTS, provider, target);
    match at {
        POWER_CUT => return cut(Provider::Kshm, Target::Dax),
        POWER_CUT_VERBS => return cut(Provider::Kverbs, Target::Dax),
        POWER_CUT_DISK => return cut(Provider::Kshm, Target::Disk),
        POWER_CUT_VIRTIO => return cut(Provider::Kshm, Target::Virtio),
        POWER_CUT_LOG => return cut(Provider::Kshm, Target::Log),
        _ => {}
    }
    let options = Options {
        nodes: at.nodes,
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
    let argv = ["kfi-tests", "run", "--topology", at.topology, "--names"];
    let mut argv: Vec<String> = argv.map(str::to_owned).to_vec();
    argv.push(names.join(","));
    let outcome = guests.run(&Job::new(argv, sink))?;
    let results = results.lock().map(|mut r| std::mem::take(&mut *r));
    judge(&outcome, &results.unwrap_or_default(), names)
}

/// Returns the findings of a run.
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
            ..Line::failed(name, "netns", 0.0, "why")
        }
    }

    #[test]
    fn every_bug_has_tests() {
        for bug in SeedBug::value_variants() {
            let (tests, places) = (tests(*bug), places(*bug));
            assert!(!tests.is_empty() && !places.is_empty(), "{}", bug.name());
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
        assert_eq!(
            verdict(SeedBug::LockOrder, NETNS, &[]).status,
            Status::Failed
        );
    }
}
