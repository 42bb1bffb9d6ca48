// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! Numbers, structures and rings of the `/dev/kfabric` interface.
//!
//! # Rules of every call
//!
//! * A structure starts with `size` (the caller's size of the structure in bytes) and `flags`. The
//!   kernel copies the smaller of its own size and the caller's. Bytes beyond the kernel's size
//!   must be zero (`-E2BIG`); missing bytes count as zero. A `size` below the structure's first
//!   version is `-EINVAL`. New fields are only appended; a new meaning gets a new flag.
//! * Unknown flags and non-zero reserved fields are `-EINVAL`. Pointers are passed as `u64`.
//! * A handle names an object of one open file and contains a generation. The handle of a closed
//!   object never names another object (`-ENOENT`). A handle of another type is `-ENOENT` too.
//! * Errors: `-ENOTTY` unknown call; `-EFAULT` bad pointer; `-EOPNOTSUPP` known, but not supported
//!   by this provider; `-EBUSY` open children or outstanding operations; `-ENODEV` the device is
//!   removed; `-EAGAIN` full; `-EDQUOT` the user's share of the device driver's memory is
//!   used up (kverbs: `user_mib`).
//! * A call that fails changes nothing. The one exception: the program unmaps the memory of the
//!   answer while the call runs. Then an opened object is closed again and an assigned key is
//!   revoked. But posted operations and revoked keys stay so, and an accepted connection request is
//!   refused.
//!
//! * Auth keys (`-EACCES`, `-ENOKEY`, …): see [`AuthMode`].
//!
//! Constants that libfabric has too carry libfabric's values (`fabric.h`, `fi_domain.h`,
//! `fi_endpoint.h`, `fi_eq.h`), so a user-space provider passes them through. Exceptions are
//! [`KFI_FENCE`], [`KFI_LOCAL_COMM`] and [`KFI_REMOTE_COMM`], which a user-space provider
//! translates.

// The derives refuse implicit padding, which could disclose kernel memory.
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The ioctl type byte. 0xBF 00-3F is unlisted in Documentation/userspace-api/ioctl/ioctl-number.rst.
pub const KFI_IOC_TYPE: u32 = 0xBF;
/// Version of this interface, as [`InfoEntry::abi`] reports it. For information only.
pub const KFI_ABI_VERSION: u32 = 1;
/// API version of info entries: libfabric 2.0, as `FI_VERSION(2, 0)`.
pub const KFI_API_VERSION: u32 = 2 << 16;

/// Encodes the number of a read-write ioctl with a structure of `size` bytes.
const fn iowr(nr: u32, size: usize) -> u32 {
    (3 << 30) | ((size as u32) << 16) | (KFI_IOC_TYPE << 8) | nr
}

/// A structure that an ioctl exchanges.
///
/// The low byte of [`Ioctl::NR`] selects the call. The size in the number is that of the
/// structure's first version.
pub trait Ioctl: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable {
    /// The ioctl number, with direction and size.
    const NR: u32;
    /// Size in bytes of the structure's first version, the least valid `size`.
    const MIN_SIZE: usize;
    /// Name of the call, for messages.
    const NAME: &'static str;
}

