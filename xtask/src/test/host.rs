// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tests that run on the host: the workspace's own, and those of `pure` under loom (every
//! interleaving) and Miri (undefined behaviour).

use crate::build::programs::cargo;
use crate::context::Context;
use crate::hostfuzz;
use crate::progress::Step;
use crate::report::{Line, Report, Status};
use anyhow::{bail, Context as _, Result};
use serde::Deserialize;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The package of kernel-free logic.
const PURE: &str = "kfabric-pure";

/// Time limit of one test program, many times the usual time.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// Runs all of them. A part that does not build is reported as a failure of its own.
pub(super) fn run(ctx: &Context, only: &str, report: &Report) {
    let parts: [(&str, Part); 5] = [
        ("host.build", unit),
        ("host.doc", doc),
        ("host.loom", loom),
        ("host.miri", miri),
        ("host.fuzz", fuzz),
    ];
    for (name, part) in parts {
        if let Err(error) = part(ctx, only, report) {
            report.add(Line::failed(name, "host", 0.0, format!("{error:#}")));
        }
    }
}

type Part = fn(&Context, &str, &Report) -> Result<()>;

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    executable: Option<PathBuf>,
    profile: Option<BuiltAs>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct BuiltAs {
    test: bool,
}

/// A test program.
#[derive(Debug, PartialEq, Eq)]
struct Binary {
    /// The crate, or crate and test.
    name: String,
    /// The folder of the package.
    dir: PathBuf,
    path: PathBuf,
}

/// Runs every unit and integration test of the workspace.
fn unit(ctx: &Context, only: &str, report: &Report) -> Result<()> {
    let step = Step::new(ctx, "build the tests of the host");
    let mut cmd = cargo(ctx);
    cmd.args(["test", "--workspace", "--no-run", "--quiet"]);
    let binaries = build(cmd)?;
    step.done();
    for binary in &binaries {
        let mut cmd = Command::new(&binary.path);
        cmd.current_dir(&binary.dir).arg(only);
        libtest(cmd, &binary.name, "host", report)?;
    }
    Ok(())
}

/// Runs the examples in documentation.
fn doc(ctx: &Context, only: &str, report: &Report) -> Result<()> {
    let mut cmd = cargo(ctx);
    cmd.args(["test", "--workspace", "--doc", "--quiet", "--no-fail-fast"])
        .args(["--", "--format=pretty", only]);
    libtest(cmd, "doc", "host", report)
}

/// Runs the lock-free parts in every interleaving.
fn loom(ctx: &Context, only: &str, report: &Report) -> Result<()> {
    if !ctx.repo.join("pure/tests/loom.rs").exists() {
        return Ok(());
    }
    let step = Step::new(ctx, "build the tests for loom");
    let mut cmd = cargo(ctx);
    cmd.args(["test", "--no-run", "--quiet", "--release"])
        .args(["--package", PURE, "--test", "loom"])
        .arg("--target-dir")
        .arg(ctx.target.join("loom"))
        .env("RUSTFLAGS", "--cfg loom");
    let binaries = build(cmd)?;
    step.done();
    for binary in &binaries {
        let mut cmd = Command::new(&binary.path);
        cmd.current_dir(&binary.dir).arg(only);
        libtest(cmd, "loom", "host", report)?;
    }
    Ok(())
}

/// Runs each fuzzer of a parser of untrusted bytes for a moment.
fn fuzz(ctx: &Context, only: &str, report: &Report) -> Result<()> {
    hostfuzz::run(ctx, hostfuzz::SECONDS, only, report)
}

