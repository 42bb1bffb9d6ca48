/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The interface of /dev/kfabric.
 *
 * Generated from uapi/src/abi.rs by `cargo run -p kfabric-uapi --features header --bin gen-header`;
 * do not edit.
 *
 * Rules of every call: a structure starts with its size and flags. The kernel copies the smaller of
 * its own size and the caller's. Bytes beyond the kernel's size must be zero (E2BIG); missing bytes
 * count as zero. A size below the structure's first version is EINVAL. Unknown flags and non-zero
 * reserved fields are EINVAL. A handle names an object of one open file and is never reused. A call
 * that fails changes nothing.
 */
#ifndef _UAPI_KFABRIC_H
#define _UAPI_KFABRIC_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * The ioctl type byte. 0xBF 00-3F is unlisted in Documentation/userspace-api/ioctl/ioctl-number.rst.
 */
#define KFI_IOC_TYPE 191

/* Version of this interface, as struct kfi_info_entry's abi reports it. For information only. */
#define KFI_ABI_VERSION 1

/* API version of info entries: libfabric 2.0, as FI_VERSION(2, 0). */
#define KFI_API_VERSION (2 << 16)

/* Endpoint type: reliable, connected, message oriented (FI_EP_MSG). */
#define KFI_EP_MSG 1

/* Messages: send and receive (FI_MSG). */
#define KFI_MSG (1ULL << 1)

/* RMA: one-sided operations (FI_RMA). */
#define KFI_RMA (1ULL << 2)

/*
 * Atomics (FI_ATOMIC). As access right: peers may use the memory for atomics; requires
 * KFI_REMOTE_READ and KFI_REMOTE_WRITE too.
 */
#define KFI_ATOMIC (1ULL << 4)

/*
 * Endpoints can initiate reads. As access right: the memory may be the destination of a read
 * (FI_READ).
 */
#define KFI_READ (1ULL << 8)

/*
 * Endpoints can initiate writes. As access right: the memory may be the source of a write
 * (FI_WRITE).
 */
#define KFI_WRITE (1ULL << 9)

/*
 * Endpoints can receive. As access right: the memory may receive a message. In binds: the receive
 * side (FI_RECV).
 */
#define KFI_RECV (1ULL << 10)

/*
 * Endpoints can send. As access right: the memory may be the source of a message. In binds: the
 * transmit side (FI_SEND, equal to FI_TRANSMIT).
 */
#define KFI_SEND (1ULL << 11)

/* In binds: the transmit side (FI_TRANSMIT). */
#define KFI_TRANSMIT KFI_SEND

/*
 * Endpoints can be the target of reads. As access right: peers may read the memory
 * (FI_REMOTE_READ).
 */
#define KFI_REMOTE_READ (1ULL << 12)

/*
 * Endpoints can be the target of writes. As access right: peers may write the memory
 * (FI_REMOTE_WRITE).
 */
#define KFI_REMOTE_WRITE (1ULL << 13)

/* An operation or a completion has remote completion data (FI_REMOTE_CQ_DATA). */
#define KFI_REMOTE_CQ_DATA (1ULL << 17)

/* An operation requests a completion entry although its bind is selective (FI_COMPLETION). */
#define KFI_COMPLETION (1ULL << 24)

/*
 * The payload is copied before the call returns. The operation has no completion entry unless
 * KFI_COMPLETION requests one (FI_INJECT).
 */
#define KFI_INJECT (1ULL << 25)

/*
 * The operation starts only after the earlier operations. kfabric's own value: FI_FENCE of
 * libfabric is 1 << 21.
 */
#define KFI_FENCE (1ULL << 22)

/*
 * In a bind: completion entries only for operations with KFI_COMPLETION
 * (FI_SELECTIVE_COMPLETION).
 */
#define KFI_SELECTIVE_COMPLETION (1ULL << 59)

/*
 * Endpoints can reach peers on other nodes. kfabric's own value: FI_REMOTE_COMM of libfabric is
 * another bit.
 */
#define KFI_REMOTE_COMM (1ULL << 51)

/*
 * Endpoints can reach peers on this node. kfabric's own value: FI_LOCAL_COMM of libfabric is
 * another bit.
 */
#define KFI_LOCAL_COMM (1ULL << 50)

/*
 * kfabric's own: the provider supports dynamic keys (alloc, assign, revoke). No libfabric bit has
 * this value.
 */
#define KFI_DYNAMIC_KEYS (1ULL << 40)

/* kfabric's own: endpoints may have endpoint-scoped keys (KFI_EP_OWN_KEYS). */
#define KFI_EP_KEYS (1ULL << 41)

/*
 * kfabric's own: the provider supports single-use keys (KFI_KEY_SINGLE_USE). Verbs does not:
 * no device revokes a registration after its use, or notifies the target of a use.
 */
#define KFI_SINGLE_USE_KEYS (1ULL << 42)

/* Reads and writes accept unregistered local memory (KFI_UNREGISTERED). */
#define KFI_UNREGISTERED_RMA (1ULL << 43)

/*
 * Writes can complete only when their bytes are durable (KFI_COMMIT_COMPLETE), if the target's
 * memory is persistent (FI_RMA_PMEM).
 */
#define KFI_RMA_PMEM (1ULL << 49)

/*
 * A write completes only when its bytes are visible to the target's processors
 * (FI_DELIVERY_COMPLETE). -EOPNOTSUPP: any other operation, or a domain whose
 * struct kfi_domain_open's visible is KFI_REACH_NO.
 */
#define KFI_DELIVERY_COMPLETE (1ULL << 28)

/*
 * A write completes only when its bytes are durable: they survive a power failure of the target at
 * that moment (FI_COMMIT_COMPLETE). So does the completion of a receive that the write's
 * completion data uses up. A write of 0 bytes always is durable. -EOPNOTSUPP: any other operation, or a domain whose
 * struct kfi_domain_open's durable is KFI_REACH_NO. If the target's memory is not
 * KFI_PERSISTENCE_ADR, the operation completes with EOPNOTSUPP, and the connection stays. No
 * byte is written if the domain's durable is KFI_REACH_NATIVE; with KFI_REACH_ASSISTED
 * bytes may have changed. EKEYREVOKED: the target has revoked the key since the write.
 */
#define KFI_COMMIT_COMPLETE (1ULL << 30)

/* A domain does not reach a level of completion. */
#define KFI_REACH_NO 0

/* A domain reaches a level of completion by itself. */
#define KFI_REACH_NATIVE 1

/* A domain reaches a level of completion with the help of the target's kernel. */
#define KFI_REACH_ASSISTED 2

/* A key is revoked in the kernel's memory; no device has it. */
#define KFI_REVOCATION_NATIVE 0

/*
 * A key is revoked by deregistration of the device's region, and the next key needs another region.
 */
#define KFI_REVOCATION_DEREGISTER 1

/* A key is revoked by a local invalidation on the device, and the region gets the next key. */
#define KFI_REVOCATION_INVALIDATE 2

/* Memory that is not known to be persistent. */
#define KFI_PERSISTENCE_NONE 0

/*
 * Persistent memory: a write-back of the processor's caches makes stores durable. Memory with
 * persistent caches (eADR) is reported so, too: the kernel tells only for block devices, which programs
 * do not register, whether caches are persistent.
 */
#define KFI_PERSISTENCE_ADR 1

/* Memory in which only a flush by the device's driver makes stores durable, e.g. virtio-pmem. */
#define KFI_PERSISTENCE_DEVICE 2

/* Registration mode (FI_MR_*, fi_mr(3)): local buffers need a region. */
#define KFI_MR_LOCAL (1ULL << 2)

/* Registration mode: remote addresses are virtual addresses of the exporter. */
#define KFI_MR_VIRT_ADDR (1ULL << 4)

/* Registration mode: memory must be backed by pages at registration. */
#define KFI_MR_ALLOCATED (1ULL << 5)

/* Registration mode: the provider chooses key values. */
#define KFI_MR_PROV_KEY (1ULL << 6)

/* Key value of a region without a key (FI_KEY_NOTAVAIL). */
#define KFI_KEY_NOTAVAIL (~0ULL)

/* Address format: any socket address (FI_SOCKADDR). */
#define KFI_SOCKADDR 1

/* Address format: IPv4 (FI_SOCKADDR_IN). */
#define KFI_SOCKADDR_IN 2

/* Address format: IPv6 (FI_SOCKADDR_IN6). */
#define KFI_SOCKADDR_IN6 3

/* Protocol: RC queue pairs, connected by rdma_cm (FI_PROTO_RDMA_CM_IB_RC). */
#define KFI_PROTO_RDMA_CM_IB_RC 1

/* Protocol: iWARP queue pairs, connected by rdma_cm (FI_PROTO_IWARP). */
#define KFI_PROTO_IWARP 2

/* Protocol: copies inside one host (FI_PROTO_SHM). */
#define KFI_PROTO_SHM 14

/* Completion format: context only (FI_CQ_FORMAT_CONTEXT). */
#define KFI_CQ_FORMAT_CONTEXT 1

/* Completion format: context, flags, length (FI_CQ_FORMAT_MSG). */
#define KFI_CQ_FORMAT_MSG 2

/* Completion format: context, flags, length, buffer, completion data (FI_CQ_FORMAT_DATA). */
#define KFI_CQ_FORMAT_DATA 3

/* Event: a connection request of a peer (FI_CONNREQ). */
#define KFI_CONNREQ 1

/* Event: an endpoint is connected (FI_CONNECTED). */
#define KFI_CONNECTED 2

/*
 * Event: a connection ended (FI_SHUTDOWN). struct kfi_eq_read's err is ENODEV if the device is removed.
 */
#define KFI_SHUTDOWN 3

/*
 * Event: a connect failed or was refused; the reason is in struct kfi_eq_read's err, with the refuser's
 * data. Of a passive endpoint: it no longer listens, because the device of its address is removed
 * (ENODEV). libfabric reports this event by fi_eq_readerr; the value is kfabric's own.
 */
#define KFI_CONN_ERROR 256

/* Size of a name in bytes, including its NUL. */
#define KFI_NAME_MAX 64

/* Maximum number of local buffers of one operation. */
#define KFI_IOV_MAX 4

/* Maximum number of operations in one struct kfi_submit. */
#define KFI_SUBMIT_MAX 1024

/* Maximum payload of one injected operation in bytes; see struct kfi_info_entry's inject_size. */
#define KFI_INJECT_MAX 64

/* Maximum application data of a connection request or answer in bytes. */
#define KFI_CM_DATA_MAX 192

/*
 * Maximum number of key slots of one struct kfi_key_alloc, and of entries of one struct kfi_key_assign_many or
 * struct kfi_key_revoke_many.
 */
#define KFI_KEY_ALLOC_MAX 4096

/* Maximum number of entries of a completion queue. */
#define KFI_CQ_SIZE_MAX (1ULL << 18)

/* Maximum number of waiting events of an event queue. */
#define KFI_EQ_SIZE_MAX (1ULL << 16)

/*
 * Flag of struct kfi_domain_open: the rule of KFI_EP_STRICT_KEYS for all protection groups of the domain.
 *
 * The domain's own regions are a group, and so are the objects of each auth key, as long as there are
 * some, and each endpoint with KFI_EP_OWN_KEYS. A group gets no value that any key of the host has
 * had since the group was created.
 */
#define KFI_DOMAIN_STRICT_KEYS 1

/*
 * Flag of struct kfi_ep_open: endpoint-scoped keys (FI_MR_ENDPOINT).
 *
 * The peer of this endpoint can access only regions and keys that are bound to the endpoint
 * (struct kfi_region_reg's ep, struct kfi_key_alloc's ep). No other endpoint permits access to these. A close of the
 * endpoint first revokes the keys that are bound to it.
 *
 * The endpoint's own operations may use regions that are bound to it. Of other regions they may
 * use those that consist of few pieces (-EINVAL: too many). -EOPNOTSUPP: the provider lacks
 * the capability KFI_EP_KEYS.
 */
#define KFI_EP_OWN_KEYS 1

/*
 * Flag of struct kfi_ep_open: messages may use rings that the endpoint shares with its peer (struct kfi_ep_rings).
 *
 * Requirements: the peer's endpoint has the flag too, with the same struct kfi_ep_open's rings_version, the
 * provider supports rings (kshm), neither endpoint has a counter, and both programs may pin the
 * memory. Otherwise messages are sent as without the flag.
 */
#define KFI_EP_RINGS 2

/*
 * Flag of struct kfi_ep_open: no value of the endpoint's keys is issued twice while the endpoint exists.
 *
 * If the device offers no other value, the allocation or assignment of a key fails with
 * -ENOSPC. Values that other endpoints of the host have had since this one was opened count, too.
 * A program that connects anew can have values again. Without this flag a value is
 * issued again after all others that the device offers, and after a time of rest. Needs
 * KFI_EP_OWN_KEYS (else -EINVAL).
 */
#define KFI_EP_STRICT_KEYS 4

/* State of struct kfi_ep_rings: not connected yet. */
#define KFI_RINGS_UNKNOWN 0

/* State of struct kfi_ep_rings: the connection has no rings. */
#define KFI_RINGS_NONE 1

/* State of struct kfi_ep_rings: the connection has rings. */
#define KFI_RINGS_SHARED 2

/* Size of a ring in bytes, including its words (struct kfi_ring_words). */
#define KFI_RING_SIZE (68 << 10)

/* Offset of the data of a ring; the data extends to the end of the ring. */
#define KFI_RING_DATA 4096

/* Flag of struct kfi_ep_wake: wakes the waiters of this end's queues instead. */
#define KFI_WAKE_SELF 1

/* Flag of struct kfi_eq_read: leave the event in the queue. */
#define KFI_EQ_PEEK 1

/* Reads a counter. */
#define KFI_CNTR_READ 0

/* Adds to a counter. */
#define KFI_CNTR_ADD 1

/* Sets a counter. */
#define KFI_CNTR_SET 2

/* Adds to a counter's errors. */
#define KFI_CNTR_ADDERR 3

/* Sets a counter's errors. */
#define KFI_CNTR_SETERR 4

/*
 * For struct kfi_cntr_wait: wait until a value of the counter differs from threshold or errors, instead
 * of until the counter reaches threshold.
 */
#define KFI_CNTR_WAIT_CHANGE (1ULL << 0)

/*
 * Flag of struct kfi_region_reg: the memory must be persistent. -EINVAL: the memory is not known to be
 * persistent. -EOPNOTSUPP: the domain cannot make writes to the memory durable
 * (struct kfi_domain_open's durable, KFI_PERSISTENCE_DEVICE). A region without this flag may have
 * persistent memory as well, and durable writes to its keys work.
 *
 * Memory of a file on a DAX file system cannot be registered, with or without the flag
 * (-EOPNOTSUPP): the file system may move the file's blocks. A mapping of a device-dax device
 * (/dev/daxX.Y) can.
 */
#define KFI_REGION_PMEM 2

/* Flag of struct kfi_region_reg: memory of another device. Always -EOPNOTSUPP. */
#define KFI_REGION_DEVICE 4

/*
 * Flag of struct kfi_region_reg: no key at registration; key slots are reserved and assigned later.
 */
#define KFI_REGION_DYNAMIC_KEYS 1

/*
 * Flag of struct kfi_key_assign and struct kfi_key_assign_many: single-use keys. A key is revoked by the first
 * operation that uses it; of several concurrent operations one succeeds. The slot can then be
 * assigned again. -EOPNOTSUPP: the provider lacks the capability KFI_SINGLE_USE_KEYS.
 */
#define KFI_KEY_SINGLE_USE 2

/*
 * Flag of struct kfi_key_assign and struct kfi_key_assign_many: key values are returned at once, and the keys are
 * valid before operations that are posted afterwards.
 */
#define KFI_KEY_ORDERED 1

/* Scope of struct kfi_key_revoke_many: the slots of a list. */
#define KFI_REVOKE_SLOTS 0

/* Scope of struct kfi_key_revoke_many: all slots of a region. */
#define KFI_REVOKE_REGION 1

/* Scope of struct kfi_key_revoke_many: all slots of all regions of a domain. */
#define KFI_REVOKE_DOMAIN 2

/* Scope of struct kfi_key_revoke_many: all slots of the file. */
#define KFI_REVOKE_FILE 3

/*
 * Scope of struct kfi_key_revoke_many: all slots that are bound to an endpoint; -EINVAL for an endpoint
 * without endpoint-scoped keys.
 */
#define KFI_REVOKE_EP 4

/*
 * Scope of struct kfi_key_revoke_many: all slots of the file whose keys are valid under an auth key. No
 * grant is needed, because the keys are the caller's own.
 */
#define KFI_REVOKE_AUTH 5

/*
 * In place of a region's handle in an struct kfi_iov: offset is an address of the caller's own memory,
 * which is neither registered nor pinned.
 *
 * It must be the only piece of a read or a write. -EOPNOTSUPP: the provider lacks the capability
 * KFI_UNREGISTERED_RMA. The bytes are copied before the call returns. -EFAULT: no byte can
 * be copied. If a later byte cannot be copied, the operation and the connection end with EFAULT.
 * -EAGAIN: earlier operations are still outstanding.
 */
#define KFI_UNREGISTERED (~0ULL)

/* Sends a message. */
#define KFI_OP_SEND 0

/* Posts a receive. */
#define KFI_OP_RECV 1

/* Reads remote memory. */
#define KFI_OP_READ 2

/* Writes remote memory. */
#define KFI_OP_WRITE 3

/*
 * Changes values in remote memory (fi_atomic(3)). The key needs the right KFI_ATOMIC.
 * -EINVAL: the remote address is not a multiple of the value's size. -EOPNOTSUPP: the domain
 * does not support the atomic (struct kfi_atomic_query). -EMSGSIZE: too many values.
 */
#define KFI_OP_ATOMIC 4

/* As KFI_OP_ATOMIC, and returns the old values (fi_fetch_atomic). */
#define KFI_OP_FETCH_ATOMIC 5

/* As KFI_OP_FETCH_ATOMIC, with comparands (fi_compare_atomic). */
#define KFI_OP_COMPARE_ATOMIC 6

/*
 * Makes earlier writes of this endpoint to a remote range durable, as if each of them had
 * KFI_COMMIT_COMPLETE, and bytes that its earlier reads have returned from there. Moves no
 * bytes: iov_count and inject must be 0. Needs the right to write. With KFI_REMOTE_CQ_DATA the peer's completion follows the commit.
 * -EOPNOTSUPP: the domain has no durable writes. -EMSGSIZE: the range is too long. Completes
 * with EOPNOTSUPP if the memory is not persistent, EKEYREVOKED if the key has ended, EACCES
 * if the key does not permit a write to the range; the connection stays, but ends after refusals
 * with eight keys. A commit of no bytes needs no key.
 */
