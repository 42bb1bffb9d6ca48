// SPDX-License-Identifier: MIT OR Apache-2.0

//! Removal of modules and devices, in use and unused (P11).

use super::death::fresh_transfer;
use super::keys::hammer;
use super::refused;
use crate::buf::Buf;
use crate::harness::guest::{load, module_users, run, unload, until, Autoload};
use crate::harness::leaks::vm_pin;
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::op::{self, iov};
use crate::pair::{own_info, Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{device_path, hints, Dev};
use crate::sys::{self, Ended};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("modules.rmmod_in_use_is_refused", rmmod_in_use).on(NETNS | SHM),
    Test::pair("modules.reload_after_unload_works", unload_and_load)
        .seconds(10)
        .on(NETNS | SHM),
    Test::pair(
        "modules.unload_under_getinfo_succeeds",
        unload_under_getinfo,
    )
    .seconds(10)
    .on(NETNS | SHM),
    Test::pair("modules.open_of_the_node_loads_the_module", open_loads)
        .seconds(10)
        .on(NETNS | SHM),
    Test::pair("modules.named_provider_is_loaded", named_provider)
        .seconds(10)
        .on(NETNS | SHM),
    Test::pair(
        "modules.p12_unprivileged_requests_for_modules_are_bounded",
        bounded_requests,
    )
    .seconds(10)
    .on(SHM),
    Test::pair("device.removed_mid_transfer_ends_all_ops", |c| {
        gone_mid_transfer(c, true)
    })
    .seconds(15)
    .on(NETNS),
    Test::pair("device.removed_under_the_writer_ends_all_ops", |c| {
        gone_mid_transfer(c, false)
    })
    .seconds(15)
    .on(NETNS),
    Test::pair(
        "device.removed_while_idle_notifies_its_objects",
        gone_while_idle,
    )
    .seconds(10)
    .on(NETNS),
    Test::pair(
        "device.removed_under_open_and_close_gives_errnos",
        gone_under_open_and_close,
    )
    .seconds(15)
    .on(NETNS),
];

fn rmmod_in_use(ctx: &mut Ctx) -> Result<()> {
    // An open file alone keeps the framework in use, not the provider.
    let dev = Dev::open()?;
    ctx.barrier("open")?;
    if ctx.first() {
        ensure!(
            module_users("kfabric") > Some(0),
            "{:?} users",
            module_users("kfabric")
        );
        in_use("kfabric")?;
    }
    drop(dev);
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    ctx.barrier("connected")?;
    if ctx.first() {
        in_use(ctx.provider())?;
        in_use("kfabric")?;
    }
    ctx.barrier("refused")?;
    if !ctx.first() {
        pair.write(region, 0, 4096, remote.addr, remote.key)
            .context("after rmmod was refused")?;
    }
    ctx.barrier("done")
}

fn in_use(module: &str) -> Result<()> {
    let Err(e) = crate::sys::unload_module(module) else {
        let _ = load(module);
        anyhow::bail!("{module} was unloaded in use");
    };
    ensure!([libc::EBUSY, libc::EAGAIN].contains(&e.0), "{module}: {e}");
    Ok(())
}

fn unload_all() -> Result<()> {
    if module_users("kfi_test_rust_api").is_some() {
        unload("kfi_test_rust_api")?;
    }
    ["kverbs", "kshm", "kfabric"]
        .into_iter()
        .try_for_each(unload)
}

/// The modules of a system with the lists of `depmod`.
const OURS: [&str; 3] = ["kfabric", "kverbs", "kshm"];

