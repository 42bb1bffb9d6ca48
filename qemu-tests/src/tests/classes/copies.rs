// SPDX-License-Identifier: MIT OR Apache-2.0

//! A process kills, forks, unmaps, moves or replaces itself while a peer copies to and from its
//! memory (the bugs of knem and XPMEM).

use super::times;
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::{Ctx, Env};
use crate::op::{self, iov};
use crate::pair::{accept_one, connect_one, Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::sys::{self, Ended, Map};
use crate::tests::death::nothing_left_of;
use crate::tests::keys::hammer;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes of one copy.
const SIZE: usize = 64 << 10;

/// Node 2 writes to node 1's memory and reads the same bytes back, while node 1 runs `act` on
/// itself and the memory all the time, and copies to and from node 2's memory.
fn while_copying(
    ctx: &mut Ctx,
    mut buf: Buf,
    mut act: impl FnMut(&mut Buf, u64) -> Result<()>,
) -> Result<Buf> {
    let pair = Pair::new(ctx)?;
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, SIZE as u64, REMOTE)?;
    // Progress of the other node.
    let news = Buf::new(4096)?;
    let told = pair.reg(&news)?;
    let (_, board) = pair.side.export(told, 0, 16, REMOTE)?;
    let (theirs, their_board): (Remote, Remote) = ctx.ctl.exchange(&(mine, board))?;
    let scratch = Buf::new(SIZE)?;
    let own = pair.reg(&scratch)?;
    let rounds = times(60);
    if ctx.first() {
        let end = Instant::now() + sys::patience(crate::pair::LONG);
        let mut acts = 0;
        while news.get64(0) < rounds {
            ensure!(Instant::now() < end, "node 2 is at round {}", news.get64(0));
            act(&mut buf, acts).with_context(|| format!("act {acts}"))?;
            // The other direction: bytes written and read back are the same.
            scratch.fill(acts);
            pair.write(own, 0, SIZE as u64, theirs.addr, theirs.key)?;
            scratch.clear(0);
            pair.read(own, 0, SIZE as u64, theirs.addr, theirs.key)?;
            scratch.check(acts).context("node 2's memory")?;
            acts += 1;
        }
        eprintln!("{acts} acts in {rounds} rounds");
    } else {
        for round in 0..rounds {
            scratch.fill(round);
            pair.write(own, 0, SIZE as u64, theirs.addr, theirs.key)?;
            scratch.clear(0);
            pair.read(own, 0, SIZE as u64, theirs.addr, theirs.key)?;
            scratch
                .check(round)
                .with_context(|| format!("round {round}: node 1's memory"))?;
            scratch.set64(0, round + 1);
            pair.write(own, 0, 8, their_board.addr, their_board.key)?;
        }
    }
    ctx.barrier("copied")?;
    Ok(buf)
}

/// Children see their parent's memory, write to their own copy, and exit; peers see the parent's
/// memory alone.
pub(super) fn forked(ctx: &mut Ctx) -> Result<()> {
    let buf = Buf::new(SIZE)?;
    while_copying(ctx, buf, |buf, i| {
        let pid = sys::fork(|| {
            buf.clear(0xcc);
            let mine = buf.check_value(0, SIZE, 0xcc).is_ok();
            i32::from(!mine)
        })?;
        // Every second child is killed while it writes.
        if i % 2 == 1 {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        let end = sys::wait_pid(pid, WAIT)?;
        let fine = [Some(Ended::Exit(0)), Some(Ended::Signal(libc::SIGKILL))];
        ensure!(
            fine.contains(&end),
            "the child: {end:?} (1: not its own memory)"
        );
        Ok(())
    })
    .map(drop)
}

/// Unmaps the memory and maps other memory in its place again and again: peers reach the registered
/// pages, and never the new ones.
pub(super) fn unmapped(ctx: &mut Ctx) -> Result<()> {
    let first = ctx.first();
    let buf = Buf::whole(Map::anon(SIZE)?);
    let buf = while_copying(ctx, buf, |buf, i| {
        if i > 0 {
            buf.check_value(0, SIZE, 0x77)
                .context("a peer wrote to memory that was never registered")?;
        }
        buf.map_mut().punch(0, SIZE)?;
        std::thread::yield_now();
        buf.map_mut().replace()?;
        buf.clear(0x77);
        Ok(())
    })?;
    if first {
        buf.check_value(0, SIZE, 0x77)?;
    }
    Ok(())
}

/// Moves the memory to another address: peers reach it there, and not the memory that is then at
/// the old address.
pub(super) fn moved(ctx: &mut Ctx) -> Result<()> {
    let first = ctx.first();
    let mut away: Option<Map> = None;
    let buf = Buf::whole(Map::anon(SIZE)?);
    let buf = while_copying(ctx, buf, |buf, _| {
        let next = match &mut away {
            None => buf.map_mut().move_away()?,
            Some(map) => map.move_away()?,
        };
        buf.clear(0x55);
        away = Some(next);
        Ok(())
    })?;
    if first {
        buf.check_value(0, SIZE, 0x55)
            .context("a peer wrote to the old address")?;
        // The last round's bytes are at the new address.
        let away = Buf::whole(away.context("it never moved")?);
        away.check(times(60) - 1).context("the new address")?;
    }
    Ok(())
}

/// Ways in which the owner of the memory ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// By a signal.
    Kill,
    /// By `exec`, which closes the file.
    Exec,
    /// By `exec` with the file left open; then by a signal.
    ExecWithFile,
}

