// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: whether a block-backed disk reconnects to the device that it had before. Node 1 has the
//! target; in some tests a program plays a target that has restarted.

use super::blk_device::{export, Backing, CACHED, PLAIN};
use super::blk_liar::{patiently, welcome, Fake};
use crate::disk::{
    connect, disconnect, is_filled, kfi, show, store, wait_state, write_filled, Disk, Loaded, MIB,
    NAME,
};
use crate::harness::guest::{load, unload, until};
use crate::harness::{Ctx, Test, NETNS, TWO};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use kfabric_pure::blk::device::{Limits, Op};
use kfabric_pure::blk::Welcome;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "blkdev.reconnect_after_restart_with_unflushed_writes_fails_disk",
        unflushed,
    )
    .seconds(120)
    .on(NETNS),
    Test::pair(
        "blkdev.reconnect_to_changed_identity_or_smaller_size_fails_disk",
        identity,
    )
    .seconds(120)
    .on(NETNS),
    Test::pair("blkdev.reconnect_to_replaced_device_fails_disk", another)
        .seconds(60)
        .on(NETNS),
    Test::pair("blkdev.connect_during_resize_ends_with_final_size", resized)
        .seconds(60)
        .on(NETNS),
    Test::pair(
        "blkdev.target_restart_with_unflushed_writes_fails_disk",
        starts_again,
    )
    .seconds(60)
    .on(TWO),
];

/// Options of an initiator that tries to reconnect for as long as any test goes on.
const PATIENT: [&str; 6] = [
    "-i",
    "1",
    "--reconnect-delay",
    "1",
    "--ctrl-loss-tmo",
    "600",
];
/// Time within which a disk must be given up.
const DEAD: Duration = Duration::from_secs(60);

/// State of the disk's writes before its target is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Written,
    Flushed,
    /// A write has succeeded while a flush that was sent before it was outstanding.
    WrittenMeanwhile,
}

/// Position that the initiator reads after its last step before the loss.
const MARK: usize = 6 * MIB;

/// A target that is removed and comes back as `now`.
struct Case {
    before: Before,
    first: Welcome,
    now: Welcome,
    /// True if the disk must go on.
    stays: bool,
}

/// Returns the welcome of a target whose device has a write cache.
fn cached() -> Welcome {
    Welcome {
        device: Some(Limits {
            cache: true,
            physical: 512,
            ..Limits::default()
        }),
        ..welcome()
    }
}

/// Plays each case with a disk.
fn meet(ctx: &mut Ctx, cases: &[Case]) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    for (i, case) in cases.iter().enumerate() {
        if ctx.first() {
            is_met(ctx, case)
        } else {
            meets(ctx, case)
        }
        .with_context(|| format!("case {i}"))?;
        ctx.barrier("round")?;
    }
    loaded.end(ctx)
}

/// Node 1's half: the target.
fn is_met(ctx: &mut Ctx, case: &Case) -> Result<()> {
    let fake = Fake::with(ctx, &case.first, &[false, true])?;
    let mut flush = None;
    loop {
        let request = fake.request()?.context("the disk is gone")?;
        if request.op == Op::Flush && case.before == Before::WrittenMeanwhile {
            flush = Some(request);
            ctx.barrier("flushing")?;
            continue;
        }
        fake.reply(&request)?;
        if request.op == Op::Write {
            if let Some(flush) = flush.take() {
                fake.reply(&flush)?;
            }
        }
        if request.op == Op::Read && request.pos == MARK as u64 {
            break;
        }
    }
    ctx.barrier("told")?;
    fake.end()?;
    ctx.barrier("gone")?;
    let fake = Fake::with(ctx, &case.now, &[true])?;
    while let Some(request) = fake.request()? {
        // The disk may have disconnected just now.
        let _ = fake.reply(&request);
    }
    fake.end()
}

