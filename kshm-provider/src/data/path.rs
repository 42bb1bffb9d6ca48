// SPDX-License-Identifier: GPL-2.0
//! Data path of one endpoint: operations are posted and executed.
//!
//! An operation is one copy between local memory and the peer's memory, which is pinned. Local
//! memory is either pinned too, or it is unregistered memory of the posting task. Only that task
//! can access unregistered memory.
//!
//! The poster executes its operation if it may sleep, or up to the limit of [`Budget::caller`]; a
//! worker executes the rest. One party at a time runs the send queue of an endpoint, so operations
//! complete in the order in which they were posted. A message without a receive at the peer stalls
//! the send queue. The party that posts this receive then continues the send queue.
//!
//! No lock is held during a copy, and no path holds two locks. Each end has a [`Gate`]: posters,
//! parties that run the send queue, and parties that copy from or to an end are inside that end's
//! gate. A close waits until no party is inside, and no party inside a gate waits.
//!
//! [`Budget::caller`]: super::budget::Budget::caller

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    Ordering, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    prelude::*,
    sync::Arc, //
};

use super::{
    local::is_ours,
    rx::Rx,
    tx::Tx, //
};
use crate::{
    key::{
        group::Group,
        table::Table, //
    },
    sys::wait::Exits, //
};
use kfabric::{
    base::errno::enotconn,
    ep::OpToken,
    new_irqlock,
    op::{
        OpDesc,
        OpKind, //
    },
    pure::{
        commit::Refusals,
        gate::Gate,
        sendq::{
            Event,
            Scheduler, //
        },
    },
    sys::IrqLock, //
};

/// A refused operation, with the reason.
pub(crate) type Refused = (Error, OpToken);

/// The end of a connection that a data path belongs to, as far as the data path uses it.
pub(crate) trait Owner: Sized {
    /// Returns the data path of this end.
    fn path(&self) -> &DataPath<Self>;

    /// Queues a worker that calls [`DataPath::go_on`]. Context: any.
    fn go_on_later(this: &Arc<Self>);

    /// Stores that the connection of `this` fails with `err`, and that of its peer with `theirs`, both
    /// positive errnos. Returns false if `this` has reported before that the peer has disconnected. The caller then
    /// calls [`Owner::report_both`]. Context: any.
    fn fail_both(this: &Arc<Self>, err: u32, peer: &Arc<Self>, theirs: u32) -> bool;

    /// Lets both ends handle what [`Owner::fail_both`] has stored. Context: any.
    fn report_both(this: &Arc<Self>, peer: &Arc<Self>);
}

/// Data path of one endpoint.
#[pin_data]
pub(crate) struct DataPath<E> {
    #[pin]
    pub(super) tx: IrqLock<Tx<E>>,
    #[pin]
    pub(super) rx: IrqLock<Rx<E>>,
    /// State of the transmit side. Written under the lock `tx`.
    pub(super) scheduler: Scheduler,
    /// Number of operations accepted and not completed. Raised under the lock `tx`.
    pub(super) used: AtomicU32,
    pub(super) tx_size: u32,
    pub(super) rx_size: u32,
    /// The peer may access this end.
    pub(super) serving: AtomicBool,
    pub(super) gate: Gate,
    #[pin]
    pub(super) exits: Exits,
    pub(super) group: Arc<Group>,
    pub(super) table: Arc<Table>,
    /// Refused commits of this end.
    #[pin]
    pub(super) refusals: IrqLock<Refusals>,
}

/// A party inside an endpoint's gate.
pub(super) struct Visit<'a, E>(&'a DataPath<E>);

impl<E> Drop for Visit<'_, E> {
    fn drop(&mut self) {
        if self.0.gate.exit() {
            self.0.exits.wake();
        }
    }
}

/// Allocates `n` empty places.
fn places<T>(n: u32) -> Result<KVVec<Option<T>>> {
    // The application chose the size, so a failure is not logged.
    let flags = GFP_KERNEL_ACCOUNT | __GFP_NOWARN;
    let mut places = KVVec::with_capacity(n as usize, flags)?;
    for _ in 0..n {
        places.push(None, flags)?;
    }
    Ok(places)
}

impl<E: Owner> DataPath<E> {
    /// Allocates the queues for the given numbers of operations and receives.
    pub(crate) fn new(
        tx_size: u32,
        rx_size: u32,
        group: Arc<Group>,
        table: Arc<Table>,
    ) -> Result<impl PinInit<Self>> {
        let tx = Tx::new(places(tx_size)?);
        let rx = Rx::new(places(rx_size)?);
        Ok(pin_init!(Self {
            tx <- new_irqlock!(tx, "kshm_tx"),
            rx <- new_irqlock!(rx, "kshm_rx"),
            scheduler: Scheduler::new(),
            used: AtomicU32::new(0),
            tx_size,
            rx_size,
            serving: AtomicBool::new(false),
            gate: Gate::new(),
            exits <- Exits::new(),
            group,
            table,
            refusals <- new_irqlock!(Refusals::default(), "kshm_refusals"),
        }))
    }

    pub(super) fn visit(&self) -> Option<Visit<'_, E>> {
        self.gate.enter().then(|| Visit(self))
    }

    /// Permits receives to be posted.
    pub(crate) fn receive(&self) {
        self.rx.lock().open = true;
    }

    /// Admits the peer.
    pub(crate) fn serve(&self, peer: &Arc<E>) {
        self.rx.lock().peer = Some(peer.clone());
        self.tx.lock().peer = Some(peer.clone());
        self.serving.store(true, Ordering::Release);
    }

    /// Permits all operations to be posted.
    pub(crate) fn open(&self) {
        let _tx = self.tx.lock();
        let _ = self.scheduler.apply(Event::Open);
    }

    /// Returns the group, which limits the keys that the peer can use.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// Returns the endpoint that this endpoint is connected to.
    pub(crate) fn peer(&self) -> Option<Arc<E>> {
        self.tx.lock().peer.clone()
    }

    /// [`EndpointOps::post`](kfabric::provider::EndpointOps::post).
    pub(crate) fn post(endpoint: &Arc<E>, op: &OpDesc<'_>, token: OpToken) -> Result<(), Refused> {
        if !is_ours(&token) {
            return Err((EINVAL, token));
        }
        if token.unregistered().is_some() {
            return Self::post_unregistered(endpoint, op, token);
        }
        let Some(_visit) = endpoint.path().visit() else {
            return Err((enotconn(), token));
        };
        match op.kind {
            OpKind::Recv => Self::post_recv(endpoint, token),
            _ => Self::post_send(endpoint, op, token),
        }
    }
}
