// SPDX-License-Identifier: MIT OR Apache-2.0

//! Atomics between processes of one host are atomic with respect to processor instructions, too.

use crate::harness::guest::until;
use crate::harness::{Ctx, Test, SHM};
use crate::op::{self, iov};
use crate::pair::{Pair, Remote, LOCAL, REMOTE, WAIT};
use crate::sys::Map;
use anyhow::{ensure, Result};
use kfabric_uapi::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::pair(
    "shm.atomics_beside_cpu_instructions_lose_no_update",
    against_processors,
)
.seconds(10)
.on(SHM)];

/// Bytes of a value, and its type.
const WIDTHS: [(usize, u32); 4] = [
    (1, KFI_UINT8),
    (2, KFI_UINT16),
    (4, KFI_UINT32),
    (8, KFI_UINT64),
];
/// Number of the peer's additions for each width.
const ROUNDS: u64 = 20_000;
/// Value of each addition.
const EACH: u64 = 3;

/// A thread adds to a value by processor instructions while the peer's atomics add to the same
/// value.
fn against_processors(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let map = Map::anon(4096)?;
    let access = REMOTE | KFI_ATOMIC;
    let region = pair.side.reg_at(map.addr(), 4096, LOCAL | access)?.handle;
    for (bytes, datatype) in WIDTHS {
        // The value is aligned, and has neighbours.
        let at = 64 + bytes;
        if ctx.first() {
            let (slot, remote) = pair.side.export(region, 0, 4096, access)?;
            ctx.ctl.send(&remote)?;
            let own = added_beside(ctx, &map, at, bytes)?;
            pair.dev().close(slot)?;
            let mask = u64::MAX >> (64 - 8 * bytes);
            let sum = map.get64(at) & mask;
            let wanted = (own + ROUNDS * EACH) & mask;
            ensure!(sum == wanted, "{bytes} bytes: {sum:#x}, not {wanted:#x}");
            let beside = (0..4096).filter(|i| !(at..at + bytes).contains(i));
            ensure!(
                beside.clone().all(|i| map.get(i) == 0),
                "{bytes} bytes: neighbours were changed"
            );
            (0..4096).for_each(|i| map.set(i, 0));
            ctx.barrier("looked")?;
            continue;
        }
        let remote: Remote = ctx.ctl.recv()?;
        ctx.barrier("adding")?;
        let to = (remote.addr + at as u64, remote.key);
        let what = (KFI_ATOMIC_SUM, datatype);
        let value = EACH.to_le_bytes();
        let room = [iov(region, 0, bytes as u64)];
        for i in 0..ROUNDS {
            let post = match i % 2 {
                0 => op::atomic(KFI_OP_ATOMIC, what, &value[..bytes], &[], to),
                _ => op::atomic(KFI_OP_FETCH_ATOMIC, what, &value[..bytes], &room, to),
            };
            pair.post(post)?;
            pair.wait()?;
        }
        ctx.barrier("added")?;
        ctx.barrier("looked")?;
    }
    ctx.barrier("done")
}

/// Adds ones until the peer has finished. Returns the number of additions.
fn added_beside(ctx: &mut Ctx, map: &Map, at: usize, bytes: usize) -> Result<u64> {
    let (over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let counted = || count.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                map.add(at, bytes, 1);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let met = (|| {
            until(
                "the thread adds",
                WAIT,
                || Ok((counted() > 0).then_some(())),
            )?;
            ctx.barrier("adding")?;
            let before = counted();
            ctx.barrier("added")?;
            ensure!(counted() > before + 1000, "{} beside", counted() - before);
            Ok(())
        })();
        over.store(true, Ordering::Relaxed);
        met
    })?;
    Ok(counted())
}
