// SPDX-License-Identifier: MIT OR Apache-2.0

//! P3 if windows are wider than `IB_WR_REG_MR` reaches, and if one call revokes all keys of an
//! endpoint, while peers write and read without pause.

use super::key_batches::{assign_all, entry, joined};
use super::keys::hammer;
use super::refused;
use crate::auth::{self, KEY, OTHER};
use crate::buf::Buf;
use crate::fuzz::rng::Rng;
use crate::harness::{skip, Ctx, Test, LONG as LONG_TESTS};
use crate::lanes::{Lanes, LANES, SPAN, WRITTEN};
use crate::op::{self, iov};
use crate::pair::{Remote, LOCAL, LONG, REMOTE, WAIT};
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p03_revoke_of_wide_windows_lets_no_byte_land_after_return",
        |ctx| nothing_lands(ctx, &WIDE, 6),
    )
    .seconds(60),
    Test::pair(
        "keys.p03_revoke_of_endpoint_keys_lets_no_byte_land_after_return",
        |ctx| nothing_lands(ctx, &ENDPOINT, 6),
    )
    .seconds(60),
    Test::pair(
        "keys.p03_revoke_of_auth_key_lets_no_byte_land_after_return",
        auth_key,
    )
    .seconds(30),
    Test::pair(
        "keys.p03_revoke_fails_inflight_ops_in_both_directions",
        both_ways,
    )
    .seconds(30),
    Test::pair(
        "keys.p03_revoke_of_10k_wide_windows_lets_no_byte_land_after_return",
        |ctx| nothing_lands(ctx, &WIDE, 625),
    )
    .seconds(1800)
    .on(LONG_TESTS),
    Test::pair(
        "keys.p03_revoke_of_10k_endpoints_keys_lets_no_byte_land_after_return",
        |ctx| nothing_lands(ctx, &ENDPOINT, 625),
    )
    .seconds(1800)
    .on(LONG_TESTS),
];

/// The windows that a connection's peer reaches, and how they are revoked.
struct Plan {
    /// Offset and length of the windows, each with a key. In every other operation the peer writes
    /// or reads a part of the first window, in the rest a part of the others in turn.
    windows: &'static [(u64, u64)],
    /// Whether the keys are endpoint-scoped, so that one call revokes them all.
    endpoint: bool,
}

/// Bytes of one connection's part.
const LANE: usize = 3 << 20;
/// One window with odd edges, too wide for `IB_WR_REG_MR`: it is registered by `ib_reg_user_mr`.
const WIDE: Plan = Plan {
    windows: &[(777, (1 << 20) + 4320)],
    endpoint: false,
};
/// One window registered by `ib_reg_user_mr`, and some by `IB_WR_REG_MR`.
const ENDPOINT: Plan = Plan {
    windows: &[
        (777, (1 << 20) + 100_000),
        (2 << 20, 65_536),
        ((2 << 20) + 65_536, 4096),
        ((2 << 20) + 80_001, SPAN),
    ],
    endpoint: true,
};

/// Byte that the target writes once the memory is its own again. Peers write other bytes.
const OWN: u8 = 0x11;
/// Byte of the memory before a round.
const BEFORE: u8 = 0;

/// P3: peers write to even connections and read from odd ones without pause. After the revocation
/// has returned, the target fills the windows: every byte is there at once and 100 ms later, and no
/// peer has read any of it. Makes `turns` rounds on [`LANES`] connections.
fn nothing_lands(ctx: &mut Ctx, plan: &Plan, turns: usize) -> Result<()> {
    let mut lanes = Lanes::new(ctx)?;
    if plan.endpoint && ctx.first() {
        if lanes.side.domain.caps & KFI_EP_KEYS == 0 {
            skip("no keys of an endpoint's own")?;
        }
        lanes.own_keys = LANES;
    }
    let buf = Buf::new(LANES * if ctx.first() { LANE } else { SPAN as usize })?;
    let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
    let mut rng = Rng::new(ctx.env.seed);
    let start = Instant::now();
    let mut done = 0;
    for turn in 0..turns {
        lanes.connect(ctx)?;
        if ctx.first() {
            done += revoke_all(ctx, &lanes, plan, region, &buf, &mut rng)
                .with_context(|| format!("seed {}, turn {turn}", ctx.env.seed))?;
        } else {
            run_all(ctx, &lanes, region, &buf)?;
        }
    }
    if ctx.first() {
        let rounds = turns * LANES;
        ensure!(done > 0, "nothing was done in {rounds} rounds");
        let took = start.elapsed().as_secs_f64();
        eprintln!("{rounds} rounds in {took:.0} s");
    }
    ctx.barrier("done")
}

