// SPDX-License-Identifier: GPL-2.0
//! Regions: memory as mapped on a device.

use core::any::Any;

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    domain::GroupOps,
    key::KeyOps, //
};

/// Memory as mapped on one device. The drop undoes the mapping; the core drops it after all keys
/// and operations have ended.
pub trait RegionOps: Send + Sync {
    /// Lets the provider downcast to its own type.
    fn as_any(&self) -> &dyn Any;

    /// Reserves a slot and all resources of its assignments, so that they need not allocate. The
    /// slot's keys are exported in `group`; without one, in the region's group.
    fn alloc_key(self: Arc<Self>, group: Option<&Arc<dyn GroupOps>>) -> Result<KBox<dyn KeyOps>>;
}
