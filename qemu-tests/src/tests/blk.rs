// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: remote block devices, through `kfi blk`. [`crate::disk`] describes the nodes' roles.

use crate::disk::*;
use crate::harness::guest::{run, until};
use crate::harness::{Ctx, Test, LONG, NETNS, SHM, TWO, WRONG_DATA};
use crate::sys::{slowness, Map};
use anyhow::{bail, ensure, Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.rw_of_each_size_reads_back", reads_and_writes)
        .seconds(20)
        .on(NETNS | TWO | SHM),
    Test::pair("blk.rw_from_many_queues_at_once_reads_back", many_at_once)
        .seconds(30)
        .on(NETNS | SHM),
    Test::pair("blk.attributes_of_connected_disk_match_export", limits)
        .seconds(15)
        .on(NETNS),
    Test::pair("blk.write_to_read_only_export_is_refused", read_only)
        .seconds(15)
        .on(NETNS | SHM),
    Test::pair("blk.kfi_blk_with_bad_arguments_is_refused", refusals)
        .seconds(20)
        .on(NETNS),
    Test::pair("blk.boot_file_makes_exports_and_disks", boot_file)
        .seconds(20)
        .on(NETNS | SHM),
    Test::pair("blk.connect_again_and_again_leaves_nothing", |ctx| {
        connect_rounds(ctx, Of::Memory, 20)
    })
    .seconds(40)
    .on(NETNS | SHM),
    Test::pair("blk.connect_1000_times_leaves_nothing", |ctx| {
        connect_rounds(ctx, Of::Memory, 1000)
    })
    .seconds(600)
    .on(LONG),
    Test::pair("blkdev.connect_again_and_again_leaves_nothing", |ctx| {
        connect_rounds(ctx, Of::Device, 30)
    })
    .seconds(60)
    .on(NETNS),
    Test::pair("blkdev.connect_1000_times_leaves_nothing", |ctx| {
        connect_rounds(ctx, Of::Device, 1000)
    })
    .seconds(600)
    .on(LONG),
    Test::pair("blk.file_system_remounted_keeps_files", file_system)
        .seconds(30)
        .on(NETNS),
    Test::pair(
        "blk.disconnect_of_open_disk_fails_its_io",
        removed_while_open,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "blk.disconnect_of_mounted_disk_fails_its_io",
        removed_while_mounted,
    )
    .seconds(30)
    .on(NETNS),
    Test::pair("blk.target_back_in_time_resumes_io", target_comes_back)
        .seconds(60)
        .on(NETNS | SHM),
    Test::pair("blk.target_away_too_long_fails_disk", target_stays_away)
        .seconds(40)
        .on(NETNS),
    Test::pair(
        "blk.reconnect_to_recreated_export_or_after_fence_fails_disk",
        another,
    )
    .seconds(40)
    .on(NETNS | SHM),
];

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
        // Every size, at odd positions, across chunk borders.
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
        // A memory-backed export has nothing to flush; a flush succeeds.
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
    end(ctx, loaded)
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
        // The port exists with another provider.
        let same = ["export", "second", "--size", "1M", "-l", &own, "-p", PORT];
        fails(
            &[&same[..], &["--provider", "missing"]].concat(),
            "not by missing alone",
        )?;
        ensure!(!kfi(&["list"])?.contains("second"));
        fails(&["admit", NAME, "stranger"], "os error 2")?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        let to = |name, port| ["connect", &peer, name, "-p", port, "--disk", NAME];
        // No target listens; no such export exists.
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
        // A fenced initiator is not admitted.
        kfi(&["fence", NAME, NAME])?;
        ensure!(kfi(&["list"])?.contains(&format!("fenced {NAME}")));
    }
    ctx.barrier("fenced")?;
    if !ctx.first() {
        let refused = connect(ctx, NAME, &[]).err().context("admitted")?;
        ensure!(
            format!("{refused:#}").contains("os error 128"),
            "{refused:#}"
        );
        // Under another name the initiator is admitted.
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
    end(ctx, loaded)
}

