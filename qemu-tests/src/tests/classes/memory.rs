// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pinned memory: large amounts, holes, and state that a failure must not change.

use super::{held, times};
use crate::buf::Buf;
use crate::harness::leaks::{pinned, vm_pin};
use crate::harness::Ctx;
use crate::op::{self, iov};
use crate::pair::{Pair, Side, LOCAL, REMOTE, WAIT};
use crate::raw::CallError;
use crate::sys::{self, remap::run_on_cpu, Ended, Map};
use crate::tests::refused;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Registers a region of the largest number of pages, in many pieces. The processor runs other
/// tasks meanwhile, and the kernel's watchdog reports nothing.
pub(super) fn largest_region(ctx: &mut Ctx) -> Result<()> {
    const PIECE: usize = 4 << 20;
    const WATCHDOG: &str = "/proc/sys/kernel/watchdog";
    const THRESHOLD: &str = "/proc/sys/kernel/watchdog_thresh";
    let threshold = std::fs::read_to_string(THRESHOLD).context("there is no watchdog")?;
    ctx.barrier("read")?;
    if ctx.first() {
        std::fs::write(WATCHDOG, "1")?;
        // The watchdog reports after twice this time; slow kernels keep their setting.
        if times(1000) == 1000 {
            std::fs::write(THRESHOLD, "4")?;
        }
    }
    ctx.barrier("watched")?;
    let watched = std::fs::read_to_string(WATCHDOG)?;
    ensure!(watched.trim() == "1", "the watchdog is off");
    // The same pages repeated give the most pieces. 1 GiB is the limit of software devices.
    let file = sys::memfd(PIECE as u64)?;
    let whole = Map::repeated(file.as_fd(), PIECE, 257)?;
    let len = PIECE as u64 * times(256);
    let side = Side::open(ctx)?;
    let (ran, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let result = std::thread::scope(|s| -> Result<()> {
        s.spawn(|| {
            let _ = run_on_cpu(0);
            while !over.load(Ordering::Relaxed) {
                ran.fetch_add(1, Ordering::Relaxed);
                std::thread::yield_now();
            }
        });
        let work = || -> Result<()> {
            run_on_cpu(0)?;
            let before = ran.load(Ordering::Relaxed);
            let region = side.reg_at(whole.addr(), len, LOCAL | REMOTE)?;
            let meanwhile = ran.load(Ordering::Relaxed) - before;
            eprintln!("{} pages, others ran {meanwhile} times", region.pages);
            ensure!(meanwhile > 0, "no other task ran on this processor");
            ensure!(region.pages == len / 4096, "{region:?}");
            ensure!(vm_pin() == len, "VmPin is {}", vm_pin());
            // The region's end is usable like its beginning.
            let slot = side.dev.key_alloc(region.handle, 1)?[0];
            side.dev
                .key_assign(slot, len - 4096, 4096, KFI_REMOTE_READ)?;
            side.dev.key_revoke(slot)?;
            side.dev.key_assign(slot, 0, len, REMOTE)?;
            side.dev.close(slot)?;
            side.dev.close(region.handle)?;
            ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
            // One page more than the device takes; the kernel need not refuse it.
            let more = side.reg_at(whole.addr(), (1 << 30) + 1, LOCAL);
            if let Ok(region) = &more {
                side.dev.close(region.handle)?;
            } else {
                refused(more, libc::ENOMEM, "more than the device can register")?;
            }
            ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
            Ok(())
        };
        let done = work();
        over.store(true, Ordering::Relaxed);
        done
    });
    ctx.barrier("registered")?;
    if ctx.first() {
        std::fs::write(THRESHOLD, threshold.trim())?;
    }
    result
}

/// The first, a middle or the last page of a range is missing or unreadable: no page before it
/// stays pinned.
pub(super) fn unmapped_pages(ctx: &mut Ctx) -> Result<()> {
    // Pins are counted for the whole guest, so only one half runs the test.
    if !ctx.first() {
        return Ok(());
    }
    const PAGES: usize = 1200;
    let side = Side::open(ctx)?;
    let alone = !ctx.env.has_peer();
    // A batch of pinning is 512 pages.
    for hole in [0, 1, 511, 512, 513, 1023, 1024, PAGES - 1] {
        for dynamic in [0, KFI_REGION_DYNAMIC_KEYS] {
            let mut map = Map::anon(PAGES * 4096)?;
            map.advise(libc::MADV_NOHUGEPAGE)?;
            let (addr, len) = (map.addr(), map.len() as u64);
            let reg = |access| {
                side.dev
                    .region_reg(side.domain.handle, addr, len, access, dynamic)
            };
            let before = pinned();
            map.protect(hole * 4096, 4096, libc::PROT_NONE)?;
            let what = format!("page {hole}");
            refused(reg(LOCAL | REMOTE), libc::EFAULT, &what)?;
            refused(reg(KFI_SEND), libc::EFAULT, &what)?;
            map.protect(hole * 4096, 4096, libc::PROT_READ)?;
            refused(reg(LOCAL | REMOTE), libc::EFAULT, &what)?;
            let both = libc::PROT_READ | libc::PROT_WRITE;
            map.protect(hole * 4096, 4096, both)?;
            let whole = reg(LOCAL | REMOTE).with_context(|| format!("without hole {hole}"))?;
            side.dev.close(whole.handle)?;
            map.punch(hole * 4096, 4096)?;
            refused(reg(LOCAL | REMOTE), libc::EFAULT, &what)?;
            ensure!(vm_pin() == 0, "{what}: VmPin is {}", vm_pin());
            // The other node's test pins too if both are on one machine.
            if alone {
                ensure!(pinned() == before, "{what}: pages stay pinned");
            }
            // The process's exit unmaps the rest; the hole must not be unmapped again.
            std::mem::forget(map);
        }
    }
    // Memory of a file that is shorter than its mapping.
    let file = sys::memfd(4096)?;
    let map = Map::file(file.as_fd(), 3 * 4096, true)?;
    refused(
        side.reg_at(map.addr(), 3 * 4096, LOCAL),
        libc::EFAULT,
        "pages behind a file's end",
    )?;
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    Ok(())
}

/// One user's calls fail in every way, while another user, with the same domain and the same pages,
/// goes on undisturbed.
pub(super) fn unwinding(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 64 * 4096;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(SIZE)?;
    let (region, remote) = crate::tests::rma::exported(ctx, &pair, &buf)?;
    let charged = vm_pin();
    ctx.barrier("exported")?;
    for round in 0..times(10) {
        failures(&pair, &buf, region)?;
        ensure!(
            vm_pin() == charged,
            "round {round}: VmPin was {charged}, is {}",
            vm_pin()
        );
        if ctx.first() {
            ctx.barrier("written")?;
            buf.check(round)?;
            ctx.barrier("checked")?;
        } else {
            buf.fill(round);
            pair.write(region, 0, SIZE as u64, remote.addr, remote.key)?;
            buf.clear(0);
            pair.read(region, 0, SIZE as u64, remote.addr, remote.key)?;
            buf.check(round)?;
            ctx.barrier("written")?;
            ctx.barrier("checked")?;
        }
    }
    Ok(())
}

/// Makes calls that fail after they have reserved something.
fn failures(pair: &Pair, buf: &Buf, region: u64) -> Result<()> {
    let (dev, side) = (pair.dev(), &pair.side);
    let domain = side.domain.handle;
    let before = held(dev)?;
    // The other user's pages, and then one that is not mapped.
    let far = buf.map().addr() + buf.map().len() as u64 - buf.addr();
    refused(
        side.reg_at(buf.addr(), far + (1 << 40), LOCAL),
        libc::EFAULT,
        "a region beyond the mapping",
    )
    .or_else(|_| {
        refused(
            side.reg_at(buf.addr(), far + (1 << 40), LOCAL),
            libc::ENOMEM,
            "a region beyond the mapping",
        )
    })?;
    // Only half of the handles can be written.
    let room = Map::anon(8192)?;
    room.protect(4096, 4096, libc::PROT_NONE)?;
    let mut keys = KeyAlloc {
        region,
        count: 64,
        handles: room.addr() + 4096 - 32 * 8,
        ..Default::default()
    };
    refused(dev.call(&mut keys), libc::EFAULT, "slots without a place")?;
    // Rights and ranges that are found wrong late.
    let slot = dev.key_alloc(region, 1)?[0];
    refused(
        dev.key_assign(slot, 0, buf.len() as u64 + 1, REMOTE),
        libc::EINVAL,
        "a key beyond the region",
    )?;
    side.assign(slot, 0, 8, REMOTE)?;
    refused(
        dev.key_assign(slot, 0, 16, REMOTE),
        libc::EBUSY,
        "a second key",
    )?;
    dev.close(slot)?;
    // A queue that is created and then gets no descriptor.
    let limit = std::fs::read_dir("/proc/self/fd")?.count() as u64 - 1;
    let full = sys::fork(|| {
        let run = || -> Result<()> {
            sys::set_limit(libc::RLIMIT_NOFILE, limit)?;
            let no = |r: crate::raw::Result<()>| match r {
                Err(CallError { errno, .. }) if errno.0 == libc::EMFILE => Ok(()),
                other => anyhow::bail!("a queue without a descriptor: {other:?}"),
            };
            for _ in 0..4 {
                no(dev.eq_open(side.fabric, 0).map(drop))?;
                no(dev.cq_open(domain, 0, 0).map(drop))?;
            }
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("without descriptors: {e:#}");
                1
            }
        }
    })?;
    let end = sys::wait_pid(full, WAIT)?;
    ensure!(end == Some(Ended::Exit(0)), "without descriptors: {end:?}");
    // An endpoint of an impossible size, one that cannot be enabled, one that cannot connect.
    let large = EpOpen {
        domain,
        tx_size: side.domain.max_tx_size + 1,
        ..Default::default()
    };
    refused(dev.ep_open(&large), libc::EINVAL, "an endpoint too large")?;
    let bare = dev.ep_open(&EpOpen {
        domain,
        ..Default::default()
    })?;
    dev.bind(bare.handle, side.eq.handle, 0)?;
    refused(dev.enable(bare.handle), libc::EINVAL, "one without a queue")?;
    refused(
        dev.bind(bare.handle, side.eq.handle, 0),
        libc::EINVAL,
        "a second event queue",
    )?;
    dev.bind(bare.handle, pair.cq.handle, KFI_TRANSMIT | KFI_RECV)?;
    dev.enable(bare.handle)?;
    let long = [0u8; KFI_CM_DATA_MAX];
    let nowhere = std::net::SocketAddr::from(([127, 0, 0, 1], 9));
    // If the fabric carries less data than a call.
    if (side.domain.cm_data_size as usize) < long.len() {
        let r = dev.connect(bare.handle, nowhere, &long);
        refused(r, libc::EINVAL, "too much data")?;
    }
    dev.close(bare.handle)?;
    // A batch that fails in the middle.
    let good = op::recv(1, &[iov(region, 0, 8)]);
    let mut bad = good;
    bad.iov[0].region = 0x1234;
    refused(dev.submit(pair.ep, &[bad]), libc::ENOENT, "no region")?;
    let after = held(dev)?;
    ensure!(before == after, "{before:?}, then {after:?}");
    Ok(())
}

