// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Operations that were accepted and are held back for a while.
//!
//! They go in the order in which they came, each as soon as something was resumed as often as it
//! waits for. Whoever resumes looks only at what says that something is held, so that is said
//! whenever something stays behind, and then it is looked once more: between the two it may have
//! been resumed by one who had not heard.

use core::ops::DerefMut;

use super::ring::FixedRing;

/// What a device took of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// All its work requests.
    All,
    /// Some, and not the last: nothing says when they are done, and what is posted behind them would
    /// overtake the rest.
    Part,
    /// None.
    Nothing,
}

/// What came of [`Held::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// Nothing is held any more.
    All,
    /// As much as was wanted went; there may be more.
    Some,
    /// What is left has to wait, and who resumes next hears of it.
    Later,
    /// This operation was not taken whole: no other may go. It is held on if nothing of it was
    /// taken.
    Refused(Taken),
}

/// A slot that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The slot.
    pub slot: u32,
    /// How often it has to have been resumed.
    pub until: u64,
}

/// The slots of operations that are held, in order, in storage the caller provides.
pub struct Held<S> {
    ring: FixedRing<S>,
}

impl<S: DerefMut<Target = [Option<Waiting>]>> Held<S> {
    /// None is. `cells`: room for as many as may be.
    pub fn new(cells: S) -> Self {
        Self {
            ring: FixedRing::new(cells),
        }
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Holds one behind all others.
    ///
    /// # Errors
    ///
    /// Gives it back when there is no room.
    pub fn push(&mut self, one: Waiting) -> Result<(), Waiting> {
        self.ring.push(one)
    }

    /// Takes out the first, whether it may go or not.
    pub fn pop(&mut self) -> Option<u32> {
        self.ring.pop().map(|one| one.slot)
    }

    /// Has `post` post what may go, up to `most`.
    ///
    /// `resumed` says how often it was resumed, and `note` that something is held.
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
