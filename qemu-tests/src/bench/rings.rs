// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cost of a message through rings, beside one of libfabric's own shm provider. One thread has both
//! ends, so that only the way of a message is counted: no switch to the peer, and no poll in vain.

use super::{build, Figure};
use crate::harness::{guest, Ctx, Env};
use crate::pair::WAIT;
use anyhow::{ensure, Context, Result};
use kfabric::{
    Access, Bind, CompletionQueue, Device, Domain, Endpoint, EndpointAttr, EventQueue, Format,
    Hints, Memory, Region,
};

/// An end of a connection.
struct End {
    ep: Endpoint,
    cq: CompletionQueue,
    region: Region,
}

impl End {
    fn new(
        domain: &Domain,
        eq: &EventQueue,
        len: usize,
        open: impl FnOnce(&EndpointAttr) -> Result<Endpoint>,
    ) -> Result<Self> {
        let attr = EndpointAttr {
            rings: true,
            ..EndpointAttr::default()
        };
        let ep = open(&attr)?;
        let cq = domain.completion_queue(0, Format::Data)?;
        ep.bind_event_queue(eq)?;
        ep.bind_completion_queue(&cq, Bind::TRANSMIT | Bind::RECV)?;
        ep.enable()?;
        let region = domain.register(Memory::anonymous(2 * len)?, Access::SEND | Access::RECV)?;
        Ok(Self { ep, cq, region })
    }
}

fn ends(env: &Env, len: usize) -> Result<(End, End)> {
    let device = Device::open()?;
    let hints = Hints::new()
        .provider("kshm")
        .source(&env.addr.to_string(), 0);
    let info = device.info(&hints)?.into_iter().next();
    let info = info.context("no kshm")?;
    let fabric = device.fabric(&info)?;
    let domain = fabric.domain(&info)?;
    let (near, far) = (fabric.event_queue(0)?, fabric.event_queue(0)?);
    let pep = fabric.passive_endpoint(&far, env.at(0), 0)?;
    pep.listen(0)?;
    let a = End::new(&domain, &near, len, |attr| Ok(domain.endpoint(attr)?))?;
    a.ep.connect(pep.local_addr()?, &[])?;
    let request = far.wait(WAIT)?.request()?;
    let b = End::new(&domain, &far, len, |attr| {
        Ok(domain.endpoint_for(request, attr).map_err(|r| r.error)?)
    })?;
    b.ep.accept(&[])?;
    near.wait(WAIT)?.connected()?;
    far.wait(WAIT)?.connected()?;
    ensure!(a.ep.has_rings() == Some(true), "there are no rings");
    ensure!(b.ep.has_rings() == Some(true), "there are no rings");
    Ok((a, b))
}

/// Sends one message: posts a receive, sends, reads both completions.
fn one(from: &End, to: &End, len: usize) -> Result<()> {
    to.ep.recv(to.region.segment(len..2 * len), 1)?;
    from.ep.send(from.region.segment(0..len), 2)?;
    let (mut sent, mut came) = (false, false);
    while !sent || !came {
        if let Some(done) = to.cq.read_one()? {
            done.ok()?;
            came = true;
        }
        if let Some(done) = from.cq.read_one()? {
            done.ok()?;
            sent = true;
        }
    }
    Ok(())
}

/// Measures messages of some lengths.
pub(super) fn run(ctx: &mut Ctx) -> Result<()> {
    if ctx.first() {
        let program = build(
            "fi_shm_pong",
            include_str!("../../interop/fi_shm_pong.c"),
            &["-lfabric"],
        )?;
        let program = program.to_string_lossy();
        for (case, len, rounds) in [
            ("message 8 B", 8, 2000u32),
            ("message 64 B", 64, 2000),
            ("message 1 KiB", 1 << 10, 1000),
            ("message 4 KiB", 4 << 10, 1000),
            ("message 64 KiB", 64 << 10, 100),
        ] {
            let (a, b) = ends(&ctx.env, len)?;
            let both = |rounds: u32| -> Result<()> {
                for _ in 0..rounds {
                    one(&a, &b, len)?;
                    one(&b, &a, len)?;
                }
                Ok(())
            };
            both(100)?;
            let start = crate::sys::monotonic_ns();
            both(rounds)?;
            let value = (crate::sys::monotonic_ns() - start) as f64 / f64::from(2 * rounds);
            let args = [len.to_string(), rounds.to_string()];
            let out = guest::run(&program, &[args[0].as_str(), args[1].as_str()])?;
            let peer: f64 = out.trim().parse().context("the output of fi_shm_pong")?;
            Figure {
                bench: "shm",
                case,
                value,
                unit: "ns",
                peer: Some("libfabric's shm"),
                peer_value: Some(peer),
                ratio: None,
                wanted: (len <= 4 << 10).then_some("1.0"),
            }
            .print(ctx);
        }
    }
    ctx.barrier("rings")
}
