// SPDX-License-Identifier: GPL-2.0
//! Cancellation: of one receive, and of all operations when a connection ends or an endpoint is
//! closed. Canceled operations complete with `ECANCELED`.

use core::sync::atomic::Ordering;
use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    budget::Budget,
    path::{
        DataPath,
        Owner, //
    }, //
};
use kfabric::{
    ep::OpToken,
    pure::{
        ring::FixedRing,
        sendq::Event, //
    },
};

impl<E: Owner> DataPath<E> {
    /// [`EndpointOps::cancel`](kfabric::provider::EndpointOps::cancel).
    ///
    /// # Errors
    ///
    /// - `ENOENT` if no receive of this context is posted, or the receive contains a part of a
    ///   message.
    pub(crate) fn cancel(&self, context: u64) -> Result {
        let _visit = self.visit().ok_or(ENOENT)?;
        let token = {
            let mut rx = self.rx.lock();
            let count = rx.receives.len();
            let mut found = None;
            for i in 0..count {
                let Some(token) = rx.receives.pop() else {
                    break;
                };
                // The first receive may contain a part of a message.
                let begun = i == 0 && rx.begun && !rx.out;
                if found.is_none() && !begun && token.context() == context {
                    found = Some(token);
                } else {
                    // Cannot fail: the receive was just popped.
                    let _ = rx.receives.push(token);
                }
            }
            found
        };
        // The drop completes the receive with ECANCELED.
        token.map(drop).ok_or(ENOENT)
    }

    /// Stops all operations. Every accepted operation completes with `ECANCELED`. The party that
    /// executes an operation also completes it.
    pub(crate) fn stop(endpoint: &Arc<E>) {
        let this = endpoint.path();
        // If the gate is closed, a close is in progress and ends all operations.
        let Some(_visit) = this.visit() else { return };
        this.serving.store(false, Ordering::Release);
        let before = {
            let _tx = this.tx.lock();
            this.scheduler.apply(Event::Stop)
        };
        if before.is_some_and(|state| !state.has_party()) {
            Self::run(endpoint, None, &mut Budget::all());
        }
        this.rx.lock().open = false;
        while let Some(token) = this.pop_receive() {
            // The drop completes the receive with ECANCELED.
            drop(token);
        }
    }

    fn pop_receive(&self) -> Option<OpToken> {
        self.rx.lock().receives.pop()
    }

    /// Frees all operations, after [`DataPath::stop`]. At the return no party is inside the gate.
    pub(crate) fn close(&self) {
        let _ = self.gate.close();
        self.exits.wait(|sleep| {
            while !self.gate.is_drained() {
                sleep();
            }
        });
        // Operations that a worker was queued to continue.
        loop {
            let Some(op) = self.tx.lock().waiting.pop() else {
                break;
            };
            self.mark_used(&op);
        }
        let (peer, places) = {
            let mut tx = self.tx.lock();
            let none = FixedRing::new(KVVec::new());
            (tx.peer.take(), core::mem::replace(&mut tx.waiting, none))
        };
        drop((peer, places));
        let (peer, places) = {
            let mut rx = self.rx.lock();
            let none = FixedRing::new(KVVec::new());
            (rx.peer.take(), core::mem::replace(&mut rx.receives, none))
        };
        drop((peer, places));
    }
}
