// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages through rings between two programs on one host: as over the kernel, from sleep to wake,
//! to a peer without rings, to one that breaks the rules, and to one that dies.

use super::library::{batch_over, messages_over, one_sided_over, threads_over, Lib};
use crate::buf::pattern_bytes;
use crate::harness::guest::MemoryGroup;
use crate::harness::leaks::vm_pin;
use crate::harness::{skip, Ctx, Test, SHM};
use crate::pair::{connect_one, Opts, Side, WAIT};
use crate::raw::Cq;
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric::{Access, CompFlags, Completion, Endpoint, Errno, Event, Op, RemoteMem};
use kfabric_uapi::*;
use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("shm_rings.messages_of_each_size_arrive", |c| {
        messages_over(c, true)
    })
    .on(SHM),
    Test::pair("shm_rings.one_sided_ops_with_keys_succeed", |c| {
        one_sided_over(c, true)
    })
    .on(SHM),
    Test::pair(
        "shm_rings.batch_beyond_queue_depth_is_accepted_in_part",
        |c| batch_over(c, true),
    )
    .on(SHM),
    Test::pair(
        "shm_rings.endpoint_shared_by_threads_completes_each_op",
        |c| threads_over(c, true),
    )
    .on(SHM),
    Test::pair("shm_rings.messages_by_polling_bypass_the_kernel", nothing).on(SHM),
    Test::pair("shm_rings.message_to_sleeper_wakes_it", sleeping).on(SHM),
    Test::pair("shm_rings.long_messages_in_both_directions_arrive", long).on(SHM),
    Test::pair("shm_rings.write_with_data_precedes_next_message", order).on(SHM),
    Test::pair(
        "shm_rings.message_too_long_for_receive_is_an_error",
        too_long,
    )
    .on(SHM),
    Test::pair(
        "shm_rings.peer_without_rings_gets_messages_by_kernel",
        without,
    )
    .on(SHM),
    Test::pair("shm_rings.receives_posted_before_connect_complete", early).on(SHM),
    Test::pair(
        "shm_rings.message_sent_before_close_arrives",
        before_the_end,
    )
    .on(SHM),
    Test::pair("shm_rings.cancel_of_posted_receive_ends_it_alone", cancel).on(SHM),
    Test::pair("shm_rings.epoll_on_queue_descriptor_wakes", by_epoll).on(SHM),
    Test::pair("shm_rings.sleeper_beside_working_thread_is_woken", |c| {
        sleeper(c, false)
    })
    .seconds(20)
    .on(SHM),
    Test::pair(
        "shm_rings.epoll_sleeper_beside_working_thread_is_woken",
        |c| sleeper(c, true),
    )
    .seconds(20)
    .on(SHM),
    Test::pair("shm_rings.p05_rings_are_charged_to_both_ends", charged).on(SHM),
    Test::pair("shm_rings.connecting_program_pays_for_rings", paid).on(SHM),
    Test::pair("shm_rings.p11_sender_killed_notifies_receiver", killed)
        .seconds(10)
        .on(SHM),
    Test::pair(
        "shm_rings.p12_peer_sending_after_close_adds_no_message",
        goes_on,
    )
    .on(SHM),
    Test::pair(
        "shm_rings.p12_peer_scribbling_in_rings_does_no_harm",
        scribbles,
    )
    .seconds(10)
    .on(SHM),
];

fn with_rings(ctx: &mut Ctx) -> Result<(Lib, Endpoint)> {
    let lib = Lib::with_rings(ctx, true)?;
    let ep = lib.connect(ctx)?;
    ensure!(ep.has_rings() == Some(true), "{:?}", ep.has_rings());
    Ok((lib, ep))
}

