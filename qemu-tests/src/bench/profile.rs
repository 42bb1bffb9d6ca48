// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys, registrations, operations and disks for `cargo xtask bench --profile`: the machine traces
//! execution between two requests, and the build tool attributes the instructions.
//!
//! Prints a line `KFI-TRACE NAME COUNT` for each trace: the number of its keys, operations or
//! requests.

use super::memory::{memory, verbs_reg};
use super::shm::{Ends, Twin};
use crate::harness::guest::ask_host;
use crate::harness::{Env, Status};
use crate::op::{self, iov};
use crate::pair::{key_entries, Side, LOCAL, REMOTE};
use crate::sys::rights::process_vm;
use crate::tests::kernel::results_with;
use crate::tests::key_policy::{Parameter, REVOKE};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Work to trace on a window that covers its region.
struct Size {
    /// Length of the window in bytes.
    len: usize,
    /// Number of traced repetitions, and of as many before, to warm up.
    rounds: u32,
    /// Suffix of the traces' names.
    suffix: &'static str,
}

const SIZES: [Size; 2] = [
    Size {
        len: 4096,
        rounds: 100,
        suffix: "",
    },
    // Few rounds, because a trace of them is long.
    Size {
        len: 1 << 20,
        rounds: 10,
        suffix: "-1m",
    },
];

/// Number of keys of a batch.
const BATCH: usize = 64;

/// Traces `f`, which returns the number of things that it did.
pub(super) fn traced(name: &str, f: impl FnOnce() -> Result<usize>) -> Result<()> {
    ask_host(&format!("trace {name}"))?;
    let done = f();
    ask_host("trace")?;
    println!("KFI-TRACE {name} {}", done?);
    Ok(())
}

/// Traces `f`, which makes `count` keys or operations.
fn count(name: &str, count: usize, f: impl FnOnce() -> Result<()>) -> Result<()> {
    traced(name, || f().map(|()| count))
}

/// Runs a program that prints `warm` before each of its parts and `done` after it, and waits for a line
/// after both. Makes a trace of `rounds` operations of each part.
pub(super) fn held(program: &mut Command, rounds: usize, names: &[String]) -> Result<()> {
    let mut child = program
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut orders = child.stdin.take().context("no input")?;
    let mut said = BufReader::new(child.stdout.take().context("no output")?).lines();
    let mut next = |wanted: &str| -> Result<()> {
        let line = said.next().context("the program ended")??;
        ensure!(line == wanted, "the program says {line:?}");
        Ok(())
    };
    for name in names {
        next("warm")?;
        count(name, rounds, || {
            orders.write_all(b"\n")?;
            next("done")
        })?;
        orders.write_all(b"\n")?;
    }
    ensure!(child.wait()?.success(), "the program failed");
    Ok(())
}

/// Traces registering and deregistering through verbs, in a program that waits at the right places.
fn registering(env: &Env, size: &Size) -> Result<()> {
    let rounds = size.rounds.to_string();
    let mut program = Command::new(verbs_reg()?);
    program.args([&*env.dev, &size.len.to_string(), &rounds, "held"]);
    let name = format!("register{}", size.suffix);
    held(&mut program, size.rounds as usize, &[name])
}

/// Traces keys, one at a time and in batches.
fn keys(env: &Env, size: &Size) -> Result<()> {
    let side = Side::of(env)?;
    let buf = memory(size.len)?;
    let len = size.len as u64;
    let name = |what: &str| format!("{what}{}", size.suffix);
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = side.dev.key_alloc(region, BATCH as u32)?;
    let pairs = || -> Result<()> {
        for _ in 0..size.rounds {
            side.dev.key_assign(slots[0], 0, len, KFI_REMOTE_READ)?;
            side.dev.key_revoke(slots[0])?;
        }
        Ok(())
    };
    pairs()?;
    count(&name("pair"), size.rounds as usize, pairs)?;
    let mut entries = key_entries(&slots, len, KFI_REMOTE_READ);
    let mut batches = |count| -> Result<()> {
        for _ in 0..count {
            let got = side.dev.key_assign_many(&mut entries)?;
            ensure!(got == (BATCH, 0), "assigned: {got:?}");
            side.dev.key_revoke_slots(&slots)?;
        }
        Ok(())
    };
    let rounds = size.rounds.div_ceil(40) as usize;
    batches(rounds)?;
    count(&name("batch"), rounds * BATCH, || batches(rounds))?;
    // A worker refills the slots' reserves.
    std::thread::sleep(Duration::from_millis(50));
    // Assign each alone, and revoke none before all are assigned.
    count(&name("ordered"), BATCH, || {
        for entry in key_entries(&slots, len, KFI_REMOTE_READ) {
            let got = side.dev.key_order(&entry, 0, 0)?;
            ensure!(got.key != KFI_KEY_NOTAVAIL, "ordered: {got:?}");
        }
        Ok(())
    })?;
    side.dev.key_revoke_slots(&slots)?;
    let _policy = Parameter::set(REVOKE, "invalidate")?;
    pairs()?;
    let invalidated = |what: &str| name(&format!("{what}-invalidated"));
    count(&invalidated("pair"), size.rounds as usize, pairs)?;
    batches(rounds)?;
    count(&invalidated("batch"), rounds * BATCH, || batches(rounds))
}

