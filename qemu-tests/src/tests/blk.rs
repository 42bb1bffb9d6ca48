// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: remote block devices, by `kfi blk`. Node 1 exports, node 2 has the disk; what node 1 looks
//! at its export by is a disk too, of a client of its own.

use crate::harness::env::Topology;
use crate::harness::guest::{load, module_users, run, unload, until};
use crate::harness::{skip, Ctx, Test, NETNS, TWO};
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.reads_and_writes", reads_and_writes)
        .seconds(20)
        .on(NETNS | TWO),
    Test::pair("blk.many_queues_at_once", many_at_once)
        .seconds(30)
        .on(NETNS),
    Test::pair("blk.limits_and_attributes", limits)
        .seconds(15)
        .on(NETNS),
    Test::pair("blk.read_only", read_only).seconds(15).on(NETNS),
    Test::pair("blk.refusals", refusals).seconds(20).on(NETNS),
    Test::pair("blk.connect_rounds", connect_rounds)
        .seconds(40)
        .on(NETNS),
    Test::pair("blk.file_system", file_system)
        .seconds(30)
        .on(NETNS | TWO),
    Test::pair("blk.removed_while_open", removed_while_open)
        .seconds(20)
        .on(NETNS),
    Test::pair("blk.removed_while_mounted", removed_while_mounted)
        .seconds(30)
        .on(NETNS | TWO),
    Test::pair("blk.target_comes_back", target_comes_back)
        .seconds(60)
        .on(NETNS | TWO),
    Test::pair("blk.target_stays_away", target_stays_away)
        .seconds(40)
        .on(NETNS),
    Test::pair("blk.what_comes_back_is_another", another)
        .seconds(40)
        .on(NETNS | TWO),
    Test::pair("blk.p03_nothing_lands_after_a_fence", fence)
        .seconds(60)
        .on(NETNS | TWO),
];

const ROOT: &str = "/sys/kernel/config/kfblk";
/// The export's name, and the disk's.
pub(super) const NAME: &str = "blktest";
/// The disk that node 1 looks by.
const WATCH: &str = "blkwatch";
pub(super) const PORT: &str = "4421";
pub(super) const MIB: usize = 1 << 20;

/// The module, on this kernel, for one test.
pub(super) struct Loaded(bool);

impl Loaded {
    pub(super) fn new(ctx: &mut Ctx) -> Result<Self> {
        let one_kernel = ctx.env.topology == Topology::Netns;
        let ours = ctx.first() || !one_kernel;
        if ours && module_users("kfblk").is_some() {
            sweep().context("what an earlier test left")?;
        }
        let loaded = if ours { load("kfblk") } else { Ok(()) };
        ctx.barrier("loaded")?;
        if let Err(e) = &loaded {
            if format!("{e:#}").contains("is not in") {
                return skip(format!("{e:#}"));
            }
        }
        loaded?;
        Ok(Self(ours))
    }

    pub(super) fn end(self, ctx: &mut Ctx) -> Result<()> {
        ctx.barrier("unload")?;
        if self.0 {
            unload("kfblk")?;
        }
        ctx.barrier("unloaded")
    }
}

/// Takes away what a test left that failed, and the module.
fn sweep() -> Result<()> {
    let inside = |kind: &str| -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(Path::new(ROOT).join(kind))? {
            found.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(found)
    };
    for disk in inside("disks")? {
        disconnect(&disk)?;
    }
    for export in inside("subsystems")? {
        kfi(&["unexport", &export])?;
    }
    for port in inside("ports")? {
        fs::remove_dir(Path::new(ROOT).join("ports").join(port))?;
    }
    unload("kfblk")
}

pub(super) fn kfi(args: &[&str]) -> Result<String> {
    Ok(run("kfi", &[&["blk"], args].concat())?.trim().to_owned())
}

/// Exports so many bytes on node 1.
pub(super) fn export(ctx: &Ctx, size: &str, more: &[&str]) -> Result<()> {
    let addr = ctx.env.addr.to_string();
    let args = [
        "export", NAME, "--size", size, "--listen", &addr, "--port", PORT,
    ];
    kfi(&[&args[..], &["--provider", ctx.provider()], more].concat()).map(drop)
}

