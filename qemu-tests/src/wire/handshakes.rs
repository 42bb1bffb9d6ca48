// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handshakes: requests and answers with any parameters and private data, and disconnects at every
//! step.

use super::attack::{hex, Attack, ORDINARY};
use super::peer::Peer;
use super::target::Order;
use crate::harness::Ctx;
use crate::pair::{Opts, Side};
use crate::sys::patience;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::{KFI_CONNREQ, KFI_CONN_ERROR};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Maximum private data of a request, of an answer and of a rejection.
const ROOM: [u64; 3] = [56, 196, 148];
/// Slot of the listener.
const LISTENER: u64 = 62;

/// Connects as the peer.
pub(super) fn ask(attack: &mut Attack<'_>) -> Result<()> {
    attack.begin(false)?;
    let many = attack.rng.one_in(12);
    let count = if many { 32 } else { 1 + attack.rng.below(4) };
    for slot in 0..count {
        let resolve = attack.resolve_command(slot);
        if attack.ask(&resolve)?.is_none() {
            continue;
        }
        if !attack.rng.one_in(6) {
            attack.ask(&format!("qp {slot}"))?;
        }
        let ordinary = attack.rng.one_in(3);
        let param = attack.param(ordinary, ROOM[0]);
        attack.ask(&format!("connect {slot} {param}"))?;
        if !many {
            steps(attack, slot, true)?;
        }
    }
    if attack.rng.one_in(10) {
        attack.die()?;
    }
    Ok(())
}

/// Takes some steps in any order, most often the next regular one.
///
/// Two steps would hang the peer's own kernel for minutes, and are left to forged datagrams: to
/// reject, or to report readiness, before the other's answer. The connection manager then resends
/// until its retries are used up, and does not destroy the identifier before.
fn steps(attack: &mut Attack<'_>, slot: u64, asking: bool) -> Result<()> {
    let mut answered = false;
    for step in 0..attack.rng.below(7) {
        let choice = if attack.rng.one_in(3) {
            attack.rng.below(9)
        } else {
            step
        };
        match choice {
            0 => {
                let ms = attack.rng.pick(&[0, 1, 20, 200]);
                let event = attack.ask(&format!("wait {slot} {ms}"))?;
                let kind = event.as_ref().and_then(|words| words.first());
                answered |= asking && kind.is_some_and(|kind| kind == "CONNECT_RESPONSE");
            }
            1 => drop(attack.ask(&format!("rts {slot}"))?),
            2 if answered => {
                // Only once: a second answer would be too late.
                answered = attack.ask(&format!("establish {slot}"))?.is_none();
                if answered {
                    return Ok(());
                }
            }
            5 if answered => {
                let len = attack.rng.pick(&[0, 1, ROOM[2], ROOM[2] + 1, 255]);
                let data = hex(&attack.rng.bytes(len as usize));
                attack.ask(&format!("reject {slot} {data}"))?;
                answered = false;
            }
            3 => {
                // Before the target can know that it is connected.
                let len = attack.rng.below(2048);
                attack.ask(&format!("post {slot} 2 {len} 0 0 0 0"))?;
            }
            4 => drop(attack.ask(&format!("disconnect {slot}"))?),
            6 => drop(attack.ask(&format!("delqp {slot}"))?),
            7 => {
                let param = attack.param(false, ROOM[0]);
                attack.ask(&format!("connect {slot} {param}"))?;
            }
            8 => drop(attack.ask(&format!("del {slot}"))?),
            _ => {}
        }
    }
    Ok(())
}

