// SPDX-License-Identifier: MIT OR Apache-2.0

//! Devices that behave like other cards (`consumers/tests/fake-device`): keys over each profile,
//! refused verbs, a removal inside a verb, a fence that is none, DMA that bounces.

use super::accounts::user;
use super::death::fresh_transfer;
use super::key_policy::{Parameter, REVOKE};
use super::keys::{try_all, Bench, Try};
use super::modules::add_link;
use super::refused;
use crate::buf::Buf;
use crate::fault::calls::memory::touch;
use crate::harness::caps::OTHER_CARDS;
use crate::harness::guest::{load, unload, until};
use crate::harness::leaks::resting;
use crate::harness::{Ctx, Env, Test, Topology, LONG as LONG_RUN, NETNS};
use crate::op::{self, iov};
use crate::pair::{connect, own_info, Opts, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::profile::{self, Fake, Profile, State, PROFILES};
use crate::raw::{hints, Dev};
use crate::sys::{self, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "devices.p04_keys_over_each_profile_come_no_second_time",
        |c| {
            PROFILES
                .iter()
                .try_for_each(|profile| cycles(c, profile).with_context(|| profile.name.to_owned()))
        },
    )
    .seconds(200)
    .on(NETNS | LONG_RUN)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.memory_in_pieces_moves_over_each_profile",
        pieces_over_each,
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_window_beyond_the_page_list_is_refused_over_each_profile",
        beyond_each,
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.messages_of_3_mib_fit_where_regions_have_pieces_of_1_mib",
        messages,
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p04_large_keys_come_no_second_time_where_regions_return",
        large,
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.large_keys_and_pieces_beyond_the_share_of_a_user_end_with_edquot",
        counted,
    )
    .seconds(20)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p11_refused_verb_fails_its_call_and_leaves_nothing",
        refusals,
    )
    .seconds(60)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair(
        "devices.p11_removal_inside_each_verb_ends_all_objects",
        removals,
    )
    .seconds(60)
    .on(NETNS)
    .needs(OTHER_CARDS),
    Test::pair("devices.p03_lying_fence_is_noticed", lies)
        .seconds(20)
        .on(NETNS)
        .needs(OTHER_CARDS),
    Test::pair("devices.bouncing_dma_is_refused", bounces)
        .seconds(10)
        .on(NETNS)
        .needs(OTHER_CARDS),
    Test::pair(
        "devices.profile_of_a_run_is_back_after_a_test",
        profile_returns,
    )
    .seconds(5)
    .on(NETNS)
    .needs(OTHER_CARDS),
];

pub(super) const PAGE: u64 = 4096;

/// Returns the bytes in a line of `/proc/meminfo`.
fn memory(name: &str) -> Result<u64> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let line = info.lines().find_map(|l| l.strip_prefix(name));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("no line for {name}"))? * 1024)
}

/// Returns the bytes of the kernel's allocations, without free objects that it may reclaim.
fn slab() -> Result<u64> {
    memory("SUnreclaim")
}

/// Returns the bytes by which [`slab`] may grow: other work of the machine, and the ledger of key
/// values. KASAN keeps freed objects, up to 1/32 of all memory (`QUARANTINE_FRACTION` in
/// `mm/kasan/quarantine.c`).
fn slack() -> Result<u64> {
    let kept = if sys::slowness() > 1 {
        memory("MemTotal")? / 32
    } else {
        0
    };
    Ok((4 << 20) + kept)
}

/// Memory regions of the devices, at a time when each slot has a key.
struct Live {
    regions: i64,
    resting: u64,
}

impl Live {
    fn read(fake: &Fake) -> Result<Self> {
        Ok(Self {
            regions: fake.regions()?,
            resting: resting(),
        })
    }

