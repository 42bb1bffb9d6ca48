// SPDX-License-Identifier: MIT OR Apache-2.0

//! Registered memory: valid ranges, their cost, and the changes that a process may make meanwhile
//! (fabtests: `unmap_mem`).

use super::refused;
use crate::buf::Buf;
use crate::harness::caps::ANY_WINDOW;
use crate::harness::leaks::vm_pin;
use crate::harness::{skip, Ctx, Test, SMOKE};
use crate::op::{self, iov};
use crate::pair::{Pair, Side, LOCAL, REMOTE};
use crate::sys::{self, Ended, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone(
        "mr.region_registered_stays_pinned_until_close",
        pins_and_unpins,
    )
    .also(SMOKE),
    Test::alone("mr.range_out_of_bounds_is_refused", bad_ranges),
    Test::alone("mr.range_with_hole_is_refused", holes_are_refused),
    Test::alone(
        "mr.read_only_mapping_registers_for_reading_only",
        read_only_mapping,
    ),
    Test::alone("mr.memlock_limit_exceeded_is_enomem", memlock_limit),
    Test::alone("mr.memlock_overlap_is_charged_twice", memlock_overlap),
    Test::alone("mr.region_at_process_exit_is_freed", freed_by_exit),
    Test::alone("mr.range_beyond_memory_is_refused_at_once", absurd_sizes),
    Test::pair("mr.huge_pages_registered_carry_data", huge_pages).needs(ANY_WINDOW),
    Test::pair("mr.file_pages_registered_carry_data", file_pages),
    Test::pair(
        "mr.fork_while_pinned_leaves_pages_to_parent",
        fork_while_pinned,
    ),
    Test::pair(
        "mr.fork_child_with_inherited_file_does_no_harm",
        fork_child_uses_file,
    ),
    Test::pair(
        "unmap_mem.munmap_while_pinned_keeps_key_valid",
        munmap_while_pinned,
    ),
    Test::pair(
        "unmap_mem.remap_while_pinned_reaches_old_pages",
        remap_while_pinned,
    ),
    Test::pair("mr.close_while_in_use_waits_or_refuses", close_while_in_use),
];

fn pins_and_unpins(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let before = vm_pin();
    for (len, skew, pages) in [
        (1, 0, 1),
        (4096, 0, 1),
        (4096, 1, 2),
        (2, 4095, 2),
        (1 << 20, 0, 256),
        (1 << 20, 9, 257),
    ] {
        let buf = Buf::at(len, skew)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?;
        ensure!(
            region.pages == pages,
            "{len} bytes at {skew}: {} pages",
            region.pages
        );
        ensure!(
            vm_pin() - before == pages * 4096,
            "VmPin rose by {}",
            vm_pin() - before
        );
        side.dev.close(region.handle)?;
        ensure!(vm_pin() == before, "VmPin stays at {}", vm_pin());
    }
    Ok(())
}

fn bad_ranges(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let buf = Buf::new(8192)?;
    let reg = |addr, len, access| side.reg_at(addr, len, access);
    refused(reg(buf.addr(), 0, LOCAL), libc::EINVAL, "an empty range")?;
    refused(reg(buf.addr(), 4096, 0), libc::EINVAL, "no access at all")?;
    refused(
        reg(buf.addr(), 4096, 1 << 63),
        libc::EINVAL,
        "unknown access",
    )?;
    let bad = |r: crate::raw::Result<RegionReg>, what: &str| match r {
        Err(e)
            if [libc::EINVAL, libc::EFAULT, libc::ENOMEM, libc::EOVERFLOW].contains(&e.errno.0) =>
        {
            Ok(())
        }
        other => anyhow::bail!("{what}: {other:?}"),
    };
    bad(reg(0, 4096, LOCAL), "address zero")?;
    bad(reg(u64::MAX - 100, 4096, LOCAL), "a range that wraps")?;
    bad(reg(u64::MAX, 1, LOCAL), "the last byte of all")?;
    bad(reg(buf.addr(), u64::MAX, LOCAL), "an endless range")?;
    bad(
        reg(buf.addr(), u64::MAX - buf.addr(), LOCAL),
        "a range to the end",
    )?;
    bad(
        reg(0xffff_8880_0000_0000, 4096, LOCAL),
        "the kernel's memory",
    )?;
    bad(
        reg(0xffff_ffff_8100_0000, 4096, KFI_SEND),
        "the kernel's text",
    )?;
    bad(reg((1 << 47) - 4096, 8192, LOCAL), "the end of user space")?;
    let flags = side
        .dev
        .region_reg(side.domain.handle, buf.addr(), 4096, LOCAL, 2);
    refused(flags, libc::EINVAL, "an unknown flag")?;
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    Ok(())
}

