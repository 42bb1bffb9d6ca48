// SPDX-License-Identifier: MIT OR Apache-2.0

//! Objects that end just before another call or event uses them.

use super::{taken, times};
use crate::buf::Buf;
use crate::harness::guest::{run, until};
use crate::harness::weather::{self, Weather};
use crate::harness::Ctx;
use crate::op::{self, iov};
use crate::pair::{own_info, Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{field_text, CallError, Cq, Dev};
use crate::sys::patience;
use crate::tests::death::fresh_transfer;
use crate::tests::refused;
use crate::tests::stress::Rng;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Counts how often each of a number of operations has completed.
struct Ends(Vec<u8>);

impl Ends {
    fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the next operation's context.
    fn next(&self) -> u64 {
        self.0.len() as u64
    }

    /// Records that the next operation was accepted.
    fn posted(&mut self) {
        self.0.push(0);
    }

    /// Takes all completions from the queue.
    fn take(&mut self, cq: &Cq) -> Result<()> {
        while let Some(e) = cq.read() {
            let count = self.0.get_mut(e.context as usize);
            let count = count.with_context(|| format!("{e:?} is of no operation"))?;
            *count += 1;
            ensure!(*count == 1, "{e:?} came twice");
        }
        Ok(())
    }

    /// Checks that every operation has completed once.
    fn all(&self) -> Result<()> {
        let open = self.0.iter().filter(|n| **n == 0).count();
        ensure!(
            open == 0,
            "{open} of {} operations never ended",
            self.0.len()
        );
        Ok(())
    }
}

/// Connects `count` endpoints to the other node's, all on one completion queue.
fn connect_many(ctx: &mut Ctx, side: &Side, cq: &Cq, count: usize) -> Result<Vec<u64>> {
    let opts = Opts {
        tx_size: 8,
        rx_size: 8,
        iov_limit: 1,
        ..Default::default()
    };
    let mut eps = Vec::new();
    if ctx.first() {
        let (pep, at) = side.listen(ctx.env.at(0), 64)?;
        ctx.ctl.send(&at.port())?;
        let mut up = 0;
        while up < count {
            let event = side.dev.eq_wait(&side.eq, WAIT)?;
            match event.raw.event {
                KFI_CONNREQ => {
                    let ep = side.endpoint(&opts, cq, event.raw.connreq)?.handle;
                    side.dev.accept(ep, &[])?;
                    eps.push(ep);
                }
                KFI_CONNECTED => up += 1,
                _ => bail!("{:?}", event.raw),
            }
        }
        side.dev.close(pep)?;
    } else {
        let port: u16 = ctx.ctl.recv()?;
        for _ in 0..count {
            let ep = side.endpoint(&opts, cq, 0)?.handle;
            side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
            side.event(KFI_CONNECTED)?;
            eps.push(ep);
        }
    }
    ctx.barrier("connected")?;
    Ok(eps)
}

/// The peer receives nothing any more, and its retransmission timer runs, while endpoints are
/// closed one after the other: some just before the timer fires, some just after, some as it fires.
pub(super) fn closed_while_retransmitting(ctx: &mut Ctx) -> Result<()> {
    const AT_ONCE: usize = 64;
    let side = Side::open(ctx)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let (_, mine) = side.export(region, 0, 4096, REMOTE)?;
    let theirs: Remote = ctx.ctl.exchange(&mine)?;
    weather::prepare(&ctx.env)?;
    for round in 0..times(16) {
        let cq = side.cq(1024, 0)?;
        let eps = connect_many(ctx, &side, &cq, AT_ONCE)?;
        if !ctx.first() {
            // Packets sent from here on are lost.
            let lost = Weather::new(&ctx.env, "loss 100%")?;
            let closed = close_slowly(&side, &cq, &eps, region, theirs);
            drop(lost);
            closed.with_context(|| format!("round {round}"))?;
        }
        ctx.barrier("closed by one")?;
        if ctx.first() {
            eps.iter().try_for_each(|ep| side.dev.close(*ep))?;
        }
        side.dev.close(cq.handle)?;
        while side.dev.eq_read(side.eq.handle, 0).is_ok() {}
        ctx.barrier("closed by both")?;
    }
    fresh_transfer(ctx)
}

/// Posts to each endpoint operations that get no answer, and closes the endpoints over the time of
/// the first retransmissions.
fn close_slowly(side: &Side, cq: &Cq, eps: &[u64], region: u64, remote: Remote) -> Result<()> {
    let mut ends = Ends::new();
    for ep in eps {
        let at = ends.next();
        let part = [iov(region, 0, 64)];
        let ops = [
            op::write(at, &part, remote.addr, remote.key),
            op::read(at + 1, &part, remote.addr, remote.key),
            op::send(at + 2, &part),
        ];
        let (done, err) = side.dev.submit(*ep, &ops)?;
        ensure!((done, err) == (3, 0), "{done} were taken, errno {err}");
        (0..3).for_each(|_| ends.posted());
    }
    // The timer is set to 537 ms.
    std::thread::sleep(Duration::from_millis(450));
    for ep in eps {
        std::thread::sleep(Duration::from_millis(5));
        side.dev.close(*ep)?;
    }
    ends.take(cq)?;
    ends.all()
}

/// Posts receives, completes, cancels and flushes them by a close, all at once.
pub(super) fn completion_against_teardown(ctx: &mut Ctx) -> Result<()> {
    let seed = 0xc1a5_0000 + u64::from(ctx.env.node);
    eprintln!("seed {seed:#x}");
    let mut rng = Rng(seed);
    for round in 0..times(30) {
        let pair = Pair::new(ctx)?;
        let buf = Buf::new(4096)?;
        let region = pair.reg(&buf)?;
        let receives = ctx.first();
        let pause = Duration::from_micros(rng.below(30_000));
        let (pair, ending) = (&pair, AtomicBool::new(false));
        let mut ends = std::thread::scope(|s| -> Result<Ends> {
            let poster = s.spawn(|| -> Result<Ends> {
                let mut ends = Ends::new();
                let part = [iov(region, 0, 64)];
                while !ending.load(Ordering::Relaxed) {
                    let next = match receives {
                        true => op::recv(ends.next(), &part),
                        false => op::send(ends.next(), &part),
                    };
                    let gone = [libc::EAGAIN, libc::ENOTCONN, libc::ENOENT];
                    if taken(pair.post(next), &gone, "posting")? {
                        ends.posted();
                    }
                    ends.take(&pair.cq)?;
                }
                Ok(ends)
            });
            let canceller = s.spawn(|| -> Result<()> {
                let mut context = 0;
                while !ending.load(Ordering::Relaxed) {
                    let gone = [libc::EOPNOTSUPP, libc::ENOENT, libc::ENOTCONN];
                    taken(pair.dev().cancel(pair.ep, context), &gone, "cancelling")?;
                    context = (context + 1) % 512;
                }
                Ok(())
            });
            std::thread::sleep(pause);
            let closed = pair.dev().close(pair.ep);
            ending.store(true, Ordering::Relaxed);
            let cancelled = canceller.join();
            let posted = poster.join();
            closed.context("closing")?;
            cancelled.map_err(|_| anyhow::anyhow!("panicked"))??;
            posted.map_err(|_| anyhow::anyhow!("panicked"))?
        })
        .with_context(|| format!("round {round}"))?;
        ends.take(&pair.cq)?;
        ends.all().with_context(|| format!("round {round}"))?;
        ctx.barrier("round done")?;
    }
    Ok(())
}

/// Causes that end a connection with many outstanding operations.
#[derive(Clone, Copy, Debug)]
enum Cause {
    WrongKey,
    TooLong,
    Shutdown,
    PeerShutdown,
    Close,
    PeerCloses,
}

/// Whatever puts a queue pair into its error state, each operation of both sides completes once.
pub(super) fn operations_end_once(ctx: &mut Ctx) -> Result<()> {
    use Cause::*;
    for round in 0..times(4) {
        for cause in [WrongKey, TooLong, Shutdown, PeerShutdown, Close, PeerCloses] {
            one_end(ctx, cause).with_context(|| format!("round {round}, {cause:?}"))?;
        }
    }
    Ok(())
}

fn one_end(ctx: &mut Ctx, cause: Cause) -> Result<()> {
    const COUNT: u64 = 24;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(64 << 10)?;
    let (region, remote) = crate::tests::rma::exported(ctx, &pair, &buf)?;
    let mut ends = Ends::new();
    let mut post = |op: OpEntry| -> Result<()> {
        let next = OpEntry {
            context: ends.next(),
            ..op
        };
        if taken(pair.post(next), &[libc::ENOTCONN], "posting")? {
            ends.posted();
        }
        Ok(())
    };
    let part = [iov(region, 0, 1000)];
    // Receives of 1000 bytes each; the message that is too long meets the last of them.
    (0..COUNT).try_for_each(|_| post(op::recv(0, &part)))?;
    ctx.barrier("receives posted")?;
    if !ctx.first() {
        let large = [iov(region, 0, 64 << 10)];
        for i in 0..COUNT {
            if i == COUNT / 2 {
                match cause {
                    Cause::WrongKey => post(op::write(0, &part, remote.addr, remote.key ^ 0x55))?,
                    Cause::TooLong => post(op::send(0, &large))?,
                    Cause::Shutdown => pair.dev().shutdown(pair.ep)?,
                    Cause::Close => pair.dev().close(pair.ep)?,
                    _ => {}
                }
            }
            if matches!(cause, Cause::Close) && i >= COUNT / 2 {
                break;
            }
            post(op::write(0, &large, remote.addr, remote.key))?;
            post(op::read(0, &large, remote.addr, remote.key))?;
            post(op::send(0, &part))?;
        }
    } else {
        match cause {
            Cause::PeerShutdown => {
                std::thread::sleep(Duration::from_millis(10));
                // The connection may have ended already.
                let over = [libc::ENOTCONN];
                taken(pair.dev().shutdown(pair.ep), &over, "ending it")?;
            }
            Cause::PeerCloses => {
                std::thread::sleep(Duration::from_millis(10));
                pair.dev().close(pair.ep)?;
            }
            _ => {}
        }
    }
    // The operations complete at both sides without a close.
    until("all operations end", WAIT, || {
        ends.take(&pair.cq)?;
        Ok(ends.all().ok())
    })?;
    ctx.barrier("ended")?;
    let closed = pair.dev().close(pair.ep);
    if !matches!(cause, Cause::Close | Cause::PeerCloses) {
        closed.context("closing")?;
    }
    ends.take(&pair.cq)?;
    ctx.barrier("closed")
}

/// Returns the errno of a refused call.
fn errno_of(error: &anyhow::Error) -> Option<i32> {
    error.downcast_ref::<CallError>().map(|e| e.errno.0)
}

/// Renames the device, and then removes and recreates it, while node 1 lists devices, opens objects
/// on it and connects.
pub(super) fn renamed_and_removed(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    if !ctx.first() {
        let (_pep, at) = side.listen(ctx.env.at(0), 8)?;
        ctx.ctl.send(&at.port())?;
        let over = AtomicBool::new(false);
        std::thread::scope(|s| -> Result<()> {
            // Refuse every other request; the rest wait until the listener is closed.
            let refuser = s.spawn(|| -> Result<()> {
                while !over.load(Ordering::Relaxed) {
                    let event = side.dev.eq_wait(&side.eq, Duration::from_millis(100));
                    let event = match event {
                        Err(e) if e.errno.0 == libc::ETIMEDOUT => continue,
                        other => other?,
                    };
                    let gone = [
                        libc::ENOENT,
                        libc::ENOTCONN,
                        libc::ECONNABORTED,
                        libc::EINVAL,
                    ];
                    let answer = side.dev.reject(event.raw.connreq, b"no");
                    taken(answer, &gone, "refusing")?;
                }
                Ok(())
            });
            let done: Result<bool> = ctx.ctl.recv();
            over.store(true, Ordering::Relaxed);
            refuser.join().map_err(|_| anyhow::anyhow!("panicked"))??;
            done.map(drop)
        })?;
        drop(side);
        ctx.barrier("device is back")?;
        return fresh_transfer(ctx);
    }
    drop(side);
    let port: u16 = ctx.ctl.recv()?;
    let (env, over) = (ctx.env.clone(), AtomicBool::new(false));
    let rounds = AtomicU64::new(0);
    let outcome = std::thread::scope(|s| -> Result<()> {
        let churners: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| -> Result<()> {
                    while !over.load(Ordering::Relaxed) {
                        match churn(&env, port) {
                            Ok(()) => drop(rounds.fetch_add(1, Ordering::Relaxed)),
                            Err(e) => expected(&e)?,
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let work = rename_and_remove(&env, || rounds.load(Ordering::Relaxed));
        over.store(true, Ordering::Relaxed);
        for churner in churners {
            churner.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        }
        work
    });
    ctx.ctl.send(&true)?;
    outcome?;
    ctx.barrier("device is back")?;
    fresh_transfer(ctx)
}

/// Checks that an error is one that a renamed or removed device explains.
fn expected(error: &anyhow::Error) -> Result<()> {
    const REASONS: &[i32] = &[
        libc::ENODEV,
        libc::ENOENT,
        libc::ENODATA,
        libc::ENOTCONN,
        libc::EADDRNOTAVAIL,
        libc::EHOSTUNREACH,
    ];
    // An error without errno is `own_info`'s own: no device for this address.
    if let Some(errno) = errno_of(error) {
        ensure!(REASONS.contains(&errno), "{error:#}");
    }
    Ok(())
}

fn churn(env: &crate::harness::Env, port: u16) -> Result<()> {
    let dev = Dev::open()?;
    for _ in 0..20 {
        let name = field_text(&own_info(&dev, env)?.domain_name);
        let known = [env.dev.as_str(), OTHER_NAME];
        ensure!(known.contains(&name.as_str()), "a device called {name:?}");
    }
    let side = Side::on(dev, env)?;
    let cq = side.cq(16, 0)?;
    let buf = Buf::new(2 << 20)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slots = side.dev.key_alloc(region, 2)?;
    // A small window, and one that needs `ib_reg_user_mr`.
    side.assign(slots[0], 5, 1000, REMOTE)?;
    side.assign(slots[1], 0, 2 << 20, REMOTE)?;
    let (pep, _) = side.listen(env.at(0), 0)?;
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    side.dev.submit(ep, &[op::recv(1, &[iov(region, 0, 10)])])?;
    side.dev.connect(ep, env.peer_at(port), &[])?;
    let _ = side.dev.eq_wait(&side.eq, Duration::from_millis(20));
    side.dev.key_revoke(slots[1])?;
    side.dev.close(ep)?;
    side.dev.close(pep)?;
    Ok(())
}

/// Temporary name of the device.
const OTHER_NAME: &str = "rxe_by_another_name";

fn rename_and_remove(env: &crate::harness::Env, done: impl Fn() -> u64) -> Result<()> {
    let rename = |from: &str, to: &str| run("rdma", &["dev", "set", from, "name", to]).map(drop);
    for round in 0..times(60) {
        rename(&env.dev, OTHER_NAME)?;
        std::thread::sleep(Duration::from_millis(round % 7));
        rename(OTHER_NAME, &env.dev)?;
    }
    let renamed = done();
    until("things are opened between renamings", WAIT, || {
        Ok((done() > renamed).then_some(()))
    })?;
    for round in 0..times(8) {
        std::thread::sleep(Duration::from_millis(20 + 31 * round));
        run("rdma", &["link", "delete", &env.dev])?;
        let link = [
            "link",
            "add",
            &env.dev,
            "type",
            &env.device,
            "netdev",
            &env.netdev,
        ];
        run("rdma", &link)?;
        let before = done();
        until("things are opened on the new device", WAIT, || {
            Ok((done() > before).then_some(()))
        })?;
    }
    Ok(())
}

/// Calls on an endpoint from other threads while one thread builds, connects and closes it.
pub(super) fn half_built(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(4096, 0)?;
    let buf = Buf::new(4096)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let cntr = side.dev.cntr_open(side.domain.handle)?;
    let handle = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    let reading = Mutex::new(());
    let nobody = ctx.env.peer_at(9);
    let bare = EpOpen {
        domain: side.domain.handle,
        ..Default::default()
    };
    // Errnos of an endpoint that does not exist yet, is in another state, or has ended; no others
    // may come.
    const REASONS: &[i32] = &[
        libc::ENOENT,
        libc::EINVAL,
        libc::ENOTCONN,
        libc::EOPNOTSUPP,
        libc::EAGAIN,
        libc::EADDRNOTAVAIL,
    ];
    let meddle = |seed: u64| -> Result<u64> {
        let (mut rng, mut count) = (Rng(seed), 0);
        while !over.load(Ordering::Relaxed) {
            let ep = handle.load(Ordering::Relaxed);
            let dev = &side.dev;
            let (what, answer) = match rng.below(10) {
                0 => ("bind of events", dev.bind(ep, side.eq.handle, 0)),
                1 => ("bind", dev.bind(ep, cq.handle, KFI_TRANSMIT | KFI_RECV)),
                2 => ("bind of a counter", dev.bind(ep, cntr, KFI_RECV)),
                3 => ("enable", dev.enable(ep)),
                4 => ("connect", dev.connect(ep, nobody, b"x")),
                5 => ("accept", dev.accept(ep, &[])),
                6 => ("shutdown", dev.shutdown(ep)),
                7 => {
                    let op = op::recv(1, &[iov(region, 0, 64)]);
                    ("submit", dev.submit(ep, &[op]).map(drop))
                }
                8 => ("getname", dev.getname(ep, true).map(drop)),
                _ => ("cancel", dev.cancel(ep, 1)),
            };
            count += u64::from(taken(answer, REASONS, what)?);
            // A queue has one reader.
            if let Ok(_one) = reading.try_lock() {
                while cq.read().is_some() {}
            }
        }
        Ok(count)
    };
    let count = std::thread::scope(|s| -> Result<u64> {
        let seeds = [0x1a1f_0001, 0x1a1f_0002].map(|seed| seed + 16 * u64::from(ctx.env.node));
        eprintln!("seeds {seeds:x?}");
        let threads: Vec<_> = seeds
            .into_iter()
            .map(|seed| {
                let meddle = &meddle;
                s.spawn(move || meddle(seed))
            })
            .collect();
        let end = Instant::now() + patience(Duration::from_secs(10));
        let build = || -> Result<()> {
            // The other threads may monopolize the processors.
            for _ in (0..times(400)).take_while(|_| Instant::now() < end) {
                let ep = side.dev.ep_open(&bare)?.handle;
                handle.store(ep, Ordering::Relaxed);
                // Another thread may have made each of these calls first.
                let _ = side.dev.bind(ep, side.eq.handle, 0);
                let _ = side.dev.bind(ep, cq.handle, KFI_TRANSMIT | KFI_RECV);
                let _ = side.dev.enable(ep);
                let _ = side.dev.connect(ep, nobody, &[]);
                side.dev.close(ep).context("closing")?;
                refused(side.dev.close(ep), libc::ENOENT, "closing it again")?;
                while side.dev.eq_read(side.eq.handle, 0).is_ok() {}
            }
            Ok(())
        };
        let built = build();
        over.store(true, Ordering::Relaxed);
        let mut count = 0;
        for thread in threads {
            count += thread.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        }
        built.map(|()| count)
    })?;
    eprintln!("{count} calls of the others were taken");
    ensure!(count > 0, "nothing came in between");
    Ok(())
}

/// A refused close changes nothing, however often it is called, and the accepted close frees
/// everything.
pub(super) fn refused_close(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let dev = &side.dev;
    let cq = side.cq(16, 0)?;
    let cntr = dev.cntr_open(side.domain.handle)?;
    let buf = Buf::new(8192)?;
    let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
    let slot = dev.key_alloc(region, 1)?[0];
    side.assign(slot, 0, 100, REMOTE)?;
    let opts = Opts {
        counters: vec![(cntr, KFI_SEND)],
        ..Default::default()
    };
    let ep = side.endpoint(&opts, &cq, 0)?.handle;
    let parents = [
        (side.fabric, "the fabric"),
        (side.domain.handle, "the domain"),
        (side.eq.handle, "the event queue"),
        (cq.handle, "the completion queue"),
        (cntr, "the counter"),
        (region, "the region"),
    ];
    let end = Instant::now() + Duration::from_secs(2);
    std::thread::scope(|s| -> Result<()> {
        let closers: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| -> Result<u64> {
                    let mut count = 0;
                    while Instant::now() < end {
                        for (handle, what) in parents {
                            refused(dev.close(handle), libc::EBUSY, what)?;
                            count += 1;
                        }
                    }
                    Ok(count)
                })
            })
            .collect();
        // Children come and go meanwhile, but at least one is always there.
        let mut work = Ok(());
        while work.is_ok() && Instant::now() < end {
            work = (|| -> Result<()> {
                let more = side.endpoint(&opts, &cq, 0)?.handle;
                let slots = dev.key_alloc(region, 3)?;
                side.assign(slots[2], 8, 8, REMOTE)?;
                slots.iter().try_for_each(|s| dev.close(*s))?;
                dev.close(more)?;
                Ok(())
            })();
        }
        let mut count = 0;
        for closer in closers {
            count += closer.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        }
        eprintln!("{count} closes were refused");
        work
    })?;
    // Objects whose close was refused still work, and can be closed in their turn.
    dev.submit(ep, &[op::recv(1, &[iov(region, 0, 64)])])?;
    dev.key_revoke(slot)?;
    side.assign(slot, 0, 8192, REMOTE)?;
    let (fabric, domain, eq) = (side.fabric, side.domain.handle, side.eq.handle);
    for handle in [ep, slot, region, cntr, cq.handle, eq, domain, fabric] {
        dev.close(handle).context("closing in order")?;
        refused(dev.close(handle), libc::ENOENT, "closing it again")?;
    }
    Ok(())
}
