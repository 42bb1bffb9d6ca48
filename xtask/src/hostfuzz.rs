// SPDX-License-Identifier: MIT OR Apache-2.0

//! `cargo xtask hostfuzz`: the fuzzers of `fuzz/`, which need no guest.
//!
//! Their layout is that of cargo-fuzz, but neither cargo-fuzz nor a nightly toolchain is needed to
//! run them: cargo-fuzz only adds compiler flags, which are set here. New inputs are kept in the
//! build output, and the next run continues from these. The committed inputs are in `fuzz/seeds`.

use crate::build::programs::cargo;
use crate::context::Context;
use crate::progress::Step;
use crate::report::{Line, Report, Status};
use crate::setup::host;
use anyhow::{bail, ensure, Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Default run time for each target in seconds.
pub const SECONDS: u32 = 5;

/// The compilation target. With an explicit target the flags do not apply to build scripts and
/// macros.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The compiler flags of cargo-fuzz: coverage for libFuzzer, and AddressSanitizer, which is an
/// unstable option.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
    "-Ccodegen-units=1",
    "-Zsanitizer=address",
    "--cfg=fuzzing",
];

/// The arguments of `hostfuzz`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run time for each target in seconds.
    #[arg(long, value_name = "N", default_value_t = SECONDS)]
    pub seconds: u32,
    /// Run only targets whose name contains this.
    #[arg(long, value_name = "PATTERN", default_value = "")]
    pub only: String,
    /// Run one target once with this input and print the result.
    #[arg(long, value_name = "FILE", requires = "only")]
    pub replay: Option<PathBuf>,
    /// Write results to this file as they come, one JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// Runs `hostfuzz` and returns the exit status.
///
/// # Errors
///
/// If the fuzzers do not build.
pub fn command(ctx: &Context, args: &Args) -> Result<i32> {
    if let Some(input) = &args.replay {
        let programs = build(ctx)?;
        let program = programs.iter().find(|program| name(program) == args.only);
        let program = program.with_context(|| format!("no target is called {:?}", args.only))?;
        let status = Command::new(program).arg(input).status()?;
        return Ok(status.code().unwrap_or(1));
    }
    let report = Report::new(args.report.as_deref())?;
    run(ctx, args.seconds, &args.only, &report)?;
    Ok(report.finish())
}

/// Runs every target whose test name `hostfuzz.TARGET` contains `only`.
///
/// # Errors
///
/// If the fuzzers do not build.
pub fn run(ctx: &Context, seconds_per_target: u32, only: &str, report: &Report) -> Result<()> {
    let chosen = |target: &String| format!("hostfuzz.{target}").contains(only);
    if !targets(ctx)?.iter().any(chosen) {
        return Ok(());
    }
    for program in build(ctx)? {
        let target = name(&program);
        if chosen(&target) {
            report.add(one(ctx, &program, &target, seconds_per_target)?);
        }
    }
    Ok(())
}

/// Returns the targets; each source file is one.
fn targets(ctx: &Context) -> Result<Vec<String>> {
    let dir = ctx.repo.join("fuzz/fuzz_targets");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "rs") {
            found.push(name(&path));
        }
    }
    found.sort();
    Ok(found)
}

