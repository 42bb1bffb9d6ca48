// SPDX-License-Identifier: MIT OR Apache-2.0

//! Observability of keys: `kfi show keys`, counters, tracepoints. And P6 in counts: assigning a key
//! takes the same work whatever region it is on.

use super::key_batches::joined;
use super::refused;
use crate::auth;
use crate::buf::Buf;
use crate::fault::calls::memory::touch;
use crate::harness::leaks::vm_pin;
use crate::harness::trace::Trace;
use crate::harness::{caps, guest, skip, Ctx, Test, ONE};
use crate::pair::{key_entries, Side, LOCAL, REMOTE};
use crate::sys::{self, uffd, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("keys.seen_by_kfi_show_with_and_without_key", shown).verbs(),
    Test::alone(
        "keys.seen_by_kfi_show_with_endpoint_and_auth_key",
        shown_for_whom,
    ),
    Test::alone(
        "keys.seen_by_tracepoints_on_assign_revoke_and_failure",
        traced,
    )
    .seconds(8)
    .needs(caps::FULL_KEYS)
    .verbs(),
    Test::alone("keys.seen_in_counters_for_single_and_batch", counted).on(ONE),
    Test::alone("keys.p04_slots_closed_without_a_key_spend_no_value", unused).on(ONE),
    Test::alone("keys.seen_in_counters_for_each_waiter_once", waits)
        .on(ONE)
        .seconds(8),
    Test::alone("keys.p06_same_work_for_small_and_large_region", same_work)
        .seconds(15)
        .on(ONE),
];

const PAGE: u64 = 4096;