/// Runs `pure` under Miri, if a nightly toolchain has it.
fn miri(ctx: &Context, only: &str, report: &Report) -> Result<()> {
    let nightly = |args: &[&str]| {
        let mut cmd = Command::new("cargo");
        cmd.arg("+nightly").args(args).current_dir(&ctx.repo);
        // The variables of the running cargo would override `+nightly`.
        for name in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "RUSTFLAGS"] {
            cmd.env_remove(name);
        }
        cmd
    };
    let there = nightly(&["miri", "--version"])
        .stdin(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("  no nightly toolchain with Miri: pure does not run under Miri");
        return Ok(());
    }
    let step = Step::new(ctx, "Miri's own library");
    let cmd = nightly(&["miri", "setup"]);
    let log = ctx.log_dir().join("miri-setup.log");
    if let Err(error) = crate::chroot::run_logged(cmd, &log) {
        drop(step);
        eprintln!("  pure is not run under Miri: {error:#}");
        return Ok(());
    }
    step.done();
    let mut cmd = nightly(&["miri", "test", "--quiet", "--package", PURE, "--lib"]);
    cmd.arg("--tests")
        .arg("--target-dir")
        .arg(ctx.target.join("miri"))
        .args(["--", "--format=pretty", only])
        // With isolation the run is deterministic, because it has its own clock.
        .env_remove("MIRIFLAGS")
        .env("PROPTEST_CASES", "4");
    libtest(cmd, "miri", "host", report)
}

