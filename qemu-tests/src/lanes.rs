// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many connections at a time, for tests that end each of them.
//!
//! A refused access ends a reliable connection, so a test of many refused accesses needs as many
//! connections.

use crate::buf::Buf;
use crate::harness::caps::REMOTE_ERRORS;
use crate::harness::Ctx;
use crate::op::{self, iov};
use crate::pair::{Opts, Side, LOCAL, LONG, WAIT};
use crate::raw::{self, Cq};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::net::SocketAddr;

/// Number of connections.
pub const LANES: usize = 16;
/// Bytes that one operation of [`Lanes::attempt`] may move.
pub const SPAN: u64 = 16 << 10;
/// Byte that [`Lanes::attempt`] writes.
pub const WRITTEN: u8 = 0x77;
/// Byte at the destination of [`Lanes::attempt`]'s reads before the read.
pub const UNREAD: u8 = 0xee;

/// Connections between the nodes, each with a completion queue of its own.
pub struct Lanes {
    /// Side of the connections.
    pub side: Side,
    /// Completion queue of each connection.
    pub cqs: Vec<Cq>,
    /// Handles of the endpoints; empty before [`Lanes::connect`].
    pub eps: Vec<u64>,
    /// Number of endpoints, from the first on, with endpoint-scoped keys.
    pub own_keys: usize,
    /// Auth keys of the endpoints, in turn; empty: no auth keys. Both nodes have the same.
    pub auth: &'static [&'static [u8]],
    /// Address of node 1's listener.
    at: SocketAddr,
    /// Source of writes, and behind it the destination of reads.
    local: Buf,
    /// Regions of `local`, one under each auth key: a device lets endpoints use no other's.
    regions: Vec<u64>,
    /// Auth keys of the regions.
    keys: &'static [&'static [u8]],
}

/// Returns the auth key of a connection; the keys are used in turn. Empty: none.
fn key_of(auth: &'static [&'static [u8]], lane: usize) -> &'static [u8] {
    auth.iter().cycle().nth(lane).copied().unwrap_or(&[])
}

impl Lanes {
    /// Creates an empty set; both nodes call this.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn new(ctx: &mut Ctx) -> Result<Self> {
        Self::under(ctx, &[])
    }

    /// Creates an empty set, whose connections will use these auth keys in turn; both nodes call
    /// this.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn under(ctx: &mut Ctx, auth: &'static [&'static [u8]]) -> Result<Self> {
        // Tests of many connections tell refused accesses by their errors.
        ctx.need(REMOTE_ERRORS)?;
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

    /// Closes the connections and makes [`LANES`] new ones; both nodes call this.
    ///
    /// # Errors
    ///
    /// The errno of the failed call, or no connection in time.
    pub fn connect(&mut self, ctx: &mut Ctx) -> Result<()> {
        let side = &self.side;
        // A node that only serves would close connections that the other still uses.
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
        // The event of a request may arrive before that of an earlier connection.
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

    /// Writes to or reads from the peer over one connection. Returns the errno, 0 for a success.
    ///
    /// # Errors
    ///
    /// If no completion comes, or the local memory does not match the read's result.
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

    /// Returns the region that a connection uses locally.
    fn region_of(&self, lane: usize) -> u64 {
        let key = key_of(self.auth, lane);
        let at = self.keys.iter().position(|k| *k == key);
        self.regions[at.unwrap_or(0)]
    }

    /// Returns the local region of connections without an auth key.
    pub fn region(&self) -> u64 {
        self.region_of(0)
    }

    /// Returns `len` bytes of [`WRITTEN`], for connections without an auth key.
    pub fn source(&self, len: u64) -> Iov {
        self.source_of(0, len)
    }

    /// Returns `len` bytes of [`WRITTEN`] for a connection.
    pub fn source_of(&self, lane: usize, len: u64) -> Iov {
        iov(self.region_of(lane), 0, len)
    }
}