/// Threads register, export and close with exactly as much lockable memory as they need together:
/// no call is refused, and one page more is refused.
pub(super) fn memlock_of_threads(ctx: &mut Ctx) -> Result<()> {
    const THREADS: usize = 3;
    // More pages than four fast registrations cover, so the region and each key have full registrations.
    const PAGES: usize = 1100;
    // The region has fast registrations, and each key a full one.
    const FEW: usize = 300;
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(crate::raw::device_path(), mode)?;
    let env = ctx.env.clone();
    let rounds = times(60);
    let pid = sys::fork(|| {
        let run = || -> Result<()> {
            // Twice, because a key over a whole region is a registration of its own.
            let limit = THREADS * 2 * PAGES * 4096;
            sys::set_limit(libc::RLIMIT_MEMLOCK, limit as u64)?;
            sys::become_nobody()?;
            let side = Side::of(&env)?;
            keys_cost_once(&side, PAGES, 0)?;
            keys_cost_once(&side, FEW, 1)?;
            std::thread::scope(|s| -> Result<()> {
                let threads: Vec<_> = (0..THREADS)
                    .map(|i| {
                        let side = &side;
                        s.spawn(move || register_and_close(side, PAGES, i, rounds))
                    })
                    .collect();
                for thread in threads {
                    thread.join().map_err(|_| anyhow::anyhow!("panicked"))??;
                }
                Ok(())
            })?;
            ensure!(vm_pin() == 0, "VmPin is {} at the end", vm_pin());
            at_the_limit(&side, PAGES, limit)?;
            // The whole limit is available again, and no page more.
            let map = Map::anon(limit + 4096)?;
            let region = side.reg_at(map.addr(), limit as u64, LOCAL)?.handle;
            refused(
                side.reg_at(map.addr() + limit as u64, 1, LOCAL),
                libc::ENOMEM,
                "a page beyond the limit",
            )?;
            ensure!(vm_pin() == limit as u64, "VmPin is {}", vm_pin());
            side.dev.close(region)?;
            ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("as uid 65534: {e:#}");
                1
            }
        }
    })?;
    let end = sys::wait_pid(pid, Duration::from_secs(100))?;
    ensure!(end == Some(Ended::Exit(0)), "the child: {end:?}");
    Ok(())
}

