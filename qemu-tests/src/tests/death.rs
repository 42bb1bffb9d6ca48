// SPDX-License-Identifier: MIT OR Apache-2.0

//! Death of a process, device or guest: the peer is notified in bounded time, and nothing of the
//! dead one stays (P11).

use super::keys::hammer;
use super::modules::{add_link, delete_link};
use crate::buf::Buf;
use crate::harness::caps::{IB_TRANSPORT, QUICK_CLOSES};
use crate::harness::guest::{ask_host, run, until};
use crate::harness::{Ctx, Test, TWO};
use crate::op::{self, iov};
use crate::pair::{accept_one, connect_one, Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{Cq, Dev};
use crate::sys::{self, Ended, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("death.sigkill_of_writer_notifies_peer", |c| {
        peer_dies(c, Role::Writes)
    })
    .seconds(15),
    Test::pair("death.sigkill_of_reader_notifies_peer", |c| {
        peer_dies(c, Role::Reads)
    })
    .seconds(15),
    Test::pair("death.sigkill_of_sender_notifies_peer", |c| {
        peer_dies(c, Role::Sends)
    })
    .seconds(15),
    Test::pair("death.sigkill_of_target_fails_peers_ops", target_dies).seconds(15),
    Test::pair("death.sigkill_while_idle_notifies_peer", |c| {
        peer_dies(c, Role::Idles)
    })
    .seconds(10),
    Test::alone(
        "death.sigkill_at_random_points_leaves_nothing",
        random_points,
    )
    .seconds(15),
    Test::alone("death.sigkill_while_pinning_ends_at_once", while_pinning).seconds(10),
    Test::pair("death.p11_cut_off_mid_transfer_ends_in_bounded_time", |c| {
        cut_off(c, true)
    })
    .seconds(30)
    .on(TWO),
    Test::pair("death.p11_cut_off_while_idle_ends_in_bounded_time", |c| {
        cut_off(c, false)
    })
    .seconds(30)
    .on(TWO),
    Test::pair("death.p11_storm_leaves_nothing", crate::storm::round)
        .seconds(45)
        .needs(QUICK_CLOSES),
    Test::pair("death.frozen_peer_goes_on_or_ends_cleanly", frozen)
        .seconds(20)
        .on(TWO),
    Test::pair(
        "death.p11_guest_killed_at_any_work_notifies_peer",
        super::hosts::killed,
    )
    .seconds(60)
    .on(TWO)
    .loses_peer(),
];

/// Time within which an end must be notified of the other's death.
const NEWS: Duration = Duration::from_secs(60);

/// Work of the victim when it is killed.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Writes,
    Reads,
    Sends,
    Idles,
}

/// Waits until the end of this connection is reported, and its receives have completed once each.
fn hear_the_end(side: &Side, cq: &Cq, ep: u64, receives: usize) -> Result<()> {
    let start = Instant::now();
    let down = side
        .dev
        .eq_wait(&side.eq, NEWS)
        .context("no word of the end")?;
    ensure!(
        down.raw.event == KFI_SHUTDOWN && down.raw.object == ep,
        "{:?}",
        down.raw
    );
    let mut ended = vec![0u8; receives];
    let end = Instant::now() + sys::patience(WAIT);
    while ended.contains(&0) {
        let e = cq
            .wait(end.saturating_duration_since(Instant::now()))
            .context("receives that do not end")?;
        let n = &mut ended[e.context as usize];
        *n += 1;
        ensure!(*n == 1, "{e:?} came twice");
    }
    eprintln!("heard after {:.1} s", start.elapsed().as_secs_f64());
    side.dev.close(ep).context("closing the endpoint")?;
    Ok(())
}

/// Waits until a process has no object left.
///
/// # Errors
///
/// If some objects stay.
pub fn nothing_left_of(dev: &Dev, pid: i32) -> Result<()> {
    until(
        "objects of the dead go away",
        Duration::from_secs(20),
        || {
            Ok(dev
                .obj_list()?
                .iter()
                .all(|o| o.pid != pid as u32)
                .then_some(()))
        },
    )
}

