// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many objects, many calls at once, and calls from several places (fabtests: `rdm_stress`,
//! `multi_ep`).

use super::refused;
use crate::auth;
use crate::buf::Buf;
use crate::harness::{Ctx, Test};
use crate::op::{self, iov};
use crate::pair::{own_info, Opts, Pair, Side, LOCAL, REMOTE, WAIT};
use crate::raw::Dev;
use crate::sys::{self, Ended};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "multi_ep.300_endpoints_connected_at_once_move_their_bytes",
        many_endpoints,
    )
    .seconds(30),
    Test::pair(
        "threads.open_and_close_beside_traffic_on_one_file_succeed",
        one_file_two_threads,
    )
    .seconds(8),
    Test::pair(
        "threads.close_under_submit_returns_errno",
        close_under_submit,
    )
    .seconds(10),
    Test::alone("threads.close_from_many_threads_succeeds_once", close_races).seconds(5),
    Test::alone(
        "fuzz.p12_random_calls_return_errnos_and_leave_nothing",
        random_calls,
    )
    .seconds(10),
    Test::pair(
        "share.descriptor_passed_to_process_keeps_its_objects",
        passed_descriptor,
    ),
    Test::alone(
        "share.device_of_other_netns_is_invisible",
        other_network_namespace,
    )
    .verbs(),
    Test::alone(
        "share.queue_descriptor_outliving_its_file_polls_hung_up",
        descriptors_outlive,
    ),
];

/// A deterministic pseudo-random generator (xorshift).
pub struct Rng(pub u64);

impl Rng {
    /// Returns the generator of `seed`. Every seed, also a small one or zero, has its own sequence.
    pub fn of(seed: u64) -> Self {
        Self(crate::buf::pattern64(seed, 0) | 1)
    }

    /// Draws the next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Draws a number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }
}

/// Connects all endpoints at once on one event queue and one completion queue; each moves its own
/// bytes.
fn many_endpoints(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 300;
    let side = Side::open(ctx)?;
    let cq = side.cq(4096, KFI_CQ_FORMAT_DATA)?;
    let buf = Buf::new(COUNT * 256)?;
    let region = side.reg(&buf, LOCAL)?.handle;
    let opts = |i: usize| Opts {
        context: i as u64,
        tx_size: 4,
        rx_size: 4,
        iov_limit: 1,
        ..Default::default()
    };
    let mut eps = Vec::new();
    let mut order = Vec::new();
    if ctx.first() {
        let (pep, at) = side.listen(ctx.env.at(0), 64)?;
        ctx.ctl.send(&at.port())?;
        // The event of the next request may arrive before the event of this connection.
        let mut up = 0;
        while up < COUNT {
            let event = side
                .dev
                .eq_wait(&side.eq, WAIT)
                .with_context(|| format!("{up} are up"))?;
            match event.raw.event {
                KFI_CONNREQ => {
                    let id = event.data.get(..4).context("no data")?.try_into()?;
                    let id = u32::from_le_bytes(id) as usize;
                    let ep = side.endpoint(&opts(id), &cq, event.raw.connreq)?.handle;
                    side.dev.accept(ep, &[])?;
                    eps.push(ep);
                    order.push(id);
                }
                KFI_CONNECTED => up += 1,
                _ => anyhow::bail!("{:?}", event.raw),
            }
        }
        side.dev.close(pep)?;
    } else {
        let port: u16 = ctx.ctl.recv()?;
        for i in 0..COUNT {
            let ep = side.endpoint(&opts(i), &cq, 0)?.handle;
            side.dev
                .connect(ep, ctx.env.peer_at(port), &(i as u32).to_le_bytes())?;
            let up = side
                .event(KFI_CONNECTED)
                .with_context(|| format!("number {i}"))?;
            ensure!(
                up.raw.object == ep && up.raw.context == i as u64,
                "{:?}",
                up.raw
            );
            eps.push(ep);
            order.push(i);
        }
    }
    for (ep, id) in eps.iter().zip(&order) {
        let at = *id as u64 * 256;
        side.dev
            .submit(*ep, &[op::recv(*id as u64, &[iov(region, at, 128)])])?;
        buf.fill_part(*id * 256 + 128, 128, *id as u64);
    }
    ctx.barrier("receives posted")?;
    for (ep, id) in eps.iter().zip(&order) {
        let at = *id as u64 * 256 + 128;
        side.dev
            .submit(*ep, &[op::send(1000 + *id as u64, &[iov(region, at, 128)])])?;
    }
    let mut seen = vec![0u8; 2000];
    for _ in 0..2 * COUNT {
        let e = cq.wait(WAIT)?;
        ensure!(e.err == 0, "{e:?}");
        seen[e.context as usize] += 1;
    }
    for id in &order {
        ensure!(
            seen[*id] == 1 && seen[1000 + *id] == 1,
            "endpoint {id}: {} and {}",
            seen[*id],
            seen[1000 + *id]
        );
        buf.check_part(*id * 256, 128, *id as u64)
            .with_context(|| format!("endpoint {id}"))?;
    }
    ctx.barrier("checked")?;
    // Close half by handle; the file's close takes the other half.
    eps.iter()
        .step_by(2)
        .try_for_each(|ep| side.dev.close(*ep))?;
    drop(side);
    ctx.barrier("closed")
}

