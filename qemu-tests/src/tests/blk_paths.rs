// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk when a path is down: requests that fail fast, dm-multipath over two disks of one export,
//! and requests that end every connection which carries them. The roles are those of `blk_device`.

use super::blk_liar::{patiently, welcome, Fake};
use crate::disk::*;
use crate::harness::guest::{run, until};
use crate::harness::{skip, Ctx, Test, NETNS, SHM};
use crate::pair::WAIT;
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use kfabric_pure::blk::device::{Limits, Op};
use kfabric_pure::blk::Welcome;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.multipath_path_lost_fails_over_at_once", |ctx| {
        multipath(ctx, Of::Memory, "0")
    })
    .seconds(20)
    .on(NETNS),
    Test::pair("blkdev.multipath_path_lost_fails_over_at_once", |ctx| {
        multipath(ctx, Of::Device, "0")
    })
    .seconds(20)
    .on(NETNS),
    Test::pair("blkdev.multipath_of_bios_path_lost_fails_over", |ctx| {
        multipath(ctx, Of::Device, "2 queue_mode bio")
    })
    .seconds(20)
    .on(NETNS),
    Test::pair("blk.fast_io_fail_tmo_over_fails_waiting_requests", |ctx| {
        fast_io_fail(ctx, Of::Memory)
    })
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "blkdev.fast_io_fail_tmo_over_fails_waiting_requests",
        |ctx| fast_io_fail(ctx, Of::Device),
    )
    .seconds(20)
    .on(NETNS),
    Test::pair("blkdev.request_ending_every_connection_fails_alone", poison)
        .seconds(40)
        .on(NETNS),
    Test::pair(
        "blkdev.write_zeroes_unknown_to_target_is_tried_once",
        zeroes,
    )
    .seconds(20)
    .on(NETNS),
];

/// Name of the second port, at which the export is offered too.
const SECOND: &str = "blksecond";
const SECOND_PORT: &str = "4423";
/// Disk over the second path.
const OTHER: &str = "blkother";
/// The dm device over both disks.
const OVER: &str = "kfblkpaths";
/// Time within which work must go on; far less than the time that a disk has for reconnecting.
const ON: Duration = Duration::from_secs(20);
/// One connection, retried for longer than the test takes.
const OPTIONS: [&str; 6] = ["-i", "1", "--reconnect-delay", "1", "--ctrl-loss-tmo", "60"];

/// Returns the export's link at node 1's second port.
fn second_link() -> PathBuf {
    attr("ports", SECOND, "subsystems").join(NAME)
}

/// Offers the export at the second port, too.
pub(super) fn offer_second(ctx: &Ctx) -> Result<()> {
    fs::create_dir(Path::new(ROOT).join("ports").join(SECOND))?;
    for (what, value) in [
        ("addr_trtype", ctx.provider().to_owned()),
        ("addr_traddr", ctx.env.addr.to_string()),
        ("addr_trsvcid", SECOND_PORT.to_owned()),
    ] {
        store("ports", SECOND, what, &value).context(what)?;
    }
    std::os::unix::fs::symlink(Path::new(ROOT).join("subsystems").join(NAME), second_link())?;
    Ok(())
}

/// Ends the offer at the second port.
pub(super) fn end_second() -> Result<()> {
    fs::remove_file(second_link())?;
    fs::remove_dir(Path::new(ROOT).join("ports").join(SECOND)).map_err(Into::into)
}

/// Connects a disk over the second port. Returns its path.
pub(super) fn connect_second(ctx: &Ctx, disk: &str) -> Result<PathBuf> {
    let addr = ctx.env.peer.to_string();
    let args = ["connect", &addr, NAME, "-p", SECOND_PORT];
    let more = ["-d", disk, "-c", disk, "--provider", ctx.provider()];
    Ok(PathBuf::from(kfi(&[&args[..], &more, &OPTIONS].concat())?))
}

/// A multipath device over disks; the first is used as long as it works.
pub(super) struct Over(pub(super) PathBuf);

