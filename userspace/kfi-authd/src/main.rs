// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `kfi-authd` command.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use kfi_authd::log::{set_level, Level};
use kfi_authd::policy::Policy;
use kfi_authd::serve::{run, Failure, Options};

/// Decides by a policy file which processes may use which of kfabric's auth keys.
#[derive(Debug, Parser)]
#[command(name = "kfi-authd", version)]
struct Cli {
    /// The policy file
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "/etc/kfabric/authd.toml"
    )]
    policy: PathBuf,
    /// Path of the socket for `kfi auth` and job managers
    #[arg(short, long, value_name = "PATH", default_value = kfauth::protocol::SOCKET)]
    socket: PathBuf,
    /// Only check the policy, print its faults, and exit
    #[arg(long)]
    check: bool,
    /// Log denials and problems only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Log more than decisions
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cli.check {
        return match Policy::load(&cli.policy) {
            Ok(_) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e}");
                ExitCode::FAILURE
            }
        };
    }
    set_level(match (cli.quiet, cli.verbose) {
        (true, _) => Level::Notice,
        (_, true) => Level::Debug,
        _ => Level::Info,
    });
    let options = Options {
        policy: cli.policy,
        socket: cli.socket,
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            kfi_authd::event!(Error, "{e}");
            if let Failure::Device { source, .. } = &e {
                if let Some(hint) = source.hint() {
                    kfi_authd::event!(Error, "hint: {hint}");
                }
                return ExitCode::from(3);
            }
            ExitCode::FAILURE
        }
    }
}
