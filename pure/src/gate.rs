// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A gate counts users inside, can be closed for good, and reports when the last user has left.
//!
//! A gate guards an object that must not end while it is in use: an endpoint by calls, a region by
//! operations in flight. The gate neither waits nor wakes; its return values say when the caller
//! must do so.
//!
//! Exactly one party learns that a closed gate is drained. If no user was inside, that party is the
//! closer ([`Closing::drained`] with [`Closing::first`]); else it is the last user to leave
//! ([`Gate::exit`]). Ordering: the accesses of all users happen before that party's next step.

use super::sync::{
    const_fn,
    AtomicU32,
    Ordering, //
};

/// Set once the gate is closed. The other bits count the users inside.
const CLOSED: u32 = 1 << 31;

/// Result of [`Gate::close`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "when `first && !drained`, the caller waits for the last exit"]
pub struct Closing {
    /// This call closed the gate, which was open before.
    pub first: bool,
    /// No user is inside.
    pub drained: bool,
}

/// Why [`Gate::close_if_idle`] did not close the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIdle {
    /// At least one user is inside.
    Inside,
    /// The gate was closed before.
    Closed,
}

/// Counts users inside, and can be closed for good.
///
/// # Invariants
///
/// Once [`CLOSED`] is set it stays, and the count only falls.
pub struct Gate(AtomicU32);

impl Gate {
    const_fn! {
        /// Returns an open gate with no user inside.
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Enters the gate. The caller pairs each `true` with one [`Gate::exit`].
    ///
    /// Returns `false` if the gate is closed, or if 2^31 - 1 users are inside (no machine has
    /// memory for so many).
    #[must_use]
    pub fn enter(&self) -> bool {
        let mut state = self.0.load(Ordering::Relaxed);
        // One more user would carry into `CLOSED`, so the largest count is refused like a closed
        // gate.
        while state & CLOSED == 0 && state != CLOSED - 1 {
            match self.0.compare_exchange_weak(
                state,
                state + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Leaves the gate. Returns `true` if the gate is closed and this was the last user: the caller
    /// then wakes the waiter.
    ///
    /// A call without a matching [`Gate::enter`] changes nothing.
    #[must_use = "true means that the closer is to be woken"]
    pub fn exit(&self) -> bool {
        let mut state = self.0.load(Ordering::Relaxed);
        while state & !CLOSED != 0 {
            match self.0.compare_exchange_weak(
                state,
                state - 1,
                // Release: this user's accesses happen before the drained gate is observed.
                // Acquire: the accesses of all users happen before the steps that follow a `true`.
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return state == CLOSED | 1,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Closes the gate to new users. Users inside stay; the last [`Gate::exit`] returns `true`.
    pub fn close(&self) -> Closing {
        let was = self.0.fetch_or(CLOSED, Ordering::AcqRel);
        Closing {
            first: was & CLOSED == 0,
            drained: was & !CLOSED == 0,
        }
    }

    /// Closes the gate only if no user is inside.
    ///
    /// # Errors
    ///
    /// - [`NotIdle`] if a user is inside or the gate was closed before; the gate is unchanged.
    pub fn close_if_idle(&self) -> Result<(), NotIdle> {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|state| match state & CLOSED {
                0 => NotIdle::Inside,
                _ => NotIdle::Closed,
            })
    }

    /// Returns whether the gate is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Returns whether the gate is closed and no user is inside: the condition a closer waits for.
    pub fn is_drained(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLOSED
    }

    /// Returns the number of users inside at this moment.
    pub fn users(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !CLOSED
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
