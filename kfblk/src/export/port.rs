// SPDX-License-Identifier: GPL-2.0
//! Ports: addresses at which subsystems are offered.

mod listening;
mod place;
mod requests;
mod station;

use core::ptr;
use kernel::{
    fmt::Write,
    impl_has_work,
    new_mutex,
    new_work,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::Work, //
};
use kfabric::{
    objects::waiter::Waiter,
    pure::blk::Name,
    sys::net::Net, //
};

pub(super) use self::place::source_of;
use self::{
    place::Place,
    station::Station, //
};
use super::{
    connection::Connection,
    subsystem::Subsystem,
    take_ptr, //
};
use crate::{
    attr::{
        self,
        Item,
        Text, //
    },
    sys::{
        self,
        Log, //
    },
    waiter, //
};

/// Identifies the work item that makes a port listen again.
const REPAIR: u64 = 1;

/// The fields that the port's lock protects.
struct Inner {
    trtype: Option<Name>,
    traddr: Option<Name>,
    trsvcid: Option<Name>,
    subsystems: KVec<Arc<Subsystem>>,
    /// Network namespace of the task that linked the first subsystem.
    net: Option<Net>,
    place: Option<Place>,
    station: Option<Arc<Station>>,
    connections: KVec<Arc<Connection>>,
}

impl Inner {
    /// Writes a line with the port's address to the log.
    fn say(&self, event: &str) {
        if Log::Port.may() {
            pr_warn!(
                "port {} {} {}\n",
                self.traddr.as_ref().map_or("", Name::as_str),
                self.trsvcid.as_ref().map_or("", Name::as_str),
                event
            );
        }
    }
}

/// A port, which listens while a subsystem is linked.
#[pin_data]
pub(crate) struct Port {
    #[pin]
    inner: Mutex<Inner>,
    /// Wakes the task that waits between two attempts to listen.
    waiter: Arc<Waiter>,
    #[pin]
    work: Work<Port>,
    #[pin]
    repair: Work<Port, REPAIR>,
}

impl_has_work! {
    impl HasWork<Self> for Port { self.work }
    impl HasWork<Self, REPAIR> for Port { self.repair }
}

impl Port {
    /// Makes a port that offers no subsystem.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let inner = Inner {
            trtype: None,
            traddr: None,
            trsvcid: None,
            subsystems: KVec::new(),
            net: None,
            place: None,
            station: None,
            connections: KVec::new(),
        };
        let waiter = waiter::waiter()?;
        Arc::pin_init(
            pin_init!(Self {
                inner <- new_mutex!(inner, "kfblk_port"),
                waiter,
                work <- new_work!("Port::work"),
                repair <- new_work!("Port::repair"),
            }),
            GFP_KERNEL,
        )
    }

    /// Offers a subsystem.
    ///
    /// # Errors
    ///
    /// - `EEXIST` if the port offers the subsystem already.
    /// - Errors of [`place::find`] and [`Station::open`].
    pub(crate) fn link(this: &Arc<Self>, subsystem: &Arc<Subsystem>) -> Result {
        let mut inner = this.inner.lock();
        let is_it = |other: &Arc<Subsystem>| Arc::ptr_eq(other, subsystem);
        if inner.subsystems.iter().any(is_it) {
            return Err(EEXIST);
        }
        inner.subsystems.push(subsystem.clone(), GFP_KERNEL)?;
        // Add the port before reading auth keys: a task that changes keys renews the ports
        // afterwards.
        let listens = subsystem
            .add_port(this)
            .and_then(|()| Self::listen(this, &mut inner));
        match &listens {
            Ok(()) => Self::warn(&inner, subsystem),
            Err(_) => Self::take(this, &mut inner, subsystem),
        }
        listens
    }

    /// Warns of an export that every host in the network may use.
    fn warn(inner: &Inner, subsystem: &Subsystem) {
        let (Some(place), Some(station)) = (&inner.place, &inner.station) else {
            return;
        };
        if station.keys.is_empty() && subsystem.is_for_all() && place.is_wide {
            pr_warn!(
                "export {}: every host that reaches {} may use the export, which has no auth keys\n",
                subsystem.name().as_str(),
                inner.traddr.as_ref().map_or("", Name::as_str)
            );
        }
    }

    /// Removes a subsystem, and listens for the remaining ones.
    fn take(this: &Arc<Self>, inner: &mut Inner, subsystem: &Subsystem) {
        subsystem.drop_port(this);
        drop(take_ptr(&mut inner.subsystems, subsystem));
        Self::listen_or_later(this, inner);
    }

    /// Withdraws a subsystem. Its connections through this port have ended on return.
    pub(crate) fn unlink(this: &Arc<Self>, subsystem: &Arc<Subsystem>) {
        let (all, place) = {
            let mut inner = this.inner.lock();
            let place = inner.place.clone();
            Self::take(this, &mut inner, subsystem);
            (inner.subsystems.is_empty(), place)
        };
        while let Some(connection) =
            this.next_connection(|connection| all || connection.serves(subsystem))
        {
            connection.end();
        }
        let own = place.map(|place| place.domain);
        subsystem.close_registrations(|of| {
            let own = own.as_ref();
            of.is_gone() || own.is_some_and(|own| ptr::eq(of, &raw const **own))
        });
        this.waiter.wake();
    }

    /// Returns the offered subsystem of this name.
    pub(crate) fn subsystem(&self, name: &Name) -> Option<Arc<Subsystem>> {
        let inner = self.inner.lock();
        inner
            .subsystems
            .iter()
            .find(|of| of.name() == name)
            .cloned()
    }

    /// Changes settings that are fixed while the port offers a subsystem.
    fn set(&self, set: impl FnOnce(&mut Inner)) -> Result {
        let mut inner = self.inner.lock();
        if !inner.subsystems.is_empty() {
            return Err(EBUSY);
        }
        set(&mut inner);
        Ok(())
    }
}

impl Item for Port {
    // configfs links keep a port from being removed while it offers a subsystem.
    fn end(_this: &Arc<Self>) {}

    fn show(&self, attr: u32, out: &mut Text<'_>) -> Result {
        let inner = self.inner.lock();
        let name = match attr {
            sys::KFBLK_PORT_ADDR_TRTYPE => &inner.trtype,
            sys::KFBLK_PORT_ADDR_TRADDR => &inner.traddr,
            sys::KFBLK_PORT_ADDR_TRSVCID => &inner.trsvcid,
            _ => return Err(EINVAL),
        };
        writeln!(out, "{}", name.as_ref().map_or("", Name::as_str))?;
        Ok(())
    }

    fn store(this: &Arc<Self>, attr: u32, text: &str) -> Result {
        let name = Some(attr::name(text)?);
        match attr {
            sys::KFBLK_PORT_ADDR_TRTYPE => this.set(|inner| inner.trtype = name),
            sys::KFBLK_PORT_ADDR_TRADDR => this.set(|inner| inner.traddr = name),
            sys::KFBLK_PORT_ADDR_TRSVCID => this.set(|inner| inner.trsvcid = name),
            _ => Err(EINVAL),
        }
    }
}
