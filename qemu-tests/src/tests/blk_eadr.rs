// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: exports of persistent memory with persistent caches (eADR).
//!
//! The kernel's sign of such caches is the attribute `dax/write_cache` of the block device, which an
//! administrator can also write. The number of the kernel's write-backs shows the effect.

use super::blk_pmem::{through, with, Nvdimm};
use super::pmem::set;
use super::pmem_bound::{Count, STRETCH};
use crate::disk::{is_filled, write_filled, Disk, MIB};
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::sys::Map;
use anyhow::{ensure, Result};
use std::path::{Path, PathBuf};

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::pair(
    "blkpmem.flush_and_fua_write_back_unless_caches_persist",
    written_back,
)
.seconds(30)
.on(NETNS | SHM)];

/// Values of the attribute, one after the other: a commit follows the present value, not that of the
/// export's beginning.
const VALUES: [&str; 4] = ["1", "0", "1", "0"];
/// Chunks of the disk that are written before each flush.
const CHUNKS: usize = 3;
/// Bytes of a write with FUA.
const FUA: usize = 8192;

fn write_cache(nvdimm: &Nvdimm) -> PathBuf {
    PathBuf::from(format!(
        "/sys/block/pmem{}/dax/write_cache",
        nvdimm.number()
    ))
}

fn written_back(ctx: &mut Ctx) -> Result<()> {
    with(ctx, &[], target, client, |nvdimm| {
        let all = nvdimm.contents()?;
        is_filled(&all[..CHUNKS * MIB], 0, VALUES.len() as u64)?;
        let at = CHUNKS * MIB;
        is_filled(&all[at..at + FUA], at, VALUES.len() as u64)
    })
}

fn target(ctx: &mut Ctx, nvdimm: &Nvdimm) -> Result<()> {
    let count = Count::begin()?;
    ctx.barrier("first flush")?;
    for value in VALUES {
        set(&write_cache(nvdimm), value)?;
        let start = count.get()?;
        ctx.barrier("value")?;
        ctx.barrier("flushed")?;
        let flushed = count.get()? - start;
        ctx.barrier("fua")?;
        ctx.barrier("written")?;
        let written = count.get()? - start - flushed;
        eprintln!("write_cache {value}: {flushed} write-backs of a flush, {written} of a write");
        let want = match value {
            "1" => CHUNKS * MIB / STRETCH,
            _ => 0,
        };
        ensure!(
            flushed == want,
            "{flushed} write-backs of a flush, not {want}"
        );
        // kshm copies past the caches, so only a copy by a device is written back.
        let want = usize::from(value == "1" && ctx.provider() != "kshm");
        ensure!(
            written == want,
            "{written} write-backs of a write, not {want}"
        );
    }
    Ok(())
}

fn client(ctx: &mut Ctx, path: &Path) -> Result<()> {
    let disk = Disk::open(path)?;
    let map = Map::anon(CHUNKS * MIB)?;
    // The first flush of a disk covers all of it.
    disk.file.sync_all()?;
    ctx.barrier("first flush")?;
    for round in 1..=VALUES.len() as u64 {
        ctx.barrier("value")?;
        write_filled(&disk, &map, 0, CHUNKS * MIB, round)?;
        disk.file.sync_all()?;
        ctx.barrier("flushed")?;
        ctx.barrier("fua")?;
        write_filled(&through(path, disk.size)?, &map, CHUNKS * MIB, FUA, round)?;
        ctx.barrier("written")?;
    }
    Ok(())
}
