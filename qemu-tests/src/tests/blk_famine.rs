// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk when the kernel has no memory. The roles are those of `blk_device`.

use crate::disk::*;
use crate::harness::guest::{run, until};
use crate::harness::{skip, Ctx, Test, NETNS};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::pair(
    "blkdev.requests_without_memory_for_keys_are_served",
    requests,
)
.seconds(30)
.on(NETNS)];

/// Where the kernel is told which allocations fail.
const FAILSLAB: &str = "/sys/kernel/debug/failslab";
/// Failures, at most.
const TIMES: u32 = 1_000_000;
/// How long requests may take.
const LIMIT: Duration = Duration::from_secs(20);

/// While it lives, `ib_alloc_mr()` has no memory, whichever task calls it.
struct Famine;

impl Famine {
    fn set(name: &str, value: &str) -> Result<()> {
        let path = Path::new(FAILSLAB).join(name);
        fs::write(&path, value).with_context(|| path.display().to_string())
    }

    fn begin() -> Result<Self> {
        let (start, end) = place("ib_alloc_mr")?;
        for (name, value) in [
            ("probability", "0"),
            ("verbose", "0"),
            ("ignore-gfp-wait", "N"),
            ("cache-filter", "N"),
            ("task-filter", "N"),
            ("interval", "1"),
            ("space", "0"),
            ("times", &TIMES.to_string()),
            ("stacktrace-depth", "32"),
            ("require-start", &format!("{start:#x}")),
            ("require-end", &format!("{end:#x}")),
            ("probability", "100"),
        ] {
            Self::set(name, value)?;
        }
        Ok(Self)
    }

    /// How many allocations have failed.
    fn failed() -> Result<u32> {
        let left = fs::read_to_string(Path::new(FAILSLAB).join("times"))?;
        Ok(TIMES - left.trim().parse::<u32>()?)
    }
}

impl Drop for Famine {
    fn drop(&mut self) {
        for (name, value) in [
            ("probability", "0"),
            ("stacktrace-depth", "0"),
            ("require-start", "0"),
            ("require-end", &u64::MAX.to_string()),
            ("times", "1"),
        ] {
            let _ = Self::set(name, value);
        }
    }
}

/// Where a function of the kernel's begins, and where the next one does.
fn place(function: &str) -> Result<(u64, u64)> {
    let mut start = None;
    let mut all = Vec::new();
    for line in fs::read_to_string("/proc/kallsyms")?.lines() {
        let mut words = line.split_whitespace();
        let (Some(at), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let at = u64::from_str_radix(at, 16)?;
        all.push(at);
        if name == function {
            start = Some(at);
        }
    }
    let start = start.with_context(|| format!("no {function}"))?;
    let end = all.into_iter().filter(|at| *at > start).min();
    Ok((start, end.context("nothing follows")?))
}

/// No memory region can be allocated for keys, in whichever task. Requests that need a key are served all the
/// same, and their bytes are right.
fn requests(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 64 << 10;
    const ROUNDS: u64 = 12;
    let _ = run("mount", &["-t", "debugfs", "none", "/sys/kernel/debug"]);
    if !Path::new(FAILSLAB).join("require-start").exists() {
        return skip("the kernel has no failslab: boot the debug kernel".to_owned());
    }
    Of::Device.with_disk(ctx, "4M", &["-i", "1"], |ctx, path| {
        if ctx.first() {
            return Ok(());
        }
        let work = || -> Result<()> {
            let (disk, map) = (Disk::open(path)?, Map::anon(LEN)?);
            let mut got = vec![0; LEN];
            for round in 0..ROUNDS {
                let at = (round as usize % 4) * LEN;
                write_filled(&disk, &map, at, LEN, round)?;
                disk.read(at, &map, LEN)?;
                map.read(0, &mut got);
                is_filled(&got, at, round)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let famine = Famine::begin()?;
            let worker = scope.spawn(work);
            let served = until("requests are served", LIMIT, || {
                Ok(worker.is_finished().then_some(()))
            });
            let failed = Famine::failed();
            // Requests that wait get memory now.
            drop(famine);
            worker.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            served?;
            let failed = failed?;
            ensure!(failed > 0, "no allocation has failed");
            Ok(())
        })
    })
}
