// SPDX-License-Identifier: GPL-2.0
//! Where a port listens: its device's domain, and its address.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    base::name::name_str,
    objects::{
        domain::Domain,
        fabric::Fabric, //
    },
    provider::registry,
    pure::blk::share::{
        self,
        Source, //
    },
    sys::net::Net,
    uapi::*,
};

use super::Inner;
use crate::{
    errno,
    offer,
    sys, //
};

/// Domain and address of a port, from its first subsystem to its last.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) domain: Arc<Domain>,
    pub(super) addr: SockAddr,
    /// Other hosts may reach the address.
    pub(super) is_wide: bool,
}

/// Finds the domain and the address to listen at.
///
/// # Errors
///
/// - `EINVAL` if the address or service is not set.
/// - `ENODATA` if no device has the address.
/// - `EOPNOTSUPP` if the device has no endpoint-scoped keys.
pub(super) fn find(inner: &mut Inner) -> Result<Place> {
    let net = inner.net.get_or_insert_with(Net::current).clone();
    let traddr = inner.traddr.as_ref().ok_or(EINVAL)?;
    let trsvcid = inner.trsvcid.as_ref().ok_or(EINVAL)?;
    let addr = sys::parse_addr(&net, traddr, trsvcid)?;
    let hints = offer::hints(inner.trtype.as_ref());
    let all = registry::getinfo(&net, Some(&hints))?;
    // Offers carry no port number, so only the host parts are compared.
    let info = all
        .iter()
        .find(|info| info.src_addr.len == addr.len && host_of(&info.src_addr) == host_of(&addr))
        .ok_or_else(errno::enodata)?;
    let fabric = Fabric::open(
        net,
        name_str(&info.prov_name)?,
        name_str(&info.fabric_name)?,
    )?;
    let domain = Domain::open(&fabric, name_str(&info.domain_name)?)?;
    if domain.attr().caps & KFI_EP_KEYS == 0 {
        return Err(errno::eopnotsupp());
    }
    let is_wide = name_str(&info.prov_name)? != "kshm" && !is_loopback(&addr);
    Ok(Place {
        domain,
        addr,
        is_wide,
    })
}

/// Returns the host part of an address.
fn host_of(addr: &SockAddr) -> [u8; 16] {
    let mut host = [0; 16];
    let part = match addr.len {
        16 => addr.data.get(4..8),
        _ => addr.data.get(8..24),
    };
    for (to, from) in host.iter_mut().zip(part.unwrap_or_default()) {
        *to = *from;
    }
    host
}

/// Returns whether only this host can reach an address.
fn is_loopback(addr: &SockAddr) -> bool {
    let host = host_of(addr);
    match addr.len {
        16 => host.first() == Some(&127),
        _ => u128::from_be_bytes(host) == 1,
    }
}

/// Returns the address that a peer's connections are counted by.
pub(in crate::export) fn source_of(addr: &SockAddr) -> Source {
    match addr.len {
        16 => share::source(addr.data.get(4..8).unwrap_or_default()),
        _ => share::source(&host_of(addr)),
    }
}
