// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask test`: everything that can show a fault, and the count.
//!
//! On the host the workspace's own tests; in guests, one boot for each
//! topology, what `kfi-tests` has; and a short run on the other supported
//! kernel series. What a guest's kernel said and what a run left behind count
//! as tests too.

mod boxed;
mod guests;
mod host;
mod session;

use crate::context::Context;
use crate::guest::Kernel;
use crate::lint;
use crate::progress::clock;
use crate::report::{Line, Report};
use anyhow::Result;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The arguments of `test`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The distribution's kernel, or one with every checker on.
    #[arg(long, value_enum, default_value = "stock")]
    pub kernel: Kernel,
    /// Only tests whose name contains this.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    pub only: String,
    /// Run `lint` too, as a test of that name.
    #[arg(long)]
    pub lint: bool,
    /// Run a box of minutes of every rig on the debug kernel too: `box.suite`,
    /// `box.fuzz`, `box.fault`.
    #[arg(long)]
    pub boxed: bool,
    /// Write results there as they come, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Runs `test`; returns the exit status.
///
/// # Errors
///
/// When there is no way to run tests at all (the report cannot be written,
/// the programs do not build).
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let started = Instant::now();
    let report = Arc::new(Report::new(args.report.as_deref())?);
    if args.lint {
        lint(ctx, &report);
    }
    host::run(ctx, &args.only, &report);
    if let Err(error) = guests::run(ctx, args, &report, started) {
        report.add(Line::failed("guests", "host", 0.0, format!("{error:#}")));
    }
    if args.boxed {
        if let Err(error) = boxed::run(ctx, &args.only, &report, started) {
            report.add(Line::failed("boxed", "host", 0.0, format!("{error:#}")));
        }
    }
    println!("\ntook {}", clock(started.elapsed().as_secs()));
    Ok(report.finish())
}

/// Runs `lint` as one test.
fn lint(ctx: &Context, report: &Report) {
    let started = Instant::now();
    let args = lint::Args {
        fix: false,
        only: String::new(),
    };
    let faults = lint::check(ctx, &args).unwrap_or_else(|error| vec![format!("{error:#}")]);
    let mut line = Line::check("lint", "host", &faults);
    line.seconds = started.elapsed().as_secs_f64();
    report.add(line);
}