/// Sends a message and receives the answer, both by polling; the kernel has seen no operation of
/// either endpoint.
fn nothing(ctx: &mut Ctx) -> Result<()> {
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(4096)?;
    let first = ctx.first();
    for round in 0..200u8 {
        ep.recv(region.segment(0..64), 1)?;
        if first {
            ep.inject(&[round; 9])?;
        }
        let got = loop {
            if let Some(got) = lib.cq.read_one()? {
                break got.ok()?;
            }
            std::hint::spin_loop();
        };
        ensure!(got.context() == 1 && got.len() == 9, "{got:?}");
        ensure!(region.to_vec(0, 9) == [round; 9], "round {round}");
        if !first {
            ep.inject(&[round; 9])?;
        }
    }
    let me = std::process::id();
    let seen = lib
        .device
        .objects()?
        .into_iter()
        .find(|object| object.pid == me && object.handle == ep.id().handle);
    let seen = seen.context("the endpoint is not listed")?;
    ensure!(seen.raw.c == 0, "{:?}", seen.raw);
    ctx.barrier("done")
}

/// Each end sleeps until the other has sent.
fn sleeping(ctx: &mut Ctx) -> Result<()> {
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(4096)?;
    let first = ctx.first();
    for round in 0..500u64 {
        ep.recv(region.segment(0..64), round)?;
        if first {
            // Now and then send later than the other end falls asleep.
            if round % 50 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            ep.inject(&round.to_ne_bytes())?;
        }
        let got = lib.cq.wait(WAIT)?.ok()?;
        ensure!(got.context() == round, "{got:?}");
        ensure!(region.to_vec(0, 8) == round.to_ne_bytes(), "round {round}");
        if !first {
            ep.inject(&round.to_ne_bytes())?;
        }
    }
    ctx.barrier("done")
}

/// Sends messages of many times a ring's size, in both directions at once.
fn long(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 3_000_017;
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(2 * LEN)?;
    let (mine, theirs) = (u64::from(ctx.env.node), 3 - u64::from(ctx.env.node));
    for round in 0..3u64 {
        region.write_at(0, &pattern_bytes(mine + 2 * round, 0, LEN));
        region.fill(LEN, LEN, 0);
        ep.recv(region.segment(LEN..2 * LEN), 1)?;
        let parts = [region.segment(0..5), region.segment(5..LEN)];
        ep.post(&Op::send(&parts).data(70 + round).context(2))?;
        // This message waits for the long one before it.
        ep.inject(b"behind")?;
        let mut seen = Vec::new();
        for _ in 0..2 {
            let done = lib.cq.wait(WAIT)?.ok()?;
            let data = (done.context() == 1).then_some(70 + round);
            ensure!(done.data() == data, "round {round}: {done:?}");
            seen.push(done.context());
        }
        seen.sort_unstable();
        ensure!(seen == [1, 2], "{seen:?}");
        let got = region.to_vec(LEN, LEN);
        ensure!(
            got == pattern_bytes(theirs + 2 * round, 0, LEN),
            "round {round}: another message"
        );
        ep.recv(region.segment(LEN..LEN + 6), 3)?;
        lib.cq.wait(WAIT)?.ok()?;
        ensure!(region.to_vec(LEN, 6) == b"behind", "round {round}");
    }
    ctx.barrier("done")
}

