// SPDX-License-Identifier: GPL-2.0
//! The provider: what there is, and opening it.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    device::{
        self,
        Device, //
    },
    domain::Domain,
    ib::{
        device::Live,
        sockaddr, //
    },
    info,
    listener::Listener, //
};
use kfabric::{
    net::Net,
    provider::{
        DomainOps,
        DomainSink,
        ListenSink,
        ListenerOps,
        Proof,
        Provider, //
    },
    uapi::{
        InfoEntry,
        SockAddr, //
    },
};

/// Its name.
const NAME: &str = "kverbs";
/// Its version, 1.0.
const VERSION: u32 = 1 << 16;

/// The verbs provider.
pub(crate) struct Verbs;

/// Whether `name` is what the NUL-padded `padded` holds.
fn is_named(padded: &[u8], name: &str) -> bool {
    padded.split(|c| *c == 0).next() == Some(name.as_bytes())
}

/// Calls `each` with every address of `device` in `net`.
fn for_each_addr(
    _live: &Live<'_>,
    device: &Device,
    net: &Net,
    mut each: impl FnMut(SockAddr) -> Result,
) -> Result {
    for port in device.ports() {
        for index in 0.. {
            match device.ib().gid_addr(port, index, net) {
                Ok(addr) => each(addr)?,
                Err(e) if e == ERANGE => break,
                Err(_) => {}
            }
        }
    }
    Ok(())
}

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn getinfo(&self, net: &Net, hints: &InfoEntry, out: &mut KVec<InfoEntry>) -> Result {
        // No route is no reason to offer nothing: it may come up.
        let source = sockaddr::route_source(net, &hints.dest_addr).ok();
        for device in device::all()? {
            // One that is just going has nothing to offer.
            let Ok(live) = device.enter() else { continue };
            if !device.ib().accessible(net) {
                continue;
            }
            for_each_addr(&live, &device, net, |addr| {
                let mut entry = info::entry(&live, &device, addr)?;
                if source.is_some_and(|source| sockaddr::same_host(&source, &addr)) {
                    info::prefer(&mut entry);
                }
                out.push(entry, GFP_KERNEL_ACCOUNT)?;
                Ok(())
            })?;
        }
        Ok(())
    }

    fn open_domain(
        &self,
        net: &Net,
        fabric: &str,
        name: &str,
        sink: Arc<dyn DomainSink>,
    ) -> Result<Arc<dyn DomainOps>> {
        if !fabric.is_empty() && fabric != info::FABRIC {
            return Err(ENOENT);
        }
        let device = device::find(|d| is_named(&d.ib().name(), name)).ok_or(ENOENT)?;
        let live = device.enter()?;
        if !device.ib().accessible(net) {
            return Err(ENOENT);
        }
        // In the shared mode of the RDMA core every namespace may use every device, but it can
        // only connect through those that have an address in it.
        let mut reachable = false;
        for_each_addr(&live, &device, net, |_| {
            reachable = true;
            Ok(())
        })?;
        if !reachable {
            return Err(ENOENT);
        }
        let domain: Arc<dyn DomainOps> = Domain::new(&live, &device, sink)?;
        Ok(domain)
    }

    fn listener(
        &self,
        net: &Net,
        addr: &SockAddr,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>> {
        let listener: Arc<dyn ListenerOps> = Listener::new(net, addr, KVec::new(), sink)?;
        Ok(listener)
    }

    fn proven_listener(
        &self,
        net: &Net,
        addr: &SockAddr,
        proofs: KVec<Arc<dyn Proof>>,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>> {
        let listener: Arc<dyn ListenerOps> = Listener::new(net, addr, proofs, sink)?;
        Ok(listener)
    }
}
