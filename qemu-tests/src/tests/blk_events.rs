// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk and its administrator: log lines, statistics, and changes of a disk's capacity. The roles are those
//! of `blk_device`.

use super::blk_liar::{patiently, welcome, Fake};
use crate::disk::*;
use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use kfabric_pure::blk::{Geometry, Welcome};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "blk.connection_lost_fenced_or_refused_is_logged_once_by_name",
        events,
    )
    .seconds(15)
    .on(NETNS),
    Test::pair(
        "blk.connect_ended_by_disconnect_fails_with_ecanceled",
        canceled,
    )
    .seconds(10)
    .on(NETNS | SHM),
    Test::pair(
        "blkdev.statistics_after_requests_count_them_at_both_ends",
        counted,
    )
    .seconds(10)
    .on(NETNS),
    Test::pair(
        "blkdev.capacity_news_in_a_storm_change_the_disk_once_a_second",
        storm,
    )
    .seconds(20)
    .on(NETNS),
];

/// How long an event may take.
const ON: Duration = Duration::from_secs(20);
/// A disk that reconnects soon.
const OPTIONS: [&str; 6] = ["-i", "1", "--reconnect-delay", "1", "--ctrl-loss-tmo", "60"];

/// The kernel's log from a line of the test's own on.
pub(super) struct Log(String);

impl Log {
    pub(super) fn begin() -> Result<Self> {
        let mark = format!("blk_events {}", std::process::id());
        fs::write("/dev/kmsg", &mark)?;
        Ok(Self(mark))
    }

    pub(super) fn since(&self) -> Result<String> {
        let all = run("dmesg", &[])?;
        let (_, since) = all.rsplit_once(&self.0).context("the mark is gone")?;
        Ok(since.to_owned())
    }

    /// Waits until a line has all of these words, and fails if there are two.
    pub(super) fn has_once(&self, words: &[&str]) -> Result<()> {
        let lines = || -> Result<usize> {
            let all = self.since()?;
            let has = |line: &&str| words.iter().all(|word| line.contains(word));
            Ok(all.lines().filter(has).count())
        };
        until(&format!("{words:?} is logged"), ON, || {
            Ok((lines()? > 0).then_some(()))
        })?;
        ensure!(lines()? == 1, "{words:?}: {}", self.since()?);
        Ok(())
    }
}

/// The log names the disk that loses its connection, reconnects, or fails. It names the client that connects,
/// disconnects, is fenced, refused or admitted, and the export without auth keys. Each event is one line.
fn events(ctx: &mut Ctx) -> Result<()> {
    let (disk, export) = (format!("disk {NAME}: "), format!("export {NAME}: "));
    let client = format!("{export}client {NAME} ");
    let log = Log::begin()?;
    with_disk(ctx, "1M", &OPTIONS, |ctx, path| {
        if ctx.first() {
            log.has_once(&[&export, "no auth keys"])?;
            log.has_once(&[&format!("{client}connected")])?;
            offer(ctx, false)?;
            ctx.barrier("down")?;
            ctx.barrier("seen")?;
            log.has_once(&[&format!("{client}disconnected")])?;
            log.has_once(&[&disk, "connection lost"])?;
            offer(ctx, true)?;
            ctx.barrier("live")?;
            log.has_once(&[&disk, "reconnected"])?;
            store("subsystems", NAME, "fence", NAME)?;
            ctx.barrier("fenced")?;
            ctx.barrier("dead")?;
            log.has_once(&[&format!("{client}fenced")])?;
            log.has_once(&[&format!("{client}refused"), "errno 128"])?;
            log.has_once(&[&disk, "for good", "fenced"])?;
            let total = &lines(&show("subsystems", NAME, "statistics")?)?["total"];
            ensure!(total["connections"] == 2, "{total:?}");
            ensure!(total["refused"] == 1, "{total:?}");
            store("subsystems", NAME, "admit", NAME)?;
            return log.has_once(&[&format!("{client}admitted")]);
        }
        ctx.barrier("down")?;
        wait_state(NAME, "connecting", ON)?;
        ctx.barrier("seen")?;
        wait_state(NAME, "live", ON)?;
        let counts = show("disks", NAME, "statistics")?;
        ensure!(lines(&counts)?["total"]["reconnects"] == 1, "{counts}");
        let map = Map::anon(4096)?;
        Disk::open(path)?.read(0, &map, 4096)?;
        ctx.barrier("live")?;
        ctx.barrier("fenced")?;
        wait_state(NAME, "dead", ON)?;
        ctx.barrier("dead")
    })
}

/// A connect waits for the answer of a target that is silent. A disconnect ends it at once, and the connect
/// reports that, not that the target took too long.
fn canceled(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        ctx.barrier("listens soon")?;
        let fake = Fake::silent(ctx)?;
        ctx.barrier("asked")?;
        ctx.barrier("canceled")?;
        fake.end()?;
        return loaded.end(ctx);
    }
    let far = Far::of(ctx);
    ctx.barrier("listens soon")?;
    let (said, took) = std::thread::scope(|scope| -> Result<_> {
        let connecting = scope.spawn(|| {
            until("a target listens", ON, || {
                match far.connect(NAME, NAME, &OPTIONS) {
                    Err(e) if format!("{e:#}").contains("os error 111") => Ok(None),
                    other => Ok(Some(other)),
                }
            })
        });
        ctx.barrier("asked")?;
        let start = Instant::now();
        disconnect(NAME)?;
        let took = start.elapsed();
        let said = connecting
            .join()
            .map_err(|_| anyhow::anyhow!("panicked"))??;
        Ok((
            format!("{:#}", said.err().context("it is connected")?),
            took,
        ))
    })?;
    ensure!(said.contains("os error 125"), "{said}");
    ensure!(took < ON / 2, "the disconnect took {took:?}");
    ensure!(!attr("disks", NAME, "").exists(), "the folder is left");
    ctx.barrier("canceled")?;
    loaded.end(ctx)
}

