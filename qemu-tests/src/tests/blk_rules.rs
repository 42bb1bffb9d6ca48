// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: its limits, and the limits that it sets. [`crate::disk`] describes the nodes' roles.

use super::modules::{add_link, delete_link};
use crate::disk::{
    connect, disconnect, export, is_filled, kfi, offer, show, with_disk, write_filled, Disk,
    Loaded, MIB, NAME, PORT,
};
use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::pair::{Side, WAIT};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::KFI_CONNREQ;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "blk.disk_by_name_while_another_connects_is_found_at_once",
        names,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair("blk.reconnects_without_progress_fail_disk", no_progress)
        .seconds(60)
        .on(NETNS),
    Test::pair("blk.request_over_ten_lost_connections_completes", outlives)
        .seconds(90)
        .on(NETNS),
    Test::pair("blk.device_removed_under_requests_resumes_io", device_goes)
        .seconds(60)
        .on(NETNS),
    Test::pair("blk.connect_beyond_connection_limit_is_refused", numbered)
        .seconds(60)
        .on(NETNS),
    Test::pair("blk.export_beyond_memory_is_refused", beyond_memory)
        .seconds(20)
        .on(NETNS),
];

/// Node 1 drops packets with a connection's data; connection setup gets through.
struct Narrow<'a>(&'a str);

impl<'a> Narrow<'a> {
    fn new(netdev: &'a str) -> Result<Self> {
        Self::set(netdev, "1300")?;
        Ok(Self(netdev))
    }

    fn set(netdev: &str, mtu: &str) -> Result<()> {
        run("ip", &["link", "set", netdev, "mtu", mtu]).map(drop)
    }

    fn end(self) -> Result<()> {
        let netdev = self.0;
        std::mem::forget(self);
        Self::set(netdev, "4400")
    }
}

impl Drop for Narrow<'_> {
    fn drop(&mut self) {
        // The test has failed already.
        let _ = Self::set(self.0, "4400");
    }
}

/// A disk is found by its name before another disk's block device of that name, and no command
/// waits for a disk that is just connecting.
fn names(ctx: &mut Ctx) -> Result<()> {
    const SLOW: &str = "blkslow";
    with_disk(ctx, "1M", &["-i", "1"], |ctx, path| {
        if ctx.first() {
            // A listener that does not answer the request.
            let side = Side::open(ctx)?;
            let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
            ctx.ctl.send(&at.port())?;
            let event = side.dev.eq_wait(&side.eq, WAIT)?;
            ensure!(event.raw.event == KFI_CONNREQ, "{:?}", event.raw);
            ctx.barrier("asked")?;
            return ctx.barrier("seen");
        }
        let name = path.file_name().context("no name")?.to_string_lossy();
        let other = connect(ctx, &name, &["-i", "1"])?;
        disconnect(&name)?;
        ensure!(!other.exists(), "{} is still there", other.display());
        ensure!(show("disks", NAME, "state")? == "live", "the other went");
        let other = connect(ctx, &name, &["-i", "1"])?;
        let (peer, provider) = (ctx.env.peer.to_string(), ctx.provider().to_owned());
        let port = ctx.ctl.recv::<u16>()?.to_string();
        std::thread::scope(|scope| {
            let args = ["connect", &peer, NAME, "-p", &port, "-d", SLOW];
            let slow = scope.spawn(move || kfi(&[&args[..], &["--provider", &provider]].concat()));
            ctx.barrier("asked")?;
            let list = kfi(&["list"])?;
            ensure!(list.contains(&format!("disk {SLOW}:  idle")), "{list}");
            disconnect(&other.display().to_string())?;
            ensure!(!other.exists(), "{} is still there", other.display());
            connect(ctx, &name, &["-i", "1"])?;
            disconnect(&name)?;
            ensure!(!slow.is_finished(), "it was waited for");
            ctx.barrier("seen")?;
            let slow = slow.join().map_err(|_| anyhow::anyhow!("panicked"))?;
            ensure!(slow.is_err(), "connected to a silent listener");
            Ok(())
        })
    })
}

