// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reach of endpoint-scoped keys: regions that are bound before they have a key, the same bytes for
//! different peers, and guesses from one endpoint at another's keys.

use super::key_batches::{entry, with_key, PAGE};
use super::keys::{hammer, Try};
use super::promises::{near, try_each};
use super::refused;
use crate::auth::{self, KEY, OTHER};
use crate::buf::Buf;
use crate::harness::caps::REMOTE_ERRORS;
use crate::harness::leaks::vm_pin;
use crate::harness::{skip, Ctx, Test};
use crate::lanes::{Lanes, LANES, WRITTEN};
use crate::op::{self, iov};
use crate::pair::{accept_one, Opts, Remote, Side, LOCAL, LONG, REMOTE, WAIT};
use crate::sys;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p02_bound_region_key_on_other_endpoint_is_refused",
        bound_region,
    )
    .needs(REMOTE_ERRORS)
    .seconds(15),
    Test::pair(
        "keys.p02_same_bytes_for_each_peer_have_its_rights",
        same_bytes,
    )
    .seconds(40),
    Test::pair("keys.p04_guesses_at_another_endpoint_never_hit", guess).seconds(60),
    Test::pair(
        "keys.p04_guesses_from_another_auth_key_never_hit",
        guess_auth,
    )
    .seconds(60),
];

/// Opens an unconnected endpoint with endpoint-scoped keys.
pub(super) fn own_endpoint(side: &Side) -> Result<EpOpen> {
    Ok(side.dev.ep_open(&EpOpen {
        flags: KFI_EP_OWN_KEYS,
        domain: side.domain.handle,
        context: Opts::default().context,
        iov_limit: KFI_IOV_MAX as u32,
        ..Default::default()
    })?)
}

fn has_own_keys(ctx: &Ctx, side: &Side) -> Result<()> {
    if ctx.first() && side.domain.caps & KFI_EP_KEYS == 0 {
        skip("no keys of an endpoint's own")?;
    }
    Ok(())
}

