// SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note
//! Numbers, structures and rings of the `/dev/kfabric` interface.
//!
//! # The rules of every call
//!
//! * A structure starts with `size` (bytes the caller knows of) and `flags`. The kernel copies the
//!   smaller of the two sizes; a caller's tail that the kernel does not know must be zero
//!   (`-E2BIG`), a missing tail counts as zero, a `size` below the structure's first version is
//!   `-EINVAL`. New fields are only appended; new meaning gets a new flag.
//! * Unknown flags and non-zero reserved fields are `-EINVAL`. Pointers travel as `u64`.
//! * A handle names an object of one open file. It holds a generation: a handle that was closed
//!   never names another object (`-ENOENT`). A handle of another type is `-ENOENT` too.
//! * Errors: `-ENOTTY` unknown call; `-EFAULT` bad pointer; `-EOPNOTSUPP` known but not offered by
//!   this provider; `-EBUSY` children or operations left; `-ENODEV` device gone; `-EAGAIN` full.
//!   A call that fails changes nothing. (The one exception is a program's own doing: it takes away
//!   the memory of the answer while the call runs. What was opened is closed again then, and a key
//!   that was assigned is revoked, but an operation that was posted and a key that was revoked
//!   stay so, and a request that was accepted is refused.)
//!
//! * Auth keys (`-EACCES`, `-ENOKEY`, …): see [`AuthMode`].
//!
//! Constants that libfabric has too carry libfabric's values (`fabric.h`, `fi_domain.h`,
//! `fi_endpoint.h`, `fi_eq.h`), so a user-space provider passes them through.

// The derives refuse implicit padding, which is what keeps kernel memory from leaking.
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The ioctl type byte. 0xBF 00-3F is unlisted in Documentation/userspace-api/ioctl/ioctl-number.rst.
pub const KFI_IOC_TYPE: u32 = 0xBF;
/// Version of this interface as [`InfoEntry::abi`] reports it. It only tells; nothing depends on it.
pub const KFI_ABI_VERSION: u32 = 1;
/// The API version that info entries speak: libfabric 2.0 as `FI_VERSION(2, 0)`.
pub const KFI_API_VERSION: u32 = 2 << 16;

/// Encodes an ioctl number: read-write, of `size` bytes.
const fn iowr(nr: u32, size: usize) -> u32 {
    (3 << 30) | ((size as u32) << 16) | (KFI_IOC_TYPE << 8) | nr
}

/// A structure that an ioctl exchanges.
///
/// The low byte of [`Ioctl::NR`] selects the call; the size in it is only the first version's.
pub trait Ioctl: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable {
    /// The ioctl number, complete with direction and size.
    const NR: u32;
    /// Size in bytes of the structure's first version: a caller's `size` may not be less.
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
        /// Every call: number and name. The numbers' low bytes are contiguous from zero.
        pub const KFI_IOCTLS: &[(u32, &str)] = &[$(($name, stringify!($name))),*];
    };
}

ioctls! {
    /// Lists what providers offer: [`GetInfo`].
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
    /// Starts listening on a passive endpoint; answers at once: [`Listen`].
    KFI_IOC_LISTEN = 0x0a, Listen, 24;
    /// Starts connecting an endpoint; the outcome is an event: [`Connect`].
    KFI_IOC_CONNECT = 0x0b, Connect, 64;
    /// Accepts the connection request the endpoint was opened with: [`Accept`].
    KFI_IOC_ACCEPT = 0x0c, Accept, 32;
    /// Refuses a connection request: [`Reject`].
    KFI_IOC_REJECT = 0x0d, Reject, 32;
    /// Ends a connection: [`Shutdown`].
    KFI_IOC_SHUTDOWN = 0x0e, Shutdown, 16;
    /// Asks for an endpoint's own or its peer's address: [`GetName`].
    KFI_IOC_GETNAME = 0x0f, GetName, 56;
    /// Takes one event from an event queue: [`EqRead`].
    KFI_IOC_EQ_READ = 0x10, EqRead, 72;
    /// Reads, adds to or sets a counter: [`CntrCtl`].
    KFI_IOC_CNTR_CTL = 0x11, CntrCtl, 40;
    /// Waits until a counter reaches a value: [`CntrWait`].
    KFI_IOC_CNTR_WAIT = 0x12, CntrWait, 40;
    /// Pins and registers memory: [`RegionReg`].
    KFI_IOC_REGION_REG = 0x13, RegionReg, 80;
    /// Reserves key slots on a region: [`KeyAlloc`].
    KFI_IOC_KEY_ALLOC = 0x14, KeyAlloc, 40;
    /// Gives a slot a key for a sub-range: [`KeyAssign`].
    KFI_IOC_KEY_ASSIGN = 0x15, KeyAssign, 64;
    /// Ends a slot's key: [`ObjectCall2`]. When it returns, nothing is read or written through the
    /// key any more. The slot stays reserved and may be assigned anew. `-EINVAL`: it has no key.
    KFI_IOC_KEY_REVOKE = 0x16, ObjectCall2, 16;
    /// Posts many operations: [`Submit`].
    KFI_IOC_SUBMIT = 0x17, Submit, 40;
    /// Cancels posted receives by their context: [`Cancel`].
    KFI_IOC_CANCEL = 0x18, Cancel, 24;
    /// Closes any object: [`Close`].
    KFI_IOC_CLOSE = 0x19, Close, 16;
    /// Lists live objects: [`ObjList`].
    KFI_IOC_OBJ_LIST = 0x1a, ObjList, 48;
    /// Gives many slots their keys: [`KeyAssignMany`].
    KFI_IOC_KEY_ASSIGN_MANY = 0x1b, KeyAssignMany, 48;
    /// Ends many keys: [`KeyRevokeMany`].
    KFI_IOC_KEY_REVOKE_MANY = 0x1c, KeyRevokeMany, 48;
    /// Shows and sets what auth keys mean on this machine: [`AuthMode`].
    KFI_IOC_AUTH_MODE = 0x1d, AuthMode, 48;
    /// Installs a grant: [`GrantAdd`].
    KFI_IOC_GRANT_ADD = 0x1e, GrantAdd, 88;
    /// Changes a grant's limits or its end: [`GrantChange`].
    KFI_IOC_GRANT_CHANGE = 0x1f, GrantChange, 40;
    /// Takes a grant back: [`GrantRevoke`].
    KFI_IOC_GRANT_REVOKE = 0x20, GrantRevoke, 24;
    /// Lists grants: [`GrantList`].
    KFI_IOC_GRANT_LIST = 0x21, GrantList, 32;
    /// Makes the file the agent that is asked for grants: [`AgentOpen`].
    KFI_IOC_AGENT_OPEN = 0x22, AgentOpen, 16;
    /// Takes one question: [`AgentNext`].
    KFI_IOC_AGENT_NEXT = 0x23, AgentNext, 152;
    /// Answers a question: [`AgentAnswer`].
    KFI_IOC_AGENT_ANSWER = 0x24, AgentAnswer, 64;
    /// Asks which atomics a domain has: [`AtomicQuery`].
    KFI_IOC_ATOMIC_QUERY = 0x25, AtomicQuery, 40;
    /// Asks for an endpoint's rings: [`EpRings`].
    KFI_IOC_EP_RINGS = 0x26, EpRings, 40;
    /// Wakes who waits at an end of rings: [`EpWake`].
    KFI_IOC_EP_WAKE = 0x27, EpWake, 16;
}

// ---- capabilities, modes, flags: libfabric's values (fabric.h) ----

/// Endpoint type: reliable, connected, message oriented (`FI_EP_MSG`).
pub const KFI_EP_MSG: u32 = 1;