/// Node 2's half: the disk.
fn meets(ctx: &mut Ctx, case: &Case) -> Result<()> {
    let device = patiently(ctx, &PATIENT)?;
    let disk = Disk::open(&device)?;
    let map = Map::anon(4096)?;
    match case.before {
        Before::Nothing => {}
        Before::Written => write_filled(&disk, &map, MIB, 4096, 1)?,
        Before::Flushed => {
            write_filled(&disk, &map, MIB, 4096, 1)?;
            disk.file.sync_all()?;
        }
        Before::WrittenMeanwhile => std::thread::scope(|scope| -> Result<()> {
            let flush = scope.spawn(|| disk.file.sync_all());
            let told = ctx.barrier("flushing");
            write_filled(&disk, &map, MIB, 4096, 1)?;
            flush.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            told
        })?,
    }
    disk.read(MARK, &map, 512)?;
    ctx.barrier("told")?;
    ctx.barrier("gone")?;
    goes_on(&disk, true, case.stays)?;
    drop(disk);
    disconnect(NAME)
}

/// Checks that the disk goes on, or fails with errors, as `stays` says. A disk without a write
/// cache is never asked to flush.
fn goes_on(disk: &Disk, cached: bool, stays: bool) -> Result<()> {
    let map = Map::anon(4096)?;
    let read = disk.read(2 * MIB, &map, 512);
    ensure!(read.is_ok() == stays, "read: {read:?}");
    let flushed = disk.file.sync_all();
    ensure!(
        flushed.is_ok() == (stays || !cached),
        "flushed: {flushed:?}"
    );
    if stays {
        ensure!(show("disks", NAME, "state")? == "live");
        return Ok(());
    }
    wait_state(NAME, "dead", DEAD)
}

/// Reconnects to a target that has restarted, so may have lost acknowledged, unflushed writes: the
/// disk fails, and a flush returns an error.
fn unflushed(ctx: &mut Ctx) -> Result<()> {
    let first = cached();
    let again = Welcome { boot: 2, ..first };
    let through = |of: Welcome| Welcome {
        device: welcome().device,
        ..of
    };
    let case = |before, now, stays| Case {
        before,
        first,
        now,
        stays,
    };
    let cases = [
        case(Before::Nothing, again, true),
        case(Before::Written, again, false),
        case(Before::Flushed, again, true),
        case(Before::WrittenMeanwhile, again, false),
        // Only the connection was lost.
        case(Before::Written, first, true),
        // A write-through device cannot lose acknowledged writes.
        Case {
            before: Before::Written,
            first: through(first),
            now: through(again),
            stays: true,
        },
    ];
    meet(ctx, &cases)
}

/// Checks the device's identity on reconnect: while the target runs, by its sequence number; after
/// a restart, by size and names only.
fn identity(ctx: &mut Ctx) -> Result<()> {
    let first = cached();
    let sized = |of: Welcome, capacity| {
        let mut of = of;
        of.geometry.capacity = capacity;
        of
    };
    let another = Welcome { seq: 2, ..first };
    let again = Welcome { boot: 2, ..another };
    let whole = first.geometry.capacity;
    let cases = [
        (another, false),
        (again, true),
        (sized(again, whole / 2), false),
        (sized(again, whole * 2), true),
        // The running target has reported this shrinking.
        (sized(first, whole / 2), true),
    ]
    .map(|(now, stays)| Case {
        before: Before::Nothing,
        first,
        now,
        stays,
    });
    meet(ctx, &cases)
}

/// Replaces the exported device while the disk is away: the disk fails.
fn another(ctx: &mut Ctx) -> Result<()> {
    const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";
    const OTHER: &str = "11234567-89ab-cdef-0123-456789abcdef";
    for (what, stays) in [("nothing", true), ("its UUID", false), ("it", false)] {
        let loaded = Loaded::new(ctx)?;
        let mut backing = None;
        if ctx.first() {
            let made = Backing::null(PLAIN)?;
            export(ctx, made.path(), &["--uuid", UUID])?;
            ensure!(show("subsystems", NAME, "device_uuid")? == UUID);
            let e = store("subsystems", NAME, "device_uuid", OTHER).err();
            let e = e.and_then(|e| e.raw_os_error());
            ensure!(e == Some(libc::EBUSY), "{e:?}");
            backing = Some(made);
        }
        ctx.barrier("exported")?;
        if let Some(mut backing) = backing {
            ctx.barrier("written")?;
            store("subsystems", NAME, "enable", "0")?;
            match what {
                "its UUID" => store("subsystems", NAME, "device_uuid", OTHER)?,
                "it" => {
                    backing.end()?;
                    backing = Backing::null(PLAIN)?;
                }
                _ => {}
            }
            store("subsystems", NAME, "enable", "1")?;
            ctx.barrier("again")?;
            ctx.barrier("seen")?;
            kfi(&["unexport", NAME])?;
            backing.end()?;
        } else {
            let device = connect(ctx, NAME, &PATIENT)?;
            let disk = Disk::open(&device)?;
            let map = Map::anon(4096)?;
            write_filled(&disk, &map, MIB, 4096, 1)?;
            ctx.barrier("written")?;
            ctx.barrier("again")?;
            goes_on(&disk, false, stays).with_context(|| format!("replaced: {what}"))?;
            drop(disk);
            disconnect(NAME)?;
            ctx.barrier("seen")?;
        }
        loaded.end(ctx)?;
    }
    Ok(())
}

