// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The life of a key slot.
//!
//! ```text
//!             begin_assign            assigned(value)
//!   Reserved ─────────────▶ Assigning ─────────────▶ Assigned
//!    ▲  ▲ │ release             │ failed                 │ begin_revoke
//!    │  │ └──────▶ Freed        │                        ▼
//!    │  └───────────────────────┘                    Revoking
//!    └───────────────────────────────────────────────────┘
//!                 revoked: next generation
//! ```
//!
//! An ordered assignment tells its key before it is valid: `promise(value)` leads from `Assigning`
//! to `Promised`, and `assigned` or `assign_failed` from there as from `Assigning`.
//!
//! Assigning and revoking take a provider's time, during which the caller may let go of the lock
//! that guards the slot. Whoever began is the one to finish; everybody else hears `Busy`, which
//! means "wait and look again", never "done". So a revoke that succeeds was its own, and when it
//! returns the key is dead (P3).
//!
//! Death (the region, the file or the device ends) may come at any moment and makes the slot
//! accept no assignment any more. An assignment under way is then handed to its own caller to
//! revoke ([`AssignOutcome::RevokeNow`]): no key outlives the death.

/// What a key gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// First byte, counted from the region's start.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Rights of peers ([`super::rights`]).
    pub access: u64,
    /// It ends with the first operation that is done by it.
    pub once: bool,
}

/// Where a slot is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Set aside, without a key.
    Reserved,
    /// Getting a key; nobody has been told it yet.
    Assigning(Grant),
    /// Getting a key that somebody has been told already.
    Promised {
        /// What the key gives.
        grant: Grant,
        /// The key itself.
        value: u64,
    },
    /// It has a key.
    Assigned {
        /// What the key gives.
        grant: Grant,
        /// The key itself.
        value: u64,
    },
    /// Losing its key. Until [`KeySlot::revoked`] the key may still work.
    Revoking {
        /// What the key gives.
        grant: Grant,
        /// The key itself; `None` when nobody was told it.
        value: Option<u64>,
    },
    /// Given back; nothing leads out of here.
    Freed,
}

/// Why a transition was refused. The slot is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// It has a key already.
    Assigned,
    /// An assignment or a revocation is under way: wait for it, then look again.
    Busy,
    /// It has no key.
    NotAssigned,
    /// It was given back.
    Freed,
    /// What it belongs to is ending.
    Dying,
    /// It has had as many keys as generations can count.
    Exhausted,
    /// Not a step of what is under way.
    OutOfOrder,
}

/// What the caller of [`KeySlot::assigned`] is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`RevokeNow` hands over the duty to revoke"]
pub enum AssignOutcome {
    /// Tell the key.
    Valid,
    /// Death came meanwhile and the slot is in [`State::Revoking`]: revoke the key, then call
    /// [`KeySlot::revoked`], and tell nobody.
    RevokeNow,
}

/// What the caller of [`KeySlot::die`] is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Revoke` hands over the duty to revoke"]
pub enum Death {
    /// There is no key; the slot is freed.
    Freed,
    /// The slot is in [`State::Revoking`]: revoke its key, then call [`KeySlot::revoked`].
    Revoke,
    /// Somebody else's step is under way; after it there will be no key. Wait for it.
    Wait,
}

/// One slot. The caller's lock makes each call a single step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySlot {
    state: State,
    generation: u64,
    dying: bool,
}

impl KeySlot {
    /// A slot that was just set aside.
    pub const fn new() -> Self {
        Self::starting_at(1)
    }

    /// A slot whose first key has this generation.
    pub const fn starting_at(generation: u64) -> Self {
        Self {
            state: State::Reserved,
            generation,
            dying: false,
        }
    }

    /// Where it is in its life.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Goes up with every key that ends; a key that was revoked never has the present one.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether what it belongs to is ending.
    pub const fn is_dying(&self) -> bool {
        self.dying
    }

    /// Whether a peer may be able to use a key of this slot at this moment.
    pub const fn may_be_reachable(&self) -> bool {
        matches!(
            self.state,
            State::Assigning(_)
                | State::Promised { .. }
                | State::Assigned { .. }
                | State::Revoking { .. }
        )
    }

    /// Begins to give it a key. The caller then asks the provider, and ends with
    /// [`KeySlot::assigned`] or [`KeySlot::assign_failed`].
    ///
    /// # Errors
    ///
    /// [`KeyError::Assigned`], [`KeyError::Busy`], [`KeyError::Freed`], [`KeyError::Dying`],
    /// [`KeyError::Exhausted`].
    pub fn begin_assign(&mut self, grant: Grant) -> Result<(), KeyError> {
        match self.state {
            State::Freed => Err(KeyError::Freed),
            _ if self.dying => Err(KeyError::Dying),
            State::Assigned { .. } => Err(KeyError::Assigned),
            State::Assigning(_) | State::Promised { .. } | State::Revoking { .. } => {
                Err(KeyError::Busy)
            }
            State::Reserved if self.generation == u64::MAX => Err(KeyError::Exhausted),
            State::Reserved => {
                self.state = State::Assigning(grant);
                Ok(())
            }
        }
    }

