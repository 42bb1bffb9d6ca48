// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask lint`: what can be told without running anything.
//!
//! All checks run, each has a name, and a summary says which failed.

mod files;
mod kernel;
mod memory;
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
    /// Format what is not formatted instead of telling so.
    #[arg(long)]
    pub fix: bool,
    /// Only checks whose name contains this.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    pub only: String,
}

/// What a check works with.
struct Lint<'a> {
    ctx: &'a Context,
    rig: Rig,
    /// Files under version control, and new ones that are not ignored.
    files: Vec<String>,
    fix: bool,
}

impl Lint<'_> {
    fn tools(&self) -> Toolbox {
        Toolbox::rig(&self.rig)
    }
}

/// A check returns what it has to say against the tree.
type Check = fn(&Lint<'_>) -> Result<Vec<String>>;

/// The checks, quick ones first.
const CHECKS: [(&str, Check); 13] = [
    ("spdx", text::spdx),
    ("unfinished", text::unfinished),
    ("hosts", text::hosts),
    ("paths", text::paths),
    ("whitespace", text::whitespace),
    ("size", text::size),
    ("unaccounted", memory::unaccounted),
    ("fmt", rust::fmt),
    ("kernel-fmt", kernel::fmt),
    ("checkpatch", kernel::checkpatch),
    ("uapi-header", rust::uapi_header),
    ("clippy", rust::clippy),
    ("kernel-clippy", kernel::clippy),
];

/// Runs `lint`; returns the exit status.
///
/// # Errors
///
/// When what the checks need cannot be set up.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let faults = check(ctx, args)?;
    Ok(i32::from(!faults.is_empty()))
}

/// Runs the checks and prints how each went. Returns the names of those that
/// failed, each with what it said.
///
/// # Errors
///
/// When what the checks need cannot be set up.
pub fn check(ctx: &Context, args: &Args) -> Result<Vec<String>> {
    let lint = Lint {
        ctx,
        rig: setup::ensure(ctx, Which::Main)?,
        files: files::all(&ctx.repo)?,
        fix: args.fix,
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