/// Written bytes are visible before the write's completion data, and the data arrive before the
/// next message.
fn order(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 100;
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(8192)?;
    if ctx.first() {
        let keys = region.alloc_keys(1)?;
        let key = keys[0].assign(0, 4096, Access::REMOTE)?;
        for i in 0..2 * ROUNDS {
            if i < 8 {
                ep.recv(region.segment(4096..4200), i)?;
            }
        }
        ctx.ctl.send(&(key.addr, key.key))?;
        for i in 0..2 * ROUNDS {
            let got = lib.cq.wait(WAIT)?.ok()?;
            ensure!(got.context() == i, "{got:?}");
            let written = got.flags().contains(CompFlags::REMOTE_WRITE);
            ensure!(written == (i % 2 == 0), "{i}: {got:?}");
            if written {
                ensure!(got.data() == Some(i) && got.len() == 4096, "{got:?}");
                let there = region.to_vec(0, 4096);
                ensure!(there[4095] == i as u8, "{i}: {} was written", there[4095]);
                ep.inject(b"next")?;
            }
            if i + 8 < 2 * ROUNDS {
                ep.recv(region.segment(4096..4200), i + 8)?;
            }
        }
        ctx.barrier("all came")?;
        // With a revoked key the data do not arrive, and the connection ends.
        keys[0].revoke()?;
        ep.recv(region.segment(4096..4200), 777)?;
        ctx.barrier("revoked")?;
        let got = lib.cq.wait(WAIT)?;
        let err = got.error().context("data of a write that was not made")?;
        ensure!(err.context == 777 && err.errno == Errno::ECANCELED, "{err}");
        return ctx.barrier("done");
    }
    let (addr, key): (u64, u64) = ctx.ctl.recv()?;
    let to = RemoteMem { addr, key };
    for i in (0..2 * ROUNDS).step_by(2) {
        region.fill(0, 4096, i as u8);
        ep.recv(region.segment(4096..4200), 1)?;
        ep.writedata(region.segment(0..4096), to, i, 2)?;
        ep.inject(b"after")?;
        let mut seen = [lib.cq.wait(WAIT)?.ok()?, lib.cq.wait(WAIT)?.ok()?];
        seen.sort_unstable_by_key(|done| done.context());
        ensure!(seen[0].context() == 1, "{seen:?}");
        let flags = seen[1].flags();
        ensure!(flags.contains(CompFlags::WRITE), "{seen:?}");
    }
    ctx.barrier("all came")?;
    ctx.barrier("revoked")?;
    ep.writedata(region.segment(0..4096), to, 1, 3)?;
    let got = lib.cq.wait(WAIT)?;
    let err = got.error().context("a revoked key still writes")?;
    ensure!(err.context == 3 && err.errno == Errno::EACCES, "{err}");
    ctx.barrier("done")
}

fn is_shutdown(lib: &Lib) -> Result<()> {
    let event = lib.eq.wait(WAIT)?;
    ensure!(matches!(event, Event::Shutdown { .. }), "{event:?}");
    Ok(())
}

fn too_long(ctx: &mut Ctx) -> Result<()> {
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(1 << 20)?;
    if ctx.first() {
        for i in 0..3 {
            ep.recv(region.segment(0..100), i)?;
        }
        ctx.barrier("posted")?;
        for (context, errno) in [
            (0, Errno(libc::EMSGSIZE)),
            (1, Errno::ECANCELED),
            (2, Errno::ECANCELED),
        ] {
            let got = lib.cq.wait(WAIT)?.error().context("it fits")?;
            ensure!(got.context == context && got.errno == errno, "{got}");
            let beyond = if context == 0 { (1 << 20) - 100 } else { 0 };
            ensure!(got.olen == beyond, "{} bytes did not fit", got.olen);
        }
        is_shutdown(&lib)?;
        let late = ep.recv(region.segment(0..100), 9).err();
        let late = late.and_then(|e| e.errno());
        ensure!(late == Some(Errno(libc::ENOTCONN)), "{late:?}");
        return ctx.barrier("done");
    }
    ctx.barrier("posted")?;
    // The message is so long that it is still being sent when the receive is found too short.
    ep.send(region.segment(0..1 << 20), 5)?;
    ep.send(region.segment(0..10), 6)?;
    for (context, errno) in [(5, Errno(libc::EREMOTEIO)), (6, Errno::ECANCELED)] {
        let got = lib.cq.wait(WAIT)?.error().context("it fits")?;
        ensure!(got.context == context && got.errno == errno, "{got}");
    }
    is_shutdown(&lib)?;
    let late = ep.inject(b"late").err().and_then(|e| e.errno());
    ensure!(late == Some(Errno(libc::ENOTCONN)), "{late:?}");
    ctx.barrier("done")
}

/// If one end did not ask for rings, the kernel carries all messages in order, also those posted
/// before that was known.
fn without(ctx: &mut Ctx) -> Result<()> {
    for asks in [1, 2] {
        let lib = Lib::with_rings(ctx, ctx.env.node == asks)?;
        let region = lib.region(8192)?;
        let ep = lib.connect_when(ctx, |ep| {
            for i in 0..4u64 {
                let at = i as usize * 64;
                ep.recv(region.segment(at..at + 64), i)?;
            }
            Ok(())
        })?;
        ep.recv(region.segment(4 * 64..5 * 64), 4)?;
        ensure!(ep.has_rings() == Some(false), "{:?}", ep.has_rings());
        ctx.barrier("posted")?;
        for i in 0..5u8 {
            ep.inject(&[i; 10])?;
        }
        for i in 0..5u8 {
            let got = lib.cq.wait(WAIT)?.ok()?;
            ensure!(got.context() == u64::from(i), "{got:?}");
            let there = region.to_vec(usize::from(i) * 64, 10);
            ensure!(there == [i; 10], "{i}: {there:?}");
        }
        ctx.barrier("done")?;
    }
    Ok(())
}

