// SPDX-License-Identifier: GPL-2.0
//! Connections of a fake provider: endpoints, listeners, requests. There is no peer; the test
//! generates the peer's events.

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
    base::errno::enotconn,
    ep::OpToken,
    new_irqlock,
    op::{
        OpDesc,
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
    uapi::SockAddr, //
};

use crate::fake::{
    wanted_error,
    Control,
    Step, //
};

/// A fake endpoint.
#[pin_data(PinnedDrop)]
pub(crate) struct FakeEp {
    /// The sink of the endpoint's events.
    pub(crate) sink: Arc<dyn EndpointSink>,
    control: Arc<Control>,
    #[pin]
    posted: IrqLock<Posted>,
}

/// Posted operations of an endpoint.
struct Posted {
    /// Operations that are not completed, oldest first. The capacity is the size of the queue.
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
                    "kfi_test_registry_posted"
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
        // The completion is outside of the lock.
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
        // The drop completes the operations.
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

/// A fake listener.
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

/// A fake connection request.
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

    /// Marks the request as accepted.
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
