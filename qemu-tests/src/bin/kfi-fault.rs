// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sweeps every call with failures, inside a guest with fault injection.

use clap::Parser;
use qemu_tests::fault::{self, How};
use qemu_tests::harness::{Env, Skip, Topology};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Makes every call of kfabric with its 1st, 2nd, … nth failure of each kind")]
struct Args {
    /// Only calls whose name contains one of these
    #[arg(long, value_name = "PATTERN,…", default_value = "")]
    only: String,
    /// Inject at fewer places
    #[arg(long)]
    quick: bool,
    /// Make each call once, without a failure, on any kernel
    #[arg(long, conflicts_with = "quick")]
    dry: bool,
    /// List the calls
    #[arg(long)]
    list: bool,
}

/// Exit status if the kernel cannot inject failures.
const SKIPPED: u8 = 77;

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        for case in fault::calls::all() {
            println!("{}", case.name());
        }
        return ExitCode::SUCCESS;
    }
    let how = match (args.dry, args.quick) {
        (true, _) => How::Dry,
        (_, true) => How::Quick,
        _ => How::Whole,
    };
    let swept = Env::read(Topology::One).and_then(|env| fault::run(&env, &args.only, how));
    match swept {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) if e.is::<Skip>() => {
            eprintln!("{e}");
            ExitCode::from(SKIPPED)
        }
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}
