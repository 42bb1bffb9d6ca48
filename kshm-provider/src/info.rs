// SPDX-License-Identifier: GPL-2.0
//! Attributes of the provider.

use kfabric::{
    provider::DomainAttr,
    uapi::*, //
};

use crate::{
    conn::addr::Name,
    key::table::MAX_KEYS, //
};

/// The name of the only fabric, and of its only domain.
pub(crate) const NAME: &str = "shm";

/// Rank if the hints name no peer; verbs may reach the peer as well.
const RANK: u32 = 50;
/// Rank if the peer is on this host and listens by kshm, as a user that the caller trusts.
const RANK_LOCAL: u32 = 300;

/// Maximum size of a transmit or receive queue in operations.
const MAX_QUEUE: u32 = 4096;
/// Maximum length of an operation in bytes.
const MAX_MSG: u64 = 1 << 31;

const CAPS: u64 = KFI_MSG
    | KFI_RMA
    | KFI_SEND
    | KFI_RECV
    | KFI_READ
    | KFI_WRITE
    | KFI_REMOTE_READ
    | KFI_REMOTE_WRITE
    | KFI_LOCAL_COMM
    | KFI_ATOMIC
    | KFI_DYNAMIC_KEYS
    | KFI_SINGLE_USE_KEYS
    | KFI_UNREGISTERED_RMA
    | KFI_RMA_PMEM
    | KFI_EP_KEYS;

const MR_MODE: u64 = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_ALLOCATED | KFI_MR_PROV_KEY;

/// Returns the attributes of the domain.
pub(crate) fn domain_attr() -> DomainAttr {
    DomainAttr {
        caps: CAPS,
        mr_mode: MR_MODE,
        max_msg_size: MAX_MSG,
        inject_size: KFI_INJECT_MAX as u32,
        max_tx_size: MAX_QUEUE,
        max_rx_size: MAX_QUEUE,
        iov_limit: KFI_IOV_MAX as u32,
        cq_data_size: 4,
        cm_data_size: KFI_CM_DATA_MAX as u32,
        max_keys: MAX_KEYS,
        // The writer's own processor copies, writes its caches back, and completes.
        visible: KFI_REACH_NATIVE,
        durable: KFI_REACH_NATIVE,
        revocation: KFI_REVOCATION_NATIVE,
        max_key_pages: u32::MAX,
    }
}

/// Returns the entry of an address of this host. `local`: a trusted listener at the destination was
/// found.
pub(crate) fn entry(addr: SockAddr, local: bool) -> InfoEntry {
    let mut entry = InfoEntry {
        mr_key_size: 8,
        protocol: KFI_PROTO_SHM,
        addr_format: Name::format(&addr),
        rank: if local { RANK_LOCAL } else { RANK },
        ..domain_attr().offer(NAME, addr)
    };
    entry.domain_name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    entry
}

/// Raises the rank of the entry whose address is the destination's own.
pub(crate) fn prefer(entry: &mut InfoEntry) {
    entry.rank += 50;
}
