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
}

impl Shared {
    fn source(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }
}

impl ListenSink for Shared {
    fn request(&self, req: Arc<dyn ConnRequestOps>, info: &InfoEntry, data: &[u8]) -> Result {
        let mut info = *info;
        set_name(&mut info.prov_name, self.fabric.provider().name());
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL)?;
        let request = Request {
            ops: req,
            taken: AtomicBool::new(false),
            info,
            _fabric: self.fabric.clone(),
        };
        self.eq.push_request(Event {
            kind: KFI_CONNREQ,
            object: self.handle.load(Ordering::Relaxed),
            context: self.context,
            err: 0,
            prov_errno: 0,
            data: copy,
            request: Some(Arc::new(request, GFP_KERNEL)?),
            source: self.source(),
        })
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
    /// `EINVAL`: the queue is of another fabric. `EADDRINUSE`, `EADDRNOTAVAIL`.
    pub fn open(
        fabric: &Arc<Fabric>,
        eq: &Arc<Eq>,
        addr: &SockAddr,
        context: u64,
    ) -> Result<Arc<Self>> {
        if !Arc::ptr_eq(eq.fabric(), fabric) {
            return Err(EINVAL);
        }
        let shared = Arc::new(
            Shared {
                handle: AtomicU64::new(0),
                context,
                eq: Held::new(eq)?,
                fabric: fabric.clone(),
            },
            GFP_KERNEL,
        )?;
        let listener = fabric
            .provider()
            .listener(fabric.net(), addr, shared.clone())?;
        let held = Held::new(fabric)?;
        let pep = pin_init!(Self {
            shared,
            listener,
            listening: AtomicBool::new(false),
            ending <- Ending::new(),
            fabric: held,
        });
        Arc::pin_init(pep, GFP_KERNEL)
    }

    pub(crate) fn set_handle(&self, handle: u64) {
        self.shared.handle.store(handle, Ordering::Relaxed);
    }

    /// Its fabric.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.arc()
    }

    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// `EINVAL`: listening already.
    pub fn listen(&self, backlog: u32) -> Result {
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
            self.shared.eq.settle(self.shared.source(), false);
            self.shared.eq.release();
            self.fabric.release();
        });
    }
}

#[pinned_drop]
impl PinnedDrop for PassiveEp {
    fn drop(self: Pin<&mut Self>) {
        self.close()
    }
}