/// Messages: send and receive (`FI_MSG`).
pub const KFI_MSG: u64 = 1 << 1;
/// One-sided operations (`FI_RMA`).
pub const KFI_RMA: u64 = 1 << 2;
/// Atomics (`FI_ATOMIC`). As access: peers may use the memory for them; takes
/// [`KFI_REMOTE_READ`] and [`KFI_REMOTE_WRITE`] with it.
pub const KFI_ATOMIC: u64 = 1 << 4;
/// May read remotely, or allows local... see each use (`FI_READ`).
pub const KFI_READ: u64 = 1 << 8;
/// May write remotely (`FI_WRITE`).
pub const KFI_WRITE: u64 = 1 << 9;
/// May receive, or: for the receiving side (`FI_RECV`).
pub const KFI_RECV: u64 = 1 << 10;
/// May send, or: for the sending side (`FI_SEND`, equal to `FI_TRANSMIT` in binds below).
pub const KFI_SEND: u64 = 1 << 11;
/// In binds: the transmit side (`FI_TRANSMIT`).
pub const KFI_TRANSMIT: u64 = KFI_SEND;
/// Peers may read (`FI_REMOTE_READ`).
pub const KFI_REMOTE_READ: u64 = 1 << 12;
/// Peers may write (`FI_REMOTE_WRITE`).
pub const KFI_REMOTE_WRITE: u64 = 1 << 13;
/// An operation carries, or a completion holds, remote completion data (`FI_REMOTE_CQ_DATA`).
pub const KFI_REMOTE_CQ_DATA: u64 = 1 << 17;
/// An operation wants a completion entry though its queue is selective (`FI_COMPLETION`).
pub const KFI_COMPLETION: u64 = 1 << 24;
/// The payload is taken before the call returns; no completion entry unless [`KFI_COMPLETION`] asks for
/// one (`FI_INJECT`).
pub const KFI_INJECT: u64 = 1 << 25;
/// Wait for earlier operations before this one starts (`FI_FENCE`).
pub const KFI_FENCE: u64 = 1 << 22;
/// In a bind: entries only for operations with [`KFI_COMPLETION`] (`FI_SELECTIVE_COMPLETION`).
pub const KFI_SELECTIVE_COMPLETION: u64 = 1 << 59;
/// The local peer is on another node (`FI_REMOTE_COMM`).
pub const KFI_REMOTE_COMM: u64 = 1 << 51;
/// The peer may be on this node (`FI_LOCAL_COMM`).
pub const KFI_LOCAL_COMM: u64 = 1 << 50;
/// kfabric's own: dynamic keys (alloc, assign, revoke) are offered. No libfabric bit has this value.
pub const KFI_DYNAMIC_KEYS: u64 = 1 << 40;
/// kfabric's own: endpoints may have keys of their own ([`KFI_EP_OWN_KEYS`]).
pub const KFI_EP_KEYS: u64 = 1 << 41;
/// kfabric's own: keys may end by themselves ([`KFI_KEY_SINGLE_USE`]). Verbs cannot: no device ends
/// a registration because it was used, and none tells the target that it was.
pub const KFI_SINGLE_USE_KEYS: u64 = 1 << 42;
/// Reads and writes take local memory that is not registered ([`KFI_UNREGISTERED`]).
pub const KFI_UNREGISTERED_RMA: u64 = 1 << 43;

/// Registration modes (`FI_MR_*`, fi_mr(3)): local buffers need a region.
pub const KFI_MR_LOCAL: u64 = 1 << 2;
/// Remote addresses are virtual addresses of the exporter.
pub const KFI_MR_VIRT_ADDR: u64 = 1 << 4;
/// Memory must be backed by pages at registration.
pub const KFI_MR_ALLOCATED: u64 = 1 << 5;
/// The provider chooses key values.
pub const KFI_MR_PROV_KEY: u64 = 1 << 6;

/// The key of a region that has none (`FI_KEY_NOTAVAIL`).
pub const KFI_KEY_NOTAVAIL: u64 = u64::MAX;

/// Address format: any socket address (`FI_SOCKADDR`).
pub const KFI_SOCKADDR: u32 = 1;
/// Address format: IPv4 (`FI_SOCKADDR_IN`).
pub const KFI_SOCKADDR_IN: u32 = 2;
/// Address format: IPv6 (`FI_SOCKADDR_IN6`).
pub const KFI_SOCKADDR_IN6: u32 = 3;

/// Protocol: RC queue pairs through rdma_cm (`FI_PROTO_RDMA_CM_IB_RC`).
pub const KFI_PROTO_RDMA_CM_IB_RC: u32 = 1;
/// Protocol: copies inside one host (`FI_PROTO_SHM`).
pub const KFI_PROTO_SHM: u32 = 14;

/// Completion entry holds the context alone (`FI_CQ_FORMAT_CONTEXT`).
pub const KFI_CQ_FORMAT_CONTEXT: u32 = 1;
/// … and flags and length (`FI_CQ_FORMAT_MSG`).
pub const KFI_CQ_FORMAT_MSG: u32 = 2;
/// … and buffer and completion data (`FI_CQ_FORMAT_DATA`).
pub const KFI_CQ_FORMAT_DATA: u32 = 3;

/// Event: a peer asks to connect (`FI_CONNREQ`).
pub const KFI_CONNREQ: u32 = 1;
/// Event: an endpoint is connected (`FI_CONNECTED`).
pub const KFI_CONNECTED: u32 = 2;
/// Event: a connection ended (`FI_SHUTDOWN`); [`EqRead::err`] is `ENODEV` when the device went.
pub const KFI_SHUTDOWN: u32 = 3;
/// Event: connecting failed or was refused; [`EqRead::err`] and the refuser's data say why. Of a passive
/// endpoint: it listens no more, for the device that its address is on went (`ENODEV`).
/// (libfabric reports it by `fi_eq_readerr`; the value is kfabric's own.)
pub const KFI_CONN_ERROR: u32 = 0x100;

// ---- limits of the interface itself; a provider's own may be lower ----

/// Bytes in a name, with its NUL.
pub const KFI_NAME_MAX: usize = 64;
/// Scatter entries of one operation.
pub const KFI_IOV_MAX: usize = 4;
/// Operations in one [`Submit`].
pub const KFI_SUBMIT_MAX: u32 = 1024;
/// Bytes of payload in one injected operation, at most; see [`InfoEntry::inject_size`].
pub const KFI_INJECT_MAX: usize = 64;
/// Bytes of application data in a connection request or answer, at most.
pub const KFI_CM_DATA_MAX: usize = 192;
/// Key slots reserved in one [`KeyAlloc`], and entries of a [`KeyAssignMany`] and of a
/// [`KeyRevokeMany`].
pub const KFI_KEY_ALLOC_MAX: u32 = 4096;
/// Entries of a completion queue, at most.
pub const KFI_CQ_SIZE_MAX: u32 = 1 << 18;
/// Waiting events of an event queue, at most.
pub const KFI_EQ_SIZE_MAX: u32 = 1 << 16;

/// A socket address: `sockaddr_in` or `sockaddr_in6` in its first `len` bytes (network order as
/// in `<netinet/in.h>`), zero behind it. `len` 0: no address.
///
/// Or a service name, for the providers that have such (kshm): `len` 28, family `AF_UNIX`, then up to
/// 26 bytes, of which the first is not zero; what is not used is zero. A name is one of the host,
/// whatever the namespaces.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct SockAddr {
    /// Bytes of `data` in use: 0, 16 or 28.
    pub len: u32,
    /// The address as the C structure lays it out.
    pub data: [u8; 28],
}

