// SPDX-License-Identifier: GPL-2.0
//! Regions and key slots that are bound to an endpoint with endpoint-scoped keys.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::endpoint::Endpoint;
use crate::{
    auth::{
        AuthKey,
        Authorization, //
    },
    key::{
        region::Authorizations,
        Key,
        Region, //
    },
    memory::Memory,
    objects::domain::Domain, //
};

impl Region {
    /// As [`Region::register`] or, with `ep`, [`Region::register_for`], with the given auth keys
    /// and leases.
    pub(crate) fn register_under(
        domain: &Arc<Domain>,
        ep: Option<&Endpoint>,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
        unders: Authorizations,
    ) -> Result<Arc<Self>> {
        let of = match ep {
            Some(ep) => {
                let of = ep.own_keys(domain)?;
                of.1.check()?;
                Some(of)
            }
            None => None,
        };
        Self::make(domain, memory, access, dynamic, of, unders)
    }

    /// As [`Region::register`], but binds the region to an endpoint with endpoint-scoped keys
    /// ([`EpAttr::own_keys`](crate::ep::EpAttr::own_keys)). The region's keys are valid on that
    /// endpoint alone, and are revoked before the endpoint is closed.
    ///
    /// # Errors
    ///
    /// As [`Region::register`], and:
    ///
    /// - `EINVAL` if the endpoint has no endpoint-scoped keys.
    /// - `ENOENT` if the endpoint was closed.
    pub fn register_for(
        ep: &Endpoint,
        memory: Arc<Memory>,
        access: u64,
        dynamic: bool,
    ) -> Result<Arc<Self>> {
        let of = ep.own_keys(ep.domain())?;
        of.1.check()?;
        let unders = Authorizations::of(ep.under().key.as_ref());
        Self::make(ep.domain(), memory, access, dynamic, Some(of), unders)
    }
}

impl Key {
    /// As [`Key::alloc`], with an auth key for the slot: its keys are valid for endpoints with that
    /// auth key.
    ///
    /// # Errors
    ///
    /// As [`Key::alloc`], and:
    ///
    /// - `EINVAL` if the region is bound to an endpoint with another auth key.
    /// - `EOPNOTSUPP` if the provider cannot keep auth keys apart.
    pub fn alloc_with(region: &Arc<Region>, key: &AuthKey) -> Result<Arc<Self>> {
        Self::alloc_under(region, None, Authorization::of(Some(key)))
    }

    /// As [`Key::alloc`] or, with `ep`, [`Key::alloc_for`], with the given auth key and grant.
    pub(crate) fn alloc_under(
        region: &Arc<Region>,
        ep: Option<&Endpoint>,
        under: Authorization,
    ) -> Result<Arc<Self>> {
        let Some(ep) = ep else {
            if region.bound().is_some() && under.number() != region.under().number() {
                return Err(EINVAL);
            }
            return Self::reserve(region, None, region.bound(), under);
        };
        let (group, bound) = ep.own_keys(region.domain())?;
        if region.bound().is_some_and(|of| !Arc::ptr_eq(of, bound)) {
            return Err(EINVAL);
        }
        Self::reserve(region, Some(group), Some(bound), under)
    }

    /// As [`Key::alloc`], but binds the slot to an endpoint with endpoint-scoped keys
    /// ([`EpAttr::own_keys`](crate::ep::EpAttr::own_keys)): the slot's keys are valid on that
    /// endpoint alone. When the endpoint is closed, it first revokes the keys and closes the slot
    /// for assignments. The slot is not freed by its last drop, only by closing the slot or the
    /// endpoint.
    ///
    /// # Errors
    ///
    /// As [`Key::alloc`], and:
    ///
    /// - `EINVAL` if the endpoint has no endpoint-scoped keys, or belongs to another domain.
    /// - `EINVAL` if the region is bound to another endpoint.
    pub fn alloc_for(region: &Arc<Region>, ep: &Endpoint) -> Result<Arc<Self>> {
        Self::alloc_under(region, Some(ep), Authorization::of(ep.under().key.as_ref()))
    }
}
