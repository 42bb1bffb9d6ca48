// SPDX-License-Identifier: MIT OR Apache-2.0

//! Persistent memory that the kernel uses as system RAM (kmem): the platform still describes the memory as
//! persistent, but it is ordinary memory.
//!
//! The machine has a second, larger NVDIMM in a NUMA node of its own for this.

use super::pmem::{set, want, Device};
use super::refused;
use crate::harness::guest::run;
use crate::harness::{skip, Ctx, Test, ONE};
use crate::pair::Side;
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The topic's tests.
pub const TESTS: &[Test] = &[Test::alone(
    "pmem.p10_persistent_memory_used_as_system_ram_is_ordinary",
    system_ram,
)
.seconds(40)
.on(ONE)];

/// Devices of memory that is described by a DAX device.
const DAX: &str = "/sys/bus/dax";
/// Bytes that are registered.
const LEN: usize = 2 << 20;
const PAGE: usize = 4096;

fn number(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let text = text.trim();
    Ok(match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16)?,
        None => text.parse()?,
    })
}

/// Returns whether the kernel uses the memory of a device as system RAM.
fn is_system_ram(name: &str) -> bool {
    Path::new(DAX).join("drivers/kmem").join(name).exists()
}

/// Makes the memory of a device system RAM of a node, until the machine's end: the kernel's own pages among
/// it cannot be moved.
fn make_system_ram(name: &str, node: u64) -> Result<()> {
    let drivers = Path::new(DAX).join("drivers");
    set(&drivers.join("device_dax/unbind"), name)?;
    // Binds the device, too.
    set(&drivers.join("kmem/new_id"), name)?;
    ensure!(is_system_ram(name), "kmem does not use {name}");
    let folder = format!("/sys/devices/system/node/node{node}");
    for entry in fs::read_dir(&folder).context(folder)? {
        let state = entry?.path().join("state");
        if fs::read_to_string(&state).is_ok_and(|text| text.trim() == "offline") {
            set(&state, "online_kernel")?;
        }
    }
    Ok(())
}

/// Returns the physical address of the page at an address of this process.
fn physical(address: u64) -> Result<u64> {
    const PRESENT: u64 = 1 << 63;
    let file = File::open("/proc/self/pagemap")?;
    let mut entry = [0; 8];
    file.read_exact_at(&mut entry, address / PAGE as u64 * 8)?;
    let entry = u64::from_ne_bytes(entry);
    ensure!(entry & PRESENT != 0, "the page is not present");
    Ok((entry & ((1 << 55) - 1)) * PAGE as u64)
}

fn system_ram(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    if run("modprobe", &["kmem"]).is_err() {
        return skip("no kmem");
    }
    let (_, region) = Device::Large.region()?;
    let name = format!("dax{region}.0");
    let device = Path::new(DAX).join("devices").join(&name);
    // After an earlier run of the test in this boot.
    let again = is_system_ram(&name);
    if !again {
        Device::Large.make()?;
    }
    let node = number(&device.join("target_node")).unwrap_or_default();
    if node == 0 {
        return skip("the NVDIMM has no NUMA node of its own");
    }
    let side = Side::open(ctx)?;
    if !again {
        let map = Device::Large.map()?;
        let got = side.dev.call_region(&want(&side, &map, 0))?;
        ensure!(got.persistence == KFI_PERSISTENCE_ADR, "{got:?}");
        side.dev.close(got.handle)?;
        drop(map);
        make_system_ram(&name, node)?;
    }
    let start = number(&device.join("resource"))?;
    let range = start..start + number(&device.join("size"))?;
    let map = Map::anon(LEN)?;
    map.bind(node)?;
    for at in (0..LEN).step_by(PAGE) {
        map.set(at, 1);
    }
    let inside = || -> Result<()> {
        for at in (0..LEN).step_by(PAGE) {
            let at = physical(map.addr() + at as u64)?;
            ensure!(range.contains(&at), "{at:#x} is not of {name}");
        }
        Ok(())
    };
    inside()?;
    let got = side.dev.call_region(&want(&side, &map, 0))?;
    // The pin has not moved the pages to other memory.
    inside()?;
    ensure!(got.persistence == KFI_PERSISTENCE_NONE, "{got:?}");
    side.dev.close(got.handle)?;
    let persistent = side.dev.call_region(&want(&side, &map, KFI_REGION_PMEM));
    refused(persistent, libc::EINVAL, "system RAM")
}
