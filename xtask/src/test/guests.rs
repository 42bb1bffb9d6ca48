// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tests that run in guests.
//!
//! One boot for each topology, as long as no guest dies. When one does, the
//! test that ran has failed, and another boot goes on with the rest.

use super::session::{listen, State};
use super::Args;
use crate::context::Context;
use crate::guest::klog::{self, Complaint};
use crate::guest::run::Outcome;
use crate::guest::{Deadline, Guests, Job, Kernel, Nodes, Options};
use crate::progress::clock;
use crate::report::{Line, Report, Status};
use crate::setup::Which;
use crate::versions::NoKernel;
use anyhow::{bail, Context as _, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// When the last of these guests ends at the latest, counted from the start of it all: the boxes of
/// the debug kernel still fit into an hour and a half then.
const WHOLE: Duration = Duration::from_secs(75 * 60);
/// What a topology may take with every checker on.
const PATIENT: Duration = Duration::from_secs(3 * 3600);
/// What is left for a stage that comes late, so that it shows something.
const LEAST: Duration = Duration::from_secs(60);
/// With this much free memory a guest gets enough for the largest transfers.
const ROOMY: u64 = 6 << 30;
/// How often guests may die in one topology before it is given up.
const DEATHS: usize = 5;

/// A topology, and how long its tests may take altogether.
struct Stage {
    nodes: Nodes,
    /// What `kfi-tests` calls it.
    topology: &'static str,
    /// What reports call it.
    place: String,
    budget: Duration,
}

/// The stages on the preferred kernel, each with three to four times what it takes on two quiet
/// cores: what was not run has failed, so a slow machine had better be late.
fn stages() -> [Stage; 4] {
    [
        (Nodes::Netns, "netns", "netns", 25),
        (Nodes::Two, "2", "2 nodes", 25),
        (Nodes::One, "1", "1 node", 10),
        (Nodes::One, "shm", "kshm", 20),
    ]
    .map(|(nodes, topology, place, minutes)| Stage {
        nodes,
        topology,
        place: place.to_owned(),
        budget: Duration::from_secs(minutes * 60),
    })
}

/// One test, as `kfi-tests list --json` tells it.
#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    /// Seconds after which it has failed.
    #[serde(default = "default_limit")]
    limit: u64,
}

fn default_limit() -> u64 {
    60
}

/// Runs what there is to run in guests.
///
/// # Errors
///
/// When no guest can be made.
pub(super) fn run(ctx: &Context, args: &Args, report: &Arc<Report>, since: Instant) -> Result<()> {
    let within = |budget: Duration| budget.min(WHOLE.saturating_sub(since.elapsed()).max(LEAST));
    let options = Options {
        kernel: args.kernel,
        ..Options::default()
    };
    let main = Guests::prepare(ctx, Which::Main, &options)?;
    let debug = args.kernel == Kernel::Debug;
    let program = main
        .program("kfi-tests")
        .context("the workspace has no program kfi-tests")?;
    for mut stage in stages() {
        // With every checker on it takes what it takes.
        stage.budget = if debug { PATIENT } else { within(stage.budget) };
        let tests = list(program, args.kernel, stage.topology, &args.only)?;
        if !tests.is_empty() {
            let mut guests = main.with_nodes(stage.nodes);
            if (stage.nodes == Nodes::Netns || stage.topology == "shm") && free_memory() >= ROOMY {
                guests = guests.with_mem("4G");
            }
            run_stage(&guests, &stage, tests, report);
        }
    }
    let tests = list(program, args.kernel, "smoke", &args.only)?;
    if tests.is_empty() || debug {
        return Ok(());
    }
    let other = match Guests::prepare(ctx, Which::Other, &options) {
        Ok(other) => other,
        Err(error) => {
            let mut line = Line::failed("other-series", "smoke", 0.0, format!("{error:#}"));
            if error.is::<NoKernel>() {
                line.status = Status::Skipped;
            }
            report.add(line);
            return Ok(());
        }
    };
    let stage = Stage {
        nodes: Nodes::Netns,
        topology: "smoke",
        place: format!("smoke {}", other.series()),
        budget: within(Duration::from_secs(5 * 60)),
    };
    run_stage(&other.with_nodes(stage.nodes), &stage, tests, report);
    Ok(())
}

/// Bytes of memory that this machine can spare.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

