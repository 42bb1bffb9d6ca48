// SPDX-License-Identifier: MIT OR Apache-2.0

//! The promises of keys (DESIGN section 3) whose tests take many connections or a long time. Tests
//! with one connection are in [`keys`](super::keys), tests with a killed process in
//! [`key_death`](super::key_death).

use super::keys::{hammer, Bench, Try};
use super::refused;
use crate::buf::Buf;
use crate::fuzz::rng::Rng;
use crate::harness::caps::REMOTE_ERRORS;
use crate::harness::guest::until;
use crate::harness::leaks::vm_pin;
use crate::harness::{Ctx, Test, LONG as LONG_TESTS};
use crate::lanes::{Lanes, LANES, SPAN, WRITTEN};
use crate::op::{self, iov};
use crate::pair::{Pair, Remote, Side, LOCAL, LONG, REMOTE, WAIT};
use crate::raw::Cq;
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("keys.p02_bytes_beyond_both_edges_are_refused", edges).seconds(40),
    Test::pair("keys.p02_overlapping_keys_keep_their_rights", overlapping).seconds(20),
    Test::pair(
        "keys.p03_revoke_under_16_writers_lets_no_byte_land_after_return",
        |ctx| nothing_lands(ctx, Length::For(Duration::from_secs(25))),
    )
    .seconds(45),
    Test::pair(
        "keys.p03_revoke_in_10k_rounds_lets_no_byte_land_after_return",
        |ctx| nothing_lands(ctx, Length::Rounds(10_000)),
    )
    .seconds(1200)
    .on(LONG_TESTS),
    Test::pair("keys.p03_revoke_under_ops_notifies_both_sides", both_told)
        .seconds(30)
        .needs(REMOTE_ERRORS),
    Test::pair(
        "keys.p03_revoke_before_disconnect_reports_one_reason",
        leaves_at_once,
    )
    .seconds(30)
    .needs(REMOTE_ERRORS),
    Test::pair("keys.p04_old_key_tried_again_reads_nothing", old_keys).seconds(20),
    Test::pair("keys.p04_guesses_from_outside_never_hit", guess_outside).seconds(60),
    Test::pair("keys.p04_guesses_from_inside_hit_one_in_128", guess_inside)
        .seconds(60)
        .verbs(),
    Test::pair("keys.p05_pages_under_last_key_or_op_stay_pinned", last_use).seconds(8),
];

const PAGE: u64 = 4096;

/// Node 1 passes a list; node 2 tries each access on a connection that has refused nothing yet.
pub(super) fn try_each(ctx: &mut Ctx, lanes: &mut Lanes, list: Vec<Try>) -> Result<()> {
    let list: Vec<Try> = if ctx.first() {
        ctx.ctl.send(&list)?;
        list
    } else {
        ctx.ctl.recv()?
    };
    let mut left = 0;
    for t in &list {
        if left == 0 {
            lanes.connect(ctx)?;
            left = LANES;
        }
        if !ctx.first() {
            let errno = lanes
                .attempt(LANES - left, t.write, t.len, t.addr, t.key)
                .with_context(|| t.what.clone())?;
            let wanted = if t.fine { 0 } else { libc::EACCES };
            ensure!(errno == wanted, "{}: errno {errno}", t.what);
        }
        if !t.fine {
            left -= 1;
        }
    }
    ctx.barrier("all tried")
}

/// Bytes tried beyond each edge, and within.
const BEYOND: u64 = 8;
const WITHIN: u64 = 32;

/// P2: at both edges of a key each byte within can be read and written by itself, and none beyond.
fn edges(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 3 << 20;
    // Windows within a page, of whole pages, and wider than `IB_WR_REG_MR` covers.
    const WINDOWS: [(u64, u64); 3] = [(5000, 3000), (16_384, 8192), (999_999, (1 << 20) + 4097)];
    let mut lanes = Lanes::new(ctx)?;
    if !ctx.first() {
        try_each(ctx, &mut lanes, Vec::new())?;
        return ctx.barrier("done");
    }
    let buf = Buf::new(SIZE)?;
    buf.clear(0x5a);
    let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (mut list, mut changed) = (Vec::new(), BTreeSet::new());
    for (offset, len) in WINDOWS {
        let (_, r) = lanes.side.export(region, offset, len, REMOTE)?;
        let mut probe = |at: i64| {
            let fine = (0..len as i64).contains(&at);
            // The peer may have changed the byte in an earlier access.
            for write in [true, false] {
                let what = format!("byte {at} of [{offset}, +{len}), write {write}");
                let addr = r.addr.wrapping_add_signed(at);
                list.push(Try::new(&what, write, 1, addr, r.key, fine));
            }
            if fine {
                changed.insert(offset as i64 + at);
            }
        };
        (-(BEYOND as i64)..WITHIN as i64).for_each(&mut probe);
        (len as i64 - WITHIN as i64..(len + BEYOND) as i64).for_each(&mut probe);
    }
    try_each(ctx, &mut lanes, list)?;
    for at in 0..SIZE {
        let wanted = if changed.contains(&(at as i64)) {
            WRITTEN
        } else {
            0x5a
        };
        ensure!(
            buf.get(at) == wanted,
            "byte {at} is {:#04x}, not {wanted:#04x}",
            buf.get(at)
        );
    }
    ctx.barrier("done")
}

