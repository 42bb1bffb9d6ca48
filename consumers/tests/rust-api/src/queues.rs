// SPDX-License-Identifier: GPL-2.0
//! Tests of completion queues, counters, handlers: each operation completes exactly once (P9).

use core::sync::atomic::{
    AtomicU32,
    Ordering, //
};
use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    }, //
};
use kfabric::{
    base::{
        errno::enotconn,
        name::name_str, //
    },
    ep::{
        LocalMem,
        Post, //
    },
    key::Key,
    objects::{
        cntr::{
            Cntr,
            Counts, //
        },
        cq::CqHandler,
        waiter::Waiter, //
    },
    op::OpKind,
    uapi::*,
};

use crate::{
    buffer::{
        Buffer,
        REMOTE, //
    },
    check, check_eq, check_err,
    ktap::Outcome,
    pair::{
        plain,
        Pair,
        Side,
        Wanted, //
    },
    station::{
        self,
        Station,
        PATIENCE, //
    },
    Test,
};

/// The tests of this file.
pub(crate) const TESTS: &[Test] = &[
    ("full_completion_queue", full),
    ("counters", counters),
    ("selective_completion", selective),
    ("completion_formats", formats),
    ("handlers_are_called", handlers),
    ("handlers_of_sleeping_completions_may_sleep", sleeping),
    ("failure_comes_first", failure_first),
];

fn full(station: &Station) -> Outcome {
    const TOTAL: u64 = 2000;
    const RECEIVES: u64 = 64;
    let wanted = Wanted {
        depth: 8,
        ..Wanted::default()
    };
    let pair = Pair::with(station, &wanted, &[], &[])?;
    let buffer = Buffer::local(&station.domain, 4096)?;
    for context in 0..RECEIVES {
        pair.server.recv(context, &buffer, 2048, 8)?;
    }
    let (mut posted, mut seen, mut full) = (0, 0, 0);
    while seen < TOTAL {
        // Posts until the queue is full; without a read no further operation is accepted.
        while posted < TOTAL {
            match pair.client.send(posted, &buffer, 0, 8) {
                Ok(()) => posted += 1,
                Err(e) if e == EAGAIN => {
                    full += 1;
                    break;
                }
                Err(e) => return Err(e.into()),
            }
            check!(posted - seen <= 8);
        }
        pair.client.done(seen)?;
        pair.server.done(seen)?;
        pair.server.recv(seen + RECEIVES, &buffer, 2048, 8)?;
        seen += 1;
    }
    check!(full > 10);
    check!(pair.client.poll().is_none());
    check_eq!(pair.client.ep.completed(), TOTAL);
    check_eq!(pair.client.ep.outstanding(), 0);
    Ok(())
}

/// Waits until a counter has these values.
fn counts(cntr: &Cntr, side: &Side, value: u64, errors: u64) -> Outcome {
    side.waiter.until(PATIENCE, || {
        let now = cntr.read();
        Ok((now.value + now.errors >= value + errors).then_some(()))
    })?;
    check!(cntr.read() == Counts { value, errors });
    Ok(())
}

fn counters(station: &Station) -> Outcome {
    let domain = &station.domain;
    let (sends, receives, rma) = (
        Cntr::open(domain)?,
        Cntr::open(domain)?,
        Cntr::open(domain)?,
    );
    let pair = Pair::with(
        station,
        &Wanted::default(),
        &[(&sends, KFI_SEND), (&rma, KFI_READ | KFI_WRITE)],
        &[(&receives, KFI_RECV)],
    )?;
    let buffer = Buffer::shared(domain, 4096)?;
    let key = Key::alloc(&buffer.region)?;
    let value = key.assign(0, 4096, KFI_REMOTE_READ)?;
    for context in 0..10 {
        pair.server.recv(context, &buffer, 0, 8)?;
        pair.client.send(context, &buffer, 8, 8)?;
    }
    sends.wait(10, u64::MAX)?;
    counts(&sends, &pair.client, 10, 0)?;
    counts(&receives, &pair.server, 10, 0)?;
    pair.client.rma(OpKind::Read, 1, (&buffer, 0, 8), &key, 8)?;
    rma.wait(1, u64::MAX)?;
    check_err!(rma.wait(2, 1), ETIMEDOUT);
    pair.client.ep.post(Post {
        remote_addr: value.remote_addr,
        key: value.key,
        ..plain(OpKind::Write, 2, buffer.segs(OpKind::Write, 0, 8)?)
    })?;
    // Polled, because a wait returns an error only for failures during the wait, and this one may
    // be earlier.
    while rma.read().errors == 0 {
        fsleep(Delta::from_millis(1));
    }
    check_err!(rma.wait(2, 1), ETIMEDOUT);
    counts(&rma, &pair.client, 1, 1)?;
    check_err!(rma.close(), EBUSY);
    drop(pair);
    for cntr in [&sends, &receives, &rma] {
        cntr.close()?;
    }
    Ok(())
}

