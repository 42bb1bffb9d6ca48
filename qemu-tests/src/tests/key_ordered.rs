// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ordered assignment: the call returns a key before the device has registered the window, and a
//! message that carries the key may be posted at once.

use super::key_batches::{assign_all, entry, joined, with_key, Slots, PAGE};
use super::keys::Bench;
use super::modules::{add_link, delete_link};
use super::refused;
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::{skip, Ctx, Test, NETNS, ONE, SHM};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, LOCAL, LONG, REMOTE};
use crate::sys;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.ordered_key_sent_at_once_works_for_peer",
        message_follows,
    )
    .seconds(60),
    Test::alone("keys.ordered_assign_with_bad_arguments_is_refused", rules),
    Test::alone(
        "keys.ordered_assign_against_revoke_and_close_leaves_no_key",
        races,
    )
    .seconds(30),
    Test::pair(
        "keys.p09_ordered_ops_deferred_at_disconnect_complete_once",
        held_at_the_end,
    )
    .seconds(30),
    Test::pair(
        "keys.p09_ordered_queue_always_deferring_completes_in_order",
        held_all_the_time,
    )
    .seconds(30),
    Test::pair(
        "keys.ordered_assign_without_pause_starves_no_sender",
        orders_starve_nobody,
    )
    .seconds(30),
    Test::pair("keys.ordered_assign_failed_by_device_is_reported", failure).seconds(10),
    Test::pair(
        "keys.p09_ordered_deferred_op_failed_by_device_completes_once",
        release_refused,
    )
    .seconds(30),
    Test::pair(
        "keys.ordered_assign_on_silent_device_times_out_once",
        silence,
    )
    .seconds(30),
    // These tests count a module's users, and the other half of a pair would be one.
    Test::pair(
        "keys.ordered_assign_at_file_close_releases_provider",
        leaves_with_the_file,
    )
    .on(ONE | SHM),
    Test::pair("keys.ordered_assign_race_with_removal_is_reported", removal)
        .seconds(60)
        .on(NETNS),
];

/// Maximum number of keys in a batch.
const MOST: usize = 64;
/// Messages sent after the one with the keys, each with its number.
const BEHIND: u64 = 3;
/// Offset of outgoing messages in the message buffer.
const OUT: u64 = 2048;
/// Bytes that a message holds for each key: address and key.
const PER_KEY: usize = 16;
// Contexts of the peer's operations; contexts of the numbered messages count up.
const KEYS: u64 = 10;
const WRITE: u64 = 11;
const NUMBER: u64 = 20;
const REST: u64 = u64::MAX;

