// SPDX-License-Identifier: GPL-2.0
//! Events that an endpoint's handlers leave for its work item. Any context; no allocation.

use kernel::bindings;

use crate::ib::cm::{
    CmEvent,
    CmEventKind,
    DATA_MAX, //
};

/// Maximum number of queued events. Each kind is queued at most once, and there are fewer kinds.
const ROOM: usize = 16;

/// An event for the work item to handle.
pub(crate) enum Todo {
    /// An event of the identifier, and its status.
    Event(CmEventKind, i32),
    /// A failure of the connection with a positive errno; true if found while serving the peer.
    Failed(u32, bool),
    /// A message arrived before the peer's "ready to use".
    NotifyEstablished,
    /// The greeting has arrived (true), or cannot arrive any more. On iWARP only.
    Greeted(bool),
    /// The peer's time to end the connection has elapsed.
    Lingered,
    /// The peer's time to complete the connection has elapsed.
    Late,
}

/// The inbox of an endpoint.
pub(crate) struct Inbox {
    events: [(CmEventKind, i32); ROOM],
    n: usize,
    /// Private data of the peer's acceptance or refusal, of which at most one arrives.
    data: [u8; DATA_MAX],
    data_len: usize,
    /// The peer's queue pair, from its acceptance.
    peer_qp: u32,
    /// First errno of a failure, and whether it was found while serving the peer.
    ///
    /// The errno is 0 after the failure was handled, or after the local side has ended the
    /// connection.
    failed: Option<(u32, bool)>,
    lingered: bool,
    late: bool,
    established: bool,
    greeted: Option<bool>,
}

impl Inbox {
    /// Returns an empty inbox.
    pub(crate) fn new() -> Self {
        Self {
            events: [(CmEventKind::TimewaitExit, 0); ROOM],
            n: 0,
            data: [0; DATA_MAX],
            data_len: 0,
            peer_qp: 0,
            failed: None,
            lingered: false,
            late: false,
            established: false,
            greeted: None,
        }
    }

    /// Queues an event with its private data, unless an event of its kind is queued already.
    ///
    /// However often a program or a bonding driver repeats an event, the next kind has space.
    pub(crate) fn put(&mut self, event: &CmEvent<'_>) {
        if self.events[..self.n]
            .iter()
            .any(|(kind, _)| *kind == event.kind)
        {
            return;
        }
        if !event.data.is_empty() {
            let len = event.data.len().min(DATA_MAX);
            self.data[..len].copy_from_slice(&event.data[..len]);
            self.data_len = len;
        }
        if event.kind == CmEventKind::Response {
            self.peer_qp = event.qp_num;
        }
        match self.events.get_mut(self.n) {
            Some(place) => {
                *place = (event.kind, event.status);
                self.n += 1;
            }
            // Unreachable: there are fewer kinds than places.
            None => self.fail(bindings::EIO, false),
        }
    }

    /// Records a failure; only the first one counts.
    pub(crate) fn fail(&mut self, err: u32, serving: bool) {
        self.failed.get_or_insert((err, serving));
    }

    /// Queues an event without data of the peer, or an event that was taken out before.
    pub(crate) fn put_bare(&mut self, kind: CmEventKind, status: i32) {
        self.put(&CmEvent {
            kind,
            status,
            data: &[],
            qp_num: 0,
        });
    }

    /// Queues an event again if a failure was recorded since it was taken. Returns whether one was.
    pub(crate) fn put_behind_failure(&mut self, kind: CmEventKind, status: i32) -> bool {
        let failed = matches!(self.failed, Some((err, _)) if err != 0);
        if failed {
            self.put_bare(kind, status);
        }
        failed
    }

    /// Ignores failures from now on: the local side ends the connection.
    pub(crate) fn expect_failures(&mut self) {
        self.fail(0, false);
    }

    /// Records that a message arrived before the peer's "ready to use".
    pub(crate) fn established(&mut self) {
        self.established = true;
    }

    /// Records that the greeting has arrived, or cannot arrive any more.
    pub(crate) fn greeted(&mut self, arrived: bool) {
        self.greeted = Some(arrived);
    }

    /// Records that the peer's time to end the connection has elapsed.
    pub(crate) fn lingered(&mut self) {
        self.lingered = true;
    }

    /// Records that the peer's time to complete the connection has elapsed.
    pub(crate) fn late(&mut self) {
        self.late = true;
    }

    /// Forgets that the peer's time has elapsed: the peer has answered.
    pub(crate) fn in_time(&mut self) {
        self.late = false;
    }

    /// Takes the next event out. A failure is taken before the events that it caused.
    pub(crate) fn take(&mut self) -> Option<Todo> {
        if let Some((err, serving)) = self.failed {
            // Keep the field set, so that consequences are not taken for another failure.
            if err != 0 {
                self.failed = Some((0, false));
                return Some(Todo::Failed(err, serving));
            }
        }
        if core::mem::take(&mut self.established) {
            return Some(Todo::NotifyEstablished);
        }
        if let Some(arrived) = self.greeted.take() {
            return Some(Todo::Greeted(arrived));
        }
        if core::mem::take(&mut self.lingered) {
            return Some(Todo::Lingered);
        }
        if self.n == 0 {
            // After all events that the peer may have caused meanwhile.
            return core::mem::take(&mut self.late).then_some(Todo::Late);
        }
        let (kind, status) = self.events[0];
        self.events.copy_within(1.., 0);
        self.n -= 1;
        Some(Todo::Event(kind, status))
    }

    /// Returns the peer's queue pair, from its acceptance.
    pub(crate) fn peer_qp(&self) -> u32 {
        self.peer_qp
    }

    /// Removes the events of an identifier that no longer exists. Device removals and disconnects
    /// stay: they have other causes too.
    pub(crate) fn forget_events(&mut self) {
        let mut kept = 0;
        for i in 0..self.n {
            let event = self.events[i];
            if matches!(
                event.0,
                CmEventKind::DeviceRemoval | CmEventKind::Disconnected
            ) {
                self.events[kept] = event;
                kept += 1;
            }
        }
        self.n = kept;
        self.data_len = 0;
    }

    /// Returns private data of the peer's acceptance or refusal, and its length.
    pub(crate) fn message(&self) -> ([u8; DATA_MAX], usize) {
        (self.data, self.data_len)
    }
}
