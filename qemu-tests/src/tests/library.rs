// SPDX-License-Identifier: MIT OR Apache-2.0

//! libkfabric, the safe Rust library, over the real kernel.

use crate::buf::pattern_bytes;
use crate::harness::caps::{IMMEDIATE_DATA, REMOTE_ERRORS};
use crate::harness::{Ctx, Env, Test};
use crate::pair::WAIT;
use anyhow::{bail, ensure, Context, Result};
use kfabric::{
    Access, AuthKey, Batch, Bind, CompFlags, CompletionQueue, ConnRequest, Device, Domain,
    Endpoint, EndpointAttr, Errno, Error, EventQueue, Fabric, Format, Hints, Memory, Op,
    PassiveEndpoint, Region, RegionAttr, RemoteMem,
};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("lib.messages_of_each_size_arrive", messages).needs(IMMEDIATE_DATA),
    Test::pair("lib.one_sided_ops_with_keys_succeed", one_sided).needs(REMOTE_ERRORS),
    Test::pair("lib.batch_beyond_queue_depth_is_accepted_in_part", batch),
    Test::pair("lib.rejected_connection_delivers_the_reason", refusals),
    Test::alone("lib.close_refused_returns_the_object", close_gives_back),
    Test::pair("lib.sub_region_in_use_keeps_its_base", sub_regions),
    Test::alone("lib.endpoint_keys_after_close_are_invalid", own_keys),
    Test::alone("lib.error_of_failed_call_names_call_and_object", errors),
    Test::pair("lib.endpoint_shared_by_threads_completes_each_op", threads),
    Test::alone("lib.counter_waited_past_its_value_times_out", counters),
    Test::pair(
        "lib.p02_memory_under_other_auth_key_is_unreachable",
        auth_keys,
    )
    .needs(REMOTE_ERRORS),
];

/// Objects that one node opens through the library.
pub(super) struct Lib {
    pub(super) device: Device,
    fabric: Fabric,
    pub(super) domain: Domain,
    pub(super) eq: EventQueue,
    pub(super) cq: CompletionQueue,
    /// True if endpoints ask for rings.
    pub(super) rings: bool,
}

/// Returns endpoint attributes that suffice for every test here.
fn attr() -> EndpointAttr {
    EndpointAttr {
        iov_limit: 4,
        ..Default::default()
    }
}

impl Lib {
    pub(super) fn open(ctx: &Ctx) -> Result<Self> {
        Self::of(&ctx.env)
    }

    pub(super) fn of(env: &Env) -> Result<Self> {
        let device = Device::open()?;
        let hints = Hints::new()
            .provider(&env.provider)
            .source(&env.addr.to_string(), 0);
        let info = device
            .info(&hints)?
            .into_iter()
            .next()
            .context("nothing is offered")?;
        let fabric = device.fabric(&info)?;
        let domain = fabric.domain(&info)?;
        let eq = fabric.event_queue(0)?;
        let cq = domain.completion_queue(0, Format::Data)?;
        Ok(Self {
            device,
            fabric,
            domain,
            eq,
            cq,
            rings: false,
        })
    }

    /// Opens the library as [`Lib::open`] does, with endpoints that ask for rings.
    pub(super) fn with_rings(ctx: &Ctx, rings: bool) -> Result<Self> {
        Ok(Self {
            rings,
            ..Self::open(ctx)?
        })
    }

    fn attr(&self) -> EndpointAttr {
        EndpointAttr {
            rings: self.rings,
            ..attr()
        }
    }

    pub(super) fn ready(&self, ep: Endpoint) -> Result<Endpoint> {
        ep.bind_event_queue(&self.eq)?;
        ep.bind_completion_queue(&self.cq, Bind::TRANSMIT | Bind::RECV)?;
        ep.enable()?;
        Ok(ep)
    }

    /// Returns an endpoint connected to the other node's.
    pub(super) fn connect(&self, ctx: &mut Ctx) -> Result<Endpoint> {
        self.connect_when(ctx, |_| Ok(()))
    }

