// SPDX-License-Identifier: MIT OR Apache-2.0

//! Key values of a device that has few of them, between strict and plain endpoints.

use super::accounts::user;
use super::devices::{scattered, PAGE};
use super::key_policy::Parameter;
use super::key_seen::counters;
use super::refused;
use crate::buf::Buf;
use crate::harness::caps::OTHER_CARDS;
use crate::harness::guest::{load, unload, until};
use crate::harness::{skip, Ctx, Env, Test, LONG as LONG_RUN, NETNS};
use crate::pair::{key_entries, Side, LOCAL, REMOTE, WAIT};
use crate::profile::{self, Fake};
use crate::raw::CallError;
use crate::sys;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Tests of the topic `devices`.
pub const TESTS: &[Test] = &[
    Test::pair(
        "devices.p04_strict_endpoint_repeats_no_value_and_gets_enospc",
        |c| alone(c, strict_alone),
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_plain_endpoint_after_a_strict_one_gets_rested_values",
        |c| alone(c, strict_and_plain),
    )
    .seconds(120)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_user_who_draws_many_values_exhausts_its_own_budget_alone",
        |c| alone(c, own_budget),
    )
    .seconds(120)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_user_has_a_budget_for_each_kind_of_device",
        |c| alone(c, two_kinds),
    )
    .seconds(40)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair("devices.p04_failed_reservation_spends_no_value", |c| {
        alone(c, failed)
    })
    .seconds(10)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p12_queue_of_each_groups_keys_counts_for_its_user",
        |c| alone(c, queues),
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p11_end_of_many_keys_is_bounded_if_the_driver_refuses_all",
        |c| alone(c, refused_for_ever),
    )
    .seconds(40)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_small_and_large_keys_of_few_regions_get_rested_values",
        |c| alone(c, small_and_large),
    )
    .seconds(120)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_4096_resting_regions_refuse_soon_and_serve_after_the_rest",
        |c| match sys::slowness() {
            1 => alone(c, full_list),
            _ => skip("a million keys take too long here"),
        },
    )
    .seconds(120)
    .on(LONG_RUN)
    .needs(OTHER_CARDS),
];

/// Runs a test on node 1.
pub(super) fn alone(ctx: &mut Ctx, test: fn(&mut Ctx) -> Result<()>) -> Result<()> {
    let result = if ctx.first() { test(ctx) } else { Ok(()) };
    ctx.barrier("over")?;
    result
}

const REST: &str = "/sys/module/kverbs/parameters/key_rest_s";
pub(super) const RESTING: &str = "/sys/module/kverbs/parameters/resting_regions";

/// Values of a device with 15 regions.
pub(super) const VALUES: usize = 15 * 256;

pub(super) const PLAIN: u32 = KFI_EP_OWN_KEYS;
const STRICT: u32 = KFI_EP_OWN_KEYS | KFI_EP_STRICT_KEYS;

/// A device with 15 regions and unused values.
pub(super) struct Few {
    pub(super) side: Side,
    region: u64,
    _buf: Buf,
    rest: Duration,
    /// The last end of each value.
    ended: HashMap<u64, Instant>,
    /// Dropped last.
    _rest: Parameter,
    _fake: Fake,
}

/// Keys of one endpoint.
#[derive(Debug, Default)]
pub(super) struct Keys {
    pub(super) values: HashSet<u64>,
    /// Number of keys whose value the endpoint had before.
    pub(super) again: usize,
    /// Error of the last call, or 0.
    pub(super) errno: i32,
}