/// Sends the message that carries a key as soon as the call returns the key; the peer uses the key
/// as soon as the message is there. Every use succeeds, and messages arrive in order.
fn message_follows(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 600;
    let mut bench = Bench::new(ctx, MOST * PAGE as usize)?;
    let messages = Buf::new(4096)?;
    let local = bench.side.reg(&messages, LOCAL)?.handle;
    let ep = bench.fresh(ctx)?;
    let dev = &bench.side.dev;
    let done = |what: &str| -> Result<CqEntry> {
        let entry = bench.cq.wait(LONG).with_context(|| what.to_owned())?;
        ensure!(entry.err == 0, "{what}: {entry:?}");
        Ok(entry)
    };
    let recv = |context, at, len| dev.submit(ep, &[op::recv(context, &[iov(local, at, len)])]);
    if ctx.first() {
        let slots = dev.key_alloc(bench.region, MOST as u32)?;
        recv(1, 0, 8)?;
        ctx.barrier("ready")?;
        for round in 0..ROUNDS {
            let count = [1, 2, MOST][round as usize % 3];
            bench.buf.clear(0);
            let mut entries: Vec<_> = (0u64..)
                .zip(&slots[..count])
                .map(|(i, slot)| entry(*slot, i * PAGE, PAGE))
                .collect();
            let got = if count == 1 && round % 2 == 0 {
                let got = dev.key_order(&entries[0], bench.cq.handle, 99)?;
                (entries[0].key, entries[0].remote_addr) = (got.key, got.remote_addr);
                (1, 0)
            } else {
                dev.key_assign_ordered(&mut entries, bench.cq.handle, 99)?
            };
            // From here on the kernel decides the order of events.
            for (i, e) in entries.iter().enumerate() {
                let at = OUT as usize + i * PER_KEY;
                messages.set64(at, e.remote_addr);
                messages.set64(at + 8, e.key);
            }
            let len = (count * PER_KEY) as u64;
            dev.submit(ep, &[op::send(2, &[iov(local, OUT, len)])])?;
            for i in 0..BEHIND {
                dev.submit(
                    ep,
                    &[op::inject(
                        op::send(0, &[]),
                        &(round * BEHIND + i).to_ne_bytes(),
                    )],
                )?;
            }
            ensure!(got == (count, 0), "round {round}: {got:?}");
            // An injected message has no completion.
            let both: BTreeSet<_> = [done("one of two")?, done("the other")?]
                .map(|e| e.context)
                .into();
            ensure!(both == [1, 2].into(), "round {round}: {both:?}");
            for i in 0..count {
                let written = bench.buf.get64(i * PAGE as usize);
                ensure!(written == round + 1, "round {round}, key {i}: {written:#x}");
            }
            let revoked = dev.key_revoke_slots(&slots)?.revoked;
            ensure!(revoked == count as u64, "round {round}: {revoked} revoked");
            if round + 1 < ROUNDS {
                recv(1, 0, 8)?;
            }
            ctx.barrier("next")?;
        }
    } else {
        let receive_all = || -> Result<()> {
            recv(KEYS, 0, OUT)?;
            (0..BEHIND).try_for_each(|i| Ok(recv(NUMBER + i, OUT + 8 * i, 8).map(drop)?))
        };
        receive_all()?;
        ctx.barrier("ready")?;
        for round in 0..ROUNDS {
            let behind = std::cell::Cell::new(0);
            // Waits for this completion, or (`REST`) for all numbered messages, which otherwise
            // complete at any time.
            let until = |wanted: u64| -> Result<CqEntry> {
                loop {
                    let entry = done(&format!("round {round}"))?;
                    if entry.context == wanted {
                        return Ok(entry);
                    }
                    let i = behind.get();
                    ensure!(entry.context == NUMBER + i, "{entry:?}, not {i}");
                    let number = messages.get64((OUT + 8 * i) as usize);
                    ensure!(number == round * BEHIND + i, "{number} came");
                    behind.set(i + 1);
                    if wanted == REST && i + 1 == BEHIND {
                        return Ok(entry);
                    }
                }
            };
            let keys = until(KEYS)?;
            bench.buf.set64(0, round + 1);
            for at in (0..keys.len as usize).step_by(PER_KEY) {
                let (addr, key) = (messages.get64(at), messages.get64(at + 8));
                let piece = [iov(bench.region, 0, 8)];
                dev.submit(ep, &[op::write(WRITE, &piece, addr, key)])?;
                until(WRITE).with_context(|| format!("key {}", at / PER_KEY))?;
            }
            dev.submit(ep, &[op::inject(op::send(0, &[]), &[0; 8])])?;
            if behind.get() < BEHIND {
                until(REST)?;
            }
            receive_all()?;
            ctx.barrier("next")?;
        }
    }
    ctx.barrier("done")
}

