// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capability, access and mode bits: libfabric's values.
#![forbid(unsafe_code)]

use std::fmt;

use kfabric_uapi as abi;

pub use kfabric_pure::persist::Persistence;

bitflags::bitflags! {
    /// Capabilities: offered by a provider, or requested in [`Hints`](crate::Hints)
    /// (`fi_getinfo(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Caps: u64 {
        /// Messages.
        const MSG = abi::KFI_MSG;
        /// One-sided operations.
        const RMA = abi::KFI_RMA;
        /// Atomics.
        const ATOMIC = abi::KFI_ATOMIC;
        /// Reading remote memory.
        const READ = abi::KFI_READ;
        /// Writing remote memory.
        const WRITE = abi::KFI_WRITE;
        /// Receiving.
        const RECV = abi::KFI_RECV;
        /// Sending.
        const SEND = abi::KFI_SEND;
        /// Being read by peers.
        const REMOTE_READ = abi::KFI_REMOTE_READ;
        /// Being written by peers.
        const REMOTE_WRITE = abi::KFI_REMOTE_WRITE;
        /// Peers on this node.
        const LOCAL_COMM = abi::KFI_LOCAL_COMM;
        /// Peers on other nodes.
        const REMOTE_COMM = abi::KFI_REMOTE_COMM;
        /// Keys that are assigned and revoked without a new registration
        /// ([`Region::alloc_keys`](crate::Region::alloc_keys)).
        const DYNAMIC_KEYS = abi::KFI_DYNAMIC_KEYS;
        /// Endpoints may have keys of their own ([`EndpointAttr::own_keys`](crate::EndpointAttr)).
        const EP_KEYS = abi::KFI_EP_KEYS;
        /// Keys that the first operation through them revokes
        /// ([`Key::assign_once`](crate::Key::assign_once)).
        const SINGLE_USE_KEYS = abi::KFI_SINGLE_USE_KEYS;
        /// Reads and writes on memory of the program that is not registered
        /// ([`Op::read_into`](crate::Op::read_into), [`Op::write_from`](crate::Op::write_from)).
        const UNREGISTERED_RMA = abi::KFI_UNREGISTERED_RMA;
        /// Writes that complete when their bytes are durable
        /// ([`Op::durable`](crate::Op::durable)).
        const RMA_PMEM = abi::KFI_RMA_PMEM;
        /// Bits that this crate does not know.
        const _ = !0;
    }

    /// Uses of registered memory, or of a key.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Access: u64 {
        /// As the source of a send.
        const SEND = abi::KFI_SEND;
        /// As the target of a receive.
        const RECV = abi::KFI_RECV;
        /// As the target of a read of remote memory.
        const READ = abi::KFI_READ;
        /// As the source of a write to remote memory.
        const WRITE = abi::KFI_WRITE;
        /// Reads by peers.
        const REMOTE_READ = abi::KFI_REMOTE_READ;
        /// Writes by peers.
        const REMOTE_WRITE = abi::KFI_REMOTE_WRITE;
        /// Atomics by peers; needs `REMOTE_READ` and `REMOTE_WRITE`, too.
        const ATOMIC = abi::KFI_ATOMIC;
        /// Every local use.
        const LOCAL = abi::KFI_SEND | abi::KFI_RECV | abi::KFI_READ | abi::KFI_WRITE;
        /// Reads and writes by peers.
        const REMOTE = abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
        /// Bits that this crate does not know.
        const _ = !0;
    }

    /// The side of an endpoint that a queue or counter is bound to.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Bind: u64 {
        /// The sending side. For a counter: sends.
        const TRANSMIT = abi::KFI_TRANSMIT;
        /// The receiving side.
        const RECV = abi::KFI_RECV;
        /// For a counter: reads, and atomics that fetch.
        const READ = abi::KFI_READ;
        /// For a counter: writes, and other atomics.
        const WRITE = abi::KFI_WRITE;
        /// For a queue: a successful operation has an entry only if it asks for one
        /// ([`crate::Op::completion`]).
        const SELECTIVE = abi::KFI_SELECTIVE_COMPLETION;
        /// Bits that this crate does not know.
        const _ = !0;
    }

    /// The kind of operation that completed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompFlags: u64 {
        /// A message operation.
        const MSG = abi::KFI_MSG;
        /// A one-sided operation.
        const RMA = abi::KFI_RMA;
        /// An atomic; with `READ` an atomic that fetched.
        const ATOMIC = abi::KFI_ATOMIC;
        /// A read of remote memory.
        const READ = abi::KFI_READ;
        /// A write to remote memory.
        const WRITE = abi::KFI_WRITE;
        /// A receive.
        const RECV = abi::KFI_RECV;
        /// A send.
        const SEND = abi::KFI_SEND;
        /// A peer's write.
        const REMOTE_WRITE = abi::KFI_REMOTE_WRITE;
        /// The completion carries the peer's data.
        const REMOTE_CQ_DATA = abi::KFI_REMOTE_CQ_DATA;
        /// Bits that this crate does not know.
        const _ = !0;
    }

    /// Registration modes that a provider requires (`fi_mr(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrMode: u64 {
        /// Local buffers need a region (`FI_MR_LOCAL`).
        const LOCAL = abi::KFI_MR_LOCAL;
        /// Remote addresses are the exporter's virtual addresses (`FI_MR_VIRT_ADDR`).
        const VIRT_ADDR = abi::KFI_MR_VIRT_ADDR;
        /// Memory must have pages when it is registered (`FI_MR_ALLOCATED`).
        const ALLOCATED = abi::KFI_MR_ALLOCATED;
        /// The provider chooses key values (`FI_MR_PROV_KEY`).
        const PROV_KEY = abi::KFI_MR_PROV_KEY;
        /// Bits that this crate does not know.
        const _ = !0;
    }
}