/// `FI_MR_ENDPOINT`: a region is bound to an endpoint that is not enabled, has no key then, is
/// assigned one later, and is reached on that endpoint alone. Closing the endpoint under a writing
/// peer revokes the key.
fn bound_region(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 64 << 10;
    let side = Side::open(ctx)?;
    has_own_keys(ctx, &side)?;
    let (dev, opts) = (&side.dev, Opts::default());
    let cqs = [side.cq(0, 0)?, side.cq(0, 0)?, side.cq(0, 0)?];
    let buf = Buf::new(SIZE as usize)?;
    if !ctx.first() {
        let (_pep, at) = side.listen(ctx.env.at(0), 4)?;
        ctx.ctl.send(&at.port())?;
        let mut eps = Vec::new();
        for cq in &cqs {
            eps.push(accept_one(&side, &opts, cq)?.handle);
            ctx.barrier("connected")?;
        }
        buf.clear(WRITTEN);
        let region = side.reg(&buf, LOCAL)?.handle;
        let [early, late]: [Remote; 2] = ctx.ctl.recv()?;
        let run = |lane: usize, r: &Remote, write: bool| -> Result<i32> {
            let piece = [iov(region, 0, r.len)];
            let op = match write {
                true => op::write(1, &piece, r.addr, r.key),
                false => op::read(1, &piece, r.addr, r.key),
            };
            dev.submit(eps[lane], &[op])?;
            Ok(cqs[lane].wait(LONG)?.err as i32)
        };
        for r in [&early, &late] {
            let errnos = [run(0, r, true)?, run(0, r, false)?];
            ensure!(errnos == [0; 2], "on the endpoint itself: {errnos:?}");
        }
        // Another endpoint with endpoint-scoped keys, and one of the domain's.
        let errnos = [run(1, &early, true)?, run(2, &late, false)?];
        ensure!(errnos == [libc::EACCES; 2], "on others: {errnos:?}");
        ctx.barrier("tried")?;
        let piece = [iov(region, 0, early.len)];
        hammer(dev, eps[0], &cqs[0], 8, || {
            op::write(1, &piece, early.addr, early.key)
        })?;
        return ctx.barrier("ended");
    }
    let port: u16 = ctx.ctl.recv()?;
    buf.clear(0);
    let before = vm_pin();
    let ep = own_endpoint(&side)?;
    let bound = dev.call_region(&RegionReg {
        flags: KFI_REGION_DYNAMIC_KEYS,
        domain: side.domain.handle,
        addr: buf.addr(),
        len: SIZE,
        access: LOCAL | REMOTE,
        ep: ep.handle,
        ..Default::default()
    })?;
    ensure!(bound.key == KFI_KEY_NOTAVAIL, "it has a key");
    let region = bound.handle;
    let slots = dev.key_alloc(region, 2)?;
    ensure!(with_key(dev)?.is_empty(), "a slot has a key");
    // One slot before the endpoint is enabled, one when it is connected.
    let early = side.assign(slots[0], 0, SIZE / 2, REMOTE)?;
    let other = own_endpoint(&side)?;
    let plain = dev.ep_open(&EpOpen {
        flags: 0,
        domain: side.domain.handle,
        context: opts.context,
        iov_limit: KFI_IOV_MAX as u32,
        ..Default::default()
    })?;
    for (ep, cq) in [&ep, &other, &plain].into_iter().zip(&cqs) {
        dev.bind(ep.handle, side.eq.handle, 0)?;
        dev.bind(ep.handle, cq.handle, KFI_TRANSMIT | KFI_RECV)?;
        dev.enable(ep.handle)?;
        dev.connect(ep.handle, ctx.env.peer_at(port), &[])?;
        let up = side.event(KFI_CONNECTED)?;
        ensure!(up.raw.object == ep.handle, "{:?}", up.raw);
        ctx.barrier("connected")?;
    }
    let late = side.assign(slots[1], SIZE / 2, SIZE / 2, REMOTE)?;
    ctx.ctl.send(&[early, late])?;
    ctx.barrier("tried")?;
    buf.check_value(0, SIZE as usize, WRITTEN)?;
    buf.clear(0);
    let end = Instant::now() + sys::patience(WAIT);
    while buf.get64(0) == 0 {
        ensure!(Instant::now() < end, "no write arrives");
        std::thread::sleep(Duration::from_micros(20));
    }
    dev.close(ep.handle)?;
    buf.clear(0x11);
    buf.check_value(0, SIZE as usize, 0x11)?;
    std::thread::sleep(Duration::from_millis(100));
    buf.check_value(0, SIZE as usize, 0x11)
        .context("100 ms later")?;
    ctx.barrier("ended")?;
    ensure!(with_key(dev)?.is_empty(), "a slot has a key still");
    for slot in slots {
        let again = dev.key_assign(slot, 0, 1, REMOTE);
        refused(again, libc::ENOENT, "assigning it")?;
        refused(dev.close(region), libc::EBUSY, "closing with a slot")?;
        dev.close(slot)?;
    }
    dev.close(region)?;
    ensure!(vm_pin() == before, "pages are left");
    Ok(())
}

/// Number of connections of a role; there are four roles.
const OF_ROLE: usize = LANES / 4;
/// Rights of each role's peers to the same bytes. The last role has no endpoint-scoped keys.
const ROLES: [(&str, u64); 4] = [
    ("reader", KFI_REMOTE_READ),
    ("writer", KFI_REMOTE_WRITE),
    ("both", REMOTE),
    ("common reader", KFI_REMOTE_READ),
];

