// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask fuzz`: the fuzzer of the device and its rings, in a guest with the debug kernel.
//!
//! `kfi-fuzz` in the guest does the work (`qemu-tests/src/fuzz.rs`). Here its guest is started, and
//! what it reached is compared with all there is to reach.

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
    /// How long.
    #[arg(long, value_name = "N", default_value = "20")]
    pub minutes: u64,
    /// Where chance begins [default: the time].
    #[arg(long, value_name = "S")]
    pub seed: Option<String>,
    /// Run the programs of this file again, instead.
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// How often to run them.
    #[arg(long, value_name = "N", default_value = "10")]
    pub times: u32,
    /// Leave the programs worth keeping there.
    #[arg(long, value_name = "DIR")]
    pub corpus_out: Option<PathBuf>,
    /// Fail when less than this part of the edges of the device or of the rings was reached.
    #[arg(long, value_name = "PERCENT")]
    pub require: Option<f64>,
    /// The kernel; only the debug kernel tells what was reached.
    #[arg(long, value_enum, default_value = "debug")]
    pub kernel: Kernel,
}

/// The programs that were about to run, as the guest writes them.
const CURRENT: &str = "fuzz-current.txt";
/// Those before.
const BEFORE: &str = "fuzz-before.txt";
/// What was worth keeping.
const KEPT: &str = "fuzz-corpus.txt";
/// The code that was reached.
const REACHED: &str = "fuzz-reached.txt";
/// How many programs and calls there were.
const TALLY: &str = "fuzz-tally.json";

/// What of [`TALLY`] is of interest.
#[derive(serde::Deserialize)]
struct Tally {
    programs: u64,
    calls: u64,
    seconds: u64,
}

/// Runs `fuzz`; returns the exit status.
///
/// # Errors
///
/// When something cannot be set up or built.
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
        // A hang is found by the guest itself, long before.
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
        let tally = std::fs::read(dir.join(TALLY)).context("how much ran was not written down")?;
        let tally: Tally = serde_json::from_slice(&tally)?;
        println!(
            "{} programs of {} calls in {} s; {}",
            tally.programs,
            tally.calls,
            tally.seconds,
            coverage.line()
        );
        for name in args.require.iter().flat_map(|part| coverage.below(*part)) {
            println!("too little of it was reached: {name}");
            status = status.max(1);
        }
    } else if args.require.is_some() {
        bail!("only the debug kernel tells what was reached");
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

/// The folder that a guest leaves its programs in, empty.
///
/// # Errors
///
/// Those of the file system.
pub fn folder(ctx: &Context) -> Result<PathBuf> {
    let dir = ctx.target.join("fuzz");
    std::fs::create_dir_all(&dir)?;
    for name in [CURRENT, BEFORE, KEPT, REACHED, TALLY] {
        let _ = std::fs::remove_file(dir.join(name));
    }
    Ok(dir)
}

/// Says what a finding is to be had again with.
fn tell(dir: &Path) {
    println!("a finding; the programs that ran:");
    for name in [BEFORE, CURRENT] {
        let file = dir.join(name);
        if file.exists() {
            println!("    cargo xtask fuzz --replay {}", file.display());
        }
    }
    println!("(copy them first: the next run writes there again)");
}