fn rules(ctx: &mut Ctx) -> Result<()> {
    let all = Slots::new(ctx, 130)?;
    let dev = &all.side.dev;
    let cq = all.side.cq(16, 0)?;
    let mut entries = all.entries();
    let call = |flags, cq, context, entries: &mut [KeyEntry]| {
        let mut arg = KeyAssignMany {
            flags,
            entries: entries.as_mut_ptr() as u64,
            count: entries.len() as u32,
            entry_size: std::mem::size_of::<KeyEntry>() as u32,
            cq,
            context,
            ..Default::default()
        };
        dev.call(&mut arg)
    };
    for (what, errno, flags, cq, context) in [
        ("a flag that is none", libc::EINVAL, 4, 0, 0),
        ("keys of one use", libc::EOPNOTSUPP, 3, 0, 0),
        ("a queue of a waited one", libc::EINVAL, 0, cq.handle, 0),
        ("a context without queue", libc::EINVAL, 1, 0, 1),
        ("a region as queue", libc::ENOENT, 1, all.region, 0),
    ] {
        let offered = all.side.domain.caps & KFI_SINGLE_USE_KEYS != 0;
        if errno == libc::EOPNOTSUPP && offered {
            continue;
        }
        refused(call(flags, cq, context, &mut entries), errno, what)?;
    }
    for (what, errno, flags, cq, context) in [
        ("one, a flag that is none", libc::EINVAL, 4, 0, 0),
        (
            "one, a queue of a waited one",
            libc::EINVAL,
            0,
            cq.handle,
            0,
        ),
        ("one, a context without queue", libc::EINVAL, 1, 0, 1),
        ("one, a region as queue", libc::ENOENT, 1, all.region, 0),
    ] {
        let mut one = KeyAssign {
            flags,
            slot: all.slots[0],
            length: 8,
            access: KFI_REMOTE_READ,
            cq,
            context,
            ..Default::default()
        };
        refused(dev.call(&mut one), errno, what)?;
    }
    ensure!(with_key(dev)?.is_empty(), "a refused call assigned");
    // A second assignment is refused, and the first key stays valid.
    let one = dev.key_order(&entries[0], cq.handle, 1)?;
    refused(
        dev.key_order(&entries[0], cq.handle, 1),
        libc::EBUSY,
        "a second",
    )?;
    ensure!(one.key != KFI_KEY_NOTAVAIL, "{one:?}");
    ensure!(with_key(dev)?.len() == 1, "{:?}", with_key(dev)?);
    dev.key_revoke(all.slots[0])?;
    // Without a queue failures are not reported.
    let got = dev.key_assign_ordered(&mut entries, 0, 0)?;
    ensure!(got == (130, 0), "{got:?}");
    let keys: BTreeSet<_> = entries.iter().map(|e| e.key).collect();
    ensure!(keys.len() == 130, "a key came twice");
    let got = dev.key_revoke_slots(&all.slots)?;
    ensure!((got.done, got.revoked) == (130, 130), "{got:?}");
    // The batch stops at the first refused entry: the slot that is listed twice has a key by then.
    entries[100].slot = entries[3].slot;
    let got = dev.key_assign_ordered(&mut entries, cq.handle, 1)?;
    ensure!(got == (100, libc::EBUSY), "{got:?}");
    let revoked = dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    ensure!(revoked == 100, "{revoked} revoked");
    // No assignment failed.
    ensure!(cq.read().is_none(), "a completion");
    dev.close(cq.handle)?;
    assign_all(dev, &mut all.entries())
}

/// P9: operations that are deferred when the connection ends complete, each once, without a close.
fn held_at_the_end(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 40;
    const SENDS: u64 = 6;
    let mut bench = Bench::new(ctx, MOST * PAGE as usize)?;
    let slots = bench.side.dev.key_alloc(bench.region, MOST as u32)?;
    for round in 0..ROUNDS {
        let ep = bench.fresh(ctx)?;
        let dev = &bench.side.dev;
        if ctx.first() {
            let mut sent = 0;
            for i in 0..SENDS {
                // Each operation waits for an assignment of its own.
                let slots = &slots[i as usize * 10..][..10];
                let mut entries: Vec<_> = slots.iter().map(|slot| entry(*slot, 0, 1)).collect();
                dev.key_assign_ordered(&mut entries, 0, 0)?;
                match dev.submit(ep, &[op::send(i, &[iov(bench.region, 0, 8)])]) {
                    Ok(_) => sent += 1,
                    Err(e) if [libc::ENOTCONN, libc::ESHUTDOWN].contains(&e.errno.0) => break,
                    Err(e) => return Err(e.into()),
                }
                if round % 2 == 0 && i == round / 2 % SENDS {
                    match dev.shutdown(ep) {
                        // The other end has shut down first.
                        Err(e) if e.errno.0 == libc::ENOTCONN => {}
                        other => other?,
                    }
                }
            }
            let mut contexts = BTreeSet::new();
            for i in 0..sent {
                let entry = bench.cq.wait(LONG).with_context(|| {
                    format!("round {round}: completion {i} of {sent}, had {contexts:?}")
                })?;
                ensure!(contexts.insert(entry.context), "{entry:?} came twice");
            }
            dev.key_revoke_slots(&slots)?;
        } else {
            // Without receives the sent messages stay outstanding until the connection ends.
            std::thread::sleep(Duration::from_micros(round * 97 % 2000));
            dev.shutdown(ep).ok();
        }
        ctx.barrier("ended")?;
    }
    ctx.barrier("done")
}

