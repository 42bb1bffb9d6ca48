// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two hosts and a wire that loses, reorders, duplicates, delays and corrupts packets, or is cut
//! for seconds or a minute; and a host that freezes for a while. No call hangs, no byte is wrong,
//! and an error comes within the provider's bounds (`kverbs-provider/src/limits.rs`).

use super::death::{fresh_transfer, revive_rxe};
use crate::buf::Buf;
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::guest::ask_host;
use crate::harness::weather::{self, Weather};
use crate::harness::{Ctx, Test, LONG, TWO};
use crate::op::{self, iov};
use crate::pair::{accept_one, connect_one, Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{Cq, Event};
use crate::sys::patience;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("hosts.loss_of_1_percent_delivers_all", |c| {
        transfers(c, "loss 1%")
    })
    .seconds(10)
    .on(TWO),
    Test::pair("hosts.loss_of_5_percent_delivers_all", |c| {
        transfers(c, "loss 5%")
    })
    .seconds(20)
    .on(TWO),
    Test::pair("hosts.reordering_of_packets_delivers_all", |c| {
        transfers(c, "delay 3ms reorder 10% 25%")
    })
    .seconds(10)
    .on(TWO),
    Test::pair("hosts.duplication_of_packets_delivers_all_once", |c| {
        transfers(c, "duplicate 10%")
    })
    .seconds(10)
    .on(TWO),
    Test::pair("hosts.delay_and_jitter_of_packets_deliver_all", |c| {
        transfers(c, "delay 20ms 5ms rate 400mbit")
    })
    .seconds(15)
    .on(TWO),
    Test::pair("hosts.corruption_of_packets_delivers_all_unchanged", |c| {
        transfers(c, "corrupt 2%")
    })
    .seconds(15)
    .on(TWO),
    Test::pair("hosts.faults_of_all_kinds_at_once_deliver_all", |c| {
        transfers(c, MIXED)
    })
    .seconds(20)
    .needs(ARRIVED_WRITES),
    Test::pair("hosts.connect_over_faulty_wire_succeeds", connecting)
        .seconds(40)
        .on(LONG),
    Test::pair(
        "hosts.silence_below_timeout_keeps_connection",
        short_silence,
    )
    .seconds(10)
    .on(LONG),
    Test::pair(
        "hosts.p11_partition_of_5_seconds_goes_on_or_ends_cleanly",
        |c| partition(c, Duration::from_secs(5)),
    )
    .seconds(20)
    .on(TWO),
    Test::pair("hosts.p11_partition_of_a_minute_is_reported_in_time", |c| {
        partition(c, Duration::from_secs(75))
    })
    .seconds(120)
    .on(LONG),
    Test::pair(
        "hosts.p11_frozen_for_15_seconds_goes_on_or_ends_cleanly",
        |c| frozen(c, Duration::from_secs(15)),
    )
    .seconds(25)
    .on(LONG),
    Test::pair(
        "hosts.p11_frozen_for_100_seconds_is_reported_in_time",
        |c| frozen(c, Duration::from_secs(100)),
    )
    .seconds(150)
    .on(LONG),
    Test::pair("hosts.disorder_beyond_measure_ends_cleanly", disorder)
        .seconds(20)
        .on(TWO),
];

/// All faults at once.
pub const MIXED: &str = "delay 2ms reorder 5% 25% loss 1% duplicate 1% corrupt 0.5%";

/// Time within which an end must be notified that its peer is gone; the provider's bound is 10 s.
const NEWS: Duration = Duration::from_secs(60);
/// Time for which a send may be stalled, with a margin for noticing.
const STALL: Duration = Duration::from_secs(90);
/// Time within which connecting fails without an answer: the connection manager sends its request
/// sixteen times, 80 s in all.
const CONNECTING: Duration = Duration::from_secs(240);

/// Number of messages each way, and of posted receives.
const MESSAGES: usize = 100;
/// Bytes of the longest message.
const LONGEST: usize = 12_000;
/// Bytes of a window with a key of its own.
const WINDOW: usize = 48 << 10;
/// Number of windows written and read.
const WINDOWS: usize = 8;

