// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Scheduler of a send queue that one party runs at a time.
//!
//! A party is a poster, a worker, or a task that stops the queue. The party that finds the queue
//! without a party runs the queue: it executes operations until the queue is drained, waits for a
//! receive of the peer, or is left to a worker. A worker that continues the queue inherits the
//! state of its predecessor.
//!
//! | event | transitions |
//! |---|---|
//! | `Open` | `Shut` → `Idle`, `Flushing` → `Running` |
//! | `Stop` | any other state → `Flushing` |
//! | `Cut` | `Running` → `Flushing` |
//! | `Post` | `Idle` → `Running` |
//! | `PostAway` | `Idle` → `Away` |
//! | `Drained` | `Running` → `Idle`, `Flushing` → `Shut` |
//! | `Stall` | `Running` → `Stalled` |
//! | `Receive` | `Stalled` → `Running` |
//! | `Leave` | `Running` → `Away` |
//! | `Return` | `Away` → `Running` |
//!
//! In any other state an event has no effect.

use super::sync::{
    const_fn,
    AtomicU32,
    Ordering, //
};

/// State of a send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Operations are refused, and no party runs the queue.
    Shut,
    /// Operations are refused, and a party cancels the accepted ones.
    Flushing,
    /// Operations are accepted, and no party runs the queue.
    Idle,
    /// Operations are accepted, and a party runs the queue, or a worker is scheduled to do so.
    Running,
    /// Operations are accepted. The task that runs the queue waits outside of the endpoint's gate
    /// until its unregistered memory is present.
    Away,
    /// Operations are accepted, no party runs the queue, and the first operation waits for a
    /// receive of the peer.
    Stalled,
}

/// Step of a party.
///
/// `Cut`, `Drained`, `Stall` and `Leave` are steps of the party that runs the queue, and `Return`
/// of a task that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The endpoint is connected: permit operations.
    Open,
    /// The connection ends: cancel all operations. The caller runs the queue if the event has an
    /// effect and the state before had no party ([`State::has_party`]).
    Stop,
    /// An operation failed: refuse new operations, and cancel the accepted ones.
    Cut,
    /// An operation is posted. The caller runs the queue if the event has an effect; else the
    /// caller queues the operation.
    Post,
    /// An operation with unregistered memory is posted and queued. The caller then runs the queue
    /// from outside of the gate.
    PostAway,
    /// The party has found the queue empty, and leaves it.
    Drained,
    /// The party has found no receive for the first operation, and leaves the queue. If the
    /// event has no effect, the party goes on.
    Stall,
    /// The peer has a receive. The caller runs the queue if the event has an effect.
    Receive,
    /// The party leaves the gate and keeps the queue. If the event has no effect, the
    /// queue is being flushed, and the party goes on inside of the gate.
    Leave,
    /// The party is inside the gate again. If the event has no effect, another party has taken over
    /// the queue.
    Return,
}

impl State {
    /// Returns the state after `event`, or `None` if the event has no effect in this state.
    #[inline]
    pub const fn after(self, event: Event) -> Option<Self> {
        use State::{
            Away,
            Flushing,
            Idle,
            Running,
            Shut,
            Stalled, //
        };
        match (event, self) {
            (Event::Open, Shut) => Some(Idle),
            (Event::Open, Flushing) => Some(Running),
            (Event::Stop, Shut | Idle | Running | Away | Stalled) => Some(Flushing),
            (Event::Cut, Running) => Some(Flushing),
            (Event::Post, Idle) => Some(Running),
            (Event::PostAway, Idle) => Some(Away),
            (Event::Drained, Running) => Some(Idle),
            (Event::Drained, Flushing) => Some(Shut),
            (Event::Stall, Running) => Some(Stalled),
            (Event::Receive, Stalled) => Some(Running),
            (Event::Leave, Running) => Some(Away),
            (Event::Return, Away) => Some(Running),
            _ => None,
        }
    }

    /// Returns whether operations are accepted, and accepted ones executed.
    #[inline]
    pub const fn is_open(self) -> bool {
        !matches!(self, Self::Shut | Self::Flushing)
    }

    /// Returns whether a party inside the gate runs the queue, or a worker is scheduled to do so.
    #[inline]
    pub const fn has_party(self) -> bool {
        matches!(self, Self::Flushing | Self::Running)
    }

    #[inline]
    const fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Flushing,
            2 => Self::Idle,
            3 => Self::Running,
            4 => Self::Away,
            5 => Self::Stalled,
            _ => Self::Shut,
        }
    }
}

/// The state of a send queue, which any party may read.
pub struct Scheduler(AtomicU32);

impl Scheduler {
    const_fn! {
        /// Returns the scheduler of a queue in [`State::Shut`].
        pub fn new() -> Self {
            Self(AtomicU32::new(State::Shut as u32))
        }
    }

    /// Returns the state. Without the queue's lock, another party may change it meanwhile.
    #[inline]
    pub fn state(&self) -> State {
        State::from_number(self.0.load(Ordering::Acquire))
    }

    /// Applies `event` and returns the state before. Returns `None` if the event has no effect.
    ///
    /// Locking: caller holds the queue's lock, which makes each call a single step.
    #[inline]
    pub fn apply(&self, event: Event) -> Option<State> {
        let before = self.state();
        let after = before.after(event)?;
        self.0.store(after as u32, Ordering::Release);
        Some(before)
    }
}

impl Default for Scheduler {
    fn default() -> Self {
        Self::new()
    }
}