fn one_file_two_threads(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(64 << 10)?;
    let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
    let stop = AtomicBool::new(false);
    let (side, done) = (&pair.side, &stop);
    std::thread::scope(|s| -> Result<()> {
        // One thread opens and closes objects of all kinds …
        let other = s.spawn(move || -> Result<u32> {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) {
                let buf = Buf::new(10_000)?;
                let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
                let (slot, _) = side.export(region, 1, 100, REMOTE)?;
                let cq = side.cq(4, 0)?;
                let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
                side.dev.close(ep)?;
                side.dev.close(cq.handle)?;
                side.dev.close(slot)?;
                side.dev.close(region)?;
                rounds += 1;
            }
            Ok(rounds)
        });
        // … while the other moves bytes.
        let work = (0..300u64).try_for_each(|i| {
            if ctx.first() {
                return Ok(());
            }
            buf.set64(0, i);
            pair.write(region, 0, 64 << 10, remote.addr, remote.key)
        });
        let met = ctx.barrier("written");
        stop.store(true, Ordering::Relaxed);
        let rounds = other
            .join()
            .map_err(|_| anyhow::anyhow!("panicked"))?
            .context("the other thread")?;
        work?;
        met?;
        ensure!(rounds > 0, "the other thread did nothing");
        Ok(())
    })
}

/// Closes an object while another thread submits to it: the submitting thread gets an errno.
fn close_under_submit(ctx: &mut Ctx) -> Result<()> {
    for round in 0..12 {
        let pair = Pair::new(ctx)?;
        let buf = Buf::new(4096)?;
        let (region, remote) = super::rma::exported(ctx, &pair, &buf)?;
        let what = [pair.ep, region, pair.cq.handle, pair.side.eq.handle][round % 4];
        let (dev, ep, cq) = (pair.dev(), pair.ep, &pair.cq);
        std::thread::scope(|s| -> Result<()> {
            let submitter = s.spawn(move || -> Result<()> {
                let end = Instant::now() + Duration::from_millis(150);
                let w = op::write(1, &[iov(region, 0, 64)], remote.addr, remote.key);
                while Instant::now() < end {
                    let fine = [libc::EAGAIN, libc::ENOENT, libc::ENOTCONN, libc::EBUSY];
                    if let Err(e) = dev.submit(ep, &[w, w, w]) {
                        ensure!(fine.contains(&e.errno.0), "{e}");
                    }
                    while cq.read().is_some() {}
                }
                Ok(())
            });
            std::thread::sleep(Duration::from_millis(round as u64 * 7));
            if let Err(e) = dev.close(what) {
                ensure!(e.errno.0 == libc::EBUSY, "round {round}: {e}");
            }
            submitter.join().map_err(|_| anyhow::anyhow!("panicked"))?
        })
        .with_context(|| format!("round {round}"))?;
        ctx.barrier("round done")?;
    }
    Ok(())
}

