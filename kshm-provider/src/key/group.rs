// SPDX-License-Identifier: GPL-2.0
//! Protection groups: the keys that an endpoint's peer can use. A key and an endpoint each belong
//! to one group; a peer can use only keys of its endpoint's group.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use kfabric::provider::{
    GroupOps,
    Proof, //
};

/// A protection group. Groups are compared by identity.
pub(crate) struct Group {
    proof: Option<Arc<dyn Proof>>,
}

impl Group {
    /// Creates a group. With a `proof`, its endpoints connect only to endpoints with the same auth
    /// key; without one, only to endpoints without an auth key.
    pub(crate) fn new(proof: Option<Arc<dyn Proof>>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { proof }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the group's auth key, if it has one.
    pub(crate) fn proof(&self) -> Option<&Arc<dyn Proof>> {
        self.proof.as_ref()
    }

    /// Returns the given group, or else `own`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the given group belongs to another provider.
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

/// The core's reference to a group.
pub(crate) struct Shared(pub(crate) Arc<Group>);

impl GroupOps for Shared {
    fn as_any(&self) -> &dyn Any {
        self
    }
}
