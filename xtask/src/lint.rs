// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask lint`: static checks.
//!
//! All checks run. Each has a name, and a summary lists the failed ones.

mod abi;
mod drawings;
mod edges;
mod files;
mod imports;
mod kernel;
mod layers;
mod memory;
mod prose;
mod rust;
mod text;

use crate::build::modules::Toolbox;
use crate::context::Context;
use crate::progress::clock;
use crate::setup::{self, Rig, Which};
use anyhow::Result;
use std::time::Instant;

/// The arguments of `lint`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Format files instead of reporting unformatted ones.
    #[arg(long)]
    pub fix: bool,
    /// Run only checks whose name contains this.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    pub only: String,
    /// Print the figures of the check `layers`.
    #[arg(long, short)]
    pub verbose: bool,
}

/// The inputs of a check.
struct Lint<'a> {
    ctx: &'a Context,
    rig: Rig,
    /// Files under version control, and new ones that are not ignored.
    files: Vec<String>,
    fix: bool,
    verbose: bool,
}

impl Lint<'_> {
    fn tools(&self) -> Toolbox {
        Toolbox::rig(&self.rig)
    }
}

/// A check returns its complaints.
type Check = fn(&Lint<'_>) -> Result<Vec<String>>;

/// The checks, quick ones first.
const CHECKS: [(&str, Check); 19] = [
    ("spdx", text::spdx),
    ("unfinished", text::unfinished),
    ("hosts", text::hosts),
    ("paths", text::paths),
    ("whitespace", text::whitespace),
    ("size", text::size),
    ("prose", prose::prose),
    ("subjects", prose::subjects),
    ("unaccounted", memory::unaccounted),
    ("edges", edges::edges),
    ("layers", layers::layers),
    ("abi", abi::abi),
    ("fmt", rust::fmt),
    ("kernel-fmt", kernel::fmt),
    ("checkpatch", kernel::checkpatch),
    ("drawings", drawings::drawings),
    ("uapi-header", rust::uapi_header),
    ("clippy", rust::clippy),
    ("kernel-clippy", kernel::clippy),
];

/// Runs `lint` and returns the exit status.
///
/// # Errors
///
/// If a tool or a tree that the checks need cannot be set up.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let faults = check(ctx, args)?;
    Ok(i32::from(!faults.is_empty()))
}

/// Runs the checks and prints the result of each. Returns the names of the failed ones, each with
/// its complaints.
///
/// # Errors
///
/// If a tool or a tree that the checks need cannot be set up.
pub fn check(ctx: &Context, args: &Args) -> Result<Vec<String>> {
    let lint = Lint {
        ctx,
        rig: setup::ensure(ctx, Which::Main)?,
        files: files::all(&ctx.repo)?,
        fix: args.fix,
        verbose: args.verbose,
    };
    let mut failed = Vec::new();
    let mut passed = 0;
    for (name, check) in CHECKS {
        if !name.contains(args.only.as_str()) {
            continue;
        }
        let started = Instant::now();
        let faults = match check(&lint) {
            Ok(faults) => faults,
            Err(error) => vec![format!("{error:#}")],
        };
        let took = clock(started.elapsed().as_secs());
        if faults.is_empty() {
            passed += 1;
            println!("ok      {name} ({took})");
            continue;
        }
        println!("FAILED  {name} ({took})");
        for fault in &faults {
            for line in fault.lines() {
                println!("    {line}");
            }
        }
        failed.push(format!("{name}: {}", faults.join("\n")));
    }
    println!("lint: {passed} checks passed, {} failed", failed.len());
    Ok(failed)
}