impl Few {
    /// Makes the device, whose indices come in `order`.
    pub(super) fn new(ctx: &Ctx, order: &str, rest_s: u32) -> Result<Self> {
        // Earlier tests have used values of the same regions.
        unload("kverbs")?;
        load("kverbs")?;
        let fake = Fake::with(profile::find("ionic")?)?;
        fake.set(&format!("index_bits=4 order={order}"))?;
        let rest = Parameter::set(REST, &rest_s.to_string())?;
        let side = Side::open(ctx)?;
        let buf = Buf::new(PAGE as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        Ok(Self {
            side,
            region,
            _buf: buf,
            rest: Duration::from_secs(rest_s.into()),
            ended: HashMap::new(),
            _rest: rest,
            _fake: fake,
        })
    }

    /// Sets the time of a rest, in seconds, until the device ends.
    pub(super) fn set_rest(&self, seconds: &str) -> Result<()> {
        Ok(std::fs::write(REST, seconds)?)
    }

    /// Opens an endpoint and a slot of it, or returns the error if there is no value for the slot.
    pub(super) fn open(&self, flags: u32) -> Result<Result<(u64, u64), i32>> {
        let dev = &self.side.dev;
        let ep = dev.ep_open(&EpOpen {
            flags,
            domain: self.side.domain.handle,
            ..Default::default()
        })?;
        match dev.key_alloc_for(self.region, ep.handle, 1) {
            Ok(slots) => Ok(Ok((ep.handle, slots[0]))),
            Err(e) => {
                // Its group holds back regions, of which the device has few.
                dev.close(ep.handle)?;
                Ok(Err(e.errno.0))
            }
        }
    }

    /// Assigns and revokes up to `count` keys of a slot. Fails if a value comes before its rest.
    pub(super) fn burst(&mut self, slot: u64, count: usize) -> Result<Keys> {
        let mut keys = Keys::default();
        for _ in 0..count {
            match self.side.dev.key_assign(slot, 0, PAGE, REMOTE) {
                Ok(key) => {
                    if let Some(ended) = self.ended.get(&key.key) {
                        let rested = ended.elapsed();
                        ensure!(rested >= self.rest, "{:#x} has rested {rested:?}", key.key);
                    }
                    keys.again += usize::from(!keys.values.insert(key.key));
                    // The rest begins with the end, which is later.
                    self.ended.insert(key.key, Instant::now());
                    self.side.dev.key_revoke(slot)?;
                }
                Err(e) => {
                    keys.errno = e.errno.0;
                    break;
                }
            }
        }
        Ok(keys)
    }

    pub(super) fn close(&self, (ep, slot): (u64, u64)) -> Result<()> {
        self.side.dev.close(slot)?;
        self.side.dev.close(ep)?;
        Ok(())
    }

    /// Assigns up to `count` keys of a new endpoint, and closes it.
    pub(super) fn keys(&mut self, flags: u32, count: usize) -> Result<Keys> {
        let opened = match self.open(flags)? {
            Ok(opened) => opened,
            Err(errno) => {
                return Ok(Keys {
                    errno,
                    ..Keys::default()
                })
            }
        };
        let keys = self.burst(opened.1, count)?;
        self.close(opened)?;
        eprintln!(
            "flags {flags:#x}: {} values, {} again, errno {}",
            keys.values.len(),
            keys.again,
            keys.errno
        );
        Ok(keys)
    }
}

/// P4: over a device with 15 regions, and so 3,840 key values, a strict endpoint gets `ENOSPC` when there
/// is no unused value, also if the old values have rested.
fn strict_alone(ctx: &mut Ctx) -> Result<()> {
    let mut few = Few::new(ctx, "lowest", 0)?;
    for least in [1024, 0] {
        let keys = few.keys(STRICT, 10_000)?;
        let right = (least..=VALUES).contains(&keys.values.len());
        ensure!(
            right && keys.errno == libc::ENOSPC && keys.again == 0,
            "errno {} after {} values, {} again",
            keys.errno,
            keys.values.len(),
            keys.again
        );
    }
    Ok(())
}

/// P4: a plain endpoint gets values as long as one has rested, whatever strict endpoints have used
/// before. It gets none before its rest.
fn strict_and_plain(ctx: &mut Ctx) -> Result<()> {
    for order in ["lowest", "lifo"] {
        without_rest(ctx, order).with_context(|| format!("{order}, no rest"))?;
        with_rest(ctx, order).with_context(|| format!("{order}, with rest"))?;
    }
    Ok(())
}

fn without_rest(ctx: &Ctx, order: &str) -> Result<()> {
    let mut few = Few::new(ctx, order, 0)?;
    for flags in [STRICT, PLAIN, STRICT, PLAIN] {
        let keys = few.keys(flags, VALUES + 1024)?;
        let right = match flags {
            PLAIN => keys.errno == 0 && keys.again > 0,
            _ => keys.errno == libc::ENOSPC && keys.again == 0,
        };
        ensure!(right, "flags {flags:#x}: errno {}", keys.errno);
    }
    Ok(())
}

fn with_rest(ctx: &Ctx, order: &str) -> Result<()> {
    const REST_S: u32 = 4;
    // The ledger counts in whole seconds.
    let rest = Duration::from_millis(1100) + Duration::from_secs(REST_S.into());
    let mut few = Few::new(ctx, order, REST_S)?;
    let strict = few.open(STRICT)?;
    let strict = strict.map_err(sys::Errno).context("a strict endpoint")?;
    let early = few.burst(strict.1, 2048)?;
    ensure!(early.errno == 0, "errno {} of the first", early.errno);
    std::thread::sleep(rest);
    let late = few.burst(strict.1, VALUES)?;
    few.close(strict)?;
    ensure!(late.errno == libc::ENOSPC, "errno {}", late.errno);
    // Those of the first part have rested, the others have not.
    let mut plain = few.keys(PLAIN, 1024)?;
    ensure!(
        plain.errno == 0,
        "errno {} after {} values of {} that have rested",
        plain.errno,
        plain.values.len(),
        early.values.len()
    );
    // Ends with `ENOSPC`, or with rested values if this takes long.
    few.keys(PLAIN, VALUES)?;
    std::thread::sleep(rest);
    plain = few.keys(PLAIN, 1024)?;
    ensure!(plain.errno == 0, "errno {} after the rest", plain.errno);
    Ok(())
}

/// A slot whose keys have several lengths, and the last end of each of its values.
struct Mixed {
    side: Side,
    slot: u64,
    _buf: Buf,
    ended: HashMap<u64, Instant>,
}

/// Bytes of keys that no slot's reserve covers: with page lists of 512, 1024 and 2048 pages.
const LARGE: [u64; 3] = [300 * PAGE, 600 * PAGE, 1200 * PAGE];

impl Mixed {
    fn new(ctx: &Ctx, len: u64) -> Result<Self> {
        let side = Side::open(ctx)?;
        let buf = scattered(len as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slot = side.dev.key_alloc(region, 1)?[0];
        Ok(Self {
            side,
            slot,
            _buf: buf,
            ended: HashMap::new(),
        })
    }

    /// Assigns and revokes a key. Returns false if there is no value. Fails if the value comes before its
    /// rest.
    fn key(&mut self, len: u64, rest: Duration) -> Result<bool> {
        let key = match self.side.dev.key_assign(self.slot, 0, len, REMOTE) {
            Ok(key) => key.key,
            Err(e) if e.errno.0 == libc::ENOSPC => return Ok(false),
            Err(e) => return Err(e).context("an assignment"),
        };
        if let Some(ended) = self.ended.get(&key) {
            let rested = ended.elapsed();
            ensure!(rested >= rest, "{key:#x} has rested {rested:?}");
        }
        self.ended.insert(key, Instant::now());
        self.side.dev.key_revoke(self.slot)?;
        Ok(true)
    }

    /// Assigns and revokes keys. None may be refused.
    fn keys(&mut self, count: usize, lens: &[u64]) -> Result<()> {
        for number in 0..count {
            let len = lens[number % lens.len()];
            let served = self.key(len, Duration::ZERO)?;
            ensure!(served, "key {number}, of {len} bytes, is refused");
        }
        Ok(())
    }
}

/// P4: a device with 31 regions, whose values need no rest. Small keys use all of them up, then large ones of
/// several lengths: none is refused.
fn small_and_large(ctx: &mut Ctx) -> Result<()> {
    /// More than the regions have values.
    const ALL: usize = 31 * 256 + 100;
    for order in ["lifo", "lowest"] {
        unload("kverbs")?;
        load("kverbs")?;
        let fake = Fake::with(profile::find("mlx5")?)?;
        fake.set(&format!("index_bits=5 order={order}"))?;
        let rest = Parameter::set(REST, "0")?;
        let mut mixed = Mixed::new(ctx, LARGE[2])?;
        let result = (|| {
            mixed.keys(ALL, &[PAGE]).context("small")?;
            mixed.keys(ALL, &LARGE).context("large after small")?;
            mixed.keys(ALL, &[PAGE]).context("small after large")?;
            mixed.keys(ALL, &[LARGE[0], PAGE]).context("in turn")
        })();
        drop((mixed, rest, fake));
        result.with_context(|| order.to_owned())?;
    }
    Ok(())
}

/// Slots that assign keys by one call.
const BATCH: usize = 64;

/// Keys of [`BATCH`] slots, assigned and revoked together.
struct Batches {
    side: Side,
    slots: Vec<u64>,
    entries: Vec<KeyEntry>,
    _buf: Buf,
}

impl Batches {
    /// Reserves the slots on a new domain, or returns the errno of the reservation.
    fn new(env: &Env) -> Result<Result<Self, i32>> {
        let side = Side::of(env)?;
        let buf = Buf::new(PAGE as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        Ok(match side.dev.key_alloc(region, BATCH as u32) {
            Ok(slots) => Ok(Self {
                entries: key_entries(&slots, PAGE, KFI_REMOTE_READ),
                side,
                slots,
                _buf: buf,
            }),
            Err(e) => Err(e.errno.0),
        })
    }

    /// Assigns keys. Returns their number, and the errno of the next one or 0.
    fn assign(&mut self) -> (usize, i32) {
        match self.side.dev.key_assign_many(&mut self.entries) {
            Ok(done) => done,
            Err(e) => (0, e.errno.0),
        }
    }

    /// Assigns and revokes keys. Returns their values, and the errno of the next one or 0.
    fn keys(&mut self) -> Result<(Vec<u64>, i32)> {
        let (done, errno) = self.assign();
        self.side.dev.key_revoke_slots(&self.slots)?;
        let keys = self.entries[..done].iter().map(|entry| entry.key);
        Ok((keys.collect(), errno))
    }
}

/// P4: over a device that always offers the last freed index, 4096 indices rest, each after 194 values at
/// least. Then an assignment is refused, soon, until the values have rested.
fn full_list(ctx: &mut Ctx) -> Result<()> {
    /// Bits of an index, more than may rest.
    const BITS: u32 = 13;
    const KEPT: i64 = 4096;
    unload("kverbs")?;
    load("kverbs")?;
    let fake = Fake::with(profile::find("mlx5")?)?;
    fake.set(&format!("index_bits={BITS} order=lifo"))?;
    let rest = Parameter::set(REST, "3600")?;
    let regions = Parameter::set(RESTING, &KEPT.to_string())?;
    let before = fake.regions()?;
    let mut batches = Batches::new(&ctx.env)?.map_err(sys::Errno)?;
    let mut had = vec![false; 1 << (BITS + 8)];
    let (mut count, start) = (0, Instant::now());
    let errno = loop {
        let (keys, errno) = batches.keys()?;
        for key in keys {
            let had = usize::try_from(key).ok().and_then(|key| had.get_mut(key));
            let had = had.with_context(|| format!("{key:#x} has a large index"))?;
            ensure!(!std::mem::replace(had, true), "{key:#x} came twice");
            count += 1;
        }
        if errno != 0 {
            break errno;
        }
    };
    let kept = fake.regions()? - before;
    eprintln!(
        "{count} keys in {:.1} s, {kept} regions",
        start.elapsed().as_secs_f64()
    );
    ensure!(errno == libc::ENOSPC, "errno {errno}");
    ensure!(count >= KEPT * 194, "{count} keys");
    let most = KEPT + BATCH as i64;
    ensure!((KEPT..=most).contains(&kept), "{kept} regions");
    let start = Instant::now();
    let again = batches
        .side
        .dev
        .key_assign(batches.slots[0], 0, PAGE, REMOTE);
    let took = start.elapsed();
    eprintln!("a refusal took {took:.1?}");
    let errno = again.err().map(|e| e.errno.0);
    ensure!(errno == Some(libc::ENOSPC), "then {errno:?}");
    ensure!(took < Duration::from_secs(1), "a refusal took {took:?}");
    drop(rest);
    let rest = Parameter::set(REST, "0")?;
    for number in 0..1000 {
        let (keys, errno) = batches.keys()?;
        ensure!(
            keys.len() == BATCH,
            "after the rest, errno {errno} in batch {number}"
        );
    }
    let kept = fake.regions()? - before;
    ensure!(kept <= most, "{kept} regions after the rest");
    drop((batches, rest, regions, fake));
    Ok(())
}

/// Assigns and revokes up to `rounds` batches of keys; without `revokes`, the end of a domain of its own ends
/// those of each batch. Returns the number of keys and the error of the last call, or 0.
fn wear_out(env: &Env, rounds: usize, revokes: bool) -> Result<(usize, i32)> {
    let (mut last, mut keys) = (None, 0);
    for _ in 0..rounds {
        let mut batch = match last.take() {
            Some(batch) => batch,
            None => match Batches::new(env)? {
                Ok(batch) => batch,
                Err(errno) => return Ok((keys, errno)),
            },
        };
        let (done, errno) = match revokes {
            true => batch.keys().map(|(keys, errno)| (keys.len(), errno))?,
            false => batch.assign(),
        };
        keys += done;
        if errno != 0 {
            return Ok((keys, errno));
        }
        last = revokes.then_some(batch);
    }
    Ok((keys, 0))
}

/// P4: a user draws key values as fast as it can, and begins anew all the time. It exhausts its own budget:
/// another user has keys, of few regions that the device is asked for. When the values have rested, the
/// first user has keys again.
fn own_budget(ctx: &mut Ctx) -> Result<()> {
    const REGIONS: usize = 1024;
    const GREEDY: u32 = 2204;
    const OTHER: u32 = 2205;
    // An eighth of the values of the regions that may rest.
    const LIMIT: usize = REGIONS * 256 / 8;
    for (name, revokes) in [
        ("qedr", true),
        ("hns", true),
        ("qedr", false),
        ("hns", false),
    ] {
        unload("kverbs")?;
        load("kverbs")?;
        let fake = Fake::with(profile::find(name)?)?;
        let _regions = Parameter::set(RESTING, &REGIONS.to_string())?;
        let env = ctx.env.clone();
        let run = |id: u32, f: &dyn Fn() -> Result<()>| user(id, 1 << 30, || Ok(()), f);
        let burn = |rounds: usize| wear_out(&env, rounds, revokes);
        let result = (|| {
            run(GREEDY, &|| {
                let start = Instant::now();
                let mut all = 0;
                // Each part has a group of its own.
                let errno = loop {
                    let (keys, errno) = burn(LIMIT / 8 / BATCH)?;
                    all += keys;
                    if errno != 0 {
                        break errno;
                    }
                };
                eprintln!("{name}: {all} keys, errno {errno}, {:?}", start.elapsed());
                ensure!(errno == libc::EDQUOT, "{all} keys, errno {errno}");
                // Values that drain meanwhile come again.
                ensure!((LIMIT - BATCH..2 * LIMIT).contains(&all), "{all} keys");
                Ok(())
            })?;
            let before = fake.counters()?["alloc_mr"].all;
            run(OTHER, &|| {
                let got = burn(1)?;
                ensure!(got == (BATCH, 0), "another user: {got:?}");
                Ok(())
            })?;
            // Three for each slot, and some for indices that the first user has left without a value.
            let calls = fake.counters()?["alloc_mr"].all - before;
            eprintln!("{calls} regions for the other user");
            ensure!(calls < 400, "{calls} regions for the other user's slots");
            let _rest = Parameter::set(REST, "0")?;
            run(GREEDY, &|| {
                let got = burn(10)?;
                ensure!(got == (10 * BATCH, 0), "after the rest: {got:?}");
                Ok(())
            })
        })();
        drop(fake);
        result.with_context(|| format!("{name}, revoked {revokes}"))?;
    }
    Ok(())
}

/// P4: a user draws values of a device with many and of one with few. Draws on the first one use up no budget
/// of the second one, and the account of the second one does not drain faster for them.
fn two_kinds(ctx: &mut Ctx) -> Result<()> {
    const REGIONS: usize = 64;
    const GREEDY: u32 = 2207;
    /// The budget of the device with few values.
    const LIMIT: usize = REGIONS * 256 / 8;
    unload("kverbs")?;
    load("kverbs")?;
    let fake = Fake::with(profile::find("qedr")?)?;
    let regions = Parameter::set(RESTING, &REGIONS.to_string())?;
    let env = ctx.env.clone();
    let burn = |batches: usize, right: &dyn Fn((usize, i32)) -> bool| {
        let run = || {
            let got = wear_out(&env, batches, true)?;
            eprintln!("{got:?} of {batches} batches");
            ensure!(right(got), "{got:?} of {batches} batches");
            Ok(())
        };
        user(GREEDY, 1 << 30, || Ok(()), run)
    };
    // kverbs treats the device as rxe, with a budget of 2^24 values, or as qedr.
    let as_rxe = |batches: usize| -> Result<()> {
        let _rxe = Parameter::set(profile::AS_DRIVER, "0")?;
        burn(batches, &|got| got == (batches * BATCH, 0)).context("many values")
    };
    const ALL: usize = LIMIT / BATCH + 8;
    as_rxe(ALL)?;
    burn(ALL, &|(keys, errno)| {
        errno == libc::EDQUOT && keys >= LIMIT - BATCH
    })
    .context("few values")?;
    // Some 28,000 values of the large budget drain in a second, and 3 of the small one.
    std::thread::sleep(Duration::from_millis(1100));
    as_rxe(1)?;
    burn(ALL, &|(keys, errno)| {
        errno == libc::EDQUOT && keys < LIMIT / 4
    })
    .context("few values again")?;
    drop((regions, fake));
    Ok(())
}

/// P4: a reservation fails because the group's queue cannot be created. The value that the slot had drawn is
/// given back.
fn failed(ctx: &mut Ctx) -> Result<()> {
    let fake = Fake::with(profile::find("qedr")?)?;
    let side = Side::open(ctx)?;
    let buf = Buf::new(PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let before = counters()?;
    fake.set("refuse=create_cq:12:0:-1")?;
    for _ in 0..10 {
        refused(side.dev.key_alloc(region, 1), libc::ENOMEM, "a slot")?;
    }
    let after = counters()?;
    let grew = |name: &str| after[name] - before[name];
    let (used, unused) = (grew("kverbs/used"), grew("kverbs/unused"));
    fake.set("reset=1")?;
    ensure!(used == unused, "{used} values drawn, {unused} given back");
    ensure!(used >= 10, "{used} values drawn");
    side.dev.key_alloc(region, 1).context("afterwards")?;
    drop((side, buf));
    drop(fake);
    Ok(())
}

/// P12: each group with keys has a queue, which counts for the user: 1 MiB suffices for a few.
fn queues(ctx: &mut Ctx) -> Result<()> {
    const USER_MIB: &str = "/sys/module/kverbs/parameters/user_mib";
    let _mib = Parameter::set(USER_MIB, "1")?;
    let env = ctx.env.clone();
    let one = || -> Result<(Side, Buf)> {
        let side = Side::of(&env)?;
        let buf = Buf::new(PAGE as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        side.dev.key_alloc(region, 1)?;
        Ok((side, buf))
    };
    user(
        2206,
        1 << 30,
        || Ok(()),
        || {
            let mut all = Vec::new();
            let last = loop {
                ensure!(all.len() < 40, "40 groups are not limited");
                match one() {
                    Ok(made) => all.push(made),
                    Err(e) => break e,
                }
            };
            let errno = last.downcast_ref::<CallError>().map(|e| e.errno.0);
            ensure!(errno == Some(libc::EDQUOT), "{last:#}");
            ensure!((5..20).contains(&all.len()), "{} groups", all.len());
            all.pop();
            one().context("after a close")?;
            Ok(())
        },
    )
}

/// P11: the driver refuses all deregistrations while a program with 300 keys ends. Not each of them waits
/// for the driver. When the driver agrees again, nothing is left.
fn refused_for_ever(ctx: &mut Ctx) -> Result<()> {
    const KEYS: u32 = 300;
    let fake = Fake::with(profile::find("irdma")?)?;
    let side = Side::open(ctx)?;
    let buf = Buf::new(PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    for slot in side.dev.key_alloc(region, KEYS)? {
        side.dev.key_assign(slot, 0, PAGE, REMOTE)?;
    }
    fake.set("refuse=dereg_mr:16:0:-1")?;
    let start = Instant::now();
    drop((side, buf));
    let took = start.elapsed();
    let refusals = fake.counters()?["dereg_mr"].refused;
    fake.set("reset=1")?;
    eprintln!("{refusals} refusals in {took:?}");
    ensure!(refusals >= u64::from(KEYS), "{refusals} refusals");
    // 341 ms for each would be 102 s.
    ensure!(took < sys::patience(Duration::from_secs(10)), "{took:?}");
    // kverbs asks again with each tick.
    until("the driver has agreed", WAIT, || {
        let ended = fake.counters()?["dereg_mr"].all;
        Ok((ended >= u64::from(KEYS)).then_some(()))
    })?;
    drop(fake);
    Ok(())
}
