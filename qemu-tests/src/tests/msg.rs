// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages (fabtests: `msg`, `inject_test`, `cq_data`, `unexpected_msg`).

use super::refused;
use crate::buf::{pattern_bytes, Buf};
use crate::harness::caps::{IMMEDIATE_DATA, LATE_RECEIVES, LONG_MESSAGES, REMOTE_ERRORS};
use crate::harness::{Ctx, Test, SMOKE};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, LONG};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("msg.send_of_each_size_arrives", send_sizes)
        .seconds(8)
        .also(SMOKE),
    Test::pair("msg.send_of_64m_arrives", send_64m)
        .seconds(30)
        .needs(LONG_MESSAGES),
    Test::pair("msg.send_unaligned_arrives", unaligned),
    Test::pair("msg.send_of_scattered_pieces_arrives", iov_forms).needs(LONG_MESSAGES),
    Test::pair("msg.sends_both_ways_at_once_arrive", both_ways_at_once)
        .seconds(10)
        .needs(LONG_MESSAGES),
    Test::pair("msg.sends_posted_together_complete_in_order", order_is_kept),
    Test::pair(
        "msg.send_too_long_for_receive_fails_both_sides",
        too_long_for_receive,
    )
    .needs(REMOTE_ERRORS),
    Test::pair("inject_test.inject_of_each_size_arrives", inject_sizes),
    Test::pair(
        "inject_test.buffer_after_inject_is_free_at_once",
        inject_buffer_is_free_at_once,
    ),
    Test::pair("inject_test.inject_too_long_is_refused", inject_too_long),
    Test::pair(
        "inject_test.inject_with_completion_flag_leaves_entry",
        inject_asked_for,
    ),
    Test::pair("cq_data.send_with_data_delivers_it", senddata).needs(IMMEDIATE_DATA),
    Test::pair("unexpected_msg.send_before_receive_arrives", late_receive)
        .seconds(10)
        .needs(LATE_RECEIVES),
];

/// Sizes that every operation is tried with.
pub const SIZES: &[usize] = &[0, 1, 63, 4095, 4096, 4097, 64 << 10, 1 << 20];

fn send_sizes(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    for (i, &size) in SIZES.iter().enumerate() {
        one_send(ctx, &pair, size, 0, i as u64).with_context(|| format!("{size} bytes"))?;
    }
    Ok(())
}

/// Node 2 sends `size` bytes that start `skew` bytes into a page; node 1 receives and checks them.
fn one_send(ctx: &mut Ctx, pair: &Pair, size: usize, skew: usize, seed: u64) -> Result<()> {
    // A region is never empty; a message may be.
    let buf = Buf::at(size.max(1), skew)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        buf.clear(0xee);
        pair.post(op::recv(seed, &[iov(region, 0, size as u64)]))?;
        ctx.barrier("receive posted")?;
        let e = pair.wait_context(seed)?;
        ensure!(e.len == size as u64, "{} bytes came", e.len);
        ensure!(
            e.flags & (KFI_MSG | KFI_RECV) == KFI_MSG | KFI_RECV,
            "flags {:#x}",
            e.flags
        );
        ensure!(
            e.flags & KFI_REMOTE_CQ_DATA == 0 && e.ep == pair.ep,
            "{e:?}"
        );
        buf.check_part(0, size, seed)?;
        buf.check_guards()?;
    } else {
        buf.fill(seed);
        ctx.barrier("receive posted")?;
        pair.post(op::send(seed, &[iov(region, 0, size as u64)]))?;
        let e = pair.wait_context(seed)?;
        ensure!(
            e.flags & (KFI_MSG | KFI_SEND) == KFI_MSG | KFI_SEND,
            "flags {:#x}",
            e.flags
        );
        buf.check(seed).context("the sender's own buffer")?;
    }
    // A receiver that closes before the sender has its completion fails the send.
    ctx.barrier("sent and received")?;
    pair.dev().close(region).context("closing the region")?;
    Ok(())
}

fn send_64m(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    one_send(ctx, &pair, 64 << 20, 0, 1)
}

fn unaligned(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let cases = [
        (1, 4095),
        (2, 4095),
        (63, 4090),
        (4096, 1),
        (4097, 4095),
        (100_001, 77),
        (8192, 2048),
    ];
    for (i, (size, skew)) in cases.into_iter().enumerate() {
        one_send(ctx, &pair, size, skew, i as u64)
            .with_context(|| format!("{size} bytes at {skew}"))?;
    }
    // The two sides may be aligned differently.
    let skew = if ctx.first() { 3 } else { 1001 };
    one_send(ctx, &pair, 50_000, skew, 99)
}