fn holes_are_refused(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let mut map = Map::anon(256 * 4096)?;
    map.set(0, 1);
    map.punch(200 * 4096, 4096)?;
    let (addr, len) = (map.addr(), map.len() as u64);
    refused(
        side.reg_at(addr, len, LOCAL),
        libc::EFAULT,
        "a range with a hole",
    )?;
    ensure!(vm_pin() == 0, "{} bytes stay pinned", vm_pin());
    let fine = side
        .reg_at(addr, 200 * 4096, LOCAL)
        .context("up to the hole")?;
    side.dev.close(fine.handle)?;
    Ok(())
}

/// A region with rights that change memory needs a writable mapping, or a private one.
fn read_only_mapping(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let file = sys::memfd(8192)?;
    let shared = Map::file(file.as_fd(), 8192, false)?;
    let reg = |access| side.reg_at(shared.addr(), 8192, access);
    for access in [
        KFI_RECV,
        KFI_READ,
        KFI_REMOTE_WRITE,
        LOCAL,
        KFI_SEND | KFI_REMOTE_WRITE,
    ] {
        match reg(access) {
            Err(e) if [libc::EFAULT, libc::EACCES].contains(&e.errno.0) => {}
            other => anyhow::bail!("access {access:#x} to a read-only mapping: {other:?}"),
        }
    }
    for access in [
        KFI_SEND,
        KFI_WRITE,
        KFI_REMOTE_READ,
        KFI_SEND | KFI_WRITE | KFI_REMOTE_READ,
    ] {
        let region = reg(access).with_context(|| format!("access {access:#x}"))?;
        if access & KFI_REMOTE_READ != 0 {
            let slot = side.dev.key_alloc(region.handle, 1)?[0];
            for more in [KFI_REMOTE_WRITE, REMOTE] {
                let k = side.dev.key_assign(slot, 0, 1, more);
                refused(k, libc::EACCES, "a write key on a read-only pin")?;
            }
            side.dev.close(slot)?;
        }
        side.dev.close(region.handle)?;
    }
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    Ok(())
}

/// Runs `f` in a child without privileges and with this much lockable memory.
fn unprivileged(limit: u64, f: impl FnOnce() -> Result<()>) -> Result<()> {
    // The administrator sets the device file's mode, which is not tested here.
    sys_chmod(0o666)?;
    let pid = sys::fork(|| {
        let run = || {
            sys::set_limit(libc::RLIMIT_MEMLOCK, limit)?;
            sys::become_nobody()?;
            f()
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("as uid 65534: {e:#}");
                1
            }
        }
    });
    let pid = pid.context("fork")?;
    let end = sys::wait_pid(pid, Duration::from_secs(60))?;
    ensure!(
        end == Some(Ended::Exit(0)),
        "the child without privileges: {end:?}"
    );
    Ok(())
}

fn sys_chmod(mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let path = crate::raw::device_path();
    Ok(std::fs::set_permissions(
        path,
        std::fs::Permissions::from_mode(mode),
    )?)
}

