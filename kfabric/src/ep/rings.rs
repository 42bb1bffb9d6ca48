// SPDX-License-Identifier: GPL-2.0
//! An endpoint's part in [`rings`](crate::rings).

use kernel::{
    prelude::*,
    sync::{
        Arc,
        SetOnce, //
    }, //
};

use super::{
    BoundCq,
    Endpoint,
    Shared, //
};
use crate::{
    cq::Cq,
    errno::enotconn,
    rings::End,
    uapi::*, //
};

impl Shared {
    /// Has the program look at its queues.
    pub(super) fn alarm(&self) {
        for bound in [&self.tx, &self.rx].into_iter().flat_map(SetOnce::as_ref) {
            bound.cq.alarm();
        }
    }

    /// Its queues, if it has two (or one twice) and no counter.
    pub(super) fn queues(&self) -> Option<[Arc<Cq>; 2]> {
        if self.cntrs.iter().any(|cntr| cntr.as_ref().is_some()) {
            return None;
        }
        let cq = |bound: &SetOnce<BoundCq>| bound.as_ref().map(|bound| bound.cq.arc().clone());
        Some([cq(&self.rx)?, cq(&self.tx)?])
    }
}

impl Endpoint {
    /// What became of its rings: `KFI_RINGS_*`, and where they are.
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

    /// Wakes who waits for something of its rings: at its own queues, or at the other end's.
    ///
    /// # Errors
    ///
    /// `ENOTCONN`: it has none.
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