/// Returns whether the peer of a connection reads.
fn reads(lane: usize) -> bool {
    lane % 2 == 1
}

/// Node 2: runs each connection until an operation is refused.
fn run_all(ctx: &mut Ctx, lanes: &Lanes, region: u64, buf: &Buf) -> Result<()> {
    let remotes: Vec<Vec<Remote>> = ctx.ctl.recv()?;
    buf.clear(BEFORE);
    let run = |lane: usize| -> Result<()> {
        let (windows, mut n) = (&remotes[lane], 0u64);
        let into = (lane as u64) * SPAN;
        let make = || {
            n += 1;
            let others = windows.len() as u64 - 1;
            let which = match (n % 2, others) {
                (0, 1..) => 1 + n / 2 % others,
                _ => 0,
            };
            let to = windows[which as usize];
            let len = to.len.min(SPAN);
            // In time the whole window is written, its edges often.
            let last = to.len - len;
            let at = match n % 8 {
                1 => 0,
                3 => last,
                _ => (n * 12_289) % (last + 1),
            };
            match reads(lane) {
                true => op::read(1, &[iov(region, into, len)], to.addr + at, to.key),
                false => op::write(1, &[lanes.source(len)], to.addr + at, to.key),
            }
        };
        hammer(&lanes.side.dev, lanes.eps[lane], &lanes.cqs[lane], 4, make).map(|_| ())
    };
    std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = (0..LANES)
            .map(|lane| scope.spawn(move || run(lane)))
            .collect();
        running.into_iter().try_for_each(joined)
    })?;
    let seen = (0..buf.len()).find(|at| buf.get(*at) == OWN);
    ensure!(
        seen.is_none(),
        "bytes written afterwards were read, at {seen:?}"
    );
    ctx.barrier("refused")
}

/// Node 1: revokes the keys of one connection after the other. Returns the number of connections
/// that had been written to before.
fn revoke_all(
    ctx: &mut Ctx,
    lanes: &Lanes,
    plan: &Plan,
    region: u64,
    buf: &Buf,
    rng: &mut Rng,
) -> Result<usize> {
    let dev = &lanes.side.dev;
    buf.clear(BEFORE);
    let count = plan.windows.len();
    let mut slots = Vec::new();
    let mut entries = Vec::new();
    for lane in 0..LANES {
        let some = match plan.endpoint {
            true => dev.key_alloc_for(region, lanes.eps[lane], count as u32)?,
            false => dev.key_alloc(region, count as u32)?,
        };
        for ((offset, len), slot) in plan.windows.iter().zip(&some) {
            entries.push(entry(*slot, (lane * LANE) as u64 + offset, *len));
        }
        slots.extend(some);
    }
    assign_all(dev, &mut entries)?;
    let remote = |e: &KeyEntry| Remote {
        addr: e.remote_addr,
        key: e.key,
        len: e.length,
    };
    let remotes: Vec<Vec<Remote>> = entries
        .chunks(count)
        .map(|of_lane| of_lane.iter().map(remote).collect())
        .collect();
    ctx.ctl.send(&remotes)?;

    let mut order: Vec<_> = (0..LANES).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i + 1));
    }
    let mut written = 0;
    for lane in order {
        if !reads(lane) {
            wait_for_writes(buf, lane, plan)?;
            written += 1;
        }
        std::thread::sleep(Duration::from_micros(rng.below(2000) as u64));
        if plan.endpoint {
            let ended = dev.key_revoke_all(KFI_REVOKE_EP, lanes.eps[lane])?;
            ensure!(ended == count as u64, "lane {lane}: {ended} keys ended");
        } else {
            let mine = &slots[lane * count..][..count];
            mine.iter().try_for_each(|slot| dev.key_revoke(*slot))?;
        }
        plan.fill(buf, lane);
        plan.check(buf, lane, "when it had returned")?;
    }
    std::thread::sleep(Duration::from_millis(100));
    (0..LANES).try_for_each(|lane| plan.check(buf, lane, "100 ms later"))?;
    ctx.barrier("refused")?;
    (0..LANES).try_for_each(|lane| plan.check(buf, lane, "before its peer had ended"))?;
    slots.iter().try_for_each(|slot| dev.close(*slot))?;
    Ok(written)
}