fn selective(station: &Station) -> Outcome {
    let wanted = Wanted {
        depth: 8,
        flags: KFI_SELECTIVE_COMPLETION,
        ..Wanted::default()
    };
    let pair = Pair::with(station, &wanted, &[], &[])?;
    let buffer = Buffer::local(&station.domain, 4096)?;
    // Many more operations than the queue has places.
    for context in 0..100 {
        pair.server.recv(context, &buffer, 64, 8)?;
        pair.client.post(|| {
            let segs = buffer.segs(OpKind::Send, 0, 8)?;
            Ok(Post {
                flags: if context % 10 == 9 { KFI_COMPLETION } else { 0 },
                ..plain(OpKind::Send, context, segs)
            })
        })?;
        pair.server.done(context)?;
        if context % 10 == 9 {
            pair.client.done(context)?;
        }
        check!(pair.client.poll().is_none());
    }
    Ok(())
}

fn formats(station: &Station) -> Outcome {
    for format in [KFI_CQ_FORMAT_CONTEXT, KFI_CQ_FORMAT_MSG] {
        let wanted = Wanted {
            format,
            ..Wanted::default()
        };
        let pair = Pair::with(station, &wanted, &[], &[])?;
        let buffer = Buffer::local(&station.domain, 4096)?;
        pair.client.recv(5, &buffer, 64, 64)?;
        pair.server.ep.post(Post {
            flags: KFI_REMOTE_CQ_DATA,
            data: 3,
            ..plain(OpKind::Send, 6, buffer.segs(OpKind::Send, 0, 8)?)
        })?;
        let entry = pair.client.done(5)?;
        check_eq!(entry.data, 0);
        if format == KFI_CQ_FORMAT_CONTEXT {
            check_eq!(entry.flags, 0);
            check_eq!(entry.len, 0);
        } else {
            check_eq!(entry.flags, KFI_MSG | KFI_RECV | KFI_REMOTE_CQ_DATA);
            check_eq!(entry.len, 8);
        }
    }
    Ok(())
}

fn handlers(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let waiter = &pair.client.waiter;
    // The connection was an event.
    let connected = waiter.calls();
    check!(connected >= 1);
    for context in 0..3 {
        pair.server
            .ep
            .post(plain(OpKind::Recv, context, LocalMem::new()))?;
        pair.client
            .ep
            .post(plain(OpKind::Send, context, LocalMem::new()))?;
        waiter.until(PATIENCE, || {
            Ok((pair.client.cq.waiting() > context as u32).then_some(()))
        })?;
    }
    check_eq!(waiter.calls(), connected + 3);
    for context in 0..3 {
        pair.client.done(context)?;
        pair.server.done(context)?;
    }
    pair.client.ep.shutdown()?;
    pair.ended()?;
    check_eq!(waiter.calls(), connected + 4);
    Ok(())
}

/// Handler that sleeps where it may.
struct Sleepy {
    waiter: Arc<Waiter>,
    slept: AtomicU32,
}

impl CqHandler for Sleepy {
    fn completed(&self) {
        self.waiter.wake();
    }

    fn completed_sleeping(&self) {
        fsleep(Delta::from_millis(1));
        self.slept.fetch_add(1, Ordering::Relaxed);
        self.waiter.wake();
    }
}

/// The kernel complains if a provider calls the handler in a context that may not sleep. kverbs always
/// lets it sleep.
fn sleeping(station: &Station) -> Outcome {
    let waiter = station::waiter()?;
    const ROUNDS: u64 = 10;
    let handler = Sleepy {
        waiter: waiter.clone(),
        slept: AtomicU32::new(0),
    };
    let handler = Arc::new(handler, GFP_KERNEL)?;
    let given = handler.clone();
    let client = Side::with_handler(station, &Wanted::default(), &[], None, given, waiter)?;
    let pair = Pair::join(station, client, &[])?;
    for context in 0..ROUNDS {
        pair.server
            .ep
            .post(plain(OpKind::Recv, context, LocalMem::new()))?;
        pair.client
            .ep
            .post(plain(OpKind::Send, context, LocalMem::new()))?;
        pair.client.done(context)?;
        pair.server.done(context)?;
    }
    if name_str(&station.info.prov_name)? == "kverbs" {
        // The last call may be in progress.
        check!(u64::from(handler.slept.load(Ordering::Relaxed)) >= ROUNDS - 1);
    }
    pair.client.ep.shutdown()?;
    pair.ended()
}

fn failure_first(station: &Station) -> Outcome {
    let pair = Pair::new(station)?;
    let (here, there) = (
        Buffer::local(&station.domain, 64 << 10)?,
        Buffer::shared(&station.domain, 64 << 10)?,
    );
    let key = Key::alloc(&there.region)?;
    let value = key.assign(0, 64 << 10, REMOTE)?;
    let mut posted = 0;
    for context in 0..16 {
        let bad = context == 5;
        let done = pair.client.ep.post(Post {
            remote_addr: value.remote_addr,
            key: if bad { value.key ^ 0xff } else { value.key },
            ..plain(
                OpKind::Write,
                context,
                here.segs(OpKind::Write, 0, 64 << 10)?,
            )
        });
        match done {
            Ok(()) => posted += 1,
            // An operation that is executed by its post has failed by now.
            Err(e) if e == enotconn() && context > 5 => break,
            Err(e) => return Err(e.into()),
        }
    }
    check!(posted > 5);
    for context in 0..posted {
        let entry = pair.client.completion()?;
        check_eq!(entry.context, context);
        let wanted = match context {
            0..5 => 0,
            5 => bindings::EACCES,
            _ => bindings::ECANCELED,
        };
        check_eq!(entry.err, wanted);
    }
    check!(pair.client.poll().is_none());
    pair.ended()
}