macro_rules! ioctls {
    ($($(#[$meta:meta])* $name:ident = $nr:literal, $ty:ident, $size:literal;)*) => {
        $(
            $(#[$meta])*
            pub const $name: u32 = iowr($nr, $size);
            const _: () = assert!(core::mem::size_of::<$ty>() >= $size);
            const _: () = assert!($size % 8 == 0);
            impl Ioctl for $ty {
                const NR: u32 = $name;
                const MIN_SIZE: usize = $size;
                const NAME: &'static str = stringify!($name);
            }
        )*
        /// All calls, with number and name. The low bytes of the numbers are contiguous from zero.
        pub const KFI_IOCTLS: &[(u32, &str)] = &[$(($name, stringify!($name))),*];
    };
}

ioctls! {
    /// Lists the offers of providers: [`GetInfo`].
    KFI_IOC_GETINFO = 0x00, GetInfo, 40;
    /// Opens a fabric: [`FabricOpen`].
    KFI_IOC_FABRIC_OPEN = 0x01, FabricOpen, 112;
    /// Opens a domain, a device of a fabric: [`DomainOpen`].
    KFI_IOC_DOMAIN_OPEN = 0x02, DomainOpen, 160;
    /// Opens an event queue: [`EqOpen`].
    KFI_IOC_EQ_OPEN = 0x03, EqOpen, 32;
    /// Opens a completion queue: [`CqOpen`].
    KFI_IOC_CQ_OPEN = 0x04, CqOpen, 56;
    /// Opens a counter: [`CntrOpen`].
    KFI_IOC_CNTR_OPEN = 0x05, CntrOpen, 32;
    /// Opens a passive endpoint: [`PepOpen`].
    KFI_IOC_PEP_OPEN = 0x06, PepOpen, 72;
    /// Opens an active endpoint: [`EpOpen`].
    KFI_IOC_EP_OPEN = 0x07, EpOpen, 104;
    /// Binds a queue or counter to an endpoint: [`Bind`].
    KFI_IOC_BIND = 0x08, Bind, 32;
    /// Makes an endpoint ready to post receives and connect: [`ObjectCall`].
    KFI_IOC_ENABLE = 0x09, ObjectCall, 16;
    /// Starts to listen on a passive endpoint; does not wait: [`Listen`].
    KFI_IOC_LISTEN = 0x0a, Listen, 24;
    /// Starts to connect an endpoint; the result is an event: [`Connect`].
    KFI_IOC_CONNECT = 0x0b, Connect, 64;
    /// Accepts the connection request that the endpoint was opened with: [`Accept`].
    KFI_IOC_ACCEPT = 0x0c, Accept, 32;
    /// Refuses a connection request: [`Reject`].
    KFI_IOC_REJECT = 0x0d, Reject, 32;
    /// Ends a connection: [`Shutdown`].
    KFI_IOC_SHUTDOWN = 0x0e, Shutdown, 16;
    /// Returns the address of an endpoint or of its peer: [`GetName`].
    KFI_IOC_GETNAME = 0x0f, GetName, 56;
    /// Reads one event from an event queue: [`EqRead`].
    KFI_IOC_EQ_READ = 0x10, EqRead, 72;
    /// Reads, adds to or sets a counter: [`CntrCtl`].
    KFI_IOC_CNTR_CTL = 0x11, CntrCtl, 40;
    /// Waits until a counter reaches a value: [`CntrWait`].
    KFI_IOC_CNTR_WAIT = 0x12, CntrWait, 40;
    /// Pins and registers memory: [`RegionReg`].
    KFI_IOC_REGION_REG = 0x13, RegionReg, 80;
    /// Reserves key slots on a region: [`KeyAlloc`].
    KFI_IOC_KEY_ALLOC = 0x14, KeyAlloc, 40;
    /// Assigns a key for a sub-range to a slot: [`KeyAssign`].
    KFI_IOC_KEY_ASSIGN = 0x15, KeyAssign, 64;
    /// Revokes a slot's key: [`ObjectCall2`]. After the return no byte is read or written through
    /// the key. The slot stays reserved and can be assigned again. `-EINVAL`: the slot has no key.
    KFI_IOC_KEY_REVOKE = 0x16, ObjectCall2, 16;
    /// Posts many operations: [`Submit`].
    KFI_IOC_SUBMIT = 0x17, Submit, 40;
    /// Cancels posted receives by their context: [`Cancel`].
    KFI_IOC_CANCEL = 0x18, Cancel, 24;
    /// Closes any object: [`Close`].
    KFI_IOC_CLOSE = 0x19, Close, 16;
    /// Lists live objects: [`ObjList`].
    KFI_IOC_OBJ_LIST = 0x1a, ObjList, 48;
    /// Assigns keys to many slots: [`KeyAssignMany`].
    KFI_IOC_KEY_ASSIGN_MANY = 0x1b, KeyAssignMany, 48;
    /// Revokes many keys: [`KeyRevokeMany`].
    KFI_IOC_KEY_REVOKE_MANY = 0x1c, KeyRevokeMany, 48;
    /// Reads and sets the enforcement of auth keys on this machine: [`AuthMode`].
    KFI_IOC_AUTH_MODE = 0x1d, AuthMode, 48;
    /// Installs a grant: [`GrantAdd`].
    KFI_IOC_GRANT_ADD = 0x1e, GrantAdd, 88;
    /// Changes a grant's limits or its end: [`GrantChange`].
    KFI_IOC_GRANT_CHANGE = 0x1f, GrantChange, 40;
    /// Revokes a grant: [`GrantRevoke`].
    KFI_IOC_GRANT_REVOKE = 0x20, GrantRevoke, 24;
    /// Lists grants: [`GrantList`].
    KFI_IOC_GRANT_LIST = 0x21, GrantList, 32;
    /// Makes the file the policy agent: [`AgentOpen`].
    KFI_IOC_AGENT_OPEN = 0x22, AgentOpen, 16;
    /// Reads one upcall: [`AgentNext`].
    KFI_IOC_AGENT_NEXT = 0x23, AgentNext, 152;
    /// Decides an upcall: [`AgentAnswer`].
    KFI_IOC_AGENT_ANSWER = 0x24, AgentAnswer, 64;
    /// Returns whether a domain supports an atomic: [`AtomicQuery`].
    KFI_IOC_ATOMIC_QUERY = 0x25, AtomicQuery, 40;
    /// Returns the rings of an endpoint: [`EpRings`].
    KFI_IOC_EP_RINGS = 0x26, EpRings, 40;
    /// Wakes the waiter at an end of rings: [`EpWake`].
    KFI_IOC_EP_WAKE = 0x27, EpWake, 16;
}

// ---- capabilities, modes, flags: libfabric's values (fabric.h) ----

/// Endpoint type: reliable, connected, message oriented (`FI_EP_MSG`).
pub const KFI_EP_MSG: u32 = 1;

/// Messages: send and receive (`FI_MSG`).
pub const KFI_MSG: u64 = 1 << 1;
/// RMA: one-sided operations (`FI_RMA`).
pub const KFI_RMA: u64 = 1 << 2;
/// Atomics (`FI_ATOMIC`). As access right: peers may use the memory for atomics; requires
/// [`KFI_REMOTE_READ`] and [`KFI_REMOTE_WRITE`] too.
pub const KFI_ATOMIC: u64 = 1 << 4;
/// Endpoints can initiate reads. As access right: the memory may be the destination of a read
/// (`FI_READ`).
pub const KFI_READ: u64 = 1 << 8;
/// Endpoints can initiate writes. As access right: the memory may be the source of a write
/// (`FI_WRITE`).
pub const KFI_WRITE: u64 = 1 << 9;
/// Endpoints can receive. As access right: the memory may receive a message. In binds: the receive
/// side (`FI_RECV`).
pub const KFI_RECV: u64 = 1 << 10;
/// Endpoints can send. As access right: the memory may be the source of a message. In binds: the
/// transmit side (`FI_SEND`, equal to `FI_TRANSMIT`).
pub const KFI_SEND: u64 = 1 << 11;
/// In binds: the transmit side (`FI_TRANSMIT`).
pub const KFI_TRANSMIT: u64 = KFI_SEND;
/// Endpoints can be the target of reads. As access right: peers may read the memory
/// (`FI_REMOTE_READ`).
pub const KFI_REMOTE_READ: u64 = 1 << 12;
/// Endpoints can be the target of writes. As access right: peers may write the memory
/// (`FI_REMOTE_WRITE`).
pub const KFI_REMOTE_WRITE: u64 = 1 << 13;
/// An operation or a completion has remote completion data (`FI_REMOTE_CQ_DATA`).
pub const KFI_REMOTE_CQ_DATA: u64 = 1 << 17;
/// An operation requests a completion entry although its bind is selective (`FI_COMPLETION`).
pub const KFI_COMPLETION: u64 = 1 << 24;
/// The payload is copied before the call returns. The operation has no completion entry unless
/// [`KFI_COMPLETION`] requests one (`FI_INJECT`).
pub const KFI_INJECT: u64 = 1 << 25;
/// The operation starts only after the earlier operations. kfabric's own value: `FI_FENCE` of
/// libfabric is `1 << 21`.
pub const KFI_FENCE: u64 = 1 << 22;
/// In a bind: completion entries only for operations with [`KFI_COMPLETION`]
/// (`FI_SELECTIVE_COMPLETION`).
pub const KFI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// Endpoints can reach peers on other nodes. kfabric's own value: `FI_REMOTE_COMM` of libfabric is
/// another bit.
pub const KFI_REMOTE_COMM: u64 = 1 << 51;
/// Endpoints can reach peers on this node. kfabric's own value: `FI_LOCAL_COMM` of libfabric is
/// another bit.
pub const KFI_LOCAL_COMM: u64 = 1 << 50;
/// kfabric's own: the provider supports dynamic keys (alloc, assign, revoke). No libfabric bit has
/// this value.
pub const KFI_DYNAMIC_KEYS: u64 = 1 << 40;
/// kfabric's own: endpoints may have endpoint-scoped keys ([`KFI_EP_OWN_KEYS`]).
pub const KFI_EP_KEYS: u64 = 1 << 41;
/// kfabric's own: the provider supports single-use keys ([`KFI_KEY_SINGLE_USE`]). Verbs does not:
/// no device revokes a registration after its use, or notifies the target of a use.
pub const KFI_SINGLE_USE_KEYS: u64 = 1 << 42;
/// Reads and writes accept unregistered local memory ([`KFI_UNREGISTERED`]).
pub const KFI_UNREGISTERED_RMA: u64 = 1 << 43;

/// Writes can complete only when their bytes are durable ([`KFI_COMMIT_COMPLETE`]), if the target's
/// memory is persistent (`FI_RMA_PMEM`).
pub const KFI_RMA_PMEM: u64 = 1 << 49;
/// A write completes only when its bytes are visible to the target's processors
/// (`FI_DELIVERY_COMPLETE`). `-EOPNOTSUPP`: any other operation, or a domain whose
/// [`DomainOpen::visible`] is [`KFI_REACH_NO`].
pub const KFI_DELIVERY_COMPLETE: u64 = 1 << 28;
/// A write completes only when its bytes are durable: they survive a power failure of the target at
/// that moment (`FI_COMMIT_COMPLETE`). So does the completion of a receive that the write's
/// completion data uses up. A write of 0 bytes always is durable. `-EOPNOTSUPP`: any other operation, or a domain whose
/// [`DomainOpen::durable`] is [`KFI_REACH_NO`]. If the target's memory is not
/// [`KFI_PERSISTENCE_ADR`], the operation completes with `EOPNOTSUPP`, and the connection stays. No
/// byte is written if the domain's `durable` is [`KFI_REACH_NATIVE`]; with [`KFI_REACH_ASSISTED`]
/// bytes may have changed. `EKEYREVOKED`: the target has revoked the key since the write.
pub const KFI_COMMIT_COMPLETE: u64 = 1 << 30;

/// A domain does not reach a level of completion.
pub const KFI_REACH_NO: u32 = 0;
/// A domain reaches a level of completion by itself.
pub const KFI_REACH_NATIVE: u32 = 1;
/// A domain reaches a level of completion with the help of the target's kernel.
pub const KFI_REACH_ASSISTED: u32 = 2;

/// A key is revoked in the kernel's memory; no device has it.
pub const KFI_REVOCATION_NATIVE: u32 = 0;
/// A key is revoked by deregistration of the device's region, and the next key needs another region.
pub const KFI_REVOCATION_DEREGISTER: u32 = 1;
/// A key is revoked by a local invalidation on the device, and the region gets the next key.
pub const KFI_REVOCATION_INVALIDATE: u32 = 2;

/// Memory that is not known to be persistent.
pub const KFI_PERSISTENCE_NONE: u32 = 0;
/// Persistent memory: a write-back of the processor's caches makes stores durable. Memory with
/// persistent caches (eADR) is reported so, too: the kernel tells only for block devices, which programs
/// do not register, whether caches are persistent.
pub const KFI_PERSISTENCE_ADR: u32 = 1;
/// Memory in which only a flush by the device's driver makes stores durable, e.g. virtio-pmem.
pub const KFI_PERSISTENCE_DEVICE: u32 = 2;

/// Registration mode (`FI_MR_*`, fi_mr(3)): local buffers need a region.
pub const KFI_MR_LOCAL: u64 = 1 << 2;
/// Registration mode: remote addresses are virtual addresses of the exporter.
pub const KFI_MR_VIRT_ADDR: u64 = 1 << 4;
/// Registration mode: memory must be backed by pages at registration.
pub const KFI_MR_ALLOCATED: u64 = 1 << 5;
/// Registration mode: the provider chooses key values.
pub const KFI_MR_PROV_KEY: u64 = 1 << 6;

/// Key value of a region without a key (`FI_KEY_NOTAVAIL`).
pub const KFI_KEY_NOTAVAIL: u64 = u64::MAX;

/// Address format: any socket address (`FI_SOCKADDR`).
pub const KFI_SOCKADDR: u32 = 1;
/// Address format: IPv4 (`FI_SOCKADDR_IN`).
pub const KFI_SOCKADDR_IN: u32 = 2;
/// Address format: IPv6 (`FI_SOCKADDR_IN6`).
pub const KFI_SOCKADDR_IN6: u32 = 3;

/// Protocol: RC queue pairs, connected by rdma_cm (`FI_PROTO_RDMA_CM_IB_RC`).
pub const KFI_PROTO_RDMA_CM_IB_RC: u32 = 1;
/// Protocol: iWARP queue pairs, connected by rdma_cm (`FI_PROTO_IWARP`).
pub const KFI_PROTO_IWARP: u32 = 2;
/// Protocol: copies inside one host (`FI_PROTO_SHM`).
pub const KFI_PROTO_SHM: u32 = 14;

/// Completion format: context only (`FI_CQ_FORMAT_CONTEXT`).
pub const KFI_CQ_FORMAT_CONTEXT: u32 = 1;
/// Completion format: context, flags, length (`FI_CQ_FORMAT_MSG`).
pub const KFI_CQ_FORMAT_MSG: u32 = 2;
/// Completion format: context, flags, length, buffer, completion data (`FI_CQ_FORMAT_DATA`).
pub const KFI_CQ_FORMAT_DATA: u32 = 3;

/// Event: a connection request of a peer (`FI_CONNREQ`).
pub const KFI_CONNREQ: u32 = 1;
/// Event: an endpoint is connected (`FI_CONNECTED`).
pub const KFI_CONNECTED: u32 = 2;
/// Event: a connection ended (`FI_SHUTDOWN`). [`EqRead::err`] is `ENODEV` if the device is removed.
pub const KFI_SHUTDOWN: u32 = 3;
/// Event: a connect failed or was refused; the reason is in [`EqRead::err`], with the refuser's
/// data. Of a passive endpoint: it no longer listens, because the device of its address is removed
/// (`ENODEV`). libfabric reports this event by `fi_eq_readerr`; the value is kfabric's own.
pub const KFI_CONN_ERROR: u32 = 0x100;

// ---- limits of the interface itself; a provider's own may be lower ----

/// Size of a name in bytes, including its NUL.
pub const KFI_NAME_MAX: usize = 64;
/// Maximum number of local buffers of one operation.
pub const KFI_IOV_MAX: usize = 4;
/// Maximum number of operations in one [`Submit`].
pub const KFI_SUBMIT_MAX: u32 = 1024;
/// Maximum payload of one injected operation in bytes; see [`InfoEntry::inject_size`].
pub const KFI_INJECT_MAX: usize = 64;
/// Maximum application data of a connection request or answer in bytes.
pub const KFI_CM_DATA_MAX: usize = 192;
/// Maximum number of key slots of one [`KeyAlloc`], and of entries of one [`KeyAssignMany`] or
/// [`KeyRevokeMany`].
pub const KFI_KEY_ALLOC_MAX: u32 = 4096;
/// Maximum number of entries of a completion queue.
pub const KFI_CQ_SIZE_MAX: u32 = 1 << 18;
/// Maximum number of waiting events of an event queue.
pub const KFI_EQ_SIZE_MAX: u32 = 1 << 16;

/// A socket address: `sockaddr_in` or `sockaddr_in6` in the first `len` bytes (network order as in
/// `<netinet/in.h>`), then zeroes. A `len` of 0 means no address.
///
/// Or a service name, for providers that support such names (kshm). Then `len` is 28, the family is
/// `AF_UNIX`, and up to 26 bytes follow, of which the first is not zero; unused bytes are zero. A
/// service name belongs to the host, regardless of namespaces.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SockAddr {
    /// Number of bytes of `data` in use: 0, 16 or 28.
    pub len: u32,
    /// The address in the layout of the C structure.
    pub data: [u8; 28],
}

/// Attributes that a provider offers, or hints of a caller.
///
/// In hints zero means "any", except for `mode` and `mr_mode`: there zero means that the caller
/// supports none. Each field has the meaning of its namesake in `fi_getinfo(3)`, `fi_domain(3)` or
/// `fi_endpoint(3)`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InfoEntry {
    /// Capabilities: `KFI_MSG`, `KFI_RMA`, …
    pub caps: u64,
    /// Modes: required by the provider; in hints: supported by the caller.
    pub mode: u64,
    /// Registration modes: required by the provider; in hints: supported by the caller.
    pub mr_mode: u64,
    /// Maximum length of a message or one-sided operation in bytes.
    pub max_msg_size: u64,
    /// Maximum length of an injected operation in bytes.
    pub inject_size: u64,
    /// Size of the transmit queue in operations.
    pub tx_size: u32,
    /// Size of the receive queue in operations.
    pub rx_size: u32,
    /// Maximum number of local buffers of one operation.
    pub iov_limit: u32,
    /// Maximum number of remote ranges of one one-sided operation.
    pub rma_iov_limit: u32,
    /// Size of remote completion data in bytes.
    pub cq_data_size: u32,
    /// Size of a key value in bytes.
    pub mr_key_size: u32,
    /// Maximum application data of a connection request in bytes.
    pub cm_data_size: u32,
    /// Endpoint type, `KFI_EP_MSG`.
    pub ep_type: u32,
    /// Protocol, `KFI_PROTO_*`.
    pub protocol: u32,
    /// Address format, `KFI_SOCKADDR*`.
    pub addr_format: u32,
    /// Version of the provider, major << 16 | minor.
    pub prov_version: u32,
    /// API version, major << 16 | minor; in hints: the requested one (0: any).
    pub api_version: u32,
    /// Version of this interface, [`KFI_ABI_VERSION`].
    pub abi: u32,
    /// Rank: a larger one is preferred. Set by providers, ignored in hints.
    pub rank: u32,
    /// Source address, if any.
    pub src_addr: SockAddr,
    /// Destination address, if any.
    pub dest_addr: SockAddr,
    /// Provider name, NUL padded.
    pub prov_name: [u8; KFI_NAME_MAX],
    /// Fabric name, NUL padded.
    pub fabric_name: [u8; KFI_NAME_MAX],
    /// Domain name, NUL padded.
    pub domain_name: [u8; KFI_NAME_MAX],
    /// How writes become visible ([`DomainOpen::visible`]). Set by providers, ignored in hints.
    pub visible: u32,
    /// How writes become durable ([`DomainOpen::durable`]). Set by providers, ignored in hints,
    /// which ask by [`KFI_RMA_PMEM`].
    pub durable: u32,
    /// How a key is revoked, `KFI_REVOCATION_*`. Set by providers, ignored in hints.
    pub revocation: u32,
    /// Maximum number of pages of a key by fast registration; `u32::MAX`: no limit. A key for more
    /// pages of a program's memory needs a full registration, which takes longer; devices without full
    /// registrations refuse it. A key of the kernel's memory has at most 256 of these pages. Set by
    /// providers, ignored in hints.
    pub max_key_pages: u32,
}
const _: () = assert!(core::mem::size_of::<InfoEntry>() == 40 + 14 * 4 + 64 + 3 * 64 + 16);

impl Default for InfoEntry {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// `KFI_IOC_GETINFO`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetInfo {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to one [`InfoEntry`] of hints, or 0 for none.
    pub hints: u64,
    /// Pointer to an array of [`InfoEntry`].
    pub entries: u64,
    /// In: entries that the array can hold. Out: entries that matched, possibly more.
    pub count: u32,
    /// In: the caller's size of [`InfoEntry`].
    pub entry_size: u32,
    /// Zero.
    pub reserved: u64,
}

/// `KFI_IOC_FABRIC_OPEN`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FabricOpen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Provider name, NUL padded; `-ENOENT` if no provider has that name.
    pub prov_name: [u8; 32],
    /// Fabric name, NUL padded; empty: the provider's first fabric.
    pub fabric_name: [u8; KFI_NAME_MAX],
    /// Out: handle.
    pub handle: u64,
}

