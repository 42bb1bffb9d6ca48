// SPDX-License-Identifier: MIT OR Apache-2.0

//! Boxes: the few minutes on the debug kernel that every run of CI has time for, one box per rig.
//! Longer tests are part of `cargo xtask soak`.

use super::lanes::Task;
use super::piece::not_ours;
use super::selection::Selection;
use super::session::{listen, Failures, State};
use crate::context::Context;
use crate::fault;
use crate::guest::{Deadline, Guests, Job, Kernel, Nodes, Options};
use crate::report::{Line, Report, Status};
use crate::setup::{self, Which};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Latest end of the last box, counted from the start of the whole run: the time limit of CI on a
/// machine without a cache, less a reserve.
const ALL: Duration = Duration::from_secs(85 * 60);
/// Time limit for building the debug kernel.
const BUILDING: Duration = Duration::from_secs(25 * 60);
/// Time needed by the fault sweep, and its limit.
const FAULTS: (Duration, Duration) = (Duration::from_secs(12 * 60), Duration::from_secs(30 * 60));

/// A box: a program of the workspace that prints results as `kfi-tests` does, and ends by itself.
struct Part {
    name: &'static str,
    nodes: Nodes,
    argv: &'static [&'static str],
    /// Time after which the guest is killed.
    limit: Duration,
}

/// The boxes, those that find most per minute first.
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
            // These pass on the debug kernel, but take 15 minutes: `test --kernel debug` runs them.
            "--except",
            "classes.,wire.,hosts.,ofi.,mpi.,conformance.,storm",
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

/// The guests of all boxes, made by the first box that runs.
pub(super) struct Boxes<'a> {
    ctx: &'a Context,
    /// Start of the whole run.
    since: Instant,
    guests: OnceLock<Result<Guests<'a>, String>>,
}

impl<'a> Boxes<'a> {
    /// Returns the boxes of a run that began at `since`.
    pub(super) fn new(ctx: &'a Context, since: Instant) -> Self {
        Self {
            ctx,
            since,
            guests: OnceLock::new(),
        }
    }

    /// Returns whether the debug kernel is built.
    fn are_ready(&self) -> bool {
        setup::has_debug(self.ctx).unwrap_or(false)
    }

    /// Returns the time that is left for the whole run.
    fn left(&self) -> Duration {
        ALL.saturating_sub(self.since.elapsed())
    }

    /// Returns a task for each chosen box.
    pub(super) fn tasks<'b>(
        &'b self,
        chosen: &Selection,
        report: &'b Arc<Report>,
    ) -> Vec<Task<'b>> {
        let mut tasks = Vec::new();
        let has = |name: &str| name.contains(&chosen.only);
        if has("box.fault") {
            tasks.push(Task::new("box.fault", move || self.fault(report)));
        }
        for part in PARTS.iter().filter(|part| has(part.name)) {
            tasks.push(Task::new(part.name, move || self.part(part, report)));
        }
        tasks
    }

    fn part(&self, part: &Part, report: &Arc<Report>) {
        if let Some(guests) = self.guests(part.name, part.limit, report) {
            let guests = guests.with_nodes(part.nodes).with_timeout(part.limit);
            run_part(&guests, part, report);
        }
    }

    /// Runs every call with failures at selected places.
    fn fault(&self, report: &Arc<Report>) {
        let (least, most) = FAULTS;
        let Some(guests) = self.guests("box.fault", least, report) else {
            return;
        };
        let guests = guests.with_timeout(self.left().min(most));
        if let Err(error) = fault::test(&guests, "", true, report) {
            report.add(Line::failed(
                "fault",
                "box.fault",
                0.0,
                format!("{error:#}"),
            ));
        }
    }

    /// Returns the guests for the box `name`, if the remaining time covers `need`. The first box
    /// builds the debug kernel if necessary; the other boxes wait for that.
    fn guests(&self, name: &str, need: Duration, report: &Report) -> Option<&Guests<'a>> {
        let building = match self.are_ready() {
            true => Duration::ZERO,
            false => BUILDING,
        };
        let mut line = Line::failed(name, "debug", 0.0, "no time left");
        if self.left() < need + building {
            line.status = Status::Skipped;
            report.add(line);
            return None;
        }
        let guests = self.guests.get_or_init(|| {
            let options = Options {
                kernel: Kernel::Debug,
                // The fuzzer writes the programs it runs to this folder, so that they can run
                // again.
                dir: Some(crate::fuzz::folder(self.ctx).map_err(|error| format!("{error:#}"))?),
                ..Options::default()
            };
            Guests::prepare(self.ctx, Which::Main, &options).map_err(|error| format!("{error:#}"))
        });
        match guests {
            Ok(_) if self.left() < need => {
                line.status = Status::Skipped;
                report.add(line);
                None
            }
            Ok(guests) => Some(guests),
            Err(why) => {
                line.detail.clone_from(why);
                report.add(line);
                None
            }
        }
    }
}

/// Reason of a box that ended early without a failure.
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
        Failures::Count,
    );
    let outcome = guests.run(&Job::new(argv, sink));
    let state = state.lock().map(|mut state| std::mem::take(&mut *state));
    let state = state.unwrap_or_default();
    let mut excused = false;
    let faults = match outcome {
        Ok(outcome) if not_ours(&outcome) => {
            // The box ends here, because there is no time for another boot.
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
