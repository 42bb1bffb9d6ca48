// SPDX-License-Identifier: GPL-2.0
//! Tests of messages: every byte arrives at the right place, once.

use kernel::prelude::*;
use kfabric::{
    ep::{
        LocalMem,
        Post, //
    },
    op::OpKind,
    uapi::*,
};

use crate::{
    buffer::Buffer,
    check, check_eq, check_err,
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
    ("ping_pong_0", |s| ping_pong(s, 0)),
    ("ping_pong_1", |s| ping_pong(s, 1)),
    ("ping_pong_63", |s| ping_pong(s, 63)),
    ("ping_pong_4095", |s| ping_pong(s, 4095)),
    ("ping_pong_4096", |s| ping_pong(s, 4096)),
    ("ping_pong_4097", |s| ping_pong(s, 4097)),
    ("ping_pong_64K", |s| ping_pong(s, 64 << 10)),
    ("ping_pong_1M", |s| ping_pong(s, 1 << 20)),
    ("scattered_messages", scattered),
    ("shorter_than_the_receive", shorter),
    ("inject", inject),
    ("senddata", senddata),
    ("inject_with_data", inject_with_data),
    ("messages_keep_their_order", ordered),
];

/// An offset that makes memory unaligned.
const SKEW: usize = 13;

fn ping_pong(station: &Station, len: usize) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, len + 2 * SKEW)?,
        Buffer::local(&station.domain, len + 2 * SKEW)?,
    );
    for round in 0..3_u8 {
        let context = u64::from(round);
        here.fill(SKEW, len, round);
        pair.server.recv(context, &there, 2 * SKEW, len)?;
        pair.client.send(context, &here, SKEW, len)?;
        let got = pair.server.done(context)?;
        check_eq!(got.flags, KFI_MSG | KFI_RECV);
        check_eq!(got.len, len);
        let sent = pair.client.done(context)?;
        check_eq!(sent.flags, KFI_MSG | KFI_SEND);
        check_eq!(sent.len, len);
        check!(there.has(2 * SKEW, len, round));
        check!(round > 0 || there.is_zero(0, 2 * SKEW));
        // Back again, to another place.
        there.fill(0, len, !round);
        pair.client.recv(context, &here, 0, len)?;
        pair.server.send(context, &there, 0, len)?;
        pair.server.done(context)?;
        check_eq!(pair.client.done(context)?.len, len);
        check!(here.has(0, len, !round));
    }
    Ok(())
}

fn scattered(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let limit = pair.client.ep.attr().iov_limit as usize;
    let (here, there) = (
        Buffer::local(&station.domain, 64 << 10)?,
        Buffer::local(&station.domain, 64 << 10)?,
    );
    // One pattern over pieces that cross pages and have gaps.
    let piece = 5000;
    let total = piece * limit;
    here.fill(0, total, 7);
    let mut segs = LocalMem::new();
    for i in 0..limit {
        here.add(&mut segs, OpKind::Send, i * piece, piece)?;
    }
    pair.server.recv(1, &there, 100, total)?;
    pair.client.ep.post(plain(OpKind::Send, 1, segs))?;
    pair.server.done(1)?;
    check_eq!(pair.client.done(1)?.len, total);
    check!(there.has(100, total, 7));
    // In the other direction, the receive is in pieces.
    let mut segs = LocalMem::new();
    for i in 0..limit {
        here.add(&mut segs, OpKind::Recv, i * 2 * piece, piece)?;
    }
    here.fill(0, 64 << 10, 99);
    pair.client.ep.post(plain(OpKind::Recv, 2, segs))?;
    pair.server.send(2, &there, 100, total)?;
    pair.server.done(2)?;
    check_eq!(pair.client.done(2)?.len, total);
    // The pieces together are the pattern again.
    let mut copy = KVec::from_elem(0_u8, total, GFP_KERNEL)?;
    for (i, part) in copy.chunks_mut(piece).enumerate() {
        here.region.memory().read(i * 2 * piece, part);
    }
    here.region.memory().write(0, &copy);
    check!(here.has(0, total, 7));
    Ok(())
}

