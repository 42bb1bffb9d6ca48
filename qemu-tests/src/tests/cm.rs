// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connection management (fabtests: `cm_data`).

use super::refused;
use crate::buf::{pattern_bytes, Buf};
use crate::harness::caps::{ABORTED_CONNECTS, QUICK_CLOSES};
use crate::harness::{skip, Ctx, Test, SMOKE};
use crate::op::{self, iov};
use crate::pair::{Opts, Pair, Side, WAIT};
use crate::raw::Event;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "cm.shutdown_after_connect_notifies_peer",
        connect_and_shutdown,
    )
    .also(SMOKE),
    Test::pair("cm.connect_over_ipv6_succeeds", ipv6),
    Test::pair("cm.names_of_connected_endpoints_match", names),
    Test::pair(
        "cm.receives_posted_before_connect_complete",
        receives_before_connect,
    ),
    Test::pair("cm_data.data_of_each_size_arrive_both_ways", data_both_ways),
    Test::pair(
        "cm.connection_request_stores_the_first_version_of_its_offer",
        offer_of_first_version,
    ),
    Test::pair("cm_data.reject_with_data_delivers_them", rejected),
    Test::pair("cm_data.data_too_long_are_refused", data_too_long),
    Test::pair("cm.connect_without_listener_is_refused", nobody_listens),
    Test::pair("cm.accept_after_peer_gave_up_fails", peer_gives_up),
    Test::pair(
        "cm.connect_to_absent_host_fails_in_bounded_time",
        nobody_there,
    )
    .seconds(12),
    Test::pair(
        "cm.request_at_file_close_is_rejected",
        request_is_dropped_by_close,
    ),
    Test::pair(
        "cm.listener_closed_with_requests_rejects_them",
        listener_closes_with_requests,
    ),
    Test::alone("cm.listen_at_port_in_use_is_refused", port_is_taken),
    Test::pair("cm.calls_in_wrong_state_are_refused", wrong_states),
    Test::pair(
        "cm.close_while_connecting_leaves_nothing",
        close_while_connecting,
    )
    .seconds(8)
    .needs(ABORTED_CONNECTS),
    Test::pair(
        "cm.connect_repeated_succeeds_each_time",
        connect_again_and_again,
    )
    .seconds(15)
    .needs(QUICK_CLOSES),
    Test::pair("cm.requests_in_deep_backlog_are_all_served", deep_backlog).seconds(8),
];

fn connect_and_shutdown(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    ctx.barrier("up")?;
    if !ctx.first() {
        pair.dev().shutdown(pair.ep)?;
    }
    let down = pair.side.event(KFI_SHUTDOWN)?;
    ensure!(
        down.raw.object == pair.ep && down.raw.err == 0,
        "{:?}",
        down.raw
    );
    pair.dev().close(pair.ep)?;
    refused(
        pair.side.dev.eq_read(pair.side.eq.handle, 0),
        libc::EAGAIN,
        "one event more",
    )?;
    ctx.barrier("done")
}

fn ipv6(ctx: &mut Ctx) -> Result<()> {
    let both = ctx.env.addr6.is_some() && ctx.env.peer6.is_some();
    let theirs = ctx.ctl.exchange(&both)?;
    if !both || !theirs {
        return skip("the nodes have no IPv6 addresses");
    }
    let pair = Pair::with(
        ctx,
        &Opts {
            v6: true,
            ..Default::default()
        },
    )?;
    let peer = pair.dev().getname(pair.ep, true)?;
    ensure!(
        Some(peer.ip()) == ctx.env.peer6.map(IpAddr::V6),
        "the peer is {peer}"
    );
    let buf = Buf::new(10_000)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        pair.post(op::recv(1, &[iov(region, 0, 10_000)]))?;
        ctx.barrier("receive posted")?;
        pair.wait_context(1)?;
        buf.check(6)?;
    } else {
        buf.fill(6);
        ctx.barrier("receive posted")?;
        pair.post(op::send(1, &[iov(region, 0, 10_000)]))?;
        pair.wait_context(1)?;
    }
    ctx.barrier("done")
}

