// SPDX-License-Identifier: MIT OR Apache-2.0

//! Durable writes over verbs, which the target's kernel completes by a commit channel.
//!
//! Node 1 has an NVDIMM. Its program does not run during the writes.

use super::auth_wire::{accept, connect, listen};
use super::pmem::{Device, MAPPED, PLACES};
use crate::buf::Buf;
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::{Ctx, Test, NETNS, TWO};
use crate::op::{self, iov, with_data, with_flags};
use crate::pair::{accept_one, connect_one, Opts, Pair, Remote, Side, LOCAL, LONG, REMOTE, WAIT};
use crate::raw::Cq;
use crate::sys::{self, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "pmem.p10_durable_write_over_verbs_arrives_and_completes",
        |c| durable(c, &[]),
    )
    .on(NETNS | TWO)
    .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_durable_write_under_an_auth_key_completes", |c| {
        durable(c, KEY)
    })
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_durable_writes_in_flight_complete_each_once", many)
        .on(NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_both_ends_write_durably_at_once", both)
        .on(NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_durable_write_over_verbs_to_volatile_memory_is_refused",
        volatile,
    )
    .on(NETNS | TWO)
    .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_target_without_persistent_memory_refuses",
        no_channel,
    )
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_key_revoked_during_commits_is_reported", revoked)
        .seconds(15)
        .on(NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_closes_during_commits_complete_each_write", closed)
        .seconds(20)
        .on(NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_target_killed_during_commits_fails_writes", killed)
        .seconds(20)
        .on(NETNS | TWO)
        .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_fence_waits_for_durable_writes_before_it", fenced)
        .on(NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_durable_writes_over_verbs_need_the_parameter",
        parameter,
    )
    .on(NETNS)
    .needs(ARRIVED_WRITES),
];

const KEY: &[u8] = b"an auth key for durable writes!!";

/// Registers memory, under an auth key if that is not empty.
fn reg(side: &Side, addr: u64, len: u64, flags: u32, key: &[u8]) -> Result<RegionReg> {
    let keyed = crate::auth::keyed(side.domain.handle, key);
    let region = side.dev.call_region(&RegionReg {
        flags: flags | KFI_REGION_DYNAMIC_KEYS,
        domain: side.domain.handle,
        addr,
        len,
        access: LOCAL | REMOTE,
        auth_key: keyed.auth_key,
        auth_key_size: keyed.auth_key_size,
        ..Default::default()
    })?;
    Ok(region)
}

/// Registers a mapping of the NVDIMM.
pub(super) fn persistent(side: &Side, map: &Map, key: &[u8]) -> Result<u64> {
    let region = reg(side, map.addr(), map.len() as u64, KFI_REGION_PMEM, key)?;
    ensure!(region.persistence == KFI_PERSISTENCE_ADR, "{region:?}");
    Ok(region.handle)
}

/// Connects, under an auth key if that is not empty. Node 1 listens.
fn connected(ctx: &mut Ctx, side: Side, key: &[u8]) -> Result<Pair> {
    let cq = side.cq(0, KFI_CQ_FORMAT_DATA)?;
    let got = if ctx.first() {
        let keys: &[&[u8]] = if key.is_empty() { &[] } else { &[key] };
        let (pep, port) = listen(ctx, &side, keys)?;
        ctx.ctl.send(&port)?;
        let (got, _) = accept(&side, &cq, key, &[])?;
        side.dev.close(pep)?;
        got
    } else {
        let port: u16 = ctx.ctl.recv()?;
        let (got, event) = connect(ctx, &side, &cq, key, port, &[])?;
        ensure!(event.raw.event == KFI_CONNECTED, "{:?}", event.raw);
        got
    };
    ctx.barrier("connected")?;
    Ok(Pair {
        side,
        cq,
        ep: got.handle,
        got,
    })
}

/// Returns the target's pair, and the part of the NVDIMM's memory that it exports.
fn target(ctx: &mut Ctx, key: &[u8]) -> Result<(Pair, Buf)> {
    let map = Device::Nvdimm.map()?;
    let side = Side::open(ctx)?;
    let region = persistent(&side, &map, key)?;
    let pair = connected(ctx, side, key)?;
    let (_, mine) = pair.side.export(region, 0, map.len() as u64, REMOTE)?;
    ctx.ctl.send(&mine)?;
    Ok((pair, Buf::whole(map)))
}

/// Returns the initiator's pair, and the target's memory.
fn initiator(ctx: &mut Ctx, key: &[u8]) -> Result<(Pair, Remote)> {
    let side = Side::open(ctx)?;
    ensure!(side.domain.durable == KFI_REACH_ASSISTED);
    ensure!(side.domain.caps & KFI_RMA_PMEM != 0);
    let pair = connected(ctx, side, key)?;
    let to = ctx.ctl.recv()?;
    Ok((pair, to))
}

fn durable(ctx: &mut Ctx, key: &[u8]) -> Result<()> {
    if ctx.first() {
        let (pair, there) = target(ctx, key)?;
        let receives = Buf::new(64)?;
        let receive = reg(&pair.side, receives.addr(), 64, 0, key)?.handle;
        pair.post(op::recv(7, &[iov(receive, 0, 8)]))?;
        ctx.barrier("posted")?;
        for (i, (at, len)) in PLACES.iter().enumerate() {
            ctx.barrier("written")?;
            there.check_part(*at, *len, i as u64)?;
            ctx.barrier("checked")?;
        }
        let e = pair.wait_any(WAIT)?;
        ensure!(e.err == 0 && e.data == 5 && e.context == 7, "{e:?}");
        ensure!(
            there.read(100, 4) == b"word",
            "the injected bytes are missing"
        );
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx, key)?;
    let from = Buf::new(MAPPED)?;
    let region = reg(&pair.side, from.addr(), MAPPED as u64, 0, key)?.handle;
    ctx.barrier("posted")?;
    for (i, (at, len)) in PLACES.iter().enumerate() {
        from.fill_part(*at, *len, i as u64);
        let piece = [iov(region, *at as u64, *len as u64)];
        let write = op::write(9, &piece, to.addr + *at as u64, to.key);
        let flags = KFI_COMMIT_COMPLETE | KFI_DELIVERY_COMPLETE;
        pair.post(with_flags(write, flags))?;
        let e = pair.wait_context(9)?;
        ensure!(e.len == *len as u64, "{e:?}");
        ctx.barrier("written")?;
        ctx.barrier("checked")?;
    }
    // A write of no bytes needs no commit.
    let write = op::write(10, &[iov(region, 0, 0)], to.addr, to.key);
    pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
    pair.wait_context(10)?;
    let word = op::inject(op::write(11, &[], to.addr + 100, to.key), b"word");
    let flags = KFI_COMMIT_COMPLETE | KFI_COMPLETION;
    pair.post(with_flags(with_data(word, 5), flags))?;
    pair.wait_context(11)?;
    ctx.barrier("end")
}

fn many(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u64 = 400;
    const DEEP: u64 = 100;
    const PIECE: u64 = 256;
    if ctx.first() {
        let (_pair, there) = target(ctx, &[])?;
        ctx.barrier("written")?;
        for i in 0..COUNT {
            there.check_part((i * PIECE) as usize, PIECE as usize, i)?;
        }
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx, &[])?;
    let from = Buf::new((COUNT * PIECE) as usize)?;
    let region = pair.reg(&from)?;
    let mut seen = vec![0; COUNT as usize];
    let mut wait = || -> Result<()> {
        let e = pair.wait_for(LONG)?;
        let n = &mut seen[e.context as usize];
        *n += 1;
        ensure!(*n == 1, "{e:?} came twice");
        Ok(())
    };
    for i in 0..COUNT {
        from.fill_part((i * PIECE) as usize, PIECE as usize, i);
        let piece = [iov(region, i * PIECE, PIECE)];
        let mut write = op::write(i, &piece, to.addr + i * PIECE, to.key);
        // Others go in between.
        if i % 5 != 0 {
            write = with_flags(write, KFI_COMMIT_COMPLETE);
        }
        pair.post(write)?;
        if i >= DEEP {
            wait()?;
        }
    }
    for _ in 0..DEEP {
        wait()?;
    }
    ctx.barrier("written")?;
    ctx.barrier("end")
}

/// Both ends have a half of the NVDIMM, so each end has a channel in each direction.
fn both(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 20;
    let side = Side::open(ctx)?;
    let half = MAPPED as u64 / 2;
    let map = if ctx.first() {
        let map = Device::Nvdimm.map()?;
        ctx.barrier("mapped")?;
        map
    } else {
        ctx.barrier("mapped")?;
        Device::Nvdimm.map()?
    };
    let region = persistent(&side, &map, &[])?;
    let pair = connected(ctx, side, &[])?;
    let from = if ctx.first() { 0 } else { half };
    let (_, mine) = pair.side.export(region, from, half, REMOTE)?;
    let to: Remote = ctx.ctl.exchange(&mine)?;
    let buf = Buf::new(65536)?;
    let local = pair.reg(&buf)?;
    for round in 0..ROUNDS {
        let piece = [iov(local, 0, 65536)];
        let write = op::write(round, &piece, to.addr + round * 65536, to.key);
        pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
    }
    for _ in 0..ROUNDS {
        pair.wait_for(LONG)?;
    }
    ctx.barrier("end")
}

fn volatile(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        // The domain has persistent memory too, so there is a channel.
        let map = Device::Nvdimm.map()?;
        let side = Side::open(ctx)?;
        let there = persistent(&side, &map, &[])?;
        let pair = connected(ctx, side, &[])?;
        let buf = Buf::new(8192)?;
        let region = pair.reg(&buf)?;
        let (_, mine) = pair.side.export(region, 0, 8192, REMOTE)?;
        ctx.ctl.send(&mine)?;
        pair.post(op::recv(7, &[iov(region, 0, 0)]))?;
        let (_, other) = pair.side.export(there, 0, 8192, REMOTE)?;
        ctx.ctl.send(&other)?;
        ctx.barrier("posted")?;
        ctx.barrier("refused")?;
        // The refused write has used up no receive.
        let e = pair.wait_any(WAIT)?;
        ensure!(e.err == 0 && e.data == 6, "{e:?}");
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx, &[])?;
    let other: Remote = ctx.ctl.recv()?;
    let from = Buf::new(4096)?;
    let region = pair.reg(&from)?;
    ctx.barrier("posted")?;
    let piece = [iov(region, 0, 4096)];
    for _ in 0..2 {
        let write = with_data(op::write(1, &piece, to.addr, to.key), 5);
        pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
        let err = pair.wait_err()?;
        ensure!(err == libc::EOPNOTSUPP, "errno {err}");
    }
    ctx.barrier("refused")?;
    // The connection stays, and so does the channel.
    let write = with_data(op::write(2, &piece, other.addr, other.key), 6);
    pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
    pair.wait_context(2)?;
    ctx.barrier("end")
}

