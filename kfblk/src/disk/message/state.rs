// SPDX-License-Identifier: GPL-2.0
//! The state of a tag's request, and the summary of a completion.

use kfabric::pure::blk::cache::Effect;

/// State of a tag's request.
#[derive(Clone, Copy, Default)]
pub(super) struct RequestState {
    /// The tag has a request.
    pub(super) busy: bool,
    /// The request uses the connection's [`Spare`](super::keys::Spare).
    pub(super) spare: bool,
    /// Number of requests that this tag has had, modulo 2^16.
    pub(super) times: u16,
    pub(super) reads: bool,
    pub(super) keyed: bool,
    pub(super) len: u32,
    /// Effect of the request on the target's write cache.
    pub(super) effect: Effect,
    /// The errno of the answer, or 0; `None` until the target answers.
    pub(super) answered: Option<u32>,
}

/// Summary of one completion.
#[derive(Default)]
pub(super) struct Summary {
    /// Bit mask of the tags whose requests have succeeded.
    pub(super) done: u64,
    /// Tag and errno of a request that has failed.
    pub(super) failed: Option<(u32, u32)>,
    /// The connection has ended, or the target violates the protocol.
    pub(super) lost: bool,
    /// The receive slot that can be posted again.
    pub(super) receive: Option<u32>,
    /// The key of an answered request must be revoked.
    pub(super) revoke: bool,
    /// The capacity that the target announces.
    pub(super) capacity: Option<u64>,
}

impl RequestState {
    /// Ends an answered request that has no key. Its send may still be outstanding. That is
    /// harmless: an answered message was received, and is not retried.
    pub(super) fn end(&mut self, tag: u32, summary: &mut Summary) {
        self.busy = false;
        match self.answered {
            None | Some(0) => summary.done |= 1 << tag,
            Some(err) => summary.failed = Some((tag, err)),
        }
    }
}