fn no_progress(ctx: &mut Ctx) -> Result<()> {
    let options = ["-i", "1", "--reconnect-delay", "1", "--ctrl-loss-tmo", "10"];
    with_disk(ctx, "2M", &options, |ctx, path| {
        if ctx.first() {
            let netdev = ctx.env.netdev.clone();
            let narrow = Narrow::new(&netdev)?;
            ctx.barrier("narrow")?;
            ctx.barrier("given up")?;
            return narrow.end();
        }
        let disk = Disk::open(path)?;
        let map = Map::anon(64 << 10)?;
        ctx.barrier("narrow")?;
        let wrote = disk.write(0, &map, 64 << 10);
        ensure!(wrote.is_err(), "written through a blocked wire");
        let state = show("disks", NAME, "state")?;
        ensure!(state == "dead", "the disk is {state}");
        drop(disk);
        ctx.barrier("given up")
    })
}

/// Returns the connect count of the export's only initiator; `None`: it is not connected.
fn epoch() -> Result<Option<u64>> {
    let clients = show("subsystems", NAME, "clients")?;
    let mut words = clients.split_whitespace();
    let number = words.find(|word| *word == "epoch").and(words.next());
    Ok(number.map(str::parse).transpose()?)
}

fn outlives(ctx: &mut Ctx) -> Result<()> {
    // More losses than a request may cause by itself.
    const LOSSES: u64 = 10;
    const LEN: usize = 64 << 10;
    let options = [
        "-i",
        "1",
        "--reconnect-delay",
        "1",
        "--ctrl-loss-tmo",
        "600",
    ];
    with_disk(ctx, "2M", &options, |ctx, path| {
        if ctx.first() {
            let netdev = ctx.env.netdev.clone();
            let narrow = Narrow::new(&netdev)?;
            ctx.barrier("narrow")?;
            let mut last = 0;
            for _ in 0..LOSSES {
                last = until("it connects again", Duration::from_secs(15), || {
                    Ok(epoch()?.filter(|epoch| *epoch > last))
                })?;
                // Long enough for the write to be tried.
                std::thread::sleep(Duration::from_millis(300));
                offer(ctx, false)?;
                offer(ctx, true)?;
            }
            narrow.end()?;
            return ctx.barrier("wide");
        }
        let disk = Disk::open(path)?;
        let map = Map::anon(LEN)?;
        ctx.barrier("narrow")?;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_filled(&disk, &map, 0, LEN, 1));
            let told = ctx.barrier("wide");
            let wrote = writer.join().map_err(|_| anyhow::anyhow!("panicked"))?;
            wrote.context("it did not live as long as the disk")?;
            told
        })?;
        let map = Map::anon(LEN)?;
        disk.read(0, &map, LEN)?;
        let mut got = vec![0; LEN];
        map.read(0, &mut got);
        is_filled(&got, 0, 1)?;
        ensure!(show("disks", NAME, "state")? == "live");
        Ok(())
    })
}

