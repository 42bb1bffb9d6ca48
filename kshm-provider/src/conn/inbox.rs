// SPDX-License-Identifier: GPL-2.0
//! Events that peers store for an endpoint's work item. Storing one allocates nothing. Context:
//! any.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::connection::Connection;

/// An event for the work item.
pub(crate) enum Todo {
    /// The peer has accepted, with its connection data.
    Accepted(Arc<Connection>, KVec<u8>),
    /// The peer has refused, with its connection data if the application refused.
    Rejected(Option<KVec<u8>>),
    /// The peer is connected.
    Ready,
    /// The connection failed with a positive errno.
    Failed(u32),
    /// The peer or this side has ended the connection.
    Gone,
}

/// The stored events, at most one of each kind.
#[derive(Default)]
pub(crate) struct Inbox {
    /// The endpoint accepts no answer any more.
    given_up: bool,
    accepted: Option<(Arc<Connection>, KVec<u8>)>,
    rejected: Option<Option<KVec<u8>>>,
    ready: bool,
    failed: Option<u32>,
    gone: bool,
    /// The end without a failure has been handled.
    over: bool,
}

impl Inbox {
    /// Stores the peer's acceptance.
    ///
    /// # Errors
    ///
    /// - Returns `data` if the endpoint accepts no answer any more.
    pub(crate) fn accept(
        &mut self,
        peer: &Arc<Connection>,
        data: KVec<u8>,
    ) -> Result<(), KVec<u8>> {
        if self.given_up {
            return Err(data);
        }
        self.accepted = Some((peer.clone(), data));
        Ok(())
    }

    /// Stores the peer's refusal.
    pub(crate) fn reject(&mut self, data: Option<KVec<u8>>) {
        if !self.given_up {
            self.rejected = Some(data);
        }
    }

    /// Records that the peer is connected.
    pub(crate) fn ready(&mut self) {
        self.ready = true;
    }

    /// Records the failure of the connection. Only the first errno counts. Returns whether the connection had
    /// not ended without a failure before.
    pub(crate) fn fail(&mut self, err: u32) -> bool {
        self.failed.get_or_insert(err);
        !self.over
    }

    /// Records the end of the connection.
    pub(crate) fn gone(&mut self) {
        self.gone = true;
    }

    /// Refuses answers from now on. Returns the peer whose acceptance was stored and not yet
    /// handled.
    pub(crate) fn give_up(&mut self) -> Option<Arc<Connection>> {
        self.given_up = true;
        self.accepted.take().map(|(peer, _)| peer)
    }

    /// Returns and removes the next event. Events that make a connection come before those that end it.
    pub(crate) fn next_event(&mut self) -> Option<Todo> {
        if let Some((peer, data)) = self.accepted.take() {
            return Some(Todo::Accepted(peer, data));
        }
        if let Some(data) = self.rejected.take() {
            return Some(Todo::Rejected(data));
        }
        if core::mem::take(&mut self.ready) {
            return Some(Todo::Ready);
        }
        if let Some(err) = self.failed.filter(|err| *err != 0) {
            // The marker 0 stays, so that a failure that follows from the first one is ignored.
            self.failed = Some(0);
            return Some(Todo::Failed(err));
        }
        if !core::mem::take(&mut self.gone) {
            return None;
        }
        self.over = true;
        Some(Todo::Gone)
    }
}
