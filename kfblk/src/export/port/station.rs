// SPDX-License-Identifier: GPL-2.0
//! A listening port's objects of the framework.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    auth::AuthKey,
    objects::{
        domain::Domain,
        eq::Eq,
        pep::PassiveEp, //
    },
};

use super::{
    place::Place,
    Port, //
};
use crate::waiter::QueueWaiter;

/// Run-time state of a listening port.
pub(super) struct Station {
    // Dropped in this order.
    pep: Arc<PassiveEp>,
    pub(super) eq: Arc<Eq>,
    waiter: Arc<QueueWaiter<Arc<Port>>>,
    pub(super) domain: Arc<Domain>,
    /// Auth keys, one of which a peer must prove; empty if none is required.
    pub(super) keys: KVec<AuthKey>,
}

impl Station {
    /// Listens at `place`. If `keys` is not empty, each peer must prove one of them.
    ///
    /// # Errors
    ///
    /// - `EADDRINUSE` if the address is in use.
    /// - Errors of [`PassiveEp::open_for`] and `listen`.
    pub(super) fn open(port: &Arc<Port>, place: &Place, keys: KVec<AuthKey>) -> Result<Arc<Self>> {
        let fabric = place.domain.fabric();
        let waiter = QueueWaiter::<Arc<Port>>::new()?;
        let eq = Eq::open(fabric, 0, Some(waiter.clone()))?;
        let pep = PassiveEp::open_for(fabric, &eq, &place.addr, 0, &keys)?;
        let domain = place.domain.clone();
        let station = Self {
            pep,
            eq,
            waiter,
            domain,
            keys,
        };
        let station = Arc::new(station, GFP_KERNEL)?;
        station.waiter.link(port.clone());
        station
            .pep
            .listen(0)
            .inspect_err(|_| station.waiter.unlink())?;
        Ok(station)
    }

    /// Returns whether the station listens for exactly these auth keys.
    pub(super) fn is_for(&self, keys: &[AuthKey]) -> bool {
        let has = |key: &AuthKey| self.keys.iter().any(|of| of.is(key));
        self.keys.len() == keys.len() && keys.iter().all(has)
    }

    /// Closes the passive endpoint: no connection request comes after the return.
    pub(super) fn close(&self) {
        self.pep.close();
        self.waiter.unlink();
    }
}