/// What a provider offers, or what a caller wants (a field that is zero means "do not care", but
/// for `mode` and `mr_mode`: there zero means that the caller serves none).
///
/// Fields mean what `fi_getinfo(3)`, `fi_domain(3)` and `fi_endpoint(3)` say of their namesakes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InfoEntry {
    /// Capabilities: `KFI_MSG`, `KFI_RMA`, …
    pub caps: u64,
    /// Modes that the provider requires of its user; in hints: those the caller can serve.
    pub mode: u64,
    /// Registration modes: required by the provider; in hints: those the caller can serve.
    pub mr_mode: u64,
    /// Bytes in the longest message or one-sided operation.
    pub max_msg_size: u64,
    /// Bytes that may be injected.
    pub inject_size: u64,
    /// Operations that the transmit side holds.
    pub tx_size: u32,
    /// Receives that the receive side holds.
    pub rx_size: u32,
    /// Scatter entries of one operation.
    pub iov_limit: u32,
    /// Remote ranges of one one-sided operation.
    pub rma_iov_limit: u32,
    /// Bytes of remote completion data.
    pub cq_data_size: u32,
    /// Bytes of a key value that are significant.
    pub mr_key_size: u32,
    /// Application bytes in a connection request.
    pub cm_data_size: u32,
    /// Endpoint type, `KFI_EP_MSG`.
    pub ep_type: u32,
    /// Protocol, `KFI_PROTO_*`.
    pub protocol: u32,
    /// Address format, `KFI_SOCKADDR*`.
    pub addr_format: u32,
    /// The provider's version, major << 16 | minor.
    pub prov_version: u32,
    /// API version spoken, major << 16 | minor; in hints: the one asked for (0: any).
    pub api_version: u32,
    /// Interface version, [`KFI_ABI_VERSION`].
    pub abi: u32,
    /// Larger is preferred; filled in by providers, ignored in hints.
    pub rank: u32,
    /// Source address, where one is meant.
    pub src_addr: SockAddr,
    /// Destination address, where one is meant.
    pub dest_addr: SockAddr,
    /// Provider name, NUL padded.
    pub prov_name: [u8; KFI_NAME_MAX],
    /// Fabric name, NUL padded.
    pub fabric_name: [u8; KFI_NAME_MAX],
    /// Domain name, NUL padded.
    pub domain_name: [u8; KFI_NAME_MAX],
}
const _: () = assert!(core::mem::size_of::<InfoEntry>() == 40 + 14 * 4 + 64 + 3 * 64);

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
    /// In: entries the array has room for. Out: entries that matched, which may be more.
    pub count: u32,
    /// In: `size_of::<InfoEntry>()` as the caller knows it.
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
    /// Provider name, NUL padded; `-ENOENT` when there is none of that name.
    pub prov_name: [u8; 32],
    /// Fabric name, NUL padded; empty: the provider's first.
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
    /// Zero.
    pub flags: u32,
    /// The fabric.
    pub fabric: u64,
    /// Domain name, NUL padded, as an info entry gave it.
    pub name: [u8; KFI_NAME_MAX],
    /// Pointer to the auth key's bytes, or 0: the domain's default auth key is none.
    pub auth_key: u64,
    /// Bytes of the auth key: 0, or 1 to `KFI_AUTH_KEY_MAX`. What is opened on the domain without
    /// one of its own has this one. Naming it here asks nobody; see [`AuthMode`].
    pub auth_key_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: handle.
    pub handle: u64,
    /// Out: capabilities.
    pub caps: u64,
    /// Out: registration modes required.
    pub mr_mode: u64,
    /// Out: bytes in the longest operation.
    pub max_msg_size: u64,
    /// Out: bytes that may be injected.
    pub inject_size: u32,
    /// Out: operations that a transmit side may hold at most.
    pub max_tx_size: u32,
    /// Out: receives that a receive side may hold at most.
    pub max_rx_size: u32,
    /// Out: scatter entries of one operation.
    pub iov_limit: u32,
    /// Out: application bytes in a connection request of an endpoint with the domain's auth key, or
    /// without one where the domain has none.
    pub cm_data_size: u32,
    /// Zero.
    pub reserved2: u32,
    /// Out: key slots the device can hold, about.
    pub max_keys: u64,
}

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
    /// Waiting events that the queue holds; 0: 64. Room for an endpoint's own events comes on top.
    pub depth: u32,
    /// Out: a descriptor that polls readable while an event waits. Closing it does not close
    /// the queue.
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
    /// Entries wanted; rounded up to a power of two; 0: 1024.
    pub depth: u32,
    /// `KFI_CQ_FORMAT_*`; 0: context.
    pub format: u32,
    /// Out: a descriptor to mmap the ring from (offset 0) and to poll: readable while an entry
    /// waits. Closing it does not close the queue.
    pub fd: i32,
    /// Out: entries of the ring, a power of two.
    pub entries: u32,
    /// Out: bytes to mmap: a [`CqRing`] page, then the entries.
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
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PepOpen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The fabric.
    pub fabric: u64,
    /// The event queue that gets `KFI_CONNREQ`.
    pub eq: u64,
    /// Address to listen on; port 0: one is chosen, [`GetName`] tells it after listen.
    pub addr: SockAddr,
    /// The caller's value, returned in events.
    pub context: u64,
    /// Out: handle.
    pub handle: u64,
    /// Pointer to an array of [`AuthKeyRef`]: who connects must prove to have one of these, and its
    /// request comes when it has ([`EqRead::auth_index`]). 0: who connects has no auth key.
    pub auth_keys: u64,
    /// Auth keys in it, 0 to `KFI_PEP_AUTH_KEYS_MAX`; each only once (`-EINVAL`). Each counts as an
    /// endpoint.
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
    /// [`KFI_EP_OWN_KEYS`], [`KFI_EP_RINGS`] or zero.
    pub flags: u32,
    /// The domain.
    pub domain: u64,
    /// The request of a `KFI_CONNREQ` event, for an endpoint that accepts; else 0. A success
    /// uses it up.
    pub connreq: u64,
    /// Address to connect from; none: chosen by route.
    pub src_addr: SockAddr,
    /// The caller's value, returned in events.
    pub context: u64,
    /// Operations of the transmit side; 0: 128. Out: what it got, no less.
    pub tx_size: u32,
    /// Receives of the receive side; 0: 128. Out: what it got, no less.
    pub rx_size: u32,
    /// Scatter entries of an operation; 0: 1. Out: what it got.
    pub iov_limit: u32,
    /// Zero.
    pub reserved: u32,
    /// Pointer to the endpoint's auth key, or 0: the domain's. With a request it has to be the one
    /// that the peer has proven (`-EKEYREJECTED`).
    pub auth_key: u64,
    /// Bytes of the auth key. An endpoint has one; a program that has several opens an endpoint for
    /// each, on one domain if it likes.
    pub auth_key_size: u32,
    /// Zero.
    pub reserved2: u32,
    /// Out: handle.
    pub handle: u64,
    /// Out: application bytes in its connection request. An endpoint with an auth key has less.
    pub cm_data_size: u32,
    /// Zero.
    pub reserved3: u32,
}

/// Flag of [`EpOpen`]: the peer reaches by this endpoint what is bound to it ([`RegionReg::ep`],
/// [`KeyAlloc::ep`]), and nothing else of its domain; nor does any other endpoint give reach of that
/// (`FI_MR_ENDPOINT`). Closing the endpoint ends the keys that are bound to it first. In operations
/// of its own it may use regions that are bound to it, and of the others those in few pieces
/// (`-EINVAL`: this one is not). `-EOPNOTSUPP` without the capability [`KFI_EP_KEYS`].
pub const KFI_EP_OWN_KEYS: u32 = 1;

/// Flag of [`EpOpen`]: its messages may go through rings that it shares with its peer ([`EpRings`]),
/// if the peer's endpoint has the flag too, the provider can do that (kshm), neither has a counter,
/// and both programs may still pin the memory. Else they go the way that they do without the flag.
pub const KFI_EP_RINGS: u32 = 2;

/// `KFI_IOC_EP_RINGS`: whether the connection has rings, and where. It is known, and does not change
/// any more, once the connection is made or has failed; the endpoint's completion queues are woken
/// then ([`CqRing::alarm`]).
///
/// Rings are for messages alone, and of those for all: what two programs put into them, and which
/// receives they take it with, is theirs (`kfabric::rings` says what this project's library does).
/// The kernel never looks into them. One-sided operations are posted as ever, but nothing that takes
/// a receive of the peer's: it posts none.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EpRings {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
    /// Out: `KFI_RINGS_*`.
    pub state: u32,
    /// Out: with [`KFI_RINGS_SHARED`] a descriptor to map, each part once, and to close. The first
    /// page (`PROT_READ`) is a [`RingsStatus`]; behind it (at the offset of one page) lie two rings of
    /// [`KFI_RING_SIZE`] bytes. Else -1.
    pub fd: i32,
    /// Out: which of the two is this end's to write to: 0 or 1. The other is its peer's.
    pub side: u32,
    /// Out: bytes of a page.
    pub page_size: u32,
    /// Out: bytes of both rings.
    pub map_size: u64,
}

