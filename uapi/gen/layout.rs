// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! Sizes and field offsets of every structure, as the Rust compiler computes them.
//!
//! Shared by the header's generator and by the test that compares it with `uapi.txt`.

use core::mem::{offset_of, size_of};

/// A structure: name, size, fields with their offsets in order.
pub(crate) type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

macro_rules! layouts {
    ($($ty:ident { $($field:ident,)* })*) => {
        /// All structures of the interface, in the order of `abi.rs`.
        pub(crate) const LAYOUTS: &[Layout] = &[$((
            stringify!($ty),
            size_of::<kfabric_uapi::$ty>(),
            &[$((stringify!($field), offset_of!(kfabric_uapi::$ty, $field))),*],
        )),*];
    };
}

layouts! {
    SockAddr {
        len, data,
    }
    InfoEntry {
        caps, mode, mr_mode, max_msg_size, inject_size, tx_size, rx_size, iov_limit,
        rma_iov_limit, cq_data_size, mr_key_size, cm_data_size, ep_type, protocol, addr_format,
        prov_version, api_version, abi, rank, src_addr, dest_addr, prov_name, fabric_name,
        domain_name, visible, durable, revocation, max_key_pages,
    }
    GetInfo {
        size, flags, hints, entries, count, entry_size, reserved,
    }
    FabricOpen {
        size, flags, prov_name, fabric_name, handle,
    }
    DomainOpen {
        size, flags, fabric, name, auth_key, auth_key_size, reserved, handle, caps, mr_mode,
        max_msg_size, inject_size, max_tx_size, max_rx_size, iov_limit, cm_data_size, reserved2,
        max_keys, visible, durable,
    }
    EqOpen {
        size, flags, fabric, depth, fd, handle,
    }
    CqOpen {
        size, flags, domain, depth, format, fd, entries, map_size, handle, reserved,
    }
    CntrOpen {
        size, flags, domain, handle, reserved,
    }
    PepOpen {
        size, flags, fabric, eq, addr, context, handle, auth_keys, auth_key_count, reserved,
    }
    EpOpen {
        size, flags, domain, connreq, src_addr, context, tx_size, rx_size, iov_limit, rings_version,
        auth_key, auth_key_size, reserved2, handle, cm_data_size, reserved3,
    }
    EpRings {
        size, flags, ep, state, fd, side, page_size, map_size,
    }
    RingsStatus {
        ended, reserved,
    }
    RingWords {
        tail, pad, head, failed, pad2, sleeps, pad3, waits, pad4,
    }
    EpWake {
        size, flags, ep,
    }
    Bind {
        size, flags, ep, object, bind_flags,
    }
    ObjectCall {
        size, flags, handle,
    }
    ObjectCall2 {
        size, flags, handle,
    }
    Listen {
        size, flags, pep, backlog, reserved,
    }
    Connect {
        size, flags, ep, addr, param, param_len, reserved,
    }
    Accept {
        size, flags, ep, param, param_len, reserved,
    }
    Reject {
        size, flags, connreq, param, param_len, reserved,
    }
    Shutdown {
        size, flags, ep,
    }
    GetName {
        size, flags, handle, peer, reserved, addr,
    }
    EqRead {
        size, flags, eq, data, data_len, event, object, context, connreq, err, prov_errno, info,
        auth_index, reserved,
    }
    CntrCtl {
        size, flags, cntr, op, reserved, value, errors,
    }
    CntrWait {
        size, flags, cntr, threshold, deadline, reserved, errors,
    }
    RegionReg {
        size, flags, domain, addr, len, access, handle, key, remote_addr, pages, ep, auth_key,
        auth_key_size, reserved, persistence, reserved2,
    }
    KeyAlloc {
        size, flags, region, count, reserved, handles, ep, auth_key, auth_key_size, reserved2,
    }
    KeyAssign {
        size, flags, slot, offset, length, access, key, remote_addr, cq, context,
    }
    KeyAssignMany {
        size, flags, entries, count, entry_size, done, err, cq, context,
    }
    KeyEntry {
        slot, offset, length, access, key, remote_addr,
    }
    KeyRevokeMany {
        size, flags, scope, count, object, slots, done, err, revoked,
    }
    Iov {
        region, offset, len,
    }
    OpEntry {
        op, iov_count, flags, context, data, remote_addr, key, inject, inject_len, atomic_op, datatype, iov,
    }
    AtomicQuery {
        size, flags, domain, op, atomic_op, datatype, value_size, count,
    }
    Submit {
        size, flags, ep, ops, count, entry_size, done, err,
    }
    Cancel {
        size, flags, ep, context,
    }
    Close {
        size, flags, handle,
    }
    ObjList {
        size, flags, entries, count, entry_size, reserved,
    }
    ObjInfo {
        kind, pid, handle, parent, a, b, c, comm, name, auth, ep, keys_used, keys_reused, keys_worn,
        keys_spent,
    }
    AuthKeyRef {
        addr, size, reserved,
    }
    AuthMode {
        size, flags, mode, timeout_ms, deny_ms, asks, agent, agents, grants, waiting, reserved,
    }
    GrantAdd {
        size, flags, auth_key, auth_key_size, match_, rights, uid, gid, pidfd, netns_fd, max_keys,
        cgroup, max_pinned, lifetime_ms, max_eps, reserved, id,
    }
    GrantChange {
        size, flags, id, max_pinned, max_keys, max_eps, lifetime_ms,
    }
    GrantRevoke {
        size, flags, id, reserved,
    }
    GrantList {
        size, flags, entries, count, entry_size, reserved,
    }
    GrantInfo {
        id, key, match_, rights, uid, gid, cgroup, netns, process, max_pinned, max_keys, max_eps,
        pinned, keys, eps, left_ms, state, answered,
    }
    AgentOpen {
        size, flags, reserved,
    }
    AgentNext {
        size, flags, auth_key, auth_key_size, rights, id, process, pid, uid, gid, left_ms, cgroup,
        netns, comm, domain, groups, cgroup_path, groups_count, cgroup_path_size, userns, known,
        reserved,
    }
    AgentAnswer {
        size, flags, id, verdict, match_, rights, max_keys, max_pinned, lifetime_ms, max_eps,
        reserved, grant,
    }
    CqRing {
        head, entries, entry_size, pad, tail, alarm, pad2,
    }
    CqEntry {
        context, flags, len, buf, data, err, prov_errno, ep, olen,
    }
}

