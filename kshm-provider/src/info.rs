// SPDX-License-Identifier: GPL-2.0
//! What the provider says of itself.

use kfabric::{
    provider::DomainAttr,
    uapi::*, //
};

use crate::{
    names::Name,
    table::MAX_KEYS, //
};

/// The name of the only fabric, and of its only domain.
pub(crate) const NAME: &str = "shm";

/// Preference where nothing is said of the peer: whoever it is, verbs reach it too.
const RANK: u32 = 50;
/// Preference where the peer is on this host and listens by kshm, as a user that the caller trusts.
const RANK_LOCAL: u32 = 300;

/// Operations or receives of a side, at most.
const MAX_QUEUE: u32 = 4096;
/// Bytes in the longest operation.
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
    | KFI_EP_KEYS;

const MR_MODE: u64 = KFI_MR_LOCAL | KFI_MR_VIRT_ADDR | KFI_MR_ALLOCATED | KFI_MR_PROV_KEY;

/// What it can do.
pub(crate) fn domain_attr() -> DomainAttr {
    DomainAttr {
        caps: CAPS,
        mr_mode: MR_MODE,
        max_msg_size: MAX_MSG,
        inject_size: KFI_INJECT_MAX as u32,
        max_tx_size: MAX_QUEUE,
        max_rx_size: MAX_QUEUE,
        iov_limit: KFI_IOV_MAX as u32,
        cm_data_size: KFI_CM_DATA_MAX as u32,
        max_keys: MAX_KEYS,
    }
}

/// An entry for an address of this host. `local`: the peer is known to be here, and to listen.
pub(crate) fn entry(addr: SockAddr, local: bool) -> InfoEntry {
    let attr = domain_attr();
    let mut entry = InfoEntry {
        caps: attr.caps,
        mr_mode: attr.mr_mode,
        max_msg_size: attr.max_msg_size,
        inject_size: u64::from(attr.inject_size),
        tx_size: attr.max_tx_size,
        rx_size: attr.max_rx_size,
        iov_limit: attr.iov_limit,
        rma_iov_limit: 1,
        cq_data_size: 4,
        mr_key_size: 8,
        cm_data_size: attr.cm_data_size,
        ep_type: KFI_EP_MSG,
        protocol: KFI_PROTO_SHM,
        addr_format: Name::format(&addr),
        rank: if local { RANK_LOCAL } else { RANK },
        src_addr: addr,
        ..InfoEntry::default()
    };
    entry.fabric_name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    entry.domain_name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    entry
}

/// Raises an entry above others because it is at the wanted destination's own address.
pub(crate) fn prefer(entry: &mut InfoEntry) {
    entry.rank += 50;
}