    /// Fails if there are more regions than before, beside those that rest.
    fn check(&self, fake: &Fake) -> Result<()> {
        let now = Self::read(fake)?;
        let more = now.regions - self.regions;
        let resting = now.resting - self.resting;
        ensure!(
            more <= resting as i64,
            "{more} regions more, {resting} of them rest"
        );
        Ok(())
    }
}

/// P4: a slot gets very many keys. No value comes twice, memory does not grow, and an old key is
/// refused. With invalidations, nearly no key costs a command to the firmware.
fn cycles(ctx: &mut Ctx, profile: &Profile) -> Result<()> {
    let count: u64 = match ctx.env.topology {
        Topology::Long => 100_000,
        _ => 5_000,
    };
    let fake = own_kernel(ctx).then(|| Fake::with(profile)).transpose()?;
    ctx.barrier("the card is there")?;
    let mut bench = Bench::new(ctx, PAGE as usize)?;
    // From now on, only the slot's regions come and go.
    ctx.barrier("both are there")?;
    let mut list = Vec::new();
    let mut slot = 0;
    if let (true, Some(fake)) = (ctx.first(), &fake) {
        slot = bench.side.dev.key_alloc(bench.region, 1)?[0];
        let mut had = HashSet::new();
        let mut keys: Vec<Remote> = Vec::new();
        let (mut half, mut live) = (0, Live::read(fake)?);
        let before = fake.commands()?;
        let start = Instant::now();
        for number in 0..count {
            let remote = bench
                .side
                .assign(slot, 0, PAGE, REMOTE)
                .with_context(|| format!("key {number}"))?;
            ensure!(had.insert(remote.key), "{:#x} came twice", remote.key);
            keys.push(remote);
            if number == count / 2 {
                half = slab()?;
                live = Live::read(fake)?;
            }
            if number + 1 < count {
                bench.side.dev.key_revoke(slot)?;
            }
        }
        let commands = fake.commands()? - before;
        let grown = slab()?.saturating_sub(half);
        eprintln!(
            "{}: {count} keys in {:.1} s, {commands} commands, {grown} bytes more",
            profile.name,
            start.elapsed().as_secs_f64()
        );
        ensure!(grown < slack()?, "memory has grown by {grown} bytes");
        live.check(fake)?;
        // A region is replaced after 97 of its keys; some that it gets have no value left. A deregistering card
        // needs two commands for a key. An index without a value, after 256 keys, costs two more, to set it
        // aside.
        let most = if profile.invalidates {
            count / 20 + 40
        } else {
            2 * count + count / 128 + 40
        };
        ensure!(commands <= most, "{commands} commands, more than {most}");
        list = newest_alone(&keys);
    }
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        bench.side.dev.key_revoke(slot)?;
    }
    drop(bench);
    ctx.barrier("over")?;
    drop(fake);
    ctx.barrier("the card is gone")
}

pub(super) fn attempt(what: &str, remote: &Remote, fine: bool) -> Try {
    Try::new(what, true, 64, remote.addr, remote.key, fine)
}

/// Returns accesses by the newest of a slot's keys, which is valid, and by three of the old ones.
fn newest_alone(keys: &[Remote]) -> Vec<Try> {
    let last = keys.len() - 1;
    let old = [last - 1, last / 2, 0];
    let old = old.map(|at| attempt(&format!("key {at}"), &keys[at], false));
    let mut list = vec![attempt("the last key", &keys[last], true)];
    list.extend(old);
    list
}

/// Returns whether this node changes the devices of its kernel.
fn own_kernel(ctx: &Ctx) -> bool {
    ctx.first() || !ctx.env.topology.is_one_kernel()
}

/// Bytes of a key that no slot's reserve covers.
const LARGE: usize = 300 * PAGE as usize;

/// Returns memory whose neighbouring pages are rarely adjacent.
pub(super) fn scattered(len: usize) -> Result<Buf> {
    let map = Map::anon(len)?;
    touch(&map);
    Ok(Buf::whole(map))
}

