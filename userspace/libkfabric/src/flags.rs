// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capability, access and mode bits: libfabric's values.
#![forbid(unsafe_code)]

use kfabric_uapi as abi;

bitflags::bitflags! {
    /// Capabilities of a provider, or those wanted of it (`fi_getinfo(3)`).
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
        /// Keys by alloc, assign and revoke.
        const DYNAMIC_KEYS = abi::KFI_DYNAMIC_KEYS;
        /// Endpoints may have keys of their own ([`EndpointAttr::own_keys`](crate::EndpointAttr)).
        const EP_KEYS = abi::KFI_EP_KEYS;
        /// Keys may end with the first operation that is done by them
        /// ([`Key::assign_once`](crate::Key::assign_once)).
        const SINGLE_USE_KEYS = abi::KFI_SINGLE_USE_KEYS;
        /// Reads and writes take memory that is not registered ([`Op::read_into`](crate::Op::read_into),
        /// [`Op::write_from`](crate::Op::write_from)).
        const UNREGISTERED_RMA = abi::KFI_UNREGISTERED_RMA;
        /// Bits that this crate does not know.
        const _ = !0;
    }

    /// What registered memory, or a key, may be used for.
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
        /// Peers may read it.
        const REMOTE_READ = abi::KFI_REMOTE_READ;
        /// Peers may write it.
        const REMOTE_WRITE = abi::KFI_REMOTE_WRITE;
        /// Peers may use it for atomics; takes both of the former.
        const ATOMIC = abi::KFI_ATOMIC;
        /// Every local use.
        const LOCAL = abi::KFI_SEND | abi::KFI_RECV | abi::KFI_READ | abi::KFI_WRITE;
        /// Peers may read and write it.
        const REMOTE = abi::KFI_REMOTE_READ | abi::KFI_REMOTE_WRITE;
        /// Bits that this crate does not know.
        const _ = !0;
    }

    /// Which side of an endpoint a queue or counter serves.
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
        /// For a queue: entries only for operations that ask for one ([`crate::Op::completion`]).
        const SELECTIVE = abi::KFI_SELECTIVE_COMPLETION;
        /// Bits that this crate does not know.
        const _ = !0;
    }

    /// What completed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CompFlags: u64 {
        /// A message operation.
        const MSG = abi::KFI_MSG;
        /// A one-sided operation.
        const RMA = abi::KFI_RMA;
        /// An atomic; with `READ` one that fetched.
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

    /// Registration modes a provider requires (`fi_mr(3)`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MrMode: u64 {
        /// Local buffers need a region.
        const LOCAL = abi::KFI_MR_LOCAL;
        /// Remote addresses are the exporter's virtual addresses.
        const VIRT_ADDR = abi::KFI_MR_VIRT_ADDR;
        /// Memory is backed by pages at registration.
        const ALLOCATED = abi::KFI_MR_ALLOCATED;
        /// The provider chooses key values.
        const PROV_KEY = abi::KFI_MR_PROV_KEY;
        /// Bits that this crate does not know.
        const _ = !0;
    }
}

/// How much of a completion the queue fills in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The context alone.
    Context,
    /// And flags and length.
    Msg,
    /// And buffer and the peer's data.
    #[default]
    Data,
}

impl Format {
    /// The interface's number.
    pub(crate) fn to_abi(self) -> u32 {
        match self {
            Self::Context => abi::KFI_CQ_FORMAT_CONTEXT,
            Self::Msg => abi::KFI_CQ_FORMAT_MSG,
            Self::Data => abi::KFI_CQ_FORMAT_DATA,
        }
    }

    /// Leaves of a completion what a queue of this format has.
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