impl Over {
    /// Makes the device; the paths are used in their order.
    pub(super) fn new(paths: &[&Path], features: &str) -> Result<Self> {
        for module in ["dm-multipath", "dm-round-robin"] {
            if let Err(e) = run("modprobe", &[module]) {
                return skip(format!("{e:#}"));
            }
        }
        let sectors = Disk::open_as(paths[0], false)?.size / 512;
        let groups: String = paths
            .iter()
            .map(|path| format!(" round-robin 0 1 1 {} 1", path.display()))
            .collect();
        let count = paths.len();
        let table = format!("0 {sectors} multipath {features} 0 {count} 1{groups}");
        run(
            "dmsetup",
            &["create", "--noudevsync", OVER, "--table", &table],
        )?;
        let over = Self(PathBuf::new());
        let name = run(
            "dmsetup",
            &["info", "-c", "--noheadings", "-o", "blkdevname", OVER],
        )?;
        let path = Path::new("/dev").join(name.trim());
        until("the device's file", ON, || Ok(path.exists().then_some(())))?;
        std::mem::forget(over);
        Ok(Self(path))
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        let _ = run("dmsetup", &["remove", "--noudevsync", "--retry", OVER]);
    }
}

/// dm-multipath's requests fail at once when their path is down, and go by the other path. A path
/// that is up again is used again.
fn multipath(ctx: &mut Ctx, of: Of, features: &str) -> Result<()> {
    of.with_disk(ctx, "4M", &OPTIONS, |ctx, path| {
        if ctx.first() {
            offer_second(ctx)?;
            ctx.barrier("second")?;
            ctx.barrier("busy")?;
            offer(ctx, false)?;
            ctx.barrier("first is down")?;
            ctx.barrier("went on")?;
            offer(ctx, true)?;
            ctx.barrier("first is up")?;
            ctx.barrier("reinstated")?;
            fs::remove_file(second_link())?;
            ctx.barrier("second is down")?;
            ctx.barrier("over")?;
            return fs::remove_dir(Path::new(ROOT).join("ports").join(SECOND)).map_err(Into::into);
        }
        ctx.barrier("second")?;
        let other = connect_second(ctx, OTHER)?;
        let over = Over::new(&[path, &other], features)?;
        let ends = Load::run(&over.0, 4, |load| {
            load.gets_on(ON)?;
            ctx.barrier("busy")?;
            ctx.barrier("first is down")?;
            load.gets_on(ON)?;
            let state = show("disks", NAME, "state")?;
            ensure!(state == "connecting", "the first is {state}");
            ctx.barrier("went on")?;
            ctx.barrier("first is up")?;
            wait_state(NAME, "live", ON)?;
            let name = path.file_name().context("no name")?.to_string_lossy();
            let number = fs::read_to_string(format!("/sys/block/{name}/dev"))?;
            let again = format!("reinstate_path {}", number.trim());
            run("dmsetup", &["message", OVER, "0", &again])?;
            ctx.barrier("reinstated")?;
            ctx.barrier("second is down")?;
            load.gets_on(ON)
        })?;
        drop(over);
        rounds(ends)?;
        disconnect(OTHER)?;
        ctx.barrier("over")
    })
}

/// With `fast_io_fail_tmo`, waiting requests fail after that time, later requests fail at once, and
/// the disk goes on when it has reconnected.
fn fast_io_fail(ctx: &mut Ctx, of: Of) -> Result<()> {
    let options = [&OPTIONS[..], &["--fast-io-fail-tmo", "1"]].concat();
    of.with_disk(ctx, "1M", &options, |ctx, path| {
        if ctx.first() {
            ctx.barrier("open")?;
            offer(ctx, false)?;
            ctx.barrier("down")?;
            ctx.barrier("failed")?;
            offer(ctx, true)?;
            return ctx.barrier("up");
        }
        ensure!(show("disks", NAME, "fast_io_fail_tmo")? == "1");
        let disk = Disk::open(path)?;
        let map = Map::anon(64 << 10)?;
        write_filled(&disk, &map, 0, 64 << 10, 1)?;
        ctx.barrier("open")?;
        ctx.barrier("down")?;
        wait_state(NAME, "connecting", ON)?;
        for what in ["waited", "came later"] {
            let read = disk.read(0, &map, 64 << 10);
            let err = read.err().with_context(|| format!("reading {what}"))?;
            ensure!(err.raw_os_error() == Some(libc::ENOLINK), "{what}: {err}");
            let state = show("disks", NAME, "state")?;
            ensure!(state == "connecting", "{what}: the disk is {state}");
        }
        ctx.barrier("failed")?;
        ctx.barrier("up")?;
        wait_state(NAME, "live", ON)?;
        map.set(0, 0);
        disk.read(0, &map, 64 << 10)?;
        let mut got = vec![0; 64 << 10];
        map.read(0, &mut got);
        is_filled(&got, 0, 1)
    })
}