    /// Connects as [`Lib::connect`] does; `before` runs when the endpoint is enabled.
    pub(super) fn connect_when(
        &self,
        ctx: &mut Ctx,
        before: impl FnOnce(&Endpoint) -> Result<()>,
    ) -> Result<Endpoint> {
        if ctx.first() {
            let pep = self.listen(ctx.env.at(0))?;
            ctx.ctl.send(&pep.local_addr()?.port())?;
            let request = self.eq.wait(WAIT)?.request()?;
            ensure!(request.data == b"from node 2", "{:?}", request.data);
            let ep = self.endpoint_for(request)?;
            before(&ep)?;
            ep.accept(b"from node 1")?;
            self.eq.wait(WAIT)?.connected()?;
            ctx.barrier("connected")?;
            Ok(ep)
        } else {
            let port: u16 = ctx.ctl.recv()?;
            let ep = self.ready(self.domain.endpoint(&self.attr())?)?;
            before(&ep)?;
            ep.connect(ctx.env.peer_at(port), b"from node 2")?;
            let data = self.eq.wait(WAIT)?.connected()?;
            ensure!(data == b"from node 1", "{data:?}");
            ctx.barrier("connected")?;
            Ok(ep)
        }
    }

    /// Listens at an address of this node's.
    pub(super) fn listen(&self, at: SocketAddr) -> Result<PassiveEndpoint> {
        let pep = self.passive(at)?;
        pep.listen(0)?;
        Ok(pep)
    }

    /// Opens a passive endpoint that does not listen yet.
    pub(super) fn passive(&self, at: SocketAddr) -> Result<PassiveEndpoint> {
        Ok(self.fabric.passive_endpoint(&self.eq, at, 0)?)
    }

    /// Returns an enabled endpoint for a connection request.
    pub(super) fn endpoint_for(&self, request: ConnRequest) -> Result<Endpoint> {
        let ep = self.domain.endpoint_for(request, &self.attr());
        self.ready(ep.map_err(|r| r.error)?)
    }

    /// Accepts the next connection request, and sends the other node the address.
    pub(super) fn accept_one(&self, ctx: &mut Ctx) -> Result<Endpoint> {
        let pep = self.listen(ctx.env.at(0))?;
        ctx.ctl.send(&pep.local_addr()?.port())?;
        let ep = self.endpoint_for(self.eq.wait(WAIT)?.request()?)?;
        ep.accept(&[])?;
        self.eq.wait(WAIT)?.connected()?;
        Ok(ep)
    }

    /// Returns an enabled endpoint that requests a connection to `peer`.
    pub(super) fn ask(&self, peer: SocketAddr) -> Result<Endpoint> {
        let ep = self.ready(self.domain.endpoint(&self.attr())?)?;
        ep.connect(peer, &[])?;
        Ok(ep)
    }

    /// Connects to a listening peer.
    pub(super) fn connect_to(&self, peer: SocketAddr) -> Result<Endpoint> {
        let ep = self.ask(peer)?;
        self.eq.wait(WAIT)?.connected()?;
        Ok(ep)
    }

    pub(super) fn region(&self, len: usize) -> Result<Region> {
        let attr = RegionAttr::new(Access::LOCAL | Access::REMOTE).dynamic_keys();
        Ok(self.domain.register_with(Memory::anonymous(len)?, &attr)?)
    }
}

fn messages(ctx: &mut Ctx) -> Result<()> {
    messages_over(ctx, false)
}