fn shorter(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let buffer = Buffer::local(&station.domain, 8192)?;
    pair.server.recv(1, &buffer, 4096, 4096)?;
    buffer.fill(0, 100, 3);
    pair.client.send(1, &buffer, 0, 100)?;
    check_eq!(pair.server.done(1)?.len, 100);
    check!(buffer.has(4096, 100, 3));
    check!(buffer.is_zero(4196, 3996));
    Ok(())
}

/// Returns the payload of the inject tests.
fn payload() -> [u8; KFI_INJECT_MAX] {
    // CAST: Below 256.
    core::array::from_fn(|i| i as u8 ^ 0xc3)
}

fn inject(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let there = Buffer::local(&station.domain, 4096)?;
    let max = pair.client.ep.attr().inject_size as usize;
    let mut data = payload();
    for (context, len) in [(1, 0), (2, 1), (3, max)] {
        pair.server.recv(context, &there, 0, 4096)?;
        pair.client.ep.post(Post {
            flags: KFI_INJECT,
            inject: &data[..len],
            ..plain(OpKind::Send, context, LocalMem::new())
        })?;
        // The payload was copied before the call returned.
        data.fill(0);
        check_eq!(pair.server.done(context)?.len, len);
        data = payload();
        let mut got = [0; KFI_INJECT_MAX];
        there.region.memory().read(0, &mut got);
        check!(got[..len] == data[..len]);
    }
    // None of them has an entry.
    check!(pair.client.poll().is_none());
    let too_long = [0; KFI_INJECT_MAX + 1];
    let post = Post {
        flags: KFI_INJECT,
        inject: &too_long,
        ..plain(OpKind::Send, 4, LocalMem::new())
    };
    check_err!(pair.client.ep.post(post), EMSGSIZE);
    Ok(())
}

fn senddata(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let buffer = Buffer::local(&station.domain, 4096)?;
    for (context, data, len) in [(1, 0xdead_beef, 64), (2, 0, 0), (3, u32::MAX.into(), 1)] {
        pair.server.recv(context, &buffer, 2048, 64)?;
        pair.client.ep.post(Post {
            flags: KFI_REMOTE_CQ_DATA,
            data,
            ..plain(OpKind::Send, context, buffer.segs(OpKind::Send, 0, len)?)
        })?;
        pair.client.done(context)?;
        let got = pair.server.done(context)?;
        check_eq!(got.flags, KFI_MSG | KFI_RECV | KFI_REMOTE_CQ_DATA);
        check_eq!(got.data, data);
        check_eq!(got.len, len);
    }
    Ok(())
}

fn inject_with_data(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let there = Buffer::local(&station.domain, 4096)?;
    pair.server.recv(1, &there, 0, 4096)?;
    pair.client.ep.post(Post {
        flags: KFI_INJECT | KFI_REMOTE_CQ_DATA,
        inject: b"short",
        data: 77,
        ..plain(OpKind::Send, 1, LocalMem::new())
    })?;
    let got = pair.server.done(1)?;
    check_eq!(got.data, 77);
    check_eq!(got.len, 5);
    check!(pair.client.poll().is_none());
    Ok(())
}

fn ordered(station: &Station) -> Outcome {
    const COUNT: u64 = 64;
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 4096)?,
        Buffer::local(&station.domain, 64 * COUNT as usize)?,
    );
    for i in 0..COUNT {
        pair.server.recv(i, &there, 64 * i as usize, 64)?;
    }
    for i in 0..COUNT {
        // Different lengths, so that a wrong order is detected.
        here.fill(0, i as usize, 0);
        pair.client.send(i, &here, 0, i as usize)?;
    }
    for i in 0..COUNT {
        pair.client.done(i)?;
        check_eq!(pair.server.done(i)?.len, i);
        check!(there.has(64 * i as usize, i as usize, 0));
    }
    Ok(())
}
