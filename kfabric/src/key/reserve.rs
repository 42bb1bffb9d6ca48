// SPDX-License-Identifier: GPL-2.0
//! Creation of slots: for a region, an endpoint and an auth key; and their end with the grant.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Arc, //
};

use super::{
    endpoint_keys::Bound,
    region::Region,
    slot::{
        begin_die,
        Key,
        Slot,
        Wait, //
    }, //
};
use crate::{
    auth::{
        Authorization,
        Scope, //
    },
    base::{
        parent::Held,
        share::Portion, //
    },
    memory::{
        dax::Listed,
        Memory, //
    },
    objects::domain::Domain,
    provider::{
        GroupOps,
        RegionOps, //
    },
    pure::key::{
        KeyError,
        KeySlot,
        State,
        Window, //
    },
    sys::steps::Steps, //
};

impl Key {
    /// Reserves a slot on a region with dynamic keys. If the region is bound to an endpoint
    /// ([`Region::register_for`]), the slot is bound to that endpoint, too.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the region has no dynamic keys.
    /// - `ENOSPC` if the device has no more keys.
    /// - `ENOENT` if the region or its endpoint was closed.
    /// - `EHWPOISON` or `ENODEV` if the memory is that of a [DAX device](crate::memory::dax::Device)
    ///   that has failed or is being removed.
    pub fn alloc(region: &Arc<Region>) -> Result<Arc<Self>> {
        let under = Authorization::of(region.under().key.as_ref());
        Self::reserve(region, None, region.bound(), under)
    }

    /// Reserves a slot on `region`: in `group`, and bound to the endpoint of `bound`, if there are.
    pub(crate) fn reserve(
        region: &Arc<Region>,
        group: Option<&Arc<dyn GroupOps>>,
        bound: Option<&Arc<Bound>>,
        under: Authorization,
    ) -> Result<Arc<Self>> {
        if !region.is_dynamic() {
            return Err(EINVAL);
        }
        region.domain().check()?;
        region.domain().prepare_ordered()?;
        let held = Held::new(region)?;
        // A bound slot is in its endpoint's group. A slot with the region's auth key is in the
        // region's.
        let apart = match &under.key {
            Some(key) if bound.is_none() && under.number() != region.under().number() => {
                Some(region.domain().group(key)?)
            }
            _ => None,
        };
        let group = group.or(apart.as_ref().map(|apart| apart.ops())).cloned();
        let auth = Scope {
            under,
            group: apart,
        };
        let counted = region.domain().count_slots(1)?;
        let memory = region.memory().clone();
        Self::make(
            &memory,
            region.ops(),
            Some(held),
            group.as_ref(),
            bound,
            auth,
            counted,
        )
    }

    /// Creates the key that a region is registered with.
    pub(crate) fn own(
        domain: &Domain,
        memory: &Memory,
        region: &Arc<dyn RegionOps>,
        grant: Window,
        bound: Option<&Arc<Bound>>,
        under: Authorization,
    ) -> Result<Arc<Self>> {
        let auth = Scope { under, group: None };
        let counted = domain.count_slots(1)?;
        let key = Self::make(memory, region, None, None, bound, auth, counted)?;
        if let Err(e) = key.give(domain, grant) {
            key.kill();
            // A failure of the memory has closed the slot.
            memory.check()?;
            return Err(e);
        }
        Ok(key)
    }

    fn make(
        memory: &Memory,
        ops: &Arc<dyn RegionOps>,
        region: Option<Held<Region>>,
        group: Option<&Arc<dyn GroupOps>>,
        bound: Option<&Arc<Bound>>,
        auth: Scope,
        counted: Option<Portion>,
    ) -> Result<Arc<Self>> {
        let slot = Slot {
            life: KeySlot::new(),
            remote_addr: 0,
        };
        let key = Arc::pin_init(
            try_pin_init!(Self {
                listed: memory.health().cloned().map(Listed::new),
                ops: ops.clone().alloc_key(group)?,
                state <- new_mutex!(slot, "kfabric_key"),
                settled <- Steps::new(),
                region,
                bound: bound.cloned(),
                auth,
                counted,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        if let Some(listed) = &key.listed {
            // SAFETY: `listed` is a field of the slot, which is dropped before the slot's other fields.
            unsafe { listed.add(&*key)? };
        }
        if let Some(bound) = bound {
            bound.add(&key)?;
        }
        Ok(key)
    }

    /// Returns the bound list of the slot's endpoint, if the slot is bound to one.
    pub(crate) fn bound(&self) -> Option<&Arc<Bound>> {
        self.bound.as_ref()
    }

    /// Returns the auth key and grant of the slot.
    pub(crate) fn under(&self) -> &Authorization {
        &self.auth.under
    }

    /// Revokes the key and frees the slot if its grant has ended. Returns whether the slot is
    /// freed.
    ///
    /// Does not wait. A key that is being assigned is revoked when its assignment completes; the
    /// next sweep then returns its charge.
    pub(crate) fn sweep(&self) -> bool {
        if self.auth.under.check().is_ok() {
            return false;
        }
        let _ = self.begin(Wait::No, begin_die).map(|()| self.end(true));
        let over = matches!(self.state.lock().life.state(), State::Freed);
        if over {
            self.auth.under.end();
        }
        over
    }

    /// If the slot's grant has ended, waits until a revocation in progress is completed. Also waits
    /// for the worker that makes an ordered assignment, which revokes the key at once.
    ///
    /// # Errors
    ///
    /// - `EINTR` if the task was killed while it waited.
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
