// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk under journaling file systems: they are created, filled and checked; their target
//! disappears and comes back; their disk is removed.

use crate::disk::*;
use crate::harness::guest::until;
use crate::harness::{skip, Ctx, Test, NETNS, SHM, TWO, WRONG_DATA};
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.ext4_filled_and_remounted_checks_clean", |ctx| {
        filled(ctx, Of::Memory, &EXT4)
    })
    .seconds(40)
    .on(TWO),
    Test::pair("blk.xfs_filled_and_remounted_checks_clean", |ctx| {
        filled(ctx, Of::Memory, &XFS)
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blk.ext4_while_target_is_away_waits", |ctx| {
        outlives(ctx, Of::Memory, &EXT4)
    })
    .seconds(40)
    .on(TWO),
    Test::pair("blk.xfs_while_target_is_away_waits", |ctx| {
        outlives(ctx, Of::Memory, &XFS)
    })
    .seconds(40)
    .on(NETNS),
    Test::pair("blk.ext4_losing_its_disk_keeps_synced_files", |ctx| {
        loses(ctx, Of::Memory, &EXT4)
    })
    .seconds(40)
    .on(NETNS | TWO),
    Test::pair("blk.xfs_losing_its_disk_keeps_synced_files", |ctx| {
        loses(ctx, Of::Memory, &XFS)
    })
    .seconds(40)
    .on(NETNS),
    Test::pair("blkdev.ext4_filled_and_remounted_checks_clean", |ctx| {
        filled(ctx, Of::Cached, &EXT4)
    })
    .seconds(40)
    .on(NETNS),
    Test::pair("blkdev.xfs_filled_and_remounted_checks_clean", |ctx| {
        filled(ctx, Of::Device, &XFS)
    })
    .seconds(60)
    .on(SHM),
    Test::pair("blkdev.ext4_while_target_is_away_waits", |ctx| {
        outlives(ctx, Of::Cached, &EXT4)
    })
    .seconds(40)
    .on(TWO),
    Test::pair("blkdev.ext4_losing_its_disk_keeps_synced_files", |ctx| {
        loses(ctx, Of::Cached, &EXT4)
    })
    .seconds(40)
    .on(SHM),
    Test::pair("blkdev.xfs_losing_its_disk_keeps_synced_files", |ctx| {
        loses(ctx, Of::Cached, &XFS)
    })
    .seconds(40)
    .on(NETNS),
];

/// A kind of file system.
struct Kind {
    name: &'static str,
    size: &'static str,
    make: &'static [&'static str],
    check: &'static [&'static str],
}

const EXT4: Kind = Kind {
    name: "ext4",
    size: "24M",
    make: &["mkfs.ext4", "-q", "-F"],
    check: &["e2fsck", "-f", "-n"],
};

const XFS: Kind = Kind {
    name: "xfs",
    size: "64M",
    make: &["mkfs.xfs", "-q", "-f"],
    check: &["xfs_repair", "-n"],
};

impl Kind {
    /// Skips the test, on both nodes alike, if the file system or its tools are missing.
    fn needed(&self) -> Result<()> {
        for program in [self.make[0], self.check[0]] {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            if !std::env::split_paths(&paths).any(|dir| dir.join(program).is_file()) {
                return skip(format!("{program} is not there"));
            }
        }
        let _ = Command::new("modprobe").arg(self.name).output();
        let all = fs::read_to_string("/proc/filesystems")?;
        if !all
            .lines()
            .any(|l| l.split_whitespace().last() == Some(self.name))
        {
            return skip(format!("this kernel has no {}", self.name));
        }
        Ok(())
    }

    fn run(words: &[&str], device: &Path) -> Result<()> {
        let mut cmd = Command::new(words[0]);
        // With these, mkfs.xfs makes a file system as small as xfstests use.
        for name in ["TEST_DEV", "TEST_DIR", "QA_CHECK_FS"] {
            cmd.env(name, "1");
        }
        let out = cmd.args(&words[1..]).arg(device).output()?;
        let said = String::from_utf8_lossy(&out.stdout);
        let err = String::from_utf8_lossy(&out.stderr);
        ensure!(
            out.status.success(),
            "{words:?}: {}: {said}{err}",
            out.status
        );
        Ok(())
    }

    fn make(&self, device: &Path) -> Result<()> {
        Self::run(self.make, device)
    }

    fn check(&self, device: &Path) -> Result<()> {
        Self::run(self.check, device).with_context(|| format!("{WRONG_DATA}the file system"))
    }

    fn mount(&self, device: &Path) -> Result<Mounted> {
        Mounted::new(device, self.name)
    }
}

/// Returns the bytes of file `n`.
fn bytes(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1000 + (n as usize * 7919) % 300_000];
    fill(&mut bytes, n, 7);
    bytes
}

fn path(mounted: &Mounted, n: u64) -> PathBuf {
    let dir = mounted.0.join(format!("dir-{}", n % 5));
    dir.join(format!("file-{n}"))
}

/// Writes file `n`, and syncs it to the disk.
fn write(mounted: &Mounted, n: u64) -> io::Result<()> {
    let path = path(mounted, n);
    fs::create_dir_all(path.parent().unwrap_or(&mounted.0))?;
    let mut file = File::create(&path)?;
    file.write_all(&bytes(n))?;
    file.sync_all()
}

fn right(mounted: &Mounted, n: u64) -> Result<()> {
    let path = path(mounted, n);
    let got = fs::read(&path).with_context(|| path.display().to_string())?;
    ensure!(got == bytes(n), "{WRONG_DATA}{} differs", path.display());
    Ok(())
}