/// Assigns keys to scattered memory one after the other with a limit for just one. Now and then the
/// device proposes an already-issued value, on the other node's device too.
fn at_the_limit(side: &Side, pages: usize, limit: usize) -> Result<()> {
    let map = Map::anon(pages * 4096)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    (0..pages).for_each(|i| map.set((i * 7 % pages) * 4096, 1));
    let region = side
        .reg_at(map.addr(), map.len() as u64, LOCAL | REMOTE)?
        .handle;
    let slot = side.dev.key_alloc(region, 1)?[0];
    let rest = Map::anon(limit - 2 * map.len())?;
    let taken = side.reg_at(rest.addr(), rest.len() as u64, LOCAL)?.handle;
    for round in 0..times(1500) {
        side.dev
            .key_assign(slot, 0, map.len() as u64, KFI_REMOTE_READ)
            .with_context(|| format!("key {round} at the limit"))?;
        side.dev.key_revoke(slot)?;
    }
    for handle in [slot, region, taken] {
        side.dev.close(handle)?;
    }
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    Ok(())
}

/// Registers scattered memory, assigns a key over all of it, and closes it, again and again.
fn register_and_close(side: &Side, pages: usize, thread: usize, rounds: u64) -> Result<()> {
    let map = Map::anon(pages * 4096)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    (0..pages).for_each(|i| map.set((i * 7 % pages) * 4096, 1));
    for round in 0..rounds {
        let what = || format!("thread {thread}, round {round}");
        let region = side
            .reg_at(map.addr(), map.len() as u64, LOCAL | REMOTE)
            .with_context(what)?
            .handle;
        ensure!(
            vm_pin() >= map.len() as u64,
            "{}: VmPin {}",
            what(),
            vm_pin()
        );
        let slot = side.dev.key_alloc(region, 1)?[0];
        side.dev
            .key_assign(slot, 0, map.len() as u64, REMOTE)
            .with_context(what)?;
        side.dev.key_revoke(slot)?;
        side.dev.close(slot)?;
        side.dev.close(region)?;
    }
    Ok(())
}

