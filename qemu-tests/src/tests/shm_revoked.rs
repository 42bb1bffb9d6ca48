// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys that are revoked while a peer copies through them, from or to registered or unregistered
//! memory: when the revocation has returned, no byte is written or read any more (P3).

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
    Test::pair(
        "shm.p03_revoke_amid_unregistered_write_lets_no_byte_land_after_return",
        |c| amid(c, true),
    )
    .on(SHM),
    Test::pair(
        "shm.p03_revoke_amid_unregistered_read_shows_no_later_byte",
        |c| amid(c, false),
    )
    .on(SHM),
    Test::pair(
        "shm_rings.p03_revoke_under_copying_peer_lets_no_byte_pass",
        under_peer,
    )
    .seconds(10)
    .on(SHM),
];

/// Bytes of the memory at first, and after the revocation.
const OLD: u8 = 0x11;
const NEW: u8 = 0x77;

/// The copy waits for a page of its own memory, before which there are `there` bytes. The key is
/// revoked meanwhile; the revocation waits for no page.
fn amid(ctx: &mut Ctx, write: bool) -> Result<()> {
    const LEN: usize = 40 * 4096;
    // Before the first copied byte, in the first stretch, and in a later one.
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
/// Maximum number of writes with data in a round.
const NOTES: u64 = 32;

/// A peer copies without pause, in all possible ways, until the key is revoked.
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

/// Plays the end that owns the memory.
fn revoke_soon(ctx: &mut Ctx, lib: &Lib, ep: &Endpoint, region: &Region, round: u64) -> Result<()> {
    region.fill(0, LEN, OLD);
    // Receives for the data of writes; they hold no bytes.
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
        "{notes} writes are reported, {told} were made"
    );
    let there = region.to_vec(0, LEN);
    let other = there.iter().position(|b| *b != NEW);
    ensure!(other.is_none(), "byte {other:?} came afterwards");
    Ok(())
}

/// Plays the end that copies. Returns the number of copies.
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
            // Earlier operations are just being cleaned up.
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
    ensure!(!seen, "it has read bytes written afterwards");
    Ok(made)
}
