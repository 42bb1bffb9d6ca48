// SPDX-License-Identifier: GPL-2.0 OR MIT
//! State machine of a key slot.
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
//! An ordered assignment returns its key value before the key is valid: `promise(value)` leads from
//! `Assigning` to `Promised`. From there `assigned` and `assign_failed` lead on as from
//! `Assigning`.
//!
//! The provider needs time to assign or revoke a key, during which the caller may release the lock
//! of the slot. The party that began a step also ends it. All other parties get `Busy`, which means
//! "wait and look again", never "done". So a revoke that succeeds is the caller's own, and at its
//! return the key is revoked (P3).
//!
//! The owner of the slot (region, file or device) may end at any moment; the slot then accepts no
//! assignment any more. An assignment in flight is left to its own caller to revoke
//! ([`AssignOutcome::RevokeNow`]), so no key outlives its owner.

/// The memory that a key covers, and the access it permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First byte, counted from the start of the region.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Rights of peers ([`super::rights`]).
    pub access: u64,
    /// The key is revoked by the first operation that uses it.
    pub once: bool,
}

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Reserved, without a key.
    Reserved,
    /// The provider is assigning a key whose value was not returned to any caller yet.
    Assigning(Window),
    /// The provider is assigning a key whose value was already returned to a caller.
    Promised {
        /// The memory and access of the key.
        grant: Window,
        /// The key value.
        value: u64,
    },
    /// The slot has a valid key.
    Assigned {
        /// The memory and access of the key.
        grant: Window,
        /// The key value.
        value: u64,
    },
    /// The provider is revoking the key. Until [`KeySlot::revoked`] the key may still work.
    Revoking {
        /// The memory and access of the key.
        grant: Window,
        /// The key value; `None` if no caller got the value.
        value: Option<u64>,
    },
    /// Released. This state is final.
    Freed,
}

/// Why a transition was refused. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// The slot has a key.
    Assigned,
    /// An assignment or a revocation is in flight: wait for its end, then look again.
    Busy,
    /// The slot has no key.
    NotAssigned,
    /// The slot was released.
    Freed,
    /// The slot's owner (region, file or device) is ending.
    Dying,
    /// The slot has used all its generations.
    Exhausted,
    /// The call is not a step of the operation in flight.
    OutOfOrder,
}

/// Duty of the caller of [`KeySlot::assigned`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`RevokeNow` hands over the duty to revoke"]
pub enum AssignOutcome {
    /// The key is valid: return its value.
    Valid,
    /// The owner ended meanwhile and the slot is in [`State::Revoking`]: revoke the key, call
    /// [`KeySlot::revoked`], and return no key value.
    RevokeNow,
}

/// Duty of the caller of [`KeySlot::die`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "`Revoke` hands over the duty to revoke"]
pub enum Death {
    /// The slot had no key and is freed.
    Freed,
    /// The slot is in [`State::Revoking`]: revoke its key, then call [`KeySlot::revoked`].
    Revoke,
    /// An assignment or revocation of another caller is in flight. Wait for its end; the slot then
    /// has no key.
    Wait,
}

/// A key slot. Locking: the caller's lock makes each call a single step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySlot {
    state: State,
    generation: u64,
    dying: bool,
}

impl KeySlot {
    /// Returns a slot that was just reserved.
    pub const fn new() -> Self {
        Self::starting_at(1)
    }

    /// Returns a slot whose first key has this generation.
    pub const fn starting_at(generation: u64) -> Self {
        Self {
            state: State::Reserved,
            generation,
            dying: false,
        }
    }

    /// Returns the state of the slot.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the number of the present or next key; a revoked key always has a lower one.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns whether the slot's owner is ending.
    pub const fn is_dying(&self) -> bool {
        self.dying
    }

    /// Returns whether a peer may be able to use a key of this slot at this moment.
    pub const fn may_be_reachable(&self) -> bool {
        matches!(
            self.state,
            State::Assigning(_)
                | State::Promised { .. }
                | State::Assigned { .. }
                | State::Revoking { .. }
        )
    }

