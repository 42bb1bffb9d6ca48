// SPDX-License-Identifier: MIT OR Apache-2.0

//! Building blocks of kfblk's tests. Node 1 exports, node 2 has the disk. Node 1 reads its export
//! through a disk too, as an initiator of its own.

use crate::harness::caps::BORROWED_READS;
use crate::harness::guest::{load, module_users, run, unload, until};
use crate::harness::{skip, Ctx, WRONG_DATA};
use crate::sys::Map;
use anyhow::{bail, Context, Result};
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

mod backing;

pub use backing::{export_device, Backing, Of, NULLB};

/// kfblk's folder in configfs.
pub const ROOT: &str = "/sys/kernel/config/kfblk";
/// Name of the export, and of the disk.
pub const NAME: &str = "blktest";
/// Name of the disk through which node 1 reads.
pub const WATCH: &str = "blkwatch";
/// Port on which node 1 listens.
pub const PORT: &str = "4421";
/// A MiB.
pub const MIB: usize = 1 << 20;

/// The module, on this kernel, for one test; and the exported device, if the export is
/// block-backed.
pub struct Loaded {
    ours: bool,
    backing: Option<Backing>,
}

impl Loaded {
    /// Loads the module, once on each kernel.
    ///
    /// # Errors
    ///
    /// If the module does not load. If there is no module, the test is skipped.
    pub fn new(ctx: &mut Ctx) -> Result<Self> {
        ctx.need(BORROWED_READS)?;
        let ours = ctx.first() || !one_kernel(ctx);
        if ours && module_users("kfblk").is_some() {
            sweep().context("the remains of an earlier test")?;
        }
        let loaded = if ours { load("kfblk") } else { Ok(()) };
        ctx.barrier("loaded")?;
        if let Err(e) = &loaded {
            if format!("{e:#}").contains("is not in") {
                return skip(format!("{e:#}"));
            }
        }
        loaded?;
        Ok(Self {
            ours,
            backing: None,
        })
    }

    /// Unloads the module.
    ///
    /// # Errors
    ///
    /// If it stays in use.
    pub fn end(self, ctx: &mut Ctx) -> Result<()> {
        ctx.barrier("unload")?;
        if self.ours {
            unload("kfblk")?;
        }
        ctx.barrier("unloaded")
    }
}

/// Returns whether both nodes are on the same kernel.
pub fn one_kernel(ctx: &Ctx) -> bool {
    ctx.env.topology.is_one_kernel()
}

/// Removes everything that a failed test left, and the module.
///
/// # Errors
///
/// If something stays.
pub fn sweep() -> Result<()> {
    let inside = |kind: &str| -> Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(Path::new(ROOT).join(kind))? {
            found.push(entry?.file_name().to_string_lossy().into_owned());
        }
        Ok(found)
    };
    for disk in inside("disks")? {
        disconnect_used(&disk)?;
    }
    for export in inside("subsystems")? {
        kfi(&["unexport", &export])?;
    }
    for port in inside("ports")? {
        fs::remove_dir(Path::new(ROOT).join("ports").join(port))?;
    }
    unload("kfblk")
}

/// Runs `kfi blk`. Returns its output.
///
/// # Errors
///
/// If it fails.
pub fn kfi(args: &[&str]) -> Result<String> {
    Ok(run("kfi", &[&["blk"], args].concat())?.trim().to_owned())
}

/// Exports `size` bytes on this node.
///
/// # Errors
///
/// `kfi`'s error message.
pub fn export(ctx: &Ctx, size: &str, more: &[&str]) -> Result<()> {
    let addr = ctx.env.addr.to_string();
    let args = [
        "export", NAME, "--size", size, "--listen", &addr, "--port", PORT,
    ];
    kfi(&[&args[..], &["--provider", ctx.provider()], more].concat()).map(drop)
}

/// Connects from node 2, or from node 1 to read the export.
///
/// # Errors
///
/// `kfi`'s error message.
pub fn connect(ctx: &Ctx, disk: &str, more: &[&str]) -> Result<PathBuf> {
    let addr = if ctx.first() {
        ctx.env.addr
    } else {
        ctx.env.peer
    };
    connect_to(ctx, addr, disk, more)
}

/// Connects to the export at an address.
///
/// # Errors
///
/// `kfi`'s error message.
pub fn connect_to(ctx: &Ctx, addr: IpAddr, disk: &str, more: &[&str]) -> Result<PathBuf> {
    let far = Far {
        addr: addr.to_string(),
        provider: ctx.provider().to_owned(),
    };
    far.connect(NAME, disk, more)
}

/// The exporting node, usable from any thread.
pub struct Far {
    addr: String,
    provider: String,
}

impl Far {
    /// Returns the other node.
    pub fn of(ctx: &Ctx) -> Self {
        Self {
            addr: ctx.env.peer.to_string(),
            provider: ctx.provider().to_owned(),
        }
    }

