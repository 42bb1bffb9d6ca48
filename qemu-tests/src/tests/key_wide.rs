// SPDX-License-Identifier: MIT OR Apache-2.0

//! Keys for parts of memory of any size and layout: 2 MiB pages, and 1 GiB of which no two pages
//! are adjacent.

use super::keys::{try_all, Bench, Try};
use crate::buf::{pattern64, Buf};
use crate::harness::leaks::vm_pin;
use crate::harness::{caps, skip, Ctx, Test, NETNS};
use crate::pair::{Remote, LOCAL, REMOTE};
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::os::unix::fs::FileExt;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("keys.p05_windows_over_huge_pages_reach_exact_bytes", huge)
        .seconds(20)
        .needs(caps::WIDE_WINDOWS),
    Test::pair(
        "keys.p05_windows_over_scattered_gigabyte_reach_exact_bytes",
        scattered,
    )
    .seconds(40)
    .needs(caps::ANY_WINDOW)
    .on(NETNS),
];

const PAGE: usize = 4096;
/// Largest length that one operation of these tests moves.
const SPAN: u64 = 16 << 10;
/// The pattern of the memory.
const SEED: u64 = 7;

/// A part of memory: offset and length.
pub(super) type Window = (u64, u64);

/// Returns the content of page `page`. No two pages, and no two words of a page, are equal.
fn page_of(page: usize) -> Vec<u8> {
    let first = pattern64(SEED, page as u64);
    let word = |i: u64| first.wrapping_add(i).to_le_bytes();
    (0..PAGE as u64 / 8).flat_map(word).collect()
}

/// Returns the content of `len` bytes from `at` on.
fn content(at: u64, len: u64) -> Vec<u8> {
    let (first, skip) = (at as usize / PAGE, at as usize % PAGE);
    let pages = (skip + len as usize).div_ceil(PAGE);
    let all: Vec<u8> = (first..first + pages).flat_map(page_of).collect();
    all[skip..skip + len as usize].to_vec()
}

/// Returns the bytes that a peer writes in place of `content`.
fn inverted(content: &[u8]) -> Vec<u8> {
    content.iter().map(|byte| !byte).collect()
}

/// Returns the parts of a window that a peer tries: single bytes and odd pieces at both edges, and
/// pieces across every kind of border within.
fn pieces((at, len): Window) -> Vec<Window> {
    let mut all = vec![(at, 1), (at + len - 1, 1)];
    for some in [777, SPAN] {
        let some = some.min(len);
        all.push((at, some));
        all.push((at + len - some, some));
    }
    // Pieces across the border of a page and of a huge page.
    for border in [PAGE as u64, 2 << 20] {
        let middle = (at + len / 2).next_multiple_of(border);
        if middle >= at + 333 && middle + 555 <= at + len {
            all.push((middle - 333, 888));
        }
    }
    all
}

/// Node 1 assigns each window a key. Node 2 reads and then writes pieces of each, and is refused
/// the bytes around it. Afterwards every page of the memory is checked.
pub(super) fn through_windows(ctx: &mut Ctx, map: Option<&Map>, windows: &[Window]) -> Result<()> {
    let mut bench = Bench::new(ctx, SPAN as usize)?;
    let len = map.map_or(0, Map::len) as u64;
    let mut list = Vec::new();
    let mut keys: Vec<(Window, Remote)> = Vec::new();
    let mut slots = Vec::new();
    let mut region = 0;
    let before = vm_pin();
    if let Some(map) = map {
        let side = &bench.side;
        region = side.reg_at(map.addr(), len, LOCAL | REMOTE)?.handle;
        for (at, some) in windows {
            let exported = side.export(region, *at, *some, REMOTE);
            let (slot, remote) = exported.with_context(|| format!("[{at}, +{some})"))?;
            slots.push(slot);
            keys.push(((*at, *some), remote));
            for (what, write, from) in [
                ("before", true, remote.addr - 1),
                ("behind", false, remote.addr + some),
            ] {
                let what = format!("the byte {what} [{at}, +{some})");
                list.push(Try::new(&what, write, 1, from, remote.key, false));
            }
        }
        ensure!(vm_pin() >= before + len, "not all of it is pinned");
        ctx.ctl.send(&keys)?;
    } else {
        keys = ctx.ctl.recv()?;
    }
    bench.fresh(ctx)?;
    let all: Vec<(Window, u64, u64)> = keys
        .iter()
        .flat_map(|(window, r)| {
            let of = |piece: Window| (piece, r.addr + piece.0 - window.0, r.key);
            pieces(*window).into_iter().map(of)
        })
        .collect();
    if !ctx.first() {
        for write in [false, true] {
            for (piece, addr, key) in &all {
                through(&bench, *piece, *addr, *key, write)
                    .with_context(|| format!("{piece:?}, write {write}"))?;
            }
        }
    }
    ctx.barrier("read and written")?;
    try_all(ctx, &mut bench, list)?;
    if let Some(map) = map {
        let written: Vec<Window> = all.iter().map(|(piece, ..)| *piece).collect();
        check_all(map, &written)?;
        let dev = &bench.side.dev;
        let ended = dev.key_revoke_all(KFI_REVOKE_REGION, region)?;
        ensure!(ended == windows.len() as u64, "{ended} keys ended");
        slots.iter().try_for_each(|slot| dev.close(*slot))?;
        dev.close(region)?;
        ensure!(vm_pin() == before, "VmPin is {}, not {before}", vm_pin());
    }
    ctx.barrier("done")
}

