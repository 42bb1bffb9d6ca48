// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of auth keys: opening an endpoint and assigning a key in mode `enforce`, beside the same in
//! mode `open`. The first open, which needs an answer of the agent, is shown separately.

use super::memory::average;
use super::Figure;
use crate::auth::{self, keyed, Agent, Enforced, BOTH, KEY};
use crate::buf::Buf;
use crate::harness::Ctx;
use crate::pair::{Side, LOCAL, REMOTE};
use crate::raw::Cq;
use crate::sys;
use anyhow::Result;
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// Number of opens, and of assignments.
const ROUNDS: u32 = 200;
/// Number of questions to the agent.
const QUESTIONS: u32 = 20;
/// Lifetime of an answer in milliseconds; with a lifetime, each use reads the clock.
const LIFETIME: u64 = 3_600_000;
const WANTED: Option<&str> = Some("<= 1.05");

fn figure(ctx: &Ctx, case: &str, value: f64, peer: (&str, f64), wanted: Option<&str>) {
    Figure {
        bench: "auth",
        case,
        value,
        unit: "us",
        peer: Some(peer.0),
        peer_value: Some(peer.1),
        ratio: None,
        wanted,
    }
    .print(ctx);
}

/// A rank's objects: a slot under the auth key, or under none, and an endpoint that keeps the auth
/// key's protection group.
struct Bench {
    side: Side,
    cq: Cq,
    slot: u64,
    key: &'static [u8],
    _buf: Buf,
}

impl Bench {
    fn new(ctx: &Ctx, key: &'static [u8]) -> Result<Self> {
        let side = Side::open(ctx)?;
        let cq = side.cq(0, 0)?;
        let buf = Buf::new(4096)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let mut slot = 0_u64;
        let want = keyed(0, key);
        side.dev.call(&mut KeyAlloc {
            region,
            count: 1,
            handles: (&raw mut slot) as u64,
            auth_key: want.auth_key,
            auth_key_size: want.auth_key_size,
            ..Default::default()
        })?;
        auth::endpoint(&side.dev, side.domain.handle, key)?;
        Ok(Self {
            side,
            cq,
            slot,
            key,
            _buf: buf,
        })
    }

    /// Measures opening an endpoint, and preparing it to connect, in microseconds.
    fn open(&self) -> Result<(f64, f64)> {
        let (mut opening, mut readying) = (Duration::ZERO, Duration::ZERO);
        let dev = &self.side.dev;
        for round in 0..=ROUNDS {
            let start = Instant::now();
            let ep = auth::endpoint(dev, self.side.domain.handle, self.key)?;
            let took = start.elapsed();
            dev.bind(ep.handle, self.side.eq.handle, 0)?;
            dev.bind(ep.handle, self.cq.handle, KFI_TRANSMIT | KFI_RECV)?;
            dev.enable(ep.handle)?;
            // The first round warms up.
            if round > 0 {
                opening += took;
                readying += start.elapsed();
            }
            dev.close(ep.handle)?;
        }
        let each = |sum: Duration| sum.as_secs_f64() * 1e6 / f64::from(ROUNDS);
        Ok((each(opening), each(readying)))
    }

    /// Measures assigning a key and revoking it, in microseconds.
    fn assign(&self) -> Result<f64> {
        average(ROUNDS, || {
            self.side.dev.key_assign(self.slot, 0, 4096, REMOTE)?;
            Ok(self.side.dev.key_revoke(self.slot)?)
        })
    }

    /// Measures opening an endpoint, preparing it, and assigning a key.
    fn all(&self) -> Result<[f64; 3]> {
        let (open, ready) = self.open()?;
        Ok([open, ready, self.assign()?])
    }
}

/// Measures opening an endpoint that no grant covers yet, in microseconds: the agent, another
/// process, allows it.
fn asked(ctx: &Ctx) -> Result<f64> {
    let mode = Enforced::new()?;
    let agent = Agent::open()?;
    let served = sys::fork(move || {
        sys::die_with_parent();
        loop {
            if let Ok(question) = agent.wait(Duration::from_secs(1)) {
                let _ = agent.answer(&AgentAnswer {
                    id: question.raw.id,
                    verdict: KFI_AUTH_ALLOW,
                    rights: BOTH,
                    lifetime_ms: LIFETIME,
                    ..Default::default()
                });
            }
        }
    })?;
    let side = Side::open(ctx)?;
    let mut sum = Duration::ZERO;
    for round in 0..=QUESTIONS {
        let start = Instant::now();
        let ep = auth::endpoint(&side.dev, side.domain.handle, KEY)?;
        if round > 0 {
            sum += start.elapsed();
        }
        side.dev.close(ep.handle)?;
        for grant in auth::list(mode.dev())? {
            auth::revoke(mode.dev(), grant.id)?;
        }
        // Wait until expired grants are removed, or the open would find them and send no question.
        while !auth::list(mode.dev())?.is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    sys::kill(served, libc::SIGKILL)?;
    sys::wait_pid(served, Duration::from_secs(10))?;
    Ok(sum.as_secs_f64() * 1e6 / f64::from(QUESTIONS))
}

/// Runs the whole benchmark on node 1, because the mode is machine-wide.
pub(super) fn run(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let plain = Bench::new(ctx, &[])?.all()?;
        let open = Bench::new(ctx, KEY)?.all()?;
        let mode = Enforced::new()?;
        auth::add(
            mode.dev(),
            &GrantAdd {
                lifetime_ms: LIFETIME,
                ..auth::to_root(KEY)
            },
        )?;
        let enforced = Bench::new(ctx, KEY)?.all()?;
        drop(mode);
        let cases = [
            "open an endpoint",
            "open and enable one",
            "assign and revoke a key",
        ];
        for (i, case) in cases.into_iter().enumerate() {
            let value = enforced[i];
            figure(
                ctx,
                case,
                value,
                ("mode open, no auth key", plain[i]),
                WANTED,
            );
            figure(
                ctx,
                case,
                value,
                ("mode open, same auth key", open[i]),
                WANTED,
            );
        }
        let peer = ("with a grant", enforced[0]);
        figure(
            ctx,
            "open an endpoint, agent asked",
            asked(ctx)?,
            peer,
            None,
        );
    }
    ctx.barrier("auth")
}