/// The commands of a boot file make what does not exist yet, and only that.
fn boot_file(ctx: &mut Ctx) -> Result<()> {
    let loaded = Loaded::new(ctx)?;
    let file = std::env::temp_dir().join(format!("kfi-blk-{}.conf", ctx.env.node));
    let (own, peer, by) = (ctx.env.addr, ctx.env.peer, ctx.provider().to_owned());
    let key = std::env::temp_dir().join("kfi-blk-boot.key");
    let all = |what: &str, more: &[&str]| {
        let file = file.display().to_string();
        kfi(&[&[what, "--file", &file], more].concat())
    };
    if ctx.first() {
        fs::write(&key, "0123456789abcdef0123456789abcdef")?;
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let text = format!(
            "# exports\nexport {NAME} --size 1M --listen {own} --port {PORT} --provider {by}\n\
             export second --size 2M --listen {own} --port 4477 --provider {by} --only-allowed\n\
             allow second other -k {}\n",
            key.display()
        );
        fs::write(&file, text)?;
        // A name that the file lacks.
        let missing = all("export-all", &["third"]).err().context("made")?;
        ensure!(
            format!("{missing:#}").contains("has no export \"third\""),
            "{missing:#}"
        );
        all("export-all", &[NAME])?;
        ensure!(!kfi(&["list"])?.contains("second"), "both were made");
        let id = show("subsystems", NAME, "attr_size")?;
        all("export-all", &[])?;
        all("export-all", &[])?;
        let list = kfi(&["list"])?;
        ensure!(list.contains("allowed other"), "{list}");
        ensure!(show("subsystems", NAME, "attr_size")? == id);
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        // The first line fails: no such export. The others are connected nevertheless.
        let to = format!("connect {peer}");
        let text = format!(
            "{to} nothing --port {PORT} --provider {by}\n\
             {to} {NAME} --port {PORT} --provider {by}\n\
             {to} {NAME} --disk other --port {PORT} --provider {by}\n"
        );
        fs::write(&file, &text)?;
        ensure!(all("connect-all", &[]).is_err(), "no failure is reported");
        for disk in [NAME, "other"] {
            ensure!(show("disks", disk, "state")? == "live", "{disk}");
        }
        ensure!(all("connect-all", &[NAME])?.is_empty(), "connected twice");
        disconnect("other")?;
        let device = all("connect-all", &["other"])?;
        ensure!(Path::new(&device).exists(), "{device:?} is no device");
        disconnect("other")?;
        disconnect(NAME)?;
    }
    ctx.barrier("removed")?;
    if ctx.first() {
        kfi(&["unexport", "second"])?;
        fs::remove_file(&key)?;
    }
    fs::remove_file(&file)?;
    end(ctx, loaded)
}