/// Connects from node 2, or from node 1 as who looks.
pub(super) fn connect(ctx: &Ctx, disk: &str, more: &[&str]) -> Result<PathBuf> {
    let addr = if ctx.first() {
        ctx.env.addr.to_string()
    } else {
        ctx.env.peer.to_string()
    };
    let args = [
        "connect", &addr, NAME, "--port", PORT, "--disk", disk, "--client", disk,
    ];
    let said = kfi(&[&args[..], &["--provider", ctx.provider()], more].concat())?;
    let device = PathBuf::from(said);
    until("the device's file", Duration::from_secs(5), || {
        Ok(device.exists().then_some(()))
    })?;
    Ok(device)
}

pub(super) fn disconnect(disk: &str) -> Result<()> {
    kfi(&["disconnect", disk]).map(drop)
}

fn attr(kind: &str, name: &str, attr: &str) -> PathBuf {
    Path::new(ROOT).join(kind).join(name).join(attr)
}

pub(super) fn show(kind: &str, name: &str, what: &str) -> Result<String> {
    let path = attr(kind, name, what);
    Ok(fs::read_to_string(&path)
        .with_context(|| path.display().to_string())?
        .trim()
        .to_owned())
}

fn store(kind: &str, name: &str, what: &str, value: &str) -> std::io::Result<()> {
    fs::write(attr(kind, name, what), value)
}

/// A device that is read and written without a cache.
pub(super) struct Disk {
    file: File,
    size: usize,
}

impl Disk {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, true)
    }

    fn open_as(path: &Path, write: bool) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(write)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .with_context(|| path.display().to_string())?;
        let name = path.file_name().context("no name")?.to_string_lossy();
        let sectors = fs::read_to_string(format!("/sys/block/{name}/size"))?;
        let size = sectors.trim().parse::<usize>()? * 512;
        Ok(Self { file, size })
    }

    pub(super) fn write(&self, at: usize, buf: &Map, len: usize) -> std::io::Result<()> {
        self.io(at, buf, len, true)
    }

    pub(super) fn read(&self, at: usize, buf: &Map, len: usize) -> std::io::Result<()> {
        self.io(at, buf, len, false)
    }

    fn io(&self, at: usize, buf: &Map, len: usize, write: bool) -> std::io::Result<()> {
        assert!(len <= buf.len());
        match buf.transfer(self.file.as_fd(), at as u64, len, write)? {
            n if n == len => Ok(()),
            _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// All of it, block by block of a MiB.
    fn contents(&self) -> Result<Vec<u8>> {
        let buf = Map::anon(MIB)?;
        let mut all = vec![0; self.size];
        for at in (0..self.size).step_by(MIB) {
            let len = MIB.min(self.size - at);
            self.read(at, &buf, len)
                .with_context(|| format!("read at {at}"))?;
            buf.read(0, &mut all[at..at + len]);
        }
        Ok(all)
    }
}

/// The bytes of sector `sector` in round `round`: all are different.
fn fill(buf: &mut [u8], sector: u64, round: u64) {
    for (i, part) in buf.chunks_mut(512).enumerate() {
        let mut x = (sector + i as u64) ^ (round << 40) ^ 0x9e37_79b9_7f4a_7c15;
        for word in part.chunks_mut(8) {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            word.copy_from_slice(&(x ^ (x >> 29)).to_le_bytes()[..word.len()]);
        }
    }
}

pub(super) fn write_filled(
    disk: &Disk,
    map: &Map,
    at: usize,
    len: usize,
    round: u64,
) -> std::io::Result<()> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, (at / 512) as u64, round);
    map.write(0, &bytes);
    disk.write(at, map, len)
}