fn names(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let own = pair.dev().getname(pair.ep, false)?;
    let peer = pair.dev().getname(pair.ep, true)?;
    ensure!(own.ip() == ctx.env.addr, "its own name is {own}");
    ensure!(peer.ip() == ctx.env.peer, "its peer's name is {peer}");
    let theirs: (SocketAddr, SocketAddr) = ctx.ctl.exchange(&(own, peer))?;
    // The passive side's port is its listening port; the active side's is ephemeral.
    if !ctx.first() {
        ensure!(
            theirs.0.port() == peer.port(),
            "it is called {peer} here and {} there",
            theirs.0
        );
    }
    Ok(())
}

fn receives_before_connect(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, KFI_CQ_FORMAT_DATA)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, crate::pair::LOCAL)?.handle;
    let recvs: Vec<_> = (0..8)
        .map(|i| op::recv(i, &[iov(region, 64 * i, 64)]))
        .collect();
    let dev = &side.dev;
    let ep = if ctx.first() {
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        let request = side.event(KFI_CONNREQ)?;
        let ep = side
            .endpoint(&Opts::default(), &cq, request.raw.connreq)?
            .handle;
        ensure!(dev.submit(ep, &recvs)?.0 == 8, "receives before accept");
        dev.accept(ep, &[])?;
        ep
    } else {
        let port: u16 = ctx.ctl.recv()?;
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        ensure!(dev.submit(ep, &recvs)?.0 == 8, "receives before connect");
        refused(
            dev.submit(ep, &[op::send(1, &[iov(region, 0, 1)])]),
            libc::ENOTCONN,
            "a send before connect",
        )?;
        dev.connect(ep, ctx.env.peer_at(port), &[])?;
        ep
    };
    side.event(KFI_CONNECTED)?;
    // No barrier: receives posted before the connect must take messages that come at once.
    let sends: Vec<_> = (0..8)
        .map(|i| op::send(100 + i, &[iov(region, 2048, 64)]))
        .collect();
    ensure!(dev.submit(ep, &sends)?.0 == 8, "sends");
    let mut contexts = Vec::new();
    for _ in 0..16 {
        let e = cq.wait(WAIT)?;
        ensure!(e.err == 0, "{e:?}");
        contexts.push(e.context);
    }
    contexts.sort_unstable();
    let want: Vec<u64> = (0..8).chain(100..108).collect();
    ensure!(contexts == want, "{contexts:?}");
    ctx.barrier("done")
}

fn data_both_ways(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let most = side.domain.cm_data_size as usize;
    for size in [0, 1, 16, most] {
        let (ask, answer) = (pattern_bytes(1, 0, size), pattern_bytes(2, 0, size));
        if ctx.first() {
            let (pep, at) = side.listen(ctx.env.at(0), 0)?;
            ctx.ctl.send(&at.port())?;
            let request = side.event(KFI_CONNREQ)?;
            ensure!(
                request.data == ask,
                "{size} bytes: the request has {:?}",
                request.data
            );
            ensure!(
                request.raw.object == pep && request.raw.context == 0x9e9,
                "{:?}",
                request.raw
            );
            let ep = side
                .endpoint(&Opts::default(), &cq, request.raw.connreq)?
                .handle;
            refused(
                side.dev.close(request.raw.connreq),
                libc::ENOENT,
                "closing a request that is used up",
            )?;
            side.dev.accept(ep, &answer)?;
            side.event(KFI_CONNECTED)?;
            side.dev.close(pep)?;
            ctx.barrier("connected")?;
            side.dev.close(ep)?;
        } else {
            let port: u16 = ctx.ctl.recv()?;
            let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
            side.dev.connect(ep, ctx.env.peer_at(port), &ask)?;
            let up = side.event(KFI_CONNECTED)?;
            ensure!(
                up.data == answer,
                "{size} bytes: the answer has {:?}",
                up.data
            );
            ctx.barrier("connected")?;
            let _ = side.event(KFI_SHUTDOWN)?;
            side.dev.close(ep)?;
        }
        ctx.barrier("closed")?;
    }
    Ok(())
}