/// Closes one object from several threads: exactly one close succeeds.
fn close_races(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let buf = Buf::new(4096)?;
    for round in 0..100 {
        let handle = match round % 3 {
            0 => side.dev.cntr_open(side.domain.handle)?,
            1 => side.reg(&buf, LOCAL)?.handle,
            _ => side.dev.eq_open(side.fabric, 4)?.handle,
        };
        let dev = &side.dev;
        let results: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..3).map(|_| s.spawn(move || dev.close(handle))).collect();
            threads
                .into_iter()
                .map(std::thread::ScopedJoinHandle::join)
                .collect()
        });
        let results: Vec<_> = results.into_iter().flatten().collect();
        let won = results.iter().filter(|r| r.is_ok()).count();
        ensure!(won == 1 && results.len() == 3, "round {round}: {results:?}");
        for r in results.into_iter().filter(Result::is_err) {
            refused(r, libc::ENOENT, "the others")
                .or_else(|_| refused(r, libc::EBUSY, "the others"))?;
        }
    }
    Ok(())
}

/// Makes random calls with random and half-valid contents: they return errnos only, and closing the
/// file frees everything.
fn random_calls(ctx: &mut Ctx) -> Result<()> {
    let seed = 0x5eed_0000 + u64::from(ctx.env.node);
    let mut rng = Rng(seed);
    let end = Instant::now() + Duration::from_secs(8);
    let (mut calls, mut taken) = (0u64, 0u64);
    while Instant::now() < end {
        let side = Side::open(ctx)?;
        let memory = Buf::new(64 << 10)?;
        let mut handles = vec![side.fabric, side.domain.handle, side.eq.handle];
        for _ in 0..300 {
            let (nr, _) = KFI_IOCTLS[rng.below(KFI_IOCTLS.len() as u64) as usize];
            let size = (nr >> 16) as usize & 0x3fff;
            let mut bytes = vec![0u8; size + 64];
            bytes[..4].copy_from_slice(&(size as u32).to_ne_bytes());
            for at in (8..size).step_by(8) {
                let value = match rng.below(8) {
                    0 | 1 => handles[rng.below(handles.len() as u64) as usize],
                    2 => memory.addr() + rng.below(1 << 16),
                    3 => rng.below(5000),
                    4 => 1 << rng.below(64),
                    5 => rng.draw(),
                    _ => 0,
                };
                bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            }
            // A wait without a deadline is a valid request that this test must not make.
            if nr == KFI_IOC_CNTR_WAIT {
                let at = std::mem::offset_of!(CntrWait, deadline);
                bytes[at..at + 8].copy_from_slice(&1u64.to_ne_bytes());
            }
            calls += 1;
            if side.dev.call_bytes(nr, &mut bytes).is_ok() {
                taken += 1;
                let tail = bytes[size - 8..size].try_into().map(u64::from_ne_bytes)?;
                handles.push(tail);
                if nr == KFI_IOC_EQ_OPEN || nr == KFI_IOC_CQ_OPEN {
                    let fd = i32::from_ne_bytes(
                        bytes[if nr == KFI_IOC_EQ_OPEN {
                            20..24
                        } else {
                            24..28
                        }]
                        .try_into()?,
                    );
                    drop(sys::own_fd(fd));
                }
            }
            if rng.below(4) == 0 {
                if let Ok(cntr) = side.dev.cntr_open(side.domain.handle) {
                    handles.push(cntr);
                }
            }
        }
    }
    // Some of the calls were an administrator's, so reset the mode.
    auth::reset(&Dev::open()?);
    eprintln!("seed {seed:#x}: {calls} calls, {taken} taken");
    ensure!(calls > 1000 && taken > 0, "{calls} calls, {taken} taken");
    Ok(())
}

