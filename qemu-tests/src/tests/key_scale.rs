// SPDX-License-Identifier: MIT OR Apache-2.0

//! Very many keys, and very many regions, within the memory that `kfi_mr(3)` documents for each,
//! and all keys that the device can have. These tests need much memory, and a kernel without
//! checkers, whose allocations are larger.

use super::key_groups::own_endpoint;
use super::key_policy::Parameter;
use super::key_seen::counters;
use super::keys::{try_all, Bench, Try};
use super::refused;
use crate::buf::pattern64;
use crate::harness::{skip, Ctx, Test, LONG};
use crate::lanes::{Lanes, LANES};
use crate::pair::{key_entries, Remote, Side, LOCAL, REMOTE};
use crate::raw::Dev;
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.scale_100k_keys_on_one_region_stay_within_documented_memory",
        many_keys,
    )
    .seconds(60)
    .on(LONG),
    Test::pair(
        "keys.scale_10k_regions_on_one_file_stay_within_documented_memory",
        many_regions,
    )
    .seconds(30)
    .on(LONG),
    Test::pair(
        "keys.p04_values_come_again_after_all_others_and_their_rest",
        all_values,
    )
    .seconds(200)
    .on(LONG),
    Test::alone("keys.p04_user_who_uses_up_values_disturbs_no_other", burn)
        .seconds(200)
        .on(LONG),
];

const PAGE: u64 = 4096;
/// Half of a hardware slot's values; they come again together.
const HALF: usize = 128;
/// Seconds for which key values rest.
const REST: &str = "/sys/module/kverbs/parameters/key_rest_s";
/// Hardware slots that are freed when all others are used.
const FREED: usize = 2;
/// Documented bytes of kernel memory for a slot, and for each page of its region up to 256.
const SLOT: u64 = 1536;
const SLOT_PAGE: u64 = 16;
/// Documented bytes of kernel memory for a region of one page.
const REGION: u64 = 1024;

/// The memory of the kernel's allocations.
struct Allocated {
    /// All bytes.
    all: u64,
    /// Bytes in each cache, without its free objects.
    caches: HashMap<String, u64>,
}

impl Allocated {
    fn now() -> Result<Self> {
        let info = std::fs::read_to_string("/proc/meminfo")?;
        let line = info.lines().find_map(|l| l.strip_prefix("Slab:"));
        let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
        let caches = std::fs::read_to_string("/proc/slabinfo")?;
        Ok(Self {
            all: kib.context("no line for Slab")? * 1024,
            caches: caches.lines().filter_map(cache).collect(),
        })
    }

    /// Checks the memory that each of `count` objects has used since then.
    fn within(&self, count: usize, documented: u64) -> Result<()> {
        let now = Self::now()?;
        let each = now.all.saturating_sub(self.all) / count as u64;
        eprintln!("{each} bytes each");
        if each <= documented {
            return Ok(());
        }
        for (name, bytes) in &now.caches {
            let before = self.caches.get(name).copied().unwrap_or(0);
            let each = bytes.saturating_sub(before) / count as u64;
            if each > 0 {
                eprintln!("{each} bytes each in {name}");
            }
        }
        bail!("{each} bytes each, documented are {documented}")
    }
}

/// Returns the name and the used bytes of a cache from its line in `/proc/slabinfo`.
fn cache(line: &str) -> Option<(String, u64)> {
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let active: u64 = words.next()?.parse().ok()?;
    let size: u64 = words.nth(1)?.parse().ok()?;
    Some((name.to_owned(), active * size))
}

/// Prints the time since `start`, and restarts the clock.
fn lap(start: &mut Instant, what: &str) {
    eprintln!("{what}: {:.1} s", start.elapsed().as_secs_f64());
    *start = Instant::now();
}

/// Assigns all entries, in calls as long as allowed.
fn assign_all(dev: &Dev, entries: &mut [KeyEntry]) -> Result<()> {
    for part in entries.chunks_mut(KFI_KEY_ALLOC_MAX as usize) {
        let got = dev.key_assign_many(part)?;
        ensure!(got == (part.len(), 0), "assigned: {got:?}");
    }
    Ok(())
}

