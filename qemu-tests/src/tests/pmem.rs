// SPDX-License-Identifier: MIT OR Apache-2.0

//! Persistent memory: the kind of a region's memory, and writes that ask to be durable.
//!
//! A guest of one machine has an NVDIMM, and a virtio-pmem device, whose memory only the device can
//! make durable. Emulated memory keeps every store, so these tests show refusals and the bytes, not
//! that a flush happened; `cargo xtask pmcut` shows that.

use super::refused;
use super::shm_unregistered::user;
use crate::buf::Buf;
use crate::harness::caps::ARRIVED_WRITES;
use crate::harness::guest::{run, until};
use crate::harness::{skip, Ctx, Test, NETNS, ONE, SHM, TWO};
use crate::op::{self, iov, with_data, with_flags};
use crate::pair::{Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::sys::Map;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("pmem.p10_ordinary_memory_is_not_persistent", |c| {
        once(c, ordinary)
    })
    .on(ONE | SHM),
    Test::alone("pmem.p10_device_dax_of_nvdimm_is_persistent", |c| {
        once(c, nvdimm)
    })
    .on(ONE | SHM),
    Test::alone("pmem.known_bad_memory_is_refused", |c| once(c, bad)).on(ONE | SHM),
    Test::alone("pmem.device_unbound_while_registered_waits", |c| {
        once(c, unbound)
    })
    .on(ONE | SHM),
    Test::alone("pmem.p10_memory_that_needs_its_device_is_refused", |c| {
        once(c, virtio)
    })
    .on(ONE),
    Test::pair("pmem.p10_durable_write_arrives_and_completes", durable).on(SHM),
    Test::pair(
        "pmem.p10_durable_write_to_volatile_memory_changes_nothing",
        volatile,
    )
    .on(SHM),
    Test::pair("pmem.p10_level_in_other_ops_is_refused", other_ops).on(NETNS | SHM),
    Test::pair("pmem.visible_write_is_in_memory_when_it_completes", visible)
        .on(NETNS | TWO)
        .needs(ARRIVED_WRITES),
];

/// Bytes of a test's mapping of a DAX device, which maps large pages only.
pub(super) const MAPPED: usize = 8 << 20;

/// Runs a test on one node.
fn once(ctx: &mut Ctx, test: fn(&mut Ctx) -> Result<()>) -> Result<()> {
    if ctx.first() {
        test(ctx)?;
    }
    Ok(())
}

/// Kind of the devices below a bus of persistent memory.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Device {
    Nvdimm,
    /// The second NVDIMM, whose memory has a NUMA node of its own. The deterministic mode has none.
    Large,
    Virtio,
}

/// Bytes of the first NVDIMM.
const SMALL: u64 = 64 << 20;

impl Device {
    /// Returns the folder of the device's region in sysfs, and the region's number.
    pub(super) fn region(self) -> Result<(PathBuf, u32)> {
        for module in ["nfit", "virtio_pmem", "nd_pmem", "dax_pmem", "device_dax"] {
            if run("modprobe", &[module]).is_err() {
                return skip(format!("no {module}"));
            }
        }
        let found = || {
            for entry in fs::read_dir("/sys/bus/nd/devices")? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let Some(number) = name.strip_prefix("region") else {
                    continue;
                };
                let at = fs::canonicalize(entry.path())?;
                let is_virtio = at.to_string_lossy().contains("/virtio");
                let size: u64 = fs::read_to_string(at.join("size"))?.trim().parse()?;
                let kind = match (is_virtio, size > SMALL) {
                    (true, _) => Self::Virtio,
                    (false, true) => Self::Large,
                    (false, false) => Self::Nvdimm,
                };
                if kind == self {
                    return Ok(Some((at, number.parse()?)));
                }
            }
            Ok(None)
        };
        until("the region of persistent memory", WAIT, found)
    }

    /// Makes the device a device-dax device, if it is none yet. Returns its path and its number.
    pub(crate) fn make(self) -> Result<(PathBuf, u32)> {
        let (region, number) = self.region()?;
        let path = PathBuf::from(format!("/dev/dax{number}.0"));
        if !path.exists() {
            make_dax(&region, number)?;
        }
        until("the device-dax device", WAIT, || {
            Ok(path.exists().then_some(()))
        })?;
        Ok((path, number))
    }

    /// As [`Device::make`], and maps the device's memory.
    pub(crate) fn map(self) -> Result<Map> {
        let (path, _) = self.make()?;
        let file = File::options().read(true).write(true).open(&path)?;
        Map::file(file.as_fd(), MAPPED, true).context("mapping the device")
    }
}