/// Runs the message test, with rings or without.
pub(super) fn messages_over(ctx: &mut Ctx, rings: bool) -> Result<()> {
    let lib = Lib::with_rings(ctx, rings)?;
    let ep = lib.connect(ctx)?;
    let region = lib.region(100_000)?;
    if ctx.first() {
        ep.recv(region.segment(10..50_010), 1)?;
        ep.recvv(
            &[
                region.segment(60_000..60_005),
                region.segment(70_000..80_000),
            ],
            2,
        )?;
        ep.recv(region.segment(90_000..90_100), 3)?;
        ctx.barrier("receives posted")?;
        let first = lib.cq.wait(WAIT)?.ok()?;
        ensure!(
            first.context() == 1 && first.len() == 50_000 && first.offset() == 10,
            "{first:?}"
        );
        ensure!(
            region.to_vec(10, 50_000) == pattern_bytes(1, 0, 50_000),
            "the first message"
        );
        let second = lib.cq.wait(WAIT)?.ok()?;
        ensure!(
            second.context() == 2 && second.data() == Some(0xbeef),
            "{second:?}"
        );
        let mut got = region.to_vec(60_000, 5);
        got.extend(region.to_vec(70_000, 2995));
        ensure!(got == pattern_bytes(2, 0, 3000), "the second message");
        let third = lib.cq.wait(WAIT)?.ok()?;
        ensure!(third.context() == 3 && third.len() == 7, "{third:?}");
        ensure!(region.to_vec(90_000, 7) == b"tiny it", "the third message");
        ensure!(lib.cq.read_one()?.is_none(), "an entry too many");
    } else {
        region.write_at(0, &pattern_bytes(1, 0, 50_000));
        region.write_at(60_000, &pattern_bytes(2, 0, 3000));
        ctx.barrier("receives posted")?;
        ep.sendv(&[region.segment(0..1), region.segment(1..50_000)], 11)?;
        ep.senddata(region.segment(60_000..63_000), 0xbeef, 12)?;
        ep.inject(b"tiny it")?;
        for context in [11, 12] {
            let sent = lib.cq.wait(WAIT)?.ok()?;
            ensure!(
                sent.context() == context && sent.flags().contains(CompFlags::SEND),
                "{sent:?}"
            );
        }
    }
    ctx.barrier("done")
}

fn one_sided(ctx: &mut Ctx) -> Result<()> {
    one_sided_over(ctx, false)
}

/// Runs the one-sided test, with rings or without.
pub(super) fn one_sided_over(ctx: &mut Ctx, rings: bool) -> Result<()> {
    let lib = Lib::with_rings(ctx, rings)?;
    let ep = lib.connect(ctx)?;
    let region = lib.region(50_000)?;
    if ctx.first() {
        region.write_at(0, &pattern_bytes(3, 0, 50_000));
        let keys = region.alloc_keys(2)?;
        let all = keys[0].assign(0, 50_000, Access::REMOTE)?;
        let part = keys[1].assign(1000, 10, Access::REMOTE_READ)?;
        ctx.ctl
            .send(&[(all.addr, all.key), (part.addr, part.key)])?;
        ctx.barrier("read and written")?;
        ensure!(
            region.to_vec(20_000, 5000) == pattern_bytes(4, 0, 5000),
            "the bytes written"
        );
        ensure!(
            region.to_vec(1000, 10) == pattern_bytes(3, 1000, 10),
            "the bytes around them"
        );
        keys[0].revoke()?;
        ensure!(keys[0].revoke().is_err(), "revoking a key twice");
        ctx.barrier("revoked")?;
        return ctx.barrier("refused");
    }
    let [all, part]: [(u64, u64); 2] = ctx.ctl.recv()?;
    let (all, part) = (
        RemoteMem {
            addr: all.0,
            key: all.1,
        },
        RemoteMem {
            addr: part.0,
            key: part.1,
        },
    );
    ep.read(region.segment(0..50_000), all, 1)?;
    lib.cq.wait(WAIT)?.ok()?;
    ensure!(
        region.to_vec(0, 50_000) == pattern_bytes(3, 0, 50_000),
        "the bytes read"
    );
    ep.read(region.segment(7..17), part, 2)?;
    lib.cq.wait(WAIT)?.ok()?;
    ensure!(
        region.to_vec(7, 10) == pattern_bytes(3, 1000, 10),
        "the bytes read of a part"
    );
    region.write_at(0, &pattern_bytes(4, 0, 5000));
    ep.write(region.segment(0..5000), all.offset(20_000), 3)?;
    let written = lib.cq.wait(WAIT)?.ok()?;
    ensure!(
        written.context() == 3 && written.flags().contains(CompFlags::WRITE),
        "{written:?}"
    );
    ctx.barrier("read and written")?;
    ctx.barrier("revoked")?;
    ep.read(region.segment(0..1), all, 4)?;
    let failed = lib
        .cq
        .wait(WAIT)?
        .error()
        .context("a revoked key still reads")?;
    ensure!(failed.errno == Errno::EACCES, "{failed}");
    ctx.barrier("refused")
}

