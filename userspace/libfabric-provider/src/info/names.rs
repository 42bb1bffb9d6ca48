// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses of a program's names and of the kernel's offers.

use std::net::SocketAddr;

use kfabric::Info;

use crate::error::Errno;

/// Lists infos for all addresses of a name. `list` gets an address and the domains that earlier addresses
/// have listed, and returns entries of other domains: a name may have addresses that no device can reach,
/// for example of IPv6 alone, and one that only kshm can reach. If no address has entries, returns the last
/// result.
pub(super) fn by_domain<A, T>(
    all: Vec<A>,
    mut list: impl FnMut(A, &[String]) -> Result<Vec<(String, T)>, Errno>,
) -> Result<Vec<T>, Errno> {
    let (mut listed, mut infos) = (Vec::new(), Vec::new());
    let mut last = Ok(());
    for one in all {
        last = list(one, &listed).map(|more| {
            for (domain, info) in more {
                listed.push(domain);
                infos.push(info);
            }
        });
    }
    match infos.is_empty() {
        true => last.map(|()| infos),
        false => Ok(infos),
    }
}

/// Whether an address is valid on one link alone.
pub(super) fn is_link_local(addr: &SocketAddr) -> bool {
    matches!(addr, SocketAddr::V6(addr) if addr.ip().segments()[0] & 0xffc0 == 0xfe80)
}

/// Removes offers of link-local addresses from domains that have others: peers on other links cannot
/// reach them, and programs such as Open MPI give each process another info of the list.
pub(super) fn skip_link_local(offers: &mut Vec<Info>) {
    let wide: Vec<String> = offers
        .iter()
        .filter(|offer| offer.source().is_some_and(|addr| !is_link_local(&addr)))
        .map(|offer| offer.domain().to_owned())
        .collect();
    offers.retain(|offer| {
        !(offer.source().is_some_and(|addr| is_link_local(&addr))
            && wide.iter().any(|domain| domain == offer.domain()))
    });
}