/// Kills the owner.
pub(super) fn killed(ctx: &mut Ctx) -> Result<()> {
    for round in 0..times(8) {
        owner_ends(ctx, End::Kill, round).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

/// Replaces the owner's program.
pub(super) fn replaced(ctx: &mut Ctx) -> Result<()> {
    for round in 0..times(4) {
        for how in [End::Exec, End::ExecWithFile] {
            owner_ends(ctx, how, round).with_context(|| format!("round {round}, {how:?}"))?;
        }
    }
    Ok(())
}

/// A process of node 1's copies to and from node 2's memory, and node 2 copies to and from its
/// memory; then it ends as `how` says.
fn owner_ends(ctx: &mut Ctx, how: End, round: u64) -> Result<()> {
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (port, target): (u16, Remote) = ctx.ctl.recv()?;
        return end_owner(ctx, &side, how, round, ctx.env.peer_at(port), target);
    }
    let buf = Buf::new(SIZE)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (_, mine) = side.export(region, 0, SIZE as u64, REMOTE)?;
    let (pep, at) = side.listen(ctx.env.at(0), 0)?;
    ctx.ctl.send(&(at.port(), mine))?;
    let cq = side.cq(0, 0)?;
    let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
    let theirs: Remote = ctx.ctl.recv()?;
    let scratch = Buf::new(SIZE)?;
    let own = side.reg(&scratch, LOCAL)?.handle;
    let piece = [iov(own, 0, SIZE as u64)];
    let copies = |i: u64| match i % 2 {
        0 => op::write(1, &piece, theirs.addr, theirs.key),
        _ => op::read(1, &piece, theirs.addr, theirs.key),
    };
    if how == End::ExecWithFile {
        // The process runs another program by now, and the key still reaches the registered pages.
        ctx.barrier("replaced")?;
        for i in 0..20 {
            scratch.fill(i);
            side.dev.submit(ep, &[copies(0)])?;
            ensure!(cq.wait(WAIT)?.err == 0, "a write after exec");
            scratch.clear(0);
            side.dev.submit(ep, &[copies(1)])?;
            ensure!(cq.wait(WAIT)?.err == 0, "a read after exec");
            scratch.check(i).context("the bytes read back")?;
        }
        ctx.barrier("copied after exec")?;
    }
    let mut i = 0;
    let done = hammer(&side.dev, ep, &cq, 8, || {
        i += 1;
        copies(i)
    })?;
    ensure!(cq.read().is_none(), "an operation ended twice");
    eprintln!("{done} copies before the end");
    let down = side
        .dev
        .eq_wait(&side.eq, Duration::from_secs(60))
        .context("no word of the end")?;
    ensure!(
        down.raw.event == KFI_SHUTDOWN && down.raw.object == ep,
        "{:?}",
        down.raw
    );
    side.dev.close(ep)?;
    side.dev.close(pep)?;
    buf.check_guards()?;
    ctx.barrier("ended")
}

/// Plays node 1: starts the owner, and ends it.
fn end_owner(
    ctx: &mut Ctx,
    side: &Side,
    how: End,
    round: u64,
    peer: SocketAddr,
    target: Remote,
) -> Result<()> {
    let env = ctx.env.clone();
    let shared = Map::shared(4096)?;
    let pid = sys::fork(|| {
        let e = own(&env, how, &shared, peer, target);
        eprintln!(
            "the owner: {:#}",
            e.err().unwrap_or_else(|| anyhow::anyhow!("still there"))
        );
        1
    })?;
    Remote::tell_of(ctx, &shared)?;
    let other_program = || -> Result<()> {
        until("another program", WAIT, || {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm"))?;
            Ok((name.trim() == "sleep").then_some(()))
        })
    };
    match how {
        End::Kill => std::thread::sleep(Duration::from_micros(1000 + round * round * 3000)),
        End::Exec => other_program()?,
        End::ExecWithFile => {
            other_program()?;
            ctx.barrier("replaced")?;
            ctx.barrier("copied after exec")?;
        }
    }
    if how == End::Exec {
        // The process lives, and has no objects any more.
        nothing_left_of(&side.dev, pid)?;
    }
    sys::kill(pid, libc::SIGKILL)?;
    let end = sys::wait_pid(pid, WAIT)?;
    ensure!(end == Some(Ended::Signal(libc::SIGKILL)), "{end:?}");
    nothing_left_of(&side.dev, pid)?;
    ctx.barrier("ended")
}

/// Runs the owner: exports memory, copies, and ends.
fn own(env: &Env, how: End, shared: &Map, peer: SocketAddr, target: Remote) -> Result<()> {
    let side = Side::of(env)?;
    let cq = side.cq(0, 0)?;
    let buf = Buf::new(SIZE)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (_, remote) = side.export(region, 0, SIZE as u64, REMOTE)?;
    let ep = connect_one(&side, &Opts::default(), &cq, peer)?.handle;
    let piece = [iov(region, 0, SIZE as u64)];
    if how == End::ExecWithFile {
        sys::keep_over_exec(&side.dev)?;
    }
    remote.leave_in(shared);
    if how == End::Kill {
        let mut i = 0u64;
        hammer(&side.dev, ep, &cq, 8, || {
            i += 1;
            match i % 2 {
                0 => op::write(1, &piece, target.addr, target.key),
                _ => op::read(1, &piece, target.addr, target.key),
            }
        })?;
        return Ok(());
    }
    if how == End::Exec {
        // With own operations outstanding.
        std::thread::sleep(Duration::from_millis(20));
        let ops = [op::write(1, &piece, target.addr, target.key); 8];
        side.dev.submit(ep, &ops)?;
    }
    Err(Command::new("sleep").arg("300").exec().into())
}
