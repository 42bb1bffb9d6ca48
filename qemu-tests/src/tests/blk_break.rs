// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk when a part breaks under load: the wire, the target's device, its export, its machine.

use super::blk_device::{with, Backing, End, PLAIN};
use super::death::revive_rxe;
use super::key_scale::take_all;
use super::key_seen::counters;
use super::modules::{add_link, delete_link};
use crate::disk::*;
use crate::harness::guest::{ask_host, load, unload, until};
use crate::harness::weather::{self, Weather};
use crate::harness::{skip, Ctx, Test, LONG, NETNS, TWO};
use crate::pair::{Side, LOCAL, REMOTE};
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use std::io;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.wire_silent_for_5_seconds_delays_io", |ctx| {
        cut(ctx, Of::Memory, silence, Duration::from_secs(5))
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blk.wire_silent_for_a_minute_delays_io", |ctx| {
        cut(ctx, Of::Memory, silence, Duration::from_secs(60))
    })
    .seconds(150)
    .on(LONG),
    Test::pair("blk.cable_pulled_for_5_seconds_delays_io", |ctx| {
        cut(ctx, Of::Memory, pull, Duration::from_secs(5))
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blk.cable_pulled_for_a_minute_delays_io", |ctx| {
        cut(ctx, Of::Memory, pull, Duration::from_secs(60))
    })
    .seconds(150)
    .on(LONG),
    Test::pair("blkdev.wire_silent_for_5_seconds_delays_io", |ctx| {
        cut(ctx, Of::Device, silence, Duration::from_secs(5))
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blkdev.wire_silent_for_a_minute_delays_io", |ctx| {
        cut(ctx, Of::Device, silence, Duration::from_secs(60))
    })
    .seconds(150)
    .on(LONG),
    Test::pair("blkdev.cable_pulled_for_5_seconds_delays_io", |ctx| {
        cut(ctx, Of::Device, pull, Duration::from_secs(5))
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blkdev.cable_pulled_for_a_minute_delays_io", |ctx| {
        cut(ctx, Of::Device, pull, Duration::from_secs(60))
    })
    .seconds(150)
    .on(LONG),
    Test::pair("blk.wire_silent_for_too_long_fails_disk", |ctx| {
        too_long(ctx, Of::Memory)
    })
    .seconds(60)
    .on(NETNS),
    Test::pair("blkdev.wire_silent_for_too_long_fails_disk", |ctx| {
        too_long(ctx, Of::Device)
    })
    .seconds(60)
    .on(LONG),
    Test::pair("blk.target_device_removed_and_added_resumes_io", |ctx| {
        target_device(ctx, Of::Memory)
    })
    .seconds(60)
    .on(NETNS),
    Test::pair("blkdev.target_device_removed_and_added_resumes_io", |ctx| {
        target_device(ctx, Of::Device)
    })
    .seconds(60)
    .on(NETNS),
    Test::pair("blk.target_with_new_memory_fails_disk", starts_anew)
        .seconds(40)
        .on(NETNS),
    Test::pair("blk.target_killed_and_restarted_fails_disk", |ctx| {
        killed(ctx, Of::Memory)
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blkdev.target_killed_and_restarted_resumes_io", |ctx| {
        killed(ctx, Of::Device)
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blk.target_machine_dead_fails_disk", machine_dies)
        .seconds(60)
        .on(TWO)
        .loses_peer(),
    Test::pair("blkdev.connection_with_exhausted_keys_is_replaced", used_up)
        .seconds(200)
        .on(LONG),
];

/// Options of an initiator that reconnects for as long as any test goes on.
pub(super) const PATIENT: [&str; 6] = [
    "-i",
    "2",
    "--reconnect-delay",
    "1",
    "--ctrl-loss-tmo",
    "600",
];
/// Options of an initiator that gives up soon.
const IMPATIENT: [&str; 6] = ["-i", "2", "--reconnect-delay", "1", "--ctrl-loss-tmo", "5"];
/// A block-backed export, and its disk.
const DEVICE: &str = "blkdevice";
/// Number of writers.
const WRITERS: usize = 4;
/// Time within which work must go on: a connection attempt without an answer takes 20 s.
const ON: Duration = Duration::from_secs(240);
/// Time within which a disk must be given up.
const DEAD: Duration = Duration::from_secs(300);

/// If the device has no more hardware slots than a disk needs, each is used again and again, until
/// a connection has exhausted its key values. Another connection takes its place, and no request
/// fails.
fn used_up(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 8192;
    /// Each round writes and reads. A hardware slot has 256 keys, and there are 32 slots.
    const ROUNDS: u64 = 5000;
    if sys::slowness() > 1 {
        return skip("half a million slots take too long here");
    }
    let mut options = PATIENT;
    options[1] = "1";
    with(
        ctx,
        || Backing::null(PLAIN),
        (&[], &options),
        |ctx, end| {
            let End::Client(path) = end else {
                ctx.barrier("written")?;
                let clients = show("subsystems", NAME, "clients")?;
                ensure!(!clients.contains("epoch 1 "), "the first still: {clients}");
                return Ok(());
            };
            let side = Side::open(ctx)?;
            let page = Map::anon(4096)?;
            let region = side.reg_at(page.addr(), 4096, LOCAL | REMOTE)?.handle;
            let slots = take_all(&side.dev, region)?;
            let worn = || -> Result<Option<u64>> { Ok(counters()?.get("kverbs/worn").copied()) };
            let before = worn()?;
            let disk = Disk::open(path)?;
            let map = Map::anon(LEN)?;
            let mut got = vec![0; LEN];
            for round in 0..ROUNDS {
                let at = round as usize % 100 * LEN;
                write_filled(&disk, &map, at, LEN, round)?;
                map.set(0, 0);
                disk.read(at, &map, LEN)?;
                map.read(0, &mut got);
                is_filled(&got, at, round)?;
            }
            let after = worn()?;
            eprintln!("{} slots, {before:?} worn, then {after:?}", slots.len());
            ensure!(after > before, "nothing is used up: {after:?}");
            ensure!(show("disks", NAME, "state")? == "live");
            ctx.barrier("written")
        },
    )
}

/// Checks that every writer got an error.
fn all_failed(ends: &[io::Result<u64>]) -> Result<()> {
    ensure!(
        ends.len() == WRITERS && ends.iter().all(|end| end.is_err()),
        "a writer writes to nothing: {ends:?}"
    );
    Ok(())
}

/// Drops all packets; neither node is notified.
fn silence(ctx: &mut Ctx, length: Duration) -> Result<()> {
    // Wait until all of the test's own messages have been acknowledged, because TCP would back off.
    std::thread::sleep(Duration::from_millis(500));
    let cut = Weather::new(&ctx.env, "loss 100%")?;
    std::thread::sleep(length);
    drop(cut);
    Ok(())
}

/// Pulls node 2's cable: the machine drops the packets that it sends, which its device does not
/// survive.
fn pull(ctx: &mut Ctx, length: Duration) -> Result<()> {
    if !ctx.first() {
        std::thread::sleep(Duration::from_millis(500));
        ask_host("link off")?;
        std::thread::sleep(length);
        ask_host("link on")?;
        ctx.ctl.send(&())?;
    } else {
        // Send nothing meanwhile, because TCP would back off.
        let () = ctx.ctl.recv()?;
    }
    if revive_rxe(ctx)? && ctx.first() {
        offer(ctx, false)?;
        offer(ctx, true)?;
    }
    Ok(())
}

/// Cuts the wire while node 2 writes, and restores it before node 2 gives up: requests wait, and
/// all of them complete.
fn cut(
    ctx: &mut Ctx,
    of: Of,
    way: fn(&mut Ctx, Duration) -> Result<()>,
    length: Duration,
) -> Result<()> {
    weather::prepare(&ctx.env)?;
    of.with_disk(ctx, "4M", &PATIENT, |ctx, path| {
        let mut last = Vec::new();
        if ctx.first() {
            ctx.barrier("busy")?;
            way(ctx, length)?;
        } else {
            let ends = Load::run(path, WRITERS, |load| {
                load.gets_on(ON)?;
                ctx.barrier("busy")?;
                way(ctx, length)?;
                load.gets_on(ON)
            })?;
            last = rounds(ends)?;
            ensure!(show("disks", NAME, "state")? == "live");
        }
        ctx.barrier("on")?;
        if ctx.first() && length > Duration::from_secs(30) {
            let clients = show("subsystems", NAME, "clients")?;
            ensure!(
                !clients.contains("epoch 1 "),
                "a connection outlived {length:?}: {clients}"
            );
        }
        of.compare(ctx, &last)
    })
}

/// Drops all packets for longer than a disk waits: requests fail, and the disk can be removed
/// without a peer. The target forgets the initiator, and the next disk works.
fn too_long(ctx: &mut Ctx, of: Of) -> Result<()> {
    weather::prepare(&ctx.env)?;
    let loaded = of.begin(ctx, "4M")?;
    let mut last = Vec::new();
    if ctx.first() {
        // Send nothing meanwhile, because TCP would back off.
        let () = ctx.ctl.recv()?;
        until("the client is forgotten", ON, || {
            Ok(show("subsystems", NAME, "clients")?
                .is_empty()
                .then_some(()))
        })?;
        ctx.barrier("forgotten")?;
    } else {
        let device = connect(ctx, NAME, &IMPATIENT)?;
        let mut cut = None;
        let ends = Load::run(&device, WRITERS, |load| {
            load.gets_on(ON)?;
            cut = Some(Weather::new(&ctx.env, "loss 100%")?);
            wait_state(NAME, "dead", DEAD)
        })?;
        all_failed(&ends)?;
        let map = Map::anon(4096)?;
        let disk = Disk::open_as(&device, false)?;
        ensure!(disk.read(0, &map, 4096).is_err(), "read without a target");
        drop(disk);
        disconnect(NAME)?;
        ensure!(!device.exists(), "{} is still there", device.display());
        drop(cut);
        ctx.ctl.send(&())?;
        ctx.barrier("forgotten")?;
        let device = connect(ctx, NAME, &IMPATIENT)?;
        let ends = Load::run(&device, WRITERS, |load| load.gets_on(ON))?;
        last = rounds(ends)?;
        disconnect(NAME)?;
    }
    of.compare(ctx, &last)?;
    end(ctx, loaded)
}

/// Removes the target's device and adds it again: the target's port listens again by itself.
fn target_device(ctx: &mut Ctx, of: Of) -> Result<()> {
    const TIMES: usize = 3;
    of.with_disk(ctx, "4M", &PATIENT, |ctx, path| {
        let mut last = Vec::new();
        if ctx.first() {
            for _ in 0..TIMES {
                ctx.barrier("busy")?;
                delete_link(ctx)?;
                std::thread::sleep(Duration::from_secs(1));
                add_link(ctx)?;
                ctx.barrier("again")?;
            }
        } else {
            let ends = Load::run(path, WRITERS, |load| {
                for _ in 0..TIMES {
                    load.gets_on(ON)?;
                    ctx.barrier("busy")?;
                    ctx.barrier("again")?;
                }
                load.gets_on(ON)
            })?;
            last = rounds(ends)?;
        }
        of.compare(ctx, &last)
    })
}

/// Checks that no initiator has written to the memory that this node exports.
fn untouched(ctx: &Ctx) -> Result<()> {
    let all = Of::Memory.contents(ctx)?;
    let landed = all.iter().position(|b| *b != 0);
    ensure!(landed.is_none(), "byte {landed:?} was written");
    Ok(())
}

/// The target loses its export, as in a restart, and exports memory of the same size under the same
/// name: the disk fails, and no waiting write reaches the new memory.
fn starts_anew(ctx: &mut Ctx) -> Result<()> {
    with_disk(ctx, "4M", &PATIENT, |ctx, path| {
        if ctx.first() {
            ctx.barrier("busy")?;
            kfi(&["unexport", NAME])?;
            std::thread::sleep(Duration::from_secs(1));
            export(ctx, "4M", &[])?;
            ctx.barrier("dead")?;
            return untouched(ctx);
        }
        let ends = Load::run(path, WRITERS, |load| {
            load.gets_on(ON)?;
            ctx.barrier("busy")?;
            wait_state(NAME, "dead", DEAD)
        })?;
        all_failed(&ends)?;
        ctx.barrier("dead")
    })
}

/// Size of the export, before and after the target is killed.
const SIZE: &str = "4M";
/// Modules without kfblk, in the order in which they are unloaded.
const MODULES: [&str; 3] = ["kshm", "kverbs", "kfabric"];

/// Removes this node's device and unloads all our modules under load, and restores them. If
/// `silent`, the node sends nothing from before that until everything is back, like a machine that
/// is switched off and boots.
fn restart(ctx: &Ctx, of: Of, silent: bool) -> Result<()> {
    // Wait until all of the test's own messages have been acknowledged.
    std::thread::sleep(Duration::from_millis(500));
    let cut = silent.then(|| Weather::new(&ctx.env, "loss 100%"));
    let cut = cut.transpose()?;
    delete_link(ctx)?;
    kfi(&["unexport", NAME])?;
    unload("kfblk")?;
    MODULES.iter().try_for_each(|name| unload(name))?;
    std::thread::sleep(Duration::from_secs(1));
    MODULES.iter().rev().try_for_each(|name| load(name))?;
    add_link(ctx)?;
    load("kfblk")?;
    of.export(ctx, SIZE)?;
    drop(cut);
    Ok(())
}

/// Kills the target while node 2 writes, and restores it before node 2 gives up. A device's
/// contents survive: work goes on, and all acknowledged bytes are there, each of which a writer
/// reads in every round. Memory's contents do not: the disk fails, no reader gets a byte of the new
/// memory, and no waiting write reaches it.
fn killed(ctx: &mut Ctx, of: Of) -> Result<()> {
    let kills: &[bool] = match of {
        Of::Memory => &[true],
        Of::Device | Of::Cached => &[false, true],
    };
    weather::prepare(&ctx.env)?;
    of.with_disk(ctx, SIZE, &PATIENT, |ctx, path| {
        let mut last = Vec::new();
        if ctx.first() {
            for silent in kills {
                ctx.barrier("busy")?;
                restart(ctx, of, *silent)?;
                ctx.barrier("again")?;
            }
        } else {
            let ends = Load::run(path, WRITERS, |load| {
                for _ in kills {
                    load.gets_on(ON)?;
                    ctx.barrier("busy")?;
                    ctx.barrier("again")?;
                }
                match of {
                    Of::Memory => wait_state(NAME, "dead", DEAD),
                    Of::Device | Of::Cached => load.gets_on(ON),
                }
            })?;
            match of {
                Of::Memory => all_failed(&ends)?,
                Of::Device | Of::Cached => last = rounds(ends)?,
            }
        }
        ctx.barrier("over")?;
        match of {
            Of::Memory if ctx.first() => untouched(ctx),
            Of::Memory => Ok(()),
            Of::Device | Of::Cached => of.compare(ctx, &last),
        }
    })
}

/// Node 2, the target of a memory-backed and a block-backed export here, hangs until node 1's
/// packets fill the cable, and dies. Node 1's disks fail, and can be removed.
fn machine_dies(ctx: &mut Ctx) -> Result<()> {
    // Each node has the module on a kernel of its own.
    let _loaded = Loaded::new(ctx)?;
    if !ctx.first() {
        export(ctx, "4M", &[])?;
        let backing = Backing::null(&[])?;
        let (path, addr) = (
            backing.path().display().to_string(),
            ctx.env.addr.to_string(),
        );
        let args = ["export", DEVICE, "--device", &path, "-l", &addr, "-p", PORT];
        kfi(&[&args[..], &["--provider", ctx.provider()]].concat())?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        ctx.barrier("busy")?;
        ask_host("kill 2")?;
        std::thread::sleep(Duration::from_secs(60));
        bail!("this machine still lives");
    }
    let far = Far::of(ctx);
    let memory = far.connect(NAME, NAME, &IMPATIENT)?;
    let device = far.connect(DEVICE, DEVICE, &IMPATIENT)?;
    let mut others = Vec::new();
    let ends = Load::run(&memory, WRITERS, |load| {
        others = Load::run(&device, WRITERS, |other| {
            load.gets_on(ON)?;
            other.gets_on(ON)?;
            ctx.barrier("busy")?;
            wait_state(NAME, "dead", DEAD)?;
            wait_state(DEVICE, "dead", DEAD)
        })?;
        Ok(())
    })?;
    all_failed(&ends)?;
    all_failed(&others)?;
    for (disk, path) in [(NAME, &memory), (DEVICE, &device)] {
        disconnect(disk)?;
        ensure!(!path.exists(), "{} is still there", path.display());
    }
    unload("kfblk").context("after its target's death")
}