/// Traces regions, from the registration to the close, beside registrations through verbs.
fn regions(env: &Env) -> Result<()> {
    for size in &SIZES {
        registering(env, size)?;
        let side = Side::of(env)?;
        let buf = memory(size.len)?;
        let all = || {
            (0..size.rounds)
                .try_for_each(|_| Ok(side.dev.close(side.reg(&buf, LOCAL | REMOTE)?.handle)?))
        };
        all()?;
        count(&format!("region{}", size.suffix), size.rounds as usize, all)?;
    }
    Ok(())
}

/// Traces writes of a page into another process: kshm's, and the kernel's own.
fn copies(env: &Env) -> Result<()> {
    const LEN: usize = 4096;
    const ROUNDS: usize = 100;
    let ends = Ends::new(env)?;
    let (near, far) = (memory(LEN)?, memory(LEN)?);
    let twin = Twin::new(&far)?;
    let local = ends.ours.reg(&near, LOCAL)?.handle;
    let region = ends.theirs.reg(&far, LOCAL | REMOTE)?.handle;
    let (_, remote) = ends.theirs.export(region, 0, LEN as u64, REMOTE)?;
    let piece = [iov(local, 0, LEN as u64)];
    let ours =
        || (0..ROUNDS).try_for_each(|_| ends.run(op::write(1, &piece, remote.addr, remote.key)));
    ours()?;
    count("kshm-write", ROUNDS, ours)?;
    let kernels = || -> Result<()> {
        for _ in 0..ROUNDS {
            let done = process_vm(twin.0, false, near.map(), far.addr(), LEN)?;
            ensure!(done == LEN, "{done} bytes");
        }
        Ok(())
    };
    kernels()?;
    count("vm-writev", ROUNDS, kernels)
}

/// Traces writes of 8 bytes, 16 at once, in the kernel: through the kfi API, and through verbs
/// alone. Each trace includes its setup.
fn loops(_: &Env) -> Result<()> {
    // As many as the module makes, and a tenth more to warm up.
    const COUNT: usize = 704;
    for (way, name) in [(0, "kfi-write"), (1, "verbs-write")] {
        count(name, COUNT, || {
            for part in results_with("kfi_bench_c", &format!("only={way},1,0,1"))? {
                ensure!(part.status == Status::Ok, "{}: {}", part.name, part.detail);
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Traces keys and registrations of all sizes, and copies.
fn all_keys(env: &Env) -> Result<()> {
    for size in &SIZES {
        registering(env, size)?;
        keys(env, size)?;
    }
    copies(env)
}

/// A function to profile.
type Profile = fn(&Env) -> Result<()>;

/// Every profile.
const PROFILES: [(&str, Profile); 5] = [
    ("keys", all_keys),
    ("reg", regions),
    ("kernel", loops),
    ("blk", super::blk::profile),
    ("libfabric", super::libfabric::profile),
];

/// Runs profiles by name, or all, on both nodes; node 1 is traced.
///
/// # Errors
///
/// If one fails, a name is unknown, or the machine cannot trace.
pub fn run(names: &[String], env: &Env) -> Result<()> {
    if let Some(name) = names.iter().find(|n| PROFILES.iter().all(|(p, _)| p != n)) {
        bail!("nothing to trace is called {name:?}");
    }
    if env.node != 1 {
        return Ok(());
    }
    let symbols = std::fs::read("/proc/kallsyms").context("/proc/kallsyms")?;
    std::fs::write("/host/kallsyms", symbols).context("/host/kallsyms")?;
    for (name, profile) in PROFILES {
        if names.is_empty() || names.iter().any(|n| n == name) {
            profile(env).context(name)?;
        }
    }
    Ok(())
}
