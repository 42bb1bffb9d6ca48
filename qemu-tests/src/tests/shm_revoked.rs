// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys that are revoked while somebody copies by them, from or to memory that is registered or not:
//! when that has returned not a byte lands or leaves any more (P3).

use super::library::Lib;
use super::shm_unregistered::{read_into, stuck, write_from};
use crate::buf::Buf;
use crate::harness::{Ctx, Test, SHM};
use crate::pair::{Pair, Remote, REMOTE, WAIT};
use crate::sys::{uffd::Missing, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric::{Access, CompFlags, Endpoint, Errno, Event, Op, Region, RemoteMem};
use kfabric_uapi::KFI_REVOKE_REGION;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("shm.p03_revoked_amid_an_unregistered_write", |c| {
        amid(c, true)
    })
    .on(SHM),
    Test::pair("shm.p03_revoked_amid_an_unregistered_read", |c| {
        amid(c, false)
    })
    .on(SHM),
    Test::pair("shm_rings.p03_revoked_under_a_peer_that_copies", under_peer)
        .seconds(10)
        .on(SHM),
];

/// What the memory holds at first, and after its key was revoked.
const OLD: u8 = 0x11;
const NEW: u8 = 0x77;

/// The copy waits for a page of its own memory, before which `there` bytes are: the key is revoked
/// meanwhile, which waits for no page.
fn amid(ctx: &mut Ctx, write: bool) -> Result<()> {
    const LEN: usize = 40 * 4096;
    // Before anything was copied, in the first stretch, and in a later one.
    for (i, there) in [0, 3 * 4096, 30 * 4096].into_iter().enumerate() {
        if ctx.first() {
            copies(ctx, write, LEN, there)
        } else {
            revokes(ctx, write, LEN, there, i % 2 == 1)
        }
        .with_context(|| format!("{there} bytes are there"))?;
    }
    Ok(())
}

fn copies(ctx: &mut Ctx, write: bool, len: usize, there: usize) -> Result<()> {
    const OWN: u8 = 0x5a;
    let pair = Pair::new(ctx)?;
    let theirs: Remote = ctx.ctl.recv()?;
    let map = Map::anon(len)?;
    (0..there).for_each(|i| map.set(i, OWN));
    let missing = Missing::watch(&map)?;
    let entry = match write {
        true => write_from(map.addr(), len as u64, &theirs),
        false => read_into(map.addr(), len as u64, &theirs),
    };
    stuck(&pair, entry, &missing, || {
        ctx.barrier("it waits for its page")?;
        ctx.barrier("revoked")
    })??;
    let err = pair.wait_err()?;
    ensure!(err == libc::EACCES, "errno {err}");
    ensure!(pair.cq.read().is_none(), "it has completed twice");
    if !write {
        for i in 0..len {
            let (got, want) = (map.get(i), if i < there { OLD } else { 0 });
            ensure!(got == want, "byte {i} is {got:#x}, not {want:#x}");
        }
    }
    ctx.barrier("over")
}

fn revokes(ctx: &mut Ctx, write: bool, len: usize, there: usize, all: bool) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(len)?;
    buf.clear(OLD);
    let region = pair.reg(&buf)?;
    let (slot, mine) = pair.side.export(region, 0, len as u64, REMOTE)?;
    ctx.ctl.send(&mine)?;
    ctx.barrier("it waits for its page")?;
    let came = (0..len).take_while(|i| buf.get(*i) != OLD).count();
    ensure!(
        came == if write { there } else { 0 },
        "{came} bytes are written so far"
    );
    match all {
        true => {
            let revoked = pair.dev().key_revoke_all(KFI_REVOKE_REGION, region)?;
            ensure!(revoked == 1, "{revoked} keys are revoked");
        }
        false => pair.dev().key_revoke(slot)?,
    }
    buf.clear(NEW);
    ctx.barrier("revoked")?;
    ctx.barrier("over")?;
    buf.check_value(0, len, NEW)
}

/// Bytes that are copied in a race with revocation.
const LEN: usize = 1 << 20;
/// Writes with data of a round, at most.
const NOTES: u64 = 32;

