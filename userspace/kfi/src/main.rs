// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `kfi` command.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use kfi::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json;
    match kfi::cmd::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has had enough; that is not an error.
        Err(kfi::error::Failure::Io { source, .. })
            if source.kind() == std::io::ErrorKind::BrokenPipe =>
        {
            ExitCode::SUCCESS
        }
        Err(failure) => {
            let mut text = format!("error: {failure}\n");
            if let Some(hint) = failure.hint() {
                text.push_str(&format!("hint: {hint}\n"));
            }
            if json {
                let object = serde_json::json!({
                    "error": failure.to_string(),
                    "errno": failure.errno(),
                    "hint": failure.hint(),
                    "exit": failure.exit_code(),
                });
                println!("{object}");
            }
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::from(failure.exit_code())
        }
    }
}