    /// Connects to an export, as an initiator with the disk's name.
    ///
    /// # Errors
    ///
    /// `kfi`'s error message.
    pub fn connect(&self, export: &str, disk: &str, more: &[&str]) -> Result<PathBuf> {
        let args = ["connect", &self.addr, export, "--port", PORT];
        let who = [
            "--disk",
            disk,
            "--client",
            disk,
            "--provider",
            &self.provider,
        ];
        let device = PathBuf::from(kfi(&[&args[..], &who, more].concat())?);
        until("the device's file", Duration::from_secs(5), || {
            Ok(device.exists().then_some(()))
        })?;
        Ok(device)
    }
}

/// Removes a disk.
///
/// # Errors
///
/// `kfi`'s error message.
pub fn disconnect(disk: &str) -> Result<()> {
    kfi(&["disconnect", disk]).map(drop)
}

/// Removes a disk even if a file system is mounted from it.
///
/// # Errors
///
/// `kfi`'s error message.
pub fn disconnect_used(disk: &str) -> Result<()> {
    kfi(&["disconnect", "--force", disk]).map(drop)
}

/// Returns the path of an attribute.
pub fn attr(kind: &str, name: &str, attr: &str) -> PathBuf {
    Path::new(ROOT).join(kind).join(name).join(attr)
}

/// Reads an attribute.
///
/// # Errors
///
/// If it cannot be read.
pub fn show(kind: &str, name: &str, what: &str) -> Result<String> {
    let path = attr(kind, name, what);
    Ok(fs::read_to_string(&path)
        .with_context(|| path.display().to_string())?
        .trim()
        .to_owned())
}

/// Sets an attribute.
///
/// # Errors
///
/// The kernel's error.
pub fn store(kind: &str, name: &str, what: &str, value: &str) -> io::Result<()> {
    fs::write(attr(kind, name, what), value)
}

/// Waits until a disk is in this state.
///
/// # Errors
///
/// If the disk does not reach it.
pub fn wait_state(disk: &str, state: &str, limit: Duration) -> Result<()> {
    until(&format!("{disk} is {state}"), limit, || {
        Ok((show("disks", disk, "state")? == state).then_some(()))
    })
}

/// A block device that is read and written without a cache.
pub struct Disk {
    /// File of the device.
    pub file: File,
    /// Size in bytes.
    pub size: usize,
}