fn no_channel(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, 4096, REMOTE)?;
    let to: Remote = ctx.ctl.exchange(&mine)?;
    let write = op::write(1, &[iov(region, 0, 8)], to.addr, to.key);
    for _ in 0..3 {
        for _ in 0..4 {
            pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
        }
        for _ in 0..4 {
            let err = pair.wait_err()?;
            ensure!(err == libc::EOPNOTSUPP, "errno {err}");
        }
        // The connection stays.
        pair.post(write)?;
        pair.wait_context(1)?;
    }
    ctx.barrier("end")
}

/// Writes durably until a write fails, and waits for the others. Returns the errno of the first
/// failure.
fn write_until_error(side: &Side, cq: &Cq, ep: u64, region: u64, to: &Remote) -> Result<i32> {
    const DEEP: u64 = 8;
    let (mut outstanding, mut first) = (0, 0);
    loop {
        while first == 0 && outstanding < DEEP {
            let piece = [iov(region, 0, 32768)];
            let write = op::write(1, &piece, to.addr, to.key);
            match side
                .dev
                .submit(ep, &[with_flags(write, KFI_COMMIT_COMPLETE)])
            {
                Ok((1, _)) => outstanding += 1,
                _ => first = libc::ENOTCONN,
            }
        }
        if outstanding == 0 {
            return Ok(first);
        }
        let e = cq.wait(LONG).context("a write that does not complete")?;
        outstanding -= 1;
        if e.err != 0 && first == 0 {
            first = e.err as i32;
        }
    }
}

