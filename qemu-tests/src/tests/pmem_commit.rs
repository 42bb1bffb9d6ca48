// SPDX-License-Identifier: MIT OR Apache-2.0

//! Commits of ranges (`KFI_OP_COMMIT`): one operation makes earlier writes durable.
//!
//! Node 1 has an NVDIMM. That the bytes are durable is shown by `cargo xtask pmcut`; these tests show
//! completions, order, refusals and that the connection stays.

use super::pmem::{want, Device, MAPPED};
use super::pmem_verbs::{persistent, COMMIT};
use super::refused;
use crate::buf::Buf;
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::{Ctx, Test, NETNS, SHM, TWO};
use crate::op::{self, iov, with_data, with_flags};
use crate::pair::{Opts, Pair, Remote, Side, LONG, REMOTE, WAIT};
use crate::sys::Errno;
use anyhow::{ensure, Context, Result};
use kfabric::{RemoteMem, Written};
use kfabric_uapi::*;
use std::time::Instant;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("pmem.p10_commit_follows_the_writes_before_it", follows)
        .on(SHM | NETNS | TWO)
        .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_commits_of_all_that_was_written", everything)
        .on(SHM | NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_commits_that_are_refused_keep_the_connection",
        kept,
    )
    .on(SHM | NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_guesses_by_commits_end_the_connection", guesses)
        .on(SHM | NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.p10_guesses_between_durable_commits_end_the_connection",
        slow_guesses,
    )
    .on(SHM | NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair("pmem.p10_hostile_commits_are_refused", hostile)
        .on(SHM | NETNS)
        .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.commit_under_key_from_before_durability_succeeds",
        early,
    )
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair(
        "pmem.commit_on_domain_without_durability_is_refused",
        absent,
    )
    .on(NETNS),
];

/// Lengths and offsets around words, cache lines and pages; no two overlap.
const PLACES: &[(usize, usize)] = &[
    (0, 1),
    (3, 5),
    (8, 8),
    (60, 8),
    (127, 66),
    (4000, 4096),
    (8192, 4096),
    (12_345, 1 << 20),
    (2 << 20, 4 << 20),
];

/// Returns the target's pair, its mapping of the NVDIMM, and the slot of the mapping's key.
pub(crate) fn target(ctx: &mut Ctx) -> Result<(Pair, Buf, u64)> {
    let map = Device::Nvdimm.map()?;
    let side = Side::open(ctx)?;
    let region = side.dev.call_region(&want(
        &side,
        &map,
        KFI_REGION_PMEM | KFI_REGION_DYNAMIC_KEYS,
    ))?;
    let pair = Pair::on(ctx, side, &Opts::default())?;
    let (slot, mine) = pair
        .side
        .export(region.handle, 0, map.len() as u64, REMOTE)?;
    ctx.ctl.send(&mine)?;
    Ok((pair, Buf::whole(map), slot))
}

/// Returns the initiator's pair, and the target's memory.
pub(crate) fn initiator(ctx: &mut Ctx) -> Result<(Pair, Remote)> {
    let side = Side::open(ctx)?;
    ensure!(side.domain.durable != KFI_REACH_NO);
    let pair = Pair::on(ctx, side, &Opts::default())?;
    let to = ctx.ctl.recv()?;
    Ok((pair, to))
}

/// Returns a commit of a part of the peer's memory.
fn part(context: u64, to: &Remote, at: u64, len: u64) -> OpEntry {
    op::commit(context, to.addr.wrapping_add(at), to.key, len)
}

fn follows(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let (pair, there, _) = target(ctx)?;
        let receives = Buf::new(64)?;
        let receive = pair.reg(&receives)?;
        pair.post(op::recv(7, &[iov(receive, 0, 8)]))?;
        ctx.barrier("posted")?;
        // The completion follows the commit, and so the bytes.
        let e = pair.wait_any(LONG)?;
        ensure!(e.err == 0 && e.data == 5 && e.context == 7, "{e:?}");
        for (i, (at, len)) in PLACES.iter().enumerate() {
            there.check_part(*at, *len, i as u64)?;
        }
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx)?;
    let from = Buf::new(MAPPED)?;
    let region = pair.reg(&from)?;
    ctx.barrier("posted")?;
    for (i, (at, len)) in PLACES.iter().enumerate() {
        from.fill_part(*at, *len, i as u64);
        let piece = [iov(region, *at as u64, *len as u64)];
        pair.post(op::write(i as u64, &piece, to.addr + *at as u64, to.key))?;
    }
    let count = PLACES.len() as u64;
    for (i, (at, len)) in (count..).zip(PLACES) {
        pair.post(part(i, &to, *at as u64, *len as u64))?;
    }
    let all = part(2 * count, &to, 0, MAPPED as u64);
    pair.post(with_flags(with_data(all, 5), KFI_COMMIT_COMPLETE))?;
    let flags = KFI_RMA | KFI_WRITE;
    for i in 0..=2 * count {
        let e = pair.wait_context(i)?;
        ensure!(e.flags == flags, "{e:?}");
        let moved = PLACES.get(i as usize).map_or(0, |(_, len)| *len as u64);
        ensure!(e.len == moved, "{e:?}");
    }
    // A commit of no bytes only follows the writes.
    pair.post(part(1, &to, 0, 0))?;
    pair.wait_context(1)?;
    ctx.barrier("end")
}