/// `KFI_IOC_DOMAIN_OPEN`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DomainOpen {
    /// Size of this structure.
    pub size: u32,
    /// [`KFI_DOMAIN_STRICT_KEYS`] or zero.
    pub flags: u32,
    /// The fabric.
    pub fabric: u64,
    /// Domain name, NUL padded, as returned in an info entry.
    pub name: [u8; KFI_NAME_MAX],
    /// Pointer to the auth key's bytes; 0: the domain has no default auth key.
    pub auth_key: u64,
    /// Size of the auth key in bytes: 0, or 1 to `KFI_AUTH_KEY_MAX`. An object opened on the domain
    /// without its own auth key has this one. The domain itself needs no grant; see [`AuthMode`].
    pub auth_key_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: handle.
    pub handle: u64,
    /// Out: capabilities of the domain.
    pub caps: u64,
    /// Out: registration modes required.
    pub mr_mode: u64,
    /// Out: maximum length of an operation in bytes.
    pub max_msg_size: u64,
    /// Out: maximum length of an injected operation in bytes.
    pub inject_size: u32,
    /// Out: maximum size of a transmit queue in operations.
    pub max_tx_size: u32,
    /// Out: maximum size of a receive queue in operations.
    pub max_rx_size: u32,
    /// Out: maximum number of local buffers of one operation.
    pub iov_limit: u32,
    /// Out: maximum application data of a connection request, in bytes. The value is for an
    /// endpoint with the domain's auth key, or without one if the domain has none.
    pub cm_data_size: u32,
    /// Zero.
    pub reserved2: u32,
    /// Out: approximate number of key slots that the device can hold.
    pub max_keys: u64,
    /// Out: `KFI_REACH_*`, for [`KFI_DELIVERY_COMPLETE`].
    pub visible: u32,
    /// Out: `KFI_REACH_*`, for [`KFI_COMMIT_COMPLETE`].
    pub durable: u32,
}

/// Flag of [`DomainOpen`]: the rule of [`KFI_EP_STRICT_KEYS`] for all protection groups of the domain.
///
/// The domain's own regions are a group, and so are the objects of each auth key, as long as there are
/// some, and each endpoint with [`KFI_EP_OWN_KEYS`]. A group gets no value that any key of the host has
/// had since the group was created.
pub const KFI_DOMAIN_STRICT_KEYS: u32 = 1;

/// `KFI_IOC_EQ_OPEN`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EqOpen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The fabric.
    pub fabric: u64,
    /// Maximum number of waiting events; 0: 64. Events of endpoints have additional places.
    pub depth: u32,
    /// Out: a descriptor that polls readable while an event waits. Its close does not close the
    /// queue.
    pub fd: i32,
    /// Out: handle.
    pub handle: u64,
}

/// `KFI_IOC_CQ_OPEN`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqOpen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The domain.
    pub domain: u64,
    /// Requested number of entries, rounded up to a power of two; 0: 1024.
    pub depth: u32,
    /// `KFI_CQ_FORMAT_*`; 0: context only.
    pub format: u32,
    /// Out: a descriptor for mmap of the ring (offset 0) and for poll, readable while an entry
    /// waits. Its close does not close the queue.
    pub fd: i32,
    /// Out: number of entries of the ring, a power of two.
    pub entries: u32,
    /// Out: size of the mapping in bytes: a [`CqRing`] page, then the entries.
    pub map_size: u64,
    /// Out: handle.
    pub handle: u64,
    /// Zero.
    pub reserved: u64,
}

/// `KFI_IOC_CNTR_OPEN`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CntrOpen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The domain.
    pub domain: u64,
    /// Out: handle.
    pub handle: u64,
    /// Zero.
    pub reserved: u64,
}

/// `KFI_IOC_PEP_OPEN`.
///
/// | errno | |
/// |---|---|
/// | `-EINVAL` | the address is none, the event queue is of another fabric, or an auth key is there twice |
/// | `-EACCES` | the port is below `net.ipv4.ip_unprivileged_port_start` (1024 at first), and the caller lacks `CAP_NET_BIND_SERVICE` in the user namespace of the file's network namespace |
/// | `-EADDRINUSE` | another listener has the port |
/// | `-EADDRNOTAVAIL` | no local interface has the address |
/// | `-ENODEV` | no RDMA device has the address |
/// | `-EOPNOTSUPP` | auth keys, and the provider cannot prove them |
///
/// What grants add is in [`AuthMode`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PepOpen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The fabric.
    pub fabric: u64,
    /// The event queue for `KFI_CONNREQ` events.
    pub eq: u64,
    /// Address to listen at. With port 0 a port is chosen, which [`GetName`] returns
    /// from the open on.
    pub addr: SockAddr,
    /// A value of the caller, returned in events.
    pub context: u64,
    /// Out: handle.
    pub handle: u64,
    /// Pointer to an array of [`AuthKeyRef`]; 0: peers must have no auth key. A connecting peer
    /// must prove that it has one of these auth keys. Only then its connection request becomes an
    /// event ([`EqRead::auth_index`]).
    pub auth_keys: u64,
    /// Number of auth keys, 0 to `KFI_PEP_AUTH_KEYS_MAX`; a duplicate is `-EINVAL`. Each counts as
    /// an endpoint.
    pub auth_key_count: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_EP_OPEN`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpOpen {
    /// Size of this structure.
    pub size: u32,
    /// [`KFI_EP_OWN_KEYS`], [`KFI_EP_RINGS`], [`KFI_EP_STRICT_KEYS`] or zero.
    pub flags: u32,
    /// The domain.
    pub domain: u64,
    /// The connection request of a `KFI_CONNREQ` event, for an accepting endpoint; else 0. The
    /// request is used up if the call succeeds.
    pub connreq: u64,
    /// Address to connect from; empty: chosen by the route.
    pub src_addr: SockAddr,
    /// A value of the caller, returned in events.
    pub context: u64,
    /// In: requested size of the transmit queue; 0: 128. Out: the actual size, not smaller.
    pub tx_size: u32,
    /// In: requested size of the receive queue; 0: 128. Out: the actual size, not smaller.
    pub rx_size: u32,
    /// In: requested maximum of local buffers per operation; 0: 1. Out: the actual maximum.
    pub iov_limit: u32,
    /// With [`KFI_EP_RINGS`]: version of the program's protocol in the rings. The kernel compares it
    /// with the peer's. Without the flag zero.
    pub rings_version: u32,
    /// Pointer to the endpoint's auth key; 0: that of the domain. With a connection request it must
    /// be the auth key that the peer has proven (`-EKEYREJECTED`).
    pub auth_key: u64,
    /// Size of the auth key in bytes. An endpoint has one auth key. A program with several auth
    /// keys opens one endpoint for each, also on one domain.
    pub auth_key_size: u32,
    /// Zero.
    pub reserved2: u32,
    /// Out: handle.
    pub handle: u64,
    /// Out: maximum application data of a connection request of this endpoint in bytes. An endpoint
    /// with an auth key has less.
    pub cm_data_size: u32,
    /// Zero.
    pub reserved3: u32,
}

/// Flag of [`EpOpen`]: endpoint-scoped keys (`FI_MR_ENDPOINT`).
///
/// The peer of this endpoint can access only regions and keys that are bound to the endpoint
/// ([`RegionReg::ep`], [`KeyAlloc::ep`]). No other endpoint permits access to these. A close of the
/// endpoint first revokes the keys that are bound to it.
///
/// The endpoint's own operations may use regions that are bound to it. Of other regions they may
/// use those that consist of few pieces (`-EINVAL`: too many). `-EOPNOTSUPP`: the provider lacks
/// the capability [`KFI_EP_KEYS`].
pub const KFI_EP_OWN_KEYS: u32 = 1;

/// Flag of [`EpOpen`]: messages may use rings that the endpoint shares with its peer ([`EpRings`]).
///
/// Requirements: the peer's endpoint has the flag too, with the same [`EpOpen::rings_version`], the
/// provider supports rings (kshm), neither endpoint has a counter, and both programs may pin the
/// memory. Otherwise messages are sent as without the flag.
pub const KFI_EP_RINGS: u32 = 2;

/// Flag of [`EpOpen`]: no value of the endpoint's keys is issued twice while the endpoint exists.
///
/// If the device offers no other value, the allocation or assignment of a key fails with
/// `-ENOSPC`. Values that other endpoints of the host have had since this one was opened count, too.
/// A program that connects anew can have values again. Without this flag a value is
/// issued again after all others that the device offers, and after a time of rest. Needs
/// [`KFI_EP_OWN_KEYS`] (else `-EINVAL`).
pub const KFI_EP_STRICT_KEYS: u32 = 4;

/// `KFI_IOC_EP_RINGS`: returns whether the connection has rings, and their descriptor.
///
/// The state is final once the connection is made or has failed. At that moment the endpoint's
/// completion queues are woken ([`CqRing::alarm`]).
///
/// Rings are for messages alone, and then for all messages. The two programs define the contents of
/// the rings and the order of receives; `kfabric::rings` documents those of this project's library.
/// The kernel never reads the contents. One-sided operations are posted as usual. Operations that
/// consume a receive of the peer must not be posted, because the peer posts no receives.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpRings {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
    /// Out: state, `KFI_RINGS_*`.
    pub state: u32,
    /// Out: with [`KFI_RINGS_SHARED`] a new descriptor, which the program closes; otherwise -1.
    /// The descriptor's memory has two parts, and each can be mapped once. The first page
    /// (`PROT_READ`) is a [`RingsStatus`]. At the offset of one page begin the two rings, of
    /// [`KFI_RING_SIZE`] bytes each.
    pub fd: i32,
    /// Out: number of the ring that this end writes to, 0 or 1. The peer writes to the other.
    pub side: u32,
    /// Out: size of a page in bytes.
    pub page_size: u32,
    /// Out: size of both rings in bytes.
    pub map_size: u64,
}

/// State of [`EpRings`]: not connected yet.
pub const KFI_RINGS_UNKNOWN: u32 = 0;
/// State of [`EpRings`]: the connection has no rings.
pub const KFI_RINGS_NONE: u32 = 1;
/// State of [`EpRings`]: the connection has rings.
pub const KFI_RINGS_SHARED: u32 = 2;
/// Size of a ring in bytes, including its words ([`RingWords`]).
pub const KFI_RING_SIZE: usize = 68 << 10;
/// Offset of the data of a ring; the data extends to the end of the ring.
pub const KFI_RING_DATA: usize = 4096;

/// Status page of rings, written only by the kernel.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingsStatus {
    /// 1: an end has ended the connection or has died, or the connection has failed. Messages put
    /// into a ring before can still be read.
    pub ended: u32,
    /// Zero.
    pub reserved: u32,
}

/// Words at the start of a ring, used by the two ends. The kernel does not read them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingWords {
    /// Count of bytes put in; wraps. Written by the sender.
    pub tail: u32,
    /// Zero.
    pub pad: [u32; 31],
    /// Count of bytes taken out; wraps. Written by the receiver.
    pub head: u32,
    /// Written by the receiver before it ends the connection: the reason, as an errno.
    pub failed: u32,
    /// Zero.
    pub pad2: [u32; 30],
    /// Set to 1 by the receiver before it sleeps; reset by the sender that wakes it.
    pub sleeps: u32,
    /// Zero.
    pub pad3: [u32; 31],
    /// Set to 1 by the sender before it sleeps until the ring has space; reset by the receiver that
    /// wakes it.
    pub waits: u32,
    /// Zero.
    pub pad4: [u32; 31],
}
const _: () = assert!(core::mem::size_of::<RingWords>() == 512);

/// `KFI_IOC_EP_WAKE`: wakes the waiters of the peer's completion queues. `-ENOTCONN`: the endpoint
/// has no rings.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpWake {
    /// Size of this structure.
    pub size: u32,
    /// [`KFI_WAKE_SELF`] or zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
}

/// Flag of [`EpWake`]: wakes the waiters of this end's queues instead.
pub const KFI_WAKE_SELF: u32 = 1;

/// `KFI_IOC_BIND`. Only before enable; a second bind of the same kind is `-EINVAL`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Bind {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
    /// An event queue, completion queue or counter.
    pub object: u64,
    /// For a completion queue: `KFI_TRANSMIT`, `KFI_RECV`, both, and `KFI_SELECTIVE_COMPLETION`.
    /// For a counter: any of `KFI_SEND`, `KFI_RECV`, `KFI_READ`, `KFI_WRITE`.
    pub bind_flags: u64,
}

/// A call with an object as its only argument.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjectCall {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The object.
    pub handle: u64,
}

/// `KFI_IOC_KEY_REVOKE`; as [`ObjectCall`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjectCall2 {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The key slot.
    pub handle: u64,
}

/// `KFI_IOC_LISTEN`. `-EINVAL`: it listens already. `-EADDRINUSE`: another listener has the port.
/// `-EKEYREVOKED`, `-EKEYEXPIRED`: a grant that the passive endpoint was opened under is over.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Listen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The passive endpoint.
    pub pep: u64,
    /// Maximum number of waiting connection requests; 0: 64.
    pub backlog: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_CONNECT`: the outcome is an event. `-EINVAL`: the endpoint is not enabled, or was connected