/// Memory in more physical pieces than a work request has entries, and a key of all of it.
fn pieces_over_each(ctx: &mut Ctx) -> Result<()> {
    for profile in PROFILES {
        let fake = ctx.first().then(|| Fake::with(profile)).transpose()?;
        ctx.barrier("the card is there")?;
        let bench = Bench::over(ctx, scattered(LARGE)?)?;
        if let Some(fake) = &fake {
            let all = fake.counters()?;
            let by_device = all["reg_user_mr"].all > 0;
            // Otherwise by fast registrations, of 256 pages at most.
            ensure!(
                by_device || all["alloc_mr"].all > 1,
                "{}: the memory is not in many pieces",
                profile.name
            );
        }
        pieces(ctx, bench, LARGE).with_context(|| profile.name.to_owned())?;
        ctx.barrier("over")?;
        if let Some(fake) = &fake {
            let without = fake.counters()?["without_udata"].all;
            ensure!(
                without == 0,
                "{}: {without} calls would have read through a null pointer",
                profile.name
            );
        }
        drop(fake);
        ctx.barrier("the card is gone")?;
    }
    Ok(())
}

fn pieces(ctx: &mut Ctx, mut bench: Bench, len: usize) -> Result<()> {
    bench.fresh(ctx)?;
    if !ctx.first() {
        let (parts, whole): (Vec<Remote>, Remote) = ctx.ctl.recv()?;
        for part in &parts {
            let at = part.addr - parts[0].addr;
            bench.buf.fill_part(at as usize, part.len as usize, 5);
        }
        for part in &parts {
            let at = part.addr - parts[0].addr;
            let piece = [iov(bench.region, at, part.len)];
            let errno = bench.run(op::write(1, &piece, part.addr, part.key))?;
            ensure!(errno == 0, "part at {at}: errno {errno}");
        }
        bench.buf.clear(0);
        ensure!(bench.read(whole.len, whole.addr, whole.key)? == 0, "whole");
        bench.buf.check_part(0, len / 2, 5)?;
        bench.buf.check_part(len / 2, len / 2, 5)?;
        return ctx.barrier("written");
    }
    bench.buf.clear(0);
    let side = &bench.side;
    let half = (len / 2) as u64;
    let slots = side.dev.key_alloc(bench.region, 3)?;
    let parts = vec![
        side.assign(slots[0], 0, half, REMOTE)?,
        side.assign(slots[1], half, half, REMOTE)?,
    ];
    // The page lists of all profiles are long enough.
    let whole = side
        .assign(slots[2], 0, len as u64, REMOTE)
        .context("the whole window")?;
    ctx.ctl.send(&(parts, whole))?;
    ctx.barrier("written")?;
    bench.buf.check_part(0, len / 2, 5)?;
    bench.buf.check_part(len / 2, len / 2, 5)
}

/// P4: a card chooses the value of a full registration, and gives rights before kverbs knows the value. So a
/// window of scattered memory beyond the page list, or of more than 64 MiB, is refused, with the limit that
/// getinfo names.
fn beyond_each(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return ctx.barrier("over");
    }
    for profile in PROFILES {
        let fake = Fake::with(profile)?;
        beyond(ctx).with_context(|| profile.name.to_owned())?;
        drop(fake);
    }
    ctx.barrier("over")
}

fn beyond(ctx: &Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let most = u64::from(own_info(&side.dev, &ctx.env)?.max_key_pages);
    ensure!((511..=16384).contains(&most), "{most} pages");
    let buf = scattered(((most + 1) * PAGE) as usize)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slot = side.dev.key_alloc(region, 1)?[0];
    let assign = |at, len| side.dev.key_assign(slot, at, len, REMOTE);
    refused(assign(0, (most + 1) * PAGE), libc::EMSGSIZE, "a page more")?;
    refused(assign(PAGE - 1, most * PAGE), libc::EMSGSIZE, "unaligned")?;
    assign(PAGE, most * PAGE).context("the longest window")?;
    Ok(())
}