/// Posts receives before the connection exists; the poster sleeps at once.
fn early(ctx: &mut Ctx) -> Result<()> {
    let lib = Lib::with_rings(ctx, true)?;
    let region = lib.region(4096)?;
    let first = ctx.first();
    let (cq, part) = (&lib.cq, &region);
    std::thread::scope(|s| -> Result<()> {
        let mut waits = None;
        let ep = lib.connect_when(ctx, |ep| {
            ep.recv(part.segment(0..64), 1)?;
            ep.recv(part.segment(64..128), 2)?;
            // The waiter waits before the connection exists, and polls nothing else.
            waits = Some(s.spawn(move || cq.wait(WAIT)));
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        })?;
        if first {
            ep.inject(b"one")?;
            ep.inject(b"two")?;
        }
        let Some(waits) = waits else {
            bail!("no thread waits");
        };
        if !first {
            let got = waits
                .join()
                .map_err(|_| anyhow::anyhow!("it died"))??
                .ok()?;
            ensure!(got.context() == 1, "{got:?}");
            let got = lib.cq.wait(WAIT)?.ok()?;
            ensure!(got.context() == 2, "{got:?}");
            ensure!(region.to_vec(0, 3) == b"one", "the first");
            ensure!(region.to_vec(64, 3) == b"two", "the second");
            ctx.barrier("came")?;
            return ctx.barrier("closed");
        }
        ctx.barrier("came")?;
        // The waiter is woken when the endpoint is closed.
        drop(ep);
        let got = waits.join().map_err(|_| anyhow::anyhow!("it died"))??;
        let err = got.error().context("something came")?;
        ensure!(err.errno == Errno::ECANCELED && err.context == 1, "{err}");
        ctx.barrier("closed")
    })
}

/// Sends a message and closes the sender: the message arrives, even if its receive is posted later.
fn before_the_end(ctx: &mut Ctx) -> Result<()> {
    for late in [false, true] {
        let (lib, ep) = with_rings(ctx)?;
        let region = lib.region(4096)?;
        if ctx.first() {
            if !late {
                ep.recv(region.segment(0..64), 1)?;
                ep.recv(region.segment(64..128), 2)?;
            }
            ctx.barrier("posted")?;
            ctx.barrier("gone")?;
            is_shutdown(&lib)?;
            if late {
                ep.recv(region.segment(0..64), 1)?;
            }
            let got = lib.cq.wait(WAIT)?.ok()?;
            ensure!(got.context() == 1 && got.len() == 5, "{got:?}");
            ensure!(region.to_vec(0, 5) == b"hello", "another message");
            if late {
                let more = ep.recv(region.segment(0..64), 3).err();
                let more = more.and_then(|e| e.errno());
                ensure!(more == Some(Errno(libc::ENOTCONN)), "{more:?}");
            } else {
                let got = lib.cq.wait(WAIT)?.error().context("one more")?;
                ensure!(got.context == 2 && got.errno == Errno::ECANCELED, "{got}");
            }
        } else {
            ctx.barrier("posted")?;
            region.write_at(0, b"hello");
            ep.send(region.segment(0..5), 1)?;
            lib.cq.wait(WAIT)?.ok()?;
            ep.close().map_err(|r| r.error)?;
            ctx.barrier("gone")?;
        }
        ctx.barrier("done")?;
    }
    Ok(())
}