/// A program that was built when [`InfoEntry`] ended before `visible` has no room for later fields.
fn offer_of_first_version(ctx: &mut Ctx) -> Result<()> {
    const FREE: u8 = 0xa5;
    let side = Side::open(ctx)?;
    if !ctx.first() {
        let cq = side.cq(0, 0)?;
        let port: u16 = ctx.ctl.recv()?;
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        side.dev.connect(ep, ctx.env.peer_at(port), b"")?;
        side.event(KFI_CONN_ERROR)?;
        return ctx.barrier("done");
    }
    let (_, at) = side.listen(ctx.env.at(0), 0)?;
    ctx.ctl.send(&at.port())?;
    let came = crate::sys::poll_in(side.eq.fd.as_fd(), WAIT)?;
    ensure!(came, "no connection request");
    let mut data = [0u8; 256];
    let mut entry = vec![FREE; size_of::<InfoEntry>() + 64];
    let mut event = EqRead {
        eq: side.eq.handle,
        data: data.as_mut_ptr() as u64,
        data_len: data.len() as u32,
        info: entry.as_mut_ptr() as u64,
        ..Default::default()
    };
    side.dev.call(&mut event)?;
    ensure!(event.event == KFI_CONNREQ, "{event:?}");
    let (stored, after) = entry.split_at(std::mem::offset_of!(InfoEntry, visible));
    ensure!(stored.iter().any(|byte| *byte != FREE), "nothing is stored");
    ensure!(
        after.iter().all(|byte| *byte == FREE),
        "bytes behind the first version are stored"
    );
    side.dev.reject(event.connreq, b"")?;
    ctx.barrier("done")
}

fn rejected(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let most = side.domain.cm_data_size as usize;
    let mut port = 0;
    let mut pep = 0;
    if ctx.first() {
        let (p, at) = side.listen(ctx.env.at(0), 0)?;
        (pep, port) = (p, at.port());
    }
    port = if ctx.first() {
        ctx.ctl.send(&port)?;
        port
    } else {
        ctx.ctl.recv()?
    };
    for size in [0, 5, most] {
        let why = pattern_bytes(3, 0, size);
        if ctx.first() {
            let request = side.event(KFI_CONNREQ)?;
            ensure!(request.data == b"may I?", "{:?}", request.data);
            side.dev.reject(request.raw.connreq, &why)?;
            refused(
                side.dev.reject(request.raw.connreq, &why),
                libc::ENOENT,
                "rejecting it again",
            )?;
        } else {
            let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
            side.dev.connect(ep, ctx.env.peer_at(port), b"may I?")?;
            let no = side.event(KFI_CONN_ERROR)?;
            ensure!(
                no.raw.err as i32 == libc::ECONNREFUSED && no.raw.object == ep,
                "{:?}",
                no.raw
            );
            ensure!(
                no.data == why,
                "{size} bytes: the refusal has {:?}",
                no.data
            );
            side.dev.close(ep)?;
        }
        ctx.barrier("refused")?;
    }
    if ctx.first() {
        // A closed request is rejected too.
        let request = side.event(KFI_CONNREQ)?;
        side.dev.close(request.raw.connreq)?;
        side.dev.close(pep)?;
    } else {
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
        let no = side.event(KFI_CONN_ERROR)?;
        ensure!(no.raw.err as i32 == libc::ECONNREFUSED, "{:?}", no.raw);
    }
    ctx.barrier("done")
}

fn data_too_long(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let long = vec![0u8; side.domain.cm_data_size as usize + 1];
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    refused(
        side.dev.connect(ep, ctx.env.peer_at(4711), &long),
        libc::EINVAL,
        "too much data",
    )?;
    let mut bad = Connect {
        ep,
        addr: crate::raw::to_sockaddr(ctx.env.peer_at(4711)),
        param: 8,
        param_len: 4,
        ..Default::default()
    };
    refused(
        side.dev.call(&mut bad),
        libc::EFAULT,
        "data that are not mapped",
    )
}