/// State of [`EpRings`]: there is no connection yet.
pub const KFI_RINGS_UNKNOWN: u32 = 0;
/// State of [`EpRings`]: the connection has none.
pub const KFI_RINGS_NONE: u32 = 1;
/// State of [`EpRings`]: there they are.
pub const KFI_RINGS_SHARED: u32 = 2;
/// Bytes of a ring, with its words ([`RingWords`]).
pub const KFI_RING_SIZE: usize = 68 << 10;
/// Offset of a ring's data, which are the rest of it.
pub const KFI_RING_DATA: usize = 4096;

/// The page of rings that only the kernel writes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingsStatus {
    /// 1: one of the two ends has ended the connection, or has died, or the connection has failed.
    /// What had been put into a ring before is there.
    pub ended: u32,
    /// Zero.
    pub reserved: u32,
}

/// What the two ends agree on at the start of a ring. The kernel does not look at it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingWords {
    /// Bytes that were put in; wraps. Written by who sends.
    pub tail: u32,
    /// Zero.
    pub pad: [u32; 31],
    /// Bytes that were taken out; wraps. Written by who receives.
    pub head: u32,
    /// Written by who receives, before the end of the conversation: why it ended, as an errno.
    pub failed: u32,
    /// Zero.
    pub pad2: [u32; 30],
    /// Set to 1 by who receives before it sleeps, and back by who sends when it wakes it.
    pub sleeps: u32,
    /// Zero.
    pub pad3: [u32; 31],
    /// The same the other way round: who sends waits for room.
    pub waits: u32,
    /// Zero.
    pub pad4: [u32; 31],
}
const _: () = assert!(core::mem::size_of::<RingWords>() == 512);

/// `KFI_IOC_EP_WAKE`: wakes who waits at the other end's completion queues. `-ENOTCONN`: the
/// endpoint has no rings.
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

/// Flag of [`EpWake`]: this end's queues, not the other's.
pub const KFI_WAKE_SELF: u32 = 1;

/// `KFI_IOC_BIND`. Before enable; a second bind of the same kind is `-EINVAL`.
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

/// A call that needs no more than an object.
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

/// `KFI_IOC_LISTEN`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Listen {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The passive endpoint.
    pub pep: u64,
    /// Requests that may wait; 0: 64.
    pub backlog: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_CONNECT`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Connect {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint, enabled.
    pub ep: u64,
    /// Whom to connect to.
    pub addr: SockAddr,
    /// Pointer to application data for the peer's `KFI_CONNREQ`.
    pub param: u64,
    /// Bytes of it, up to `cm_data_size`.
    pub param_len: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_ACCEPT`.
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
    /// Bytes of it.
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
    /// Bytes of it.
    pub param_len: u32,
    /// Zero.
    pub reserved: u32,
}

/// `KFI_IOC_SHUTDOWN`.
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

/// `KFI_IOC_GETNAME`.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GetName {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// An endpoint or passive endpoint.
    pub handle: u64,
    /// 0: its own address; 1: its peer's.
    pub peer: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: the address.
    pub addr: SockAddr,
}

/// `KFI_IOC_EQ_READ`. `-EAGAIN` when no event waits.
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
    /// In: bytes it has room for; too little is `-EMSGSIZE` and the event stays. Out: bytes there.
    pub data_len: u32,
    /// Out: `KFI_CONNREQ`, `KFI_CONNECTED`, …
    pub event: u32,
    /// Out: handle of the object that the event is about (the passive endpoint for a request).
    pub object: u64,
    /// Out: that object's context.
    pub context: u64,
    /// Out, for `KFI_CONNREQ`: the request, to open an endpoint with or to reject. [`Close`]
    /// refuses it too.
    pub connreq: u64,
    /// Out: positive errno for `KFI_CONN_ERROR` and for a shutdown by failure; else 0.
    pub err: u32,
    /// Out: the provider's own code (verbs: the reject reason or CM status).
    pub prov_errno: u32,
    /// Pointer to one [`InfoEntry`] (of this, its first, size) that a `KFI_CONNREQ` fills, or 0:
    /// provider, fabric and domain to accept on, our address and the peer's.
    pub info: u64,
    /// Out, for `KFI_CONNREQ`: which auth key of the passive endpoint the peer has proven to have,
    /// counted from 1; 0: that has none.
    pub auth_index: u32,
    /// Zero.
    pub reserved: u32,
}
/// Flag of [`EqRead`]: leave the event.
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
    /// In: the operand. Out: operations that succeeded.
    pub value: u64,
    /// Out: operations that failed.
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

/// `KFI_IOC_CNTR_WAIT`. Interruptible; `-ETIMEDOUT`; `-EIO` when the error count changed.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CntrWait {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The counter.
    pub cntr: u64,
    /// Value to reach.
    pub threshold: u64,
    /// When to give up: nanoseconds of `CLOCK_MONOTONIC` as the caller's time namespace has it, absolute;
    /// `u64::MAX`: never.
    pub deadline: u64,
    /// Zero.
    pub reserved: u64,
}

/// `KFI_IOC_REGION_REG`.
///
/// The memory is pinned and charged to the caller's `RLIMIT_MEMLOCK` (`-ENOMEM` beyond it). The
/// region is what is pinned now, whatever is mapped at its addresses later; but where a device
/// needs a registration of its own (many scattered pages), that one, and each key of that sort,
/// takes what is mapped at its time, so a program must not remap memory under a region.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionReg {
    /// Size of this structure.
    pub size: u32,
    /// [`KFI_REGION_DYNAMIC_KEYS`] or zero.
    pub flags: u32,
    /// The domain.
    pub domain: u64,
    /// First byte of the memory; any alignment.
    pub addr: u64,
    /// Bytes; zero is `-EINVAL`.
    pub len: u64,
    /// What the memory may ever be used for: `KFI_SEND`, `KFI_RECV`, `KFI_READ`, `KFI_WRITE`,
    /// `KFI_REMOTE_READ`, `KFI_REMOTE_WRITE`, and with both of these `KFI_ATOMIC`. `RECV`, `READ` and
    /// `REMOTE_WRITE` change the memory and need a writable mapping. `-EOPNOTSUPP`: `KFI_ATOMIC` where
    /// the domain has none.
    pub access: u64,
    /// Out: handle.
    pub handle: u64,
    /// Out: the region's own key, if `access` has a remote right and no dynamic keys were asked
    /// for; else `KFI_KEY_NOTAVAIL`.
    pub key: u64,
    /// Out: the address at which a peer finds the region's first byte by that key.
    pub remote_addr: u64,
    /// Out: pages charged.
    pub pages: u64,
    /// An endpoint of the domain with keys of its own ([`KFI_EP_OWN_KEYS`]) that the region, and
    /// with it its key or key slots, is bound to; 0: none. Another endpoint is `-EINVAL`.
    pub ep: u64,
    /// Pointer to the region's auth key, or 0: that of the endpoint it is bound to, else the
    /// domain's. Another one than that endpoint's is `-EINVAL`. Endpoints with other auth keys may
    /// use the region in operations of their own where it lies in few pieces (`-EINVAL`).
    pub auth_key: u64,
    /// Bytes of the auth key.
    pub auth_key_size: u32,
    /// Zero.
    pub reserved: u32,
}
/// Flag of [`RegionReg`]: no key at registration; keys come by alloc and assign.
pub const KFI_REGION_DYNAMIC_KEYS: u32 = 1;

/// `KFI_IOC_KEY_ALLOC`: reserves all that an assign needs. All slots or none. `-ENOSPC`: no
/// key values are left that the device has not given out before.
///
/// A revoked key's part of it ends with the key, and the revocation has it anew before it returns.
/// If it cannot, the key has ended all the same; a little later a worker tries again, and so does
/// an assign that comes before, which may then fail for want of it (`-ENOMEM`, `-ENOSPC`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyAlloc {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// A region with dynamic keys.
    pub region: u64,
    /// Slots wanted, 1 to `KFI_KEY_ALLOC_MAX`.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
    /// Pointer to `count` u64s for their handles.
    pub handles: u64,
    /// An endpoint of the region's domain with keys of its own ([`KFI_EP_OWN_KEYS`]) that the slots
    /// are bound to: their keys are valid on it alone, and end when it is closed, after which the
    /// slots get no more (`-ENOENT`). 0: the one that the region is bound to, or none. Another
    /// endpoint is `-EINVAL`, also on a region that is bound to one.
    pub ep: u64,
    /// Pointer to the auth key under which the slots' keys are valid, or 0: that of the endpoint they
    /// are bound to, else the region's. Another one than that endpoint's is `-EINVAL`.
    pub auth_key: u64,
    /// Bytes of the auth key.
    pub auth_key_size: u32,
    /// Zero.
    pub reserved2: u32,
}