/// Notes many small writes, more than there are ranges, and commits all of them.
fn everything(ctx: &mut Ctx) -> Result<()> {
    const WRITES: u64 = 3 * Written::RANGES as u64;
    const STEP: u64 = 192;
    if ctx.first() {
        let (_pair, there, _) = target(ctx)?;
        ctx.barrier("committed")?;
        for i in 0..WRITES {
            there.check_part((i * STEP) as usize, 100, i)?;
        }
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx)?;
    let from = Buf::new((WRITES * STEP) as usize)?;
    let region = pair.reg(&from)?;
    let mut written = Written::new();
    for i in 0..WRITES {
        let at = i * STEP;
        from.fill_part(at as usize, 100, i);
        let entry = op::write(1, &[iov(region, at, 100)], to.addr + at, to.key);
        pair.post(entry)?;
        let (addr, key) = (to.addr + at, to.key);
        written.note(RemoteMem { addr, key }, 100)?;
        pair.wait_context(1)?;
    }
    let most = pair.side.domain.max_msg_size as usize;
    let mut commits = 0;
    while let Some((range, len)) = written.take(most) {
        let entry = op::commit(2, range.addr, range.key, len as u64);
        pair.post(entry)?;
        pair.wait_context(2)?;
        commits += 1;
    }
    ensure!(
        (2..=Written::RANGES).contains(&commits),
        "{commits} commits"
    );
    ctx.barrier("committed")?;
    ctx.barrier("end")
}

fn kept(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let (pair, _there, slot) = target(ctx)?;
        let ordinary = Buf::new(8192)?;
        let region = pair.reg(&ordinary)?;
        let (_, volatile) = pair.side.export(region, 0, 8192, REMOTE)?;
        ctx.ctl.send(&volatile)?;
        let map = Device::Nvdimm.map()?;
        let again = want(&pair.side, &map, KFI_REGION_DYNAMIC_KEYS);
        let region = pair.side.dev.call_region(&again)?.handle;
        let (_, read_only) = pair.side.export(region, 0, 4096, KFI_REMOTE_READ)?;
        ctx.ctl.send(&read_only)?;
        ctx.barrier("tried")?;
        pair.side.dev.key_revoke(slot)?;
        ctx.barrier("revoked")?;
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx)?;
    let volatile: Remote = ctx.ctl.recv()?;
    let read_only: Remote = ctx.ctl.recv()?;
    for (to, errno) in [(&volatile, libc::EOPNOTSUPP), (&read_only, libc::EACCES)] {
        pair.post(with_data(part(1, to, 0, 4096), 5))?;
        let err = pair.wait_err()?;
        ensure!(err == errno, "{} instead of {}", Errno(err), Errno(errno));
    }
    pair.post(part(2, &to, 0, 4096))?;
    pair.wait_context(2)?;
    ctx.barrier("tried")?;
    ctx.barrier("revoked")?;
    for _ in 0..2 {
        pair.post(part(3, &to, 0, 4096))?;
        let err = pair.wait_err()?;
        ensure!(err == libc::EKEYREVOKED, "{}", Errno(err));
    }
    // The connection stays.
    pair.post(part(4, &to, 0, 0))?;
    pair.wait_context(4)?;
    ctx.barrier("end")
}

fn hostile(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let (_pair, there, _) = target(ctx)?;
        there.fill_part(0, MAPPED, 3);
        ctx.barrier("filled")?;
        ctx.barrier("tried")?;
        there.check_part(0, MAPPED, 3)?;
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    ctx.barrier("filled")?;
    for len in [1 << 63, u64::MAX, (1 << 63) + 4096] {
        refused(
            pair.post(part(1, &to, 0, len)),
            libc::EMSGSIZE,
            "a long range",
        )?;
    }
    let local = OpEntry {
        iov_count: 1,
        iov: [
            iov(region, 0, 8),
            Iov::default(),
            Iov::default(),
            Iov::default(),
        ],
        ..part(1, &to, 0, 8)
    };
    refused(pair.post(local), libc::EINVAL, "local memory")?;
    let payload = op::inject(part(1, &to, 0, 8), &[0; 8]);
    refused(pair.post(payload), libc::EINVAL, "a payload")?;
    let pointer = OpEntry {
        inject: buf.addr(),
        ..part(1, &to, 0, 8)
    };
    refused(pair.post(pointer), libc::EINVAL, "a pointer")?;
    let atomic = OpEntry {
        datatype: KFI_UINT64,
        ..part(1, &to, 0, 8)
    };
    refused(pair.post(atomic), libc::EINVAL, "a type of values")?;
    // Before, behind and around the window, and an address whose range wraps around.
    let outside = [
        (to.addr.wrapping_sub(1), 4096),
        (to.addr + MAPPED as u64 - 1, 2),
        (to.addr, MAPPED as u64 + 1),
        (u64::MAX - 10, 4096),
    ];
    for (addr, len) in outside {
        pair.post(op::commit(1, addr, to.key, len))?;
        let e = pair.wait_any(WAIT)?;
        ensure!(e.err as i32 == libc::EACCES, "{addr:#x}, {len}: {e:?}");
    }
    // A value that no key has.
    pair.post(op::commit(1, to.addr, to.key ^ 0x10_0000, 8))?;
    let e = pair.wait_any(WAIT)?;
    ensure!(e.err as i32 == libc::EKEYREVOKED, "{e:?}");
    pair.post(part(2, &to, 0, 8))?;
    pair.wait_context(2)?;
    ctx.barrier("tried")?;
    ctx.barrier("end")
}