/// Picks about 64 of `all`, with the first and the last.
fn some(all: &[KeyEntry]) -> Vec<KeyEntry> {
    let step = (all.len() / 63).max(1);
    all.iter()
        .step_by(step)
        .chain(all.last())
        .copied()
        .collect()
}

/// Returns the remote addresses and keys of `entries`.
fn remotes(entries: &[KeyEntry]) -> Vec<Remote> {
    let remote = |e: &KeyEntry| Remote {
        addr: e.remote_addr,
        key: e.key,
        len: e.length,
    };
    entries.iter().map(remote).collect()
}

/// Node 1 passes keys; node 2 writes the pattern of a key's number through each.
fn use_each(ctx: &mut Ctx, bench: &mut Bench, entries: &[KeyEntry]) -> Result<()> {
    bench.fresh(ctx)?;
    if ctx.first() {
        ctx.ctl.send(&remotes(entries))?;
    } else {
        let remotes: Vec<Remote> = ctx.ctl.recv()?;
        for (i, r) in remotes.iter().enumerate() {
            bench.buf.fill_part(0, r.len as usize, i as u64);
            ensure!(bench.write(r.len, r.addr, r.key)? == 0, "key {i}");
        }
    }
    ctx.barrier("written")
}

/// Assigns 100,000 keys on one region of more pages than a slot reserves page entries for.
fn many_keys(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 100_000;
    const STRIDE: u64 = 80;
    if sys::slowness() > 1 {
        return skip("100,000 keys take too long and too much here");
    }
    let mut bench = Bench::new(ctx, 8 << 20)?;
    let mut entries = Vec::new();
    let mut clock = Instant::now();
    if ctx.first() {
        let dev = &bench.side.dev;
        let before = Allocated::now()?;
        let mut slots = Vec::new();
        while slots.len() < COUNT {
            let count = (COUNT - slots.len()).min(KFI_KEY_ALLOC_MAX as usize);
            slots.extend(dev.key_alloc(bench.region, count as u32)?);
        }
        lap(&mut clock, "reserving");
        let entry = |(i, slot): (u64, &u64)| KeyEntry {
            slot: *slot,
            offset: i * STRIDE,
            length: 64,
            access: REMOTE,
            ..Default::default()
        };
        entries = (0..).zip(&slots).map(entry).collect();
        assign_all(dev, &mut entries)?;
        lap(&mut clock, "assigning");
        before.within(COUNT, SLOT + 256 * SLOT_PAGE)?;
        let values: HashSet<_> = entries.iter().map(|e| e.key).collect();
        ensure!(values.len() == COUNT, "a value came twice");
    }
    let picked = some(&entries);
    use_each(ctx, &mut bench, &picked)?;
    let mut list = Vec::new();
    if ctx.first() {
        for (i, e) in picked.iter().enumerate() {
            let at = e.offset as usize;
            bench
                .buf
                .check_part(at, 64, i as u64)
                .with_context(|| format!("key {i}"))?;
        }
        // Revoke one key, and no other.
        let dev = &bench.side.dev;
        dev.key_revoke(picked[7].slot)?;
        for i in [6, 8, 7] {
            let e = &picked[i];
            list.push(Try::new(
                "one of many",
                true,
                8,
                e.remote_addr,
                e.key,
                i != 7,
            ));
        }
    }
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        let dev = &bench.side.dev;
        refused(dev.close(bench.region), libc::EBUSY, "closing the region")?;
        clock = Instant::now();
        let revoked = dev.key_revoke_all(KFI_REVOKE_REGION, bench.region)?;
        ensure!(revoked == COUNT as u64 - 1, "{revoked} revoked");
        lap(&mut clock, "revoking");
    }
    // Closing the file frees the slots.
    ctx.barrier("revoked")
}

