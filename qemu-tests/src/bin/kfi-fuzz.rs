// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fuzzes `/dev/kfabric` in a guest of one node.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use qemu_tests::fuzz::{self, Options, Tally};
use qemu_tests::harness::result::{Line, Status};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Name of the run in results.
const NAME: &str = "fuzz.ioctl";

#[derive(Parser)]
#[command(about = "A fuzzer of kfabric's device and rings, led by coverage")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fuzz for a given time
    Run {
        /// Duration in seconds
        #[arg(long, default_value_t = 90)]
        seconds: u64,
        /// Seed of the random choices: decimal, or 0x and hexadecimal
        #[arg(long, value_parser = seed)]
        seed: Option<u64>,
        /// Folder for the running programs, the corpus and the reached code [default: the host's,
        /// if there is one]
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Run the programs of a file again
    Replay {
        /// File with the programs
        file: PathBuf,
        /// Number of repetitions
        #[arg(long, default_value_t = 1)]
        times: usize,
        /// Folder for the reached code
        #[arg(long)]
        dir: Option<PathBuf>,
    },
}

fn seed(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    }
}

fn main() -> ExitCode {
    let started = Instant::now();
    println!("KFI-START {NAME}");
    let result = go(Args::parse().command);
    let (status, detail) = match &result {
        Ok(tally) => (Status::Ok, serde_json::to_string(tally).unwrap_or_default()),
        Err(error) => (Status::Failed, format!("{error:#}")),
    };
    let line = Line {
        name: NAME.into(),
        status,
        seconds: started.elapsed().as_secs_f64(),
        place: "1 node".into(),
        detail,
        fault: None,
    };
    line.print();
    ExitCode::from(u8::from(result.is_err()))
}

/// Returns the folder that the host sees.
fn host() -> Option<PathBuf> {
    let dir = PathBuf::from("/host");
    dir.is_dir().then_some(dir)
}

fn go(command: Command) -> Result<Tally> {
    match command {
        Command::Run { seconds, seed, dir } => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            fuzz::run(Options {
                seed: seed.unwrap_or(now.map_or(1, |now| now.as_nanos() as u64)),
                time: Duration::from_secs(seconds),
                dir: dir.or_else(host),
            })
        }
        Command::Replay { file, times, dir } => {
            let text = std::fs::read_to_string(&file)
                .with_context(|| format!("reading {}", file.display()))?;
            fuzz::replay(&text, times, dir.or_else(host))
        }
    }
}
