// SPDX-License-Identifier: GPL-2.0
//! Connection requests.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::connection::Connection;
use kfabric::{
    base::errno::enotconn,
    provider::ConnRequestOps,
    uapi::SockAddr, //
};

/// A connection request.
pub(crate) struct Request {
    /// The initiator, until the request is answered.
    initiator: Pin<KBox<Mutex<Option<Arc<Connection>>>>>,
    local: SockAddr,
    peer: SockAddr,
    data: KVec<u8>,
    /// Index of the initiator's auth key among those of the listener.
    proven: Option<usize>,
}

impl Request {
    /// Creates the request of `initiator` at `peer` to the listener at `local`. `proven`: index of
    /// the initiator's auth key among those of the listener, if any.
    pub(crate) fn new(
        initiator: &Arc<Connection>,
        local: &SockAddr,
        peer: &SockAddr,
        data: KVec<u8>,
        proven: Option<usize>,
    ) -> Result<Arc<Self>> {
        let asks = new_mutex!(Some(initiator.clone()), "kshm_request");
        let request = Self {
            initiator: KBox::pin_init(asks, GFP_KERNEL_ACCOUNT)?,
            local: *local,
            peer: *peer,
            data,
            proven,
        };
        Ok(Arc::new(request, GFP_KERNEL_ACCOUNT)?)
    }

    /// Returns the initiator's connection data.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the index of the initiator's auth key among those of the listener, or `None` if it
    /// has none.
    pub(crate) fn proven(&self) -> Option<usize> {
        self.proven
    }

    /// Returns the local address and the peer's.
    pub(crate) fn addresses(&self) -> (SockAddr, SockAddr) {
        (self.local, self.peer)
    }

    /// Returns the initiator and both addresses. Only the first call returns them.
    pub(crate) fn take(&self) -> Option<(Arc<Connection>, SockAddr, SockAddr)> {
        let initiator = self.initiator.lock().take()?;
        Some((initiator, self.local, self.peer))
    }
}

impl ConnRequestOps for Request {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn reject(&self, data: &[u8]) -> Result {
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT)?;
        let (initiator, ..) = self.take().ok_or_else(enotconn)?;
        Connection::refuse(&initiator, Some(copy));
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // The initiator of an answered request was taken out, so nothing happens.
        if let Some((initiator, ..)) = self.take() {
            Connection::refuse(&initiator, None);
        }
    }
}
