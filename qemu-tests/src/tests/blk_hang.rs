// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: a device or a wire that does not answer for longer than a request waits. The roles are
//! those of `blk_device`.

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
    Test::pair(
        "blkdev.timeout_on_hung_device_completes_requests_once_it_answers",
        timeout,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "blkdev.timeout_of_disk_on_hung_device_delays_next_session",
        for_good,
    )
    .seconds(60)
    .on(NETNS | SHM),
    Test::pair(
        "blkdev.fence_waiting_for_hung_device_delays_no_other_initiator",
        others,
    )
    .seconds(30)
    .on(NETNS | SHM),
    Test::pair(
        "blk.timeout_on_late_wire_completes_requests_once",
        late_wire,
    )
    .seconds(30)
    .on(NETNS),
];

/// Request timeout of these tests, and the default one, in milliseconds.
const SOON: u32 = 1000;
const USUAL: u32 = 30_000;
/// Time within which an expected event must come.
const LIMIT: Duration = Duration::from_secs(60);
/// Time for which an unexpected event must not come.
const MOMENT: Duration = Duration::from_secs(1);

/// Bytes of a request with a key, and of one whose data go with its message.
const LONG: usize = 64 << 10;
const SHORT: usize = 4 << 10;
/// Options for a single connection.
const ONE: &[&str] = &["-i", "1"];
/// Offsets of the requests' bytes.
const LONG_WRITE: usize = 0;
const SHORT_WRITE: usize = MIB;
const LONG_READ: usize = 2 * MIB;

/// A device that can be made not to answer: a file on a file system that is frozen then. Requests
/// behind a write wait for it.
struct Hanging {
    under: Backing,
    mounted: Mounted,
    over: Backing,
}

/// While this value lives, the device does not answer.
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

    /// Waits until the device has a request that it does not complete.
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

/// Sets the timeout of a disk's future requests.
fn set_timeout(device: &Path, ms: u32) -> Result<()> {
    let name = device.file_name().context("no name")?;
    let path = Path::new("/sys/block").join(name).join("queue/io_timeout");
    fs::write(&path, ms.to_string()).with_context(|| path.display().to_string())
}

/// Loads the module, and on node 1 exports a device.
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

/// Counts the keys; both nodes are one kernel here.
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

/// Hangs the device for longer than requests wait. Their connection ends and their keys are
/// revoked. When the device answers again, they complete, and later writes land after the earlier
/// ones.
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
        let none = keys()?;
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
            wait_keys(none)?;
            ensure!(
                !all.iter().any(|one| one.is_finished()),
                "a request completed on a hung device"
            );
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

/// Hangs the device for longer than the disk waits: requests fail, and the disk can be removed. The
/// initiator's next session is not admitted before the device has completed the last session's
/// requests.
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
        ensure!(wrote.is_err(), "a write succeeded on a hung device");
        let state = show("disks", NAME, "state")?;
        ensure!(state == "dead", "the disk is {state}");
        disconnect(NAME)?;
        ensure!(!device.exists(), "{} is still there", device.display());
        let far = Far::of(ctx);
        let device = thread::scope(|scope| -> Result<PathBuf> {
            let next = scope.spawn(|| far.connect(NAME, NAME, ONE));
            thread::sleep(MOMENT);
            ensure!(
                !next.is_finished(),
                "it is admitted beside outstanding requests"
            );
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

/// Another export at the same port, whose device does not hang.
const SECOND: &str = "blksecond";
/// Initiators: an idle one, one that connects later, and one of the other export.
const IDLE: &str = "blkidle";
const LATE: &str = "blklate";
const OTHER: &str = "blkother";

/// While an initiator with hanging requests is fenced, others are admitted and fenced, on that
/// export and on another.
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
            until("another is admitted", LIMIT, || {
                let clients = show("subsystems", NAME, "clients")?;
                Ok(clients.contains(&format!("{LATE} queue")).then_some(()))
            })?;
            ensure!(
                !fencing.is_finished(),
                "the fence did not wait for the hung request"
            );
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
        // The late initiator is admitted, and then waits for its read of the device.
        let late = scope.spawn(|| far.connect(NAME, LATE, ONE));
        ctx.barrier("answers")?;
        let late = late.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        write(&late, SHORT_WRITE, SHORT, 1)?;
        read(&late, SHORT_WRITE, SHORT, 1)?;
        disconnect(LATE)?;
        // The fence waited for the request, so it may have succeeded.
        let _ = hangs.join().map_err(|_| anyhow::anyhow!("panicked"))?;
        Ok(())
    })?;
    for disk in [NAME, IDLE] {
        wait_state(disk, "dead", LIMIT)?;
        disconnect(disk)?;
    }
    ctx.barrier("gone")
}

/// Delays the wire beyond the request timeout: the connection ends, the next one completes the
/// requests, and late packets of the first one land nowhere.
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
            // Sends nothing on the control channel meanwhile, because TCP would back off.
            let () = ctx.ctl.recv()?;
            until("the first connections are over", LIMIT, || {
                let clients = show("subsystems", NAME, "clients")?;
                Ok((!clients.contains("epoch 1 ")).then_some(()))
            })?;
        } else {
            let ends = Load::run(path, WRITERS, |load| {
                load.gets_on(LIMIT)?;
                set_timeout(path, SOON / 2)?;
                // An operation times out by itself later than that.
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
