// SPDX-License-Identifier: MIT OR Apache-2.0

//! A process that is killed while it copies stops copying: at once for copies that only it can
//! make, and for the rest when the kernel closes its file. The tests count bytes that arrive after
//! the signal, not time.

use crate::harness::{Ctx, Test, SHM};
use crate::op::{self, iov};
use crate::pair::{accept_one, connect_one, Opts, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::sys::{self, Ended, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::Instant;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("shm.kill_in_a_long_copy_stops_it_at_once", |c| {
        rounds(c, false)
    })
    .seconds(15)
    .on(SHM),
    Test::pair("shm.kill_with_many_copies_posted_stops_them", |c| {
        rounds(c, true)
    })
    .seconds(15)
    .on(SHM),
];

/// Bytes of a copy.
const LEN: usize = 128 << 20;
const PAGE: usize = 4096;
/// Bytes of unregistered memory that may still arrive: a multiple of the length that is copied in
/// one stretch.
const MORE: usize = 1 << 20;
/// Number of copies of registered memory posted at once, and how many of them may complete: a
/// worker goes on until the dead process's file is closed.
const POSTED: u64 = 32;
const DONE: u64 = 16;
/// Number of attempts to kill in the middle of a copy.
const ROUNDS: u32 = 20;

fn opts() -> Opts {
    Opts {
        tx_size: POSTED as u32,
        rx_size: POSTED as u32,
        ..Opts::default()
    }
}

/// Node 1 offers memory, and kills the copier when the first byte has arrived.
fn rounds(ctx: &mut Ctx, registered: bool) -> Result<()> {
    if !ctx.first() {
        return copies(ctx, registered);
    }
    let side = Side::open(ctx)?;
    let (_pep, at) = side.listen(ctx.env.at(0), 4)?;
    let map = Map::anon(LEN)?;
    let region = side.reg_at(map.addr(), LEN as u64, LOCAL | REMOTE)?.handle;
    let (_, remote) = side.export(region, 0, LEN as u64, REMOTE)?;
    ctx.ctl.send(&(at.port(), remote))?;
    for round in 0..ROUNDS {
        (0..LEN).step_by(PAGE).for_each(|at| map.set(at, 0));
        let pid: i32 = ctx.ctl.recv()?;
        let caught = match registered {
            true => many(ctx, &side, &map, (region, pid)),
            false => one(ctx, &side, &map, pid),
        };
        let caught = caught.with_context(|| format!("round {round}"))?;
        ctx.ctl.send(&caught)?;
        if caught {
            return ctx.barrier("done");
        }
    }
    anyhow::bail!("none of {ROUNDS} was caught in the middle")
}

/// Starts the copies, and kills the copier once the first bytes have arrived.
fn strike(ctx: &mut Ctx, map: &Map, pid: i32) -> Result<()> {
    let end = Instant::now() + sys::patience(WAIT);
    ctx.ctl.send(&true)?;
    while map.get(0) == 0 {
        ensure!(Instant::now() < end, "nothing comes");
    }
    Ok(sys::kill(pid, libc::SIGKILL)?)
}

/// Counts the bytes that have arrived, by the first byte of every page.
fn come(map: &Map) -> usize {
    let (mut low, mut high) = (0, LEN / PAGE);
    while low < high {
        let middle = low.midpoint(high);
        match map.get(middle * PAGE) {
            0 => high = middle,
            _ => low = middle + 1,
        }
    }
    low * PAGE
}

/// Copies unregistered memory in one long copy, which no other task can finish. Returns whether the
/// kill came in the middle.
fn one(ctx: &mut Ctx, side: &Side, map: &Map, pid: i32) -> Result<bool> {
    let cq = side.cq(0, 0)?;
    let ep = accept_one(side, &opts(), &cq)?.handle;
    strike(ctx, map, pid)?;
    let then = come(map);
    side.event(KFI_SHUTDOWN)?;
    let after = come(map);
    ensure!(
        after <= then + MORE,
        "{} bytes came after the signal",
        after - then
    );
    side.dev.close(ep)?;
    side.dev.close(cq.handle)?;
    Ok(after < LEN)
}

/// Makes many copies of registered memory, each with data for a receive.
fn many(ctx: &mut Ctx, side: &Side, map: &Map, (region, pid): (u64, i32)) -> Result<bool> {
    let cq = side.cq(0, 0)?;
    let ep = accept_one(side, &opts(), &cq)?.handle;
    for i in 0..POSTED {
        side.dev.submit(ep, &[op::recv(i, &[iov(region, 0, 8)])])?;
    }
    strike(ctx, map, pid)?;
    side.event(KFI_SHUTDOWN)?;
    side.dev.close(ep)?;
    let mut done = 0;
    for _ in 0..POSTED {
        done += u64::from(cq.wait(WAIT)?.err == 0);
    }
    ensure!(done <= DONE, "{done} of {POSTED} copies were done");
    side.dev.close(cq.handle)?;
    Ok(true)
}

/// Node 2 runs children that copy until they are killed.
fn copies(ctx: &mut Ctx, registered: bool) -> Result<()> {
    let (port, theirs): (u16, Remote) = ctx.ctl.recv()?;
    let env = ctx.env.clone();
    loop {
        let go = Map::shared(PAGE)?;
        let pid = sys::fork(|| {
            let work = || -> Result<()> {
                let side = Side::of(&env)?;
                let cq = side.cq(0, 0)?;
                let map = Map::anon(LEN)?;
                (0..LEN).step_by(PAGE).for_each(|at| map.set(at, 1));
                let from = match registered {
                    true => iov(
                        side.reg_at(map.addr(), LEN as u64, LOCAL)?.handle,
                        0,
                        LEN as u64,
                    ),
                    false => iov(KFI_UNREGISTERED, map.addr(), LEN as u64),
                };
                let ep = connect_one(&side, &opts(), &cq, env.peer_at(port))?.handle;
                while go.load32(0) == 0 {
                    std::thread::yield_now();
                }
                let write = op::write(1, &[from], theirs.addr, theirs.key);
                let all = match registered {
                    true => (0..POSTED).map(|i| op::with_data(write, i)).collect(),
                    false => vec![write],
                };
                side.dev.submit(ep, &all)?;
                // The other node ends this process.
                std::thread::sleep(sys::patience(WAIT));
                Ok(())
            };
            i32::from(work().is_err())
        })?;
        ctx.ctl.send(&pid)?;
        let begin: bool = ctx.ctl.recv()?;
        ensure!(begin, "it does not want to begin");
        go.store32(0, 1);
        let end = sys::wait_pid(pid, sys::patience(WAIT))?;
        ensure!(end == Some(Ended::Signal(libc::SIGKILL)), "{end:?}");
        if ctx.ctl.recv::<bool>()? {
            return ctx.barrier("done");
        }
    }
}