/// Sends pieces of very different sizes, one of them empty, scattered over two regions.
fn iov_forms(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let (a, b) = (Buf::at(20_000, 5)?, Buf::at(9000, 4001)?);
    let (ra, rb) = (pair.reg(&a)?, pair.reg(&b)?);
    let pieces: [(u64, usize, usize); 4] = [
        (ra, 1, 5000),
        (rb, 17, 1),
        (ra, 9999, 8192),
        (rb, 4000, 4097),
    ];
    let total: usize = pieces.iter().map(|p| p.2).sum();
    for count in 1..=4 {
        let part = &pieces[..count];
        let iovs: Vec<_> = part
            .iter()
            .map(|&(r, off, len)| iov(r, off as u64, len as u64))
            .collect();
        let len: usize = part.iter().map(|p| p.2).sum();
        let at = |i: usize| if part[i].0 == ra { &a } else { &b };
        if ctx.first() {
            a.clear(0);
            b.clear(0);
            pair.post(op::recv(1, &iovs))?;
            ctx.barrier("receive posted")?;
            ensure!(pair.wait_context(1)?.len == len as u64, "length");
            let mut got = Vec::new();
            for (i, &(_, off, len)) in part.iter().enumerate() {
                got.extend(at(i).read(off, len));
            }
            ensure!(
                got == pattern_bytes(count as u64, 0, len),
                "{count} pieces: the data differ"
            );
            let sum = |b: &Buf| b.read(0, b.len()).iter().filter(|v| **v != 0).count();
            ensure!(
                sum(&a) + sum(&b) <= len,
                "{count} pieces: bytes beside them were changed"
            );
        } else {
            let data = pattern_bytes(count as u64, 0, len);
            let mut done = 0;
            for (i, &(_, off, len)) in part.iter().enumerate() {
                at(i).write(off, &data[done..done + len]);
                done += len;
            }
            ctx.barrier("receive posted")?;
            pair.post(op::send(1, &iovs))?;
            pair.wait_context(1)?;
        }
    }
    ctx.barrier("sent and received")?;
    ensure!(total > 0, "nothing was tried");
    let five = OpEntry {
        iov_count: 5,
        ..op::send(1, &[iov(ra, 0, 1)])
    };
    refused(pair.post(five), libc::EINVAL, "five pieces")?;
    let past = op::send(1, &[iov(ra, 19_999, 2)]);
    refused(
        pair.post(past),
        libc::EINVAL,
        "a piece past the region's end",
    )?;
    let wrap = op::send(1, &[iov(ra, u64::MAX, 2)]);
    refused(pair.post(wrap), libc::EINVAL, "a piece that wraps around")?;
    a.check_guards()?;
    b.check_guards()
}

fn both_ways_at_once(ctx: &mut Ctx) -> Result<()> {
    const SIZE: usize = 100_000;
    const COUNT: usize = 16;
    let pair = Pair::new(ctx)?;
    let (tx, rx) = (Buf::new(SIZE * COUNT)?, Buf::new(SIZE * COUNT)?);
    let (rtx, rrx) = (pair.reg(&tx)?, pair.reg(&rx)?);
    let node = u64::from(ctx.env.node);
    (0..COUNT).for_each(|i| tx.fill_part(i * SIZE, SIZE, node * 1000 + i as u64));
    let part = |r, i: usize| [iov(r, (i * SIZE) as u64, SIZE as u64)];
    let recvs: Vec<_> = (0..COUNT)
        .map(|i| op::recv(i as u64, &part(rrx, i)))
        .collect();
    pair.post_all(&recvs)?;
    ctx.barrier("receives posted")?;
    let sends: Vec<_> = (0..COUNT)
        .map(|i| op::send(100 + i as u64, &part(rtx, i)))
        .collect();
    pair.post_all(&sends)?;
    let mut seen = [0u32; 200];
    for _ in 0..2 * COUNT {
        seen[pair.wait_for(LONG)?.context as usize] += 1;
    }
    ensure!(
        (0..COUNT).all(|i| seen[i] == 1 && seen[100 + i] == 1),
        "completions: {seen:?}"
    );
    ctx.barrier("sent and received")?;
    for i in 0..COUNT {
        rx.check_part(i * SIZE, SIZE, (3 - node) * 1000 + i as u64)?;
    }
    rx.check_guards()
}