/// The tests of a topology whose names contain `only`.
fn list(program: &Path, kernel: Kernel, topology: &str, only: &str) -> Result<Vec<Listed>> {
    let output = Command::new(program)
        .env("KFI_SLOW", kernel.slowness().to_string())
        .args(["list", "--json", "--topology", topology])
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    if !output.status.success() {
        bail!(
            "kfi-tests list: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let mut tests = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        tests.push(
            serde_json::from_str(line).with_context(|| format!("kfi-tests list said {line:?}"))?,
        );
    }
    tests.retain(|test: &Listed| test.name.contains(only));
    Ok(tests)
}

/// What went wrong around the tests of a stage, over all its boots.
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

    /// All but what the kernel complained about.
    fn take_rest(&mut self, outcome: &Outcome) {
        self.left.extend(outcome.left.iter().cloned());
        self.unload.extend(outcome.unload.iter().cloned());
    }

    fn tell(&self, place: &str, report: &Report) {
        for (what, faults) in [
            ("kernel-log", &self.kernel_log),
            ("leftovers", &self.left),
            ("unload", &self.unload),
        ] {
            report.add(Line::check(slug(what, place), place, faults));
        }
    }
}

/// Runs the tests of a topology, in as many boots as it takes.
fn run_stage(guests: &Guests<'_>, stage: &Stage, tests: Vec<Listed>, report: &Arc<Report>) {
    let started = Instant::now();
    let place = stage.place.as_str();
    println!("\n{place}: {} tests on {}", tests.len(), guests.release());
    let limits: BTreeMap<String, u64> = tests
        .iter()
        .map(|test| (test.name.clone(), test.limit))
        .collect();
    let mut rest: Vec<String> = tests.into_iter().map(|test| test.name).collect();
    let mut around = Around::default();
    let mut deaths = 0;
    let mut again = BTreeSet::new();
    let give_up = loop {
        let spent = started.elapsed();
        if spent + Duration::from_secs(30) > stage.budget {
            let limit = clock(stage.budget.as_secs());
            break format!("the tests of {place} took more than {limit} minutes");
        }
        let state = Arc::new(Mutex::new(State::default()));
        let deadline = Deadline::default();
        let argv = ["kfi-tests", "run", "--topology", stage.topology, "--names"];
        let mut argv: Vec<String> = argv.map(str::to_owned).to_vec();
        argv.push(rest.join(","));
        let job = Job {
            deadline: Some(deadline.clone()),
            ..Job::new(argv, listen(&state, report, place, &limits, &deadline))
        };
        let outcome = guests.with_timeout(stage.budget - spent).run(&job);
        let state = state
            .lock()
            .map(|mut state| std::mem::take(&mut *state))
            .unwrap_or_default();
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
            eprintln!("  {place}: not our doing (see TESTING.md); that test once more:\n{why}");
            around.take_rest(&outcome);
        } else {
            around.take(&outcome);
        }
        if once_more {
            // It is among the rest.
        } else if let Some((name, since)) = &state.running {
            report.add(Line::failed(
                name,
                place,
                since.elapsed().as_secs_f64(),
                &why,
            ));
            rest.retain(|other| other != name);
        } else if rest.is_empty() && !ended_well(&outcome, &state) {
            report.add(Line::failed(slug("exit", place), place, 0.0, &why));
        }
        if rest.is_empty() {
            break String::new();
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
        report.add(Line::failed(
            name,
            place,
            0.0,
            format!("not run: {give_up}"),
        ));
    }
    around.tell(place, report);
}

/// Whether all that kernels complained about in a run comes without us: of rxe's own warning, or of the
/// emulator's breakpoint that is not there.
///
/// An acknowledgement of a write that comes a second time, because the machine stood still for
/// longer than answers are waited for, has rxe forget that it is in the middle of an answer to a
/// read (`check_psn()`, `check_ack()` and `COMPST_UPDATE_COMP` in `rxe_comp.c`). The next part of
/// that answer is then an error without a status, of which it warns, and a warning ends the guest.
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

/// Whether a run that brought all results also ended as it should.
fn ended_well(outcome: &Outcome, state: &State) -> bool {
    // A status that tells of failed tests tells nothing new.
    let told = state.failed > 0 || outcome.statuses.get(&1) == Some(&0);
    told && !outcome.died && !outcome.timed_out
}

/// The name of a check around the tests of a place.
fn slug(what: &str, place: &str) -> String {
    format!("{what}.{}", place.replace(' ', "-"))
}

/// Why a run ended before all its tests had.
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
}
