// SPDX-License-Identifier: MIT OR Apache-2.0

//! Completion queues, event queues, counters (fabtests: `poll`, `cntr`,
//! `resmgmt_test`).

use super::refused;
use crate::buf::Buf;
use crate::harness::caps::IMMEDIATE_DATA;
use crate::harness::{Ctx, Test};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, Side, WAIT};
use crate::sys::{self, Epoll, Errno, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("cq.entry_in_each_format_has_its_fields", formats).needs(IMMEDIATE_DATA),
    Test::pair(
        "cq.selective_queue_reports_marked_ops_and_errors",
        selective,
    ),
    Test::pair("cq.endpoint_with_two_queues_splits_completions", two_queues),
    Test::pair(
        "cq.p09_flush_on_disconnect_completes_each_once",
        flush_completes_each_once,
    ),
    Test::alone("cq.depth_requested_is_rounded_up", depths),
    Test::alone(
        "cq.ring_mapping_with_bad_arguments_is_refused",
        ring_mapping_rules,
    ),
    Test::pair("cq.tail_out_of_range_hurts_only_its_owner", lying_tail),
    Test::pair(
        "poll.descriptor_with_event_wakes_poll_and_epoll",
        epoll_and_poll,
    ),
    Test::pair(
        "resmgmt_test.post_to_full_queue_is_eagain",
        full_queue_is_eagain,
    ),
    Test::pair(
        "resmgmt_test.post_to_full_endpoint_is_eagain",
        full_endpoint_is_eagain,
    ),
    Test::pair(
        "resmgmt_test.batch_beyond_queue_is_accepted_in_part",
        batch_is_taken_in_part,
    ),
    Test::pair("cancel.posted_receive_completes_with_ecanceled", cancel).seconds(3),
    Test::pair("cntr.ops_of_each_kind_are_counted", counts),
    Test::alone("cntr.ctl_of_each_kind_changes_values", cntr_ctl),
    Test::alone("cntr.wait_past_deadline_times_out", cntr_wait),
    Test::alone("eq.read_of_empty_queue_is_eagain", eq_empty),
];

fn formats(ctx: &mut Ctx) -> Result<()> {
    for format in [
        0,
        KFI_CQ_FORMAT_CONTEXT,
        KFI_CQ_FORMAT_MSG,
        KFI_CQ_FORMAT_DATA,
    ] {
        let pair = Pair::with(
            ctx,
            &Opts {
                cq_format: format,
                ..Default::default()
            },
        )?;
        let buf = Buf::new(4096)?;
        let region = pair.reg(&buf)?;
        if ctx.first() {
            pair.post(op::recv(0x1234_5678_9abc_def0, &[iov(region, 96, 1000)]))?;
            ctx.barrier("receive posted")?;
            let e = pair.wait()?;
            ensure!(e.context == 0x1234_5678_9abc_def0, "format {format}: {e:?}");
            let (msg, data) = (format >= KFI_CQ_FORMAT_MSG, format >= KFI_CQ_FORMAT_DATA);
            ensure!(
                (e.len == 500) == msg && (e.flags != 0) == msg,
                "format {format}: {e:?}"
            );
            ensure!(
                (e.data == 77) == data && (e.buf == 96) == data,
                "format {format}: {e:?}"
            );
        } else {
            ctx.barrier("receive posted")?;
            pair.post(op::with_data(op::send(1, &[iov(region, 0, 500)]), 77))?;
            pair.wait_context(1)?;
        }
        ctx.barrier("done")?;
    }
    let side = Side::open(ctx)?;
    refused(
        side.cq(0, KFI_CQ_FORMAT_DATA + 1),
        libc::EINVAL,
        "format tagged",
    )
}

