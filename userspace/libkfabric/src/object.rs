// SPDX-License-Identifier: MIT OR Apache-2.0
//! Kinds and names of objects, and the list of live objects.
#![forbid(unsafe_code)]

use std::fmt;

use kfabric_uapi as abi;

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// The device file.
    Device,
    /// A fabric.
    Fabric,
    /// A domain.
    Domain,
    /// An event queue.
    EventQueue,
    /// A completion queue.
    CompletionQueue,
    /// A counter.
    Counter,
    /// A passive endpoint.
    PassiveEndpoint,
    /// An endpoint.
    Endpoint,
    /// A region.
    Region,
    /// A key slot.
    Key,
    /// A connection request.
    ConnRequest,
    /// A kind that this crate does not know; the number is the kernel's.
    Other(u32),
}

impl Kind {
    /// Converts a `KFI_TYPE_*` constant.
    pub fn from_abi(kind: u32) -> Self {
        match kind {
            abi::KFI_TYPE_FABRIC => Self::Fabric,
            abi::KFI_TYPE_DOMAIN => Self::Domain,
            abi::KFI_TYPE_EQ => Self::EventQueue,
            abi::KFI_TYPE_CQ => Self::CompletionQueue,
            abi::KFI_TYPE_CNTR => Self::Counter,
            abi::KFI_TYPE_PEP => Self::PassiveEndpoint,
            abi::KFI_TYPE_EP => Self::Endpoint,
            abi::KFI_TYPE_REGION => Self::Region,
            abi::KFI_TYPE_KEY => Self::Key,
            abi::KFI_TYPE_CONNREQ => Self::ConnRequest,
            other => Self::Other(other),
        }
    }

    /// The kind in words, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Fabric => "fabric",
            Self::Domain => "domain",
            Self::EventQueue => "event queue",
            Self::CompletionQueue => "completion queue",
            Self::Counter => "counter",
            Self::PassiveEndpoint => "passive endpoint",
            Self::Endpoint => "endpoint",
            Self::Region => "region",
            Self::Key => "key",
            Self::ConnRequest => "connection request",
            Self::Other(_) => "object",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
/// Names an object in messages: its kind and handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectId {
    /// The kind of object.
    pub kind: Kind,
    /// The object's handle; 0 for the device itself.
    pub handle: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.handle == 0 {
            write!(f, "{}", self.kind)
        } else {
            write!(f, "{} {:#x}", self.kind, self.handle)
        }
    }
}

/// A live object of any process, as the kernel lists it.
#[derive(Clone, Debug)]
pub struct LiveObject {
    /// The kind of object.
    pub kind: Kind,
    /// The process that opened the device file, in the caller's pid namespace; 0 if not visible
    /// there.
    pub pid: u32,
    /// Command name of the process.
    pub comm: String,
    /// Handle of the object, in that device file.
    pub handle: u64,
    /// Handle of the parent; 0 for none.
    pub parent: u64,
    /// Provider and domain, or address, as text.
    pub name: String,
    /// The kernel's entry, with the figures that depend on the kind ([`abi::ObjInfo`]).
    pub raw: abi::ObjInfo,
}

impl LiveObject {
    pub(crate) fn from_abi(raw: &abi::ObjInfo) -> Self {
        Self {
            kind: Kind::from_abi(raw.kind),
            pid: raw.pid,
            comm: text(&raw.comm),
            handle: raw.handle,
            parent: raw.parent,
            name: text(&raw.name),
            raw: *raw,
        }
    }
}

/// Copies text out of a NUL-padded array.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Copies text into a NUL-padded array. Returns `false` if the text and its NUL do not fit.
#[must_use]
pub(crate) fn put_text(to: &mut [u8], text: &str) -> bool {
    if text.len() >= to.len() || text.bytes().any(|b| b == 0) {
        return false;
    }
    to.fill(0);
    to[..text.len()].copy_from_slice(text.as_bytes());
    true
}
