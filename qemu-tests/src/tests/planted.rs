// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the test run: each fails in a way of its own, and `cargo xtask selftest` checks that
//! the run judges each as TESTING.md says. They run in the topology `planted` alone.

use crate::buf::Buf;
use crate::harness::guest::ask_host;
use crate::harness::{Ctx, Test, PLANTED};
use crate::raw::Dev;
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("planted.passes", |_| Ok(())).on(PLANTED),
    Test::alone("planted.fails_once", fails_once).on(PLANTED),
    Test::alone("planted.fails_always", |_| bail!("it always does")).on(PLANTED),
    Test::alone("planted.finds_wrong_data", finds_wrong_data).on(PLANTED),
    Test::alone("planted.leaves_a_process", leaves_a_process).on(PLANTED),
    Test::alone("planted.warns", warns).on(PLANTED),
    Test::alone("planted.panics", panics).on(PLANTED),
    Test::alone("planted.hangs", hangs).on(PLANTED),
];

/// Returns whether the run repeats the test.
fn is_again() -> bool {
    std::env::var_os("KFI_ATTEMPT").is_some()
}

fn fails_once(_: &mut Ctx) -> Result<()> {
    ensure!(is_again(), "it does so once");
    Ok(())
}

fn finds_wrong_data(_: &mut Ctx) -> Result<()> {
    let buf = Buf::new(4096)?;
    buf.fill(1);
    if !is_again() {
        buf.set(77, !buf.get(77));
    }
    buf.check(1)
}

/// Leaves a process behind that has the device open, in a process group that the runner does not
/// know.
fn leaves_a_process(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() || is_again() {
        return Ok(());
    }
    let dev = Dev::open().context("the device")?;
    dev.fabric_open(ctx.provider(), "")?;
    sys::keep_over_exec(&dev)?;
    let mut sleep = Command::new("sleep");
    sleep.arg("1000").stdin(Stdio::null());
    sleep.stdout(Stdio::null()).stderr(Stdio::null());
    sleep.process_group(0).spawn().context("sleep")?;
    Ok(())
}

/// Writes the lines of a kernel that goes on after a warning.
fn warns(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let mut log = std::fs::File::options().write(true).open("/dev/kmsg")?;
        log.write_all(b"<4>WARNING: CPU: 0 PID: 1 at planted.c:1\n")?;
    }
    Ok(())
}

fn panics(ctx: &mut Ctx) -> Result<()> {
    ctx.barrier("both are here")?;
    if ctx.first() {
        std::fs::write("/proc/sysrq-trigger", "c")?;
    }
    ctx.barrier("never")
}

/// Stops the guest's processors for longer than any test may take.
fn hangs(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        ask_host("freeze 1000")?;
    }
    ctx.barrier("never")
}