/// P2: different peers have different rights to the same bytes: each through the key for its
/// endpoint, and through no other peer's.
fn same_bytes(ctx: &mut Ctx) -> Result<()> {
    const AT: u64 = 100;
    const LEN: u64 = 3000;
    let turns = if sys::slowness() > 1 { 4 } else { 15 };
    let mut lanes = Lanes::new(ctx)?;
    has_own_keys(ctx, &lanes.side)?;
    let own = LANES - OF_ROLE;
    lanes.own_keys = if ctx.first() { own } else { 0 };
    let buf = Buf::new(PAGE as usize)?;
    let region = match ctx.first() {
        true => lanes.side.reg(&buf, LOCAL | REMOTE)?.handle,
        false => 0,
    };
    let right = |lane: usize, write: bool| {
        let wanted = if write {
            KFI_REMOTE_WRITE
        } else {
            KFI_REMOTE_READ
        };
        ROLES[lane / OF_ROLE].1 & wanted != 0
    };
    for turn in 0..turns {
        lanes.connect(ctx)?;
        // The lane whose key each connection tries in the end: over the turns every other one's.
        let victim = |lane: usize| (lane + 1 + turn * 15 / turns) % LANES;
        if ctx.first() {
            buf.clear(0x5a);
            let mut keys = Vec::new();
            for (lane, ep) in lanes.eps.iter().enumerate() {
                let ep = if lane < own { *ep } else { 0 };
                let slot = lanes.side.dev.key_alloc_for(region, ep, 1)?[0];
                let access = ROLES[lane / OF_ROLE].1;
                keys.push((slot, lanes.side.assign(slot, AT, LEN, access)?));
            }
            let remotes: Vec<Remote> = keys.iter().map(|(_, r)| *r).collect();
            ctx.ctl.send(&remotes)?;
            ctx.barrier("tried")?;
            let (at, end) = (AT as usize, (AT + LEN) as usize);
            buf.check_value(0, at, 0x5a)?;
            buf.check_value(at, end - at, WRITTEN)?;
            buf.check_value(end, PAGE as usize - end, 0x5a)?;
            buf.check_guards()?;
            for (slot, _) in keys {
                lanes.side.dev.close(slot)?;
            }
            continue;
        }
        let remotes: Vec<Remote> = ctx.ctl.recv()?;
        let attempt = |lane: usize, of: usize, write: bool| {
            let r = remotes[of];
            lanes.attempt(lane, write, r.len, r.addr, r.key)
        };
        for lane in 0..LANES {
            for write in [false, true] {
                if right(lane, write) {
                    let errno = attempt(lane, lane, write)?;
                    let who = ROLES[lane / OF_ROLE].0;
                    ensure!(errno == 0, "{who} {lane}, write {write}: errno {errno}");
                }
            }
        }
        for lane in 0..LANES {
            // In every fourth turn an access beyond the own key's rights.
            let (of, write) = match turn % 4 {
                0 if lane / OF_ROLE != 2 => (lane, !right(lane, true)),
                _ => (victim(lane), (turn + lane) % 2 == 0),
            };
            let shared = lane >= own && of >= own;
            let fine = (of == lane || shared) && right(of, write);
            let errno = attempt(lane, of, write)?;
            let wanted = if fine { 0 } else { libc::EACCES };
            ensure!(
                errno == wanted,
                "turn {turn}: lane {lane} by the key of {of}, write {write}: errno {errno}"
            );
        }
        ctx.barrier("tried")?;
    }
    ctx.barrier("done")
}