/// before; the address is none; or more application data than `cm_data_size`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Connect {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint, enabled.
    pub ep: u64,
    /// Address of the peer.
    pub addr: SockAddr,
    /// Pointer to application data for the peer's `KFI_CONNREQ`.
    pub param: u64,
    /// Size of the application data in bytes, up to `cm_data_size`.
    pub param_len: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_ACCEPT`: the outcome is an event. `-EINVAL`: the endpoint is not enabled, was opened without
/// a request, or was accepted before; or more application data than `cm_data_size`. `-ECONNABORTED`:
/// the peer has given up, or the device has failed the request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Accept {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint, opened with a request and enabled.
    pub ep: u64,
    /// Pointer to application data for the peer's `KFI_CONNECTED`.
    pub param: u64,
    /// Size of the application data in bytes.
    pub param_len: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_REJECT`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reject {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The request of a `KFI_CONNREQ` event.
    pub connreq: u64,
    /// Pointer to application data for the peer's `KFI_CONN_ERROR`.
    pub param: u64,
    /// Size of the application data in bytes.
    pub param_len: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_SHUTDOWN`: the event comes at both ends. `-ENOTCONN`: there is no connection.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Shutdown {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
}

/// `KFI_IOC_GETNAME`. `-ENOTCONN`: a passive endpoint has no peer.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetName {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// An endpoint or passive endpoint.
    pub handle: u64,
    /// 0: the endpoint's own address; 1: that of its peer.
    pub peer: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: the address.
    pub addr: SockAddr,
}

/// `KFI_IOC_EQ_READ`. `-EAGAIN`: no event waits.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EqRead {
    /// Size of this structure.
    pub size: u32,
    /// 1 ([`KFI_EQ_PEEK`]): leave the event in the queue. Else zero.
    pub flags: u32,
    /// The event queue.
    pub eq: u64,
    /// Pointer to a buffer for application data.
    pub data: u64,
    /// In: size of the buffer in bytes; if too small, `-EMSGSIZE`, and the event stays. Out: bytes
    /// stored.
    pub data_len: u32,
    /// Out: `KFI_CONNREQ`, `KFI_CONNECTED`, …
    pub event: u32,
    /// Out: handle of the object of the event; for a connection request, the passive endpoint.
    pub object: u64,
    /// Out: that object's context.
    pub context: u64,
    /// Out, for `KFI_CONNREQ`: the connection request, with which to open an endpoint, or to
    /// reject. A [`Close`] of it refuses it too.
    pub connreq: u64,
    /// Out: positive errno for `KFI_CONN_ERROR`, and for a `KFI_SHUTDOWN` by failure; else 0.
    pub err: u32,
    /// Out: error code of the provider (verbs: the reject reason or CM status).
    pub prov_errno: u32,
    /// Pointer to one [`InfoEntry`] of its first version's size, or 0. `domain_name` is the last field of
    /// that version; `visible` and later fields are not written. A `KFI_CONNREQ` stores there the
    /// offer of the domain to accept on, with the local address and the peer's.
    pub info: u64,
    /// Out, for `KFI_CONNREQ`: the auth key of the passive endpoint that the peer has proven,
    /// counted from 1. 0: the passive endpoint has no auth keys.
    pub auth_index: u32,
    /// Zero.
    pub reserved: u32,
}
/// Flag of [`EqRead`]: leave the event in the queue.
pub const KFI_EQ_PEEK: u32 = 1;

/// `KFI_IOC_CNTR_CTL`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CntrCtl {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The counter.
    pub cntr: u64,
    /// `KFI_CNTR_*`.
    pub op: u32,
    /// Zero.
    pub reserved: u32,
    /// In: the operand. Out: number of operations that succeeded.
    pub value: u64,
    /// Out: number of operations that failed.
    pub errors: u64,
}
/// Reads a counter.
pub const KFI_CNTR_READ: u32 = 0;
/// Adds to a counter.
pub const KFI_CNTR_ADD: u32 = 1;
/// Sets a counter.
pub const KFI_CNTR_SET: u32 = 2;
/// Adds to a counter's errors.
pub const KFI_CNTR_ADDERR: u32 = 3;
/// Sets a counter's errors.
pub const KFI_CNTR_SETERR: u32 = 4;

/// For [`CntrWait`]: wait until a value of the counter differs from `threshold` or `errors`, instead
/// of until the counter reaches `threshold`.
pub const KFI_CNTR_WAIT_CHANGE: u32 = 1 << 0;

/// `KFI_IOC_CNTR_WAIT`. Interruptible; `-ETIMEDOUT`. Without [`KFI_CNTR_WAIT_CHANGE`]: `-EIO` if the
/// error count changed.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CntrWait {
    /// Size of this structure.
    pub size: u32,
    /// Zero, or [`KFI_CNTR_WAIT_CHANGE`].
    pub flags: u32,
    /// The counter.
    pub cntr: u64,
    /// Value to reach; with [`KFI_CNTR_WAIT_CHANGE`] the value to differ from.
    pub threshold: u64,
    /// Deadline: absolute nanoseconds of `CLOCK_MONOTONIC` in the caller's time namespace;
    /// `u64::MAX`: none.
    pub deadline: u64,
    /// Zero.
    pub reserved: u64,
    /// With [`KFI_CNTR_WAIT_CHANGE`] the error count to differ from; otherwise zero.
    pub errors: u64,
}

/// `KFI_IOC_REGION_REG`.
///
/// The memory is pinned and charged to the caller's `RLIMIT_MEMLOCK` (`-ENOMEM` beyond the limit).
/// The region consists of the pages pinned now, whatever is mapped at its addresses later.
///
/// A program must not remap memory under a region. If a device needs its own registration (many
/// scattered pages), this registration uses the pages mapped at that time. The same holds for each
/// key that needs one.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionReg {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_REGION_*` or zero.
    pub flags: u32,
    /// The domain.
    pub domain: u64,
    /// First byte of the memory; any alignment.
    pub addr: u64,
    /// Length in bytes; zero is `-EINVAL`.
    pub len: u64,
    /// Permitted uses of the memory: `KFI_SEND`, `KFI_RECV`, `KFI_READ`, `KFI_WRITE`,
    /// `KFI_REMOTE_READ`, `KFI_REMOTE_WRITE`, and with both of these `KFI_ATOMIC`. `RECV`, `READ`
    /// and `REMOTE_WRITE` change the memory and need a writable mapping. `-EOPNOTSUPP`:
    /// `KFI_ATOMIC` on a domain without atomics.
    pub access: u64,
    /// Out: handle.
    pub handle: u64,
    /// Out: the region's own key, if `access` has a remote right and [`KFI_REGION_DYNAMIC_KEYS`] is
    /// not set; else `KFI_KEY_NOTAVAIL`.
    pub key: u64,
    /// Out: remote address of the region's first byte, for use with that key.
    pub remote_addr: u64,
    /// Out: number of pages charged.
    pub pages: u64,
    /// An endpoint of the domain with endpoint-scoped keys ([`KFI_EP_OWN_KEYS`]), to which the
    /// region and its key or key slots are bound; 0: none. Any other endpoint is `-EINVAL`.
    pub ep: u64,
    /// Pointer to the region's auth key; 0: that of the endpoint it is bound to, else that of the
    /// domain. An auth key that differs from that endpoint's is `-EINVAL`. Endpoints with other
    /// auth keys may use the region in their own operations if it consists of few pieces
    /// (`-EINVAL`: too many).
    pub auth_key: u64,
    /// Size of the auth key in bytes.
    pub auth_key_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: kind of the memory, `KFI_PERSISTENCE_*`, as found from its pages. Memory of several
    /// kinds has the weakest one.
    pub persistence: u32,
    /// Zero.
    pub reserved2: u32,
}
/// Flag of [`RegionReg`]: the memory must be persistent. `-EINVAL`: the memory is not known to be
/// persistent. `-EOPNOTSUPP`: the domain cannot make writes to the memory durable
/// ([`DomainOpen::durable`], [`KFI_PERSISTENCE_DEVICE`]). A region without this flag may have
/// persistent memory as well, and durable writes to its keys work.
///
/// Memory of a file on a DAX file system cannot be registered, with or without the flag
/// (`-EOPNOTSUPP`): the file system may move the file's blocks. A mapping of a device-dax device
/// (`/dev/daxX.Y`) can.
pub const KFI_REGION_PMEM: u32 = 2;
/// Flag of [`RegionReg`]: memory of another device. Always `-EOPNOTSUPP`.
pub const KFI_REGION_DEVICE: u32 = 4;
/// Flag of [`RegionReg`]: no key at registration; key slots are reserved and assigned later.
pub const KFI_REGION_DYNAMIC_KEYS: u32 = 1;

