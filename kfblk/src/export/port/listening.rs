// SPDX-License-Identifier: GPL-2.0
//! When a port listens: while subsystems are linked, for their auth keys, and again after its device
//! was removed.

use core::ptr;
use kernel::{
    prelude::*,
    sync::Arc,
    workqueue::WorkItem, //
};
use kfabric::objects::domain::Domain;

use super::{
    place,
    station::Station,
    Inner,
    Port,
    REPAIR, //
};
use crate::sys;

/// Time between two attempts to listen, in milliseconds.
const AGAIN: u32 = 1000;

impl WorkItem<REPAIR> for Port {
    type Pointer = Arc<Port>;

    fn run(this: Arc<Port>) {
        Self::repair(&this);
    }
}

impl Port {
    /// Listens for the initiators of the offered subsystems. If there is no subsystem, stops
    /// listening.
    ///
    /// # Errors
    ///
    /// - Errors of [`place::find`] and [`Station::open`]. The port does not listen then.
    pub(super) fn listen(this: &Arc<Self>, inner: &mut Inner) -> Result {
        if inner.subsystems.is_empty() {
            Self::listen_no_more(inner);
            inner.place = None;
            inner.net = None;
            return Ok(());
        }
        if inner.place.as_ref().is_some_and(|of| of.domain.is_gone()) {
            Self::listen_no_more(inner);
            inner.place = None;
            // The work also ends the old device's connections and registrations.
            Self::listen_again(this);
        }
        Self::listen_for_all(this, inner).inspect_err(|_| Self::listen_no_more(inner))
    }

    fn listen_no_more(inner: &mut Inner) {
        if let Some(station) = inner.station.take() {
            station.close();
        }
    }

    fn listen_for_all(this: &Arc<Self>, inner: &mut Inner) -> Result {
        let mut keys = KVec::new();
        for subsystem in &inner.subsystems {
            subsystem.add_keys(&mut keys)?;
        }
        if inner.station.as_ref().is_some_and(|of| of.is_for(&keys)) {
            return Ok(());
        }
        let place = match &inner.place {
            Some(place) => place.clone(),
            None => place::find(inner)?,
        };
        // A peer that connects at this moment must try again.
        Self::listen_no_more(inner);
        inner.station = Some(Station::open(this, &place, keys)?);
        inner.place = Some(place);
        Ok(())
    }

    /// Applies changed auth keys. Does not fail: connections with the old keys are already closed.
    pub(crate) fn renew(this: &Arc<Self>) {
        Self::listen_or_later(this, &mut this.inner.lock());
    }

    /// Listens for the present initiators. If that fails, schedules attempts until one succeeds.
    pub(super) fn listen_or_later(this: &Arc<Self>, inner: &mut Inner) {
        let did = inner.station.is_some();
        if Self::listen(this, inner).is_err() {
            if did {
                inner.say("does not listen any more");
            }
            Self::listen_again(this);
        }
    }

    /// Schedules attempts to listen until one succeeds.
    fn listen_again(this: &Arc<Self>) {
        // Queued work needs no second entry: it reads the port's state when it runs.
        let _ = sys::ports().enqueue::<_, REPAIR>(this.clone());
    }

    /// Makes the port listen again if it should. Initiators reconnect on their own.
    fn repair(this: &Arc<Self>) {
        Self::clear(this, Domain::is_gone);
        let idle = |inner: &Inner| inner.subsystems.is_empty() || inner.station.is_some();
        loop {
            {
                let mut inner = this.inner.lock();
                if idle(&inner) || Self::listen(this, &mut inner).is_ok() {
                    return;
                }
            }
            // The loop checks the state again, whichever reason ends the wait.
            let done = || Ok(idle(&this.inner.lock()).then_some(()));
            let _ = this.waiter.until(AGAIN, done);
        }
    }

    /// Handles the removal of the port's device. Another device may get the address later.
    pub(super) fn lost(this: &Arc<Self>, station: &Arc<Station>) {
        {
            let mut inner = this.inner.lock();
            let is_it = |of: &Arc<Station>| Arc::ptr_eq(of, station);
            if !inner.station.as_ref().is_some_and(is_it) {
                return;
            }
            inner.station = None;
            inner.place = None;
            inner.say("has lost its device");
        }
        station.close();
        // The domain may not report the removal yet.
        Self::clear(this, |of| {
            ptr::eq(of, &raw const *station.domain) || of.is_gone()
        });
        Self::listen_again(this);
    }

    /// Ends connections and registrations on domains that `which` selects.
    fn clear(this: &Arc<Self>, which: impl Fn(&Domain) -> bool) {
        while let Some(connection) = this.next_connection(|connection| which(connection.domain())) {
            connection.end();
        }
        loop {
            let found = {
                let inner = this.inner.lock();
                let mut all = inner.subsystems.iter();
                all.find(|of| of.has_registration(&which)).cloned()
            };
            let Some(subsystem) = found else { return };
            subsystem.close_registrations(&which);
        }
    }
}
