// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: exports of persistent memory. Node 1 has the NVDIMM, node 2 has the disk.
//!
//! Emulated memory keeps every store, so these tests show the bytes, and that flushes become
//! commits; `cargo xtask pmcut` shows that committed bytes are durable.

use super::blk::make_fs;
use super::blk_events::Log;
use super::blk_liar::{hello, stranger, written};
use super::blk_paths::{connect_second, end_second, offer_second};
use super::pmem::{set, Device};
use crate::disk::{
    connect, disconnect, disconnect_used, fill, is_filled, kfi, offer, show, store, wait_state,
    write_filled, Backing, Disk, Loaded, Mounted, MIB, NAME, PORT,
};
use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, NETNS, SHM, TWO, WRONG_DATA};
use crate::pair::WAIT;
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use kfabric_pure::blk::{Hello, Question, Welcome};
use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blkpmem.flush_and_fua_on_disk_are_commits", commits)
        .seconds(30)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.fsync_of_file_system_reaches_device", file_system)
        .seconds(30)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.flush_after_lost_connection_commits", lost)
        .seconds(60)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.disconnect_commits_and_next_disk_commits_all", rest)
        .seconds(30)
        .on(NETNS | TWO | SHM),
    Test::pair(
        "blkpmem.flush_after_small_writes_to_all_chunks_commits_each",
        small,
    )
    .seconds(30)
    .on(NETNS | TWO | SHM),
    Test::pair(
        "blkpmem.removal_without_connection_names_lost_writes",
        unflushed,
    )
    .seconds(60)
    .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.second_disk_is_refused", second)
        .seconds(30)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.disk_fails_after_another_disk_was_admitted", after)
        .seconds(60)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.write_through_many_queues_reads_back", queues)
        .seconds(40)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.export_of_unsuitable_device_is_refused", refusals)
        .seconds(30)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.initiator_without_commits_is_refused", earlier)
        .seconds(30)
        .on(NETNS),
    Test::pair("blkpmem.unexport_during_writes_frees_device", unexported)
        .seconds(60)
        .on(NETNS | TWO | SHM),
    Test::pair("blkpmem.device_unbound_during_writes_ends_export", unbound)
        .seconds(60)
        .on(NETNS | TWO | SHM),
];

/// Another disk than that of the test.
const OTHER: &str = "other";

/// The driver of `/dev/pmemN`.
const DRIVER: &str = "/sys/bus/nd/drivers/nd_pmem";

/// Writes an attribute in sysfs, which may refuse.
fn try_set(at: &Path, value: &str) {
    if let Err(e) = fs::write(at, value) {
        eprintln!("{value:?} to {}: {e}", at.display());
    }
}

/// The NVDIMM as a block device with a DAX device (`fsdax`).
pub(super) struct Nvdimm {
    region: PathBuf,
    number: u32,
    /// Name of the device in sysfs whose driver makes the block device.
    pfn: String,
}

impl Nvdimm {
    /// Makes the block device. An earlier use of the NVDIMM is ended.
    pub(super) fn make() -> Result<Self> {
        let (region, number) = Device::Nvdimm.region()?;
        reset(&region, number)?;
        let seed = fs::read_to_string(region.join("pfn_seed"))?;
        let this = Self {
            pfn: seed.trim().to_owned(),
            region,
            number,
        };
        let pfn = this.region.join(&this.pfn);
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        set(&pfn.join("uuid"), uuid.trim())?;
        set(&pfn.join("mode"), "ram")?;
        set(&pfn.join("namespace"), &format!("namespace{number}.0"))?;
        this.bind()?;
        Ok(this)
    }

    /// Unbinds the driver. Waits until the device is closed.
    pub(super) fn unbind(&self) -> Result<()> {
        set(&Path::new(DRIVER).join("unbind"), &self.pfn)
    }

    /// Binds the driver.
    pub(super) fn bind(&self) -> Result<()> {
        set(&Path::new(DRIVER).join("bind"), &self.pfn)?;
        let path = self.path();
        until("the block device", WAIT, || Ok(path.exists().then_some(())))
    }

