// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk: a commit that cannot be posted is repeated. The device refuses the first request of a commit
//! (`consumers/tests/fake-device`), so the post fails with `ENOTCONN`, and kfblk posts the commit later.

use super::blk_pmem::{chunks, count, with};
use crate::disk::{is_filled, store, write_filled, Disk, MIB, NAME};
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::{Ctx, Test, NETNS};
use crate::profile::Fake;
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use std::path::Path;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("blkpmem.flush_that_is_refused_once_is_retried", |ctx| {
        refused(ctx, |disk| Ok(disk.file.sync_all()?))
    })
    .seconds(30)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
    Test::pair(
        "blkpmem.disconnect_that_is_refused_once_is_retried",
        |ctx| {
            refused(ctx, |disk| {
                drop(disk);
                Ok(store("disks", NAME, "enable", "0")?)
            })
        },
    )
    .seconds(30)
    .on(NETNS)
    .needs(ARRIVED_WRITES),
];

/// Writes, and runs `commit`, which commits the whole disk, while the device refuses
/// one request.
fn refused(ctx: &mut Ctx, commit: fn(Disk) -> Result<()>) -> Result<()> {
    let client = |_: &mut Ctx, path: &Path| {
        let disk = Disk::open(path)?;
        let all = chunks(&disk);
        write_filled(&disk, &Map::anon(MIB)?, 0, MIB, 3)?;
        ensure!(count()? == 0, "a commit without a flush");
        let fake = Fake::load()?;
        fake.set(&format!("reset=1 refuse=post_send:{}:0:1", libc::EAGAIN))?;
        commit(disk).context("commits")?;
        let calls = fake.counters()?["post_send"];
        ensure!(calls.refused == 1, "{calls:?}");
        ensure!(count()? == all, "{} commits of {all}", count()?);
        Ok(())
    };
    with(
        ctx,
        &[],
        |_, _| Ok(()),
        client,
        |nvdimm| is_filled(&nvdimm.contents()?[..MIB], 0, 3),
    )
}