fn memlock_limit(ctx: &mut Ctx) -> Result<()> {
    let env = ctx.env.clone();
    unprivileged(64 * 4096, || {
        let side = Side::of(&env)?;
        let buf = Buf::new(100 * 4096)?;
        buf.clear(1);
        let reg = |pages: u64| side.reg_at(buf.addr(), pages * 4096, LOCAL);
        refused(reg(65), libc::ENOMEM, "one page more than the limit")?;
        ensure!(vm_pin() == 0, "a refusal leaves VmPin at {}", vm_pin());
        let most = reg(64).context("as many pages as the limit allows")?;
        refused(reg(1), libc::ENOMEM, "one page with the limit reached")?;
        ensure!(vm_pin() == 64 * 4096, "VmPin is {}", vm_pin());
        side.dev.close(most.handle)?;
        ensure!(vm_pin() == 0, "VmPin is {} after the close", vm_pin());
        let first = reg(40)?;
        refused(reg(25), libc::ENOMEM, "25 pages with 40 of 64 used")?;
        let second = reg(24)?;
        side.dev.close(first.handle)?;
        side.dev.close(second.handle)?;
        ensure!(vm_pin() == 0, "VmPin is {} at the end", vm_pin());
        Ok(())
    })?;
    unprivileged(0, || {
        let side = Side::of(&env)?;
        let buf = Buf::new(4096)?;
        let r = side.reg(&buf, LOCAL);
        let errno = r.as_ref().err().map(|e| e.errno.0);
        ensure!(
            [Some(libc::ENOMEM), Some(libc::EPERM)].contains(&errno),
            "a page with a limit of zero: {r:?}"
        );
        Ok(())
    })?;
    Ok(())
}

/// Overlapping regions are charged twice, as verbs does, because counting the users of each page
/// would cost too much.
fn memlock_overlap(ctx: &mut Ctx) -> Result<()> {
    let env = ctx.env.clone();
    unprivileged(20 * 4096, || {
        let side = Side::of(&env)?;
        let buf = Buf::new(10 * 4096)?;
        let a = side.reg(&buf, LOCAL)?;
        let b = side.reg(&buf, LOCAL)?;
        ensure!(vm_pin() == 20 * 4096, "VmPin is {}", vm_pin());
        refused(side.reg(&buf, LOCAL), libc::ENOMEM, "a third time")?;
        side.dev.close(a.handle)?;
        ensure!(vm_pin() == 10 * 4096, "VmPin is {}", vm_pin());
        // Left open: closing the file frees the region.
        let _ = b;
        drop(side);
        ensure!(vm_pin() == 0, "VmPin is {} after the file's end", vm_pin());
        Ok(())
    })
}

fn freed_by_exit(ctx: &mut Ctx) -> Result<()> {
    let dev = crate::raw::Dev::open()?;
    let env = ctx.env.clone();
    for signal in [None, Some(libc::SIGKILL), Some(libc::SIGABRT)] {
        let pid = sys::fork(|| {
            let run = || -> Result<()> {
                let side = Side::of(&env)?;
                let buf = Buf::new(300 * 4096)?;
                let region = side.reg(&buf, LOCAL | REMOTE)?;
                let slots = side.dev.key_alloc(region.handle, 5)?;
                for slot in slots.iter().take(3) {
                    side.assign(*slot, 10, 1000, REMOTE)?;
                }
                if let Some(signal) = signal {
                    let _ = sys::kill(std::process::id() as i32, signal);
                    std::thread::sleep(Duration::from_secs(10));
                }
                // Exit with all objects open.
                std::mem::forget(side);
                Ok(())
            };
            i32::from(run().is_err())
        });
        let pid = pid.context("fork")?;
        let end = sys::wait_pid(pid, Duration::from_secs(30))?;
        let want = signal.map_or(Ended::Exit(0), Ended::Signal);
        ensure!(end == Some(want), "{end:?}, not {want:?}");
        // The runner checks that the pages are unpinned too.
        super::death::nothing_left_of(&dev, pid)?;
    }
    ctx.barrier("done")
}

/// Registers far more memory than there is: refused at once, killable, and no page stays pinned.
fn absurd_sizes(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let start = std::time::Instant::now();
    for shift in [36, 40, 46] {
        let r = side.reg_at(0x1000_0000_0000, 1 << shift, KFI_SEND);
        ensure!(r.is_err(), "{shift}: taken");
    }
    ensure!(
        start.elapsed() < sys::patience(Duration::from_secs(20)),
        "it took {:?}",
        start.elapsed()
    );
    ensure!(vm_pin() == 0, "VmPin is {}", vm_pin());
    Ok(())
}

