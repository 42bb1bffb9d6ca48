// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask fuzz`: the fuzzer of the device and its rings, in a guest with the debug kernel.
//!
//! `kfi-fuzz` in the guest does the work (`qemu-tests/src/fuzz.rs`). This module starts the guest
//! and compares the covered code with all code.

mod code;
mod coverage;
mod uses;

use crate::context::Context;
use crate::guest::output::to_stdio;
use crate::guest::{Guests, Job, Kernel, Nodes, Options};
use crate::setup::Which;
use anyhow::{bail, Context as _, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The arguments of `fuzz`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run time in minutes.
    #[arg(long, value_name = "N", default_value = "20")]
    pub minutes: u64,
    /// Seed of the random numbers [default: the time].
    #[arg(long, value_name = "S")]
    pub seed: Option<String>,
    /// Run the programs of this file instead.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Number of runs of these programs.
    #[arg(long, value_name = "N", default_value = "10")]
    pub times: u32,
    /// Write the programs worth keeping to this folder.
    #[arg(long, value_name = "DIR")]
    pub corpus_out: Option<PathBuf>,
    /// Fail if the coverage of the device's or the rings' edges is below this percentage.
    #[arg(long, value_name = "PERCENT")]
    pub require: Option<f64>,
    /// The kernel; only the debug kernel reports coverage.
    #[arg(long, value_enum, default_value = "debug")]
    pub kernel: Kernel,
}

/// File of the guest with the programs that it runs now.
const CURRENT: &str = "fuzz-current.txt";
/// File with the programs that ran before.
const BEFORE: &str = "fuzz-before.txt";
/// File with the programs worth keeping.
const KEPT: &str = "fuzz-corpus.txt";
/// File with the covered code.
const REACHED: &str = "fuzz-reached.txt";
/// File with the numbers of programs and calls.
const TALLY: &str = "fuzz-tally.json";

/// The fields of [`TALLY`] that are used here.
#[derive(serde::Deserialize)]
struct Tally {
    programs: u64,
    calls: u64,
    seconds: u64,
}

/// Runs `fuzz` and returns the exit status.
///
/// # Errors
///
/// If a step of the setup or a build fails.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let dir = folder(ctx)?;
    let time = Duration::from_secs(args.minutes * 60);
    let mut argv = vec!["kfi-fuzz".to_owned()];
    let push = |argv: &mut Vec<String>, more: &[&str]| {
        argv.extend(more.iter().map(|word| (*word).to_owned()));
    };
    if let Some(file) = &args.replay {
        let text = std::fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        std::fs::write(dir.join("fuzz-replay.txt"), text)?;
        let times = args.times.to_string();
        push(
            &mut argv,
            &["replay", "/host/fuzz-replay.txt", "--times", &times],
        );
    } else {
        push(
            &mut argv,
            &["run", "--seconds", &time.as_secs().to_string()],
        );
        if let Some(seed) = &args.seed {
            push(&mut argv, &["--seed", seed]);
        }
    }
    push(&mut argv, &["--dir", "/host"]);
    let options = Options {
        nodes: Nodes::One,
        kernel: args.kernel,
        dir: Some(dir.clone()),
        // The guest itself detects a hang long before.
        timeout: Some(time.as_secs() + 1800),
        ..Options::default()
    };
    let guests = Guests::prepare(ctx, Which::Main, &options)?;
    let outcome = guests.run(&Job::new(argv, to_stdio(false)))?;
    outcome.report();
    let mut status = outcome.status();
    let found = status != 0;
    if args.kernel == Kernel::Debug {
        let coverage = coverage::read(guests.root(), guests.modules(), &dir.join(REACHED))?;
        println!("{}", coverage.table());
        let tally = std::fs::read(dir.join(TALLY)).context("the guest wrote no tally")?;
        let tally: Tally = serde_json::from_slice(&tally)?;
        println!(
            "{} programs of {} calls in {} s; {}",
            tally.programs,
            tally.calls,
            tally.seconds,
            coverage.line()
        );
        for name in args.require.iter().flat_map(|part| coverage.below(*part)) {
            println!("coverage is below the requirement: {name}");
            status = status.max(1);
        }
    } else if args.require.is_some() {
        bail!("only the debug kernel reports coverage");
    }
    if let Some(out) = &args.corpus_out {
        std::fs::create_dir_all(out)?;
        std::fs::copy(dir.join(KEPT), out.join("ioctl.txt")).context("the corpus")?;
    }
    if found {
        tell(&dir);
    } else {
        println!("no finding");
    }
    Ok(status)
}

/// Returns the empty folder in which a guest stores its programs.
///
/// # Errors
///
/// If the folder cannot be created or emptied.
pub fn folder(ctx: &Context) -> Result<PathBuf> {
    let dir = ctx.target.join("fuzz");
    std::fs::create_dir_all(&dir)?;
    for name in [CURRENT, BEFORE, KEPT, REACHED, TALLY] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    Ok(dir)
}

/// Prints how to reproduce a finding.
fn tell(dir: &Path) {
    println!("finding; to run its programs again:");
    for name in [BEFORE, CURRENT] {
        let file = dir.join(name);
        if file.exists() {
            println!("    cargo xtask fuzz --replay {}", file.display());
        }
    }
    println!("(copy these files first: the next run overwrites them)");
}
