// SPDX-License-Identifier: MIT OR Apache-2.0

//! A page of a program's persistent memory fails after its registration. Node 1 has the NVDIMM.
//!
//! The injected failure marks the page as bad, as a machine check does, but the emulated memory stays
//! readable.

use super::pmem::{set, want, Device, MAPPED};
use super::pmem_commit::{initiator, target};
use super::refused;
use crate::buf::Buf;
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::guest::run;
use crate::harness::{skip, Ctx, Test, NETNS, SHM};
use crate::op::{self, iov, with_flags};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs;
use std::path::Path;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("pmem.page_failed_after_registration_keeps_keys", keeps)
        .on(NETNS | SHM)
        .needs(ARRIVED_WRITES),
];

/// The kernel's file that reports failed memory by a physical address.
pub(super) const FAIL: &str = "/sys/devices/system/memory/hard_offline_page";
/// Where the failed page is in the mapping, behind the memory of most other tests.
const AT: u64 = 4 << 20;

/// Fails the page at `AT`. Another process does so, because the kernel would kill the caller if the page
/// is mapped.
fn fail(number: u32) -> Result<()> {
    if !Path::new(FAIL).exists() {
        return skip("the kernel does not handle failed memory");
    }
    let at = format!("/sys/bus/dax/devices/dax{number}.0/resource");
    let text = fs::read_to_string(&at).with_context(|| at.clone())?;
    let start = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16)?;
    let command = format!("echo {:#x} > {FAIL}", start + AT);
    run("sh", &["-c", &command]).map(drop)
}

/// Makes the page's descriptor anew, which is not bad.
fn repair(number: u32) -> Result<()> {
    let driver = Path::new("/sys/bus/dax/drivers/device_dax");
    let name = format!("dax{number}.0");
    set(&driver.join("unbind"), &name)?;
    set(&driver.join("bind"), &name)?;
    Device::Nvdimm.map().map(drop)
}

/// The key stays, and the peer's accesses go on, until the program revokes the key. Nothing new uses the
/// page.
fn keeps(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let (_, number) = Device::Nvdimm.make()?;
        let (pair, there, slot) = target(ctx)?;
        ctx.barrier("written")?;
        fail(number)?;
        ctx.barrier("failed")?;
        ctx.barrier("written again")?;
        let map = Device::Nvdimm.map()?;
        let got = pair.dev().call_region(&want(&pair.side, &map, 0));
        refused(got, libc::EHWPOISON, "bad memory")?;
        there.check_part(AT as usize, 4096, 2)?;
        pair.dev().key_revoke(slot)?;
        ctx.barrier("revoked")?;
        ctx.barrier("end")?;
        // The regions keep the device's driver.
        drop((pair, there, map));
        return repair(number);
    }
    let (pair, to) = initiator(ctx)?;
    let from = Buf::new(MAPPED)?;
    let region = pair.reg(&from)?;
    let local = [iov(region, AT, 4096)];
    let write = op::write(1, &local, to.addr + AT, to.key);
    for (round, labels) in [
        (1, ["written", "failed"]),
        (2, ["written again", "revoked"]),
    ] {
        from.fill_part(AT as usize, 4096, round);
        pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
        pair.wait_context(1)?;
        let back = op::read(2, &[iov(region, 0, 4096)], to.addr + AT, to.key);
        pair.post(back)?;
        pair.wait_context(2)?;
        let same = from.read(0, 4096) == from.read(AT as usize, 4096);
        ensure!(same, "the peer reads other bytes");
        for label in labels {
            ctx.barrier(label)?;
        }
    }
    pair.post(op::commit(3, to.addr + AT, to.key, 4096))?;
    let err = pair.wait_err()?;
    ensure!(err == libc::EKEYREVOKED, "errno {err}");
    ctx.barrier("end")
}
