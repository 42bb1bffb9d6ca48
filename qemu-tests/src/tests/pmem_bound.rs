// SPDX-License-Identifier: MIT OR Apache-2.0

//! Persistent memory: a revocation waits for one stretch of a commit, not for the whole range.
//!
//! The number of stretches is the number of the kernel's calls of `arch_wb_cache_pmem()`, which a kprobe
//! counts. So the result does not depend on times.

use super::pmem::{want, Device};
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::{skip, Ctx, Test, NETNS, SHM};
use crate::op;
use crate::pair::{Opts, Pair, Remote, Side, LONG, REMOTE, WAIT};
use crate::sys::{patience, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::pair(
    "pmem.p03_revocation_during_large_commit_waits_for_a_stretch",
    bounded,
)
.seconds(30)
.on(NETNS | SHM)
.needs(ARRIVED_WRITES)];

/// Bytes of the commit: the NVDIMM up to the memory that other tests mark as bad.
const LEN: usize = 40 << 20;
/// Bytes of a stretch.
pub(super) const STRETCH: usize = 64 << 10;
/// Stretches of a commit.
const WHOLE: usize = LEN / STRETCH;
/// Commits that are outstanding during a revocation, so that it comes in time.
const COMMITS: u64 = 8;
/// Revocations at most. Eight refused keys would end the connection.
const ROUNDS: u64 = 6;

/// A count of the kernel's write-backs, which the drop ends.
pub(super) struct Count;

impl Count {
    const NAME: &str = "kfi_write_back";

    fn root() -> &'static Path {
        Path::new("/sys/kernel/tracing")
    }

    fn switch() -> PathBuf {
        Self::root()
            .join("events/kprobes")
            .join(Self::NAME)
            .join("enable")
    }

    fn order(text: &str) -> Result<()> {
        let path = Self::root().join("kprobe_events");
        let mut file = File::options().append(true).open(path)?;
        Ok(file.write_all(text.as_bytes())?)
    }

    /// Begins to count.
    pub(super) fn begin() -> Result<Self> {
        if !Self::root().join("kprobe_events").exists() {
            return skip("the kernel has no kprobe events");
        }
        Self::order(&format!("p:{} arch_wb_cache_pmem", Self::NAME))?;
        let this = Self;
        fs::write(Self::switch(), "1").context("the kprobe")?;
        Ok(this)
    }

    /// Returns the number of write-backs since the begin.
    pub(super) fn get(&self) -> Result<usize> {
        let text = fs::read_to_string(Self::root().join("kprobe_profile"))?;
        let mut lines = text.lines().map(|line| line.split_whitespace());
        let found =
            lines.find_map(|mut words| (words.next()? == Self::NAME).then(|| words.next())?);
        Ok(found.context("no count")?.parse()?)
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        let _ = fs::write(Self::switch(), "0");
        let _ = Self::order(&format!("-:{}", Self::NAME));
    }
}

fn map() -> Result<Map> {
    let (path, _) = Device::Nvdimm.make()?;
    let file = File::options().read(true).write(true).open(&path)?;
    Map::file(file.as_fd(), LEN, true).context("mapping the device")
}

fn bounded(ctx: &mut Ctx) -> Result<()> {
    match ctx.first() {
        true => target(ctx),
        false => initiator(ctx),
    }
}

fn initiator(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    ensure!(side.domain.durable != KFI_REACH_NO);
    let pair = Pair::on(ctx, side, &Opts::default())?;
    loop {
        let (to, count): (Remote, u64) = ctx.ctl.recv()?;
        if count == 0 {
            return ctx.barrier("end");
        }
        for i in 0..count {
            pair.post(op::commit(i, to.addr, to.key, LEN as u64))?;
        }
        let mut errors = Vec::new();
        for _ in 0..count {
            errors.push(pair.wait_any(LONG)?.err as i32);
        }
        ctx.ctl.send(&errors)?;
    }
}

/// Waits until the peer's commits have begun, without a pause. Returns the number of write-backs.
fn begun(count: &Count, start: usize) -> Result<usize> {
    let end = Instant::now() + patience(WAIT);
    loop {
        let now = count.get()?;
        if now > start {
            return Ok(now);
        }
        ensure!(Instant::now() < end, "no commit begins");
    }
}

fn target(ctx: &mut Ctx) -> Result<()> {
    let map = map()?;
    let side = Side::open(ctx)?;
    let flags = KFI_REGION_PMEM | KFI_REGION_DYNAMIC_KEYS;
    let region = side.dev.call_region(&want(&side, &map, flags))?.handle;
    let pair = Pair::on(ctx, side, &Opts::default())?;
    let slot = pair.dev().key_alloc(region, 1)?[0];
    let assign = || pair.side.assign(slot, 0, LEN as u64, REMOTE);
    let count = Count::begin()?;
    // A whole commit, which also opens the channel.
    let first = assign()?;
    let start = count.get()?;
    ctx.ctl.send(&(first, 1))?;
    let errors: Vec<i32> = ctx.ctl.recv()?;
    let stretches = count.get()? - start;
    ensure!(
        errors == [0] && stretches == WHOLE,
        "{errors:?}, {stretches} stretches"
    );
    pair.dev().key_revoke(slot)?;
    let (mut best, mut seen) = (usize::MAX, Vec::new());
    for _ in 0..ROUNDS {
        let start = count.get()?;
        ctx.ctl.send(&(assign()?, COMMITS))?;
        let before = begun(&count, start)?;
        pair.dev().key_revoke(slot)?;
        let after = count.get()?;
        let errors: Vec<i32> = ctx.ctl.recv()?;
        let (all, wait) = (count.get()? - start, after - before);
        let whole = errors.iter().take_while(|err| **err == 0).count();
        seen.push(format!(
            "{whole} commits, {all} stretches, {wait} during the revocation"
        ));
        ensure!(
            all == after - start,
            "a write-back after the revocation: {seen:?}"
        );
        let revoked = |err: &i32| *err == libc::EKEYREVOKED;
        ensure!(errors[whole..].iter().all(revoked), "{errors:?}");
        // Otherwise the revocation came between two commits.
        if all != whole * WHOLE {
            best = best.min(wait);
        }
        if best <= WHOLE / 2 {
            break;
        }
    }
    eprintln!("{seen:?}");
    ensure!(
        best <= WHOLE / 2,
        "a revocation waits for commits: {seen:?}"
    );
    drop(count);
    ctx.ctl.send(&(first, 0))?;
    ctx.barrier("end")
}
