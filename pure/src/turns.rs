// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Turns of the channels of one user, and the bound on requests for channels.
//!
//! Each user has one work item, and a first-in-first-out queue of channels that have something to do.
//! A run of the item gives one turn to the channel at the front, and then the item queues behind the
//! items of other users. So a user with many channels delays another user by one turn at a time.

use core::{
    ops::DerefMut,
    sync::atomic::{
        AtomicU8,
        Ordering, //
    }, //
};

use super::ring::FixedRing;

/// Channels that a member, a connection of endpoints, has at most: one for each direction.
pub const CHANNELS: usize = 2;

const IDLE: u8 = 0;
const QUEUED: u8 = 1;
const GONE: u8 = 2;

/// Whether a channel is in the queue of its user. The lock of the queue protects the value.
pub struct Place(AtomicU8);

impl Place {
    /// Returns the place of a channel that has nothing to do.
    pub const fn new() -> Self {
        Self(AtomicU8::new(IDLE))
    }

    fn is(&self, state: u8) -> bool {
        self.0.load(Ordering::Relaxed) == state
    }

    fn set(&self, state: u8) {
        self.0.store(state, Ordering::Relaxed);
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}

/// The end of a channel's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The channel has nothing more to do, or asks again later.
    Over,
    /// The channel has more to do.
    More,
    /// The channel has more to do, but could not do it now.
    Blocked,
}

/// The next step of a user's work item, after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// No channel waits.
    Idle,
    /// A channel waits.
    Next,
    /// All channels that wait were blocked in their last turns.
    Wait,
}

/// The channels of a user that wait for a turn.
///
/// A channel is in the queue once at most. The queue allocates nothing: its storage has [`CHANNELS`]
/// places for each member.
pub struct Turns<S> {
    queue: FixedRing<S>,
    members: usize,
    /// Number of turns without progress, since the last one with progress or the last pause.
    blocked: usize,
}

impl<T, S: DerefMut<Target = [Option<T>]>> Turns<S> {
    /// Returns an empty queue in `places`, without members.
    pub fn new(places: S) -> Self {
        Self {
            queue: FixedRing::new(places),
            members: 0,
            blocked: 0,
        }
    }

    /// Adds a member. Its channels may ask for turns after [`Turns::missing`] has returned `None`.
    pub fn enter(&mut self) {
        self.members += 1;
    }

    /// Removes a member, whose channels are gone. Returns whether it was the last one.
    pub fn leave(&mut self) -> bool {
        self.members = self.members.saturating_sub(1);
        self.members == 0
    }

    /// Returns the size of the storage that the members need, if the queue has less.
    pub fn missing(&self) -> Option<usize> {
        let needed = self.members.saturating_mul(CHANNELS);
        (self.queue.capacity() < needed).then(|| needed.next_power_of_two())
    }

    /// Replaces the storage by a larger one. Returns the storage to free.
    pub fn grow(&mut self, places: S) -> S {
        if places.len() <= self.queue.capacity() {
            return places;
        }
        self.queue
            .replace_storage(places)
            .unwrap_or_else(|same| same)
    }

    /// Queues a channel, unless it waits or is gone.
    pub fn ask(&mut self, channel: T, place: &Place) {
        if place.is(IDLE) && self.queue.push(channel).is_ok() {
            place.set(QUEUED);
        }
    }

    /// Removes and returns the channel at the front. `place` returns its place.
    pub fn next(&mut self, place: impl FnOnce(&T) -> &Place) -> Option<T> {
        let channel = self.queue.pop()?;
        place(&channel).set(IDLE);
        Some(channel)
    }

    /// Ends a turn, after its channel has asked for another one if it needs one.
    pub fn end_turn(&mut self, turn: Turn) -> Then {
        self.blocked = match turn {
            Turn::Blocked => self.blocked + 1,
            Turn::Over | Turn::More => 0,
        };
        if self.queue.is_empty() {
            return Then::Idle;
        }
        if self.blocked < self.queue.len() {
            return Then::Next;
        }
        self.blocked = 0;
        Then::Wait
    }

    /// Ends the turns of a channel for good, and returns the channel if it waits. `is` returns whether a
    /// channel is that one.
    pub fn end(&mut self, place: &Place, is: impl Fn(&T) -> bool) -> Option<T> {
        let waits = place.is(QUEUED);
        place.set(GONE);
        if !waits {
            return None;
        }
        let mut found = None;
        for _ in 0..self.queue.len() {
            let Some(channel) = self.queue.pop() else {
                break;
            };
            if is(&channel) {
                found = Some(channel);
            } else {
                // Cannot fail: the queue has just lost a channel.
                let _ = self.queue.push(channel);
            }
        }
        found
    }
}

/// Maximum number of requests for channels that wait in a network namespace.
pub const PENDING_MAX: usize = 256;
/// Maximum number of these from one host.
pub const PENDING_OF_HOST: usize = 32;

/// A request for a channel that waits, compared with a new one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Same {
    /// Both are for one connection of endpoints.
    pub connection: bool,
    /// Both come from one host.
    pub host: bool,
}

/// Returns whether a new request can wait beside others: one of its connection, and not too many of its
/// host or of all.
pub fn can_wait(waiting: impl Iterator<Item = Same>) -> bool {
    let (mut all, mut of_host) = (0, 0);
    for same in waiting {
        if same.connection {
            return false;
        }
        all += 1;
        of_host += usize::from(same.host);
    }
    all < PENDING_MAX && of_host < PENDING_OF_HOST
}