/// `KFI_IOC_KEY_ALLOC`: reserves all resources that an assignment needs, for all slots or none.
/// `-ENOSPC`: the device has no key slot left, or no key value that has rested.
/// `-EDQUOT`: more slots than the user's share of the device, or than the grant allows.
///
/// A revocation uses up the resources of its key and reserves new ones before it returns. If that
/// fails, the key is revoked all the same. A worker tries again a little later, and so does an
/// assignment before that. Such an assignment may fail for lack of resources (`-ENOMEM`,
/// `-ENOSPC`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyAlloc {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// A region with dynamic keys.
    pub region: u64,
    /// Number of slots, 1 to `KFI_KEY_ALLOC_MAX`.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// Pointer to `count` u64s for the handles of the slots.
    pub handles: u64,
    /// An endpoint of the region's domain with endpoint-scoped keys ([`KFI_EP_OWN_KEYS`]), to which
    /// the slots are bound; 0: the region's endpoint, or none. The keys are valid on that endpoint
    /// alone. Its close revokes them, and the slots accept no assignment any more (`-ENOENT`). Any
    /// other endpoint is `-EINVAL`; on a bound region, so is any endpoint but the region's.
    pub ep: u64,
    /// Pointer to the auth key under which the slots' keys are valid; 0: that of the endpoint they
    /// are bound to, else that of the region. An auth key that differs from that endpoint's is
    /// `-EINVAL`.
    pub auth_key: u64,
    /// Size of the auth key in bytes.
    pub auth_key_size: u32,
    /// Zero.
    pub reserved2: u32,
}

/// `KFI_IOC_KEY_ASSIGN`. The key is valid under the slot's auth key.
///
/// - `-EINVAL`: the range is empty or not inside the region, or `access` is empty.
/// - `-EACCES`: a right that the region was not registered with, or memory of another process.
/// - `-EBUSY`: the slot has a key.
/// - `-EMSGSIZE`: more pages than one key of the device can cover.
/// - `-ENOENT`: no such slot, or it was closed meanwhile.
/// - `-ENODEV`: the device is removed. `-EIO`, `-ETIMEDOUT`: the device failed.
/// - `-EKEYREVOKED`, `-EKEYEXPIRED`: the grant of the slot's auth key is revoked or expired.
/// - `-ENOMEM`, `-ENOSPC`: only for a range that needs a full registration, or as described at
///   [`KeyAlloc`].
///
/// With `KFI_KEY_ORDERED` the call works as a [`KeyAssignMany`] with one entry, at less cost.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyAssign {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_KEY_ORDERED`, `KFI_KEY_SINGLE_USE` or zero.
    pub flags: u32,
    /// The slot.
    pub slot: u64,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Length in bytes, at least 1; offset + length within the region (`-EINVAL`).
    pub length: u64,
    /// `KFI_REMOTE_READ`, `KFI_REMOTE_WRITE` or both, and with both `KFI_ATOMIC`; within the region's
    /// access (`-EACCES`).
    pub access: u64,
    /// Out: the key value for peers.
    pub key: u64,
    /// Out: remote address of the first byte.
    pub remote_addr: u64,
    /// As [`KeyAssignMany::cq`]; the entry's `data` and `len` are zero.
    pub cq: u64,
    /// As [`KeyAssignMany::context`].
    pub context: u64,
}

/// `KFI_IOC_KEY_ASSIGN_MANY`: assigns slots of any regions, in order, and stops at the first
/// refused entry. At the return the keys are valid everywhere. The call costs far less than single
/// ones, because it waits for the device once per 64 keys.
///
/// If the first entry is refused, the call fails with its error. Otherwise the call succeeds: the
/// first `done` entries have keys, no other entry has one, and `err` is the error of the next
/// entry.
///
/// The call waits for a slot that another call is just assigning or revoking. If the device refuses
/// a whole chain of up to 64 keys, no slot of that chain has a key. Each used field of an entry is
/// fetched once. `EFAULT`: an entry cannot be read, or its key value cannot be stored; that key is
/// revoked again. The call allocates a list of the entries. Without memory for it the call assigns
/// at least one entry and stops with `ENOMEM`; a further call can go on.
///
/// With `KFI_KEY_ORDERED` the call does not wait for the device: key values are returned at once.
/// Each key is valid before any operation takes effect that is posted on the domain afterwards. So
/// a message with the key may follow immediately; posted operations are deferred until then. A key
/// whose value cannot be predicted, e.g. for a range beyond the device's fast registration, is
/// waited for all the same. The private data of `KFI_IOC_CONNECT` and `KFI_IOC_ACCEPT` is not
/// deferred.
///
/// If the device fails after the return, `cq` reports that. `cq` is a completion queue of the
/// slots' domain. It gets one error entry for up to 64 keys that were requested together:
///
/// - `context` is that of the call.
/// - `data` is the index of their first key in `entries`.
/// - `len` is the number of keys from there on that were assigned.
/// - `err` is the error of the next key: `EIO`, `ETIMEDOUT`, `ENODEV`, `ENOMEM` or an error of the
///   device.
///
/// The slots of that key and the following ones are as before the call, and their key values never
/// worked. The call reserves this entry. It stops with `EAGAIN` if the queue is full or too many
/// keys are still outstanding. It stops with `EOPNOTSUPP` if the provider has no ordered keys.
/// Until the result is known, the queue cannot be closed (`EBUSY`), and a revocation waits.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyAssignMany {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_KEY_ORDERED`, `KFI_KEY_SINGLE_USE` or zero.
    pub flags: u32,
    /// Pointer to an array of [`KeyEntry`].
    pub entries: u64,
    /// Number of entries, 1 to `KFI_KEY_ALLOC_MAX`.
    pub count: u32,
    /// `size_of::<KeyEntry>()`; another value is `-EINVAL`.
    pub entry_size: u32,
    /// Out: number of entries that have keys.
    pub done: u32,
    /// Out: positive errno of the first refused entry, or 0: an error of [`KeyAssign`], `EFAULT`,
    /// `ENOMEM`, or `EINTR` if the process is being killed.
    pub err: u32,
    /// With `KFI_KEY_ORDERED`: a completion queue for failures, or zero. Else zero.
    pub cq: u64,
    /// With a `cq`: the `context` of its error entries. Else zero.
    pub context: u64,
}
/// Flag of [`KeyAssign`] and [`KeyAssignMany`]: single-use keys. A key is revoked by the first
/// operation that uses it; of several concurrent operations one succeeds. The slot can then be
/// assigned again. `-EOPNOTSUPP`: the provider lacks the capability [`KFI_SINGLE_USE_KEYS`].
pub const KFI_KEY_SINGLE_USE: u32 = 2;
/// Flag of [`KeyAssign`] and [`KeyAssignMany`]: key values are returned at once, and the keys are
/// valid before operations that are posted afterwards.
pub const KFI_KEY_ORDERED: u32 = 1;

/// One assignment of a [`KeyAssignMany`]; the fields are those of [`KeyAssign`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyEntry {
    /// The slot.
    pub slot: u64,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub length: u64,
    /// `KFI_REMOTE_READ`, `KFI_REMOTE_WRITE` or both, and with both `KFI_ATOMIC`.
    pub access: u64,
    /// Out: the key value for peers.
    pub key: u64,
    /// Out: remote address of the first byte.
    pub remote_addr: u64,
}
const _: () = assert!(core::mem::size_of::<KeyEntry>() == 48);

/// `KFI_IOC_KEY_REVOKE_MANY`: revokes the keys of listed slots, of a region, of a domain, of an
/// endpoint or of the file. After the return no byte is read or written through any key that these
/// slots had at the call. The slots stay reserved and can be assigned again.
///
/// Slots without a key are skipped. A region in the scope that was registered with its own key
/// loses this key for ever. The call waits for slots that another call is just assigning or
/// revoking, after all others are revoked.
///
/// A list is processed in order, up to the first handle that names no slot. If that is the first
/// entry, the call fails with its error. Otherwise the call succeeds, with the number of processed
/// entries in `done` and the error in `err`. Only a fatal signal stops the call.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyRevokeMany {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// `KFI_REVOKE_*`.
    pub scope: u32,
    /// With `KFI_REVOKE_SLOTS`: number of listed slots, 1 to `KFI_KEY_ALLOC_MAX`. With
    /// `KFI_REVOKE_AUTH`: size of the auth key in bytes, 1 to `KFI_AUTH_KEY_MAX`. Else zero.
    pub count: u32,
    /// With `KFI_REVOKE_REGION` the region, with `KFI_REVOKE_DOMAIN` the domain, with
    /// `KFI_REVOKE_EP` the endpoint. Else zero.
    pub object: u64,
    /// With `KFI_REVOKE_SLOTS`: pointer to `count` u64s with the handles. With `KFI_REVOKE_AUTH`:
    /// pointer to the auth key. Else zero.
    pub slots: u64,
    /// Out: number of processed entries of the list; 0 without a list.
    pub done: u32,
    /// Out: positive errno that stopped the list, or 0: `ENOENT`, `EFAULT`, `ENOMEM`, or `EINTR` if
    /// the process is being killed.
    pub err: u32,
    /// Out: number of keys that this call revoked.
    pub revoked: u64,
}
/// Scope of [`KeyRevokeMany`]: the slots of a list.
pub const KFI_REVOKE_SLOTS: u32 = 0;
/// Scope of [`KeyRevokeMany`]: all slots of a region.
pub const KFI_REVOKE_REGION: u32 = 1;
/// Scope of [`KeyRevokeMany`]: all slots of all regions of a domain.
pub const KFI_REVOKE_DOMAIN: u32 = 2;
/// Scope of [`KeyRevokeMany`]: all slots of the file.
pub const KFI_REVOKE_FILE: u32 = 3;
/// Scope of [`KeyRevokeMany`]: all slots that are bound to an endpoint; `-EINVAL` for an endpoint
/// without endpoint-scoped keys.
pub const KFI_REVOKE_EP: u32 = 4;
/// Scope of [`KeyRevokeMany`]: all slots of the file whose keys are valid under an auth key. No
/// grant is needed, because the keys are the caller's own.
pub const KFI_REVOKE_AUTH: u32 = 5;

