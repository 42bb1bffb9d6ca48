// SPDX-License-Identifier: MIT OR Apache-2.0

//! Single-use keys: the first operation through one revokes it.

use super::refused;
use crate::buf::Buf;
use crate::harness::{skip, Ctx, Test};
use crate::lanes::{Lanes, LANES, WRITTEN};
use crate::op::{self, iov};
use crate::pair::{key_entries, Remote, Side, LOCAL, LONG, REMOTE};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "keys.p02_once_key_used_refuses_second_op",
        one_after_the_other,
    )
    .seconds(20),
    Test::pair("keys.p02_once_key_used_by_many_at_once_admits_one", at_once).seconds(30),
    Test::pair("keys.once_key_refusing_op_stays_valid", refusals).seconds(20),
    Test::alone("keys.once_key_unused_revokes_like_others", rules),
    Test::pair(
        "keys.once_key_used_and_assigned_by_two_succeeds_once",
        by_two,
    )
    .seconds(30),
];

/// Rights for every operation.
const ALL: u64 = REMOTE | KFI_ATOMIC;

/// Skips the test if no key revokes itself.
fn offered(side: &Side) -> Result<()> {
    if side.domain.caps & KFI_SINGLE_USE_KEYS == 0 {
        return skip("the device has no keys for one use");
    }
    Ok(())
}

fn assign_once(side: &Side, slot: u64, offset: u64, len: u64, access: u64) -> Result<Remote> {
    let mut call = KeyAssign {
        flags: KFI_KEY_SINGLE_USE,
        slot,
        offset,
        length: len,
        access,
        ..Default::default()
    };
    side.dev.call(&mut call)?;
    Ok(Remote {
        addr: call.remote_addr,
        key: call.key,
        len,
    })
}

/// Registers memory on node 1, with a slot for the whole.
fn target(lanes: &Lanes, len: usize) -> Result<(Buf, u64)> {
    let buf = Buf::new(len)?;
    buf.clear(0);
    let region = lanes.side.reg(&buf, LOCAL | ALL)?.handle;
    Ok((buf, lanes.side.dev.key_alloc(region, 1)?[0]))
}

/// One operation of each kind succeeds through a single-use key, and no other afterwards. The slot
/// shows that, and can be assigned again at once.
fn one_after_the_other(ctx: &mut Ctx) -> Result<()> {
    const LARGE: u64 = 5 << 20;
    let mut lanes = Lanes::new(ctx)?;
    offered(&lanes.side)?;
    lanes.connect(ctx)?;
    let kinds = ["write", "read", "atomic", "write all"];
    if ctx.first() {
        let (buf, slot) = target(&lanes, LARGE as usize)?;
        let mut told = Vec::new();
        for kind in kinds {
            let remote = assign_once(&lanes.side, slot, 0, LARGE, ALL)?;
            ensure!(!told.contains(&remote.key), "{kind}: a key again");
            told.push(remote.key);
            ctx.ctl.send(&remote)?;
            ctx.barrier("used")?;
            let listed = lanes.side.dev.obj_list()?;
            let found = listed.iter().find(|object| object.handle == slot);
            let state = crate::raw::field_text(&found.context("the slot")?.name);
            ensure!(state.starts_with("used"), "{kind}: the slot is {state:?}");
            ctx.barrier("seen")?;
            ctx.barrier("refused")?;
        }
        buf.check_value(16, LARGE as usize - 16, WRITTEN)?;
        // A used key is revoked like any other.
        lanes.side.dev.key_revoke(slot)?;
        refused(lanes.side.dev.key_revoke(slot), libc::EINVAL, "twice")?;
        return ctx.barrier("done");
    }
    let large = Buf::new(LARGE as usize)?;
    large.clear(WRITTEN);
    let region = lanes.side.reg(&large, LOCAL)?.handle;
    for (i, kind) in kinds.iter().enumerate() {
        let remote: Remote = ctx.ctl.recv()?;
        let (ep, cq) = (lanes.eps[i], &lanes.cqs[i]);
        let at = (remote.addr, remote.key);
        let piece = [iov(region, 0, 8)];
        let one = 1u64.to_ne_bytes();
        let sum = (KFI_ATOMIC_SUM, KFI_UINT64);
        let all = [iov(region, 0, LARGE)];
        let post = match *kind {
            "write" => op::write(1, &piece, at.0, at.1),
            "read" => op::read(1, &piece, at.0, at.1),
            "atomic" => op::atomic(KFI_OP_FETCH_ATOMIC, sum, &one, &piece, at),
            _ => {
                large.clear(WRITTEN);
                op::write(1, &all, at.0, at.1)
            }
        };
        lanes.side.dev.submit(ep, &[post])?;
        let entry = cq.wait(LONG)?;
        ensure!(entry.err == 0, "{kind}: {entry:?}");
        ctx.barrier("used")?;
        ctx.barrier("seen")?;
        // Another connection is refused as well.
        for lane in [i, LANES - 1 - i] {
            let errno = lanes.attempt(lane, lane == i, 8, at.0, at.1)?;
            ensure!(
                errno == libc::EACCES,
                "{kind} again, by {lane}: errno {errno}"
            );
        }
        ctx.barrier("refused")?;
    }
    ctx.barrier("done")
}

