// SPDX-License-Identifier: MIT OR Apache-2.0

//! A device is removed while a registration on it waits for a program (P11).

use super::key_batches::joined;
use super::modules::{add_link, delete_link};
use super::refused;
use crate::fault::calls::memory::touch;
use crate::harness::leaks::vm_pin;
use crate::harness::{caps, Ctx, Test, NETNS};
use crate::pair::{Opts, Side, LOCAL, REMOTE};
use crate::sys::{self, uffd, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::pair(
    "death.p11_device_removed_beside_a_missing_page_notifies_all",
    beside_a_missing_page,
)
.seconds(10)
.needs(caps::FULL_KEYS)
.on(NETNS)];

/// Bytes of a page.
const PAGE: usize = 4096;
/// More than a fast registration covers, so that the device pins the pages itself.
const SIZE: usize = 300 * PAGE;

fn beside_a_missing_page(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        remove(ctx)?;
    }
    ctx.barrier("removed")?;
    super::death::fresh_transfer(ctx)
}

/// One program assigns a key and withholds its last page; another program listens. The device is removed:
/// the listener gets its event while the page is still missing.
fn remove(ctx: &Ctx) -> Result<()> {
    let innocent = Side::open(ctx)?;
    let (pep, _) = innocent.listen(ctx.env.at(0), 0)?;
    let cq = innocent.cq(0, 0)?;
    let culprit = Side::open(ctx)?;
    let dev = &culprit.dev;
    let map = Map::anon(SIZE)?;
    // Contiguous memory would have a fast registration, which waits for no page.
    touch(&map);
    let region = culprit.dev.region_reg(
        culprit.domain.handle,
        map.addr(),
        SIZE as u64,
        LOCAL | REMOTE,
        KFI_REGION_DYNAMIC_KEYS,
    )?;
    let slot = dev.key_alloc(region.handle, 1)?[0];
    let missing = uffd::Missing::watch(&map)?;
    let last = SIZE - PAGE;
    missing.drop_from(last)?;
    let within = sys::patience(Duration::from_secs(10));
    std::thread::scope(|scope| -> Result<()> {
        let assigner = scope.spawn(|| Ok(dev.key_assign(slot, 0, SIZE as u64, REMOTE).map(|_| ())));
        let stalls = missing.is_waited_for(within)?;
        let start = Instant::now();
        let remover = scope.spawn(|| delete_link(ctx));
        let told = (|| -> Result<()> {
            ensure!(stalls, "nothing stalls");
            let event = innocent
                .dev
                .eq_wait(&innocent.eq, Duration::from_secs(5))
                .context("the listener has heard nothing")?;
            ensure!(
                event.raw.event == KFI_CONN_ERROR
                    && event.raw.object == pep
                    && event.raw.err as i32 == libc::ENODEV,
                "{:?}",
                event.raw
            );
            eprintln!("told after {:?}", start.elapsed());
            ensure!(!assigner.is_finished(), "nothing is missing");
            let made = innocent.endpoint(&Opts::default(), &cq, 0);
            ensure!(made.is_err(), "an endpoint of a device that is removed");
            Ok(())
        })();
        missing.fill_from(last)?;
        let assigned = joined(assigner);
        let removed = joined(remover);
        told?;
        removed?;
        refused(assigned?, libc::ENODEV, "a key of a device that is removed")
    })?;
    dev.close(slot)?;
    dev.close(region.handle)?;
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    add_link(ctx)
}
