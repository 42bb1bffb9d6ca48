// SPDX-License-Identifier: MIT OR Apache-2.0

//! Key values of the protection groups of a device's domains.

use super::accounts::user;
use super::devices_values::{alone, Few, Keys, PLAIN, VALUES};
use super::refused;
use crate::auth;
use crate::buf::Buf;
use crate::harness::caps::OTHER_CARDS;
use crate::harness::guest::{self, until};
use crate::harness::{Ctx, Test, NETNS};
use crate::pair::{Side, LOCAL, REMOTE, WAIT};
use crate::profile::{self, Fake};
use crate::raw::field_text;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;

/// Tests of the topic `devices`.
pub const TESTS: &[Test] = &[
    Test::pair(
        "devices.seen_by_kfi_show_counts_values_of_each_domain",
        |c| alone(c, counts),
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_strict_domain_repeats_no_value_and_gets_enospc",
        |c| alone(c, strict_domain),
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.key_queue_of_domain_without_slots_is_closed_and_opens_again",
        |c| alone(c, idle_queues),
    )
    .seconds(120)
    .on(NETNS)
    .needs(OTHER_CARDS),
];

const PAGE: u64 = 4096;

/// The counts of a domain that `kfi show keys` prints.
#[derive(Debug)]
struct Counts {
    used: u64,
    reused: u64,
    worn: u64,
    spent: u64,
}

impl Counts {
    /// Returns the counts of this process's only domain with key values.
    fn read() -> Result<Self> {
        let pid = std::process::id();
        let report = shown(&["show", "keys", "-p", &pid.to_string(), "--json"])?;
        let all = report["values"].as_array().context("no counts")?;
        ensure!(all.len() == 1, "{report}");
        let count = |name: &str| all[0][name].as_u64().with_context(|| name.to_owned());
        ensure!(all[0]["pid"] == pid, "{report}");
        let device = all[0]["device"].as_str();
        ensure!(device.is_some_and(|name| !name.is_empty()), "{report}");
        Ok(Self {
            used: count("used")?,
            reused: count("reused")?,
            worn: count("worn")?,
            spent: count("spent")?,
        })
    }
}

fn shown(args: &[&str]) -> Result<serde_json::Value> {
    Ok(serde_json::from_str(&guest::run("kfi", args)?)?)
}