fn selective(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::with(
        ctx,
        &Opts {
            selective: true,
            ..Default::default()
        },
    )?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let wanted = |i: u64| i % 4 == 3;
    let mark = |i: u64, e: OpEntry| {
        if wanted(i) {
            op::with_flags(e, KFI_COMPLETION)
        } else {
            e
        }
    };
    let make = if ctx.first() { op::recv } else { op::send };
    let ops: Vec<_> = (0..64)
        .map(|i| mark(i, make(i, &[iov(region, i * 64, 64)])))
        .collect();
    if ctx.first() {
        pair.post_all(&ops)?;
        ctx.barrier("receives posted")?;
    } else {
        ctx.barrier("receives posted")?;
        pair.post_all(&ops)?;
    }
    for i in (0..64).filter(|i| wanted(*i)) {
        ensure!(pair.wait()?.context == i, "an entry that was not asked for");
    }
    ctx.barrier("done")?;
    ensure!(pair.cq.read().is_none(), "more entries than were asked for");
    // A failure always has its entry.
    if ctx.first() {
        pair.post(op::recv(99, &[iov(region, 0, 64)]))?;
        ctx.barrier("last receive posted")?;
        let e = pair.wait_any(WAIT)?;
        ensure!(e.context == 99 && e.err as i32 == libc::ECANCELED, "{e:?}");
    } else {
        ctx.barrier("last receive posted")?;
        pair.dev().shutdown(pair.ep)?;
    }
    ctx.barrier("ended")
}

fn two_queues(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let (tx, rx) = (
        side.cq(16, KFI_CQ_FORMAT_MSG)?,
        side.cq(16, KFI_CQ_FORMAT_MSG)?,
    );
    let dev = &side.dev;
    let make = |connreq| -> Result<u64> {
        let want = EpOpen {
            domain: side.domain.handle,
            connreq,
            ..Default::default()
        };
        let ep = dev.ep_open(&want)?.handle;
        dev.bind(ep, side.eq.handle, 0)?;
        dev.bind(ep, tx.handle, KFI_TRANSMIT)?;
        refused(
            dev.bind(ep, rx.handle, KFI_TRANSMIT),
            libc::EINVAL,
            "a second transmit queue",
        )?;
        dev.bind(ep, rx.handle, KFI_RECV)?;
        dev.enable(ep)?;
        Ok(ep)
    };
    let ep = if ctx.first() {
        let (pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        let request = side.event(KFI_CONNREQ)?;
        let ep = make(request.raw.connreq)?;
        dev.accept(ep, &[])?;
        dev.close(pep)?;
        ep
    } else {
        let port: u16 = ctx.ctl.recv()?;
        let ep = make(0)?;
        dev.connect(ep, ctx.env.peer_at(port), &[])?;
        ep
    };
    side.event(KFI_CONNECTED)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, crate::pair::LOCAL)?.handle;
    dev.submit(ep, &[op::recv(1, &[iov(region, 0, 10)])])?;
    ctx.barrier("receive posted")?;
    dev.submit(ep, &[op::send(2, &[iov(region, 100, 10)])])?;
    ensure!(
        tx.wait(WAIT)?.context == 2 && rx.wait(WAIT)?.context == 1,
        "in the wrong queue"
    );
    ctx.barrier("done")?;
    ensure!(
        tx.read().is_none() && rx.read().is_none(),
        "an entry too many"
    );
    Ok(())
}

/// Every accepted operation completes exactly once when the peer disconnects.
fn flush_completes_each_once(ctx: &mut Ctx) -> Result<()> {
    const COUNT: u64 = 100;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(100 * 512)?;
    let region = pair.reg(&buf)?;
    let ops: Vec<_> = (0..COUNT)
        .map(|i| op::recv(i, &[iov(region, i * 512, 512)]))
        .collect();
    pair.post_all(&ops)?;
    ctx.barrier("receives posted")?;
    if !ctx.first() {
        pair.dev().shutdown(pair.ep)?;
    }
    let mut seen = [0u8; COUNT as usize];
    for _ in 0..COUNT {
        let e = pair.wait_any(WAIT)?;
        ensure!(e.err as i32 == libc::ECANCELED, "{e:?}");
        seen[e.context as usize] += 1;
    }
    ensure!(seen.iter().all(|n| *n == 1), "{seen:?}");
    let down = pair.side.event(KFI_SHUTDOWN)?;
    ensure!(
        down.raw.object == pair.ep && down.raw.err == 0,
        "{:?}",
        down.raw
    );
    ctx.barrier("done")?;
    ensure!(pair.cq.read().is_none(), "an entry too many");
    refused(
        pair.post(op::send(1, &[iov(region, 0, 1)])),
        libc::ENOTCONN,
        "a send after the end",
    )
}