fn cancel(ctx: &mut Ctx) -> Result<()> {
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(4096)?;
    for i in [1, 2, 2, 3] {
        ep.recv(region.segment(0..64), i)?;
    }
    ep.cancel(2)?;
    let got = lib.cq.wait(WAIT)?.error().context("it is not cancelled")?;
    ensure!(got.context == 2 && got.errno == Errno::ECANCELED, "{got}");
    let none = ep.cancel(9).err().and_then(|e| e.errno());
    ensure!(none == Some(Errno(libc::ENOENT)), "{none:?}");
    // A region with posted receives cannot be closed.
    let Err(kept) = region.close() else {
        bail!("a region with receives is closed");
    };
    ensure!(kept.error.errno() == Some(Errno::EBUSY), "{}", kept.error);
    ctx.barrier("cancelled")?;
    for i in [1, 2, 3] {
        ep.inject(b"x")?;
        let got = lib.cq.wait(WAIT)?.ok()?;
        ensure!(got.context() == i, "{got:?}");
    }
    kept.object.close().map_err(|r| r.error)?;
    ctx.barrier("done")
}

/// Waits on the queue's descriptor, if the library permits it.
fn by_epoll(ctx: &mut Ctx) -> Result<()> {
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(4096)?;
    let epoll = sys::Epoll::new()?;
    epoll.add(lib.cq.as_fd(), libc::EPOLLIN, 1)?;
    let first = ctx.first();
    for round in 0..200u64 {
        ep.recv(region.segment(0..64), round)?;
        if first {
            ep.send(region.segment(100..110), 1000)?;
            // The waiter does not sleep while a completion is there.
            ensure!(!lib.cq.try_wait(), "round {round}: it may sleep");
        }
        let mut left = if first { 2 } else { 1 };
        while left > 0 {
            while let Some(got) = lib.cq.read_one()? {
                got.ok()?;
                left -= 1;
            }
            if left > 0 && lib.cq.try_wait() {
                ensure!(
                    epoll.wait(WAIT)?.is_some(),
                    "round {round}: it is not woken"
                );
            }
        }
        if !first {
            ep.inject(b"back")?;
        }
    }
    ctx.barrier("done")
}

