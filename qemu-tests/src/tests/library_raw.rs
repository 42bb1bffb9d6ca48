// SPDX-License-Identifier: MIT OR Apache-2.0

//! What a libfabric provider needs of libkfabric: memory by address, events with their origin, and
//! regions that end in use.

use super::library::Lib;
use crate::buf::pattern_bytes;
use crate::harness::caps::{IMMEDIATE_DATA, REMOTE_ERRORS};
use crate::harness::{Ctx, Test, SHM};
use crate::pair::WAIT;
use crate::sys::heap::{post, Heap};
use anyhow::{ensure, Context, Result};
use kfabric::{Access, Caps, Completion, Errno, Event, Piece, RawOp, RemoteMem, Taken};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("lib.raw_messages_of_pieces_arrive", |c| pieces(c, false)).needs(IMMEDIATE_DATA),
    Test::pair("lib.raw_messages_of_pieces_arrive_by_rings", |c| {
        pieces(c, true)
    })
    .on(SHM),
    Test::pair(
        "lib.raw_one_sided_ops_succeed_or_name_their_inject",
        one_sided,
    )
    .needs(REMOTE_ERRORS),
    Test::pair("lib.request_peeked_and_read_names_its_origin", origin),
    Test::pair("lib.region_retired_in_use_refuses_its_peer", retired).needs(REMOTE_ERRORS),
];

/// Its address is the context of an injected operation.
static MARK: u8 = 0;
/// Bytes of each node's memory.
const LEN: usize = 1 << 20;

/// Returns memory that lives as long as the process, because operations may use it until then.
fn heap() -> &'static Heap {
    Box::leak(Box::new(Heap::new(LEN)))
}

/// Messages between pieces of memory of the allocator, injected ones, and empty ones without memory.
fn pieces(ctx: &mut Ctx, rings: bool) -> Result<()> {
    let lib = Lib::with_rings(ctx, rings)?;
    let ep = lib.connect(ctx)?;
    ensure!(ep.has_rings() == Some(rings), "{:?}", ep.has_rings());
    let heap = heap();
    let region = heap.register(&lib.domain, Access::LOCAL)?;
    ensure!(region.address() == heap.at(0) as u64, "{region:?}");
    let piece = |at, len| Piece::of(&region, heap.at(at), len);
    let none = Piece::unregistered(std::ptr::null(), 0);
    if ctx.first() {
        let parts = [piece(5, 100), none, piece(1000, 500_000)];
        post(&ep, &RawOp::recv(&parts).context(1))?;
        post(&ep, &RawOp::recv(&[piece(600_000, 64)]).context(2))?;
        post(&ep, &RawOp::recv(&[]).context(3))?;
        ctx.barrier("receives posted")?;
        let mut got = Vec::new();
        for (context, len) in [(1, 300_000), (2, 12), (3, 0)] {
            let came = lib.cq.wait(WAIT)?.ok()?;
            ensure!(
                (came.context(), came.len()) == (context, len),
                "{came:?} instead of {context}"
            );
            got.push(came);
        }
        ensure!(got[0].data() == Some(77), "{:?}", got[0]);
        let mut all = heap.read(5, 100)?;
        all.extend(heap.read(1000, 299_900)?);
        ensure!(
            all == pattern_bytes(1, 0, 300_000),
            "wrong data: the pieces"
        );
        ensure!(
            heap.read(300_900, 8)? == [0; 8],
            "wrong data: after the message"
        );
        ensure!(
            heap.read(600_000, 12)? == b"hello, world",
            "wrong data: injected"
        );
    } else {
        heap.write(300, &pattern_bytes(1, 0, 300_000))?;
        heap.write(700_000, b"hello,....... world")?;
        ctx.barrier("receives posted")?;
        let parts = [piece(300, 1), piece(301, 299_999)];
        post(&ep, &RawOp::send(&parts).context(4).data(77))?;
        let words =
            [(700_000, 6), (700_013, 6)].map(|(at, len)| Piece::unregistered(heap.at(at), len));
        post(&ep, &RawOp::send(&words).inject().context(5))?;
        post(&ep, &RawOp::send(&[none]).context(6))?;
        for context in [4, 6] {
            let sent = lib.cq.wait(WAIT)?.ok()?;
            ensure!(sent.context() == context, "{sent:?}");
        }
        let refused = [
            post(&ep, &RawOp::send(&[Piece::unregistered(heap.at(0), 1)])),
            post(&ep, &RawOp::send(&[piece(LEN, 1)])),
        ];
        ensure!(refused == [Err(Errno::EINVAL); 2], "{refused:?}");
    }
    ctx.barrier("done")?;
    drop(ep);
    region.close()?;
    Ok(())
}