/// Writes and reads a MiB of its own in rounds, until it is stopped.
fn rounds(path: &Path, n: usize, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
    let len = 128 << 10;
    let disk = Disk::open(path)?;
    let map = Map::anon(len)?;
    let mut got = vec![0; len];
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        for at in (n * MIB..(n + 1) * MIB).step_by(len) {
            write_filled(&disk, &map, at, len, round)?;
            disk.read(at, &map, len)?;
            map.read(0, &mut got);
            is_filled(&got, at, round)?;
        }
        round += 1;
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Removes the disk's own device and adds it again while four threads post requests.
fn device_goes(ctx: &mut Ctx) -> Result<()> {
    let options = [
        "-i",
        "2",
        "--reconnect-delay",
        "1",
        "--ctrl-loss-tmo",
        "600",
    ];
    with_disk(ctx, "4M", &options, |ctx, path| {
        if ctx.first() {
            return Ok(());
        }
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|n| {
                    let (stop, done) = (&stop, &done);
                    scope.spawn(move || rounds(path, n, stop, done))
                })
                .collect();
            let go_and_come = || -> Result<()> {
                for _ in 0..3 {
                    let before = done.load(Ordering::Relaxed);
                    until("work goes on", Duration::from_secs(30), || {
                        Ok((done.load(Ordering::Relaxed) > before + 4).then_some(()))
                    })?;
                    delete_link(ctx)?;
                    until("it is missed", Duration::from_secs(10), || {
                        Ok((show("disks", NAME, "state")? == "connecting").then_some(()))
                    })?;
                    add_link(ctx)?;
                }
                Ok(())
            };
            let went = go_and_come();
            if went.is_err() {
                // Otherwise they wait for a disk that waits for a device.
                let _ = add_link(ctx);
            }
            stop.store(true, Ordering::Relaxed);
            for one in all {
                one.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            }
            went
        })
    })
}

/// An initiator has at most as many connections as the limit allows. The attribute that lists the
/// connections marks where the page ends.
fn numbered(ctx: &mut Ctx) -> Result<()> {
    const DISKS: usize = 4;
    let loaded = Loaded::new(ctx)?;
    let client = "c".repeat(60);
    if ctx.first() {
        export(ctx, "1M", &[])?;
    }
    ctx.barrier("exported")?;
    let peer = ctx.env.peer.to_string();
    let one = |n: usize| {
        let disk = format!("{NAME}-{n}");
        let args = ["connect", &peer, NAME, "-p", PORT, "--disk", &disk];
        kfi(&[&args[..], &["--client", &client, "-i", "16"]].concat())
    };
    if !ctx.first() {
        for n in 0..DISKS {
            one(n).with_context(|| format!("disk {n}"))?;
        }
        let refused = one(DISKS).err().context("one more is admitted")?;
        ensure!(
            format!("{refused:#}").contains("os error 122"),
            "{refused:#}"
        );
        // Another initiator has a limit of its own.
        connect(ctx, NAME, &["-i", "1"])?;
        disconnect(NAME)?;
    }
    ctx.barrier("full")?;
    if ctx.first() {
        let clients = show("subsystems", NAME, "clients")?;
        let lines: Vec<_> = clients.lines().collect();
        ensure!(
            lines.last() == Some(&"...") && clients.len() < 4096,
            "{clients}"
        );
        let whole = |line: &&str| line.starts_with(&client) && line.ends_with("keys 1");
        ensure!(
            lines.len() > 16 && lines[..lines.len() - 1].iter().all(whole),
            "{clients}"
        );
    }
    ctx.barrier("seen")?;
    if !ctx.first() {
        disconnect(&format!("{NAME}-0"))?;
        until("there is room again", Duration::from_secs(10), || {
            Ok(one(DISKS).ok())
        })?;
        for n in 1..=DISKS {
            disconnect(&format!("{NAME}-{n}"))?;
        }
    }
    ctx.barrier("done")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

/// Reads a number of `/proc/meminfo` or `/proc/vmstat`.
fn number(file: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file)?;
    let line = text.lines().find(|line| line.starts_with(name));
    let words = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(words.context("no such number")?.parse()?)
}

fn beyond_memory(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let killed = || number("/proc/vmstat", "oom_kill");
        let before = killed()?;
        let total = number("/proc/meminfo", "MemTotal:")?;
        let there = number("/proc/meminfo", "MemAvailable:")?;
        for kib in [2 * total, total, there] {
            let size = format!("{}M", kib >> 10);
            let refused = export(ctx, &size, &[]).err().context("exported")?;
            ensure!(
                format!("{refused:#}").contains("os error 12)"),
                "{size}: {refused:#}"
            );
        }
        ensure!(killed()? == before, "others were killed");
        export(ctx, "1M", &[])?;
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}