fn batch(ctx: &mut Ctx) -> Result<()> {
    batch_over(ctx, false)
}

/// Runs the batch test, with rings or without.
pub(super) fn batch_over(ctx: &mut Ctx, rings: bool) -> Result<()> {
    let lib = Lib::with_rings(ctx, rings)?;
    let ep = lib.connect(ctx)?;
    let region = lib.region(4096)?;
    let mut batch = Batch::new();
    for i in 0..u64::from(ep.rx_size()) + 10 {
        batch.push(Op::recv(&[region.segment(0..16)]).context(i));
    }
    let submitted = ep.submit(&batch)?;
    ensure!(submitted.accepted == ep.rx_size() as usize, "{submitted:?}");
    ensure!(submitted.refused == Some(Errno::EAGAIN), "{submitted:?}");
    batch.remove_first(submitted.accepted);
    ensure!(batch.len() == 10, "{} are left", batch.len());
    let again = ep.submit(&batch);
    ensure!(again.as_ref().is_err_and(Error::is_full), "{again:?}");
    ctx.barrier("full")?;
    ep.send(region.segment(100..116), 1 << 32)?;
    let mut contexts = Vec::new();
    for _ in 0..2 {
        contexts.push(lib.cq.wait(WAIT)?.ok()?.context());
    }
    contexts.sort_unstable();
    ensure!(contexts == [0, 1 << 32], "{contexts:?}");
    ctx.barrier("done")
}

fn refusals(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    if ctx.first() {
        let pep = lib.fabric.passive_endpoint(&lib.eq, ctx.env.at(0), 0)?;
        pep.listen(0)?;
        ctx.ctl.send(&pep.local_addr()?.port())?;
        lib.eq.wait(WAIT)?.request()?.reject(b"not today")?;
        // A dropped request is rejected too.
        drop(lib.eq.wait(WAIT)?.request()?);
        return ctx.barrier("refused");
    }
    let port: u16 = ctx.ctl.recv()?;
    for said in [&b"not today"[..], b""] {
        let ep = lib.ready(lib.domain.endpoint(&attr())?)?;
        ep.connect(ctx.env.peer_at(port), &[])?;
        let Err(Error::Connect(failure)) = lib.eq.wait(WAIT)?.connected() else {
            bail!("it connects");
        };
        ensure!(
            failure.errno == Errno::ECONNREFUSED && failure.data == said,
            "{failure:?}"
        );
    }
    ctx.barrier("refused")
}

fn close_gives_back(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let region = lib.region(4096)?;
    let keys = region.alloc_keys(1)?;
    keys[0].assign(0, 1, Access::REMOTE_READ)?;
    let Err(returned) = region.close() else {
        bail!("a region with a key is closed");
    };
    ensure!(
        returned.error.errno() == Some(Errno::EBUSY),
        "{}",
        returned.error
    );
    let region = returned.object;
    drop(keys);
    region
        .close()
        .map_err(|r| r.error)
        .context("without its key")?;
    let Err(returned) = lib.domain.close() else {
        bail!("a domain with a queue is closed");
    };
    ensure!(
        returned.error.errno() == Some(Errno::EBUSY),
        "{}",
        returned.error
    );
    lib.cq.close().map_err(|r| r.error)?;
    returned.object.close().map_err(|r| r.error)?;
    lib.eq.close().map_err(|r| r.error)?;
    lib.fabric.close().map_err(|r| r.error)?;
    let me = std::process::id();
    let left = lib
        .device
        .objects()?
        .into_iter()
        .filter(|o| o.pid == me)
        .count();
    ensure!(left == 0, "{left} objects are left");
    Ok(())
}