/// Over irdma a region in many pieces consists of registrations of 1 MiB. An endpoint with an `iov_limit`
/// of 1 has four of them for a message.
fn messages(ctx: &mut Ctx) -> Result<()> {
    const MIB: u64 = 1 << 20;
    const LEN: u64 = 3 * MIB;
    let irdma = profile::find("irdma")?;
    let fake = ctx.first().then(|| Fake::with(irdma)).transpose()?;
    ctx.barrier("the card is there")?;
    let bench = Bench::over(ctx, scattered(8 << 20)?)?;
    let cq = bench.side.cq(0, KFI_CQ_FORMAT_DATA)?;
    let opts = Opts {
        iov_limit: 1,
        ..Opts::default()
    };
    let ep = connect(ctx, &bench.side, &opts, &cq)?.handle;
    let submit = |entry| bench.side.dev.submit(ep, &[entry]);
    let part = |start, len| [iov(bench.region, start, len)];
    for (start, len) in [(PAGE, LEN + MIB), (0, LEN + MIB + 1)] {
        let posts = [
            op::recv(1, &part(start, len)),
            op::send(1, &part(start, len)),
        ];
        for entry in posts {
            refused(submit(entry), libc::EMSGSIZE, "a longer message")?;
        }
    }
    for (start, len) in [(PAGE, LEN), (0, LEN + MIB)] {
        if ctx.first() {
            bench.buf.clear(0);
            submit(op::recv(2, &part(start, len)))?;
        } else {
            bench.buf.fill_part(start as usize, len as usize, 9);
        }
        ctx.barrier("posted")?;
        if !ctx.first() {
            submit(op::send(2, &part(start, len)))?;
        }
        let done = cq.wait(WAIT)?;
        ensure!(done.err == 0, "{len} bytes: errno {}", done.err);
        if ctx.first() {
            bench.buf.check_part(start as usize, len as usize, 9)?;
        }
        ctx.barrier("checked")?;
    }
    bench.side.dev.close(ep)?;
    drop(bench);
    ctx.barrier("over")?;
    drop(fake);
    ctx.barrier("the card is gone")
}

/// P4: a slot gets more large keys than an index has values, over a device that returns the region that
/// was freed last. Each key is new, and the old ones are refused.
fn large(ctx: &mut Ctx) -> Result<()> {
    const KEYS: usize = 300;
    let fake = ctx.first().then(|| Fake::with(&PROFILES[0])).transpose()?;
    ctx.barrier("the card is there")?;
    let mut bench = Bench::over(ctx, scattered(LARGE)?)?;
    ctx.barrier("both are there")?;
    let mut list = Vec::new();
    let mut slot = 0;
    if let Some(fake) = &fake {
        slot = bench.side.dev.key_alloc(bench.region, 1)?[0];
        let mut had = HashSet::new();
        let mut keys: Vec<Remote> = Vec::new();
        let mut live = Live::read(fake)?;
        for number in 0..KEYS {
            let remote = bench
                .side
                .assign(slot, 0, LARGE as u64, REMOTE)
                .with_context(|| format!("key {number}"))?;
            ensure!(had.insert(remote.key), "{:#x} came twice", remote.key);
            keys.push(remote);
            if number == 0 {
                live = Live::read(fake)?;
            }
            if number + 1 < KEYS {
                bench.side.dev.key_revoke(slot)?;
            }
        }
        live.check(fake)?;
        list = newest_alone(&keys);
    }
    try_all(ctx, &mut bench, list)?;
    if ctx.first() {
        bench.side.dev.key_revoke(slot)?;
    }
    drop(bench);
    ctx.barrier("over")?;
    drop(fake);
    ctx.barrier("the card is gone")
}