/// In place of a region's handle in an [`Iov`]: `offset` is an address of the caller's own memory,
/// which is neither registered nor pinned.
///
/// It must be the only piece of a read or a write. `-EOPNOTSUPP`: the provider lacks the capability
/// [`KFI_UNREGISTERED_RMA`]. The bytes are copied before the call returns. `-EFAULT`: no byte can
/// be copied. If a later byte cannot be copied, the operation and the connection end with `EFAULT`.
/// `-EAGAIN`: earlier operations are still outstanding.
pub const KFI_UNREGISTERED: u64 = u64::MAX;

/// A piece of local memory: part of a region.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Iov {
    /// The region, or [`KFI_UNREGISTERED`].
    pub region: u64,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// An operation in the array of a [`Submit`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpEntry {
    /// `KFI_OP_*`.
    pub op: u32,
    /// Number of entries of `iov` in use, 0 to the endpoint's `iov_limit`. Must be 0 with
    /// `KFI_INJECT`, for `KFI_OP_ATOMIC` and for `KFI_OP_COMMIT`.
    pub iov_count: u32,
    /// `KFI_COMPLETION`, `KFI_INJECT`, `KFI_REMOTE_CQ_DATA`, `KFI_FENCE`; for a write or a commit
    /// also `KFI_DELIVERY_COMPLETE` and `KFI_COMMIT_COMPLETE`.
    pub flags: u64,
    /// A value of the caller, returned in the completion.
    pub context: u64,
    /// Remote completion data, with `KFI_REMOTE_CQ_DATA`; up to `cq_data_size` bytes.
    pub data: u64,
    /// For one-sided operations: the remote address.
    pub remote_addr: u64,
    /// For one-sided operations: the peer's key.
    pub key: u64,
    /// With `KFI_INJECT`: pointer to the payload. For atomics: pointer to the operands, followed by
    /// the comparands. All are copied before the call returns.
    pub inject: u64,
    /// Size of the payload or of all operands in bytes, up to `KFI_INJECT_MAX`. For
    /// `KFI_OP_COMMIT`: length of the remote range in bytes, up to `max_msg_size`.
    pub inject_len: u64,
    /// For atomics: the operation, `KFI_ATOMIC_*`. Else zero.
    pub atomic_op: u32,
    /// For atomics: type of the values, `KFI_UINT64` and others. Else zero.
    pub datatype: u32,
    /// Local memory. For a fetching atomic: where the old values are stored.
    pub iov: [Iov; KFI_IOV_MAX],
}
const _: () = assert!(core::mem::size_of::<OpEntry>() == 72 + 96);

/// Sends a message.
pub const KFI_OP_SEND: u32 = 0;
/// Posts a receive.
pub const KFI_OP_RECV: u32 = 1;
/// Reads remote memory.
pub const KFI_OP_READ: u32 = 2;
/// Writes remote memory.
pub const KFI_OP_WRITE: u32 = 3;
/// Changes values in remote memory (`fi_atomic(3)`). The key needs the right `KFI_ATOMIC`.
/// `-EINVAL`: the remote address is not a multiple of the value's size. `-EOPNOTSUPP`: the domain
/// does not support the atomic ([`AtomicQuery`]). `-EMSGSIZE`: too many values.
pub const KFI_OP_ATOMIC: u32 = 4;
/// As [`KFI_OP_ATOMIC`], and returns the old values (`fi_fetch_atomic`).
pub const KFI_OP_FETCH_ATOMIC: u32 = 5;
/// As [`KFI_OP_FETCH_ATOMIC`], with comparands (`fi_compare_atomic`).
pub const KFI_OP_COMPARE_ATOMIC: u32 = 6;
/// Makes earlier writes of this endpoint to a remote range durable, as if each of them had
/// [`KFI_COMMIT_COMPLETE`], and bytes that its earlier reads have returned from there. Moves no
/// bytes: `iov_count` and `inject` must be 0. Needs the right to write. With `KFI_REMOTE_CQ_DATA` the peer's completion follows the commit.
/// `-EOPNOTSUPP`: the domain has no durable writes. `-EMSGSIZE`: the range is too long. Completes
/// with `EOPNOTSUPP` if the memory is not persistent, `EKEYREVOKED` if the key has ended, `EACCES`
/// if the key does not permit a write to the range; the connection stays, but ends after refusals
/// with eight keys. A commit of no bytes needs no key.
pub const KFI_OP_COMMIT: u32 = 7;

/// Type of values (`enum fi_datatype`): 8 bits, signed.
pub const KFI_INT8: u32 = 0;
/// Type of values: 8 bits, unsigned.
pub const KFI_UINT8: u32 = 1;
/// Type of values: 16 bits, signed.
pub const KFI_INT16: u32 = 2;
/// Type of values: 16 bits, unsigned.
pub const KFI_UINT16: u32 = 3;
/// Type of values: 32 bits, signed.
pub const KFI_INT32: u32 = 4;
/// Type of values: 32 bits, unsigned.
pub const KFI_UINT32: u32 = 5;
/// Type of values: 64 bits, signed.
pub const KFI_INT64: u32 = 6;
/// Type of values: 64 bits, unsigned.
pub const KFI_UINT64: u32 = 7;

/// Atomic operation (`enum fi_op`): minimum.
pub const KFI_ATOMIC_MIN: u32 = 0;
/// Atomic operation: maximum.
pub const KFI_ATOMIC_MAX: u32 = 1;
/// Atomic operation: sum, wrapping.
pub const KFI_ATOMIC_SUM: u32 = 2;
/// Atomic operation: product, wrapping.
pub const KFI_ATOMIC_PROD: u32 = 3;
/// Atomic operation: logical OR.
pub const KFI_ATOMIC_LOR: u32 = 4;
/// Atomic operation: logical AND.
pub const KFI_ATOMIC_LAND: u32 = 5;
/// Atomic operation: bitwise OR.
pub const KFI_ATOMIC_BOR: u32 = 6;
/// Atomic operation: bitwise AND.
pub const KFI_ATOMIC_BAND: u32 = 7;
/// Atomic operation: logical exclusive OR.
pub const KFI_ATOMIC_LXOR: u32 = 8;
/// Atomic operation: bitwise exclusive OR.
pub const KFI_ATOMIC_BXOR: u32 = 9;
/// Atomic operation: read. Only with [`KFI_OP_FETCH_ATOMIC`], without operands.
pub const KFI_ATOMIC_READ: u32 = 10;
/// Atomic operation: write. With [`KFI_OP_FETCH_ATOMIC`] this is a swap.
pub const KFI_ATOMIC_WRITE: u32 = 11;
/// Atomic operation: write if the comparand is equal to the old value. This and the following
/// operations exist only with [`KFI_OP_COMPARE_ATOMIC`].
pub const KFI_ATOMIC_CSWAP: u32 = 12;
/// Atomic operation: write if the comparand is not equal to the old value.
pub const KFI_ATOMIC_CSWAP_NE: u32 = 13;
/// Atomic operation: write if the comparand is at most the old value.
pub const KFI_ATOMIC_CSWAP_LE: u32 = 14;
/// Atomic operation: write if the comparand is less than the old value.
pub const KFI_ATOMIC_CSWAP_LT: u32 = 15;
/// Atomic operation: write if the comparand is at least the old value.
pub const KFI_ATOMIC_CSWAP_GE: u32 = 16;
/// Atomic operation: write if the comparand is greater than the old value.
pub const KFI_ATOMIC_CSWAP_GT: u32 = 17;
/// Atomic operation: write the bits that are set in the comparand.
pub const KFI_ATOMIC_MSWAP: u32 = 18;

/// `KFI_IOC_ATOMIC_QUERY` (`fi_query_atomic`): returns whether a domain supports an atomic.
/// `-EOPNOTSUPP`: the domain does not support the atomic. `-EINVAL`: no such atomic exists.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AtomicQuery {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The domain.
    pub domain: u64,
    /// `KFI_OP_ATOMIC`, `KFI_OP_FETCH_ATOMIC` or `KFI_OP_COMPARE_ATOMIC`.
    pub op: u32,
    /// `KFI_ATOMIC_*`.
    pub atomic_op: u32,
    /// `KFI_UINT64` and others.
    pub datatype: u32,
    /// Out: size of a value in bytes.
    pub value_size: u32,
    /// Out: maximum number of values of one operation.
    pub count: u64,
}

/// `KFI_IOC_SUBMIT`: posts operations in order and stops at the first refused one.
///
/// If the first operation is refused, the call fails with its error. Otherwise the call succeeds,
/// with the number of accepted operations in `done` and the error of the next one in `err`. Each
/// entry is fetched once.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Submit {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
    /// Pointer to an array of [`OpEntry`].
    pub ops: u64,
    /// Number of entries, 1 to `KFI_SUBMIT_MAX`.
    pub count: u32,
    /// `size_of::<OpEntry>()`; another value is `-EINVAL`.
    pub entry_size: u32,
    /// Out: number of accepted operations.
    pub done: u32,
    /// Out: positive errno of the first refused operation, or 0. `EAGAIN`: the endpoint or a
    /// completion queue is full.
    pub err: u32,
}

/// `KFI_IOC_CANCEL`: cancels one posted receive, which then completes with `ECANCELED`. `-ENOENT`:
/// no such receive is posted; `-EOPNOTSUPP`: the provider cannot cancel.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cancel {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
    /// Context of the receive.
    pub context: u64,
}

/// `KFI_IOC_CLOSE`. `-EBUSY`: the object has open children.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Close {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The object.
    pub handle: u64,
}

/// `KFI_IOC_OBJ_LIST`: lists objects.
///
/// - If the opener of this file and the caller both have `CAP_SYS_ADMIN`: those of every open file.
/// - Otherwise: those of this file. If the caller is the user that opened this file, also those of
///   the other files that this user opened.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjList {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to an array of [`ObjInfo`].
    pub entries: u64,
    /// In: number of entries that the array can hold. Out: number of objects, possibly more.
    pub count: u32,
    /// The caller's size of [`ObjInfo`].
    pub entry_size: u32,
    /// Zero.
    pub reserved: [u64; 3],
}

