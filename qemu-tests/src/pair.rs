// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two connected endpoints, one on each node, in a few lines.
//!
//! [`Side`] has the objects that one node opens: file, fabric, domain, event queue. [`Pair`] adds a
//! completion queue and an endpoint connected to the other node's. Both nodes run the same
//! constructor; node 1 listens.

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

/// Time limit of a small operation or an event; far longer than either takes.
pub const WAIT: Duration = Duration::from_secs(30);
/// Time limit of a large operation on a slow machine.
pub const LONG: Duration = Duration::from_secs(240);

/// Every local right.
pub const LOCAL: u64 = KFI_SEND | KFI_RECV | KFI_READ | KFI_WRITE;
/// Every remote right.
pub const REMOTE: u64 = KFI_REMOTE_READ | KFI_REMOTE_WRITE;

/// Objects that a node opens.
pub struct Side {
    /// The open device file.
    pub dev: Dev,
    /// The fabric's handle.
    pub fabric: u64,
    /// The domain: its handle and capabilities.
    pub domain: DomainOpen,
    /// The event queue.
    pub eq: Eq,
}

/// Returns the info entry of this node's own device and address.
///
/// # Errors
///
/// If the provider offers none.
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
    /// The errno of the failed call.
    pub fn open(ctx: &Ctx) -> Result<Self> {
        Self::of(&ctx.env)
    }

    /// Opens the side of a node.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn of(env: &Env) -> Result<Self> {
        Self::on(Dev::open()?, env)
    }

    /// Opens the side of a node through an open device file.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
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

    /// Duplicates the descriptor. Returns the same objects, named through the duplicate.
    ///
    /// # Errors
    ///
    /// The errno of `dup(2)`.
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
    /// The call's errno.
    pub fn reg(&self, buf: &Buf, access: u64) -> raw::Result<RegionReg> {
        self.reg_at(buf.addr(), buf.len() as u64, access)
    }

    /// Registers memory, without keys.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn reg_at(&self, addr: u64, len: u64, access: u64) -> raw::Result<RegionReg> {
        self.dev.region_reg(
            self.domain.handle,
            addr,
            len,
            access,
            KFI_REGION_DYNAMIC_KEYS,
        )
    }

    /// Assigns a key to a part of a region. Returns the slot, and the address and key for a peer.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn export(&self, region: u64, offset: u64, len: u64, access: u64) -> Result<(u64, Remote)> {
        let slot = self.dev.key_alloc(region, 1)?[0];
        Ok((slot, self.assign(slot, offset, len, access)?))
    }

    /// Assigns a key to a slot.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn assign(&self, slot: u64, offset: u64, len: u64, access: u64) -> Result<Remote> {
        let k = self.dev.key_assign(slot, offset, len, access)?;
        Ok(Remote {
            addr: k.remote_addr,
            key: k.key,
            len,
        })
    }

    /// Opens a completion queue.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn cq(&self, depth: u32, format: u32) -> raw::Result<Cq> {
        self.dev.cq_open(self.domain.handle, depth, format)
    }

    /// Listens on an address. Returns the passive endpoint, and its address.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
    pub fn listen(&self, addr: SocketAddr, backlog: u32) -> Result<(u64, SocketAddr)> {
        self.listen_under(addr, backlog, &[])
    }

    /// Listens as [`Side::listen`] does, for peers with any of some auth keys; without auth keys,
    /// for peers that have none.
    ///
    /// # Errors
    ///
    /// The errno of the failed call.
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
    /// The errno of the failed call.
    pub fn endpoint(&self, opts: &Opts, cq: &Cq, connreq: u64) -> Result<EpOpen> {
        let ep = self.dev.ep_open(&EpOpen {
            flags: if opts.own_keys { KFI_EP_OWN_KEYS } else { 0 }
                | opts.rings.map_or(0, |_| KFI_EP_RINGS),
            rings_version: opts.rings.unwrap_or(0),
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
    /// If none comes, or another.
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

/// Address and key of exported memory, for a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remote {
    /// Address of the first byte.
    pub addr: u64,
    /// Key of the memory.
    pub key: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Remote {
    /// Offset in a shared page of the word that marks the entry as present; the entry follows.
    const THERE: usize = 4;

    /// Stores the entry in a page that is shared with the parent process.
    pub fn leave_in(&self, shared: &Map) {
        shared.set64(8, self.addr);
        shared.set64(16, self.key);
        shared.set64(24, self.len);
        shared.store32(Self::THERE, 1);
    }

    /// Sends the other node the entry that a child has stored in the shared page.
    ///
    /// # Errors
    ///
    /// If the child stored none in time, or the other node does not answer.
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

/// Options of a pair.
#[derive(Clone, Debug)]
pub struct Opts {
    /// Context of the endpoint.
    pub context: u64,
    /// Number of operations in the transmit queue.
    pub tx_size: u32,
    /// Number of receives in the receive queue.
    pub rx_size: u32,
    /// Number of scatter entries of an operation.
    pub iov_limit: u32,
    /// Number of entries in the completion queue.
    pub cq_depth: u32,
    /// Format of the entries.
    pub cq_format: u32,
    /// True if only marked operations leave entries.
    pub selective: bool,
    /// Counters to bind, with their flags.
    pub counters: Vec<(u64, u64)>,
    /// True for a connection over IPv6.
    pub v6: bool,
    /// True for endpoint-scoped keys.
    pub own_keys: bool,
    /// Version of the rings that the endpoint asks for.
    pub rings: Option<u32>,
    /// Auth key of the endpoint; empty: none.
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
            rings: None,
            auth_key: &[],
        }
    }
}

/// An endpoint connected to the other node's.
pub struct Pair {
    /// Side of the endpoint.
    pub side: Side,
    /// Completion queue of both directions.
    pub cq: Cq,
    /// Handle of the endpoint.
    pub ep: u64,
    /// Attributes that the endpoint got.
    pub got: EpOpen,
}

impl Pair {
    /// Makes a pair with the default options.
    ///
    /// # Errors
    ///
    /// The errno of the failed call, on either node.
    pub fn new(ctx: &mut Ctx) -> Result<Self> {
        Self::with(ctx, &Opts::default())
    }

    /// Makes a pair with options.
    ///
    /// # Errors
    ///
    /// The errno of the failed call, on either node.
    pub fn with(ctx: &mut Ctx, opts: &Opts) -> Result<Self> {
        let side = Side::open(ctx)?;
        Self::on(ctx, side, opts)
    }

    /// Makes a pair on an open side.
    ///
    /// # Errors
    ///
    /// The errno of the failed call, on either node.
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

    /// Returns the device file.
    pub fn dev(&self) -> &Dev {
        &self.side.dev
    }

    /// Registers a buffer for all operations, without keys. Returns the region's handle.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn reg(&self, buf: &Buf) -> Result<u64> {
        Ok(self.side.reg(buf, LOCAL | REMOTE)?.handle)
    }

    /// Posts one operation.
    ///
    /// # Errors
    ///
    /// The call's errno.
    pub fn post(&self, op: OpEntry) -> raw::Result<()> {
        self.dev().submit(self.ep, &[op]).map(|_| ())
    }

    /// Posts operations, all of them.
    ///
    /// # Errors
    ///
    /// If one is refused.
    pub fn post_all(&self, ops: &[OpEntry]) -> Result<()> {
        let (done, err) = self.dev().submit(self.ep, ops)?;
        ensure!(
            done == ops.len() && err == 0,
            "{done} of {} operations were taken, errno {err}",
            ops.len()
        );
        Ok(())
    }

    /// Takes a completion, successful or not.
    ///
    /// # Errors
    ///
    /// If none comes in time.
    pub fn wait_any(&self, timeout: Duration) -> Result<CqEntry> {
        Ok(self.cq.wait(timeout)?)
    }

    /// Takes a successful completion.
    ///
    /// # Errors
    ///
    /// If none comes in time, or one with an error.
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

    /// Takes a successful completion of a small operation.
    ///
    /// # Errors
    ///
    /// If none comes in time, or one with an error.
    pub fn wait(&self) -> Result<CqEntry> {
        self.wait_for(WAIT)
    }

    /// Takes the successful completion of this context.
    ///
    /// # Errors
    ///
    /// If another comes, none in time, or one with an error.
    pub fn wait_context(&self, context: u64) -> Result<CqEntry> {
        let e = self.wait_for(LONG)?;
        ensure!(
            e.context == context,
            "completion of {:#x}, not {context:#x}",
            e.context
        );
        Ok(e)
    }

    /// Takes a completion with an error. Returns its errno.
    ///
    /// # Errors
    ///
    /// If none comes in time, or a successful one.
    pub fn wait_err(&self) -> Result<i32> {
        let e = self.wait_any(WAIT)?;
        ensure!(e.err != 0, "completion {:#x} succeeded", e.context);
        Ok(e.err as i32)
    }

    /// Writes a region's part to a peer's memory and waits.
    ///
    /// # Errors
    ///
    /// If it is refused or fails.
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
    /// If it is refused or fails.
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

/// Returns an entry's errno.
pub fn name(err: u32) -> crate::sys::Errno {
    crate::sys::Errno(err as i32)
}

/// Connects an endpoint to the other node's, which calls this too; node 1 listens.
///
/// # Errors
///
/// The errno of the failed call, on either node.
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
/// The errno of the failed call.
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
/// The errno of the failed call.
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

/// Returns an entry for each slot, to assign keys of the first `length` bytes of its region.
pub fn key_entries(slots: &[u64], length: u64, access: u64) -> Vec<KeyEntry> {
    let entry = |slot: &u64| KeyEntry {
        slot: *slot,
        length,
        access,
        ..Default::default()
    };
    slots.iter().map(entry).collect()
}