/// Messages and one-sided transfers arrive whole, once and in order.
fn transfers(ctx: &mut Ctx, spec: &str) -> Result<()> {
    weather::prepare(&ctx.env)?;
    let pair = Pair::new(ctx)?;
    let weather = Weather::new(&ctx.env, spec)?;
    ctx.barrier("weather")?;
    let start = Instant::now();
    messages(ctx, &pair).context("messages")?;
    let told = start.elapsed();
    windows(ctx, &pair).context("windows")?;
    eprintln!(
        "{spec}: messages {:.1} s, windows {:.1} s",
        told.as_secs_f64(),
        (start.elapsed() - told).as_secs_f64()
    );
    drop(weather);
    ctx.barrier("done")
}

/// Returns the length of message `i`.
fn length(i: usize) -> usize {
    match i % 7 {
        0 => 1,
        1 => 64,
        2 => 4095,
        3 => 4097,
        4 => 333,
        5 => LONGEST,
        _ => 8192,
    }
}

/// Both nodes send to each other at once.
fn messages(ctx: &mut Ctx, pair: &Pair) -> Result<()> {
    const SENT: u64 = 1 << 32;
    const WINDOW: usize = 16;
    let (me, other) = (u64::from(ctx.env.node), 3 - u64::from(ctx.env.node));
    let seed = |node: u64, i: usize| node << 32 | i as u64;
    let taken = Buf::new(MESSAGES * LONGEST)?;
    let given = Buf::new(WINDOW * LONGEST)?;
    let (to, from) = (pair.reg(&taken)?, pair.reg(&given)?);
    for i in 0..MESSAGES {
        let piece = iov(to, (i * LONGEST) as u64, LONGEST as u64);
        pair.post(op::recv(i as u64, &[piece]))?;
    }
    ctx.barrier("receives posted")?;
    let (mut sent, mut flying, mut came) = (0, 0, 0);
    while sent < MESSAGES || flying > 0 || came < MESSAGES {
        while sent < MESSAGES && flying < WINDOW {
            let at = sent % WINDOW * LONGEST;
            given.fill_part(at, length(sent), seed(me, sent));
            let piece = iov(from, at as u64, length(sent) as u64);
            pair.post(op::send(SENT + sent as u64, &[piece]))?;
            sent += 1;
            flying += 1;
        }
        let e = pair
            .wait_for(WAIT)
            .with_context(|| format!("{sent} sent, {flying} outstanding, {came} received"))?;
        if e.context >= SENT {
            // Completions are in order, so the oldest place in the window is free.
            ensure!(e.context == SENT + (sent - flying) as u64, "{e:?}");
            flying -= 1;
        } else {
            ensure!(
                e.context == came as u64 && e.len == length(came) as u64,
                "not message {came}: {e:?}"
            );
            taken
                .check_part(came * LONGEST, length(came), seed(other, came))
                .with_context(|| format!("message {came}"))?;
            came += 1;
        }
    }
    taken.check_guards()?;
    ctx.barrier("messages")
}

/// Node 2 writes and reads windows of node 1's memory, each under a key of its own.
fn windows(ctx: &mut Ctx, pair: &Pair) -> Result<()> {
    let buf = Buf::new(WINDOWS * WINDOW)?;
    let region = pair.reg(&buf)?;
    let first = ctx.first();
    if first {
        buf.fill(0);
    }
    for round in 1..=2u64 {
        let mut slots = Vec::new();
        let mut remotes = Vec::new();
        if first {
            for i in 0..WINDOWS {
                let (slot, remote) =
                    pair.side
                        .export(region, (i * WINDOW) as u64, WINDOW as u64, REMOTE)?;
                slots.push(slot);
                remotes.push(remote);
            }
        }
        let remotes: Vec<Remote> = if first {
            ctx.ctl.send(&remotes)?;
            remotes
        } else {
            ctx.ctl.recv()?
        };
        let all = |op: fn(u64, &[Iov], u64, u64) -> OpEntry| -> Result<()> {
            for (i, remote) in remotes.iter().enumerate() {
                let piece = [iov(region, (i * WINDOW) as u64, WINDOW as u64)];
                pair.post(op(i as u64, &piece, remote.addr, remote.key))?;
            }
            (0..WINDOWS as u64).try_for_each(|i| pair.wait_context(i).map(drop))
        };
        if !first {
            buf.fill(round);
            all(op::write).context("writing")?;
        }
        ctx.barrier("written")?;
        if first {
            buf.check(round).context("the bytes written")?;
            buf.fill(100 + round);
        }
        ctx.barrier("filled")?;
        if !first {
            all(op::read).context("reading")?;
            buf.check(100 + round).context("the bytes read")?;
        }
        ctx.barrier("read")?;
        for slot in slots {
            pair.dev().key_revoke(slot)?;
            pair.dev().close(slot)?;
        }
    }
    Ok(())
}

