// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk replaces connections whose key values are used up or nearly so, and no request notices. The device has
//! few regions, so that this happens after some hundred or thousand requests. The roles are those of `blk_device`.

use super::blk_paths::Over;
use super::key_seen::counters;
use crate::disk::*;
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, NETNS};
use crate::profile::{self, Fake};
use anyhow::{ensure, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "blkdev.connection_with_worn_keys_is_replaced_without_an_error",
        |ctx| renewed(ctx, WORN, &FRAGILE, None),
    )
    .seconds(120)
    .on(NETNS),
    Test::pair(
        "blkdev.connections_with_exhausted_keys_are_replaced_under_multipath",
        multipath,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair(
        "blkdev.connection_is_replaced_although_attempts_fail",
        |ctx| renewed(ctx, EXHAUSTED, &FRAGILE, Some(3)),
    )
    .seconds(60)
    .on(NETNS),
    Test::pair("blkdev.connection_that_cannot_be_replaced_is_lost", refused)
        .seconds(90)
        .on(NETNS),
    Test::pair(
        "blkdev.disk_without_patience_whose_connection_cannot_be_replaced_fails",
        dead,
    )
    .seconds(90)
    .on(NETNS),
    Test::pair(
        "blkdev.disk_removed_while_its_connection_is_replaced_loses_no_write",
        |ctx| removed(ctx, true),
    )
    .seconds(60)
    .on(NETNS),
    Test::pair(
        "blkdev.disk_removed_while_its_connection_cannot_be_replaced_is_removed",
        |ctx| removed(ctx, false),
    )
    .seconds(90)
    .on(NETNS),
];

/// Settings of cards. A connection's slots have 66 regions. The values of 30 others are used up last.
const WORN: &str = "index_bits=7 max_mr=96";
/// The slots have nearly all regions, so a slot that has used the values of its own ends the connection.
const EXHAUSTED: &str = "index_bits=7 max_mr=70";
/// As [`EXHAUSTED`], for two connections.
const TWO_EXHAUSTED: &str = "index_bits=8 max_mr=138";
/// One connection, whose loss fails the disk and its requests at once.
const FRAGILE: [&str; 8] = [
    "-i",
    "1",
    "--reconnect-delay",
    "1",
    "--ctrl-loss-tmo",
    "0",
    "--fast-io-fail-tmo",
    "0",
];
/// Number of writers.
const WRITERS: usize = 4;
/// Time within which work must go on.
const ON: Duration = Duration::from_secs(20);
/// Time within which the values are used up, and the disk has given up to replace its connection (20 s).
const WEAR: Duration = Duration::from_secs(200);
/// Length of a request, which needs a key.
const PIECE: usize = 16 << 10;

/// Makes both nodes' devices behave as the card, for one test. Node 1 has the card's settings.
fn with_card(
    ctx: &mut Ctx,
    card: &str,
    test: impl FnOnce(&mut Ctx, Option<&Fake>) -> Result<()>,
) -> Result<()> {
    let make = || -> Result<Fake> {
        let fake = Fake::with(profile::find("mlx5")?)?;
        fake.set(card)?;
        Ok(fake)
    };
    let fake = ctx.first().then(make).transpose()?;
    ctx.barrier("the card is there")?;
    test(ctx, fake.as_ref())?;
    drop(fake);
    ctx.barrier("over")
}

/// Returns a counter of the disk, or 0 if there is none of that name.
fn statistic(name: &str) -> Result<u64> {
    let all = show("disks", NAME, "statistics")?;
    let mut words = all.split_whitespace();
    words.find(|word| *word == name);
    Ok(words.next().map_or(Ok(0), str::parse)?)
}

/// Checks counters of the disk.
fn has_statistics(all: &[(&str, u64)]) -> Result<()> {
    for (name, want) in all {
        let is = statistic(name)?;
        ensure!(is == *want, "{name}: {is}");
    }
    Ok(())
}

/// Waits until the connections have been replaced.
fn wait_renewed() -> Result<()> {
    until("connections are replaced", WEAR, || {
        Ok((statistic("renewals")? != 0).then_some(()))
    })
}

/// Writers check the bytes that they read while the connection is replaced. No request fails, although a lost
/// connection would fail requests at once and end the disk. `fails`: number of attempts that the node's device refuses.
fn renewed(ctx: &mut Ctx, card: &str, options: &[&str], fails: Option<u32>) -> Result<()> {
    with_card(ctx, card, |ctx, fake| {
        Of::Device.with_disk(ctx, "4M", options, |ctx, path| {
            if let (Some(fake), Some(fails)) = (fake, fails) {
                fake.set(&format!("refuse=create_qp:{}:0:{fails}", libc::ENOMEM))?;
            }
            ctx.barrier("set")?;
            if ctx.first() {
                return Of::Device.compare(ctx, &[]);
            }
            let used = || -> Result<u64> { Ok(counters()?["kverbs/used"]) };
            let before = used()?;
            let ends = Load::run_in(PIECE, path, WRITERS, |load| {
                wait_renewed()?;
                eprintln!("{} values", used()? - before);
                load.gets_on(ON)
            })?;
            let last = rounds(ends)?;
            has_statistics(&[("errors", 0), ("reconnects", 0)])?;
            Of::Device.compare(ctx, &last)
        })
    })
}

