// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a domain that the domain's objects keep alive.
#![forbid(unsafe_code)]

use std::sync::Arc;

use kfabric_uapi as abi;

use crate::handle::Handle;

pub(crate) struct DomainInner {
    // Dropped first, so that the domain is closed before its fabric.
    pub(crate) handle: Handle,
    pub(super) attr: abi::DomainOpen,
    _fabric: Arc<Handle>,
}

impl DomainInner {
    pub(crate) fn new(handle: Handle, attr: abi::DomainOpen, fabric: &Arc<Handle>) -> Self {
        Self {
            handle,
            attr,
            _fabric: fabric.clone(),
        }
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
