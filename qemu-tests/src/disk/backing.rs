// SPDX-License-Identifier: MIT OR Apache-2.0

//! What is exported: memory, or a device of node 1's. The same tests go over both.

use super::{
    connect, disconnect, end, export, is_filled, kfi, Disk, Loaded, MIB, NAME, PORT, WATCH,
};
use crate::harness::guest::{run, until};
use crate::harness::{skip, Ctx};
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A device of `null_blk` has the name of its folder.
pub const NULLB: &str = "/sys/kernel/config/nullb/blkback";
/// Its file.
const DEVICE: &str = "/dev/blkback";

/// A device of node 1's, for one test.
pub enum Backing {
    /// Of memory, made by `null_blk`.
    Null(PathBuf),
    /// A file in memory, and what it was before it was a device.
    Loop(PathBuf, PathBuf),
}

impl Backing {
    /// One of `null_blk`'s of 16 MiB, with more options.
    ///
    /// # Errors
    ///
    /// When it cannot be made; without `null_blk` the test is skipped.
    pub fn null(options: &[(&str, &str)]) -> Result<Self> {
        if run("modprobe", &["null_blk", "nr_devices=0"]).is_err() {
            return skip("no null_blk");
        }
        let at = Path::new(NULLB);
        if at.is_dir() {
            // What a test left that failed.
            fs::remove_dir(at)?;
        }
        fs::create_dir(at)?;
        let all = [("size", "16"), ("memory_backed", "1"), ("blocksize", "512")];
        for (what, value) in all.iter().chain(options).chain(&[("power", "1")]) {
            fs::write(at.join(what), value).with_context(|| format!("{what} {value}"))?;
        }
        let path = PathBuf::from(DEVICE);
        until("null_blk's device", Duration::from_secs(5), || {
            Ok(path.exists().then_some(()))
        })?;
        Ok(Self::Null(path))
    }

    /// A file of so many bytes.
    ///
    /// # Errors
    ///
    /// When it cannot be made; without loop devices the test is skipped.
    pub fn file(size: u64) -> Result<Self> {
        let path = format!("/tmp/blk-backing-{}", std::process::id());
        Self::file_at(path.into(), size)
    }

    /// A file of so many bytes, somewhere.
    ///
    /// # Errors
    ///
    /// As [`Backing::file`].
    pub fn file_at(path: PathBuf, size: u64) -> Result<Self> {
        const SET_FD: u32 = 0x4c00;
        const GET_FREE: u32 = 0x4c82;
        if run("modprobe", &["loop"]).is_err() {
            return skip("no loop devices");
        }
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)?;
        file.set_len(size)?;
        let control = File::options()
            .read(true)
            .write(true)
            .open("/dev/loop-control")?;
        let free = sys::ioctl(control.as_fd(), GET_FREE, 0)?;
        let device = PathBuf::from(format!("/dev/loop{free}"));
        let of = Self::open(&device)?;
        sys::ioctl(of.as_fd(), SET_FD, file.as_raw_fd() as usize)?;
        Ok(Self::Loop(device, path))
    }

    /// Gives a file another size.
    ///
    /// # Errors
    ///
    /// The system's; it is no file.
    pub fn resize(&self, size: u64) -> Result<()> {
        const SET_CAPACITY: u32 = 0x4c07;
        let Self::Loop(device, file) = self else {
            bail!("no loop device");
        };
        File::options().write(true).open(file)?.set_len(size)?;
        sys::ioctl(Self::open(device)?.as_fd(), SET_CAPACITY, 0)?;
        Ok(())
    }

    /// Opens a device, whoever else has it.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn open(path: &Path) -> Result<File> {
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| path.display().to_string())
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        match self {
            Self::Null(path) | Self::Loop(path, _) => path,
        }
    }

    /// What it has now.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn contents(&self) -> Result<Vec<u8>> {
        Disk::open_as(self.path(), false)?.contents()
    }

    /// A number of the kernel's statistics of it.
    fn stat(&self, field: usize) -> Result<u64> {
        let name = self.path().file_name().context("no name")?;
        let path = Path::new("/sys/block").join(name).join("stat");
        let text = fs::read_to_string(path)?;
        let field = text
            .split_whitespace()
            .nth(field)
            .context("no such field")?;
        Ok(field.parse()?)
    }

    /// How often it was flushed.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn flushes(&self) -> Result<u64> {
        self.stat(15)
    }

    /// Takes it away.
    ///
    /// # Errors
    ///
    /// When somebody has it.
    pub fn end(self) -> Result<()> {
        match self {
            Self::Null(_) => {
                fs::write(Path::new(NULLB).join("power"), "0")?;
                fs::remove_dir(NULLB)?;
                let gone = || Ok(run("modprobe", &["-r", "null_blk"]).ok().map(drop));
                until("null_blk is gone", Duration::from_secs(10), gone)
            }
            Self::Loop(device, file) => {
                const CLR_FD: u32 = 0x4c01;
                sys::ioctl(Self::open(&device)?.as_fd(), CLR_FD, 0)?;
                Ok(fs::remove_file(file)?)
            }
        }
    }
}