/// The page lists of large keys, and of the pieces of a region over irdma, count for the user.
fn counted(ctx: &mut Ctx) -> Result<()> {
    const USER_MIB: &str = "/sys/module/kverbs/parameters/user_mib";
    const LEN: usize = 16 << 20;
    const USER: u32 = 2203;
    if !ctx.first() {
        return ctx.barrier("over");
    }
    for name in ["mlx5", "irdma"] {
        let fake = Fake::with(profile::find(name)?)?;
        std::fs::write(USER_MIB, "4")?;
        let env = ctx.env.clone();
        // Pinned pages count for each region anew.
        let result = user(
            USER,
            2 << 30,
            || Ok(()),
            || {
                let side = Side::of(&env)?;
                let buf = scattered(LEN)?;
                match name {
                    "irdma" => many_regions(&side, &buf),
                    _ => many_keys(&side, &buf),
                }
            },
        );
        std::fs::write(USER_MIB, "0")?;
        drop(fake);
        result.context(name)?;
    }
    ctx.barrier("over")
}

/// Assigns keys of 64 KiB each until 4 MiB are full.
fn many_keys(side: &Side, buf: &Buf) -> Result<()> {
    let region = side.reg(buf, LOCAL | REMOTE)?.handle;
    let slots = side.dev.key_alloc(region, 100)?;
    let assign = |slot: u64| side.dev.key_assign(slot, 0, buf.len() as u64, REMOTE);
    let full = slots.iter().position(|slot| assign(*slot).is_err());
    let full = full.context("100 keys are not limited")?;
    refused(assign(slots[full]), libc::EDQUOT, "a key too many")?;
    ensure!((30..64).contains(&full), "{full} keys are assigned");
    side.dev.key_revoke(slots[0])?;
    assign(slots[full]).context("after a revocation")?;
    Ok(())
}

/// Registers memory, of which each time takes 96 KiB, until 4 MiB are full.
fn many_regions(side: &Side, buf: &Buf) -> Result<()> {
    let mut regions = Vec::new();
    let last = loop {
        ensure!(regions.len() < 100, "100 regions are not limited");
        match side.reg(buf, LOCAL | REMOTE) {
            Ok(region) => regions.push(region.handle),
            Err(e) => break Err::<(), _>(e),
        }
    };
    refused(last, libc::EDQUOT, "a region too many")?;
    ensure!(
        (20..43).contains(&regions.len()),
        "{} regions",
        regions.len()
    );
    side.dev.close(regions[0])?;
    side.reg(buf, LOCAL | REMOTE).context("after a close")?;
    Ok(())
}

/// The verbs that the module refuses.
const REFUSED: [&str; 9] = [
    "alloc_pd",
    "create_cq",
    "create_qp",
    "modify_qp",
    "alloc_mr",
    "reg_user_mr",
    "map_mr_sg",
    "post_send",
    "post_recv",
];

/// A node that works with itself: memory, keys, a connection, a write and a message.
fn work(env: &Env) -> Result<()> {
    const LEN: u64 = 300 * PAGE;
    let server = Side::of(env)?;
    let client = Side::of(env)?;
    let buf = scattered(LEN as usize)?;
    let region = server.reg(&buf, LOCAL | REMOTE)?.handle;
    // More than the fast registrations of a region cover.
    let much = scattered(5 << 20)?;
    server.reg(&much, LOCAL)?;
    let (slot, remote) = server.export(region, 0, PAGE, REMOTE)?;
    let large = server.dev.key_alloc(region, 1)?[0];
    server.dev.key_assign(large, 0, LEN, REMOTE)?;
    server.dev.key_revoke(large)?;
    let own = client.reg(&buf, LOCAL)?.handle;
    let (cq, peer_cq) = (
        client.cq(0, KFI_CQ_FORMAT_DATA)?,
        server.cq(0, KFI_CQ_FORMAT_DATA)?,
    );
    let (_, at) = server.listen(env.at(0), 0)?;
    let ep = client.endpoint(&Opts::default(), &cq, 0)?.handle;
    client.dev.connect(ep, at, &[])?;
    let asked = event(&server, KFI_CONNREQ)?;
    let answers = server.endpoint(&Opts::default(), &peer_cq, asked.raw.connreq)?;
    server
        .dev
        .submit(answers.handle, &[op::recv(7, &[iov(region, PAGE, 64)])])?;
    server.dev.accept(answers.handle, &[])?;
    event(&server, KFI_CONNECTED)?;
    event(&client, KFI_CONNECTED)?;
    let piece = [iov(own, 0, 64)];
    for entry in [
        op::write(1, &piece, remote.addr, remote.key),
        op::send(2, &piece),
    ] {
        client.dev.submit(ep, &[entry])?;
        let done = cq.wait(WAIT)?;
        ensure!(done.err == 0, "it completes with errno {}", done.err);
    }
    server.dev.key_revoke(slot)?;
    Ok(())
}