/// Makes and ends connections over a faulty wire.
fn connecting(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let _weather = Weather::new(&ctx.env, MIXED)?;
    if ctx.first() {
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        for round in 0..6 {
            let ep = accept_one(&side, &Opts::default(), &cq)
                .with_context(|| format!("round {round}"))?
                .handle;
            // Close only when both ends are connected: an earlier shutdown would be reported as a
            // failed connect.
            ctx.barrier("connected")?;
            let down = side.dev.eq_wait(&side.eq, NEWS).context("the end")?;
            ensure!(
                down.raw.event == KFI_SHUTDOWN && down.raw.object == ep,
                "round {round}: {:?}",
                down.raw
            );
            side.dev.close(ep)?;
            ctx.barrier("ended")?;
        }
    } else {
        let peer = ctx.env.peer_at(ctx.ctl.recv()?);
        for round in 0..6 {
            let ep = connect_one(&side, &Opts::default(), &cq, peer)
                .with_context(|| format!("round {round}"))?
                .handle;
            ctx.barrier("connected")?;
            side.dev.close(ep)?;
            ctx.barrier("ended")?;
        }
    }
    Ok(())
}

/// A silence shorter than the acknowledgement timeout costs no connection.
fn short_silence(ctx: &mut Ctx) -> Result<()> {
    const LENGTH: Duration = Duration::from_millis(1500);
    weather::prepare(&ctx.env)?;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(64 << 10)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    ctx.barrier("ready")?;
    let start = Instant::now();
    let silence = Weather::new(&ctx.env, "loss 100%")?;
    std::thread::scope(|s| -> Result<()> {
        s.spawn(|| {
            std::thread::sleep(LENGTH);
            drop(silence);
        });
        if !ctx.first() {
            buf.fill(5);
            let written = pair.write(region, 0, 64 << 10, remote.addr, remote.key);
            // A busy machine may have made the silence longer than planned.
            if start.elapsed() < 2 * LENGTH {
                written.context("a short silence")?;
            }
        }
        Ok(())
    })?;
    ctx.barrier("over")?;
    drop(pair);
    fresh_transfer(ctx)
}

/// A listener that takes requests and never answers them, and the queue of an endpoint that
/// connects to it.
struct Unanswered {
    side: Side,
    cq: Cq,
    ep: u64,
}

impl Unanswered {
    /// Connects node 1's endpoint to node 2, which does not answer.
    fn new(ctx: &mut Ctx) -> Result<Self> {
        let side = Side::open(ctx)?;
        let cq = side.cq(0, 0)?;
        let mut ep = 0;
        if ctx.first() {
            let port: u16 = ctx.ctl.recv()?;
            ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
            side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
        } else {
            let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
            ctx.ctl.send(&at.port())?;
            side.event(KFI_CONNREQ)?;
        }
        ctx.barrier("connecting")?;
        Ok(Self { side, cq, ep })
    }

    /// Waits for the failure of node 1's attempt.
    fn fails(&self) -> Result<()> {
        let start = Instant::now();
        let no = self
            .side
            .dev
            .eq_wait(&self.side.eq, CONNECTING)
            .context("connecting to a dead host")?;
        ensure!(
            no.raw.event == KFI_CONN_ERROR && no.raw.object == self.ep,
            "{:?}",
            no.raw
        );
        eprintln!(
            "connecting failed with {} after {:.1} s",
            crate::pair::name(no.raw.err),
            start.elapsed().as_secs_f64()
        );
        self.side.dev.close(self.ep)?;
        ensure!(self.cq.read().is_none(), "a completion of nothing");
        Ok(())
    }
}

/// Waits for the end of a pair's connection.
fn the_end(pair: &Pair, what: &str) -> Result<Event> {
    let start = Instant::now();
    let down = pair
        .side
        .dev
        .eq_wait(&pair.side.eq, NEWS)
        .with_context(|| format!("no word of the end of the {what} one"))?;
    ensure!(
        down.raw.event == KFI_SHUTDOWN && down.raw.object == pair.ep,
        "{:?}",
        down.raw
    );
    eprintln!(
        "the {what} one: {} after {:.1} s",
        crate::pair::name(down.raw.err),
        start.elapsed().as_secs_f64()
    );
    Ok(down)
}