pub(super) fn is_filled(bytes: &[u8], at: usize, round: u64) -> Result<()> {
    let mut want = vec![0; bytes.len()];
    fill(&mut want, (at / 512) as u64, round);
    if let Some(i) = bytes.iter().zip(&want).position(|(a, b)| a != b) {
        bail!("byte {} differs (round {round})", at + i);
    }
    Ok(())
}

/// The module, an export of `size` on node 1, a disk on node 2; `test` of both with the disk's path
/// (node 1's is empty), and everything taken away.
pub(super) fn with_disk(
    ctx: &mut Ctx,
    size: &str,
    options: &[&str],
    test: impl FnOnce(&mut Ctx, &Path) -> Result<()>,
) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        export(ctx, size, &[])?;
    }
    ctx.barrier("exported")?;
    let mut device = PathBuf::new();
    if !ctx.first() {
        device = connect(ctx, NAME, options)?;
    }
    ctx.barrier("connected")?;
    test(ctx, &device)?;
    ctx.barrier("tested")?;
    if !ctx.first() {
        disconnect(NAME)?;
        ensure!(!device.exists(), "{} is still there", device.display());
    }
    ctx.barrier("disconnected")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

fn reads_and_writes(ctx: &mut Ctx) -> Result<()> {
    with_disk(ctx, "9M", &[], |ctx, path| {
        if ctx.first() {
            ctx.barrier("written")?;
            let watch = connect(ctx, WATCH, &["-i", "1"])?;
            let all = Disk::open_as(&watch, false)?.contents()?;
            let seen = is_filled(&all[..9 * MIB - 512], 0, 1);
            disconnect(WATCH)?;
            return seen;
        }
        let disk = Disk::open(path)?;
        ensure!(disk.size == 9 * MIB, "{} bytes", disk.size);
        ensure!(disk.contents()?.iter().all(|b| *b == 0), "not zeroed");
        let map = Map::anon(4 * MIB)?;
        // Every size, at odd places, over the borders of chunks.
        let sizes = [512, 4096, 8192, 12 * 512, 64 << 10, 128 << 10, MIB, 3 * MIB];
        let (mut at, mut i) = (0, 0);
        while at < disk.size - 512 {
            let len = sizes[i % sizes.len()].min(disk.size - 512 - at);
            write_filled(&disk, &map, at, len, 1).with_context(|| format!("{len} at {at}"))?;
            at += len;
            i += 1;
        }
        let all = disk.contents()?;
        is_filled(&all[..disk.size - 512], 0, 1)?;
        ensure!(all[disk.size - 512..].iter().all(|b| *b == 0), "the last");
        for (at, len) in [(511 * 512, 1024), (MIB - 512, 1024), (5 * 512, 3 * MIB)] {
            disk.read(at, &map, len)?;
            let mut got = vec![0; len];
            map.read(0, &mut got);
            is_filled(&got, at, 1)?;
        }
        let past = disk.read(disk.size, &map, 512);
        ensure!(past.is_err(), "read behind the end");
        ctx.barrier("written")
    })
}

