// SPDX-License-Identifier: GPL-2.0
//! Connection requests that have not been answered.

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

use super::handshake::{
    self,
    Asked,
    Gatekeeper,
    Proven, //
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
    base::errno::enotconn,
    provider::ConnRequestOps,
    pure::wire::{
        self,
        Secret, //
    },
    uapi::SockAddr, //
};

/// The part of a request that ends when the device is removed.
///
/// Events of the identifier are ignored: if the peer gave up, the answer to the request fails.
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

    /// Refuses the request with a message and drops the identifier, if the request is unanswered.
    ///
    /// # Errors
    ///
    /// - `ENOTCONN` if the request was answered or has ended.
    fn refuse(&self, message: &[u8]) -> Result {
        let id = self.take().ok_or_else(enotconn)?;
        // The connection manager forgets the request before it sends the refusal. If it cannot
        // send, the effect is that of a lost packet: the peer repeats the request.
        let _ = id.reject(message);
        Ok(())
    }
}

impl Resource for Inner {
    fn device_gone(&self) {
        drop(self.take());
    }
}

/// A connection request.
pub(crate) struct Request {
    inner: Arc<Inner>,
    device: Arc<Device>,
    param: ConnParam,
    /// Private data of the peer.
    message: KVec<u8>,
    /// The peer's proof of its auth key, after the gatekeeper has admitted the request.
    proven: SetOnce<Proven>,
    ticket: Ticket,
}

impl Request {
    /// Creates a request for `incoming`, which arrived on the registered `device`, and adopts its
    /// identifier.
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

    /// Returns the device on which the request arrived.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the peer's application data.
    pub(crate) fn data(&self) -> &[u8] {
        handshake::data(&self.message)
    }

    /// Submits the request to a listener's gatekeeper.
    ///
    /// Returns `None` if the gatekeeper refused. Otherwise, it returns the index of the auth key
    /// that the peer has proven, or `None` inside if no proof was needed.
    pub(crate) fn pass(&self, gate: &Gatekeeper) -> Option<Option<usize>> {
        let (local, peer) = self.addresses();
        let path = self.inner.id.lock().as_ref().map(CmId::path_gids);
        let ends = path
            .and_then(Result::ok)
            .map(|(own, theirs)| handshake::ends((&peer, theirs), (&local, own)));
        match gate.look(&self.message, ends, self.param.qp_num) {
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

    /// Returns the peer's secret, if the request has one. A request with a proof has none.
    pub(crate) fn secret(&self) -> Option<Secret> {
        let plain = handshake::is_plain(&self.message);
        plain.then(|| wire::secret(&self.message)).flatten()
    }

    /// Returns the peer's proof of its auth key, if there is one.
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

    /// Returns the local and the peer's address, while the request is unanswered.
    pub(crate) fn addresses(&self) -> (SockAddr, SockAddr) {
        match &*self.inner.id.lock() {
            Some(id) => (id.local_addr(), id.peer_addr()),
            None => Default::default(),
        }
    }

    /// Moves the identifier and the peer's parameters out, for an endpoint.
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
        // Fails if the request was answered: then its identifier was moved out.
        let _ = self.refuse(&[]);
        self.device.resources.remove(self.ticket);
    }
}