    /// Returns the physical address of the block device's first byte.
    pub(super) fn address(&self) -> Result<u64> {
        let at = self.region.join(&self.pfn).join("resource");
        let text = fs::read_to_string(&at).with_context(|| at.display().to_string())?;
        let digits = text.trim().trim_start_matches("0x");
        u64::from_str_radix(digits, 16).with_context(|| text.clone())
    }

    /// Returns the number in the name of the block device.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the path of the block device.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/pmem{}", self.number))
    }

    /// Returns the device's contents.
    pub(super) fn contents(&self) -> Result<Vec<u8>> {
        Disk::open_as(&self.path(), false)?.contents()
    }

    /// Removes the block device, so that other tests find an empty NVDIMM.
    pub(super) fn end(self) -> Result<()> {
        reset(&self.region, self.number)
    }
}

/// Ends all uses of a region's namespace, and erases the description of its use.
fn reset(region: &Path, number: u32) -> Result<()> {
    let namespace = format!("namespace{number}.0");
    for entry in fs::read_dir(region)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !(name.starts_with("pfn") || name.starts_with("dax")) || !entry.path().is_dir() {
            continue;
        }
        if entry.path().join("driver").exists() {
            set(&entry.path().join("driver/unbind"), &name)?;
        }
        let held = entry.path().join("namespace");
        if fs::read_to_string(&held).is_ok_and(|of| !of.trim().is_empty()) {
            try_set(&held, "\n");
        }
    }
    let at = region.join(&namespace);
    if at.join("driver").exists() {
        set(&at.join("driver/unbind"), &namespace)?;
    }
    set(&at.join("force_raw"), "1")?;
    set(&Path::new(DRIVER).join("bind"), &namespace)?;
    let device = PathBuf::from(format!("/dev/pmem{number}"));
    until("the raw device", WAIT, || Ok(device.exists().then_some(())))?;
    {
        let disk = Disk::open(&device)?;
        disk.write(0, &Map::anon(MIB)?, MIB)?;
    }
    set(&at.join("driver/unbind"), &namespace)?;
    set(&at.join("force_raw"), "0")
}

/// Exports persistent memory on this node.
pub(super) fn export(ctx: &Ctx, path: &Path) -> Result<()> {
    let addr = ctx.env.addr.to_string();
    let path = path.display().to_string();
    let args = [
        "export", NAME, "--pmem", &path, "--listen", &addr, "--port", PORT,
    ];
    kfi(&[&args[..], &["--provider", ctx.provider()]].concat()).map(drop)
}

/// Exports the NVDIMM of node 1, connects a disk on node 2, runs `target` on node 1 and `client` on
/// node 2, and removes everything. Then `after` gets the device.
pub(super) fn with(
    ctx: &mut Ctx,
    options: &[&str],
    target: impl FnOnce(&mut Ctx, &Nvdimm) -> Result<()>,
    client: impl FnOnce(&mut Ctx, &Path) -> Result<()>,
    after: impl FnOnce(&Nvdimm) -> Result<()>,
) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let nvdimm = Nvdimm::make()?;
        export(ctx, &nvdimm.path())?;
        ctx.barrier("exported")?;
        ctx.barrier("connected")?;
        target(ctx, &nvdimm)?;
        ctx.barrier("disconnected")?;
        kfi(&["unexport", NAME])?;
        after(&nvdimm)?;
        nvdimm.end()?;
    } else {
        ctx.barrier("exported")?;
        let device = connect(ctx, NAME, options)?;
        ctx.barrier("connected")?;
        client(ctx, &device)?;
        disconnect(NAME)?;
        ctx.barrier("disconnected")?;
    }
    loaded.end(ctx)
}

/// Returns the number of commits of the disk.
pub(super) fn count() -> Result<u64> {
    let text = show("disks", NAME, "statistics")?;
    let total = text.lines().next().context("no statistics")?;
    let mut words = total.split_whitespace().skip_while(|of| *of != "commits");
    let number = words.nth(1).with_context(|| total.to_owned())?;
    Ok(number.parse()?)
}

/// Returns the number of chunks of a disk.
pub(super) fn chunks(disk: &Disk) -> u64 {
    disk.size.div_ceil(MIB) as u64
}

