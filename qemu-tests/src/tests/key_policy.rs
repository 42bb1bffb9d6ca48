// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys that are revoked by local invalidations, as on hardware. rxe executes them, but an access
//! that has begun may outlast one there. So these tests begin no access before the revocation.

use super::key_seen::counters;
use super::keys::{try_all, Bench, Try};
use crate::harness::caps::WIDE_WINDOWS;
use crate::harness::{Ctx, Test};
use crate::pair::{Remote, LOCAL, REMOTE};
use anyhow::{ensure, Result};
use std::collections::HashSet;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p04_invalidated_keys_are_refused_and_come_no_second_time",
        one_slot,
    )
    .seconds(40),
    Test::pair(
        "keys.p03_batch_of_invalidated_keys_is_refused_after_one_wait",
        batch,
    )
    .seconds(20)
    .needs(WIDE_WINDOWS),
    Test::pair(
        "keys.p03_region_closed_after_invalidations_is_unreachable",
        closed,
    )
    .seconds(20),
];

/// How kverbs revokes keys.
pub(crate) const REVOKE: &str = "/sys/module/kverbs/parameters/revoke";
const PAGE: u64 = 4096;
/// Values of one hardware slot.
const VALUES: u64 = 256;

/// A value of a module parameter, until this is dropped.
pub(crate) struct Parameter {
    path: &'static str,
    before: String,
}

impl Parameter {
    pub(crate) fn set(path: &'static str, value: &str) -> Result<Self> {
        let before = std::fs::read_to_string(path)?;
        std::fs::write(path, value)?;
        Ok(Self { path, before })
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        if let Err(e) = std::fs::write(self.path, self.before.trim()) {
            eprintln!("{}: {e}", self.path);
        }
    }
}

/// Makes node 1 revoke by invalidations.
fn invalidating(ctx: &Ctx) -> Result<Option<Parameter>> {
    let set = || Parameter::set(REVOKE, "invalidate");
    ctx.first().then(set).transpose()
}

/// Returns whether the provider has keys that devices revoke.
fn has_devices(ctx: &Ctx) -> bool {
    ctx.env.provider == "kverbs"
}

/// An access by node 2 to the first bytes of a key's window.
fn attempt(what: String, remote: &Remote, write: bool, fine: bool) -> Try {
    Try::new(&what, write, 64, remote.addr, remote.key, fine)
}

/// P4: one slot gets more keys than a hardware slot has values. Each key works, none comes twice, and
/// the one before is refused. The hardware slot is replaced only when its values are used up.
fn one_slot(ctx: &mut Ctx) -> Result<()> {
    const KEYS: u64 = 3 * VALUES;
    if !has_devices(ctx) {
        return Ok(());
    }
    let _policy = invalidating(ctx)?;
    let mut bench = Bench::new(ctx, PAGE as usize)?;
    let mut list = Vec::new();
    let mut slot = 0;
    if ctx.first() {
        slot = bench.side.dev.key_alloc(bench.region, 1)?[0];
        let before = counters()?;
        let mut had = HashSet::new();
        let mut last: Option<Remote> = None;
        for number in 0..KEYS {
            let remote = bench.side.assign(slot, 0, PAGE, REMOTE)?;
            ensure!(had.insert(remote.key), "{:#x} came twice", remote.key);
            if let Some(last) = last.filter(|_| number == KEYS - 1) {
                list.push(attempt("the last key".into(), &remote, true, true));
                list.push(attempt("the one before".into(), &last, true, false));
                list.push(attempt("the same, by a read".into(), &last, false, false));
                list.push(attempt("the last key again".into(), &remote, false, true));
            } else {
                bench.side.dev.key_revoke(slot)?;
            }
            last = Some(remote);
        }
        let after = counters()?;
        let grew = |name: &str| after[name] - before[name];
        ensure!(
            grew("kverbs/invalidated") == KEYS - 1,
            "{} keys were invalidated",
            grew("kverbs/invalidated")
        );
        // Earlier tests may have used values of each hardware slot.
        let regions = grew("kverbs/reserved");
        ensure!(regions <= KEYS / 16, "{regions} regions for {KEYS} keys");
        eprintln!("{regions} regions for {KEYS} keys");
    }
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        bench.side.dev.key_revoke(slot)?;
    }
    ctx.barrier("over")
}

/// P3: keys of one call are invalidated in chains, and all of them are refused. Slots without a key,
/// and a key of a large window, which is no fast registration, are among them.
fn batch(ctx: &mut Ctx) -> Result<()> {
    const LARGE: u64 = 300 * PAGE;
    const SLOTS: u32 = 64;
    if !has_devices(ctx) {
        return Ok(());
    }
    let _policy = invalidating(ctx)?;
    let mut bench = Bench::new(ctx, LARGE as usize)?;
    let mut list = Vec::new();
    if ctx.first() {
        let slots = bench.side.dev.key_alloc(bench.region, SLOTS)?;
        let mut had = Vec::new();
        for (i, slot) in slots.iter().enumerate().filter(|(i, _)| i % 8 != 7) {
            let (at, len) = match i {
                0 => (0, LARGE),
                _ => (i as u64 * PAGE, PAGE),
            };
            had.push(bench.side.assign(*slot, at, len, REMOTE)?);
        }
        let before = counters()?;
        let got = bench.side.dev.key_revoke_slots(&slots)?;
        ensure!(got.revoked == had.len() as u64, "revoked: {got:?}");
        let after = counters()?;
        let grew = |name: &str| after[name] - before[name];
        ensure!(grew("kverbs/invalidated") == had.len() as u64 - 1);
        let waits = grew("kverbs/waits");
        ensure!(waits <= 2, "{waits} waits");
        for number in [0, 1, 30, had.len() - 1] {
            list.push(attempt(format!("key {number}"), &had[number], true, false));
        }
        let again = bench.side.assign(slots[1], 0, PAGE, REMOTE)?;
        list.push(attempt("the next key".into(), &again, true, true));
    }
    try_all(ctx, &mut bench, list)?;
    ctx.barrier("over")
}

/// P3: the reserve that an invalidation leaves to a slot gives no access when slot and region are
/// closed, whether the slot had a key then or not.
fn closed(ctx: &mut Ctx) -> Result<()> {
    if !has_devices(ctx) {
        return Ok(());
    }
    let _policy = invalidating(ctx)?;
    let mut bench = Bench::new(ctx, PAGE as usize)?;
    let mut list = Vec::new();
    if ctx.first() {
        let dev = &bench.side.dev;
        let region = bench.side.reg(&bench.buf, LOCAL | REMOTE)?.handle;
        let slots = dev.key_alloc(region, 2)?;
        let mut had = Vec::new();
        for slot in &slots {
            had.push(bench.side.assign(*slot, 0, PAGE, REMOTE)?);
            dev.key_revoke(*slot)?;
        }
        had.push(bench.side.assign(slots[0], 0, PAGE, REMOTE)?);
        dev.close(slots[0])?;
        dev.close(slots[1])?;
        dev.close(region)?;
        for (number, remote) in had.iter().enumerate() {
            list.push(attempt(format!("key {number}"), remote, true, false));
        }
    }
    try_all(ctx, &mut bench, list)?;
    ctx.barrier("over")
}