/// Exports a device of this node's.
///
/// # Errors
///
/// What `kfi` says.
pub fn export_device(ctx: &Ctx, path: &Path, more: &[&str]) -> Result<()> {
    let addr = ctx.env.addr.to_string();
    let path = path.display().to_string();
    let args = [
        "export", NAME, "--device", &path, "--listen", &addr, "--port", PORT,
    ];
    kfi(&[&args[..], &["--provider", ctx.provider()], more].concat()).map(drop)
}

/// What a test has exported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Memory: read and written by RMA.
    Memory,
    /// A device: asked by messages.
    Device,
    /// A device with a cache that has to be flushed, and that can discard.
    Cached,
}

impl Of {
    /// A device to export, if that is what it is, for which `size` is so many MiB and an `M`.
    fn backing(self, size: &str) -> Result<Option<Backing>> {
        let more: &[(&str, &str)] = match self {
            Self::Memory => return Ok(None),
            Self::Device => &[],
            Self::Cached => &[("cache_size", "8"), ("fua", "0"), ("discard", "1")],
        };
        let mib = size.strip_suffix('M').context("a size in MiB")?;
        Backing::null(&[&[("size", mib)], more].concat()).map(Some)
    }

    /// Exports it on this node, once more if it is a device that was exported before.
    ///
    /// # Errors
    ///
    /// What `kfi` says.
    pub fn export(self, ctx: &Ctx, size: &str) -> Result<()> {
        match self {
            Self::Memory => export(ctx, size, &[]),
            Self::Device | Self::Cached => export_device(ctx, Path::new(DEVICE), &[]),
        }
    }

    /// The module, and an export of `size` on node 1.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn begin(self, ctx: &mut Ctx, size: &str) -> Result<Loaded> {
        let mut loaded = Loaded::new(ctx)?;
        if ctx.first() {
            loaded.backing = self.backing(size)?;
            self.export(ctx, size)?;
        }
        ctx.barrier("exported")?;
        Ok(loaded)
    }

    /// As [`super::with_disk`].
    ///
    /// # Errors
    ///
    /// The test's, or when something does not go away.
    pub fn with_disk(
        self,
        ctx: &mut Ctx,
        size: &str,
        options: &[&str],
        test: impl FnOnce(&mut Ctx, &Path) -> Result<()>,
    ) -> Result<()> {
        let loaded = self.begin(ctx, size)?;
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
        end(ctx, loaded)
    }

    /// What node 1 sees of it: memory by a disk of its own, a device itself.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn contents(self, ctx: &Ctx) -> Result<Vec<u8>> {
        if self != Self::Memory {
            return Disk::open_as(Path::new(DEVICE), false)?.contents();
        }
        let watch = connect(ctx, WATCH, &["-i", "1"])?;
        let all = Disk::open_as(&watch, false)?.contents();
        disconnect(WATCH)?;
        all
    }

    /// What node 2's writers wrote last is what node 1 sees. Node 1's `rounds` say nothing.
    ///
    /// # Errors
    ///
    /// When it is not.
    pub fn compare(self, ctx: &mut Ctx, rounds: &[u64]) -> Result<()> {
        if ctx.first() {
            let rounds: Vec<u64> = ctx.ctl.recv()?;
            let all = self.contents(ctx)?;
            for (n, round) in rounds.iter().enumerate() {
                let at = n * MIB;
                is_filled(&all[at..at + MIB], at, *round)?;
            }
        } else {
            ctx.ctl.send(rounds)?;
        }
        ctx.barrier("compared")
    }
}
