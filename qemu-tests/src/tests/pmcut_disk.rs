// SPDX-License-Identifier: MIT OR Apache-2.0

//! Workloads of `cargo xtask pmcut --target disk` and `--target virtio`: a disk of kfblk on persistent
//! memory.
//!
//! Node 1 exports the NVDIMM as persistent memory, or a virtio-pmem device through the block layer. Node 2
//! writes sectors, and makes them durable by FUA or by a flush. As in [`pmcut`](super::pmcut), the host
//! hears of each write before it begins and after it is durable.

use super::blk_pmem::{through, with, Nvdimm};
use super::pmcut::Channel;
use super::pmem::Device;
use crate::disk::{connect, disconnect, export_device, kfi, Disk, Loaded, NAME};
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, POWER_CUT, POWER_CUT_VERBS};
use crate::pair::WAIT;
use crate::pmcut_message::{bytes, mix, sum, Message, Write, AREA, BASE, KEPT, WRITES};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("pmcut.disk_kept", |ctx| kept(ctx, over_nvdimm))
        .seconds(40)
        .on(POWER_CUT | POWER_CUT_VERBS),
    Test::pair("pmcut.disk_writes", |ctx| writes(ctx, over_nvdimm))
        .seconds(90)
        .on(POWER_CUT | POWER_CUT_VERBS),
    Test::pair("pmcut.virtio_kept", |ctx| kept(ctx, over_virtio))
        .seconds(40)
        .on(POWER_CUT | POWER_CUT_VERBS),
    Test::pair("pmcut.virtio_writes", |ctx| writes(ctx, over_virtio))
        .seconds(90)
        .on(POWER_CUT | POWER_CUT_VERBS),
];

/// Number of threads that write.
const WRITERS: usize = 3;
/// Maximum number of writes that one flush makes durable.
const BATCH: u64 = 3;
/// Maximum number of sectors of a write.
const SECTORS: u64 = 48;
const SECTOR: u64 = 512;

/// Runs a function on node 2 with the path of the disk, and with the physical address of the first
/// byte of the device that node 1 exports.
type Over = fn(&mut Ctx, fn(&mut Ctx, &Path, u64) -> Result<()>) -> Result<()>;

/// Exports the NVDIMM as persistent memory: flushes are commits.
fn over_nvdimm(ctx: &mut Ctx, client: fn(&mut Ctx, &Path, u64) -> Result<()>) -> Result<()> {
    let target = |ctx: &mut Ctx, nvdimm: &Nvdimm| ctx.ctl.send(&nvdimm.address()?);
    let client = |ctx: &mut Ctx, path: &Path| {
        let address = ctx.ctl.recv()?;
        client(ctx, path, address)
    };
    with(ctx, &[], target, client, |_| Ok(()))
}

/// Exports a virtio-pmem device through the block layer: flushes are the device's.
fn over_virtio(ctx: &mut Ctx, client: fn(&mut Ctx, &Path, u64) -> Result<()>) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let (_, number) = Device::Virtio.region()?;
        let path = PathBuf::from(format!("/dev/pmem{number}"));
        until("the block device", WAIT, || Ok(path.exists().then_some(())))?;
        export_device(ctx, &path, &[])?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        let disk = connect(ctx, NAME, &[])?;
        client(ctx, &disk, BASE)?;
        disconnect(NAME)?;
    }
    ctx.barrier("disconnected")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

/// Reads the area after a power failure, and compares it with the bytes that the host found.
fn kept(ctx: &mut Ctx, over: Over) -> Result<()> {
    over(ctx, |_, path, _| {
        let disk = Disk::open(path)?;
        let map = Map::anon(AREA)?;
        disk.read(0, &map, AREA)?;
        let kept = fs::read(Path::new("/host").join(KEPT));
        let kept = kept.context("the bytes that the host found")?;
        let mut there = vec![0; AREA];
        map.read(0, &mut there);
        ensure!(there == kept, "the disk has other bytes than the host");
        Ok(())
    })
}

/// The writes that were chosen and are not durable yet.
struct Chosen {
    state: u64,
    number: u64,
    open: Vec<Write>,
}

impl Chosen {
    fn below(&mut self, limit: u64) -> u64 {
        self.state = mix(self.state);
        (self.state >> 8) % limit
    }

    /// Returns the next write, which does not touch the ones in flight.
    fn next(&mut self) -> Write {
        self.number += 1;
        loop {
            let len = SECTOR * (1 + self.below(SECTORS));
            let offset = SECTOR * self.below((AREA as u64 - len) / SECTOR + 1);
            let apart = |of: &Write| of.offset + of.len <= offset || offset + len <= of.offset;
            if self.open.iter().all(apart) {
                let write = Write {
                    number: self.number,
                    offset,
                    len,
                    by_words: false,
                };
                self.open.push(write);
                return write;
            }
        }
    }
}

fn locked(chosen: &Mutex<Chosen>) -> MutexGuard<'_, Chosen> {
    chosen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes until `count` writes were chosen, and reports in the cache line `line`.
fn write(
    path: &Path,
    channel: &Channel,
    chosen: &Mutex<Chosen>,
    (seed, count): (u64, u64),
    line: usize,
) -> Result<()> {
    let plain = Disk::open(path)?;
    let fua = through(path, plain.size)?;
    let map = Map::anon((SECTOR * SECTORS) as usize)?;
    loop {
        let (batch, at_once) = {
            let mut chosen = locked(chosen);
            if chosen.number >= count {
                return Ok(());
            }
            let n = 1 + chosen.below(BATCH);
            let batch: Vec<_> = (0..n).map(|_| chosen.next()).collect();
            (batch, chosen.below(2) == 0)
        };
        let disk = if at_once { &fua } else { &plain };
        for write in &batch {
            channel.say(line, Message::Begin(*write));
            map.write(0, &bytes(seed, write));
            disk.write(write.offset as usize, &map, write.len as usize)?;
            if at_once {
                durable(channel, chosen, seed, write, line);
            }
        }
        if !at_once {
            plain.file.sync_data()?;
            for write in &batch {
                durable(channel, chosen, seed, write, line);
            }
        }
    }
}

/// Reports a durable write.
fn durable(channel: &Channel, chosen: &Mutex<Chosen>, seed: u64, write: &Write, line: usize) {
    let number = write.number;
    let sum = sum(&bytes(seed, write));
    channel.say(line, Message::Durable { number, sum });
    locked(chosen).open.retain(|of| of.number != number);
}

fn writes(ctx: &mut Ctx, over: Over) -> Result<()> {
    over(ctx, |ctx, path, address| {
        let count: u64 = std::env::var(WRITES).context(WRITES)?.parse()?;
        let seed = ctx.env.seed;
        let channel = Channel::open_memory()?;
        channel.say(0, Message::Hello { address, seed });
        let chosen = Mutex::new(Chosen {
            state: seed,
            number: 0,
            open: Vec::new(),
        });
        let run = |line| write(path, &channel, &chosen, (seed, count), line);
        std::thread::scope(|scope| {
            let start = |line| scope.spawn(move || run(line));
            let all: Vec<_> = (1..=WRITERS).map(start).collect();
            let join = |one: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                let done = one.join();
                done.map_err(|_| anyhow::anyhow!("a writer panicked"))?
            };
            all.into_iter().try_for_each(join)
        })?;
        channel.say(0, Message::End);
        Ok(())
    })
}