/// Returns a file's name without its extension.
fn name(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Builds the targets and returns their programs.
fn build(ctx: &Context) -> Result<Vec<PathBuf>> {
    // libFuzzer is C++.
    host::ensure(ctx)?;
    let step = Step::new(ctx, "build the fuzzers of the host");
    let dir = ctx.target.join("fuzz");
    let output = cargo(ctx)
        .args(["build", "--quiet", "--release", "--locked"])
        .args(["--target", TARGET])
        .arg("--manifest-path")
        .arg(ctx.repo.join("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&dir)
        .env("RUSTFLAGS", FLAGS.join(" "))
        .env("RUSTC_BOOTSTRAP", "1")
        .stdin(Stdio::null())
        .output()
        .context("starting cargo")?;
    ensure!(
        output.status.success(),
        "the fuzzers do not build:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    step.done();
    let programs = dir.join(TARGET).join("release");
    Ok(targets(ctx)?
        .into_iter()
        .map(|target| programs.join(target))
        .collect())
}

/// Runs one target for `seconds` and returns its result.
fn one(ctx: &Context, program: &Path, target: &str, seconds: u32) -> Result<Line> {
    let started = Instant::now();
    let found = ctx.target.join("fuzz/corpus").join(target);
    let crashes = ctx.target.join("fuzz/artifacts").join(target);
    for dir in [&found, &crashes] {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    }
    // libFuzzer writes new inputs to the first folder and only reads the others.
    let output = Command::new(program)
        .arg(format!("-max_total_time={seconds}"))
        .arg("-timeout=10")
        .arg("-print_final_stats=1")
        .arg(format!("-artifact_prefix={}/", crashes.display()))
        .arg(&found)
        .arg(ctx.repo.join("fuzz/seeds").join(target))
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut line = Line {
        name: format!("hostfuzz.{target}"),
        status: Status::Ok,
        seconds: (started.elapsed().as_millis() as f64) / 1000.0,
        place: "host".to_owned(),
        detail: String::new(),
        fault: None,
    };
    if output.status.success() {
        let Some((runs, edges)) = numbers(&said) else {
            bail!("{target} printed no result:\n{said}");
        };
        eprintln!("  {target}: {runs} inputs, {edges} edges reached");
    } else {
        line.status = Status::Failed;
        line.detail = why(&said, target);
    }
    Ok(line)
}

/// Returns the number of tried inputs and of covered edges.
fn numbers(said: &str) -> Option<(u64, u64)> {
    let after = |line: &str, word: &str| -> Option<u64> {
        let rest = line.split_once(word)?.1.trim_start();
        rest.split_whitespace().next()?.parse().ok()
    };
    let runs = said
        .lines()
        .find_map(|line| after(line, "stat::number_of_executed_units:"))?;
    let edges = said.lines().rev().find_map(|line| after(line, " cov:"))?;
    Some((runs, edges))
}

/// Returns the finding of a failed target, and the command that reproduces it.
fn why(said: &str, target: &str) -> String {
    let mut words: Vec<String> = said
        .lines()
        .filter(|line| {
            line.contains("panicked at") || line.contains("ERROR:") || line.contains("SUMMARY:")
        })
        .map(str::to_owned)
        .collect();
    // The message of a panic is on the next line.
    let mut lines = said.lines();
    if lines.any(|line| line.contains("panicked at")) {
        words.extend(lines.next().map(str::to_owned));
    }
    match said.lines().find_map(|line| line.split_once("written to ")) {
        Some((_, path)) => words.push(format!(
            "again: cargo xtask hostfuzz --only {target} --replay {}",
            path.trim()
        )),
        None => words.push(said.lines().rev().take(5).collect::<Vec<_>>().join("\n")),
    }
    words.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_read() {
        let said = "#2\tINITED cov: 34 ft: 38 corp: 1/1b exec/s: 0\n\
                    #99\tDONE   cov: 120 ft: 300 corp: 9/99b\n\
                    stat::number_of_executed_units: 99\n";
        assert_eq!(numbers(said), Some((99, 120)));
        assert_eq!(numbers("nothing"), None);
    }

    #[test]
    fn a_crash_says_how_to_see_it_again() {
        let said = "thread 'main' panicked at fuzz_targets/wire.rs:9:1:\nassertion failed\n\
                    SUMMARY: libFuzzer: deadly signal\n\
                    artifact_prefix='/a/'; Test unit written to /a/crash-1\n";
        let why = why(said, "wire");
        assert!(why.contains("assertion failed"), "{why}");
        assert!(why.ends_with("--only wire --replay /a/crash-1"), "{why}");
    }
}
