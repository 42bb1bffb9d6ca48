// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! The C header matches `abi.rs`, and a C compiler accepts the header.

#[path = "../gen/header.rs"]
mod header;
#[path = "../gen/layout.rs"]
mod layout;

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn path() -> PathBuf {
    root().join("include/kfabric_uapi.h")
}

#[test]
fn the_header_is_in_step() {
    let made = header::generate(&root().join("src/abi.rs")).unwrap();
    let there = std::fs::read_to_string(path()).unwrap_or_default();
    assert!(
        made == there,
        "include/kfabric_uapi.h is out of step; in uapi/ run:\n\
         cargo run -p kfabric-uapi --features header --bin gen-header >include/kfabric_uapi.h"
    );
}

#[test]
fn a_c_compiler_takes_the_header() {
    for standard in ["gnu99", "c11", "gnu17"] {
        let mut gcc = Command::new("gcc");
        gcc.args([
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
            "-x",
            "c",
        ]);
        gcc.arg(format!("-std={standard}")).arg(path());
        match gcc.output() {
            // Without a C compiler this check is skipped; machines that build kernels have one.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
            Err(e) => panic!("gcc: {e}"),
            Ok(out) => {
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                assert!(out.status.success(), "-std={standard}: {said}");
            }
        }
    }
}