/// Listens as the peer, and answers in its own way.
pub(super) fn answer(attack: &mut Attack<'_>) -> Result<()> {
    attack.begin(false)?;
    let listen = format!("listen {LISTENER} {}", attack.ctx.env.addr);
    let port = attack.must(&listen)?[0].parse()?;
    let count = 1 + attack.rng.below(4);
    attack.order(&Order::Dial(port, count as u32))?;
    for slot in 0..count {
        let ms = 2000 * super::slow();
        if attack
            .ask(&format!("take {LISTENER} {slot} {ms}"))?
            .is_none()
        {
            continue;
        }
        if !attack.rng.one_in(6) {
            attack.ask(&format!("qp {slot}"))?;
        }
        if attack.rng.one_in(2) {
            attack.ask(&format!("rts {slot}"))?;
        }
        let ordinary = attack.rng.one_in(3);
        match attack.rng.below(8) {
            0 => {}
            1 | 2 => {
                let len = attack.rng.pick(&[0, 1, 57, ROOM[2], ROOM[2] + 1]);
                let mut data = attack.rng.bytes(len as usize);
                if let Some(size) = data.first_mut() {
                    *size = attack.rng.edge(len.saturating_sub(1)) as u8;
                }
                attack.ask(&format!("reject {slot} {}", hex(&data)))?;
            }
            _ => {
                let param = attack.param(ordinary, ROOM[1]);
                attack.ask(&format!("accept {slot} {param}"))?;
                steps(attack, slot, false)?;
            }
        }
    }
    if attack.rng.one_in(10) {
        attack.die()?;
    }
    Ok(())
}

/// Time for which either side waits for the other (`CONNECT_TICKS` in
/// kverbs-provider/src/limits.rs).
const BOUND: Duration = Duration::from_secs(120);

/// Waits until the connect that began at `start` has failed.
fn given_up(side: &Side, ep: u64, start: Instant) -> Result<()> {
    let end = side.dev.eq_wait(&side.eq, patience(BOUND + BOUND / 4))?.raw;
    let took = start.elapsed();
    ensure!(
        end.event == KFI_CONN_ERROR && end.object == ep && end.err == libc::ETIMEDOUT as u32,
        "{end:?}"
    );
    ensure!(took > BOUND / 2, "{took:?} is no time");
    Ok(side.dev.close(ep)?)
}

/// The peer takes a request and never answers it. Its connection manager requests another minute
/// with each reminder, so the requesting side must give up.
pub(super) fn never_answers(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        let mut peer = Peer::start(super::slow())?;
        let mut must = |command: &str| peer.ask(command)?.with_context(|| command.to_owned());
        let port: u16 = must(&format!("listen {LISTENER} {}", ctx.env.addr))?[0].parse()?;
        ctx.ctl.send(&port)?;
        must(&format!("take {LISTENER} 0 10000"))?;
        return ctx.barrier("given up");
    }
    let port: u16 = ctx.ctl.recv()?;
    let side = Side::open(ctx)?;
    let cq = side.cq(16, 0)?;
    let ep = side.endpoint(&Opts::default(), &cq, 0)?;
    let start = Instant::now();
    side.dev.connect(ep.handle, ctx.env.peer_at(port), &[])?;
    given_up(&side, ep.handle, start)?;
    ctx.barrier("given up")
}

/// The peer is accepted and never reports readiness. Its connection manager requests another minute
/// with each reminder, so the target must give up.
pub(super) fn never_ready(ctx: &mut Ctx) -> Result<()> {
    if !ctx.first() {
        let at: SocketAddr = ctx.ctl.recv()?;
        let mut peer = Peer::start(super::slow())?;
        let mut must = |command: &str| peer.ask(command)?.with_context(|| command.to_owned());
        must(&format!("resolve 0 {} {}", at.ip(), at.port()))?;
        must("qp 0")?;
        must(&format!("connect 0 {ORDINARY}"))?;
        let answer = must("wait 0 10000")?;
        ensure!(answer[0] == "CONNECT_RESPONSE", "{answer:?}");
        return ctx.barrier("given up");
    }
    let side = Side::open(ctx)?;
    let cq = side.cq(16, 0)?;
    let (_, at) = side.listen(ctx.env.at(0), 0)?;
    ctx.ctl.send(&at)?;
    let request = side.event(KFI_CONNREQ)?;
    let ep = side.endpoint(&Opts::default(), &cq, request.raw.connreq)?;
    let start = Instant::now();
    side.dev.accept(ep.handle, &[])?;
    given_up(&side, ep.handle, start)?;
    ctx.barrier("given up")
}