/// Position of the request that the target does not survive.
const POISON: usize = 4 << 20;

/// A target's connection ends whenever it gets a certain request, while other requests are served.
/// That request fails in the end, the others succeed, and the disk goes on.
fn poison(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 64 << 10;
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let mut fake = Fake::with(ctx, &welcome(), &[false, true])?;
        let start = std::time::Instant::now();
        let mut connections = 1;
        while survives(&fake)? {
            fake.again(&welcome())?;
            connections += 1;
        }
        eprintln!("{connections} connections in {:?}", start.elapsed());
        ensure!(connections > 8, "{connections} connections");
        fake.end()?;
        return loaded.end(ctx);
    }
    let device = patiently(ctx, &OPTIONS)?;
    let disk = Disk::open(&device)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<u64> {
            let map = Map::anon(4096)?;
            for round in 0.. {
                disk.read(0, &map, 4096)?;
                if over.load(Ordering::Relaxed) {
                    return Ok(round);
                }
            }
            Ok(0)
        });
        let writer = scope.spawn(|| -> Result<std::io::Result<()>> {
            let map = Map::anon(LEN)?;
            Ok(write_filled(&disk, &map, POISON, LEN, 1))
        });
        let ended = until("the request fails", 3 * WAIT, || {
            Ok(writer.is_finished().then_some(()))
        });
        over.store(true, Ordering::Relaxed);
        ended?;
        let wrote = writer.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        let err = wrote.err().context("it is written")?;
        ensure!(err.raw_os_error() == Some(libc::EIO), "{err}");
        let read = reader.join().map_err(|_| anyhow::anyhow!("panicked"))?;
        eprintln!("{} reads", read.context("another request has failed")?);
        ensure!(show("disks", NAME, "state")? == "live");
        Ok(())
    })?;
    drop(disk);
    disconnect(NAME)?;
    loaded.end(ctx)
}

/// Serves a connection until it gets the request that the target does not survive. Returns whether
/// another request was served before.
fn survives(fake: &Fake) -> Result<bool> {
    let (mut served, mut poisoned) = (false, false);
    while !(served && poisoned) {
        let Some(request) = fake.request()? else {
            return Ok(false);
        };
        if request.op == Op::Write && request.pos == POISON as u64 {
            poisoned = true;
            continue;
        }
        fake.reply(&request)?;
        served = true;
        if poisoned {
            fake.sent()?;
        }
    }
    Ok(true)
}

/// A target claims that it can write zeroes, and cannot: the initiator asks once, its kernel does
/// not complain, and the range is zeroed.
fn zeroes(ctx: &mut Ctx) -> Result<()> {
    const LEN: u32 = 256 << 10;
    let good = Welcome {
        device: Some(Limits {
            physical: 512,
            zeroes: 1 << 20,
            ..Limits::default()
        }),
        ..welcome()
    };
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let fake = Fake::with(ctx, &good, &[false, true])?;
        let (mut asked, mut written) = (0, 0);
        while let Some(request) = fake.request()? {
            match request.op {
                Op::Zeroes => {
                    asked += 1;
                    fake.refuse(&request, libc::EOPNOTSUPP)?;
                }
                op => {
                    written += u32::from(op == Op::Write) * request.len;
                    fake.reply(&request)?;
                }
            }
        }
        fake.end()?;
        ensure!(asked == 1, "it is asked {asked} times");
        ensure!(written == 3 * LEN, "{written} bytes are written");
        return loaded.end(ctx);
    }
    let device = patiently(ctx, &OPTIONS)?;
    let name = device.file_name().context("no name")?.to_string_lossy();
    let limit = format!("/sys/block/{name}/queue/write_zeroes_max_bytes");
    let limit = || fs::read_to_string(&limit).map(|text| text.trim().to_owned());
    ensure!(limit()? == "1048576", "before: {}", limit()?);
    let path = device.display().to_string();
    let complaint = format!("error, dev {name}");
    let complaints = || -> Result<usize> { Ok(run("dmesg", &[])?.matches(&complaint).count()) };
    let before = complaints()?;
    for i in 0..3 {
        let (at, len) = ((i * LEN).to_string(), LEN.to_string());
        run("fallocate", &["--zero-range", "-o", &at, "-l", &len, &path])?;
    }
    ensure!(limit()? == "0", "after: {}", limit()?);
    ensure!(complaints()? == before, "the kernel complains");
    disconnect(NAME)?;
    loaded.end(ctx)
}