/// Node 2 writes all of node 1's `buf` and reads it back.
fn there_and_back(ctx: &mut Ctx, pair: &Pair, buf: &Buf, seed: u64) -> Result<()> {
    let (region, remote) = super::rma::exported(ctx, pair, buf)?;
    let len = buf.len() as u64;
    if ctx.first() {
        ctx.barrier("written")?;
        buf.check(seed)?;
        buf.fill(seed + 1);
        ctx.barrier("changed")?;
    } else {
        buf.fill(seed);
        pair.write(region, 0, len, remote.addr, remote.key)?;
        ctx.barrier("written")?;
        ctx.barrier("changed")?;
        pair.read(region, 0, len, remote.addr, remote.key)?;
        buf.check(seed + 1)?;
    }
    ctx.barrier("there and back")
}

fn huge_pages(ctx: &mut Ctx) -> Result<()> {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    // If the nodes share a kernel, they share the pool.
    let want = if ctx.env.topology == crate::harness::Topology::Two {
        8
    } else {
        16
    };
    if ctx.first() || ctx.env.topology == crate::harness::Topology::Two {
        std::fs::write(POOL, want.to_string())?;
    }
    ctx.barrier("pool filled")?;
    let map = Map::huge(8 << 20);
    let got = ctx.ctl.exchange(&map.is_ok())?;
    let result = match map {
        Ok(map) if got => {
            let pair = Pair::new(ctx)?;
            let buf = Buf::inside(map, 4097, (8 << 20) - 10_000);
            there_and_back(ctx, &pair, &buf, 20)
        }
        _ => skip("no huge pages are to be had"),
    };
    if result.is_ok() {
        ctx.barrier("done")?;
        // Transparent huge pages, at an address of the kernel's choosing.
        let map = Map::anon(16 << 20)?;
        map.advise(libc::MADV_HUGEPAGE)?;
        let pair = Pair::new(ctx)?;
        there_and_back(ctx, &pair, &Buf::inside(map, 5000, 9_000_000), 30)?;
    }
    let _ = std::fs::write(POOL, "0");
    result
}

/// Registers pages of a file: shared ones in memory, private ones of a file on disk.
fn file_pages(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let file = sys::memfd(1 << 20)?;
    let map = Map::file(file.as_fd(), 1 << 20, true)?;
    there_and_back(ctx, &pair, &Buf::inside(map, 4099, 1_000_000), 40)?;
    let own = std::fs::File::open("/proc/self/exe")?;
    let map = Map::file_private(own.as_fd(), 400_000, true)?;
    there_and_back(ctx, &pair, &Buf::inside(map, 4099, 300_000), 50)
}

/// After a fork the pinned pages are the parent's: peers do not see the child's writes, and the
/// parent sees peers' writes.
fn fork_while_pinned(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::at(50_000, 100)?;
    buf.fill(1);
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    if !ctx.first() {
        ctx.barrier("child wrote")?;
        buf.clear(0);
        pair.read(region, 0, 50_000, remote.addr, remote.key)?;
        buf.check(1)
            .context("the bytes read are not the parent's")?;
        ctx.barrier("read")?;
        buf.fill(2);
        pair.write(region, 0, 50_000, remote.addr, remote.key)?;
        return ctx.barrier("written");
    }
    let gate = Map::shared(4096)?;
    let pid = sys::fork(|| {
        let same = buf.check(1).is_ok();
        buf.clear(0xcc);
        gate.store32(0, 1);
        while gate.load32(4) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mine = buf.check_value(0, buf.len(), 0xcc).is_ok();
        i32::from(!same) + 2 * i32::from(!mine)
    });
    let pid = pid.context("fork")?;
    crate::harness::guest::until("the child writes", crate::pair::WAIT, || {
        Ok((gate.load32(0) == 1).then_some(()))
    })?;
    buf.check(1).context("the parent sees the child's writes")?;
    ctx.barrier("child wrote")?;
    ctx.barrier("read")?;
    ctx.barrier("written")?;
    buf.check(2)
        .context("the parent does not see the peer's writes")?;
    gate.store32(4, 1);
    let end = sys::wait_pid(pid, crate::pair::WAIT)?;
    ensure!(
        end == Some(Ended::Exit(0)),
        "the child: {end:?} (1: it did not start with the parent's data, 2: it sees the peer's)"
    );
    Ok(())
}