/// Kills node 2's process at different moments of its work.
fn peer_dies(ctx: &mut Ctx, role: Role) -> Result<()> {
    const ROUNDS: u64 = 8;
    const RECEIVES: usize = 32;
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        let buf = Buf::new(256 << 10)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let (_, remote) = side.export(region, 0, buf.len() as u64, REMOTE)?;
        ctx.ctl.send(&(at.port(), remote))?;
        for round in 0..ROUNDS {
            let cq = side.cq(0, 0)?;
            let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
            let ops: Vec<_> = (0..RECEIVES as u64)
                .map(|i| op::recv(i, &[iov(region, 0, 4096)]))
                .collect();
            // The peer may die before or while the receives are posted.
            let posted = match side.dev.submit(ep, &ops) {
                Err(e) if e.errno.0 == libc::ENOTCONN => 0,
                other => other?.0,
            };
            hear_the_end(&side, &cq, ep, posted).with_context(|| format!("round {round}"))?;
            ctx.barrier("heard")?;
        }
        return ctx.barrier("rounds done");
    }
    let (port, remote): (u16, Remote) = ctx.ctl.recv()?;
    let peer = ctx.env.peer_at(port);
    let env = ctx.env.clone();
    for round in 0..ROUNDS {
        let stage = Map::shared(4096)?;
        let pid = sys::fork(|| {
            let work = || -> Result<()> {
                let side = Side::of(&env)?;
                let cq = side.cq(0, 0)?;
                let buf = Buf::new(256 << 10)?;
                let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
                let ep = connect_one(&side, &Opts::default(), &cq, peer)?.handle;
                stage.store32(0, 1);
                let piece = [iov(
                    region,
                    0,
                    if role == Role::Sends { 4096 } else { 256 << 10 },
                )];
                match role {
                    Role::Writes => hammer(&side.dev, ep, &cq, 16, || {
                        op::write(1, &piece, remote.addr, remote.key)
                    })?,
                    Role::Reads => hammer(&side.dev, ep, &cq, 16, || {
                        op::read(1, &piece, remote.addr, remote.key)
                    })?,
                    Role::Sends => hammer(&side.dev, ep, &cq, 64, || op::send(1, &piece))?,
                    Role::Idles => 0,
                };
                std::thread::sleep(Duration::from_secs(60));
                Ok(())
            };
            if let Err(e) = work() {
                eprintln!("the one to be killed: {e:#}");
            }
            1
        })?;
        until("a connection", WAIT, || {
            Ok((stage.load32(0) == 1).then_some(()))
        })?;
        std::thread::sleep(Duration::from_micros(round * round * 1500));
        sys::kill(pid, libc::SIGKILL)?;
        let end = sys::wait_pid(pid, WAIT)?;
        ensure!(
            end == Some(Ended::Signal(libc::SIGKILL)),
            "round {round}: {end:?}"
        );
        nothing_left_of(&side.dev, pid).with_context(|| format!("round {round}"))?;
        // The next connection must not come before the end of this one.
        ctx.barrier("heard")?;
    }
    ctx.barrier("rounds done")
}

/// Kills node 2's process while node 1 writes to its memory and reads from it.
fn target_dies(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 8;
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        let buf = Buf::new(256 << 10)?;
        let region = side.reg(&buf, LOCAL)?.handle;
        for round in 0..ROUNDS {
            let cq = side.cq(0, 0)?;
            let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
            let remote: Remote = ctx.ctl.recv()?;
            let piece = [iov(region, 0, 256 << 10)];
            let make = || match round % 2 {
                0 => op::write(1, &piece, remote.addr, remote.key),
                _ => op::read(1, &piece, remote.addr, remote.key),
            };
            let start = Instant::now();
            hammer(&side.dev, ep, &cq, 8, make).with_context(|| format!("round {round}"))?;
            ensure!(
                start.elapsed() < sys::patience(NEWS),
                "round {round}: it took {:?}",
                start.elapsed()
            );
            hear_the_end(&side, &cq, ep, 0)?;
            ctx.barrier("heard")?;
        }
        return ctx.barrier("rounds done");
    }
    let port: u16 = ctx.ctl.recv()?;
    let (peer, env) = (ctx.env.peer_at(port), ctx.env.clone());
    for round in 0..ROUNDS {
        let shared = Map::shared(4096)?;
        let pid = sys::fork(|| {
            let work = || -> Result<()> {
                let side = Side::of(&env)?;
                let cq = side.cq(0, 0)?;
                let buf = Buf::new(256 << 10)?;
                let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
                let (_, remote) = side.export(region, 0, buf.len() as u64, REMOTE)?;
                connect_one(&side, &Opts::default(), &cq, peer)?;
                remote.leave_in(&shared);
                std::thread::sleep(Duration::from_secs(60));
                Ok(())
            };
            if let Err(e) = work() {
                eprintln!("the one to be killed: {e:#}");
            }
            1
        })?;
        Remote::tell_of(ctx, &shared)?;
        std::thread::sleep(Duration::from_micros(1000 + round * round * 3000));
        sys::kill(pid, libc::SIGKILL)?;
        let end = sys::wait_pid(pid, WAIT)?;
        ensure!(
            end == Some(Ended::Signal(libc::SIGKILL)),
            "round {round}: {end:?}"
        );
        nothing_left_of(&side.dev, pid)?;
        // The next connection must not come before the end of this one.
        ctx.barrier("heard")?;
    }
    ctx.barrier("rounds done")
}

