// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the wire fuzzer for longer than the tests do: started on both nodes at once, with the same
//! arguments. Prints the output of `kfi-tests run`, and on node 2 its steps.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use qemu_tests::harness::{child, runner, Env, Test, Topology, PAIR};
use qemu_tests::wire::{self, env};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    about = "A peer that keeps to no rule",
    args_conflicts_with_subcommands = true
)]
struct Args {
    /// Seconds of all tests together
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed, decimal or 0x…; drawn if not given
    #[arg(long)]
    seed: Option<String>,
    /// Number of the first round
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Maximum number of rounds of each test
    #[arg(long)]
    rounds: Option<u64>,
    /// Only tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Append all steps of a failing round to this file
    #[arg(long)]
    log: Option<String>,
    /// Layout of the nodes: netns, 2
    #[arg(long, default_value = "netns")]
    topology: Topology,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Run one half of one test
    #[command(hide = true)]
    Child {
        #[arg(long)]
        topology: Topology,
        #[arg(long)]
        test: String,
        #[arg(long)]
        fd: i32,
    },
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(1)
        }
    }
}

/// Returns the tests, with limits that match their time.
fn tests() -> Vec<Test> {
    let seconds = env::number(env::SECONDS).unwrap_or(0) as u32;
    let sized = |t: &Test| t.seconds(t.seconds.max(30 + seconds / 5)).on(PAIR);
    wire::TESTS.iter().map(sized).collect()
}

fn run(args: &Args) -> Result<u8> {
    if let Some(Command::Child { topology, test, fd }) = &args.command {
        let all = tests();
        let test = all.iter().find(|t| t.name == test);
        let test = test.context("no such test")?;
        return Ok(child::main(test, Env::read(*topology)?, *fd) as u8);
    }
    let chosen = wire::TESTS.iter().filter(|t| t.name.contains(&args.only));
    let each = (args.seconds / (chosen.count() as u64).max(1)).max(1);
    let nodes = Env::read(args.topology)?;
    let log = args.log.clone().unwrap_or_else(|| {
        let name = format!("kfi-wire.{}.log", nodes.node);
        std::env::temp_dir()
            .join(name)
            .to_string_lossy()
            .into_owned()
    });
    // The tests run in processes of their own, which read the variables.
    std::env::set_var(env::SECONDS, each.to_string());
    std::env::set_var(env::FROM, args.from.to_string());
    std::env::set_var(env::LOG, &log);
    if let Some(seed) = &args.seed {
        std::env::set_var(env::SEED, seed);
    }
    if let Some(rounds) = args.rounds {
        std::env::set_var(env::ROUNDS, rounds.to_string());
    }
    let plan = runner::Plan::choose(
        &tests(),
        args.topology,
        std::slice::from_ref(&args.only),
        &[],
    );
    let well = runner::run(&plan, &nodes)?;
    if let Ok(said) = std::fs::read_to_string(&log) {
        said.lines().for_each(|line| println!("# {line}"));
    }
    Ok(u8::from(!well))
}