/// Sub-regions at two levels reach their part, and each keeps its base in use.
fn sub_regions(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let ep = lib.connect(ctx)?;
    let both = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let attr = RegionAttr::new(Access::LOCAL | both).sub_regions(2);
    let base = lib.domain.register_with(Memory::anonymous(8192)?, &attr)?;
    if ctx.first() {
        let outer = base.sub_region(1000..3000, both)?;
        let inner = outer.sub_region(&base, 500..600, Access::REMOTE_WRITE)?;
        ctx.ctl.send(&inner.remote().to_raw())?;
        ctx.barrier("written")?;
        ensure!(base.to_vec(1500, 100) == [7; 100], "nothing was written");
        ensure!(base.to_vec(1600, 1) == [0], "too much was written");
        let busy = |error: &Error| error.errno() == Some(Errno::EBUSY);
        let Err(outer) = outer.close() else {
            bail!("a sub-region with one of its own is closed");
        };
        let Err(base) = base.close() else {
            bail!("a base with sub-regions is closed");
        };
        ensure!(busy(&outer.error) && busy(&base.error), "{base:?}");
        inner.close().map_err(|r| r.error)?;
        outer.object.close().map_err(|r| r.error)?;
        base.object.close().map_err(|r| r.error)?;
    } else {
        let raw: [u8; RemoteMem::RAW_LEN] = ctx.ctl.recv()?;
        base.fill(0, 100, 7);
        ep.write(base.segment(0..100), RemoteMem::from_raw(&raw)?, 1)?;
        lib.cq.wait(WAIT)?.ok()?;
        ctx.barrier("written")?;
    }
    ctx.barrier("done")
}

/// A key that is bound to an endpoint is invalid once the endpoint is closed.
fn own_keys(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let own = EndpointAttr {
        own_keys: true,
        ..attr()
    };
    let (ep, plain) = (lib.domain.endpoint(&own)?, lib.domain.endpoint(&attr())?);
    let region = lib.region(4096)?;
    let refused = region.alloc_keys_for(&plain, 1).err();
    let refused = refused.and_then(|e| e.errno());
    ensure!(refused == Some(Errno::EINVAL), "{refused:?}");
    let keys = region.alloc_keys_for(&ep, 2)?;
    keys[0].assign(0, 4096, Access::REMOTE_READ)?;
    ensure!(ep.revoke_keys()? == 1, "another number of keys had one");
    keys[0].assign(0, 4096, Access::REMOTE_READ)?;
    let attr = RegionAttr::new(Access::REMOTE_READ).endpoint(&ep);
    let bound = lib.domain.register_with(Memory::anonymous(4096)?, &attr)?;
    ensure!(bound.remote().is_some(), "a bound region has no key");
    let parts = attr.sub_regions(2);
    let parts = lib.domain.register_with(Memory::anonymous(4096)?, &parts)?;
    let part = parts.sub_region(0..1, Access::REMOTE_READ)?;
    drop(ep);
    for _ in 0..3 {
        let late = parts.sub_region(0..1, Access::REMOTE_READ);
        let late = late.err().and_then(|e| e.errno());
        ensure!(
            [Some(Errno::ENOENT), Some(Errno::EINVAL)].contains(&late),
            "{late:?}"
        );
    }
    part.close().map_err(|r| r.error)?;
    parts.close().map_err(|r| r.error)?;
    for key in &keys {
        let late = key.assign(0, 1, Access::REMOTE_READ).err();
        let late = late.and_then(|e| e.errno());
        ensure!(late == Some(Errno::ENOENT), "{late:?}");
    }
    drop(keys);
    bound.close().map_err(|r| r.error)?;
    region.close().map_err(|r| r.error)?;
    Ok(())
}

fn errors(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let Err(e) = lib.fabric.domain_by_name("no-such-domain") else {
        bail!("an unknown domain is opened");
    };
    let text = e.to_string();
    ensure!(e.errno() == Some(Errno::ENOENT), "{text}");
    ensure!(
        text.contains("ENOENT") && text.to_lowercase().contains("domain"),
        "{text}"
    );
    let region = lib.region(4096)?;
    let Err(e) = region.alloc_keys(1)?[0].assign(0, 5000, Access::REMOTE_READ) else {
        bail!("a key past the end is assigned");
    };
    ensure!(e.errno() == Some(Errno::EINVAL), "{e}");
    let late = lib.cq.wait(Duration::from_millis(20));
    ensure!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    let late = lib
        .eq
        .wait(Duration::from_millis(20))
        .err()
        .context("an event from nowhere")?;
    ensure!(late.errno() == Some(Errno::ETIMEDOUT), "{late}");
    ensure!(
        !crate::sys::poll_in(lib.cq.as_fd(), Duration::ZERO)?,
        "an empty queue is readable"
    );
    Ok(())
}