/// Registers 10,000 regions on one file, with a key on each.
fn many_regions(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 10_000;
    if sys::slowness() > 1 {
        return skip("10,000 regions take too long here");
    }
    let mut bench = Bench::new(ctx, 4096)?;
    let map = Map::anon(COUNT * PAGE as usize)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    (0..COUNT).for_each(|i| map.set(i * PAGE as usize, 0));
    let mut entries = Vec::new();
    let mut regions = Vec::new();
    let mut clock = Instant::now();
    if ctx.first() {
        let (dev, before) = (&bench.side.dev, Allocated::now()?);
        for i in 0..COUNT as u64 {
            let addr = map.addr() + i * PAGE;
            regions.push(bench.side.reg_at(addr, PAGE, LOCAL | REMOTE)?.handle);
        }
        lap(&mut clock, "registering");
        before.within(COUNT, REGION)?;
        let before = Allocated::now()?;
        for region in &regions {
            entries.push(KeyEntry {
                slot: dev.key_alloc(*region, 1)?[0],
                offset: 8,
                length: 64,
                access: REMOTE,
                ..Default::default()
            });
        }
        assign_all(dev, &mut entries)?;
        lap(&mut clock, "reserving and assigning");
        before.within(COUNT, SLOT + SLOT_PAGE)?;
    }
    let picked = some(&entries);
    use_each(ctx, &mut bench, &picked)?;
    if ctx.first() {
        for (i, e) in picked.iter().enumerate() {
            let at = (e.remote_addr - map.addr()) as usize;
            let wanted = (0..8).map(|word| pattern64(i as u64, word).to_le());
            let words = (0..8).map(|word| map.get64(at + word * 8));
            ensure!(
                words.eq(wanted),
                "the bytes written through key {i} are not there"
            );
        }
        let dev = &bench.side.dev;
        for (region, e) in regions.iter().zip(&entries).take(COUNT / 2) {
            dev.close(e.slot)?;
            dev.close(*region)?;
        }
        lap(&mut clock, "closing half of them");
    }
    ctx.barrier("closed")
}