#define KFI_OP_COMMIT 7

/* Type of values (enum fi_datatype): 8 bits, signed. */
#define KFI_INT8 0

/* Type of values: 8 bits, unsigned. */
#define KFI_UINT8 1

/* Type of values: 16 bits, signed. */
#define KFI_INT16 2

/* Type of values: 16 bits, unsigned. */
#define KFI_UINT16 3

/* Type of values: 32 bits, signed. */
#define KFI_INT32 4

/* Type of values: 32 bits, unsigned. */
#define KFI_UINT32 5

/* Type of values: 64 bits, signed. */
#define KFI_INT64 6

/* Type of values: 64 bits, unsigned. */
#define KFI_UINT64 7

/* Atomic operation (enum fi_op): minimum. */
#define KFI_ATOMIC_MIN 0

/* Atomic operation: maximum. */
#define KFI_ATOMIC_MAX 1

/* Atomic operation: sum, wrapping. */
#define KFI_ATOMIC_SUM 2

/* Atomic operation: product, wrapping. */
#define KFI_ATOMIC_PROD 3

/* Atomic operation: logical OR. */
#define KFI_ATOMIC_LOR 4

/* Atomic operation: logical AND. */
#define KFI_ATOMIC_LAND 5

/* Atomic operation: bitwise OR. */
#define KFI_ATOMIC_BOR 6

/* Atomic operation: bitwise AND. */
#define KFI_ATOMIC_BAND 7

/* Atomic operation: logical exclusive OR. */
#define KFI_ATOMIC_LXOR 8

/* Atomic operation: bitwise exclusive OR. */
#define KFI_ATOMIC_BXOR 9

/* Atomic operation: read. Only with KFI_OP_FETCH_ATOMIC, without operands. */
#define KFI_ATOMIC_READ 10

/* Atomic operation: write. With KFI_OP_FETCH_ATOMIC this is a swap. */
#define KFI_ATOMIC_WRITE 11

/*
 * Atomic operation: write if the comparand is equal to the old value. This and the following
 * operations exist only with KFI_OP_COMPARE_ATOMIC.
 */
#define KFI_ATOMIC_CSWAP 12

/* Atomic operation: write if the comparand is not equal to the old value. */
#define KFI_ATOMIC_CSWAP_NE 13

/* Atomic operation: write if the comparand is at most the old value. */
#define KFI_ATOMIC_CSWAP_LE 14

/* Atomic operation: write if the comparand is less than the old value. */
#define KFI_ATOMIC_CSWAP_LT 15

/* Atomic operation: write if the comparand is at least the old value. */
#define KFI_ATOMIC_CSWAP_GE 16

/* Atomic operation: write if the comparand is greater than the old value. */
#define KFI_ATOMIC_CSWAP_GT 17

/* Atomic operation: write the bits that are set in the comparand. */
#define KFI_ATOMIC_MSWAP 18

/* A fabric. */
#define KFI_TYPE_FABRIC 1

/* A domain. */
#define KFI_TYPE_DOMAIN 2

/* An event queue. */
#define KFI_TYPE_EQ 3

/* A completion queue. */
#define KFI_TYPE_CQ 4

/* A counter. */
#define KFI_TYPE_CNTR 5

/* A passive endpoint. */
#define KFI_TYPE_PEP 6

/* An endpoint. */
#define KFI_TYPE_EP 7

/* A region. */
#define KFI_TYPE_REGION 8

/* A key slot. */
#define KFI_TYPE_KEY 9

/* A connection request without an answer. */
#define KFI_TYPE_CONNREQ 10

/* Endpoint state: opened. */
#define KFI_STATE_NEW 0

/* Endpoint state: enabled; receives may be posted. */
#define KFI_STATE_ENABLED 1

/* Endpoint state: connecting or accepting. */
#define KFI_STATE_CONNECTING 2

/* Endpoint state: connected. */
#define KFI_STATE_CONNECTED 3

/* Endpoint state: the connection ended. */
#define KFI_STATE_DOWN 4

/* Maximum size of an auth key in bytes. */
#define KFI_AUTH_KEY_MAX 64

/*
 * Smallest size of an auth key that peers cannot guess, in bytes. Mode enforce refuses shorter keys
 * (-EKEYREJECTED); in mode open the kernel logs their first use.
 */
#define KFI_AUTH_KEY_SAFE 16

/* Maximum number of auth keys of a passive endpoint. */
#define KFI_PEP_AUTH_KEYS_MAX 8

/* Maximum application data of a connection request in bytes, for an endpoint with an auth key. */
#define KFI_AUTH_CM_DATA 24

/* Mode: no grant is needed. */
#define KFI_AUTH_OPEN 0

/* Mode: opens need a grant. */
#define KFI_AUTH_ENFORCE 1

/* Flag of struct kfi_auth_mode: sets the mode. */
#define KFI_AUTH_SET_MODE 1

/* Flag of struct kfi_auth_mode: sets the time for a decision. */
#define KFI_AUTH_SET_TIMEOUT 2

/* Flag of struct kfi_auth_mode: sets the time for which a denial is remembered. */
#define KFI_AUTH_SET_DENY 4

/* Flag of struct kfi_auth_mode: sets the maximum number of waiting upcalls of a process. */
#define KFI_AUTH_SET_ASKS 8

/* Right of a grant: open endpoints and passive endpoints. */
#define KFI_AUTH_EP 1

/* Right of a grant: open key slots, and regions with a key. */
#define KFI_AUTH_KEYS 2

/* A grant compares the effective uid. */
#define KFI_MATCH_UID 1

/* A grant compares the effective gid and the supplementary groups. */
#define KFI_MATCH_GID 2

/* A grant compares the cgroup (v2) and its ancestors. */
#define KFI_MATCH_CGROUP 4

/* A grant compares the network namespace. */
#define KFI_MATCH_NETNS 8

/* A grant compares the process. */
#define KFI_MATCH_PROCESS 16

/* Flag of struct kfi_grant_change: changes the limits, all of them. */
#define KFI_GRANT_LIMITS 1

/* Flag of struct kfi_grant_change: changes the lifetime. */
#define KFI_GRANT_LIFETIME 2

/* State of a grant: valid. */
#define KFI_GRANT_VALID 0

/* State of a grant: revoked, but not all of its objects have ended. */
#define KFI_GRANT_REVOKED 1

/* State of a grant: expired, but not all of its objects have ended. */
#define KFI_GRANT_EXPIRED 2

/* The upcall contains all supplementary groups. */
#define KFI_KNOWN_GROUPS 1

/* The upcall contains the path of the cgroup. */
#define KFI_KNOWN_CGROUP 2

/* Verdict: deny. */
#define KFI_AUTH_DENY 0

/* Verdict: allow. */
#define KFI_AUTH_ALLOW 1

/* Offset in bytes of the first entry in the mapping. */
#define KFI_CQ_RING_OFFSET 4096

/*
 * A socket address: sockaddr_in or sockaddr_in6 in the first len bytes (network order as in
 * <netinet/in.h>), then zeroes. A len of 0 means no address.
 *
 * Or a service name, for providers that support such names (kshm). Then len is 28, the family is
 * AF_UNIX, and up to 26 bytes follow, of which the first is not zero; unused bytes are zero. A
 * service name belongs to the host, regardless of namespaces.
 */
struct kfi_sock_addr {
	/* Number of bytes of data in use: 0, 16 or 28. */
	__u32 len;
	/* The address in the layout of the C structure. */
	__u8 data[28];
};

/*
 * Attributes that a provider offers, or hints of a caller.
 *
 * In hints zero means "any", except for mode and mr_mode: there zero means that the caller
 * supports none. Each field has the meaning of its namesake in fi_getinfo(3), fi_domain(3) or
 * fi_endpoint(3).
 */
struct kfi_info_entry {
	/* Capabilities: KFI_MSG, KFI_RMA, … */
	__u64 caps;
	/* Modes: required by the provider; in hints: supported by the caller. */
	__u64 mode;
	/* Registration modes: required by the provider; in hints: supported by the caller. */
	__u64 mr_mode;
	/* Maximum length of a message or one-sided operation in bytes. */
	__u64 max_msg_size;
	/* Maximum length of an injected operation in bytes. */
	__u64 inject_size;
	/* Size of the transmit queue in operations. */
	__u32 tx_size;
	/* Size of the receive queue in operations. */
	__u32 rx_size;
	/* Maximum number of local buffers of one operation. */
	__u32 iov_limit;
	/* Maximum number of remote ranges of one one-sided operation. */
	__u32 rma_iov_limit;
	/* Size of remote completion data in bytes. */
	__u32 cq_data_size;
	/* Size of a key value in bytes. */
	__u32 mr_key_size;
	/* Maximum application data of a connection request in bytes. */
	__u32 cm_data_size;
	/* Endpoint type, KFI_EP_MSG. */
	__u32 ep_type;
	/* Protocol, KFI_PROTO_*. */
	__u32 protocol;
	/* Address format, KFI_SOCKADDR*. */
	__u32 addr_format;
	/* Version of the provider, major << 16 | minor. */
	__u32 prov_version;
	/* API version, major << 16 | minor; in hints: the requested one (0: any). */
	__u32 api_version;
	/* Version of this interface, KFI_ABI_VERSION. */
	__u32 abi;
	/* Rank: a larger one is preferred. Set by providers, ignored in hints. */
	__u32 rank;
	/* Source address, if any. */
	struct kfi_sock_addr src_addr;
	/* Destination address, if any. */
	struct kfi_sock_addr dest_addr;
	/* Provider name, NUL padded. */
	__u8 prov_name[KFI_NAME_MAX];
	/* Fabric name, NUL padded. */
	__u8 fabric_name[KFI_NAME_MAX];
	/* Domain name, NUL padded. */
	__u8 domain_name[KFI_NAME_MAX];
	/*
	 * How writes become visible (struct kfi_domain_open's visible). Set by providers, ignored in hints.
	 */
	__u32 visible;
	/*
	 * How writes become durable (struct kfi_domain_open's durable). Set by providers, ignored in hints,
	 * which ask by KFI_RMA_PMEM.
	 */
	__u32 durable;
	/* How a key is revoked, KFI_REVOCATION_*. Set by providers, ignored in hints. */
	__u32 revocation;
	/*
	 * Maximum number of pages of a key by fast registration; u32::MAX: no limit. A key for more
	 * pages of a program's memory needs a full registration, which takes longer; devices without full
	 * registrations refuse it. A key of the kernel's memory has at most 256 of these pages. Set by
	 * providers, ignored in hints.
	 */
	__u32 max_key_pages;
};

/* KFI_IOC_GETINFO. */
struct kfi_get_info {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Pointer to one struct kfi_info_entry of hints, or 0 for none. */
	__u64 hints;
	/* Pointer to an array of struct kfi_info_entry. */
	__u64 entries;
	/* In: entries that the array can hold. Out: entries that matched, possibly more. */
	__u32 count;
	/* In: the caller's size of struct kfi_info_entry. */
	__u32 entry_size;
	/* Zero. */
	__u64 reserved;
};

/* KFI_IOC_FABRIC_OPEN. */
struct kfi_fabric_open {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Provider name, NUL padded; -ENOENT if no provider has that name. */
	__u8 prov_name[32];
	/* Fabric name, NUL padded; empty: the provider's first fabric. */
	__u8 fabric_name[KFI_NAME_MAX];
	/* Out: handle. */
	__u64 handle;
};

/* KFI_IOC_DOMAIN_OPEN. */
struct kfi_domain_open {
	/* Size of this structure. */
	__u32 size;
	/* KFI_DOMAIN_STRICT_KEYS or zero. */
	__u32 flags;
	/* The fabric. */
	__u64 fabric;
	/* Domain name, NUL padded, as returned in an info entry. */
	__u8 name[KFI_NAME_MAX];
	/* Pointer to the auth key's bytes; 0: the domain has no default auth key. */
	__u64 auth_key;
	/*
	 * Size of the auth key in bytes: 0, or 1 to KFI_AUTH_KEY_MAX. An object opened on the domain
	 * without its own auth key has this one. The domain itself needs no grant; see struct kfi_auth_mode.
	 */
	__u32 auth_key_size;
	/* Zero. */
	__u32 reserved;
	/* Out: handle. */
	__u64 handle;
	/* Out: capabilities of the domain. */
	__u64 caps;
	/* Out: registration modes required. */
	__u64 mr_mode;
	/* Out: maximum length of an operation in bytes. */
	__u64 max_msg_size;
	/* Out: maximum length of an injected operation in bytes. */
	__u32 inject_size;
	/* Out: maximum size of a transmit queue in operations. */
	__u32 max_tx_size;
	/* Out: maximum size of a receive queue in operations. */
	__u32 max_rx_size;
	/* Out: maximum number of local buffers of one operation. */
	__u32 iov_limit;
	/*
	 * Out: maximum application data of a connection request, in bytes. The value is for an
	 * endpoint with the domain's auth key, or without one if the domain has none.
	 */
	__u32 cm_data_size;
	/* Zero. */
	__u32 reserved2;
	/* Out: approximate number of key slots that the device can hold. */
	__u64 max_keys;
	/* Out: KFI_REACH_*, for KFI_DELIVERY_COMPLETE. */
	__u32 visible;
	/* Out: KFI_REACH_*, for KFI_COMMIT_COMPLETE. */
	__u32 durable;
};

/* KFI_IOC_EQ_OPEN. */
struct kfi_eq_open {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The fabric. */
	__u64 fabric;
	/* Maximum number of waiting events; 0: 64. Events of endpoints have additional places. */
	__u32 depth;
	/*
	 * Out: a descriptor that polls readable while an event waits. Its close does not close the
	 * queue.
	 */
	__s32 fd;
	/* Out: handle. */
	__u64 handle;
};

/* KFI_IOC_CQ_OPEN. */
struct kfi_cq_open {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The domain. */
	__u64 domain;
	/* Requested number of entries, rounded up to a power of two; 0: 1024. */
	__u32 depth;
	/* KFI_CQ_FORMAT_*; 0: context only. */
	__u32 format;
	/*
	 * Out: a descriptor for mmap of the ring (offset 0) and for poll, readable while an entry
	 * waits. Its close does not close the queue.
	 */
	__s32 fd;
	/* Out: number of entries of the ring, a power of two. */
	__u32 entries;
	/* Out: size of the mapping in bytes: a struct kfi_cq_ring page, then the entries. */
	__u64 map_size;
	/* Out: handle. */
	__u64 handle;
	/* Zero. */
	__u64 reserved;
};

/* KFI_IOC_CNTR_OPEN. */
struct kfi_cntr_open {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The domain. */
	__u64 domain;
	/* Out: handle. */
	__u64 handle;
	/* Zero. */
	__u64 reserved;
};

/*
 * KFI_IOC_PEP_OPEN.
 *
 * | errno | |
 * |---|---|
 * | -EINVAL | the address is none, the event queue is of another fabric, or an auth key is there twice |
 * | -EACCES | the port is below net.ipv4.ip_unprivileged_port_start (1024 at first), and the caller lacks CAP_NET_BIND_SERVICE in the user namespace of the file's network namespace |
 * | -EADDRINUSE | another listener has the port |
 * | -EADDRNOTAVAIL | no local interface has the address |
 * | -ENODEV | no RDMA device has the address |
 * | -EOPNOTSUPP | auth keys, and the provider cannot prove them |
 *
 * What grants add is in struct kfi_auth_mode.
 */
struct kfi_pep_open {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The fabric. */
	__u64 fabric;
	/* The event queue for KFI_CONNREQ events. */
	__u64 eq;
	/*
	 * Address to listen at. With port 0 a port is chosen, which struct kfi_get_name returns
	 * from the open on.
	 */
	struct kfi_sock_addr addr;
	/* A value of the caller, returned in events. */
	__u64 context;
	/* Out: handle. */
	__u64 handle;
	/*
	 * Pointer to an array of struct kfi_auth_key_ref; 0: peers must have no auth key. A connecting peer
	 * must prove that it has one of these auth keys. Only then its connection request becomes an
	 * event (struct kfi_eq_read's auth_index).
	 */
	__u64 auth_keys;
	/*
	 * Number of auth keys, 0 to KFI_PEP_AUTH_KEYS_MAX; a duplicate is -EINVAL. Each counts as
	 * an endpoint.
	 */
	__u32 auth_key_count;
	/* Zero. */
	__u32 reserved;
};

/* KFI_IOC_EP_OPEN. */
struct kfi_ep_open {
	/* Size of this structure. */
	__u32 size;
	/* KFI_EP_OWN_KEYS, KFI_EP_RINGS, KFI_EP_STRICT_KEYS or zero. */
	__u32 flags;
	/* The domain. */
	__u64 domain;
	/*
	 * The connection request of a KFI_CONNREQ event, for an accepting endpoint; else 0. The
	 * request is used up if the call succeeds.
	 */
	__u64 connreq;
	/* Address to connect from; empty: chosen by the route. */
	struct kfi_sock_addr src_addr;
	/* A value of the caller, returned in events. */
	__u64 context;
	/* In: requested size of the transmit queue; 0: 128. Out: the actual size, not smaller. */
	__u32 tx_size;
	/* In: requested size of the receive queue; 0: 128. Out: the actual size, not smaller. */
	__u32 rx_size;
	/* In: requested maximum of local buffers per operation; 0: 1. Out: the actual maximum. */
	__u32 iov_limit;
	/*
	 * With KFI_EP_RINGS: version of the program's protocol in the rings. The kernel compares it
	 * with the peer's. Without the flag zero.
	 */
	__u32 rings_version;
	/*
	 * Pointer to the endpoint's auth key; 0: that of the domain. With a connection request it must
	 * be the auth key that the peer has proven (-EKEYREJECTED).
	 */
	__u64 auth_key;
	/*
	 * Size of the auth key in bytes. An endpoint has one auth key. A program with several auth
	 * keys opens one endpoint for each, also on one domain.
	 */
	__u32 auth_key_size;
	/* Zero. */
	__u32 reserved2;
	/* Out: handle. */
	__u64 handle;
	/*
	 * Out: maximum application data of a connection request of this endpoint in bytes. An endpoint
	 * with an auth key has less.
	 */
	__u32 cm_data_size;
	/* Zero. */
	__u32 reserved3;
};