/// A node as `kmod static-nodes` describes it for systemd loads the module when it is opened.
fn open_loads(ctx: &mut Ctx) -> Result<()> {
    ctx.barrier("closed")?;
    if ctx.first() {
        unload_all()?;
        let auto = Autoload::begin(&OURS)?;
        // A line of `modules.devname`: module, node, type with major and minor number.
        let nodes = auto.list("modules.devname")?;
        let device = nodes
            .lines()
            .find_map(|line| line.strip_prefix("kfabric kfabric c"))
            .with_context(|| format!("no node of kfabric in {nodes:?}"))?;
        let (major, minor) = device.split_once(':').context("no device number")?;
        let path = device_path();
        sys::make_char_node(&path, major.parse()?, minor.parse()?)?;
        let opened = Dev::open();
        // The module's own node replaces this one.
        let requests = auto.requests()?;
        ensure!(
            requests == [format!("char-major-{major}-{minor}")],
            "{requests:?}"
        );
        opened.context("opening the node")?;
        ensure!(module_users("kfabric").is_some(), "it was not loaded");
        drop(auto);
        load("kverbs")?;
        load("kshm")?;
    }
    ctx.barrier("loaded")?;
    fresh_transfer(ctx)
}

/// A provider that is not registered is loaded when a caller opens a fabric of the provider, or
/// names the provider in hints.
fn named_provider(ctx: &mut Ctx) -> Result<()> {
    ctx.barrier("closed")?;
    if ctx.first() {
        let name = ctx.provider();
        let auto = Autoload::begin(&OURS)?;
        let dev = Dev::open()?;
        let request = format!("kfabric-provider-{name}");
        unload(name)?;
        let fabric = dev.fabric_open(name, "").context("opening a fabric")?;
        dev.close(fabric)?;
        ensure!(auto.requests()? == [&*request], "other requests");
        unload(name)?;
        let mut wanted = hints();
        wanted.prov_name[..name.len()].copy_from_slice(name.as_bytes());
        let list = dev.getinfo(Some(&wanted)).context("getinfo")?;
        ensure!(!list.is_empty(), "it offers nothing");
        ensure!(auto.requests()? == [request], "other requests");
        // No request for a registered provider, nor without a name.
        dev.getinfo(Some(&wanted))?;
        dev.getinfo(None)?;
        ensure!(auto.requests()?.is_empty(), "needless requests");
    }
    ctx.barrier("loaded")?;
    fresh_transfer(ctx)
}

/// A user without privileges causes a limited number of runs of modprobe, and none for a name that
/// is not valid. An administrator's request is not limited.
fn bounded_requests(ctx: &mut Ctx) -> Result<()> {
    /// Requests within ten seconds (`kf_load_limit`).
    const BURST: usize = 10;
    if ctx.first() {
        let auto = Autoload::begin(&OURS)?;
        let dev = Dev::open()?;
        let start = Instant::now();
        let child = sys::fork(|| {
            let done = (|| -> Result<()> {
                sys::become_nobody()?;
                for bad in ["-q", "../kverbs", "Kverbs", "a-name-that-is-too-long"] {
                    refused(dev.fabric_open(bad, ""), libc::ENOENT, bad)?;
                }
                for i in 0..200 {
                    let name = format!("absent{i}");
                    refused(dev.fabric_open(&name, ""), libc::ENOENT, &name)?;
                }
                Ok(())
            })();
            if let Err(e) = &done {
                eprintln!("as another user: {e:#}");
            }
            i32::from(done.is_err())
        })?;
        let ended = sys::wait_pid(child, Duration::from_secs(60))?;
        ensure!(ended == Some(Ended::Exit(0)), "it ended with {ended:?}");
        let intervals = start.elapsed().as_secs() as usize / 10 + 1;
        let requests = auto.requests()?;
        ensure!(
            (1..=(intervals + 1) * BURST).contains(&requests.len()),
            "{} requests in {:?}",
            requests.len(),
            start.elapsed()
        );
        ensure!(
            requests
                .iter()
                .all(|name| name.starts_with("kfabric-provider-absent")),
            "{requests:?}"
        );
        refused(
            dev.fabric_open("missing", ""),
            libc::ENOENT,
            "an unknown one",
        )?;
        ensure!(
            auto.requests()? == ["kfabric-provider-missing"],
            "the administrator's request was not made"
        );
    }
    ctx.barrier("counted")
}