/// P2: overlapping keys each have their own rights to the shared bytes, and are revoked alone.
fn overlapping(ctx: &mut Ctx) -> Result<()> {
    const SHARED: u64 = 4000;
    const KEYS: [(&str, u64, u64, u64); 4] = [
        ("the reader's", 100, 6000, KFI_REMOTE_READ),
        ("the writer's", 3000, 6000, KFI_REMOTE_WRITE),
        ("the key for both", 0, 4 * PAGE, REMOTE),
        ("the second reader's", 100, 6000, KFI_REMOTE_READ),
    ];
    let mut lanes = Lanes::new(ctx)?;
    let buf = Buf::new(4 * PAGE as usize)?;
    let mut keys = Vec::new();
    if ctx.first() {
        buf.clear(0x5a);
        let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
        for (_, offset, len, access) in KEYS {
            keys.push(lanes.side.export(region, offset, len, access)?);
        }
        let values: BTreeSet<_> = keys.iter().map(|(_, r)| r.key).collect();
        ensure!(values.len() == KEYS.len(), "a value came twice");
    }
    // First all keys are valid; then one after the other is revoked, and each time the others work
    // as before.
    for gone in 0..=KEYS.len() {
        let mut list = Vec::new();
        if ctx.first() && gone > 0 {
            lanes.side.dev.key_revoke(keys[gone - 1].0)?;
        }
        for (i, (_, r)) in keys.iter().enumerate() {
            let (name, offset, len, access) = KEYS[i];
            for (write, right) in [(false, KFI_REMOTE_READ), (true, KFI_REMOTE_WRITE)] {
                let fine = i >= gone && access & right != 0;
                let what = format!("{name}, {gone} gone, write {write}");
                let shared = r.addr + SHARED - offset;
                list.push(Try::new(&what, write, 1, shared, r.key, fine));
                list.push(Try::new(&what, write, len, r.addr, r.key, fine));
            }
        }
        try_each(ctx, &mut lanes, list)?;
    }
    buf.check_guards()?;
    ctx.barrier("done")
}

/// Length of a [`nothing_lands`] test.
enum Length {
    For(Duration),
    Rounds(usize),
}

/// Bytes of a window of [`nothing_lands`].
const WINDOW: usize = 16 << 10;
/// Byte that the target writes once the memory is its own again.
const OWN: u8 = 0x11;

