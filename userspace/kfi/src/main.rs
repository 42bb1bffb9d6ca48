// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `kfi` command.

use std::process::ExitCode;

use clap::Parser;
use kfi::cli::Cli;
use kfi::say;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    match kfi::cmd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed it, for example `head`: not an error.
        Err(kfi::error::Failure::Output(source))
            if source.kind() == std::io::ErrorKind::BrokenPipe =>
        {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say::complain(&failure);
            if json {
                let object = serde_json::json!({
                    "error": failure.to_string(),
                    "errno": failure.errno(),
                    "hint": failure.hint(),
                    "exit": failure.exit_code(),
                });
                // The error is on standard error already; a failure to print it here changes
                // nothing.
                let _ = kfi::cmd::print(&format!("{object}\n"));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}