fn revoked(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 10;
    const OPS: u64 = 8;
    const PIECE: u64 = 262_144;
    let side = Side::open(ctx)?;
    if ctx.first() {
        let map = Device::Nvdimm.map()?;
        let region = persistent(&side, &map, &[])?;
        let slot = side.dev.key_alloc(region, 1)?[0];
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        for round in 0..ROUNDS {
            let cq = side.cq(0, 0)?;
            let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
            ctx.ctl.send(&side.assign(slot, 0, OPS * PIECE, REMOTE)?)?;
            ctx.barrier("posting")?;
            std::thread::sleep(Duration::from_millis(round));
            side.dev.key_revoke(slot)?;
            ctx.barrier("revoked")?;
            side.dev.close(ep)?;
        }
        return ctx.barrier("end");
    }
    let port: u16 = ctx.ctl.recv()?;
    let buf = Buf::new(PIECE as usize)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let mut codes = std::collections::BTreeMap::new();
    for _ in 0..ROUNDS {
        let cq = side.cq(0, 0)?;
        let ep = connect_one(&side, &Opts::default(), &cq, ctx.env.peer_at(port))?.handle;
        let to: Remote = ctx.ctl.recv()?;
        ctx.barrier("posting")?;
        let mut posted = 0;
        for i in 0..OPS {
            let piece = [iov(region, 0, PIECE)];
            let write = op::write(i, &piece, to.addr + i * PIECE, to.key);
            let done = side
                .dev
                .submit(ep, &[with_flags(write, KFI_COMMIT_COMPLETE)]);
            posted += u64::from(done.is_ok());
        }
        for _ in 0..posted {
            *codes.entry(cq.wait(LONG)?.err as i32).or_insert(0) += 1;
        }
        ctx.barrier("revoked")?;
        side.dev.close(ep)?;
        while side.dev.eq_wait(&side.eq, Duration::ZERO).is_ok() {}
    }
    eprintln!("errnos and their numbers: {codes:?}");
    // A write after the revocation ends the connection, as every access does.
    let known = [0, libc::EKEYREVOKED, libc::EACCES, libc::ECANCELED];
    ensure!(codes.keys().all(|code| known.contains(code)), "{codes:?}");
    ctx.barrier("end")
}

