// SPDX-License-Identifier: GPL-2.0
//! The provider: `fi_getinfo`, domains, and listeners.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    conn::{
        addr::Name,
        listener::Listener, //
    },
    domain::Domain,
    host::Host,
    info,
    sys::addr::{
        for_each_addr,
        is_local, //
    },
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
    pure::addr::Address,
    sys::net::Net,
    uapi::{
        InfoEntry,
        SockAddr, //
    },
};

/// The name of the provider.
const NAME: &str = "kshm";
/// The version of the provider: 1.0.
const VERSION: u32 = 1 << 16;

/// The kshm provider.
pub(crate) struct Shm(Arc<Host>);

impl Shm {
    /// Creates the provider.
    pub(crate) fn new() -> Result<Arc<Self>> {
        // UNACCOUNTED: Allocated at module load.
        Ok(Arc::new(Self(Host::new()?), GFP_KERNEL)?)
    }
}

/// Returns whether both addresses name the same host, whatever the port.
fn same_host(a: &SockAddr, b: &SockAddr) -> bool {
    match (Address::parse(bytes(a)), Address::parse(bytes(b))) {
        (Address::V4 { host: a, .. }, Address::V4 { host: b, .. }) => a == b,
        (Address::V6 { host: a, .. }, Address::V6 { host: b, .. }) => a == b,
        _ => false,
    }
}

fn bytes(addr: &SockAddr) -> &[u8] {
    addr.data.get(..addr.len as usize).unwrap_or_default()
}

impl Provider for Shm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn getinfo(&self, net: &Net, hints: &InfoEntry, out: &mut KVec<InfoEntry>) -> Result {
        let dest = &hints.dest_addr;
        let mut heard = false;
        if dest.len != 0 {
            let name = Name::new(net, dest)?;
            if !name.is_service() && !is_local(net, dest) {
                // The peer is on another host, which kshm cannot reach.
                return Ok(());
            }
            // A peer on this host may listen by another provider only.
            heard = self.0.names.is_heard(net, &name);
        }
        let before = out.len();
        for_each_addr(net, |addr| {
            let mut entry = info::entry(addr, heard);
            if heard && same_host(&addr, dest) {
                info::prefer(&mut entry);
            }
            out.push(entry, GFP_KERNEL_ACCOUNT)?;
            Ok(())
        })?;
        if out.len() == before {
            // A namespace without addresses can still use service names.
            out.push(info::entry(SockAddr::default(), heard), GFP_KERNEL_ACCOUNT)?;
        }
        Ok(())
    }

    fn open_domain(
        &self,
        _net: &Net,
        fabric: &str,
        name: &str,
        _sink: Arc<dyn DomainSink>,
    ) -> Result<Arc<dyn DomainOps>> {
        // There is no device that could be removed, so the sink is not needed.
        if (!fabric.is_empty() && fabric != info::NAME) || name != info::NAME {
            return Err(ENOENT);
        }
        let domain: Arc<dyn DomainOps> = Domain::new(&self.0)?;
        Ok(domain)
    }

    fn listener(
        &self,
        net: &Net,
        addr: &SockAddr,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>> {
        self.proven_listener(net, addr, KVec::new(), sink)
    }

    fn proven_listener(
        &self,
        net: &Net,
        addr: &SockAddr,
        proofs: KVec<Arc<dyn Proof>>,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>> {
        let listener: Arc<dyn ListenerOps> = Listener::new(&self.0.names, net, addr, proofs, sink)?;
        Ok(listener)
    }
}
