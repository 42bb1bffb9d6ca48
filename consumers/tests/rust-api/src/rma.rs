// SPDX-License-Identifier: GPL-2.0
//! Tests of one-sided operations through keys that permit them.

use kernel::{
    page::PAGE_SIZE,
    prelude::*, //
};
use kfabric::{
    ep::{
        LocalMem,
        Post, //
    },
    key::{
        Key,
        Region, //
    },
    memory::Memory,
    op::OpKind,
    uapi::*,
};

use crate::{
    buffer::{
        Buffer,
        REMOTE, //
    },
    check, check_eq,
    ktap::Outcome,
    pair::{
        plain,
        Pair, //
    },
    station::Station,
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("write_read_1", |s| write_read(s, 4001, 1)),
    ("write_read_63", |s| write_read(s, 4001, 63)),
    ("write_read_4095", |s| write_read(s, 4001, 4095)),
    ("write_read_4096", |s| write_read(s, 4001, 4096)),
    ("write_read_4097", |s| write_read(s, 4001, 4097)),
    ("write_read_64K", |s| write_read(s, 4001, 64 << 10)),
    // The maximum number of pages that kverbs exports of kernel memory with one key.
    ("write_read_1M", |s| write_read(s, 4096, 1 << 20)),
    ("write_read_of_large_blocks", large_blocks),
    ("write_read_nothing", nothing),
    ("write_with_data", write_with_data),
    ("write_injected", injected),
    ("region_own_key", own_key),
    ("scattered_write_read", scattered),
    ("many_keys_of_one_region", many_keys),
];

fn write_read(station: &Station, start: usize, len: usize) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, len + 100)?,
        Buffer::shared(&station.domain, len + 8192)?,
    );
    let key = Key::alloc(&there.region)?;
    key.assign(start as u64, len as u64, REMOTE)?;
    here.fill(50, len, 21);
    pair.client
        .rma(OpKind::Write, 1, (&here, 50, len), &key, 0)?;
    let done = pair.client.done(1)?;
    check_eq!(done.flags, KFI_RMA | KFI_WRITE);
    check_eq!(done.len, len);
    check!(there.has(start, len, 21));
    check!(there.is_zero(0, start));
    check!(there.is_zero(start + len, 4000));
    there.fill(start, len, 22);
    pair.client.rma(OpKind::Read, 2, (&here, 7, len), &key, 0)?;
    let done = pair.client.done(2)?;
    check_eq!(done.flags, KFI_RMA | KFI_READ);
    check_eq!(done.len, len);
    check!(here.has(7, len, 22));
    check!(here.is_zero(0, 7));
    // The other side has no completion.
    check!(pair.server.poll().is_none());
    Ok(())
}

/// Memory in large blocks has few pieces, each page that was asked for, and no byte that is not zero.
fn large_blocks(station: &Station) -> Outcome {
    const PAGES: usize = 1024 + 3;
    const LEN: usize = 1 << 20;
    // Across a boundary of two of the largest blocks.
    const AT: usize = (2 << 20) - 4096;
    let pair = Pair::new(station)?;
    let memory = Memory::in_large_blocks(PAGES, 9, || Ok(()))?;
    let len = memory.len();
    check_eq!(len, PAGES * PAGE_SIZE);
    // Blocks of 256 KiB at least.
    check!(memory.segment_count(0, len) <= 19);
    check!(Memory::in_large_blocks(PAGES, 9, || Err(EINTR)).is_err_and(|e| e == EINTR));
    check!(Memory::in_large_blocks(0, 9, || Ok(())).is_err_and(|e| e == EINVAL));
    let there = Buffer {
        region: Region::register(&station.domain, memory, REMOTE, true)?,
    };
    check!(there.is_zero(0, len));
    let here = Buffer::local(&station.domain, LEN)?;
    let key = Key::alloc(&there.region)?;
    key.assign(AT as u64, LEN as u64, REMOTE)?;
    here.fill(0, LEN, 23);
    pair.client
        .rma(OpKind::Write, 1, (&here, 0, LEN), &key, 0)?;
    pair.client.done(1)?;
    check!(there.has(AT, LEN, 23));
    check!(there.is_zero(0, AT));
    check!(there.is_zero(AT + LEN, len - AT - LEN));
    Ok(())
}

fn nothing(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 1)?,
        Buffer::shared(&station.domain, 4096)?,
    );
    let key = Key::alloc(&there.region)?;
    key.assign(0, 4096, REMOTE)?;
    for (context, kind) in [(1, OpKind::Write), (2, OpKind::Read)] {
        pair.client.rma(kind, context, (&here, 0, 0), &key, 0)?;
        check_eq!(pair.client.done(context)?.len, 0);
    }
    check!(there.is_zero(0, 4096));
    Ok(())
}

