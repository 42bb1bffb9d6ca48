// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of keys: assigned and revoked, one by one and 64 at once, waited-for and ordered, for
//! windows and regions of many sizes, beside registering and deregistering the window through
//! verbs.

use super::memory::{average, memory, verbs, verbs_reg};
use super::Figure;
use crate::buf::Buf;
use crate::harness::{Ctx, Status};
use crate::op::{self, iov};
use crate::pair::{key_entries, Pair, Remote, Side, LOCAL, LONG, REMOTE};
use crate::tests::kernel::results;
use crate::tests::key_policy::{Parameter, REVOKE};
use anyhow::{bail, ensure, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// A window, and the numbers of single assignments and of batches.
struct Window {
    len: usize,
    rounds: u32,
    batches: u32,
    /// Wanted cost of a pair, and of a key of a batch, relative to a registration and
    /// deregistration.
    wanted: (Option<&'static str>, Option<&'static str>),
}

const WINDOWS: [Window; 4] = [
    Window {
        len: 4 * KIB,
        rounds: 200,
        batches: 20,
        wanted: (Some("<= 0.8"), Some("<= 0.2")),
    },
    Window {
        len: 64 * KIB,
        rounds: 100,
        batches: 10,
        wanted: (None, None),
    },
    Window {
        len: MIB,
        rounds: 40,
        batches: 4,
        wanted: (Some("<= 0.3"), Some("<= 0.2")),
    },
    // More than `IB_WR_REG_MR` covers.
    Window {
        len: 2 * MIB,
        rounds: 20,
        batches: 2,
        wanted: (None, None),
    },
];

const REGIONS: [usize; 6] = [4 * KIB, 64 * KIB, MIB, 2 * MIB, 16 * MIB, 256 * MIB];

/// Number of keys of a batch.
const BATCH: usize = 64;

/// Returns a size as text.
fn size(len: usize) -> String {
    match len {
        MIB.. => format!("{} MiB", len / MIB),
        _ => format!("{} KiB", len / KIB),
    }
}

/// Prints a figure beside that of a peer.
fn figure(
    ctx: &Ctx,
    case: &str,
    value: f64,
    unit: &str,
    (peer, peer_value): (&str, f64),
    wanted: Option<&str>,
) {
    Figure {
        bench: "keys",
        case,
        value,
        unit,
        peer: Some(peer),
        peer_value: Some(peer_value),
        ratio: None,
        wanted,
    }
    .print(ctx);
}

/// Pause that lets workers finish.
const PAUSE: Duration = Duration::from_millis(25);

/// Number of rows of ordered assignments.
const ROWS: usize = 9;

fn average_of(sum: Duration, count: u32) -> f64 {
    sum.as_secs_f64() * 1e6 / f64::from(count)
}

/// Returns the median in microseconds. On one processor another task can run within a call, and
/// one such call would be most of an average.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// Measures an assign and a revoke, in microseconds.
fn pair(side: &Side, slot: u64, offset: usize, window: &Window) -> Result<(f64, f64)> {
    let (mut assigning, mut revoking) = (Duration::ZERO, Duration::ZERO);
    let (offset, length) = (offset as u64, window.len as u64);
    for round in 0..=window.rounds {
        let start = Instant::now();
        side.dev.key_assign(slot, offset, length, KFI_REMOTE_READ)?;
        let took = start.elapsed();
        let start = Instant::now();
        side.dev.key_revoke(slot)?;
        // The first round warms up.
        if round > 0 {
            assigning += took;
            revoking += start.elapsed();
        }
    }
    let each = |sum| average_of(sum, window.rounds);
    Ok((each(assigning), each(revoking)))
}

/// Measures an ordered assign, in microseconds: alone, so that a worker has to be woken, and as one
/// of many in a row. Both are medians.
fn ordered(side: &Side, slots: &[u64], offset: usize, window: &Window) -> Result<(f64, f64)> {
    let order = |slot: u64| -> Result<Duration> {
        let entry = KeyEntry {
            slot,
            offset: offset as u64,
            length: window.len as u64,
            access: KFI_REMOTE_READ,
            ..Default::default()
        };
        let start = Instant::now();
        let got = side.dev.key_order(&entry, 0, 0)?;
        let took = start.elapsed();
        ensure!(got.key != KFI_KEY_NOTAVAIL, "ordered: {got:?}");
        Ok(took)
    };
    // The first row warms up.
    for slot in slots {
        order(*slot)?;
    }
    side.dev.key_revoke_slots(slots)?;
    let mut alone = Vec::new();
    for _ in 0..window.rounds.min(50) {
        std::thread::sleep(PAUSE);
        alone.push(order(slots[0])?);
        std::thread::sleep(PAUSE);
        side.dev.key_revoke(slots[0])?;
    }
    let mut rows = Vec::new();
    for _ in 0..ROWS {
        std::thread::sleep(PAUSE);
        let mut row = Duration::ZERO;
        for slot in slots {
            row += order(*slot)?;
        }
        rows.push(row);
        side.dev.key_revoke_slots(slots)?;
    }
    Ok((median(alone), median(rows) / slots.len() as f64))
}

/// Measures assigning and revoking a key, 64 at once, and assigning one by an ordered batch, in
/// microseconds.
fn batch(side: &Side, slots: &[u64], region: usize, window: &Window) -> Result<(f64, f64)> {
    let entry = |(i, slot): (usize, &u64)| KeyEntry {
        slot: *slot,
        offset: (i * window.len % region) as u64,
        length: window.len as u64,
        access: KFI_REMOTE_READ,
        ..Default::default()
    };
    let mut entries: Vec<_> = slots.iter().enumerate().map(entry).collect();
    let value = average(window.batches, || {
        let got = side.dev.key_assign_many(&mut entries)?;
        ensure!(got == (BATCH, 0), "assigned: {got:?}");
        let got = side.dev.key_revoke_slots(slots)?;
        ensure!(got.revoked == BATCH as u64, "revoked: {got:?}");
        Ok(())
    })?;
    let mut ordering = Vec::new();
    for _ in 0..window.batches {
        std::thread::sleep(PAUSE);
        let start = Instant::now();
        let got = side.dev.key_assign_ordered(&mut entries, 0, 0)?;
        ordering.push(start.elapsed());
        ensure!(got == (BATCH, 0), "ordered: {got:?}");
        side.dev.key_revoke_slots(slots)?;
    }
    let each = |micros: f64| micros / BATCH as f64;
    Ok((each(value), each(median(ordering))))
}

/// Prints the table: every window in every region that holds it.
fn table(ctx: &Ctx) -> Result<()> {
    const PEER: &str = "ibv_reg_mr + ibv_dereg_mr of the window";
    let program = verbs_reg()?;
    let side = Side::open(ctx)?;
    let mut peers = Vec::new();
    for window in &WINDOWS {
        peers.push(verbs(ctx, &program, window.len, window.rounds)?);
    }
    let mut smallest = None;
    for len in REGIONS {
        let buf = memory(len)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slots = side.dev.key_alloc(region, BATCH as u32)?;
        let fitting = WINDOWS.iter().zip(&peers).filter(|(w, _)| w.len <= len);
        for (window, peer) in fitting {
            let offset = (len / 2).next_multiple_of(window.len) % len;
            let what = format!("{} of {}", size(window.len), size(len));
            let (assign, revoke) = pair(&side, slots[0], offset, window)?;
            let show = |name: &str, value, unit, wanted| {
                let case = format!("{name} {what}");
                figure(ctx, &case, value, unit, (PEER, *peer), wanted);
            };
            show("assign", assign, "us", None);
            show("revoke", revoke, "us", None);
            show("pair", assign + revoke, "us", window.wanted.0);
            // Beyond `IB_WR_REG_MR` an ordered assign is waited for all the same.
            let wanted = (window.len == 4 * KIB).then_some("<= 0.15");
            let (alone, in_a_row) = ordered(&side, &slots, offset, window)?;
            show("ordered assign", alone, "us", wanted);
            show("ordered assign, one of 64 in a row", in_a_row, "us", wanted);
            let (each, ordered) = batch(&side, &slots, len, window)?;
            show("batch", each, "us per key", window.wanted.1);
            show("ordered batch, assign", ordered, "us per key", None);
            if window.len == 4 * KIB {
                let first = *smallest.get_or_insert(assign + revoke);
                let case = format!("pair {what} beside 4 KiB of 4 KiB");
                let peer = ("the same of 4 KiB", first);
                let wanted = Some("0.95 to 1.05");
                figure(ctx, &case, assign + revoke, "us", peer, wanted);
            }
        }
        for slot in slots {
            side.dev.close(slot)?;
        }
        side.dev.close(region)?;
    }
    Ok(())
}

/// Measures keys that the device invalidates, as hardware does. rxe executes invalidations too, but
/// needs deregistrations as a fence.
fn invalidated(ctx: &Ctx) -> Result<()> {
    const REGION: usize = MIB;
    let program = verbs_reg()?;
    let side = Side::open(ctx)?;
    let buf = memory(REGION)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let _policy = Parameter::set(REVOKE, "invalidate")?;
    let slots = side.dev.key_alloc(region, BATCH as u32)?;
    for window in WINDOWS.iter().filter(|window| window.len <= REGION) {
        let peer = verbs(ctx, &program, window.len, window.rounds)?;
        let peer = ("ibv_reg_mr + ibv_dereg_mr of the window", peer);
        let (assign, revoke) = pair(&side, slots[0], 0, window)?;
        let (each, _) = batch(&side, &slots, REGION, window)?;
        let what = format!("{} of {}, invalidated", size(window.len), size(REGION));
        for (name, value, unit, wanted) in [
            ("assign", assign, "us", None),
            ("revoke", revoke, "us", Some("<= 0.25")),
            ("pair", assign + revoke, "us", Some("<= 1.0")),
            ("batch", each, "us per key", Some("<= 0.2")),
        ] {
            figure(ctx, &format!("{name} {what}"), value, unit, peer, wanted);
        }
    }
    Ok(())
}

/// Measures the same on the kernel's own memory, in a module. Verbs has no counterpart for a
/// process, so the figure beside it is the cost of a process's window.
fn kernel_table(ctx: &Ctx) -> Result<()> {
    let program = verbs_reg()?;
    for told in results("kfi_bench_rust")? {
        ensure!(told.status == Status::Ok, "{}: {}", told.name, told.detail);
        for note in &told.notes {
            let Some(figures) = note.strip_prefix("keys ") else {
                continue;
            };
            let figures: Result<Vec<usize>, _> = figures.split(' ').map(str::parse).collect();
            let [window, region, assign, revoke, batch] = figures?[..] else {
                bail!("{note:?}");
            };
            let what = format!("{} of {}, kernel memory", size(window), size(region));
            let peer = verbs(ctx, &program, window, 50)?;
            let peer = ("ibv_reg_mr + ibv_dereg_mr of the window", peer);
            let show = |name: &str, nanos: usize, unit| {
                let micros = nanos as f64 / 1000.0;
                figure(ctx, &format!("{name} {what}"), micros, unit, peer, None);
            };
            show("assign", assign, "us");
            show("revoke", revoke, "us");
            show("pair", assign + revoke, "us");
            show("batch", batch, "us per key");
        }
    }
    Ok(())
}

/// Measures one more key beside 10 assigned ones and beside 100,000.
fn many_live(ctx: &Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let buf = memory(4 * KIB)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slot = side.dev.key_alloc(region, 1)?[0];
    let mut live = 0;
    let mut few = None;
    for wanted in [10, 100_000] {
        while live < wanted {
            let count = (wanted - live).min(KFI_KEY_ALLOC_MAX as usize);
            let slots = side.dev.key_alloc(region, count as u32)?;
            let mut entries = key_entries(&slots, 4096, KFI_REMOTE_READ);
            let got = side.dev.key_assign_many(&mut entries)?;
            ensure!(got == (count, 0), "assigned: {got:?}");
            live += count;
        }
        let (assign, revoke) = pair(&side, slot, 0, &WINDOWS[0])?;
        let (before, _) = *few.get_or_insert((assign, revoke));
        let case = format!("assign 4 KiB, {live} keys live");
        let peer = ("the same, 10 keys live", before);
        figure(ctx, &case, assign, "us", peer, Some("<= 1.1"));
    }
    // Closing the file frees them.
    Ok(())
}

/// Node 2 writes while node 1 assigns and revokes: both together beside one after the other. With
/// one processor the figure is the work itself, and the cost to each other.
fn beside_writes(ctx: &mut Ctx) -> Result<()> {
    const WRITES: u32 = 600;
    const PAIRS: u32 = 600;
    let own = Pair::new(ctx)?;
    let buf = Buf::new(4 * KIB)?;
    let region = own.reg(&buf)?;
    let (slot, remote) = own.side.export(region, 0, 4096, REMOTE)?;
    let spare = own.dev().key_alloc(region, 1)?[0];
    let remote: Remote = ctx.ctl.exchange(&remote)?;
    let writes = || -> Result<()> {
        for i in 0..WRITES {
            let piece = [iov(region, 0, 64)];
            own.post(op::write(u64::from(i), &piece, remote.addr, remote.key))?;
            own.wait_for(LONG)?;
        }
        Ok(())
    };
    let pairs = || -> Result<()> {
        for _ in 0..PAIRS {
            own.dev().key_assign(spare, 0, 4096, REMOTE)?;
            own.dev().key_revoke(spare)?;
        }
        Ok(())
    };
    // Warm up, then the writes alone, the pairs alone, both.
    let mut took = Vec::new();
    for (write, assign) in [(true, true), (true, false), (false, true), (true, true)] {
        ctx.barrier("next")?;
        let start = Instant::now();
        match ctx.first() {
            true if assign => pairs()?,
            false if write => writes()?,
            _ => {}
        }
        ctx.barrier("done")?;
        took.push(start.elapsed().as_secs_f64() * 1e6);
    }
    own.dev().close(slot)?;
    if let [_, writes, pairs, both] = took[..] {
        let case = "600 writes of 64 B beside 600 pairs";
        let peer = ("one after the other", writes + pairs);
        figure(ctx, case, both, "us", peer, Some("<= 1.05"));
    }
    Ok(())
}

/// Runs the whole benchmark.
pub(super) fn run(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        table(ctx)?;
        invalidated(ctx)?;
        kernel_table(ctx)?;
        many_live(ctx)?;
    }
    ctx.barrier("keys")?;
    beside_writes(ctx)
}
