// SPDX-License-Identifier: MIT OR Apache-2.0

//! One-sided operations (fabtests: `rma`, `multi_mr`).

use super::msg::SIZES;
use super::refused;
use crate::buf::{pattern_bytes, Buf};
use crate::harness::caps::{ANY_WINDOW, IMMEDIATE_DATA};
use crate::harness::{skip, Ctx, Test, SMOKE, TWO, WRONG_DATA};
use crate::op::{self, iov};
use crate::pair::{Pair, Remote, LONG, REMOTE};
use crate::sys::{self, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("rma.write_of_each_size_arrives", write_sizes)
        .seconds(8)
        .also(SMOKE),
    Test::pair("rma.read_of_each_size_arrives", read_sizes)
        .seconds(8)
        .also(SMOKE),
    Test::pair("rma.write_of_64m_arrives", write_64m)
        .seconds(30)
        .needs(ANY_WINDOW),
    Test::pair("rma.read_of_64m_arrives", read_64m)
        .seconds(30)
        .needs(ANY_WINDOW),
    // Between namespaces the test would take as long again, and need the memory twice.
    Test::pair("rma.write_and_read_of_1g_arrive", write_read_1g)
        .seconds(120)
        .on(TWO),
    Test::pair("rma.write_and_read_unaligned_arrive", unaligned).seconds(8),
    Test::pair("rma.write_and_read_of_scattered_pieces_arrive", iov_forms),
    Test::pair("rma.write_with_data_takes_a_receive", writedata).needs(IMMEDIATE_DATA),
    Test::pair("rma.write_injected_leaves_no_entry", inject_write),
    Test::pair("rma.write_fenced_waits_for_read", fence),
    Test::pair(
        "rma.region_without_dynamic_keys_has_own_key",
        own_key_of_a_region,
    ),
    Test::pair("multi_mr.writes_to_many_regions_arrive", many_regions).seconds(10),
];

/// Node 1 exports a buffer with all rights; node 2 receives its address and key.
pub fn exported(ctx: &mut Ctx, pair: &Pair, buf: &Buf) -> Result<(u64, Remote)> {
    let region = pair.reg(buf)?;
    if ctx.first() {
        let (_, remote) = pair.side.export(region, 0, buf.len() as u64, REMOTE)?;
        ctx.ctl.send(&remote)?;
        Ok((region, remote))
    } else {
        Ok((region, ctx.ctl.recv()?))
    }
}

/// Node 2 writes `size` bytes to node 1, which checks them.
fn one_write(
    ctx: &mut Ctx,
    pair: &Pair,
    size: usize,
    skews: (usize, usize),
    seed: u64,
) -> Result<()> {
    let skew = if ctx.first() { skews.0 } else { skews.1 };
    let buf = Buf::at(size.max(1), skew)?;
    let (region, remote) = exported(ctx, pair, &buf)?;
    if ctx.first() {
        buf.clear(0x77);
        ctx.barrier("cleared")?;
        ctx.barrier("written")?;
        buf.check_part(0, size, seed)?;
        buf.check_guards()?;
    } else {
        buf.fill(seed);
        ctx.barrier("cleared")?;
        pair.post(op::write(
            seed,
            &[iov(region, 0, size as u64)],
            remote.addr,
            remote.key,
        ))?;
        let e = pair.wait_context(seed)?;
        ensure!(
            e.flags & (KFI_RMA | KFI_WRITE) == KFI_RMA | KFI_WRITE,
            "flags {:#x}",
            e.flags
        );
        ctx.barrier("written")?;
        buf.check(seed).context("the writer's own buffer")?;
    }
    Ok(())
}

