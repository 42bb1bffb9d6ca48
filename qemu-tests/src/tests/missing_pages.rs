// SPDX-License-Identifier: MIT OR Apache-2.0

//! A program whose page does not come: its own call waits, the calls of others do not.

use crate::buf::Buf;
use crate::harness::{Ctx, Test, ONE, SHM};
use crate::pair::{Side, LOCAL, REMOTE};
use crate::raw::Dev;
use crate::sys::{self, uffd, Map};
use anyhow::{ensure, Context, Result};
use std::sync::mpsc;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::alone(
    "mr.p11_registration_beside_a_missing_page_does_not_wait",
    beside,
)
.on(ONE | SHM)];

/// While a registration waits for a page of its program, another thread of the same user registers,
/// deregisters and closes on the same file and on another.
fn beside(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 4 * 4096;
    let within = sys::patience(Duration::from_secs(5));
    let (side, other) = (Side::open(ctx)?, Side::open(ctx)?);
    let map = Map::anon(LEN)?;
    let buf = Buf::new(LEN)?;
    buf.clear(1);
    let missing = uffd::Missing::watch(&map)?;
    let calls = |side: &Side| -> Result<()> {
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let slot = side.dev.key_alloc(region, 1)?[0];
        side.assign(slot, 0, LEN as u64, REMOTE)?;
        side.dev.key_revoke(slot)?;
        side.dev.close(slot)?;
        side.dev.close(region)?;
        drop(Dev::open()?);
        Ok(())
    };
    let (sender, done) = mpsc::channel();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| side.reg_at(map.addr(), LEN as u64, LOCAL | REMOTE));
        let waited = missing.is_waited_for(within);
        let quick = scope.spawn(|| {
            let result = calls(&other).and_then(|()| calls(&side));
            let _ = sender.send(());
            result
        });
        let came = done.recv_timeout(within);
        missing.fill_from(0)?;
        quick.join().map_err(|_| anyhow::anyhow!("a panic"))??;
        let region = slow.join().map_err(|_| anyhow::anyhow!("a panic"))?;
        ensure!(waited?, "no registration waited for the page");
        came.context("another registration waited for the missing page")?;
        side.dev.close(region?.handle)?;
        Ok(())
    })
}