/// How a domain reaches a level of completion of writes: visible, or durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Writes that ask for the level are refused.
    #[default]
    No,
    /// By itself.
    Native,
    /// With the help of the target's kernel.
    Assisted,
}

impl Reach {
    /// Returns the value of a `KFI_REACH_*` constant. An unknown constant promises nothing.
    pub fn from_abi(value: u32) -> Self {
        match value {
            abi::KFI_REACH_NATIVE => Self::Native,
            abi::KFI_REACH_ASSISTED => Self::Assisted,
            _ => Self::No,
        }
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::No => "no",
            Self::Native => "native",
            Self::Assisted => "assisted",
        })
    }
}

/// Returns the kind of memory of a `KFI_PERSISTENCE_*` constant. An unknown constant promises nothing.
pub(crate) fn persistence(value: u32) -> Persistence {
    match value {
        abi::KFI_PERSISTENCE_ADR => Persistence::Adr,
        abi::KFI_PERSISTENCE_DEVICE => Persistence::DeviceFlush,
        _ => Persistence::None,
    }
}

/// Fields of a completion that a queue fills in (`enum fi_cq_format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The context alone.
    Context,
    /// Context, flags and length.
    Msg,
    /// Context, flags, length, buffer offset and the peer's data.
    #[default]
    Data,
}

impl Format {
    /// The `KFI_CQ_FORMAT_*` constant.
    pub(crate) fn to_abi(self) -> u32 {
        match self {
            Self::Context => abi::KFI_CQ_FORMAT_CONTEXT,
            Self::Msg => abi::KFI_CQ_FORMAT_MSG,
            Self::Data => abi::KFI_CQ_FORMAT_DATA,
        }
    }

    /// Clears the fields of a successful completion that the format does not include.
    pub(crate) fn apply(self, entry: &mut abi::CqEntry) {
        if entry.err != 0 {
            return;
        }
        if self == Self::Context {
            (entry.flags, entry.len) = (0, 0);
        }
        if self != Self::Data {
            (entry.buf, entry.data) = (0, 0);
        }
    }
}