macro_rules! constants {
    ($($name:ident,)*) => {
        /// All constants of the interface except the calls' numbers, in the order of `abi.rs`.
        pub(crate) const CONSTANTS: &[(&str, u64)] =
            &[$((stringify!($name), kfabric_uapi::$name as u64)),*];
    };
}

constants! {
    KFI_IOC_TYPE, KFI_ABI_VERSION, KFI_API_VERSION, KFI_EP_MSG, KFI_MSG, KFI_RMA, KFI_ATOMIC,
    KFI_READ, KFI_WRITE, KFI_RECV, KFI_SEND, KFI_TRANSMIT, KFI_REMOTE_READ, KFI_REMOTE_WRITE,
    KFI_REMOTE_CQ_DATA, KFI_COMPLETION, KFI_INJECT, KFI_FENCE, KFI_SELECTIVE_COMPLETION,
    KFI_REMOTE_COMM, KFI_LOCAL_COMM, KFI_DYNAMIC_KEYS, KFI_EP_KEYS, KFI_SINGLE_USE_KEYS,
    KFI_UNREGISTERED_RMA, KFI_RMA_PMEM, KFI_DELIVERY_COMPLETE, KFI_COMMIT_COMPLETE,
    KFI_REACH_NO, KFI_REACH_NATIVE, KFI_REACH_ASSISTED,
    KFI_REVOCATION_NATIVE, KFI_REVOCATION_DEREGISTER, KFI_REVOCATION_INVALIDATE,
    KFI_PERSISTENCE_NONE,
    KFI_PERSISTENCE_ADR, KFI_PERSISTENCE_DEVICE,
    KFI_MR_LOCAL, KFI_MR_VIRT_ADDR, KFI_MR_ALLOCATED, KFI_MR_PROV_KEY, KFI_KEY_NOTAVAIL,
    KFI_SOCKADDR, KFI_SOCKADDR_IN, KFI_SOCKADDR_IN6, KFI_PROTO_RDMA_CM_IB_RC, KFI_PROTO_IWARP,
    KFI_PROTO_SHM,
    KFI_CQ_FORMAT_CONTEXT, KFI_CQ_FORMAT_MSG, KFI_CQ_FORMAT_DATA, KFI_CONNREQ, KFI_CONNECTED,
    KFI_SHUTDOWN, KFI_CONN_ERROR, KFI_NAME_MAX, KFI_IOV_MAX, KFI_SUBMIT_MAX, KFI_INJECT_MAX,
    KFI_CM_DATA_MAX, KFI_KEY_ALLOC_MAX, KFI_CQ_SIZE_MAX, KFI_EQ_SIZE_MAX, KFI_DOMAIN_STRICT_KEYS, KFI_EP_OWN_KEYS,
    KFI_EP_RINGS, KFI_EP_STRICT_KEYS, KFI_RINGS_UNKNOWN, KFI_RINGS_NONE, KFI_RINGS_SHARED, KFI_RING_SIZE,
    KFI_RING_DATA, KFI_WAKE_SELF,
    KFI_EQ_PEEK, KFI_CNTR_READ, KFI_CNTR_ADD, KFI_CNTR_SET, KFI_CNTR_ADDERR, KFI_CNTR_SETERR,
    KFI_CNTR_WAIT_CHANGE,
    KFI_REGION_PMEM, KFI_REGION_DEVICE, KFI_REGION_DYNAMIC_KEYS, KFI_KEY_SINGLE_USE,
    KFI_KEY_ORDERED, KFI_REVOKE_SLOTS,
    KFI_REVOKE_REGION, KFI_REVOKE_DOMAIN, KFI_REVOKE_FILE, KFI_REVOKE_EP, KFI_REVOKE_AUTH,
    KFI_UNREGISTERED,
    KFI_OP_SEND, KFI_OP_RECV, KFI_OP_READ, KFI_OP_WRITE, KFI_OP_ATOMIC, KFI_OP_FETCH_ATOMIC,
    KFI_OP_COMPARE_ATOMIC, KFI_OP_COMMIT, KFI_INT8, KFI_UINT8, KFI_INT16, KFI_UINT16, KFI_INT32, KFI_UINT32,
    KFI_INT64, KFI_UINT64, KFI_ATOMIC_MIN, KFI_ATOMIC_MAX, KFI_ATOMIC_SUM, KFI_ATOMIC_PROD,
    KFI_ATOMIC_LOR, KFI_ATOMIC_LAND, KFI_ATOMIC_BOR, KFI_ATOMIC_BAND, KFI_ATOMIC_LXOR,
    KFI_ATOMIC_BXOR, KFI_ATOMIC_READ, KFI_ATOMIC_WRITE, KFI_ATOMIC_CSWAP, KFI_ATOMIC_CSWAP_NE,
    KFI_ATOMIC_CSWAP_LE, KFI_ATOMIC_CSWAP_LT, KFI_ATOMIC_CSWAP_GE, KFI_ATOMIC_CSWAP_GT,
    KFI_ATOMIC_MSWAP, KFI_TYPE_FABRIC, KFI_TYPE_DOMAIN, KFI_TYPE_EQ, KFI_TYPE_CQ, KFI_TYPE_CNTR,
    KFI_TYPE_PEP, KFI_TYPE_EP, KFI_TYPE_REGION, KFI_TYPE_KEY, KFI_TYPE_CONNREQ, KFI_STATE_NEW,
    KFI_STATE_ENABLED, KFI_STATE_CONNECTING, KFI_STATE_CONNECTED, KFI_STATE_DOWN, KFI_AUTH_KEY_MAX,
    KFI_AUTH_KEY_SAFE,
    KFI_PEP_AUTH_KEYS_MAX, KFI_AUTH_CM_DATA, KFI_AUTH_OPEN, KFI_AUTH_ENFORCE, KFI_AUTH_SET_MODE,
    KFI_AUTH_SET_TIMEOUT, KFI_AUTH_SET_DENY, KFI_AUTH_SET_ASKS, KFI_AUTH_EP, KFI_AUTH_KEYS,
    KFI_MATCH_UID, KFI_MATCH_GID, KFI_MATCH_CGROUP, KFI_MATCH_NETNS, KFI_MATCH_PROCESS,
    KFI_GRANT_LIMITS, KFI_GRANT_LIFETIME, KFI_GRANT_VALID, KFI_GRANT_REVOKED, KFI_GRANT_EXPIRED,
    KFI_KNOWN_GROUPS, KFI_KNOWN_CGROUP, KFI_AUTH_DENY, KFI_AUTH_ALLOW, KFI_CQ_RING_OFFSET,
}
