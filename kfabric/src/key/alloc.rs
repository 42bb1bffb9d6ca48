// SPDX-License-Identifier: GPL-2.0
//! Where slots come from: of which region, for which endpoint, under which auth key; and their end with
//! its grant.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Arc, //
};

use super::{
    begin_die,
    Key,
    Slot,
    Wait, //
};
use crate::{
    auth::{
        group::GroupRef,
        Apart,
        AuthKey,
        Under, //
    },
    bound::Bound,
    ep::Endpoint,
    fabric::Domain,
    object::Held,
    provider::{
        GroupOps,
        RegionOps, //
    },
    pure::key::{
        Grant,
        KeyError,
        KeySlot,
        State, //
    },
    region::Region,
    sys::steps::Steps,
};

impl Key {
    /// Reserves a slot on a region with dynamic keys. On one that is bound to an endpoint
    /// ([`Region::register_for`]) the slot is bound to it, too.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the region has no dynamic keys. `ENOSPC`: the device has no more. `ENOENT`: the
    /// region or its endpoint was closed.
    pub fn alloc(region: &Arc<Region>) -> Result<Arc<Self>> {
        let under = Under::of(region.under().key.as_ref());
        Self::reserve(region, None, region.bound(), under)
    }

    /// As [`Key::alloc`], with an auth key of its own: its keys are valid for endpoints with that one.
    ///
    /// # Errors
    ///
    /// As [`Key::alloc`]; `EINVAL` also: the region is bound to an endpoint with another one.
    /// `EOPNOTSUPP`: the provider cannot keep auth keys apart.
    pub fn alloc_with(region: &Arc<Region>, key: &AuthKey) -> Result<Arc<Self>> {
        Self::alloc_under(region, None, Under::of(Some(key)))
    }

    /// As [`Key::alloc`] or, with `ep`, [`Key::alloc_for`], under what is given.
    pub(crate) fn alloc_under(
        region: &Arc<Region>,
        ep: Option<&Endpoint>,
        under: Under,
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

    /// As [`Key::alloc`], but binds the slot to an endpoint with keys of its own
    /// ([`EpAttr::own_keys`](crate::ep::EpAttr::own_keys)): its keys are valid on that one alone.
    /// When the endpoint is closed they end first, and the slot gets no more. Until it is closed, or
    /// the endpoint is, the slot stays, whoever drops it.
    ///
    /// # Errors
    ///
    /// As [`Key::alloc`]; `EINVAL` also: the endpoint has no keys of its own, or is another domain's,
    /// or the region is bound to another one.
    pub fn alloc_for(region: &Arc<Region>, ep: &Endpoint) -> Result<Arc<Self>> {
        Self::alloc_under(region, Some(ep), Under::of(ep.under().key.as_ref()))
    }

    fn reserve(
        region: &Arc<Region>,
        group: Option<&Arc<dyn GroupOps>>,
        bound: Option<&Arc<Bound>>,
        under: Under,
    ) -> Result<Arc<Self>> {
        if !region.is_dynamic() {
            return Err(EINVAL);
        }
        region.domain().check()?;
        let held = Held::new(region)?;
        // What is bound is in its endpoint's group, and what has the region's auth key in the region's.
        let apart = match &under.key {
            Some(key) if bound.is_none() && under.number() != region.under().number() => {
                Some(region.domain().group(key)?)
            }
            _ => None,
        };
        let group = group.or(apart.as_ref().map(GroupRef::ops)).cloned();
        let auth = Apart {
            under,
            group: apart,
        };
        Self::make(region.ops(), Some(held), group.as_ref(), bound, auth)
    }

    /// The key that a region is registered with.
    pub(crate) fn own(
        domain: &Domain,
        region: &Arc<dyn RegionOps>,
        grant: Grant,
        bound: Option<&Arc<Bound>>,
        under: Under,
    ) -> Result<Arc<Self>> {
        let auth = Apart { under, group: None };
        let key = Self::make(region, None, None, bound, auth)?;
        if let Err(e) = key.give(domain, grant) {
            key.kill();
            return Err(e);
        }
        Ok(key)
    }

    fn make(
        ops: &Arc<dyn RegionOps>,
        region: Option<Held<Region>>,
        group: Option<&Arc<dyn GroupOps>>,
        bound: Option<&Arc<Bound>>,
        auth: Apart,
    ) -> Result<Arc<Self>> {
        let slot = Slot {
            life: KeySlot::new(),
            remote_addr: 0,
        };
        let key = Arc::pin_init(
            try_pin_init!(Self {
                ops: ops.clone().alloc_key(group)?,
                state <- new_mutex!(slot, "kfabric_key"),
                settled <- Steps::new(),
                region,
                bound: bound.cloned(),
                auth,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        if let Some(bound) = bound {
            bound.add(&key)?;
        }
        Ok(key)
    }

    /// Of the endpoint that it is bound to, if it is to one.
    pub(crate) fn bound(&self) -> Option<&Arc<Bound>> {
        self.bound.as_ref()
    }

    /// What it was reserved under.
    pub(crate) fn under(&self) -> &Under {
        &self.auth.under
    }

    /// Ends it if its grant is over; whether it did. Waits for nothing: a key that is just being made
    /// ends as it comes to be, and what it counts as is given back when this comes again.
    pub(crate) fn sweep(&self) -> bool {
        if self.auth.under.check().is_ok() {
            return false;
        }
        let _ = self.begin(Wait::No, begin_die).map(|()| self.end());
        let over = matches!(self.state.lock().life.state(), State::Freed);
        if over {
            self.auth.under.end();
        }
        over
    }

    /// Waits for who is just ending it, if its grant is over; also for the worker that is just making
    /// what was told already, which ends it at once.
    ///
    /// # Errors
    ///
    /// `EINTR`: the task was killed while it waited.
    pub(crate) fn swept(&self) -> Result {
        if self.auth.under.check().is_ok() {
            return Ok(());
        }
        let done = self.begin(Wait::Killable, |life| match life.state() {
            State::Revoking { .. } | State::Promised { .. } => Err(KeyError::Busy),
            _ => Ok(()),
        });
        Ok(done?)
    }
}
