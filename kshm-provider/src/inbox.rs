// SPDX-License-Identifier: GPL-2.0
//! What others leave for an endpoint's work item. It takes no allocation and any context.

use kernel::{
    prelude::*,
    sync::Arc, //
};

use crate::endpoint::Endpoint;

/// One thing for the work item to act on.
pub(crate) enum Todo {
    /// The peer has accepted, with its data.
    Accepted(Arc<Endpoint>, KVec<u8>),
    /// The peer has refused, with its data, if it was the application.
    Rejected(Option<KVec<u8>>),
    /// The peer knows that it is accepted.
    Ready,
    /// The connection failed with a positive errno.
    Failed(u32),
    /// The peer, or this side, has ended the connection.
    Gone,
}

/// The inbox. Of each kind one waits at most.
#[derive(Default)]
pub(crate) struct Inbox {
    /// No answer is wanted any more.
    given_up: bool,
    accepted: Option<(Arc<Endpoint>, KVec<u8>)>,
    rejected: Option<Option<KVec<u8>>>,
    ready: bool,
    failed: Option<u32>,
    gone: bool,
}

impl Inbox {
    /// The peer accepts.
    ///
    /// # Errors
    ///
    /// Nobody waits for that any more.
    pub(crate) fn accept(&mut self, peer: &Arc<Endpoint>, data: KVec<u8>) -> Result<(), KVec<u8>> {
        if self.given_up {
            return Err(data);
        }
        self.accepted = Some((peer.clone(), data));
        Ok(())
    }

    /// The peer refuses.
    pub(crate) fn reject(&mut self, data: Option<KVec<u8>>) {
        if !self.given_up {
            self.rejected = Some(data);
        }
    }

    /// The peer knows that it is accepted.
    pub(crate) fn ready(&mut self) {
        self.ready = true;
    }

    /// The connection failed; only the first reason counts.
    pub(crate) fn fail(&mut self, err: u32) {
        self.failed.get_or_insert(err);
    }

    /// The connection was ended.
    pub(crate) fn gone(&mut self) {
        self.gone = true;
    }

    /// Wants no answer any more. Who accepted in vain, if somebody did.
    pub(crate) fn give_up(&mut self) -> Option<Arc<Endpoint>> {
        self.given_up = true;
        self.accepted.take().map(|(peer, _)| peer)
    }

    /// Takes the next thing out. What ends a connection is behind what makes it.
    pub(crate) fn take(&mut self) -> Option<Todo> {
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
            // Kept, so that what fails in consequence is not taken for another reason.
            self.failed = Some(0);
            return Some(Todo::Failed(err));
        }
        core::mem::take(&mut self.gone).then_some(Todo::Gone)
    }
}
