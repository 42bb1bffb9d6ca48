// SPDX-License-Identifier: MIT OR Apache-2.0
//! Handles that close themselves, and the list of live objects.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use kfabric_uapi as abi;

use crate::device::Shared;
use crate::errno::Errno;
use crate::error::{ObjectId, Result};

/// What an object is.
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
    /// Something this crate does not know; the number is the kernel's.
    Other(u32),
}

impl Kind {
    /// From the interface's number.
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

    /// In words.
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

/// A handle of the kernel's, closed when dropped.
pub(crate) struct Handle {
    pub(crate) dev: Arc<Shared>,
    pub(crate) id: ObjectId,
    closed: AtomicBool,
}

impl Handle {
    pub(crate) fn new(dev: &Arc<Shared>, kind: Kind, handle: u64) -> Self {
        Self {
            dev: dev.clone(),
            id: ObjectId { kind, handle },
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn raw(&self) -> u64 {
        self.id.handle
    }

    /// Closes now; afterwards dropping does nothing.
    pub(crate) fn close(&self) -> Result<()> {
        self.dev.close(self.id)?;
        self.forget();
        Ok(())
    }

    /// The kernel used the handle up: nothing is left to close.
    pub(crate) fn forget(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Handle {
    /// Closes it, now or with the file.
    pub(crate) fn end(&self) {
        if self.closed.swap(true, Ordering::Relaxed) {
            return;
        }
        // An operation may still hold it: then it is tried again when the next object goes, and
        // at the latest closed with the file.
        if self
            .dev
            .close(self.id)
            .is_err_and(|e| e.errno() == Some(Errno::EBUSY))
        {
            self.dev.orphan(self.id);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.id)
    }
}

/// A live object of some process, as the kernel lists it.
#[derive(Clone, Debug)]
pub struct LiveObject {
    /// What it is.
    pub kind: Kind,
    /// Process that opened the file, in the caller's pid namespace; 0: not visible there.
    pub pid: u32,
    /// That process's command name.
    pub comm: String,
    /// Handle, in that file.
    pub handle: u64,
    /// Handle of the object it was opened on; 0: none.
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

/// Text from a NUL-padded array.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Puts text into a NUL-padded array; `false` when it does not fit with its NUL.
#[must_use]
pub(crate) fn put_text(to: &mut [u8], text: &str) -> bool {
    if text.len() >= to.len() || text.bytes().any(|b| b == 0) {
        return false;
    }
    to.fill(0);
    to[..text.len()].copy_from_slice(text.as_bytes());
    true
}