/// Waits for an event of a kind. Another event ends the wait.
fn event(side: &Side, kind: u32) -> Result<crate::raw::Event> {
    let event = side.dev.eq_wait(&side.eq, Duration::from_secs(10))?;
    let errno = sys::Errno(event.raw.err as i32);
    ensure!(
        event.raw.event == kind,
        "event {}: {errno}",
        event.raw.event
    );
    Ok(event)
}

/// P11: each verb is refused for ever, and then once. A refusal is an error of a call or a completion;
/// afterwards the same work is done.
fn refusals(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let fake = Fake::with(&PROFILES[0])?;
        work(&ctx.env).context("without a refusal")?;
        for verb in REFUSED {
            for (errno, times) in [(libc::ENOMEM, -1), (libc::EIO, -1), (libc::ENOMEM, 1)] {
                let what = format!("{verb} refused {times} times with {}", sys::Errno(errno));
                fake.set(&format!("reset=1 refuse={verb}:{errno}:0:{times}"))?;
                let start = Instant::now();
                let worked = work(&ctx.env);
                let took = start.elapsed();
                let refused = fake.counters()?[verb].refused;
                match &worked {
                    Ok(()) => eprintln!("{what}: {refused} refusals, and it works"),
                    Err(e) => eprintln!("{what}: {refused} refusals, {e:#} after {took:.1?}"),
                }
                ensure!(refused > 0, "{what}: it was not called");
                ensure!(times > 0 || worked.is_err(), "{what}: it works");
                ensure!(took < sys::patience(Duration::from_secs(45)), "{what}");
                fake.set("reset=1")?;
                work(&ctx.env).with_context(|| format!("after {what}"))?;
            }
        }
        // A refused deregistration: kverbs tries again until the driver agrees.
        fake.set("reset=1 refuse=dereg_mr:12:0:3")?;
        work(&ctx.env).context("with three refused deregistrations")?;
        ensure!(fake.counters()?["dereg_mr"].refused == 3, "not refused");
        drop(fake);
    }
    ctx.barrier("over")?;
    fresh_transfer(ctx)
}

/// P11: the device is removed during a call of each verb. The work ends, with an error if the verb
/// creates or changes an object, and a new device works.
fn removals(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let fake = Fake::with(&PROFILES[0])?;
        // A removal takes 20 s with checkers.
        let step = if sys::slowness() > 1 { 4 } else { 1 };
        let ends = ["dereg_mr", "destroy_qp", "destroy_cq", "dealloc_pd"];
        // The provider posts requests in atomic context, where a call cannot wait for the removal.
        let late = ["post_send", "post_recv"];
        for verb in REFUSED.iter().chain(&ends).step_by(step) {
            // The removal begins while the call still waits.
            fake.set(&format!("reset=1 delay={verb}:200000 remove={verb}:1"))?;
            let worked = work(&ctx.env).map_err(|e| format!("{e:#}"));
            eprintln!("{verb}: {worked:?}");
            let may_work = ends.contains(verb) || late.contains(verb);
            ensure!(may_work || worked.is_err(), "{verb}: it works");
            let dev = Dev::open()?;
            until("the device is removed", WAIT, || {
                Ok(own_info(&dev, &ctx.env).is_err().then_some(()))
            })
            .with_context(|| (*verb).to_owned())?;
            // The name is free a moment later than the offer ends.
            until("the device is back", WAIT, || Ok(add_link(ctx).ok()))?;
            work(&ctx.env).with_context(|| format!("after a removal in {verb}"))?;
        }
        drop(fake);
    }
    ctx.barrier("over")?;
    fresh_transfer(ctx)
}

