// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask demo`: two guests, of which one reads the other's memory.

use crate::context::Context;
use crate::guest::output::to_stdio;
use crate::guest::protocol::Device;
use crate::guest::{Guests, Job, Nodes, Options};
use crate::progress::clock;
use crate::setup::Which;
use anyhow::{bail, Result};
use std::time::{Duration, Instant};

/// Time limit of the guests, many times the usual time.
const LIMIT: Duration = Duration::from_secs(300);

/// The demo program.
const PROGRAM: &str = "kfi-demo";

/// The arguments of `demo`.
#[derive(Debug, Default, clap::Args)]
pub struct Args {
    /// The kind of RDMA device: software RoCE or software iWARP.
    #[arg(long, value_enum, default_value = "rxe")]
    pub device: Device,
}

/// Runs `demo` and returns the exit status: 0 on success.
///
/// # Errors
///
/// If a step of the setup or a build fails.
pub fn run(ctx: &Context, args: &Args) -> Result<i32> {
    let started = Instant::now();
    let options = Options {
        nodes: Nodes::Two,
        device: args.device,
        ..Options::default()
    };
    let guests = Guests::prepare(ctx, Which::Main, &options)?;
    if guests.program(PROGRAM).is_none() {
        bail!("the workspace has no program {PROGRAM}");
    }
    println!("two guests with kernel {} …", guests.release());
    let job = Job::new(vec![PROGRAM.to_owned()], to_stdio(true));
    let outcome = guests.with_timeout(LIMIT).run(&job)?;
    outcome.report();
    let status = outcome.status();
    let took = clock(started.elapsed().as_secs());
    if status == 0 {
        println!("the demo succeeded, in {took}");
    } else {
        println!("the demo failed (status {status}), after {took}");
    }
    Ok(status)
}