/// Kills a process that opens, connects to itself, registers, assigns and closes all the time.
fn random_points(ctx: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    let env = ctx.env.clone();
    for round in 0..60u64 {
        let pid = sys::fork(|| {
            let work = || -> Result<()> {
                loop {
                    let side = Side::of(&env)?;
                    let cq = side.cq(64, 0)?;
                    let buf = Buf::new(100_000)?;
                    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
                    let (slot, _) = side.export(region, 100, 5000, REMOTE)?;
                    let (pep, _) = side.listen(env.at(0), 0)?;
                    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
                    side.dev
                        .submit(ep, &[op::recv(1, &[iov(region, 0, 100)])])?;
                    side.dev.connect(ep, env.peer_at(9), &[])?;
                    side.dev.key_revoke(slot)?;
                    side.dev.close(pep)?;
                    side.dev.close(ep)?;
                }
            };
            if let Err(e) = work() {
                eprintln!("the one to be killed: {e:#}");
            }
            1
        })?;
        std::thread::sleep(Duration::from_micros(round * 977 % 40_000));
        sys::kill(pid, libc::SIGKILL)?;
        let end = sys::wait_pid(pid, WAIT)?;
        ensure!(
            end == Some(Ended::Signal(libc::SIGKILL)),
            "round {round}: {end:?}"
        );
        nothing_left_of(&dev, pid).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

/// Pinning a large range ends at once when its process is killed.
fn while_pinning(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 256 << 20;
    let dev = Dev::open()?;
    let env = ctx.env.clone();
    for round in 0..6u64 {
        let pid = sys::fork(|| {
            let work = || -> Result<()> {
                let side = Side::of(&env)?;
                let map = Map::anon(SIZE)?;
                map.advise(libc::MADV_NOHUGEPAGE)?;
                side.reg_at(map.addr(), SIZE as u64, LOCAL)?;
                Ok(())
            };
            i32::from(work().is_err())
        })?;
        std::thread::sleep(Duration::from_millis(5 + round * 25));
        let start = Instant::now();
        let _ = sys::kill(pid, libc::SIGKILL);
        ensure!(
            sys::wait_pid(pid, WAIT)?.is_some(),
            "round {round}: it does not die"
        );
        ensure!(
            start.elapsed() < sys::patience(Duration::from_secs(10)),
            "round {round}: it took {:?}",
            start.elapsed()
        );
        nothing_left_of(&dev, pid)?;
    }
    Ok(())
}

/// Moves bytes between a fresh pair: a new start works after any failure.
///
/// # Errors
///
/// If the transfer fails.
pub fn fresh_transfer(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(100_000)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    if ctx.first() {
        ctx.barrier("written")?;
        buf.check(77)
    } else {
        buf.fill(77);
        pair.write(region, 0, 100_000, remote.addr, remote.key)?;
        ctx.barrier("written")
    }
}

/// Hammers node 1's memory until an operation fails, and waits for the shutdown event.
fn hammer_to_the_end(ctx: &mut Ctx, pair: &Pair, region: u64, remote: Remote) -> Result<()> {
    let piece = [iov(region, 0, 64 << 10)];
    let start = Instant::now();
    let done = hammer(pair.dev(), pair.ep, &pair.cq, 16, || {
        op::write(1, &piece, remote.addr, remote.key)
    })?;
    eprintln!(
        "node {}: {done} writes in {:.1} s",
        ctx.env.node,
        start.elapsed().as_secs_f64()
    );
    ensure!(done > 0, "nothing went through before");
    Ok(())
}

/// Pulls node 2's cable.
fn cut_off(ctx: &mut Ctx, busy: bool) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(64 << 10)?;
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, buf.len() as u64, REMOTE)?;
    let theirs: Remote = ctx.ctl.exchange(&mine)?;
    let first = ctx.first();
    let cut = move || -> Result<()> {
        if !first {
            std::thread::sleep(Duration::from_millis(700));
            ask_host("link off")?;
        }
        Ok(())
    };
    let start = Instant::now();
    let heard = std::thread::scope(|s| -> Result<()> {
        let cutter = s.spawn(cut);
        if busy {
            hammer_to_the_end(ctx, &pair, region, theirs)?;
        }
        let down = pair
            .side
            .dev
            .eq_wait(&pair.side.eq, NEWS)
            .context("no word of the end")?;
        ensure!(
            down.raw.event == KFI_SHUTDOWN && down.raw.object == pair.ep,
            "{:?}",
            down.raw
        );
        ensure!(down.raw.err != 0, "a cut is reported as an orderly end");
        cutter
            .join()
            .map_err(|_| anyhow::anyhow!("the cutter panicked"))?
    });
    eprintln!(
        "node {}: heard after {:.1} s",
        ctx.env.node,
        start.elapsed().as_secs_f64()
    );
    // Closing an endpoint that is cut off is bounded too.
    let start = Instant::now();
    let closed = pair.dev().close(pair.ep);
    let closing = start.elapsed();
    if !ctx.first() {
        // Long enough for the other end to notice by itself that its peer does not answer.
        std::thread::sleep(Duration::from_secs(15));
        ask_host("link on")?;
    }
    heard?;
    closed.context("closing the endpoint")?;
    ensure!(
        closing < Duration::from_secs(30),
        "closing took {closing:?}"
    );
    drop(pair);
    ctx.barrier("link on")?;
    revive_rxe(ctx)?;
    ctx.barrier("devices are well")?;
    fresh_transfer(ctx)
}

