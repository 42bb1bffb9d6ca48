// SPDX-License-Identifier: MIT OR Apache-2.0

//! `fi_ubertest` of fabtests: a server and a client that try all combinations of a configuration.

use super::quick::Running;
use crate::sys;
use anyhow::{ensure, Context, Result};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Configurations for connected endpoints and for `ofi_rxm`: fabtests has only those of its own providers.
pub(super) const MSG: &str = include_str!("../../../fabtests/msg.test");
pub(super) const RDM: &str = include_str!("../../../fabtests/rdm.test");

/// Results of a combination other than success, and than combinations that the program skips itself.
const FAILURES: [&str; 4] = ["ENODATA", "ENOSYS", "EIO", "ERROR"];

/// Returns how many combinations have a result, by the client's last lines.
fn count(said: &str, result: &str) -> Option<usize> {
    let of = |line: &str| {
        let (name, count) = line.split_once(':')?;
        (name.trim() == result).then(|| count.trim().parse().ok())?
    };
    said.lines().rev().find_map(of)
}

/// Runs all combinations of a configuration. Returns how many have passed.
///
/// # Errors
///
/// - If a combination fails, or finds no provider.
pub(super) fn run(
    programs: &Path,
    addr: &str,
    vars: &[(&str, &str)],
    config: &str,
    limit: Duration,
) -> Result<usize> {
    let until = Instant::now() + limit;
    let files = ["config", "server", "client"].map(|name| std::env::temp_dir().join(name));
    std::fs::write(&files[0], config)?;
    let command = |args: &[&str]| {
        let mut command = Command::new(programs.join("fi_ubertest"));
        command.args(args).envs(vars.iter().copied());
        command
    };
    let mut server = Running::start(&mut command(&["-x", "-s", addr]), &files[1])?;
    std::thread::sleep(Duration::from_secs(1));
    let file = files[0].to_string_lossy();
    let args = ["-u", &file, "-s", addr, addr];
    let client = Running::start(&mut command(&args), &files[2])?.wait(until)?;
    let server = server.wait(Instant::now() + sys::patience(Duration::from_secs(2)))?;
    let [said, servers] = [&files[2], &files[1]]
        .map(|file| String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned());
    let end = |said: &str| {
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    };
    let results = || format!("{}\nserver {server}: {}", end(&said), end(&servers));
    ensure!(client == 0 && server == 0, "client {client}: {}", results());
    for result in FAILURES {
        let failed = count(&said, result).context("no results")?;
        ensure!(failed == 0, "{failed} times {result}: {}", results());
    }
    count(&said, "Success").context("no results")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_last_lines() {
        let said = "Starting test 1 / 2:\nSuccess: 12\nSkipped: 3\nENODATA: 0\nENOSYS : 1\n";
        assert_eq!(count(said, "Success"), Some(12));
        assert_eq!(count(said, "ENOSYS"), Some(1));
        assert_eq!(count(said, "ERROR"), None);
    }
}
