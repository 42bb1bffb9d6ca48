// SPDX-License-Identifier: GPL-2.0
//! Passive endpoints (`fi_passive_ep(3)`, `fi_listen(3)`).

use core::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    conn_request::Request,
    eq::{
        Eq,
        Event, //
    },
    fabric::Fabric, //
};
use crate::{
    auth::{
        AuthKey,
        Authorization, //
    },
    base::{
        name::set_name,
        parent::{
            Ending,
            Held, //
        },
    },
    provider::{
        ConnRequestOps,
        ListenSink,
        ListenerOps, //
    },
    uapi::*,
};

/// Default number of requests that may wait in the provider of a listener.
const DEFAULT_BACKLOG: u32 = 64;

/// The part of a passive endpoint that the provider's listener uses.
struct Shared {
    handle: AtomicU64,
    context: u64,
    eq: Held<Eq>,
    fabric: Arc<Fabric>,
    auth: KVec<Authorization>,
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
        let counted = self.fabric.count_request()?;
        let mut info = *info;
        set_name(&mut info.prov_name, self.fabric.provider().name());
        let mut copy = KVec::new();
        copy.extend_from_slice(data, GFP_KERNEL_ACCOUNT)?;
        let request = Request::new(req, info, auth, counted, self.fabric.clone());
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
    /// Opens a passive endpoint for `addr` (port 0: any). Its requests go to `eq`.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the queue belongs to another fabric.
    /// - `EACCES` if the caller may not listen at that port.
    /// - `EADDRINUSE` if the address is in use.
    /// - `EADDRNOTAVAIL` if the address is not local.
    pub fn open(
        fabric: &Arc<Fabric>,
        eq: &Arc<Eq>,
        addr: &SockAddr,
        context: u64,
    ) -> Result<Arc<Self>> {
        Self::open_under(fabric, eq, addr, context, KVec::new())
    }

    /// As [`PassiveEp::open`], for peers that prove one of `keys`.
    ///
    /// # Errors
    ///
    /// As [`PassiveEp::open`], and:
    ///
    /// - `EOPNOTSUPP` if the provider has no auth handshake.
    pub fn open_for(
        fabric: &Arc<Fabric>,
        eq: &Arc<Eq>,
        addr: &SockAddr,
        context: u64,
        keys: &[AuthKey],
    ) -> Result<Arc<Self>> {
        let mut auth = KVec::with_capacity(keys.len(), GFP_KERNEL_ACCOUNT)?;
        for key in keys {
            auth.push(Authorization::of(Some(key)), GFP_KERNEL_ACCOUNT)?;
        }
        Self::open_under(fabric, eq, addr, context, auth)
    }

    pub(crate) fn open_under(
        fabric: &Arc<Fabric>,
        eq: &Arc<Eq>,
        addr: &SockAddr,
        context: u64,
        auth: KVec<Authorization>,
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
            .inspect_err(|_| eq.forget_source(shared.source()))
    }

    pub(crate) fn set_handle(&self, handle: u64) {
        self.shared.handle.store(handle, Ordering::Relaxed);
    }

    /// The fabric of the passive endpoint.
    pub fn fabric(&self) -> &Arc<Fabric> {
        self.fabric.arc()
    }

    /// The auth keys and leases of the passive endpoint.
    pub(crate) fn auth(&self) -> &[Authorization] {
        &self.shared.auth
    }

    /// Ends the passive endpoint if one of its grants has ended; returns whether one has. It ends
    /// for all of its auth keys: peers with the other keys need a new passive endpoint.
    pub(crate) fn sweep(&self) -> bool {
        if self.shared.auth.iter().all(|under| under.check().is_ok()) {
            return false;
        }
        self.listener.close();
        self.shared.auth.iter().for_each(Authorization::end);
        true
    }

    /// Starts to listen.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the passive endpoint listens already.
    /// - `EKEYREVOKED`, `EKEYEXPIRED` if one of its grants has ended.
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

    /// The listening address, with the chosen port once it listens.
    pub fn local_addr(&self) -> SockAddr {
        self.listener.local_addr()
    }

    /// Closes the passive endpoint: no request follows, and waiting requests are refused.
    pub fn close(&self) {
        self.ending.run(|| {
            self.listener.close();
            self.shared.eq.forget_source(self.shared.source());
            self.shared.eq.release();
            self.fabric.release();
            self.shared.auth.iter().for_each(Authorization::end);
        });
    }

    /// After a close: waits until no reader examines an event of the passive endpoint.
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
