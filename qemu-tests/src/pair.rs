// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two connected endpoints, one on each node, in a few lines.
//!
//! [`Side`] is what one node opens: file, fabric, domain, event queue.
//! [`Pair`] adds a completion queue and an endpoint connected to the other
//! node's. Both nodes run the same constructor; node 1 listens.

use crate::auth;
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::{Ctx, Env};
use crate::op;
use crate::raw::{self, from_sockaddr, hints, name_field, Cq, Dev, Eq, Event};
use crate::sys::Map;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// How long a small operation or an event may take: far longer than it does.
pub const WAIT: Duration = Duration::from_secs(30);
/// How long a large operation may take on a slow machine.
pub const LONG: Duration = Duration::from_secs(240);

/// Every local right.
pub const LOCAL: u64 = KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE;
/// Every remote right.
pub const REMOTE: u64 = KFI_REMOTE_READ | KFI_REMOTE_WRITE;

/// What a node opens.
pub struct Side {
    /// The open device file.
    pub dev: Dev,
    /// The fabric's handle.
    pub fabric: u64,
    /// The domain: its handle and what it can do.
    pub domain: DomainOpen,
    /// The event queue.
    pub eq: Eq,
}

/// The info entry of this node's own device and address.
///
/// # Errors
///
/// When the provider offers none.
pub fn own_info(dev: &Dev, env: &Env) -> Result<InfoEntry> {
    let wanted = InfoEntry {
        prov_name: name_field(&env.provider),
        ..hints()
    };
    let list = dev.getinfo(Some(&wanted))?;
    let own = |e: &&InfoEntry| from_sockaddr(&e.src_addr).is_some_and(|a| a.ip() == env.addr);
    match list.iter().find(own) {
        Some(entry) => Ok(*entry),
        None => bail!(
            "{} offers {} entries, none for {}",
            env.provider,
            list.len(),
            env.addr
        ),
    }
}

