// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: memory of an exported NVDIMM fails. Node 1 has the NVDIMM, node 2 has the disk.
//!
//! `hard_offline_page` calls `memory_failure()`, as a machine check does. The driver of the NVDIMM passes
//! the failure on to the device's holder, which is kfblk, and marks no page, so the memory stays usable.

use super::blk_events::Log;
use super::blk_liar::{hello, stranger, written, Liar};
use super::blk_pmem::{export, writing_disk_fails, Nvdimm};
use super::key_seen::counters;
use super::pmem_poison::FAIL;
use crate::disk::{connect, disconnect, kfi, show, write_filled, Disk, Loaded, MIB, NAME};
use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, NETNS, SHM, TWO};
use crate::pair::WAIT;
use crate::raw::CallError;
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use kfabric_pure::blk::{read_table, Hello, Question, Welcome};
use std::fs;
use std::path::{Path, PathBuf};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blkpmem.memory_failed_during_writes_ends_export", writes)
        .seconds(60)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.memory_failed_revokes_keys_of_peer", keys)
        .seconds(30)
        .on(NETNS | TWO | SHM),
    Test::pair(
        "blkpmem.memory_failed_beside_partition_keeps_export",
        beside,
    )
    .seconds(30)
    .on(NETNS | SHM),
];

/// Reports that the page of a physical address has failed. Returns whether a holder of its device was
/// notified.
fn fail(address: u64) -> Result<bool> {
    match fs::write(FAIL, format!("{address:#x}")) {
        Ok(()) => Ok(true),
        // The kernel did not find an owner of the page.
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(false),
        Err(e) => Err(e).context(FAIL),
    }
}

/// Fails a page of the exported device. Checks that the export is disabled, without clients, and that the
/// log has the reason once.
fn fail_export(address: u64) -> Result<()> {
    let log = Log::begin()?;
    ensure!(fail(address)?, "kfblk was not notified");
    until("the export is disabled", WAIT, || {
        Ok((show("subsystems", NAME, "enable")? == "0").then_some(()))
    })?;
    until("no client is connected", WAIT, || {
        Ok(show("subsystems", NAME, "clients")?
            .is_empty()
            .then_some(()))
    })?;
    log.has_once(&[&format!("export {NAME}: its persistent memory has failed")])
}

/// A disk writes while memory fails that it does not even write to.
fn writes(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let nvdimm = Nvdimm::make()?;
        export(ctx, &nvdimm.path())?;
        ctx.barrier("exported")?;
        ctx.barrier("writing")?;
        fail_export(nvdimm.address()? + 40 * MIB as u64)?;
        ctx.barrier("ended")?;
        ctx.barrier("failed")?;
        kfi(&["unexport", NAME])?;
        // The next export begins without the failure.
        export(ctx, &nvdimm.path())?;
        ctx.barrier("exported again")?;
        ctx.barrier("disconnected")?;
        kfi(&["unexport", NAME])?;
        nvdimm.end()?;
        return loaded.end(ctx);
    }
    writing_disk_fails(ctx, "ended")?;
    ctx.barrier("exported again")?;
    let path = connect(ctx, NAME, &[])?;
    write_filled(&Disk::open(&path)?, &Map::anon(MIB)?, 0, MIB, 5)?;
    disconnect(NAME)?;
    ctx.barrier("disconnected")?;
    loaded.end(ctx)
}

/// A program that plays an initiator, and a key of the export.
struct Peer {
    liar: Liar,
    key: (u64, u64),
}

impl Peer {
    /// Connects, and obtains the key of the first MiB.
    fn new(ctx: &Ctx) -> Result<Self> {
        let liar = stranger(ctx, &[])?;
        let hello = Hello {
            commits: true,
            ..hello(1)?
        };
        liar.say(&[&written(&Question::Hello(hello))?])?;
        let answer = liar.next(WAIT)?.context("no answer")?;
        let welcome = Welcome::read(&answer).map_err(|e| anyhow::anyhow!("{e:?}"))?;
        ensure!(welcome.status == 0, "refused: {}", welcome.status);
        liar.say(&[&written(&Question::Keys(0))?])?;
        let answer = liar.next(WAIT)?.context("no keys")?;
        let mut keys = Vec::new();
        let chunks = welcome.geometry.chunks();
        read_table(&answer, 0, chunks, |entry| keys.push(entry))
            .map_err(|e| anyhow::anyhow!("{e:?}"))?;
        let first = keys.first().context("no key")?;
        let key = (first.addr, first.key);
        Ok(Self { liar, key })
    }

    /// Writes by the key. Returns whether the write succeeded.
    fn write(&self) -> Result<bool> {
        match self.liar.moves(true, 4096, self.key) {
            Err(e) if is_disconnected(&e) => Ok(false),
            other => other,
        }
    }
}