/*
 * KFI_IOC_EP_RINGS: returns whether the connection has rings, and their descriptor.
 *
 * The state is final once the connection is made or has failed. At that moment the endpoint's
 * completion queues are woken (struct kfi_cq_ring's alarm).
 *
 * Rings are for messages alone, and then for all messages. The two programs define the contents of
 * the rings and the order of receives; kfabric::rings documents those of this project's library.
 * The kernel never reads the contents. One-sided operations are posted as usual. Operations that
 * consume a receive of the peer must not be posted, because the peer posts no receives.
 */
struct kfi_ep_rings {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The endpoint. */
	__u64 ep;
	/* Out: state, KFI_RINGS_*. */
	__u32 state;
	/*
	 * Out: with KFI_RINGS_SHARED a new descriptor, which the program closes; otherwise -1.
	 * The descriptor's memory has two parts, and each can be mapped once. The first page
	 * (PROT_READ) is a struct kfi_rings_status. At the offset of one page begin the two rings, of
	 * KFI_RING_SIZE bytes each.
	 */
	__s32 fd;
	/* Out: number of the ring that this end writes to, 0 or 1. The peer writes to the other. */
	__u32 side;
	/* Out: size of a page in bytes. */
	__u32 page_size;
	/* Out: size of both rings in bytes. */
	__u64 map_size;
};

/* Status page of rings, written only by the kernel. */
struct kfi_rings_status {
	/*
	 * 1: an end has ended the connection or has died, or the connection has failed. Messages put
	 * into a ring before can still be read.
	 */
	__u32 ended;
	/* Zero. */
	__u32 reserved;
};

/* Words at the start of a ring, used by the two ends. The kernel does not read them. */
struct kfi_ring_words {
	/* Count of bytes put in; wraps. Written by the sender. */
	__u32 tail;
	/* Zero. */
	__u32 pad[31];
	/* Count of bytes taken out; wraps. Written by the receiver. */
	__u32 head;
	/* Written by the receiver before it ends the connection: the reason, as an errno. */
	__u32 failed;
	/* Zero. */
	__u32 pad2[30];
	/* Set to 1 by the receiver before it sleeps; reset by the sender that wakes it. */
	__u32 sleeps;
	/* Zero. */
	__u32 pad3[31];
	/*
	 * Set to 1 by the sender before it sleeps until the ring has space; reset by the receiver that
	 * wakes it.
	 */
	__u32 waits;
	/* Zero. */
	__u32 pad4[31];
};

/*
 * KFI_IOC_EP_WAKE: wakes the waiters of the peer's completion queues. -ENOTCONN: the endpoint
 * has no rings.
 */
struct kfi_ep_wake {
	/* Size of this structure. */
	__u32 size;
	/* KFI_WAKE_SELF or zero. */
	__u32 flags;
	/* The endpoint. */
	__u64 ep;
};

/* KFI_IOC_BIND. Only before enable; a second bind of the same kind is -EINVAL. */
struct kfi_bind {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The endpoint. */
	__u64 ep;
	/* An event queue, completion queue or counter. */
	__u64 object;
	/*
	 * For a completion queue: KFI_TRANSMIT, KFI_RECV, both, and KFI_SELECTIVE_COMPLETION.
	 * For a counter: any of KFI_SEND, KFI_RECV, KFI_READ, KFI_WRITE.
	 */
	__u64 bind_flags;
};

/* A call with an object as its only argument. */
struct kfi_object_call {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The object. */
	__u64 handle;
};

/* KFI_IOC_KEY_REVOKE; as struct kfi_object_call. */
struct kfi_key_revoke {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The key slot. */
	__u64 handle;
};

/*
 * KFI_IOC_LISTEN. -EINVAL: it listens already. -EADDRINUSE: another listener has the port.
 * -EKEYREVOKED, -EKEYEXPIRED: a grant that the passive endpoint was opened under is over.
 */
struct kfi_listen {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The passive endpoint. */
	__u64 pep;
	/* Maximum number of waiting connection requests; 0: 64. */
	__u32 backlog;
	/* Zero. */
	__u32 reserved;
};

/*
 * KFI_IOC_CONNECT: the outcome is an event. -EINVAL: the endpoint is not enabled, or was connected
 * before; the address is none; or more application data than cm_data_size.
 */
struct kfi_connect {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The endpoint, enabled. */
	__u64 ep;
	/* Address of the peer. */
	struct kfi_sock_addr addr;
	/* Pointer to application data for the peer's KFI_CONNREQ. */
	__u64 param;
	/* Size of the application data in bytes, up to cm_data_size. */
	__u32 param_len;
	/* Zero. */
	__u32 reserved;
};

/*
 * KFI_IOC_ACCEPT: the outcome is an event. -EINVAL: the endpoint is not enabled, was opened without
 * a request, or was accepted before; or more application data than cm_data_size. -ECONNABORTED:
 * the peer has given up, or the device has failed the request.
 */
struct kfi_accept {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The endpoint, opened with a request and enabled. */
	__u64 ep;
	/* Pointer to application data for the peer's KFI_CONNECTED. */
	__u64 param;
	/* Size of the application data in bytes. */
	__u32 param_len;
	/* Zero. */
	__u32 reserved;
};

/* KFI_IOC_REJECT. */
struct kfi_reject {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The request of a KFI_CONNREQ event. */
	__u64 connreq;
	/* Pointer to application data for the peer's KFI_CONN_ERROR. */
	__u64 param;
	/* Size of the application data in bytes. */
	__u32 param_len;
	/* Zero. */
	__u32 reserved;
};

/* KFI_IOC_SHUTDOWN: the event comes at both ends. -ENOTCONN: there is no connection. */
struct kfi_shutdown {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The endpoint. */
	__u64 ep;
};

/* KFI_IOC_GETNAME. -ENOTCONN: a passive endpoint has no peer. */
struct kfi_get_name {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* An endpoint or passive endpoint. */
	__u64 handle;
	/* 0: the endpoint's own address; 1: that of its peer. */
	__u32 peer;
	/* Zero. */
	__u32 reserved;
	/* Out: the address. */
	struct kfi_sock_addr addr;
};

/* KFI_IOC_EQ_READ. -EAGAIN: no event waits. */
struct kfi_eq_read {
	/* Size of this structure. */
	__u32 size;
	/* 1 (KFI_EQ_PEEK): leave the event in the queue. Else zero. */
	__u32 flags;
	/* The event queue. */
	__u64 eq;
	/* Pointer to a buffer for application data. */
	__u64 data;
	/*
	 * In: size of the buffer in bytes; if too small, -EMSGSIZE, and the event stays. Out: bytes
	 * stored.
	 */
	__u32 data_len;
	/* Out: KFI_CONNREQ, KFI_CONNECTED, … */
	__u32 event;
	/*
	 * Out: handle of the object of the event; for a connection request, the passive endpoint.
	 */
	__u64 object;
	/* Out: that object's context. */
	__u64 context;
	/*
	 * Out, for KFI_CONNREQ: the connection request, with which to open an endpoint, or to
	 * reject. A struct kfi_close of it refuses it too.
	 */
	__u64 connreq;
	/* Out: positive errno for KFI_CONN_ERROR, and for a KFI_SHUTDOWN by failure; else 0. */
	__u32 err;
	/* Out: error code of the provider (verbs: the reject reason or CM status). */
	__u32 prov_errno;
	/*
	 * Pointer to one struct kfi_info_entry of its first version's size, or 0. domain_name is the last field of
	 * that version; visible and later fields are not written. A KFI_CONNREQ stores there the
	 * offer of the domain to accept on, with the local address and the peer's.
	 */
	__u64 info;
	/*
	 * Out, for KFI_CONNREQ: the auth key of the passive endpoint that the peer has proven,
	 * counted from 1. 0: the passive endpoint has no auth keys.
	 */
	__u32 auth_index;
	/* Zero. */
	__u32 reserved;
};

/* KFI_IOC_CNTR_CTL. */
struct kfi_cntr_ctl {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The counter. */
	__u64 cntr;
	/* KFI_CNTR_*. */
	__u32 op;
	/* Zero. */
	__u32 reserved;
	/* In: the operand. Out: number of operations that succeeded. */
	__u64 value;
	/* Out: number of operations that failed. */
	__u64 errors;
};

/*
 * KFI_IOC_CNTR_WAIT. Interruptible; -ETIMEDOUT. Without KFI_CNTR_WAIT_CHANGE: -EIO if the
 * error count changed.
 */
struct kfi_cntr_wait {
	/* Size of this structure. */
	__u32 size;
	/* Zero, or KFI_CNTR_WAIT_CHANGE. */
	__u32 flags;
	/* The counter. */
	__u64 cntr;
	/* Value to reach; with KFI_CNTR_WAIT_CHANGE the value to differ from. */
	__u64 threshold;
	/*
	 * Deadline: absolute nanoseconds of CLOCK_MONOTONIC in the caller's time namespace;
	 * u64::MAX: none.
	 */
	__u64 deadline;
	/* Zero. */
	__u64 reserved;
	/* With KFI_CNTR_WAIT_CHANGE the error count to differ from; otherwise zero. */
	__u64 errors;
};

/*
 * KFI_IOC_REGION_REG.
 *
 * The memory is pinned and charged to the caller's RLIMIT_MEMLOCK (-ENOMEM beyond the limit).
 * The region consists of the pages pinned now, whatever is mapped at its addresses later.
 *
 * A program must not remap memory under a region. If a device needs its own registration (many
 * scattered pages), this registration uses the pages mapped at that time. The same holds for each
 * key that needs one.
 */
struct kfi_region_reg {
	/* Size of this structure. */
	__u32 size;
	/* KFI_REGION_* or zero. */
	__u32 flags;
	/* The domain. */
	__u64 domain;
	/* First byte of the memory; any alignment. */
	__u64 addr;
	/* Length in bytes; zero is -EINVAL. */
	__u64 len;
	/*
	 * Permitted uses of the memory: KFI_SEND, KFI_RECV, KFI_READ, KFI_WRITE,
	 * KFI_REMOTE_READ, KFI_REMOTE_WRITE, and with both of these KFI_ATOMIC. RECV, READ
	 * and REMOTE_WRITE change the memory and need a writable mapping. -EOPNOTSUPP:
	 * KFI_ATOMIC on a domain without atomics.
	 */
	__u64 access;
	/* Out: handle. */
	__u64 handle;
	/*
	 * Out: the region's own key, if access has a remote right and KFI_REGION_DYNAMIC_KEYS is
	 * not set; else KFI_KEY_NOTAVAIL.
	 */
	__u64 key;
	/* Out: remote address of the region's first byte, for use with that key. */
	__u64 remote_addr;
	/* Out: number of pages charged. */
	__u64 pages;
	/*
	 * An endpoint of the domain with endpoint-scoped keys (KFI_EP_OWN_KEYS), to which the
	 * region and its key or key slots are bound; 0: none. Any other endpoint is -EINVAL.
	 */
	__u64 ep;
	/*
	 * Pointer to the region's auth key; 0: that of the endpoint it is bound to, else that of the
	 * domain. An auth key that differs from that endpoint's is -EINVAL. Endpoints with other
	 * auth keys may use the region in their own operations if it consists of few pieces
	 * (-EINVAL: too many).
	 */
	__u64 auth_key;
	/* Size of the auth key in bytes. */
	__u32 auth_key_size;
	/* Zero. */
	__u32 reserved;
	/*
	 * Out: kind of the memory, KFI_PERSISTENCE_*, as found from its pages. Memory of several
	 * kinds has the weakest one.
	 */
	__u32 persistence;
	/* Zero. */
	__u32 reserved2;
};

/*
 * KFI_IOC_KEY_ALLOC: reserves all resources that an assignment needs, for all slots or none.
 * -ENOSPC: the device has no key slot left, or no key value that has rested.
 * -EDQUOT: more slots than the user's share of the device, or than the grant allows.
 *
 * A revocation uses up the resources of its key and reserves new ones before it returns. If that
 * fails, the key is revoked all the same. A worker tries again a little later, and so does an
 * assignment before that. Such an assignment may fail for lack of resources (-ENOMEM,
 * -ENOSPC).
 */
struct kfi_key_alloc {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* A region with dynamic keys. */
	__u64 region;
	/* Number of slots, 1 to KFI_KEY_ALLOC_MAX. */
	__u32 count;
	/* Zero. */
	__u32 reserved;
	/* Pointer to count u64s for the handles of the slots. */
	__u64 handles;
	/*
	 * An endpoint of the region's domain with endpoint-scoped keys (KFI_EP_OWN_KEYS), to which
	 * the slots are bound; 0: the region's endpoint, or none. The keys are valid on that endpoint
	 * alone. Its close revokes them, and the slots accept no assignment any more (-ENOENT). Any
	 * other endpoint is -EINVAL; on a bound region, so is any endpoint but the region's.
	 */
	__u64 ep;
	/*
	 * Pointer to the auth key under which the slots' keys are valid; 0: that of the endpoint they
	 * are bound to, else that of the region. An auth key that differs from that endpoint's is
	 * -EINVAL.
	 */
	__u64 auth_key;
	/* Size of the auth key in bytes. */
	__u32 auth_key_size;
	/* Zero. */
	__u32 reserved2;
};

/*
 * KFI_IOC_KEY_ASSIGN. The key is valid under the slot's auth key.
 *
 * - -EINVAL: the range is empty or not inside the region, or access is empty.
 * - -EACCES: a right that the region was not registered with, or memory of another process.
 * - -EBUSY: the slot has a key.
 * - -EMSGSIZE: more pages than one key of the device can cover.
 * - -ENOENT: no such slot, or it was closed meanwhile.
 * - -ENODEV: the device is removed. -EIO, -ETIMEDOUT: the device failed.
 * - -EKEYREVOKED, -EKEYEXPIRED: the grant of the slot's auth key is revoked or expired.
 * - -ENOMEM, -ENOSPC: only for a range that needs a full registration, or as described at
 * struct kfi_key_alloc.
 *
 * With KFI_KEY_ORDERED the call works as a struct kfi_key_assign_many with one entry, at less cost.
 */
struct kfi_key_assign {
	/* Size of this structure. */
	__u32 size;
	/* KFI_KEY_ORDERED, KFI_KEY_SINGLE_USE or zero. */
	__u32 flags;
	/* The slot. */
	__u64 slot;
	/* First byte, counted from the region's start. */
	__u64 offset;
	/* Length in bytes, at least 1; offset + length within the region (-EINVAL). */
	__u64 length;
	/*
	 * KFI_REMOTE_READ, KFI_REMOTE_WRITE or both, and with both KFI_ATOMIC; within the region's
	 * access (-EACCES).
	 */
	__u64 access;
	/* Out: the key value for peers. */
	__u64 key;
	/* Out: remote address of the first byte. */
	__u64 remote_addr;
	/* As struct kfi_key_assign_many's cq; the entry's data and len are zero. */
	__u64 cq;
	/* As struct kfi_key_assign_many's context. */
	__u64 context;
};

/*
 * KFI_IOC_KEY_ASSIGN_MANY: assigns slots of any regions, in order, and stops at the first
 * refused entry. At the return the keys are valid everywhere. The call costs far less than single
 * ones, because it waits for the device once per 64 keys.
 *
 * If the first entry is refused, the call fails with its error. Otherwise the call succeeds: the
 * first done entries have keys, no other entry has one, and err is the error of the next
 * entry.
 *
 * The call waits for a slot that another call is just assigning or revoking. If the device refuses
 * a whole chain of up to 64 keys, no slot of that chain has a key. Each used field of an entry is
 * fetched once. EFAULT: an entry cannot be read, or its key value cannot be stored; that key is
 * revoked again. The call allocates a list of the entries. Without memory for it the call assigns
 * at least one entry and stops with ENOMEM; a further call can go on.
 *
 * With KFI_KEY_ORDERED the call does not wait for the device: key values are returned at once.
 * Each key is valid before any operation takes effect that is posted on the domain afterwards. So
 * a message with the key may follow immediately; posted operations are deferred until then. A key
 * whose value cannot be predicted, e.g. for a range beyond the device's fast registration, is
 * waited for all the same. The private data of KFI_IOC_CONNECT and KFI_IOC_ACCEPT is not
 * deferred.
 *
 * If the device fails after the return, cq reports that. cq is a completion queue of the
 * slots' domain. It gets one error entry for up to 64 keys that were requested together:
 *
 * - context is that of the call.
 * - data is the index of their first key in entries.
 * - len is the number of keys from there on that were assigned.
 * - err is the error of the next key: EIO, ETIMEDOUT, ENODEV, ENOMEM or an error of the
 * device.
 *
 * The slots of that key and the following ones are as before the call, and their key values never
 * worked. The call reserves this entry. It stops with EAGAIN if the queue is full or too many
 * keys are still outstanding. It stops with EOPNOTSUPP if the provider has no ordered keys.
 * Until the result is known, the queue cannot be closed (EBUSY), and a revocation waits.
 */
struct kfi_key_assign_many {
	/* Size of this structure. */
	__u32 size;
	/* KFI_KEY_ORDERED, KFI_KEY_SINGLE_USE or zero. */
	__u32 flags;
	/* Pointer to an array of struct kfi_key_entry. */
	__u64 entries;
	/* Number of entries, 1 to KFI_KEY_ALLOC_MAX. */
	__u32 count;
	/* sizeof(struct kfi_key_entry); another value is -EINVAL. */
	__u32 entry_size;
	/* Out: number of entries that have keys. */
	__u32 done;
	/*
	 * Out: positive errno of the first refused entry, or 0: an error of struct kfi_key_assign, EFAULT,
	 * ENOMEM, or EINTR if the process is being killed.
	 */
	__u32 err;
	/* With KFI_KEY_ORDERED: a completion queue for failures, or zero. Else zero. */
	__u64 cq;
	/* With a cq: the context of its error entries. Else zero. */
	__u64 context;
};

/* One assignment of a struct kfi_key_assign_many; the fields are those of struct kfi_key_assign. */
struct kfi_key_entry {
	/* The slot. */
	__u64 slot;
	/* First byte, counted from the region's start. */
	__u64 offset;
	/* Length in bytes, at least 1. */
	__u64 length;
	/* KFI_REMOTE_READ, KFI_REMOTE_WRITE or both, and with both KFI_ATOMIC. */
	__u64 access;
	/* Out: the key value for peers. */
	__u64 key;
	/* Out: remote address of the first byte. */
	__u64 remote_addr;
};

