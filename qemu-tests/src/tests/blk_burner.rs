// SPDX-License-Identifier: MIT OR Apache-2.0

//! A user takes key values as fast as it can. Another user, and a disk, go on.

use super::accounts::start_user;
use super::blk_break::PATIENT;
use super::blk_device::{with, Backing, End, PLAIN};
use super::devices_values::RESTING;
use super::key_policy::Parameter;
use super::key_seen::counters;
use crate::auth;
use crate::buf::Buf;
use crate::disk::*;
use crate::harness::guest::{load, unload};
use crate::harness::{skip, Ctx, Env, Test, LONG, NETNS};
use crate::pair::{key_entries, Side, LOCAL, REMOTE};
use crate::profile::{self, Fake};
use crate::sys::{self, Map};
use anyhow::{ensure, Context, Result};
use std::time::{Duration, Instant};

/// Tests of the topics `blkdev` and `devices`.
pub const TESTS: &[Test] = &[
    Test::pair("blkdev.p04_user_who_uses_up_values_disturbs_no_disk", |c| {
        burnt(c, Duration::from_secs(8), false)
    })
    .seconds(30)
    .on(NETNS),
    Test::pair(
        "devices.p04_user_who_burns_values_for_ten_minutes_disturbs_no_disk",
        exhausted,
    )
    .seconds(640)
    .on(LONG),
];

const PAGE: u64 = 4096;
/// The user that burns values, and the other one.
const BURNER: u32 = 2210;
const OTHER: u32 = 2211;
/// Longest call of the other user, which shares two processors with all the rest.
const CALL: Duration = Duration::from_secs(2);

/// The user has a budget of 2^15 values, which it exhausts within a minute. The device hands out the lowest
/// free index, so all users meet the same ones.
fn exhausted(ctx: &mut Ctx) -> Result<()> {
    if sys::slowness() > 1 {
        return skip("ten minutes take too long here");
    }
    // The initiator's kernel: it has the keys of the disk.
    let card = match ctx.first() {
        true => None,
        false => {
            // Earlier tests have used values of the same regions.
            unload("kverbs")?;
            load("kverbs")?;
            let fake = Fake::with(profile::find("qedr")?)?;
            Some((Parameter::set(RESTING, "1024")?, fake))
        }
    };
    ctx.barrier("the card is there")?;
    let result = burnt(ctx, Duration::from_secs(600), true);
    drop(card);
    result
}

/// A user assigns and revokes keys as fast as it can, in one auth key's group, while another user assigns keys
/// and a disk is used. No assignment of the other user and no request fails. The first user `exhausts` its budget.
fn burnt(ctx: &mut Ctx, time: Duration, exhausts: bool) -> Result<()> {
    const LEN: usize = 8192;
    with(
        ctx,
        || Backing::null(PLAIN),
        (&[], &PATIENT),
        |ctx, end| {
            let End::Client(path) = end else {
                return ctx.barrier("written");
            };
            let disk = Disk::open(path)?;
            let map = Map::anon(LEN)?;
            let used = || -> Result<u64> { Ok(counters()?["kverbs/used"]) };
            let (before, until) = (used()?, Instant::now() + time);
            let env = ctx.env.clone();
            let burner = || burn(&env, until, exhausts);
            let children = [
                start_user(BURNER, 1 << 30, || Ok(()), burner)?,
                start_user(OTHER, 1 << 30, || Ok(()), || assign(&env, until))?,
            ];
            let (mut rounds, mut got) = (0, vec![0; LEN]);
            let mut longest = Duration::ZERO;
            while Instant::now() < until {
                let begin = Instant::now();
                let at = rounds as usize % 100 * LEN;
                write_filled(&disk, &map, at, LEN, rounds)?;
                map.set(0, 0);
                disk.read(at, &map, LEN)?;
                map.read(0, &mut got);
                is_filled(&got, at, rounds)?;
                rounds += 1;
                longest = longest.max(begin.elapsed());
            }
            for child in children {
                child.end(Duration::from_secs(60))?;
            }
            let used = used()? - before;
            eprintln!("{rounds} rounds, the longest {longest:?}; {used} values used");
            ensure!(used > 1000 && rounds > 100, "{used}, {rounds} rounds");
            ensure!(show("disks", NAME, "state")? == "live");
            ctx.barrier("written")
        },
    )
}

/// Assigns and revokes 64 keys at a time, until the budget is exhausted, and again when it has drained a little.
fn burn(env: &Env, until: Instant, exhausts: bool) -> Result<()> {
    let side = Side::of(env)?;
    let buf = Buf::new(PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = auth::slots(&side.dev, region, auth::KEY, 64)?;
    let mut entries = key_entries(&slots, PAGE, REMOTE);
    let (mut keys, mut refusals) = (0, 0);
    while Instant::now() < until {
        let (done, errno) = match side.dev.key_assign_many(&mut entries) {
            Ok(done) => done,
            Err(e) => (0, e.errno.0),
        };
        side.dev.key_revoke_slots(&slots)?;
        keys += done;
        match errno {
            0 => {}
            libc::EDQUOT => {
                refusals += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            errno => anyhow::bail!("errno {errno} after {keys} keys"),
        }
    }
    eprintln!("the burner: {keys} keys, {refusals} refusals");
    ensure!(!exhausts || refusals > 0, "no budget is exhausted");
    Ok(())
}

/// Assigns and revokes a key a hundred times a second. Each assignment succeeds, soon.
fn assign(env: &Env, until: Instant) -> Result<()> {
    let side = Side::of(env)?;
    let buf = Buf::new(PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slot = auth::slots(&side.dev, region, auth::OTHER, 1)?[0];
    let (mut keys, mut longest) = (0, Duration::ZERO);
    while Instant::now() < until {
        let begin = Instant::now();
        side.assign(slot, 0, PAGE, REMOTE)
            .with_context(|| format!("key {keys} of the other user"))?;
        side.dev.key_revoke(slot)?;
        keys += 1;
        longest = longest.max(begin.elapsed());
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("the other user: {keys} keys, the longest call {longest:?}");
    ensure!(longest < sys::patience(CALL), "a call took {longest:?}");
    Ok(())
}