impl Side {
    /// Opens this node's side.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn open(ctx: &Ctx) -> Result<Self> {
        Self::of(&ctx.env)
    }

    /// Opens the side of a node.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn of(env: &Env) -> Result<Self> {
        Self::on(Dev::open()?, env)
    }

    /// Opens the side of a node through an open device file.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn on(dev: Dev, env: &Env) -> Result<Self> {
        let info = own_info(&dev, env)?;
        let fabric = dev.fabric_open(&env.provider, &raw::field_text(&info.fabric_name))?;
        let domain = dev.domain_open(fabric, &raw::field_text(&info.domain_name))?;
        let eq = dev.eq_open(fabric, 0)?;
        Ok(Self {
            dev,
            fabric,
            domain,
            eq,
        })
    }

    /// The same objects by another descriptor.
    ///
    /// # Errors
    ///
    /// What `dup(2)` answers.
    pub fn again(&self) -> Result<Self> {
        Ok(Self {
            dev: self.dev.dup()?,
            fabric: self.fabric,
            domain: self.domain,
            eq: Eq {
                handle: self.eq.handle,
                fd: self.eq.fd.try_clone()?,
            },
        })
    }

    /// Registers a buffer, without keys.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn reg(&self, buf: &Buf, access: u64) -> raw::Result<RegionReg> {
        self.reg_at(buf.addr(), buf.len() as u64, access)
    }

    /// Registers memory, without keys.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn reg_at(&self, addr: u64, len: u64, access: u64) -> raw::Result<RegionReg> {
        self.dev.region_reg(
            self.domain.handle,
            addr,
            len,
            access,
            KFI_REGION_DYNAMIC_KEYS,
        )
    }

    /// Gives a part of a region a key: the slot, and what a peer needs.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn export(&self, region: u64, offset: u64, len: u64, access: u64) -> Result<(u64, Remote)> {
        let slot = self.dev.key_alloc(region, 1)?[0];
        Ok((slot, self.assign(slot, offset, len, access)?))
    }

    /// Assigns a slot a key.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn assign(&self, slot: u64, offset: u64, len: u64, access: u64) -> Result<Remote> {
        let k = self.dev.key_assign(slot, offset, len, access)?;
        Ok(Remote {
            addr: k.remote_addr,
            key: k.key,
            len,
        })
    }

    /// A completion queue.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn cq(&self, depth: u32, format: u32) -> raw::Result<Cq> {
        self.dev.cq_open(self.domain.handle, depth, format)
    }

    /// Starts to listen on an address; the passive endpoint and where it listens.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<(u64, SocketAddr)> {
        self.listen_under(addr, backlog, &[])
    }

    /// As [`Side::listen`], for peers with any of some auth keys; without any for those that have
    /// none.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn listen_under(
        &self,
        addr: SocketAddr,
        backlog: u32,
        keys: &[&[u8]],
    ) -> Result<(u64, SocketAddr)> {
        let refs = crate::auth::refs(keys);
        let mut call = PepOpen {
            fabric: self.fabric,
            eq: self.eq.handle,
            addr: raw::to_sockaddr(addr),
            context: 0x9e9,
            auth_keys: if refs.is_empty() {
                0
            } else {
                refs.as_ptr() as u64
            },
            auth_key_count: refs.len() as u32,
            ..Default::default()
        };
        self.dev.call(&mut call)?;
        let pep = call.handle;
        self.dev.listen(pep, backlog)?;
        let at = self.dev.getname(pep, false)?;
        ensure!(at.port() != 0, "it listens on port 0");
        Ok((pep, at))
    }

    /// Opens, binds and enables an endpoint as `opts` say, for `connreq` or (0) to connect.
    ///
    /// # Errors
    ///
    /// What the calls answer.
    pub fn endpoint(&self, opts: &Opts, cq: &Cq, connreq: u64) -> Result<EpOpen> {
        let ep = self.dev.ep_open(&EpOpen {
            flags: if opts.own_keys { KFI_EP_OWN_KEYS } else { 0 }
                | if opts.rings { KFI_EP_RINGS } else { 0 },
            connreq,
            context: opts.context,
            tx_size: opts.tx_size,
            rx_size: opts.rx_size,
            iov_limit: opts.iov_limit,
            ..auth::keyed(self.domain.handle, opts.auth_key)
        })?;
        self.ready(&ep, opts, cq).inspect_err(|_| {
            let _ = self.dev.close(ep.handle);
        })?;
        Ok(ep)
    }

    fn ready(&self, ep: &EpOpen, opts: &Opts, cq: &Cq) -> Result<()> {
        self.dev
            .bind(ep.handle, self.eq.handle, 0)
            .context("binding the event queue")?;
        let selective = if opts.selective {
            KFI_SELECTIVE_COMPLETION
        } else {
            0
        };
        let sides = KFI_TRANSMIT | KFI_RECV | selective;
        self.dev
            .bind(ep.handle, cq.handle, sides)
            .context("binding the completion queue")?;
        for (cntr, flags) in &opts.counters {
            self.dev
                .bind(ep.handle, *cntr, *flags)
                .context("binding a counter")?;
        }
        Ok(self.dev.enable(ep.handle)?)
    }

    /// Waits for an event of this kind.
    ///
    /// # Errors
    ///
    /// When none comes, or another.
    pub fn event(&self, kind: u32) -> Result<Event> {
        let event = self
            .dev
            .eq_wait(&self.eq, WAIT)
            .with_context(|| format!("event {kind:#x}"))?;
        ensure!(
            event.raw.event == kind,
            "event {:?}, not {kind:#x}",
            event.raw
        );
        Ok(event)
    }
}

/// What a peer needs to reach exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// The key.
    pub key: u64,
    /// Bytes.
    pub len: u64,
}

impl Remote {
    /// Where in a shared page the word lies that says that it is there; the rest comes behind it.
    const THERE: usize = 4;

    /// Leaves it in a page that is shared with who called `fork`.
    pub fn leave_in(&self, shared: &Map) {
        shared.set64(8, self.addr);
        shared.set64(16, self.key);
        shared.set64(24, self.len);
        shared.store32(Self::THERE, 1);
    }

    /// Tells the other node what a child has left in the page that is shared with it.
    ///
    /// # Errors
    ///
    /// When the child left nothing in time, or the other node is not there.
    pub fn tell_of(ctx: &mut Ctx, shared: &Map) -> Result<()> {
        until("a connection", WAIT, || {
            Ok((shared.load32(Self::THERE) == 1).then_some(()))
        })?;
        ctx.ctl.send(&Self {
            addr: shared.get64(8),
            key: shared.get64(16),
            len: shared.get64(24),
        })
    }
}

