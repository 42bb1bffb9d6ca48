// SPDX-License-Identifier: GPL-2.0
//! The two kinds of exports: a trait for the export, and a trait for a connection's service.
//!
//! The modules [`memory`](super::memory) and [`block`](super::block) implement both traits. An
//! export's kind is fixed while its subsystem is enabled ([`Export`]), a connection's service from
//! the admission of the initiator on ([`AnyService`]). Both are enumerations, so each call is
//! dispatched statically.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    ep::Endpoint,
    key::Region,
    objects::domain::Domain,
    pure::blk::{
        device::Limits,
        Geometry, //
    },
    uapi::CqEntry, //
};

use super::{
    block::{
        Device,
        Io, //
    },
    memory::{
        KeyService,
        MemoryExport,
        Registration, //
    }, //
};
use crate::sys::Counts;

/// The contents of an enabled subsystem.
pub(super) trait Backing {
    /// Returns the access that a connection in `domain` needs.
    ///
    /// # Errors
    ///
    /// - Errors of the registration.
    fn access(&mut self, domain: &Arc<Domain>) -> Result<Access>;

    /// Returns the geometry.
    fn geometry(&self) -> Geometry;

    /// Returns whether initiators must not write.
    fn is_read_only(&self) -> bool;

    /// Reads the capacity. Returns the capacity if it has changed.
    fn measure(&self) -> Option<u64>;

    /// Returns whether the export is registered with a domain that `which` selects.
    fn is_registered(&self, which: &dyn Fn(&Domain) -> bool) -> bool;

    /// Removes the registration with a domain that `which` selects.
    fn take_registration(&mut self, which: &dyn Fn(&Domain) -> bool) -> Option<Registration>;
}

/// An export of either kind.
pub(super) enum Export {
    Memory(MemoryExport),
    Block(Arc<Device>),
}

impl Export {
    /// Returns whether initiators must send messages.
    pub(super) fn is_block_backed(&self) -> bool {
        matches!(self, Self::Block(_))
    }

    /// Returns whether completed writes are durable only after a commit.
    pub(super) fn is_persistent(&self) -> bool {
        matches!(self, Self::Memory(of) if of.is_persistent())
    }

    /// Returns whether persistent memory has failed, or its device is removed.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self, Self::Memory(of) if of.has_failed())
    }
}

impl Backing for Export {
    fn access(&mut self, domain: &Arc<Domain>) -> Result<Access> {
        match self {
            Self::Memory(of) => of.access(domain),
            Self::Block(of) => of.access(domain),
        }
    }

    fn geometry(&self) -> Geometry {
        match self {
            Self::Memory(of) => of.geometry(),
            Self::Block(of) => of.geometry(),
        }
    }

    fn is_read_only(&self) -> bool {
        match self {
            Self::Memory(of) => of.is_read_only(),
            Self::Block(of) => of.is_read_only(),
        }
    }

    fn measure(&self) -> Option<u64> {
        match self {
            Self::Memory(of) => of.measure(),
            Self::Block(of) => of.measure(),
        }
    }

    fn is_registered(&self, which: &dyn Fn(&Domain) -> bool) -> bool {
        match self {
            Self::Memory(of) => of.is_registered(which),
            Self::Block(of) => of.is_registered(which),
        }
    }

    fn take_registration(&mut self, which: &dyn Fn(&Domain) -> bool) -> Option<Registration> {
        match self {
            Self::Memory(of) => of.take_registration(which),
            Self::Block(of) => of.take_registration(which),
        }
    }
}

/// Access of an admitted connection to an export.
pub(super) enum Access {
    /// The registered memory.
    Memory(Arc<Region>),
    /// The block device.
    Block(Arc<Device>),
}

impl Access {
    /// Returns the limits of the block device, if there is one.
    pub(super) fn limits(&self) -> Option<Limits> {
        match self {
            Self::Memory(_) => None,
            Self::Block(device) => Some(*device.limits()),
        }
    }

    /// Returns the block device's sequence number, or 0.
    pub(super) fn seq(&self) -> u64 {
        match self {
            Self::Memory(_) => 0,
            Self::Block(device) => device.seq(),
        }
    }
}