/// Writes an attribute in sysfs.
pub(super) fn set(at: &Path, value: &str) -> Result<()> {
    fs::write(at, value).with_context(|| format!("{value} to {}", at.display()))
}

/// Makes the namespace of a region a device-dax device.
fn make_dax(region: &Path, number: u32) -> Result<()> {
    let drivers = Path::new("/sys/bus/nd/drivers");
    let namespace = format!("namespace{number}.0");
    if region.join(&namespace).join("driver").exists() {
        set(&drivers.join("nd_pmem/unbind"), &namespace)?;
    }
    let seed = fs::read_to_string(region.join("dax_seed"))?;
    let dax = region.join(seed.trim());
    let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    set(&dax.join("uuid"), uuid.trim())?;
    set(&dax.join("mode"), "ram")?;
    set(&dax.join("namespace"), &namespace)?;
    set(&drivers.join("dax_pmem/bind"), seed.trim())
}

/// Returns a registration of a whole mapping.
pub(crate) fn want(side: &Side, map: &Map, flags: u32) -> RegionReg {
    RegionReg {
        flags,
        domain: side.domain.handle,
        addr: map.addr(),
        len: map.len() as u64,
        access: LOCAL | REMOTE,
        ..Default::default()
    }
}

fn ordinary(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let map = Map::anon(65536)?;
    let got = side.dev.call_region(&want(&side, &map, 0))?;
    ensure!(got.persistence == KFI_PERSISTENCE_NONE, "{got:?}");
    let persistent = side.dev.call_region(&want(&side, &map, KFI_REGION_PMEM));
    refused(persistent, libc::EINVAL, "anonymous memory")?;
    let device = side.dev.call_region(&want(&side, &map, KFI_REGION_DEVICE));
    refused(device, libc::EOPNOTSUPP, "memory of a device")
}

fn nvdimm(ctx: &mut Ctx) -> Result<()> {
    let map = Device::Nvdimm.map()?;
    let side = Side::open(ctx)?;
    let got = side.dev.call_region(&want(&side, &map, 0))?;
    ensure!(got.persistence == KFI_PERSISTENCE_ADR, "{got:?}");
    side.dev.close(got.handle)?;
    let persistent = side.dev.call_region(&want(&side, &map, KFI_REGION_PMEM));
    if side.domain.durable == KFI_REACH_NO {
        return refused(persistent, libc::EOPNOTSUPP, "a domain without durability");
    }
    let got = persistent?;
    ensure!(got.persistence == KFI_PERSISTENCE_ADR, "{got:?}");
    side.dev.close(got.handle)?;
    Ok(())
}

/// Bytes of a unit of device-dax memory, all of which are bad if one page is.
const UNIT: usize = 2 << 20;
/// Where the bad unit is, behind the memory that other tests map.
const BAD: i64 = 48 << 20;

fn bad(ctx: &mut Ctx) -> Result<()> {
    let (path, _) = Device::Nvdimm.make()?;
    let file = File::options().read(true).write(true).open(&path)?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let map = |len, at| Map::raw(file.as_fd(), len, access, libc::MAP_SHARED, at);
    let good = map(UNIT, BAD - UNIT as i64)?;
    let bad = map(UNIT, BAD)?;
    let both = map(2 * UNIT, BAD - UNIT as i64)?;
    let side = Side::open(ctx)?;
    let before = side.dev.call_region(&want(&side, &bad, 0))?;
    if bad.advise(libc::MADV_HWPOISON).is_err() {
        return skip("the kernel cannot mark memory as bad");
    }
    for map in [&bad, &both] {
        let got = side.dev.call_region(&want(&side, map, 0));
        refused(got, libc::EHWPOISON, "bad memory")?;
    }
    let got = side.dev.call_region(&want(&side, &good, KFI_REGION_PMEM))?;
    side.dev.close(got.handle)?;
    // A region from before stays until it is closed.
    Ok(side.dev.close(before.handle)?)
}

fn unbound(ctx: &mut Ctx) -> Result<()> {
    let (_, number) = Device::Nvdimm.region()?;
    let map = Device::Nvdimm.map()?;
    let side = Side::open(ctx)?;
    let region = side.dev.call_region(&want(&side, &map, 0))?;
    let name = format!("dax{number}.0");
    let driver = Path::new("/sys/bus/dax/drivers/device_dax");
    let unbind = std::thread::spawn({
        let name = name.clone();
        move || set(&driver.join("unbind"), &name)
    });
    // The driver first ends the mappings, and then removes the memory.
    until("the end of the mappings", WAIT, || {
        match side.dev.call_region(&want(&side, &map, 0)) {
            Ok(other) => {
                side.dev.close(other.handle)?;
                Ok(None)
            }
            Err(_) => Ok(Some(())),
        }
    })?;
    ensure!(!unbind.is_finished(), "the device is gone while in use");
    side.dev.close(region.handle)?;
    until("the end of the unbinding", WAIT, || {
        Ok(unbind.is_finished().then_some(()))
    })?;
    let ended = unbind.join();
    ended.map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    drop(map);
    set(&driver.join("bind"), &name)?;
    Device::Nvdimm.map().map(drop)
}

