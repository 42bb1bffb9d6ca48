// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Queue of accepted operations whose posting to the device is deferred.
//!
//! Operations are released in order. Each has a target value of the resume count
//! ([`Waiting::until`]) and is posted once the count has reached that value.
//!
//! A resuming party calls [`Held::release`] only if the caller's "deferred" flag is set. So
//! [`Held::release`] sets the flag (`note`) before it returns with an operation left. It then reads
//! the resume count again, because a resume between the two steps may have missed the flag.

use core::ops::DerefMut;

use super::ring::FixedRing;

/// How much of an operation the device accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The device accepted all work requests of the operation.
    All,
    /// The device accepted some work requests, but not the last.
    ///
    /// No completion will report the end of these, and work requests posted later would overtake
    /// the missing ones.
    Part,
    /// The device accepted no work request.
    Nothing,
}

/// Result of [`Held::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// No operation is deferred any more.
    All,
    /// The limit `most` was reached; more operations may be ready.
    Some,
    /// The first remaining operation must wait; the flag is set, so the next resume sees it.
    Later,
    /// The device did not accept this operation whole, so no later one was posted. The operation
    /// stays in the queue only if the device accepted none of its work requests.
    Refused(Taken),
}

/// A slot whose operation is deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The number of the slot.
    pub slot: u32,
    /// The resume count from which on the operation may be posted.
    pub until: u64,
}

/// The slots of deferred operations, in order, in storage that the caller provides.
pub struct Held<S> {
    ring: FixedRing<S>,
}

impl<S: DerefMut<Target = [Option<Waiting>]>> Held<S> {
    /// Returns an empty queue. The length of `cells` is its capacity.
    pub fn new(cells: S) -> Self {
        Self {
            ring: FixedRing::new(cells),
        }
    }

    /// Returns whether no operation is deferred.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Appends a slot.
    ///
    /// # Errors
    ///
    /// Returns the slot if the queue is full.
    pub fn push(&mut self, one: Waiting) -> Result<(), Waiting> {
        self.ring.push(one)
    }

    /// Removes the first slot, whether or not its operation may be posted yet.
    pub fn pop(&mut self) -> Option<u32> {
        self.ring.pop().map(|one| one.slot)
    }

    /// Calls `post` for each operation that may be posted, in order, at most `most` times.
    ///
    /// `resumed` returns the resume count; `note` sets the caller's "deferred" flag.
    pub fn release(
        &mut self,
        most: usize,
        resumed: impl Fn() -> u64,
        note: impl Fn(),
        mut post: impl FnMut(u32) -> Taken,
    ) -> Released {
        for _ in 0..most {
            let Some(first) = self.ring.peek().copied() else {
                return Released::All;
            };
            if first.until > resumed() {
                note();
                if first.until > resumed() {
                    return Released::Later;
                }
            }
            let taken = post(first.slot);
            if taken != Taken::Nothing {
                self.ring.pop();
            }
            if taken != Taken::All {
                return Released::Refused(taken);
            }
        }
        Released::Some
    }
}
