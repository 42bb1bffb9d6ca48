// SPDX-License-Identifier: GPL-2.0
//! The sinks: the core implements them, and providers call them.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    endpoint::ConnRequestOps,
    key::KeyValues, //
};
use crate::{
    provider::ring_pair::Offer,
    uapi::InfoEntry, //
};

/// Receiver of a listener's events; the core implements it.
pub trait ListenSink: Send + Sync {
    /// Delivers a connection request. `info` names the domain that an accepting endpoint must be
    /// opened on, and both addresses (`src_addr` ours, `dest_addr` the peer's).
    ///
    /// # Errors
    ///
    /// - An error if the queue is full or the listener is being closed. The provider then drops
    ///   the request.
    fn request(&self, req: Arc<dyn ConnRequestOps>, info: &InfoEntry, data: &[u8]) -> Result;

    /// As [`ListenSink::request`], for a peer that has proven the listener's auth key number
    /// `index`.
    fn proven(
        &self,
        req: Arc<dyn ConnRequestOps>,
        info: &InfoEntry,
        data: &[u8],
        index: usize,
    ) -> Result;

    /// Reports that the address's device is removed; no request follows. Called at most once, and
    /// not after the listener was closed.
    fn gone(&self);
}

/// Receiver of an endpoint's connection events; the core implements it.
pub trait EndpointSink: Send + Sync {
    /// Reports the connection, with the peer's application data (connecting side). Called at most
    /// once.
    fn connected(&self, data: &[u8]);

    /// Reports that connecting failed. Called instead of `connected`.
    ///
    /// `err` is a positive errno: `ECONNREFUSED` if the peer refused, `ETIMEDOUT`, `EHOSTUNREACH`,
    /// …. `prov_errno` is the provider's code, `data` the refusing peer's data.
    fn conn_error(&self, err: u32, prov_errno: u32, data: &[u8]);

    /// Reports the end of the connection, by either side or by a failure (then `err` is a positive
    /// errno). Called at most once, after `connected`.
    fn shutdown(&self, err: u32);

    /// Returns the endpoint's offer of rings, for a provider that has both ends on this host. The
    /// provider [joins](crate::provider::ring_pair::join) it with the other end's before it calls `connected` of
    /// either.
    fn rings(&self) -> Option<Arc<Offer>> {
        None
    }

    /// Returns whether the endpoint's operations may complete in any context
    /// ([`OpToken::complete`](crate::ep::OpToken::complete)), because its completion queues have no handlers.
    /// Final when the endpoint is enabled. Otherwise the provider prefers
    /// [`OpToken::complete_sleeping`](crate::ep::OpToken::complete_sleeping).
    fn completes_anywhere(&self) -> bool {
        false
    }
}

/// Receiver of a device's events; the core implements it.
pub trait DomainSink: Send + Sync {
    /// Reports that the device is removed; see the module's text. Called at most once.
    fn gone(&self);

    /// Returns whether a program opened the domain. If so, the provider charges device objects to
    /// the calling task's rdma cgroup, as uverbs does. Kernel consumers are not charged, because
    /// there the current task need not be the task that uses the device.
    fn is_program(&self) -> bool {
        false
    }

    /// Returns the rule for the values of the domain's own keys: [`KeyValues::Again`] or
    /// [`KeyValues::Strict`].
    fn key_values(&self) -> KeyValues {
        KeyValues::Again
    }
}
