// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys of contiguous memory, registered in pages larger than the kernel's.

use super::devices::{attempt, scattered, PAGE};
use super::devices_values::alone;
use super::key_seen::counters;
use super::key_wide::{through_windows, with_huge, Window, HUGE};
use super::keys::{try_all, Bench};
use super::refused;
use crate::harness::caps::OTHER_CARDS;
use crate::harness::{Ctx, Test, NETNS};
use crate::pair::{Side, LOCAL, REMOTE};
use crate::profile::{self, Fake, PROFILES};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};

/// Tests of the topic `devices`.
pub const TESTS: &[Test] = &[
    Test::pair(
        "devices.p05_windows_of_huge_pages_beyond_the_page_list_reach_exact_bytes",
        over_each,
    )
    .seconds(60)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p05_windows_of_huge_pages_on_rxe_are_fast_registrations",
        over_rxe,
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p01_region_for_peers_alone_takes_no_memory_region_of_the_device",
        |c| alone(c, peers_alone),
    )
    .seconds(10)
    .on(NETNS)
    .needs(OTHER_CARDS),
];

/// Length of the devices' page lists.
const LIST: u64 = 16;
/// Huge pages of the memory.
const PAGES: u64 = 6;
/// Windows of more pages of 4 KiB than a list has.
const WINDOWS: [Window; 4] = [
    (HUGE - 333, 70_000),
    (2 * HUGE, LIST * PAGE + 1),
    (3 * HUGE + 777, 2 * HUGE + 4097),
    (0, PAGES * HUGE),
];

/// P5: over devices with page lists of 16 pages. Over irdma, whose firmware may know the list's length in pages
/// of 4 KiB only, the windows are refused.
fn over_each(ctx: &mut Ctx) -> Result<()> {
    for profile in PROFILES {
        let fake = ctx.first().then(|| Fake::with(profile)).transpose()?;
        if let Some(fake) = &fake {
            fake.set(&format!("max_fast_reg_page_list_len={LIST}"))?;
            beyond(ctx).with_context(|| profile.name.to_owned())?;
        }
        ctx.barrier("the card is there")?;
        let test = match profile.name {
            "irdma" => without,
            _ => exact,
        };
        with_huge(ctx, PAGES, test).with_context(|| profile.name.to_owned())?;
        drop(fake);
        ctx.barrier("the card is gone")?;
    }
    Ok(())
}

/// A window of scattered memory is refused if it has more pages than the list.
fn beyond(ctx: &Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let buf = scattered((2 * LIST * PAGE) as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slot = side.dev.key_alloc(region, 1)?[0];
    let assign = |at, len| side.dev.key_assign(slot, at, len, REMOTE);
    refused(assign(0, LIST * PAGE + 1), libc::EMSGSIZE, "a byte more")?;
    refused(assign(PAGE - 1, LIST * PAGE), libc::EMSGSIZE, "unaligned")?;
    assign(PAGE, LIST * PAGE).context("the longest window")?;
    Ok(())
}

fn without(ctx: &mut Ctx, map: Option<&Map>) -> Result<()> {
    let Some(map) = map else { return Ok(()) };
    let side = Side::open(ctx)?;
    let region = side.reg_at(map.addr(), map.len() as u64, LOCAL | REMOTE)?;
    let slot = side.dev.key_alloc(region.handle, 1)?[0];
    for (at, len) in WINDOWS {
        let assigned = side.dev.key_assign(slot, at, len, REMOTE);
        refused(assigned, libc::EMSGSIZE, &format!("[{at}, +{len})"))?;
    }
    Ok(())
}

/// The device gets no page that a region has only in part: a region begins and ends within a huge page.
fn ragged(ctx: &Ctx, map: &Map) -> Result<()> {
    let side = Side::open(ctx)?;
    let len = map.len() as u64 - 2 * PAGE;
    let region = side.reg_at(map.addr() + PAGE, len, LOCAL | REMOTE)?;
    let slot = side.dev.key_alloc(region.handle, 1)?[0];
    let assign = |at, len| side.dev.key_assign(slot, at, len, REMOTE);
    refused(assign(0, len), libc::EMSGSIZE, "the whole region")?;
    refused(assign(0, HUGE), libc::EMSGSIZE, "the begin")?;
    refused(assign(len - HUGE, HUGE), libc::EMSGSIZE, "the end")?;
    // Huge pages, and smaller ones.
    for at in [HUGE - PAGE, HUGE - 2 * PAGE] {
        assign(at, (PAGES - 2) * HUGE).with_context(|| format!("from {at}"))?;
        side.dev.key_revoke(slot)?;
    }
    Ok(())
}

/// Keys reach each byte of their windows and no other. A revoked one reaches none.
fn exact(ctx: &mut Ctx, map: Option<&Map>) -> Result<()> {
    map.map_or(Ok(()), |map| ragged(ctx, map))?;
    through_windows(ctx, map, &WINDOWS)?;
    let mut bench = Bench::new(ctx, PAGE as usize)?;
    let mut list = Vec::new();
    if let Some(map) = map {
        let len = map.len() as u64;
        let side = &bench.side;
        let region = side.reg_at(map.addr(), len, LOCAL | REMOTE)?.handle;
        let (slot, old) = side.export(region, 0, len, REMOTE)?;
        side.dev.key_revoke(slot)?;
        let new = side.assign(slot, 0, len, REMOTE)?;
        ensure!(old.key != new.key, "{:#x} came twice", old.key);
        list = vec![
            attempt("the new key", &new, true),
            attempt("the revoked key", &old, false),
        ];
    }
    try_all(ctx, &mut bench, list)
}

/// P5: on rxe, windows beyond a slot's reserve are fast registrations, which pin and charge nothing again.
fn over_rxe(ctx: &mut Ctx) -> Result<()> {
    with_huge(ctx, PAGES, |ctx, map| {
        let count = || -> Result<(u64, u64)> {
            let all = counters()?;
            Ok((all["kverbs/fast"], all["kverbs/full"]))
        };
        let before = count()?;
        let windows = [(HUGE - 333, 2 << 20), (1, HUGE), (0, PAGES * HUGE)];
        through_windows(ctx, map, &windows)?;
        let after = count()?;
        if ctx.first() {
            ensure!(after.0 >= before.0 + windows.len() as u64, "{after:?}");
            ensure!(after.1 == before.1, "{after:?} after {before:?}");
        }
        Ok(())
    })
}

/// A region of scattered memory takes a memory region of the device only if it has a local use. Its keys register
/// the memory themselves.
fn peers_alone(ctx: &mut Ctx) -> Result<()> {
    const LEN: u64 = 32 * PAGE;
    let fake = Fake::with(profile::find("mlx5")?)?;
    let side = Side::open(ctx)?;
    let buf = scattered(LEN as usize)?;
    let made = || -> Result<u64> {
        let all = fake.counters()?;
        Ok(all["alloc_mr"].all + all["reg_user_mr"].all)
    };
    let before = made()?;
    let region = side.reg(&buf, REMOTE)?.handle;
    ensure!(made()? == before, "a region for peers alone takes some");
    let (slot, _) = side.export(region, 0, LEN, REMOTE)?;
    side.dev.key_revoke(slot)?;
    let before = made()?;
    side.reg(&buf, LOCAL)?;
    ensure!(made()? > before, "the memory is not in many pieces");
    drop(side);
    drop(fake);
    Ok(())
}
