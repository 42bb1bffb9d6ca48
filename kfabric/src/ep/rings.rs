// SPDX-License-Identifier: GPL-2.0
//! An endpoint's part in [the rings](crate::provider::ring_pair).

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    }, //
};

use super::{
    endpoint::Endpoint,
    shared::{
        BoundCq,
        Shared, //
    }, //
};
use crate::{
    base::errno::enotconn,
    provider::ring_pair::{
        Alarm,
        End,
        Queues, //
    },
    uapi::*, //
};

impl Shared {
    /// Sets the alarm of the endpoint's queues and wakes their waiters.
    pub(super) fn alarm(&self) {
        for bound in [&self.tx, &self.rx].into_iter().flat_map(SetOnce::as_ref) {
            bound.cq.alarm();
        }
    }

    /// Returns the endpoint's receive queue and, if it is another one, its transmit queue. `None` if
    /// a queue is missing, or a counter is bound.
    pub(super) fn queues(&self) -> Option<Queues> {
        if self.cntrs.iter().any(|cntr| cntr.as_ref().is_some()) {
            return None;
        }
        let cq = |bound: &SetOnce<BoundCq>| bound.as_ref().map(|bound| bound.cq.arc().clone());
        let (rx, tx) = (cq(&self.rx)?, cq(&self.tx)?);
        let other = !Arc::ptr_eq(&rx, &tx);
        Some((rx, other.then_some(tx as Arc<dyn Alarm>)))
    }
}

impl Endpoint {
    /// Returns the state of the endpoint's rings, `KFI_RINGS_*`, and the rings.
    pub(crate) fn rings(&self) -> (u32, Option<Arc<End>>) {
        let Some(rings) = &self.shared.rings else {
            return (KFI_RINGS_NONE, None);
        };
        match (self.state(), rings.joined()) {
            (KFI_STATE_CONNECTED | KFI_STATE_DOWN, None) => (KFI_RINGS_NONE, None),
            (KFI_STATE_CONNECTED | KFI_STATE_DOWN, end) => (KFI_RINGS_SHARED, end),
            _ => (KFI_RINGS_UNKNOWN, None),
        }
    }

    /// Wakes the waiters of the endpoint's own queues, or of the other end's.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the endpoint has no rings.
    pub(crate) fn wake(&self, own: bool) -> Result {
        let rings = self.shared.rings.as_ref().ok_or(enotconn())?;
        match rings.joined() {
            _ if own => self.shared.alarm(),
            Some(end) => end.wake_peer(),
            None => return Err(enotconn()),
        }
        Ok(())
    }
}
