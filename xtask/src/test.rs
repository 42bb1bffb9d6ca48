// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask test`: runs all tests and prints the count.
//!
//! On the host: the workspace's own tests. In guests: the tests of `kfi-tests`, for each topology,
//! and a short run on the other supported kernel series. Kernel complaints and leftovers of a run
//! count as tests too. Two parts run in parallel if the machine is large enough.

mod boxed;
mod guests;
mod host;
mod lanes;
mod piece;
pub mod planted;
mod selection;
mod session;

use crate::context::Context;
use crate::guest::protocol::Device;
use crate::guest::Kernel;
use crate::lint;
use crate::progress::clock;
use crate::report::{Line, Report};
use anyhow::Result;
use guests::Prepared;
use lanes::Task;
use selection::Selection;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The arguments of `test`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// The distribution's kernel, or one with every checker enabled.
    #[arg(long, value_enum, default_value = "stock")]
    pub kernel: Kernel,
    /// The kind of RDMA device: software RoCE or software iWARP.
    #[arg(long, value_enum, default_value = "rxe")]
    pub device: Device,
    /// Make the devices behave like another card: mlx5, mlx4, bnxt_re, irdma, qedr, ionic, hns. Runs the
    /// topics `keys`, `death` and `blk` in guests, or those of `--only` or `--changed`.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lint", "boxed"])]
    pub profile: Option<String>,
    /// Run only tests whose name contains this.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    pub only: String,
    /// Run only tests that the changes since REV can affect, with uncommitted and new files.
    #[arg(long, value_name = "REV", num_args = 0..=1, default_missing_value = "HEAD")]
    pub changed: Option<String>,
    /// Do not repeat a failed test. The debug kernel never repeats one.
    #[arg(long)]
    pub strict: bool,
    /// Also run `lint`, as a test of that name.
    #[arg(long)]
    pub lint: bool,
    /// Also run a few minutes of every rig on the debug kernel (`box.suite`, `box.fuzz`,
    /// `box.fault`), `package --test --short`, as a test of the name `package`, and a few power
    /// cuts (`pmcut`).
    #[arg(long)]
    pub boxed: bool,
    /// Number of parts that run in parallel [default: 2 if there are cores and memory for them].
    #[arg(long, value_name = "N")]
    pub lanes: Option<usize>,
    /// Start no test in guests after this many minutes; tests that did not run have failed
    /// [default: 80, on the debug kernel 360].
    #[arg(long, value_name = "N")]
    pub minutes: Option<u64>,
    /// Skip the tests of the host.
    #[arg(long)]
    pub no_host: bool,
    /// Write results to this file as they come, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Runs `test` and returns the exit status.
///
/// # Errors
///
/// If no tests can run at all (the report cannot be written, the revision is unknown).
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let report = Arc::new(Report::new(args.report.as_deref())?);
    run_into(ctx, args, &report)?;
    Ok(report.finish())
}

/// Runs `test` and adds the results to `report`.
///
/// # Errors
///
/// If the revision is unknown.
pub fn run_into(ctx: &Context, args: &Args, report: &Arc<Report>) -> Result<()> {
    let started = Instant::now();
    let chosen = Selection::new(ctx, &args.only, args.changed.as_deref())?;
    let prepared = if chosen.has_guests() {
        let prepared = Prepared::new(ctx, args, report);
        report.stage("build", started.elapsed());
        failed("guests", prepared, report)
    } else {
        None
    };
    let stages = prepared.as_ref().and_then(|prepared| {
        let stages = prepared.stages(&chosen, args, started);
        failed("guests", stages, report)
    });
    let stages = stages.unwrap_or_default();
    let boxes = boxed::Boxes::new(ctx, started);
    let mut tasks = guests::tasks(&stages, report);
    if args.lint {
        tasks.push(Task::new("lint", || lint(ctx, report)));
    }
    if args.boxed && "package".contains(&args.only) {
        tasks.push(Task::new("package", || package(ctx, report)));
    }
    if args.boxed && "pmcut".contains(&args.only) {
        tasks.push(Task::new("pmcut", || pmcut(ctx, report)));
    }
    if chosen.has_host() && !args.no_host && args.profile.is_none() {
        tasks.push(Task::new("host", || host::run(ctx, &args.only, report)));
    }
    // Last, because a box is skipped if the time is short, and a test that did not run has failed.
    if args.boxed {
        tasks.extend(boxes.tasks(&chosen, report));
    }
    lanes::run(tasks, args.lanes.unwrap_or_else(lanes::count), report);
    let again = Instant::now();
    guests::repeat(&stages, report);
    report.stage("repetitions", again.elapsed());
    println!("\ntook {}", clock(started.elapsed().as_secs()));
    Ok(())
}

/// Returns a value, or reports the error as a failure.
fn failed<T>(name: &str, result: Result<T>, report: &Report) -> Option<T> {
    result
        .map_err(|error| report.add(Line::failed(name, "host", 0.0, format!("{error:#}"))))
        .ok()
}

/// Runs `package --test --short` as one test.
fn package(ctx: &Context, report: &Report) {
    let started = Instant::now();
    let faults: Vec<String> = crate::package::run(ctx, &crate::package::Args::short_test())
        .err()
        .map(|error| format!("{error:#}"))
        .into_iter()
        .collect();
    let mut line = Line::check("package", "host", &faults);
    line.seconds = started.elapsed().as_secs_f64();
    report.add(line);
}

/// Runs `pmcut` for a moment over each provider.
fn pmcut(ctx: &Context, report: &Report) {
    use crate::pmcut::{test, Args};
    for args in [Args::short(), Args::short_over_verbs()] {
        if let Err(error) = test(ctx, &args, report) {
            report.add(Line::failed("pmcut", "host", 0.0, format!("{error:#}")));
        }
    }
}

/// Runs `lint` as one test.
fn lint(ctx: &Context, report: &Report) {
    let started = Instant::now();
    let args = lint::Args {
        fix: false,
        only: String::new(),
        verbose: false,
    };
    let faults = lint::check(ctx, &args).unwrap_or_else(|error| vec![format!("{error:#}")]);
    let mut line = Line::check("lint", "lint", &faults);
    line.seconds = started.elapsed().as_secs_f64();
    report.add(line);
}
