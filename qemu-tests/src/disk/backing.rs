// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backings of an export: memory, or a block device of node 1's. The same tests run over both.

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

/// Folder of the `null_blk` device, which has the folder's name.
pub const NULLB: &str = "/sys/kernel/config/nullb/blkback";
/// Path of the `null_blk` device.
const DEVICE: &str = "/dev/blkback";

/// A block device of node 1's, for one test.
pub enum Backing {
    /// A `null_blk` device in memory.
    Null(PathBuf),
    /// A loop device over a file in memory: the device, and the file.
    Loop(PathBuf, PathBuf),
}

impl Backing {
    /// Creates a `null_blk` device of 16 MiB, with more options.
    ///
    /// # Errors
    ///
    /// If it cannot be created; without `null_blk` the test is skipped.
    pub fn null(options: &[(&str, &str)]) -> Result<Self> {
        if run("modprobe", &["null_blk", "nr_devices=0"]).is_err() {
            return skip("no null_blk");
        }
        let at = Path::new(NULLB);
        if at.is_dir() {
            // Remains of a failed test.
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

    /// Creates a loop device of `size` bytes.
    ///
    /// # Errors
    ///
    /// If it cannot be created; without loop devices the test is skipped.
    pub fn file(size: u64) -> Result<Self> {
        let path = format!("/tmp/blk-backing-{}", std::process::id());
        Self::file_at(path.into(), size)
    }

    /// Creates a loop device over a file of `size` bytes at `path`.
    ///
    /// # Errors
    ///
    /// The errors of [`Backing::file`].
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

    /// Resizes the device.
    ///
    /// # Errors
    ///
    /// The error of the system call, or a device that is no file.
    pub fn resize(&self, size: u64) -> Result<()> {
        const SET_CAPACITY: u32 = 0x4c07;
        let Self::Loop(device, file) = self else {
            bail!("no loop device");
        };
        File::options().write(true).open(file)?.set_len(size)?;
        sys::ioctl(Self::open(device)?.as_fd(), SET_CAPACITY, 0)?;
        Ok(())
    }

    /// Opens a device, without exclusive use.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub fn open(path: &Path) -> Result<File> {
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .with_context(|| path.display().to_string())
    }

    /// Returns the device's path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Null(path) | Self::Loop(path, _) => path,
        }
    }

    /// Returns the device's current contents.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn contents(&self) -> Result<Vec<u8>> {
        Disk::open_as(self.path(), false)?.contents()
    }

    /// Returns a number of the device's kernel statistics.
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

    /// Returns the number of flushes.
    ///
    /// # Errors
    ///
    /// If the kernel does not report it.
    pub fn flushes(&self) -> Result<u64> {
        self.stat(15)
    }

    /// Removes the device.
    ///
    /// # Errors
    ///
    /// If it is in use.
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
/// `kfi`'s error message.
pub fn export_device(ctx: &Ctx, path: &Path, more: &[&str]) -> Result<()> {
    let addr = ctx.env.addr.to_string();
    let path = path.display().to_string();
    let args = [
        "export", NAME, "--device", &path, "--listen", &addr, "--port", PORT,
    ];
    kfi(&[&args[..], &["--provider", ctx.provider()], more].concat()).map(drop)
}

/// Kind of a test's export.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Memory-backed: read and written by RMA.
    Memory,
    /// Block-backed: served by messages.
    Device,
    /// Block-backed with a volatile cache and discard.
    Cached,
}

impl Of {
    /// Creates the device for a block-backed export; `size` is a number of MiB and an `M`.
    fn backing(self, size: &str) -> Result<Option<Backing>> {
        let more: &[(&str, &str)] = match self {
            Self::Memory => return Ok(None),
            Self::Device => &[],
            Self::Cached => &[("cache_size", "8"), ("fua", "0"), ("discard", "1")],
        };
        let mib = size.strip_suffix('M').context("a size in MiB")?;
        Backing::null(&[&[("size", mib)], more].concat()).map(Some)
    }

    /// Exports on this node. A device that was exported before is exported again.
    ///
    /// # Errors
    ///
    /// `kfi`'s error message.
    pub fn export(self, ctx: &Ctx, size: &str) -> Result<()> {
        match self {
            Self::Memory => export(ctx, size, &[]),
            Self::Device | Self::Cached => export_device(ctx, Path::new(DEVICE), &[]),
        }
    }

    /// Loads the module, and exports `size` bytes on node 1.
    ///
    /// # Errors
    ///
    /// If that fails.
    pub fn begin(self, ctx: &mut Ctx, size: &str) -> Result<Loaded> {
        let mut loaded = Loaded::new(ctx)?;
        if ctx.first() {
            loaded.backing = self.backing(size)?;
            self.export(ctx, size)?;
        }
        ctx.barrier("exported")?;
        Ok(loaded)
    }

    /// Runs a test as [`super::with_disk`] does.
    ///
    /// # Errors
    ///
    /// The error of the test, or of the removal.
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

    /// Returns the contents as node 1 sees them: of memory through a disk of its own, of a device
    /// directly.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn contents(self, ctx: &Ctx) -> Result<Vec<u8>> {
        if self != Self::Memory {
            return Disk::open_as(Path::new(DEVICE), false)?.contents();
        }
        let watch = connect(ctx, WATCH, &["-i", "1"])?;
        let all = Disk::open_as(&watch, false)?.contents();
        disconnect(WATCH)?;
        all
    }

    /// Checks that node 1 sees the last bytes of node 2's writers. Node 1's `rounds` are ignored.
    ///
    /// # Errors
    ///
    /// If bytes differ.
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