/// Passes the file to another process, which then owns the objects in it.
fn passed_descriptor(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let (ep, cq_handle) = (pair.ep, pair.cq.handle);
    let first = ctx.first();
    let pid = sys::fork(|| {
        let run = || -> Result<()> {
            let dev = Dev::from_fd(sys::recv_fd(theirs.as_fd())?);
            let me = dev.getname(ep, false)?;
            ensure!(me.port() != 0 || !first, "{me}");
            refused(
                dev.close(cq_handle),
                libc::EBUSY,
                "closing a bound queue through another's descriptor",
            )?;
            // The region is the opener's memory: the kernel sends the opener's bytes, not this
            // process's.
            dev.submit(ep, &[op::recv(1, &[iov(region, 0, 64)])])?;
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("the receiver of the descriptor: {e:#}");
                1
            }
        }
    })?;
    sys::send_fd(ours.as_fd(), pair.dev().as_fd())?;
    let end = sys::wait_pid(pid, WAIT)?;
    ensure!(end == Some(Ended::Exit(0)), "the other process: {end:?}");
    ctx.barrier("receives posted by others")?;
    buf.fill_part(1024, 64, 5);
    pair.post(op::send(2, &[iov(region, 1024, 64)]))?;
    let mut contexts = [pair.wait()?.context, pair.wait()?.context];
    contexts.sort_unstable();
    ensure!(contexts == [1, 2], "{contexts:?}");
    buf.check_part(0, 64, 5)?;
    ctx.barrier("done")
}

/// Checks that a file opened in one network namespace sees no device of another.
fn other_network_namespace(ctx: &mut Ctx) -> Result<()> {
    let env = ctx.env.clone();
    let outside = Dev::open()?;
    let info = own_info(&outside, &env)?;
    let pid = sys::fork(|| {
        let run = || -> Result<()> {
            sys::unshare_net()?;
            let dev = Dev::open()?;
            let own = InfoEntry {
                prov_name: crate::raw::name_field(&env.provider),
                ..crate::raw::hints()
            };
            if let Ok(list) = dev.getinfo(Some(&own)) {
                ensure!(
                    list.is_empty(),
                    "{} entries in an empty namespace",
                    list.len()
                );
            }
            if let Ok(fabric) = dev.fabric_open(&env.provider, "") {
                let name = crate::raw::field_text(&info.domain_name);
                refused(
                    dev.domain_open(fabric, &name),
                    libc::ENOENT,
                    "another namespace's device",
                )?;
            }
            // A file keeps the namespace in which it was opened.
            own_info(&outside, &env).context("a file opened before")?;
            Ok(())
        };
        match run() {
            Ok(()) => 0,
            Err(e) => {
                eprintln!("in an empty namespace: {e:#}");
                1
            }
        }
    })?;
    let end = sys::wait_pid(pid, WAIT)?;
    ensure!(end == Some(Ended::Exit(0)), "the child: {end:?}");
    Ok(())
}

/// Checks that queue descriptors kept longer than queue and file poll as hung up and do no harm.
fn descriptors_outlive(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(8, 0)?;
    side.dev.close(cq.handle)?;
    let Side { dev, eq, .. } = side;
    drop(dev);
    for fd in [cq.fd.as_fd(), eq.fd.as_fd()] {
        let events = sys::poll(fd, libc::POLLIN, Duration::from_millis(50))?;
        ensure!(events & libc::POLLNVAL == 0, "{events:#x}");
    }
    ensure!(cq.read().is_none(), "an entry from nowhere");
    Ok(())
}
