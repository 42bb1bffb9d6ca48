// SPDX-License-Identifier: GPL-2.0
//! Groups: what an endpoint's peer may reach. A key is of one group, an endpoint too, and they have
//! to be of the same.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use kfabric::provider::{
    GroupOps,
    Proof, //
};

/// A group; which one it is matters, and who its endpoints connect to.
pub(crate) struct Group {
    proof: Option<Arc<dyn Proof>>,
}

impl Group {
    /// A new one. With a `proof` its endpoints connect to those with the same auth key alone, else
    /// to those without one.
    pub(crate) fn new(proof: Option<Arc<dyn Proof>>) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { proof }, GFP_KERNEL_ACCOUNT)?)
    }

    /// Its auth key, if it has one.
    pub(crate) fn proof(&self) -> Option<&Arc<dyn Proof>> {
        self.proof.as_ref()
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
