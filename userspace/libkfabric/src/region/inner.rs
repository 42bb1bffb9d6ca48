// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of a region that keys and operations keep alive.
#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::domain::inner::DomainInner;
use crate::flags::{Access, Persistence};
use crate::handle::{debug_by_handle, Handle};
use crate::memory::Memory;
use crate::remote::RemoteMem;

pub(crate) struct RegionInner {
    pub(crate) handle: Handle,
    pub(crate) memory: Arc<Memory>,
    pub(crate) first: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    /// Address and key of a region that was registered with a key.
    pub(super) remote: Option<RemoteMem>,
    pub(super) pages: u64,
    pub(super) persistence: Persistence,
    pub(crate) domain: Arc<DomainInner>,
}

impl RegionInner {
    /// Address of the first byte in this process.
    #[inline]
    pub(crate) fn address(&self) -> u64 {
        self.memory.address() + self.first as u64
    }
}

debug_by_handle!(RegionInner, handle);