/// How a pair is made.
#[derive(Clone, Debug)]
pub struct Opts {
    /// The endpoint's context.
    pub context: u64,
    /// Operations of the transmit side.
    pub tx_size: u32,
    /// Receives of the receive side.
    pub rx_size: u32,
    /// Scatter entries of an operation.
    pub iov_limit: u32,
    /// Entries of the completion queue.
    pub cq_depth: u32,
    /// Format of its entries.
    pub cq_format: u32,
    /// Entries only where asked for.
    pub selective: bool,
    /// Counters to bind, with their flags.
    pub counters: Vec<(u64, u64)>,
    /// Over IPv6.
    pub v6: bool,
    /// With keys of its own.
    pub own_keys: bool,
    /// Asking for rings.
    pub rings: bool,
    /// Its auth key; empty: none.
    pub auth_key: &'static [u8],
}

impl Default for Opts {
    fn default() -> Self {
        Self {
            context: 0xe9,
            tx_size: 0,
            rx_size: 0,
            iov_limit: KFI_IOV_MAX as u32,
            cq_depth: 0,
            cq_format: KFI_CQ_FORMAT_DATA,
            selective: false,
            counters: Vec::new(),
            v6: false,
            own_keys: false,
            rings: false,
            auth_key: &[],
        }
    }
}

/// An endpoint connected to the other node's.
pub struct Pair {
    /// What it was opened on.
    pub side: Side,
    /// Its completions, of both sides.
    pub cq: Cq,
    /// Its handle.
    pub ep: u64,
    /// What it was given.
    pub got: EpOpen,
}

impl Pair {
    /// A pair as the defaults make it.
    ///
    /// # Errors
    ///
    /// What the calls answer, on either node.
    pub fn new(ctx: &mut Ctx) -> Result<Self> {
        Self::with(ctx, &Opts::default())
    }

    /// A pair as `opts` say.
    ///
    /// # Errors
    ///
    /// What the calls answer, on either node.
    pub fn with(ctx: &mut Ctx, opts: &Opts) -> Result<Self> {
        let side = Side::open(ctx)?;
        Self::on(ctx, side, opts)
    }

    /// A pair on a side that is open already.
    ///
    /// # Errors
    ///
    /// What the calls answer, on either node.
    pub fn on(ctx: &mut Ctx, side: Side, opts: &Opts) -> Result<Self> {
        let cq = side.cq(opts.cq_depth, opts.cq_format)?;
        let got = connect(ctx, &side, opts, &cq)?;
        Ok(Self {
            side,
            cq,
            ep: got.handle,
            got,
        })
    }

    /// The device file.
    pub fn dev(&self) -> &Dev {
        &self.side.dev
    }