/// Waits until a peer has written to the widest window.
fn wait_for_writes(buf: &Buf, lane: usize, plan: &Plan) -> Result<()> {
    let at = lane * LANE + plan.windows[0].0 as usize;
    let end = Instant::now() + sys::patience(WAIT);
    while buf.get(at) == BEFORE {
        ensure!(Instant::now() < end, "no write arrives on lane {lane}");
        std::thread::sleep(Duration::from_micros(20));
    }
    Ok(())
}

impl Plan {
    /// Returns the words within each window of a connection.
    fn words(&self, lane: usize) -> impl Iterator<Item = usize> + '_ {
        self.windows.iter().flat_map(move |(offset, len)| {
            let at = lane * LANE + *offset as usize;
            (at..at + *len as usize - 7).step_by(8)
        })
    }

    fn fill(&self, buf: &Buf, lane: usize) {
        let word = u64::from_ne_bytes([OWN; 8]);
        self.words(lane).for_each(|at| buf.set64(at, word));
    }

    fn check(&self, buf: &Buf, lane: usize, when: &str) -> Result<()> {
        let word = u64::from_ne_bytes([OWN; 8]);
        match self.words(lane).find(|at| buf.get64(*at) != word) {
            None => Ok(()),
            Some(at) => bail!("byte {} of lane {lane} changed {when}", at - lane * LANE),
        }
    }
}

/// Number of keys under each auth key of [`auth_key`].
const OF_AUTH: usize = 64;
/// Bytes of each key's window.
const PART: usize = 4096;

/// P3: one call revokes all keys under an auth key while peers write through each of them without
/// pause. After the call has returned, the target fills their windows: every byte is there at once
/// and 100 ms later. Keys under another auth key work before and after.
fn auth_key(ctx: &mut Ctx) -> Result<()> {
    let turns = if sys::slowness() > 1 { 2 } else { 6 };
    // Connections and keys alternate: key number i is under the auth key of connection i.
    let mut lanes = Lanes::under(ctx, &[KEY, OTHER])?;
    let buf = Buf::new(2 * OF_AUTH * PART)?;
    let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
    let mut rng = Rng::new(ctx.env.seed);
    for turn in 0..turns {
        lanes.connect(ctx)?;
        if ctx.first() {
            revoke_auth_key(ctx, &lanes, region, &buf, &mut rng)
                .with_context(|| format!("seed {}, turn {turn}", ctx.env.seed))?;
        } else {
            write_under_auth_keys(ctx, &lanes)?;
        }
    }
    ctx.barrier("done")
}

/// Plays node 2 of [`auth_key`]: connections of the one auth key write until they are refused,
/// connections of the other until node 1 stops them.
fn write_under_auth_keys(ctx: &mut Ctx, lanes: &Lanes) -> Result<()> {
    let remotes: Vec<Remote> = ctx.ctl.recv()?;
    let stop = AtomicBool::new(false);
    let run = |lane: usize| -> Result<()> {
        let mine: Vec<_> = remotes.iter().skip(lane).step_by(LANES).collect();
        let mut turn = mine.iter().cycle();
        if lane.is_multiple_of(2) {
            let piece = [lanes.source_of(lane, PART as u64)];
            let make = || {
                let r = turn.next().map_or(remotes[lane], |r| **r);
                op::write(1, &piece, r.addr, r.key)
            };
            return hammer(&lanes.side.dev, lanes.eps[lane], &lanes.cqs[lane], 4, make).map(drop);
        }
        while !stop.load(Ordering::Relaxed) {
            let r = turn.next().context("no key")?;
            let errno = lanes.attempt(lane, true, r.len, r.addr, r.key)?;
            ensure!(
                errno == 0,
                "under the other auth key, lane {lane}: errno {errno}"
            );
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let run = &run;
        let running: Vec<_> = (0..LANES)
            .map(|lane| scope.spawn(move || run(lane)))
            .collect();
        let told = ctx.barrier("stop");
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(joined).and(told)
    })?;
    ctx.barrier("ended")
}