/// Checks that the extra cost of a key over a whole region is freed with the key. `free` keys cost nothing.
fn keys_cost_once(side: &Side, pages: usize, free: u64) -> Result<()> {
    let map = Map::anon(pages * 4096)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    (0..pages).for_each(|i| map.set((i * 7 % pages) * 4096, 1));
    let len = map.len() as u64;
    let region = side.reg_at(map.addr(), len, LOCAL | REMOTE)?.handle;
    ensure!(vm_pin() == len, "VmPin is {} with a region", vm_pin());
    let slots = side.dev.key_alloc(region, 2)?;
    for round in 0..4 {
        for slot in &slots {
            side.dev.key_assign(*slot, 0, len, REMOTE)?;
        }
        ensure!(
            vm_pin() == (3 - free) * len,
            "VmPin is {} with keys",
            vm_pin()
        );
        for (i, slot) in slots.iter().enumerate() {
            side.dev.key_revoke(*slot)?;
            let left = (2 - i as u64 - free).max(1) * len;
            ensure!(vm_pin() == left, "round {round}: VmPin is {}", vm_pin());
        }
    }
    slots.iter().try_for_each(|slot| side.dev.close(*slot))?;
    side.dev.close(region)?;
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    Ok(())
}

/// P6: assigning and revoking a key for a few bytes pins, charges and registers no page anew,
/// whether its region is one page or a thousand scattered ones. The counts are machine-wide, so no
/// other test may run on the machine.
pub(super) fn assign_is_small(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        return Ok(());
    }
    let side = Side::open(ctx)?;
    let mut costs = Vec::new();
    for pages in [1usize, 256, 4096] {
        let map = Map::anon(pages * 4096)?;
        map.advise(libc::MADV_NOHUGEPAGE)?;
        (0..pages).for_each(|i| map.set((i * 7919 % pages) * 4096, 1));
        let region = side.reg_at(map.addr(), map.len() as u64, LOCAL | REMOTE)?;
        let slot = side.dev.key_alloc(region.handle, 1)?[0];
        // The first use has made all lasting allocations.
        side.assign(slot, 0, 64, REMOTE)?;
        // Counted while a key is assigned: after a revocation the slot's next region is allocated
        // in the background.
        let (before, charged) = (Cost::now()?, vm_pin());
        for i in 0..times(200) {
            side.dev.key_revoke(slot)?;
            let at = i * 4096 * 7919 % map.len() as u64;
            side.assign(slot, at, 64 + i, REMOTE)?;
            ensure!(vm_pin() == charged, "VmPin is {}, was {charged}", vm_pin());
        }
        costs.push((pages, Cost::now()?.since(&before)));
        side.dev.close(slot)?;
        side.dev.close(region.handle)?;
    }
    eprintln!("{costs:?}");
    for (pages, cost) in &costs {
        ensure!(cost.pinned == 0, "{pages} pages: {cost:?}");
        // Per-CPU reserves may be refilled at any time, by a few pages.
        ensure!(cost.faults < 100, "{pages} pages: {cost:?}");
        ensure!(cost.regions == 0, "{pages} pages: {cost:?}");
    }
    Ok(())
}

/// Machine-wide counts that depend on the amount of registered memory.
#[derive(Debug)]
struct Cost {
    /// Pages pinned since boot, whether or not they were unpinned.
    pinned: i64,
    /// Page faults of this process.
    faults: i64,
    /// Number of the device's memory regions.
    regions: i64,
}

impl Cost {
    fn now() -> Result<Self> {
        let _ = std::fs::read("/proc/sys/vm/stat_refresh");
        let stat = std::fs::read_to_string("/proc/vmstat")?;
        let acquired = stat
            .lines()
            .find_map(|l| l.strip_prefix("nr_foll_pin_acquired "))
            .context("no count of pins")?;
        let own = std::fs::read_to_string("/proc/self/stat")?;
        let faults = own.rsplit(')').next().and_then(|l| l.split(' ').nth(8));
        let shown = crate::harness::guest::run("rdma", &["resource", "show", "mr"])?;
        Ok(Self {
            pinned: acquired.trim().parse()?,
            faults: faults.context("no count of faults")?.parse()?,
            regions: shown.lines().count() as i64,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            pinned: self.pinned - before.pinned,
            faults: self.faults - before.faults,
            regions: self.regions - before.regions,
        }
    }
}