fn order_is_kept(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u64 = 100;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(8 * COUNT as usize)?;
    let region = pair.reg(&buf)?;
    let ops = |f: fn(u64, &[Iov]) -> OpEntry| {
        (0..COUNT)
            .map(move |i| f(i, &[iov(region, 8 * i, 8)]))
            .collect::<Vec<_>>()
    };
    if ctx.first() {
        pair.post_all(&ops(op::recv))?;
        ctx.barrier("receives posted")?;
        for i in 0..COUNT {
            ensure!(pair.wait()?.context == i, "receives complete out of order");
            ensure!(
                buf.get64(8 * i as usize) == i * i,
                "message {i} is another one"
            );
        }
    } else {
        (0..COUNT).for_each(|i| buf.set64(8 * i as usize, i * i));
        ctx.barrier("receives posted")?;
        pair.post_all(&ops(op::send))?;
        for i in 0..COUNT {
            ensure!(pair.wait()?.context == i, "sends complete out of order");
        }
    }
    ctx.barrier("sent and received")
}

/// The first error names its cause on both sides; the remaining operations are flushed.
fn too_long_for_receive(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(8192)?;
    let region = pair.reg(&buf)?;
    buf.clear(0x11);
    if ctx.first() {
        pair.post_all(&[
            op::recv(1, &[iov(region, 0, 100)]),
            op::recv(2, &[iov(region, 4096, 100)]),
        ])?;
        ctx.barrier("receives posted")?;
        let first = pair.wait_any(LONG)?;
        ensure!(
            first.context == 1 && [libc::EMSGSIZE, 265].contains(&(first.err as i32)),
            "{first:?}"
        );
        let rest = pair.wait_any(LONG)?;
        ensure!(
            rest.context == 2 && rest.err as i32 == libc::ECANCELED,
            "{rest:?}"
        );
        buf.check_value(100, 8092, 0x11)
            .context("beyond the receive")?;
    } else {
        ctx.barrier("receives posted")?;
        pair.post(op::send(1, &[iov(region, 0, 5000)]))?;
        let e = pair.wait_any(LONG)?;
        ensure!(
            e.context == 1 && e.err != 0 && e.err as i32 != libc::ECANCELED,
            "{e:?}"
        );
    }
    let down = pair.side.event(KFI_SHUTDOWN)?;
    ensure!(down.raw.object == pair.ep, "{:?}", down.raw);
    refused(
        pair.post(op::send(9, &[iov(region, 0, 1)])),
        libc::ENOTCONN,
        "a send after the end",
    )
}

fn inject_sizes(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let most = pair.side.domain.inject_size as usize;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    for size in [0, 1, 2, 31, most - 1, most] {
        if ctx.first() {
            buf.clear(0);
            pair.post(op::recv(7, &[iov(region, 10, 1000)]))?;
            ctx.barrier("receive posted")?;
            let e = pair.wait_context(7)?;
            ensure!(e.len == size as u64, "{size} bytes: {} came", e.len);
            buf.check_part(10, size, size as u64)?;
            buf.check_value(10 + size, 1000, 0)?;
        } else {
            ctx.barrier("receive posted")?;
            let data = pattern_bytes(size as u64, 0, size);
            pair.post(op::inject(op::send(7, &[]), &data))?;
        }
        ctx.barrier("message done")?;
    }
    ensure!(
        ctx.first() || pair.cq.read().is_none(),
        "an injected send left an entry"
    );
    Ok(())
}

/// An injected operation leaves a completion if its flag asks for one, on a selective queue and on
/// another.
fn inject_asked_for(ctx: &mut Ctx) -> Result<()> {
    for selective in [false, true] {
        let opts = Opts {
            selective,
            ..Default::default()
        };
        let pair = Pair::with(ctx, &opts)?;
        let buf = Buf::new(4096)?;
        let region = pair.reg(&buf)?;
        if ctx.first() {
            let asks = |e| op::with_flags(e, KFI_COMPLETION);
            let ops: Vec<_> = (0..3)
                .map(|i| asks(op::recv(i, &[iov(region, 8 * i, 8)])))
                .collect();
            pair.post_all(&ops)?;
            ctx.barrier("receives posted")?;
            for i in 0..3 {
                ensure!(pair.wait()?.context == i, "order");
            }
        } else {
            ctx.barrier("receives posted")?;
            for (i, flags) in [0, KFI_COMPLETION, 0].into_iter().enumerate() {
                let send = op::inject(op::send(i as u64, &[]), &[7; 8]);
                pair.post(op::with_flags(send, flags))?;
            }
            let entry = pair.wait()?;
            ensure!(entry.context == 1 && entry.err == 0, "{entry:?}");
        }
        ctx.barrier("came")?;
        ensure!(pair.cq.read().is_none(), "an entry without completion flag");
    }
    Ok(())
}