impl Disk {
    /// Opens a disk.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, true)
    }

    /// Opens a disk, for writing or not.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open_as(path: &Path, write: bool) -> Result<Self> {
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

    /// Writes the first bytes of `buf` at `at`.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn write(&self, at: usize, buf: &Map, len: usize) -> io::Result<()> {
        self.io(at, buf, len, true)
    }

    /// Reads from `at` into the first bytes of `buf`.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn read(&self, at: usize, buf: &Map, len: usize) -> io::Result<()> {
        self.io(at, buf, len, false)
    }

    fn io(&self, at: usize, buf: &Map, len: usize, write: bool) -> io::Result<()> {
        assert!(len <= buf.len());
        match buf.transfer(self.file.as_fd(), at as u64, len, write)? {
            n if n == len => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads the whole disk, block by block of a MiB.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn contents(&self) -> Result<Vec<u8>> {
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

/// Fills `buf` with the bytes of sector `sector` in round `round`; each sector and round has its
/// own.
pub fn fill(buf: &mut [u8], sector: u64, round: u64) {
    for (i, part) in buf.chunks_mut(512).enumerate() {
        let mut x = (sector + i as u64) ^ (round << 40) ^ 0x9e37_79b9_7f4a_7c15;
        for word in part.chunks_mut(8) {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            word.copy_from_slice(&(x ^ (x >> 29)).to_le_bytes()[..word.len()]);
        }
    }
}

/// Writes the bytes of a round at a position.
///
/// # Errors
///
/// The error of the system call.
pub fn write_filled(disk: &Disk, map: &Map, at: usize, len: usize, round: u64) -> io::Result<()> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, (at / 512) as u64, round);
    map.write(0, &bytes);
    disk.write(at, map, len)
}

/// Checks that `bytes` are those of a round at a position.
///
/// # Errors
///
/// If a byte differs.
pub fn is_filled(bytes: &[u8], at: usize, round: u64) -> Result<()> {
    let mut want = vec![0; bytes.len()];
    fill(&mut want, (at / 512) as u64, round);
    if let Some(i) = bytes.iter().zip(&want).position(|(a, b)| a != b) {
        bail!("{WRONG_DATA}byte {} differs (round {round})", at + i);
    }
    Ok(())
}

/// Loads the module, and exports `size` bytes of memory on node 1.
///
/// # Errors
///
/// If that fails.
pub fn begin(ctx: &mut Ctx, size: &str) -> Result<Loaded> {
    Of::Memory.begin(ctx, size)
}

/// Removes the export, the module and the exported device.
///
/// # Errors
///
/// If one of them stays.
pub fn end(ctx: &mut Ctx, mut loaded: Loaded) -> Result<()> {
    ctx.barrier("disconnected")?;
    if ctx.first() {
        kfi(&["unexport", NAME])?;
        loaded.backing.take().map_or(Ok(()), Backing::end)?;
    }
    loaded.end(ctx)
}

/// Loads the module, exports `size` bytes of memory on node 1, connects a disk on node 2, runs
/// `test` on both with the disk's path (empty on node 1), and removes everything.
///
/// # Errors
///
/// The error of the test, or of the removal.
pub fn with_disk(
    ctx: &mut Ctx,
    size: &str,
    options: &[&str],
    test: impl FnOnce(&mut Ctx, &Path) -> Result<()>,
) -> Result<()> {
    Of::Memory.with_disk(ctx, size, options, test)
}

/// Starts or stops the target's listening.
///
/// # Errors
///
/// If it cannot, or already did.
pub fn offer(ctx: &Ctx, on: bool) -> Result<()> {
    let port = format!("{}-{PORT}", ctx.env.addr);
    let link = attr("ports", &port, "subsystems").join(NAME);
    if on {
        std::os::unix::fs::symlink(Path::new(ROOT).join("subsystems").join(NAME), link)?;
    } else {
        fs::remove_file(link)?;
    }
    Ok(())
}

/// Writers that write and read back a MiB of their own, over and over.
pub struct Load {
    stop: AtomicBool,
    rounds: AtomicU64,
    writers: u64,
    /// Length of a request.
    piece: usize,
}

impl Load {
    /// Runs writers while `during` runs. Returns each writer's result: its last round, or the error
    /// of a request.
    ///
    /// # Errors
    ///
    /// The error of `during`; a wrong byte.
    pub fn run(
        path: &Path,
        writers: usize,
        during: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Vec<io::Result<u64>>> {
        Self::run_in(128 << 10, path, writers, during)
    }

    /// As [`Load::run`], with requests of `piece` bytes.
    ///
    /// # Errors
    ///
    /// As [`Load::run`].
    pub fn run_in(
        piece: usize,
        path: &Path,
        writers: usize,
        during: impl FnOnce(&Self) -> Result<()>,
    ) -> Result<Vec<io::Result<u64>>> {
        let load = Self {
            piece,
            stop: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            writers: writers as u64,
        };
        std::thread::scope(|scope| {
            let load = &load;
            let all: Vec<_> = (0..writers)
                .map(|n| scope.spawn(move || load.write(path, n)))
                .collect();
            let told = during(load);
            if let Err(e) = &told {
                // A writer may be stuck.
                eprintln!("{e:#}");
            }
            load.stop.store(true, Ordering::Relaxed);
            let mut ends = Vec::new();
            for one in all {
                ends.push(one.join().map_err(|_| anyhow::anyhow!("panicked"))?);
            }
            told?;
            ends.into_iter().collect()
        })
    }

    fn write(&self, path: &Path, n: usize) -> Result<io::Result<u64>> {
        let piece = self.piece;
        let disk = Disk::open(path)?;
        let map = Map::anon(piece)?;
        let mut got = vec![0; piece];
        let part = n * MIB..(n + 1) * MIB;
        let mut round = 0;
        loop {
            for at in part.clone().step_by(piece) {
                if let Err(e) = write_filled(&disk, &map, at, piece, round) {
                    return Ok(Err(e));
                }
            }
            for at in part.clone().step_by(piece) {
                if let Err(e) = disk.read(at, &map, piece) {
                    return Ok(Err(e));
                }
                map.read(0, &mut got);
                is_filled(&got, at, round)?;
            }
            self.rounds.fetch_add(1, Ordering::Relaxed);
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Ok(round));
            }
            round += 1;
        }
    }

    /// Waits until all writers progress.
    ///
    /// # Errors
    ///
    /// If they do not.
    pub fn gets_on(&self, limit: Duration) -> Result<()> {
        let before = self.rounds.load(Ordering::Relaxed);
        until("work goes on", limit, || {
            let now = self.rounds.load(Ordering::Relaxed);
            Ok((now > before + self.writers).then_some(()))
        })
    }
}

/// Checks that no writer has failed. Returns the round of each.
///
/// # Errors
///
/// The first failure.
pub fn rounds(ends: Vec<io::Result<u64>>) -> Result<Vec<u64>> {
    ends.into_iter()
        .map(|end| end.context("a writer has failed"))
        .collect()
}

/// A file system on a disk, mounted in a folder of this test.
pub struct Mounted(pub PathBuf);

impl Mounted {
    /// Mounts the file system.
    ///
    /// # Errors
    ///
    /// If it is not of that kind.
    pub fn new(device: &Path, kind: &str) -> Result<Self> {
        let at = PathBuf::from(format!("/tmp/blk-{}", std::process::id()));
        fs::create_dir_all(&at)?;
        let (from, to) = (device.display().to_string(), at.display().to_string());
        let _ = run("modprobe", &[kind]);
        run("mount", &["-t", kind, &from, &to])?;
        Ok(Self(at))
    }

    /// Unmounts the file system.
    ///
    /// # Errors
    ///
    /// If it is in use.
    pub fn unmount(self) -> Result<()> {
        run("umount", &[&self.0.display().to_string()])?;
        fs::remove_dir(&self.0)?;
        Ok(())
    }
}