/// Recreates the device if its management queue pair is dead. rxe's does not survive a packet that
/// the machine itself drops, as a pulled cable makes it do, and no user of the device can repair
/// it. Returns whether the device was recreated.
///
/// # Errors
///
/// If the device cannot be created.
pub fn revive_rxe(ctx: &Ctx) -> Result<bool> {
    if !ctx.has(IB_TRANSPORT)? {
        return Ok(false);
    }
    let all = run("rdma", &["resource", "show", "qp"])?;
    let own = all
        .lines()
        .find(|l| l.contains(&ctx.env.dev) && l.contains("GSI"));
    if own.is_some_and(|l| l.contains("state RTS")) {
        return Ok(false);
    }
    eprintln!(
        "node {}: rxe cannot connect any more: {}",
        ctx.env.node,
        own.unwrap_or("no GSI")
    );
    delete_link(ctx)?;
    add_link(ctx)?;
    Ok(true)
}

/// Freezes node 2 for a while: the connection lives on or ends cleanly.
fn frozen(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(64 << 10)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    if ctx.first() {
        ctx.barrier("writing")?;
        ctx.barrier("thawed")?;
    } else {
        ctx.barrier("writing")?;
        let end = Instant::now() + Duration::from_millis(500);
        let piece = [iov(region, 0, 64 << 10)];
        let mut flying = 0;
        while Instant::now() < end && flying < 32 {
            if pair
                .post(op::write(1, &piece, remote.addr, remote.key))
                .is_ok()
            {
                flying += 1;
            }
        }
        ask_host("freeze 3")?;
        let mut failed = 0;
        for _ in 0..flying {
            failed += u32::from(pair.wait_any(NEWS)?.err != 0);
        }
        eprintln!("{failed} of {flying} writes failed");
        ctx.barrier("thawed")?;
    }
    drop(pair);
    fresh_transfer(ctx)
}
