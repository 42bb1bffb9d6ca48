// SPDX-License-Identifier: GPL-2.0
//! The provider: a kind of hardware or transport.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    domain::DomainOps,
    endpoint::ListenerOps,
    proof::Proof,
    sinks::{
        DomainSink,
        ListenSink, //
    },
};
use crate::{
    base::errno::eopnotsupp,
    sys::net::Net,
    uapi::{
        InfoEntry,
        SockAddr, //
    },
};

/// A provider: one kind of hardware or transport, many devices.
///
/// Registered by [`Registration::new`](crate::provider::registry::Registration::new).
pub trait Provider: Send + Sync {
    /// The name that hints and `fabric_open` match, e.g. `"kverbs"`.
    fn name(&self) -> &'static str;

    /// Version, major << 16 | minor. Of two providers of one name only the first is accepted.
    fn version(&self) -> u32;

    /// Lists every (device, address) that the provider can serve from `net`, one entry each.
    ///
    /// The provider may use `hints` to save work (a destination address chooses a device by route).
    /// The core then filters, fills in defaults and ranks. The provider fills in `caps`, `mode`,
    /// `mr_mode`, limits, `ep_type`, `protocol`, `addr_format`, `src_addr`, `fabric_name`,
    /// `domain_name`, `rank`. The core fills in `prov_name`, versions and `dest_addr`.
    fn getinfo(&self, net: &Net, hints: &InfoEntry, out: &mut KVec<InfoEntry>) -> Result;

    /// Opens the device `name` of `fabric` (empty: the provider's first fabric).
    ///
    /// # Errors
    ///
    /// - `ENOENT` if there is no such fabric or device, or it is not visible from `net`.
    fn open_domain(
        &self,
        net: &Net,
        fabric: &str,
        name: &str,
        sink: Arc<dyn DomainSink>,
    ) -> Result<Arc<dyn DomainOps>>;

    /// Prepares to listen on `addr` (port 0: any); requests arrive only after
    /// [`ListenerOps::listen`].
    fn listener(
        &self,
        net: &Net,
        addr: &SockAddr,
        sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>>;

    /// As [`Provider::listener`], for peers that have an auth key. A request arrives by
    /// [`ListenSink::proven`], after the peer's kernel has proven one of `proofs` and this host has
    /// proven the same auth key.
    ///
    /// # Errors
    ///
    /// - `EOPNOTSUPP` if the provider has no auth handshake.
    fn proven_listener(
        &self,
        _net: &Net,
        _addr: &SockAddr,
        _proofs: KVec<Arc<dyn Proof>>,
        _sink: Arc<dyn ListenSink>,
    ) -> Result<Arc<dyn ListenerOps>> {
        Err(eopnotsupp())
    }
}