fn closed(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 16;
    const OPS: u64 = 16;
    let side = Side::open(ctx)?;
    if ctx.first() {
        let map = Device::Nvdimm.map()?;
        let region = persistent(&side, &map, &[])?;
        let (_, mine) = side.export(region, 0, MAPPED as u64, REMOTE)?;
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&(at.port(), mine))?;
        for round in 0..ROUNDS {
            let cq = side.cq(0, 0)?;
            let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
            ctx.barrier("posting")?;
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(round));
                side.dev.close(ep)?;
            } else {
                ctx.barrier("closed")?;
                side.dev.close(ep)?;
            }
            // A closed endpoint has no more events, and the next request follows the barrier.
            while side.dev.eq_wait(&side.eq, Duration::ZERO).is_ok() {}
            ctx.barrier("over")?;
        }
        return ctx.barrier("end");
    }
    let (port, to): (u16, Remote) = ctx.ctl.recv()?;
    let buf = Buf::new(65536)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    for round in 0..ROUNDS {
        let cq = side.cq(0, 0)?;
        let ep = connect_one(&side, &Opts::default(), &cq, ctx.env.peer_at(port))?.handle;
        ctx.barrier("posting")?;
        let mut posted = 0;
        for i in 0..OPS {
            let piece = [iov(region, 0, 65536)];
            let write = op::write(i, &piece, to.addr, to.key);
            let done = side
                .dev
                .submit(ep, &[with_flags(write, KFI_COMMIT_COMPLETE)]);
            posted += u64::from(done.is_ok());
        }
        if round % 2 == 1 {
            std::thread::sleep(Duration::from_millis(round));
            side.dev.close(ep)?;
            ctx.barrier("closed")?;
        }
        for _ in 0..posted {
            cq.wait(LONG).context("a write that does not complete")?;
        }
        if round % 2 == 0 {
            side.dev.close(ep)?;
        }
        while side.dev.eq_wait(&side.eq, Duration::ZERO).is_ok() {}
        ctx.barrier("over")?;
    }
    ctx.barrier("end")
}

