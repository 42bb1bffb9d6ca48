// SPDX-License-Identifier: GPL-2.0
//! Connection requests that were not yet answered.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use crate::endpoint::Endpoint;
use kfabric::{
    errno::enotconn,
    provider::ConnRequestOps,
    uapi::SockAddr, //
};

/// A request.
pub(crate) struct Request {
    /// Who asks, until it is answered.
    initiator: Pin<KBox<Mutex<Option<Arc<Endpoint>>>>>,
    local: SockAddr,
    peer: SockAddr,
    data: KVec<u8>,
    /// Which of the listener's auth keys the initiator has.
    proven: Option<usize>,
}

impl Request {
    /// `initiator` at `peer` asks whoever listens at `local`, and has the auth key that is the
    /// `proven`th there, or none.
    pub(crate) fn new(
        initiator: &Arc<Endpoint>,
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

    /// The peer's application data.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Which of the listener's auth keys the peer has; none if it has none.
    pub(crate) fn proven(&self) -> Option<usize> {
        self.proven
    }

    /// Our address and the peer's.
    pub(crate) fn addresses(&self) -> (SockAddr, SockAddr) {
        (self.local, self.peer)
    }

    /// Takes who asks out, for an endpoint, with both addresses.
    pub(crate) fn take(&self) -> Option<(Arc<Endpoint>, SockAddr, SockAddr)> {
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
        Endpoint::refuse(&initiator, Some(copy));
        Ok(())
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // An answered one is not there any more.
        if let Some((initiator, ..)) = self.take() {
            Endpoint::refuse(&initiator, None);
        }
    }
}
