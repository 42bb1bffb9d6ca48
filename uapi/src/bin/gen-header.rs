// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! Prints `include/kfabric_uapi.h`.

#[path = "../../gen/header.rs"]
mod header;
#[path = "../../gen/layout.rs"]
mod layout;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/abi.rs");
    let made = header::generate(&source);
    let printed = made.and_then(|text| {
        std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|e| e.to_string())
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}