fn killed(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 6;
    if ctx.first() {
        let env = ctx.env.clone();
        // Made before the children, which only map it.
        drop(Device::Nvdimm.map()?);
        for round in 0..ROUNDS {
            let shared = Map::shared(4096)?;
            let pid = sys::fork(|| {
                let work = || -> Result<()> {
                    let map = Device::Nvdimm.map()?;
                    let side = Side::of(&env)?;
                    let region = persistent(&side, &map, &[])?;
                    let (_, mine) = side.export(region, 0, MAPPED as u64, REMOTE)?;
                    let (_pep, at) = side.listen(env.at(0), 0)?;
                    shared.set64(32, u64::from(at.port()));
                    mine.leave_in(&shared);
                    let cq = side.cq(0, 0)?;
                    accept_one(&side, &Opts::default(), &cq)?;
                    std::thread::sleep(Duration::from_secs(60));
                    Ok(())
                };
                if let Err(e) = work() {
                    eprintln!("the process to be killed: {e:#}");
                }
                1
            })?;
            Remote::tell_of(ctx, &shared)?;
            ctx.ctl.send(&(shared.get64(32) as u16))?;
            ctx.barrier("writing")?;
            std::thread::sleep(Duration::from_millis(round * round));
            sys::kill(pid, libc::SIGKILL)?;
            sys::wait_pid(pid, WAIT)?;
            super::death::nothing_left_of(&crate::raw::Dev::open()?, pid)?;
            ctx.barrier("over")?;
        }
        return ctx.barrier("end");
    }
    let side = Side::open(ctx)?;
    let buf = Buf::new(32768)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    for round in 0..ROUNDS {
        let to: Remote = ctx.ctl.recv()?;
        let port: u16 = ctx.ctl.recv()?;
        let cq = side.cq(0, 0)?;
        let ep = connect_one(&side, &Opts::default(), &cq, ctx.env.peer_at(port))?.handle;
        ctx.barrier("writing")?;
        let err = write_until_error(&side, &cq, ep, region, &to)?;
        eprintln!("round {round}: errno {err}");
        side.dev.close(ep)?;
        while side.dev.eq_wait(&side.eq, Duration::ZERO).is_ok() {}
        ctx.barrier("over")?;
    }
    ctx.barrier("end")
}

/// An operation with a fence behind a durable write completes after the write.
fn fenced(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 8;
    const LEN: u64 = 4 << 20;
    if ctx.first() {
        let (_pair, _there) = target(ctx, &[])?;
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx, &[])?;
    let buf = Buf::new(LEN as usize)?;
    let region = pair.reg(&buf)?;
    let mut refused = 0;
    for round in 0..ROUNDS {
        let long = op::write(1, &[iov(region, 0, LEN)], to.addr, to.key);
        pair.post(with_flags(long, KFI_COMMIT_COMPLETE))?;
        let fence = with_flags(
            op::write(2, &[iov(region, 0, 8)], to.addr, to.key),
            KFI_FENCE,
        );
        let mut done = Vec::new();
        loop {
            match pair.side.dev.submit(pair.ep, &[fence]) {
                Ok(_) => break,
                Err(e) => ensure!(e.errno.0 == libc::EAGAIN, "{e:?}"),
            }
            refused += 1;
            // Only the durable write can complete.
            done.push(pair.wait_any(LONG)?);
        }
        while done.len() < 2 {
            done.push(pair.wait_any(LONG)?);
        }
        let order: Vec<_> = done.iter().map(|e| (e.context, e.err)).collect();
        ensure!(order == [(1, 0), (2, 0)], "round {round}: {order:?}");
    }
    eprintln!("{refused} of {ROUNDS} operations with a fence came too early");
    ctx.barrier("end")
}

/// The module parameter that allows durable writes.
pub(super) const COMMIT: &str = "/sys/module/kverbs/parameters/commit";

/// Opens a domain while durable writes are not allowed, and one after that.
fn parameter(ctx: &mut Ctx) -> Result<()> {
    ctx.barrier("start")?;
    if ctx.first() {
        std::fs::write(COMMIT, "N").context(COMMIT)?;
        let closed = Side::open(ctx);
        std::fs::write(COMMIT, "Y").context(COMMIT)?;
        let domain = closed?.domain;
        ensure!(domain.durable == KFI_REACH_NO && domain.caps & KFI_RMA_PMEM == 0);
        let domain = Side::open(ctx)?.domain;
        ensure!(domain.durable == KFI_REACH_ASSISTED && domain.caps & KFI_RMA_PMEM != 0);
    }
    ctx.barrier("end")
}
