// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: what does not answer for longer than a request waits: a device, or the wire. The roles are those
//! of `blk_device`.

use super::blk::make_fs;
use super::blk_device::{export, Backing};
use crate::disk::*;
use crate::harness::guest::{run, until};
use crate::harness::weather::{self, Weather};
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::sys::{self, Map};
use anyhow::{ensure, Context, Result};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blkdev.timeout_while_the_device_hangs", timeout)
        .seconds(20)
        .on(NETNS | SHM),
    Test::pair("blkdev.timeout_for_good_and_the_next_session", for_good)
        .seconds(60)
        .on(NETNS | SHM),
    Test::pair("blkdev.a_device_that_hangs_holds_up_no_other", others)
        .seconds(30)
        .on(NETNS | SHM),
    Test::pair("blk.timeout_on_a_wire_that_is_late", late_wire)
        .seconds(30)
        .on(NETNS),
];

/// Milliseconds that a request waits here, and those that it waits if nobody says how many.
const SOON: u32 = 1000;
const USUAL: u32 = 30_000;
/// How long things may take that have to come.
const LIMIT: Duration = Duration::from_secs(60);
/// Long enough for what should not come.
const MOMENT: Duration = Duration::from_secs(1);

/// Bytes of a request that has a key, and of one that goes with its message.
const LONG: usize = 64 << 10;
const SHORT: usize = 4 << 10;
/// With one connection.
const ONE: &[&str] = &["-i", "1"];
/// Where each of the requests has its bytes.
const LONG_WRITE: usize = 0;
const SHORT_WRITE: usize = MIB;
const LONG_READ: usize = 2 * MIB;

/// A device that can be made not to answer: a file on a file system, which is frozen then. What comes
/// after a write waits behind it.
struct Hanging {
    under: Backing,
    mounted: Mounted,
    over: Backing,
}

/// While it lives, the device does not answer.
struct Frozen(File);

impl Hanging {
    fn new() -> Result<Self> {
        let under = Backing::null(&[("size", "24")])?;
        make_fs(under.path())?;
        let mounted = Mounted::new(under.path(), "ext4")?;
        let over = Backing::file_at(mounted.0.join("disk"), 8 << 20)?;
        Ok(Self {
            under,
            mounted,
            over,
        })
    }

    fn freeze(&self) -> Result<Frozen> {
        const FREEZE: u32 = 0xc004_5877;
        let at = File::open(&self.mounted.0)?;
        sys::ioctl(at.as_fd(), FREEZE, 0)?;
        Ok(Frozen(at))
    }

    /// Waits until it has something to do that it does not do.
    fn is_stuck(&self) -> Result<()> {
        let name = self.over.path().file_name().context("no name")?;
        let path = Path::new("/sys/block").join(name).join("inflight");
        until("the device has something to do", LIMIT, || {
            let text = fs::read_to_string(&path)?;
            let any = text.split_whitespace().any(|count| count != "0");
            Ok(any.then_some(()))
        })
    }

    fn end(self) -> Result<()> {
        self.over.end()?;
        self.mounted.unmount()?;
        self.under.end()
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        const THAW: u32 = 0xc004_5878;
        let _ = sys::ioctl(self.0.as_fd(), THAW, 0);
    }
}

/// How long requests of a disk wait that begin from now on.
fn set_timeout(device: &Path, ms: u32) -> Result<()> {
    let name = device.file_name().context("no name")?;
    let path = Path::new("/sys/block").join(name).join("queue/io_timeout");
    fs::write(&path, ms.to_string()).with_context(|| path.display().to_string())
}

/// The module, and on node 1 a device that is exported.
fn begin_hanging(ctx: &mut Ctx) -> Result<(Loaded, Option<Hanging>)> {
    let loaded = Loaded::new(ctx)?;
    let mut hanging = None;
    if ctx.first() {
        let made = Hanging::new()?;
        export(ctx, made.over.path(), &[])?;
        hanging = Some(made);
    }
    ctx.barrier("exported")?;
    Ok((loaded, hanging))
}

