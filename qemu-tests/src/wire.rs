// SPDX-License-Identifier: MIT OR Apache-2.0

//! The wire fuzzer: what a peer can do to kfabric that keeps to no rule.
//!
//! Node 1 is a kfabric program ([`target`]). Node 2 has a raw verbs peer
//! ([`peer`]) that sends whatever connection manager and device let it, and
//! below those, datagrams put together by hand ([`roce`]). A round is a few
//! connections with some dozens of mutated steps; then everything is ended and
//! both sides look:
//!
//! * bytes that no key gives away are as they were, and were not read;
//! * the target has heard of the end of each connection, once;
//! * each of its operations has completed, once;
//! * the keys can be revoked and assigned again;
//!
//! and now and then that an ordinary transfer works. The harness looks for
//! what is left behind and for complaints of the kernel.
//!
//! What happens by chance comes from a seed, which is printed with a failure
//! and can be given back: `kfi-wire --seed S --from ROUND`.

mod attack;
mod datagrams;
mod handshakes;
mod operations;
pub mod peer;
pub mod rng;
pub mod roce;
pub mod target;

use crate::buf::Buf;
use crate::harness::{Ctx, Test, LONG, NETNS};
use crate::op::{self, iov};
use crate::pair::{Pair, Remote, REMOTE};
use crate::sys::slowness as slow;
use anyhow::{Context, Result};
use attack::Attack;

/// The tests.
pub const TESTS: &[Test] = &[
    Test::pair("wire.hostile_handshakes", |c| run(c, handshakes::ask))
        .seconds(25)
        .on(NETNS),
    Test::pair("wire.hostile_answers", |c| run(c, handshakes::answer))
        .seconds(25)
        .on(NETNS),
    Test::pair("wire.hostile_operations", |c| run(c, operations::round))
        .seconds(25)
        .on(NETNS),
    Test::pair("wire.packets_of_no_size", |c| once(c, datagrams::no_mtu)).on(NETNS),
    Test::pair("wire.never_answers", handshakes::never_answers)
        .seconds(150)
        .on(LONG),
    Test::pair("wire.never_ready", handshakes::never_ready)
        .seconds(150)
        .on(LONG),
    Test::pair("wire.forged_datagrams", |c| run(c, datagrams::round))
        .seconds(25)
        .on(NETNS),
];

/// Seconds of each test where nobody says how many.
const SECONDS: u64 = 8;

/// What the environment says about how to run.
pub mod env {
    /// Seconds of each test.
    pub const SECONDS: &str = "KFI_WIRE_SECONDS";
    /// The seed.
    pub const SEED: &str = "KFI_WIRE_SEED";
    /// The first round.
    pub const FROM: &str = "KFI_WIRE_FROM";
    /// How many rounds, at most.
    pub const ROUNDS: &str = "KFI_WIRE_ROUNDS";
    /// A file for what was done.
    pub const LOG: &str = "KFI_WIRE_LOG";

    /// A number of the environment, decimal or hexadecimal.
    pub fn number(name: &str) -> Option<u64> {
        let text = std::env::var(name).ok()?;
        match text.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

/// Runs a test: node 1 is the target, node 2 does `round` again and again.
fn run(ctx: &mut Ctx, round: fn(&mut Attack<'_>) -> Result<()>) -> Result<()> {
    if ctx.first() {
        return target::serve(ctx);
    }
    let mut attack = Attack::new(ctx)?;
    attack.run(round)
}

/// Runs a test that is always the same.
fn once(ctx: &mut Ctx, round: fn(&mut Attack<'_>) -> Result<()>) -> Result<()> {
    if ctx.first() {
        return target::serve(ctx);
    }
    Attack::new(ctx)?.run_rounds(1, round)
}

/// A transfer between ordinary endpoints of both nodes.
///
/// # Errors
///
/// When anything of it fails.
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