    /// The provider is going to make the key `value`, which somebody is told now.
    ///
    /// # Errors
    ///
    /// [`KeyError::OutOfOrder`].
    pub fn promise(&mut self, value: u64) -> Result<(), KeyError> {
        let State::Assigning(grant) = self.state else {
            return Err(KeyError::OutOfOrder);
        };
        self.state = State::Promised { grant, value };
        Ok(())
    }

    /// The provider made the key `value`.
    ///
    /// # Errors
    ///
    /// [`KeyError::OutOfOrder`]; also if it is not the one that was promised.
    pub fn assigned(&mut self, value: u64) -> Result<AssignOutcome, KeyError> {
        let (grant, told) = match self.state {
            State::Assigning(grant) => (grant, None),
            State::Promised { grant, value: told } if told == value => (grant, Some(told)),
            _ => return Err(KeyError::OutOfOrder),
        };
        if self.dying {
            // Who takes back what was told waits for its end.
            self.state = State::Revoking { grant, value: told };
            return Ok(AssignOutcome::RevokeNow);
        }
        self.state = State::Assigned { grant, value };
        Ok(AssignOutcome::Valid)
    }

    /// The provider made no key.
    ///
    /// # Errors
    ///
    /// [`KeyError::OutOfOrder`].
    pub fn assign_failed(&mut self) -> Result<(), KeyError> {
        let (State::Assigning(_) | State::Promised { .. }) = self.state else {
            return Err(KeyError::OutOfOrder);
        };
        self.state = self.without_key();
        Ok(())
    }

    /// Begins to end its key. The caller then makes the provider revoke it, which cannot fail,
    /// and ends with [`KeySlot::revoked`].
    ///
    /// # Errors
    ///
    /// [`KeyError::NotAssigned`], [`KeyError::Busy`], [`KeyError::Freed`].
    pub fn begin_revoke(&mut self) -> Result<(), KeyError> {
        match self.state {
            State::Assigned { grant, value } => {
                self.state = State::Revoking {
                    grant,
                    value: Some(value),
                };
                Ok(())
            }
            State::Reserved => Err(KeyError::NotAssigned),
            State::Assigning(_) | State::Promised { .. } | State::Revoking { .. } => {
                Err(KeyError::Busy)
            }
            State::Freed => Err(KeyError::Freed),
        }
    }

    /// As [`KeySlot::begin_revoke`], but only if its key is `value`: for an assigner whose word
    /// did not arrive. The slot may have lost that key since, and have or get another one.
    ///
    /// # Errors
    ///
    /// [`KeyError::NotAssigned`]: that key has ended. [`KeyError::Busy`]: it is just being ended.
    /// [`KeyError::Freed`].
    pub fn begin_take_back(&mut self, value: u64) -> Result<(), KeyError> {
        match self.state {
            State::Assigned { value: now, .. } if now != value => Err(KeyError::NotAssigned),
            State::Revoking { value: now, .. } if now != Some(value) => Err(KeyError::NotAssigned),
            State::Promised { value: now, .. } if now != value => Err(KeyError::NotAssigned),
            State::Assigning(_) => Err(KeyError::NotAssigned),
            _ => self.begin_revoke(),
        }
    }

    /// The key is dead. The slot is reserved again, or freed if it is dying.
    ///
    /// # Errors
    ///
    /// [`KeyError::OutOfOrder`].
    pub fn revoked(&mut self) -> Result<(), KeyError> {
        let State::Revoking { .. } = self.state else {
            return Err(KeyError::OutOfOrder);
        };
        // Not past the end: a slot at `u64::MAX` got no key.
        self.generation = self.generation.saturating_add(1);
        self.state = self.without_key();
        Ok(())
    }

    /// Gives the slot back.
    ///
    /// # Errors
    ///
    /// [`KeyError::Assigned`]: revoke first. [`KeyError::Busy`], [`KeyError::Freed`].
    pub fn release(&mut self) -> Result<(), KeyError> {
        match self.state {
            State::Reserved => {
                self.state = State::Freed;
                Ok(())
            }
            State::Assigned { .. } => Err(KeyError::Assigned),
            State::Assigning(_) | State::Promised { .. } | State::Revoking { .. } => {
                Err(KeyError::Busy)
            }
            State::Freed => Err(KeyError::Freed),
        }
    }

    /// What it belongs to ends. From now on it gets no key; whatever it has ends, by the hand
    /// that the answer names. May be called again to look.
    pub fn die(&mut self) -> Death {
        self.dying = true;
        match self.state {
            State::Reserved | State::Freed => {
                self.state = State::Freed;
                Death::Freed
            }
            State::Assigned { grant, value } => {
                self.state = State::Revoking {
                    grant,
                    value: Some(value),
                };
                Death::Revoke
            }
            State::Assigning(_) | State::Promised { .. } | State::Revoking { .. } => Death::Wait,
        }
    }

    const fn without_key(&self) -> State {
        if self.dying {
            State::Freed
        } else {
            State::Reserved
        }
    }
}

impl Default for KeySlot {
    fn default() -> Self {
        Self::new()
    }
}