/// The service of a connection, after the admission of the initiator. The default methods are those
/// of a service without requests.
pub(super) trait Service {
    /// Sizes of the send queue and the receive queue that the service needs.
    const OPERATIONS: (u32, u32);
    /// The completing task may serve the connection.
    const SERVES_IN_COMPLETION: bool;

    /// Ends the service: after the return no byte is read or written for the initiator. May sleep.
    fn stop(&self);

    /// Returns whether the initiator was admitted to the service.
    fn is_open(&self) -> bool;

    /// Returns whether messages of the initiator are requests, not questions.
    fn takes_requests(&self) -> bool {
        false
    }

    /// Returns the number of the connection's keys.
    fn keys(&self) -> usize {
        0
    }

    /// Assigns keys from chunk `first` on, in order, and writes them to `answer`. Returns the
    /// answer's length, in bytes.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the initiator must not ask for these keys.
    /// - `EIO` if the service is stopped.
    /// - Errors of the assignment.
    fn assign(&self, _ep: &Arc<Endpoint>, _first: u32, _answer: &mut [u8]) -> Result<usize> {
        Err(EINVAL)
    }

    /// Returns the counters of the connection's requests.
    fn counts(&self) -> Counts {
        Counts::default()
    }

    /// Announces another capacity to the initiator.
    fn announce(&self, _capacity: u64) {}

    /// Returns whether an answer could not be posted, so that the connection must end.
    fn is_broken(&self) -> bool {
        false
    }

    /// Handles the completion of a request's operation.
    ///
    /// # Errors
    ///
    /// The connection must end on any error.
    fn completed(&self, _entry: &CqEntry) -> Result {
        Err(EIO)
    }

    /// Returns whether succeeded requests wait for [`Service::answer`].
    fn has_answers(&self) -> bool {
        false
    }

    /// Sends the answers of succeeded requests.
    ///
    /// # Errors
    ///
    /// The connection must end on any error.
    fn answer(&self) -> Result {
        Ok(())
    }
}

/// A connection's service of either kind.
pub(super) enum AnyService {
    Memory(Arc<KeyService>),
    Block(Arc<Io>),
}

/// Calls a method of the service of either kind.
macro_rules! service {
    ($any:expr, $of:ident => $call:expr) => {
        match $any {
            AnyService::Memory($of) => $call,
            AnyService::Block($of) => $call,
        }
    };
}

impl AnyService {
    /// See [`Service::SERVES_IN_COMPLETION`].
    pub(super) fn serves_in_completion(&self) -> bool {
        match self {
            Self::Memory(_) => KeyService::SERVES_IN_COMPLETION,
            Self::Block(_) => Io::SERVES_IN_COMPLETION,
        }
    }

    /// See [`Service::stop`].
    pub(super) fn stop(&self) {
        service!(self, of => of.stop())
    }

    /// See [`Service::is_open`].
    pub(super) fn is_open(&self) -> bool {
        service!(self, of => of.is_open())
    }

    /// See [`Service::takes_requests`].
    pub(super) fn takes_requests(&self) -> bool {
        service!(self, of => of.takes_requests())
    }

    /// See [`Service::keys`].
    pub(super) fn keys(&self) -> usize {
        service!(self, of => of.keys())
    }

    /// See [`Service::assign`].
    pub(super) fn assign(
        &self,
        ep: &Arc<Endpoint>,
        first: u32,
        answer: &mut [u8],
    ) -> Result<usize> {
        service!(self, of => of.assign(ep, first, answer))
    }

    /// See [`Service::counts`].
    pub(super) fn counts(&self) -> Counts {
        service!(self, of => of.counts())
    }

    /// See [`Service::announce`].
    pub(super) fn announce(&self, capacity: u64) {
        service!(self, of => of.announce(capacity))
    }

    /// See [`Service::is_broken`].
    pub(super) fn is_broken(&self) -> bool {
        service!(self, of => of.is_broken())
    }

    /// See [`Service::completed`].
    pub(super) fn completed(&self, entry: &CqEntry) -> Result {
        service!(self, of => of.completed(entry))
    }

    /// See [`Service::has_answers`].
    pub(super) fn has_answers(&self) -> bool {
        service!(self, of => of.has_answers())
    }

    /// See [`Service::answer`].
    pub(super) fn answer(&self) -> Result {
        service!(self, of => of.answer())
    }
}