/// A disk whose writes are durable when they complete.
pub(super) fn through(path: &Path, size: usize) -> Result<Disk> {
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
        .open(path)?;
    Ok(Disk { file, size })
}

fn commits(ctx: &mut Ctx) -> Result<()> {
    let client = |_: &mut Ctx, path: &Path| {
        let name = path.file_name().context("no name")?.to_string_lossy();
        for (what, want) in [("write_cache", "write back"), ("fua", "1")] {
            let got = fs::read_to_string(format!("/sys/block/{name}/queue/{what}"))?;
            ensure!(got.trim() == want, "{what}: {got}");
        }
        // The 16 commits of a queue take the places of four requests.
        let tags = fs::read_to_string(format!("/sys/block/{name}/mq/0/nr_tags"))?;
        ensure!(tags.trim() == "124", "{tags} requests per queue");
        let disk = Disk::open(path)?;
        let map = Map::anon(MIB)?;
        ensure!(count()? == 0, "a commit without a flush");
        disk.file.sync_all()?;
        let before = count()?;
        ensure!(before == chunks(&disk), "the first flush: {before} commits");
        for at in [0, 3 * MIB + 4096] {
            write_filled(&disk, &map, at, MIB, 4)?;
        }
        ensure!(count()? == before, "a commit without a flush");
        disk.file.sync_all()?;
        // Three chunks have been written to, one of them twice in part.
        ensure!(count()? == before + 3, "{} commits", count()? - before);
        disk.file.sync_all()?;
        ensure!(count()? == before + 3, "a commit without a write");
        write_filled(&through(path, disk.size)?, &map, 8 * MIB, 8192, 4)?;
        ensure!(count()? == before + 4, "{} commits", count()? - before);
        let got = &disk.contents()?[..MIB];
        is_filled(got, 0, 4)
    };
    with(
        ctx,
        &[],
        |_, _| Ok(()),
        client,
        |nvdimm| {
            let all = nvdimm.contents()?;
            is_filled(&all[..MIB], 0, 4)?;
            let at = 3 * MIB + 4096;
            is_filled(&all[at..at + MIB], at, 4)?;
            is_filled(&all[8 * MIB..8 * MIB + 8192], 8 * MIB, 4)
        },
    )
}

fn file_system(ctx: &mut Ctx) -> Result<()> {
    let bytes = || {
        let mut bytes = vec![0; 700_000];
        fill(&mut bytes, 1, 7);
        bytes
    };
    let client = |_: &mut Ctx, path: &Path| {
        make_fs(path)?;
        let mounted = Mounted::new(path, "ext4")?;
        let at = mounted.0.join("file");
        fs::write(&at, bytes())?;
        let before = count()?;
        File::open(&at)?.sync_all()?;
        ensure!(count()? > before, "fsync has committed nothing");
        mounted.unmount()
    };
    with(
        ctx,
        &[],
        |_, _| Ok(()),
        client,
        |nvdimm| {
            let mounted = Mounted::new(&nvdimm.path(), "ext4")?;
            let got = fs::read(mounted.0.join("file"))?;
            ensure!(got == bytes(), "{WRONG_DATA}the file differs");
            mounted.unmount()
        },
    )
}

/// The next connection commits the writes of the lost one.
fn lost(ctx: &mut Ctx) -> Result<()> {
    let target = |ctx: &mut Ctx, _: &Nvdimm| {
        ctx.barrier("written")?;
        offer(ctx, false)?;
        ctx.barrier("gone")?;
        ctx.barrier("noticed")?;
        offer(ctx, true)?;
        ctx.barrier("back")
    };
    let client = |ctx: &mut Ctx, path: &Path| {
        let disk = Disk::open(path)?;
        disk.file.sync_all()?;
        let before = count()?;
        write_filled(&disk, &Map::anon(MIB)?, 0, MIB, 6)?;
        ctx.barrier("written")?;
        ctx.barrier("gone")?;
        wait_state(NAME, "connecting", Duration::from_secs(20))?;
        ctx.barrier("noticed")?;
        ctx.barrier("back")?;
        wait_state(NAME, "live", Duration::from_secs(30))?;
        ensure!(count()? == before, "a commit without a flush");
        disk.file.sync_all()?;
        ensure!(count()? == before + 1, "{} commits", count()? - before);
        Ok(())
    };
    let options = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "120"];
    with(ctx, &options, target, client, |nvdimm| {
        is_filled(&nvdimm.contents()?[..MIB], 0, 6)
    })
}