/// Reads or writes one piece on node 2.
fn through(bench: &Bench, (at, len): Window, addr: u64, key: u64, write: bool) -> Result<()> {
    let there = content(at, len);
    let buf: &Buf = &bench.buf;
    if write {
        buf.write(0, &inverted(&there));
        ensure!(bench.write(len, addr, key)? == 0, "refused");
        return Ok(());
    }
    buf.clear(0);
    ensure!(bench.read(len, addr, key)? == 0, "refused");
    let got = buf.read(0, len as usize);
    match (0..len as usize).find(|i| got[*i] != there[*i]) {
        None => Ok(()),
        Some(i) => bail!("byte {i} is {:#04x}, not {:#04x}", got[i], there[i]),
    }
}

/// Checks every page: the written pieces are there, and nothing else has changed.
fn check_all(map: &Map, written: &[Window]) -> Result<()> {
    let mut got = vec![0; PAGE];
    for page in 0..map.len() / PAGE {
        let start = page * PAGE;
        let mut wanted = page_of(page);
        let fresh = wanted.clone();
        for (at, len) in written {
            let (at, end) = (*at as usize, (at + len) as usize);
            let (from, to) = (at.max(start), end.min(start + PAGE));
            if from < to {
                let part = from - start..to - start;
                wanted[part.clone()].copy_from_slice(&inverted(&fresh[part]));
            }
        }
        map.read(start, &mut got);
        if let Some(i) = (0..PAGE).find(|i| got[*i] != wanted[*i]) {
            bail!(
                "byte {i} of page {page} is {:#04x}, not {:#04x}",
                got[i],
                wanted[i]
            );
        }
    }
    Ok(())
}

/// Puts the pattern into one page.
pub(super) fn fill(map: &Map, page: usize) {
    map.write(page * PAGE, &page_of(page));
}

/// Bytes of a huge page.
pub(super) const HUGE: u64 = 2 << 20;

/// Runs a test with the pattern in huge pages on node 1, and without memory on node 2.
pub(super) fn with_huge(
    ctx: &mut Ctx,
    pages: u64,
    test: impl FnOnce(&mut Ctx, Option<&Map>) -> Result<()>,
) -> Result<()> {
    const POOL: &str = "/proc/sys/vm/nr_hugepages";
    let mut map = None;
    if ctx.first() {
        std::fs::write(POOL, pages.to_string()).context(POOL)?;
        map = Map::huge((pages * HUGE) as usize).ok();
    }
    let got = match ctx.first() {
        true => {
            ctx.ctl.send(&map.is_some())?;
            map.is_some()
        }
        false => ctx.ctl.recv()?,
    };
    let result = match got {
        true => {
            if let Some(map) = &map {
                (0..map.len() / PAGE).for_each(|page| fill(map, page));
            }
            test(ctx, map.as_ref())
        }
        false => skip("no huge pages are to be had"),
    };
    if ctx.first() {
        let _ = std::fs::write(POOL, "0");
    }
    result
}

/// P5: 2 MiB pages, with windows within one, across the border of two, and over many.
fn huge(ctx: &mut Ctx) -> Result<()> {
    const PAGES: u64 = 12;
    let windows = [
        (1, 1),
        (4095, 2),
        (HUGE - 1, 2),
        (HUGE - 333, 4097),
        (3 * HUGE, HUGE),
        (4 * HUGE + 777, 900_001),
        (5 * HUGE - 12_345, 1 << 20),
        (6 * HUGE + 1, HUGE),
        (7 * HUGE + 4095, 3 * HUGE + 2),
        (0, PAGES * HUGE),
    ];
    with_huge(ctx, PAGES, |ctx, map| through_windows(ctx, map, &windows))
}

/// Touches pages in an order in which no two follow each other, so that their memory is scattered.
/// Returns the number of pages that are adjacent all the same.
fn scatter(map: &Map) -> Result<usize> {
    let count = map.len() / PAGE;
    ensure!(count.is_power_of_two(), "{count} pages");
    map.advise(libc::MADV_NOHUGEPAGE)?;
    for i in 0..count {
        // The factor is odd, so each page is touched once.
        fill(map, i.wrapping_mul(77_777) % count);
    }
    let file = std::fs::File::open("/proc/self/pagemap")?;
    let mut entries = vec![0u8; count * 8];
    file.read_exact_at(&mut entries, map.addr() / PAGE as u64 * 8)?;
    let frame = |entry: &[u8]| {
        let entry = entry
            .iter()
            .rev()
            .fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        entry & ((1 << 55) - 1)
    };
    let frames: Vec<u64> = entries.chunks(8).map(frame).collect();
    ensure!(
        frames.iter().all(|frame| *frame != 0),
        "no page frames are visible"
    );
    Ok(frames.windows(2).filter(|two| two[0] + 1 == two[1]).count())
}

/// P5: 1 GiB of 4 KiB pages, of which hardly two are adjacent, with windows from one byte to the
/// whole.
fn scattered(ctx: &mut Ctx) -> Result<()> {
    const SIZE: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    let windows = [
        (0, 1),
        (SIZE - 1, 1),
        (4095, 2),
        (123 * 4096 + 777, 3 * 4096 + 5),
        (512 * MIB - 3333, 6666),
        // The largest length that `IB_WR_REG_MR` reaches, and the smallest that it does not.
        (300 * MIB + 4096, MIB),
        (400 * MIB + 1, MIB),
        (500 * MIB + 4001, MIB + 4097),
        (100 * MIB + 123, 200 * MIB),
        (0, SIZE),
    ];
    let map = match ctx.first() {
        true => Some(Map::anon(SIZE as usize)?),
        false => None,
    };
    if let Some(map) = &map {
        let near = scatter(map)?;
        eprintln!(
            "{near} of {} pages lie behind the one before",
            SIZE as usize / PAGE
        );
        ensure!(
            near < SIZE as usize / PAGE / 50,
            "{near} pages are not scattered"
        );
    }
    through_windows(ctx, map.as_ref(), &windows)
}
