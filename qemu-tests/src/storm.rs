// SPDX-License-Identifier: MIT OR Apache-2.0

//! Storms: processes use kfabric in every way, while their resources are taken away at random
//! moments.
//!
//! One round of a storm is a test, and one seed: the seed makes the [`plan`], a list of blows with
//! their times, the same on both nodes. Each node has a [`crew`] of workers, processes that
//! connect, send, write and read under keys and check every byte ([`session`]), or open and close
//! all kinds of objects in every state ([`churn`]). [`chaos`] executes the plan. When the plan is
//! done, the machine is restored, and
//!
//! * every worker, the old ones too, completes a cycle in bounded time: none hangs;
//! * all workers are killed, and nothing is left of them: no object, no pinned page, no RDMA
//!   resource;
//! * the modules unload, load, and a fresh transfer works.
//!
//! A worker may meet errnos. A wrong byte, a completion twice or never, a counter that disagrees,
//! or a call that does not return fails the round.

pub mod chaos;
pub mod churn;
pub mod crew;
pub mod plan;
pub mod session;
pub mod worker;

use crate::harness::guest::{load, module_users, unload, until};
use crate::harness::{Ctx, Topology};
use crate::raw::Dev;
use crate::tests::death::fresh_transfer;
use anyhow::{Context, Result};
use chaos::Chaos;
use crew::Crew;
use plan::{Plan, Wire};
use std::time::Duration;

/// Duration of a round's blows.
pub const ROUND: Duration = Duration::from_secs(20);
/// Time within which a worker must complete a cycle once the machine is restored: the provider's
/// bounds for a silent peer and for connecting, with a margin for a slow machine.
const CALM: Duration = Duration::from_secs(120);

/// Runs a round of a storm, with the seed of this run.
///
/// # Errors
///
/// If a check fails; the error names the seed.
pub fn round(ctx: &mut Ctx) -> Result<()> {
    let seed = if ctx.first() {
        let seed = ctx.env.seed;
        ctx.ctl.send(&seed)?;
        seed
    } else {
        ctx.ctl.recv()?
    };
    let plan = Plan::new(seed, ROUND, Wire::of(ctx.env.topology));
    for line in plan.lines() {
        eprintln!("{line}");
    }
    blow(ctx, seed, &plan).with_context(|| {
        format!(
            "storm of seed {seed}, to be replayed with: kfi-tests run --topology {} --only storm --seed {seed}",
            ctx.env.topology
        )
    })
}

fn blow(ctx: &mut Ctx, seed: u64, plan: &Plan) -> Result<()> {
    let mut crew = Crew::new(&ctx.env, seed)?;
    ctx.barrier("the storm begins")?;
    let mut chaos = Chaos::new(&ctx.env);
    let stormed = chaos
        .run(plan, &mut crew)
        .and_then(|()| chaos.calm(&mut crew, CALM));
    if stormed.is_err() {
        chaos.clear();
    }
    // The peer's workers need ours until they are done too.
    let met = ctx.barrier("calm");
    let ended = crew.end();
    eprintln!("node {}: {}", ctx.env.node, crew.summary());
    stormed?;
    met?;
    ended?;
    nothing_left(ctx)?;
    ctx.barrier("all are dead")?;
    reload(ctx)?;
    ctx.barrier("reloaded")?;
    fresh_transfer(ctx).context("a fresh transfer after the storm")
}

/// Waits until no object is left on this machine.
fn nothing_left(ctx: &mut Ctx) -> Result<()> {
    // In one guest, the other node's dead processes are seen too.
    ctx.barrier("killed")?;
    let dev = Dev::open().context("opening the device file after the storm")?;
    until("objects go away", Duration::from_secs(20), || {
        Ok(dev.obj_list()?.is_empty().then_some(()))
    })
}

/// Unloads and loads the modules, which have no user any more.
fn reload(ctx: &Ctx) -> Result<()> {
    if ctx.env.topology != Topology::Two && !ctx.first() {
        return Ok(());
    }
    for name in ["kfi_test_rust_api", "kverbs", "kshm", "kfabric"] {
        if module_users(name).is_some() {
            unload(name).context("after the storm")?;
        }
    }
    ["kfabric", "kverbs", "kshm"].into_iter().try_for_each(load)
}
