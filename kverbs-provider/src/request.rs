// SPDX-License-Identifier: GPL-2.0
//! Connection requests that were not yet answered.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        ArcBorrow,
        Mutex, //
    }, //
};

use crate::{
    device::Device,
    ib::cm::{
        CmEvent,
        CmHandler,
        CmId,
        ConnParam,
        Incoming, //
    },
    resource::{
        Class,
        Resource,
        Ticket, //
    },
};
use kfabric::{
    errno::enotconn,
    provider::ConnRequestOps,
    pure::wire,
    uapi::SockAddr, //
};

/// The part that ends with the device.
///
/// Events of its identifier are of no interest: a peer that gave up is noticed when it is
/// answered.
#[pin_data]
pub(crate) struct Inner {
    #[pin]
    id: Mutex<Option<CmId<Inner>>>,
}

impl CmHandler for Inner {
    fn event(_this: ArcBorrow<'_, Self>, _event: CmEvent<'_>) {}
}

impl Inner {
    fn take(&self) -> Option<CmId<Inner>> {
        self.id.lock().take()
    }

    /// Refuses, if it is still there, and ends it.
    fn refuse(&self, data: &[u8]) -> Result {
        let mut message = [0; wire::REJECT_MAX];
        let len = wire::encode(data, &mut message).map_err(|_| EINVAL)?;
        let id = self.take().ok_or_else(enotconn)?;
        // The connection manager forgets the request before it tries. A refusal that it cannot
        // send is as one that is lost on the way: the peer asks again.
        let _ = id.reject(&message[..len]);
        Ok(())
    }
}

impl Resource for Inner {
    fn device_gone(&self) {
        drop(self.take());
    }
}

/// A request.
pub(crate) struct Request {
    inner: Arc<Inner>,
    device: Arc<Device>,
    param: ConnParam,
    /// The peer's application data.
    data: KVec<u8>,
    ticket: Ticket,
}

impl Request {
    /// Takes over a request that came in on `device`, which is registered.
    pub(crate) fn new(device: &Arc<Device>, incoming: Incoming<'_>) -> Result<Arc<Self>> {
        let mut data = KVec::new();
        data.extend_from_slice(wire::decode(incoming.data), GFP_KERNEL)?;
        let inner = Arc::pin_init(
            pin_init!(Inner {
                id <- new_mutex!(None, "kverbs_request"),
            }),
            GFP_KERNEL,
        )?;
        let ticket = device.resources.add(Class::Passive, inner.clone())?;
        let request = Self {
            inner,
            device: device.clone(),
            param: incoming.param,
            data,
            ticket,
        };
        let request = Arc::new(request, GFP_KERNEL)?;
        let inner = request.inner.clone();
        *request.inner.id.lock() = Some(incoming.adopt(inner));
        Ok(request)
    }

    /// The device that it came in on.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The peer's application data.
    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Our address and the peer's, while it is not answered.
    pub(crate) fn addresses(&self) -> (SockAddr, SockAddr) {
        match &*self.inner.id.lock() {
            Some(id) => (id.local_addr(), id.peer_addr()),
            None => Default::default(),
        }
    }

    /// Takes its identifier out, for an endpoint, with what the peer offers.
    pub(crate) fn take(&self) -> Option<(CmId<Inner>, ConnParam)> {
        Some((self.inner.take()?, self.param))
    }
}

impl ConnRequestOps for Request {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn reject(&self, data: &[u8]) -> Result {
        self.inner.refuse(data)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // An answered one is not there any more.
        let _ = self.inner.refuse(&[]);
        self.device.resources.remove(self.ticket);
    }
}