/// P4: neither endpoint-scoped keys, nor values near them, reach anything from another endpoint of
/// the same domain, with endpoint-scoped keys or without.
fn guess(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u32 = 48;
    let mut lanes = Lanes::new(ctx)?;
    has_own_keys(ctx, &lanes.side)?;
    if !ctx.first() {
        try_each(ctx, &mut lanes, Vec::new())?;
        return ctx.barrier("done");
    }
    lanes.own_keys = LANES / 2;
    let secret = Buf::new((1 << 20) + 8192)?;
    secret.clear(0x66);
    // An endpoint that is never connected, so no peer may reach memory bound to it.
    let ep = own_endpoint(&lanes.side)?.handle;
    let dev = &lanes.side.dev;
    let region = lanes.side.reg(&secret, LOCAL | REMOTE)?.handle;
    let mut slots = dev.key_alloc_for(region, ep, COUNT)?;
    let mut entries: Vec<_> = slots.iter().map(|slot| entry(*slot, 0, PAGE)).collect();
    let got = dev.key_assign_many(&mut entries)?;
    ensure!(got == (COUNT as usize, 0), "{got:?}");
    // And a key over a window registered by `ib_reg_user_mr`.
    let full = dev.key_alloc_for(region, ep, 1)?[0];
    let wide = lanes.side.assign(full, 0, secret.len() as u64, REMOTE)?;
    slots.push(full);
    let keys: Vec<u64> = entries.iter().map(|e| e.key).chain([wide.key]).collect();
    let middle = keys[keys.len() / 2];
    let mut guesses: Vec<(&str, u64)> = keys.iter().map(|key| ("live", *key)).collect();
    for key in [middle, wide.key] {
        guesses.extend(near(key, 8));
    }
    let try_of = |(i, (what, key)): (usize, &(&str, u64))| {
        let what = format!("{what}: {key:#x}");
        let key = key & u64::from(u32::MAX);
        Try::new(&what, i % 3 != 0, 8, secret.addr(), key, false)
    };
    // Once on connections with endpoint-scoped keys first, once on the others.
    let mut list: Vec<_> = guesses.iter().enumerate().map(try_of).collect();
    let half: Vec<_> = list[..keys.len()].to_vec();
    list.extend(half.into_iter().rev());
    try_each(ctx, &mut lanes, list)?;
    secret.check_value(0, secret.len(), 0x66)?;
    let ended = lanes.side.dev.key_revoke_all(KFI_REVOKE_EP, ep)?;
    ensure!(ended == slots.len() as u64, "{ended} keys were bound");
    ctx.barrier("done")
}

/// P4: neither keys under an auth key, nor values near them, reach anything from endpoints of the
/// same domain under another auth key. From endpoints under the same auth key each works.
fn guess_auth(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u32 = 32;
    let mut lanes = Lanes::under(ctx, &[KEY, OTHER])?;
    lanes.auth = &[OTHER];
    if !ctx.first() {
        try_each(ctx, &mut lanes, Vec::new())?;
        lanes.auth = &[KEY];
        try_each(ctx, &mut lanes, Vec::new())?;
        return ctx.barrier("done");
    }
    let secret = Buf::new((1 << 20) + 8192)?;
    secret.clear(0x66);
    let dev = &lanes.side.dev;
    let region = lanes.side.reg(&secret, LOCAL | REMOTE)?.handle;
    let slots = auth::slots(dev, region, KEY, COUNT + 1)?;
    let (fast, full) = slots.split_at(COUNT as usize);
    let mut entries: Vec<_> = fast.iter().map(|slot| entry(*slot, 0, PAGE)).collect();
    let got = dev.key_assign_many(&mut entries)?;
    ensure!(got == (COUNT as usize, 0), "{got:?}");
    let wide = lanes.side.assign(full[0], 0, secret.len() as u64, REMOTE)?;
    let keys: Vec<u64> = entries.iter().map(|e| e.key).chain([wide.key]).collect();
    let mut guesses: Vec<(&str, u64)> = keys.iter().map(|key| ("live", *key)).collect();
    for key in [keys[keys.len() / 2], wide.key] {
        guesses.extend(near(key, 8));
    }
    let mask = match ctx.provider() {
        "kverbs" => u64::from(u32::MAX),
        _ => u64::MAX,
    };
    let addr = secret.addr();
    let try_of = |(i, (what, key)): (usize, &(&str, u64))| {
        let what = format!("{what}: {key:#x}");
        Try::new(&what, i % 3 != 0, 8, addr, key & mask, false)
    };
    let list = guesses.iter().enumerate().map(try_of).collect();
    try_each(ctx, &mut lanes, list)?;
    secret.check_value(0, secret.len(), 0x66)?;
    lanes.auth = &[KEY];
    let works = |key: &u64| Try::new("with the auth key", false, 8, addr, *key, true);
    try_each(ctx, &mut lanes, keys.iter().map(works).collect())?;
    let ended = auth::revoke_keys(&lanes.side.dev, KEY)?;
    ensure!(ended == slots.len() as u64, "{ended} keys were under it");
    ctx.barrier("done")
}