/// The end of a disk commits its writes. The first flush of a disk commits all that earlier disks
/// have written, also if they did not end in order.
fn rest(ctx: &mut Ctx) -> Result<()> {
    let client = |_: &mut Ctx, path: &Path| {
        let all = {
            let disk = Disk::open(path)?;
            write_filled(&disk, &Map::anon(MIB)?, 0, MIB, 9)?;
            chunks(&disk)
        };
        ensure!(count()? == 0, "a commit without a flush");
        store("disks", NAME, "enable", "0")?;
        ensure!(count()? == all, "the end: {} commits", count()?);
        Disk::open(&enable()?)?.file.sync_all()?;
        ensure!(count()? == 2 * all, "the first flush: {} commits", count()?);
        store("disks", NAME, "enable", "0")?;
        ensure!(count()? == 2 * all, "a commit without a write");
        Ok(())
    };
    with(
        ctx,
        &[],
        |_, _| Ok(()),
        client,
        |nvdimm| is_filled(&nvdimm.contents()?[..MIB], 0, 9),
    )
}

/// Commits of few bytes complete in the post over kshm.
fn small(ctx: &mut Ctx) -> Result<()> {
    let client = |_: &mut Ctx, path: &Path| {
        let disk = Disk::open(path)?;
        let map = Map::anon(MIB)?;
        disk.file.sync_all()?;
        let before = count()?;
        for chunk in 0..disk.size / MIB {
            write_filled(&disk, &map, chunk * MIB + 8192, 4096, 2)?;
        }
        disk.file.sync_all()?;
        let commits = count()? - before;
        ensure!(commits == (disk.size / MIB) as u64, "{commits} commits");
        write_filled(&disk, &map, 0, 4096, 2)?;
        store("disks", NAME, "enable", "0")?;
        ensure!(count()? == before + commits + 1, "the end: {}", count()?);
        store("disks", NAME, "enable", "1")?;
        Ok(())
    };
    with(
        ctx,
        &[],
        |_, _| Ok(()),
        client,
        |nvdimm| {
            let all = nvdimm.contents()?;
            for at in (8192..all.len()).step_by(MIB) {
                is_filled(&all[at..at + 4096], at, 2)?;
            }
            Ok(())
        },
    )
}

/// The log names a disk that is removed without a connection only if its writes were not flushed.
fn unflushed(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: [bool; 2] = [true, false];
    let target = |ctx: &mut Ctx, _: &Nvdimm| {
        for _ in ROUNDS {
            ctx.barrier("written")?;
            offer(ctx, false)?;
            ctx.barrier("gone")?;
            ctx.barrier("removed")?;
            offer(ctx, true)?;
            ctx.barrier("back")?;
        }
        Ok(())
    };
    let client = |ctx: &mut Ctx, path: &Path| {
        let mut path = path.to_owned();
        let about = format!("disk {NAME}: writes that were not flushed");
        for flushed in ROUNDS {
            let log = Log::begin()?;
            {
                let disk = Disk::open(&path)?;
                write_filled(&disk, &Map::anon(MIB)?, 0, MIB, 1)?;
                if flushed {
                    disk.file.sync_all()?;
                }
                ctx.barrier("written")?;
                ctx.barrier("gone")?;
                wait_state(NAME, "connecting", Duration::from_secs(20))?;
            }
            store("disks", NAME, "enable", "0")?;
            match flushed {
                true => ensure!(!log.since()?.contains(&about), "flushed writes are named"),
                false => log.has_once(&[&about])?,
            }
            ctx.barrier("removed")?;
            ctx.barrier("back")?;
            path = enable()?;
        }
        Ok(())
    };
    with(ctx, &[], target, client, |_| Ok(()))
}