fn end_hanging(ctx: &mut Ctx, loaded: Loaded, hanging: Option<Hanging>) -> Result<()> {
    ctx.barrier("disconnected")?;
    if let Some(hanging) = hanging {
        kfi(&["unexport", NAME])?;
        hanging.end()?;
    }
    loaded.end(ctx)
}

/// Keys that there are: both nodes are one kernel here.
fn keys() -> Result<i64> {
    let _ = run("mount", &["-t", "debugfs", "none", "/sys/kernel/debug"]);
    let count = |what: &str| -> Result<i64> {
        let path = format!("/sys/kernel/debug/kfabric/keys/{what}");
        let text = fs::read_to_string(&path).context(path)?;
        Ok(text.trim().parse()?)
    };
    Ok(count("assigned")? - count("revoked")?)
}

fn wait_keys(want: i64) -> Result<()> {
    until(&format!("there are {want} keys"), LIMIT, || {
        Ok((keys()? == want).then_some(()))
    })
}

fn write(device: &Path, at: usize, len: usize, round: u64) -> Result<()> {
    Ok(write_filled(
        &Disk::open(device)?,
        &Map::anon(len)?,
        at,
        len,
        round,
    )?)
}

fn read(device: &Path, at: usize, len: usize, round: u64) -> Result<()> {
    let map = Map::anon(len)?;
    Disk::open_as(device, false)?.read(at, &map, len)?;
    let mut got = vec![0; len];
    map.read(0, &mut got);
    is_filled(&got, at, round)
}

/// The device hangs for longer than requests wait. Their connection ends, and their keys with it; when it
/// answers again they are done, and what comes afterwards lands on what came before.
fn timeout(ctx: &mut Ctx) -> Result<()> {
    let (loaded, hanging) = begin_hanging(ctx)?;
    if let Some(hanging) = &hanging {
        ctx.barrier("ready")?;
        let frozen = hanging.freeze()?;
        ctx.barrier("hangs")?;
        hanging.is_stuck()?;
        ctx.barrier("stuck")?;
        ctx.barrier("lost")?;
        let clients = show("subsystems", NAME, "clients")?;
        ensure!(clients.contains("epoch 1 "), "the first is over: {clients}");
        drop(frozen);
        ctx.barrier("answers")?;
        ctx.barrier("written")?;
        let clients = show("subsystems", NAME, "clients")?;
        ensure!(!clients.contains("epoch 1 "), "{clients}");
        thread::sleep(MOMENT);
        let all = hanging.over.contents()?;
        for (at, len, round) in [
            (LONG_WRITE, LONG, 3),
            (SHORT_WRITE, SHORT, 3),
            (LONG_READ, LONG, 1),
        ] {
            is_filled(&all[at..at + len], at, round)?;
        }
    } else {
        let options = [
            "-i",
            "1",
            "--reconnect-delay",
            "1",
            "--ctrl-loss-tmo",
            "600",
        ];
        let device = &connect(ctx, NAME, &options)?;
        for (at, len) in [(LONG_WRITE, LONG), (SHORT_WRITE, SHORT), (LONG_READ, LONG)] {
            write(device, at, len, 1)?;
        }
        let idle = keys()?;
        set_timeout(device, SOON)?;
        ctx.barrier("ready")?;
        ctx.barrier("hangs")?;
        thread::scope(|scope| -> Result<()> {
            let mut all = vec![
                scope.spawn(|| write(device, LONG_WRITE, LONG, 2)),
                scope.spawn(|| write(device, SHORT_WRITE, SHORT, 2)),
            ];
            ctx.barrier("stuck")?;
            all.push(scope.spawn(|| read(device, LONG_READ, LONG, 1)));
            wait_state(NAME, "connecting", LIMIT)?;
            set_timeout(device, USUAL)?;
            wait_keys(idle)?;
            ensure!(!all.iter().any(|one| one.is_finished()), "who answered?");
            ctx.barrier("lost")?;
            ctx.barrier("answers")?;
            for one in all {
                one.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            }
            Ok(())
        })?;
        wait_state(NAME, "live", LIMIT)?;
        wait_keys(idle)?;
        read(device, LONG_WRITE, LONG, 2)?;
        read(device, SHORT_WRITE, SHORT, 2)?;
        write(device, LONG_WRITE, LONG, 3)?;
        write(device, SHORT_WRITE, SHORT, 3)?;
        ctx.barrier("written")?;
        disconnect(NAME)?;
    }
    end_hanging(ctx, loaded, hanging)
}

