// SPDX-License-Identifier: MIT OR Apache-2.0

//! Connections made many at a time, for what ends each of them.
//!
//! A refused access ends a reliable connection, so whoever tries many refused
//! ones needs as many connections.

use crate::buf::Buf;
use crate::harness::Ctx;
use crate::op::{self, iov};
use crate::pair::{Opts, Side, LOCAL, LONG, WAIT};
use crate::raw::{self, Cq};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::net::SocketAddr;

/// Connections there are at once.
pub const LANES: usize = 16;
/// Bytes that one operation of [`Lanes::attempt`] may move.
pub const SPAN: u64 = 16 << 10;
/// What [`Lanes::attempt`] writes.
pub const WRITTEN: u8 = 0x77;
/// What lies where [`Lanes::attempt`] reads to before it reads.
pub const UNREAD: u8 = 0xee;

/// Connections between the nodes, each with a completion queue of its own.
pub struct Lanes {
    /// What they are on.
    pub side: Side,
    /// Completions of each.
    pub cqs: Vec<Cq>,
    /// The endpoints; empty before [`Lanes::connect`].
    pub eps: Vec<u64>,
    /// How many of them, from the first on, have keys of their own.
    pub own_keys: usize,
    /// Auth keys of them, in turn; none: they have none. The same on both nodes.
    pub auth: &'static [&'static [u8]],
    /// Where node 1 listens.
    at: SocketAddr,
    /// What is written, and behind it what is read into.
    local: Buf,
    /// Its regions, one under each auth key: a device lets endpoints use no other's.
    regions: Vec<u64>,
    /// The auth keys of these.
    keys: &'static [&'static [u8]],
}

/// The auth key of a lane, of which there are these in turn; empty: none.
fn key_of(auth: &'static [&'static [u8]], lane: usize) -> &'static [u8] {
    auth.iter().cycle().nth(lane).copied().unwrap_or(&[])
}