/// Sixteen connections use one key at once: exactly one operation succeeds.
fn at_once(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: usize = 12;
    let mut lanes = Lanes::new(ctx)?;
    offered(&lanes.side)?;
    let (buf, slot) = target(&lanes, 4096)?;
    for round in 0..ROUNDS {
        lanes.connect(ctx)?;
        if ctx.first() {
            buf.clear(0);
            let remote = assign_once(&lanes.side, slot, 0, 4096, ALL)?;
            ctx.ctl.send(&remote)?;
            ctx.barrier("tried")?;
            let bytes: Vec<u8> = (0..64).map(|at| buf.get(64 * at)).collect();
            let one = bytes.iter().filter(|byte| **byte != 0).count();
            ensure!(one == 1, "round {round}: {one} were written");
            continue;
        }
        let remote: Remote = ctx.ctl.recv()?;
        let lanes = &lanes;
        let errors = std::thread::scope(|scope| -> Result<Vec<i32>> {
            let each = |lane: usize| {
                let at = remote.addr + 64 * lane as u64;
                scope.spawn(move || lanes.attempt(lane, true, 8, at, remote.key))
            };
            let threads: Vec<_> = (0..LANES).map(each).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<i32>>| {
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread ended"))?
            };
            threads.into_iter().map(join).collect()
        })?;
        let good = errors.iter().filter(|errno| **errno == 0).count();
        let denied = errors.iter().filter(|e| **e == libc::EACCES).count();
        ensure!(
            (good, denied) == (1, LANES - 1),
            "round {round}: {errors:?}"
        );
        ctx.barrier("tried")?;
    }
    ctx.barrier("done")
}

