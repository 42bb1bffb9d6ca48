// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: block-backed exports. Node 1 has the device, and reads it directly; node 2 has the disk.

use super::blk::make_fs;
use crate::disk::{
    connect, disconnect, disconnect_used, fill, is_filled, kfi, offer, show, store, write_filled,
    Disk, Loaded, Mounted, MIB, NAME, NULLB,
};
pub(super) use crate::disk::{export_device as export, Backing};
use crate::harness::guest::{run, until};
use crate::harness::weather::{self, Weather};
use crate::harness::{Ctx, Test, NETNS, SHM, TWO, WRONG_DATA};
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blkdev.rw_of_each_size_reads_back", reads_and_writes)
        .seconds(40)
        .on(NETNS | TWO | SHM),
    Test::pair("blkdev.rw_of_odd_pieces_reads_back", odd_pieces)
        .seconds(20)
        .on(NETNS | SHM),
    Test::pair(
        "blkdev.rw_from_many_queues_at_once_reads_back",
        many_at_once,
    )
    .seconds(40)
    .on(NETNS | SHM),
    Test::pair("blkdev.limits_of_disk_match_the_device", limits)
        .seconds(20)
        .on(NETNS),
    Test::pair("blkdev.rw_of_large_blocks_reads_back", large_blocks)
        .seconds(20)
        .on(NETNS),
    Test::pair(
        "blkdev.flush_and_fua_on_disk_reach_the_device",
        flush_and_fua,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "blkdev.discard_and_zeroes_on_disk_reach_the_device",
        discard_and_zeroes,
    )
    .seconds(20)
    .on(NETNS),
    Test::pair("blkdev.write_to_read_only_export_is_refused", read_only)
        .seconds(20)
        .on(NETNS),
    Test::pair("blkdev.resize_of_device_resizes_the_disk", resize)
        .seconds(30)
        .on(NETNS),
    Test::pair(
        "blkdev.resize_while_initiator_is_deaf_reports_last_size",
        resize_unheard,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair("blkdev.device_error_in_one_request_fails_it_alone", errors)
        .seconds(20)
        .on(NETNS),
    Test::pair("blkdev.export_of_unsuitable_path_is_refused", refusals)
        .seconds(20)
        .on(NETNS),
    Test::pair("blkdev.target_back_in_time_resumes_io", target_comes_back)
        .seconds(90)
        .on(NETNS | SHM),
    Test::pair(
        "blkdev.disconnect_of_mounted_disk_fails_its_io",
        removed_while_mounted,
    )
    .seconds(30)
    .on(NETNS),
    Test::pair("blkdev.key_of_completed_request_is_revoked", keys)
        .seconds(20)
        .on(NETNS | SHM),
    Test::pair(
        "blkdev.p03_fence_during_writes_lets_no_byte_land_after_return",
        fence,
    )
    .seconds(60)
    .on(NETNS | SHM),
];

/// Options of a `null_blk` device of 16 MiB.
pub(super) const PLAIN: &[(&str, &str)] = &[];
/// Options of a device with a volatile cache that no write bypasses.
pub(super) const CACHED: &[(&str, &str)] = &[("cache_size", "8"), ("fua", "0")];