impl Lanes {
    /// None yet; both nodes call it.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn new(ctx: &mut Ctx) -> Result<Self> {
        Self::under(ctx, &[])
    }

    /// None yet, and all that there will be have one of these auth keys, in turn; both nodes call
    /// it.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn under(ctx: &mut Ctx, auth: &'static [&'static [u8]]) -> Result<Self> {
        let side = Side::open(ctx)?;
        let cqs: raw::Result<Vec<_>> = (0..LANES)
            .map(|_| side.cq(64, KFI_CQ_FORMAT_DATA))
            .collect();
        let at = if ctx.first() {
            let (_, at) = side.listen_under(ctx.env.at(0), 2 * LANES as u32, auth)?;
            ctx.ctl.send(&at.port())?;
            at
        } else {
            let port: u16 = ctx.ctl.recv()?;
            ctx.env.peer_at(port)
        };
        let local = Buf::new(2 * SPAN as usize)?;
        local.clear(WRITTEN);
        let reg = |key: &[u8]| {
            side.dev.call_region(&RegionReg {
                flags: KFI_REGION_DYNAMIC_KEYS,
                domain: side.domain.handle,
                addr: local.addr(),
                len: local.len() as u64,
                access: LOCAL,
                auth_key: if key.is_empty() {
                    0
                } else {
                    key.as_ptr() as u64
                },
                auth_key_size: key.len() as u32,
                ..Default::default()
            })
        };
        let mut regions = Vec::new();
        for key in auth {
            regions.push(reg(key)?.handle);
        }
        if auth.is_empty() {
            regions.push(reg(&[])?.handle);
        }
        Ok(Self {
            side,
            cqs: cqs?,
            eps: Vec::new(),
            own_keys: 0,
            auth,
            at,
            local,
            regions,
            keys: auth,
        })
    }

    /// Closes what there is and makes [`LANES`] new ones; both nodes call it.
    ///
    /// # Errors
    ///
    /// What the calls answer, or no connection in time.
    pub fn connect(&mut self, ctx: &mut Ctx) -> Result<()> {
        let side = &self.side;
        // Whoever only serves would end what the other still uses.
        ctx.barrier("lanes used")?;
        for ep in self.eps.drain(..) {
            side.dev.close(ep).context("closing a lane")?;
        }
        while side.dev.eq_read(side.eq.handle, 0).is_ok() {}
        for cq in &self.cqs {
            while cq.read().is_some() {}
        }
        ctx.barrier("lanes closed")?;
        let opts = |lane| Opts {
            rx_size: 4,
            own_keys: lane < self.own_keys,
            auth_key: key_of(self.auth, lane),
            ..Opts::default()
        };
        if !ctx.first() {
            for (lane, cq) in self.cqs.iter().enumerate() {
                let ep = side.endpoint(&opts(lane), cq, 0)?.handle;
                // Requests may arrive in another order.
                side.dev.connect(ep, self.at, &[lane as u8])?;
                self.eps.push(ep);
            }
        }
        // A request may be told before an earlier connection is.
        let mut up = 0;
        if ctx.first() {
            self.eps.resize(LANES, 0);
        }
        while up < LANES {
            let event = side
                .dev
                .eq_wait(&side.eq, WAIT)
                .with_context(|| format!("{up} lanes are up"))?;
            match event.raw.event {
                KFI_CONNECTED => up += 1,
                KFI_CONNREQ => {
                    let lane = event.data.first().map_or(LANES, |lane| usize::from(*lane));
                    let place = self.eps.get_mut(lane).filter(|ep| **ep == 0);
                    let place = place.with_context(|| format!("a second lane {lane}"))?;
                    let (opts, cq) = (opts(lane), &self.cqs[lane]);
                    let ep = side.endpoint(&opts, cq, event.raw.connreq)?.handle;
                    side.dev.accept(ep, &[])?;
                    *place = ep;
                }
                _ => bail!("{:?}", event.raw),
            }
        }
        ctx.barrier("lanes connected")
    }

    /// Writes to or reads from the peer over one of them; the errno, 0 for a success.
    ///
    /// # Errors
    ///
    /// When no answer comes, or what a read has left in local memory is not what it says.
    pub fn attempt(
        &self,
        lane: usize,
        write: bool,
        len: u64,
        remote_addr: u64,
        key: u64,
    ) -> Result<i32> {
        ensure!(len <= SPAN, "{len} bytes are too many");
        let into = SPAN as usize;
        let op = if write {
            op::write(1, &[self.source_of(lane, len)], remote_addr, key)
        } else {
            (into..into + len as usize).for_each(|at| self.local.set(at, UNREAD));
            op::read(1, &[iov(self.region_of(lane), SPAN, len)], remote_addr, key)
        };
        let ep = *self.eps.get(lane).context("no such lane")?;
        self.side.dev.submit(ep, &[op])?;
        let errno = self.cqs[lane].wait(LONG)?.err as i32;
        if !write && errno != 0 {
            self.local
                .check_value(into, len as usize, UNREAD)
                .context("a refused read brought something")?;
        }
        Ok(errno)
    }

    /// The region that a lane uses locally.
    fn region_of(&self, lane: usize) -> u64 {
        let key = key_of(self.auth, lane);
        let at = self.keys.iter().position(|k| *k == key);
        self.regions[at.unwrap_or(0)]
    }

    /// The region of what is written and read locally, of lanes without an auth key.
    pub fn region(&self) -> u64 {
        self.region_of(0)
    }

    /// `len` bytes of [`WRITTEN`], for lanes without an auth key.
    pub fn source(&self, len: u64) -> Iov {
        self.source_of(0, len)
    }

    /// `len` bytes of [`WRITTEN`] for a lane.
    pub fn source_of(&self, lane: usize, len: u64) -> Iov {
        iov(self.region_of(lane), 0, len)
    }
}