    /// Begins the assignment of a key. The caller then calls the provider, and ends the assignment
    /// with [`KeySlot::assigned`] or [`KeySlot::assign_failed`].
    ///
    /// # Errors
    ///
    /// - [`KeyError::Assigned`] if the slot has a key.
    /// - [`KeyError::Busy`] if an assignment or a revocation is in flight.
    /// - [`KeyError::Freed`] if the slot was released.
    /// - [`KeyError::Dying`] if the slot's owner is ending.
    /// - [`KeyError::Exhausted`] if the slot has used all its generations.
    pub fn begin_assign(&mut self, grant: Window) -> Result<(), KeyError> {
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

    /// Records that the key will have the value `value`, which the caller returns now.
    ///
    /// # Errors
    ///
    /// - [`KeyError::OutOfOrder`] if the slot is not in [`State::Assigning`].
    pub fn promise(&mut self, value: u64) -> Result<(), KeyError> {
        let State::Assigning(grant) = self.state else {
            return Err(KeyError::OutOfOrder);
        };
        self.state = State::Promised { grant, value };
        Ok(())
    }

    /// Records that the provider has assigned the key `value`.
    ///
    /// # Errors
    ///
    /// - [`KeyError::OutOfOrder`] if no assignment is in flight, or `value` is not the promised
    ///   one.
    pub fn assigned(&mut self, value: u64) -> Result<AssignOutcome, KeyError> {
        let (grant, told) = match self.state {
            State::Assigning(grant) => (grant, None),
            State::Promised { grant, value: told } if told == value => (grant, Some(told)),
            _ => return Err(KeyError::OutOfOrder),
        };
        if self.dying {
            // If the value was returned before, the revocation that names this value has to wait
            // for it.
            self.state = State::Revoking { grant, value: told };
            return Ok(AssignOutcome::RevokeNow);
        }
        self.state = State::Assigned { grant, value };
        Ok(AssignOutcome::Valid)
    }

    /// Records that the provider has assigned no key.
    ///
    /// # Errors
    ///
    /// - [`KeyError::OutOfOrder`] if no assignment is in flight.
    pub fn assign_failed(&mut self) -> Result<(), KeyError> {
        let (State::Assigning(_) | State::Promised { .. }) = self.state else {
            return Err(KeyError::OutOfOrder);
        };
        self.state = self.without_key();
        Ok(())
    }

    /// Begins the revocation of the key. The caller then calls the provider, whose revocation
    /// cannot fail, and ends with [`KeySlot::revoked`].
    ///
    /// # Errors
    ///
    /// - [`KeyError::NotAssigned`] if the slot has no key.
    /// - [`KeyError::Busy`] if an assignment or a revocation is in flight.
    /// - [`KeyError::Freed`] if the slot was released.
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

    /// As [`KeySlot::begin_revoke`], but only if the key is `value`.
    ///
    /// For an assigner that could not return the key value to its caller. Meanwhile that key may
    /// have been revoked, and the slot may have another one.
    ///
    /// # Errors
    ///
    /// - [`KeyError::NotAssigned`] if that key was revoked.
    /// - [`KeyError::Busy`] if that key is being assigned or revoked.
    /// - [`KeyError::Freed`] if the slot was released.
    pub fn begin_take_back(&mut self, value: u64) -> Result<(), KeyError> {
        match self.state {
            State::Assigned { value: now, .. } if now != value => Err(KeyError::NotAssigned),
            State::Revoking { value: now, .. } if now != Some(value) => Err(KeyError::NotAssigned),
            State::Promised { value: now, .. } if now != value => Err(KeyError::NotAssigned),
            State::Assigning(_) => Err(KeyError::NotAssigned),
            _ => self.begin_revoke(),
        }
    }

    /// Records that the key is revoked. The slot becomes `Reserved`, or `Freed` if its owner is
    /// ending.
    ///
    /// # Errors
    ///
    /// - [`KeyError::OutOfOrder`] if no revocation is in flight.
    pub fn revoked(&mut self) -> Result<(), KeyError> {
        let State::Revoking { .. } = self.state else {
            return Err(KeyError::OutOfOrder);
        };
        // Cannot saturate in practice: a slot at `u64::MAX` accepts no assignment.
        self.generation = self.generation.saturating_add(1);
        self.state = self.without_key();
        Ok(())
    }

    /// Releases the slot.
    ///
    /// # Errors
    ///
    /// - [`KeyError::Assigned`] if the slot has a key, which must be revoked first.
    /// - [`KeyError::Busy`] if an assignment or a revocation is in flight.
    /// - [`KeyError::Freed`] if the slot was released before.
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

    /// Ends the slot with its owner. From now on the slot accepts no assignment, and its key is
    /// revoked by the party that the result names. The caller may call again to look at the state.
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