fn threads(ctx: &mut Ctx) -> Result<()> {
    threads_over(ctx, false)
}

/// Runs the thread test, with rings or without.
pub(super) fn threads_over(ctx: &mut Ctx, rings: bool) -> Result<()> {
    const EACH: u64 = 200;
    let lib = Lib::with_rings(ctx, rings)?;
    let ep = lib.connect(ctx)?;
    let region = lib.region(4096)?;
    let remote = {
        let keys = region.alloc_keys(1)?;
        let mine = keys[0].assign(0, 4096, Access::REMOTE)?;
        let (addr, key): (u64, u64) = ctx.ctl.exchange(&(mine.addr, mine.key))?;
        let work = hammer(&lib, &ep, &region, RemoteMem { addr, key }, EACH);
        ctx.barrier("written")?;
        work
    };
    let seen = remote?;
    ensure!(seen == 3 * EACH, "{seen} completions");
    ctx.barrier("done")
}

/// Three threads post; the calling thread takes the completions.
fn hammer(lib: &Lib, ep: &Endpoint, region: &Region, remote: RemoteMem, each: u64) -> Result<u64> {
    std::thread::scope(|s| {
        for t in 0..3usize {
            s.spawn(move || {
                let mut done = 0;
                while done < each {
                    match ep.write(region.segment(t * 64..t * 64 + 64), remote, done) {
                        Ok(()) => done += 1,
                        Err(e) if e.is_full() => std::thread::yield_now(),
                        Err(_) => return,
                    }
                }
            });
        }
        let mut seen = 0;
        while seen < 3 * each {
            lib.cq.wait(WAIT)?.ok()?;
            seen += 1;
        }
        Ok(seen)
    })
}

fn counters(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let counter = lib.domain.counter()?;
    counter.add(5)?;
    counter.wait(5, WAIT)?;
    ensure!(counter.read()?.value == 5, "{:?}", counter.read()?);
    let late = counter.wait(6, Duration::from_millis(20));
    ensure!(
        late.as_ref()
            .is_err_and(|e| e.errno() == Some(Errno::ETIMEDOUT)),
        "{late:?}"
    );
    Ok(())
}