/// Node 1 of the tests of guesses, whose connection ends.
fn target_of_guesses(ctx: &mut Ctx) -> Result<()> {
    let (pair, _there, _) = target(ctx)?;
    ctx.barrier("guessed")?;
    pair.side.event(KFI_SHUTDOWN)?;
    ctx.barrier("end")
}

fn guesses(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        return target_of_guesses(ctx);
    }
    let (pair, to) = initiator(ctx)?;
    let mut errors = Vec::new();
    let wrong = |guess: u64| to.key ^ guess << 20;
    for guess in 1..=8 {
        if guess == 8 {
            // Commits of no bytes prove no key, so they do not let the target forget wrong ones.
            for _ in 0..512 {
                pair.post(op::commit(9, to.addr, wrong(1), 0))?;
                let _ = pair.wait_any(WAIT)?;
            }
        }
        pair.post(op::commit(guess, to.addr, wrong(guess), 8))?;
        errors.push(pair.wait_err()?);
    }
    let (last, others) = errors.split_last().context("no guess")?;
    let revoked = |err: &i32| *err == libc::EKEYREVOKED;
    ensure!(others.iter().all(revoked) && !revoked(last), "{errors:?}");
    pair.side.event(KFI_SHUTDOWN)?;
    refused(pair.post(part(9, &to, 0, 8)), libc::ENOTCONN, "a commit")?;
    ctx.barrier("guessed")?;
    ctx.barrier("end")
}

/// Commits of a byte at once.
const MANY: usize = 32;

/// A key that is valid proves nothing about the others: it does not let a peer guess faster than the
/// target forgets wrong keys.
fn slow_guesses(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        return target_of_guesses(ctx);
    }
    let (pair, to) = initiator(ctx)?;
    let start = Instant::now();
    let mut guesses = 0;
    loop {
        for _ in 0..256 / MANY {
            let one = part(1, &to, 0, 1);
            pair.side.dev.submit(pair.ep, &[one; MANY])?;
            for _ in 0..MANY {
                pair.wait_context(1)?;
            }
        }
        guesses += 1;
        pair.post(op::commit(2, to.addr, to.key ^ guesses << 20, 8))?;
        if pair.wait_err()? != libc::EKEYREVOKED {
            break;
        }
        // One key of eight is forgotten every two seconds.
        let fair = 8 + start.elapsed().as_secs() / 2 + 1;
        ensure!(
            guesses <= fair,
            "{guesses} guesses in {:?}",
            start.elapsed()
        );
    }
    pair.side.event(KFI_SHUTDOWN)?;
    ctx.barrier("guessed")?;
    ctx.barrier("end")
}

/// A key of a slot that was reserved while the administrator allowed no commits is not a revoked key.
fn early(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let map = Device::Nvdimm.map()?;
        let side = Side::open(ctx)?;
        let region = persistent(&side, &map, &[])?;
        std::fs::write(COMMIT, "N").context(COMMIT)?;
        let exported = side.export(region, 0, 4096, REMOTE);
        std::fs::write(COMMIT, "Y").context(COMMIT)?;
        let (_, mine) = exported?;
        let _pair = Pair::on(ctx, side, &Opts::default())?;
        ctx.ctl.send(&mine)?;
        ctx.barrier("tried")?;
        return ctx.barrier("end");
    }
    let (pair, to) = initiator(ctx)?;
    for _ in 0..20 {
        pair.post(part(1, &to, 0, 8))?;
        pair.wait_context(1)?;
    }
    ctx.barrier("tried")?;
    ctx.barrier("end")
}

fn absent(ctx: &mut Ctx) -> Result<()> {
    ctx.barrier("start")?;
    if ctx.first() {
        std::fs::write(COMMIT, "N").context(COMMIT)?;
        let side = Side::open(ctx);
        std::fs::write(COMMIT, "Y").context(COMMIT)?;
        let side = side?;
        let cq = side.cq(0, 0)?;
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        let posted = side.dev.submit(ep, &[op::commit(1, 0x1000, 1, 8)]);
        refused(posted, libc::EOPNOTSUPP, "no durable writes")?;
    }
    ctx.barrier("end")
}