/// Two threads assign a slot whose key is used up: one succeeds. The other gets `EBUSY`, and does
/// not revoke the new key in place of the used one.
fn by_two(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: usize = 40;
    let mut lanes = Lanes::new(ctx)?;
    offered(&lanes.side)?;
    lanes.connect(ctx)?;
    if !ctx.first() {
        for round in 0..ROUNDS {
            for use_ in ["the first", "the second"] {
                let remote: Remote = ctx.ctl.recv()?;
                let errno = lanes.attempt(0, true, 8, remote.addr, remote.key)?;
                ensure!(errno == 0, "round {round}, {use_} key: errno {errno}");
                ctx.barrier("used")?;
            }
        }
        return ctx.barrier("done");
    }
    let (_buf, slot) = target(&lanes, 4096)?;
    for round in 0..ROUNDS {
        let remote = assign_once(&lanes.side, slot, 0, 4096, ALL)?;
        ctx.ctl.send(&remote)?;
        ctx.barrier("used")?;
        let dev = &lanes.side.dev;
        let start = std::sync::Barrier::new(2);
        let assign = || {
            start.wait();
            let mut call = KeyAssign {
                flags: KFI_KEY_SINGLE_USE,
                slot,
                length: 4096,
                access: ALL,
                ..Default::default()
            };
            dev.call(&mut call).map(|()| call)
        };
        let made = std::thread::scope(|scope| {
            let threads = [scope.spawn(assign), scope.spawn(assign)];
            threads.map(|thread| thread.join().ok())
        });
        let mut told = None;
        for one in made {
            match one.context("a thread ended")? {
                Ok(call) => {
                    ensure!(told.is_none(), "round {round}: both have a key");
                    told = Some(call);
                }
                Err(e) => ensure!(e.errno.0 == libc::EBUSY, "round {round}: {e}"),
            }
        }
        let call = told.with_context(|| format!("round {round}: neither has a key"))?;
        ensure!(call.key != remote.key, "round {round}: the used key again");
        ctx.ctl.send(&Remote {
            addr: call.remote_addr,
            key: call.key,
            len: 4096,
        })?;
        ctx.barrier("used")?;
    }
    ctx.barrier("done")
}

/// A refused operation, and one that moves no byte, does not use the key up.
fn refusals(ctx: &mut Ctx) -> Result<()> {
    let mut lanes = Lanes::new(ctx)?;
    offered(&lanes.side)?;
    lanes.connect(ctx)?;
    if ctx.first() {
        let (_buf, slot) = target(&lanes, 8192)?;
        let remote = assign_once(&lanes.side, slot, 4096, 64, KFI_REMOTE_READ)?;
        ctx.ctl.send(&remote)?;
        return ctx.barrier("done");
    }
    let remote: Remote = ctx.ctl.recv()?;
    let (addr, key) = (remote.addr, remote.key);
    let tries = [
        ("a write", true, 8, addr),
        ("one byte more", false, 65, addr),
        ("the byte before", false, 1, addr - 1),
        ("the byte behind", false, 1, addr + 64),
    ];
    for (lane, (what, write, len, at)) in tries.into_iter().enumerate() {
        let errno = lanes.attempt(lane, write, len, at, key)?;
        ensure!(errno == libc::EACCES, "{what}: errno {errno}");
    }
    let lane = tries.len();
    ensure!(lanes.attempt(lane, false, 0, addr, key)? == 0, "nothing");
    ensure!(lanes.attempt(lane, false, 64, addr, key)? == 0, "the use");
    let errno = lanes.attempt(lane, false, 64, addr, key)?;
    ensure!(errno == libc::EACCES, "another use: errno {errno}");
    ctx.barrier("done")
}

/// Assigns, revokes and closes single-use keys that are never used, also in batches: they behave
/// like other keys.
fn rules(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u32 = 70;
    let side = Side::open(ctx)?;
    offered(&side)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = side.dev.key_alloc(region, COUNT)?;
    for flags in [0, KFI_KEY_ORDERED] {
        let mut entries = key_entries(&slots, 4096, KFI_REMOTE_READ);
        let mut call = KeyAssignMany {
            flags: flags | KFI_KEY_SINGLE_USE,
            entries: entries.as_mut_ptr() as u64,
            count: COUNT,
            entry_size: size_of::<KeyEntry>() as u32,
            ..Default::default()
        };
        side.dev.call(&mut call)?;
        ensure!((call.done, call.err) == (COUNT, 0), "{call:?}");
        let again = assign_once(&side, slots[0], 0, 1, KFI_REMOTE_READ);
        ensure!(again.is_err(), "a second key on an unused one");
        let ended = side.dev.key_revoke_slots(&slots)?.revoked;
        ensure!(ended == u64::from(COUNT), "{ended} ended");
    }
    assign_once(&side, slots[0], 0, 1, KFI_REMOTE_READ)?;
    Ok(side.dev.close(slots[0])?)
}