/// A live object in an [`ObjList`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjInfo {
    /// `KFI_TYPE_*`.
    pub kind: u32,
    /// Process that opened the file, in the caller's pid namespace; 0: not visible there.
    pub pid: u32,
    /// Handle in that process's file.
    pub handle: u64,
    /// Handle of the object on which this one was opened; 0: none.
    pub parent: u64,
    /// Depends on the kind. Region, key: length in bytes. Endpoint: outstanding operations. Queue:
    /// depth. Counter: value. Domain: bytes pinned.
    pub a: u64,
    /// Depends on the kind. Region: access. Key: access (0: not assigned). Endpoint: `KFI_STATE_*`.
    /// Queue: waiting entries. Counter: errors.
    pub b: u64,
    /// Depends on the kind. Region: pages charged. Key: offset. Endpoint: operations completed so
    /// far.
    pub c: u64,
    /// Command name of the process.
    pub comm: [u8; 16],
    /// Provider and domain, or address, as text. Of a key: its state, a space, and the number of
    /// keys that the slot has had. The states are `reserved`, `assigning`, `promised` (the key
    /// value was returned, but the key is not valid yet), `assigned`, `used` (a single-use key that
    /// was used), `revoking` and `closed`. Of a region: the kind of its memory, `adr` or
    /// `device-flush` ([`RegionReg::persistence`]); empty: not known to be persistent.
    pub name: [u8; KFI_NAME_MAX],
    /// Domain, endpoint, region, key: number of the auth key ([`GrantInfo::key`]); 0: none. A
    /// caller that may not see all objects sees 1 for every auth key.
    pub auth: u64,
    /// Region, key: handle of the endpoint that the object is bound to, which may be closed; 0:
    /// none.
    pub ep: u64,
    /// Domain: key values that were in a key of the domain, were returned by an assignment, or are
    /// reserved for a slot's next key. 0: the provider accounts for no values.
    pub keys_used: u64,
    /// Domain: those of `keys_used` that were used before: all others had been used, and had rested.
    pub keys_reused: u64,
    /// Domain: keys whose end left their memory region's index without a value.
    pub keys_worn: u64,
    /// Domain: key values of all its user's domains that count in the user's budget. 0: the user has
    /// none.
    pub keys_spent: u64,
}
const _: () = assert!(core::mem::size_of::<ObjInfo>() == 48 + 80 + 8 + 8 + 32);

/// A fabric.
pub const KFI_TYPE_FABRIC: u32 = 1;
/// A domain.
pub const KFI_TYPE_DOMAIN: u32 = 2;
/// An event queue.
pub const KFI_TYPE_EQ: u32 = 3;
/// A completion queue.
pub const KFI_TYPE_CQ: u32 = 4;
/// A counter.
pub const KFI_TYPE_CNTR: u32 = 5;
/// A passive endpoint.
pub const KFI_TYPE_PEP: u32 = 6;
/// An endpoint.
pub const KFI_TYPE_EP: u32 = 7;
/// A region.
pub const KFI_TYPE_REGION: u32 = 8;
/// A key slot.
pub const KFI_TYPE_KEY: u32 = 9;
/// A connection request without an answer.
pub const KFI_TYPE_CONNREQ: u32 = 10;

/// Endpoint state: opened.
pub const KFI_STATE_NEW: u32 = 0;
/// Endpoint state: enabled; receives may be posted.
pub const KFI_STATE_ENABLED: u32 = 1;
/// Endpoint state: connecting or accepting.
pub const KFI_STATE_CONNECTING: u32 = 2;
/// Endpoint state: connected.
pub const KFI_STATE_CONNECTED: u32 = 3;
/// Endpoint state: the connection ended.
pub const KFI_STATE_DOWN: u32 = 4;

// ---- auth keys ----

/// Maximum size of an auth key in bytes.
pub const KFI_AUTH_KEY_MAX: usize = 64;
/// Smallest size of an auth key that peers cannot guess, in bytes. Mode `enforce` refuses shorter keys
/// (`-EKEYREJECTED`); in mode `open` the kernel logs their first use.
pub const KFI_AUTH_KEY_SAFE: usize = 16;
/// Maximum number of auth keys of a passive endpoint.
pub const KFI_PEP_AUTH_KEYS_MAX: usize = 8;
/// Maximum application data of a connection request in bytes, for an endpoint with an auth key.
pub const KFI_AUTH_CM_DATA: usize = 24;

/// An auth key: opaque bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AuthKeyRef {
    /// Pointer to the bytes.
    pub addr: u64,
    /// Number of bytes, 1 to `KFI_AUTH_KEY_MAX`.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(core::mem::size_of::<AuthKeyRef>() == 16);

/// `KFI_IOC_AUTH_MODE`: reads the enforcement of auth keys on this machine, and sets the values
/// that `flags` names.
///
/// An auth key separates users. A key or region is exported under one auth key: that of the slot or
/// region, else that of the domain. Only endpoints with the same auth key can access it. Endpoints
/// of two hosts connect only if both kernels prove that they have the same auth key, or if both
/// have none.
///
/// With `KFI_AUTH_OPEN` any program that knows an auth key may use it. With `KFI_AUTH_ENFORCE` the
/// following opens need a grant that covers the caller:
///
/// - an endpoint or a passive endpoint,
/// - a key slot, or a region with its own key,
/// - a region with an auth key.
///
/// If there is no such grant, the kernel makes an upcall to the agent, and the call waits,
/// killably. Objects opened before stay. Consumers in the kernel need no grant.
///
/// | errno of a call that opens | |
/// |---|---|
/// | `-EACCES` | denied |
/// | `-ENOKEY` | no auth key, or no grant and no agent |
/// | `-ETIMEDOUT` | the agent did not decide in time |
/// | `-EAGAIN` | too many upcalls of this process (`asks`), of this effective uid (4,096), or in total (16,384) are waiting |
/// | `-EDQUOT` | the limits of the grant are reached |
/// | `-EKEYREVOKED`, `-EKEYEXPIRED` | the grant is revoked or expired; also returned for objects opened under it |
/// | `-EKEYREJECTED` | the auth key is shorter than `KFI_AUTH_KEY_SAFE`; or the peer has not proven that it has the auth key (in events also) |
/// | `-EOPNOTSUPP` | the provider does not support auth keys |
///
/// The caller is the task that makes the call, with its effective uid and gids and its cgroup. Its
/// network namespace is the one that the file was opened in.
///
/// This call, the calls for grants and those of the agent are for the administrator. The opener of
/// the file and the caller both need `CAP_SYS_ADMIN` in the initial user namespace (`-EPERM`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AuthMode {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_AUTH_SET_*`: the values to set; zero: none.
    pub flags: u32,
    /// `KFI_AUTH_OPEN` or `KFI_AUTH_ENFORCE`. Out: the present mode.
    pub mode: u32,
    /// Time for the agent's decision, in milliseconds, 1 to 600,000; initially 10,000. Out: the
    /// present value.
    pub timeout_ms: u32,
    /// Time for which a denial is remembered, in milliseconds, up to 600,000; initially 1,000. Out:
    /// the present value.
    pub deny_ms: u32,
    /// Maximum number of waiting upcalls of one process, 1 to 4096; initially 64. Out: the present
    /// value.
    pub asks: u32,
    /// Out: process of the agent, in the caller's pid namespace; 0: no agent, or not visible there.
    pub agent: u32,
    /// Out: 1 if there is an agent, else 0.
    pub agents: u32,
    /// Out: number of grants.
    pub grants: u32,
    /// Out: number of upcalls without a decision.
    pub waiting: u32,
    /// Zero.
    pub reserved: u64,
}
/// Mode: no grant is needed.
pub const KFI_AUTH_OPEN: u32 = 0;
/// Mode: opens need a grant.
pub const KFI_AUTH_ENFORCE: u32 = 1;
/// Flag of [`AuthMode`]: sets the mode.
pub const KFI_AUTH_SET_MODE: u32 = 1;
/// Flag of [`AuthMode`]: sets the time for a decision.
pub const KFI_AUTH_SET_TIMEOUT: u32 = 2;
/// Flag of [`AuthMode`]: sets the time for which a denial is remembered.
pub const KFI_AUTH_SET_DENY: u32 = 4;
/// Flag of [`AuthMode`]: sets the maximum number of waiting upcalls of a process.
pub const KFI_AUTH_SET_ASKS: u32 = 8;

/// Right of a grant: open endpoints and passive endpoints.
pub const KFI_AUTH_EP: u32 = 1;
/// Right of a grant: open key slots, and regions with a key.
pub const KFI_AUTH_KEYS: u32 = 2;

/// A grant compares the effective uid.
pub const KFI_MATCH_UID: u32 = 1;
/// A grant compares the effective gid and the supplementary groups.
pub const KFI_MATCH_GID: u32 = 2;
/// A grant compares the cgroup (v2) and its ancestors.
pub const KFI_MATCH_CGROUP: u32 = 4;
/// A grant compares the network namespace.
pub const KFI_MATCH_NETNS: u32 = 8;
/// A grant compares the process.
pub const KFI_MATCH_PROCESS: u32 = 16;

/// `KFI_IOC_GRANT_ADD`: permits the use of an auth key to each task that has all properties of
/// `match_`. A grant stays until it is revoked or expires, also after the close of the file.
///
/// `-EBUSY`: an earlier grant of this auth key is revoked or expired, and an object opened under it
/// has not ended yet. `-ESRCH`: the process has exited. `-EBADF`: not a pidfd, or not a network
/// namespace. `-ENOSPC`: there are 65,536 grants.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantAdd {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to the auth key.
    pub auth_key: u64,
    /// Size of the auth key in bytes, 1 to `KFI_AUTH_KEY_MAX`.
    pub auth_key_size: u32,
    /// `KFI_MATCH_*`; not zero. Fields below that are not selected must be zero.
    pub match_: u32,
    /// `KFI_AUTH_*` rights; not zero.
    pub rights: u32,
    /// A user, in the initial user namespace.
    pub uid: u32,
    /// A group, in the initial user namespace.
    pub gid: u32,
    /// A pidfd of the process (not of a thread). A later process with the same pid is not covered.
    pub pidfd: i32,
    /// A descriptor of the network namespace.
    pub netns_fd: i32,
    /// Maximum number of keys at a time; 0: no limit. A slot counts as one, and so does a region's
    /// own key.
    pub max_keys: u32,
    /// Id of the cgroup: the inode number of its directory.
    pub cgroup: u64,
    /// Maximum number of bytes pinned by regions at a time, in whole pages; 0: no limit.
    pub max_pinned: u64,
    /// Lifetime in milliseconds; 0: no end.
    pub lifetime_ms: u64,
    /// Maximum number of endpoints at a time; 0: no limit.
    pub max_eps: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: id of the grant, never reused.
    pub id: u64,
}