/// A busy and an idle connection, which end for the same cause.
struct Both {
    busy: Pair,
    idle: Pair,
    buf: Buf,
    region: u64,
    theirs: Remote,
    /// Number of receives posted on the idle connection.
    waiting: u64,
}

impl Both {
    fn new(ctx: &mut Ctx) -> Result<Self> {
        let (busy, idle) = (Pair::new(ctx)?, Pair::new(ctx)?);
        let buf = Buf::new(64 << 10)?;
        let region = busy.reg(&buf)?;
        let (_, mine) = busy.side.export(region, 0, buf.len() as u64, REMOTE)?;
        let theirs = ctx.ctl.exchange(&mine)?;
        let spare = Buf::new(4096)?;
        let place = idle.side.reg(&spare, LOCAL)?.handle;
        let waiting = 4;
        for i in 0..waiting {
            idle.post(op::recv(i, &[iov(place, 0, 64)]))?;
        }
        // The region keeps the pages.
        drop(spare);
        Ok(Self {
            busy,
            idle,
            buf,
            region,
            theirs,
            waiting,
        })
    }

    /// Writes on the busy connection until it fails, or until `until`.
    fn hammer(&self, until: Instant) -> Result<(u64, bool)> {
        let piece = [iov(self.region, 0, 16 << 10)];
        let (mut done, mut flying, mut failed) = (0, 0, false);
        while flying > 0 || (!failed && Instant::now() < until) {
            while !failed && flying < 8 && Instant::now() < until {
                let op = op::write(1, &piece, self.theirs.addr, self.theirs.key);
                match self.busy.post(op) {
                    Ok(()) => flying += 1,
                    Err(e) if e.errno.0 == libc::EAGAIN => break,
                    Err(e) if e.errno.0 == libc::ENOTCONN => failed = true,
                    Err(e) => return Err(e.into()),
                }
            }
            if flying > 0 {
                let asked = Instant::now();
                let e = self.busy.wait_any(STALL).context("an operation hangs")?;
                let gap = asked.elapsed();
                if gap > Duration::from_secs(1) {
                    eprintln!("nothing completed for {:.1} s", gap.as_secs_f64());
                }
                flying -= 1;
                match e.err {
                    0 => done += 1,
                    _ => failed = true,
                }
            }
        }
        Ok((done, failed))
    }

    /// Returns whether the idle connection has ended. If so, it must have ended with an event and
    /// all receives.
    fn idle_ended(&self) -> Result<bool> {
        match self.idle.dev().eq_read(self.idle.side.eq.handle, 0) {
            Err(e) if e.errno.0 == libc::EAGAIN => return Ok(false),
            Err(e) => return Err(e.into()),
            Ok(down) => ensure!(down.raw.event == KFI_SHUTDOWN, "{:?}", down.raw),
        }
        self.receives_ended()?;
        Ok(true)
    }

    fn receives_ended(&self) -> Result<()> {
        for i in 0..self.waiting {
            let e = self.idle.wait_any(WAIT).context("a receive hangs")?;
            ensure!(e.err != 0 && e.context == i, "receive {i}: {e:?}");
        }
        Ok(())
    }

    /// Closes both connections, in bounded time.
    fn close(self) -> Result<()> {
        let start = Instant::now();
        self.busy.dev().close(self.busy.ep)?;
        self.idle.dev().close(self.idle.ep)?;
        let took = start.elapsed();
        ensure!(took < patience(WAIT), "closing took {took:?}");
        self.buf.check_guards()
    }
}

/// Packets overtake each other so much that a transfer may make no progress: then it ends as with a
/// silent peer.
fn disorder(ctx: &mut Ctx) -> Result<()> {
    weather::prepare(&ctx.env)?;
    let both = Both::new(ctx)?;
    let weather = Weather::new(&ctx.env, "delay 20ms 8ms distribution normal")?;
    ctx.barrier("weather")?;
    let (done, failed) = both.hammer(Instant::now() + Duration::from_secs(8))?;
    eprintln!("{done} writes, failed: {failed}");
    let either = ctx.ctl.exchange(&failed)? || failed;
    if either {
        the_end(&both.busy, "busy")?;
    }
    both.close()?;
    drop(weather);
    ctx.barrier("fine again")?;
    fresh_transfer(ctx)
}