/// A mounted file system, which the drop unmounts.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &[&self.0.to_string_lossy()]);
        let _ = fs::remove_dir(&self.0);
    }
}

fn virtio(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let (_, number) = Device::Virtio.region()?;
    let disk = format!("/dev/pmem{number}");
    // Only until a test has made it a device-dax device, once per boot.
    if Path::new(&disk).exists() {
        file_on_dax(&side, &disk)?;
    }
    let map = Device::Virtio.map()?;
    let got = side.dev.call_region(&want(&side, &map, 0))?;
    ensure!(got.persistence == KFI_PERSISTENCE_NONE, "{got:?}");
    side.dev.close(got.handle)?;
    let persistent = side.dev.call_region(&want(&side, &map, KFI_REGION_PMEM));
    refused(persistent, libc::EINVAL, "virtio-pmem")
}

/// Checks that memory of a file on a DAX file system is refused, and the log names device-dax.
fn file_on_dax(side: &Side, disk: &str) -> Result<()> {
    run("mkfs.ext4", &["-q", "-F", "-b", "4096", disk])?;
    let at = Mounted(PathBuf::from("/tmp/pmem-dax"));
    fs::create_dir_all(&at.0)?;
    run(
        "mount",
        &["-o", "dax=always", disk, &at.0.to_string_lossy()],
    )?;
    let path = at.0.join("file");
    fs::write(&path, vec![1; 65536])?;
    let file = File::options().read(true).write(true).open(&path)?;
    let map = Map::file(file.as_fd(), 65536, true)?;
    for flags in [0, KFI_REGION_PMEM] {
        let got = side.dev.call_region(&want(side, &map, flags));
        refused(got, libc::EOPNOTSUPP, "a file on a DAX file system")?;
    }
    let log = run("dmesg", &[])?;
    ensure!(
        log.contains("map a device-dax device"),
        "the kernel log does not name device-dax"
    );
    Ok(())
}

/// Lengths and offsets around words, cache lines and pages.
pub(super) const PLACES: &[(usize, usize)] = &[
    (0, 1),
    (3, 7),
    (8, 8),
    (60, 8),
    (63, 66),
    (4000, 4096),
    (8192, 4096),
    (12_345, 1 << 20),
    (2 << 20, 4 << 20),
];

fn durable(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let map = Device::Nvdimm.map()?;
        let side = Side::open(ctx)?;
        let region = side.dev.call_region(&want(
            &side,
            &map,
            KFI_REGION_PMEM | KFI_REGION_DYNAMIC_KEYS,
        ))?;
        let pair = Pair::on(ctx, side, &Opts::default())?;
        let receives = Buf::new(64)?;
        let receive = pair.reg(&receives)?;
        pair.post(op::recv(7, &[iov(receive, 0, 8)]))?;
        let len = map.len() as u64;
        let (_, mine) = pair.side.export(region.handle, 0, len, REMOTE)?;
        let _: Remote = ctx.ctl.exchange(&mine)?;
        let there = Buf::whole(map);
        for (i, (at, len)) in PLACES.iter().enumerate() {
            ctx.barrier("written")?;
            there.check_part(*at, *len, i as u64)?;
            ctx.barrier("checked")?;
        }
        let e = pair.wait_any(WAIT)?;
        ensure!(e.err == 0 && e.data == 5, "{e:?}");
        ctx.barrier("data")?;
        ensure!(
            there.read(100, 4) == b"word",
            "the injected bytes are missing"
        );
        return ctx.barrier("end");
    }
    let (pair, to) = user(ctx)?;
    ensure!(pair.side.domain.durable == KFI_REACH_NATIVE);
    let from = Buf::new(MAPPED)?;
    let region = pair.reg(&from)?;
    for (i, (at, len)) in PLACES.iter().enumerate() {
        // The second half of the places comes from unregistered memory.
        let local = if i % 2 == 0 {
            from.fill_part(*at, *len, i as u64);
            iov(region, *at as u64, *len as u64)
        } else {
            from.fill_part(*at, *len, i as u64);
            iov(KFI_UNREGISTERED, from.addr() + *at as u64, *len as u64)
        };
        let write = op::write(9, &[local], to.addr + *at as u64, to.key);
        pair.post(with_flags(
            write,
            KFI_COMMIT_COMPLETE | KFI_DELIVERY_COMPLETE,
        ))?;
        pair.wait_context(9)?;
        ctx.barrier("written")?;
        ctx.barrier("checked")?;
    }
    let local = [iov(region, 0, 0)];
    let write = with_data(op::write(10, &local, to.addr, to.key), 5);
    pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
    pair.wait_context(10)?;
    let word = op::inject(op::write(11, &[], to.addr + 100, to.key), b"word");
    pair.post(with_flags(word, KFI_COMMIT_COMPLETE | KFI_COMPLETION))?;
    pair.wait_context(11)?;
    ctx.barrier("data")?;
    ctx.barrier("end")
}

