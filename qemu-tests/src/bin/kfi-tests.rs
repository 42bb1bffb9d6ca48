// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs the tests and the benchmarks inside guests.

use anyhow::{ensure, Context, Result};
use clap::{Parser, Subcommand};
use qemu_tests::harness::{child, runner, Env, Topology};
use qemu_tests::profile;
use qemu_tests::{bench, sys, tests};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "kfabric's tests and benchmarks, run inside guests")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the tests
    List {
        /// One JSON object per line
        #[arg(long)]
        json: bool,
        /// Only tests of this topology: netns, 2, 1, smoke, shm
        #[arg(long)]
        topology: Option<Topology>,
    },
    /// Run tests; started on both nodes at once
    Run {
        /// Layout of the nodes: netns, 2, 1, smoke, long, shm, shm-long
        #[arg(long)]
        topology: Topology,
        /// Only tests whose name contains one of these
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Only the tests with these names
        #[arg(long, value_delimiter = ',')]
        names: Vec<String>,
        /// No tests whose name contains one of these
        #[arg(long, value_delimiter = ',')]
        except: Vec<String>,
        /// Begin no test after this many seconds
        #[arg(long)]
        seconds: Option<u64>,
        /// Seed of random tests; if not given, it is drawn and printed
        #[arg(long)]
        seed: Option<u64>,
        /// Make kverbs revoke keys in this way: deregister or invalidate
        #[arg(long)]
        revoke: Option<String>,
        /// Make the devices behave like another card's: mlx5, mlx4, bnxt_re, irdma, …
        #[arg(long)]
        profile: Option<String>,
        /// Repeat until the seconds are over or a test fails, each time with the next seed
        #[arg(long, requires = "seconds")]
        again: bool,
    },
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
    /// Run benchmarks; started on both nodes at once
    Bench {
        /// Only the benchmarks with these names
        names: Vec<String>,
    },
    /// Let the host trace the cost of keys and operations; started on both nodes at once
    #[command(hide = true)]
    Profile {
        /// Only the profiles with these names
        names: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(1)
        }
    }
}

fn run(command: Command) -> Result<u8> {
    match command {
        Command::List { json, topology } => {
            for test in tests::all()
                .iter()
                .filter(|t| topology.is_none_or(|o| t.topologies & o.bit() != 0))
            {
                if json {
                    let limit = sys::patience(test.limit()).as_secs();
                    println!(
                        "{}",
                        serde_json::json!({ "name": test.name, "limit": limit })
                    );
                } else {
                    println!("{}", test.name);
                }
            }
            Ok(0)
        }
        Command::Run {
            topology,
            only,
            names,
            except,
            seconds,
            seed,
            revoke,
            profile,
            again,
        } => {
            if let Some(way) = revoke {
                let path = "/sys/module/kverbs/parameters/revoke";
                std::fs::write(path, &way).with_context(|| format!("{path}: {way}"))?;
            }
            let mut env = Env::read(topology)?;
            if let Some(name) = profile {
                let profile = profile::find(&name)?;
                // Nodes on one kernel share the module. Node 2 begins its first test later.
                if env.node == 1 || !topology.is_one_kernel() {
                    profile.begin(&env)?;
                }
            }
            let mut plan = runner::Plan::choose(&tests::all(), topology, &only, &names);
            let named = |name: &str| except.iter().any(|part| name.contains(part.as_str()));
            plan.tests.retain(|test| !named(test.name));
            ensure!(!plan.tests.is_empty(), "there is no such test here");
            plan.time = seconds.map(Duration::from_secs);
            plan.again = again;
            env.seed = seed.unwrap_or(env.seed);
            let well = runner::run(&plan, &env)?;
            Ok(u8::from(!well))
        }
        Command::Child { topology, test, fd } => {
            let test = tests::find(&test).with_context(|| format!("no test is called {test:?}"))?;
            Ok(child::main(&test, Env::read(topology)?, fd) as u8)
        }
        Command::Bench { names } => bench::run(&names, &Env::read(Topology::Netns)?).map(|()| 0),
        Command::Profile { names } => {
            bench::profile(&names, &Env::read(Topology::Netns)?).map(|()| 0)
        }
    }
}
