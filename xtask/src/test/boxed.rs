// SPDX-License-Identifier: MIT OR Apache-2.0

//! What there is time for on the debug kernel in every run of CI: a box of
//! minutes for each rig. What does not fit is `cargo xtask soak`'s.

use super::guests::not_ours;
use super::session::{listen, State};
use crate::context::Context;
use crate::fault;
use crate::guest::{Deadline, Guests, Job, Kernel, Nodes, Options};
use crate::report::{Line, Report, Status};
use crate::setup::{self, Which};
use anyhow::Result;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// When the last of it ends at the latest, counted from the start of the whole run: what CI gives a
/// machine that has never seen the project, less a little.
const ALL: Duration = Duration::from_secs(85 * 60);
/// What building the debug kernel may take.
const BUILDING: Duration = Duration::from_secs(25 * 60);
/// What the faults need, and more than they may take.
const FAULTS: (Duration, Duration) = (Duration::from_secs(12 * 60), Duration::from_secs(30 * 60));

/// A rig's box: a program of the workspace that prints results as `kfi-tests`
/// does, and ends by itself.
struct Part {
    name: &'static str,
    nodes: Nodes,
    argv: &'static [&'static str],
    /// When the guest is given up.
    limit: Duration,
}

/// In the order of what they find in a minute.
const PARTS: &[Part] = &[
    Part {
        name: "box.suite",
        nodes: Nodes::Netns,
        argv: &[
            "kfi-tests",
            "run",
            "--topology",
            "netns",
            "--seconds",
            "480",
            // They pass there, but take a quarter of an hour: `test --kernel debug` has them.
            "--except",
            "classes.,wire.,hosts.,storm",
        ],
        limit: Duration::from_secs(15 * 60),
    },
    Part {
        name: "box.fuzz",
        nodes: Nodes::One,
        argv: &["kfi-fuzz", "run", "--seconds", "90"],
        limit: Duration::from_secs(10 * 60),
    },
];

/// Runs the parts whose names contain `only`, as far as there is time for them: `since` is when the
/// whole run began. What there is no time for is skipped.
///
/// # Errors
///
/// When there is no debug kernel to be had.
pub(super) fn run(ctx: &Context, only: &str, report: &Arc<Report>, since: Instant) -> Result<()> {
    let left = || ALL.saturating_sub(since.elapsed());
    let skip = |name: &str| {
        let mut line = Line::failed(name, "debug", 0.0, "no time left");
        line.status = Status::Skipped;
        report.add(line);
    };
    let first = PARTS.first().map_or(Duration::ZERO, |part| part.limit);
    if !setup::has_debug(ctx)? && left() < BUILDING + first {
        skip("box");
        return Ok(());
    }
    let options = Options {
        kernel: Kernel::Debug,
        // Where the fuzzer leaves the programs it runs, for those who want to run them again.
        dir: Some(crate::fuzz::folder(ctx)?),
        ..Options::default()
    };
    let guests = Guests::prepare(ctx, Which::Main, &options)?;
    for part in PARTS.iter().filter(|part| part.name.contains(only)) {
        if left() < part.limit {
            skip(part.name);
            continue;
        }
        let guests = guests.with_nodes(part.nodes).with_timeout(part.limit);
        run_part(&guests, part, report);
    }
    if "box.fault".contains(only) {
        let (least, most) = FAULTS;
        if left() < least {
            skip("box.fault");
            return Ok(());
        }
        let guests = guests.with_timeout(left().min(most));
        // Every call, at a choice of places.
        fault::test(&guests, "", true, report)?;
    }
    Ok(())
}

/// Why a box is over before its time, without having failed.
const EXCUSED: &str = "the kernel complained, but not of us (see TESTING.md)";

fn run_part(guests: &Guests<'_>, part: &Part, report: &Arc<Report>) {
    let place = part.name;
    println!("\n{place} on {}", guests.release());
    let started = Instant::now();
    let state = Arc::new(Mutex::new(State::default()));
    let argv = part.argv.iter().map(|word| (*word).to_owned()).collect();
    let sink = listen(
        &state,
        report,
        place,
        &BTreeMap::new(),
        &Deadline::default(),
    );
    let outcome = guests.run(&Job::new(argv, sink));
    let state = state.lock().map(|mut state| std::mem::take(&mut *state));
    let state = state.unwrap_or_default();
    let mut excused = false;
    let faults = match outcome {
        Ok(outcome) if not_ours(&outcome) => {
            // The box ends here; there is no time for another boot.
            excused = true;
            [outcome.left, outcome.unload].concat()
        }
        Err(error) => vec![format!("{error:#}")],
        Ok(outcome) => {
            let mut faults = outcome.faults();
            let status = outcome.status();
            if faults.is_empty() && status != 0 && state.failed == 0 {
                faults.push(format!("ended with status {status}:\n{}", state.words()));
            }
            if faults.is_empty() && state.ended.is_empty() {
                faults.push("not a single result".into());
            }
            faults
        }
    };
    if let Some((name, since)) = &state.running {
        let why = format!("did not end; {}", faults.join("\n"));
        let mut line = Line::failed(name, place, since.elapsed().as_secs_f64(), why);
        if excused {
            line.status = Status::Skipped;
            line.detail = EXCUSED.into();
        }
        report.add(line);
    }
    let mut line = Line::check(format!("guest.{place}"), place, &faults);
    if excused && faults.is_empty() {
        line.status = Status::Skipped;
        line.detail = EXCUSED.into();
    }
    line.seconds = started.elapsed().as_secs_f64();
    report.add(line);
}
