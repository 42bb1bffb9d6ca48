// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reads and writes of unregistered memory: the posting task copies the memory as it is mapped just
//! then, and no page is pinned.

use super::refused;
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, SHM};
use crate::op::{self, iov};
use crate::pair::{Pair, Remote, REMOTE, WAIT};
use crate::raw;
use crate::sys::uffd::Missing;
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("shm.unregistered_memory_of_each_kind_is_copied", sorts).on(SHM),
    Test::pair("shm.unregistered_copy_of_large_memory_is_complete", large)
        .seconds(10)
        .on(SHM),
    Test::pair(
        "shm.unregistered_copy_without_memlock_pins_nothing",
        pins_nothing,
    )
    .on(SHM),
    Test::pair(
        "shm.unregistered_copy_at_bad_address_is_efault",
        bad_addresses,
    )
    .on(SHM),
    Test::pair("shm.unregistered_copy_over_hole_ends_connection", middle).on(SHM),
    Test::pair(
        "shm.unregistered_memory_in_other_ops_is_refused",
        where_it_may,
    )
    .on(SHM),
    Test::pair(
        "shm.unregistered_copy_behind_waiting_send_is_eagain",
        behind,
    )
    .on(SHM),
    Test::pair(
        "shm.unregistered_write_with_data_takes_a_receive",
        with_data,
    )
    .on(SHM),
    Test::pair(
        "shm.unregistered_copy_at_slow_page_delays_no_other",
        slow_page,
    )
    .on(SHM),
    Test::pair("shm.unregistered_copy_at_close_ends_at_once", closed).on(SHM),
    Test::pair("shm.unregistered_copy_at_kill_ends_at_once", killed).on(SHM),
    Test::pair("shm.unregistered_copy_at_peers_end_ends_at_once", peer_goes).on(SHM),
];

/// Plays the half that only offers its memory.
fn lender(ctx: &mut Ctx, len: usize, receives: u64) -> Result<Buf> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(len)?;
    let region = pair.reg(&buf)?;
    for i in 0..receives {
        pair.post(op::recv(i, &[iov(region, 0, 8)]))?;
    }
    let (_, mine) = pair.side.export(region, 0, len as u64, REMOTE)?;
    let _: Remote = ctx.ctl.exchange(&mine)?;
    for i in 0..receives {
        let e = pair.wait_any(WAIT)?;
        ensure!(
            e.err == 0 && e.data == i && e.flags & KFI_REMOTE_CQ_DATA != 0,
            "{e:?}"
        );
    }
    ctx.barrier("used")?;
    Ok(buf)
}

/// Plays the other half: returns a connected pair and the memory that it may use.
pub(super) fn user(ctx: &mut Ctx) -> Result<(Pair, Remote)> {
    let pair = Pair::new(ctx)?;
    let mine = Remote {
        addr: 0,
        key: 0,
        len: 0,
    };
    let theirs = ctx.ctl.exchange(&mine)?;
    Ok((pair, theirs))
}

pub(super) fn write_from(at: u64, len: u64, to: &Remote) -> OpEntry {
    op::write(1, &[iov(KFI_UNREGISTERED, at, len)], to.addr, to.key)
}

pub(super) fn read_into(at: u64, len: u64, from: &Remote) -> OpEntry {
    op::read(2, &[iov(KFI_UNREGISTERED, at, len)], from.addr, from.key)
}

fn fill(map: &Map, seed: u8) {
    for i in 0..map.len() {
        map.set(i, (i as u8).wrapping_mul(7) ^ (i >> 8) as u8 ^ seed);
    }
}

fn same(a: &Map, b: &Map) -> bool {
    a.len() == b.len() && (0..a.len()).all(|i| a.get(i) == b.get(i))
}

/// Writes all of `from`, and reads it back into `to`.
fn there_and_back(pair: &Pair, theirs: &Remote, from: &Map, to: &Map, seed: u8) -> Result<()> {
    fill(from, seed);
    pair.post(write_from(from.addr(), from.len() as u64, theirs))?;
    pair.wait_context(1)?;
    pair.post(read_into(to.addr(), to.len() as u64, theirs))?;
    pair.wait_context(2)?;
    ensure!(same(from, to), "other bytes came back");
    Ok(())
}