fn shown(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let buf = Buf::new(3 * PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = side.dev.key_alloc(region, 3)?;
    side.assign(slots[1], 100, 5000, KFI_REMOTE_READ)?;
    for _ in 0..3 {
        side.assign(slots[2], 0, 8, REMOTE)?;
        side.dev.key_revoke(slots[2])?;
    }
    let pid = std::process::id().to_string();
    let said = guest::run("kfi", &["show", "keys", "-p", &pid, "--json"])?;
    let report: serde_json::Value = serde_json::from_str(&said)?;
    let all = report["slots"].as_array().context("no slots")?;
    ensure!(all.len() == 3, "{} slots: {said}", all.len());
    for (slot, state, keys, range) in [
        (slots[0], "reserved", 0, None),
        (slots[1], "assigned", 1, Some((100, 5000, "remote-read"))),
        (slots[2], "reserved", 3, None),
    ] {
        let handle = format!("{slot:#x}");
        let row = all.iter().find(|row| row["slot"] == handle.as_str());
        let row = row.with_context(|| format!("no slot {handle}: {said}"))?;
        let of_region = row["region"] == format!("{region:#x}").as_str();
        ensure!(of_region && row["state"] == state, "{row}");
        ensure!(row["keys"] == keys, "{row}");
        let (offset, length, access) =
            range.map_or((None, None, None), |(o, l, a)| (Some(o), Some(l), Some(a)));
        ensure!(row["offset"] == serde_json::json!(offset), "{row}");
        ensure!(row["length"] == serde_json::json!(length), "{row}");
        ensure!(row["access"] == serde_json::json!(access), "{row}");
    }
    let counted = &report["counters"];
    for (part, name) in [("keys", "assigned"), ("kverbs", "fast")] {
        ensure!(counted[part][name].as_u64() > Some(0), "{counted}");
    }
    let text = guest::run("kfi", &["show", "keys", "-p", &pid])?;
    for word in ["100+5000", "remote-read", "reserved", "recycled"] {
        ensure!(text.contains(word), "{word:?} is not in {text}");
    }
    Ok(())
}

/// For a slot that is bound to an endpoint, `kfi show` names the endpoint. For a slot under an auth
/// key it shows the auth key's number, with keys and without.
fn shown_for_whom(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    if side.domain.caps & KFI_EP_KEYS == 0 {
        return skip("no keys of an endpoint's own");
    }
    let dev = &side.dev;
    let buf = Buf::new(PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let open = |key| {
        dev.ep_open(&EpOpen {
            flags: KFI_EP_OWN_KEYS,
            ..auth::keyed(side.domain.handle, key)
        })
    };
    let (plain, under) = (open(&[])?.handle, open(auth::KEY)?.handle);
    let slots = [
        dev.key_alloc(region, 1)?[0],
        dev.key_alloc_for(region, plain, 1)?[0],
        auth::slots(dev, region, auth::KEY, 1)?[0],
        auth::slots(dev, region, auth::OTHER, 1)?[0],
        // The slot has its endpoint's auth key.
        dev.key_alloc_for(region, under, 1)?[0],
    ];
    let number = |handle: u64| -> Result<u64> {
        let all = dev.obj_list()?;
        let me = std::process::id();
        let found = all.iter().find(|o| (o.pid, o.handle) == (me, handle));
        Ok(found.context("is not listed")?.auth)
    };
    let (ours, others) = (number(under)?, number(slots[3])?);
    ensure!(
        ours != 0 && others != 0 && ours != others,
        "{ours} {others}"
    );
    let wanted = [
        (None, None),
        (None, Some(plain)),
        (Some(ours), None),
        (Some(others), None),
        (Some(ours), Some(under)),
    ];
    let pid = std::process::id().to_string();
    for assigned in [false, true] {
        if assigned {
            for slot in slots {
                side.assign(slot, 0, 8, REMOTE)?;
            }
        }
        let said = guest::run("kfi", &["show", "keys", "-p", &pid, "--json"])?;
        let report: serde_json::Value = serde_json::from_str(&said)?;
        let all = report["slots"].as_array().context("no slots")?;
        ensure!(all.len() == slots.len(), "{} slots: {said}", all.len());
        let text = guest::run("kfi", &["show", "keys", "-p", &pid])?;
        let heads: Vec<_> = text
            .lines()
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        ensure!(heads.ends_with(&["AUTH", "ENDPOINT"]), "{heads:?}");
        for (slot, (auth, ep)) in slots.iter().zip(wanted) {
            let handle = format!("{slot:#x}");
            let row = all.iter().find(|row| row["slot"] == handle.as_str());
            let row = row.with_context(|| format!("no slot {handle}: {said}"))?;
            let ep = ep.map(|ep| format!("{ep:#x}"));
            ensure!(row["auth"] == serde_json::json!(auth), "{row}");
            ensure!(row["endpoint"] == serde_json::json!(ep), "{row}");
            let line = text.lines().find(|line| line.starts_with(&handle));
            let line = line.with_context(|| format!("no slot {handle}: {text}"))?;
            let cells: Vec<_> = line.split_whitespace().collect();
            let none = || "-".to_owned();
            let auth = auth.map_or_else(none, |auth| format!("{auth:x}"));
            let ends = [auth.as_str(), ep.as_deref().unwrap_or("-")];
            ensure!(cells.len() == 10 && cells.ends_with(&ends), "{line:?}");
        }
        for key in [auth::KEY, auth::OTHER] {
            let core = &key[1..key.len() - 1];
            let out = said.as_bytes().windows(core.len()).any(|w| w == core);
            ensure!(!out, "its bytes are shown");
        }
    }
    Ok(())
}

/// Returns the fields of each event called `name`.
fn fields(trace: &Trace, name: &str) -> Result<Vec<BTreeMap<String, String>>> {
    let of = |text: &String| {
        let pairs = text.split_whitespace().filter_map(|f| f.split_once('='));
        pairs.map(|(k, v)| (k.into(), v.into())).collect()
    };
    Ok(trace.events(name)?.iter().map(of).collect())
}

fn traced(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut map = Map::anon(4 << 20)?;
    // Contiguous memory would have a fast registration.
    touch(&map);
    let region = side
        .reg_at(map.addr(), map.len() as u64, LOCAL | REMOTE)?
        .handle;
    let slot = side.dev.key_alloc(region, 1)?[0];
    let trace = Trace::new("kfabric", None)?;
    let mut keys = Vec::new();
    for i in 0..3u64 {
        keys.push(side.assign(slot, 10 + i, 1000 + i, KFI_REMOTE_READ)?.key);
        side.dev.key_revoke(slot)?;
    }
    // A window registered by `ib_reg_user_mr` must still be mapped.
    map.punch(1 << 20, 4096)?;
    match side.dev.key_assign(slot, 77, 3 << 20, KFI_REMOTE_READ) {
        Err(e) => ensure!(e.errno.0 == libc::EFAULT, "{e}"),
        Ok(_) => bail!("a key for memory that is gone"),
    }
    let assigns = fields(&trace, "key_assign")?;
    let revokes = fields(&trace, "key_revoke")?;
    for (generation, key) in (1..).zip(&keys) {
        let key = format!("{key:#x}");
        let of = |all: &[BTreeMap<String, String>]| {
            let found = all.iter().find(|e| e.get("key") == Some(&key)).cloned();
            found.with_context(|| format!("no event of {key} in {all:?}"))
        };
        let (assign, revoke) = (of(&assigns)?, of(&revokes)?);
        ensure!(assign["slot"] == revoke["slot"], "{assign:?} {revoke:?}");
        for (field, wanted) in [
            ("generation", generation.to_string()),
            ("offset", (9 + generation).to_string()),
            ("length", (999 + generation).to_string()),
            ("access", format!("{KFI_REMOTE_READ:#x}")),
            ("err", "0".to_owned()),
        ] {
            ensure!(assign[field] == wanted, "{field}: {assign:?}");
        }
        ensure!(revoke["generation"] == generation.to_string(), "{revoke:?}");
    }
    let failed = assigns.iter().find(|e| e["offset"] == "77");
    let failed = failed.context("no event of the failure")?;
    let err = (-libc::EFAULT).to_string();
    ensure!(failed["err"] == err && failed["length"] == (3 << 20).to_string());
    Ok(())
}

/// Returns all counters of the modules as `part/name`.
pub(super) fn counters() -> Result<BTreeMap<String, u64>> {
    let root = Path::new("/sys/kernel/debug/kfabric");
    let mut all = BTreeMap::new();
    for part in ["keys", "kverbs"] {
        for entry in std::fs::read_dir(root.join(part)).context("no counters")? {
            let path = entry?.path();
            let name = path.strip_prefix(root)?.display().to_string();
            all.insert(name, std::fs::read_to_string(&path)?.trim().parse()?);
        }
    }
    Ok(all)
}

/// Returns how much the counters `names` grew while `f` ran.
fn counting<const N: usize>(names: [&str; N], f: impl FnOnce() -> Result<()>) -> Result<[u64; N]> {
    let before = counters()?;
    f()?;
    let after = counters()?;
    let of = |name: &str| {
        let value = |all: &BTreeMap<String, u64>| all.get(name).copied();
        value(&after)
            .zip(value(&before))
            .map_or(u64::MAX, |(a, b)| a - b)
    };
    Ok(names.map(of))
}

const KEYS: [&str; 4] = [
    "keys/assigned",
    "keys/revoked",
    "keys/recycled",
    "keys/failed",
];
const VERBS: [&str; 3] = ["kverbs/fast", "kverbs/full", "kverbs/waits"];

/// The counters are machine-wide, so no other test may run on the machine.
fn counted(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(4 << 20)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = dev.key_alloc(region, 64)?;
    let batch = || -> Result<()> {
        let mut entries = key_entries(&slots, PAGE, REMOTE);
        let got = dev.key_assign_many(&mut entries)?;
        ensure!(got == (64, 0), "assigned: {got:?}");
        Ok(())
    };
    let names = [KEYS.as_slice(), VERBS.as_slice()].concat();
    let names: [&str; 7] = names.try_into().map_err(|_| anyhow::anyhow!("names"))?;
    // One wait for the whole batch.
    let got = counting(names, batch)?;
    ensure!(got == [64, 0, 0, 0, 64, 0, 1], "a batch: {got:?}");
    let got = counting(names, || {
        ensure!(dev.key_revoke_all(KFI_REVOKE_REGION, region)? == 64);
        batch()
    })?;
    ensure!(got == [64, 64, 64, 0, 64, 0, 1], "again: {got:?}");
    let got = counting(names, || {
        dev.key_revoke(slots[3])?;
        side.assign(slots[3], 5, 3 << 20, REMOTE)?;
        let busy = dev.key_assign(slots[3], 5, 8, REMOTE);
        refused(busy, libc::EBUSY, "a slot with a key")
    })?;
    ensure!(got == [1, 1, 1, 0, 0, 1, 0], "in full: {got:?}");
    let got = counting(names, || Ok(dev.close(slots[3])?))?;
    ensure!(got == [0, 1, 0, 0, 0, 0, 0], "closing: {got:?}");
    Ok(())
}

/// A value that a slot has in reserve is spent by an assignment, and not by the reservation. The
/// reserve that a revocation renews is not spent either.
fn unused(ctx: &mut Ctx) -> Result<()> {
    const SLOTS: u32 = 64;
    if !ctx.first() {
        return Ok(());
    }
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let buf = Buf::new(PAGE as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let names = ["kverbs/reserved", "kverbs/unused"];
    let all = u64::from(SLOTS);
    let run = |act: &dyn Fn(u64) -> Result<()>| {
        counting(names, || {
            for slot in dev.key_alloc(region, SLOTS)? {
                act(slot)?;
                dev.close(slot)?;
            }
            Ok(())
        })
    };
    let got = run(&|_| Ok(()))?;
    ensure!(got == [all, all], "without a key: {got:?}");
    let got = run(&|slot| side.assign(slot, 0, PAGE, REMOTE).map(drop))?;
    ensure!(got == [all, 0], "closed with a key: {got:?}");
    let got = run(&|slot| {
        side.assign(slot, 0, PAGE, REMOTE)?;
        Ok(dev.key_revoke(slot)?)
    })?;
    ensure!(got == [2 * all, all], "closed after a key: {got:?}");
    Ok(())
}

/// A task that waits for another task on a slot is counted, once; tasks on other slots are not. The
/// first task assigns and waits for a page that is not mapped yet.
fn waits(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 2 << 20;
    const LAST: usize = SIZE - PAGE as usize;
    if !ctx.first() {
        return Ok(());
    }
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let map = Map::anon(SIZE)?;
    // Contiguous memory would have a fast registration, which waits for no page.
    touch(&map);
    let region = side.reg_at(map.addr(), SIZE as u64, LOCAL | REMOTE)?.handle;
    let slots = dev.key_alloc(region, 2)?;
    let missing = uffd::Missing::watch(&map)?;
    let within = sys::patience(Duration::from_secs(10));
    let met = |who: &(dyn Fn() -> Result<()> + Sync), stays: bool| -> Result<u64> {
        missing.drop_from(LAST)?;
        let [waited] = counting(["keys/waits"], || {
            std::thread::scope(|scope| {
                let assigner = scope.spawn(|| Ok(dev.key_assign(slots[0], 0, SIZE as u64, REMOTE)));
                let steps = || -> Result<_> {
                    ensure!(missing.is_waited_for(within)?, "nothing stalls");
                    // Tasks on another slot do not wait.
                    side.assign(slots[1], 0, PAGE, REMOTE)?;
                    dev.key_revoke(slots[1])?;
                    let before = counters()?.get("keys/waits").copied();
                    let second = scope.spawn(who);
                    guest::until("it waits", within, || {
                        let now = counters()?.get("keys/waits").copied();
                        Ok((now > before).then_some(()))
                    })?;
                    ensure!(!second.is_finished(), "it did not wait");
                    Ok(second)
                };
                let second = steps();
                missing.fill_from(LAST)?;
                let assigned = joined(assigner)?;
                joined(second?)?;
                match stays {
                    true => Ok(assigned.map(drop)?),
                    // The slot was closed meanwhile.
                    false => refused(assigned, libc::ENOENT, "assigning"),
                }
            })
        })?;
        Ok(waited)
    };
    let waited = met(&|| Ok(dev.key_revoke(slots[0])?), true)?;
    ensure!(waited == 1, "revoking: {waited}");
    let taken = || {
        let taken = dev.key_assign(slots[0], 0, 8, REMOTE);
        refused(taken, libc::EBUSY, "a slot with a key")
    };
    let waited = met(&taken, true)?;
    ensure!(waited == 1, "assigning: {waited}");
    dev.key_revoke(slots[0])?;
    let waited = met(&|| Ok(dev.close(slots[0])?), false)?;
    // One wait for the assignment, and perhaps one for the revocation that followed.
    ensure!((1..=2).contains(&waited), "closing: {waited}");
    Ok(())
}

/// P6: a window of 4 KiB costs the same pins, registrations, waits and reserves in a region of one
/// page and in one of 256 MiB. (`cargo xtask bench keys` compares the times.)
fn same_work(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 200;
    const NAMES: [&str; 5] = [
        "kverbs/fast",
        "kverbs/full",
        "kverbs/waits",
        "kverbs/worn",
        "keys/waits",
    ];
    if !ctx.first() {
        return Ok(());
    }
    let side = Side::open(ctx)?;
    for size in [PAGE, 1 << 20, 256 << 20] {
        let map = Map::anon(size as usize)?;
        let region = side.reg_at(map.addr(), size, LOCAL | REMOTE)?.handle;
        let slot = side.dev.key_alloc(region, 1)?[0];
        let charged = vm_pin();
        let got = counting(NAMES, || {
            for i in 0..ROUNDS {
                let offset = i * 7919 * PAGE % size;
                side.assign(slot, offset, PAGE, REMOTE)?;
                ensure!(vm_pin() == charged, "VmPin is {}", vm_pin());
                side.dev.key_revoke(slot)?;
            }
            Ok(())
        })?;
        ensure!(got == [ROUNDS, 0, ROUNDS, 0, 0], "{size} bytes: {got:?}");
        side.dev.close(slot)?;
        side.dev.close(region)?;
    }
    Ok(())
}