fn unload_and_load(ctx: &mut Ctx) -> Result<()> {
    for round in 0..3 {
        ctx.barrier("closed")?;
        if ctx.first() {
            unload_all()?;
            ensure!(
                !std::path::Path::new(&device_path()).exists(),
                "the device file is still there"
            );
            load("kfabric")?;
            let dev = Dev::open().context("opening the device file without a provider")?;
            match dev.getinfo(None) {
                Ok(list) => ensure!(list.is_empty(), "{} entries without a provider", list.len()),
                Err(e) => ensure!([libc::ENODATA, libc::ENOENT].contains(&e.errno.0), "{e}"),
            }
            refused(
                dev.fabric_open(ctx.provider(), ""),
                libc::ENOENT,
                "a fabric without a provider",
            )?;
            load("kverbs")?;
            load("kshm")?;
            drop(dev);
        }
        ctx.barrier("loaded")?;
        fresh_transfer(ctx).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

fn unload_under_getinfo(ctx: &mut Ctx) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(4);
    let mut rounds = 0;
    while Instant::now() < end {
        if ctx.first() {
            match crate::sys::unload_module(ctx.provider()) {
                Ok(()) => {
                    rounds += 1;
                    load(ctx.provider())?;
                }
                Err(e) => ensure!([libc::EBUSY, libc::EAGAIN].contains(&e.0), "{e}"),
            }
        } else {
            let dev = Dev::open()?;
            let _ = dev.getinfo(None);
            if let Ok(side) = Side::on(dev, &ctx.env) {
                let buf = Buf::new(4096)?;
                let _ = side.reg(&buf, LOCAL);
            }
        }
    }
    ctx.barrier("stopped")?;
    ensure!(!ctx.first() || rounds > 0, "it was never unloaded");
    ctx.barrier("counted")?;
    fresh_transfer(ctx)
}

pub(super) fn delete_link(ctx: &Ctx) -> Result<()> {
    run("rdma", &["link", "delete", &ctx.env.dev]).map(drop)
}

pub(super) fn add_link(ctx: &Ctx) -> Result<()> {
    run(
        "rdma",
        &[
            "link",
            "add",
            &ctx.env.dev,
            "type",
            &ctx.env.device,
            "netdev",
            &ctx.env.netdev,
        ],
    )?;
    let dev = Dev::open()?;
    until("the new device is offered", WAIT, || {
        Ok(own_info(&dev, &ctx.env).is_ok().then_some(()))
    })
}

/// Removes node 1's device while node 2 hammers node 1 (`target`) or while node 1 hammers node 2.
fn gone_mid_transfer(ctx: &mut Ctx, target: bool) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(64 << 10)?;
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, buf.len() as u64, REMOTE)?;
    let theirs: Remote = ctx.ctl.exchange(&mine)?;
    let hammering = ctx.first() != target;
    let piece = [iov(region, 0, 64 << 10)];
    let run_it = || {
        hammer(pair.dev(), pair.ep, &pair.cq, 16, || {
            op::write(1, &piece, theirs.addr, theirs.key)
        })
    };
    let start = Instant::now();
    std::thread::scope(|s| -> Result<()> {
        let deleter = ctx.first().then(|| {
            let env = &*ctx;
            std::thread::sleep(Duration::from_millis(300));
            let dev = env.env.dev.clone();
            s.spawn(move || run("rdma", &["link", "delete", &dev]))
        });
        if hammering {
            run_it().context("hammering")?;
        }
        if let Some(deleter) = deleter {
            deleter.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        }
        Ok(())
    })?;
    eprintln!(
        "node {}: over after {:.1} s",
        ctx.env.node,
        start.elapsed().as_secs_f64()
    );
    if ctx.first() {
        gone_objects(&pair, &buf, &[])?;
    } else {
        let down = pair
            .side
            .dev
            .eq_wait(&pair.side.eq, Duration::from_secs(60))
            .context("no word of the end")?;
        ensure!(
            down.raw.event == KFI_SHUTDOWN && down.raw.object == pair.ep,
            "{:?}",
            down.raw
        );
    }
    drop(pair);
    if ctx.first() {
        ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
        add_link(ctx)?;
    }
    ctx.barrier("device is back")?;
    fresh_transfer(ctx)
}