fn depths(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    for (want, least) in [
        (0, 1024),
        (1, 1),
        (2, 2),
        (3, 4),
        (1000, 1024),
        (65_536, 65_536),
    ] {
        let cq = side.cq(want, 0)?;
        ensure!(
            cq.entries.is_power_of_two() && cq.entries >= least,
            "{want} entries gave {}",
            cq.entries
        );
        ensure!(
            cq.map().len() >= KFI_CQ_RING_OFFSET + 64 * cq.entries as usize,
            "{want}: map"
        );
        ensure!(
            cq.head() == 0 && cq.tail() == 0 && cq.read().is_none(),
            "a new queue is not empty"
        );
        ensure!(
            sys::is_cloexec(&cq.fd).unwrap_or(false),
            "its descriptor outlives exec"
        );
        side.dev.close(cq.handle)?;
    }
    refused(
        side.cq(KFI_CQ_SIZE_MAX + 1, 0),
        libc::EINVAL,
        "too many entries",
    )?;
    refused(side.cq(u32::MAX, 0), libc::EINVAL, "far too many entries")
}

fn ring_mapping_rules(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(64, 0)?;
    let (len, fd) = (cq.map().len(), cq.fd.as_fd());
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    let try_map = |len, prot, flags, off| Map::raw(fd, len, prot, flags, off).map(drop);
    let bad = |r: Result<(), Errno>, what: &str| match r {
        Err(e) if [libc::EINVAL, libc::EPERM, libc::EACCES, libc::ENXIO].contains(&e.0) => Ok(()),
        other => bail!("{what}: {other:?}"),
    };
    bad(
        try_map(len + 4096, rw, libc::MAP_SHARED, 0),
        "a mapping past its end",
    )?;
    bad(
        try_map(len, rw, libc::MAP_SHARED, 4096),
        "a mapping from its second page",
    )?;
    bad(
        try_map(len, rw | libc::PROT_EXEC, libc::MAP_SHARED, 0),
        "an executable mapping",
    )?;
    // The mapping outlives descriptor and queue.
    let again = Map::raw(fd, len, rw, libc::MAP_SHARED, 0).context("a second mapping")?;
    side.dev.close(cq.handle)?;
    ensure!(
        again.load32(4) == cq.entries,
        "the ring of a closed queue is gone"
    );
    drop(cq);
    ensure!(
        again.load32(0) == 0,
        "the ring of a closed descriptor is gone"
    );
    Ok(())
}

