// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many objects of a program do not make its exit long, and small regions do not escape a limit.

use super::refused;
use crate::auth::{self, Enforced};
use crate::buf::Buf;
use crate::harness::guest::{ends_in_linear_time, until};
use crate::harness::{Ctx, Test, SHM};
use crate::pair::{Side, LOCAL, REMOTE, WAIT};
use crate::sys;
use anyhow::{ensure, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone(
        "death.p12_exit_with_unread_events_takes_linear_time",
        unread,
    )
    .on(SHM)
    .seconds(20),
    Test::alone("auth.p07_limit_of_pinned_memory_counts_whole_pages", pages).on(SHM),
];

/// Has `count` endpoints fail to connect, reads none of their events, and closes the file: how long that
/// takes.
fn end_with_events(ctx: &Ctx, count: u32) -> Result<Duration> {
    let side = Side::open(ctx)?;
    let cq = side.cq(64, 0)?;
    // The listener is closed, so each connection is refused.
    let (pep, at) = side.listen(ctx.env.at(0), 0)?;
    side.dev.close(pep)?;
    for _ in 0..count {
        let ep = side.dev.ep_open(&EpOpen {
            tx_size: 1,
            rx_size: 1,
            ..auth::keyed(side.domain.handle, &[])
        })?;
        side.dev.bind(ep.handle, side.eq.handle, 0)?;
        side.dev
            .bind(ep.handle, cq.handle, KFI_TRANSMIT | KFI_RECV)?;
        side.dev.enable(ep.handle)?;
        side.dev.connect(ep.handle, at, &[])?;
    }
    // Of an event queue, how many wait. It was opened early, so it is among the first objects.
    until("the events", WAIT, || {
        let all = side.dev.obj_list()?;
        let eq = all.iter().find(|of| of.handle == side.eq.handle);
        let waiting = eq.map_or(0, |eq| eq.b);
        Ok((waiting == u64::from(count)).then_some(()))
    })?;
    let Side { dev, .. } = side;
    let start = Instant::now();
    drop(dev);
    Ok(start.elapsed())
}

/// The end of an endpoint does not take longer the more events of others wait in its queue.
fn unread(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    // Not as many more that they leave the first objects that are listed.
    let few = 4000 / sys::slowness().max(1);
    ends_in_linear_time(few, |count| end_with_events(ctx, count))
}

/// A region of a byte is counted with the page that it pins.
fn pages(ctx: &mut Ctx) -> Result<()> {
    // The mode is one for both nodes.
    if !ctx.first() {
        return Ok(());
    }
    const KEY: &[u8] = b"a limit of two pages";
    let mode = Enforced::new()?;
    auth::add(
        mode.dev(),
        &GrantAdd {
            max_pinned: 8192,
            ..auth::to_root(KEY)
        },
    )?;
    let side = Side::open(ctx)?;
    let buf = Buf::new(4 * 4096)?;
    buf.clear(1);
    let reg = |at: u64, len: u64| {
        side.dev.call_region(&RegionReg {
            flags: KFI_REGION_DYNAMIC_KEYS,
            domain: side.domain.handle,
            addr: buf.addr() + at,
            len,
            access: LOCAL | REMOTE,
            auth_key: KEY.as_ptr() as u64,
            auth_key_size: KEY.len() as u32,
            ..Default::default()
        })
    };
    let first = reg(0, 1)?;
    let second = reg(4096, 1)?;
    refused(reg(8192, 1), libc::EDQUOT, "a third page")?;
    ensure!(auth::list(mode.dev())?[0].pinned == 8192, "not two pages");
    side.dev.close(first.handle)?;
    side.dev.close(second.handle)?;
    // Two bytes may be in two pages.
    reg(4095, 2)?;
    refused(reg(0, 1), libc::EDQUOT, "another page")?;
    Ok(())
}