/// Uses a small queue that always holds a deferred operation: all operations complete, in order.
fn held_all_the_time(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u32 = 4;
    const COUNT: u32 = 100 * SIZE;
    let opts = Opts {
        tx_size: SIZE,
        rx_size: COUNT,
        cq_depth: 2 * COUNT,
        ..Default::default()
    };
    let pair = Pair::with(ctx, &opts)?;
    let dev = pair.dev();
    let buf = Buf::new(8 * COUNT as usize)?;
    let region = pair.reg(&buf)?;
    let piece = |i: u64| [iov(region, 8 * i, 8)];
    if ctx.first() {
        let slots = dev.key_alloc(region, COUNT)?;
        ctx.barrier("ready")?;
        for (i, slot) in (0..).zip(&slots) {
            buf.set64(8 * i as usize, i + 1);
            let got = dev.key_assign_ordered(&mut [entry(*slot, 8 * i, 8)], 0, 0)?;
            ensure!(got == (1, 0), "key {i}: {got:?}");
            let start = Instant::now();
            while let Err(e) = pair.post(op::send(i, &piece(i))) {
                ensure!(e.errno.0 == libc::EAGAIN, "send {i}: {e}");
                ensure!(start.elapsed() < LONG, "send {i}: no room");
                std::thread::yield_now();
            }
        }
    } else {
        for i in 0..u64::from(COUNT) {
            pair.post(op::recv(i, &piece(i)))?;
        }
        ctx.barrier("ready")?;
    }
    for i in 0..u64::from(COUNT) {
        let done = pair
            .cq
            .wait(LONG)
            .with_context(|| format!("completion {i}"))?;
        ensure!(done.err == 0 && done.context == i, "{i}: {done:?}");
        if !ctx.first() {
            let number = buf.get64(8 * i as usize);
            ensure!(number == i + 1, "{number} came as {i}");
        }
    }
    ctx.barrier("done")
}