/// At each end one thread sleeps on the queue, while another posts, reads now and then, and goes on
/// when all messages of a round have come: through the sleeper, if through no other reader.
fn sleeper(ctx: &mut Ctx, by_epoll: bool) -> Result<()> {
    const ROUNDS: u64 = 2000;
    const LONG: usize = 150_000;
    let (lib, ep) = with_rings(ctx)?;
    let region = lib.region(2 * LONG)?;
    let cq = &lib.cq;
    let mut random = ctx.env.seed.wrapping_add(u64::from(ctx.env.node)) | 1;
    let mut pause = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        if random & 3 != 0 {
            std::thread::sleep(Duration::from_micros(random >> 20 & 127));
        }
        random >> 40
    };
    let seen = AtomicU64::new(0);
    let take = |done: Option<Completion>| -> Result<()> {
        if let Some(done) = done {
            done.ok()?;
            seen.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    };
    let sleep = || -> Result<()> {
        let epoll = sys::Epoll::new()?;
        epoll.add(cq.as_fd(), libc::EPOLLIN, 1)?;
        while seen.load(Ordering::SeqCst) < 2 * ROUNDS {
            if !by_epoll {
                take(Some(cq.wait(2 * WAIT)?))?;
                continue;
            }
            while let Some(done) = cq.read_one()? {
                take(Some(done))?;
            }
            if seen.load(Ordering::SeqCst) < 2 * ROUNDS && cq.try_wait() {
                ensure!(epoll.wait(2 * WAIT)?.is_some(), "it is not woken");
            }
        }
        Ok(())
    };
    let mut work = || -> Result<()> {
        for round in 1..=ROUNDS {
            ep.recv(region.segment(0..LONG), round)?;
            let len = if pause() % 3 == 0 { LONG } else { 8 };
            ep.send(region.segment(LONG..LONG + len), round)?;
            // The last messages are for the sleeper.
            let reads = if round == ROUNDS { 0 } else { pause() % 3 };
            for _ in 0..reads {
                take(cq.read_one()?)?;
                pause();
            }
            let begin = Instant::now();
            while seen.load(Ordering::SeqCst) < 2 * round {
                ensure!(begin.elapsed() < WAIT, "round {round} is slept over");
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        Ok(())
    };
    std::thread::scope(|s| -> Result<()> {
        let sleeps = s.spawn(sleep);
        work()?;
        sleeps.join().map_err(|_| anyhow::anyhow!("it died"))?
    })?;
    ctx.barrier("done")
}

/// Both ends are charged for the rings; a program at its pinning limit connects without rings.
fn charged(ctx: &mut Ctx) -> Result<()> {
    const RINGS: u64 = 4096 + 2 * KFI_RING_SIZE as u64;
    let before = vm_pin();
    {
        let (_lib, ep) = with_rings(ctx)?;
        ensure!(vm_pin() == before + RINGS, "VmPin is {}", vm_pin());
        ctx.barrier("charged")?;
        drop(ep);
        ensure!(vm_pin() == before, "VmPin is {}", vm_pin());
        ctx.barrier("given back")?;
    }
    let node = ctx.env.node;
    let lib = Lib::with_rings(ctx, true)?;
    if node == 1 {
        sys::set_limit(libc::RLIMIT_MEMLOCK, 4096)?;
        sys::rights::become_user(2001)?;
    }
    let ep = lib.connect(ctx)?;
    ensure!(ep.has_rings() == Some(false), "{:?}", ep.has_rings());
    ensure!(vm_pin() == before, "VmPin is {}", vm_pin());
    ctx.barrier("done")
}

/// Charges the rings to the memory cgroup of the connecting program: a listener does not pay for
/// memory that its peers keep.
fn paid(ctx: &mut Ctx) -> Result<()> {
    const EPS: u64 = 32;
    const RINGS: u64 = EPS * 2 * KFI_RING_SIZE as u64;
    let Some(group) = MemoryGroup::join(&format!("rings-{}", ctx.env.node))? else {
        return skip("the kernel has no memory cgroups");
    };
    let lib = Lib::with_rings(ctx, true)?;
    let before = group.current()?;
    let mut eps = Vec::new();
    for _ in 0..EPS {
        let ep = lib.connect(ctx)?;
        ensure!(ep.has_rings() == Some(true), "{:?}", ep.has_rings());
        eps.push(ep);
    }
    let grown = group.current()?.saturating_sub(before);
    let other: u64 = ctx.ctl.exchange(&grown)?;
    let (connects, accepts) = match ctx.first() {
        true => (other, grown),
        false => (grown, other),
    };
    eprintln!("{connects} bytes of the connecting end, {accepts} of the accepting end");
    // Both ends are charged for the rest of a connection.
    ensure!(
        connects > accepts + RINGS / 2,
        "{connects} bytes of the connecting end, {accepts} of the accepting end"
    );
    ctx.barrier("done")
}

/// Kills a peer that sends without pause: the other end receives every message that was announced,
/// then the shutdown event, in bounded time.
fn killed(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 20;
    if ctx.first() {
        let lib = Lib::with_rings(ctx, true)?;
        let region = lib.region(64 << 10)?;
        for round in 0..ROUNDS {
            let ep = lib.accept_one(ctx)?;
            // The peer is connected: it may die from now on.
            ctx.ctl.send(&true)?;
            ep.recv(region.all(), 0)?;
            let mut next = 0u64;
            loop {
                let got = lib
                    .cq
                    .wait(WAIT)
                    .with_context(|| format!("round {round}"))?;
                if let Some(err) = got.error() {
                    ensure!(err.errno == Errno::ECANCELED, "round {round}: {err}");
                    break;
                }
                let there = region.to_vec(0, 8);
                ensure!(
                    there == next.to_ne_bytes(),
                    "round {round}: {there:?}, not {next}"
                );
                next += 1;
                // Receive one message at a time, so that each is checked. At the end the queue is
                // empty.
                match ep.recv(region.all(), 0) {
                    Ok(()) => {}
                    Err(e) if e.errno() == Some(Errno(libc::ENOTCONN)) => break,
                    Err(e) => bail!(e),
                }
            }
            is_shutdown(&lib)?;
            while lib.cq.read_one()?.is_some() {}
            drop(ep);
            ctx.barrier("round")?;
        }
        return ctx.barrier("done");
    }
    let env = ctx.env.clone();
    for round in 0..ROUNDS {
        let port: u16 = ctx.ctl.recv()?;
        let peer = ctx.env.peer_at(port);
        let pid = sys::fork(|| {
            let work = || -> Result<()> {
                let mut lib = Lib::of(&env)?;
                lib.rings = true;
                let region = lib.region(64 << 10)?;
                let ep = lib.connect_to(peer)?;
                for i in 0u64.. {
                    region.write_at(0, &i.to_ne_bytes());
                    let len = if i % 3 == 0 { 40 << 10 } else { 8 };
                    ep.send(region.segment(0..len), i)?;
                    lib.cq.wait(WAIT)?.ok()?;
                }
                Ok(())
            };
            i32::from(work().is_err())
        })?;
        ctx.ctl.recv::<bool>()?;
        let chance = (round + ctx.env.seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        std::thread::sleep(Duration::from_micros(chance % 100_000));
        sys::kill(pid, libc::SIGKILL)?;
        ensure!(sys::wait_pid(pid, WAIT)?.is_some(), "it does not die");
        ctx.barrier("round")?;
    }
    ctx.barrier("done")
}

/// Connects by the raw calls, and asks for the rings, which only the test uses.
fn bare(ctx: &mut Ctx) -> Result<(Side, Cq, EpRings)> {
    let side = Side::open(ctx)?;
    let port: u16 = ctx.ctl.recv()?;
    let cq = side.cq(0, 0)?;
    let opts = Opts {
        rings: Some(0),
        ..Opts::default()
    };
    let mut rings = EpRings {
        size: std::mem::size_of::<EpRings>() as u32,
        ep: connect_one(&side, &opts, &cq, ctx.env.peer_at(port))?.handle,
        ..EpRings::default()
    };
    side.dev.call(&mut rings)?;
    ensure!(rings.state == KFI_RINGS_SHARED, "{rings:?}");
    Ok((side, cq, rings))
}

/// A peer writes random bytes into both rings, and into the page that it must not change.
fn scribbles(ctx: &mut Ctx) -> Result<()> {
    const ROUNDS: u64 = 40;
    /// Contexts of the bystander.
    const ANSWER: u64 = 1 << 32;
    const QUESTION: u64 = ANSWER + 1;
    // An unrelated connection of the same queue goes on.
    let (lib, bystander) = with_rings(ctx)?;
    if ctx.first() {
        let region = lib.region(256 << 10)?;
        region.fill(0, 256 << 10, 0x77);
        let (answer, question) = (200 << 10, 201 << 10);
        for round in 0..ROUNDS {
            let ep = lib.accept_one(ctx)?;
            bystander.recv(region.segment(answer..answer + 8), ANSWER)?;
            region.write_at(question, &round.to_ne_bytes());
            bystander.send(region.segment(question..question + 8), QUESTION)?;
            let (mut over, answered) = (false, Cell::new(0));
            let look = |got: &Completion| -> Result<bool> {
                if got.context() >= ANSWER {
                    ensure!(got.error().is_none(), "round {round}: {got:?}");
                    answered.set(answered.get() + 1);
                }
                Ok(got.error().is_some())
            };
            for i in 0..1000 {
                // Any message may arrive, or none.
                let _ = ep.recv(region.segment(0..64 << 10), i);
                let _ = ep.send(region.segment(0..100), i);
                let mut some = [Completion::default(); 8];
                let n = lib.cq.read(&mut some)?;
                for got in &some[..n] {
                    over |= look(got)?;
                }
                if over {
                    break;
                }
                std::thread::sleep(Duration::from_micros(20));
            }
            ensure!(
                region.to_vec(64 << 10, 64 << 10).iter().all(|b| *b == 0x77),
                "round {round}: beyond its receive"
            );
            ctx.barrier("enough")?;
            drop(ep);
            while let Some(got) = lib.cq.read_one()? {
                look(&got)?;
            }
            while answered.get() < 2 {
                look(&lib.cq.wait(WAIT).context("the bystander")?)?;
            }
            let there = region.to_vec(answer, 8);
            ensure!(
                there == (round + 1).to_ne_bytes(),
                "round {round}: {there:?}"
            );
            while lib.eq.read()?.is_some() {}
        }
        return ctx.barrier("done");
    }
    let mut seed = ctx.env.seed | 1;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let region = lib.region(4096)?;
    for round in 0..ROUNDS {
        bystander.recv(region.segment(0..8), 1)?;
        let (side, _cq, rings) = bare(ctx)?;
        let (ep, fd) = (rings.ep, sys::own_fd(rings.fd));
        let page = rings.page_size as usize;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let map = |len, prot, at| Map::raw(fd.as_fd(), len, prot, libc::MAP_SHARED, at as i64);
        ensure!(
            map(page, both, 0).is_err_and(|e| e.0 == libc::EPERM),
            "the kernel's page may be written to"
        );
        ensure!(map(page, both, 2 * page).is_err(), "there is no such part");
        let status = map(page, libc::PROT_READ, 0)?;
        let shared = map(rings.map_size as usize, both, page)?;
        for _ in 0..200 {
            for ring in 0..2 {
                let base = ring * KFI_RING_SIZE;
                // Random words, and heads that nearly fit.
                let word = [0, 128, 132, 256, 384][random() as usize % 5];
                shared.store32(base + word, (random() % 70_000) as u32 & !7);
                let at = base + KFI_RING_DATA + (random() as usize % 600) * 8;
                shared.set64(at, random() & 0x7_0000_ffff);
                shared.set64(at + 8, random() & 0xffff);
            }
        }
        let wake = EpWake {
            size: std::mem::size_of::<EpWake>() as u32,
            ep,
            ..EpWake::default()
        };
        let _ = side.dev.call(&mut wake.clone());
        ensure!(status.load32(0) <= 1, "the status is {}", status.load32(0));
        // The bystander's request is answered meanwhile.
        lib.cq.wait(WAIT)?.ok()?;
        let there = region.to_vec(0, 8);
        ensure!(there == round.to_ne_bytes(), "round {round}: {there:?}");
        bystander.inject(&(round + 1).to_ne_bytes())?;
        ctx.barrier("enough")?;
    }
    ctx.barrier("done")
}

/// A peer closes its endpoint, keeps the memory and goes on sending: only messages written before
/// the close arrive, and then the operations fail with the end of the connection.
fn goes_on(ctx: &mut Ctx) -> Result<()> {
    /// Bytes of a message in the ring, and of its content.
    const PIECE: usize = 32;
    const LEN: u64 = 8;
    const DATA: usize = KFI_RING_SIZE - KFI_RING_DATA;
    if ctx.first() {
        let lib = Lib::with_rings(ctx, true)?;
        let region = lib.region(4096)?;
        let ep = lib.accept_one(ctx)?;
        is_shutdown(&lib)?;
        ctx.barrier("ended")?;
        // At most a ring's content is received if it is taken before the end is known, and once
        // more.
        let most = 3 * DATA / PIECE;
        let mut came = 0;
        for i in 0.. {
            match ep.recv(region.segment(0..64), i) {
                Err(e) if e.errno() == Some(Errno(libc::ENOTCONN)) => break,
                Err(e) if e.errno() != Some(Errno::EAGAIN) => return Err(e.into()),
                _ => {}
            }
            while let Some(got) = lib.cq.read_one()? {
                came += usize::from(got.error().is_none());
            }
            ensure!(came <= most && i < 1_000_000, "it is not over: {came}");
        }
        return ctx.barrier("over");
    }
    let (side, _cq, rings) = bare(ctx)?;
    let (ep, fd) = (rings.ep, sys::own_fd(rings.fd));
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let (len, at) = (rings.map_size as usize, i64::from(rings.page_size));
    let shared = Map::raw(fd.as_fd(), len, both, libc::MAP_SHARED, at)?;
    let base = rings.side as usize * KFI_RING_SIZE;
    for at in (0..DATA).step_by(PIECE) {
        let at = base + KFI_RING_DATA + at;
        // A complete message.
        shared.set64(at, 1 << 32 | LEN);
        shared.set64(at + 8, LEN);
        shared.set64(at + 16, 0);
    }
    let fill = || {
        let head = shared.load32(base + std::mem::offset_of!(RingWords, head));
        shared.store32(base, head.wrapping_add(DATA as u32));
    };
    fill();
    side.dev.close(ep)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                fill();
            }
        });
        let done = ctx.barrier("ended").and_then(|()| ctx.barrier("over"));
        over.store(true, Ordering::Relaxed);
        done
    })
}
