// SPDX-License-Identifier: MIT OR Apache-2.0

//! Completion queues under load: readers that stop, several readers and endpoints of one queue, and
//! endpoints and regions that are closed while operations complete.

use crate::buf::Buf;
use crate::harness::caps::LATE_RECEIVES;
use crate::harness::guest::until;
use crate::harness::trace::Trace;
use crate::harness::{Ctx, Test};
use crate::op::{self, iov};
use crate::pair::{
    accept_one, connect, connect_one, Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT,
};
use crate::raw::Cq;
use crate::sys::{self, Ended, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "cq.completions_of_program_are_handled_in_soft_interrupt",
        handled_in_soft_interrupt,
    )
    .verbs(),
    Test::pair(
        "cq.p09_reader_that_stops_delays_no_other_observer",
        reader_stops,
    ),
    Test::pair(
        "cq.p09_two_readers_of_many_endpoints_see_each_completion_once_in_order",
        two_readers,
    )
    .needs(LATE_RECEIVES)
    .seconds(20),
    Test::pair(
        "cq.p09_endpoint_closed_amid_completions_completes_each_once",
        closed_amid_completions,
    )
    .seconds(20),
    Test::pair(
        "cq.p09_reader_killed_amid_completions_leaves_the_peer_well",
        reader_killed,
    )
    .seconds(20),
];

/// A worker between the device and a program's queue would cost two task switches for each completion.
fn handled_in_soft_interrupt(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let piece = [iov(region, 0, 8)];
    // The events are those of the whole kernel, so the other node's may be among them.
    let trace = Trace::new("rdma_core/cq_poll", None)?;
    if ctx.first() {
        pair.post(op::recv(1, &piece))?;
    }
    ctx.barrier("posted")?;
    if !ctx.first() {
        pair.post(op::send(1, &piece))?;
    }
    pair.wait_context(1)?;
    trace.stop()?;
    let polls = trace.events_in_soft_interrupt("cq_poll")?;
    let found = polls.iter().filter(|poll| !poll.ends_with("returned 0"));
    ensure!(found.count() >= 1, "{:?}", trace.events("cq_poll")?);
    ctx.barrier("done")
}

/// Polls an empty queue for a while.
fn poll_in_vain(cq: &Cq) -> Result<()> {
    let end = Instant::now() + Duration::from_millis(20);
    while Instant::now() < end {
        ensure!(cq.read().is_none(), "an entry without an operation");
        std::hint::spin_loop();
    }
    Ok(())
}

fn reader_stops(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 10;
    let side = Side::open(ctx)?;
    let cntr = side.dev.cntr_open(side.domain.handle)?;
    let opts = Opts {
        counters: vec![(cntr, KFI_RECV)],
        ..Default::default()
    };
    let pair = Pair::on(ctx, side, &opts)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    for round in 0..ROUNDS {
        if ctx.first() {
            pair.post(op::recv(round, &[iov(region, 0, 8)]))?;
            poll_in_vain(&pair.cq)?;
            ctx.barrier("polled")?;
            // No further read of the queue before both observers have seen the completion.
            pair.dev().cntr_wait(cntr, round + 1, WAIT)?;
            let readable = sys::poll_in(pair.cq.fd.as_fd(), sys::patience(WAIT));
            ensure!(readable?, "round {round}: poll(2) sees nothing");
            pair.wait_context(round)?;
        } else {
            ctx.barrier("polled")?;
            pair.post(op::send(round, &[iov(region, 0, 8)]))?;
            pair.wait_context(round)?;
        }
        ctx.barrier("round done")?;
    }
    Ok(())
}

/// Endpoints that share a queue.
const ENDPOINTS: usize = 4;
/// Messages of each endpoint.
const MESSAGES: u64 = 1000;
/// Operations of an endpoint at once.
const AT_ONCE: u64 = 32;
/// Bytes of a message.
const LEN: u64 = 8;