/// Fills a file system until no file fits any more; removes some files, and writes them again.
fn filled(ctx: &mut Ctx, of: Of, kind: &Kind) -> Result<()> {
    kind.needed()?;
    of.with_disk(ctx, kind.size, &[], |ctx, device| {
        if ctx.first() {
            return Ok(());
        }
        kind.make(device)?;
        let mounted = kind.mount(device)?;
        let mut all = Vec::new();
        for n in 0.. {
            match write(&mounted, n) {
                Ok(()) => all.push(n),
                Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                    let _ = fs::remove_file(path(&mounted, n));
                    break;
                }
                Err(e) => return Err(e).context(format!("file {n}")),
            }
        }
        ensure!(all.len() > 40, "{} files fill it", all.len());
        let (gone, mut kept): (Vec<u64>, Vec<u64>) = all.into_iter().partition(|n| n % 3 == 0);
        for n in &gone {
            fs::remove_file(path(&mounted, *n))?;
        }
        for n in gone.iter().skip(1).step_by(2) {
            write(&mounted, *n)?;
            kept.push(*n);
        }
        mounted.unmount()?;
        kind.check(device)?;
        // Reconnect, so that no byte comes from a cache.
        disconnect(NAME)?;
        let device = connect(ctx, NAME, &[])?;
        kind.check(&device)?;
        let mounted = kind.mount(&device)?;
        kept.iter().try_for_each(|n| right(&mounted, *n))?;
        ensure!(!path(&mounted, 0).exists(), "a removed file is back");
        mounted.unmount()?;
        kind.check(&device)
    })
}

/// Number of files, which all fit.
const FILES: u64 = 60;

/// Writes files over and over while `during` runs. Returns the number of writes, and the error that
/// stopped them.
fn busy(
    mounted: &Mounted,
    during: impl FnOnce(&AtomicU64) -> Result<()>,
) -> Result<(u64, Option<io::Error>)> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                if let Err(e) = write(mounted, n % FILES) {
                    return (n, Some(e));
                }
                n += 1;
                done.store(n, Ordering::Relaxed);
            }
            (n, None)
        });
        let told = during(&done);
        if let Err(e) = &told {
            // The writer may be stuck.
            eprintln!("{e:#}");
        }
        stop.store(true, Ordering::Relaxed);
        let ended = writer.join().map_err(|_| anyhow::anyhow!("panicked"))?;
        told.map(|()| ended)
    })
}

fn gets_on(done: &AtomicU64) -> Result<()> {
    let before = done.load(Ordering::Relaxed);
    until("files are written", Duration::from_secs(60), || {
        Ok((done.load(Ordering::Relaxed) > before + 5).then_some(()))
    })
}

/// The target disappears and comes back: writers wait, and get no error.
fn outlives(ctx: &mut Ctx, of: Of, kind: &Kind) -> Result<()> {
    const TIMES: usize = 2;
    kind.needed()?;
    let options = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "600"];
    of.with_disk(ctx, kind.size, &options, |ctx, device| {
        if ctx.first() {
            ctx.barrier("mounted")?;
            for _ in 0..TIMES {
                std::thread::sleep(Duration::from_millis(700));
                offer(ctx, false)?;
                std::thread::sleep(Duration::from_millis(1500));
                offer(ctx, true)?;
                ctx.barrier("again")?;
            }
            return Ok(());
        }
        kind.make(device)?;
        let mounted = kind.mount(device)?;
        ctx.barrier("mounted")?;
        let (count, failed) = busy(&mounted, |done| {
            for _ in 0..TIMES {
                ctx.barrier("again")?;
                gets_on(done)?;
            }
            Ok(())
        })?;
        if let Some(e) = failed {
            bail!("file {count}: {e}");
        }
        mounted.unmount()?;
        kind.check(device)?;
        let mounted = kind.mount(device)?;
        (0..count.min(FILES)).try_for_each(|n| right(&mounted, n))?;
        mounted.unmount()
    })
}

/// The disk is removed under a file system that is written to: writers get errors, and the file
/// system can be unmounted. Through the next disk every file is there that had been synced before.
///
/// A file that is being synced at the removal has no known state: ext4 may report that it is on the
/// disk when it is not (see TESTING.md).
fn loses(ctx: &mut Ctx, of: Of, kind: &Kind) -> Result<()> {
    kind.needed()?;
    let loaded = of.begin(ctx, kind.size)?;
    if !ctx.first() {
        let device = connect(ctx, NAME, &[])?;
        kind.make(&device)?;
        let mounted = kind.mount(&device)?;
        let mut before = 0;
        let (count, failed) = busy(&mounted, |done| {
            gets_on(done)?;
            before = done.load(Ordering::Relaxed);
            disconnect_used(NAME)?;
            // Writes fail, and do not wait.
            until("it fails", Duration::from_secs(30), || {
                Ok(write(&mounted, 1000).is_err().then_some(()))
            })
        })?;
        let failed = failed.context("the writer writes to nothing")?;
        mounted.unmount()?;
        let device = connect(ctx, NAME, &[])?;
        let mounted = kind.mount(&device)?;
        // Except files that were being written anew.
        let anew: Vec<u64> = (before..=count).map(|n| n % FILES).collect();
        let kept: Vec<u64> = (0..before.min(FILES))
            .filter(|n| !anew.contains(n))
            .collect();
        ensure!(!kept.is_empty(), "{count} were written, {before} before");
        kept.iter()
            .try_for_each(|n| right(&mounted, *n))
            .with_context(|| format!("{before} were written, {count} in all, then: {failed}"))?;
        mounted.unmount()?;
        kind.check(&device)?;
        disconnect(NAME)?;
    }
    end(ctx, loaded)
}