/// Connects a disk, checks the bytes of the disk before, writes and disconnects, `count` times.
/// Afterwards nothing of any disk is left.
fn connect_rounds(ctx: &mut Ctx, of: Of, count: u64) -> Result<()> {
    const PART: usize = 256 << 10;
    // With checkers a round takes seconds.
    let count = if slowness() > 1 && count > 100 {
        count / 4
    } else {
        count
    };
    let loaded = of.begin(ctx, "2M")?;
    if !ctx.first() {
        for round in 0..count {
            let device = connect(ctx, NAME, &[])?;
            let disk = Disk::open(&device)?;
            let map = Map::anon(PART)?;
            // The range crosses the border of two chunks.
            let at = MIB - PART / 2;
            if round > 0 {
                disk.read(at, &map, PART)?;
                let mut got = vec![0; PART];
                map.read(0, &mut got);
                is_filled(&got, at, round - 1)?;
            }
            write_filled(&disk, &map, at, PART, round)?;
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
    }
    end(ctx, loaded)
}

pub(super) fn make_fs(device: &Path) -> Result<()> {
    let device = device.display().to_string();
    run("busybox", &["mke2fs", "-F", &device]).map(drop)
}

fn file_system(ctx: &mut Ctx) -> Result<()> {
    with_disk(ctx, "24M", &[], |ctx, path| {
        if ctx.first() {
            return Ok(());
        }
        make_fs(path)?;
        let mounted = Mounted::new(path, "ext4")?;
        let file = |n: usize| mounted.0.join(format!("file-{n}"));
        let mut bytes = vec![0; 700_000];
        for n in 0..20 {
            fill(&mut bytes, n as u64, 7);
            fs::write(file(n), &bytes)?;
        }
        fs::remove_file(file(3))?;
        mounted.unmount()?;
        let mounted = Mounted::new(path, "ext4")?;
        for n in (0..20).filter(|n| *n != 3) {
            let got = fs::read(mounted.0.join(format!("file-{n}")))?;
            fill(&mut bytes, n as u64, 7);
            ensure!(got == bytes, "{WRONG_DATA}file {n} differs");
        }
        mounted.unmount()
    })
}

fn removed_while_open(ctx: &mut Ctx) -> Result<()> {
    let loaded = begin(ctx, "2M")?;
    if !ctx.first() {
        let device = connect(ctx, NAME, &[])?;
        let disk = Disk::open(&device)?;
        let map = Map::anon(MIB)?;
        write_filled(&disk, &map, 0, MIB, 1)?;
        disconnect(NAME)?;
        ensure!(disk.read(0, &map, 4096).is_err(), "read from nothing");
        ensure!(disk.write(0, &map, 4096).is_err(), "written to nothing");
        // The next disk has a block device of its own.
        let other = connect(ctx, NAME, &[])?;
        let again = Disk::open(&other)?;
        is_filled(&again.contents()?[..MIB], 0, 1)?;
        ensure!(disk.read(0, &map, 4096).is_err(), "read from nothing");
        drop((disk, again));
        disconnect(NAME)?;
    }
    end(ctx, loaded)
}

fn removed_while_mounted(ctx: &mut Ctx) -> Result<()> {
    let loaded = begin(ctx, "16M")?;
    if !ctx.first() {
        let device = connect(ctx, NAME, &[])?;
        make_fs(&device)?;
        let mounted = Mounted::new(&device, "ext4")?;
        fs::write(mounted.0.join("file"), vec![7; 100_000])?;
        let refused = disconnect(NAME).err().context("it is removed")?;
        ensure!(
            format!("{refused:#}").contains("os error 16"),
            "{refused:#}"
        );
        disconnect_used(NAME)?;
        // Writes fail; none hangs.
        let wrote = File::create(mounted.0.join("more")).and_then(|file| file.sync_all());
        ensure!(wrote.is_err(), "written to nothing");
        mounted.unmount()?;
    }
    end(ctx, loaded)
}

fn target_comes_back(ctx: &mut Ctx) -> Result<()> {
    let options = ["--reconnect-delay", "1", "--ctrl-loss-tmo", "120"];
    with_disk(ctx, "4M", &options, |ctx, path| {
        let mut last = Vec::new();
        if ctx.first() {
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(700));
                offer(ctx, false)?;
                std::thread::sleep(Duration::from_millis(1500));
                offer(ctx, true)?;
                ctx.barrier("again")?;
            }
        } else {
            let ends = Load::run(path, 4, |load| {
                for _ in 0..3 {
                    ctx.barrier("again")?;
                    // The disk goes on without help.
                    load.gets_on(Duration::from_secs(30))?;
                }
                Ok(())
            })?;
            last = rounds(ends)?;
            ensure!(show("disks", NAME, "state")? == "live");
        }
        Of::Memory.compare(ctx, &last)
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
        ensure!(failed.is_err(), "written to no target");
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

/// A disk fails, and changes no byte, if it reconnects to a recreated export, or after it was
/// fenced, even if it was admitted again.
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
