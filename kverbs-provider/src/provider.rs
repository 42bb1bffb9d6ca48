// SPDX-License-Identifier: GPL-2.0
//! The provider: offers, and opening a domain.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    conn::{
        addr,
        listener::Listener, //
    },
    device,
    domain::Domain,
    ib::sockaddr,
    info, //
};
use kfabric::{
    provider::{
        DomainOps,
        DomainSink,
        ListenSink,
        ListenerOps,
        Proof,
        Provider, //
    },
    sys::net::Net,
    uapi::{
        InfoEntry,
        SockAddr, //
    },
};

/// The provider's name.
const NAME: &str = "kverbs";
/// The provider's version, 1.0.
const VERSION: u32 = 1 << 16;

/// The verbs provider.
pub(crate) struct Verbs;

/// Returns whether the NUL-padded `padded` contains `name`.
fn is_named(padded: &[u8], name: &str) -> bool {
    padded.split(|c| *c == 0).next() == Some(name.as_bytes())
}

impl Provider for Verbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn getinfo(&self, net: &Net, hints: &InfoEntry, out: &mut KVec<InfoEntry>) -> Result {
        // Without a route, still make offers: the route may exist later.
        let source = sockaddr::route_source(net, &hints.dest_addr).ok();
        for device in device::all()? {
            // A device that is being removed has no offers.
            let Ok(live) = device.enter() else { continue };
            if !device.ib().accessible(net) {
                continue;
            }
            addr::for_each(&live, &device, net, |port, addr| {
                let mut entry = info::entry(&live, &device, addr)?;
                if source.is_some_and(|source| sockaddr::same_host(&source, &addr)) {
                    info::prefer(&mut entry);
                }
                if !device.ib().is_active(port) {
                    info::defer(&mut entry);
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
        // In the shared mode of the RDMA core every namespace may use every device. It can only
        // connect through devices that have an address in it.
        let mut reachable = false;
        addr::for_each(&live, &device, net, |_, _| {
            reachable = true;
            Ok(())
        })?;
        if !reachable {
            return Err(ENOENT);
        }
        let domain: Arc<dyn DomainOps> = Domain::new(&live, net, &device, sink)?;
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
