// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys and registrations for `cargo xtask bench --profile`: the machine traces what is executed
//! between two requests, and the build tool tells whose instructions they were.
//!
//! Prints a line `KFI-TRACE NAME COUNT` for each trace: of how many keys it is.

use super::memory::{memory, verbs_reg};
use crate::harness::guest::ask_host;
use crate::harness::Env;
use crate::pair::{Side, LOCAL, REMOTE};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// What is traced is this often done, and as often before, to warm up.
const ROUNDS: u32 = 100;

/// The window, which is the region.
const LEN: usize = 4096;

/// Keys of a batch.
const BATCH: usize = 64;

/// Traces `count` keys, which `f` makes.
fn traced(name: &str, count: usize, f: impl FnOnce() -> Result<()>) -> Result<()> {
    ask_host(&format!("trace {name}"))?;
    let done = f();
    ask_host("trace")?;
    println!("KFI-TRACE {name} {count}");
    done
}

/// Registering and deregistering with verbs, in a program that waits where it is told.
fn registering(env: &Env) -> Result<()> {
    let mut child = Command::new(verbs_reg()?)
        .args([&*env.dev, &LEN.to_string(), &ROUNDS.to_string(), "held"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut orders = child.stdin.take().context("no input")?;
    let mut said = BufReader::new(child.stdout.take().context("no output")?).lines();
    let mut next = |wanted: &str| -> Result<()> {
        let line = said.next().context("verbs_reg ended")??;
        ensure!(line == wanted, "verbs_reg says {line:?}");
        Ok(())
    };
    next("warm")?;
    traced("registering", ROUNDS as usize, || {
        orders.write_all(b"\n")?;
        next("done")
    })?;
    orders.write_all(b"\n")?;
    ensure!(child.wait()?.success(), "verbs_reg failed");
    Ok(())
}

/// Keys one at a time and in batches.
fn keys(env: &Env) -> Result<()> {
    let side = Side::of(env)?;
    let buf = memory(LEN)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = side.dev.key_alloc(region, BATCH as u32)?;
    let pairs = || -> Result<()> {
        for _ in 0..ROUNDS {
            side.dev
                .key_assign(slots[0], 0, LEN as u64, KFI_REMOTE_READ)?;
            side.dev.key_revoke(slots[0])?;
        }
        Ok(())
    };
    pairs()?;
    traced("pair", ROUNDS as usize, pairs)?;
    let entry = |slot: &u64| KeyEntry {
        slot: *slot,
        length: LEN as u64,
        access: KFI_REMOTE_READ,
        ..Default::default()
    };
    let mut entries: Vec<_> = slots.iter().map(entry).collect();
    let mut batches = |count| -> Result<()> {
        for _ in 0..count {
            let got = side.dev.key_assign_many(&mut entries)?;
            ensure!(got == (BATCH, 0), "assigned: {got:?}");
            side.dev.key_revoke_slots(&slots)?;
        }
        Ok(())
    };
    batches(3)?;
    traced("batch", 3 * BATCH, || batches(3))?;
    // A worker refills the slots' reserves.
    std::thread::sleep(Duration::from_millis(50));
    // Each alone, and none revoked until all are there.
    traced("ordered", BATCH, || {
        for slot in &slots {
            let got = side.dev.key_assign_ordered(&mut [entry(slot)], 0, 0)?;
            ensure!(got == (1, 0), "ordered: {got:?}");
        }
        Ok(())
    })?;
    side.dev.key_revoke_slots(&slots)?;
    Ok(())
}

/// Runs on both nodes; node 1 is traced.
///
/// # Errors
///
/// When something fails, or the machine cannot trace.
pub fn run(env: &Env) -> Result<()> {
    if env.node != 1 {
        return Ok(());
    }
    let symbols = std::fs::read("/proc/kallsyms").context("/proc/kallsyms")?;
    std::fs::write("/host/kallsyms", symbols).context("/host/kallsyms")?;
    registering(env)?;
    keys(env)
}
