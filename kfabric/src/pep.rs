// SPDX-License-Identifier: GPL-2.0
//! Passive endpoints and connection requests (`fi_passive_ep(3)`, `fi_listen(3)`).

use core::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::{
    auth::{
        AuthKey,
        Under, //
    },
    eq::{
        Eq,
        Event, //
    },
    fabric::Fabric,
    object::{
        set_name,
        Ending,
        Held, //
    },
    provider::{
        ConnRequestOps,
        ListenSink,
        ListenerOps, //
    },
    uapi::*,
};

/// Requests that may wait in the provider of a listener that did not say.
const DEFAULT_BACKLOG: u32 = 64;

/// A connection request. Dropping one that was not answered refuses it.
pub struct Request {
    ops: Arc<dyn ConnRequestOps>,
    /// Somebody is answering, or has.
    taken: AtomicBool,
    info: InfoEntry,
    /// What the peer has proven to have, and which of the passive endpoint's it is, from 1 on.
    auth: Option<(AuthKey, u32)>,
    // Keeps the provider.
    _fabric: Arc<Fabric>,
}

/// The one answer that a request gets. Dropped without [`Answer::used`], the request is open
/// again.
pub(crate) struct Answer<'a>(&'a Request);

impl Answer<'_> {
    pub(crate) fn ops(&self) -> &Arc<dyn ConnRequestOps> {
        &self.0.ops
    }

    pub(crate) fn used(self) {
        core::mem::forget(self);
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

impl Request {
    /// What it says: provider, fabric and domain to accept on, our address and the peer's.
    pub fn info(&self) -> &InfoEntry {
        &self.info
    }

    /// The auth key that the peer has proven to have.
    pub fn auth(&self) -> Option<&AuthKey> {
        self.auth.as_ref().map(|(key, _)| key)
    }

    /// Which of the passive endpoint's auth keys that is, counted from 1; 0: there is none.
    pub(crate) fn auth_index(&self) -> u32 {
        self.auth.as_ref().map_or(0, |(_, index)| *index)
    }

    /// Begins to answer.
    ///
    /// # Errors
    ///
    /// `ENOENT`: somebody else does, or has.
    pub(crate) fn answer(&self) -> Result<Answer<'_>> {
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(ENOENT);
        }
        Ok(Answer(self))
    }

    /// Refuses, with application data for the peer.
    pub fn reject(&self, data: &[u8]) -> Result {
        if data.len() > KFI_CM_DATA_MAX {
            return Err(EINVAL);
        }
        let answer = self.answer()?;
        self.ops.reject(data)?;
        answer.used();
        Ok(())
    }
}

/// What the provider's listener reaches.
struct Shared {
    handle: AtomicU64,
    context: u64,
    eq: Held<Eq>,
    fabric: Arc<Fabric>,
    auth: KVec<Under>,
}

impl Shared {
    fn source(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
}

impl Shared {
    fn deliver(
        &self,
        req: Arc<dyn ConnRequestOps>,
        info: &InfoEntry,
        data: &[u8],
        auth: Option<(AuthKey, u32)>,
    ) -> Result {
        let mut info = *info;
        set_name(&mut info.prov_name, self.fabric.provider().name());
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT)?;
        let request = Request {
            ops: req,
            taken: AtomicBool::new(false),
            info,
            auth,
            _fabric: self.fabric.clone(),
        };
        self.eq.push_request(Event {
            kind: KFI_CONNREQ,
            object: self.handle.load(Ordering::Relaxed),
            context: self.context,
            err: 0,
            prov_errno: 0,
            data: copy,
            request: Some(Arc::new(request, GFP_KERNEL_ACCOUNT)?),
            source: self.source(),
        })
    }
}

impl ListenSink for Shared {
    fn request(&self, req: Arc<dyn ConnRequestOps>, info: &InfoEntry, data: &[u8]) -> Result {
        if !self.auth.is_empty() {
            return Err(EINVAL);
        }
        self.deliver(req, info, data, None)
    }

    fn proven(
        &self,
        req: Arc<dyn ConnRequestOps>,
        info: &InfoEntry,
        data: &[u8],
        index: usize,
    ) -> Result {
        let under = self.auth.get(index).ok_or(EINVAL)?;
        under.check()?;
        let key = under.key.as_ref().ok_or(EINVAL)?;
        let number = u32::try_from(index + 1).map_err(|_| EINVAL)?;
        self.deliver(req, info, data, Some((key.clone(), number)))
    }

    fn gone(&self) {
        let event = Event {
            kind: KFI_CONN_ERROR,
            object: self.handle.load(Ordering::Relaxed),
            context: self.context,
            // CAST: An errno is positive.
            err: ENODEV.to_errno().unsigned_abs(),
            prov_errno: 0,
            data: KVec::new(),
            request: None,
            source: self.source(),
        };
        self.eq.push_owed(event, || true);
    }
}

/// A passive endpoint.
#[pin_data(PinnedDrop)]
pub struct PassiveEp {
    shared: Arc<Shared>,
    // Dropped before the hold on the provider.
    listener: Arc<dyn ListenerOps>,
    listening: AtomicBool,
    #[pin]
    ending: Ending,
    fabric: Held<Fabric>,
}