/// A peer copies without pause, in all ways that there are, until the key is dead.
fn under_peer(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 30;
    let lib = Lib::with_rings(ctx, true)?;
    let region = lib.region(LEN)?;
    let mut done = 0;
    for round in 0..ROUNDS {
        let ep = lib.connect(ctx)?;
        ensure!(ep.has_rings() == Some(true), "{:?}", ep.has_rings());
        match ctx.first() {
            true => revoke_soon(ctx, &lib, &ep, &region, round),
            false => copy_on(ctx, &lib, &ep, &region, round).map(|n| done += n),
        }
        .with_context(|| format!("round {round}"))?;
        let event = lib.eq.wait(WAIT)?;
        ensure!(matches!(event, Event::Shutdown { .. }), "{event:?}");
        ctx.barrier("round")?;
    }
    eprintln!("{done} copies");
    ensure!(ctx.first() || done > 0, "no key lived long enough");
    ctx.barrier("done")
}

/// The end whose memory it is.
fn revoke_soon(ctx: &mut Ctx, lib: &Lib, ep: &Endpoint, region: &Region, round: u64) -> Result<()> {
    region.fill(0, LEN, OLD);
    // For what is told of writes. They hold no bytes.
    for i in 0..NOTES {
        ep.recv(region.segment(0..8), i)?;
    }
    let keys = region.alloc_keys(1)?;
    let key = keys[0].assign(0, LEN as u64, Access::REMOTE)?;
    ctx.ctl.send(&(key.addr, key.key))?;
    let chance = (round + ctx.env.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    std::thread::sleep(Duration::from_micros(chance % 100_000));
    keys[0].revoke()?;
    region.fill(0, LEN, NEW);
    let told: u64 = ctx.ctl.recv()?;
    let mut notes = 0;
    for i in 0..NOTES {
        let got = lib.cq.wait(WAIT)?;
        ensure!(got.context() == i, "{got:?}");
        match got.error() {
            None => {
                let written = got.flags().contains(CompFlags::REMOTE_WRITE);
                ensure!(written && got.len() == LEN as u64, "{got:?}");
                notes += 1;
            }
            Some(err) => ensure!(err.errno == Errno::ECANCELED, "{err}"),
        }
    }
    ensure!(
        notes == told,
        "{notes} writes are told of, {told} were made"
    );
    let there = region.to_vec(0, LEN);
    let other = there.iter().position(|b| *b != NEW);
    ensure!(other.is_none(), "byte {other:?} came afterwards");
    Ok(())
}

/// The end that copies; how many copies were made.
fn copy_on(ctx: &mut Ctx, lib: &Lib, ep: &Endpoint, region: &Region, round: u64) -> Result<u64> {
    let (addr, key): (u64, u64) = ctx.ctl.recv()?;
    let theirs = RemoteMem { addr, key };
    region.fill(0, LEN, 0x5a);
    let mut bare = vec![0x5a; LEN];
    let (mut made, mut told) = (0, 0);
    loop {
        let tells = round % 6 > 3 && told < NOTES;
        let op = match round % 6 {
            0 | 4 => Op::write_from(&bare, theirs),
            1 => Op::read_into(&mut bare, theirs),
            2 | 5 => Op::write(&[region.all()], theirs),
            _ => Op::read(&[region.all()], theirs),
        };
        let op = if tells { op.data(1) } else { op };
        if let Err(e) = ep.post(&op.context(made)) {
            // What was before it is just being cleared away.
            if e.is_full() {
                continue;
            }
            bail!(e);
        }
        let done = lib.cq.wait(WAIT)?;
        ensure!(done.context() == made, "{done:?}");
        if let Some(err) = done.error() {
            ensure!(err.errno == Errno::EACCES, "{err}");
            break;
        }
        made += 1;
        told += u64::from(tells);
    }
    ctx.ctl.send(&told)?;
    let seen = match round % 6 {
        1 => bare.contains(&NEW),
        3 => region.to_vec(0, LEN).contains(&NEW),
        _ => false,
    };
    ensure!(!seen, "it has read what came there afterwards");
    Ok(made)
}
