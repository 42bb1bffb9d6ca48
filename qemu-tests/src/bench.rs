// SPDX-License-Identifier: MIT OR Apache-2.0

//! Benchmarks: ours beside a peer's, in one run, as a ratio.

use crate::harness::Env;
use anyhow::Result;

/// Runs benchmarks by name, or all.
///
/// # Errors
///
/// When one of them cannot be run.
pub fn run(_names: &[String], _env: &Env) -> Result<()> {
    Ok(())
}
