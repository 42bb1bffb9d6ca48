// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Bounds of the key values that a user draws: a leaky bucket.
//!
//! The values of a device are common to all users, and a drawn one rests for minutes. A user may draw
//! `limit` values at once. Its account then drains so that it is empty after the time of a rest. So within
//! the time of a rest a user draws at most twice the limit.
//!
//! The limit depends on the device. A user has an account for each limit ([`Payer`]): an account for devices
//! with different limits would drain with the greater limit and refuse with the smaller one.

/// Parts of a value in which an account counts: it drains in whole parts.
const PARTS: u64 = 128;

/// A user who pays for the values of devices with one limit. Each has an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Payer {
    /// Number of the user.
    pub uid: u32,
    /// Number of values that may be drawn at once, at most 2^24: no product overflows.
    pub limit: u32,
}

impl Payer {
    /// Returns a new account of the payer.
    pub fn budget(self) -> Budget {
        Budget {
            used: 0,
            at: 0,
            limit: self.limit,
        }
    }

    /// Returns the least payer that is greater than this one.
    pub fn next(self) -> Self {
        match self.limit.checked_add(1) {
            Some(limit) => Self { limit, ..self },
            None => Self {
                uid: self.uid.wrapping_add(1),
                limit: 0,
            },
        }
    }
}

/// The account of a payer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Parts of values that have not drained.
    used: u64,
    /// Second to which the account has drained.
    at: u32,
    /// Number of values that may be drawn at once.
    limit: u32,
}

/// Terms of an account.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Time of a clock that never goes back, in seconds.
    pub now: u32,
    /// Seconds from the end of a key to the next draw of its value.
    pub rest: u32,
}

impl Budget {
    /// Returns the parts of the values that may be drawn at once.
    fn all(&self) -> u64 {
        u64::from(self.limit) * PARTS
    }

    fn drain(&mut self, terms: &Terms) {
        // A clock that another processor has read a little earlier gives a huge number.
        let age = match terms.now.wrapping_sub(self.at) {
            age if age <= u32::MAX / 2 => age,
            _ => 0,
        };
        if age >= terms.rest {
            (self.used, self.at) = (0, terms.now);
            return;
        }
        // `rest` is not 0, because `age` is less.
        let drained = u64::from(age).saturating_mul(self.all()) / u64::from(terms.rest);
        if drained > 0 {
            self.used = self.used.saturating_sub(drained);
            self.at = terms.now;
        }
    }

    /// Takes a value from the budget. Returns false if none is left.
    pub fn take(&mut self, terms: &Terms) -> bool {
        self.drain(terms);
        let left = self.used + PARTS <= self.all();
        if left {
            self.used += PARTS;
        }
        left || terms.rest == 0
    }

    /// Returns a value that was in no key.
    pub fn give_back(&mut self) {
        self.used = self.used.saturating_sub(PARTS);
    }

    /// Returns the number of values that have not drained.
    pub fn used(&mut self, terms: &Terms) -> u64 {
        self.drain(terms);
        self.used.div_ceil(PARTS)
    }

    /// Returns whether an account that is forgotten is as good.
    pub fn is_empty(&mut self, terms: &Terms) -> bool {
        self.drain(terms);
        self.used == 0
    }
}
