// SPDX-License-Identifier: GPL-2.0
//! Info entries in terms of the matching in [`crate::pure::info`].

use crate::{
    pure::info::{
        self,
        Attrs, //
    },
    uapi::{
        InfoEntry,
        SockAddr, //
    },
};

fn addr(addr: &SockAddr) -> &[u8] {
    // CAST: A `u32` fits.
    addr.data.get(..addr.len as usize).unwrap_or(&addr.data)
}

fn attrs(e: &InfoEntry) -> Attrs<'_> {
    Attrs {
        caps: e.caps,
        mode: e.mode,
        mr_mode: e.mr_mode,
        max_msg_size: e.max_msg_size,
        inject_size: e.inject_size,
        tx_size: e.tx_size,
        rx_size: e.rx_size,
        iov_limit: e.iov_limit,
        rma_iov_limit: e.rma_iov_limit,
        cq_data_size: e.cq_data_size,
        mr_key_size: e.mr_key_size,
        cm_data_size: e.cm_data_size,
        ep_type: e.ep_type,
        protocol: e.protocol,
        addr_format: e.addr_format,
        prov_version: e.prov_version,
        api_version: e.api_version,
        src_addr: addr(&e.src_addr),
        prov_name: &e.prov_name,
        fabric_name: &e.fabric_name,
        domain_name: &e.domain_name,
    }
}

/// Returns the offer `have` as adapted to the hints `want`; `None` if it does not match.
pub(crate) fn select(have: &InfoEntry, want: Option<&InfoEntry>) -> Option<InfoEntry> {
    let Some(want) = want else {
        return Some(*have);
    };
    let (a, b) = (attrs(have), attrs(want));
    info::matches(&a, &b).ok()?;
    let got = info::negotiate(&a, &b);
    Some(InfoEntry {
        caps: got.caps,
        mode: got.mode,
        mr_mode: got.mr_mode,
        inject_size: got.inject_size,
        tx_size: got.tx_size,
        rx_size: got.rx_size,
        iov_limit: got.iov_limit,
        rma_iov_limit: got.rma_iov_limit,
        api_version: got.api_version,
        ..*have
    })
}