/// State of a node in [`with`].
pub(super) enum End<'a> {
    Target(&'a Backing),
    Client(&'a Path),
}

/// Loads the module, exports a device of node 1, connects a disk on node 2, runs `test` on both,
/// and removes everything.
pub(super) fn with(
    ctx: &mut Ctx,
    make: impl FnOnce() -> Result<Backing>,
    options: (&[&str], &[&str]),
    test: impl FnOnce(&mut Ctx, End<'_>) -> Result<()>,
) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    let mut backing = None;
    let mut device = PathBuf::new();
    if ctx.first() {
        let made = make()?;
        export(ctx, made.path(), options.0)?;
        backing = Some(made);
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        device = connect(ctx, NAME, options.1)?;
    }
    ctx.barrier("connected")?;
    match &backing {
        Some(backing) => test(ctx, End::Target(backing))?,
        None => test(ctx, End::Client(&device))?,
    }
    ctx.barrier("tested")?;
    if !ctx.first() {
        disconnect(NAME)?;
        ensure!(!device.exists(), "{} is still there", device.display());
    }
    ctx.barrier("disconnected")?;
    if let Some(backing) = backing {
        kfi(&["unexport", NAME])?;
        // Exclusive use shows that no other user has the device.
        File::options()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(backing.path())
            .context("after it was exported")?;
        backing.end()?;
    }
    loaded.end(ctx)
}

/// Writes all but the last sector in every size, at odd positions, and reads it back.
fn write_all(disk: &Disk, round: u64) -> Result<()> {
    let map = Map::anon(4 * MIB)?;
    let sizes = [
        512,
        4096,
        4096 + 512,
        8192,
        12 * 512,
        64 << 10,
        128 << 10,
        (128 << 10) + 512,
        MIB,
        3 * MIB,
    ];
    let (mut at, mut i) = (0, 0);
    let end = disk.size - 512;
    while at < end {
        let len = sizes[i % sizes.len()].min(end - at);
        write_filled(disk, &map, at, len, round).with_context(|| format!("{len} at {at}"))?;
        at += len;
        i += 1;
    }
    is_filled(&disk.contents()?[..end], 0, round)?;
    for (at, len) in [
        (511 * 512, 1024),
        (MIB - 512, 1024),
        (5 * 512, 3 * MIB),
        (512, 4096),
        (1024, 64 << 10),
    ] {
        disk.read(at, &map, len)?;
        let mut got = vec![0; len];
        map.read(0, &mut got);
        is_filled(&got, at, round)?;
    }
    Ok(())
}

fn reads_and_writes(ctx: &mut Ctx) -> Result<()> {
    with(
        ctx,
        || Backing::null(PLAIN),
        (&[], &[]),
        |ctx, end| {
            let last = 16 * MIB - 512;
            match end {
                End::Target(backing) => {
                    ctx.barrier("written")?;
                    let all = backing.contents()?;
                    is_filled(&all[..last], 0, 1)?;
                    ensure!(all[last..].iter().all(|b| *b == 0), "the last");
                    Ok(())
                }
                End::Client(path) => {
                    let disk = Disk::open(path)?;
                    ensure!(disk.size == 16 * MIB, "{} bytes", disk.size);
                    ensure!(disk.contents()?.iter().all(|b| *b == 0), "not zeroed");
                    write_all(&disk, 1)?;
                    let past = disk.read(disk.size, &Map::anon(4096)?, 512);
                    ensure!(past.is_err(), "read behind the end");
                    // In pieces that are not whole pages.
                    let map = Map::anon(MIB)?;
                    write_filled(&disk, &map, 0, 512, 1)?;
                    ctx.barrier("written")
                }
            }
        },
    )
}

/// Uses memory that neither begins nor ends with a page, in pieces with gaps: each byte arrives at
/// its place, and no byte between them changes.
fn odd_pieces(ctx: &mut Ctx) -> Result<()> {
    const AT: usize = 3 * 512;
    const PARTS: &[(usize, usize)] = &[
        (512, 1536),
        (8192, 8192),
        (20480 + 3584, 512),
        (28672 + 512, 7 * 512),
        (32768 + 4096, (128 << 10) + 512),
        ((256 << 10) + 512, 128 << 10),
        ((512 << 10) + 3584, 300 << 10),
    ];
    const BACK: &[(usize, usize)] = &[
        ((900 << 10) + 1024, 64 << 10),
        (512, 5 * 512),
        (4096 + 512, 7 * 512),
        ((100 << 10) + 2048, 500 << 10),
    ];
    let len = |parts: &[(usize, usize)]| parts.iter().map(|part| part.1).sum::<usize>();
    with(
        ctx,
        || Backing::null(PLAIN),
        (&[], &[]),
        |ctx, end| match end {
            End::Target(backing) => {
                ctx.barrier("written")?;
                is_filled(&backing.contents()?[AT..AT + len(PARTS)], AT, 1)
            }
            End::Client(path) => {
                let disk = Disk::open(path)?;
                let map = Map::anon(MIB)?;
                let mut bytes = vec![0; len(PARTS)];
                fill(&mut bytes, (AT / 512) as u64, 1);
                let mut rest = &bytes[..];
                for (from, n) in PARTS {
                    let (part, next) = rest.split_at(*n);
                    map.write(*from, part);
                    rest = next;
                }
                let done = map.transfer_parts(disk.file.as_fd(), AT as u64, PARTS, true)?;
                ensure!(done == len(PARTS), "wrote {done}");
                let none = vec![0xee; MIB];
                map.write(0, &none);
                let done = map.transfer_parts(disk.file.as_fd(), AT as u64, BACK, false)?;
                ensure!(done == len(BACK), "read {done}");
                let mut want = none;
                let mut rest = &bytes[..];
                for (from, n) in BACK {
                    let (part, next) = rest.split_at(*n);
                    want[*from..*from + *n].copy_from_slice(part);
                    rest = next;
                }
                let mut got = vec![0; MIB];
                map.read(0, &mut got);
                let wrong = got.iter().zip(&want).position(|(a, b)| a != b);
                ensure!(wrong.is_none(), "{WRONG_DATA}memory differs at {wrong:?}");
                ctx.barrier("written")
            }
        },
    )
}

/// Threads write and read parts of their own, in rounds, until `over`.
fn work(path: &Path, over: impl Fn(u64) -> bool + Sync, done: &AtomicU64) -> Result<()> {
    const THREADS: usize = 8;
    const PART: usize = 2 * MIB;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..THREADS)
            .map(|n| {
                let over = &over;
                scope.spawn(move || -> Result<()> {
                    let disk = Disk::open(path)?;
                    let map = Map::anon(256 << 10)?;
                    for round in 0.. {
                        if over(round) {
                            break;
                        }
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
                        done.fetch_add(1, Ordering::Relaxed);
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
}

fn many_at_once(ctx: &mut Ctx) -> Result<()> {
    with(
        ctx,
        || Backing::null(&[("irqmode", "2"), ("completion_nsec", "100000")]),
        (&[], &["-i", "2"]),
        |_, end| match end {
            End::Target(_) => Ok(()),
            End::Client(path) => work(path, |round| round == 2, &AtomicU64::new(0)),
        },
    )
}

fn queue_of(device: &Path, what: &str) -> Result<String> {
    let name = device.file_name().context("no name")?;
    let path = Path::new("/sys/block").join(name).join("queue").join(what);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

fn limits(ctx: &mut Ctx) -> Result<()> {
    let options = [
        ("cache_size", "8"),
        ("fua", "1"),
        ("discard", "1"),
        ("rotational", "1"),
    ];
    with(
        ctx,
        || Backing::null(&options),
        (&[], &["-i", "3"]),
        |ctx, end| match end {
            End::Target(backing) => {
                let clients = show("subsystems", NAME, "clients")?;
                ensure!(clients.lines().count() == 3, "{clients}");
                for (what, value) in [("device_path", "/dev/x"), ("attr_read_only", "1")] {
                    let e = store("subsystems", NAME, what, value).err();
                    let e = e.and_then(|e| e.raw_os_error());
                    ensure!(e == Some(libc::EBUSY), "{what}: {e:?}");
                }
                let list = kfi(&["list"])?;
                let line = format!("export {NAME}: {}, read-write", backing.path().display());
                ensure!(list.contains(&line), "{list}");
                // The device is in exclusive use.
                let e = File::options()
                    .read(true)
                    .custom_flags(libc::O_EXCL)
                    .open(backing.path())
                    .err();
                let e = e.and_then(|e| e.raw_os_error());
                ensure!(e == Some(libc::EBUSY), "{e:?}");
                let of = |what| queue_of(backing.path(), what);
                ctx.ctl.send(&[
                    of("logical_block_size")?,
                    of("physical_block_size")?,
                    of("write_cache")?,
                    of("fua")?,
                    of("rotational")?,
                    of("discard_granularity")?,
                ])
            }
            End::Client(path) => {
                let want: [String; 6] = ctx.ctl.recv()?;
                let names = [
                    "logical_block_size",
                    "physical_block_size",
                    "write_cache",
                    "fua",
                    "rotational",
                    "discard_granularity",
                ];
                for (name, want) in names.iter().zip(&want) {
                    let got = queue_of(path, name)?;
                    ensure!(got == *want, "{name} is {got}, not {want}");
                }
                ensure!(want[2] == "write back" && want[3] == "1", "{want:?}");
                for (name, want) in [("max_hw_sectors_kb", "128"), ("chunk_sectors", "0")] {
                    let got = queue_of(path, name)?;
                    ensure!(got == want, "{name} is {got}, not {want}");
                }
                ensure!(queue_of(path, "discard_max_hw_bytes")? != "0", "no discard");
                Ok(())
            }
        },
    )
}

fn large_blocks(ctx: &mut Ctx) -> Result<()> {
    with(
        ctx,
        || Backing::null(&[("blocksize", "4096")]),
        (&[], &[]),
        |_, end| match end {
            End::Target(_) => Ok(()),
            End::Client(path) => {
                ensure!(queue_of(path, "logical_block_size")? == "4096");
                let disk = Disk::open(path)?;
                let map = Map::anon(MIB)?;
                for at in (0..4 * MIB).step_by(MIB) {
                    write_filled(&disk, &map, at, MIB, 3)?;
                }
                is_filled(&disk.contents()?[..4 * MIB], 0, 3)?;
                let odd = disk.write(512, &map, 512);
                ensure!(odd.is_err(), "half a block");
                Ok(())
            }
        },
    )
}

fn flush_and_fua(ctx: &mut Ctx) -> Result<()> {
    with(
        ctx,
        || Backing::null(CACHED),
        (&[], &[]),
        |ctx, end| match end {
            End::Target(backing) => {
                let mut before = backing.flushes()?;
                for step in ["written", "synced", "through"] {
                    ctx.barrier("go")?;
                    ctx.barrier(step)?;
                    let now = backing.flushes()?;
                    let want = step != "written";
                    ensure!((now > before) == want, "{step}: {before}, then {now}");
                    before = now;
                }
                is_filled(&backing.contents()?[..MIB + 8192], 0, 4)
            }
            End::Client(path) => {
                let disk = Disk::open(path)?;
                let map = Map::anon(MIB)?;
                ctx.barrier("go")?;
                write_filled(&disk, &map, 0, MIB, 4)?;
                ctx.barrier("written")?;
                ctx.barrier("go")?;
                disk.file.sync_all()?;
                ctx.barrier("synced")?;
                let through = Disk {
                    file: File::options()
                        .write(true)
                        .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
                        .open(path)?,
                    size: disk.size,
                };
                ctx.barrier("go")?;
                write_filled(&through, &map, MIB, 8192, 4)?;
                ctx.barrier("through")
            }
        },
    )
}

/// Issues `BLKDISCARD` or `BLKZEROOUT`.
fn range(disk: &Disk, zeroes: bool, at: u64, len: u64) -> Result<()> {
    let nr = if zeroes { 0x127f } else { 0x1277 };
    let arg = [at, len];
    sys::ioctl(disk.file.as_fd(), nr, arg.as_ptr() as usize)?;
    Ok(())
}

fn discard_and_zeroes(ctx: &mut Ctx) -> Result<()> {
    let null = || Backing::null(&[("discard", "1")]);
    let file = || Backing::file(16 << 20);
    let all: [&dyn Fn() -> Result<Backing>; 2] = [&null, &file];
    for make in all {
        with(ctx, make, (&[], &[]), |ctx, end| match end {
            End::Target(backing) => {
                ctx.barrier("done")?;
                let all = backing.contents()?;
                is_filled(&all[..MIB], 0, 5)?;
                ensure!(all[MIB..4 * MIB].iter().all(|b| *b == 0), "discarded");
                is_filled(&all[4 * MIB..5 * MIB], 4 * MIB, 5)?;
                ensure!(all[5 * MIB..7 * MIB].iter().all(|b| *b == 0), "zeroed");
                is_filled(&all[7 * MIB..8 * MIB], 7 * MIB, 5)
            }
            End::Client(path) => {
                let disk = Disk::open(path)?;
                let map = Map::anon(MIB)?;
                for at in (0..8 * MIB).step_by(MIB) {
                    write_filled(&disk, &map, at, MIB, 5)?;
                }
                range(&disk, false, 1 << 20, 3 << 20)?;
                range(&disk, true, 5 << 20, 2 << 20)?;
                let all = disk.contents()?;
                ensure!(all[MIB..4 * MIB].iter().all(|b| *b == 0), "discarded");
                ensure!(all[5 * MIB..7 * MIB].iter().all(|b| *b == 0), "zeroed");
                disk.file.sync_all()?;
                ctx.barrier("done")
            }
        })?;
    }
    Ok(())
}

fn read_only(ctx: &mut Ctx) -> Result<()> {
    with(
        ctx,
        || Backing::null(PLAIN),
        (&["--read-only"], &[]),
        |ctx, end| match end {
            End::Target(backing) => {
                ctx.barrier("tried")?;
                ensure!(backing.contents()?.iter().all(|b| *b == 0), "written");
                Ok(())
            }
            End::Client(path) => {
                let disk = Disk::open_as(path, false)?;
                ensure!(disk.contents()?.iter().all(|b| *b == 0));
                let map = Map::anon(4096)?;
                let wrote = Disk::open(path).map(|disk| disk.write(0, &map, 4096));
                ensure!(!matches!(wrote, Ok(Ok(()))), "written");
                ensure!(show("disks", NAME, "state")? == "live");
                ctx.barrier("tried")
            }
        },
    )
}

fn resize(ctx: &mut Ctx) -> Result<()> {
    let sizes = [24 << 20, 8 << 20, 16 << 20];
    with(
        ctx,
        || Backing::file(16 << 20),
        (&[], &["-i", "2"]),
        |ctx, end| {
            for (round, size) in sizes.into_iter().enumerate() {
                match end {
                    End::Target(backing) => {
                        backing.resize(size)?;
                        kfi(&["resize", NAME])?;
                    }
                    End::Client(path) => {
                        until("another size", Duration::from_secs(10), || {
                            Ok((Disk::open(path)?.size as u64 == size).then_some(()))
                        })?;
                        let disk = Disk::open(path)?;
                        let map = Map::anon(64 << 10)?;
                        let last = disk.size - (64 << 10);
                        write_filled(&disk, &map, last, 64 << 10, round as u64)?;
                        ensure!(disk.read(disk.size, &map, 512).is_err(), "behind the end");
                        ensure!(show("disks", NAME, "state")? == "live");
                    }
                }
                ctx.barrier("round")?;
            }
            Ok(())
        },
    )
}

/// The size changes more often than the target has message buffers while the initiator receives
/// nothing: when it receives again, it gets the last size.
fn resize_unheard(ctx: &mut Ctx) -> Result<()> {
    /// More than the target's send queue holds.
    const SIZES: u64 = 160;
    const LAST: u64 = (16 << 20) + SIZES * 4096;
    weather::prepare(&ctx.env)?;
    with(
        ctx,
        || Backing::file(16 << 20),
        (&[], &["-i", "1"]),
        |ctx, end| {
            let mut lasted = Duration::ZERO;
            match end {
                End::Target(backing) => {
                    let _silence = Weather::new(&ctx.env, "loss 100%")?;
                    let begun = Instant::now();
                    for i in 1..=SIZES {
                        backing.resize((16 << 20) + i * 4096)?;
                        store("subsystems", NAME, "revalidate_size", "1")?;
                    }
                    lasted = begun.elapsed();
                }
                End::Client(path) => {
                    until("the last size", Duration::from_secs(30), || {
                        Ok((Disk::open(path)?.size as u64 == LAST).then_some(()))
                    })?;
                }
            }
            ctx.barrier("told")?;
            // rxe gives a connection up after 3.8 s of silence, however slow the machine is.
            if ctx.first() && lasted < Duration::from_secs(3) {
                let clients = show("subsystems", NAME, "clients")?;
                // Over the first connection: a second one would have begun with the last size.
                ensure!(clients.contains("epoch 1 "), "{clients}");
            }
            Ok(())
        },
    )
}

fn errors(ctx: &mut Ctx) -> Result<()> {
    with(
        ctx,
        || Backing::null(PLAIN),
        (&[], &["-i", "1"]),
        |ctx, end| match end {
            End::Target(_) => {
                fs::write(Path::new(NULLB).join("badblocks"), "+2048-2055")?;
                ctx.barrier("bad")?;
                ctx.barrier("tried")?;
                let clients = show("subsystems", NAME, "clients")?;
                // The connection is still the first.
                ensure!(clients.contains("epoch 1 "), "{clients}");
                Ok(())
            }
            End::Client(path) => {
                ctx.barrier("bad")?;
                let disk = Disk::open(path)?;
                let map = Map::anon(MIB)?;
                for len in [512, 4096, 64 << 10] {
                    for write in [false, true] {
                        let done = match write {
                            true => write_filled(&disk, &map, MIB, len, 1),
                            false => disk.read(MIB, &map, len),
                        };
                        let e = done.err().and_then(|e| e.raw_os_error());
                        ensure!(e == Some(libc::EIO), "{len} {write}: {e:?}");
                        write_filled(&disk, &map, 0, len, 1)?;
                        disk.read(2 * MIB, &map, len)?;
                    }
                }
                ensure!(show("disks", NAME, "state")? == "live");
                ctx.barrier("tried")
            }
        },
    )
}

fn refusals(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    if ctx.first() {
        let fails = |path: &str, errno: i32| -> Result<()> {
            let e = format!("(os error {errno})");
            match export(ctx, Path::new(path), &[]) {
                Ok(()) => bail!("{path} is exported"),
                Err(got) if format!("{got:#}").contains(&e) => Ok(()),
                Err(got) => bail!("{path}: {got:#}, not {errno}"),
            }
        };
        fails("/dev/there-is-none", libc::ENOENT)?;
        fails("dev/null", libc::EINVAL)?;
        fails("/dev/null", libc::ENOTBLK)?;
        fails("/tmp", libc::ENOTBLK)?;
        match Backing::null(&[("zoned", "1"), ("zone_size", "4")]) {
            Ok(zoned) => {
                fails(&zoned.path().display().to_string(), libc::EOPNOTSUPP)?;
                zoned.end()?;
            }
            Err(e) => eprintln!("no zones: {e:#}"),
        }
        let backing = Backing::null(PLAIN)?;
        {
            let _mine = File::options()
                .read(true)
                .custom_flags(libc::O_EXCL)
                .open(backing.path())?;
            fails(&backing.path().display().to_string(), libc::EBUSY)?;
        }
        ensure!(kfi(&["list"])?.is_empty());
        export(ctx, backing.path(), &[])?;
        kfi(&["unexport", NAME])?;
        backing.end()?;
    }
    loaded.end(ctx)
}

/// The target stops and starts, once by its port and once by the export itself: a device's contents
/// stay.
fn target_comes_back(ctx: &mut Ctx) -> Result<()> {
    let options = [
        "--reconnect-delay",
        "1",
        "--ctrl-loss-tmo",
        "120",
        "-i",
        "2",
    ];
    with(
        ctx,
        || Backing::null(PLAIN),
        (&[], &options),
        |ctx, end| {
            let path = match end {
                End::Target(_) => {
                    for round in 0..4 {
                        std::thread::sleep(Duration::from_millis(700));
                        let switch = |on: bool| match round % 2 {
                            0 => offer(ctx, on),
                            _ => {
                                let on = if on { "1" } else { "0" };
                                Ok(store("subsystems", NAME, "enable", on)?)
                            }
                        };
                        switch(false)?;
                        std::thread::sleep(Duration::from_millis(1500));
                        switch(true)?;
                        ctx.barrier("again")?;
                    }
                    return Ok(());
                }
                End::Client(path) => path,
            };
            let stop = AtomicBool::new(false);
            let rounds = AtomicU64::new(0);
            let over = |_: u64| stop.load(Ordering::Relaxed);
            std::thread::scope(|scope| {
                let worker = scope.spawn(|| work(path, over, &rounds));
                let mut told = Ok(());
                for _ in 0..4 {
                    told = told.and(ctx.barrier("again"));
                    let before = rounds.load(Ordering::Relaxed);
                    // The disk goes on without help.
                    let on = until("work goes on", Duration::from_secs(60), || {
                        Ok((rounds.load(Ordering::Relaxed) > before + 8).then_some(()))
                    });
                    told = told.and(on);
                }
                stop.store(true, Ordering::Relaxed);
                worker.join().map_err(|_| anyhow::anyhow!("panicked"))??;
                told
            })?;
            ensure!(show("disks", NAME, "state")? == "live");
            Ok(())
        },
    )
}

fn removed_while_mounted(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    let mut backing = None;
    if ctx.first() {
        let made = Backing::null(CACHED)?;
        export(ctx, made.path(), &[])?;
        backing = Some(made);
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        let device = connect(ctx, NAME, &[])?;
        make_fs(&device)?;
        let mounted = Mounted::new(&device, "ext4")?;
        let file = |n: usize| mounted.0.join(format!("file-{n}"));
        let mut bytes = vec![0; 700_000];
        for n in 0..8 {
            fill(&mut bytes, n as u64, 7);
            fs::write(file(n), &bytes)?;
        }
        mounted.unmount()?;
        let mounted = Mounted::new(&device, "ext4")?;
        for n in 0..8 {
            let got = fs::read(mounted.0.join(format!("file-{n}")))?;
            fill(&mut bytes, n as u64, 7);
            ensure!(got == bytes, "{WRONG_DATA}file {n} differs");
        }
        disconnect_used(NAME)?;
        // Writes fail; none hangs.
        let wrote = File::create(mounted.0.join("more")).and_then(|file| file.sync_all());
        ensure!(wrote.is_err(), "written to nothing");
        mounted.unmount()?;
    }
    ctx.barrier("done")?;
    if let Some(backing) = backing {
        kfi(&["unexport", NAME])?;
        backing.end()?;
    }
    loaded.end(ctx)
}

/// A request whose data do not go with the message has a key, which is revoked when the request
/// completes. Both nodes are one kernel here.
fn keys(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 20;
    let count = |what: &str| -> Result<u64> {
        let path = format!("/sys/kernel/debug/kfabric/keys/{what}");
        let text = fs::read_to_string(&path).context(path)?;
        Ok(text.trim().parse()?)
    };
    let _ = run("mount", &["-t", "debugfs", "none", "/sys/kernel/debug"]);
    with(
        ctx,
        || Backing::null(PLAIN),
        (&[], &["-i", "1"]),
        |_, end| {
            let End::Client(path) = end else {
                return Ok(());
            };
            let disk = Disk::open(path)?;
            let map = Map::anon(128 << 10)?;
            for (len, each) in [(4096, 0), (64 << 10, 1), (128 << 10, 1)] {
                let before = (count("assigned")?, count("revoked")?);
                for round in 0..ROUNDS {
                    write_filled(&disk, &map, 0, len, round)?;
                    disk.read(0, &map, len)?;
                }
                let assigned = count("assigned")? - before.0;
                let revoked = count("revoked")? - before.1;
                ensure!(
                    assigned == 2 * ROUNDS * each && revoked == assigned,
                    "{len}: {assigned} assigned, {revoked} revoked"
                );
            }
            Ok(())
        },
    )
}

/// Fences an initiator that writes as fast as it can, in rounds. When the call has returned, no
/// byte of the device changes any more.
fn fence(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 10;
    const SIZE: usize = 16 * MIB;
    let loaded = Loaded::new(ctx)?;
    let mut backing = None;
    if ctx.first() {
        // Slow enough that some writes are always outstanding.
        let slow = [("irqmode", "2"), ("completion_nsec", "1000000")];
        let made = Backing::null(&slow)?;
        export(ctx, made.path(), &[])?;
        backing = Some(made);
    }
    ctx.barrier("exported")?;
    for round in 0..ROUNDS {
        if let Some(backing) = &backing {
            ctx.barrier("connected")?;
            let before = backing.contents()?;
            until("it writes", Duration::from_secs(20), || {
                Ok((backing.contents()? != before).then_some(()))
            })?;
            kfi(&["fence", NAME, NAME])?;
            let after = backing.contents()?;
            std::thread::sleep(Duration::from_millis(200));
            let later = backing.contents()?;
            if let Some(i) = after.iter().zip(&later).position(|(a, b)| a != b) {
                bail!("byte {i} has landed in round {round}");
            }
            ctx.barrier("fenced")?;
            ensure!(backing.contents()? == after, "something has landed");
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
                                let len = if i % 2 == 0 { 256 << 10 } else { 4096 };
                                let at = (n * 7 + i as usize) % (SIZE / (256 << 10)) * (256 << 10);
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
    if let Some(backing) = backing {
        kfi(&["unexport", NAME])?;
        backing.end()?;
    }
    loaded.end(ctx)
}