/// Plays the unflushed case with a target that really restarts.
fn starts_again(ctx: &mut Ctx) -> Result<()> {
    for flushed in [true, false] {
        let loaded = Loaded::new(ctx)?;
        let mut backing = None;
        if ctx.first() {
            let made = Backing::null(CACHED)?;
            export(ctx, made.path(), &[])?;
            backing = Some(made);
        }
        ctx.barrier("exported")?;
        if let Some(backing) = backing {
            ctx.barrier("written")?;
            kfi(&["unexport", NAME])?;
            unload("kfblk")?;
            load("kfblk")?;
            export(ctx, backing.path(), &[])?;
            ctx.barrier("again")?;
            ctx.barrier("seen")?;
            kfi(&["unexport", NAME])?;
            backing.end()?;
        } else {
            let device = connect(ctx, NAME, &PATIENT)?;
            let disk = Disk::open(&device)?;
            let map = Map::anon(4096)?;
            write_filled(&disk, &map, MIB, 4096, 1)?;
            if flushed {
                disk.file.sync_all()?;
            }
            ctx.barrier("written")?;
            ctx.barrier("again")?;
            goes_on(&disk, true, flushed)?;
            if flushed {
                disk.read(MIB, &map, 4096)?;
                let mut got = vec![0; 4096];
                map.read(0, &mut got);
                is_filled(&got, MIB, 1)?;
            }
            drop(disk);
            disconnect(NAME)?;
            ctx.barrier("seen")?;
        }
        loaded.end(ctx)?;
    }
    Ok(())
}

/// Resizes a device all the time while initiators connect: each is admitted and ends with the final
/// size.
fn resized(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: usize = 20;
    let loaded = Loaded::new(ctx)?;
    if !ctx.first() {
        ctx.barrier("exported")?;
        for round in 0..ROUNDS {
            let device = connect(ctx, NAME, &["-i", "4"]).with_context(|| format!("{round}"))?;
            ctx.barrier("connected")?;
            let want: u64 = ctx.ctl.recv()?;
            until("it has that size", Duration::from_secs(10), || {
                Ok((Disk::open(&device)?.size as u64 == want).then_some(()))
            })?;
            ensure!(show("disks", NAME, "state")? == "live");
            disconnect(NAME)?;
            ctx.barrier("seen")?;
        }
        return loaded.end(ctx);
    }
    let backing = Backing::file(16 << 20)?;
    export(ctx, backing.path(), &[])?;
    ctx.barrier("exported")?;
    for _ in 0..ROUNDS {
        let over = AtomicBool::new(false);
        let size = std::thread::scope(|scope| -> Result<u64> {
            let resizer = scope.spawn(|| -> Result<u64> {
                for round in 1u64.. {
                    let size = (16 << 20) + (round % 8) * 4096;
                    backing.resize(size)?;
                    store("subsystems", NAME, "revalidate_size", "1")?;
                    if over.load(Ordering::Relaxed) {
                        return Ok(size);
                    }
                    // An initiator must receive the whole notification.
                    std::thread::sleep(Duration::from_millis(2));
                }
                Ok(0)
            });
            let told = ctx.barrier("connected");
            over.store(true, Ordering::Relaxed);
            let size = resizer.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            told.map(|()| size)
        })?;
        ctx.ctl.send(&size)?;
        ctx.barrier("seen")?;
    }
    kfi(&["unexport", NAME])?;
    backing.end()?;
    loaded.end(ctx)
}