/// Enables the disk again. Returns its path.
fn enable() -> Result<PathBuf> {
    store("disks", NAME, "enable", "1")?;
    let path = PathBuf::from(format!("/dev/{}", show("disks", NAME, "device")?.trim()));
    until("the device's file", WAIT, || {
        Ok(path.exists().then_some(()))
    })?;
    Ok(path)
}

/// A disk that has lost its connection does not go on after another disk: its flush fails, because
/// it would not cover all that is written.
fn after(ctx: &mut Ctx) -> Result<()> {
    let target = |ctx: &mut Ctx, _: &Nvdimm| {
        offer_second(ctx)?;
        ctx.barrier("written")?;
        offer(ctx, false)?;
        no_clients()?;
        ctx.barrier("gone")?;
        ctx.barrier("other is gone")?;
        no_clients()?;
        offer(ctx, true)?;
        ctx.barrier("back")?;
        ctx.barrier("over")?;
        end_second()
    };
    let client = |ctx: &mut Ctx, path: &Path| {
        let disk = Disk::open(path)?;
        let map = Map::anon(MIB)?;
        disk.file.sync_all()?;
        write_filled(&disk, &map, 0, MIB, 1)?;
        ctx.barrier("written")?;
        ctx.barrier("gone")?;
        wait_state(NAME, "connecting", Duration::from_secs(20))?;
        let other = connect_second(ctx, OTHER)?;
        write_filled(&Disk::open(&other)?, &map, 0, MIB, 2)?;
        disconnect(OTHER)?;
        ctx.barrier("other is gone")?;
        ctx.barrier("back")?;
        wait_state(NAME, "dead", Duration::from_secs(30))?;
        let flushed = disk.file.sync_all();
        ensure!(
            flushed
                .as_ref()
                .is_err_and(|e| e.raw_os_error() == Some(libc::EIO)),
            "a flush after another disk: {flushed:?}"
        );
        drop(disk);
        disconnect_used(NAME)?;
        connect(ctx, NAME, &[])?;
        ctx.barrier("over")
    };
    let options = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "120"];
    with(ctx, &options, target, client, |nvdimm| {
        is_filled(&nvdimm.contents()?[..MIB], 0, 2)
    })
}

/// Waits on the target until no initiator has a connection.
fn no_clients() -> Result<()> {
    until("no client is connected", WAIT, || {
        Ok(show("subsystems", NAME, "clients")?
            .is_empty()
            .then_some(()))
    })
}

/// A flush covers the writes of one disk, so there is one at a time.
fn second(ctx: &mut Ctx) -> Result<()> {
    // A target may notice the end of a disk a moment after its removal.
    let target = |ctx: &mut Ctx, _: &Nvdimm| {
        for _ in [NAME, OTHER] {
            ctx.barrier("removed")?;
            no_clients()?;
            ctx.barrier("noticed")?;
        }
        Ok(())
    };
    let client = |ctx: &mut Ctx, path: &Path| {
        match connect(ctx, OTHER, &[]) {
            Ok(_) => bail!("a second disk is connected"),
            Err(e) => {
                let busy = format!("(os error {})", libc::EBUSY);
                ensure!(format!("{e:#}").contains(&busy), "{e:#}");
            }
        }
        write_filled(&Disk::open(path)?, &Map::anon(MIB)?, 0, MIB, 3)?;
        disconnect(NAME)?;
        ctx.barrier("removed")?;
        ctx.barrier("noticed")?;
        let path = connect(ctx, OTHER, &[])?;
        is_filled(&Disk::open(&path)?.contents()?[..MIB], 0, 3)?;
        disconnect(OTHER)?;
        ctx.barrier("removed")?;
        ctx.barrier("noticed")?;
        connect(ctx, NAME, &[]).map(drop)
    };
    with(ctx, &[], target, client, |_| Ok(()))
}