/// A child that inherits the file cannot pass its own memory off as the parent's.
fn fork_child_uses_file(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    buf.fill(1);
    let region = pair.reg(&buf)?;
    let pid = sys::fork(|| {
        // Either answer is fine if it does no harm: pinned pages are charged to the pinning
        // process.
        let mine = Buf::new(8192).and_then(|b| Ok((pair.side.reg(&b, LOCAL)?.handle, vm_pin())));
        match mine {
            Ok((_, 8192)) => 0,
            Ok((_, pin)) => {
                eprintln!("VmPin of the child is {pin}");
                1
            }
            Err(_) => 0,
        }
    });
    let pid = pid.context("fork")?;
    let end = sys::wait_pid(pid, crate::pair::WAIT)?;
    ensure!(end == Some(Ended::Exit(0)), "the child: {end:?}");
    ensure!(vm_pin() == 4096, "VmPin of the parent is {}", vm_pin());
    // The child's exit closes none of the parent's objects.
    if ctx.first() {
        pair.post(op::recv(1, &[iov(region, 0, 4096)]))?;
        ctx.barrier("receive posted")?;
    } else {
        ctx.barrier("receive posted")?;
        pair.post(op::send(1, &[iov(region, 0, 4096)]))?;
    }
    pair.wait_context(1)?;
    ctx.barrier("done")
}

/// Unmapped memory stays reachable through its key, and charged, until key and region are gone.
fn munmap_while_pinned(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    if ctx.first() {
        let buf = Buf::new(100_000)?;
        buf.fill(9);
        let region = pair.reg(&buf)?;
        let (slot, remote) = pair.side.export(region, 0, 100_000, REMOTE)?;
        let before = vm_pin();
        drop(buf);
        ensure!(
            vm_pin() == before,
            "VmPin went from {before} to {} by munmap",
            vm_pin()
        );
        ctx.ctl.send(&remote)?;
        ctx.barrier("read")?;
        pair.dev().key_revoke(slot)?;
        pair.dev().close(slot)?;
        pair.dev().close(region)?;
        ensure!(vm_pin() == 0, "VmPin is {} after the close", vm_pin());
    } else {
        let remote: crate::pair::Remote = ctx.ctl.recv()?;
        let buf = Buf::new(100_000)?;
        let region = pair.reg(&buf)?;
        pair.read(region, 0, 100_000, remote.addr, remote.key)?;
        buf.check(9)?;
        ctx.barrier("read")?;
    }
    ctx.barrier("done")
}

/// The key does not reach other memory at the same addresses.
fn remap_while_pinned(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(64 << 10)?;
    buf.fill(1);
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    if ctx.first() {
        // Fresh zero pages at the same place.
        buf.map().advise(libc::MADV_DONTNEED)?;
        buf.check_value(0, 64 << 10, 0)
            .context("madvise changed nothing")?;
        ctx.barrier("remapped")?;
        ctx.barrier("written")?;
        return buf
            .check_value(0, 64 << 10, 0)
            .context("the key reaches pages that were never registered");
    }
    ctx.barrier("remapped")?;
    buf.clear(0);
    pair.read(region, 0, 64 << 10, remote.addr, remote.key)?;
    buf.check(1)
        .context("the key no longer reaches the registered pages")?;
    pair.write(region, 0, 64 << 10, remote.addr, remote.key)?;
    ctx.barrier("written")
}

/// Closes a region that operations still use: the close is refused, or the pages stay until the
/// operations are over.
fn close_while_in_use(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        pair.post(op::recv(1, &[iov(region, 0, 4096)]))?;
        let closed = pair.dev().close(region);
        if let Err(e) = closed {
            ensure!(e.errno.0 == libc::EBUSY, "{e}");
            ensure!(vm_pin() == 4096, "VmPin is {}", vm_pin());
        }
        ctx.barrier("receive posted")?;
        let e = pair.wait()?;
        ensure!(e.len == 4096, "{e:?}");
        buf.check(1)?;
        if closed.is_err() {
            pair.dev()
                .close(region)
                .context("closing it when the operation is over")?;
        }
        crate::harness::guest::until("the pages are given back", crate::pair::WAIT, || {
            Ok((vm_pin() == 0).then_some(()))
        })?;
    } else {
        buf.fill(1);
        ctx.barrier("receive posted")?;
        pair.post(op::send(1, &[iov(region, 0, 4096)]))?;
        pair.wait()?;
    }
    ctx.barrier("done")
}