/// P3: a peer writes one pattern without pause. After a revocation has returned, the target fills
/// the window: every byte is there at once and 100 ms later. A round revokes one key under its own
/// writer.
fn nothing_lands(ctx: &mut Ctx, length: Length) -> Result<()> {
    let mut lanes = Lanes::new(ctx)?;
    let buf = Buf::new(LANES * WINDOW)?;
    let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = lanes.side.dev.key_alloc(region, LANES as u32)?;
    let mut rng = Rng::new(ctx.env.seed);
    let start = Instant::now();
    let mut rounds = 0;
    loop {
        let on = if ctx.first() {
            let on = match length {
                Length::For(time) => start.elapsed() < time,
                Length::Rounds(wanted) => rounds < wanted,
            };
            ctx.ctl.send(&on)?;
            on
        } else {
            ctx.ctl.recv()?
        };
        if !on {
            break;
        }
        lanes.connect(ctx)?;
        if ctx.first() {
            revoke_under_writers(ctx, &lanes, &slots, &buf, &mut rng)
                .with_context(|| format!("seed {}, from round {rounds} on", ctx.env.seed))?;
        } else {
            write_without_pause(ctx, &lanes)?;
        }
        rounds += LANES;
    }
    eprintln!("{rounds} rounds in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Plays node 2 of [`nothing_lands`]: each connection writes into its window until it is refused.
fn write_without_pause(ctx: &mut Ctx, lanes: &Lanes) -> Result<()> {
    let remotes: Vec<Remote> = ctx.ctl.recv()?;
    let piece = [lanes.source(WINDOW as u64)];
    std::thread::scope(|scope| {
        let writers: Vec<_> = remotes
            .iter()
            .zip(lanes.eps.iter().zip(&lanes.cqs))
            .map(|(r, (ep, cq))| {
                let make = || op::write(1, &piece, r.addr, r.key);
                scope.spawn(move || hammer(&lanes.side.dev, *ep, cq, 4, make))
            })
            .collect();
        writers.into_iter().try_for_each(|writer| {
            let ended = writer.join().unwrap_or_else(|_| bail!("panic"));
            ended.map(|_| ())
        })
    })?;
    ctx.barrier("refused")
}

/// Plays node 1 of [`nothing_lands`]: revokes one key after the other.
fn revoke_under_writers(
    ctx: &mut Ctx,
    lanes: &Lanes,
    slots: &[u64],
    buf: &Buf,
    rng: &mut Rng,
) -> Result<()> {
    let at = |lane| lane * WINDOW;
    buf.clear(0);
    let assign = |(lane, slot): (usize, &u64)| {
        let (offset, len) = (at(lane) as u64, WINDOW as u64);
        lanes.side.assign(*slot, offset, len, KFI_REMOTE_WRITE)
    };
    let remotes: Result<Vec<_>> = slots.iter().enumerate().map(assign).collect();
    ctx.ctl.send(&remotes?)?;
    let changed = |lane| {
        let at = at(lane);
        let own = u64::from_ne_bytes([OWN; 8]);
        (at..at + WINDOW)
            .step_by(8)
            .find(|i| buf.get64(*i) != own)
            .map(|i| i - at)
    };
    let mut order: Vec<_> = (0..slots.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, rng.below(i + 1));
    }
    for lane in order {
        let end = Instant::now() + sys::patience(WAIT);
        while buf.get64(at(lane)) == 0 && buf.get64(at(lane) + WINDOW - 8) == 0 {
            ensure!(Instant::now() < end, "no write arrives on lane {lane}");
            std::thread::sleep(Duration::from_micros(20));
        }
        std::thread::sleep(Duration::from_micros(rng.below(2000) as u64));
        lanes.side.dev.key_revoke(slots[lane])?;
        for i in (at(lane)..at(lane) + WINDOW).step_by(8) {
            buf.set64(i, u64::from_ne_bytes([OWN; 8]));
        }
        if let Some(i) = changed(lane) {
            bail!("byte {i} of lane {lane} changed when revoke had returned");
        }
    }
    std::thread::sleep(Duration::from_millis(100));
    let look = |when: &str| {
        let bad = (0..slots.len()).find_map(|lane| Some((lane, changed(lane)?)));
        bad.map_or(Ok(()), |(lane, i)| {
            bail!("byte {i} of lane {lane} changed {when}")
        })
    };
    look("100 ms later")?;
    ctx.barrier("refused")?;
    look("before its writer had ended")
}

/// P3: a revocation under running operations tells the initiator which operation was refused and
/// that the rest was flushed. Both sides get one shutdown event and reconnect at once.
fn both_told(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 64 << 10;
    const RECEIVES: u64 = 8;
    let mut bench = Bench::new(ctx, SIZE as usize)?;
    let mut untold = 0;
    for round in 0..12u64 {
        let write = round % 2 == 0;
        // Also without a receive that is flushed.
        let receives = if round % 3 == 0 { 0 } else { RECEIVES };
        // No step waits between the end of the last connection and this one.
        let ep = bench.fresh(ctx)?;
        let (side, cq) = (&bench.side, &bench.cq);
        if ctx.first() {
            for i in 0..receives {
                side.dev
                    .submit(ep, &[op::recv(i, &[iov(bench.region, i * 64, 64)])])?;
            }
            let (slot, remote) = side.export(bench.region, 0, SIZE, REMOTE)?;
            ctx.ctl.send(&remote)?;
            ctx.barrier("the key works")?;
            std::thread::sleep(Duration::from_micros(500 + round * 1777 % 9000));
            side.dev.key_revoke(slot)?;
            let mut ended = BTreeSet::new();
            for _ in 0..receives {
                let e = cq.wait(WAIT)?;
                ensure!(e.err as i32 == libc::ECANCELED, "{e:?}");
                ended.insert(e.context);
            }
            ensure!(ended.len() as u64 == receives, "a receive ended twice");
            let down = side.event(KFI_SHUTDOWN)?;
            // The device does not report a connection that ends in the middle of an answer to a
            // read. Either a flushed receive reports it, or the peer disconnects first: its queue
            // pair has failed, except in the moment between rxe's answer and that.
            let fine: &[i32] = match write {
                true => &[libc::EACCES],
                false => &[libc::EACCES, libc::ECONNABORTED, 0],
            };
            untold += usize::from(down.raw.err == 0);
            ensure!(untold <= 1, "round {round}: no reason again");
            ensure!(
                down.raw.object == ep && fine.contains(&(down.raw.err as i32)),
                "round {round}: {:?}",
                down.raw
            );
            side.dev.close(slot)?;
        } else {
            let r: Remote = ctx.ctl.recv()?;
            ensure!(
                bench.write(8, r.addr, r.key)? == 0,
                "round {round}: a write"
            );
            ensure!(bench.read(8, r.addr, r.key)? == 0, "round {round}: a read");
            ctx.barrier("the key works")?;
            let piece = [iov(bench.region, 0, SIZE)];
            let make = |context| match write {
                true => op::write(context, &piece, r.addr, r.key),
                false => op::read(context, &piece, r.addr, r.key),
            };
            let ends = run_to_the_end(side, ep, cq, make)?;
            let good = ends.iter().take_while(|e| e.err == 0).count();
            let first = ends.get(good).context("nothing failed")?;
            ensure!(
                first.err as i32 == libc::EACCES && first.prov_errno == REM_ACCESS_ERR,
                "round {round}: {first:?}"
            );
            let rest = &ends[good + 1..];
            ensure!(
                rest.iter().all(|e| e.err as i32 == libc::ECANCELED),
                "round {round}: {rest:?}"
            );
            let down = side.event(KFI_SHUTDOWN)?;
            ensure!(
                down.raw.object == ep && down.raw.err as i32 == libc::EACCES,
                "round {round}: {:?}",
                down.raw
            );
            let late = side.dev.submit(ep, &[make(0)]);
            refused(late, libc::ENOTCONN, "an operation after the end")?;
        }
        let more = side.dev.eq_read(side.eq.handle, 0);
        refused(more, libc::EAGAIN, "a second event")?;
        ensure!(cq.read().is_none(), "a completion too many");
        ctx.barrier("told")?;
    }
    Ok(())
}

/// P3: an exporter revokes and exits at once, so its disconnect may overtake the refusal. The
/// initiator's operations and its event give the same reason.
fn leaves_at_once(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 64 << 10;
    let mut bench = Bench::new(ctx, SIZE as usize)?;
    for round in 0..24u64 {
        let ep = bench.fresh(ctx)?;
        let (side, cq) = (&bench.side, &bench.cq);
        if ctx.first() {
            let (slot, remote) = side.export(bench.region, 0, SIZE, REMOTE)?;
            ctx.ctl.send(&remote)?;
            ctx.barrier("the key works")?;
            std::thread::sleep(Duration::from_micros(2000 + round * 1777 % 9000));
            side.dev.key_revoke(slot)?;
            std::thread::sleep(Duration::from_micros(round * 250));
            match side.dev.shutdown(ep) {
                Err(e) if e.errno.0 != libc::ENOTCONN => return Err(e.into()),
                _ => {}
            }
            side.event(KFI_SHUTDOWN)?;
            side.dev.close(slot)?;
        } else {
            let r: Remote = ctx.ctl.recv()?;
            ctx.barrier("the key works")?;
            let piece = [iov(bench.region, 0, SIZE)];
            let make = |context| match round % 2 {
                0 => op::write(context, &piece, r.addr, r.key),
                _ => op::read(context, &piece, r.addr, r.key),
            };
            let ends = run_to_the_end(side, ep, cq, make)?;
            let first = ends.iter().find(|e| e.err != 0);
            let down = side.event(KFI_SHUTDOWN)?;
            let want = match first.map(|e| e.err as i32) {
                // The operation was flushed, or none was outstanding: the peer disconnected.
                None | Some(libc::ECANCELED) => 0,
                Some(why) => why,
            };
            ensure!(
                down.raw.err as i32 == want,
                "round {round}: {first:?}, and then {:?}",
                down.raw
            );
        }
        ctx.barrier("told")?;
    }
    Ok(())
}

/// `IB_WC_REM_ACCESS_ERR`.
pub(super) const REM_ACCESS_ERR: u32 = 10;

/// Keeps operations posted, numbered from 0, until one fails. Returns how each ended; they must end
/// in order.
pub(super) fn run_to_the_end(
    side: &Side,
    ep: u64,
    cq: &Cq,
    make: impl Fn(u64) -> OpEntry,
) -> Result<Vec<CqEntry>> {
    const DEPTH: usize = 16;
    let mut ends: Vec<CqEntry> = Vec::new();
    let (mut posted, mut over) = (0, false);
    loop {
        while !over && posted - ends.len() < DEPTH {
            match side.dev.submit(ep, &[make(posted as u64)]) {
                Ok(_) => posted += 1,
                Err(e) if e.errno.0 == libc::EAGAIN => break,
                Err(e) if e.errno.0 == libc::ENOTCONN => over = true,
                Err(e) => return Err(e.into()),
            }
        }
        if ends.len() == posted {
            return Ok(ends);
        }
        let e = cq.wait(LONG)?;
        ensure!(e.context == ends.len() as u64, "out of order: {e:?}");
        over |= e.err != 0;
        ends.push(e);
    }
}

/// P4: a peer reads with the same old key again and again, each time over a connection of its own,
/// while the slot has another key, has had more keys, and has none: no byte comes.
fn old_keys(ctx: &mut Ctx) -> Result<()> {
    let turns = if sys::slowness() > 1 { 2 } else { 4 };
    let mut lanes = Lanes::new(ctx)?;
    let buf = Buf::new(SPAN as usize)?;
    let mut made = None;
    if ctx.first() {
        buf.clear(0x66);
        let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
        let (slot, old) = lanes.side.export(region, 0, SPAN, REMOTE)?;
        ctx.ctl.send(&old)?;
        made = Some((slot, old));
    }
    let old: Remote = match made {
        Some((_, old)) => old,
        None => ctx.ctl.recv()?,
    };
    let mut live = Some(old);
    for turn in 0..turns {
        lanes.connect(ctx)?;
        for lane in 0..LANES {
            if let Some((slot, old)) = made {
                if live.is_some() {
                    lanes.side.dev.key_revoke(slot)?;
                }
                live = None;
                // Now and then the slot has no key.
                for again in 0..(turn + lane) % 4 {
                    if again > 0 {
                        lanes.side.dev.key_revoke(slot)?;
                    }
                    let next = lanes.side.assign(slot, 0, SPAN, REMOTE)?;
                    ensure!(next.key != old.key, "it came back");
                    live = Some(next);
                }
                ctx.ctl.send(&live)?;
            } else {
                let live: Option<Remote> = ctx.ctl.recv()?;
                if let Some(r) = live {
                    let errno = lanes.attempt(lane, false, r.len, r.addr, r.key)?;
                    ensure!(errno == 0, "lane {lane}: the key that lives: errno {errno}");
                }
                // Read one byte, or the whole window; the test fails if a byte comes.
                let len = if lane % 3 == 0 { 1 } else { old.len };
                let errno = lanes.attempt(lane, false, len, old.addr, old.key)?;
                let what = live.map(|_| "another key lives");
                ensure!(
                    errno == libc::EACCES,
                    "turn {turn}, {what:?}: errno {errno}"
                );
            }
            ctx.barrier("tried")?;
        }
    }
    ctx.barrier("done")
}

/// P4: from another domain no key value reaches anything, neither the live keys themselves nor
/// values near them.
fn guess_outside(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u32 = 64;
    let mut lanes = Lanes::new(ctx)?;
    if !ctx.first() {
        try_each(ctx, &mut lanes, Vec::new())?;
        return ctx.barrier("done");
    }
    let other = Side::open(ctx)?;
    let secret = Buf::new(COUNT as usize * PAGE as usize)?;
    secret.clear(0x66);
    let region = other.reg(&secret, LOCAL | REMOTE)?.handle;
    let slots = other.dev.key_alloc(region, COUNT)?;
    // Each key covers the whole region, so a hit on any of them is seen.
    let keys: Result<Vec<_>> = slots
        .iter()
        .map(|slot| Ok(other.assign(*slot, 0, secret.len() as u64, REMOTE)?.key))
        .collect();
    let keys = keys?;
    let middle = keys[keys.len() / 2];
    let mut guesses: Vec<(&str, u64)> = keys.iter().map(|key| ("live", *key)).collect();
    guesses.extend(near(middle, 16));
    let guess = |(i, (what, key)): (usize, &(&str, u64))| {
        let what = format!("{what}: {key:#x}");
        let key = key & u64::from(u32::MAX);
        Try::new(&what, i % 2 == 0, 8, secret.addr(), key, false)
    };
    let list = guesses.iter().enumerate().map(guess).collect();
    try_each(ctx, &mut lanes, list)?;
    secret.check_value(0, secret.len(), 0x66)?;
    ctx.barrier("done")
}

/// Returns guesses of an attacker with `key`: each bit flipped, `n` values beside it, and half
/// as many of the device's slots.
pub(super) fn near(key: u64, n: u64) -> Vec<(&'static str, u64)> {
    let bits = (0..32).map(|bit| ("one bit off", key ^ (1 << bit)));
    let up = (1..=n).map(|n| ("counted up", key.wrapping_add(n)));
    let down = (1..=n).map(|n| ("counted down", key.wrapping_sub(n)));
    let next = (1..=n / 2).map(|n| ("a neighbour", key.wrapping_add(n << 8)));
    let last = (1..=n / 2).map(|n| ("a neighbour", key.wrapping_sub(n << 8)));
    bits.chain(up).chain(down).chain(next).chain(last).collect()
}

/// P4: from the same domain, an attacker that knows a key's hardware slot (rxe counts slots up) hits
/// the key with one of 128 values: the documented rate, and no better.
fn guess_inside(ctx: &mut Ctx) -> Result<()> {
    let mut lanes = Lanes::new(ctx)?;
    if !ctx.first() {
        try_each(ctx, &mut lanes, Vec::new())?;
        return ctx.barrier("done");
    }
    let buf = Buf::new(PAGE as usize)?;
    buf.clear(0x5a);
    let region = lanes.side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (slot, r) = lanes.side.export(region, 0, PAGE, KFI_REMOTE_READ)?;
    let step = if sys::slowness() > 1 { 8 } else { 1 };
    let byte = r.key & 0xff;
    let list = (0..256).filter(|guess| guess % step == byte % step);
    let guess = |guess| {
        let key = r.key & !0xff | guess;
        Try::new(&format!("{key:#x}"), false, 8, r.addr, key, guess == byte)
    };
    try_each(ctx, &mut lanes, list.map(guess).collect())?;
    // The value among the 128 or 256 is random: 1000 draws leave out hardly any.
    let mut bytes = BTreeSet::new();
    for _ in 0..1000 {
        lanes.side.dev.key_revoke(slot)?;
        let key = lanes.side.assign(slot, 0, PAGE, KFI_REMOTE_READ)?.key;
        bytes.insert(key & 0xff);
    }
    ensure!(bytes.len() > 110, "only {} low bytes", bytes.len());
    buf.check_value(0, PAGE as usize, 0x5a)?;
    ctx.barrier("done")
}

/// P5: pages stay pinned and charged until the last key and the last operation are over.
fn last_use(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 5 * PAGE;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(SIZE as usize)?;
    if !ctx.first() {
        let region = pair.reg(&buf)?;
        buf.fill(9);
        ctx.barrier("the region is closed")?;
        pair.post(op::send(1, &[iov(region, 0, SIZE)]))?;
        pair.wait()?;
        return ctx.barrier("done");
    }
    let region = pair.reg(&buf)?;
    let (slot, _) = pair.side.export(region, 0, SIZE, REMOTE)?;
    let (large, _) = pair.side.export(region, PAGE, 2 * PAGE, KFI_REMOTE_READ)?;
    pair.post(op::recv(1, &[iov(region, 0, SIZE)]))?;
    let charged = |when: &str| {
        let pin = vm_pin();
        ensure!(pin == SIZE, "{when}: VmPin is {pin}");
        Ok(())
    };
    charged("keys and an operation")?;
    for slot in [slot, large] {
        refused(pair.dev().close(region), libc::EBUSY, "with a key")?;
        pair.dev().key_revoke(slot)?;
        charged("a key is revoked")?;
        pair.dev().close(slot)?;
        charged("a slot is closed")?;
    }
    pair.dev().close(region)?;
    charged("the region is closed, the operation is not over")?;
    ctx.barrier("the region is closed")?;
    ensure!(pair.wait()?.len == SIZE, "a short message");
    buf.check(9)?;
    until("the pages are given back", WAIT, || {
        Ok((vm_pin() == 0).then_some(()))
    })?;
    ctx.barrier("done")
}
