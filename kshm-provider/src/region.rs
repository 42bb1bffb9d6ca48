// SPDX-License-Identifier: GPL-2.0
//! Regions: memory that the core has pinned. A region has no remote rights; only keys have (P1).

use core::any::Any;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::key::{
    group::Group,
    slot::Key,
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
    /// Creates a region of `mem`.
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

    /// Returns the memory.
    pub(crate) fn mem(&self) -> &Memory {
        &self.mem
    }
}

impl RegionOps for Region {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn alloc_key(self: Arc<Self>, group: Option<&Arc<dyn GroupOps>>) -> Result<KBox<dyn KeyOps>> {
        let group = Group::or_given(&self.group, group)?;
        let key = Key::new(self.mem.clone(), group, self.table.clone())?;
        let key: KBox<dyn KeyOps> = KBox::new(key, GFP_KERNEL_ACCOUNT)?;
        Ok(key)
    }
}