/// `KFI_IOC_KEY_ASSIGN`. `-EINVAL` for an empty range, one that is not inside the region, or no
/// right; `-EACCES` for a right that the region was not registered for, or memory of another
/// process; `-EBUSY` when the slot has a key; `-EMSGSIZE` for more pages than the device can have a
/// key for; `-ENOENT` for no slot, or one that is closed meanwhile; `-ENODEV` when the device is
/// gone; `-EIO` or `-ETIMEDOUT` when it failed; `-EKEYREVOKED` or `-EKEYEXPIRED` when the grant of
/// the slot's auth key is over. The key is valid under the slot's auth key. `-ENOMEM` and `-ENOSPC` only
/// for a window that has to be registered in full, or as [`KeyAlloc`] says. With `KFI_KEY_ORDERED` as
/// [`KeyAssignMany`] with one entry, for less.
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
    /// Bytes; 1 or more; offset + length within the region (`-EINVAL`).
    pub length: u64,
    /// `KFI_REMOTE_READ`, `KFI_REMOTE_WRITE` or both, and with both `KFI_ATOMIC`; within the region's
    /// access (`-EACCES`).
    pub access: u64,
    /// Out: the value for peers.
    pub key: u64,
    /// Out: the address at which a peer finds the first byte.
    pub remote_addr: u64,
    /// As [`KeyAssignMany::cq`]; the entry's `data` and `len` are zero.
    pub cq: u64,
    /// As [`KeyAssignMany::context`].
    pub context: u64,
}

/// `KFI_IOC_KEY_ASSIGN_MANY`: assigns slots, of any regions, in order, and stops at the first that
/// is refused. When it returns the keys are valid everywhere. It costs far less than as many calls
/// of one, for the device is waited for once for each 64.
///
/// The call's error is the first entry's; when some were assigned it succeeds and `done` and `err`
/// say how far it came: the first `done` entries have their keys and no other got one. A slot that
/// is just being assigned or revoked by another call is waited for. Where the device refuses a
/// whole chain of up to 64, none of those has a key. What is used of an entry is fetched once; one
/// that cannot be read is refused (`EFAULT`). A key whose value cannot be stored in its entry is
/// revoked again (`EFAULT`). The call's own list of the entries takes memory: where there is none,
/// it assigns the next entry, or what it has listed, and stops with `ENOMEM`; `done` is not 0 then,
/// and another call goes on.
///
/// With `KFI_KEY_ORDERED` the device is not waited for: the keys are told at once, and are valid
/// before anything takes effect that is posted on their domain afterwards, so a message that
/// carries one may follow immediately. (What is posted is held meanwhile. A key that cannot be told
/// beforehand, as those of windows beyond the device's fast registration, is waited for all the
/// same. The private data of `KFI_IOC_CONNECT` and `KFI_IOC_ACCEPT` is not held.) Should the device
/// fail after that, `cq`, a queue of the slots' domain, gets an error entry for up to 64 keys that
/// were asked for together: `context` is the call's, `data` the index of their first in `entries`,
/// `len` how many of them from there on came to be, and `err` why the next one did not: `EIO`,
/// `ETIMEDOUT`, `ENODEV`, `ENOMEM` or what the device says. The others' slots are as they were, and
/// what was told of them never worked. Room for it is reserved by the call, which stops with
/// `EAGAIN` when there is none or too much is to be made yet, and with `EOPNOTSUPP` where the
/// provider has no ordered keys. Until it is known how it went the queue does not close (`EBUSY`),
/// and a revocation waits.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyAssignMany {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_KEY_ORDERED`, `KFI_KEY_SINGLE_USE` or zero.
    pub flags: u32,
    /// Pointer to an array of [`KeyEntry`].
    pub entries: u64,
    /// Entries in it, 1 to `KFI_KEY_ALLOC_MAX`.
    pub count: u32,
    /// `size_of::<KeyEntry>()`; another value is `-EINVAL`.
    pub entry_size: u32,
    /// Out: entries that have their keys.
    pub done: u32,
    /// Out: positive errno that stopped the rest, or 0; what [`KeyAssign`] says, `EFAULT`, `ENOMEM`
    /// or (the process is being killed) `EINTR`.
    pub err: u32,
    /// With `KFI_KEY_ORDERED`: a completion queue that hears of failures, or zero. Else zero.
    pub cq: u64,
    /// With a `cq`: the `context` of its entries. Else zero.
    pub context: u64,
}
/// Flag of [`KeyAssign`] and [`KeyAssignMany`]: a key ends with the first operation that is done by
/// it; of several at once one is done. The slot can be assigned again then. `-EOPNOTSUPP` without the
/// capability [`KFI_SINGLE_USE_KEYS`].
pub const KFI_KEY_SINGLE_USE: u32 = 2;
/// Flag of [`KeyAssign`] and [`KeyAssignMany`]: the keys are told at once, and valid before what is
/// posted afterwards.
pub const KFI_KEY_ORDERED: u32 = 1;

/// One assignment of a [`KeyAssignMany`]; the fields are those of [`KeyAssign`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyEntry {
    /// The slot.
    pub slot: u64,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Bytes; 1 or more.
    pub length: u64,
    /// `KFI_REMOTE_READ`, `KFI_REMOTE_WRITE` or both, and with both `KFI_ATOMIC`.
    pub access: u64,
    /// Out: the value for peers.
    pub key: u64,
    /// Out: the address at which a peer finds the first byte.
    pub remote_addr: u64,
}
const _: () = assert!(core::mem::size_of::<KeyEntry>() == 48);

/// `KFI_IOC_KEY_REVOKE_MANY`: ends the keys of listed slots, of a region, of a domain, of an
/// endpoint or of the file. When it returns, nothing is read or written any more through any of the keys that they had
/// when it was called. The slots stay reserved and may be assigned anew.
///
/// A slot without a key is passed over. Regions that were registered with a key of their own lose
/// it for good, if it is in the scope. What another call is just assigning or revoking is waited
/// for, after all the others have ended. A list is gone through in order, up to the first handle
/// that names no slot: the call's error is the first entry's; where some were dealt with it
/// succeeds, and `done` and `err` say how far it came. Signals do not stop it, but for one that
/// kills.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct KeyRevokeMany {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// `KFI_REVOKE_*`.
    pub scope: u32,
    /// With `KFI_REVOKE_SLOTS`: slots listed, 1 to `KFI_KEY_ALLOC_MAX`. With `KFI_REVOKE_AUTH`: bytes
    /// of the auth key, 1 to `KFI_AUTH_KEY_MAX`. Else zero.
    pub count: u32,
    /// With `KFI_REVOKE_REGION` the region, with `KFI_REVOKE_DOMAIN` the domain, with
    /// `KFI_REVOKE_EP` the endpoint. Else zero.
    pub object: u64,
    /// With `KFI_REVOKE_SLOTS`: pointer to `count` u64s, the handles. With `KFI_REVOKE_AUTH`: pointer
    /// to the auth key. Else zero.
    pub slots: u64,
    /// Out: entries of the list dealt with; 0 without a list.
    pub done: u32,
    /// Out: positive errno that stopped the rest, or 0: `ENOENT`, `EFAULT`, `ENOMEM` or (the process
    /// is being killed) `EINTR`.
    pub err: u32,
    /// Out: keys that this call ended.
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
/// Scope of [`KeyRevokeMany`]: all slots that are bound to an endpoint; `-EINVAL` for one without
/// keys of its own.
pub const KFI_REVOKE_EP: u32 = 4;
/// Scope of [`KeyRevokeMany`]: all slots of the file whose keys are valid under an auth key. Nobody
/// is asked whether the caller may use that: the keys are its own.
pub const KFI_REVOKE_AUTH: u32 = 5;