fn many_at_once(ctx: &mut Ctx) -> Result<()> {
    const THREADS: usize = 8;
    const PART: usize = 2 * MIB;
    with_disk(ctx, "16M", &["-i", "2"], |ctx, path| {
        if ctx.first() {
            return Ok(());
        }
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..THREADS)
                .map(|n| {
                    scope.spawn(move || -> Result<()> {
                        let disk = Disk::open(path)?;
                        let map = Map::anon(256 << 10)?;
                        for round in 0..2 {
                            for (i, at) in (0..PART).step_by(96 << 10).enumerate() {
                                let at = n * PART + at;
                                let len = (96 << 10).min((n + 1) * PART - at);
                                let len = if i % 3 == 0 { len.min(4096) } else { len };
                                write_filled(&disk, &map, at, len, round)?;
                                disk.read(at, &map, len)?;
                                let mut got = vec![0; len];
                                map.read(0, &mut got);
                                is_filled(&got, at, round)?;
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            for one in all {
                one.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            }
            Ok(())
        })
    })
}

fn limits(ctx: &mut Ctx) -> Result<()> {
    with_disk(ctx, "3M", &["-i", "3"], |ctx, path| {
        if ctx.first() {
            let clients = show("subsystems", NAME, "clients")?;
            ensure!(clients.lines().count() == 3, "{clients}");
            for n in 0..3 {
                let line = format!("{NAME} queue {n} of 3 epoch 1 keys 3");
                ensure!(clients.contains(&line), "{clients}");
            }
            for (what, value) in [("attr_size", "1M"), ("attr_read_only", "1")] {
                let e = store("subsystems", NAME, what, value).err();
                let e = e.and_then(|e| e.raw_os_error());
                ensure!(e == Some(libc::EBUSY), "{what}: {e:?}");
            }
            return Ok(());
        }
        let name = path.file_name().context("no name")?.to_string_lossy();
        let queue = |what: &str| -> Result<String> {
            let path = format!("/sys/block/{name}/queue/{what}");
            Ok(fs::read_to_string(&path).context(path)?.trim().to_owned())
        };
        for (what, want) in [
            ("logical_block_size", "512"),
            ("chunk_sectors", "2048"),
            ("write_cache", "write through"),
            ("fua", "0"),
            ("rotational", "0"),
            ("discard_max_bytes", "0"),
        ] {
            let got = queue(what)?;
            ensure!(got == want, "{what} is {got}, not {want}");
        }
        ensure!(show("disks", NAME, "state")? == "live");
        ensure!(show("disks", NAME, "device")? == name);
        let e = store("disks", NAME, "ctrl_loss_tmo", "1").err();
        ensure!(e.and_then(|e| e.raw_os_error()) == Some(libc::EBUSY));
        // Flushing has nothing to do, and does not fail.
        Disk::open(path)?.file.sync_all()?;
        let list = kfi(&["list"])?;
        ensure!(
            list.contains(&format!("disk {NAME}: {name} live")),
            "{list}"
        );
        Ok(())
    })
}

fn read_only(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        export(ctx, "1M", &["--read-only"])?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        let device = connect(ctx, NAME, &[])?;
        let disk = Disk::open_as(&device, false)?;
        ensure!(disk.contents()?.iter().all(|b| *b == 0));
        let map = Map::anon(4096)?;
        let wrote = Disk::open(&device).map(|disk| disk.write(0, &map, 4096));
        ensure!(!matches!(wrote, Ok(Ok(()))), "written");
        drop(disk);
        disconnect(NAME)?;
    }
    ctx.barrier("done")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

fn refusals(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    let fails = |args: &[&str], what: &str| -> Result<()> {
        match kfi(args) {
            Ok(_) => bail!("{args:?} went well"),
            Err(e) if format!("{e:#}").contains(what) => Ok(()),
            Err(e) => bail!("{args:?}: {e:#}, not {what}"),
        }
    };
    let (own, peer) = (ctx.env.addr.to_string(), ctx.env.peer.to_string());
    if ctx.first() {
        for size in ["0", "1000", "x", "2T", "99999999999999999999G"] {
            fails(&["export", NAME, "--size", size, "-l", &own], "os error 22")?;
        }
        fails(
            &["export", NAME, "--size", "1M", "-l", "nowhere"],
            "os error 22",
        )?;
        fails(
            &["export", NAME, "--size", "1M", "-l", "192.0.2.1"],
            "os error 61",
        )?;
        ensure!(kfi(&["list"])?.is_empty());
        export(ctx, "1M", &[])?;
        fails(&["export", NAME, "--size", "1M", "-l", &own], "os error 17")?;
        fails(&["admit", NAME, "nobody"], "os error 2")?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        let to = |name, port| ["connect", &peer, name, "-p", port, "--disk", NAME];
        // Nobody listens; there is no such export.
        fails(&to(NAME, "4499"), "os error 111")?;
        fails(&to("nothing", PORT), "os error 2")?;
        fails(
            &[&to(NAME, PORT)[..], &["-i", "99"]].concat(),
            "os error 22",
        )?;
        ensure!(!kfi(&["list"])?.contains("disk"));
    }
    ctx.barrier("refused")?;
    if ctx.first() {
        // What is fenced is not let in.
        kfi(&["fence", NAME, NAME])?;
        ensure!(kfi(&["list"])?.contains(&format!("fenced {NAME}")));
    }
    ctx.barrier("fenced")?;
    if !ctx.first() {
        let refused = connect(ctx, NAME, &[]).err().context("let in")?;
        ensure!(
            format!("{refused:#}").contains("os error 128"),
            "{refused:#}"
        );
        // By another name it is.
        let args = ["connect", &peer, NAME, "-p", PORT, "--disk", NAME];
        kfi(&[&args[..], &["--client", "another"]].concat())?;
        disconnect(NAME)?;
    }
    ctx.barrier("tried")?;
    if ctx.first() {
        kfi(&["admit", NAME, NAME])?;
    }
    ctx.barrier("admitted")?;
    if !ctx.first() {
        connect(ctx, NAME, &[])?;
        disconnect(NAME)?;
    }
    ctx.barrier("done")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

fn connect_rounds(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 20;
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        export(ctx, "2M", &[])?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        for round in 0..ROUNDS {
            let device = connect(ctx, NAME, &[])?;
            let disk = Disk::open(&device)?;
            let map = Map::anon(MIB)?;
            if round > 0 {
                is_filled(&disk.contents()?[..MIB], 0, round - 1)?;
            }
            write_filled(&disk, &map, 0, MIB, round)?;
            drop(disk);
            disconnect(NAME)?;
        }
    }
    ctx.barrier("done")?;
    if ctx.first() {
        until("clients are gone", Duration::from_secs(10), || {
            Ok(show("subsystems", NAME, "clients")?
                .is_empty()
                .then_some(()))
        })?;
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

/// A file system on the disk, mounted somewhere of this test's own.
struct Mounted(PathBuf);

impl Mounted {
    fn new(device: &Path) -> Result<Self> {
        let at = PathBuf::from(format!("/tmp/blk-{}", std::process::id()));
        fs::create_dir_all(&at)?;
        let (from, to) = (device.display().to_string(), at.display().to_string());
        let _ = run("modprobe", &["ext4"]);
        run("mount", &["-t", "ext4", &from, &to])?;
        Ok(Self(at))
    }

    fn unmount(self) -> Result<()> {
        run("umount", &[&self.0.display().to_string()])?;
        fs::remove_dir(&self.0)?;
        Ok(())
    }
}

fn make_fs(device: &Path) -> Result<()> {
    let device = device.display().to_string();
    run("busybox", &["mke2fs", "-F", &device]).map(drop)
}

fn file_system(ctx: &mut Ctx) -> Result<()> {
    with_disk(ctx, "24M", &[], |ctx, path| {
        if ctx.first() {
            return Ok(());
        }
        make_fs(path)?;
        let mounted = Mounted::new(path)?;
        let file = |n: usize| mounted.0.join(format!("file-{n}"));
        let mut bytes = vec![0; 700_000];
        for n in 0..20 {
            fill(&mut bytes, n as u64, 7);
            fs::write(file(n), &bytes)?;
        }
        fs::remove_file(file(3))?;
        mounted.unmount()?;
        let mounted = Mounted::new(path)?;
        for n in (0..20).filter(|n| *n != 3) {
            let got = fs::read(mounted.0.join(format!("file-{n}")))?;
            fill(&mut bytes, n as u64, 7);
            ensure!(got == bytes, "file {n} differs");
        }
        mounted.unmount()
    })
}

fn removed_while_open(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        export(ctx, "2M", &[])?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        let device = connect(ctx, NAME, &[])?;
        let disk = Disk::open(&device)?;
        let map = Map::anon(MIB)?;
        write_filled(&disk, &map, 0, MIB, 1)?;
        disconnect(NAME)?;
        ensure!(disk.read(0, &map, 4096).is_err(), "read from nothing");
        ensure!(disk.write(0, &map, 4096).is_err(), "written to nothing");
        // The next one has a device of its own.
        let other = connect(ctx, NAME, &[])?;
        let again = Disk::open(&other)?;
        is_filled(&again.contents()?[..MIB], 0, 1)?;
        ensure!(disk.read(0, &map, 4096).is_err(), "read from nothing");
        drop((disk, again));
        disconnect(NAME)?;
    }
    ctx.barrier("done")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

fn removed_while_mounted(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        export(ctx, "16M", &[])?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        let device = connect(ctx, NAME, &[])?;
        make_fs(&device)?;
        let mounted = Mounted::new(&device)?;
        fs::write(mounted.0.join("file"), vec![7; 100_000])?;
        disconnect(NAME)?;
        // Errors, and nothing that hangs.
        let wrote = File::create(mounted.0.join("more")).and_then(|file| file.sync_all());
        ensure!(wrote.is_err(), "written to nothing");
        mounted.unmount()?;
    }
    ctx.barrier("done")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}

/// Whether the target listens.
pub(super) fn offer(ctx: &Ctx, on: bool) -> Result<()> {
    let port = format!("{}-{PORT}", ctx.env.addr);
    let link = attr("ports", &port, "subsystems").join(NAME);
    if on {
        std::os::unix::fs::symlink(Path::new(ROOT).join("subsystems").join(NAME), link)?;
    } else {
        fs::remove_file(link)?;
    }
    Ok(())
}

fn target_comes_back(ctx: &mut Ctx) -> Result<()> {
    let options = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "120"];
    with_disk(ctx, "4M", &options, |ctx, path| {
        if ctx.first() {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(700));
                offer(ctx, false)?;
                std::thread::sleep(Duration::from_millis(1500));
                offer(ctx, true)?;
                ctx.barrier("again")?;
            }
            return Ok(());
        }
        let stop = AtomicBool::new(false);
        let rounds = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..4)
                .map(|n| {
                    let (stop, rounds) = (&stop, &rounds);
                    scope.spawn(move || -> Result<()> {
                        let disk = Disk::open(path)?;
                        let map = Map::anon(MIB)?;
                        let mut round = 0;
                        while !stop.load(Ordering::Relaxed) {
                            let len = 128 << 10;
                            for at in (n * MIB..(n + 1) * MIB).step_by(len) {
                                write_filled(&disk, &map, at, len, round)?;
                                disk.read(at, &map, len)?;
                                let mut got = vec![0; len];
                                map.read(0, &mut got);
                                is_filled(&got, at, round)?;
                            }
                            round += 1;
                            rounds.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok(())
                    })
                })
                .collect();
            let mut told = Ok(());
            for _ in 0..3 {
                told = told.and(ctx.barrier("again"));
                let before = rounds.load(Ordering::Relaxed);
                // It goes on by itself.
                let on = until("work goes on", Duration::from_secs(30), || {
                    Ok((rounds.load(Ordering::Relaxed) > before + 4).then_some(()))
                });
                told = told.and(on);
            }
            stop.store(true, Ordering::Relaxed);
            for one in all {
                one.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            }
            told
        })?;
        ensure!(show("disks", NAME, "state")? == "live");
        Ok(())
    })
}

