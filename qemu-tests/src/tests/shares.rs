// SPDX-License-Identifier: MIT OR Apache-2.0

//! Each user has a share of resources that no memory cgroup bounds: key slots and connection requests.

use super::accounts::user;
use super::devices::{scattered, PAGE};
use crate::buf::Buf;
use crate::harness::{Ctx, Env, Test, ONE, SHM};
use crate::pair::{Opts, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{self, Dev};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::fs;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("keys.p12_slots_beyond_a_users_share_are_refused", slots)
        .on(ONE | SHM)
        .seconds(10),
    Test::alone(
        "mr.p12_region_in_many_pieces_counts_its_registrations",
        pieces,
    )
    .verbs()
    .on(ONE)
    .seconds(10),
    Test::alone("cm.p12_requests_beyond_a_users_share_are_refused", requests)
        .on(SHM)
        .seconds(5),
];

/// The user whose share is used up, and another one.
const GREEDY: u32 = 3101;
const OTHER: u32 = 3102;

/// A parameter of the module, as it was when this is dropped.
struct Parameter {
    path: String,
    before: String,
}

impl Parameter {
    fn set(name: &str, to: u32) -> Result<Self> {
        let path = format!("/sys/module/kfabric/parameters/{name}");
        let before = fs::read_to_string(&path).with_context(|| path.clone())?;
        fs::write(&path, to.to_string())?;
        Ok(Self { path, before })
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(&self.path, self.before.trim());
    }
}

/// Runs `f` in a child of this user, with memory to lock.
fn run(id: u32, f: impl FnOnce() -> Result<()>) -> Result<()> {
    user(id, 1 << 30, || Ok(()), f)
}

/// The errno of a call that failed.
fn errno<T>(result: &raw::Result<T>) -> Option<i32> {
    result.as_ref().err().map(|e| e.errno.0)
}

/// Reserves key slots until there are no more; how many.
fn use_up(side: &Side) -> Result<u64> {
    let buf = Buf::new(4096)?;
    buf.clear(1);
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let mut all = 0;
    for part in [KFI_KEY_ALLOC_MAX, 256, 16, 1] {
        loop {
            let slots = side.dev.key_alloc(region, part);
            if errno(&slots) == Some(libc::EDQUOT) {
                break;
            }
            all += slots?.len() as u64;
        }
    }
    Ok(all)
}

fn one_slot(env: &Env) -> Result<raw::Result<Vec<u64>>> {
    let side = Side::of(env)?;
    let buf = Buf::new(4096)?;
    buf.clear(1);
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    Ok(side.dev.key_alloc(region, 1))
}

/// One user's slots do not use up a device's: another user finds some, and so does the same one afterwards.
fn slots(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        // The parameter is one for both nodes.
        return Ok(());
    }
    let env = ctx.env.clone();
    let _percent = Parameter::set("user_slots", 1)?;
    // Kept here, so that the slots stay when the child exits.
    let dev = Dev::open()?;
    run(GREEDY, || {
        let side = Side::on(dev.dup()?, &env)?;
        let share = side.domain.max_keys / 100;
        let all = use_up(&side)?;
        // A region may be one of them.
        ensure!(all == share || all + 1 == share, "{all} slots of {share}");
        Ok(())
    })?;
    run(OTHER, || {
        one_slot(&env)??;
        Ok(())
    })?;
    run(GREEDY, || {
        // Over kverbs a region is of the share, too.
        let slot = one_slot(&env);
        let errno = match &slot {
            Ok(slot) => errno(slot),
            Err(e) => e.downcast_ref::<raw::CallError>().map(|e| e.errno.0),
        };
        ensure!(
            errno == Some(libc::EDQUOT),
            "a slot of the same user: {slot:?}"
        );
        Ok(())
    })?;
    drop(dev);
    run(GREEDY, || {
        one_slot(&env)??;
        Ok(())
    })
}

/// Four fast registrations cover 1,024 scattered pages, so such a region takes four of the user's share.
fn pieces(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        // The parameter is one for both nodes.
        return Ok(());
    }
    let env = ctx.env.clone();
    let _percent = Parameter::set("user_slots", 1)?;
    run(GREEDY, || {
        let side = Side::of(&env)?;
        let buf = scattered(1024 * PAGE as usize)?;
        side.reg(&buf, LOCAL)?;
        let share = side.domain.max_keys / 100;
        // The region of the slots takes one.
        let all = use_up(&side)?;
        ensure!(all + 5 == share, "{all} slots of {share}");
        Ok(())
    })
}

/// A user whose event queues are full of connection requests gets no more, and peers are refused.
fn requests(ctx: &mut Ctx) -> Result<()> {
    const SHARE: usize = 8;
    const MORE: usize = 4;
    if !ctx.first() {
        return Ok(());
    }
    let env = ctx.env.clone();
    let _count = Parameter::set("user_requests", SHARE as u32)?;
    run(GREEDY, || {
        let server = Side::of(&env)?;
        let (pep, at) = server.listen(env.at(0), 0)?;
        let client = Side::of(&env)?;
        let cq = client.cq(64, 0)?;
        for _ in 0..SHARE + MORE {
            let ep = client.endpoint(&Opts::default(), &cq, 0)?;
            client.dev.connect(ep.handle, at, &[])?;
        }
        for _ in 0..MORE {
            client.event(KFI_CONN_ERROR)?;
        }
        let mut came = 0;
        while let Ok(event) = server.dev.eq_read(server.eq.handle, 0) {
            ensure!(event.raw.event == KFI_CONNREQ, "{:?}", event.raw);
            came += 1;
        }
        ensure!(came == SHARE, "{came} requests");
        // A request that was read and not answered counts all the same.
        let ep = client.endpoint(&Opts::default(), &cq, 0)?;
        client.dev.connect(ep.handle, at, &[])?;
        client.event(KFI_CONN_ERROR)?;
        server.dev.close(pep)?;
        Ok(())
    })?;
    run(OTHER, || {
        let server = Side::of(&env)?;
        let (_, at) = server.listen(env.at(0), 0)?;
        let client = Side::of(&env)?;
        let cq = client.cq(64, 0)?;
        let ep = client.endpoint(&Opts::default(), &cq, 0)?;
        client.dev.connect(ep.handle, at, &[])?;
        match server.dev.eq_wait(&server.eq, WAIT) {
            Ok(event) if event.raw.event == KFI_CONNREQ => Ok(()),
            other => bail!("another user's request: {other:?}"),
        }
    })
}