fn is_disconnected(e: &anyhow::Error) -> bool {
    let over = |e: &CallError| e.errno.0 == libc::ENOTCONN;
    e.downcast_ref().is_some_and(over)
}

/// Returns the number of keys that are assigned on this kernel.
fn count_keys() -> Result<u64> {
    let all = counters()?;
    let of = |name: &str| all.get(name).copied().context("no such counter");
    Ok(of("keys/assigned")? - of("keys/revoked")?)
}

/// The access of a peer by a key that the failure has revoked fails, and changes no byte.
fn keys(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let nvdimm = Nvdimm::make()?;
        Disk::open(&nvdimm.path())?.write(0, &Map::anon(MIB)?, MIB)?;
        let before = count_keys()?;
        export(ctx, &nvdimm.path())?;
        ctx.barrier("exported")?;
        ctx.barrier("written")?;
        ensure!(count_keys()? > before, "no key is shown");
        fail_export(nvdimm.address()?)?;
        let left = count_keys()?;
        ensure!(left == before, "{left} keys instead of {before}");
        ctx.barrier("ended")?;
        ctx.barrier("tried")?;
        kfi(&["unexport", NAME])?;
        let got = nvdimm.contents()?;
        ensure!(got[..4096].iter().all(|b| *b == 1), "the bytes changed");
        nvdimm.end()?;
        return loaded.end(ctx);
    }
    ctx.barrier("exported")?;
    let peer = Peer::new(ctx)?;
    peer.liar.fill(1);
    ensure!(peer.write()?, "the key is unusable");
    ctx.barrier("written")?;
    ctx.barrier("ended")?;
    peer.liar.fill(2);
    for _ in 0..2 {
        ensure!(!peer.write()?, "the key of failed memory is usable");
    }
    drop(peer);
    ctx.barrier("tried")?;
    loaded.end(ctx)
}

/// The partition of a block device, which the drop removes.
struct Partition<'a>(&'a Path);

impl<'a> Partition<'a> {
    /// Makes a partition of `len` bytes, `at` bytes behind the device's start.
    fn new(disk: &'a Path, at: usize, len: usize) -> Result<(Self, PathBuf)> {
        // A table of the old kind: one entry with the type, the first sector and the number of sectors.
        let map = Map::anon(4096)?;
        map.write(450, &[0x83]);
        map.write(454, &u32::try_from(at / 512)?.to_le_bytes());
        map.write(458, &u32::try_from(len / 512)?.to_le_bytes());
        map.write(510, &[0x55, 0xaa]);
        Disk::open(disk)?.write(0, &map, 4096)?;
        run("partx", &["--add", &disk.display().to_string()])?;
        let this = Self(disk);
        let path = PathBuf::from(format!("{}p1", disk.display()));
        until("the partition", WAIT, || Ok(path.exists().then_some(())))?;
        Ok((this, path))
    }
}

impl Drop for Partition<'_> {
    fn drop(&mut self) {
        let _ = run("partx", &["--delete", &self.0.display().to_string()]);
    }
}

/// Only the pages of the exported partition count, from the first to the last one.
fn beside(ctx: &mut Ctx) -> Result<()> {
    const START: usize = 8 * MIB;
    const LEN: usize = 4 * MIB;
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let nvdimm = Nvdimm::make()?;
        let disk = nvdimm.path();
        let first = nvdimm.address()? + START as u64;
        let (partition, path) = Partition::new(&disk, START, LEN)?;
        let last = first + LEN as u64 - 4096;
        for inside in [first, last] {
            export(ctx, &path)?;
            ctx.barrier("exported")?;
            ctx.barrier("written")?;
            for outside in [first - 4096, first + LEN as u64] {
                ensure!(!fail(outside)?, "{outside:#x} belongs to the export");
            }
            ensure!(show("subsystems", NAME, "enable")? == "1");
            ctx.barrier("beside")?;
            ctx.barrier("written again")?;
            fail_export(inside)?;
            ctx.barrier("ended")?;
            ctx.barrier("tried")?;
            kfi(&["unexport", NAME])?;
        }
        drop(partition);
        nvdimm.end()?;
        return loaded.end(ctx);
    }
    for _ in 0..2 {
        ctx.barrier("exported")?;
        let peer = Peer::new(ctx)?;
        ensure!(peer.write()?, "the key is unusable");
        ctx.barrier("written")?;
        ctx.barrier("beside")?;
        if !peer.write()? {
            bail!("a failure of other memory has ended the export");
        }
        ctx.barrier("written again")?;
        ctx.barrier("ended")?;
        ensure!(!peer.write()?, "the key of failed memory is usable");
        drop(peer);
        ctx.barrier("tried")?;
    }
    loaded.end(ctx)
}