/*
 * KFI_IOC_KEY_REVOKE_MANY: revokes the keys of listed slots, of a region, of a domain, of an
 * endpoint or of the file. After the return no byte is read or written through any key that these
 * slots had at the call. The slots stay reserved and can be assigned again.
 *
 * Slots without a key are skipped. A region in the scope that was registered with its own key
 * loses this key for ever. The call waits for slots that another call is just assigning or
 * revoking, after all others are revoked.
 *
 * A list is processed in order, up to the first handle that names no slot. If that is the first
 * entry, the call fails with its error. Otherwise the call succeeds, with the number of processed
 * entries in done and the error in err. Only a fatal signal stops the call.
 */
struct kfi_key_revoke_many {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* KFI_REVOKE_*. */
	__u32 scope;
	/*
	 * With KFI_REVOKE_SLOTS: number of listed slots, 1 to KFI_KEY_ALLOC_MAX. With
	 * KFI_REVOKE_AUTH: size of the auth key in bytes, 1 to KFI_AUTH_KEY_MAX. Else zero.
	 */
	__u32 count;
	/*
	 * With KFI_REVOKE_REGION the region, with KFI_REVOKE_DOMAIN the domain, with
	 * KFI_REVOKE_EP the endpoint. Else zero.
	 */
	__u64 object;
	/*
	 * With KFI_REVOKE_SLOTS: pointer to count u64s with the handles. With KFI_REVOKE_AUTH:
	 * pointer to the auth key. Else zero.
	 */
	__u64 slots;
	/* Out: number of processed entries of the list; 0 without a list. */
	__u32 done;
	/*
	 * Out: positive errno that stopped the list, or 0: ENOENT, EFAULT, ENOMEM, or EINTR if
	 * the process is being killed.
	 */
	__u32 err;
	/* Out: number of keys that this call revoked. */
	__u64 revoked;
};

/* A piece of local memory: part of a region. */
struct kfi_iov {
	/* The region, or KFI_UNREGISTERED. */
	__u64 region;
	/* First byte, counted from the region's start. */
	__u64 offset;
	/* Length in bytes. */
	__u64 len;
};

/* An operation in the array of a struct kfi_submit. */
struct kfi_op_entry {
	/* KFI_OP_*. */
	__u32 op;
	/*
	 * Number of entries of iov in use, 0 to the endpoint's iov_limit. Must be 0 with
	 * KFI_INJECT, for KFI_OP_ATOMIC and for KFI_OP_COMMIT.
	 */
	__u32 iov_count;
	/*
	 * KFI_COMPLETION, KFI_INJECT, KFI_REMOTE_CQ_DATA, KFI_FENCE; for a write or a commit
	 * also KFI_DELIVERY_COMPLETE and KFI_COMMIT_COMPLETE.
	 */
	__u64 flags;
	/* A value of the caller, returned in the completion. */
	__u64 context;
	/* Remote completion data, with KFI_REMOTE_CQ_DATA; up to cq_data_size bytes. */
	__u64 data;
	/* For one-sided operations: the remote address. */
	__u64 remote_addr;
	/* For one-sided operations: the peer's key. */
	__u64 key;
	/*
	 * With KFI_INJECT: pointer to the payload. For atomics: pointer to the operands, followed by
	 * the comparands. All are copied before the call returns.
	 */
	__u64 inject;
	/*
	 * Size of the payload or of all operands in bytes, up to KFI_INJECT_MAX. For
	 * KFI_OP_COMMIT: length of the remote range in bytes, up to max_msg_size.
	 */
	__u64 inject_len;
	/* For atomics: the operation, KFI_ATOMIC_*. Else zero. */
	__u32 atomic_op;
	/* For atomics: type of the values, KFI_UINT64 and others. Else zero. */
	__u32 datatype;
	/* Local memory. For a fetching atomic: where the old values are stored. */
	struct kfi_iov iov[KFI_IOV_MAX];
};

/*
 * KFI_IOC_ATOMIC_QUERY (fi_query_atomic): returns whether a domain supports an atomic.
 * -EOPNOTSUPP: the domain does not support the atomic. -EINVAL: no such atomic exists.
 */
struct kfi_atomic_query {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The domain. */
	__u64 domain;
	/* KFI_OP_ATOMIC, KFI_OP_FETCH_ATOMIC or KFI_OP_COMPARE_ATOMIC. */
	__u32 op;
	/* KFI_ATOMIC_*. */
	__u32 atomic_op;
	/* KFI_UINT64 and others. */
	__u32 datatype;
	/* Out: size of a value in bytes. */
	__u32 value_size;
	/* Out: maximum number of values of one operation. */
	__u64 count;
};

/*
 * KFI_IOC_SUBMIT: posts operations in order and stops at the first refused one.
 *
 * If the first operation is refused, the call fails with its error. Otherwise the call succeeds,
 * with the number of accepted operations in done and the error of the next one in err. Each
 * entry is fetched once.
 */
struct kfi_submit {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The endpoint. */
	__u64 ep;
	/* Pointer to an array of struct kfi_op_entry. */
	__u64 ops;
	/* Number of entries, 1 to KFI_SUBMIT_MAX. */
	__u32 count;
	/* sizeof(struct kfi_op_entry); another value is -EINVAL. */
	__u32 entry_size;
	/* Out: number of accepted operations. */
	__u32 done;
	/*
	 * Out: positive errno of the first refused operation, or 0. EAGAIN: the endpoint or a
	 * completion queue is full.
	 */
	__u32 err;
};

/*
 * KFI_IOC_CANCEL: cancels one posted receive, which then completes with ECANCELED. -ENOENT:
 * no such receive is posted; -EOPNOTSUPP: the provider cannot cancel.
 */
struct kfi_cancel {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The endpoint. */
	__u64 ep;
	/* Context of the receive. */
	__u64 context;
};

/* KFI_IOC_CLOSE. -EBUSY: the object has open children. */
struct kfi_close {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The object. */
	__u64 handle;
};

/*
 * KFI_IOC_OBJ_LIST: lists objects.
 *
 * - If the opener of this file and the caller both have CAP_SYS_ADMIN: those of every open file.
 * - Otherwise: those of this file. If the caller is the user that opened this file, also those of
 * the other files that this user opened.
 */
struct kfi_obj_list {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Pointer to an array of struct kfi_obj_info. */
	__u64 entries;
	/* In: number of entries that the array can hold. Out: number of objects, possibly more. */
	__u32 count;
	/* The caller's size of struct kfi_obj_info. */
	__u32 entry_size;
	/* Zero. */
	__u64 reserved[3];
};

/* A live object in an struct kfi_obj_list. */
struct kfi_obj_info {
	/* KFI_TYPE_*. */
	__u32 kind;
	/* Process that opened the file, in the caller's pid namespace; 0: not visible there. */
	__u32 pid;
	/* Handle in that process's file. */
	__u64 handle;
	/* Handle of the object on which this one was opened; 0: none. */
	__u64 parent;
	/*
	 * Depends on the kind. Region, key: length in bytes. Endpoint: outstanding operations. Queue:
	 * depth. Counter: value. Domain: bytes pinned.
	 */
	__u64 a;
	/*
	 * Depends on the kind. Region: access. Key: access (0: not assigned). Endpoint: KFI_STATE_*.
	 * Queue: waiting entries. Counter: errors.
	 */
	__u64 b;
	/*
	 * Depends on the kind. Region: pages charged. Key: offset. Endpoint: operations completed so
	 * far.
	 */
	__u64 c;
	/* Command name of the process. */
	__u8 comm[16];
	/*
	 * Provider and domain, or address, as text. Of a key: its state, a space, and the number of
	 * keys that the slot has had. The states are reserved, assigning, promised (the key
	 * value was returned, but the key is not valid yet), assigned, used (a single-use key that
	 * was used), revoking and closed. Of a region: the kind of its memory, adr or
	 * device-flush (struct kfi_region_reg's persistence); empty: not known to be persistent.
	 */
	__u8 name[KFI_NAME_MAX];
	/*
	 * Domain, endpoint, region, key: number of the auth key (struct kfi_grant_info's key); 0: none. A
	 * caller that may not see all objects sees 1 for every auth key.
	 */
	__u64 auth;
	/*
	 * Region, key: handle of the endpoint that the object is bound to, which may be closed; 0:
	 * none.
	 */
	__u64 ep;
	/*
	 * Domain: key values that were in a key of the domain, were returned by an assignment, or are
	 * reserved for a slot's next key. 0: the provider accounts for no values.
	 */
	__u64 keys_used;
	/*
	 * Domain: those of keys_used that were used before: all others had been used, and had rested.
	 */
	__u64 keys_reused;
	/* Domain: keys whose end left their memory region's index without a value. */
	__u64 keys_worn;
	/*
	 * Domain: key values of all its user's domains that count in the user's budget. 0: the user has
	 * none.
	 */
	__u64 keys_spent;
};

/* An auth key: opaque bytes. */
struct kfi_auth_key_ref {
	/* Pointer to the bytes. */
	__u64 addr;
	/* Number of bytes, 1 to KFI_AUTH_KEY_MAX. */
	__u32 size;
	/* Zero. */
	__u32 reserved;
};

/*
 * KFI_IOC_AUTH_MODE: reads the enforcement of auth keys on this machine, and sets the values
 * that flags names.
 *
 * An auth key separates users. A key or region is exported under one auth key: that of the slot or
 * region, else that of the domain. Only endpoints with the same auth key can access it. Endpoints
 * of two hosts connect only if both kernels prove that they have the same auth key, or if both
 * have none.
 *
 * With KFI_AUTH_OPEN any program that knows an auth key may use it. With KFI_AUTH_ENFORCE the
 * following opens need a grant that covers the caller:
 *
 * - an endpoint or a passive endpoint,
 * - a key slot, or a region with its own key,
 * - a region with an auth key.
 *
 * If there is no such grant, the kernel makes an upcall to the agent, and the call waits,
 * killably. Objects opened before stay. Consumers in the kernel need no grant.
 *
 * | errno of a call that opens | |
 * |---|---|
 * | -EACCES | denied |
 * | -ENOKEY | no auth key, or no grant and no agent |
 * | -ETIMEDOUT | the agent did not decide in time |
 * | -EAGAIN | too many upcalls of this process (asks), of this effective uid (4,096), or in total (16,384) are waiting |
 * | -EDQUOT | the limits of the grant are reached |
 * | -EKEYREVOKED, -EKEYEXPIRED | the grant is revoked or expired; also returned for objects opened under it |
 * | -EKEYREJECTED | the auth key is shorter than KFI_AUTH_KEY_SAFE; or the peer has not proven that it has the auth key (in events also) |
 * | -EOPNOTSUPP | the provider does not support auth keys |
 *
 * The caller is the task that makes the call, with its effective uid and gids and its cgroup. Its
 * network namespace is the one that the file was opened in.
 *
 * This call, the calls for grants and those of the agent are for the administrator. The opener of
 * the file and the caller both need CAP_SYS_ADMIN in the initial user namespace (-EPERM).
 */
struct kfi_auth_mode {
	/* Size of this structure. */
	__u32 size;
	/* KFI_AUTH_SET_*: the values to set; zero: none. */
	__u32 flags;
	/* KFI_AUTH_OPEN or KFI_AUTH_ENFORCE. Out: the present mode. */
	__u32 mode;
	/*
	 * Time for the agent's decision, in milliseconds, 1 to 600,000; initially 10,000. Out: the
	 * present value.
	 */
	__u32 timeout_ms;
	/*
	 * Time for which a denial is remembered, in milliseconds, up to 600,000; initially 1,000. Out:
	 * the present value.
	 */
	__u32 deny_ms;
	/*
	 * Maximum number of waiting upcalls of one process, 1 to 4096; initially 64. Out: the present
	 * value.
	 */
	__u32 asks;
	/*
	 * Out: process of the agent, in the caller's pid namespace; 0: no agent, or not visible there.
	 */
	__u32 agent;
	/* Out: 1 if there is an agent, else 0. */
	__u32 agents;
	/* Out: number of grants. */
	__u32 grants;
	/* Out: number of upcalls without a decision. */
	__u32 waiting;
	/* Zero. */
	__u64 reserved;
};

/*
 * KFI_IOC_GRANT_ADD: permits the use of an auth key to each task that has all properties of
 * match_. A grant stays until it is revoked or expires, also after the close of the file.
 *
 * -EBUSY: an earlier grant of this auth key is revoked or expired, and an object opened under it
 * has not ended yet. -ESRCH: the process has exited. -EBADF: not a pidfd, or not a network
 * namespace. -ENOSPC: there are 65,536 grants.
 */
struct kfi_grant_add {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Pointer to the auth key. */
	__u64 auth_key;
	/* Size of the auth key in bytes, 1 to KFI_AUTH_KEY_MAX. */
	__u32 auth_key_size;
	/* KFI_MATCH_*; not zero. Fields below that are not selected must be zero. */
	__u32 match_;
	/* KFI_AUTH_* rights; not zero. */
	__u32 rights;
	/* A user, in the initial user namespace. */
	__u32 uid;
	/* A group, in the initial user namespace. */
	__u32 gid;
	/*
	 * A pidfd of the process (not of a thread). A later process with the same pid is not covered.
	 */
	__s32 pidfd;
	/* A descriptor of the network namespace. */
	__s32 netns_fd;
	/*
	 * Maximum number of keys at a time; 0: no limit. A slot counts as one, and so does a region's
	 * own key.
	 */
	__u32 max_keys;
	/* Id of the cgroup: the inode number of its directory. */
	__u64 cgroup;
	/* Maximum number of bytes pinned by regions at a time, in whole pages; 0: no limit. */
	__u64 max_pinned;
	/* Lifetime in milliseconds; 0: no end. */
	__u64 lifetime_ms;
	/* Maximum number of endpoints at a time; 0: no limit. */
	__u32 max_eps;
	/* Zero. */
	__u32 reserved;
	/* Out: id of the grant, never reused. */
	__u64 id;
};

/*
 * KFI_IOC_GRANT_CHANGE. Objects beyond a lowered limit stay. -ENOENT: no such grant, or it is
 * revoked or expired.
 */
struct kfi_grant_change {
	/* Size of this structure. */
	__u32 size;
	/*
	 * KFI_GRANT_LIMITS, KFI_GRANT_LIFETIME; not zero. Fields below that are not selected must
	 * be zero.
	 */
	__u32 flags;
	/* The grant. */
	__u64 id;
	/* As struct kfi_grant_add's max_pinned. */
	__u64 max_pinned;
	/* As struct kfi_grant_add's max_keys. */
	__u32 max_keys;
	/* As struct kfi_grant_add's max_eps. */
	__u32 max_eps;
	/* As struct kfi_grant_add's lifetime_ms, from now on. */
	__u64 lifetime_ms;
};

/*
 * KFI_IOC_GRANT_REVOKE: revokes a grant. At the return no object can be opened under it any
 * more, its endpoints are closed and its keys are revoked.
 *
 * The peer sees the end of the connection; the owner gets an event with EKEYREVOKED. A key that
 * is being assigned under the grant is revoked as soon as it is assigned. -ENOENT: no such
 * grant, or it is revoked or expired. -EINTR: the task is being killed; the revocation continues
 * all the same.
 */
struct kfi_grant_revoke {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* The grant. */
	__u64 id;
	/* Zero. */
	__u64 reserved;
};

/* KFI_IOC_GRANT_LIST. */
struct kfi_grant_list {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Pointer to an array of struct kfi_grant_info. */
	__u64 entries;
	/* In: number of entries that the array can hold. Out: number of grants, possibly more. */
	__u32 count;
	/* The caller's size of struct kfi_grant_info. */
	__u32 entry_size;
	/* Zero. */
	__u64 reserved;
};

/* One grant. No field discloses bytes of the auth key. */
struct kfi_grant_info {
	/* The grant. */
	__u64 id;
	/*
	 * Number of the auth key: arbitrary, but the same for the same bytes as long as these are in
	 * use.
	 */
	__u64 key;
	/* KFI_MATCH_*. */
	__u32 match_;
	/* KFI_AUTH_* rights. */
	__u32 rights;
	/* The user, with KFI_MATCH_UID. */
	__u32 uid;
	/* The group, with KFI_MATCH_GID. */
	__u32 gid;
	/* Id of the cgroup, with KFI_MATCH_CGROUP. */
	__u64 cgroup;
	/* Cookie of the network namespace (SO_NETNS_COOKIE), with KFI_MATCH_NETNS. */
	__u64 netns;
	/* The process, with KFI_MATCH_PROCESS: see struct kfi_agent_next's process. */
	__u64 process;
	/* As struct kfi_grant_add's max_pinned. */
	__u64 max_pinned;
	/* As struct kfi_grant_add's max_keys. */
	__u32 max_keys;
	/* As struct kfi_grant_add's max_eps. */
	__u32 max_eps;
	/* Bytes in regions at present. */
	__u64 pinned;
	/* Number of keys at present. */
	__u32 keys;
	/* Number of endpoints at present. */
	__u32 eps;
	/* Remaining lifetime in milliseconds; 0: no end, or expired. */
	__u64 left_ms;
	/* KFI_GRANT_* state. */
	__u32 state;
	/* 1: from a decision of the agent; 0: from KFI_IOC_GRANT_ADD. */
	__u32 answered;
};

/*
 * KFI_IOC_AGENT_OPEN: makes the file the agent. A former agent gets -ESTALE from now on, and
 * its undecided upcalls pass to the new one.
 *
 * The file polls readable while an upcall waits, and POLLHUP once another file is the agent.
 * After its close there is no agent, and waiting calls fail with -ENOKEY. -EALREADY: the file
 * is the agent.
 */
struct kfi_agent_open {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Zero. */
	__u64 reserved;
};

/*
 * KFI_IOC_AGENT_NEXT: reads one upcall: may this process use this auth key? -EAGAIN: no upcall
 * waits. -ESTALE: another file has become the agent. -EINVAL: the file never was the agent.
 *
 * Equal requests of a process make one upcall. If the process is killed, its upcall is cancelled;
 * a decision then fails with -ENOENT.
 *
 * The properties of the task were recorded when it made the request: user, groups, control group
 * and namespaces are those of one moment. A property that is not in known is unknown, which is
 * different from empty.
 */