/// The counters of a line of statistics.
type Line = HashMap<String, u64>;

/// The lines of statistics, by their first words: all before the counters.
fn lines(text: &str) -> Result<HashMap<String, Line>> {
    let mut found = HashMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        let (head, counters) = line.split_once("reads ").context("no counters")?;
        let words: Vec<_> = counters.split_whitespace().collect();
        let mut of = Line::from([("reads".to_owned(), words[0].parse()?)]);
        for pair in words[1..].chunks(2) {
            of.insert(pair[0].to_owned(), pair[1].parse()?);
        }
        found.insert(head.trim().to_owned(), of);
    }
    Ok(found)
}

/// Both ends count requests, their bytes and errors: of the disk and its connections at the initiator, of the
/// export, each client and each connection at the target.
fn counted(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 64 << 10;
    Of::Device.with_disk(ctx, "1M", &["-i", "1"], |ctx, path| {
        let (kind, heads) = if ctx.first() {
            let of = [
                format!("client {NAME}"),
                format!("connection {NAME} queue 0"),
            ];
            ("subsystems", of.to_vec())
        } else {
            ("disks", vec!["queue 0".to_owned()])
        };
        let before = lines(&show(kind, NAME, "statistics")?)?;
        ctx.barrier("before")?;
        if !ctx.first() {
            let disk = Disk::open(path)?;
            let map = Map::anon(LEN)?;
            for round in 0..3 {
                write_filled(&disk, &map, 0, LEN, round)?;
            }
            disk.read(0, &map, LEN)?;
            disk.read(0, &map, 512)?;
            disk.file.sync_all()?;
        }
        ctx.barrier("worked")?;
        let after = lines(&show(kind, NAME, "statistics")?)?;
        for (what, count) in [
            ("writes", 3),
            ("written_bytes", 3 * LEN as u64),
            ("reads", 2),
            ("read_bytes", LEN as u64 + 512),
            ("errors", 0),
        ] {
            let more = after["total"][what] - before["total"][what];
            ensure!(more == count, "{more} {what}: {before:?}, then {after:?}");
            for head in &heads {
                ensure!(after[head][what] == after["total"][what], "{after:?}");
            }
        }
        if ctx.first() {
            let all = fs::read_to_string(attr("subsystems", NAME, "all_statistics"))?;
            ensure!(lines(&all)? == after, "{all}, not {after:?}");
        }
        Ok(())
    })
}

/// A target announces another capacity very often, by messages and by new connections. Programs that watch
/// the disk see one change a second at most, and the last announcement is the disk's capacity in the end.
fn storm(ctx: &mut Ctx) -> Result<()> {
    const TIMES: u64 = 500;
    const AGAIN: u64 = 4;
    const LEN: usize = 64 << 10;
    let capacity = |n: u64| (8 << 20) + n * 4096;
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let mut fake = Fake::with(ctx, &welcome(), &[false, true])?;
        // The disk is there, and waits for this request.
        let request = fake.next()?;
        for n in 1..=TIMES {
            fake.news(capacity(n))?;
        }
        fake.reply(&request)?;
        ctx.barrier("seen")?;
        for n in 1..=AGAIN {
            let geometry = Geometry {
                capacity: capacity(n),
                ..welcome().geometry
            };
            fake.again(&Welcome {
                geometry,
                ..welcome()
            })?;
        }
        ctx.barrier("again")?;
        while let Some(request) = fake.request()? {
            fake.reply(&request)?;
        }
        fake.end()?;
        return loaded.end(ctx);
    }
    let device = patiently(ctx, &OPTIONS)?;
    let log = Log::begin()?;
    let start = Instant::now();
    write_filled(&Disk::open(&device)?, &Map::anon(LEN)?, 0, LEN, 1)?;
    wait_capacity(&device, capacity(TIMES))?;
    ctx.barrier("seen")?;
    ctx.barrier("again")?;
    wait_capacity(&device, capacity(AGAIN))?;
    let changes = log.since()?.matches("detected capacity change").count() as u64;
    let most = 2 + start.elapsed().as_secs();
    ensure!((2..=most).contains(&changes), "{changes} of {most} changes");
    disconnect(NAME)?;
    loaded.end(ctx)
}

/// Waits until a disk has so many bytes.
fn wait_capacity(device: &Path, bytes: u64) -> Result<()> {
    let name = device.file_name().context("no name")?.to_string_lossy();
    let path = format!("/sys/block/{name}/size");
    until(&format!("the disk has {bytes} bytes"), ON, || {
        let sectors: u64 = fs::read_to_string(&path)?.trim().parse()?;
        Ok((sectors * 512 == bytes).then_some(()))
    })
}
