// SPDX-License-Identifier: GPL-2.0
//! Connection requests that were not yet answered.

use core::any::Any;
use kernel::{
    prelude::*,
    sync::{
        new_mutex,
        Arc,
        ArcBorrow,
        Mutex,
        SetOnce, //
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
    shake::{
        self,
        Asked,
        Gatekeeper,
        Proven, //
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

    /// Refuses with a message, if it is still there, and ends it.
    fn refuse(&self, message: &[u8]) -> Result {
        let id = self.take().ok_or_else(enotconn)?;
        // The connection manager forgets the request before it tries. A refusal that it cannot
        // send is as one that is lost on the way: the peer asks again.
        let _ = id.reject(message);
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
    /// The peer's private data.
    message: KVec<u8>,
    /// What its peer has proven, if it has.
    proven: SetOnce<Proven>,
    ticket: Ticket,
}

impl Request {
    /// Takes over a request that came in on `device`, which is registered.
    pub(crate) fn new(device: &Arc<Device>, incoming: Incoming<'_>) -> Result<Arc<Self>> {
        let mut message = KVec::new();
        message.extend_from_slice(incoming.data, GFP_KERNEL_ACCOUNT)?;
        let inner = Arc::pin_init(
            pin_init!(Inner {
                id <- new_mutex!(None, "kverbs_request"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        let ticket = device.resources.add(Class::Passive, inner.clone())?;
        let request = Self {
            inner,
            device: device.clone(),
            param: incoming.param,
            message,
            proven: SetOnce::new(),
            ticket,
        };
        let request = Arc::new(request, GFP_KERNEL_ACCOUNT)?;
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
        shake::data(&self.message)
    }

    /// Has a listener's gatekeeper look at it. Nothing if it was refused; else the index of the auth
    /// key that the peer has proven to have, if it is to have one.
    pub(crate) fn pass(&self, gate: &Gatekeeper) -> Option<Option<usize>> {
        let (local, peer) = self.addresses();
        match gate.look(&self.message, shake::ends(&peer, &local), self.param.qp_num) {
            Asked::Plain => Some(None),
            Asked::Proven(index, proven) => {
                self.proven.populate(proven);
                Some(Some(index))
            }
            Asked::Refuse(message, len) => {
                let _ = self.inner.refuse(&message[..len]);
                None
            }
        }
    }

    /// What its peer has proven.
    pub(crate) fn proven(&self) -> Option<&Proven> {
        self.proven.as_ref()
    }

    fn refuse(&self, data: &[u8]) -> Result {
        let mut message = [0; wire::REJECT_MAX];
        let len = match self.proven() {
            Some(proven) => proven.refusal(data, &mut message)?,
            None => wire::encode(data, &mut message).map_err(|_| EINVAL)?,
        };
        self.inner.refuse(&message[..len])
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
        self.refuse(data)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        // An answered one is not there any more.
        let _ = self.refuse(&[]);
        self.device.resources.remove(self.ticket);
    }
}
