// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A gate: users go in and out until it is closed, and the last one out says so.
//!
//! It guards what may not end while somebody is inside: an endpoint with calls in it, a region
//! with operations in flight. It neither waits nor wakes; its answers tell the caller when to.
//!
//! Exactly one party learns that a closed gate has emptied: the closer, if nobody was inside
//! ([`Closing::drained`] with [`Closing::first`]), else the last to leave ([`Gate::exit`]). What
//! users did inside happens before that party's next step.

use super::sync::{
    const_fn,
    AtomicU32,
    Ordering, //
};

/// The gate is closed. The other bits count the users inside.
const CLOSED: u32 = 1 << 31;

/// What [`Gate::close`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "when `first && !drained`, the caller waits for the last exit"]
pub struct Closing {
    /// This call closed the gate; it had been open.
    pub first: bool,
    /// Nobody is inside.
    pub drained: bool,
}

/// Why [`Gate::close_if_idle`] did not close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotIdle {
    /// Somebody is inside.
    Inside,
    /// It is closed already.
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
        /// An open gate with nobody inside.
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Goes in; each `true` is to be followed by one [`Gate::exit`].
    ///
    /// `false`: closed (or 2^31 - 1 users are inside, which no machine has memory for).
    #[must_use]
    pub fn enter(&self) -> bool {
        let mut state = self.0.load(Ordering::Relaxed);
        // The largest count would carry into `CLOSED`; it is refused like a closed gate.
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

    /// Goes out. `true`: the gate is closed and this was the last user, so whoever waits for that
    /// is to be woken.
    ///
    /// Without a matching [`Gate::enter`] it does nothing.
    #[must_use = "true means that the closer is to be woken"]
    pub fn exit(&self) -> bool {
        let mut state = self.0.load(Ordering::Relaxed);
        while state & !CLOSED != 0 {
            match self.0.compare_exchange_weak(
                state,
                state - 1,
                // Release: what this user did happens before the drained gate is seen.
                // Acquire: what all users did happens before what follows a `true`.
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return state == CLOSED | 1,
                Err(now) => state = now,
            }
        }
        false
    }

    /// Lets nobody in any more. Those inside stay; the last of them gets `true` from its exit.
    pub fn close(&self) -> Closing {
        let was = self.0.fetch_or(CLOSED, Ordering::AcqRel);
        Closing {
            first: was & CLOSED == 0,
            drained: was & !CLOSED == 0,
        }
    }

    /// Closes it only if nobody is inside.
    ///
    /// # Errors
    ///
    /// [`NotIdle`]: it stays as it was.
    pub fn close_if_idle(&self) -> Result<(), NotIdle> {
        self.0
            .compare_exchange(0, CLOSED, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ())
            .map_err(|state| match state & CLOSED {
                0 => NotIdle::Inside,
                _ => NotIdle::Closed,
            })
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Whether it is closed and nobody is inside: the condition a closer waits for.
    pub fn is_drained(&self) -> bool {
        self.0.load(Ordering::Acquire) == CLOSED
    }

    /// Users inside at this moment.
    pub fn users(&self) -> u32 {
        self.0.load(Ordering::Relaxed) & !CLOSED
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}