/// Node 2 reads `size` bytes of node 1 and checks them.
fn one_read(
    ctx: &mut Ctx,
    pair: &Pair,
    size: usize,
    skews: (usize, usize),
    seed: u64,
) -> Result<()> {
    let skew = if ctx.first() { skews.0 } else { skews.1 };
    let buf = Buf::at(size.max(1), skew)?;
    let (region, remote) = exported(ctx, pair, &buf)?;
    if ctx.first() {
        buf.fill(seed);
        ctx.barrier("filled")?;
        ctx.barrier("read")?;
        buf.check(seed).context("the exporter's own buffer")?;
    } else {
        buf.clear(0x77);
        ctx.barrier("filled")?;
        pair.post(op::read(
            seed,
            &[iov(region, 0, size as u64)],
            remote.addr,
            remote.key,
        ))?;
        let e = pair.wait_context(seed)?;
        ensure!(
            e.flags & (KFI_RMA | KFI_READ) == KFI_RMA | KFI_READ,
            "flags {:#x}",
            e.flags
        );
        ensure!(e.len == size as u64, "{} bytes", e.len);
        buf.check_part(0, size, seed)?;
        buf.check_guards()?;
        ctx.barrier("read")?;
    }
    Ok(())
}

fn write_sizes(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    for (i, &size) in SIZES.iter().enumerate() {
        one_write(ctx, &pair, size, (0, 0), i as u64).with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

fn read_sizes(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    for (i, &size) in SIZES.iter().enumerate() {
        one_read(ctx, &pair, size, (0, 0), i as u64).with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

fn write_64m(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    one_write(ctx, &pair, 64 << 20, (0, 0), 5)
}

fn read_64m(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    one_read(ctx, &pair, 64 << 20, (0, 0), 6)
}

fn unaligned(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let cases = [
        (1, (4095, 0)),
        (2, (4095, 4095)),
        (4096, (1, 3)),
        (4097, (4095, 7)),
        (65_537, (2049, 513)),
        (300_001, (8, 4094)),
    ];
    for (i, (size, skews)) in cases.into_iter().enumerate() {
        let what = || format!("{size} bytes at {skews:?}");
        one_write(ctx, &pair, size, skews, i as u64).with_context(what)?;
        one_read(ctx, &pair, size, skews, 50 + i as u64).with_context(what)?;
    }
    Ok(())
}

/// Moves 1 GiB each way in one operation, over one buffer of scattered 4 KiB pages.
fn write_read_1g(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 1 << 30;
    const LIMIT: Duration = Duration::from_secs(900);
    if sys::slowness() > 1 {
        return skip("two gigabytes take an hour under checkers; 64 MiB are moved elsewhere");
    }
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let free = text.lines().find_map(|l| {
        l.strip_prefix("MemAvailable:")?
            .split_whitespace()
            .next()?
            .parse::<u64>()
            .ok()
    });
    const NEED: u64 = 1300 << 10;
    let enough = free.unwrap_or(0) >= NEED;
    let theirs = ctx.ctl.exchange(&enough)?;
    if !enough || !theirs {
        return skip(format!(
            "{} MiB of memory are free, {} needed",
            free.unwrap_or(0) >> 10,
            NEED >> 10
        ));
    }
    let pair = Pair::new(ctx)?;
    let map = Map::anon(SIZE)?;
    map.advise(libc::MADV_NOHUGEPAGE)?;
    let buf = Buf::whole(map);
    // Touch the pages in an order that leaves no run of neighbours.
    let pages = SIZE / 4096;
    (0..pages).for_each(|i| buf.set((i.wrapping_mul(7919) % pages) * 4096, 1));
    let marks = |f: &mut dyn FnMut(usize) -> Result<()>| (0..SIZE).step_by(1 << 20).try_for_each(f);
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, SIZE as u64, REMOTE)?;
    let remote: Remote = ctx.ctl.exchange(&mine)?;
    // Both ways the data come from node 2: its queueing discipline makes it wait when node 1 is
    // slow. A gigabyte sent by node 1 would pile up, since rxe does not wait by itself.
    let first = ctx.first();
    let whole = [iov(region, 0, SIZE as u64)];
    if !first {
        marks(&mut |at| {
            buf.fill_part(at + 123, 4096, at as u64);
            Ok(())
        })?;
        buf.fill_part(SIZE - 5000, 5000, 42);
        pair.post(op::write(1, &whole, remote.addr, remote.key))?;
        pair.wait_for(LIMIT).context("writing 1 GiB")?;
    }
    ctx.barrier("written")?;
    if first {
        marks(&mut |at| buf.check_part(at + 123, 4096, at as u64))?;
        buf.check_part(SIZE - 5000, 5000, 42)?;
    } else {
        marks(&mut |at| {
            buf.fill_part(at + 123, 4096, !(at as u64));
            Ok(())
        })?;
    }
    ctx.barrier("changed")?;
    if first {
        pair.post(op::read(2, &whole, remote.addr, remote.key))?;
        pair.wait_for(LIMIT).context("reading 1 GiB")?;
        marks(&mut |at| buf.check_part(at + 123, 4096, !(at as u64)))?;
    }
    ctx.barrier("read")
}

fn iov_forms(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let target = Buf::at(30_000, 9)?;
    let (_, remote) = exported(ctx, &pair, &target)?;
    if ctx.first() {
        target.clear(0x33);
        ctx.barrier("ready")?;
        ctx.barrier("done")?;
        target.check_part(100, 10_000 + 1 + 4097 + 77, 8)?;
        target.check_value(0, 100, 0x33)?;
        target.check_value(14_275, 15_000, 0x33)?;
        return target.check_guards();
    }
    let local = Buf::at(30_000, 4001)?;
    let region = pair.reg(&local)?;
    let pieces = [(20, 10_000), (20_000, 1), (11_000, 4097), (29_900, 77)];
    let data = pattern_bytes(8, 0, 10_000 + 1 + 4097 + 77);
    let mut at = 0;
    let mut iovs = Vec::new();
    for (off, len) in pieces {
        local.write(off, &data[at..at + len]);
        iovs.push(iov(region, off as u64, len as u64));
        at += len;
    }
    ctx.barrier("ready")?;
    pair.post(op::write(1, &iovs, remote.addr + 100, remote.key))?;
    pair.wait_context(1)?;
    local.clear(0);
    pair.post(op::read(2, &iovs, remote.addr + 100, remote.key))?;
    pair.wait_context(2)?;
    let back: Vec<u8> = pieces
        .iter()
        .flat_map(|&(off, len)| local.read(off, len))
        .collect();
    ensure!(back == data, "{WRONG_DATA}the bytes read back differ");
    local.check_guards()?;
    ctx.barrier("done")
}

/// A write with data takes a receive of the target and appears in the target's queue.
fn writedata(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(70_000)?;
    let (region, remote) = exported(ctx, &pair, &buf)?;
    for (i, size) in [0usize, 1, 4097, 70_000].into_iter().enumerate() {
        let data = 0xabcd_0000 + i as u64;
        if ctx.first() {
            pair.post(op::recv(5, &[]))?;
            ctx.barrier("receive posted")?;
            let e = pair.wait()?;
            let want = KFI_RMA | KFI_REMOTE_WRITE | KFI_REMOTE_CQ_DATA;
            ensure!(
                e.flags & want == want && e.data == data,
                "{size} bytes: {e:?}"
            );
            buf.check_part(0, size, data)
                .with_context(|| format!("{size} bytes"))?;
        } else {
            buf.fill_part(0, size, data);
            ctx.barrier("receive posted")?;
            let w = op::write(6, &[iov(region, 0, size as u64)], remote.addr, remote.key);
            pair.post(op::with_data(w, data))?;
            pair.wait_context(6)?;
        }
    }
    ctx.barrier("done")
}

fn inject_write(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(8192)?;
    let (region, remote) = exported(ctx, &pair, &buf)?;
    let most = pair.side.domain.inject_size as usize;
    if ctx.first() {
        buf.clear(0);
        ctx.barrier("ready")?;
        ctx.barrier("written")?;
        for (i, size) in [0, 1, 17, most].into_iter().enumerate() {
            buf.check_part(i * 1000, size, size as u64)?;
            buf.check_value(i * 1000 + size, 500, 0)?;
        }
        return Ok(());
    }
    ctx.barrier("ready")?;
    for (i, size) in [0, 1, 17, most].into_iter().enumerate() {
        let data = pattern_bytes(size as u64, 0, size);
        pair.post(op::inject(
            op::write(1, &[], remote.addr + 1000 * i as u64, remote.key),
            &data,
        ))?;
    }
    // Injected writes leave no completion; a read behind them does, and comes after them.
    pair.read(region, 0, 1, remote.addr, remote.key)?;
    ensure!(pair.cq.read().is_none(), "an injected write left an entry");
    ctx.barrier("written")
}

/// A fenced write starts only when the read before it has its data.
fn fence(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 500_000;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(SIZE as usize)?;
    let (region, remote) = exported(ctx, &pair, &buf)?;
    if ctx.first() {
        buf.fill(3);
        ctx.barrier("filled")?;
        return ctx.barrier("done");
    }
    ctx.barrier("filled")?;
    let other = Buf::new(SIZE as usize)?;
    other.clear(0);
    let zeros = pair.reg(&other)?;
    let read = op::read(1, &[iov(region, 0, SIZE)], remote.addr, remote.key);
    let write = op::write(2, &[iov(zeros, 0, SIZE)], remote.addr, remote.key);
    pair.post_all(&[read, op::with_flags(write, KFI_FENCE)])?;
    pair.wait_context(1)?;
    pair.wait_context(2)?;
    buf.check(3)?;
    ctx.barrier("done")
}

/// Without dynamic keys a region with remote rights has a key from the start, as in libfabric.
fn own_key_of_a_region(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::at(10_000, 33)?;
    let domain = pair.side.domain.handle;
    let access = crate::pair::LOCAL | KFI_REMOTE_READ;
    let region = pair
        .dev()
        .region_reg(domain, buf.addr(), buf.len() as u64, access, 0)?;
    ensure!(region.key != KFI_KEY_NOTAVAIL, "it has no key");
    let plain =
        pair.dev()
            .region_reg(domain, buf.addr(), buf.len() as u64, crate::pair::LOCAL, 0)?;
    ensure!(
        plain.key == KFI_KEY_NOTAVAIL,
        "a region without remote rights has a key"
    );
    let dynamic = pair.side.reg(&buf, access)?;
    ensure!(
        dynamic.key == KFI_KEY_NOTAVAIL,
        "a region with dynamic keys has a key"
    );
    buf.fill(u64::from(ctx.env.node));
    let theirs: (u64, u64) = ctx.ctl.exchange(&(region.remote_addr, region.key))?;
    let local = Buf::new(10_000)?;
    let to = pair.reg(&local)?;
    pair.read(to, 0, 10_000, theirs.0, theirs.1)?;
    local.check(3 - u64::from(ctx.env.node))?;
    ctx.barrier("read")?;
    pair.dev()
        .close(region.handle)
        .context("closing a region with its own key")?;
    refused(
        pair.dev().close(region.handle),
        libc::ENOENT,
        "closing it again",
    )?;
    ctx.barrier("closed")
}

fn many_regions(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 200;
    let pair = Pair::new(ctx)?;
    let mut bufs = Vec::new();
    let mut remotes = Vec::new();
    for i in 0..COUNT {
        let buf = Buf::at(1 + i * 37, i * 13 % 4096)?;
        buf.fill(i as u64);
        let region = pair.reg(&buf)?;
        if ctx.first() {
            remotes.push(pair.side.export(region, 0, buf.len() as u64, REMOTE)?.1);
        }
        bufs.push((buf, region));
    }
    if ctx.first() {
        ctx.ctl.send(&remotes)?;
        ctx.barrier("read")?;
        return Ok(());
    }
    let remotes: Vec<Remote> = ctx.ctl.recv()?;
    for ((buf, region), remote) in bufs.iter().zip(&remotes) {
        buf.clear(0);
        let op = op::read(
            1,
            &[iov(*region, 0, buf.len() as u64)],
            remote.addr,
            remote.key,
        );
        pair.post(op)?;
        ensure!(pair.wait_for(LONG)?.len == remote.len, "length");
    }
    for (i, (buf, _)) in bufs.iter().enumerate() {
        buf.check(i as u64).with_context(|| format!("region {i}"))?;
    }
    ctx.barrier("read")
}