/// Writes and reads by address. A failed injected write has an error entry with its own context; a
/// queue shows its successes before.
fn one_sided(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let ep = lib.connect(ctx)?;
    let heap = heap();
    let region = heap.register(&lib.domain, Access::LOCAL | Access::REMOTE)?;
    if ctx.first() {
        let remote = region.remote().context("no key")?;
        ctx.ctl.send(&(remote.addr, remote.key))?;
        ctx.barrier("written")?;
        ensure!(
            heap.read(100, 50_000)? == pattern_bytes(9, 0, 50_000),
            "wrong data: written"
        );
        ensure!(heap.read(60_000, 3)? == b"abc", "wrong data: injected");
        return ctx.barrier("done");
    }
    let (addr, key): (u64, u64) = ctx.ctl.recv()?;
    let there = RemoteMem { addr, key };
    heap.write(0, &pattern_bytes(9, 0, 50_000))?;
    let parts =
        [(0, 10_000), (10_000, 40_000)].map(|(at, len)| Piece::of(&region, heap.at(at), len));
    post(&ep, &RawOp::write(&parts, there.offset(100)).context(1))?;
    heap.write(70_000, b"abc")?;
    let inject = [Piece::unregistered(heap.at(70_000), 3)];
    post(&ep, &RawOp::write(&inject, there.offset(60_000)).inject())?;
    let back = [Piece::of(&region, heap.at(200_000), 50_000)];
    post(&ep, &RawOp::read(&back, there.offset(100)).context(2))?;
    for context in [1, 2] {
        let done = lib.cq.wait(WAIT)?.ok()?;
        ensure!(done.context() == context, "{done:?}");
    }
    ensure!(
        heap.read(200_000, 50_000)? == pattern_bytes(9, 0, 50_000),
        "wrong data: read"
    );
    let loose = [Piece::unregistered(heap.at(300_000), 7)];
    let read = post(&ep, &RawOp::read(&loose, there.offset(100)).context(3));
    if lib.domain.caps().contains(Caps::UNREGISTERED_RMA) {
        ensure!(read == Ok(()), "{read:?}");
        lib.cq.wait(WAIT)?.ok()?;
        ensure!(
            heap.read(300_000, 7)? == pattern_bytes(9, 0, 7),
            "wrong data: loose"
        );
    } else {
        ensure!(read == Err(Errno::EOPNOTSUPP), "{read:?}");
    }
    ctx.barrier("written")?;
    let mark = (&raw const MARK) as u64;
    post(&ep, &RawOp::write(&parts, there.offset(100)).context(4))?;
    let wrong = RemoteMem {
        key: key ^ 1,
        ..there
    };
    post(&ep, &RawOp::write(&inject, wrong).inject().context(mark))?;
    ensure!(lib.cq.wait_ready(WAIT)?, "no completion");
    let mut some = [Completion::default(); 8];
    let mut successes = 0;
    let failed = loop {
        let Taken { count, failed } = lib.cq.read_successes(&mut some)?;
        successes += count;
        if failed {
            ensure!(
                lib.cq.read_successes(&mut some)? == Taken { count: 0, failed },
                "the failure is not in front"
            );
            break lib.cq.read_failure()?.context("no failure")?;
        }
        ensure!(lib.cq.wait_ready(WAIT)?, "no failure comes");
    };
    ensure!(successes == 1, "{successes} successes");
    let error = failed.error().context("not failed")?;
    ensure!(
        (error.errno, error.context) == (Errno::EACCES, mark),
        "{error}"
    );
    let text = kfabric::completion_text(&ctx.env.provider, error.prov_errno);
    ensure!(!text.starts_with("unknown"), "{text}");
    ctx.barrier("done")
}