/// It hangs for longer than the disk waits: requests fail, and the disk can be removed. The client's next
/// session is not let in before the device has done what the last one has asked it for.
fn for_good(ctx: &mut Ctx) -> Result<()> {
    let (loaded, hanging) = begin_hanging(ctx)?;
    if let Some(hanging) = &hanging {
        ctx.barrier("ready")?;
        let frozen = hanging.freeze()?;
        ctx.barrier("hangs")?;
        hanging.is_stuck()?;
        ctx.barrier("asked again")?;
        drop(frozen);
        ctx.barrier("answers")?;
        ctx.barrier("written")?;
        thread::sleep(MOMENT);
        let all = hanging.over.contents()?;
        is_filled(&all[LONG_WRITE..LONG_WRITE + LONG], LONG_WRITE, 3)?;
    } else {
        let options = ["-i", "1", "--reconnect-delay", "1", "--ctrl-loss-tmo", "3"];
        let device = connect(ctx, NAME, &options)?;
        write(&device, LONG_WRITE, LONG, 1)?;
        set_timeout(&device, SOON)?;
        ctx.barrier("ready")?;
        ctx.barrier("hangs")?;
        let wrote = write(&device, LONG_WRITE, LONG, 2);
        ensure!(wrote.is_err(), "who answered?");
        let state = show("disks", NAME, "state")?;
        ensure!(state == "dead", "the disk is {state}");
        disconnect(NAME)?;
        ensure!(!device.exists(), "{} is still there", device.display());
        let far = Far::of(ctx);
        let device = thread::scope(|scope| -> Result<PathBuf> {
            let next = scope.spawn(|| far.connect(NAME, NAME, ONE));
            thread::sleep(MOMENT);
            ensure!(!next.is_finished(), "it is let in beside what is under way");
            ctx.barrier("asked again")?;
            ctx.barrier("answers")?;
            next.join().map_err(|_| anyhow::anyhow!("panicked"))?
        })?;
        write(&device, LONG_WRITE, LONG, 3)?;
        read(&device, LONG_WRITE, LONG, 3)?;
        ctx.barrier("written")?;
        disconnect(NAME)?;
    }
    end_hanging(ctx, loaded, hanging)
}

/// Another export at the same port, which does not hang.
const SECOND: &str = "blksecond";
/// Clients: one that has nothing under way, one that comes later, one of the other export.
const IDLE: &str = "blkidle";
const LATE: &str = "blklate";
const OTHER: &str = "blkother";

/// While a client is fenced whose requests hang, others are let in and fenced, of that export and of another.
fn others(ctx: &mut Ctx) -> Result<()> {
    let (loaded, hanging) = begin_hanging(ctx)?;
    if let Some(hanging) = &hanging {
        let addr = ctx.env.addr.to_string();
        let second = ["export", SECOND, "--size", "1M", "-l", &addr, "-p", PORT];
        kfi(&[&second[..], &["--provider", ctx.provider()]].concat())?;
        ctx.barrier("ready")?;
        let frozen = hanging.freeze()?;
        ctx.barrier("hangs")?;
        hanging.is_stuck()?;
        thread::scope(|scope| -> Result<()> {
            let fencing = scope.spawn(|| kfi(&["fence", NAME, NAME]));
            until("it is being fenced", LIMIT, || {
                Ok((show("subsystems", NAME, "fence")? == NAME).then_some(()))
            })?;
            kfi(&["fence", NAME, IDLE])?;
            kfi(&["admit", NAME, IDLE])?;
            let list = kfi(&["list"])?;
            ensure!(list.contains(&format!("fenced {NAME}")), "{list}");
            ctx.barrier("fenced")?;
            ctx.barrier("the other export works")?;
            kfi(&["fence", SECOND, OTHER])?;
            ctx.barrier("fenced there")?;
            ctx.barrier("seen")?;
            until("another is let in", LIMIT, || {
                let clients = show("subsystems", NAME, "clients")?;
                Ok(clients.contains(&format!("{LATE} queue")).then_some(()))
            })?;
            ensure!(!fencing.is_finished(), "what hangs was not waited for");
            drop(frozen);
            let fenced = fencing.join().map_err(|_| anyhow::anyhow!("panicked"))?;
            fenced.map(drop)
        })?;
        ctx.barrier("answers")?;
        ctx.barrier("gone")?;
        kfi(&["unexport", SECOND])?;
    } else {
        others_clients(ctx)?;
    }
    end_hanging(ctx, loaded, hanging)
}

