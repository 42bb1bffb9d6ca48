// SPDX-License-Identifier: MIT OR Apache-2.0

//! Key slots' reserves: an assignment needs nothing else. With every allocation of the caller's
//! task failing it succeeds, the first time and after each revocation.

use super::calls::memory::{register, touch};
use super::inject::{Famine, Knobs};
use super::lab::Lab;
use super::sweep::Row;
use crate::harness::Env;
use crate::sys::{self, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// Number of keys that each slot is assigned; more than a hardware slot has values.
const ROUNDS: u64 = 301;
/// Pages of the region.
const PAGES: usize = 256;
const PAGE: usize = 4096;

/// A way to assign.
pub struct Case {
    /// Name of the case in the table.
    pub name: &'static str,
    run: fn(&Bench<'_>) -> Result<()>,
}

/// The cases.
pub const CASES: &[Case] = &[
    Case {
        name: "reserve.single",
        run: single,
    },
    Case {
        name: "reserve.batch",
        run: batch,
    },
    Case {
        name: "reserve.ordered",
        run: ordered,
    },
    Case {
        name: "reserve.full",
        run: full,
    },
    Case {
        name: "reserve.revoke",
        run: revoke,
    },
];

/// Runs one case.
pub fn run(case: &Case, env: &Env, knobs: &Knobs) -> Row {
    Row::of(case.name, |_| in_lab(case, env, knobs))
}

/// A region without keys, in a domain that has had none, and a way to exhaust memory.
struct Bench<'a> {
    lab: &'a Lab,
    region: u64,
    famine: Famine,
}

fn in_lab(case: &Case, env: &Env, knobs: &Knobs) -> Result<()> {
    let lab = Lab::open(env)?;
    let map = Map::anon(PAGES * PAGE)?;
    touch(&map);
    let bench = Bench {
        region: register(&lab, &map, KFI_REGION_DYNAMIC_KEYS)?,
        lab: &lab,
        famine: Famine::new(knobs)?,
    };
    (case.run)(&bench)?;
    lab.dev.close(bench.region)?;
    Ok(())
}

impl Bench<'_> {
    fn slots(&self, count: u32) -> Result<Vec<u64>> {
        Ok(self.lab.dev.key_alloc(self.region, count)?)
    }

    /// Checks that memory is exhausted: a new slot cannot be allocated.
    fn control(&self) -> Result<()> {
        let got = self
            .famine
            .with(|| self.lab.dev.key_alloc(self.region, 1))?;
        let error = got.err().context("a slot was made of nothing")?;
        ensure!(error.errno.0 == libc::ENOMEM, "{error}");
        Ok(())
    }

    fn close(&self, slots: &[u64]) -> Result<()> {
        for slot in slots {
            self.lab.dev.close(*slot)?;
        }
        Ok(())
    }
}

/// Returns a window; each round has another size and place.
fn window(round: u64) -> (u64, u64) {
    let pages = 1 + round * 7 % PAGES as u64;
    (0, pages * PAGE as u64)
}

fn single(bench: &Bench<'_>) -> Result<()> {
    let dev = &bench.lab.dev;
    let slots = bench.slots(1)?;
    for round in 0..ROUNDS {
        let (offset, len) = window(round);
        let assign = || dev.key_assign(slots[0], offset, len, KFI_REMOTE_READ);
        let got = bench.famine.with(assign)?;
        let got = got.with_context(|| format!("round {round}"))?;
        ensure!(got.key != KFI_KEY_NOTAVAIL, "no key");
        dev.key_revoke(slots[0])?;
    }
    bench.control()?;
    bench.close(&slots)
}

/// Assigns all entries with `call`, which returns its progress, in as many calls as needed. Each
/// call must progress, and only the memory for a list may be missing.
fn all(
    bench: &Bench<'_>,
    entries: &mut [KeyEntry],
    call: impl Fn(&mut [KeyEntry]) -> crate::raw::Result<(usize, i32)>,
) -> Result<()> {
    let mut done = 0;
    while done < entries.len() {
        let rest = &mut entries[done..];
        let count = rest.len();
        let (more, err) = bench.famine.with(|| call(rest))??;
        ensure!(more > 0, "no progress: {err}");
        let explained = if more == count { 0 } else { libc::ENOMEM };
        ensure!(err == explained, "{more} of {count}, then {err}");
        done += more;
    }
    for entry in entries {
        ensure!(entry.key != KFI_KEY_NOTAVAIL, "a key was not told");
    }
    Ok(())
}

