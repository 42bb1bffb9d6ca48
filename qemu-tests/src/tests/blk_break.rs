// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk when something breaks under load: the wire, the target's device, what it exports, its
//! machine.

use super::death::revive_rxe;
use super::modules::{add_link, delete_link};
use crate::disk::*;
use crate::harness::guest::{ask_host, load, unload, until};
use crate::harness::weather::{self, Weather};
use crate::harness::{Ctx, Test, LONG, NETNS, TWO};
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use std::io;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blk.wire_silent_for_5_seconds", |ctx| {
        cut(ctx, silence, Duration::from_secs(5))
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blk.wire_silent_for_a_minute", |ctx| {
        cut(ctx, silence, Duration::from_secs(60))
    })
    .seconds(150)
    .on(LONG),
    Test::pair("blk.cable_pulled_for_5_seconds", |ctx| {
        cut(ctx, pull, Duration::from_secs(5))
    })
    .seconds(60)
    .on(TWO),
    Test::pair("blk.cable_pulled_for_a_minute", |ctx| {
        cut(ctx, pull, Duration::from_secs(60))
    })
    .seconds(150)
    .on(LONG),
    Test::pair("blk.wire_silent_for_too_long", too_long)
        .seconds(60)
        .on(NETNS),
    Test::pair("blk.target_device_goes_and_comes", target_device)
        .seconds(60)
        .on(NETNS),
    Test::pair("blk.target_starts_anew", starts_anew)
        .seconds(40)
        .on(NETNS | TWO),
    Test::pair("blk.target_machine_dies", machine_dies)
        .seconds(60)
        .on(TWO)
        .loses_peer(),
];

/// For who tries to connect again for as long as any test goes on.
const PATIENT: [&str; 6] = [
    "-i",
    "2",
    "--reconnect-delay",
    "1",
    "--ctrl-loss-tmo",
    "600",
];
/// For who gives up soon.
const IMPATIENT: [&str; 6] = ["-i", "2", "--reconnect-delay", "1", "--ctrl-loss-tmo", "5"];
/// Writers at work.
const WRITERS: usize = 4;
/// How long work may take to go on: a try to connect that nobody answers takes 20 s.
const ON: Duration = Duration::from_secs(240);
/// How long a disk may take to be given up.
const DEAD: Duration = Duration::from_secs(300);

/// That every writer was told of the end.
fn all_failed(ends: &[io::Result<u64>]) -> Result<()> {
    ensure!(
        ends.len() == WRITERS && ends.iter().all(|end| end.is_err()),
        "a writer writes to nothing: {ends:?}"
    );
    Ok(())
}

/// Nothing gets through, and neither node is told.
fn silence(ctx: &mut Ctx, length: Duration) -> Result<()> {
    // Until all of the test's own talk has been answered: TCP waits longer and longer.
    std::thread::sleep(Duration::from_millis(500));
    let cut = Weather::new(&ctx.env, "loss 100%")?;
    std::thread::sleep(length);
    drop(cut);
    Ok(())
}

/// Node 2's cable is pulled: that machine drops what it sends, which its device does not outlive.
fn pull(ctx: &mut Ctx, length: Duration) -> Result<()> {
    if !ctx.first() {
        std::thread::sleep(Duration::from_millis(500));
        ask_host("link off")?;
        std::thread::sleep(length);
        ask_host("link on")?;
        ctx.ctl.send(&())?;
    } else {
        // Says nothing meanwhile: TCP waits longer and longer.
        let () = ctx.ctl.recv()?;
    }
    if revive_rxe(ctx)? && ctx.first() {
        offer(ctx, false)?;
        offer(ctx, true)?;
    }
    Ok(())
}

/// The wire is cut while node 2 writes, and comes back before it gives up: requests wait, and all of
/// them are done.
fn cut(ctx: &mut Ctx, way: fn(&mut Ctx, Duration) -> Result<()>, length: Duration) -> Result<()> {
    weather::prepare(&ctx.env)?;
    with_disk(ctx, "4M", &PATIENT, |ctx, path| {
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
        compare(ctx, &last)
    })
}

/// Nothing gets through for longer than a disk waits: requests fail, and it can be removed while
/// there is nobody to talk to. The target forgets it, and the next disk works.
fn too_long(ctx: &mut Ctx) -> Result<()> {
    weather::prepare(&ctx.env)?;
    let loaded = begin(ctx, "4M")?;
    let mut last = Vec::new();
    if ctx.first() {
        // Says nothing meanwhile: TCP waits longer and longer.
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
        ensure!(disk.read(0, &map, 4096).is_err(), "read from nobody");
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
    compare(ctx, &last)?;
    end(ctx, loaded)
}

/// The target's device is removed and comes back: its port listens again by itself.
fn target_device(ctx: &mut Ctx) -> Result<()> {
    const TIMES: usize = 3;
    with_disk(ctx, "4M", &PATIENT, |ctx, path| {
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
        compare(ctx, &last)
    })
}

/// The target loses what it exports, as one does that starts anew, and exports as much under the same
/// name: the disk fails, and nothing of what waited is written to that.
fn starts_anew(ctx: &mut Ctx) -> Result<()> {
    with_disk(ctx, "4M", &PATIENT, |ctx, path| {
        if ctx.first() {
            ctx.barrier("busy")?;
            kfi(&["unexport", NAME])?;
            if !one_kernel(ctx) {
                unload("kfblk")?;
                load("kfblk")?;
            }
            std::thread::sleep(Duration::from_secs(1));
            export(ctx, "4M", &[])?;
            ctx.barrier("dead")?;
            let watch = connect(ctx, WATCH, &["-i", "1"])?;
            let all = Disk::open_as(&watch, false)?.contents()?;
            disconnect(WATCH)?;
            let landed = all.iter().position(|b| *b != 0);
            ensure!(landed.is_none(), "byte {landed:?} was written");
            return Ok(());
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

/// Node 2, the target here, is gone at once. Node 1's disk fails, and can be removed.
fn machine_dies(ctx: &mut Ctx) -> Result<()> {
    // Each has the module on a kernel of its own.
    let _loaded = Loaded::new(ctx)?;
    if !ctx.first() {
        export(ctx, "4M", &[])?;
    }
    ctx.barrier("exported")?;
    if !ctx.first() {
        ctx.barrier("busy")?;
        ask_host("kill")?;
        std::thread::sleep(Duration::from_secs(60));
        bail!("this machine still lives");
    }
    let device = connect_to(ctx, ctx.env.peer, NAME, &IMPATIENT)?;
    let ends = Load::run(&device, WRITERS, |load| {
        load.gets_on(ON)?;
        ctx.barrier("busy")?;
        wait_state(NAME, "dead", DEAD)
    })?;
    all_failed(&ends)?;
    disconnect(NAME)?;
    ensure!(!device.exists(), "{} is still there", device.display());
    unload("kfblk").context("after its target's death")
}
