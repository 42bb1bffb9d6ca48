// SPDX-License-Identifier: MIT OR Apache-2.0

//! kfblk and peers without auth keys that take all they can get: shares by source address. The roles are
//! those of `blk`.

use super::blk_liar::{hello, name, written};
use crate::disk::{begin, connect, disconnect, end, NAME, PORT, WATCH};
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, NETNS};
use crate::op;
use crate::pair::{Opts, Side, LOCAL, WAIT};
use crate::raw::{CallError, Cq};
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use kfabric_pure::blk::{Hello, Question, Welcome, SESSION};
use kfabric_uapi::*;
use std::net::{IpAddr, SocketAddr};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "blk.p12_strangers_beyond_share_of_address_replace_only_its_own",
        strangers,
    )
    .seconds(30)
    .on(NETNS),
    Test::pair(
        "blk.p12_clients_beyond_share_of_address_are_refused",
        clients,
    )
    .seconds(60)
    .on(NETNS),
];

/// Bytes of a connection's memory for questions, and for answers.
const ROOM: usize = 8192;

/// A connection that costs its program little.
struct Light {
    side: Side,
    cq: Cq,
    ep: u64,
    map: Map,
    region: u64,
}

impl Light {
    /// Connects to the export at an address, and says nothing.
    fn new(ctx: &Ctx, addr: IpAddr) -> Result<Self> {
        let side = Side::open(ctx)?;
        let map = Map::anon(2 * ROOM)?;
        let cq = side.cq(16, KFI_CQ_FORMAT_DATA)?;
        let opts = Opts {
            tx_size: 4,
            rx_size: 4,
            ..Opts::default()
        };
        let ep = side.endpoint(&opts, &cq, 0)?.handle;
        let region = side.reg_at(map.addr(), 2 * ROOM as u64, LOCAL)?.handle;
        side.dev
            .connect(ep, SocketAddr::new(addr, PORT.parse()?), &[])?;
        let light = Self {
            side,
            cq,
            ep,
            map,
            region,
        };
        light.side.event(KFI_CONNECTED)?;
        Ok(light)
    }

    /// Says which client the connection is of; the answer, or nothing if the connection has ended.
    fn hello(&self, client: &str, session: u8) -> Result<Option<Welcome>> {
        let hello = Hello {
            session: [session; SESSION],
            disk: session.into(),
            client: name(client)?,
            ..hello(1)?
        };
        let message = written(&Question::Hello(hello))?;
        let over = |e: anyhow::Error| match e.downcast_ref::<CallError>() {
            Some(call) if call.errno.0 == libc::ENOTCONN => Ok(None),
            _ => Err(e),
        };
        self.map.write(0, &message);
        let recv = op::recv(1, &[op::iov(self.region, ROOM as u64, ROOM as u64)]);
        let send = op::send(2, &[op::iov(self.region, 0, message.len() as u64)]);
        for op in [recv, send] {
            match self.side.dev.submit(self.ep, &[op]) {
                Ok((1, 0)) => {}
                Ok((_, err)) if err == libc::ENOTCONN => return Ok(None),
                Ok((_, err)) => bail!("not taken: {err}"),
                Err(e) => return over(e.into()),
            }
        }
        loop {
            let entry = self.cq.wait(WAIT)?;
            if entry.err != 0 {
                return Ok(None);
            }
            if entry.context == 1 {
                let mut bytes = vec![0; entry.len as usize];
                self.map.read(ROOM, &mut bytes);
                let welcome = Welcome::read(&bytes).map_err(|e| anyhow::anyhow!("{e:?}"))?;
                return Ok(Some(welcome));
            }
        }
    }
}

/// P12: node 2 makes very many connections that say nothing. A silent connection of node 1 stays, and is
/// admitted when it says which client it is.
fn strangers(ctx: &mut Ctx) -> Result<()> {
    const MANY: usize = 140;
    let loaded = begin(ctx, "1M")?;
    if ctx.first() {
        let slow = Light::new(ctx, ctx.env.addr)?;
        ctx.barrier("connected")?;
        ctx.barrier("crowded")?;
        let welcome = slow.hello("slow", 1)?.context("the connection ended")?;
        ensure!(welcome.status == 0, "refused: {}", welcome.status);
        ctx.barrier("admitted")?;
        return end(ctx, loaded);
    }
    ctx.barrier("connected")?;
    let mut all = Vec::new();
    for n in 0..MANY {
        // While the target ends many connections, it refuses further ones of this address.
        let one = until("the target accepts", WAIT, || {
            Ok(Light::new(ctx, ctx.env.peer).ok())
        });
        all.push(one.with_context(|| format!("after {n}"))?);
    }
    ctx.barrier("crowded")?;
    ctx.barrier("admitted")?;
    // The youngest of this address is not replaced either.
    let last = all.last().context("none")?;
    let welcome = last.hello("last", 2)?.context("the youngest ended")?;
    ensure!(welcome.status == 0, "refused: {}", welcome.status);
    drop(all);
    end(ctx, loaded)
}

/// P12: clients without an auth key get a quarter of an export's connections from one address. The next one
/// is refused, and a client at another address is admitted.
fn clients(ctx: &mut Ctx) -> Result<()> {
    const SHARE: usize = 256;
    const OF_CLIENT: usize = 64;
    let loaded = begin(ctx, "64K")?;
    if ctx.first() {
        ctx.barrier("crowded")?;
        let watch = connect(ctx, WATCH, &["-i", "1"])?;
        ensure!(watch.exists(), "{} is not there", watch.display());
        disconnect(WATCH)?;
        ctx.barrier("admitted")?;
        return end(ctx, loaded);
    }
    let mut all = Vec::new();
    for n in 0..=SHARE {
        let one = Light::new(ctx, ctx.env.peer)?;
        let client = format!("{NAME}-{}", n / OF_CLIENT);
        let session = (n % OF_CLIENT) as u8 + 1;
        let welcome = one
            .hello(&client, session)?
            .with_context(|| format!("{n}: the connection ended"))?;
        let refused = (n == SHARE).then_some(libc::EDQUOT as u32);
        ensure!(
            welcome.status == refused.unwrap_or(0),
            "{n}: {}",
            welcome.status
        );
        all.push(one);
    }
    ctx.barrier("crowded")?;
    ctx.barrier("admitted")?;
    drop(all);
    end(ctx, loaded)
}