fn sorts(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 3 * 4096 + 17;
    if !ctx.first() {
        return lender(ctx, LEN, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let file = sys::memfd(LEN as u64)?;
    let anon = Map::anon(LEN)?;
    let shared = Map::shared(LEN)?;
    let of_file = Map::file(file.as_fd(), LEN, true)?;
    let private = Map::file_private(file.as_fd(), LEN, true)?;
    let all = [&anon, &shared, &of_file, &private];
    for (i, from) in all.iter().enumerate() {
        for (j, to) in all.iter().enumerate().filter(|(j, _)| *j != i) {
            // Before it has a page of its own, a private mapping of the same file would show the
            // other mapping's bytes.
            private.set(0, 0);
            let seed = (i * 4 + j) as u8;
            there_and_back(&pair, &theirs, from, to, seed)
                .with_context(|| format!("{i} to {j}"))?;
        }
    }
    // Untouched memory reads as zeroes, and missing pages are faulted in.
    let fresh = Map::anon(LEN)?;
    pair.post(write_from(fresh.addr(), LEN as u64, &theirs))?;
    pair.wait_context(1)?;
    let back = Map::anon(LEN)?;
    pair.post(read_into(back.addr(), LEN as u64, &theirs))?;
    pair.wait_context(2)?;
    ensure!((0..LEN).all(|i| back.get(i) == 0), "not zeroes");
    // Zero bytes, from any address.
    pair.post(write_from(0, 0, &theirs))?;
    pair.wait_context(1)?;
    ctx.barrier("used")
}

fn large(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 32 << 20;
    if !ctx.first() {
        return lender(ctx, LEN, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let (from, to) = (Map::anon(LEN)?, Map::anon(LEN)?);
    for i in (0..LEN).step_by(8) {
        from.set64(i, (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    pair.post(write_from(from.addr(), LEN as u64, &theirs))?;
    pair.wait_context(1)?;
    pair.post(read_into(to.addr(), LEN as u64, &theirs))?;
    pair.wait_context(2)?;
    for i in (0..LEN).step_by(8) {
        ensure!(to.get64(i) == from.get64(i), "byte {i} is another");
    }
    ctx.barrier("used")
}

/// Returns `VmPin` and `VmLck` of this process, as `/proc/self/status` shows them.
fn held() -> Result<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let wanted = |line: &&str| line.starts_with("VmPin") || line.starts_with("VmLck");
    Ok(text.lines().filter(wanted).map(str::to_owned).collect())
}

fn pins_nothing(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 1 << 20;
    if !ctx.first() {
        return lender(ctx, LEN, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let before = held()?;
    ensure!(before.len() == 2, "{before:?}");
    sys::set_limit(libc::RLIMIT_MEMLOCK, 0)?;
    let (from, to) = (Map::anon(LEN)?, Map::anon(LEN)?);
    there_and_back(&pair, &theirs, &from, &to, 3)?;
    ensure!(held()? == before, "{:?} before: {before:?}", held()?);
    ctx.barrier("used")
}

fn bad_addresses(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return lender(ctx, 4096, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let file = sys::memfd(4096)?;
    let read_only = Map::file(file.as_fd(), 4096, false)?;
    let good = Map::anon(4096)?;
    for at in [0, 4095, 1 << 47, u64::MAX - 63, 0xffff_8880_0000_0000] {
        let what = format!("from {at:#x}");
        refused(pair.post(write_from(at, 64, &theirs)), libc::EFAULT, &what)?;
        let what = format!("to {at:#x}");
        refused(pair.post(read_into(at, 64, &theirs)), libc::EFAULT, &what)?;
    }
    let at = read_only.addr();
    refused(
        pair.post(read_into(at, 64, &theirs)),
        libc::EFAULT,
        "to read-only memory",
    )?;
    let far = u64::MAX;
    refused(
        pair.post(write_from(good.addr(), far, &theirs)),
        libc::EMSGSIZE,
        "all there is",
    )?;
    ensure!(pair.cq.read().is_none(), "something was done");
    // The refusals have not ended the connection.
    pair.post(write_from(at, 64, &theirs))?;
    pair.wait_context(1)?;
    there_and_back(&pair, &theirs, &good, &Map::anon(4096)?, 1)?;
    ctx.barrier("used")
}

/// If a page is missing, the bytes before it are copied, and the connection ends.
fn middle(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 4 * 4096;
    if !ctx.first() {
        let buf = lender(ctx, LEN, 0)?;
        ensure!(
            buf.get(0) == 9 && buf.get(4096) == 9,
            "bytes before the hole did not arrive"
        );
        ensure!(
            (2 * 4096..LEN).all(|i| buf.get(i) == 0),
            "bytes behind the hole arrived"
        );
        return Ok(());
    }
    let (pair, theirs) = user(ctx)?;
    let mut map = Map::anon(LEN)?;
    (0..LEN).for_each(|i| map.set(i, 9));
    map.punch(2 * 4096, 4096)?;
    pair.post(write_from(map.addr(), LEN as u64, &theirs))?;
    let err = pair.wait_err()?;
    ensure!(err == libc::EFAULT, "{}", sys::Errno(err));
    let more = pair.post(write_from(map.addr(), 64, &theirs));
    refused(more, libc::ENOTCONN, "behind one that has failed")?;
    ctx.barrier("used")
}

fn where_it_may(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return lender(ctx, 4096, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let map = Map::anon(4096)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let piece = iov(KFI_UNREGISTERED, map.addr(), 64);
    let known = iov(region, 0, 64);
    let no = |op: OpEntry, what: &str| refused(pair.post(op), libc::EINVAL, what);
    no(op::send(1, &[piece]), "a send")?;
    no(op::recv(1, &[piece]), "a receive")?;
    no(
        op::write(1, &[piece, piece], theirs.addr, theirs.key),
        "two",
    )?;
    no(
        op::write(1, &[piece, known], theirs.addr, theirs.key),
        "before another",
    )?;
    no(
        op::write(1, &[known, piece], theirs.addr, theirs.key),
        "behind another",
    )?;
    let values = 1u64.to_le_bytes();
    let what = (KFI_ATOMIC_SUM, KFI_UINT64);
    let eight = iov(KFI_UNREGISTERED, map.addr(), 8);
    let to = (theirs.addr, theirs.key);
    no(
        op::atomic(KFI_OP_FETCH_ATOMIC, what, &values, &[eight], to),
        "an atomic",
    )?;
    ensure!(pair.cq.read().is_none(), "something was done");
    let info = crate::pair::own_info(pair.dev(), &ctx.env)?;
    ensure!(info.caps & KFI_UNREGISTERED_RMA != 0, "{:#x}", info.caps);
    ctx.barrier("used")
}

/// An operation behind one that waits for the peer's receive is refused, because no other task may
/// copy unregistered memory later.
fn behind(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 2048, 2048, REMOTE)?;
    let theirs: Remote = ctx.ctl.exchange(&mine)?;
    if !ctx.first() {
        ctx.barrier("refused")?;
        pair.post(op::recv(1, &[iov(region, 0, 8)]))?;
        pair.wait_context(1)?;
        return ctx.barrier("used");
    }
    let map = Map::anon(2048)?;
    pair.post(op::send(5, &[iov(region, 0, 8)]))?;
    let early = pair.post(write_from(map.addr(), 64, &theirs));
    refused(early, libc::EAGAIN, "behind a send that waits")?;
    ctx.barrier("refused")?;
    pair.wait_context(5)?;
    fill(&map, 4);
    pair.post(write_from(map.addr(), 2048, &theirs))?;
    pair.wait_context(1)?;
    ctx.barrier("used")
}

/// Writes with data for the peer, which take a receive, before and after the receive is posted.
fn with_data(ctx: &mut Ctx) -> Result<()> {
    const N: u64 = 8;
    if !ctx.first() {
        return lender(ctx, 4096, N).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let map = Map::anon(4096)?;
    for i in 0..N {
        fill(&map, i as u8);
        pair.post(op::with_data(write_from(map.addr(), 4096, &theirs), i))?;
        // The call copies: a later change has no effect.
        fill(&map, 0xff);
        pair.wait_context(1)?;
        let back = Map::anon(4096)?;
        pair.post(read_into(back.addr(), 4096, &theirs))?;
        pair.wait_context(2)?;
        fill(&map, i as u8);
        ensure!(same(&map, &back), "write {i}: other bytes");
    }
    ctx.barrier("used")
}

/// Posts `entry` in a thread of its own, with a page missing that only the caller fills, and calls
/// `meanwhile` while the thread waits for the page.
pub(super) fn stuck(
    pair: &Pair,
    entry: OpEntry,
    missing: &Missing<'_>,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<raw::Result<()>> {
    std::thread::scope(|scope| {
        let poster = scope.spawn(move || pair.post(entry));
        let waits = missing.is_waited_for(sys::patience(WAIT))?;
        let said = match waits {
            true => meanwhile(),
            false => Ok(()),
        };
        // Fill the page in every case: the thread must not wait for ever.
        missing.fill_from(0)?;
        let Ok(result) = poster.join() else {
            bail!("the thread that posts has panicked")
        };
        ensure!(waits, "no thread waited for the page");
        said?;
        Ok(result)
    })
}

fn slow_page(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 4 * 4096;
    if !ctx.first() {
        return lender(ctx, LEN, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let map = Map::anon(LEN)?;
    let missing = Missing::watch(&map)?;
    let good = Map::anon(64)?;
    let entry = write_from(map.addr(), LEN as u64, &theirs);
    // Other operations get `EAGAIN`, and no other task waits for the page.
    let result = stuck(&pair, entry, &missing, || {
        let second = pair.post(write_from(good.addr(), 64, &theirs));
        refused(second, libc::EAGAIN, "beside one that waits for its page")
    })?;
    result?;
    pair.wait_context(1)?;
    pair.post(write_from(good.addr(), 64, &theirs))?;
    pair.wait_context(1)?;
    ctx.barrier("used")
}

/// A close does not wait for the page: it ends the operation.
fn closed(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 4 * 4096;
    if !ctx.first() {
        return lender(ctx, LEN, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let map = Map::anon(LEN)?;
    let missing = Missing::watch(&map)?;
    let entry = read_into(map.addr(), LEN as u64, &theirs);
    let result = stuck(&pair, entry, &missing, || {
        pair.dev().close(pair.ep)?;
        let e = pair.wait_any(WAIT)?;
        ensure!(e.err == libc::ECANCELED as u32, "{e:?}");
        Ok(())
    })?;
    result?;
    ensure!(pair.cq.read().is_none(), "it has completed twice");
    ctx.barrier("used")
}

/// The peer's end does not wait for the page either: the waiting operation, and operations behind
/// it, end at once.
fn peer_goes(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 4 * 4096;
    if !ctx.first() {
        let pair = Pair::new(ctx)?;
        let buf = Buf::new(LEN)?;
        let region = pair.reg(&buf)?;
        let (_, mine) = pair.side.export(region, 0, LEN as u64, REMOTE)?;
        let _: Remote = ctx.ctl.exchange(&mine)?;
        ctx.barrier("behind")?;
        pair.dev().close(pair.ep)?;
        return ctx.barrier("told");
    }
    let (pair, theirs) = user(ctx)?;
    let buf = Buf::new(LEN)?;
    let region = pair.reg(&buf)?;
    let map = Map::anon(LEN)?;
    let missing = Missing::watch(&map)?;
    let entry = write_from(map.addr(), LEN as u64, &theirs);
    let result = stuck(&pair, entry, &missing, || {
        let piece = [iov(region, 0, 64)];
        pair.post(op::write(3, &piece, theirs.addr, theirs.key))?;
        ctx.barrier("behind")?;
        for context in [1, 3] {
            let e = pair.wait_any(WAIT)?;
            let ended = e.context == context && e.err == libc::ECANCELED as u32;
            ensure!(ended, "{e:?}");
        }
        pair.side.event(KFI_SHUTDOWN).map(drop)
    })?;
    result?;
    ensure!(pair.cq.read().is_none(), "something has completed twice");
    ctx.barrier("told")
}

/// The exit of a process does not wait for the page: its operation ends without effect, and the
/// other process that shares the endpoint goes on.
fn killed(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 4 * 4096;
    if !ctx.first() {
        return lender(ctx, LEN, 0).map(|_| ());
    }
    let (pair, theirs) = user(ctx)?;
    let child = sys::fork(|| {
        let Ok(map) = Map::anon(LEN) else { return 1 };
        let Ok(_missing) = Missing::watch(&map) else {
            return 2;
        };
        // No task fills the page.
        match pair.post(write_from(map.addr(), LEN as u64, &theirs)) {
            Ok(()) => 3,
            Err(_) => 4,
        }
    })?;
    until("the child posts", WAIT, || {
        let all = pair.dev().obj_list()?;
        let waits = all.iter().any(|o| o.handle == pair.ep && o.a == 1);
        Ok(waits.then_some(()))
    })?;
    sys::kill(child, libc::SIGKILL)?;
    let ended = sys::wait_pid(child, sys::patience(WAIT))?;
    ensure!(ended.is_some(), "it does not end");
    ensure!(pair.cq.read().is_none(), "something has completed");
    let (from, to) = (Map::anon(LEN)?, Map::anon(LEN)?);
    there_and_back(&pair, &theirs, &from, &to, 3)?;
    ctx.barrier("used")
}