/// Several threads write and flush, each its own part.
fn queues(ctx: &mut Ctx) -> Result<()> {
    const THREADS: usize = 4;
    const PART: usize = 8 * MIB;
    let client = |_: &mut Ctx, path: &Path| {
        let write = |part: usize| -> Result<()> {
            let disk = Disk::open(path)?;
            let map = Map::anon(MIB)?;
            for round in 0..3 {
                for at in (0..PART).step_by(MIB / 2) {
                    write_filled(&disk, &map, part * PART + at, MIB / 2, round)?;
                    if at % (2 * MIB) == 0 {
                        disk.file.sync_all()?;
                    }
                }
            }
            disk.file.sync_all()?;
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|part| scope.spawn(move || write(part)))
                .collect();
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("it panicked"))??;
            }
            Ok(())
        })
    };
    with(
        ctx,
        &["-i", "2"],
        |_, _| Ok(()),
        client,
        |nvdimm| is_filled(&nvdimm.contents()?[..THREADS * PART], 0, 2),
    )
}

/// Calls `f` with the path of a device of the device mapper over the device at `lower`.
fn stacked(lower: &Path, f: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    const NAME: &str = "kfi-over-pmem";
    run("modprobe", &["dm-mod"])?;
    let table = format!("0 2048 linear {} 0", lower.display());
    let dm = |args: &[&str]| run("dmsetup", args);
    dm(&["create", "--noudevsync", NAME, "--table", &table])?;
    let result = (|| {
        let name = dm(&["info", "-c", "--noheadings", "-o", "blkdevname", NAME])?;
        let path = Path::new("/dev").join(name.trim());
        until("the device's file", Duration::from_secs(10), || {
            Ok(path.exists().then_some(()))
        })?;
        f(&path)
    })();
    dm(&["remove", "--noudevsync", "--retry", NAME])?;
    result
}

fn refusals(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let fails = |path: &Path, errno: i32| -> Result<()> {
            let e = format!("(os error {errno})");
            match export(ctx, path) {
                Ok(()) => bail!("{} is exported", path.display()),
                Err(got) if format!("{got:#}").contains(&e) => Ok(()),
                Err(got) => bail!("{}: {got:#}, not {errno}", path.display()),
            }
        };
        fails(Path::new("/dev/there-is-none"), libc::ENOENT)?;
        fails(Path::new("/dev/null"), libc::ENOTBLK)?;
        let null = Backing::null(&[])?;
        fails(null.path(), libc::EOPNOTSUPP)?;
        null.end()?;
        // Only the device's driver makes its memory durable.
        let (_, number) = Device::Virtio.region()?;
        let virtio = PathBuf::from(format!("/dev/pmem{number}"));
        if virtio.exists() {
            fails(&virtio, libc::EOPNOTSUPP)?;
        }
        let nvdimm = Nvdimm::make()?;
        {
            let _mine = File::options()
                .read(true)
                .custom_flags(libc::O_EXCL)
                .open(nvdimm.path())?;
            fails(&nvdimm.path(), libc::EBUSY)?;
        }
        stacked(&nvdimm.path(), |path| fails(path, libc::EOPNOTSUPP))?;
        ensure!(kfi(&["list"])?.is_empty());
        export(ctx, &nvdimm.path())?;
        let shown = kfi(&["list"])?;
        ensure!(shown.contains("persistent memory /dev/pmem"), "{shown}");
        ensure!(
            File::options()
                .read(true)
                .custom_flags(libc::O_EXCL)
                .open(nvdimm.path())
                .is_err(),
            "an exported device is free"
        );
        store("subsystems", NAME, "enable", "0")?;
        // A provider may close the device late.
        until("the free device", WAIT, || {
            let mut options = File::options();
            options.read(true).custom_flags(libc::O_EXCL);
            Ok(options.open(nvdimm.path()).ok())
        })?;
        kfi(&["unexport", NAME])?;
        nvdimm.end()?;
    }
    loaded.end(ctx)
}

/// Sends the first message of an initiator. Returns the answer, if there is one.
fn answer_to(ctx: &Ctx, hello: Hello) -> Result<Option<Welcome>> {
    let liar = stranger(ctx, &[])?;
    liar.say(&[&written(&Question::Hello(hello))?])?;
    let read = |bytes: Vec<u8>| Welcome::read(&bytes).map_err(|e| anyhow::anyhow!("{e:?}"));
    liar.next(WAIT)?.map(read).transpose()
}

