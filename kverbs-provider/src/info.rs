// SPDX-License-Identifier: GPL-2.0
//! Offers of the provider for a device.

use kernel::prelude::*;

use crate::{
    data::level,
    device::Device,
    ib::{
        device::Live,
        sockaddr, //
    },
    key::policy::{
        key_pages,
        registers_keys,
        Revocation, //
    },
    limits::{
        INJECT_SIZE,
        IOV_LIMIT,
        MAX_RX,
        MAX_TX, //
    },
};
use kfabric::{
    provider::DomainAttr,
    pure::wire,
    uapi::*, //
};

/// The name of the only fabric.
pub(crate) const FABRIC: &str = "rdma";

/// Preference over other providers: a provider across hosts ranks below a provider within one host.
const RANK: u32 = 100;
/// Additional preference of the address at which the route to the wanted destination starts.
const RANK_ROUTE: u32 = 50;
/// Preference that an address loses while its port is not active.
const RANK_DOWN: u32 = 20;

const CAPS: u64 = KFI_MSG
    | KFI_RMA
    | KFI_SEND
    | KFI_RECV
    | KFI_READ
    | KFI_WRITE
    | KFI_REMOTE_READ
    | KFI_REMOTE_WRITE
    | KFI_LOCAL_COMM
    | KFI_REMOTE_COMM;

const MR_MODE: u64 = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_ALLOCATED | KFI_MR_PROV_KEY;

/// Returns the attributes of a device's domain.
pub(crate) fn domain_attr(live: &Live<'_>, device: &Device) -> Result<DomainAttr> {
    let ib = device.ib();
    // Each side has a few work requests of its own, and the completion queue serves both sides.
    let queue = ib.max_qp_wr().min(ib.max_cqe() / 2).saturating_sub(4);
    let atomic = if ib.has_atomics() { KFI_ATOMIC } else { 0 };
    let durable = level::durable(ib);
    let pmem = match durable {
        KFI_REACH_NO => 0,
        _ => KFI_RMA_PMEM,
    };
    // Without fast registration, no key of a program is possible.
    let keys = match key_pages(ib) {
        0 if !registers_keys(ib) => 0,
        _ => KFI_DYNAMIC_KEYS | KFI_EP_KEYS,
    };
    Ok(DomainAttr {
        caps: CAPS | keys | atomic | pmem,
        mr_mode: MR_MODE,
        max_msg_size: device.max_msg_size(live)?,
        inject_size: INJECT_SIZE as u32,
        max_tx_size: MAX_TX.min(queue),
        max_rx_size: MAX_RX.min(queue),
        iov_limit: IOV_LIMIT.min(ib.max_sge()),
        // iWARP has no immediate data (RFC 5040).
        cq_data_size: if ib.is_iwarp() { 0 } else { 4 },
        cm_data_size: wire::LIBFABRIC_DATA_MAX as u32,
        max_keys: u64::from(ib.max_mr()),
        visible: level::visible(ib),
        durable,
        revocation: match Revocation::of(ib) {
            Revocation::Deregister => KFI_REVOCATION_DEREGISTER,
            Revocation::Invalidate => KFI_REVOCATION_INVALIDATE,
        },
        max_key_pages: key_pages(ib),
    })
}

/// Returns an offer for a device at one of its addresses.
pub(crate) fn entry(live: &Live<'_>, device: &Device, addr: SockAddr) -> Result<InfoEntry> {
    let attr = domain_attr(live, device)?;
    let mut entry = attr.offer(FABRIC, addr);
    entry.mr_key_size = 4;
    entry.protocol = match device.ib().is_iwarp() {
        true => KFI_PROTO_IWARP,
        false => KFI_PROTO_RDMA_CM_IB_RC,
    };
    entry.addr_format = if sockaddr::is_v6(&addr) {
        KFI_SOCKADDR_IN6
    } else {
        KFI_SOCKADDR_IN
    };
    entry.rank = RANK;
    entry.domain_name = device.ib().name();
    Ok(entry)
}

/// Raises an offer's rank because the route to the wanted destination starts at its address.
pub(crate) fn prefer(entry: &mut InfoEntry) {
    entry.rank += RANK_ROUTE;
}

/// Lowers an offer's rank because its port is not active.
pub(crate) fn defer(entry: &mut InfoEntry) {
    entry.rank -= RANK_DOWN;
}
