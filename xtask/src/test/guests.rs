// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tests that run in guests: their list, and their distribution to boots.

use super::lanes::{free_memory, Task};
use super::piece::{Listed, Stage};
use super::selection::Selection;
use super::session::Failures;
use super::Args;
use crate::context::Context;
use crate::guest::protocol::Device;
use crate::guest::{Guests, Kernel, Nodes, Options};
use crate::report::{Line, Report, Status, MAX_FLAKY};
use crate::setup::Which;
use crate::versions::NoKernel;
use anyhow::{bail, Context as _, Result};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Latest end of these guests, in minutes from the start of the whole run.
const WHOLE: u64 = 80;
/// The same on the debug kernel.
const PATIENT: u64 = 360;
/// If each guest can have this much memory, guests are large enough for the largest transfers.
const ROOMY: u64 = 12 << 30;
/// Number of tests of one boot. A boot takes as long as a dozen tests. Short pieces keep both
/// workers busy to the end.
const PIECE: usize = 90;

/// A topology of the preferred kernel, in the order of the stages.
const STAGES: [(Nodes, &str, &str); 4] = [
    (Nodes::Two, "2", "2 nodes"),
    (Nodes::Netns, "netns", "netns"),
    (Nodes::One, "shm", "kshm"),
    (Nodes::One, "1", "1 node"),
];

/// Topics that run over another card's profile.
const PROFILE_TOPICS: [&str; 3] = ["keys.", "death.", "blk."];

/// Prepared guests of both kernel series.
pub(super) struct Prepared<'a> {
    main: Guests<'a>,
    other: Option<Guests<'a>>,
    /// Guests with software iWARP, if `main` has software RoCE.
    iwarp: Option<Guests<'a>>,
    kernel: Kernel,
}

impl<'a> Prepared<'a> {
    /// Sets up and builds all parts of the guests.
    ///
    /// # Errors
    ///
    /// If no guest can be prepared.
    pub(super) fn new(ctx: &'a Context, args: &Args, report: &Report) -> Result<Self> {
        let (kernel, device) = (args.kernel, args.device);
        let over_profile = args.profile.is_some();
        let options = Options {
            kernel,
            device,
            layers: true,
            ..Options::default()
        };
        let main = Guests::prepare(ctx, Which::Main, &options)?;
        let other = if kernel == Kernel::Debug || over_profile {
            None
        } else {
            other(ctx, &options, report)
        };
        let iwarp = match (kernel, device) {
            (Kernel::Stock, Device::Rxe) if !over_profile => {
                let options = Options {
                    layers: false,
                    device: Device::Siw,
                    ..options
                };
                Some(Guests::prepare(ctx, Which::Main, &options)?)
            }
            _ => None,
        };
        Ok(Self {
            main,
            other,
            iwarp,
            kernel,
        })
    }

    /// Returns the stages with the chosen tests.
    ///
    /// # Errors
    ///
    /// If the tests cannot be listed.
    pub(super) fn stages(
        &self,
        chosen: &Selection,
        args: &Args,
        since: Instant,
    ) -> Result<Vec<Stage<'_>>> {
        let program = self
            .main
            .program("kfi-tests")
            .context("the workspace has no program kfi-tests")?;
        let debug = self.kernel == Kernel::Debug;
        let minutes = args.minutes.unwrap_or(if debug { PATIENT } else { WHOLE });
        let until = since + Duration::from_secs(minutes * 60);
        let failures = if args.strict || debug {
            Failures::Count
        } else {
            Failures::Repeat
        };
        let list = |topology: &'static str, place: &str| -> Result<Vec<Listed>> {
            let mut tests = list(program, self.kernel, topology)?;
            tests.retain(|test| chosen.has(&test.name, place));
            if args.profile.is_some() && args.only.is_empty() && args.changed.is_none() {
                let has_topic = |name: &str| PROFILE_TOPICS.iter().any(|t| name.starts_with(t));
                tests.retain(|test| has_topic(&test.name));
            }
            Ok(tests)
        };
        let mut stages = Vec::new();
        for (nodes, topology, place) in STAGES {
            if topology == "shm" && args.profile.is_some() {
                continue;
            }
            let tests = list(topology, place)?;
            if tests.is_empty() {
                continue;
            }
            let mut guests = self.main.with_nodes(nodes);
            if matches!(topology, "netns" | "shm") && free_memory() >= ROOMY {
                guests = guests.with_mem("4G");
            }
            let boots = Box::new(guests);
            let stage = |place: String| Stage::new(boots, topology, place, until, &tests, failures);
            stages.push(match &args.profile {
                Some(profile) => stage(format!("{place} {profile}")).over(profile),
                None => stage(place.to_owned()),
            });
        }
        let others = self.other.iter().map(|guests| (guests, guests.series()));
        let others = others.chain(self.iwarp.iter().map(|guests| (guests, "siw")));
        for (guests, what) in others {
            let tests = list("smoke", "smoke")?;
            if !tests.is_empty() {
                let place = format!("smoke {what}");
                let boots = Box::new(guests.with_nodes(Nodes::Netns));
                stages.push(Stage::new(boots, "smoke", place, until, &tests, failures));
            }
        }
        Ok(stages)
    }
}

/// Returns the guests of the other supported kernel series, if its kernel is available.
fn other<'a>(ctx: &'a Context, options: &Options, report: &Report) -> Option<Guests<'a>> {
    let options = Options {
        layers: false,
        ..options.clone()
    };
    match Guests::prepare(ctx, Which::Other, &options) {
        Ok(other) => Some(other),
        Err(error) => {
            let mut line = Line::failed("other-series", "smoke", 0.0, format!("{error:#}"));
            if error.is::<NoKernel>() {
                line.status = Status::Skipped;
            }
            report.add(line);
            None
        }
    }
}

/// Returns a task for each piece of the stages' tests.
pub(super) fn tasks<'a>(stages: &'a [Stage<'a>], report: &'a Arc<Report>) -> Vec<Task<'a>> {
    let mut tasks = Vec::new();
    for stage in stages {
        let names: Vec<&String> = stage.limits.keys().collect();
        let pieces = names.len().div_ceil(PIECE).max(1);
        for piece in names.chunks(names.len().div_ceil(pieces).max(1)) {
            let piece: Vec<String> = piece.iter().map(|name| (*name).clone()).collect();
            tasks.push(Task::new(&stage.place, move || {
                println!("\n{}: {} tests", stage.place, piece.len());
                stage.run(piece, report);
            }));
        }
    }
    tasks
}

/// Runs failed tests again and reports their final results.
///
/// With more failures than [`MAX_FLAKY`] the run fails in any case, so no test is repeated.
pub(super) fn repeat(stages: &[Stage<'_>], report: &Report) {
    let failures = report.take_postponed();
    let many = failures.len() > MAX_FLAKY;
    for line in failures {
        let stage = stages.iter().find(|stage| stage.place == line.place);
        let line = match stage {
            Some(stage) if !many => {
                println!("\n{} [{}] runs again", line.name, line.place);
                stage.repeat(line)
            }
            _ => line,
        };
        report.add(line);
    }
    for stage in stages {
        stage.report_around(report);
    }
}

/// Returns the tests of a topology.
fn list(program: &Path, kernel: Kernel, topology: &str) -> Result<Vec<Listed>> {
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
    Ok(tests)
}