fn volatile(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let pair = Pair::new(ctx)?;
        let buf = Buf::new(8192)?;
        buf.clear(3);
        let region = pair.reg(&buf)?;
        let slot = pair.dev().key_alloc(region, 1)?[0];
        let mut once = KeyAssign {
            flags: KFI_KEY_SINGLE_USE,
            slot,
            length: 8192,
            access: REMOTE,
            ..Default::default()
        };
        pair.dev().call(&mut once)?;
        let mine = Remote {
            addr: once.remote_addr,
            key: once.key,
            len: 8192,
        };
        let _: Remote = ctx.ctl.exchange(&mine)?;
        ctx.barrier("refused")?;
        buf.check_value(0, 8192, 3)?;
        ctx.barrier("unchanged")?;
        ctx.barrier("written")?;
        return buf.check_value(0, 4096, 4);
    }
    let (pair, to) = user(ctx)?;
    let from = Buf::new(4096)?;
    from.clear(4);
    let region = pair.reg(&from)?;
    let write = op::write(1, &[iov(region, 0, 4096)], to.addr, to.key);
    pair.post(with_flags(write, KFI_COMMIT_COMPLETE))?;
    let err = pair.wait_err()?;
    ensure!(err == libc::EOPNOTSUPP, "errno {err}");
    ctx.barrier("refused")?;
    ctx.barrier("unchanged")?;
    // The connection stays, and the refusal has not used up the single-use key.
    pair.post(with_flags(write, KFI_DELIVERY_COMPLETE))?;
    pair.wait_context(1)?;
    ctx.barrier("written")
}

fn other_ops(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let local = [iov(region, 0, 8)];
    let ops = [
        op::send(1, &local),
        op::recv(2, &local),
        op::read(3, &local, 0, 0),
    ];
    for op in ops {
        for flag in [KFI_DELIVERY_COMPLETE, KFI_COMMIT_COMPLETE] {
            let what = format!("operation {} with {flag:#x}", op.op);
            refused(pair.post(with_flags(op, flag)), libc::EOPNOTSUPP, &what)?;
        }
    }
    ctx.barrier("end")
}

/// Writes of each size, also in several work requests, and reads the target's memory after each
/// completion.
fn visible(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    ensure!(pair.side.domain.visible == KFI_REACH_NATIVE);
    let buf = Buf::new(MAPPED)?;
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, MAPPED as u64, REMOTE)?;
    let to: Remote = ctx.ctl.exchange(&mine)?;
    for (i, (at, len)) in PLACES.iter().enumerate() {
        if ctx.first() {
            ctx.barrier("written")?;
            buf.check_part(*at, *len, i as u64)?;
            ctx.barrier("checked")?;
            continue;
        }
        buf.fill_part(*at, *len, i as u64);
        let half = (*len / 2) as u64;
        let local = [
            iov(region, *at as u64, half),
            iov(region, *at as u64 + half, *len as u64 - half),
        ];
        let write = op::write(9, &local, to.addr + *at as u64, to.key);
        pair.post(with_flags(write, KFI_DELIVERY_COMPLETE))?;
        pair.wait_context(9)?;
        ctx.barrier("written")?;
        ctx.barrier("checked")?;
    }
    if ctx.first() {
        let receives = Buf::new(64)?;
        let receive = pair.reg(&receives)?;
        pair.post(op::recv(7, &[iov(receive, 0, 8)]))?;
        ctx.barrier("posted")?;
        let e = pair.wait_any(WAIT)?;
        ensure!(e.err == 0 && e.data == 5, "{e:?}");
        ensure!(
            buf.read(100, 4) == b"word",
            "the injected bytes are missing"
        );
        return ctx.barrier("end");
    }
    ctx.barrier("posted")?;
    let word = op::inject(op::write(10, &[], to.addr + 100, to.key), b"word");
    let flags = KFI_DELIVERY_COMPLETE | KFI_COMPLETION;
    pair.post(with_flags(with_data(word, 5), flags))?;
    pair.wait_context(10)?;
    ctx.barrier("end")
}