/// In place of a region's handle in an [`Iov`]: `offset` is an address of the caller's own memory,
/// which is neither registered nor pinned. It may be the only piece of a read or a write, where the
/// provider has the capability [`KFI_UNREGISTERED_RMA`] (`-EOPNOTSUPP`: it has not). The bytes are
/// copied before the call returns. `-EFAULT`: nothing can be copied there; what cannot be copied later
/// on ends the operation, and the connection, with `EFAULT`. `-EAGAIN`: operations before it are not
/// over yet.
pub const KFI_UNREGISTERED: u64 = u64::MAX;

/// A piece of local memory: part of a region.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Iov {
    /// The region, or [`KFI_UNREGISTERED`].
    pub region: u64,
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// One operation of a [`Submit`].
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpEntry {
    /// `KFI_OP_*`.
    pub op: u32,
    /// Entries of `iov` in use, 0 to the endpoint's `iov_limit`. With `KFI_INJECT`, and for
    /// `KFI_OP_ATOMIC`: 0.
    pub iov_count: u32,
    /// `KFI_COMPLETION`, `KFI_INJECT`, `KFI_REMOTE_CQ_DATA`, `KFI_FENCE`.
    pub flags: u64,
    /// The caller's value, returned in the completion.
    pub context: u64,
    /// Completion data for the peer, with `KFI_REMOTE_CQ_DATA`; up to `cq_data_size` bytes.
    pub data: u64,
    /// For one-sided operations: the peer's address.
    pub remote_addr: u64,
    /// For one-sided operations: the peer's key.
    pub key: u64,
    /// With `KFI_INJECT`: pointer to the payload. For atomics: pointer to the operands, behind
    /// which those to compare with lie. They are taken before the call returns.
    pub inject: u64,
    /// Bytes there, up to `KFI_INJECT_MAX`.
    pub inject_len: u64,
    /// For atomics: what is done, `KFI_ATOMIC_*`. Else zero.
    pub atomic_op: u32,
    /// For atomics: type of the values, `KFI_UINT64` and others. Else zero.
    pub datatype: u32,
    /// Local memory. Of a fetching atomic: where what was there goes.
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
/// Changes values in remote memory (`fi_atomic(3)`). Their address is a multiple of their size, else
/// `-EINVAL`; what the domain does not do ([`AtomicQuery`]) is `-EOPNOTSUPP`, more at once than it
/// does `-EMSGSIZE`. The key takes `KFI_ATOMIC`.
pub const KFI_OP_ATOMIC: u32 = 4;
/// As [`KFI_OP_ATOMIC`], and gives what was there (`fi_fetch_atomic`).
pub const KFI_OP_FETCH_ATOMIC: u32 = 5;
/// As [`KFI_OP_FETCH_ATOMIC`], with values to compare with (`fi_compare_atomic`).
pub const KFI_OP_COMPARE_ATOMIC: u32 = 6;

/// Type of values (`enum fi_datatype`): 8 bits, signed.
pub const KFI_INT8: u32 = 0;
/// 8 bits, unsigned.
pub const KFI_UINT8: u32 = 1;
/// 16 bits, signed.
pub const KFI_INT16: u32 = 2;
/// 16 bits, unsigned.
pub const KFI_UINT16: u32 = 3;
/// 32 bits, signed.
pub const KFI_INT32: u32 = 4;
/// 32 bits, unsigned.
pub const KFI_UINT32: u32 = 5;
/// 64 bits, signed.
pub const KFI_INT64: u32 = 6;
/// 64 bits, unsigned.
pub const KFI_UINT64: u32 = 7;

/// What an atomic does (`enum fi_op`): leaves the smaller one.
pub const KFI_ATOMIC_MIN: u32 = 0;
/// Leaves the larger one.
pub const KFI_ATOMIC_MAX: u32 = 1;
/// Adds, and wraps.
pub const KFI_ATOMIC_SUM: u32 = 2;
/// Multiplies, and wraps.
pub const KFI_ATOMIC_PROD: u32 = 3;
/// Logical or.
pub const KFI_ATOMIC_LOR: u32 = 4;
/// Logical and.
pub const KFI_ATOMIC_LAND: u32 = 5;
/// Bitwise or.
pub const KFI_ATOMIC_BOR: u32 = 6;
/// Bitwise and.
pub const KFI_ATOMIC_BAND: u32 = 7;
/// Logical exclusive or.
pub const KFI_ATOMIC_LXOR: u32 = 8;
/// Bitwise exclusive or.
pub const KFI_ATOMIC_BXOR: u32 = 9;
/// Reads; with [`KFI_OP_FETCH_ATOMIC`] alone, and without operands.
pub const KFI_ATOMIC_READ: u32 = 10;
/// Writes; fetching, that is a swap.
pub const KFI_ATOMIC_WRITE: u32 = 11;
/// With [`KFI_OP_COMPARE_ATOMIC`] alone, as all that follow: writes if what is compared with is equal
/// to what is there.
pub const KFI_ATOMIC_CSWAP: u32 = 12;
/// … not equal.
pub const KFI_ATOMIC_CSWAP_NE: u32 = 13;
/// … less or equal.
pub const KFI_ATOMIC_CSWAP_LE: u32 = 14;
/// … less.
pub const KFI_ATOMIC_CSWAP_LT: u32 = 15;
/// … greater or equal.
pub const KFI_ATOMIC_CSWAP_GE: u32 = 16;
/// … greater.
pub const KFI_ATOMIC_CSWAP_GT: u32 = 17;
/// Writes those bits that are set in what is compared with.
pub const KFI_ATOMIC_MSWAP: u32 = 18;

/// `KFI_IOC_ATOMIC_QUERY` (`fi_query_atomic`): whether a domain has an atomic. `-EOPNOTSUPP`: it has
/// not; `-EINVAL`: nobody has.
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
    /// Out: bytes of a value.
    pub value_size: u32,
    /// Out: values that one operation may have, at most.
    pub count: u64,
}

/// `KFI_IOC_SUBMIT`: posts operations in order and stops at the first that is refused.
///
/// The call's error is the first operation's; when some were accepted it succeeds and `done`
/// and `err` say how far it came. Each entry is fetched once.
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
    /// Entries in it, 1 to `KFI_SUBMIT_MAX`.
    pub count: u32,
    /// `size_of::<OpEntry>()`; another value is `-EINVAL`.
    pub entry_size: u32,
    /// Out: operations accepted.
    pub done: u32,
    /// Out: positive errno that stopped the rest, or 0. `EAGAIN`: the endpoint or a completion
    /// queue is full.
    pub err: u32,
}

/// `KFI_IOC_CANCEL`: asks for one receive to end with `ECANCELED`. `-ENOENT`: none waits;
/// `-EOPNOTSUPP`: the provider cannot.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Cancel {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The endpoint.
    pub ep: u64,
    /// Context of the operation.
    pub context: u64,
}

/// `KFI_IOC_CLOSE`: `-EBUSY` while children are open.
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

/// `KFI_IOC_OBJ_LIST`: objects of every open file where both who opened this one and the caller
/// have `CAP_SYS_ADMIN`, else of this file and of those that the caller's user opened, as this one.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjList {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to an array of [`ObjInfo`].
    pub entries: u64,
    /// In: entries it has room for. Out: entries there are, which may be more.
    pub count: u32,
    /// `size_of::<ObjInfo>()` as the caller knows it.
    pub entry_size: u32,
    /// Zero.
    pub reserved: [u64; 3],
}

