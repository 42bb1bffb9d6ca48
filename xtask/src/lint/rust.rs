// SPDX-License-Identifier: MIT OR Apache-2.0

//! Checks of the workspace's crates with cargo's own tools.

use super::Lint;
use crate::build::programs::cargo;
use anyhow::{bail, Context as _, Result};
use std::process::{Command, Stdio};

/// Checks that cargo has the tool `name`, which is part of `component`.
fn need(lint: &Lint<'_>, name: &str, component: &str) -> Result<()> {
    let mut cmd = cargo(lint.ctx);
    cmd.args([name, "--version"]);
    if said(cmd).is_ok_and(|words| words.is_empty()) {
        return Ok(());
    }
    let mut cmd = Command::new("rustup");
    cmd.args(["component", "add", component]);
    match said(cmd) {
        Ok(words) if words.is_empty() => Ok(()),
        Ok(words) => bail!("cargo {name} is missing: {}", words.join("\n")),
        Err(_) => bail!("cargo {name} is missing: install the toolchain's {component}"),
    }
}

/// Checks that the workspace is formatted.
pub(super) fn fmt(lint: &Lint<'_>) -> Result<Vec<String>> {
    need(lint, "fmt", "rustfmt")?;
    let mut cmd = cargo(lint.ctx);
    cmd.args(["fmt", "--all"]);
    if lint.fix {
        return said(cmd);
    }
    cmd.args(["--", "--check", "-l"]);
    let mut faults = said(cmd)?;
    if !faults.is_empty() {
        faults.push("cargo xtask lint --fix formats them".into());
    }
    Ok(faults)
}

/// Checks that clippy has no complaint about the workspace.
pub(super) fn clippy(lint: &Lint<'_>) -> Result<Vec<String>> {
    need(lint, "clippy", "clippy")?;
    let mut cmd = cargo(lint.ctx);
    cmd.args(["clippy", "--workspace", "--all-targets", "--quiet"])
        .args(["--", "-D", "warnings"]);
    said(cmd)
}

/// Checks that the C header matches the Rust source.
pub(super) fn uapi_header(lint: &Lint<'_>) -> Result<Vec<String>> {
    const HEADER: &str = "uapi/include/kfabric_uapi.h";
    let mut cmd = cargo(lint.ctx);
    cmd.args(["run", "--quiet", "--package", "kfabric-uapi"])
        .args(["--features", "header", "--bin", "gen-header"]);
    let output = cmd
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        return Ok(vec!["the generator fails (see above)".into()]);
    }
    let path = lint.ctx.repo.join(HEADER);
    if lint.fix {
        std::fs::write(&path, &output.stdout)?;
        return Ok(Vec::new());
    }
    if std::fs::read(&path).is_ok_and(|there| there == output.stdout) {
        return Ok(Vec::new());
    }
    Ok(vec![format!(
        "{HEADER} does not match uapi/src/abi.rs; cargo xtask lint --fix generates it"
    )])
}

/// Returns the output of a command that fails.
pub(super) fn said(mut cmd: Command) -> Result<Vec<String>> {
    let output = cmd
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", cmd.get_program().to_string_lossy()))?;
    if output.status.success() {
        return Ok(Vec::new());
    }
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // A file is listed once per path that leads to it.
    lines.dedup();
    if lines.is_empty() {
        lines.push(format!("it failed ({}) without a word", output.status));
    }
    Ok(lines)
}
