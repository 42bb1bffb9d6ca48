// SPDX-License-Identifier: MIT OR Apache-2.0

//! The wire fuzzer: a peer that breaks every rule.
//!
//! Node 1 is a kfabric program ([`target`]). Node 2 has a raw verbs peer ([`peer`]), which sends
//! everything that connection manager and device permit, and below them, handmade datagrams
//! ([`roce`]). A round is a few connections with some dozens of mutated steps; then everything is
//! closed and both sides check that:
//!
//! * bytes that no key covers are unchanged, and were not read;
//! * the target has got one shutdown event of each connection;
//! * each of the target's operations has completed, once;
//! * the keys can be revoked and assigned again,
//!
//! and now and then that an ordinary transfer works. The harness checks for leftovers and kernel
//! complaints.
//!
//! All random choices come from a seed, which is printed with a failure and can be passed again:
//! `kfi-wire --seed S --from ROUND`.

mod attack;
mod datagrams;
mod handshakes;
mod operations;
pub mod peer;
pub mod rng;
pub mod roce;
pub mod target;

use crate::buf::Buf;
use crate::harness::caps::IB_TRANSPORT;
use crate::harness::{Ctx, Test, LONG, NETNS};
use crate::op::{self, iov};
use crate::pair::{Pair, Remote, REMOTE};
use crate::sys::slowness as slow;
use anyhow::{Context, Result};
use attack::Attack;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("wire.hostile_handshakes_leave_target_sound", |c| {
        run(c, handshakes::ask)
    })
    .seconds(25)
    .on(NETNS)
    .needs(IB_TRANSPORT),
    Test::pair("wire.hostile_answers_leave_target_sound", |c| {
        run(c, handshakes::answer)
    })
    .seconds(25)
    .on(NETNS)
    .needs(IB_TRANSPORT),
    Test::pair("wire.hostile_operations_leave_target_sound", |c| {
        run(c, operations::round)
    })
    .seconds(25)
    .on(NETNS)
    .needs(IB_TRANSPORT),
    Test::pair("wire.requests_with_invalid_mtu_are_refused", |c| {
        once(c, datagrams::no_mtu)
    })
    .on(NETNS)
    .needs(IB_TRANSPORT),
    Test::pair(
        "wire.peer_never_answering_is_given_up",
        handshakes::never_answers,
    )
    .seconds(150)
    .on(LONG)
    .needs(IB_TRANSPORT),
    Test::pair("wire.peer_never_ready_is_given_up", handshakes::never_ready)
        .seconds(150)
        .on(LONG)
        .needs(IB_TRANSPORT),
    Test::pair("wire.forged_datagrams_leave_target_sound", |c| {
        run(c, datagrams::round)
    })
    .seconds(25)
    .on(NETNS)
    .needs(IB_TRANSPORT),
];

/// Default duration of each test in seconds.
const SECONDS: u64 = 8;

/// Names of environment variables that control a run.
pub mod env {
    /// Duration of each test in seconds.
    pub const SECONDS: &str = "KFI_WIRE_SECONDS";
    /// Seed of the random choices.
    pub const SEED: &str = "KFI_WIRE_SEED";
    /// Number of the first round.
    pub const FROM: &str = "KFI_WIRE_FROM";
    /// Maximum number of rounds.
    pub const ROUNDS: &str = "KFI_WIRE_ROUNDS";
    /// Path of the log of all steps.
    pub const LOG: &str = "KFI_WIRE_LOG";

    /// Reads a number from the environment, decimal or hexadecimal.
    pub fn number(name: &str) -> Option<u64> {
        let text = std::env::var(name).ok()?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

/// Runs a test: node 1 is the target, node 2 runs `round` again and again.
fn run(ctx: &mut Ctx, round: fn(&mut Attack<'_>) -> Result<()>) -> Result<()> {
    if ctx.first() {
        return target::serve(ctx);
    }
    let mut attack = Attack::new(ctx)?;
    attack.run(round)
}

/// Runs a test without random choices.
fn once(ctx: &mut Ctx, round: fn(&mut Attack<'_>) -> Result<()>) -> Result<()> {
    if ctx.first() {
        return target::serve(ctx);
    }
    Attack::new(ctx)?.run_rounds(1, round)
}

/// Moves bytes between ordinary endpoints of both nodes.
///
/// # Errors
///
/// If any step fails.
fn fresh(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 8192;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(LEN)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        let (_, remote) = pair.side.export(region, 0, LEN as u64, REMOTE)?;
        pair.post(op::recv(3, &[iov(region, 0, 16)]))?;
        ctx.ctl.send(&remote)?;
        pair.wait_context(3).context("the message")?;
        buf.check_part(16, LEN - 16, 5)?;
    } else {
        let remote: Remote = ctx.ctl.recv()?;
        buf.fill_part(16, LEN - 16, 5);
        pair.write(region, 0, LEN as u64, remote.addr, remote.key)?;
        buf.clear(0);
        pair.read(region, 0, LEN as u64, remote.addr, remote.key)?;
        buf.check_part(16, LEN - 16, 5)?;
        pair.post(op::send(4, &[iov(region, 0, 16)]))?;
        pair.wait_context(4)?;
    }
    ctx.barrier("transferred")
}