/// One live object.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ObjInfo {
    /// `KFI_TYPE_*`.
    pub kind: u32,
    /// Process that opened the file, in the lister's pid namespace; 0: not visible there.
    pub pid: u32,
    /// Handle in that file.
    pub handle: u64,
    /// Handle of the object it was opened on; 0: none.
    pub parent: u64,
    /// By kind. Region: length. Key: length. Endpoint: operations outstanding. Queue: depth.
    /// Counter: value. Domain: bytes pinned on it.
    pub a: u64,
    /// By kind. Region: access. Key: access (0: not assigned). Endpoint: `KFI_STATE_*`.
    /// Queue: entries waiting. Counter: errors.
    pub b: u64,
    /// By kind. Region: pages charged. Key: offset. Endpoint: operations ever completed.
    pub c: u64,
    /// Command name of that process.
    pub comm: [u8; 16],
    /// Provider and domain, or address, as text. Key: its state (`reserved`, `assigning`,
    /// `promised`: told but not yet made, `assigned`, `used`: it was for one use, `revoking`, `closed`),
    /// a space, and how many keys the slot has had.
    pub name: [u8; KFI_NAME_MAX],
    /// Domain, endpoint, region, key: number of its auth key ([`GrantInfo::key`]); 0: none. Who may not
    /// see all that there is sees 1 for each.
    pub auth: u64,
    /// Region, key: handle of the endpoint that it is bound to, which may be closed by now; 0: none.
    pub ep: u64,
}
const _: () = assert!(core::mem::size_of::<ObjInfo>() == 48 + 80 + 8 + 8);

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
/// A connection request not yet answered.
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

/// Bytes of an auth key, at most.
pub const KFI_AUTH_KEY_MAX: usize = 64;
/// Auth keys of a passive endpoint, at most.
pub const KFI_PEP_AUTH_KEYS_MAX: usize = 8;
/// Application bytes in a connection request of an endpoint with an auth key.
pub const KFI_AUTH_CM_DATA: usize = 21;

/// An auth key: opaque bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AuthKeyRef {
    /// Pointer to the bytes.
    pub addr: u64,
    /// How many, 1 to `KFI_AUTH_KEY_MAX`.
    pub size: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(core::mem::size_of::<AuthKeyRef>() == 16);

/// `KFI_IOC_AUTH_MODE`: shows what auth keys mean on this machine, and sets what `flags` says.
///
/// An auth key divides. What is exported under one (the slot's or region's, else the domain's) is
/// reached by endpoints with the same one and by no others; endpoints of two hosts connect if both
/// kernels prove to each other to have the same one, or both have none.
///
/// With `KFI_AUTH_OPEN` whoever knows an auth key may use it. With `KFI_AUTH_ENFORCE` an endpoint,
/// a passive endpoint, a key slot, a region with a key of its own, and a region with an auth key,
/// are opened only under a grant that covers the caller. Where no grant does, the agent is asked, and
/// the call waits, killably. What was opened before stays. Consumers in the kernel are not asked.
///
/// | errno of a call that opens | |
/// |---|---|
/// | `-EACCES` | denied |
/// | `-ENOKEY` | no auth key, or no grant and no agent that could give one |
/// | `-ETIMEDOUT` | the agent did not answer in time |
/// | `-EAGAIN` | too many questions of this process, or of all, wait for the agent |
/// | `-EDQUOT` | beyond the limits of the grant |
/// | `-EKEYREVOKED`, `-EKEYEXPIRED` | the grant is over; what was opened under it gets this, too |
/// | `-EKEYREJECTED` | the peer has not proven to have the auth key (in events also) |
/// | `-EOPNOTSUPP` | the provider cannot keep auth keys apart |
///
/// The caller is the task that makes the call, with its effective uid and gids and its cgroup; its
/// network namespace is the one that the file was opened in.
///
/// This call, those about grants and those of the agent are the administrator's: who opened the file
/// and the caller both need `CAP_SYS_ADMIN` in the initial user namespace (`-EPERM`).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AuthMode {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_AUTH_SET_*`: what to set; zero: nothing.
    pub flags: u32,
    /// `KFI_AUTH_OPEN` or `KFI_AUTH_ENFORCE`. Out: what is.
    pub mode: u32,
    /// How long the agent has for an answer, in milliseconds, 1 to 600,000; 10,000 at first. Out:
    /// what is.
    pub timeout_ms: u32,
    /// For how long a denial is remembered, in milliseconds, up to 600,000; 1,000 at first. Out: what
    /// is.
    pub deny_ms: u32,
    /// Questions of one process that may wait, 1 to 4096; 64 at first. Out: what is.
    pub asks: u32,
    /// Out: the agent's process, in the caller's pid namespace; 0: there is none, or not there.
    pub agent: u32,
    /// Out: 1 where there is an agent, else 0.
    pub agents: u32,
    /// Out: grants there are.
    pub grants: u32,
    /// Out: questions without an answer.
    pub waiting: u32,
    /// Zero.
    pub reserved: u64,
}
/// Mode: no grant is needed.
pub const KFI_AUTH_OPEN: u32 = 0;
/// Mode: nothing without a grant.
pub const KFI_AUTH_ENFORCE: u32 = 1;
/// Flag of [`AuthMode`]: sets the mode.
pub const KFI_AUTH_SET_MODE: u32 = 1;
/// Flag of [`AuthMode`]: sets the time for an answer.
pub const KFI_AUTH_SET_TIMEOUT: u32 = 2;
/// Flag of [`AuthMode`]: sets for how long a denial is remembered.
pub const KFI_AUTH_SET_DENY: u32 = 4;
/// Flag of [`AuthMode`]: sets how many questions of a process may wait.
pub const KFI_AUTH_SET_ASKS: u32 = 8;

/// Right of a grant: to open endpoints and passive endpoints.
pub const KFI_AUTH_EP: u32 = 1;
/// Right of a grant: to have keys: key slots, and regions with a key.
pub const KFI_AUTH_KEYS: u32 = 2;

/// What a grant looks at: the effective uid.
pub const KFI_MATCH_UID: u32 = 1;
/// What a grant looks at: the effective gid and the supplementary groups.
pub const KFI_MATCH_GID: u32 = 2;
/// What a grant looks at: the cgroup (v2), and those it is in.
pub const KFI_MATCH_CGROUP: u32 = 4;
/// What a grant looks at: the network namespace.
pub const KFI_MATCH_NETNS: u32 = 8;
/// What a grant looks at: the process.
pub const KFI_MATCH_PROCESS: u32 = 16;

/// `KFI_IOC_GRANT_ADD`: whoever all of `match_` is true of may use the auth key from now on. A grant
/// stays until it is revoked or over, whatever becomes of the file.
///
/// `-EBUSY`: a grant of this auth key was revoked or is over, and something opened under it has not
/// ended yet. `-ESRCH`: the process is gone. `-EBADF`: no pidfd, no network namespace. `-ENOSPC`:
/// there are 65,536 grants.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantAdd {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to the auth key.
    pub auth_key: u64,
    /// Bytes of it, 1 to `KFI_AUTH_KEY_MAX`.
    pub auth_key_size: u32,
    /// `KFI_MATCH_*`; not zero. What is not named must be zero below.
    pub match_: u32,
    /// `KFI_AUTH_*` rights; not zero.
    pub rights: u32,
    /// A user, in the initial user namespace.
    pub uid: u32,
    /// A group, in the initial user namespace.
    pub gid: u32,
    /// A pidfd of the process (not of a thread). That process alone is meant, and no later one with
    /// its number.
    pub pidfd: i32,
    /// A descriptor of the network namespace.
    pub netns_fd: i32,
    /// Keys at once, at most; 0: no limit. A slot counts as one, and a region's own key.
    pub max_keys: u32,
    /// The id of the cgroup: the inode number of its directory.
    pub cgroup: u64,
    /// Bytes in regions at once, at most; 0: no limit.
    pub max_pinned: u64,
    /// For how long, in milliseconds; 0: without end.
    pub lifetime_ms: u64,
    /// Endpoints at once, at most; 0: no limit.
    pub max_eps: u32,
    /// Zero.
    pub reserved: u32,
    /// Out: the grant, never used for another.
    pub id: u64,
}

/// `KFI_IOC_GRANT_CHANGE`. What is beyond a lower limit stays. `-ENOENT`: no such grant, or it is
/// over.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantChange {
    /// Size of this structure.
    pub size: u32,
    /// `KFI_GRANT_LIMITS`, `KFI_GRANT_LIFETIME`; not zero. What is not named must be zero below.
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
/// Flag of [`GrantChange`]: the limits, all of them.
pub const KFI_GRANT_LIMITS: u32 = 1;
/// Flag of [`GrantChange`]: for how long.
pub const KFI_GRANT_LIFETIME: u32 = 2;