/// Progress of a queue's readers.
struct Seen {
    /// Next number of each endpoint.
    next: [u64; ENDPOINTS],
    failed: Option<String>,
}

/// Posts message `number` of endpoint number `n`, or the receive for it.
fn post(ctx: &Ctx, side: &Side, eps: &[u64], region: u64, n: usize, number: u64) -> Result<()> {
    let place = (n as u64 * AT_ONCE + number % AT_ONCE) * LEN;
    let context = (n as u64) << 32 | number;
    let iov = [iov(region, place, LEN)];
    let op = match ctx.first() {
        true => op::recv(context, &iov),
        false => op::send(context, &iov),
    };
    let (taken, err) = side.dev.submit(eps[n], &[op])?;
    ensure!(taken == 1, "errno {err}");
    Ok(())
}

fn two_readers(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(ENDPOINTS as u32 * 2 * AT_ONCE as u32, KFI_CQ_FORMAT_DATA)?;
    let mut eps = Vec::new();
    for _ in 0..ENDPOINTS {
        eps.push(connect(ctx, &side, &Opts::default(), &cq)?.handle);
    }
    let buf = Buf::new((ENDPOINTS as u64 * AT_ONCE * LEN) as usize)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let start = |ctx: &Ctx| -> Result<()> {
        for number in 0..AT_ONCE {
            for n in 0..ENDPOINTS {
                post(ctx, &side, &eps, region, n, number)?;
            }
        }
        Ok(())
    };
    if ctx.first() {
        start(ctx)?;
    }
    ctx.barrier("receives posted")?;
    if !ctx.first() {
        start(ctx)?;
    }
    let seen = Mutex::new(Seen {
        next: [0; ENDPOINTS],
        failed: None,
    });
    let end = Instant::now() + sys::patience(WAIT);
    let ctx_ref: &Ctx = ctx;
    // Each reader takes an entry, checks its place in the order, and posts the next operation.
    let take = || -> Result<bool> {
        let mut seen = seen.lock().unwrap_or_else(|e| e.into_inner());
        if seen.failed.is_some() || seen.next.iter().all(|next| *next == MESSAGES) {
            return Ok(true);
        }
        ensure!(Instant::now() < end, "seen in time: {:?}", seen.next);
        let Some(entry) = cq.read() else {
            return Ok(false);
        };
        let (n, number) = ((entry.context >> 32) as usize, entry.context & 0xffff_ffff);
        ensure!(entry.err == 0, "{entry:?}");
        ensure!(
            n < ENDPOINTS && number == seen.next[n] && entry.ep == eps[n],
            "{entry:?} after {:?}",
            seen.next
        );
        seen.next[n] += 1;
        if number + AT_ONCE < MESSAGES {
            post(ctx_ref, &side, &eps, region, n, number + AT_ONCE)?;
        }
        Ok(false)
    };
    let reader = || loop {
        match take() {
            Ok(true) => break,
            Ok(false) => std::thread::yield_now(),
            Err(error) => {
                let mut seen = seen.lock().unwrap_or_else(|e| e.into_inner());
                seen.failed.get_or_insert(format!("{error:#}"));
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(reader);
        scope.spawn(reader);
    });
    let failed = seen.into_inner().map(|seen| seen.failed);
    ensure!(matches!(failed, Ok(None)), "{failed:?}");
    ensure!(cq.read().is_none(), "an entry too many");
    ctx.barrier("done")
}

/// Exports a buffer of node 1 to node 2.
fn exported(ctx: &mut Ctx, side: &Side, buf: &Buf) -> Result<Option<Remote>> {
    if ctx.first() {
        let region = side.reg(buf, LOCAL | REMOTE)?.handle;
        let (_, remote) = side.export(region, 0, buf.len() as u64, REMOTE)?;
        ctx.ctl.send(&remote)?;
        return Ok(None);
    }
    Ok(Some(ctx.ctl.recv()?))
}

/// Node 2 closes endpoints whose writes complete, after the writes' region. So completions drop the last
/// references to regions.
fn closed_amid_completions(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 20;
    const WRITES: u64 = 64;
    let buf = Buf::new(4096)?;
    for round in 0..ROUNDS {
        let side = Side::open(ctx)?;
        let cq = side.cq(256, KFI_CQ_FORMAT_DATA)?;
        let ep = connect(ctx, &side, &Opts::default(), &cq)?.handle;
        let remote = exported(ctx, &side, &buf)?;
        if let Some(remote) = remote {
            let region = side.reg(&buf, LOCAL)?.handle;
            let piece = [iov(region, 0, 8)];
            let ops: Vec<_> = (0..WRITES)
                .map(|i| op::write(i, &piece, remote.addr, remote.key))
                .collect();
            let (taken, err) = side.dev.submit(ep, &ops)?;
            ensure!(taken as u64 == WRITES, "{taken} taken, errno {err}");
            side.dev.close(region)?;
            // From a close before the first completion to one after the last.
            let mut next = 0;
            while next < WRITES * round / (ROUNDS - 1) {
                let entry = cq.wait(WAIT)?;
                ensure!(entry.context == next && entry.err == 0, "{entry:?}");
                next += 1;
            }
            side.dev.close(ep)?;
            while let Some(entry) = cq.read() {
                ensure!(
                    entry.context == next,
                    "round {round}: {entry:?}, not {next}"
                );
                next += 1;
            }
            ensure!(next == WRITES, "round {round}: {next} completions");
        }
        ctx.barrier("round done")?;
    }
    Ok(())
}

/// Node 2's child dies while it reads the completions of its writes.
fn reader_killed(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 8;
    const AT_ONCE: usize = 64;
    /// Completions that the reader reads before it is killed, in each round more.
    const READ: u64 = 200;
    let buf = Buf::new(4096)?;
    for round in 0..ROUNDS {
        if ctx.first() {
            let side = Side::open(ctx)?;
            let cq = side.cq(0, KFI_CQ_FORMAT_DATA)?;
            let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
            let (_, remote) = side.export(region, 0, buf.len() as u64, REMOTE)?;
            let (pep, at) = side.listen(ctx.env.at(0), 0)?;
            ctx.ctl.send(&(at.port(), remote))?;
            let ep = accept_one(&side, &Opts::default(), &cq)?.handle;
            side.event(KFI_SHUTDOWN).context("the reader's end")?;
            side.dev.close(ep)?;
            side.dev.close(pep)?;
        } else {
            let (port, remote): (u16, Remote) = ctx.ctl.recv()?;
            let read = Map::shared(4096)?;
            let reads = || -> Result<()> {
                let side = Side::open(ctx)?;
                let cq = side.cq(256, KFI_CQ_FORMAT_DATA)?;
                let at = ctx.env.peer_at(port);
                let ep = connect_one(&side, &Opts::default(), &cq, at)?.handle;
                let region = side.reg(&buf, LOCAL)?.handle;
                let write = op::write(1, &[iov(region, 0, 8)], remote.addr, remote.key);
                side.dev.submit(ep, &[write; AT_ONCE])?;
                loop {
                    if cq.read().is_some() {
                        read.set64(0, read.get64(0) + 1);
                        side.dev.submit(ep, &[write])?;
                    }
                }
            };
            let pid = sys::fork(|| {
                eprintln!("the reader: {:?}", reads());
                1
            })?;
            let enough = || Ok((read.get64(0) > READ * round).then_some(()));
            until("the reader", WAIT, enough)?;
            sys::kill(pid, libc::SIGKILL)?;
            let ended = sys::wait_pid(pid, WAIT)?;
            ensure!(ended == Some(Ended::Signal(libc::SIGKILL)), "{ended:?}");
        }
        ctx.barrier("round done")?;
    }
    Ok(())
}