/// A listener has its port from the open on. A request that is looked at stays; as it is read it
/// names where to accept. A refusal brings its data and its code.
fn origin(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    if ctx.first() {
        let pep = lib.passive(ctx.env.at(0))?;
        let port = pep.local_addr()?.port();
        ensure!(port != 0, "no port before listening");
        pep.listen(0)?;
        ensure!(
            pep.local_addr()?.port() == port,
            "listening changed the port"
        );
        ctx.ctl.send(&port)?;
        ensure!(lib.eq.wait_ready(WAIT)?, "no event");
        for _ in 0..2 {
            let Some(Event::ConnRequest(peeked)) = lib.eq.peek()? else {
                anyhow::bail!("no request");
            };
            ensure!(
                (peeked.handle(), &peeked.data[..]) == (0, b""),
                "{peeked:?}"
            );
        }
        let request = lib.eq.wait(WAIT)?.request()?;
        let info = &request.info;
        ensure!(info.provider() == ctx.env.provider, "{info:?}");
        let device = lib.device.fabric(info)?;
        device.domain(info)?;
        let (local, peer) = (info.source(), info.destination());
        ensure!(local == Some(ctx.env.at(port)), "{local:?}");
        ensure!(
            peer.map(|at| at.ip()) == Some(ctx.env.peer_at(0).ip()),
            "{peer:?}"
        );
        request.reject(b"no")?;
        ensure!(lib.eq.peek()?.is_none(), "an event too many");
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    let _ep = lib.ask(ctx.env.peer_at(port))?;
    let Event::ConnFailed(failure) = lib.eq.wait(WAIT)? else {
        anyhow::bail!("not refused");
    };
    ensure!(
        failure.errno == Errno::ECONNREFUSED && failure.data == b"no",
        "{failure:?}"
    );
    let text = kfabric::connection_text(&ctx.env.provider, failure.errno, failure.prov_errno);
    let wanted = ["rejected by the peer's application", "connection refused"];
    ensure!(wanted.contains(&text), "{text}");
    ctx.barrier("done")
}

/// A region whose receive is still posted loses its key at once, and the receive completes.
fn retired(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let ep = lib.connect(ctx)?;
    let heap = heap();
    let region = heap.register(&lib.domain, Access::LOCAL | Access::REMOTE)?;
    if ctx.first() {
        post(
            &ep,
            &RawOp::recv(&[Piece::of(&region, heap.at(0), 8)]).context(1),
        )?;
        let remote = region.remote().context("no key")?;
        region.retire()?;
        ctx.ctl.send(&(remote.addr, remote.key))?;
        let came = lib.cq.wait(WAIT)?.ok()?;
        ensure!((came.context(), came.len()) == (1, 5), "{came:?}");
        ensure!(heap.read(0, 5)? == b"still", "wrong data: received");
        return ctx.barrier("done");
    }
    let (addr, key): (u64, u64) = ctx.ctl.recv()?;
    heap.write(0, b"still")?;
    let five = [Piece::of(&region, heap.at(0), 5)];
    post(&ep, &RawOp::send(&five).context(1))?;
    lib.cq.wait(WAIT)?.ok()?;
    post(&ep, &RawOp::read(&five, RemoteMem { addr, key }).context(2))?;
    let failed = lib.cq.wait(WAIT)?.error().context("the key still reads")?;
    ensure!(failed.errno == Errno::EACCES, "{failed}");
    ctx.barrier("done")
}