fn target_stays_away(ctx: &mut Ctx) -> Result<()> {
    let options = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "3"];
    with_disk(ctx, "4M", &options, |ctx, path| {
        if ctx.first() {
            offer(ctx, false)?;
            ctx.barrier("away")?;
            ctx.barrier("given up")?;
            return offer(ctx, true);
        }
        let disk = Disk::open(path)?;
        let map = Map::anon(4096)?;
        ctx.barrier("away")?;
        let start = Instant::now();
        let failed = disk.write(0, &map, 4096);
        ensure!(failed.is_err(), "written to nobody");
        let took = start.elapsed();
        ensure!(
            took < crate::sys::patience(Duration::from_secs(60)),
            "{took:?}"
        );
        ensure!(show("disks", NAME, "state")? == "dead");
        ensure!(disk.read(0, &map, 4096).is_err());
        drop(disk);
        ctx.barrier("given up")
    })
}

/// A disk whose connections are made again to other contents, or after it was fenced though it has been
/// admitted by then, fails, and writes nothing onto what is there.
fn another(ctx: &mut Ctx) -> Result<()> {
    let anew = || -> Result<()> {
        store("subsystems", NAME, "enable", "0")?;
        Ok(store("subsystems", NAME, "enable", "1")?)
    };
    let fenced = || -> Result<()> {
        kfi(&["fence", NAME, NAME])?;
        kfi(&["admit", NAME, NAME]).map(drop)
    };
    let ways: [&dyn Fn() -> Result<()>; 2] = [&anew, &fenced];
    for way in ways {
        let options = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "-1"];
        with_disk(ctx, "4M", &options, |ctx, path| {
            if ctx.first() {
                ctx.barrier("written")?;
                way()?;
                ctx.barrier("another")?;
                return ctx.barrier("seen");
            }
            let disk = Disk::open(path)?;
            let map = Map::anon(4096)?;
            write_filled(&disk, &map, 0, 4096, 1)?;
            ctx.barrier("written")?;
            ctx.barrier("another")?;
            ensure!(
                write_filled(&disk, &map, 0, 4096, 2).is_err(),
                "it is written to"
            );
            until("it is dead", Duration::from_secs(20), || {
                Ok((show("disks", NAME, "state")? == "dead").then_some(()))
            })?;
            drop(disk);
            ctx.barrier("seen")
        })?;
    }
    Ok(())
}

