// SPDX-License-Identifier: MIT OR Apache-2.0

//! Each user has a share of resources that no memory cgroup bounds: key slots and connection requests.

use super::accounts::{start_user, user};
use super::devices::{scattered, PAGE};
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::{skip, Ctx, Env, Test, ONE, SHM};
use crate::pair::{Opts, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{self, Dev};
use crate::sys::{rights, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::fs;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("keys.p12_slots_beyond_a_users_share_are_refused", slots)
        .on(ONE | SHM)
        .seconds(10),
    Test::alone(
        "keys.p12_slots_of_subordinate_users_are_of_their_users_share",
        subordinates,
    )
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

/// Runs `f` in a child as a subordinate user of user `id`: a user of another number, in a user namespace
/// that user `id` has created.
fn run_subordinate(id: u32, f: impl FnOnce() -> Result<()>) -> Result<()> {
    const SUBORDINATE: u32 = 310_000;
    // 1: the namespace exists. 2: it has users. 3: there are no user namespaces.
    let step = Map::shared(4096)?;
    let enter = || {
        if rights::unshare(libc::CLONE_NEWUSER).is_err() {
            step.store32(0, 3);
            return Ok(());
        }
        step.store32(0, 1);
        until(
            "the users",
            WAIT,
            || Ok((step.load32(0) == 2).then_some(())),
        )?;
        rights::become_user(1)?;
        f()
    };
    let child = start_user(id, 1 << 30, || Ok(()), enter)?;
    until("the user namespace", WAIT, || {
        Ok((step.load32(0) != 0).then_some(()))
    })?;
    if step.load32(0) == 1 {
        // As newuidmap(1) does for a range in /etc/subuid.
        for map in ["uid_map", "gid_map"] {
            let users = format!("0 {id} 1\n1 {SUBORDINATE} 1\n");
            fs::write(format!("/proc/{}/{map}", child.pid()), users)?;
        }
        step.store32(0, 2);
    }
    child.end(Duration::from_secs(60))?;
    match step.load32(0) {
        3 => skip("there are no user namespaces"),
        _ => Ok(()),
    }
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
    run(GREEDY, || no_slot(&env))?;
    drop(dev);
    run(GREEDY, || {
        one_slot(&env)??;
        Ok(())
    })
}

/// Checks that the user's share is used up.
fn no_slot(env: &Env) -> Result<()> {
    // Over kverbs a region is of the share, too.
    let slot = one_slot(env);
    let errno = match &slot {
        Ok(slot) => errno(slot),
        Err(e) => e.downcast_ref::<raw::CallError>().map(|e| e.errno.0),
    };
    ensure!(
        errno == Some(libc::EDQUOT),
        "a slot of the same user: {slot:?}"
    );
    Ok(())
}

/// A user cannot have more slots as its subordinate users, nor the reverse.
fn subordinates(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        // The parameter is one for both nodes.
        return Ok(());
    }
    let env = ctx.env.clone();
    let _percent = Parameter::set("user_slots", 1)?;
    // Kept here, so that the slots stay when the children exit.
    let mut dev = Dev::open()?;
    run(GREEDY, || {
        use_up(&Side::on(dev.dup()?, &env)?)?;
        Ok(())
    })?;
    run_subordinate(GREEDY, || no_slot(&env))?;
    dev = Dev::open()?;
    run_subordinate(GREEDY, || {
        use_up(&Side::on(dev.dup()?, &env)?)?;
        Ok(())
    })?;
    run(GREEDY, || no_slot(&env))?;
    run(OTHER, || {
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