fn write_with_data(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 8192)?,
        Buffer::shared(&station.domain, 8192)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, 8192, KFI_REMOTE_WRITE)?;
    here.fill(0, 5000, 9);
    for (context, len) in [(1, 5000), (2, 0)] {
        // The completion data needs a receive, whose memory is not written.
        pair.server.recv(context, &here, 6000, 100)?;
        pair.client.ep.post(Post {
            flags: KFI_REMOTE_CQ_DATA,
            data: 1234,
            remote_addr: value.remote_addr + 1000,
            key: value.key,
            ..plain(OpKind::Write, context, here.segs(OpKind::Write, 0, len)?)
        })?;
        pair.client.done(context)?;
        let got = pair.server.done(context)?;
        check_eq!(got.flags, KFI_RMA | KFI_REMOTE_WRITE | KFI_REMOTE_CQ_DATA);
        check_eq!(got.data, 1234);
        check_eq!(got.len, len);
        check!(there.has(1000, 5000, 9));
        check!(here.is_zero(6000, 100));
    }
    Ok(())
}

fn injected(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::shared(&station.domain, 4096)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, 4096, REMOTE)?;
    pair.client.ep.post(Post {
        flags: KFI_INJECT,
        inject: b"straight from the stack",
        remote_addr: value.remote_addr + 1,
        key: value.key,
        ..plain(OpKind::Write, 1, LocalMem::new())
    })?;
    // The completion of the next operation shows that the write has arrived.
    pair.client.rma(OpKind::Read, 2, (&here, 0, 32), &key, 0)?;
    pair.client.done(2)?;
    let mut got = [0; 25];
    there.region.memory().read(0, &mut got);
    check!(&got == b"\0straight from the stack\0");
    Ok(())
}

fn own_key(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let here = Buffer::local(&station.domain, 10_000)?;
    let there = Buffer::new(&station.domain, 10_000, REMOTE, false)?;
    let value = there.region.key();
    check!(value.key != KFI_KEY_NOTAVAIL);
    here.fill(0, 10_000, 4);
    pair.client.ep.post(Post {
        remote_addr: value.remote_addr,
        key: value.key,
        ..plain(OpKind::Write, 1, here.segs(OpKind::Write, 0, 10_000)?)
    })?;
    pair.client.done(1)?;
    check!(there.has(0, 10_000, 4));
    Ok(())
}

fn scattered(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let limit = pair.client.ep.attr().iov_limit as usize;
    let (here, there) = (
        Buffer::local(&station.domain, 64 << 10)?,
        Buffer::shared(&station.domain, 64 << 10)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, 64 << 10, REMOTE)?;
    let piece = 3000;
    here.fill(0, piece * limit, 77);
    for (context, kind) in [(1, OpKind::Write), (2, OpKind::Read)] {
        let mut segs = LocalMem::new();
        for i in 0..limit {
            here.add(&mut segs, kind, i * piece, piece)?;
        }
        pair.client.ep.post(Post {
            remote_addr: value.remote_addr + 5,
            key: value.key,
            ..plain(kind, context, segs)
        })?;
        check_eq!(pair.client.done(context)?.len, piece * limit);
        check!(there.has(5, piece * limit, 77));
        check!(here.has(0, piece * limit, 77));
        here.fill(0, piece * limit, 0);
    }
    Ok(())
}

fn many_keys(station: &Station) -> Outcome {
    const KEYS: usize = 32;
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, KEYS * 100)?,
        Buffer::shared(&station.domain, KEYS * 1000)?,
    );
    let mut keys = KVec::new();
    for i in 0..KEYS {
        let key = Key::alloc(&there.region)?;
        key.assign(i as u64 * 1000 + 1, 100, REMOTE)?;
        keys.push(key, GFP_KERNEL)?;
    }
    for (i, key) in keys.iter().enumerate() {
        // CAST: Below 256.
        here.fill(i * 100, 100, i as u8);
        let piece = (&here, i * 100, 100);
        pair.client.rma(OpKind::Write, i as u64, piece, key, 0)?;
    }
    for i in 0..KEYS {
        pair.client.done(i as u64)?;
    }
    for (i, key) in keys.iter().enumerate() {
        check!(there.has(i * 1000 + 1, 100, i as u8));
        check!(there.is_zero(i * 1000, 1));
        check!(there.is_zero(i * 1000 + 101, 899));
        key.revoke()?;
        key.close();
    }
    crate::station::close_region(&there.region)
}