fn lying_tail(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(8192)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    if ctx.first() {
        ctx.barrier("lied")?;
        return Ok(());
    }
    for lie in [1u32, 0x8000_0000, u32::MAX, pair.cq.entries + 1] {
        pair.cq.set_tail(lie);
        for i in 0..200 {
            match pair.post(op::write(i, &[iov(region, 0, 8)], remote.addr, remote.key)) {
                Ok(()) => {}
                Err(e) if [libc::EAGAIN, libc::EIO, libc::EINVAL].contains(&e.errno.0) => break,
                Err(e) => return Err(e.into()),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Another queue of the same file works as before.
    let other = pair.side.cq(0, 0)?;
    ensure!(
        other.read().is_none() && other.head() == 0,
        "another queue was hurt"
    );
    ctx.barrier("lied")
}

fn epoll_and_poll(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let epoll = Epoll::new().context("epoll")?;
    epoll.add(pair.cq.fd.as_fd(), libc::EPOLLIN | libc::EPOLLET, 1)?;
    epoll.add(pair.side.eq.fd.as_fd(), libc::EPOLLIN | libc::EPOLLET, 2)?;
    let wait = |t| epoll.wait(t);
    ensure!(
        wait(Duration::ZERO)?.is_none(),
        "readable with nothing there"
    );
    for round in 0..20 {
        if ctx.first() {
            pair.post(op::recv(round, &[iov(region, 0, 8)]))?;
            ctx.barrier("receive posted")?;
            ensure!(wait(WAIT)? == Some(1), "round {round}: the edge was missed");
            ensure!(pair.cq.read().is_some(), "round {round}: woken for nothing");
            ensure!(
                !sys::poll_in(pair.cq.fd.as_fd(), Duration::ZERO).unwrap_or(true),
                "readable when empty"
            );
        } else {
            ctx.barrier("receive posted")?;
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            pair.post(op::send(round, &[iov(region, 0, 8)]))?;
            pair.wait_context(round)?;
        }
    }
    ctx.barrier("rounds done")?;
    if ctx.first() {
        ensure!(
            wait(WAIT)? == Some(2),
            "no edge for the end of the connection"
        );
        ensure!(
            pair.side.event(KFI_SHUTDOWN)?.raw.object == pair.ep,
            "another event"
        );
    } else {
        std::thread::sleep(Duration::from_millis(50));
        pair.dev().shutdown(pair.ep)?;
    }
    ctx.barrier("done")
}

/// A completion queue that is not read accepts only as many operations as it has entries (P9).
fn full_queue_is_eagain(ctx: &mut Ctx) -> Result<()> {
    let opts = Opts {
        cq_depth: 16,
        tx_size: 64,
        ..Default::default()
    };
    let pair = Pair::with(ctx, &opts)?;
    let buf = Buf::new(4096)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    if !ctx.first() {
        for round in 0..5u64 {
            let mut taken = 0;
            let end = Instant::now() + sys::patience(WAIT);
            loop {
                match pair.post(op::write(
                    taken,
                    &[iov(region, 0, 64)],
                    remote.addr,
                    remote.key,
                )) {
                    Ok(()) => taken += 1,
                    Err(e) if e.errno.0 == libc::EAGAIN => break,
                    Err(e) => return Err(e.into()),
                }
                ensure!(
                    taken <= u64::from(pair.cq.entries),
                    "{taken} operations for {} entries",
                    pair.cq.entries
                );
            }
            ensure!(
                taken == u64::from(pair.cq.entries),
                "round {round}: only {taken} were taken"
            );
            // All operations are complete and none is read: the queue is still full.
            while pair.cq.head().wrapping_sub(pair.cq.tail()) < pair.cq.entries {
                ensure!(Instant::now() < end, "the ring does not fill");
                std::thread::sleep(Duration::from_millis(1));
            }
            let more = op::write(99, &[iov(region, 0, 64)], remote.addr, remote.key);
            refused(
                pair.post(more),
                libc::EAGAIN,
                "an operation with a full ring",
            )?;
            for i in 0..taken {
                ensure!(pair.wait()?.context == i, "order");
            }
        }
    }
    ctx.barrier("done")
}

fn full_endpoint_is_eagain(ctx: &mut Ctx) -> Result<()> {
    let opts = Opts {
        cq_depth: 4096,
        rx_size: 32,
        ..Default::default()
    };
    let pair = Pair::with(ctx, &opts)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let mut taken = 0u32;
    loop {
        match pair.post(op::recv(u64::from(taken), &[iov(region, 0, 64)])) {
            Ok(()) => taken += 1,
            Err(e) if e.errno.0 == libc::EAGAIN => break,
            Err(e) => return Err(e.into()),
        }
        ensure!(taken <= 4096, "receives without end");
    }
    ensure!(
        taken >= 32 && taken == pair.got.rx_size,
        "{taken} receives for {}",
        pair.got.rx_size
    );
    ctx.barrier("done")
}

fn batch_is_taken_in_part(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::with(
        ctx,
        &Opts {
            cq_depth: 8,
            ..Default::default()
        },
    )?;
    let buf = Buf::new(4096)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    if !ctx.first() {
        let w = |c| op::write(c, &[iov(region, 0, 8)], remote.addr, remote.key);
        let ops: Vec<_> = (0..50).map(w).collect();
        let (done, err) = pair.dev().submit(pair.ep, &ops)?;
        ensure!(
            (done, err) == (pair.cq.entries as usize, libc::EAGAIN),
            "{done} taken, errno {err}"
        );
        (0..done as u64).try_for_each(|i| pair.wait_context(i).map(|_| ()))?;
        // A bad entry stops the batch; entries before it run.
        let mut ops: Vec<_> = (0..6).map(w).collect();
        ops[3].op = 77;
        let (done, err) = pair.dev().submit(pair.ep, &ops)?;
        ensure!(
            (done, err) == (3, libc::EINVAL),
            "{done} taken, errno {err}"
        );
        (0..3).try_for_each(|i| pair.wait_context(i).map(|_| ()))?;
        ops[0].iov[0].region = 0x1234;
        refused(
            pair.dev().submit(pair.ep, &ops),
            libc::ENOENT,
            "a batch whose first is bad",
        )?;
        ensure!(pair.cq.read().is_none(), "an entry too many");
    }
    ctx.barrier("done")
}

fn cancel(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    match pair.dev().cancel(pair.ep, 5) {
        Err(e) if e.errno.0 == libc::EOPNOTSUPP => return ctx.barrier("done"),
        Err(e) if e.errno.0 == libc::ENOENT => {}
        other => bail!("cancelling an operation that was not posted: {other:?}"),
    }
    pair.post_all(&[
        op::recv(5, &[iov(region, 0, 8)]),
        op::recv(6, &[iov(region, 8, 8)]),
    ])?;
    pair.dev().cancel(pair.ep, 5)?;
    let e = pair.wait_any(WAIT)?;
    ensure!(e.context == 5 && e.err as i32 == libc::ECANCELED, "{e:?}");
    refused(
        pair.dev().cancel(pair.ep, 5),
        libc::ENOENT,
        "cancelling it again",
    )?;
    ctx.barrier("cancelled")?;
    pair.post(op::send(7, &[iov(region, 100, 8)]))?;
    let mut contexts = [pair.wait()?.context, pair.wait()?.context];
    contexts.sort_unstable();
    ensure!(contexts == [6, 7], "{contexts:?}");
    ctx.barrier("done")
}

fn counts(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let d = side.domain.handle;
    let open = || side.dev.cntr_open(d);
    let (s, r, w, rd) = (open()?, open()?, open()?, open()?);
    let counters = vec![(s, KFI_SEND), (r, KFI_RECV), (w, KFI_WRITE), (rd, KFI_READ)];
    let pair = Pair::on(
        ctx,
        side,
        &Opts {
            counters,
            ..Default::default()
        },
    )?;
    let dev = pair.dev();
    let buf = Buf::new(4096)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    let piece = [iov(region, 0, 16)];
    if ctx.first() {
        pair.post_all(&(0..10).map(|i| op::recv(i, &piece)).collect::<Vec<_>>())?;
        ctx.barrier("receives posted")?;
        dev.cntr_wait(r, 10, WAIT)
            .context("waiting for the receives")?;
        ensure!(
            dev.cntr_read(r)? == (10, 0) && dev.cntr_read(s)? == (0, 0),
            "counters of the receiver"
        );
    } else {
        ctx.barrier("receives posted")?;
        pair.post_all(&(0..10).map(|i| op::send(i, &piece)).collect::<Vec<_>>())?;
        let writes = (0..5).map(|i| op::write(i, &piece, remote.addr, remote.key));
        pair.post_all(&writes.collect::<Vec<_>>())?;
        let reads = (0..3).map(|i| op::read(i, &piece, remote.addr, remote.key));
        pair.post_all(&reads.collect::<Vec<_>>())?;
        dev.cntr_wait(s, 10, WAIT)
            .context("waiting for the sends")?;
        dev.cntr_wait(w, 5, WAIT)
            .context("waiting for the writes")?;
        dev.cntr_wait(rd, 3, WAIT)
            .context("waiting for the reads")?;
        let all = [
            dev.cntr_read(s)?,
            dev.cntr_read(r)?,
            dev.cntr_read(w)?,
            dev.cntr_read(rd)?,
        ];
        ensure!(all == [(10, 0), (0, 0), (5, 0), (3, 0)], "{all:?}");
    }
    ctx.barrier("done")?;
    // A failure counts as one, and wakes the waiter.
    if ctx.first() {
        pair.post(op::recv(50, &piece))?;
        ctx.barrier("last receive posted")?;
        refused(
            dev.cntr_wait(r, 100, WAIT),
            libc::EIO,
            "waiting while an operation fails",
        )?;
        ensure!(dev.cntr_read(r)? == (10, 1), "{:?}", dev.cntr_read(r)?);
    } else {
        ctx.barrier("last receive posted")?;
        std::thread::sleep(Duration::from_millis(100));
        dev.shutdown(pair.ep)?;
    }
    ctx.barrier("ended")?;
    refused(dev.close(s), libc::EBUSY, "closing a bound counter")
}

fn cntr_ctl(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let c = dev.cntr_open(side.domain.handle)?;
    dev.cntr_ctl(c, KFI_CNTR_ADD, 5)?;
    dev.cntr_ctl(c, KFI_CNTR_ADD, 7)?;
    dev.cntr_ctl(c, KFI_CNTR_ADDERR, 2)?;
    ensure!(dev.cntr_read(c)? == (12, 2), "{:?}", dev.cntr_read(c)?);
    dev.cntr_ctl(c, KFI_CNTR_SET, 1)?;
    dev.cntr_ctl(c, KFI_CNTR_SETERR, 0)?;
    ensure!(dev.cntr_read(c)? == (1, 0), "{:?}", dev.cntr_read(c)?);
    dev.cntr_ctl(c, KFI_CNTR_SET, u64::MAX)?;
    dev.cntr_ctl(c, KFI_CNTR_ADD, 2)?;
    ensure!(
        dev.cntr_read(c)? == (1, 0),
        "it does not wrap: {:?}",
        dev.cntr_read(c)?
    );
    refused(
        dev.cntr_ctl(c, KFI_CNTR_SETERR + 1, 0),
        libc::EINVAL,
        "an unknown operation",
    )
}

fn cntr_wait(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let c = dev.cntr_open(side.domain.handle)?;
    dev.cntr_wait(c, 0, WAIT).context("a value that is there")?;
    let start = Instant::now();
    refused(
        dev.cntr_wait(c, 1, Duration::from_millis(50)),
        libc::ETIMEDOUT,
        "a value that does not come",
    )?;
    ensure!(
        start.elapsed() >= Duration::from_millis(50),
        "it gave up too early"
    );
    let mut past = CntrWait {
        cntr: c,
        threshold: 1,
        deadline: 1,
        ..Default::default()
    };
    refused(
        dev.call(&mut past),
        libc::ETIMEDOUT,
        "a deadline in the past",
    )?;
    changes(dev, c)?;
    // Another thread's add wakes the waiter.
    std::thread::scope(|s| -> Result<()> {
        let waiter = s.spawn(|| dev.cntr_wait(c, 3, WAIT));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(10));
            dev.cntr_ctl(c, KFI_CNTR_ADD, 1)?;
        }
        Ok(waiter.join().map_err(|_| anyhow::anyhow!("panicked"))??)
    })
}

/// Waits for changes of a counter: to other values, also smaller ones, and at the greatest value.
fn changes(dev: &crate::raw::Dev, c: u64) -> Result<()> {
    let change = |seen: (u64, u64), timeout| {
        let deadline = sys::monotonic_ns() + sys::patience(timeout).as_nanos() as u64;
        dev.call(&mut CntrWait {
            flags: KFI_CNTR_WAIT_CHANGE,
            cntr: c,
            threshold: seen.0,
            errors: seen.1,
            deadline,
            ..Default::default()
        })
    };
    for (op, value, now) in [
        (KFI_CNTR_SET, u64::MAX, (u64::MAX, 0)),
        (KFI_CNTR_SETERR, 3, (u64::MAX, 3)),
        (KFI_CNTR_SETERR, 2, (u64::MAX, 2)),
        (KFI_CNTR_SET, 0, (0, 2)),
        (KFI_CNTR_SETERR, 0, (0, 0)),
    ] {
        let seen = dev.cntr_read(c)?;
        refused(
            change(seen, Duration::from_millis(20)),
            libc::ETIMEDOUT,
            "a change that does not come",
        )?;
        std::thread::scope(|s| -> Result<()> {
            let waiter = s.spawn(|| change(seen, WAIT));
            dev.cntr_ctl(c, op, value)?;
            Ok(waiter.join().map_err(|_| anyhow::anyhow!("panicked"))??)
        })?;
        ensure!(dev.cntr_read(c)? == now, "{:?}", dev.cntr_read(c)?);
        change(seen, WAIT).context("a change that is there")?;
    }
    Ok(())
}

fn eq_empty(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    refused(
        side.dev.eq_read(side.eq.handle, 0),
        libc::EAGAIN,
        "reading an empty queue",
    )?;
    refused(
        side.dev.eq_read(side.eq.handle, KFI_EQ_PEEK),
        libc::EAGAIN,
        "peeking into an empty queue",
    )?;
    refused(
        side.dev.eq_open(side.fabric, KFI_EQ_SIZE_MAX + 1),
        libc::EINVAL,
        "too deep a queue",
    )?;
    ensure!(
        sys::is_cloexec(&side.eq.fd).unwrap_or(false),
        "its descriptor outlives exec"
    );
    ensure!(
        !sys::poll_in(side.eq.fd.as_fd(), Duration::ZERO).unwrap_or(true),
        "readable when empty"
    );
    Ok(())
}