/// Plays node 1 of [`auth_key`].
fn revoke_auth_key(
    ctx: &mut Ctx,
    lanes: &Lanes,
    region: u64,
    buf: &Buf,
    rng: &mut Rng,
) -> Result<()> {
    let dev = &lanes.side.dev;
    buf.clear(BEFORE);
    let ours = auth::slots(dev, region, KEY, OF_AUTH as u32)?;
    let others = auth::slots(dev, region, OTHER, OF_AUTH as u32)?;
    let both = ours.iter().zip(&others).flat_map(|(a, b)| [*a, *b]);
    let of = |(i, slot)| entry(slot, (i * PART) as u64, PART as u64);
    let mut entries: Vec<_> = both.enumerate().map(of).collect();
    assign_all(dev, &mut entries)?;
    let remote = |e: &KeyEntry| Remote {
        addr: e.remote_addr,
        key: e.key,
        len: e.length,
    };
    let remotes: Vec<Remote> = entries.iter().map(remote).collect();
    ctx.ctl.send(&remotes)?;
    let written = |of: usize, what: &str| -> Result<()> {
        let end = Instant::now() + sys::patience(WAIT);
        for part in (of..2 * OF_AUTH).step_by(2) {
            while buf.get(part * PART) != WRITTEN || buf.get((part + 1) * PART - 1) != WRITTEN {
                ensure!(Instant::now() < end, "{what}: nothing comes by key {part}");
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        Ok(())
    };
    written(0, "before")?;
    written(1, "before, the other's")?;
    std::thread::sleep(Duration::from_micros(rng.below(3000) as u64));
    let ended = auth::revoke_keys(dev, KEY)?;
    let windows = || (0..2 * OF_AUTH).step_by(2);
    let words = || windows().flat_map(|part| (part * PART..(part + 1) * PART).step_by(8));
    let own = u64::from_ne_bytes([OWN; 8]);
    words().for_each(|at| buf.set64(at, own));
    let same = |when: &str| {
        let bad = words().find(|at| buf.get64(*at) != own);
        bad.map_or(Ok(()), |at| bail!("byte {at} changed {when}"))
    };
    same("when it had returned")?;
    ensure!(ended == OF_AUTH as u64, "{ended} keys ended");
    // The other auth key's keys work on: each of their windows is written anew.
    for part in (1..2 * OF_AUTH).step_by(2) {
        let all = (part * PART..(part + 1) * PART).step_by(8);
        all.for_each(|at| buf.set64(at, 0));
    }
    written(1, "afterwards, the other's")?;
    std::thread::sleep(Duration::from_millis(100));
    same("100 ms later")?;
    ctx.barrier("stop")?;
    ctx.barrier("ended")?;
    same("before its peers had ended")?;
    let rest = auth::revoke_keys(dev, OTHER)?;
    ensure!(rest == OF_AUTH as u64, "{rest} of the other's keys ended");
    let mut all = ours.iter().chain(&others);
    Ok(all.try_for_each(|slot| dev.close(*slot))?)
}

/// Number of receives on each side of [`both_ways`].
const RECEIVES: u64 = 4;
/// Context of the first receive; contexts of writes count from 0.
const RECEIVE: u64 = 1 << 32;

/// How the operations of one side completed.
struct Ends {
    /// Completions of the writes, in order.
    writes: Vec<CqEntry>,
    /// Completions of the receives.
    receives: Vec<CqEntry>,
}

/// Writes without pause until the connection ends, and collects the completions of all posted
/// operations.
fn until_the_end(lanes: &Lanes, lane: usize, to: Remote) -> Result<Ends> {
    const DEPTH: usize = 8;
    let (dev, ep) = (&lanes.side.dev, lanes.eps[lane]);
    let (mut posted, mut over) = (0, false);
    let mut ends = Ends {
        writes: Vec::new(),
        receives: Vec::new(),
    };
    loop {
        while !over && posted - ends.writes.len() < DEPTH {
            let op = op::write(posted as u64, &[lanes.source(to.len)], to.addr, to.key);
            match dev.submit(ep, &[op]) {
                Ok(_) => posted += 1,
                Err(e) if e.errno.0 == libc::EAGAIN => break,
                Err(e) if e.errno.0 == libc::ENOTCONN => over = true,
                Err(e) => return Err(e.into()),
            }
        }
        if over && ends.writes.len() == posted && ends.receives.len() as u64 == RECEIVES {
            return Ok(ends);
        }
        let e = lanes.cqs[lane].wait(LONG)?;
        over |= e.err != 0;
        if e.context >= RECEIVE {
            ends.receives.push(e);
        } else {
            ensure!(e.context == ends.writes.len() as u64, "out of order: {e:?}");
            ends.writes.push(e);
        }
    }
}

/// P3: both sides write to each other and have receives posted when node 1 revokes the key that
/// node 2 writes through. Node 2 gets an error for the one refused operation. Every other operation
/// of the connection is flushed, each once, and each side gets one shutdown event. Another
/// connection, with a key of its own, goes on.
fn both_ways(ctx: &mut Ctx) -> Result<()> {
    const REFUSED: (i32, u32) = (libc::EACCES, 10);
    let mut lanes = Lanes::new(ctx)?;
    for round in 0..9u64 {
        lanes.connect(ctx)?;
        let (side, len) = (&lanes.side, SPAN as usize);
        let bufs = [Buf::new(len)?, Buf::new(len)?];
        let regions = [
            side.reg(&bufs[0], LOCAL | REMOTE)?.handle,
            side.reg(&bufs[1], LOCAL | REMOTE)?.handle,
        ];
        let (slot, mine) = side.export(regions[0], 0, SPAN, KFI_REMOTE_WRITE)?;
        let (beside, other) = side.export(regions[1], 0, SPAN, REMOTE)?;
        let theirs: (Remote, Remote) = ctx.ctl.exchange(&(mine, other))?;
        for lane in 0..2 {
            for i in 0..RECEIVES {
                let piece = [iov(regions[1], i * 8, 8)];
                let receive = op::recv(RECEIVE + i, &piece);
                side.dev.submit(lanes.eps[lane], &[receive])?;
            }
        }
        ctx.barrier("posted")?;
        let ends = std::thread::scope(|scope| -> Result<Ends> {
            let running = scope.spawn(|| until_the_end(&lanes, 0, theirs.0));
            if ctx.first() {
                let end = Instant::now() + sys::patience(WAIT);
                while bufs[0].get(0) == 0 && Instant::now() < end {
                    std::thread::sleep(Duration::from_micros(20));
                }
                std::thread::sleep(Duration::from_micros(round * 577 % 4000));
                match round % 3 {
                    0 => side.dev.key_revoke(slot)?,
                    1 => drop(side.dev.key_revoke_all(KFI_REVOKE_REGION, regions[0])?),
                    _ => drop(side.dev.key_revoke_slots(&[slot])?),
                }
            }
            joined(running)
        })
        .with_context(|| format!("round {round}"))?;
        let good = ends.writes.iter().take_while(|e| e.err == 0).count();
        let mut bad = ends.writes[good..].iter();
        if !ctx.first() {
            let first = bad.next().context("nothing was refused")?;
            let is = (first.err as i32, first.prov_errno);
            ensure!(is == REFUSED, "round {round}: {first:?}");
        }
        let flushed = |e: &CqEntry| e.err as i32 == libc::ECANCELED;
        let odd = bad.chain(&ends.receives).find(|e| !flushed(e));
        ensure!(odd.is_none(), "round {round}: {odd:?}");
        let mut contexts: Vec<u64> = ends.receives.iter().map(|e| e.context).collect();
        contexts.sort_unstable();
        let all: Vec<u64> = (RECEIVE..RECEIVE + RECEIVES).collect();
        ensure!(contexts == all, "round {round}: receives {contexts:?}");
        let down = side.event(KFI_SHUTDOWN)?;
        let told = (down.raw.object, down.raw.err as i32);
        ensure!(
            told == (lanes.eps[0], libc::EACCES),
            "round {round}: {:?}",
            down.raw
        );

        // The other connection is unaffected.
        for write in [true, false] {
            let r = theirs.1;
            let errno = lanes.attempt(1, write, r.len, r.addr, r.key)?;
            ensure!(errno == 0, "round {round}: beside it errno {errno}");
        }
        ctx.barrier("told")?;
        ensure!(lanes.cqs[1].read().is_none(), "a receive beside it ended");
        let more = side.dev.eq_read(side.eq.handle, 0);
        refused(more, libc::EAGAIN, "a second event")?;
        for slot in [slot, beside] {
            side.dev.close(slot)?;
        }
        ctx.barrier("closed")?;
    }
    ctx.barrier("done")
}