/// Checks a node's objects after its device is removed: the endpoint, and the objects of `more`,
/// which get an event.
fn gone_objects(pair: &Pair, buf: &Buf, more: &[u64]) -> Result<()> {
    let (dev, side) = (pair.dev(), &pair.side);
    let mut waits: Vec<u64> = more.iter().copied().chain([pair.ep]).collect();
    while !waits.is_empty() {
        let down = dev
            .eq_wait(&side.eq, WAIT)
            .with_context(|| format!("the device's end is not told to {waits:x?}"))?;
        // A passive endpoint gets an event that it listens no more.
        let kind = match more.contains(&down.raw.object) {
            true => KFI_CONN_ERROR,
            false => KFI_SHUTDOWN,
        };
        ensure!(
            down.raw.event == kind && waits.contains(&down.raw.object),
            "{:?}",
            down.raw
        );
        ensure!(down.raw.err as i32 == libc::ENODEV, "{:?}", down.raw);
        waits.retain(|object| *object != down.raw.object);
    }
    refused(
        dev.eq_read(side.eq.handle, 0),
        libc::EAGAIN,
        "an object whose event has come",
    )?;
    refused(
        side.reg(buf, LOCAL),
        libc::ENODEV,
        "a region on a device that is gone",
    )?;
    let bare = EpOpen {
        domain: side.domain.handle,
        ..Default::default()
    };
    refused(
        dev.ep_open(&bare),
        libc::ENODEV,
        "an endpoint on a device that is gone",
    )?;
    let posted = dev.submit(pair.ep, &[op::recv(1, &[])]);
    let errno = posted.as_ref().err().map(|e| e.errno.0);
    ensure!(
        [Some(libc::ENODEV), Some(libc::ENOTCONN)].contains(&errno),
        "a receive: {posted:?}"
    );
    dev.close(pair.ep).context("closing the endpoint")?;
    Ok(())
}

/// Regions with keys, a listener and an endpoint, all idle.
fn gone_while_idle(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    if ctx.first() {
        let buf = Buf::new(1 << 20)?;
        let region = pair.reg(&buf)?;
        let slots = pair.dev().key_alloc(region, 10)?;
        for slot in slots.iter().take(5) {
            pair.side.assign(*slot, 0, 100_000, REMOTE)?;
        }
        let (listening, _) = pair.side.listen(ctx.env.at(0), 0)?;
        delete_link(ctx)?;
        gone_objects(&pair, &buf, &[listening])?;
        let assigned = pair.dev().key_assign(slots[9], 0, 10, REMOTE);
        refused(assigned, libc::ENODEV, "a key on a device that is gone")?;
        pair.dev()
            .key_revoke(slots[0])
            .context("revoking on a device that is gone")?;
        slots
            .iter()
            .try_for_each(|s| pair.dev().close(*s))
            .context("closing the slots")?;
        pair.dev().close(region).context("closing the region")?;
        ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
        drop(pair);
        add_link(ctx)?;
    } else {
        let down = pair
            .side
            .dev
            .eq_wait(&pair.side.eq, Duration::from_secs(60))
            .context("no word of the end")?;
        ensure!(down.raw.event == KFI_SHUTDOWN, "{:?}", down.raw);
    }
    ctx.barrier("device is back")?;
    fresh_transfer(ctx)
}

/// Removes and adds the device while node 1 opens and closes all kinds of objects on it.
fn gone_under_open_and_close(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let stop = std::sync::atomic::AtomicBool::new(false);
        let env = ctx.env.clone();
        std::thread::scope(|s| -> Result<()> {
            for _ in 0..2 {
                s.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = churn(&env);
                    }
                });
            }
            let work = (0..6).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(150));
                delete_link(ctx)?;
                add_link(ctx)
            });
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            work
        })?;
    }
    ctx.barrier("device is back")?;
    fresh_transfer(ctx)
}

fn churn(env: &crate::harness::Env) -> Result<()> {
    let side = Side::of(env)?;
    let cq = side.cq(16, 0)?;
    let buf = Buf::new(20_000)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (slot, _) = side.export(region, 5, 1000, REMOTE)?;
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    side.dev.submit(ep, &[op::recv(1, &[iov(region, 0, 10)])])?;
    side.dev.connect(ep, env.peer_at(9), &[])?;
    side.dev.key_revoke(slot)?;
    side.dev.close(ep)?;
    Ok(())
}
