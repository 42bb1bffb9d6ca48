// SPDX-License-Identifier: GPL-2.0
//! What an endpoint's handlers leave for its work item. It takes no allocation and any context.

use kernel::bindings;

use crate::ib::cm::{
    CmEvent,
    CmEventKind,
    DATA_MAX, //
};

/// Events that may wait: no less than there are kinds, of which each waits once.
const ROOM: usize = 16;

/// One thing for the work item to act on.
pub(crate) enum Todo {
    /// The identifier's event and its status.
    Event(CmEventKind, i32),
    /// The connection failed with a positive errno; whether that was while serving the peer.
    Failed(u32, bool),
    /// A message came before the peer's "ready to use".
    NotifyEstablished,
    /// The peer was given time to end the connection.
    Lingered,
    /// The peer was given time to say that it is ready.
    Late,
}

/// The inbox.
pub(crate) struct Inbox {
    events: [(CmEventKind, i32); ROOM],
    n: usize,
    /// Private data of the answer or the refusal; there is at most one of either.
    data: [u8; DATA_MAX],
    data_len: usize,
    /// The peer's queue pair, by its answer.
    peer_qp: u32,
    /// Why the connection failed: the first reason, and whether it was found while serving the
    /// peer. 0 once it is acted upon, or once what fails only fails because we end it.
    failed: Option<(u32, bool)>,
    lingered: bool,
    late: bool,
    established: bool,
}

impl Inbox {
    /// An empty one.
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
        }
    }

    /// Puts in an event, with its private data. One of a kind that waits already says nothing new:
    /// however often a program or a bonding driver repeats it, there is room for the next kind.
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
            // Never: there are fewer kinds.
            None => self.fail(bindings::EIO, false),
        }
    }

    /// Puts in a failure; only the first counts.
    pub(crate) fn fail(&mut self, err: u32, serving: bool) {
        self.failed.get_or_insert((err, serving));
    }

    /// Puts in an event that the peer says nothing with, or that was taken out.
    pub(crate) fn put_bare(&mut self, kind: CmEventKind, status: i32) {
        self.put(&CmEvent {
            kind,
            status,
            data: &[],
            qp_num: 0,
        });
    }

    /// Puts an event back, behind what has failed since it was taken. Whether anything has.
    pub(crate) fn put_behind_failure(&mut self, kind: CmEventKind, status: i32) -> bool {
        let failed = matches!(self.failed, Some((err, _)) if err != 0);
        if failed {
            self.put_bare(kind, status);
        }
        failed
    }

    /// What fails from now on fails because we end the connection.
    pub(crate) fn expect_failures(&mut self) {
        self.fail(0, false);
    }

    /// A message came before the peer's "ready to use".
    pub(crate) fn established(&mut self) {
        self.established = true;
    }

    /// The peer was given time to end the connection.
    pub(crate) fn lingered(&mut self) {
        self.lingered = true;
    }

    /// The peer was given time to say that it is ready.
    pub(crate) fn late(&mut self) {
        self.late = true;
    }

    /// Takes the next thing out. A failure goes before what came of it.
    pub(crate) fn take(&mut self) -> Option<Todo> {
        if let Some((err, serving)) = self.failed {
            // Kept, so that what fails in consequence is not taken for another reason.
            if err != 0 {
                self.failed = Some((0, false));
                return Some(Todo::Failed(err, serving));
            }
        }
        if core::mem::take(&mut self.established) {
            return Some(Todo::NotifyEstablished);
        }
        if core::mem::take(&mut self.lingered) {
            return Some(Todo::Lingered);
        }
        if self.n == 0 {
            // Behind what the peer may have said meanwhile.
            return core::mem::take(&mut self.late).then_some(Todo::Late);
        }
        let (kind, status) = self.events[0];
        self.events.copy_within(1.., 0);
        self.n -= 1;
        Some(Todo::Event(kind, status))
    }

    /// The peer's queue pair, by its answer.
    pub(crate) fn peer_qp(&self) -> u32 {
        self.peer_qp
    }

    /// Forgets what an identifier said that there is no more. That the device goes, or that the
    /// connection is to end, others say, too, and it stays.
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

    /// Private data of the answer or the refusal, and its length.
    pub(crate) fn message(&self) -> ([u8; DATA_MAX], usize) {
        (self.data, self.data_len)
    }
}
