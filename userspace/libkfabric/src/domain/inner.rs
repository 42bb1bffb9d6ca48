// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a domain that the domain's objects keep alive.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError, Weak};

use kfabric_uapi as abi;

use crate::handle::Handle;

/// An object whose operations use regions without the kernel's knowledge.
pub(crate) trait Holder: Send + Sync {
    /// Moves messages as far as possible.
    fn advance(&self);

    /// Ends the use of the region with this handle. After the return no byte of the region is read or
    /// written.
    fn detach(&self, region: u64);
}

pub(crate) struct DomainInner {
    // Dropped first, so that the domain is closed before its fabric.
    pub(crate) handle: Handle,
    pub(super) attr: abi::DomainOpen,
    /// Endpoints that were opened with rings.
    pub(crate) holders: Mutex<Vec<Weak<dyn Holder>>>,
    _fabric: Arc<Handle>,
}

impl DomainInner {
    pub(crate) fn new(handle: Handle, attr: abi::DomainOpen, fabric: &Arc<Handle>) -> Self {
        Self {
            handle,
            attr,
            holders: Mutex::default(),
            _fabric: fabric.clone(),
        }
    }

    /// Ends the use of a region by operations that the kernel does not know.
    pub(crate) fn detach(&self, region: u64) {
        for holder in self.all() {
            holder.detach(region);
        }
    }

    /// Moves messages of all endpoints with rings.
    pub(crate) fn advance(&self) {
        for holder in self.all() {
            holder.advance();
        }
    }

    /// The holders. Their list is not locked: a holder takes locks of its own, and removes itself when
    /// its endpoint is dropped.
    fn all(&self) -> Vec<Arc<dyn Holder>> {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        holders.iter().filter_map(Weak::upgrade).collect()
    }

    /// Maximum bytes of one operation.
    pub(crate) fn max_msg_size(&self) -> u64 {
        self.attr.max_msg_size
    }

    /// Maximum bytes of an injected payload.
    pub(crate) fn inject_size(&self) -> usize {
        self.attr.inject_size as usize
    }
}