/// Builds tests and returns the test programs.
fn build(mut cmd: Command) -> Result<Vec<Binary>> {
    let output = cmd
        .args(["--message-format", "json-render-diagnostics"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("the tests do not build (see above)");
    }
    Ok(binaries(&String::from_utf8_lossy(&output.stdout)))
}

/// Returns the test programs named in cargo's messages.
fn binaries(messages: &str) -> Vec<Binary> {
    let mut found: Vec<Binary> = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter(|message| message.reason == "compiler-artifact")
        .filter(|message| message.profile.as_ref().is_some_and(|built| built.test))
        .filter_map(|message| {
            let dir = message.manifest_path?.parent()?.to_owned();
            let target = message.target?;
            let package = dir.file_name()?.to_string_lossy().into_owned();
            let whole = target.kind.iter().any(|kind| kind == "lib");
            let name = if whole || target.name == package {
                package
            } else {
                format!("{package}.{}", target.name)
            };
            Some(Binary {
                name,
                dir,
                path: message.executable?,
            })
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Runs a test program and reports its results.
fn libtest(mut cmd: Command, name: &str, place: &str, report: &Report) -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    let started = Instant::now();
    // In its own process group, so that all its child processes can be killed.
    let mut child = cmd
        .process_group(0)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("starting the tests of {name}"))?;
    // After this drop, only the child has the write ends.
    drop(cmd);
    let guard = Guard::new(child.id());
    let mut parser = Parser::default();
    let mut said = String::new();
    let mut last = started;
    let mut failures = Vec::new();
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader
        .by_ref()
        .take(1 << 20)
        .read_until(b'\n', &mut bytes)?
        > 0
    {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        bytes.clear();
        said += &text;
        let Some((test, status, detail)) = parser.take(text.trim_end()) else {
            continue;
        };
        let now = Instant::now();
        let line = Line {
            name: format!("{name}::{test}"),
            status,
            seconds: (now - last).as_millis() as f64 / 1000.0,
            place: place.to_owned(),
            detail,
            fault: None,
        };
        last = now;
        if status == Status::Failed {
            // The output of the failed test follows at the end.
            failures.push((test, line));
        } else {
            report.add(line);
        }
    }
    let status = child.wait()?;
    let late = guard.stop();
    let none = failures.is_empty();
    for (test, mut line) in failures {
        line.detail = words_of(&said, &test);
        report.add(line);
    }
    if !status.success() && none {
        let end: Vec<&str> = said.lines().collect();
        let why = if late {
            format!("did not end within {} minutes", LIMIT.as_secs() / 60)
        } else {
            format!("ended with {status}")
        };
        bail!(
            "the tests of {name} {why}:\n{}",
            end[end.len().saturating_sub(30)..].join("\n")
        );
    }
    Ok(())
}

/// Kills a process and its child processes if it takes too long.
struct Guard {
    ended: Sender<()>,
    watcher: JoinHandle<bool>,
}

impl Guard {
    fn new(pid: u32) -> Self {
        let (ended, end) = channel::<()>();
        let watcher = std::thread::spawn(move || {
            let late = end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout);
            if late {
                let group = format!("-{pid}");
                let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            }
            late
        });
        Self { ended, watcher }
    }

    /// Ends the guard. Returns whether it has killed the process.
    fn stop(self) -> bool {
        let _ = self.ended.send(());
        self.watcher.join().unwrap_or(false)
    }
}

/// Parser of the test harness's output.
#[derive(Default)]
struct Parser {
    /// A test whose result was not on the same line.
    open: Option<String>,
}

impl Parser {
    /// Returns a test's name, its result and the reason of a skip, if the line contains a result.
    fn take(&mut self, line: &str) -> Option<(String, Status, String)> {
        if let Some(rest) = line.strip_prefix("test ") {
            if let Some((name, end)) = rest.rsplit_once(" ... ") {
                return match judge(end) {
                    Some((status, why)) => Some((name.to_owned(), status, why)),
                    None => {
                        // The test has printed text between its name and its result.
                        self.open = Some(name.to_owned());
                        None
                    }
                };
            }
        }
        let (status, why) = judge(line)?;
        Some((self.open.take()?, status, why))
    }
}

fn judge(end: &str) -> Option<(Status, String)> {
    match end {
        "ok" => Some((Status::Ok, String::new())),
        "FAILED" => Some((Status::Failed, String::new())),
        _ => {
            let why = end.strip_prefix("ignored")?;
            Some((Status::Skipped, why.trim_start_matches(", ").to_owned()))
        }
    }
}

/// Returns the output of a failed test.
fn words_of(said: &str, test: &str) -> String {
    let head = format!("---- {test} stdout ----");
    let words: Vec<&str> = said
        .lines()
        .skip_while(|line| *line != head)
        .skip(1)
        .take_while(|line| !line.starts_with("---- ") && *line != "failures:")
        .collect();
    words.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn results_are_read_line_by_line() {
        let mut parser = Parser::default();
        let mut take = |line: &str| parser.take(line);
        assert_eq!(take("running 3 tests"), None);
        assert_eq!(
            take("test a::b ... ok"),
            Some(("a::b".into(), Status::Ok, String::new()))
        );
        assert_eq!(
            take("test src/x.rs - X (line 3) - compile fail ... ok"),
            Some((
                "src/x.rs - X (line 3) - compile fail".into(),
                Status::Ok,
                String::new()
            ))
        );
        assert_eq!(
            take("test c ... ignored, slow"),
            Some(("c".into(), Status::Skipped, "slow".into()))
        );
        assert_eq!(take("test d ... some words"), None);
        assert_eq!(
            take("FAILED"),
            Some(("d".into(), Status::Failed, String::new()))
        );
        assert_eq!(take("test result: FAILED. 1 passed; 1 failed"), None);
    }

    #[test]
    fn what_a_failed_test_said_is_found() {
        let said = "failures:\n\n---- a::b stdout ----\nleft: 1\nright: 2\n\n---- c stdout ----\nno\n\nfailures:\n    a::b\n";
        assert_eq!(words_of(said, "a::b"), "left: 1\nright: 2");
        assert_eq!(words_of(said, "c"), "no");
    }

    #[test]
    fn programs_of_tests_are_told_from_others() {
        let text = r#"{"reason":"compiler-artifact","manifest_path":"/r/pure/Cargo.toml","target":{"name":"kfabric_pure","kind":["lib"]},"profile":{"test":true},"executable":"/t/a"}
{"reason":"compiler-artifact","manifest_path":"/r/pure/Cargo.toml","target":{"name":"logic","kind":["test"]},"profile":{"test":true},"executable":"/t/b"}
{"reason":"compiler-artifact","manifest_path":"/r/kfi/Cargo.toml","target":{"name":"kfi","kind":["bin"]},"profile":{"test":false},"executable":"/t/c"}
"#;
        let names: Vec<String> = binaries(text).into_iter().map(|b| b.name).collect();
        assert_eq!(names, ["pure", "pure.logic"]);
        assert_eq!(binaries(text)[0].dir, Path::new("/r/pure"));
    }
}
