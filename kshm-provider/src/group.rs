// SPDX-License-Identifier: GPL-2.0
//! Groups: what an endpoint's peer may reach. A key is of one group, an endpoint too, and they have
//! to be of the same.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use kfabric::provider::GroupOps;

/// A group; only which one it is matters.
pub(crate) struct Group {
    // Not without bytes: two of those need not differ in where they are.
    _identity: u64,
}

impl Group {
    /// A new one.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Ok(Arc::new(Self { _identity: 0 }, GFP_KERNEL)?)
    }

    /// The one that was given, or else `own`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is another provider's.
    pub(crate) fn or_given(
        own: &Arc<Self>,
        given: Option<&Arc<dyn GroupOps>>,
    ) -> Result<Arc<Self>> {
        match given {
            None => Ok(own.clone()),
            Some(given) => {
                let shared = given.as_any().downcast_ref::<Shared>().ok_or(EINVAL)?;
                Ok(shared.0.clone())
            }
        }
    }
}

/// A group as the core has it.
pub(crate) struct Shared(pub(crate) Arc<Group>);

impl GroupOps for Shared {
    fn as_any(&self) -> &dyn Any {
        self
    }
}