struct kfi_agent_next {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Pointer to KFI_AUTH_KEY_MAX bytes for the auth key. */
	__u64 auth_key;
	/* Out: size of the auth key in bytes. The rest of the buffer is zero. */
	__u32 auth_key_size;
	/* Out: the requested KFI_AUTH_* rights. */
	__u32 rights;
	/* Out: id of the upcall. */
	__u64 id;
	/*
	 * Out: identifies the process: the inode number of its pidfd (fstat(2)), never reused. A
	 * pidfd that pidfd_open(2) returns for pid belongs to this process if its inode number is
	 * this value.
	 */
	__u64 process;
	/* Out: pid of the process in the caller's pid namespace; 0: not visible there. */
	__u32 pid;
	/* Out: effective uid, in the initial user namespace. */
	__u32 uid;
	/* Out: effective gid, in the initial user namespace. */
	__u32 gid;
	/* Out: milliseconds left for the decision. */
	__u32 left_ms;
	/* Out: id of the task's cgroup (v2). */
	__u64 cgroup;
	/* Out: cookie of the task's network namespace (SO_NETNS_COOKIE). */
	__u64 netns;
	/* Out: command name. */
	__u8 comm[16];
	/* Out: name of the domain. */
	__u8 domain[KFI_NAME_MAX];
	/*
	 * Pointer to an array for the task's supplementary groups, each a 32-bit gid in the initial
	 * user namespace; 0: not requested.
	 */
	__u64 groups;
	/*
	 * Pointer to a buffer for the path of the task's cgroup (v2), from the root of the hierarchy,
	 * without a NUL; 0: not requested.
	 */
	__u64 cgroup_path;
	/*
	 * In: number of groups that the array can hold. Out: number of groups of the task; only as
	 * many as the array can hold were written.
	 */
	__u32 groups_count;
	/*
	 * In: size of the buffer in bytes. Out: size of the path in bytes; 0 if unknown or too long.
	 */
	__u32 cgroup_path_size;
	/* Out: inode number of the task's user namespace, as in /proc/PID/ns/user. */
	__u64 userns;
	/* Out: KFI_KNOWN_*. */
	__u32 known;
	/* Zero. */
	__u32 reserved;
};

/*
 * KFI_IOC_AGENT_ANSWER: decides an upcall. An allow creates a grant with these limits and this
 * lifetime, for the properties of the requester that match_ names. A denial is
 * remembered for a short time (struct kfi_auth_mode's deny_ms).
 *
 * -ENOENT: the upcall was cancelled or decided before. -ESTALE: another file has become the
 * agent. -EINVAL: the file never was the agent, or the rights do not cover the request.
 * -EBUSY, -ENOSPC: as struct kfi_grant_add; the upcall stays.
 */
struct kfi_agent_answer {
	/* Size of this structure. */
	__u32 size;
	/* Zero. */
	__u32 flags;
	/* Id of the upcall. */
	__u64 id;
	/* KFI_AUTH_DENY or KFI_AUTH_ALLOW. With a denial all fields below are zero. */
	__u32 verdict;
	/* KFI_MATCH_*: properties that the grant compares; 0: the requester. */
	__u32 match_;
	/* KFI_AUTH_* rights; 0: the requested ones. */
	__u32 rights;
	/* As struct kfi_grant_add's max_keys. */
	__u32 max_keys;
	/* As struct kfi_grant_add's max_pinned. */
	__u64 max_pinned;
	/* As struct kfi_grant_add's lifetime_ms. */
	__u64 lifetime_ms;
	/* As struct kfi_grant_add's max_eps. */
	__u32 max_eps;
	/* Zero. */
	__u32 reserved;
	/* Out: id of the grant. */
	__u64 grant;
};

/*
 * The first page of a completion queue's mapping.
 *
 * The kernel writes entry head & (entries - 1), then stores head with release order. The
 * program loads head with acquire order, reads the entries from tail up to head, then stores
 * tail with release order. Both counters wrap at 2^32. The kernel never reads back its own
 * writes. A wrong tail stops only this queue.
 */
struct kfi_cq_ring {
	/* Written by the kernel: count of entries written. */
	__u32 head;
	/* Written by the kernel: number of entries of the ring. */
	__u32 entries;
	/* Written by the kernel: sizeof(struct kfi_cq_entry). */
	__u32 entry_size;
	/* Zero. Keeps the fields of the two writers on separate cache lines. */
	__u32 pad[29];
	/* Written by the program: count of entries read. */
	__u32 tail;
	/*
	 * Set to 1 by the kernel on an event of an endpoint with rings (struct kfi_ep_rings). The program
	 * resets it before it looks at the rings. While set, the queue polls readable.
	 */
	__u32 alarm;
	/* Zero. */
	__u32 pad2[30];
};

/* One completion (fi_cq(3): fi_cq_data_entry and fi_cq_err_entry in one). */
struct kfi_cq_entry {
	/* The operation's context. */
	__u64 context;
	/*
	 * Kind of the completed operation: KFI_MSG|KFI_SEND, KFI_MSG|KFI_RECV, KFI_RMA|KFI_READ,
	 * KFI_RMA|KFI_WRITE, KFI_ATOMIC|KFI_WRITE, KFI_ATOMIC|KFI_READ (a fetching atomic), or
	 * KFI_RMA|KFI_REMOTE_WRITE|KFI_REMOTE_CQ_DATA for a peer's write with data. With remote
	 * completion data, also KFI_REMOTE_CQ_DATA. Not in format CONTEXT.
	 */
	__u64 flags;
	/* Bytes received or moved; 0 for a failed operation. Not in format CONTEXT. */
	__u64 len;
	/* Offset of a receive's first byte in its region. Format DATA only. */
	__u64 buf;
	/* The peer's remote completion data. Format DATA only. */
	__u64 data;
	/*
	 * 0, or the positive errno of a failure: ECANCELED for operations flushed after a first
	 * error.
	 */
	__u32 err;
	/* Error code of the provider (verbs: ib_wc_status). */
	__u32 prov_errno;
	/* Handle of the endpoint. */
	__u64 ep;
	/*
	 * Number of bytes that did not fit into a receive; 0 if the provider does not report this
	 * number (verbs does not).
	 */
	__u64 olen;
};
/* The calls. The low byte selects one; the size is that of the first version. */
#define KFI_IOC_GETINFO _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x00, 40)
#define KFI_IOC_FABRIC_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x01, 112)
#define KFI_IOC_DOMAIN_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x02, 160)
#define KFI_IOC_EQ_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x03, 32)
#define KFI_IOC_CQ_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x04, 56)
#define KFI_IOC_CNTR_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x05, 32)
#define KFI_IOC_PEP_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x06, 72)
#define KFI_IOC_EP_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x07, 104)
#define KFI_IOC_BIND _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x08, 32)
#define KFI_IOC_ENABLE _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x09, 16)
#define KFI_IOC_LISTEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x0a, 24)
#define KFI_IOC_CONNECT _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x0b, 64)
#define KFI_IOC_ACCEPT _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x0c, 32)
#define KFI_IOC_REJECT _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x0d, 32)
#define KFI_IOC_SHUTDOWN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x0e, 16)
#define KFI_IOC_GETNAME _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x0f, 56)
#define KFI_IOC_EQ_READ _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x10, 72)
#define KFI_IOC_CNTR_CTL _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x11, 40)
#define KFI_IOC_CNTR_WAIT _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x12, 40)
#define KFI_IOC_REGION_REG _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x13, 80)
#define KFI_IOC_KEY_ALLOC _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x14, 40)
#define KFI_IOC_KEY_ASSIGN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x15, 64)
#define KFI_IOC_KEY_REVOKE _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x16, 16)
#define KFI_IOC_SUBMIT _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x17, 40)
#define KFI_IOC_CANCEL _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x18, 24)
#define KFI_IOC_CLOSE _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x19, 16)
#define KFI_IOC_OBJ_LIST _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x1a, 48)
#define KFI_IOC_KEY_ASSIGN_MANY _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x1b, 48)
#define KFI_IOC_KEY_REVOKE_MANY _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x1c, 48)
#define KFI_IOC_AUTH_MODE _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x1d, 48)
#define KFI_IOC_GRANT_ADD _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x1e, 88)
#define KFI_IOC_GRANT_CHANGE _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x1f, 40)
#define KFI_IOC_GRANT_REVOKE _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x20, 24)
#define KFI_IOC_GRANT_LIST _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x21, 32)
#define KFI_IOC_AGENT_OPEN _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x22, 16)
#define KFI_IOC_AGENT_NEXT _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x23, 152)
#define KFI_IOC_AGENT_ANSWER _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x24, 64)
#define KFI_IOC_ATOMIC_QUERY _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x25, 40)
#define KFI_IOC_EP_RINGS _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x26, 40)
#define KFI_IOC_EP_WAKE _IOC(_IOC_READ | _IOC_WRITE, KFI_IOC_TYPE, 0x27, 16)

