// SPDX-License-Identifier: GPL-2.0
//! Regions: pinned memory, of which nothing but the core's pin is needed. None of what is made here
//! has a remote right (P1).

use core::any::Any;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    group::Group,
    key::Key,
    table::Table, //
};
use kfabric::{
    memory::Memory,
    provider::{
        GroupOps,
        KeyOps,
        RegionOps, //
    },
};

/// A region.
pub(crate) struct Region {
    mem: Arc<Memory>,
    group: Arc<Group>,
    table: Arc<Table>,
}

impl Region {
    /// One of `mem`.
    pub(crate) fn new(
        table: &Arc<Table>,
        group: Arc<Group>,
        mem: &Arc<Memory>,
    ) -> Result<Arc<Self>> {
        let region = Self {
            mem: mem.clone(),
            group,
            table: table.clone(),
        };
        Ok(Arc::new(region, GFP_KERNEL_ACCOUNT)?)
    }

    /// The memory.
    pub(crate) fn mem(&self) -> &Memory {
        &self.mem
    }

    /// The address that peers know the byte at `offset` by.
    ///
    /// For user memory that is the owner's own address. The kernel's addresses are nobody's
    /// business: there it is the offset.
    pub(crate) fn remote_addr(&self, offset: u64) -> u64 {
        match self.mem.user() {
            Some(addr) => addr as u64 + offset,
            None => self.mem.page_offset() as u64 + offset,
        }
    }
}

impl RegionOps for Region {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn alloc_key(self: Arc<Self>, group: Option<&Arc<dyn GroupOps>>) -> Result<KBox<dyn KeyOps>> {
        let group = Group::or_given(&self.group, group)?;
        let table = self.table.clone();
        let key: KBox<dyn KeyOps> = KBox::new(Key::new(self, group, table)?, GFP_KERNEL_ACCOUNT)?;
        Ok(key)
    }
}