impl PassiveEp {
    /// Opens one for `addr` (port 0: any) whose requests go to `eq`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: the queue is of another fabric. `EACCES`: the caller may not listen at that port.
    /// `EADDRINUSE`, `EADDRNOTAVAIL`.
    pub fn open(
        fabric: &Arc<Fabric>,
        eq: &Arc<Eq>,
        addr: &SockAddr,
        context: u64,
    ) -> Result<Arc<Self>> {
        Self::open_under(fabric, eq, addr, context, KVec::new())
    }

    /// As [`PassiveEp::open`], for peers that prove to have one of `keys`.
    ///
    /// # Errors
    ///
    /// As [`PassiveEp::open`]. `EOPNOTSUPP`: the provider cannot.
    pub fn open_for(
        fabric: &Arc<Fabric>,
        eq: &Arc<Eq>,
        addr: &SockAddr,
        context: u64,
        keys: &[AuthKey],
    ) -> Result<Arc<Self>> {
        let mut auth = KVec::with_capacity(keys.len(), GFP_KERNEL_ACCOUNT)?;
        for key in keys {
            auth.push(Under::of(Some(key)), GFP_KERNEL_ACCOUNT)?;
        }
        Self::open_under(fabric, eq, addr, context, auth)
    }

    pub(crate) fn open_under(
        fabric: &Arc<Fabric>,
        eq: &Arc<Eq>,
        addr: &SockAddr,
        context: u64,
        auth: KVec<Under>,
    ) -> Result<Arc<Self>> {
        if !Arc::ptr_eq(eq.fabric(), fabric) {
            return Err(EINVAL);
        }
        fabric.net().may_listen(addr)?;
        let mut proofs = KVec::with_capacity(auth.len(), GFP_KERNEL_ACCOUNT)?;
        for key in auth.iter().filter_map(|under| under.key.as_ref()) {
            proofs.push(key.prover()?, GFP_KERNEL_ACCOUNT)?;
        }
        let shared = Arc::new(
            Shared {
                handle: AtomicU64::new(0),
                context,
                eq: Held::new(eq)?,
                fabric: fabric.clone(),
                auth,
            },
            GFP_KERNEL_ACCOUNT,
        )?;
        let (provider, net) = (fabric.provider(), fabric.net());
        let held = Held::new(fabric)?;
        eq.owe()?;
        let listener = if proofs.is_empty() {
            provider.listener(net, addr, shared.clone())
        } else {
            provider.proven_listener(net, addr, proofs, shared.clone())
        };
        let kept = shared.clone();
        listener
            .and_then(|listener| {
                let pep = pin_init!(Self {
                    shared: kept,
                    listener,
                    listening: AtomicBool::new(false),
                    ending <- Ending::new(),
                    fabric: held,
                });
                Arc::pin_init(pep, GFP_KERNEL_ACCOUNT)
            })
            .inspect_err(|_| eq.settle(shared.source()))
    }

    pub(crate) fn set_handle(&self, handle: u64) {
        self.shared.handle.store(handle, Ordering::Relaxed);
    }

    /// Its fabric.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.arc()
    }

    /// What it listens under.
    pub(crate) fn auth(&self) -> &[Under] {
        &self.shared.auth
    }

    /// Ends it if a grant of it is over; whether it did. The others' peers are to come back to another
    /// one: a passive endpoint is whole or not at all.
    pub(crate) fn sweep(&self) -> bool {
        if self.shared.auth.iter().all(|under| under.check().is_ok()) {
            return false;
        }
        self.listener.close();
        self.shared.auth.iter().for_each(Under::end);
        true
    }

    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// `EINVAL`: listening already. `EKEYREVOKED`, `EKEYEXPIRED`: a grant of it is over.
    pub fn listen(&self, backlog: u32) -> Result {
        for under in &self.shared.auth {
            under.check()?;
        }
        if self.listening.swap(true, Ordering::AcqRel) {
            return Err(EINVAL);
        }
        let backlog = match backlog {
            0 => DEFAULT_BACKLOG,
            wanted => wanted.min(KFI_EQ_SIZE_MAX),
        };
        self.listener
            .listen(backlog)
            .inspect_err(|_| self.listening.store(false, Ordering::Release))
    }

    /// Its address, with the port chosen once it listens.
    pub fn local_addr(&self) -> SockAddr {
        self.listener.local_addr()
    }

    /// Closes: no request of it comes any more; those waiting are refused.
    pub fn close(&self) {
        self.ending.run(|| {
            self.listener.close();
            self.shared.eq.settle(self.shared.source());
            self.shared.eq.release();
            self.fabric.release();
            self.shared.auth.iter().for_each(Under::end);
        });
    }

    /// After a close: waits until nobody looks at an event of it.
    pub(crate) fn unseen(&self) {
        self.shared.eq.unseen(self.shared.source());
    }
}

#[pinned_drop]
impl PinnedDrop for PassiveEp {
    fn drop(self: Pin<&mut Self>) {
        self.close()
    }
}