/// `KFI_IOC_GRANT_REVOKE`: nothing more is opened under the grant, its endpoints are closed (the
/// peer sees the connection end; the owner gets an event with `EKEYREVOKED`) and its keys revoked,
/// when this returns. A key that is just being made under it dies as it comes to be. `-ENOENT`: no
/// such grant, or it is over. `-EINTR`: the task is being killed; it goes on all the same.
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
    /// In: entries it has room for. Out: grants there are, which may be more.
    pub count: u32,
    /// `size_of::<GrantInfo>()` as the caller knows it.
    pub entry_size: u32,
    /// Zero.
    pub reserved: u64,
}

/// One grant. Nothing here says anything about the auth key's bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GrantInfo {
    /// The grant.
    pub id: u64,
    /// Number of the auth key: any, and the same for the same bytes as long as anything uses them.
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
    /// Bytes in regions now.
    pub pinned: u64,
    /// Keys now.
    pub keys: u32,
    /// Endpoints now.
    pub eps: u32,
    /// Milliseconds left; 0: without end, or over.
    pub left_ms: u64,
    /// `KFI_GRANT_*` state.
    pub state: u32,
    /// 1: the agent's answer; 0: installed.
    pub answered: u32,
}
const _: () = assert!(core::mem::size_of::<GrantInfo>() == 104);
/// State of a grant: valid.
pub const KFI_GRANT_VALID: u32 = 0;
/// State of a grant: revoked, and not all has ended.
pub const KFI_GRANT_REVOKED: u32 = 1;
/// State of a grant: its time is over, and not all has ended.
pub const KFI_GRANT_EXPIRED: u32 = 2;

/// `KFI_IOC_AGENT_OPEN`: the file becomes the agent. A former one gets `-ESTALE` from now on, and what
/// it has not answered the new one is asked. The file polls readable while a question waits, and
/// `POLLHUP` once it is the agent no more. When it is closed there is no agent; who waits is denied
/// with `-ENOKEY`. `-EALREADY`: it is the agent.
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

/// `KFI_IOC_AGENT_NEXT`: may this process use this auth key? `-EAGAIN`: nobody asks. `-ESTALE`: the
/// file is the agent no more. `-EINVAL`: it never was.
///
/// Equal questions of a process are one. One that its process gives up (it was killed) is not asked
/// any more; the answer is `-ENOENT`.
///
/// What the task is was taken when it asked: its user, groups, control group and namespaces belong to
/// one moment. What is not in `known` the agent does not know: it is not the same as none.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentNext {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// Pointer to `KFI_AUTH_KEY_MAX` bytes for the auth key.
    pub auth_key: u64,
    /// Out: bytes of it. The rest is zero.
    pub auth_key_size: u32,
    /// Out: what is wanted, `KFI_AUTH_*` rights.
    pub rights: u32,
    /// Out: the question.
    pub id: u64,
    /// Out: the process: the inode number of its pidfd (`fstat(2)`), never another's. A pidfd that
    /// `pidfd_open(2)` makes of `pid` is one of this process if its inode number is this.
    pub process: u64,
    /// Out: the process, in the caller's pid namespace; 0: not there.
    pub pid: u32,
    /// Out: effective uid, in the initial user namespace.
    pub uid: u32,
    /// Out: effective gid, in the initial user namespace.
    pub gid: u32,
    /// Out: milliseconds that are left for an answer.
    pub left_ms: u32,
    /// Out: id of its cgroup (v2).
    pub cgroup: u64,
    /// Out: cookie of its network namespace (`SO_NETNS_COOKIE`).
    pub netns: u64,
    /// Out: command name.
    pub comm: [u8; 16],
    /// Out: name of the domain.
    pub domain: [u8; KFI_NAME_MAX],
    /// Pointer to room for its supplementary groups, each a 32-bit gid in the initial user namespace;
    /// 0: not wanted.
    pub groups: u64,
    /// Pointer to room for the path of its cgroup (v2), from the root of the hierarchy, without a
    /// NUL; 0: not wanted.
    pub cgroup_path: u64,
    /// In: groups that there is room for. Out: groups that the task has; only as many as there is
    /// room for were written.
    pub groups_count: u32,
    /// In: bytes that there is room for. Out: bytes of the path; 0 if it is not known or has no room.
    pub cgroup_path_size: u32,
    /// Out: inode number of its user namespace, as in `/proc/PID/ns/user`.
    pub userns: u64,
    /// Out: `KFI_KNOWN_*`.
    pub known: u32,
    /// Zero.
    pub reserved: u32,
}
/// What is known of who asks: all supplementary groups.
pub const KFI_KNOWN_GROUPS: u32 = 1;
/// What is known of who asks: the cgroup's path.
pub const KFI_KNOWN_CGROUP: u32 = 2;

impl Default for AgentNext {
    fn default() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// `KFI_IOC_AGENT_ANSWER`: yes or no. A yes is a grant: for what `match_` names of the process that
/// asks, with these limits, for so long. A no is remembered for a little while.
///
/// `-ENOENT`: there is no such question any more, or it was answered. `-ESTALE`: the file is the agent
/// no more. `-EINVAL`: it never was; or the rights do not cover the question. `-EBUSY`, `-ENOSPC`: as
/// [`GrantAdd`]; the question stays.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AgentAnswer {
    /// Size of this structure.
    pub size: u32,
    /// Zero.
    pub flags: u32,
    /// The question.
    pub id: u64,
    /// `KFI_AUTH_DENY` or `KFI_AUTH_ALLOW`. With a denial all that follows is zero.
    pub verdict: u32,
    /// `KFI_MATCH_*`: for whom; 0: for the process that asks.
    pub match_: u32,
    /// `KFI_AUTH_*` rights; 0: those that were asked for.
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
    /// Out: the grant.
    pub grant: u64,
}
/// Verdict: no.
pub const KFI_AUTH_DENY: u32 = 0;
/// Verdict: yes.
pub const KFI_AUTH_ALLOW: u32 = 1;

// ---- the completion ring ----

/// Bytes from the mapping's start to its first entry.
pub const KFI_CQ_RING_OFFSET: usize = 4096;

/// The first page of a completion queue's mapping.
///
/// The kernel writes entry `head & (entries - 1)`, then `head` with release order. The program
/// loads `head` with acquire order, reads entries from `tail` up to it, then stores `tail` with
/// release order. Both count up and wrap at 2^32. The kernel never reads back what it wrote; a
/// `tail` that lies stops only this queue.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqRing {
    /// Written by the kernel.
    pub head: u32,
    /// Written by the kernel: entries of the ring.
    pub entries: u32,
    /// Written by the kernel: `size_of::<CqEntry>()`.
    pub entry_size: u32,
    /// Zero; keeps the two writers on cache lines of their own.
    pub pad: [u32; 29],
    /// Written by the program.
    pub tail: u32,
    /// Set to 1 by the kernel when something has happened to an endpoint with rings ([`EpRings`]),
    /// and back by the program before it looks; the queue is readable meanwhile.
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
    /// What completed: `KFI_MSG|KFI_SEND`, `KFI_MSG|KFI_RECV`, `KFI_RMA|KFI_READ`,
    /// `KFI_RMA|KFI_WRITE`, `KFI_ATOMIC|KFI_WRITE`, `KFI_ATOMIC|KFI_READ` (it fetched), and
    /// `KFI_RMA|KFI_REMOTE_WRITE|KFI_REMOTE_CQ_DATA` for a peer's write with data; plus
    /// `KFI_REMOTE_CQ_DATA`. Not in format CONTEXT.
    pub flags: u64,
    /// Bytes received or moved; 0 for what failed. Not in format CONTEXT.
    pub len: u64,
    /// Offset in the region of a receive's first byte. Format DATA only.
    pub buf: u64,
    /// The peer's completion data. Format DATA only.
    pub data: u64,
    /// 0, or the positive errno of a failure: `ECANCELED` for the flushed rest after a first error.
    pub err: u32,
    /// The provider's own code (verbs: `ib_wc_status`).
    pub prov_errno: u32,
    /// Handle of the endpoint.
    pub ep: u64,
    /// Bytes that did not fit, for a receive that was too short; 0 where the provider does not
    /// tell (verbs does not).
    pub olen: u64,
}
const _: () = assert!(core::mem::size_of::<CqEntry>() == 64);
