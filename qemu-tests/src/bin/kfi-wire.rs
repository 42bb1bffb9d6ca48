// SPDX-License-Identifier: MIT OR Apache-2.0

//! The wire fuzzer for longer than the tests run it: started on both nodes at
//! once, with the same arguments. Prints what `kfi-tests run` prints, and on
//! node 2 what it did.

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
    /// How long, all tests together
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The seed, decimal or 0x…; otherwise one that nobody has chosen
    #[arg(long)]
    seed: Option<String>,
    /// The first round
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Rounds of each test, at most
    #[arg(long)]
    rounds: Option<u64>,
    /// Only tests whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Add what was done to this file: all steps of a round that fails
    #[arg(long)]
    log: Option<String>,
    /// How the nodes lie: netns, 2
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

/// The tests, with the limits that their time asks for.
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
    // The tests are processes of their own, which read it from there.
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