fn inject_buffer_is_free_at_once(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u64 = 64;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(16 * COUNT as usize)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        let ops: Vec<_> = (0..COUNT)
            .map(|i| op::recv(i, &[iov(region, 16 * i, 16)]))
            .collect();
        pair.post_all(&ops)?;
        ctx.barrier("receives posted")?;
        for i in 0..COUNT {
            ensure!(pair.wait()?.context == i, "order");
            buf.check_part(16 * i as usize, 16, i)
                .with_context(|| format!("message {i}"))?;
        }
    } else {
        ctx.barrier("receives posted")?;
        let mut data = [0u8; 16];
        for i in 0..COUNT {
            data.copy_from_slice(&pattern_bytes(i, 0, 16));
            pair.post(op::inject(op::send(i, &[]), &data))?;
            data.fill(0xff);
        }
    }
    ctx.barrier("all came")
}

fn inject_too_long(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let data = vec![0u8; pair.side.domain.inject_size as usize + 1];
    match pair.post(op::inject(op::send(1, &[]), &data)) {
        Err(e) => ensure!([libc::EINVAL, libc::EMSGSIZE].contains(&e.errno.0), "{e}"),
        Ok(()) => anyhow::bail!("{} bytes were injected", data.len()),
    }
    let recv = op::inject(op::recv(1, &[]), &data[..1]);
    refused(pair.post(recv), libc::EINVAL, "an injected receive")?;
    let read = op::inject(op::read(1, &[], 0, 0), &data[..1]);
    refused(pair.post(read), libc::EINVAL, "an injected read")?;
    let mut bad = op::inject(op::send(1, &[]), &data[..1]);
    bad.inject = 8;
    refused(pair.post(bad), libc::EFAULT, "a payload that is not mapped")
}

fn senddata(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    for (i, data) in [0u64, 1, 0xdead_beef, 0xffff_ffff].into_iter().enumerate() {
        let size = i * 1000;
        if ctx.first() {
            pair.post(op::recv(3, &[iov(region, 0, 4096)]))?;
            ctx.barrier("receive posted")?;
            let e = pair.wait_context(3)?;
            ensure!(
                e.flags & KFI_REMOTE_CQ_DATA != 0,
                "no completion data: {e:?}"
            );
            ensure!(e.data == data && e.len == size as u64, "{e:?}");
            buf.check_part(0, size, data)?;
        } else {
            ctx.barrier("receive posted")?;
            buf.fill_part(0, size, data);
            pair.post(op::with_data(
                op::send(3, &[iov(region, 0, size as u64)]),
                data,
            ))?;
            pair.wait_context(3)?;
        }
    }
    // The receiver may close before the sender has its completion.
    ctx.barrier("received")?;
    let wide = op::with_data(op::send(3, &[iov(region, 0, 1)]), 1 << 32);
    refused(
        pair.post(wide),
        libc::EINVAL,
        "more completion data than fits",
    )
}

/// A late receiver costs time, not the connection.
fn late_receive(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::with(ctx, &Opts::default())?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        std::thread::sleep(std::time::Duration::from_millis(300));
        for i in 0..8 {
            pair.post(op::recv(i, &[iov(region, 512 * i, 512)]))?;
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        for i in 0..8 {
            ensure!(pair.wait_for(LONG)?.context == i, "order");
        }
        buf.check(5)?;
    } else {
        buf.fill(5);
        let ops: Vec<_> = (0..8)
            .map(|i| op::send(i, &[iov(region, 512 * i, 512)]))
            .collect();
        pair.post_all(&ops)?;
        for i in 0..8 {
            ensure!(pair.wait_for(LONG)?.context == i, "order");
        }
    }
    ctx.barrier("received")
}