/// P3: over a device whose fence lies, a write by a revoked key arrives. So the tests of P3 can fail.
fn lies(ctx: &mut Ctx) -> Result<()> {
    for way in ["invalidate", "deregister"] {
        let fake = ctx.first().then(Fake::load).transpose()?;
        let set = || Parameter::set(REVOKE, way);
        let _policy = ctx.first().then(set).transpose()?;
        ctx.barrier("the card is there")?;
        let mut bench = Bench::new(ctx, PAGE as usize)?;
        for lying in [false, true] {
            bench.fresh(ctx)?;
            if let Some(fake) = &fake {
                fake.set(match lying {
                    true => "fence=lie lie_ms=60000",
                    false => "fence=real",
                })?;
                let (slot, remote) = bench.side.export(bench.region, 0, PAGE, REMOTE)?;
                bench.buf.clear(0);
                bench.side.dev.key_revoke(slot)?;
                ctx.ctl.send(&remote)?;
                ctx.barrier("written")?;
                let there = bench.buf.get(0) != 0;
                ensure!(there == lying, "{way}, lying {lying}: written {there}");
                // Ends the lie, whose memory ends with this test.
                fake.set("fence=real end_lies=1")?;
                bench.side.dev.close(slot)?;
            } else {
                let remote: Remote = ctx.ctl.recv()?;
                bench.buf.clear(0xff);
                let errno = bench.write(64, remote.addr, remote.key)?;
                ctx.barrier("written")?;
                ensure!((errno == 0) == lying, "{way}, lying {lying}: errno {errno}");
            }
        }
        drop(bench);
        ctx.barrier("over")?;
        drop(fake);
    }
    Ok(())
}

/// A device whose DMA bounces is not offered.
fn bounces(ctx: &mut Ctx) -> Result<()> {
    ctx.barrier("closed")?;
    if ctx.first() {
        let fake = Fake::load()?;
        unload("kverbs")?;
        fake.set("bounces=1")?;
        let loaded = load("kverbs");
        let dev = Dev::open()?;
        let offered = dev.getinfo(Some(&InfoEntry {
            prov_name: crate::raw::name_field("kverbs"),
            ..hints()
        }));
        unload("kverbs")?;
        fake.set("bounces=0")?;
        load("kverbs")?;
        drop(fake);
        loaded?;
        match offered {
            Ok(list) => ensure!(list.is_empty(), "{} entries", list.len()),
            other => refused(other, libc::ENODATA, "an offer")?,
        }
    }
    ctx.barrier("loaded")?;
    fresh_transfer(ctx)
}

/// A test that changes the devices, or loads kverbs anew, leaves a profile of the whole run as it was.
fn profile_returns(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let of_run = Fake::with(&PROFILES[0])?;
        let before = State::read()?;
        let of_test = Fake::with(&PROFILES[3])?;
        ensure!(State::read()? != before, "the test changes nothing");
        drop(of_test);
        let after = State::read()?;
        unload("kverbs")?;
        load("kverbs")?;
        let loaded = State::read()?;
        drop(of_run);
        ensure!(after == before, "{before:?}, then {after:?}");
        ensure!(
            loaded == before,
            "{before:?}, after a load of kverbs {loaded:?}"
        );
    }
    ctx.barrier("over")?;
    fresh_transfer(ctx)
}
