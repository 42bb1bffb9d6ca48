// SPDX-License-Identifier: GPL-2.0
//! Receive side: the queue of posted receives.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::path::{
    DataPath,
    Owner,
    Refused, //
};
use kfabric::{
    base::errno::enotconn,
    ep::OpToken,
    op::Outcome,
    pure::ring::FixedRing, //
};

/// Receives in order, in storage that [`DataPath::new`] allocates.
type Queue = FixedRing<KVVec<Option<OpToken>>>;

/// Result of a look at the peer's receives.
pub(super) enum Taken {
    Receive(OpToken),
    None,
    Closed,
}

/// State of the receive side under the lock.
pub(super) struct Rx<E> {
    /// Receives can be posted.
    pub(super) open: bool,
    pub(super) receives: Queue,
    /// A receive was taken out of `receives` and may be put back.
    pub(super) out: bool,
    /// The first receive, or the one taken out, contains a part of a message.
    pub(super) begun: bool,
    /// The peer, from connect or accept until the close of this endpoint.
    pub(super) peer: Option<Arc<E>>,
}

impl<E> Rx<E> {
    /// Returns an empty receive queue in `places`.
    pub(super) fn new(places: KVVec<Option<OpToken>>) -> Self {
        Self {
            open: false,
            receives: FixedRing::new(places),
            out: false,
            begun: false,
            peer: None,
        }
    }
}

impl<E: Owner> DataPath<E> {
    /// Posts a receive. The caller is inside the gate.
    pub(super) fn post_recv(endpoint: &Arc<E>, token: OpToken) -> Result<(), Refused> {
        let this = endpoint.path();
        let peer = {
            let mut rx = this.rx.lock();
            if !rx.open {
                return Err((enotconn(), token));
            }
            if rx.receives.len() + usize::from(rx.out) >= this.rx_size as usize {
                return Err((EAGAIN, token));
            }
            if let Err(token) = rx.receives.push(token) {
                return Err((EAGAIN, token));
            }
            rx.peer.clone()
        };
        if let Some(peer) = peer {
            Self::kick(&peer);
        }
        Ok(())
    }

    /// Returns whether a message finds a receive, or the end of the receive side.
    pub(super) fn has_receive(&self) -> bool {
        let rx = self.rx.lock();
        !rx.open || !rx.receives.is_empty()
    }

    /// Takes the first receive.
    pub(super) fn take_receive(&self) -> Taken {
        let mut rx = self.rx.lock();
        if !rx.open {
            return Taken::Closed;
        }
        match rx.receives.pop() {
            Some(token) => {
                rx.out = true;
                Taken::Receive(token)
            }
            None => Taken::None,
        }
    }

    /// Puts a receive back that contains only a part of its message.
    pub(super) fn put_receive(&self, token: OpToken) {
        let lost = {
            let mut rx = self.rx.lock();
            rx.out = false;
            rx.begun = true;
            match rx.open {
                true => rx.receives.push_front(token).err(),
                false => Some(token),
            }
        };
        // The drop completes the receive with ECANCELED.
        drop(lost);
    }

    /// Completes a receive that was taken.
    pub(super) fn complete_receive(&self, token: OpToken, outcome: Outcome) {
        {
            let mut rx = self.rx.lock();
            rx.out = false;
            rx.begun = false;
        }
        token.complete(outcome);
    }
}