fn entries(slots: &[u64], round: u64) -> Vec<KeyEntry> {
    let (offset, length) = window(round);
    let entry = |slot: &u64| KeyEntry {
        slot: *slot,
        offset,
        length,
        access: KFI_REMOTE_READ,
        key: KFI_KEY_NOTAVAIL,
        ..Default::default()
    };
    slots.iter().map(entry).collect()
}

fn batch(bench: &Bench<'_>) -> Result<()> {
    let dev = &bench.lab.dev;
    let slots = bench.slots(70)?;
    for round in 0..ROUNDS {
        // Now and then a large number.
        let some = if round % 100 == 0 { 70 } else { 4 };
        let mut entries = entries(&slots[..some], round);
        all(bench, &mut entries, |rest| dev.key_assign_many(rest))
            .with_context(|| format!("round {round}"))?;
        let ended = if round % 2 == 0 {
            dev.key_revoke_slots(&slots[..some])?.revoked
        } else {
            dev.key_revoke_all(KFI_REVOKE_REGION, bench.region)?
        };
        ensure!(ended == some as u64, "{ended} of {some} ended");
    }
    bench.control()?;
    bench.close(&slots)
}

fn ordered(bench: &Bench<'_>) -> Result<()> {
    let dev = &bench.lab.dev;
    let cq = dev.cq_open(bench.lab.domain, 64, 0)?;
    let slots = bench.slots(4)?;
    for round in 0..ROUNDS {
        let mut entries = entries(&slots, round);
        all(bench, &mut entries, |rest| {
            dev.key_assign_ordered(rest, cq.handle, round)
        })
        .with_context(|| format!("round {round}"))?;
        let ended = dev.key_revoke_slots(&slots)?.revoked;
        ensure!(ended == slots.len() as u64, "{ended} ended");
    }
    ensure!(cq.read().is_none(), "a failure was told");
    bench.control()?;
    bench.close(&slots)?;
    Ok(dev.close(cq.handle)?)
}

/// A window beyond `IB_WR_REG_MR` is registered by `ib_reg_user_mr`, which needs memory. The slot's
/// reserve stays, and serves the next small window.
fn full(bench: &Bench<'_>) -> Result<()> {
    let dev = &bench.lab.dev;
    let map = Map::anon((PAGES + 1) * PAGE)?;
    touch(&map);
    let region = register(bench.lab, &map, KFI_REGION_DYNAMIC_KEYS)?;
    let slot = dev.key_alloc(region, 1)?[0];
    for round in 0..ROUNDS / 8 {
        dev.key_assign(slot, 0, map.len() as u64, KFI_REMOTE_READ)?;
        bench.famine.with(|| dev.key_revoke(slot))??;
        let (offset, len) = window(round);
        let assign = || dev.key_assign(slot, offset, len, KFI_REMOTE_READ);
        let got = bench.famine.with(assign)?;
        got.with_context(|| format!("round {round}"))?;
        dev.key_revoke(slot)?;
        // Without memory such a window is refused, and the slot's reserve stays.
        let large = || dev.key_assign(slot, 0, map.len() as u64, KFI_REMOTE_READ);
        let refused = bench.famine.with(large)?;
        let error = refused.err().context("registered with nothing")?;
        ensure!(error.errno.0 == libc::ENOMEM, "{error}");
        bench.famine.with(assign)??;
        dev.key_revoke(slot)?;
    }
    bench.control()?;
    dev.close(slot)?;
    Ok(dev.close(region)?)
}

/// A revocation that cannot refill the reserve revokes the key all the same. A counter shows it,
/// and a little later the reserve is refilled.
fn revoke(bench: &Bench<'_>) -> Result<()> {
    const SHORT: &str = "/sys/kernel/debug/kfabric/kverbs/short";
    const RESERVED: &str = "/sys/kernel/debug/kfabric/kverbs/reserved";
    let count = |of: &str| -> Result<u64> { Ok(std::fs::read_to_string(of)?.trim().parse()?) };
    let dev = &bench.lab.dev;
    let slots = bench.slots(1)?;
    for round in 0..8 {
        let (offset, len) = window(round);
        let assign = || dev.key_assign(slots[0], offset, len, KFI_REMOTE_READ);
        bench.famine.with(assign)??;
        let (short, reserved) = (count(SHORT)?, count(RESERVED)?);
        bench.famine.with(|| dev.key_revoke(slots[0]))??;
        ensure!(dev.key_revoke(slots[0]).is_err(), "the key lives on");
        ensure!(count(SHORT)? == short + 1, "it was not told");
        let end = Instant::now() + sys::patience(Duration::from_secs(10));
        while count(RESERVED)? == reserved {
            ensure!(Instant::now() < end, "nothing is reserved again");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    bench.close(&slots)
}