/* Sizes, offsets and values are those of the kernel. */
#if defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
_Static_assert(sizeof(struct kfi_sock_addr) == 32, "size of kfi_sock_addr");
_Static_assert(__builtin_offsetof(struct kfi_sock_addr, len) == 0, "kfi_sock_addr.len");
_Static_assert(__builtin_offsetof(struct kfi_sock_addr, data) == 4, "kfi_sock_addr.data");
_Static_assert(sizeof(struct kfi_info_entry) == 368, "size of kfi_info_entry");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, caps) == 0, "kfi_info_entry.caps");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, mode) == 8, "kfi_info_entry.mode");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, mr_mode) == 16, "kfi_info_entry.mr_mode");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, max_msg_size) == 24, "kfi_info_entry.max_msg_size");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, inject_size) == 32, "kfi_info_entry.inject_size");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, tx_size) == 40, "kfi_info_entry.tx_size");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, rx_size) == 44, "kfi_info_entry.rx_size");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, iov_limit) == 48, "kfi_info_entry.iov_limit");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, rma_iov_limit) == 52, "kfi_info_entry.rma_iov_limit");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, cq_data_size) == 56, "kfi_info_entry.cq_data_size");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, mr_key_size) == 60, "kfi_info_entry.mr_key_size");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, cm_data_size) == 64, "kfi_info_entry.cm_data_size");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, ep_type) == 68, "kfi_info_entry.ep_type");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, protocol) == 72, "kfi_info_entry.protocol");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, addr_format) == 76, "kfi_info_entry.addr_format");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, prov_version) == 80, "kfi_info_entry.prov_version");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, api_version) == 84, "kfi_info_entry.api_version");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, abi) == 88, "kfi_info_entry.abi");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, rank) == 92, "kfi_info_entry.rank");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, src_addr) == 96, "kfi_info_entry.src_addr");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, dest_addr) == 128, "kfi_info_entry.dest_addr");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, prov_name) == 160, "kfi_info_entry.prov_name");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, fabric_name) == 224, "kfi_info_entry.fabric_name");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, domain_name) == 288, "kfi_info_entry.domain_name");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, visible) == 352, "kfi_info_entry.visible");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, durable) == 356, "kfi_info_entry.durable");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, revocation) == 360, "kfi_info_entry.revocation");
_Static_assert(__builtin_offsetof(struct kfi_info_entry, max_key_pages) == 364, "kfi_info_entry.max_key_pages");
_Static_assert(sizeof(struct kfi_get_info) == 40, "size of kfi_get_info");
_Static_assert(__builtin_offsetof(struct kfi_get_info, size) == 0, "kfi_get_info.size");
_Static_assert(__builtin_offsetof(struct kfi_get_info, flags) == 4, "kfi_get_info.flags");
_Static_assert(__builtin_offsetof(struct kfi_get_info, hints) == 8, "kfi_get_info.hints");
_Static_assert(__builtin_offsetof(struct kfi_get_info, entries) == 16, "kfi_get_info.entries");
_Static_assert(__builtin_offsetof(struct kfi_get_info, count) == 24, "kfi_get_info.count");
_Static_assert(__builtin_offsetof(struct kfi_get_info, entry_size) == 28, "kfi_get_info.entry_size");
_Static_assert(__builtin_offsetof(struct kfi_get_info, reserved) == 32, "kfi_get_info.reserved");
_Static_assert(sizeof(struct kfi_fabric_open) == 112, "size of kfi_fabric_open");
_Static_assert(__builtin_offsetof(struct kfi_fabric_open, size) == 0, "kfi_fabric_open.size");
_Static_assert(__builtin_offsetof(struct kfi_fabric_open, flags) == 4, "kfi_fabric_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_fabric_open, prov_name) == 8, "kfi_fabric_open.prov_name");
_Static_assert(__builtin_offsetof(struct kfi_fabric_open, fabric_name) == 40, "kfi_fabric_open.fabric_name");
_Static_assert(__builtin_offsetof(struct kfi_fabric_open, handle) == 104, "kfi_fabric_open.handle");
_Static_assert(sizeof(struct kfi_domain_open) == 168, "size of kfi_domain_open");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, size) == 0, "kfi_domain_open.size");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, flags) == 4, "kfi_domain_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, fabric) == 8, "kfi_domain_open.fabric");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, name) == 16, "kfi_domain_open.name");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, auth_key) == 80, "kfi_domain_open.auth_key");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, auth_key_size) == 88, "kfi_domain_open.auth_key_size");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, reserved) == 92, "kfi_domain_open.reserved");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, handle) == 96, "kfi_domain_open.handle");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, caps) == 104, "kfi_domain_open.caps");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, mr_mode) == 112, "kfi_domain_open.mr_mode");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, max_msg_size) == 120, "kfi_domain_open.max_msg_size");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, inject_size) == 128, "kfi_domain_open.inject_size");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, max_tx_size) == 132, "kfi_domain_open.max_tx_size");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, max_rx_size) == 136, "kfi_domain_open.max_rx_size");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, iov_limit) == 140, "kfi_domain_open.iov_limit");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, cm_data_size) == 144, "kfi_domain_open.cm_data_size");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, reserved2) == 148, "kfi_domain_open.reserved2");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, max_keys) == 152, "kfi_domain_open.max_keys");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, visible) == 160, "kfi_domain_open.visible");
_Static_assert(__builtin_offsetof(struct kfi_domain_open, durable) == 164, "kfi_domain_open.durable");
_Static_assert(sizeof(struct kfi_eq_open) == 32, "size of kfi_eq_open");
_Static_assert(__builtin_offsetof(struct kfi_eq_open, size) == 0, "kfi_eq_open.size");
_Static_assert(__builtin_offsetof(struct kfi_eq_open, flags) == 4, "kfi_eq_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_eq_open, fabric) == 8, "kfi_eq_open.fabric");
_Static_assert(__builtin_offsetof(struct kfi_eq_open, depth) == 16, "kfi_eq_open.depth");
_Static_assert(__builtin_offsetof(struct kfi_eq_open, fd) == 20, "kfi_eq_open.fd");
_Static_assert(__builtin_offsetof(struct kfi_eq_open, handle) == 24, "kfi_eq_open.handle");
_Static_assert(sizeof(struct kfi_cq_open) == 56, "size of kfi_cq_open");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, size) == 0, "kfi_cq_open.size");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, flags) == 4, "kfi_cq_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, domain) == 8, "kfi_cq_open.domain");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, depth) == 16, "kfi_cq_open.depth");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, format) == 20, "kfi_cq_open.format");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, fd) == 24, "kfi_cq_open.fd");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, entries) == 28, "kfi_cq_open.entries");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, map_size) == 32, "kfi_cq_open.map_size");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, handle) == 40, "kfi_cq_open.handle");
_Static_assert(__builtin_offsetof(struct kfi_cq_open, reserved) == 48, "kfi_cq_open.reserved");
_Static_assert(sizeof(struct kfi_cntr_open) == 32, "size of kfi_cntr_open");
_Static_assert(__builtin_offsetof(struct kfi_cntr_open, size) == 0, "kfi_cntr_open.size");
_Static_assert(__builtin_offsetof(struct kfi_cntr_open, flags) == 4, "kfi_cntr_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_cntr_open, domain) == 8, "kfi_cntr_open.domain");
_Static_assert(__builtin_offsetof(struct kfi_cntr_open, handle) == 16, "kfi_cntr_open.handle");
_Static_assert(__builtin_offsetof(struct kfi_cntr_open, reserved) == 24, "kfi_cntr_open.reserved");
_Static_assert(sizeof(struct kfi_pep_open) == 88, "size of kfi_pep_open");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, size) == 0, "kfi_pep_open.size");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, flags) == 4, "kfi_pep_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, fabric) == 8, "kfi_pep_open.fabric");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, eq) == 16, "kfi_pep_open.eq");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, addr) == 24, "kfi_pep_open.addr");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, context) == 56, "kfi_pep_open.context");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, handle) == 64, "kfi_pep_open.handle");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, auth_keys) == 72, "kfi_pep_open.auth_keys");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, auth_key_count) == 80, "kfi_pep_open.auth_key_count");
_Static_assert(__builtin_offsetof(struct kfi_pep_open, reserved) == 84, "kfi_pep_open.reserved");
_Static_assert(sizeof(struct kfi_ep_open) == 112, "size of kfi_ep_open");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, size) == 0, "kfi_ep_open.size");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, flags) == 4, "kfi_ep_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, domain) == 8, "kfi_ep_open.domain");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, connreq) == 16, "kfi_ep_open.connreq");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, src_addr) == 24, "kfi_ep_open.src_addr");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, context) == 56, "kfi_ep_open.context");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, tx_size) == 64, "kfi_ep_open.tx_size");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, rx_size) == 68, "kfi_ep_open.rx_size");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, iov_limit) == 72, "kfi_ep_open.iov_limit");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, rings_version) == 76, "kfi_ep_open.rings_version");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, auth_key) == 80, "kfi_ep_open.auth_key");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, auth_key_size) == 88, "kfi_ep_open.auth_key_size");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, reserved2) == 92, "kfi_ep_open.reserved2");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, handle) == 96, "kfi_ep_open.handle");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, cm_data_size) == 104, "kfi_ep_open.cm_data_size");
_Static_assert(__builtin_offsetof(struct kfi_ep_open, reserved3) == 108, "kfi_ep_open.reserved3");
_Static_assert(sizeof(struct kfi_ep_rings) == 40, "size of kfi_ep_rings");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, size) == 0, "kfi_ep_rings.size");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, flags) == 4, "kfi_ep_rings.flags");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, ep) == 8, "kfi_ep_rings.ep");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, state) == 16, "kfi_ep_rings.state");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, fd) == 20, "kfi_ep_rings.fd");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, side) == 24, "kfi_ep_rings.side");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, page_size) == 28, "kfi_ep_rings.page_size");
_Static_assert(__builtin_offsetof(struct kfi_ep_rings, map_size) == 32, "kfi_ep_rings.map_size");
_Static_assert(sizeof(struct kfi_rings_status) == 8, "size of kfi_rings_status");
_Static_assert(__builtin_offsetof(struct kfi_rings_status, ended) == 0, "kfi_rings_status.ended");
_Static_assert(__builtin_offsetof(struct kfi_rings_status, reserved) == 4, "kfi_rings_status.reserved");
_Static_assert(sizeof(struct kfi_ring_words) == 512, "size of kfi_ring_words");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, tail) == 0, "kfi_ring_words.tail");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, pad) == 4, "kfi_ring_words.pad");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, head) == 128, "kfi_ring_words.head");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, failed) == 132, "kfi_ring_words.failed");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, pad2) == 136, "kfi_ring_words.pad2");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, sleeps) == 256, "kfi_ring_words.sleeps");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, pad3) == 260, "kfi_ring_words.pad3");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, waits) == 384, "kfi_ring_words.waits");
_Static_assert(__builtin_offsetof(struct kfi_ring_words, pad4) == 388, "kfi_ring_words.pad4");
_Static_assert(sizeof(struct kfi_ep_wake) == 16, "size of kfi_ep_wake");
_Static_assert(__builtin_offsetof(struct kfi_ep_wake, size) == 0, "kfi_ep_wake.size");
_Static_assert(__builtin_offsetof(struct kfi_ep_wake, flags) == 4, "kfi_ep_wake.flags");
_Static_assert(__builtin_offsetof(struct kfi_ep_wake, ep) == 8, "kfi_ep_wake.ep");
_Static_assert(sizeof(struct kfi_bind) == 32, "size of kfi_bind");
_Static_assert(__builtin_offsetof(struct kfi_bind, size) == 0, "kfi_bind.size");
_Static_assert(__builtin_offsetof(struct kfi_bind, flags) == 4, "kfi_bind.flags");
_Static_assert(__builtin_offsetof(struct kfi_bind, ep) == 8, "kfi_bind.ep");
_Static_assert(__builtin_offsetof(struct kfi_bind, object) == 16, "kfi_bind.object");
_Static_assert(__builtin_offsetof(struct kfi_bind, bind_flags) == 24, "kfi_bind.bind_flags");
_Static_assert(sizeof(struct kfi_object_call) == 16, "size of kfi_object_call");
_Static_assert(__builtin_offsetof(struct kfi_object_call, size) == 0, "kfi_object_call.size");
_Static_assert(__builtin_offsetof(struct kfi_object_call, flags) == 4, "kfi_object_call.flags");
_Static_assert(__builtin_offsetof(struct kfi_object_call, handle) == 8, "kfi_object_call.handle");
_Static_assert(sizeof(struct kfi_key_revoke) == 16, "size of kfi_key_revoke");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke, size) == 0, "kfi_key_revoke.size");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke, flags) == 4, "kfi_key_revoke.flags");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke, handle) == 8, "kfi_key_revoke.handle");
_Static_assert(sizeof(struct kfi_listen) == 24, "size of kfi_listen");
_Static_assert(__builtin_offsetof(struct kfi_listen, size) == 0, "kfi_listen.size");
_Static_assert(__builtin_offsetof(struct kfi_listen, flags) == 4, "kfi_listen.flags");
_Static_assert(__builtin_offsetof(struct kfi_listen, pep) == 8, "kfi_listen.pep");
_Static_assert(__builtin_offsetof(struct kfi_listen, backlog) == 16, "kfi_listen.backlog");
_Static_assert(__builtin_offsetof(struct kfi_listen, reserved) == 20, "kfi_listen.reserved");
_Static_assert(sizeof(struct kfi_connect) == 64, "size of kfi_connect");
_Static_assert(__builtin_offsetof(struct kfi_connect, size) == 0, "kfi_connect.size");
_Static_assert(__builtin_offsetof(struct kfi_connect, flags) == 4, "kfi_connect.flags");
_Static_assert(__builtin_offsetof(struct kfi_connect, ep) == 8, "kfi_connect.ep");
_Static_assert(__builtin_offsetof(struct kfi_connect, addr) == 16, "kfi_connect.addr");
_Static_assert(__builtin_offsetof(struct kfi_connect, param) == 48, "kfi_connect.param");
_Static_assert(__builtin_offsetof(struct kfi_connect, param_len) == 56, "kfi_connect.param_len");
_Static_assert(__builtin_offsetof(struct kfi_connect, reserved) == 60, "kfi_connect.reserved");
_Static_assert(sizeof(struct kfi_accept) == 32, "size of kfi_accept");
_Static_assert(__builtin_offsetof(struct kfi_accept, size) == 0, "kfi_accept.size");
_Static_assert(__builtin_offsetof(struct kfi_accept, flags) == 4, "kfi_accept.flags");
_Static_assert(__builtin_offsetof(struct kfi_accept, ep) == 8, "kfi_accept.ep");
_Static_assert(__builtin_offsetof(struct kfi_accept, param) == 16, "kfi_accept.param");
_Static_assert(__builtin_offsetof(struct kfi_accept, param_len) == 24, "kfi_accept.param_len");
_Static_assert(__builtin_offsetof(struct kfi_accept, reserved) == 28, "kfi_accept.reserved");
_Static_assert(sizeof(struct kfi_reject) == 32, "size of kfi_reject");
_Static_assert(__builtin_offsetof(struct kfi_reject, size) == 0, "kfi_reject.size");
_Static_assert(__builtin_offsetof(struct kfi_reject, flags) == 4, "kfi_reject.flags");
_Static_assert(__builtin_offsetof(struct kfi_reject, connreq) == 8, "kfi_reject.connreq");
_Static_assert(__builtin_offsetof(struct kfi_reject, param) == 16, "kfi_reject.param");
_Static_assert(__builtin_offsetof(struct kfi_reject, param_len) == 24, "kfi_reject.param_len");
_Static_assert(__builtin_offsetof(struct kfi_reject, reserved) == 28, "kfi_reject.reserved");
_Static_assert(sizeof(struct kfi_shutdown) == 16, "size of kfi_shutdown");
_Static_assert(__builtin_offsetof(struct kfi_shutdown, size) == 0, "kfi_shutdown.size");
_Static_assert(__builtin_offsetof(struct kfi_shutdown, flags) == 4, "kfi_shutdown.flags");
_Static_assert(__builtin_offsetof(struct kfi_shutdown, ep) == 8, "kfi_shutdown.ep");
_Static_assert(sizeof(struct kfi_get_name) == 56, "size of kfi_get_name");
_Static_assert(__builtin_offsetof(struct kfi_get_name, size) == 0, "kfi_get_name.size");
_Static_assert(__builtin_offsetof(struct kfi_get_name, flags) == 4, "kfi_get_name.flags");
_Static_assert(__builtin_offsetof(struct kfi_get_name, handle) == 8, "kfi_get_name.handle");
_Static_assert(__builtin_offsetof(struct kfi_get_name, peer) == 16, "kfi_get_name.peer");
_Static_assert(__builtin_offsetof(struct kfi_get_name, reserved) == 20, "kfi_get_name.reserved");
_Static_assert(__builtin_offsetof(struct kfi_get_name, addr) == 24, "kfi_get_name.addr");
_Static_assert(sizeof(struct kfi_eq_read) == 80, "size of kfi_eq_read");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, size) == 0, "kfi_eq_read.size");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, flags) == 4, "kfi_eq_read.flags");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, eq) == 8, "kfi_eq_read.eq");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, data) == 16, "kfi_eq_read.data");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, data_len) == 24, "kfi_eq_read.data_len");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, event) == 28, "kfi_eq_read.event");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, object) == 32, "kfi_eq_read.object");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, context) == 40, "kfi_eq_read.context");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, connreq) == 48, "kfi_eq_read.connreq");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, err) == 56, "kfi_eq_read.err");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, prov_errno) == 60, "kfi_eq_read.prov_errno");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, info) == 64, "kfi_eq_read.info");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, auth_index) == 72, "kfi_eq_read.auth_index");
_Static_assert(__builtin_offsetof(struct kfi_eq_read, reserved) == 76, "kfi_eq_read.reserved");
_Static_assert(sizeof(struct kfi_cntr_ctl) == 40, "size of kfi_cntr_ctl");
_Static_assert(__builtin_offsetof(struct kfi_cntr_ctl, size) == 0, "kfi_cntr_ctl.size");
_Static_assert(__builtin_offsetof(struct kfi_cntr_ctl, flags) == 4, "kfi_cntr_ctl.flags");
_Static_assert(__builtin_offsetof(struct kfi_cntr_ctl, cntr) == 8, "kfi_cntr_ctl.cntr");
_Static_assert(__builtin_offsetof(struct kfi_cntr_ctl, op) == 16, "kfi_cntr_ctl.op");
_Static_assert(__builtin_offsetof(struct kfi_cntr_ctl, reserved) == 20, "kfi_cntr_ctl.reserved");
_Static_assert(__builtin_offsetof(struct kfi_cntr_ctl, value) == 24, "kfi_cntr_ctl.value");
_Static_assert(__builtin_offsetof(struct kfi_cntr_ctl, errors) == 32, "kfi_cntr_ctl.errors");
_Static_assert(sizeof(struct kfi_cntr_wait) == 48, "size of kfi_cntr_wait");
_Static_assert(__builtin_offsetof(struct kfi_cntr_wait, size) == 0, "kfi_cntr_wait.size");
_Static_assert(__builtin_offsetof(struct kfi_cntr_wait, flags) == 4, "kfi_cntr_wait.flags");
_Static_assert(__builtin_offsetof(struct kfi_cntr_wait, cntr) == 8, "kfi_cntr_wait.cntr");
_Static_assert(__builtin_offsetof(struct kfi_cntr_wait, threshold) == 16, "kfi_cntr_wait.threshold");
_Static_assert(__builtin_offsetof(struct kfi_cntr_wait, deadline) == 24, "kfi_cntr_wait.deadline");
_Static_assert(__builtin_offsetof(struct kfi_cntr_wait, reserved) == 32, "kfi_cntr_wait.reserved");
_Static_assert(__builtin_offsetof(struct kfi_cntr_wait, errors) == 40, "kfi_cntr_wait.errors");
_Static_assert(sizeof(struct kfi_region_reg) == 104, "size of kfi_region_reg");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, size) == 0, "kfi_region_reg.size");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, flags) == 4, "kfi_region_reg.flags");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, domain) == 8, "kfi_region_reg.domain");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, addr) == 16, "kfi_region_reg.addr");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, len) == 24, "kfi_region_reg.len");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, access) == 32, "kfi_region_reg.access");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, handle) == 40, "kfi_region_reg.handle");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, key) == 48, "kfi_region_reg.key");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, remote_addr) == 56, "kfi_region_reg.remote_addr");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, pages) == 64, "kfi_region_reg.pages");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, ep) == 72, "kfi_region_reg.ep");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, auth_key) == 80, "kfi_region_reg.auth_key");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, auth_key_size) == 88, "kfi_region_reg.auth_key_size");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, reserved) == 92, "kfi_region_reg.reserved");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, persistence) == 96, "kfi_region_reg.persistence");
_Static_assert(__builtin_offsetof(struct kfi_region_reg, reserved2) == 100, "kfi_region_reg.reserved2");
_Static_assert(sizeof(struct kfi_key_alloc) == 56, "size of kfi_key_alloc");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, size) == 0, "kfi_key_alloc.size");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, flags) == 4, "kfi_key_alloc.flags");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, region) == 8, "kfi_key_alloc.region");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, count) == 16, "kfi_key_alloc.count");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, reserved) == 20, "kfi_key_alloc.reserved");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, handles) == 24, "kfi_key_alloc.handles");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, ep) == 32, "kfi_key_alloc.ep");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, auth_key) == 40, "kfi_key_alloc.auth_key");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, auth_key_size) == 48, "kfi_key_alloc.auth_key_size");
_Static_assert(__builtin_offsetof(struct kfi_key_alloc, reserved2) == 52, "kfi_key_alloc.reserved2");
_Static_assert(sizeof(struct kfi_key_assign) == 72, "size of kfi_key_assign");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, size) == 0, "kfi_key_assign.size");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, flags) == 4, "kfi_key_assign.flags");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, slot) == 8, "kfi_key_assign.slot");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, offset) == 16, "kfi_key_assign.offset");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, length) == 24, "kfi_key_assign.length");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, access) == 32, "kfi_key_assign.access");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, key) == 40, "kfi_key_assign.key");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, remote_addr) == 48, "kfi_key_assign.remote_addr");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, cq) == 56, "kfi_key_assign.cq");
_Static_assert(__builtin_offsetof(struct kfi_key_assign, context) == 64, "kfi_key_assign.context");
_Static_assert(sizeof(struct kfi_key_assign_many) == 48, "size of kfi_key_assign_many");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, size) == 0, "kfi_key_assign_many.size");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, flags) == 4, "kfi_key_assign_many.flags");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, entries) == 8, "kfi_key_assign_many.entries");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, count) == 16, "kfi_key_assign_many.count");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, entry_size) == 20, "kfi_key_assign_many.entry_size");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, done) == 24, "kfi_key_assign_many.done");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, err) == 28, "kfi_key_assign_many.err");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, cq) == 32, "kfi_key_assign_many.cq");
_Static_assert(__builtin_offsetof(struct kfi_key_assign_many, context) == 40, "kfi_key_assign_many.context");
_Static_assert(sizeof(struct kfi_key_entry) == 48, "size of kfi_key_entry");
_Static_assert(__builtin_offsetof(struct kfi_key_entry, slot) == 0, "kfi_key_entry.slot");
_Static_assert(__builtin_offsetof(struct kfi_key_entry, offset) == 8, "kfi_key_entry.offset");
_Static_assert(__builtin_offsetof(struct kfi_key_entry, length) == 16, "kfi_key_entry.length");
_Static_assert(__builtin_offsetof(struct kfi_key_entry, access) == 24, "kfi_key_entry.access");
_Static_assert(__builtin_offsetof(struct kfi_key_entry, key) == 32, "kfi_key_entry.key");
_Static_assert(__builtin_offsetof(struct kfi_key_entry, remote_addr) == 40, "kfi_key_entry.remote_addr");
_Static_assert(sizeof(struct kfi_key_revoke_many) == 48, "size of kfi_key_revoke_many");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, size) == 0, "kfi_key_revoke_many.size");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, flags) == 4, "kfi_key_revoke_many.flags");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, scope) == 8, "kfi_key_revoke_many.scope");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, count) == 12, "kfi_key_revoke_many.count");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, object) == 16, "kfi_key_revoke_many.object");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, slots) == 24, "kfi_key_revoke_many.slots");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, done) == 32, "kfi_key_revoke_many.done");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, err) == 36, "kfi_key_revoke_many.err");
_Static_assert(__builtin_offsetof(struct kfi_key_revoke_many, revoked) == 40, "kfi_key_revoke_many.revoked");
_Static_assert(sizeof(struct kfi_iov) == 24, "size of kfi_iov");
_Static_assert(__builtin_offsetof(struct kfi_iov, region) == 0, "kfi_iov.region");
_Static_assert(__builtin_offsetof(struct kfi_iov, offset) == 8, "kfi_iov.offset");
_Static_assert(__builtin_offsetof(struct kfi_iov, len) == 16, "kfi_iov.len");
_Static_assert(sizeof(struct kfi_op_entry) == 168, "size of kfi_op_entry");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, op) == 0, "kfi_op_entry.op");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, iov_count) == 4, "kfi_op_entry.iov_count");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, flags) == 8, "kfi_op_entry.flags");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, context) == 16, "kfi_op_entry.context");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, data) == 24, "kfi_op_entry.data");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, remote_addr) == 32, "kfi_op_entry.remote_addr");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, key) == 40, "kfi_op_entry.key");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, inject) == 48, "kfi_op_entry.inject");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, inject_len) == 56, "kfi_op_entry.inject_len");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, atomic_op) == 64, "kfi_op_entry.atomic_op");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, datatype) == 68, "kfi_op_entry.datatype");
_Static_assert(__builtin_offsetof(struct kfi_op_entry, iov) == 72, "kfi_op_entry.iov");
_Static_assert(sizeof(struct kfi_atomic_query) == 40, "size of kfi_atomic_query");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, size) == 0, "kfi_atomic_query.size");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, flags) == 4, "kfi_atomic_query.flags");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, domain) == 8, "kfi_atomic_query.domain");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, op) == 16, "kfi_atomic_query.op");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, atomic_op) == 20, "kfi_atomic_query.atomic_op");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, datatype) == 24, "kfi_atomic_query.datatype");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, value_size) == 28, "kfi_atomic_query.value_size");
_Static_assert(__builtin_offsetof(struct kfi_atomic_query, count) == 32, "kfi_atomic_query.count");
_Static_assert(sizeof(struct kfi_submit) == 40, "size of kfi_submit");
_Static_assert(__builtin_offsetof(struct kfi_submit, size) == 0, "kfi_submit.size");
_Static_assert(__builtin_offsetof(struct kfi_submit, flags) == 4, "kfi_submit.flags");
_Static_assert(__builtin_offsetof(struct kfi_submit, ep) == 8, "kfi_submit.ep");
_Static_assert(__builtin_offsetof(struct kfi_submit, ops) == 16, "kfi_submit.ops");
_Static_assert(__builtin_offsetof(struct kfi_submit, count) == 24, "kfi_submit.count");
_Static_assert(__builtin_offsetof(struct kfi_submit, entry_size) == 28, "kfi_submit.entry_size");
_Static_assert(__builtin_offsetof(struct kfi_submit, done) == 32, "kfi_submit.done");
_Static_assert(__builtin_offsetof(struct kfi_submit, err) == 36, "kfi_submit.err");
_Static_assert(sizeof(struct kfi_cancel) == 24, "size of kfi_cancel");
_Static_assert(__builtin_offsetof(struct kfi_cancel, size) == 0, "kfi_cancel.size");
_Static_assert(__builtin_offsetof(struct kfi_cancel, flags) == 4, "kfi_cancel.flags");
_Static_assert(__builtin_offsetof(struct kfi_cancel, ep) == 8, "kfi_cancel.ep");
_Static_assert(__builtin_offsetof(struct kfi_cancel, context) == 16, "kfi_cancel.context");
_Static_assert(sizeof(struct kfi_close) == 16, "size of kfi_close");
_Static_assert(__builtin_offsetof(struct kfi_close, size) == 0, "kfi_close.size");
_Static_assert(__builtin_offsetof(struct kfi_close, flags) == 4, "kfi_close.flags");
_Static_assert(__builtin_offsetof(struct kfi_close, handle) == 8, "kfi_close.handle");
_Static_assert(sizeof(struct kfi_obj_list) == 48, "size of kfi_obj_list");
_Static_assert(__builtin_offsetof(struct kfi_obj_list, size) == 0, "kfi_obj_list.size");
_Static_assert(__builtin_offsetof(struct kfi_obj_list, flags) == 4, "kfi_obj_list.flags");
_Static_assert(__builtin_offsetof(struct kfi_obj_list, entries) == 8, "kfi_obj_list.entries");
_Static_assert(__builtin_offsetof(struct kfi_obj_list, count) == 16, "kfi_obj_list.count");
_Static_assert(__builtin_offsetof(struct kfi_obj_list, entry_size) == 20, "kfi_obj_list.entry_size");
_Static_assert(__builtin_offsetof(struct kfi_obj_list, reserved) == 24, "kfi_obj_list.reserved");
_Static_assert(sizeof(struct kfi_obj_info) == 176, "size of kfi_obj_info");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, kind) == 0, "kfi_obj_info.kind");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, pid) == 4, "kfi_obj_info.pid");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, handle) == 8, "kfi_obj_info.handle");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, parent) == 16, "kfi_obj_info.parent");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, a) == 24, "kfi_obj_info.a");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, b) == 32, "kfi_obj_info.b");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, c) == 40, "kfi_obj_info.c");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, comm) == 48, "kfi_obj_info.comm");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, name) == 64, "kfi_obj_info.name");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, auth) == 128, "kfi_obj_info.auth");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, ep) == 136, "kfi_obj_info.ep");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, keys_used) == 144, "kfi_obj_info.keys_used");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, keys_reused) == 152, "kfi_obj_info.keys_reused");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, keys_worn) == 160, "kfi_obj_info.keys_worn");
_Static_assert(__builtin_offsetof(struct kfi_obj_info, keys_spent) == 168, "kfi_obj_info.keys_spent");
_Static_assert(sizeof(struct kfi_auth_key_ref) == 16, "size of kfi_auth_key_ref");
_Static_assert(__builtin_offsetof(struct kfi_auth_key_ref, addr) == 0, "kfi_auth_key_ref.addr");
_Static_assert(__builtin_offsetof(struct kfi_auth_key_ref, size) == 8, "kfi_auth_key_ref.size");
_Static_assert(__builtin_offsetof(struct kfi_auth_key_ref, reserved) == 12, "kfi_auth_key_ref.reserved");
_Static_assert(sizeof(struct kfi_auth_mode) == 48, "size of kfi_auth_mode");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, size) == 0, "kfi_auth_mode.size");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, flags) == 4, "kfi_auth_mode.flags");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, mode) == 8, "kfi_auth_mode.mode");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, timeout_ms) == 12, "kfi_auth_mode.timeout_ms");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, deny_ms) == 16, "kfi_auth_mode.deny_ms");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, asks) == 20, "kfi_auth_mode.asks");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, agent) == 24, "kfi_auth_mode.agent");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, agents) == 28, "kfi_auth_mode.agents");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, grants) == 32, "kfi_auth_mode.grants");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, waiting) == 36, "kfi_auth_mode.waiting");
_Static_assert(__builtin_offsetof(struct kfi_auth_mode, reserved) == 40, "kfi_auth_mode.reserved");
_Static_assert(sizeof(struct kfi_grant_add) == 88, "size of kfi_grant_add");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, size) == 0, "kfi_grant_add.size");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, flags) == 4, "kfi_grant_add.flags");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, auth_key) == 8, "kfi_grant_add.auth_key");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, auth_key_size) == 16, "kfi_grant_add.auth_key_size");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, match_) == 20, "kfi_grant_add.match_");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, rights) == 24, "kfi_grant_add.rights");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, uid) == 28, "kfi_grant_add.uid");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, gid) == 32, "kfi_grant_add.gid");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, pidfd) == 36, "kfi_grant_add.pidfd");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, netns_fd) == 40, "kfi_grant_add.netns_fd");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, max_keys) == 44, "kfi_grant_add.max_keys");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, cgroup) == 48, "kfi_grant_add.cgroup");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, max_pinned) == 56, "kfi_grant_add.max_pinned");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, lifetime_ms) == 64, "kfi_grant_add.lifetime_ms");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, max_eps) == 72, "kfi_grant_add.max_eps");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, reserved) == 76, "kfi_grant_add.reserved");
_Static_assert(__builtin_offsetof(struct kfi_grant_add, id) == 80, "kfi_grant_add.id");
_Static_assert(sizeof(struct kfi_grant_change) == 40, "size of kfi_grant_change");
_Static_assert(__builtin_offsetof(struct kfi_grant_change, size) == 0, "kfi_grant_change.size");
_Static_assert(__builtin_offsetof(struct kfi_grant_change, flags) == 4, "kfi_grant_change.flags");
_Static_assert(__builtin_offsetof(struct kfi_grant_change, id) == 8, "kfi_grant_change.id");
_Static_assert(__builtin_offsetof(struct kfi_grant_change, max_pinned) == 16, "kfi_grant_change.max_pinned");
_Static_assert(__builtin_offsetof(struct kfi_grant_change, max_keys) == 24, "kfi_grant_change.max_keys");
_Static_assert(__builtin_offsetof(struct kfi_grant_change, max_eps) == 28, "kfi_grant_change.max_eps");
_Static_assert(__builtin_offsetof(struct kfi_grant_change, lifetime_ms) == 32, "kfi_grant_change.lifetime_ms");
_Static_assert(sizeof(struct kfi_grant_revoke) == 24, "size of kfi_grant_revoke");
_Static_assert(__builtin_offsetof(struct kfi_grant_revoke, size) == 0, "kfi_grant_revoke.size");
_Static_assert(__builtin_offsetof(struct kfi_grant_revoke, flags) == 4, "kfi_grant_revoke.flags");
_Static_assert(__builtin_offsetof(struct kfi_grant_revoke, id) == 8, "kfi_grant_revoke.id");
_Static_assert(__builtin_offsetof(struct kfi_grant_revoke, reserved) == 16, "kfi_grant_revoke.reserved");
_Static_assert(sizeof(struct kfi_grant_list) == 32, "size of kfi_grant_list");
_Static_assert(__builtin_offsetof(struct kfi_grant_list, size) == 0, "kfi_grant_list.size");
_Static_assert(__builtin_offsetof(struct kfi_grant_list, flags) == 4, "kfi_grant_list.flags");
_Static_assert(__builtin_offsetof(struct kfi_grant_list, entries) == 8, "kfi_grant_list.entries");
_Static_assert(__builtin_offsetof(struct kfi_grant_list, count) == 16, "kfi_grant_list.count");
_Static_assert(__builtin_offsetof(struct kfi_grant_list, entry_size) == 20, "kfi_grant_list.entry_size");
_Static_assert(__builtin_offsetof(struct kfi_grant_list, reserved) == 24, "kfi_grant_list.reserved");
_Static_assert(sizeof(struct kfi_grant_info) == 104, "size of kfi_grant_info");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, id) == 0, "kfi_grant_info.id");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, key) == 8, "kfi_grant_info.key");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, match_) == 16, "kfi_grant_info.match_");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, rights) == 20, "kfi_grant_info.rights");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, uid) == 24, "kfi_grant_info.uid");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, gid) == 28, "kfi_grant_info.gid");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, cgroup) == 32, "kfi_grant_info.cgroup");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, netns) == 40, "kfi_grant_info.netns");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, process) == 48, "kfi_grant_info.process");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, max_pinned) == 56, "kfi_grant_info.max_pinned");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, max_keys) == 64, "kfi_grant_info.max_keys");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, max_eps) == 68, "kfi_grant_info.max_eps");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, pinned) == 72, "kfi_grant_info.pinned");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, keys) == 80, "kfi_grant_info.keys");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, eps) == 84, "kfi_grant_info.eps");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, left_ms) == 88, "kfi_grant_info.left_ms");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, state) == 96, "kfi_grant_info.state");
_Static_assert(__builtin_offsetof(struct kfi_grant_info, answered) == 100, "kfi_grant_info.answered");
_Static_assert(sizeof(struct kfi_agent_open) == 16, "size of kfi_agent_open");
_Static_assert(__builtin_offsetof(struct kfi_agent_open, size) == 0, "kfi_agent_open.size");
_Static_assert(__builtin_offsetof(struct kfi_agent_open, flags) == 4, "kfi_agent_open.flags");
_Static_assert(__builtin_offsetof(struct kfi_agent_open, reserved) == 8, "kfi_agent_open.reserved");
_Static_assert(sizeof(struct kfi_agent_next) == 192, "size of kfi_agent_next");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, size) == 0, "kfi_agent_next.size");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, flags) == 4, "kfi_agent_next.flags");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, auth_key) == 8, "kfi_agent_next.auth_key");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, auth_key_size) == 16, "kfi_agent_next.auth_key_size");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, rights) == 20, "kfi_agent_next.rights");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, id) == 24, "kfi_agent_next.id");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, process) == 32, "kfi_agent_next.process");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, pid) == 40, "kfi_agent_next.pid");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, uid) == 44, "kfi_agent_next.uid");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, gid) == 48, "kfi_agent_next.gid");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, left_ms) == 52, "kfi_agent_next.left_ms");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, cgroup) == 56, "kfi_agent_next.cgroup");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, netns) == 64, "kfi_agent_next.netns");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, comm) == 72, "kfi_agent_next.comm");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, domain) == 88, "kfi_agent_next.domain");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, groups) == 152, "kfi_agent_next.groups");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, cgroup_path) == 160, "kfi_agent_next.cgroup_path");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, groups_count) == 168, "kfi_agent_next.groups_count");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, cgroup_path_size) == 172, "kfi_agent_next.cgroup_path_size");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, userns) == 176, "kfi_agent_next.userns");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, known) == 184, "kfi_agent_next.known");
_Static_assert(__builtin_offsetof(struct kfi_agent_next, reserved) == 188, "kfi_agent_next.reserved");
_Static_assert(sizeof(struct kfi_agent_answer) == 64, "size of kfi_agent_answer");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, size) == 0, "kfi_agent_answer.size");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, flags) == 4, "kfi_agent_answer.flags");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, id) == 8, "kfi_agent_answer.id");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, verdict) == 16, "kfi_agent_answer.verdict");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, match_) == 20, "kfi_agent_answer.match_");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, rights) == 24, "kfi_agent_answer.rights");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, max_keys) == 28, "kfi_agent_answer.max_keys");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, max_pinned) == 32, "kfi_agent_answer.max_pinned");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, lifetime_ms) == 40, "kfi_agent_answer.lifetime_ms");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, max_eps) == 48, "kfi_agent_answer.max_eps");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, reserved) == 52, "kfi_agent_answer.reserved");
_Static_assert(__builtin_offsetof(struct kfi_agent_answer, grant) == 56, "kfi_agent_answer.grant");
_Static_assert(sizeof(struct kfi_cq_ring) == 256, "size of kfi_cq_ring");
_Static_assert(__builtin_offsetof(struct kfi_cq_ring, head) == 0, "kfi_cq_ring.head");
_Static_assert(__builtin_offsetof(struct kfi_cq_ring, entries) == 4, "kfi_cq_ring.entries");
_Static_assert(__builtin_offsetof(struct kfi_cq_ring, entry_size) == 8, "kfi_cq_ring.entry_size");
_Static_assert(__builtin_offsetof(struct kfi_cq_ring, pad) == 12, "kfi_cq_ring.pad");
_Static_assert(__builtin_offsetof(struct kfi_cq_ring, tail) == 128, "kfi_cq_ring.tail");
_Static_assert(__builtin_offsetof(struct kfi_cq_ring, alarm) == 132, "kfi_cq_ring.alarm");
_Static_assert(__builtin_offsetof(struct kfi_cq_ring, pad2) == 136, "kfi_cq_ring.pad2");
_Static_assert(sizeof(struct kfi_cq_entry) == 64, "size of kfi_cq_entry");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, context) == 0, "kfi_cq_entry.context");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, flags) == 8, "kfi_cq_entry.flags");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, len) == 16, "kfi_cq_entry.len");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, buf) == 24, "kfi_cq_entry.buf");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, data) == 32, "kfi_cq_entry.data");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, err) == 40, "kfi_cq_entry.err");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, prov_errno) == 44, "kfi_cq_entry.prov_errno");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, ep) == 48, "kfi_cq_entry.ep");
_Static_assert(__builtin_offsetof(struct kfi_cq_entry, olen) == 56, "kfi_cq_entry.olen");
_Static_assert(KFI_IOC_TYPE == 0xbfULL, "KFI_IOC_TYPE");
_Static_assert(KFI_ABI_VERSION == 0x1ULL, "KFI_ABI_VERSION");
_Static_assert(KFI_API_VERSION == 0x20000ULL, "KFI_API_VERSION");
_Static_assert(KFI_EP_MSG == 0x1ULL, "KFI_EP_MSG");
_Static_assert(KFI_MSG == 0x2ULL, "KFI_MSG");
_Static_assert(KFI_RMA == 0x4ULL, "KFI_RMA");
_Static_assert(KFI_ATOMIC == 0x10ULL, "KFI_ATOMIC");
_Static_assert(KFI_READ == 0x100ULL, "KFI_READ");
_Static_assert(KFI_WRITE == 0x200ULL, "KFI_WRITE");
_Static_assert(KFI_RECV == 0x400ULL, "KFI_RECV");
_Static_assert(KFI_SEND == 0x800ULL, "KFI_SEND");
_Static_assert(KFI_TRANSMIT == 0x800ULL, "KFI_TRANSMIT");
_Static_assert(KFI_REMOTE_READ == 0x1000ULL, "KFI_REMOTE_READ");
_Static_assert(KFI_REMOTE_WRITE == 0x2000ULL, "KFI_REMOTE_WRITE");
_Static_assert(KFI_REMOTE_CQ_DATA == 0x20000ULL, "KFI_REMOTE_CQ_DATA");
_Static_assert(KFI_COMPLETION == 0x1000000ULL, "KFI_COMPLETION");
_Static_assert(KFI_INJECT == 0x2000000ULL, "KFI_INJECT");
_Static_assert(KFI_FENCE == 0x400000ULL, "KFI_FENCE");
_Static_assert(KFI_SELECTIVE_COMPLETION == 0x800000000000000ULL, "KFI_SELECTIVE_COMPLETION");
_Static_assert(KFI_REMOTE_COMM == 0x8000000000000ULL, "KFI_REMOTE_COMM");
_Static_assert(KFI_LOCAL_COMM == 0x4000000000000ULL, "KFI_LOCAL_COMM");
_Static_assert(KFI_DYNAMIC_KEYS == 0x10000000000ULL, "KFI_DYNAMIC_KEYS");
_Static_assert(KFI_EP_KEYS == 0x20000000000ULL, "KFI_EP_KEYS");
_Static_assert(KFI_SINGLE_USE_KEYS == 0x40000000000ULL, "KFI_SINGLE_USE_KEYS");
_Static_assert(KFI_UNREGISTERED_RMA == 0x80000000000ULL, "KFI_UNREGISTERED_RMA");
_Static_assert(KFI_RMA_PMEM == 0x2000000000000ULL, "KFI_RMA_PMEM");
_Static_assert(KFI_DELIVERY_COMPLETE == 0x10000000ULL, "KFI_DELIVERY_COMPLETE");
_Static_assert(KFI_COMMIT_COMPLETE == 0x40000000ULL, "KFI_COMMIT_COMPLETE");
_Static_assert(KFI_REACH_NO == 0x0ULL, "KFI_REACH_NO");
_Static_assert(KFI_REACH_NATIVE == 0x1ULL, "KFI_REACH_NATIVE");
_Static_assert(KFI_REACH_ASSISTED == 0x2ULL, "KFI_REACH_ASSISTED");
_Static_assert(KFI_REVOCATION_NATIVE == 0x0ULL, "KFI_REVOCATION_NATIVE");
_Static_assert(KFI_REVOCATION_DEREGISTER == 0x1ULL, "KFI_REVOCATION_DEREGISTER");
_Static_assert(KFI_REVOCATION_INVALIDATE == 0x2ULL, "KFI_REVOCATION_INVALIDATE");
_Static_assert(KFI_PERSISTENCE_NONE == 0x0ULL, "KFI_PERSISTENCE_NONE");
_Static_assert(KFI_PERSISTENCE_ADR == 0x1ULL, "KFI_PERSISTENCE_ADR");
_Static_assert(KFI_PERSISTENCE_DEVICE == 0x2ULL, "KFI_PERSISTENCE_DEVICE");
_Static_assert(KFI_MR_LOCAL == 0x4ULL, "KFI_MR_LOCAL");
_Static_assert(KFI_MR_VIRT_ADDR == 0x10ULL, "KFI_MR_VIRT_ADDR");
_Static_assert(KFI_MR_ALLOCATED == 0x20ULL, "KFI_MR_ALLOCATED");
_Static_assert(KFI_MR_PROV_KEY == 0x40ULL, "KFI_MR_PROV_KEY");
_Static_assert(KFI_KEY_NOTAVAIL == 0xffffffffffffffffULL, "KFI_KEY_NOTAVAIL");
_Static_assert(KFI_SOCKADDR == 0x1ULL, "KFI_SOCKADDR");
_Static_assert(KFI_SOCKADDR_IN == 0x2ULL, "KFI_SOCKADDR_IN");
_Static_assert(KFI_SOCKADDR_IN6 == 0x3ULL, "KFI_SOCKADDR_IN6");
_Static_assert(KFI_PROTO_RDMA_CM_IB_RC == 0x1ULL, "KFI_PROTO_RDMA_CM_IB_RC");
_Static_assert(KFI_PROTO_IWARP == 0x2ULL, "KFI_PROTO_IWARP");
_Static_assert(KFI_PROTO_SHM == 0xeULL, "KFI_PROTO_SHM");
_Static_assert(KFI_CQ_FORMAT_CONTEXT == 0x1ULL, "KFI_CQ_FORMAT_CONTEXT");
_Static_assert(KFI_CQ_FORMAT_MSG == 0x2ULL, "KFI_CQ_FORMAT_MSG");
_Static_assert(KFI_CQ_FORMAT_DATA == 0x3ULL, "KFI_CQ_FORMAT_DATA");
_Static_assert(KFI_CONNREQ == 0x1ULL, "KFI_CONNREQ");
_Static_assert(KFI_CONNECTED == 0x2ULL, "KFI_CONNECTED");
_Static_assert(KFI_SHUTDOWN == 0x3ULL, "KFI_SHUTDOWN");
_Static_assert(KFI_CONN_ERROR == 0x100ULL, "KFI_CONN_ERROR");
_Static_assert(KFI_NAME_MAX == 0x40ULL, "KFI_NAME_MAX");
_Static_assert(KFI_IOV_MAX == 0x4ULL, "KFI_IOV_MAX");
_Static_assert(KFI_SUBMIT_MAX == 0x400ULL, "KFI_SUBMIT_MAX");
_Static_assert(KFI_INJECT_MAX == 0x40ULL, "KFI_INJECT_MAX");
_Static_assert(KFI_CM_DATA_MAX == 0xc0ULL, "KFI_CM_DATA_MAX");
_Static_assert(KFI_KEY_ALLOC_MAX == 0x1000ULL, "KFI_KEY_ALLOC_MAX");
_Static_assert(KFI_CQ_SIZE_MAX == 0x40000ULL, "KFI_CQ_SIZE_MAX");
_Static_assert(KFI_EQ_SIZE_MAX == 0x10000ULL, "KFI_EQ_SIZE_MAX");
_Static_assert(KFI_DOMAIN_STRICT_KEYS == 0x1ULL, "KFI_DOMAIN_STRICT_KEYS");
_Static_assert(KFI_EP_OWN_KEYS == 0x1ULL, "KFI_EP_OWN_KEYS");
_Static_assert(KFI_EP_RINGS == 0x2ULL, "KFI_EP_RINGS");
_Static_assert(KFI_EP_STRICT_KEYS == 0x4ULL, "KFI_EP_STRICT_KEYS");
_Static_assert(KFI_RINGS_UNKNOWN == 0x0ULL, "KFI_RINGS_UNKNOWN");
_Static_assert(KFI_RINGS_NONE == 0x1ULL, "KFI_RINGS_NONE");
_Static_assert(KFI_RINGS_SHARED == 0x2ULL, "KFI_RINGS_SHARED");
_Static_assert(KFI_RING_SIZE == 0x11000ULL, "KFI_RING_SIZE");
_Static_assert(KFI_RING_DATA == 0x1000ULL, "KFI_RING_DATA");
_Static_assert(KFI_WAKE_SELF == 0x1ULL, "KFI_WAKE_SELF");
_Static_assert(KFI_EQ_PEEK == 0x1ULL, "KFI_EQ_PEEK");
_Static_assert(KFI_CNTR_READ == 0x0ULL, "KFI_CNTR_READ");
_Static_assert(KFI_CNTR_ADD == 0x1ULL, "KFI_CNTR_ADD");
_Static_assert(KFI_CNTR_SET == 0x2ULL, "KFI_CNTR_SET");
_Static_assert(KFI_CNTR_ADDERR == 0x3ULL, "KFI_CNTR_ADDERR");
_Static_assert(KFI_CNTR_SETERR == 0x4ULL, "KFI_CNTR_SETERR");
_Static_assert(KFI_CNTR_WAIT_CHANGE == 0x1ULL, "KFI_CNTR_WAIT_CHANGE");
_Static_assert(KFI_REGION_PMEM == 0x2ULL, "KFI_REGION_PMEM");
_Static_assert(KFI_REGION_DEVICE == 0x4ULL, "KFI_REGION_DEVICE");
_Static_assert(KFI_REGION_DYNAMIC_KEYS == 0x1ULL, "KFI_REGION_DYNAMIC_KEYS");
_Static_assert(KFI_KEY_SINGLE_USE == 0x2ULL, "KFI_KEY_SINGLE_USE");
_Static_assert(KFI_KEY_ORDERED == 0x1ULL, "KFI_KEY_ORDERED");
_Static_assert(KFI_REVOKE_SLOTS == 0x0ULL, "KFI_REVOKE_SLOTS");
_Static_assert(KFI_REVOKE_REGION == 0x1ULL, "KFI_REVOKE_REGION");
_Static_assert(KFI_REVOKE_DOMAIN == 0x2ULL, "KFI_REVOKE_DOMAIN");
_Static_assert(KFI_REVOKE_FILE == 0x3ULL, "KFI_REVOKE_FILE");
_Static_assert(KFI_REVOKE_EP == 0x4ULL, "KFI_REVOKE_EP");
_Static_assert(KFI_REVOKE_AUTH == 0x5ULL, "KFI_REVOKE_AUTH");
_Static_assert(KFI_UNREGISTERED == 0xffffffffffffffffULL, "KFI_UNREGISTERED");
_Static_assert(KFI_OP_SEND == 0x0ULL, "KFI_OP_SEND");
_Static_assert(KFI_OP_RECV == 0x1ULL, "KFI_OP_RECV");
_Static_assert(KFI_OP_READ == 0x2ULL, "KFI_OP_READ");
_Static_assert(KFI_OP_WRITE == 0x3ULL, "KFI_OP_WRITE");
_Static_assert(KFI_OP_ATOMIC == 0x4ULL, "KFI_OP_ATOMIC");
_Static_assert(KFI_OP_FETCH_ATOMIC == 0x5ULL, "KFI_OP_FETCH_ATOMIC");
_Static_assert(KFI_OP_COMPARE_ATOMIC == 0x6ULL, "KFI_OP_COMPARE_ATOMIC");
_Static_assert(KFI_OP_COMMIT == 0x7ULL, "KFI_OP_COMMIT");
_Static_assert(KFI_INT8 == 0x0ULL, "KFI_INT8");
_Static_assert(KFI_UINT8 == 0x1ULL, "KFI_UINT8");
_Static_assert(KFI_INT16 == 0x2ULL, "KFI_INT16");
_Static_assert(KFI_UINT16 == 0x3ULL, "KFI_UINT16");
_Static_assert(KFI_INT32 == 0x4ULL, "KFI_INT32");
_Static_assert(KFI_UINT32 == 0x5ULL, "KFI_UINT32");
_Static_assert(KFI_INT64 == 0x6ULL, "KFI_INT64");
_Static_assert(KFI_UINT64 == 0x7ULL, "KFI_UINT64");
_Static_assert(KFI_ATOMIC_MIN == 0x0ULL, "KFI_ATOMIC_MIN");
_Static_assert(KFI_ATOMIC_MAX == 0x1ULL, "KFI_ATOMIC_MAX");
_Static_assert(KFI_ATOMIC_SUM == 0x2ULL, "KFI_ATOMIC_SUM");
_Static_assert(KFI_ATOMIC_PROD == 0x3ULL, "KFI_ATOMIC_PROD");
_Static_assert(KFI_ATOMIC_LOR == 0x4ULL, "KFI_ATOMIC_LOR");
_Static_assert(KFI_ATOMIC_LAND == 0x5ULL, "KFI_ATOMIC_LAND");
_Static_assert(KFI_ATOMIC_BOR == 0x6ULL, "KFI_ATOMIC_BOR");
_Static_assert(KFI_ATOMIC_BAND == 0x7ULL, "KFI_ATOMIC_BAND");
_Static_assert(KFI_ATOMIC_LXOR == 0x8ULL, "KFI_ATOMIC_LXOR");
_Static_assert(KFI_ATOMIC_BXOR == 0x9ULL, "KFI_ATOMIC_BXOR");
_Static_assert(KFI_ATOMIC_READ == 0xaULL, "KFI_ATOMIC_READ");
_Static_assert(KFI_ATOMIC_WRITE == 0xbULL, "KFI_ATOMIC_WRITE");
_Static_assert(KFI_ATOMIC_CSWAP == 0xcULL, "KFI_ATOMIC_CSWAP");
_Static_assert(KFI_ATOMIC_CSWAP_NE == 0xdULL, "KFI_ATOMIC_CSWAP_NE");
_Static_assert(KFI_ATOMIC_CSWAP_LE == 0xeULL, "KFI_ATOMIC_CSWAP_LE");
_Static_assert(KFI_ATOMIC_CSWAP_LT == 0xfULL, "KFI_ATOMIC_CSWAP_LT");
_Static_assert(KFI_ATOMIC_CSWAP_GE == 0x10ULL, "KFI_ATOMIC_CSWAP_GE");
_Static_assert(KFI_ATOMIC_CSWAP_GT == 0x11ULL, "KFI_ATOMIC_CSWAP_GT");
_Static_assert(KFI_ATOMIC_MSWAP == 0x12ULL, "KFI_ATOMIC_MSWAP");
_Static_assert(KFI_TYPE_FABRIC == 0x1ULL, "KFI_TYPE_FABRIC");
_Static_assert(KFI_TYPE_DOMAIN == 0x2ULL, "KFI_TYPE_DOMAIN");
_Static_assert(KFI_TYPE_EQ == 0x3ULL, "KFI_TYPE_EQ");
_Static_assert(KFI_TYPE_CQ == 0x4ULL, "KFI_TYPE_CQ");
_Static_assert(KFI_TYPE_CNTR == 0x5ULL, "KFI_TYPE_CNTR");
_Static_assert(KFI_TYPE_PEP == 0x6ULL, "KFI_TYPE_PEP");
_Static_assert(KFI_TYPE_EP == 0x7ULL, "KFI_TYPE_EP");
_Static_assert(KFI_TYPE_REGION == 0x8ULL, "KFI_TYPE_REGION");
_Static_assert(KFI_TYPE_KEY == 0x9ULL, "KFI_TYPE_KEY");
_Static_assert(KFI_TYPE_CONNREQ == 0xaULL, "KFI_TYPE_CONNREQ");
_Static_assert(KFI_STATE_NEW == 0x0ULL, "KFI_STATE_NEW");
_Static_assert(KFI_STATE_ENABLED == 0x1ULL, "KFI_STATE_ENABLED");
_Static_assert(KFI_STATE_CONNECTING == 0x2ULL, "KFI_STATE_CONNECTING");
_Static_assert(KFI_STATE_CONNECTED == 0x3ULL, "KFI_STATE_CONNECTED");
_Static_assert(KFI_STATE_DOWN == 0x4ULL, "KFI_STATE_DOWN");
_Static_assert(KFI_AUTH_KEY_MAX == 0x40ULL, "KFI_AUTH_KEY_MAX");
_Static_assert(KFI_AUTH_KEY_SAFE == 0x10ULL, "KFI_AUTH_KEY_SAFE");
_Static_assert(KFI_PEP_AUTH_KEYS_MAX == 0x8ULL, "KFI_PEP_AUTH_KEYS_MAX");
_Static_assert(KFI_AUTH_CM_DATA == 0x18ULL, "KFI_AUTH_CM_DATA");
_Static_assert(KFI_AUTH_OPEN == 0x0ULL, "KFI_AUTH_OPEN");
_Static_assert(KFI_AUTH_ENFORCE == 0x1ULL, "KFI_AUTH_ENFORCE");
_Static_assert(KFI_AUTH_SET_MODE == 0x1ULL, "KFI_AUTH_SET_MODE");
_Static_assert(KFI_AUTH_SET_TIMEOUT == 0x2ULL, "KFI_AUTH_SET_TIMEOUT");
_Static_assert(KFI_AUTH_SET_DENY == 0x4ULL, "KFI_AUTH_SET_DENY");
_Static_assert(KFI_AUTH_SET_ASKS == 0x8ULL, "KFI_AUTH_SET_ASKS");
_Static_assert(KFI_AUTH_EP == 0x1ULL, "KFI_AUTH_EP");
_Static_assert(KFI_AUTH_KEYS == 0x2ULL, "KFI_AUTH_KEYS");
_Static_assert(KFI_MATCH_UID == 0x1ULL, "KFI_MATCH_UID");
_Static_assert(KFI_MATCH_GID == 0x2ULL, "KFI_MATCH_GID");
_Static_assert(KFI_MATCH_CGROUP == 0x4ULL, "KFI_MATCH_CGROUP");
_Static_assert(KFI_MATCH_NETNS == 0x8ULL, "KFI_MATCH_NETNS");
_Static_assert(KFI_MATCH_PROCESS == 0x10ULL, "KFI_MATCH_PROCESS");
_Static_assert(KFI_GRANT_LIMITS == 0x1ULL, "KFI_GRANT_LIMITS");
_Static_assert(KFI_GRANT_LIFETIME == 0x2ULL, "KFI_GRANT_LIFETIME");
_Static_assert(KFI_GRANT_VALID == 0x0ULL, "KFI_GRANT_VALID");
_Static_assert(KFI_GRANT_REVOKED == 0x1ULL, "KFI_GRANT_REVOKED");
_Static_assert(KFI_GRANT_EXPIRED == 0x2ULL, "KFI_GRANT_EXPIRED");
_Static_assert(KFI_KNOWN_GROUPS == 0x1ULL, "KFI_KNOWN_GROUPS");
_Static_assert(KFI_KNOWN_CGROUP == 0x2ULL, "KFI_KNOWN_CGROUP");
_Static_assert(KFI_AUTH_DENY == 0x0ULL, "KFI_AUTH_DENY");
_Static_assert(KFI_AUTH_ALLOW == 0x1ULL, "KFI_AUTH_ALLOW");
_Static_assert(KFI_CQ_RING_OFFSET == 0x1000ULL, "KFI_CQ_RING_OFFSET");
_Static_assert(KFI_IOC_GETINFO == 0xc028bf00ULL, "KFI_IOC_GETINFO");
_Static_assert(KFI_IOC_FABRIC_OPEN == 0xc070bf01ULL, "KFI_IOC_FABRIC_OPEN");
_Static_assert(KFI_IOC_DOMAIN_OPEN == 0xc0a0bf02ULL, "KFI_IOC_DOMAIN_OPEN");
_Static_assert(KFI_IOC_EQ_OPEN == 0xc020bf03ULL, "KFI_IOC_EQ_OPEN");
_Static_assert(KFI_IOC_CQ_OPEN == 0xc038bf04ULL, "KFI_IOC_CQ_OPEN");
_Static_assert(KFI_IOC_CNTR_OPEN == 0xc020bf05ULL, "KFI_IOC_CNTR_OPEN");
_Static_assert(KFI_IOC_PEP_OPEN == 0xc048bf06ULL, "KFI_IOC_PEP_OPEN");
_Static_assert(KFI_IOC_EP_OPEN == 0xc068bf07ULL, "KFI_IOC_EP_OPEN");
_Static_assert(KFI_IOC_BIND == 0xc020bf08ULL, "KFI_IOC_BIND");
_Static_assert(KFI_IOC_ENABLE == 0xc010bf09ULL, "KFI_IOC_ENABLE");
_Static_assert(KFI_IOC_LISTEN == 0xc018bf0aULL, "KFI_IOC_LISTEN");
_Static_assert(KFI_IOC_CONNECT == 0xc040bf0bULL, "KFI_IOC_CONNECT");
_Static_assert(KFI_IOC_ACCEPT == 0xc020bf0cULL, "KFI_IOC_ACCEPT");
_Static_assert(KFI_IOC_REJECT == 0xc020bf0dULL, "KFI_IOC_REJECT");
_Static_assert(KFI_IOC_SHUTDOWN == 0xc010bf0eULL, "KFI_IOC_SHUTDOWN");
_Static_assert(KFI_IOC_GETNAME == 0xc038bf0fULL, "KFI_IOC_GETNAME");
_Static_assert(KFI_IOC_EQ_READ == 0xc048bf10ULL, "KFI_IOC_EQ_READ");
_Static_assert(KFI_IOC_CNTR_CTL == 0xc028bf11ULL, "KFI_IOC_CNTR_CTL");
_Static_assert(KFI_IOC_CNTR_WAIT == 0xc028bf12ULL, "KFI_IOC_CNTR_WAIT");
_Static_assert(KFI_IOC_REGION_REG == 0xc050bf13ULL, "KFI_IOC_REGION_REG");
_Static_assert(KFI_IOC_KEY_ALLOC == 0xc028bf14ULL, "KFI_IOC_KEY_ALLOC");
_Static_assert(KFI_IOC_KEY_ASSIGN == 0xc040bf15ULL, "KFI_IOC_KEY_ASSIGN");
_Static_assert(KFI_IOC_KEY_REVOKE == 0xc010bf16ULL, "KFI_IOC_KEY_REVOKE");
_Static_assert(KFI_IOC_SUBMIT == 0xc028bf17ULL, "KFI_IOC_SUBMIT");
_Static_assert(KFI_IOC_CANCEL == 0xc018bf18ULL, "KFI_IOC_CANCEL");
_Static_assert(KFI_IOC_CLOSE == 0xc010bf19ULL, "KFI_IOC_CLOSE");
_Static_assert(KFI_IOC_OBJ_LIST == 0xc030bf1aULL, "KFI_IOC_OBJ_LIST");
_Static_assert(KFI_IOC_KEY_ASSIGN_MANY == 0xc030bf1bULL, "KFI_IOC_KEY_ASSIGN_MANY");
_Static_assert(KFI_IOC_KEY_REVOKE_MANY == 0xc030bf1cULL, "KFI_IOC_KEY_REVOKE_MANY");
_Static_assert(KFI_IOC_AUTH_MODE == 0xc030bf1dULL, "KFI_IOC_AUTH_MODE");
_Static_assert(KFI_IOC_GRANT_ADD == 0xc058bf1eULL, "KFI_IOC_GRANT_ADD");
_Static_assert(KFI_IOC_GRANT_CHANGE == 0xc028bf1fULL, "KFI_IOC_GRANT_CHANGE");
_Static_assert(KFI_IOC_GRANT_REVOKE == 0xc018bf20ULL, "KFI_IOC_GRANT_REVOKE");
_Static_assert(KFI_IOC_GRANT_LIST == 0xc020bf21ULL, "KFI_IOC_GRANT_LIST");
_Static_assert(KFI_IOC_AGENT_OPEN == 0xc010bf22ULL, "KFI_IOC_AGENT_OPEN");
_Static_assert(KFI_IOC_AGENT_NEXT == 0xc098bf23ULL, "KFI_IOC_AGENT_NEXT");
_Static_assert(KFI_IOC_AGENT_ANSWER == 0xc040bf24ULL, "KFI_IOC_AGENT_ANSWER");
_Static_assert(KFI_IOC_ATOMIC_QUERY == 0xc028bf25ULL, "KFI_IOC_ATOMIC_QUERY");
_Static_assert(KFI_IOC_EP_RINGS == 0xc028bf26ULL, "KFI_IOC_EP_RINGS");
_Static_assert(KFI_IOC_EP_WAKE == 0xc010bf27ULL, "KFI_IOC_EP_WAKE");
#endif

#endif /* _UAPI_KFABRIC_H */