/// `kfi show keys` counts the values of a domain over a device with 15 regions. Another user sees neither
/// these counts nor the machine's counters, and sees its own counts.
fn counts(ctx: &mut Ctx) -> Result<()> {
    const OTHER: u32 = 2207;
    let mut few = Few::new(ctx, "lowest", 0)?;
    let opened = few.open(PLAIN)?.map_err(crate::sys::Errno)?;
    let keys = few.burst(opened.1, 100)?;
    ensure!(keys.errno == 0, "errno {}", keys.errno);
    let new = Counts::read()?;
    // The next one is in reserve.
    ensure!((new.used, new.reused) == (101, 0), "{new:?}");
    ensure!((new.worn, new.spent) == (0, 0), "{new:?}");
    let keys = few.burst(opened.1, VALUES)?;
    ensure!(keys.errno == 0, "errno {}", keys.errno);
    let worn = Counts::read()?;
    ensure!(worn.used == 101 + VALUES as u64, "{worn:?}");
    ensure!(worn.reused > 0 && worn.reused < worn.used, "{worn:?}");
    // Root has no budget.
    ensure!(worn.worn > 0 && worn.spent == 0, "{worn:?}");
    few.close(opened)?;
    let closed = Counts::read()?;
    ensure!(closed.used == worn.used - 1, "{closed:?}");
    // A budget's account is empty after the time of a rest: with 600 s, in 1.3 s for each value.
    few.set_rest("100000")?;
    let env = ctx.env.clone();
    let other = || -> Result<()> {
        let none = shown(&["show", "keys", "--json"])?;
        let is_empty = |name: &str| none[name].as_array().is_some_and(Vec::is_empty);
        ensure!(is_empty("slots") && is_empty("values"), "{none}");
        ensure!(none["counters"] == serde_json::json!({}), "{none}");
        let side = Side::of(&env)?;
        let buf = Buf::new(PAGE as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slots = side.dev.key_alloc(region, 1);
        // The device may have no region left that does not rest.
        if let Ok(slots) = slots {
            let counts = Counts::read()?;
            ensure!((counts.used, counts.spent) == (1, 1), "{counts:?}");
            side.dev.close(slots[0])?;
        }
        Ok(())
    };
    user(OTHER, 1 << 30, || Ok(()), other)
}

/// P4: over a device with 15 regions, a strict domain gets `ENOSPC` for its own keys, for those of an auth key
/// and for those of an endpoint, when there is no unused value. None repeats a value, although none has to
/// rest. A plain domain then has values.
fn strict_domain(ctx: &mut Ctx) -> Result<()> {
    for kind in ["domain", "auth key", "endpoint"] {
        let mut few = Few::new(ctx, "lowest", 0)?;
        let keys = of_strict_domain(&mut few, kind)?;
        let right = (1024..=VALUES).contains(&keys.values.len());
        ensure!(
            right && keys.errno == libc::ENOSPC && keys.again == 0,
            "{kind}: errno {} after {} values, {} again",
            keys.errno,
            keys.values.len(),
            keys.again
        );
        let plain = few.keys(PLAIN, VALUES)?;
        ensure!(plain.errno == 0, "plain: errno {}", plain.errno);
    }
    Ok(())
}

/// Uses up the values of a strict domain by one slot of this kind.
fn of_strict_domain(few: &mut Few, kind: &str) -> Result<Keys> {
    let (fabric, name) = (few.side.fabric, field_text(&few.side.domain.name));
    let dev = &few.side.dev;
    let domain = dev
        .domain_open_with(fabric, &name, KFI_DOMAIN_STRICT_KEYS)?
        .handle;
    let buf = Buf::new(PAGE as usize)?;
    let region = dev
        .call_region(&RegionReg {
            domain,
            addr: buf.addr(),
            len: PAGE,
            access: LOCAL | REMOTE,
            flags: KFI_REGION_DYNAMIC_KEYS,
            ..Default::default()
        })?
        .handle;
    let mut ep = None;
    let slot = match kind {
        "auth key" => auth::slots(dev, region, auth::KEY, 1)?[0],
        "endpoint" => {
            let open = EpOpen {
                flags: KFI_EP_OWN_KEYS,
                domain,
                ..Default::default()
            };
            let handle = ep.insert(dev.ep_open(&open)?.handle);
            dev.key_alloc_for(region, *handle, 1)?[0]
        }
        _ => dev.key_alloc(region, 1)?[0],
    };
    let keys = few.burst(slot, 2 * VALUES)?;
    let dev = &few.side.dev;
    dev.close(slot)?;
    ep.map_or(Ok(()), |ep| dev.close(ep))?;
    dev.close(region)?;
    dev.close(domain)?;
    Ok(keys)
}

/// A domain with a region.
struct Keyed {
    side: Side,
    region: u64,
    _buf: Buf,
}

impl Keyed {
    fn new(ctx: &Ctx) -> Result<Self> {
        let side = Side::open(ctx)?;
        let buf = Buf::new(PAGE as usize)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        Ok(Self {
            side,
            region,
            _buf: buf,
        })
    }

    /// Assigns and revokes a key.
    fn cycle(&self, slot: u64) -> Result<()> {
        self.side.assign(slot, 0, PAGE, REMOTE)?;
        self.side.dev.key_revoke(slot)?;
        Ok(())
    }
}

/// Returns the number of queue pairs created and not destroyed since the counters began.
fn queue_pairs(fake: &Fake) -> Result<i64> {
    let all = fake.counters()?;
    let done = |verb: &str| (all[verb].all - all[verb].refused) as i64;
    Ok(done("create_qp") - done("destroy_qp"))
}

/// Without slots, domains and auth keys lose their queue pairs. The next slot makes one, or is refused. A
/// domain with a slot keeps its queue pair, so no assignment needs a new one.
fn idle_queues(ctx: &mut Ctx) -> Result<()> {
    const DOMAINS: usize = 20;
    for name in ["mlx5", "ionic"] {
        let fake = Fake::with(profile::find(name)?)?;
        let before = queue_pairs(&fake)?;
        let open = || Ok::<_, anyhow::Error>(queue_pairs(&fake)? - before);
        let busy = Keyed::new(ctx)?;
        let kept = busy.side.dev.key_alloc(busy.region, 1)?[0];
        let all = (0..DOMAINS).map(|_| Keyed::new(ctx));
        let all = all.collect::<Result<Vec<_>>>()?;
        let cycle_all = || -> Result<()> {
            let mut slots = Vec::new();
            for one in &all {
                let dev = &one.side.dev;
                let plain = dev.key_alloc(one.region, 1)?[0];
                let keyed = auth::slots(dev, one.region, auth::KEY, 1)?[0];
                for slot in [plain, keyed] {
                    one.cycle(slot)?;
                    slots.push((dev, slot));
                }
            }
            ensure!(open()? == 2 * DOMAINS as i64 + 1, "{name}: {}", open()?);
            for (dev, slot) in slots {
                dev.close(slot)?;
            }
            until("closed queues", WAIT, || Ok((open()? == 1).then_some(())))
        };
        cycle_all()?;
        cycle_all()?;
        fake.set("refuse=create_qp:12:0:-1")?;
        for one in &all {
            let slots = one.side.dev.key_alloc(one.region, 1);
            refused(slots, libc::ENOMEM, "a slot without a queue")?;
        }
        busy.cycle(kept)?;
        fake.set("refuse=create_qp:0:0:0")?;
        cycle_all()?;
        drop((all, busy, fake));
    }
    Ok(())
}
