// SPDX-License-Identifier: MIT OR Apache-2.0

//! What there is time for on the debug kernel in every run of CI: a box of
//! minutes for each rig. What does not fit is `cargo xtask soak`'s.

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

/// The boxes' guests, made by the first box that runs.
pub(super) struct Boxes<'a> {
    ctx: &'a Context,
    /// When the whole run began.
    since: Instant,
    guests: OnceLock<Result<Guests<'a>, String>>,
}

impl<'a> Boxes<'a> {
    /// Boxes of a run that began at `since`.
    pub(super) fn new(ctx: &'a Context, since: Instant) -> Self {
        Self {
            ctx,
            since,
            guests: OnceLock::new(),
        }
    }

    /// Whether the debug kernel need not be built first.
    pub(super) fn are_ready(&self) -> bool {
        setup::has_debug(self.ctx).unwrap_or(false)
    }

    /// What is left of the time that the whole run has.
    fn left(&self) -> Duration {
        ALL.saturating_sub(self.since.elapsed())
    }

    /// A task for each chosen box.
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

    /// Every call, at a choice of places.
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

    /// The guests for the box `name`, if the time that is left covers `need`. The first box builds the
    /// debug kernel if it is not there yet; other boxes wait for that.
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
                // Where the fuzzer leaves the programs it runs, for another run of them.
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
        Failures::Count,
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
