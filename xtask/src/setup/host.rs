// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requirements of the host: little more than `mmdebstrap`.

use crate::chroot::{is_root, run_logged};
use crate::context::Context;
use crate::progress::Step;
use anyhow::{bail, Result};
use std::path::Path;
use std::process::Command;

/// Programs, and the package of each.
const TOOLS: [(&str, &str); 8] = [
    ("mmdebstrap", "mmdebstrap"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("unshare", "util-linux"),
    ("setpriv", "util-linux"),
    ("cc", "gcc"),
    ("c++", "g++"),
];

/// Makes sure that the host has the required programs.
///
/// # Errors
///
/// If a program is missing and cannot be installed; the error names the command that installs it.
pub fn ensure(ctx: &Context) -> Result<()> {
    let mut missing: Vec<&str> = TOOLS
        .iter()
        .filter(|(program, _)| !on_path(program))
        .map(|(_, package)| *package)
        .collect();
    let libc = [
        "/usr/lib/x86_64-linux-gnu/libc.a",
        "/usr/lib64/libc.a",
        "/usr/lib/libc.a",
    ];
    if !libc.iter().any(|path| Path::new(path).exists()) {
        missing.push("libc6-dev");
    }
    if !Path::new("/usr/share/keyrings/debian-archive-keyring.gpg").exists() {
        missing.push("debian-archive-keyring");
    }
    if !is_root() && !on_path("newuidmap") {
        missing.push("uidmap");
    }
    missing.dedup();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !is_root() || !on_path("apt-get") {
        bail!("missing on this machine: {packages}. Install with:\n    sudo apt-get install {packages}");
    }
    let step = Step::new(ctx, format!("install {packages}"));
    let install = |log: &str| {
        let mut cmd = Command::new("apt-get");
        cmd.args(["install", "--yes", "--no-install-recommends"])
            .args(&missing);
        cmd.env("DEBIAN_FRONTEND", "noninteractive");
        run_logged(cmd, &ctx.log_dir().join(log))
    };
    if install("host-install.log").is_err() {
        // The machine's package lists may be old or missing.
        let mut cmd = Command::new("apt-get");
        cmd.arg("update");
        run_logged(cmd, &ctx.log_dir().join("host-update.log"))?;
        install("host-install.log")?;
    }
    step.done();
    Ok(())
}

/// Returns whether a program is in `PATH` or in a system folder of tools.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(program).is_file())
}