/// `KFI_IOC_GRANT_CHANGE`. Objects beyond a lowered limit stay. `-ENOENT`: no such grant, or it is
/// revoked or expired.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantChange {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_GRANT_LIMITS`, `KFI_GRANT_LIFETIME`; not zero. Fields below that are not selected must
    /// be zero.
    pub flags: u32,
    /// The grant.
    pub id: u64,
    /// As [`GrantAdd::max_pinned`].
    pub max_pinned: u64,
    /// As [`GrantAdd::max_keys`].
    pub max_keys: u32,
    /// As [`GrantAdd::max_eps`].
    pub max_eps: u32,
    /// As [`GrantAdd::lifetime_ms`], from now on.
    pub lifetime_ms: u64,
}
/// Flag of [`GrantChange`]: changes the limits, all of them.
pub const KFI_GRANT_LIMITS: u32 = 1;
/// Flag of [`GrantChange`]: changes the lifetime.
pub const KFI_GRANT_LIFETIME: u32 = 2;

/// `KFI_IOC_GRANT_REVOKE`: revokes a grant. At the return no object can be opened under it any
/// more, its endpoints are closed and its keys are revoked.
///
/// The peer sees the end of the connection; the owner gets an event with `EKEYREVOKED`. A key that
/// is being assigned under the grant is revoked as soon as it is assigned. `-ENOENT`: no such
/// grant, or it is revoked or expired. `-EINTR`: the task is being killed; the revocation continues
/// all the same.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantRevoke {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The grant.
    pub id: u64,
    /// Zero.
    pub reserved: u64,
}

/// `KFI_IOC_GRANT_LIST`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantList {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to an array of [`GrantInfo`].
    pub entries: u64,
    /// In: number of entries that the array can hold. Out: number of grants, possibly more.
    pub count: u32,
    /// The caller's size of [`GrantInfo`].
    pub entry_size: u32,
    /// Zero.
    pub reserved: u64,
}

/// One grant. No field discloses bytes of the auth key.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantInfo {
    /// The grant.
    pub id: u64,
    /// Number of the auth key: arbitrary, but the same for the same bytes as long as these are in
    /// use.
    pub key: u64,
    /// `KFI_MATCH_*`.
    pub match_: u32,
    /// `KFI_AUTH_*` rights.
    pub rights: u32,
    /// The user, with `KFI_MATCH_UID`.
    pub uid: u32,
    /// The group, with `KFI_MATCH_GID`.
    pub gid: u32,
    /// Id of the cgroup, with `KFI_MATCH_CGROUP`.
    pub cgroup: u64,
    /// Cookie of the network namespace (`SO_NETNS_COOKIE`), with `KFI_MATCH_NETNS`.
    pub netns: u64,
    /// The process, with `KFI_MATCH_PROCESS`: see [`AgentNext::process`].
    pub process: u64,
    /// As [`GrantAdd::max_pinned`].
    pub max_pinned: u64,
    /// As [`GrantAdd::max_keys`].
    pub max_keys: u32,
    /// As [`GrantAdd::max_eps`].
    pub max_eps: u32,
    /// Bytes in regions at present.
    pub pinned: u64,
    /// Number of keys at present.
    pub keys: u32,
    /// Number of endpoints at present.
    pub eps: u32,
    /// Remaining lifetime in milliseconds; 0: no end, or expired.
    pub left_ms: u64,
    /// `KFI_GRANT_*` state.
    pub state: u32,
    /// 1: from a decision of the agent; 0: from `KFI_IOC_GRANT_ADD`.
    pub answered: u32,
}
const _: () = assert!(core::mem::size_of::<GrantInfo>() == 104);
/// State of a grant: valid.
pub const KFI_GRANT_VALID: u32 = 0;
/// State of a grant: revoked, but not all of its objects have ended.
pub const KFI_GRANT_REVOKED: u32 = 1;
/// State of a grant: expired, but not all of its objects have ended.
pub const KFI_GRANT_EXPIRED: u32 = 2;

/// `KFI_IOC_AGENT_OPEN`: makes the file the agent. A former agent gets `-ESTALE` from now on, and
/// its undecided upcalls pass to the new one.
///
/// The file polls readable while an upcall waits, and `POLLHUP` once another file is the agent.
/// After its close there is no agent, and waiting calls fail with `-ENOKEY`. `-EALREADY`: the file
/// is the agent.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentOpen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Zero.
    pub reserved: u64,
}

/// `KFI_IOC_AGENT_NEXT`: reads one upcall: may this process use this auth key? `-EAGAIN`: no upcall
/// waits. `-ESTALE`: another file has become the agent. `-EINVAL`: the file never was the agent.
///
/// Equal requests of a process make one upcall. If the process is killed, its upcall is cancelled;
/// a decision then fails with `-ENOENT`.
///
/// The properties of the task were recorded when it made the request: user, groups, control group
/// and namespaces are those of one moment. A property that is not in `known` is unknown, which is
/// different from empty.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentNext {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to `KFI_AUTH_KEY_MAX` bytes for the auth key.
    pub auth_key: u64,
    /// Out: size of the auth key in bytes. The rest of the buffer is zero.
    pub auth_key_size: u32,
    /// Out: the requested `KFI_AUTH_*` rights.
    pub rights: u32,
    /// Out: id of the upcall.
    pub id: u64,
    /// Out: identifies the process: the inode number of its pidfd (`fstat(2)`), never reused. A
    /// pidfd that `pidfd_open(2)` returns for `pid` belongs to this process if its inode number is
    /// this value.
    pub process: u64,
    /// Out: pid of the process in the caller's pid namespace; 0: not visible there.
    pub pid: u32,
    /// Out: effective uid, in the initial user namespace.
    pub uid: u32,
    /// Out: effective gid, in the initial user namespace.
    pub gid: u32,
    /// Out: milliseconds left for the decision.
    pub left_ms: u32,
    /// Out: id of the task's cgroup (v2).
    pub cgroup: u64,
    /// Out: cookie of the task's network namespace (`SO_NETNS_COOKIE`).
    pub netns: u64,
    /// Out: command name.
    pub comm: [u8; 16],
    /// Out: name of the domain.
    pub domain: [u8; KFI_NAME_MAX],
    /// Pointer to an array for the task's supplementary groups, each a 32-bit gid in the initial
    /// user namespace; 0: not requested.
    pub groups: u64,
    /// Pointer to a buffer for the path of the task's cgroup (v2), from the root of the hierarchy,
    /// without a NUL; 0: not requested.
    pub cgroup_path: u64,
    /// In: number of groups that the array can hold. Out: number of groups of the task; only as
    /// many as the array can hold were written.
    pub groups_count: u32,
    /// In: size of the buffer in bytes. Out: size of the path in bytes; 0 if unknown or too long.
    pub cgroup_path_size: u32,
    /// Out: inode number of the task's user namespace, as in `/proc/PID/ns/user`.
    pub userns: u64,
    /// Out: `KFI_KNOWN_*`.
    pub known: u32,
    /// Zero.
    pub reserved: u32,
}
/// The upcall contains all supplementary groups.
pub const KFI_KNOWN_GROUPS: u32 = 1;
/// The upcall contains the path of the cgroup.
pub const KFI_KNOWN_CGROUP: u32 = 2;

impl Default for AgentNext {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// `KFI_IOC_AGENT_ANSWER`: decides an upcall. An allow creates a grant with these limits and this
/// lifetime, for the properties of the requester that `match_` names. A denial is
/// remembered for a short time ([`AuthMode::deny_ms`]).
///
/// `-ENOENT`: the upcall was cancelled or decided before. `-ESTALE`: another file has become the
/// agent. `-EINVAL`: the file never was the agent, or the rights do not cover the request.
/// `-EBUSY`, `-ENOSPC`: as [`GrantAdd`]; the upcall stays.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentAnswer {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Id of the upcall.
    pub id: u64,
    /// `KFI_AUTH_DENY` or `KFI_AUTH_ALLOW`. With a denial all fields below are zero.
    pub verdict: u32,
    /// `KFI_MATCH_*`: properties that the grant compares; 0: the requester.
    pub match_: u32,
    /// `KFI_AUTH_*` rights; 0: the requested ones.
    pub rights: u32,
    /// As [`GrantAdd::max_keys`].
    pub max_keys: u32,
    /// As [`GrantAdd::max_pinned`].
    pub max_pinned: u64,
    /// As [`GrantAdd::lifetime_ms`].
    pub lifetime_ms: u64,
    /// As [`GrantAdd::max_eps`].
    pub max_eps: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: id of the grant.
    pub grant: u64,
}
/// Verdict: deny.
pub const KFI_AUTH_DENY: u32 = 0;
/// Verdict: allow.
pub const KFI_AUTH_ALLOW: u32 = 1;

// ---- the completion ring ----

/// Offset in bytes of the first entry in the mapping.
pub const KFI_CQ_RING_OFFSET: usize = 4096;

/// The first page of a completion queue's mapping.
///
/// The kernel writes entry `head & (entries - 1)`, then stores `head` with release order. The
/// program loads `head` with acquire order, reads the entries from `tail` up to `head`, then stores
/// `tail` with release order. Both counters wrap at 2^32. The kernel never reads back its own
/// writes. A wrong `tail` stops only this queue.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqRing {
    /// Written by the kernel: count of entries written.
    pub head: u32,
    /// Written by the kernel: number of entries of the ring.
    pub entries: u32,
    /// Written by the kernel: `size_of::<CqEntry>()`.
    pub entry_size: u32,
    /// Zero. Keeps the fields of the two writers on separate cache lines.
    pub pad: [u32; 29],
    /// Written by the program: count of entries read.
    pub tail: u32,
    /// Set to 1 by the kernel on an event of an endpoint with rings ([`EpRings`]). The program
    /// resets it before it looks at the rings. While set, the queue polls readable.
    pub alarm: u32,
    /// Zero.
    pub pad2: [u32; 30],
}
const _: () = assert!(core::mem::size_of::<CqRing>() == 256);

/// One completion (`fi_cq(3)`: `fi_cq_data_entry` and `fi_cq_err_entry` in one).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CqEntry {
    /// The operation's context.
    pub context: u64,
    /// Kind of the completed operation: `KFI_MSG|KFI_SEND`, `KFI_MSG|KFI_RECV`, `KFI_RMA|KFI_READ`,
    /// `KFI_RMA|KFI_WRITE`, `KFI_ATOMIC|KFI_WRITE`, `KFI_ATOMIC|KFI_READ` (a fetching atomic), or
    /// `KFI_RMA|KFI_REMOTE_WRITE|KFI_REMOTE_CQ_DATA` for a peer's write with data. With remote
    /// completion data, also `KFI_REMOTE_CQ_DATA`. Not in format CONTEXT.
    pub flags: u64,
    /// Bytes received or moved; 0 for a failed operation. Not in format CONTEXT.
    pub len: u64,
    /// Offset of a receive's first byte in its region. Format DATA only.
    pub buf: u64,
    /// The peer's remote completion data. Format DATA only.
    pub data: u64,
    /// 0, or the positive errno of a failure: `ECANCELED` for operations flushed after a first
    /// error.
    pub err: u32,
    /// Error code of the provider (verbs: `ib_wc_status`).
    pub prov_errno: u32,
    /// Handle of the endpoint.
    pub ep: u64,
    /// Number of bytes that did not fit into a receive; 0 if the provider does not report this
    /// number (verbs does not).
    pub olen: u64,
}
const _: () = assert!(core::mem::size_of::<CqEntry>() == 64);
