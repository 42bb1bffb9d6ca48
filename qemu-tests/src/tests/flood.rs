// SPDX-License-Identifier: MIT OR Apache-2.0

//! Very many operations with full queues (fabtests: `flood`).

use crate::buf::Buf;
use crate::harness::{Ctx, Test};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair};
use crate::sys;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::pair(
    "flood.p09_100k_ops_with_full_queues_complete_once",
    flood_100k,
)
.seconds(60)];

/// Returns the number of messages of the flood; fewer under checkers, which watch every message.
fn total() -> u64 {
    100_000 / u64::from(sys::slowness())
}

/// Depth of its queues.
const DEPTH: u64 = 512;
/// Receives that one credit message stands for.
const CREDIT: u64 = 128;
/// Context of a credit message's receive.
const CREDIT_CONTEXT: u64 = 1 << 40;

/// Makes 10⁵ sends with full queues, in batches; each send and each receive completes once.
///
/// The receiver grants credits as it posts receives, so the test measures full queues and not the
/// receiver-not-ready timer.
fn flood_100k(ctx: &mut Ctx) -> Result<()> {
    let size = DEPTH as u32;
    let opts = Opts {
        tx_size: size,
        rx_size: size,
        cq_depth: 2 * size,
        ..Default::default()
    };
    let pair = Pair::with(ctx, &opts)?;
    let buf = Buf::new(DEPTH as usize * 16)?;
    let region = pair.reg(&buf)?;
    let piece = |c: u64| [iov(region, c % DEPTH * 16, 16)];
    let full = if ctx.first() {
        let (first, _) = post_until_full(&pair, 0, DEPTH, |c| op::recv(c, &piece(c)))?;
        ctx.barrier("receives posted")?;
        flood_receive(&pair, first, |c| op::recv(c, &piece(c)))?;
        1
    } else {
        let credits: Vec<_> = (0..16).map(|_| op::recv(CREDIT_CONTEXT, &[])).collect();
        pair.post_all(&credits)?;
        ctx.barrier("receives posted")?;
        flood_send(&pair, |c| op::send(c, &piece(c)))?
    };
    ensure!(full > 0, "the queues were never full");
    ctx.barrier("done")?;
    while let Some(e) = pair.cq.read() {
        ensure!(e.context >= CREDIT_CONTEXT, "an entry too many: {e:?}");
    }
    Ok(())
}

/// Posts from `from` up to `to` until a queue is full. Returns the number reached, and whether a
/// queue was full.
fn post_until_full(
    pair: &Pair,
    from: u64,
    to: u64,
    make: impl Fn(u64) -> OpEntry,
) -> Result<(u64, bool)> {
    let mut at = from;
    while at < to {
        let ops: Vec<_> = (at..to.min(at + 64)).map(&make).collect();
        let taken = match pair.dev().submit(pair.ep, &ops) {
            Ok((taken, _)) => taken,
            Err(e) if e.errno.0 == libc::EAGAIN => 0,
            Err(e) => return Err(e).context("submit"),
        };
        at += taken as u64;
        if taken < ops.len() {
            return Ok((at, true));
        }
    }
    Ok((at, false))
}

/// Takes at least one completion; calls `each` with the contexts.
fn take(pair: &Pair, mut each: impl FnMut(u64) -> Result<()>) -> Result<()> {
    let mut entry = Some(pair.wait()?);
    while let Some(e) = entry {
        ensure!(e.err == 0, "{e:?}");
        each(e.context)?;
        entry = pair.cq.read();
    }
    Ok(())
}

/// Counts a completion of the flood, which must be the first of its operation.
fn count_once(seen: &mut [u8], context: u64) -> Result<()> {
    let count = seen
        .get_mut(context as usize)
        .with_context(|| format!("context {context:#x} came back"))?;
    *count += 1;
    ensure!(*count == 1, "operation {context} completed twice");
    Ok(())
}

fn flood_receive(pair: &Pair, first: u64, make: impl Fn(u64) -> OpEntry) -> Result<()> {
    let total = total();
    let mut seen = vec![0u8; total as usize];
    let (mut posted, mut done, mut granted) = (first, 0u64, first);
    while done < total {
        take(pair, |context| {
            done += 1;
            count_once(&mut seen, context)
        })
        .with_context(|| format!("{done} of {posted} receives done"))?;
        let room = total.min(done + DEPTH);
        (posted, _) = post_until_full(pair, posted, room, &make)?;
        while posted >= granted + CREDIT {
            match pair.post(op::inject(op::send(CREDIT_CONTEXT, &[]), &[])) {
                Ok(()) => granted += CREDIT,
                Err(e) if e.errno.0 == libc::EAGAIN => break,
                Err(e) => return Err(e).context("a credit"),
            }
        }
    }
    Ok(())
}

fn flood_send(pair: &Pair, make: impl Fn(u64) -> OpEntry) -> Result<u64> {
    let total = total();
    let mut seen = vec![0u8; total as usize];
    let (mut posted, mut done, mut credits, mut full) = (0u64, 0u64, DEPTH, 0u64);
    while done < total {
        let (at, was_full) = post_until_full(pair, posted, total.min(credits), &make)?;
        posted = at;
        full += u64::from(was_full || posted - done >= DEPTH);
        let mut granted = 0;
        take(pair, |context| {
            if context == CREDIT_CONTEXT {
                granted += 1;
                return Ok(());
            }
            done += 1;
            count_once(&mut seen, context)
        })
        .with_context(|| format!("{done} of {posted} sends done, {credits} granted"))?;
        credits += granted * CREDIT;
        // The last credits, fewer than a message stands for, need no message.
        if total - credits.min(total) < CREDIT {
            credits = total;
        }
        for _ in 0..granted {
            pair.post(op::recv(CREDIT_CONTEXT, &[]))
                .context("a receive for credits")?;
        }
    }
    Ok(full)
}