/// Allocates slots of a region until the device has no more.
pub(super) fn take_all(dev: &Dev, region: u64) -> Result<Vec<u64>> {
    let (mut slots, mut count) = (Vec::new(), KFI_KEY_ALLOC_MAX);
    while count > 0 {
        match dev.key_alloc(region, count) {
            Ok(more) => slots.extend(more),
            // A call allocates all its slots or none.
            Err(e) if e.errno.0 == libc::ENOSPC => count /= 2,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(slots)
}

/// Makes key values rest for `seconds`, until the result is dropped.
fn rest(seconds: u32) -> Result<Parameter> {
    Parameter::set(REST, &seconds.to_string())
}

/// P4: slots use all hardware slots except one, which is assigned again and again. Each of its keys
/// has a value of its own, and the oldest is refused after each wrap. When all values have been
/// issued, the device refuses an assignment, until the values have rested. Then the oldest come
/// again, and the others are still refused.
fn all_values(ctx: &mut Ctx) -> Result<()> {
    if sys::slowness() > 1 {
        return skip("half a million slots take too long here");
    }
    let mut lanes = Lanes::new(ctx)?;
    if !ctx.first() {
        return try_oldest(ctx, &mut lanes);
    }
    let map = Map::anon(PAGE as usize)?;
    map.set(0, 1);
    let region = lanes.side.reg_at(map.addr(), PAGE, LOCAL | REMOTE)?.handle;
    let mut clock = Instant::now();
    let mut slots = take_all(&lanes.side.dev, region)?;
    lap(&mut clock, &format!("reserving {}", slots.len()));
    let slot = *slots.last().context("no slots")?;
    // First key of each hardware slot. rxe has one slot number more than it allocates.
    let (mut seen, mut oldest, mut tried) = (Vec::new(), HashMap::new(), 0);
    let worn = || -> Result<Option<u64>> { Ok(counters()?.get("kverbs/worn").copied()) };
    let before = worn()?;
    let refusal = loop {
        let remote = match lanes.side.assign(slot, 0, PAGE, REMOTE) {
            Ok(remote) => remote,
            Err(e) => break e,
        };
        ensure!(!seen.contains(&remote.key), "{:#x} came twice", remote.key);
        seen.push(remote.key);
        let first: Remote = *oldest.entry(remote.key >> 8).or_insert(remote);
        ensure!(
            oldest.len() <= 2,
            "more hardware slots are free: {oldest:x?}"
        );
        if first.key != remote.key {
            ctx.ctl.send(&Some((first, remote)))?;
            if tried % LANES == 0 {
                lanes.connect(ctx)?;
            }
            ctx.barrier("tried")?;
            tried += 1;
        }
        lanes.side.dev.key_revoke(slot)?;
    };
    lap(&mut clock, &format!("{} keys", seen.len()));
    let errno = refusal
        .downcast_ref()
        .map(|e: &crate::raw::CallError| e.errno.0);
    ensure!(errno == Some(libc::ENOSPC), "at the end: {refusal:#}");
    // A hardware slot without a value is counted.
    let after = worn()?;
    ensure!(after > before, "{before:?} worn, then {after:?}");
    // Earlier tests may have used some values.
    let count = seen.len();
    ensure!(count > 160 * oldest.len(), "{count} keys only");
    {
        let _rest = rest(2)?;
        std::thread::sleep(Duration::from_secs(4));
        let reused = || -> Result<u64> { Ok(counters()?["kverbs/reused"]) };
        let before = reused()?;
        for round in 0..LANES as u64 {
            let remote = lanes.side.assign(slot, 0, PAGE, REMOTE)?;
            let at = seen.iter().position(|key| *key == remote.key);
            let of_slot = |key: &&u64| **key >> 8 == remote.key >> 8;
            let later = at.map_or(count, |at| seen[at + 1..].iter().filter(of_slot).count());
            ensure!(
                later >= HALF,
                "{:#x} comes again before {later} younger ones",
                remote.key
            );
            let stale = Remote {
                key: *seen.last().context("no key")?,
                ..remote
            };
            ctx.ctl.send(&Some((stale, remote)))?;
            if tried % LANES == 0 {
                lanes.connect(ctx)?;
            }
            ctx.barrier("tried")?;
            tried += 1;
            lanes.side.dev.key_revoke(slot)?;
            ensure!(reused()? > before + round, "not counted as reused");
        }
        lap(&mut clock, "keys with values that come again");
    }
    ctx.ctl.send(&None::<(Remote, Remote)>)?;
    // These slots had few keys each.
    for slot in slots.drain(..FREED) {
        lanes.side.dev.close(slot)?;
    }
    let had = own_values(&lanes.side, region)?;
    lap(&mut clock, &format!("{} keys of endpoints' own", had.len()));
    // The half that came again has the rest of its values.
    let again = had.iter().filter(|key| seen.contains(key)).count();
    ensure!(
        again <= oldest.len() * HALF,
        "{again} values came again before their rest"
    );
    ctx.barrier("used up")
}

/// P4: with few free hardware slots, two users take all values several times over, faster than any
/// real use. No assignment is refused, and no value comes again before its rest.
fn burn(ctx: &mut Ctx) -> Result<()> {
    const FREE: usize = 2000;
    const BURST: u32 = 256;
    const TIME: Duration = Duration::from_secs(3);
    if sys::slowness() > 1 {
        return skip("half a million slots take too long here");
    }
    if !ctx.first() {
        return Ok(());
    }
    let side = Side::open(ctx)?;
    let map = Map::anon(PAGE as usize)?;
    map.set(0, 1);
    let region = side.reg_at(map.addr(), PAGE, LOCAL | REMOTE)?.handle;
    let mut clock = Instant::now();
    let mut slots = take_all(&side.dev, region)?;
    lap(&mut clock, &format!("reserving {}", slots.len()));
    for slot in slots.drain(..FREE) {
        side.dev.close(slot)?;
    }
    let _rest = rest(TIME.as_secs() as u32)?;
    let before = counters()?;
    // The end of each value's last key, of both users.
    let ended = Mutex::new(HashMap::<u64, Instant>::new());
    let note = |keys: &[u64]| -> Result<()> {
        let mut ended = ended.lock().unwrap_or_else(|e| e.into_inner());
        for key in keys {
            if let Some(end) = ended.insert(*key, Instant::now()) {
                let rested = end.elapsed();
                ensure!(rested >= TIME, "{key:#x} comes again after {rested:?}");
            }
        }
        Ok(())
    };
    let until = Instant::now() + Duration::from_secs(45);
    let user = |burst: u32| -> Result<usize> {
        let side = Side::of(&ctx.env)?;
        let region = side.reg_at(map.addr(), PAGE, LOCAL | REMOTE)?.handle;
        let slots = side.dev.key_alloc(region, burst)?;
        let mut count = 0;
        while Instant::now() < until {
            let mut entries = key_entries(&slots, PAGE, REMOTE);
            assign_all(&side.dev, &mut entries).with_context(|| format!("after {count} keys"))?;
            let keys: Vec<_> = entries.iter().map(|e| e.key).collect();
            // Before the keys end: the recorded times are too early, which allows less.
            note(&keys)?;
            for slot in &slots {
                side.dev.key_revoke(*slot)?;
            }
            count += keys.len();
        }
        Ok(count)
    };
    let (many, few) = std::thread::scope(|scope| {
        let many = scope.spawn(|| user(BURST));
        let few = user(1);
        (many.join(), few)
    });
    let many = many.map_err(|_| anyhow::anyhow!("the first user panicked"))??;
    let few = few.context("the other user")?;
    let after = counters()?;
    let grew = |name: &str| after[name] - before[name];
    lap(&mut clock, &format!("{many} and {few} keys"));
    eprintln!(
        "{} used, {} reused, {} worn",
        grew("kverbs/used"),
        grew("kverbs/reused"),
        grew("kverbs/worn")
    );
    ensure!(
        many + few > FREE * 2 * HALF,
        "{many} and {few} keys do not take all values"
    );
    ensure!(grew("kverbs/reused") > 0, "no value came again");
    ensure!(few > 100, "{few} keys of the other user");
    Ok(())
}

/// Assigns and revokes until no key is left. Returns the keys, and the number of hardware slots
/// behind them.
fn until_none(side: &Side, slot: u64) -> Result<(BTreeSet<u64>, usize)> {
    let (mut had, mut indices) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let key = match side.dev.key_assign(slot, 0, PAGE, REMOTE) {
            Ok(assigned) => assigned.key,
            Err(e) if e.errno.0 == libc::ENOSPC => return Ok((had, indices.len())),
            Err(e) => return Err(e.into()),
        };
        ensure!(had.insert(key), "{key:#x} came twice");
        indices.insert(key >> 8);
        side.dev.key_revoke(slot)?;
    }
}

/// With few free hardware slots, two endpoints with endpoint-scoped keys run one after the other:
/// values issued for the first come again for the second one only after their rest.
fn own_values(side: &Side, region: u64) -> Result<BTreeSet<u64>> {
    let dev = &side.dev;
    let first = own_endpoint(side)?.handle;
    let slot = dev.key_alloc_for(region, first, 1)?[0];
    let (mut had, indices) = until_none(side, slot)?;
    // The endpoints use the slots in turn. Other slots have no values left.
    ensure!(
        indices >= FREED && had.len() > 80 * indices,
        "{} keys of {indices} hardware slots",
        had.len()
    );
    dev.close(slot)?;
    ensure!(dev.key_alloc_for(region, first, 1).is_err(), "one more");
    dev.close(first)?;
    let second = own_endpoint(side)?.handle;
    if let Ok(slots) = dev.key_alloc_for(region, second, 1) {
        for key in until_none(side, slots[0])?.0 {
            ensure!(had.insert(key), "{key:#x} comes again");
        }
        dev.close(slots[0])?;
    }
    dev.close(second)?;
    Ok(had)
}

/// Plays node 2 of [`all_values`].
fn try_oldest(ctx: &mut Ctx, lanes: &mut Lanes) -> Result<()> {
    let mut tried = 0;
    while let Some((oldest, now)) = ctx.ctl.recv::<Option<(Remote, Remote)>>()? {
        if tried % LANES == 0 {
            lanes.connect(ctx)?;
        }
        let lane = tried % LANES;
        for write in [true, false] {
            let errno = lanes.attempt(lane, write, 8, now.addr, now.key)?;
            ensure!(errno == 0, "{tried}: the new key: errno {errno}");
        }
        let errno = lanes.attempt(lane, tried % 2 == 0, 8, oldest.addr, oldest.key)?;
        ensure!(errno == libc::EACCES, "{tried}: the oldest: errno {errno}");
        tried += 1;
        ctx.barrier("tried")?;
    }
    ctx.barrier("used up")
}
