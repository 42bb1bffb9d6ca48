// SPDX-License-Identifier: GPL-2.0
//! The connections of a fake provider: endpoints, listeners, requests. Nobody is at the other
//! end; what comes from there the test says.

use core::{
    any::Any,
    sync::atomic::{
        AtomicBool,
        Ordering, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use kfabric::{
    errno::enotconn,
    new_irqlock,
    op::{
        OpDesc,
        OpToken,
        Outcome, //
    },
    provider::{
        ConnRequestOps,
        EndpointAttr,
        EndpointOps,
        EndpointSink,
        ListenerOps, //
    },
    sys::IrqLock,
    uapi::SockAddr,
};

use crate::fake::{
    wanted_error,
    Control,
    Step, //
};

/// An endpoint.
#[pin_data(PinnedDrop)]
pub(crate) struct FakeEp {
    /// Who is told what happens to it.
    pub(crate) sink: Arc<dyn EndpointSink>,
    control: Arc<Control>,
    #[pin]
    posted: IrqLock<Posted>,
}

/// What was posted to an endpoint.
struct Posted {
    /// Not yet completed, oldest first; with room for as many as it may hold.
    tokens: KVec<OpToken>,
    closed: bool,
}

impl FakeEp {
    pub(crate) fn new(
        attr: &EndpointAttr,
        sink: Arc<dyn EndpointSink>,
        control: Arc<Control>,
    ) -> Result<Arc<Self>> {
        let room = (attr.tx_size + attr.rx_size) as usize;
        let tokens = KVec::with_capacity(room, GFP_KERNEL)?;
        let kept = control.clone();
        let made = Arc::pin_init(
            pin_init!(Self {
                sink,
                control: kept,
                posted <- new_irqlock!(
                    Posted {
                        tokens,
                        closed: false,
                    },
                    "kfi_registry_test_posted"
                ),
            }),
            GFP_KERNEL,
        )?;
        control.set_endpoint(made.clone());
        Ok(made)
    }

    /// Takes the oldest posted operation.
    pub(crate) fn take(&self) -> Result<OpToken> {
        self.posted.lock().tokens.remove(0).map_err(|_| ENOENT)
    }

    /// Completes the oldest posted operation.
    pub(crate) fn complete(&self, outcome: Outcome) -> Result {
        // Outside the lock.
        let token = self.take()?;
        token.complete(outcome);
        Ok(())
    }
}

impl EndpointOps for FakeEp {
    fn enable(&self) -> Result {
        Ok(())
    }

    fn connect(&self, _addr: &SockAddr, _data: &[u8]) -> Result {
        wanted_error(&self.control.connect_error)
    }

    fn accept(&self, _data: &[u8]) -> Result {
        wanted_error(&self.control.connect_error)
    }

    fn shutdown(&self) -> Result {
        self.sink.shutdown(0);
        Ok(())
    }

    fn post(&self, _op: &OpDesc<'_>, token: OpToken) -> Result<(), (Error, OpToken)> {
        if self.control.full.load(Ordering::Relaxed) {
            return Err((EAGAIN, token));
        }
        if self.control.drop_tokens.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut posted = self.posted.lock();
        if posted.closed {
            return Err((enotconn(), token));
        }
        posted
            .tokens
            .push_within_capacity(token)
            .map_err(|e| (EAGAIN, e.0))
    }

    fn local_addr(&self) -> SockAddr {
        SockAddr::default()
    }

    fn peer_addr(&self) -> SockAddr {
        SockAddr::default()
    }

    fn close(&self) {
        if core::mem::replace(&mut self.posted.lock().closed, true) {
            return;
        }
        // Dropping them completes them.
        while self.take().is_ok() {}
        self.control.did(Step::EpClose);
        self.control.clear_endpoint(self);
    }
}

#[pinned_drop]
impl PinnedDrop for FakeEp {
    fn drop(self: Pin<&mut Self>) {
        self.control.did(Step::EpDrop);
    }
}

/// A listening address.
pub(crate) struct FakeListener {
    addr: SockAddr,
    control: Arc<Control>,
}

impl FakeListener {
    pub(crate) fn new(addr: &SockAddr, control: Arc<Control>) -> Result<Arc<Self>> {
        let addr = *addr;
        Ok(Arc::new(Self { addr, control }, GFP_KERNEL)?)
    }
}

impl ListenerOps for FakeListener {
    fn listen(&self, _backlog: u32) -> Result {
        Ok(())
    }

    fn local_addr(&self) -> SockAddr {
        self.addr
    }

    fn close(&self) {
        self.control.did(Step::ListenerClose);
        self.control.set_listener(None);
    }
}

/// A connection request.
pub(crate) struct FakeRequest {
    control: Arc<Control>,
    answered: AtomicBool,
}

impl FakeRequest {
    pub(crate) fn make(control: &Arc<Control>) -> Result<Arc<dyn ConnRequestOps>> {
        let request = Self {
            control: control.clone(),
            answered: AtomicBool::new(false),
        };
        Ok(Arc::new(request, GFP_KERNEL)?)
    }

    /// It was accepted.
    pub(crate) fn take(&self) {
        self.answered.store(true, Ordering::Relaxed);
    }
}

impl ConnRequestOps for FakeRequest {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn reject(&self, _data: &[u8]) -> Result {
        self.answered.store(true, Ordering::Relaxed);
        self.control.did(Step::Reject);
        Ok(())
    }
}

impl Drop for FakeRequest {
    fn drop(&mut self) {
        if !self.answered.load(Ordering::Relaxed) {
            self.control.did(Step::RequestDrop);
        }
    }
}