fn nobody_listens(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    let start = Instant::now();
    side.dev.connect(ep, ctx.env.peer_at(9), &[])?;
    let no = side.event(KFI_CONN_ERROR)?;
    ensure!(
        no.raw.err as i32 == libc::ECONNREFUSED && no.raw.object == ep,
        "{:?}",
        no.raw
    );
    ensure!(
        start.elapsed() < crate::sys::patience(Duration::from_secs(10)),
        "it took {:?}",
        start.elapsed()
    );
    ctx.barrier("done")
}

/// Connects to an unused address on the link: an error in bounded time.
fn nobody_there(ctx: &mut Ctx) -> Result<()> {
    let IpAddr::V4(own) = ctx.env.addr else {
        return skip("this node has no IPv4 address");
    };
    let [a, b, c, _] = own.octets();
    let nobody = SocketAddr::new(Ipv4Addr::new(a, b, c, 251).into(), 4711);
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    side.dev.connect(ep, nobody, &[])?;
    let no = side
        .dev
        .eq_wait(&side.eq, Duration::from_secs(60))
        .context("no error within a minute")?;
    let errno = no.raw.err as i32;
    ensure!(no.raw.event == KFI_CONN_ERROR, "{:?}", no.raw);
    ensure!(
        [libc::ETIMEDOUT, libc::EHOSTUNREACH, libc::ENETUNREACH].contains(&errno),
        "{:?}",
        no.raw
    );
    side.dev.close(ep)?;
    ctx.barrier("done")
}

fn request_is_dropped_by_close(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let side = Side::open(ctx)?;
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        side.event(KFI_CONNREQ)?;
        drop(side);
    } else {
        let port: u16 = ctx.ctl.recv()?;
        let side = Side::open(ctx)?;
        let cq = side.cq(0, 0)?;
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
        let no = side.event(KFI_CONN_ERROR)?;
        ensure!(no.raw.err as i32 == libc::ECONNREFUSED, "{:?}", no.raw);
    }
    ctx.barrier("done")
}

