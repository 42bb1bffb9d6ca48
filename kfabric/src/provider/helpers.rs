// SPDX-License-Identifier: GPL-2.0
//! Parts of a provider that do not depend on its transport. A provider may use them or not.
//!
//! | item | contents |
//! |---|---|
//! | [`Phase`], [`Ended`] | phases of an endpoint's connection, and the report of its end |
//! | [`DomainAttr::offer`], [`DomainAttr::admit`] | entries of `fi_getinfo`, and limits of endpoints |
//! | [`own_request`], [`deliver`] | connection requests, from the core and to the core |
//! | [`Worker`] | the task that calls a sink |

use core::sync::atomic::{
    AtomicUsize,
    Ordering, //
};

use kernel::{
    bindings,
    prelude::*,
    sync::Arc,
    task::Task, //
};

use super::{
    ConnRequestOps,
    DomainAttr,
    EndpointAttr,
    ListenSink, //
};
use crate::{
    base::errno::econnaborted,
    uapi::{
        InfoEntry,
        SockAddr,
        KFI_EP_MSG, //
    },
};

/// Phase of an endpoint's connection.
///
/// ```text
///  New --enable--> Enabled --connect/accept--> Connecting --> Connected
///                     |                            |              |
///                     +----------------------------+--------------+--> Down --close--> Closed
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The endpoint is not enabled.
    New,
    /// The endpoint is enabled, and no connection was begun.
    Enabled,
    /// A connection was begun and is not established.
    Connecting,
    /// The connection is established.
    Connected,
    /// The connection has ended.
    Down,
    /// The endpoint is closed.
    Closed,
}

/// Report of a connection's end to the consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The connection was not established, with a positive errno.
    ConnError(u32),
    /// The connection was established, with a positive errno or 0.
    Shutdown(u32),
}

impl Phase {
    /// Checks that the endpoint can be enabled.
    ///
    /// # Errors
    ///
    /// - `ECONNABORTED` if the connection has ended.
    /// - `EINVAL` if the endpoint is enabled or closed.
    pub fn check_enable(self) -> Result {
        self.check(Self::New)
    }

    /// Checks that an accepting endpoint can accept.
    ///
    /// # Errors
    ///
    /// - `ECONNABORTED` if the connection has ended.
    /// - `EINVAL` if the endpoint is not enabled, has accepted, or is closed.
    pub fn check_accept(self) -> Result {
        self.check(Self::Enabled)
    }

    fn check(self, wanted: Self) -> Result {
        match self {
            Self::Down => Err(econnaborted()),
            phase if phase == wanted => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// Returns whether a connection was begun and has not ended.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Connecting | Self::Connected)
    }

    /// Ends the connection, with a positive errno or 0. Returns the report to the consumer, if
    /// there was a connection. A connection that was not established never ends without an errno.
    pub fn end(&mut self, err: u32) -> Option<Ended> {
        let ended = match *self {
            Self::Connecting if err == 0 => Some(Ended::ConnError(bindings::ECONNRESET)),
            Self::Connecting => Some(Ended::ConnError(err)),
            Self::Connected => Some(Ended::Shutdown(err)),
            _ => None,
        };
        if *self != Self::Closed {
            *self = Self::Down;
        }
        ended
    }
}

impl DomainAttr {
    /// Returns an offer of `fabric` at `addr` with these attributes. The provider adds the fields
    /// `mr_key_size`, `protocol`, `addr_format`, `rank` and `domain_name`.
    pub fn offer(&self, fabric: &str, addr: SockAddr) -> InfoEntry {
        let mut entry = InfoEntry {
            caps: self.caps,
            mr_mode: self.mr_mode,
            max_msg_size: self.max_msg_size,
            inject_size: u64::from(self.inject_size),
            tx_size: self.max_tx_size,
            rx_size: self.max_rx_size,
            iov_limit: self.iov_limit,
            rma_iov_limit: 1,
            cq_data_size: self.cq_data_size,
            cm_data_size: self.cm_data_size,
            ep_type: KFI_EP_MSG,
            src_addr: addr,
            visible: self.visible,
            durable: self.durable,
            revocation: self.revocation,
            max_key_pages: self.max_key_pages,
            ..InfoEntry::default()
        };
        entry.fabric_name[..fabric.len()].copy_from_slice(fabric.as_bytes());
        entry
    }

    /// Checks the attributes of a new endpoint, and raises its inject size to the domain's.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if an attribute exceeds the domain's, or a queue has no place.
    pub fn admit(&self, attr: &mut EndpointAttr) -> Result {
        let too_large = attr.tx_size > self.max_tx_size
            || attr.rx_size > self.max_rx_size
            || attr.iov_limit > self.iov_limit
            || attr.inject_size > self.inject_size;
        if too_large || attr.tx_size == 0 || attr.rx_size == 0 {
            return Err(EINVAL);
        }
        attr.inject_size = self.inject_size;
        Ok(())
    }
}

/// Returns the provider's own type of a connection request that the core passes back.
///
/// # Errors
///
/// - `EINVAL` if the request is another provider's.
pub fn own_request<R: ConnRequestOps + 'static>(
    request: Option<&Arc<dyn ConnRequestOps>>,
) -> Result<Option<&R>> {
    match request {
        Some(request) => request.as_any().downcast_ref().map(Some).ok_or(EINVAL),
        None => Ok(None),
    }
}

/// Delivers a request to the consumer of a listener. `proven`: the index of the listener's auth key
/// that the peer has proven, if any. If the sink does not keep the request, its drop refuses it.
pub fn deliver(
    sink: &Arc<dyn ListenSink>,
    request: Arc<dyn ConnRequestOps>,
    info: &InfoEntry,
    data: &[u8],
    proven: Option<usize>,
) {
    let _ = match proven {
        Some(index) => sink.proven(request, info, data, index),
        None => sink.request(request, info, data),
    };
}

/// The task that runs a work item which calls a sink.
///
/// A sink may close the object that calls it. A close waits for the work item, except in the task
/// that runs it.
pub struct Worker(AtomicUsize);

impl Worker {
    /// Returns a worker of an idle work item.
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn current() -> usize {
        Task::current_raw().addr()
    }

    /// Calls `f` as the work item.
    pub fn run(&self, f: impl FnOnce()) {
        self.0.store(Self::current(), Ordering::Release);
        f();
        self.0.store(0, Ordering::Release);
    }

    /// Returns whether the current task runs the work item.
    pub fn is_current(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::current()
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self::new()
    }
}