/// Two connections are replaced. The requests are those of request-based dm-multipath, which fail fast, and
/// there is no second path.
fn multipath(ctx: &mut Ctx) -> Result<()> {
    let mut options = FRAGILE;
    options[1] = "2";
    with_card(ctx, TWO_EXHAUSTED, |ctx, _| {
        Of::Device.with_disk(ctx, "4M", &options, |ctx, path| {
            if ctx.first() {
                return Of::Device.compare(ctx, &[]);
            }
            let over = Over::new(&[path], "0")?;
            let ends = Load::run_in(PIECE, &over.0, WRITERS, |load| {
                wait_renewed()?;
                load.gets_on(ON)
            })?;
            drop(over);
            let last = rounds(ends)?;
            has_statistics(&[("errors", 0), ("reconnects", 0)])?;
            Of::Device.compare(ctx, &last)
        })
    })
}

/// The node's device can make no queue pair, so the connection cannot be replaced. The connection is
/// lost then: the disk reconnects as its settings say, and no request fails.
fn refused(ctx: &mut Ctx) -> Result<()> {
    let options = ["-i", "1", "--reconnect-delay", "1", "--ctrl-loss-tmo", "60"];
    with_card(ctx, EXHAUSTED, |ctx, fake| {
        Of::Device.with_disk(ctx, "4M", &options, |ctx, path| {
            if let Some(fake) = fake {
                fake.set(&format!("refuse=create_qp:{}:0:-1", libc::ENOMEM))?;
                ctx.barrier("refused")?;
                ctx.barrier("lost")?;
                fake.set("reset=1")?;
                return Of::Device.compare(ctx, &[]);
            }
            ctx.barrier("refused")?;
            let ends = Load::run_in(PIECE, path, WRITERS, |load| {
                wait_state(NAME, "renewing", WEAR)?;
                wait_state(NAME, "connecting", WEAR)?;
                ctx.barrier("lost")?;
                wait_state(NAME, "live", ON)?;
                load.gets_on(ON)
            })?;
            let last = rounds(ends)?;
            has_statistics(&[("errors", 0), ("reconnects", 1)])?;
            Of::Device.compare(ctx, &last)
        })
    })
}

/// As [`refused`], for a disk that gives up at once after a loss: it fails, and so does each request.
fn dead(ctx: &mut Ctx) -> Result<()> {
    with_card(ctx, EXHAUSTED, |ctx, fake| {
        Of::Device.with_disk(ctx, "4M", &FRAGILE, |ctx, path| {
            if let Some(fake) = fake {
                fake.set(&format!("refuse=create_qp:{}:0:-1", libc::ENOMEM))?;
                ctx.barrier("refused")?;
                return ctx.barrier("dead");
            }
            ctx.barrier("refused")?;
            let ends = Load::run_in(PIECE, path, WRITERS, |_| {
                wait_state(NAME, "renewing", WEAR)?;
                wait_state(NAME, "dead", WEAR)
            })?;
            ensure!(ends.iter().all(Result::is_err), "a request has succeeded");
            ctx.barrier("dead")
        })
    })
}

/// The disk is removed while its connection is being replaced, and while its page cache has writes. If the connection
/// `is_replaced`, the target's device has them afterwards. Otherwise the disk is removed without them.
fn removed(ctx: &mut Ctx, is_replaced: bool) -> Result<()> {
    /// Where the page cache has writes.
    const AT: usize = WRITERS * MIB;
    const ROUND: u64 = 7;
    with_card(ctx, EXHAUSTED, |ctx, fake| {
        let loaded = Of::Device.begin(ctx, "5M")?;
        if let Some(fake) = fake {
            ctx.barrier("connected")?;
            match is_replaced {
                true => fake.set("delay=create_qp:500000")?,
                false => fake.set(&format!("refuse=create_qp:{}:0:-1", libc::ENOMEM))?,
            }
            ctx.barrier("set")?;
            ctx.barrier("removed")?;
            fake.set("reset=1")?;
            let all = Of::Device.contents(ctx)?;
            if is_replaced {
                is_filled(&all[AT..AT + MIB], AT, ROUND)?;
            }
            return end(ctx, loaded);
        }
        let device = connect(ctx, NAME, &FRAGILE)?;
        ctx.barrier("connected")?;
        ctx.barrier("set")?;
        // Kept open: the last close would write the cache back.
        let cached = File::options().write(true).open(&device)?;
        let mut bytes = vec![0; MIB];
        fill(&mut bytes, (AT / 512) as u64, ROUND);
        // The writers' next requests fail when the disk is removed.
        let _ends = Load::run_in(PIECE, &device, WRITERS, |_| {
            wait_state(NAME, "renewing", WEAR)?;
            cached.write_all_at(&bytes, AT as u64)?;
            disconnect_used(NAME)
        })?;
        drop(cached);
        ctx.barrier("removed")?;
        end(ctx, loaded)
    })
}
