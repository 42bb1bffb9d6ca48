// SPDX-License-Identifier: MIT OR Apache-2.0

//! Benchmarks: kfabric beside a peer, in one run, as a ratio.
//!
//! Absolute figures mean little under emulation; a ratio of two figures of one run does. Both nodes
//! run the same list in lockstep; node 1 prints. All waiting is by events, on both sides of the
//! comparison.

mod auth;
mod blk;
mod kernel;
mod keys;
mod libfabric;
mod memory;
mod pmem;
mod profile;
mod rings;
mod shm;
mod wire;

use crate::harness::{ctl, Ctl, Ctx, Env};
use anyhow::{bail, Context, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

pub use profile::run as profile;

/// A benchmark: its name, and the function that both nodes run.
type Bench = (&'static str, fn(&mut Ctx) -> Result<()>);

const BENCHES: &[Bench] = &[
    ("reg", memory::reg),
    ("keys", keys::run),
    ("auth", auth::run),
    ("shm", shm::run),
    ("kernel", kernel::run),
    ("blk", blk::run_all),
    ("libfabric", libfabric::run),
    ("pmem", pmem::run),
    ("lat", wire::latency),
    ("bw", wire::bandwidth),
];

/// One figure, as the build tool reads it.
#[derive(Debug, Serialize)]
struct Figure<'a> {
    bench: &'a str,
    case: &'a str,
    value: f64,
    unit: &'a str,
    peer: Option<&'a str>,
    peer_value: Option<f64>,
    ratio: Option<f64>,
    wanted: Option<&'a str>,
}

/// Rounds to three significant digits; more are noise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

impl Figure<'_> {
    /// Prints the figure on the leading node.
    fn print(mut self, ctx: &Ctx) {
        if !ctx.first() {
            return;
        }
        self.ratio = self
            .peer_value
            .filter(|p| *p > 0.0)
            .map(|p| rounded(self.value / p));
        self.value = rounded(self.value);
        self.peer_value = self.peer_value.map(rounded);
        println!(
            "KFI-BENCH {}",
            serde_json::to_string(&self).unwrap_or_default()
        );
    }
}

/// Builds a C program of ours in the guest. Returns its path.
fn build(name: &str, source: &str, libraries: &[&str]) -> Result<PathBuf> {
    let program = std::env::temp_dir().join(format!("{name}.{}", std::process::id()));
    let file = program.with_extension("c");
    std::fs::write(&file, source)?;
    let (from, to) = (file.to_string_lossy(), program.to_string_lossy());
    let args = [&["-O2", "-o", &to, &from], libraries].concat();
    crate::harness::guest::run("gcc", &args)?;
    Ok(program)
}

/// Runs benchmarks by name, or all.
///
/// # Errors
///
/// If a name is unknown, or a benchmark cannot be run.
pub fn run(names: &[String], env: &Env) -> Result<()> {
    if let Some(name) = names.iter().find(|n| BENCHES.iter().all(|(b, _)| b != n)) {
        let all: Vec<_> = BENCHES.iter().map(|(name, _)| *name).collect();
        bail!("no benchmark is called {name:?}: {}", all.join(", "));
    }
    let limit = Duration::from_secs(1200);
    let stream = if env.node == 1 {
        ctl::accept(&ctl::listen()?, limit)?
    } else {
        ctl::connect(env.peer_at(ctl::PORT), limit)?
    };
    let mut ctx = Ctx {
        env: env.clone(),
        ctl: Ctl::new(stream, limit)?,
    };
    for (name, bench) in BENCHES {
        if names.is_empty() || names.iter().any(|n| n == name) {
            ctx.barrier(name)?;
            bench(&mut ctx).with_context(|| (*name).to_owned())?;
        }
    }
    ctx.barrier("all done")
}