/// Rounds of fencing a client that writes as fast as it can. When the call has returned, not a byte of
/// the export changes any more.
fn fence(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 10;
    const SIZE: usize = 4 * MIB;
    let loaded = Loaded::new(ctx)?;
    let mut watch = None;
    if ctx.first() {
        export(ctx, "4M", &[])?;
        watch = Some(Disk::open_as(&connect(ctx, WATCH, &["-i", "1"])?, false)?);
    }
    ctx.barrier("exported")?;
    for round in 0..ROUNDS {
        if let Some(watch) = &watch {
            ctx.barrier("connected")?;
            // Until it has written for some time.
            let before = watch.contents()?;
            until("it writes", Duration::from_secs(20), || {
                Ok((watch.contents()? != before).then_some(()))
            })?;
            kfi(&["fence", NAME, NAME])?;
            let after = watch.contents()?;
            std::thread::sleep(Duration::from_millis(200));
            let later = watch.contents()?;
            if let Some(i) = after.iter().zip(&later).position(|(a, b)| a != b) {
                bail!("byte {i} has landed in round {round}");
            }
            ctx.barrier("fenced")?;
            ensure!(watch.contents()? == after, "something has landed");
            kfi(&["admit", NAME, NAME])?;
        } else {
            let device = connect(ctx, NAME, &["-i", "2"])?;
            std::thread::scope(|scope| -> Result<()> {
                let all: Vec<_> = (0..4)
                    .map(|n| {
                        let device = &device;
                        scope.spawn(move || -> Result<u64> {
                            let disk = Disk::open(device)?;
                            let map = Map::anon(256 << 10)?;
                            let mut i = round << 20;
                            loop {
                                let len = 256 << 10;
                                let at = (n * 7 + i as usize) % (SIZE / len) * len;
                                if write_filled(&disk, &map, at, len, i).is_err() {
                                    return Ok(i);
                                }
                                i += 1;
                            }
                        })
                    })
                    .collect();
                let told = ctx.barrier("connected");
                for one in all {
                    one.join().map_err(|_| anyhow::anyhow!("panicked"))??;
                }
                told
            })?;
            until("it is dead", Duration::from_secs(20), || {
                Ok((show("disks", NAME, "state")? == "dead").then_some(()))
            })?;
            ctx.barrier("fenced")?;
            disconnect(NAME)?;
        }
        ctx.barrier("round")?;
    }
    if ctx.first() {
        drop(watch);
        disconnect(WATCH)?;
        kfi(&["unexport", NAME])?;
    }
    loaded.end(ctx)
}