fn others_clients(ctx: &mut Ctx) -> Result<()> {
    let far = Far::of(ctx);
    let device = far.connect(NAME, NAME, ONE)?;
    let idle = far.connect(NAME, IDLE, ONE)?;
    write(&idle, SHORT_WRITE, SHORT, 1)?;
    ctx.barrier("ready")?;
    ctx.barrier("hangs")?;
    thread::scope(|scope| -> Result<()> {
        let hangs = scope.spawn(|| write(&device, LONG_WRITE, LONG, 1));
        ctx.barrier("fenced")?;
        let other = far.connect(SECOND, OTHER, ONE)?;
        write(&other, 0, LONG, 1)?;
        read(&other, 0, LONG, 1)?;
        ctx.barrier("the other export works")?;
        ctx.barrier("fenced there")?;
        ensure!(write(&other, 0, SHORT, 2).is_err(), "{OTHER} is not fenced");
        disconnect(OTHER)?;
        ctx.barrier("seen")?;
        // It is let in, and then waits for what it reads of the device.
        let late = scope.spawn(|| far.connect(NAME, LATE, ONE));
        ctx.barrier("answers")?;
        let late = late.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        write(&late, SHORT_WRITE, SHORT, 1)?;
        read(&late, SHORT_WRITE, SHORT, 1)?;
        disconnect(LATE)?;
        // The fence waited for it, so it may have been done.
        let _ = hangs.join().map_err(|_| anyhow::anyhow!("panicked"))?;
        Ok(())
    })?;
    for disk in [NAME, IDLE] {
        wait_state(disk, "dead", LIMIT)?;
        disconnect(disk)?;
    }
    ctx.barrier("gone")
}

/// What a disk sends is late by more than its requests wait: their connection ends, they are done by the
/// next one, and what arrives of the first ones then lands on nothing.
fn late_wire(ctx: &mut Ctx) -> Result<()> {
    const WRITERS: usize = 4;
    weather::prepare(&ctx.env)?;
    let options = [
        "-i",
        "2",
        "--reconnect-delay",
        "1",
        "--ctrl-loss-tmo",
        "600",
    ];
    with_disk(ctx, "4M", &options, |ctx, path| {
        let mut last = Vec::new();
        if ctx.first() {
            // Says nothing meanwhile: TCP waits longer and longer.
            let () = ctx.ctl.recv()?;
            until("the first connections are over", LIMIT, || {
                let clients = show("subsystems", NAME, "clients")?;
                Ok((!clients.contains("epoch 1 ")).then_some(()))
            })?;
        } else {
            let ends = Load::run(path, WRITERS, |load| {
                load.gets_on(LIMIT)?;
                set_timeout(path, SOON / 2)?;
                // An operation fails by itself later than that.
                let late = Weather::new(&ctx.env, "delay 3000ms")?;
                wait_state(NAME, "connecting", LIMIT)?;
                set_timeout(path, USUAL)?;
                drop(late);
                wait_state(NAME, "live", LIMIT)?;
                load.gets_on(LIMIT)
            })?;
            last = rounds(ends)?;
            ctx.ctl.send(&())?;
        }
        ctx.barrier("on")?;
        Of::Memory.compare(ctx, &last)
    })
}