    /// Registers a buffer for everything, without keys; the region's handle.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn reg(&self, buf: &Buf) -> Result<u64> {
        Ok(self.side.reg(buf, LOCAL | REMOTE)?.handle)
    }

    /// Posts one operation.
    ///
    /// # Errors
    ///
    /// What the call answers.
    pub fn post(&self, op: OpEntry) -> raw::Result<()> {
        self.dev().submit(self.ep, &[op]).map(|_| ())
    }

    /// Posts operations, all of them.
    ///
    /// # Errors
    ///
    /// When one is refused.
    pub fn post_all(&self, ops: &[OpEntry]) -> Result<()> {
        let (done, err) = self.dev().submit(self.ep, ops)?;
        ensure!(
            done == ops.len() && err == 0,
            "{done} of {} operations were taken, errno {err}",
            ops.len()
        );
        Ok(())
    }

    /// Takes a completion, good or bad.
    ///
    /// # Errors
    ///
    /// When none comes in time.
    pub fn wait_any(&self, timeout: Duration) -> Result<CqEntry> {
        Ok(self.cq.wait(timeout)?)
    }

    /// Takes a good completion.
    ///
    /// # Errors
    ///
    /// When none comes in time, or a bad one.
    pub fn wait_for(&self, timeout: Duration) -> Result<CqEntry> {
        let e = self.wait_any(timeout)?;
        ensure!(
            e.err == 0,
            "completion {:#x} failed: {} (provider {})",
            e.context,
            name(e.err),
            e.prov_errno
        );
        Ok(e)
    }

    /// Takes a good completion of a small operation.
    ///
    /// # Errors
    ///
    /// When none comes in time, or a bad one.
    pub fn wait(&self) -> Result<CqEntry> {
        self.wait_for(WAIT)
    }

    /// Takes the good completion of this context.
    ///
    /// # Errors
    ///
    /// When another comes, none in time, or a bad one.
    pub fn wait_context(&self, context: u64) -> Result<CqEntry> {
        let e = self.wait_for(LONG)?;
        ensure!(
            e.context == context,
            "completion of {:#x}, not {context:#x}",
            e.context
        );
        Ok(e)
    }

    /// Takes a bad completion; its errno.
    ///
    /// # Errors
    ///
    /// When none comes in time, or a good one.
    pub fn wait_err(&self) -> Result<i32> {
        let e = self.wait_any(WAIT)?;
        ensure!(e.err != 0, "completion {:#x} succeeded", e.context);
        Ok(e.err as i32)
    }

    /// Writes a region's part to a peer's memory and waits.
    ///
    /// # Errors
    ///
    /// When it is refused or fails.
    pub fn write(
        &self,
        region: u64,
        offset: u64,
        len: u64,
        remote_addr: u64,
        key: u64,
    ) -> Result<()> {
        self.post(op::write(
            1,
            &[op::iov(region, offset, len)],
            remote_addr,
            key,
        ))?;
        self.wait_context(1).map(|_| ())
    }

    /// Reads a peer's memory into a region's part and waits.
    ///
    /// # Errors
    ///
    /// When it is refused or fails.
    pub fn read(
        &self,
        region: u64,
        offset: u64,
        len: u64,
        remote_addr: u64,
        key: u64,
    ) -> Result<()> {
        self.post(op::read(
            2,
            &[op::iov(region, offset, len)],
            remote_addr,
            key,
        ))?;
        self.wait_context(2).map(|_| ())
    }
}

/// The name of an entry's errno.
pub fn name(err: u32) -> crate::sys::Errno {
    crate::sys::Errno(err as i32)
}

/// Connects an endpoint to the other node's, which runs the same; node 1 listens.
///
/// # Errors
///
/// What the calls answer, on either node.
pub fn connect(ctx: &mut Ctx, side: &Side, opts: &Opts, cq: &Cq) -> Result<EpOpen> {
    if ctx.first() {
        let addr = if opts.v6 {
            ctx.env.at6(0).context("no IPv6 address")?
        } else {
            ctx.env.at(0)
        };
        let (pep, at) = side.listen(addr, 0)?;
        ctx.ctl.send(&at.port())?;
        let ep = accept_one(side, opts, cq)?;
        side.dev
            .close(pep)
            .context("closing the passive endpoint")?;
        ctx.barrier("connected")?;
        Ok(ep)
    } else {
        let port: u16 = ctx.ctl.recv()?;
        let addr = if opts.v6 {
            ctx.env.peer_at6(port).context("no IPv6 address")?
        } else {
            ctx.env.peer_at(port)
        };
        let ep = connect_one(side, opts, cq, addr)?;
        ctx.barrier("connected")?;
        Ok(ep)
    }
}

/// Takes and accepts one request.
///
/// # Errors
///
/// What the calls answer.
pub fn accept_one(side: &Side, opts: &Opts, cq: &Cq) -> Result<EpOpen> {
    let request = side.event(KFI_CONNREQ)?;
    let ep = side.endpoint(opts, cq, request.raw.connreq)?;
    side.dev.accept(ep.handle, &[])?;
    let up = side.event(KFI_CONNECTED)?;
    ensure!(
        up.raw.object == ep.handle && up.raw.context == opts.context,
        "{:?}",
        up.raw
    );
    Ok(ep)
}

/// Connects one endpoint to an address.
///
/// # Errors
///
/// What the calls answer.
pub fn connect_one(side: &Side, opts: &Opts, cq: &Cq, addr: SocketAddr) -> Result<EpOpen> {
    let ep = side.endpoint(opts, cq, 0)?;
    side.dev.connect(ep.handle, addr, &[])?;
    let up = side.event(KFI_CONNECTED)?;
    ensure!(
        up.raw.object == ep.handle && up.raw.context == opts.context,
        "{:?}",
        up.raw
    );
    Ok(ep)
}