/// An initiator of an earlier version would regard completed writes as durable.
fn earlier(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let nvdimm = Nvdimm::make()?;
        export(ctx, &nvdimm.path())?;
        ctx.barrier("exported")?;
        ctx.barrier("refused")?;
        ensure!(show("subsystems", NAME, "clients")?.is_empty());
        kfi(&["unexport", NAME])?;
        nvdimm.end()?;
        return loaded.end(ctx);
    }
    ctx.barrier("exported")?;
    let welcome = answer_to(ctx, hello(1)?)?.context("no answer")?;
    ensure!(
        welcome.status == libc::EPROTONOSUPPORT.unsigned_abs(),
        "{welcome:?}"
    );
    ctx.barrier("refused")?;
    loaded.end(ctx)
}

/// Returns a thread that writes and flushes until an error, which it returns. Commits have
/// succeeded.
fn writer(path: &Path) -> Result<std::thread::JoinHandle<std::io::Error>> {
    let disk = Disk::open(path)?;
    let map = Map::anon(MIB)?;
    let before = count()?;
    let writer = std::thread::spawn(move || loop {
        for at in (0..16 * MIB).step_by(MIB) {
            if let Err(e) = disk
                .write(at, &map, MIB)
                .and_then(|()| disk.file.sync_all())
            {
                return e;
            }
        }
    });
    until("the first commits", WAIT, || {
        Ok((count()? > before).then_some(()))
    })?;
    Ok(writer)
}

/// The export is removed while a disk writes: its device is free at once.
fn unexported(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let nvdimm = Nvdimm::make()?;
        export(ctx, &nvdimm.path())?;
        ctx.barrier("exported")?;
        ctx.barrier("writing")?;
        kfi(&["unexport", NAME])?;
        let open = || {
            let mut options = File::options();
            options.read(true).custom_flags(libc::O_EXCL);
            options.open(nvdimm.path())
        };
        until("the free device", WAIT, || Ok(open().ok()))?;
        ctx.barrier("unexported")?;
        ctx.barrier("failed")?;
        nvdimm.end()?;
        return loaded.end(ctx);
    }
    ctx.barrier("exported")?;
    let options = ["--ctrl-loss-tmo", "3", "--reconnect-delay", "1"];
    let path = connect(ctx, NAME, &options)?;
    let writer = writer(&path)?;
    ctx.barrier("writing")?;
    ctx.barrier("unexported")?;
    let e = writer.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
    ensure!(e.raw_os_error() == Some(libc::EIO), "{e}");
    disconnect_used(NAME)?;
    ctx.barrier("failed")?;
    loaded.end(ctx)
}

/// The device's driver is unbound: the export ends, the unbinding returns, and writes fail.
fn unbound(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let nvdimm = Nvdimm::make()?;
        export(ctx, &nvdimm.path())?;
        ctx.barrier("exported")?;
        ctx.barrier("writing")?;
        nvdimm.unbind()?;
        until("the export is disabled", WAIT, || {
            Ok((show("subsystems", NAME, "enable")? == "0").then_some(()))
        })?;
        ensure!(show("subsystems", NAME, "clients")?.is_empty());
        ctx.barrier("unbound")?;
        ctx.barrier("failed")?;
        nvdimm.bind()?;
        kfi(&["unexport", NAME])?;
        nvdimm.end()?;
        return loaded.end(ctx);
    }
    writing_disk_fails(ctx, "unbound")?;
    loaded.end(ctx)
}

/// A disk writes until its export has ended, after which the target comes to the barrier `ended`. The
/// write fails.
pub(super) fn writing_disk_fails(ctx: &mut Ctx, ended: &str) -> Result<()> {
    ctx.barrier("exported")?;
    let options = ["--ctrl-loss-tmo", "3", "--reconnect-delay", "1"];
    let path = connect(ctx, NAME, &options)?;
    let writer = writer(&path)?;
    ctx.barrier("writing")?;
    ctx.barrier(ended)?;
    let e = writer.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
    ensure!(e.raw_os_error() == Some(libc::EIO), "{e}");
    disconnect_used(NAME)?;
    ctx.barrier("failed")
}