fn listener_closes_with_requests(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    if ctx.first() {
        let (pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        let first = side.event(KFI_CONNREQ)?;
        crate::harness::guest::until("a second request", WAIT, || {
            Ok(crate::sys::poll_in(side.eq.fd.as_fd(), Duration::ZERO)
                .unwrap_or(false)
                .then_some(()))
        })?;
        // One request taken and not answered, one still in the queue.
        match side.dev.close(pep) {
            Ok(()) => {}
            Err(e) if e.errno.0 == libc::EBUSY => {
                side.dev.close(first.raw.connreq)?;
                if let Ok(second) = side.dev.eq_read(side.eq.handle, 0) {
                    side.dev.close(second.raw.connreq)?;
                }
                side.dev.close(pep)?;
            }
            Err(e) => return Err(e.into()),
        }
        let _ = side.dev.close(first.raw.connreq);
    } else {
        let port: u16 = ctx.ctl.recv()?;
        let cq = side.cq(0, 0)?;
        for _ in 0..2 {
            let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
            side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
        }
        for _ in 0..2 {
            let no = side.event(KFI_CONN_ERROR)?;
            ensure!(no.raw.err as i32 == libc::ECONNREFUSED, "{:?}", no.raw);
        }
    }
    ctx.barrier("done")
}

/// The peer does not wait for the answer: every later step of answering fails.
fn peer_gives_up(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    if !ctx.first() {
        let port: u16 = ctx.ctl.recv()?;
        for round in 0..2 {
            let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
            side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
            ctx.barrier("asked")?;
            side.dev
                .close(ep)
                .with_context(|| format!("round {round}"))?;
            ctx.barrier("gone")?;
        }
        return ctx.barrier("done");
    }
    let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
    ctx.ctl.send(&at.port())?;
    for round in 0..2 {
        let request = side.event(KFI_CONNREQ)?.raw.connreq;
        let early = match round {
            0 => Some(side.endpoint(&Opts::default(), &cq, request)?.handle),
            _ => None,
        };
        ctx.barrier("asked")?;
        ctx.barrier("gone")?;
        std::thread::sleep(Duration::from_millis(500));
        let answered = match early {
            Some(ep) => side.dev.accept(ep, &[]).map(|()| ep),
            None => side
                .dev
                .ep_open(&EpOpen {
                    domain: side.domain.handle,
                    connreq: request,
                    ..Default::default()
                })
                .and_then(|ep| {
                    side.dev.bind(ep.handle, side.eq.handle, 0)?;
                    side.dev
                        .bind(ep.handle, cq.handle, KFI_TRANSMIT | KFI_RECV)?;
                    side.dev.enable(ep.handle)?;
                    side.dev.accept(ep.handle, &[])?;
                    Ok(ep.handle)
                }),
        };
        match answered {
            Err(e) if [libc::ECONNABORTED, libc::ENOENT].contains(&e.errno.0) => {}
            Err(e) => anyhow::bail!("round {round}: {e}"),
            Ok(ep) => {
                let no = side.event(KFI_CONN_ERROR)?;
                ensure!(no.raw.object == ep, "round {round}: {:?}", no.raw);
            }
        }
    }
    ctx.barrier("done")
}

fn port_is_taken(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let (pep, at) = side.listen(ctx.env.at(0), 0)?;
    let second = side
        .dev
        .pep_open(side.fabric, side.eq.handle, at, 0)
        .and_then(|p| side.dev.listen(p, 0));
    refused(
        second,
        libc::EADDRINUSE,
        "listening on a port that is taken",
    )?;
    side.dev.close(pep)?;
    let elsewhere = SocketAddr::new(Ipv4Addr::new(192, 0, 2, 1).into(), 0);
    let foreign = side
        .dev
        .pep_open(side.fabric, side.eq.handle, elsewhere, 0)
        .and_then(|p| side.dev.listen(p, 0));
    refused(
        foreign,
        libc::EADDRNOTAVAIL,
        "listening on an address that is not ours",
    )?;
    let again = side.dev.pep_open(side.fabric, side.eq.handle, at, 0)?;
    side.dev
        .listen(again, 0)
        .context("listening on a port that is free again")?;
    Ok(())
}

fn wrong_states(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let (dev, peer) = (pair.dev(), ctx.env.peer_at(4711));
    let no = |r: crate::raw::Result<()>, what: &str| match r {
        Err(e)
            if [libc::EINVAL, libc::EISCONN, libc::EBUSY, libc::EALREADY].contains(&e.errno.0) =>
        {
            Ok(())
        }
        other => anyhow::bail!("{what}: {other:?}"),
    };
    no(
        dev.connect(pair.ep, peer, &[]),
        "connecting a connected endpoint",
    )?;
    no(
        dev.accept(pair.ep, &[]),
        "accepting on a connected endpoint",
    )?;
    no(dev.enable(pair.ep), "enabling an enabled endpoint")?;
    no(
        dev.bind(pair.ep, pair.cq.handle, KFI_RECV),
        "binding an enabled endpoint",
    )?;
    let bare = EpOpen {
        domain: pair.side.domain.handle,
        ..Default::default()
    };
    let ep = dev.ep_open(&bare)?.handle;
    no(
        dev.connect(ep, peer, &[]),
        "connecting an endpoint that is not enabled",
    )?;
    no(dev.enable(ep), "enabling an endpoint with nothing bound")?;
    refused(
        dev.getname(ep, true),
        libc::ENOTCONN,
        "the peer of an unconnected endpoint",
    )
    .or_else(|_| {
        refused(
            dev.getname(ep, true),
            libc::EADDRNOTAVAIL,
            "the peer of an unconnected endpoint",
        )
    })?;
    let ep = pair.side.endpoint(&Opts::default(), &pair.cq, 0)?.handle;
    no(dev.accept(ep, &[]), "accepting without a request")?;
    ctx.barrier("done")
}

fn close_while_connecting(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let (_pep, at) = side.listen(ctx.env.at(0), 128)?;
    let port = ctx.ctl.exchange(&at.port())?;
    for i in 0..30u64 {
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
        std::thread::sleep(Duration::from_micros(i * i * 20));
        side.dev
            .close(ep)
            .with_context(|| format!("closing number {i}"))?;
    }
    ctx.barrier("done")?;
    // Requests of abandoned connections may or may not be there; accepting one fails without harm.
    while let Ok(request) = side.dev.eq_read(side.eq.handle, 0) {
        if request.raw.event == KFI_CONNREQ {
            if let Ok(ep) = side.endpoint(&Opts::default(), &cq, request.raw.connreq) {
                let _ = side.dev.accept(ep.handle, &[]);
                side.dev.close(ep.handle)?;
            }
        }
    }
    ctx.barrier("closed")
}

/// Returns the next event of a kind. A request for the next connection may come before the shutdown
/// event of the last one; it waits in `early`.
fn out_of_order(side: &Side, early: &mut Vec<Event>, kind: u32) -> Result<Event> {
    if kind == KFI_CONNREQ && !early.is_empty() {
        return Ok(early.remove(0));
    }
    loop {
        let event = side.dev.eq_wait(&side.eq, WAIT)?;
        if event.raw.event == kind {
            return Ok(event);
        }
        ensure!(
            event.raw.event == KFI_CONNREQ,
            "{:?}, not {kind:#x}",
            event.raw
        );
        early.push(event);
    }
}

fn connect_again_and_again(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, KFI_CQ_FORMAT_DATA)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, crate::pair::LOCAL)?.handle;
    let dev = &side.dev;
    let port: u16 = if ctx.first() {
        let (_, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        at.port()
    } else {
        ctx.ctl.recv()?
    };
    let mut early = Vec::new();
    for round in 0..50 {
        if ctx.first() {
            let request = out_of_order(&side, &mut early, KFI_CONNREQ)?;
            let ep = side
                .endpoint(&Opts::default(), &cq, request.raw.connreq)?
                .handle;
            dev.submit(ep, &[op::recv(round, &[iov(region, 0, 8)])])?;
            dev.accept(ep, &[])?;
            out_of_order(&side, &mut early, KFI_CONNECTED)?;
            ensure!(cq.wait(WAIT)?.err == 0, "round {round}");
            let down = out_of_order(&side, &mut early, KFI_SHUTDOWN)?;
            ensure!(down.raw.object == ep, "round {round}: {:?}", down.raw);
            dev.close(ep)?;
        } else {
            let ep = crate::pair::connect_one(&side, &Opts::default(), &cq, ctx.env.peer_at(port))?
                .handle;
            dev.submit(ep, &[op::send(round, &[iov(region, 0, 8)])])?;
            ensure!(cq.wait(WAIT)?.err == 0, "round {round}");
            dev.close(ep)?;
        }
    }
    ctx.barrier("done")
}

fn deep_backlog(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 40;
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    if ctx.first() {
        let (_pep, at) = side.listen(ctx.env.at(0), 64)?;
        ctx.ctl.send(&at.port())?;
        ctx.barrier("all asked")?;
        let requests = (0..COUNT)
            .map(|_| side.event(KFI_CONNREQ))
            .collect::<Result<Vec<_>>>()?;
        for request in requests {
            let ep = side.endpoint(&Opts::default(), &cq, request.raw.connreq)?;
            side.dev.accept(ep.handle, &[])?;
        }
    } else {
        let port: u16 = ctx.ctl.recv()?;
        for i in 0..COUNT {
            let ep = side.endpoint(
                &Opts {
                    context: i as u64,
                    ..Default::default()
                },
                &cq,
                0,
            )?;
            side.dev.connect(ep.handle, ctx.env.peer_at(port), &[])?;
        }
        ctx.barrier("all asked")?;
    }
    for _ in 0..COUNT {
        side.event(KFI_CONNECTED)?;
    }
    ctx.barrier("done")
}