/// Drops all packets for a while, in both directions; neither end is notified.
fn partition(ctx: &mut Ctx, length: Duration) -> Result<()> {
    // Longer than the time to notice.
    let certain = length > NEWS;
    weather::prepare(&ctx.env)?;
    let both = Both::new(ctx)?;
    let connecting = if certain {
        Some(Unanswered::new(ctx)?)
    } else {
        None
    };
    ctx.barrier("before")?;
    let start = Instant::now();
    let env = ctx.env.clone();
    let (done, failed) = std::thread::scope(|s| -> Result<_> {
        let cutter = s.spawn(move || -> Result<()> {
            std::thread::sleep(Duration::from_millis(500));
            let cut = Weather::new(&env, "loss 100%")?;
            std::thread::sleep(length);
            drop(cut);
            Ok(())
        });
        let hammered = both.hammer(Instant::now() + length + Duration::from_secs(2))?;
        if certain {
            ensure!(hammered.1, "a transfer outlived {length:?} of silence");
            the_end(&both.busy, "busy")?;
            ensure!(
                start.elapsed() < patience(NEWS),
                "it took {:?}",
                start.elapsed()
            );
            let down = the_end(&both.idle, "idle")?;
            ensure!(down.raw.err != 0, "a cut is reported as an orderly end");
            both.receives_ended()?;
        }
        cutter
            .join()
            .map_err(|_| anyhow::anyhow!("the cutter panicked"))??;
        Ok(hammered)
    })?;
    eprintln!("{done} writes, failed: {failed}");
    ensure!(done > 0, "nothing went through before");
    if !certain {
        if failed {
            the_end(&both.busy, "busy")?;
        }
        eprintln!("the idle one has ended: {}", both.idle_ended()?);
    }
    both.close()?;
    if let Some(attempt) = connecting {
        if ctx.first() {
            attempt.fails()?;
        }
    }
    ctx.barrier("healed")?;
    revive_rxe(ctx)?;
    ctx.barrier("devices are well")?;
    fresh_transfer(ctx)
}

/// Freezes node 2. Packets to it wait in this machine, which is no silence to rxe, so rxe
/// retransmits nothing. A connection survives that, up to the bound for stalled sends.
fn frozen(ctx: &mut Ctx, length: Duration) -> Result<()> {
    // Longer than the bound for stalled sends.
    let certain = length > STALL;
    let both = Both::new(ctx)?;
    ctx.barrier("before")?;
    let start = Instant::now();
    let mut failed = false;
    if ctx.first() {
        let done;
        (done, failed) = both.hammer(start + length + Duration::from_secs(3))?;
        eprintln!("{done} writes, failed: {failed}");
        ensure!(done > 0, "nothing went through before");
    } else {
        std::thread::sleep(Duration::from_millis(700));
        ask_host(&format!("freeze {}", length.as_secs()))?;
    }
    let failed = ctx.ctl.exchange(&failed)? || failed;
    if certain {
        ensure!(failed, "a transfer outlived {length:?} without an answer");
        the_end(&both.idle, "idle")?;
        both.receives_ended()?;
    }
    if failed {
        the_end(&both.busy, "busy")?;
    }
    both.close()?;
    ctx.barrier("over")?;
    fresh_transfer(ctx)
}

/// Kills node 2's machine in the middle of transfers, beside an idle connection, and before it has
/// answered a request.
///
/// # Errors
///
/// If node 1 is not notified of each in time.
pub fn killed(ctx: &mut Ctx) -> Result<()> {
    let both = Both::new(ctx)?;
    let attempt = Unanswered::new(ctx)?;
    ctx.barrier("before")?;
    if !ctx.first() {
        std::thread::sleep(Duration::from_millis(700));
        ask_host("kill 0")?;
        std::thread::sleep(Duration::from_secs(60));
        anyhow::bail!("this machine still lives");
    }
    let start = Instant::now();
    let (done, failed) = both.hammer(start + NEWS)?;
    ensure!(done > 0 && failed, "{done} writes to a dead machine");
    the_end(&both.busy, "busy")?;
    the_end(&both.idle, "idle")?;
    both.receives_ended()?;
    ensure!(
        start.elapsed() < patience(NEWS),
        "it took {:?}",
        start.elapsed()
    );
    both.close()?;
    attempt.fails()
}