/// Two jobs use one listener: a peer with one of its auth keys connects, and reaches memory
/// exported under that key and nothing else.
fn auth_keys(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::open(ctx)?;
    let [a, b, c] = [b"job a", b"job b", b"job c"].map(|bytes| AuthKey::new(bytes));
    let (a, b, c) = (a?, b?, c?);
    ensure!(AuthKey::new(b"").is_err() && AuthKey::new(&[1; 65]).is_err());
    ensure!(!format!("{a:?}").contains("job"), "{a:?} says it");
    let under = |key: &AuthKey| EndpointAttr {
        auth_key: Some(key.clone()),
        ..attr()
    };
    let region = lib.region(8192)?;
    if ctx.first() {
        let at = ctx.env.at(0);
        let keys = [b.clone(), a.clone()];
        let pep = lib.fabric.passive_endpoint_under(&lib.eq, at, 0, &keys)?;
        pep.listen(0)?;
        ctx.ctl.send(&pep.local_addr()?.port())?;
        let request = lib.eq.wait(WAIT)?.request()?;
        ensure!(request.auth_key == Some(1), "{:?}", request.auth_key);
        ensure!(request.data == b"of a", "{:?}", request.data);
        // An endpoint of the other job cannot accept it.
        let refused = lib.domain.endpoint_for(request, &under(&b));
        let refused = refused.err().context("taken by another job's endpoint")?;
        ensure!(
            refused.error.errno() == Some(Errno::EKEYREJECTED),
            "{}",
            refused.error
        );
        let taken = lib.domain.endpoint_for(refused.object, &under(&a));
        let ep = lib.ready(taken.map_err(|r| r.error)?)?;
        ep.accept(b"welcome")?;
        lib.eq.wait(WAIT)?.connected()?;
        ctx.barrier("of a")?;
        let request = lib.eq.wait(WAIT)?.request()?;
        ensure!(request.auth_key == Some(0), "{:?}", request.auth_key);
        let taken = lib.domain.endpoint_for(request, &under(&b));
        let of_b = lib.ready(taken.map_err(|r| r.error)?)?;
        of_b.accept(b"and you")?;
        lib.eq.wait(WAIT)?.connected()?;
        region.write_at(0, &pattern_bytes(3, 0, 8192));
        let slot = &region.alloc_keys_under(&a, 1)?[0];
        let for_a = slot.assign(0, 4096, Access::REMOTE_READ)?;
        let for_b = region.sub_region_under(&b, 4096..8192, Access::REMOTE)?;
        let found = for_b.remote();
        ctx.ctl
            .send(&[(for_a.addr, for_a.key), (found.addr, found.key)])?;
        ctx.barrier("read")?;
        ensure!(
            region.to_vec(4096, 100) == pattern_bytes(3, 0, 100)
                && region.to_vec(4196, 3996) == pattern_bytes(3, 4196, 3996),
            "the bytes that b's peer wrote"
        );
        let ended = lib.device.revoke_keys_under(&a)?;
        ensure!(ended == 1, "{ended} ended");
        ensure!(slot.revoke().is_err(), "its key lives on");
        for_b.close().map_err(|r| r.error)?;
        ensure!(
            lib.device.revoke_keys_under(&b)? == 0,
            "a closed one lives on"
        );
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    for (key, what) in [(Some(c), "another"), (None, "no")] {
        let attr = EndpointAttr {
            auth_key: key,
            ..attr()
        };
        let ep = lib.ready(lib.domain.endpoint(&attr)?)?;
        ep.connect(ctx.env.peer_at(port), b"let me in")?;
        let failed = match lib.eq.wait(WAIT)? {
            kfabric::Event::ConnFailed(failed) => failed,
            other => bail!("with {what} auth key: {other:?}"),
        };
        ensure!(
            failed.errno == Errno::EKEYREJECTED,
            "with {what} auth key: {failed:?}"
        );
    }
    let ep = lib.ready(lib.domain.endpoint(&under(&a))?)?;
    ensure!(
        ep.cm_data_size() >= 4,
        "{} bytes of data",
        ep.cm_data_size()
    );
    ep.connect(ctx.env.peer_at(port), b"of a")?;
    let data = lib.eq.wait(WAIT)?.connected()?;
    ensure!(data == b"welcome", "{data:?}");
    ctx.barrier("of a")?;
    let of_b = lib.ready(lib.domain.endpoint(&under(&b))?)?;
    of_b.connect(ctx.env.peer_at(port), b"of b")?;
    let data = lib.eq.wait(WAIT)?.connected()?;
    ensure!(data == b"and you", "{data:?}");
    let [ours, theirs]: [(u64, u64); 2] = ctx.ctl.recv()?;
    let remote = |(addr, key)| RemoteMem { addr, key };
    ep.read(region.segment(0..4096), remote(ours), 1)?;
    lib.cq.wait(WAIT)?.ok()?;
    ensure!(
        region.to_vec(0, 4096) == pattern_bytes(3, 0, 4096),
        "the bytes read"
    );
    // The sub-region under b is for b's peers.
    of_b.read(region.segment(4096..8192), remote(theirs), 2)?;
    lib.cq.wait(WAIT)?.ok()?;
    ensure!(
        region.to_vec(4096, 4096) == pattern_bytes(3, 4096, 4096),
        "the bytes that b's peer read"
    );
    of_b.write(region.segment(0..100), remote(theirs), 3)?;
    lib.cq.wait(WAIT)?.ok()?;
    ep.read(region.segment(4096..8192), remote(theirs), 2)?;
    let failed = lib.cq.wait(WAIT)?.error();
    let failed = failed.context("another job's memory was read")?;
    ensure!(failed.errno == Errno::EACCES, "{failed}");
    ctx.barrier("read")?;
    ctx.barrier("done")
}