/// Two threads that order keys without pause do not keep a third thread from sending.
fn orders_starve_nobody(ctx: &mut Ctx) -> Result<()> {
    const SENDS: u64 = 100;
    let mut bench = Bench::new(ctx, MOST * PAGE as usize)?;
    let slots = bench.side.dev.key_alloc(bench.region, MOST as u32)?;
    let ep = bench.fresh(ctx)?;
    let dev = &bench.side.dev;
    let piece = [iov(bench.region, 0, 8)];
    if ctx.first() {
        ctx.barrier("ready")?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| -> Result<()> {
            let orderers: Vec<_> = slots
                .chunks(MOST / 2)
                .map(|slots| {
                    let stop = &stop;
                    scope.spawn(move || -> Result<()> {
                        while !stop.load(Ordering::Relaxed) {
                            let mut all: Vec<_> = slots.iter().map(|s| entry(*s, 0, 1)).collect();
                            dev.key_assign_ordered(&mut all, 0, 0)?;
                            dev.key_revoke_slots(slots)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            let sent = (0..SENDS).try_for_each(|i| -> Result<()> {
                dev.submit(ep, &[op::send(i, &piece)])?;
                let entry = bench.cq.wait(LONG).with_context(|| format!("send {i}"))?;
                ensure!(entry.err == 0 && entry.context == i, "{entry:?}");
                Ok(())
            });
            stop.store(true, Ordering::Relaxed);
            let ordered = orderers.into_iter().try_for_each(joined);
            sent.and(ordered)
        })?;
    } else {
        for i in 0..SENDS {
            dev.submit(ep, &[op::recv(i, &piece)])?;
        }
        ctx.barrier("ready")?;
        for i in 0..SENDS {
            let entry = bench.cq.wait(LONG)?;
            ensure!(entry.err == 0 && entry.context == i, "{entry:?}");
        }
    }
    ctx.barrier("done")
}

/// Makes ordered and waited-for assignments, revocations and closes of the same slots, all at once.
fn races(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 60;
    for round in 0..ROUNDS {
        let all = Slots::new(ctx, 40)?;
        let dev = &all.side.dev;
        let cq = all.side.cq(64, 0)?;
        let fine = [0, libc::EBUSY, libc::ENOENT];
        std::thread::scope(|scope| -> Result<()> {
            let ordered = scope.spawn(|| -> Result<()> {
                for _ in 0..8 {
                    match dev.key_assign_ordered(&mut all.entries(), cq.handle, 5) {
                        Ok((_, err)) => ensure!(fine.contains(&err), "ordered: {err}"),
                        Err(e) => ensure!(fine.contains(&e.errno.0), "ordered: {e}"),
                    }
                    dev.key_revoke_slots(&all.slots[..20]).ok();
                }
                Ok(())
            });
            let waited = scope.spawn(|| -> Result<()> {
                let mut entries = all.entries();
                entries.reverse();
                for _ in 0..8 {
                    match dev.key_assign_many(&mut entries) {
                        Ok((_, err)) => ensure!(fine.contains(&err), "waited: {err}"),
                        Err(e) => ensure!(fine.contains(&e.errno.0), "waited: {e}"),
                    }
                    dev.key_revoke_all(KFI_REVOKE_REGION, all.region)?;
                }
                Ok(())
            });
            for slot in all.slots.iter().step_by(3 + round as usize % 3) {
                dev.close(*slot)?;
            }
            joined(ordered).and(joined(waited))
        })
        .with_context(|| format!("round {round}"))?;
        dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
        ensure!(with_key(dev)?.is_empty(), "a slot still has a key");
        ensure!(cq.read().is_none(), "a completion");
    }
    Ok(())
}

/// If the device fails an ordered assignment, the queue reports how many keys were assigned. The
/// slots of other batches are unchanged.
fn failure(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u32 = 8;
    if !Path::new(KNOBS).exists() {
        return skip("the kernel injects no failures");
    }
    if ctx.first() {
        let all = Slots::new(ctx, COUNT)?;
        let dev = &all.side.dev;
        let cq = all.side.cq(0, 0)?;
        quiet()?;
        // The device is called twice for each window, once more for each work request of the chain,
        // and once for each slot that has nothing in reserve yet.
        for before in [0, 1, 4, 15, 16, 20, 23] {
            let mut entries = all.entries();
            let context = 40 + u64::from(before);
            set("space", before)?;
            set("times", 1)?;
            set("probability", 100)?;
            let got = dev.key_assign_ordered(&mut entries, cq.handle, context);
            let told = cq.wait(LONG);
            set("probability", 0)?;
            ensure!(got? == (COUNT as usize, 0), "not all were told");
            let told = told.with_context(|| format!("after {before}"))?;
            ensure!(
                (told.err, told.context, told.data) == (libc::EIO as u32, context, 0),
                "after {before}: {told:?}"
            );
            let good = told.len;
            let most = if before < 16 { before / 2 } else { COUNT - 1 };
            ensure!(good <= u64::from(most), "after {before}: {told:?}");
            let told: BTreeSet<_> = entries.iter().map(|e| e.key).collect();
            // The revocation waits until no slot is in `Assigning`.
            let ended = dev.key_revoke_slots(&all.slots)?.revoked;
            ensure!(ended == good, "after {before}: {ended} revoked");
            assign_all(dev, &mut entries)?;
            // P4: a returned key value is not issued again, even if the key never worked.
            let again = entries.iter().find(|e| told.contains(&e.key));
            ensure!(again.is_none(), "after {before}: {again:?} came twice");
            dev.key_revoke_slots(&all.slots)?;
            // The reserve is refilled in the background, which calls the device too.
            std::thread::sleep(Duration::from_millis(100));
        }
        // A single assignment, failing at each of its calls of the device.
        let slot = all.slots[0];
        for before in 0..3 {
            let context = 90 + u64::from(before);
            set("space", before)?;
            set("times", 1)?;
            set("probability", 100)?;
            let told = dev.key_order(&entry(slot, 0, PAGE), cq.handle, context);
            let ended = cq.wait(LONG);
            set("probability", 0)?;
            let (told, ended) = (told?, ended.with_context(|| format!("one, {before}"))?);
            ensure!(told.key != KFI_KEY_NOTAVAIL, "one, {before}: {told:?}");
            let is = (ended.err, ended.context, ended.data, ended.len);
            let wanted = (libc::EIO as u32, context, 0, 0);
            ensure!(is == wanted, "one, {before}: {ended:?}");
            // The slot has no key that could be revoked.
            ensure!(with_key(dev)?.is_empty(), "one, {before}: a key is left");
            let ended = dev.key_revoke_slots(&[slot])?.revoked;
            ensure!(ended == 0, "one, {before}: {ended} revoked");
            let next = dev.key_assign(slot, 0, PAGE, REMOTE)?;
            ensure!(next.key != told.key, "one, {before}: {next:?} came twice");
            dev.key_revoke(slot)?;
            std::thread::sleep(Duration::from_millis(100));
        }
        ensure!(cq.read().is_none(), "a completion");
        dev.close(cq.handle)?;
    }
    ctx.barrier("done")
}

/// P9: the device fails one of the deferred operations, for which no caller waits any more. All of
/// them complete, once each, the connection ends, and the reported number of keys is right.
fn release_refused(ctx: &mut Ctx) -> Result<()> {
    // Enough keys that assigning them takes longer than sending.
    const COUNT: u32 = MOST as u32;
    const SENDS: u32 = 6;
    if !Path::new(KNOBS).exists() {
        return skip("the kernel injects no failures");
    }
    let mut bench = Bench::new(ctx, MOST * PAGE as usize)?;
    let slots = bench.side.dev.key_alloc(bench.region, COUNT)?;
    let mut hits = 0;
    for refused in 0..SENDS {
        let ep = bench.fresh(ctx)?;
        let dev = &bench.side.dev;
        if ctx.first() {
            // Let all slots fill their reserves: the device is then called thrice for each.
            std::thread::sleep(sys::patience(Duration::from_millis(50)));
            let mut entries: Vec<_> = slots.iter().map(|slot| entry(*slot, 0, 8)).collect();
            let send = |i| op::send(u64::from(i), &[iov(bench.region, 0, 8)]);
            let sends: Vec<_> = (0..SENDS).map(send).collect();
            quiet()?;
            set("space", 3 * COUNT + refused)?;
            set("times", 1)?;
            set("probability", 100)?;
            let told = dev.key_assign_ordered(&mut entries, 0, 0);
            let sent = dev.submit(ep, &sends);
            let failed = until("the device refuses something", LONG, || {
                let left = std::fs::read_to_string(format!("{KNOBS}/times"))?;
                Ok((left.trim() == "0").then_some(()))
            });
            set("probability", 0)?;
            failed?;
            ensure!(told? == (COUNT as usize, 0), "not all were told");
            let (taken, _) = sent.unwrap_or((0, 0));
            // Another call of the device (a probe of a connection, on either node) may have been
            // failed instead.
            let ended = dev.eq_wait(&bench.side.eq, Duration::from_millis(500));
            let hit = ended.is_ok() && taken == SENDS as usize;
            if ended.is_err() {
                dev.shutdown(ep)?;
                bench.side.event(KFI_SHUTDOWN)?;
            }
            let mut done = BTreeSet::new();
            for i in 0..taken {
                let what = || format!("send {refused} refused: completion {i} of {taken}");
                let entry = bench.cq.wait(LONG).with_context(what)?;
                ensure!(entry.err != 0, "{entry:?}");
                ensure!(done.insert(entry.context), "{entry:?} came twice");
            }
            let revoked = dev.key_revoke_slots(&slots)?.revoked;
            ensure!(!hit || revoked == u64::from(COUNT), "{revoked} keys");
            hits += u32::from(hit);
        } else {
            bench.side.event(KFI_SHUTDOWN)?;
        }
        ctx.barrier("ended")?;
    }
    // In the other rounds the keys were assigned so soon that no operation was deferred.
    ensure!(!ctx.first() || hits > 0, "nothing was held");
    ctx.barrier("done")
}

/// When closing a file has returned, no ordered work of the file keeps the provider in use.
fn leaves_with_the_file(ctx: &mut Ctx) -> Result<()> {
    let path = format!("/sys/module/{}/refcnt", ctx.provider());
    if !ctx.first() {
        return ctx.barrier("done");
    }
    let users = || -> Result<u64> {
        let text = std::fs::read_to_string(&path).context(path.clone())?;
        Ok(text.trim().parse()?)
    };
    let before = users()?;
    for round in 0..200 {
        let all = Slots::new(ctx, 64)?;
        let dev = &all.side.dev;
        let told = dev.key_assign_ordered(&mut all.entries(), 0, 0)?;
        ensure!(told == (64, 0), "round {round}: told {told:?}");
        drop(all);
        let after = users()?;
        ensure!(
            after == before,
            "round {round}: {after} users, not {before}"
        );
    }
    ctx.barrier("done")
}

/// If a device does not answer, all waiting work waits for it once, and closed slots do not wait at
/// all. Operations posted behind that work are released.
fn silence(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u64 = 16;
    if !Path::new(SILENCE).exists() {
        return skip("the kernel injects no failures");
    }
    let mut bench = Bench::new(ctx, PAGE as usize)?;
    let slots = bench.side.dev.key_alloc(bench.region, COUNT as u32)?;
    let ep = bench.fresh(ctx)?;
    let dev = &bench.side.dev;
    let piece = [iov(bench.region, 0, 8)];
    if !ctx.first() {
        dev.submit(ep, &[op::recv(1, &piece)])?;
        ctx.barrier("ready")?;
        let done = bench.cq.wait(LONG)?;
        ensure!(done.err == 0, "{done:?}");
        return ctx.barrier("done");
    }
    ctx.barrier("ready")?;
    let cq = bench.side.cq(0, 0)?;
    let order = |i: u64| -> Result<()> {
        let one = entry(slots[i as usize], 0, 8);
        if i.is_multiple_of(2) {
            dev.key_order(&one, cq.handle, 100 + i)?;
            return Ok(());
        }
        let got = dev.key_assign_ordered(&mut [one], cq.handle, 100 + i)?;
        ensure!(got == (1, 0), "key {i}: {got:?}");
        Ok(())
    };
    let silent = |i: u64| -> Result<()> {
        let told = cq.wait(LONG).with_context(|| format!("key {i}"))?;
        let fine = (told.err, told.context, told.len) == (libc::ETIMEDOUT as u32, 100 + i, 0);
        ensure!(fine, "key {i}: {told:?}");
        Ok(())
    };
    quiet_of(SILENCE)?;
    set_of(SILENCE, "space", 0)?;
    // The first silence hits before the other assignments are queued, the next hits all of them.
    set_of(SILENCE, "times", 2)?;
    set_of(SILENCE, "probability", 100)?;
    let all = (|| -> Result<()> {
        (0..COUNT).try_for_each(order)?;
        dev.submit(ep, &[op::send(1, &piece)])?;
        (0..COUNT).try_for_each(silent)
    })();
    set_of(SILENCE, "probability", 0)?;
    all?;
    let sent = bench.cq.wait(LONG)?;
    ensure!(sent.err == 0, "{sent:?}");
    let revoked = dev.key_revoke_slots(&slots)?.revoked;
    ensure!(
        revoked == 0,
        "{revoked} of the failed assignments were keys"
    );
    let mut entries: Vec<_> = slots.iter().map(|slot| entry(*slot, 0, 8)).collect();
    assign_all(dev, &mut entries)?;
    dev.key_revoke_slots(&slots)?;

    // The second silence is used up by the third key.
    set_of(SILENCE, "times", 2)?;
    set_of(SILENCE, "probability", 100)?;
    let closed = (|| -> Result<()> {
        order(0)?;
        order(1)?;
        dev.close(slots[1])?;
        order(2)?;
        silent(0)?;
        silent(2)
    })();
    set_of(SILENCE, "probability", 0)?;
    closed?;
    ensure!(cq.read().is_none(), "a completion");
    dev.close(cq.handle)?;
    ctx.barrier("done")
}

/// Directory of the knobs that select failing device calls.
const KNOBS: &str = "/sys/kernel/debug/fail_kfabric_device";
/// Directory of the knobs that select silent device calls.
const SILENCE: &str = "/sys/kernel/debug/fail_kfabric_answer";

fn set_of(knobs: &str, knob: &str, value: u32) -> Result<()> {
    let path = format!("{knobs}/{knob}");
    std::fs::write(&path, value.to_string()).context(path)
}

fn set(knob: &str, value: u32) -> Result<()> {
    set_of(KNOBS, knob, value)
}

/// Silences the kernel's report of an injected failure; the failure itself remains.
fn quiet_of(knobs: &str) -> Result<()> {
    for knob in ["verbose", "stacktrace-depth", "require-start"] {
        set_of(knobs, knob, 0)?;
    }
    set_of(knobs, "interval", 1)
}

fn quiet() -> Result<()> {
    quiet_of(KNOBS)
}

/// Removes the device while assignments are outstanding: the queue or the call reports the failure,
/// and no task waits for ever.
fn removal(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let rounds = if sys::slowness() > 1 { 2 } else { 6 };
        for round in 0..rounds {
            remove_under_orders(ctx, round).with_context(|| format!("round {round}"))?;
        }
    }
    ctx.barrier("done")
}

fn remove_under_orders(ctx: &Ctx, round: u64) -> Result<()> {
    let all = Slots::new(ctx, 64)?;
    let dev = &all.side.dev;
    let cq = all.side.cq(256, 0)?;
    let is_gone = [libc::ENODEV, libc::EIO];
    std::thread::scope(|scope| -> Result<()> {
        let orderer = scope.spawn(|| -> Result<()> {
            loop {
                match dev.key_assign_ordered(&mut all.entries(), cq.handle, 7) {
                    Err(e) if e.errno.0 == libc::ENODEV => return Ok(()),
                    Ok((_, err)) if err == 0 || is_gone.contains(&err) => {}
                    other => bail!("ordered: {other:?}"),
                }
                dev.key_revoke_slots(&all.slots)?;
                while let Some(entry) = cq.read() {
                    let fine = is_gone.contains(&(entry.err as i32)) && entry.context == 7;
                    ensure!(fine, "{entry:?}");
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50 + round * 17));
        let deleted = delete_link(ctx);
        let ordered = joined(orderer);
        deleted?;
        add_link(ctx)?;
        ordered
    })?;
    dev.key_revoke_all(KFI_REVOKE_FILE, 0)?;
    all.slots.iter().try_for_each(|slot| dev.close(*slot))?;
    Ok(dev.close(cq.handle)?)
}
