// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Rules of a grant: the tasks it covers, its limits, and its end.

/// Properties of a task that a rule can compare; the bits are those of the uapi.
pub mod what {
    /// The effective uid.
    pub const UID: u32 = 1;
    /// The effective gid and the supplementary groups.
    pub const GID: u32 = 2;
    /// The cgroup and its ancestors.
    pub const CGROUP: u32 = 4;
    /// The network namespace.
    pub const NETNS: u32 = 8;
    /// The process.
    pub const PROCESS: u32 = 16;
    /// The union of all properties.
    pub const ALL: u32 = UID | GID | CGROUP | NETNS | PROCESS;
}

/// Rights that a grant can contain; the bits are those of the uapi.
pub mod right {
    /// Opening endpoints.
    pub const EP: u32 = 1;
    /// Assigning keys.
    pub const KEYS: u32 = 2;
    /// The union of both rights.
    pub const ALL: u32 = EP | KEYS;
}

/// The task whose request is checked.
pub trait Asker {
    /// Returns the task's effective uid.
    fn uid(&self) -> u32;
    /// Returns whether the task is in group `gid`.
    fn in_group(&self, gid: u32) -> bool;
    /// Returns whether the task is in cgroup `id` or in a descendant of `id`.
    fn in_cgroup(&self, id: u64) -> bool;
    /// Returns the number of the task's network namespace.
    fn netns(&self) -> u64;
    /// Returns the number of the task's process; 0 means unknown.
    fn process(&self) -> u64;
}

/// The tasks that a grant covers. A field is compared only if its bit is set in `what`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Bits of [`what`] that select the compared fields.
    pub what: u32,
    /// The effective uid.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The cgroup.
    pub cgroup: u64,
    /// The network namespace.
    pub netns: u64,
    /// The process.
    pub process: u64,
}

impl Rule {
    /// Returns whether the rule compares at least one property, and all other fields are zero.
    pub fn is_valid(&self) -> bool {
        let unless = |bit: u32, zero: bool| self.what & bit != 0 || zero;
        self.what != 0
            && self.what & !what::ALL == 0
            && unless(what::UID, self.uid == 0)
            && unless(what::GID, self.gid == 0)
            && unless(what::CGROUP, self.cgroup == 0)
            && unless(what::NETNS, self.netns == 0)
            && unless(what::PROCESS, self.process == 0)
    }

    /// Returns whether the task matches every compared property.
    pub fn covers(&self, asker: &impl Asker) -> bool {
        let unless = |bit: u32| self.what & bit == 0;
        self.what != 0
            && (unless(what::UID) || asker.uid() == self.uid)
            && (unless(what::NETNS) || asker.netns() == self.netns)
            // An unknown process (0) matches no rule.
            && (unless(what::PROCESS) || (self.process != 0 && asker.process() == self.process))
            && (unless(what::GID) || asker.in_group(self.gid))
            && (unless(what::CGROUP) || asker.in_cgroup(self.cgroup))
    }
}

/// Upper limits of a grant's use at one time; 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of registered memory.
    pub pinned: u64,
    /// The number of keys.
    pub keys: u32,
    /// The number of endpoints.
    pub eps: u32,
}

/// An amount of resources, in use or requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes of registered memory.
    pub pinned: u64,
    /// The number of keys.
    pub keys: u32,
    /// The number of endpoints.
    pub eps: u32,
}

impl Amount {
    /// Returns the sum with `more`, or `None` if the sum exceeds `limits`.
    ///
    /// A resource that `more` does not request may exceed its limit: a lowered limit refuses only
    /// requests for that resource.
    pub fn with(&self, more: &Amount, limits: &Limits) -> Option<Amount> {
        let fits = |sum: u64, more: u64, limit: u64| more == 0 || limit == 0 || sum <= limit;
        let sum = Amount {
            pinned: self.pinned.checked_add(more.pinned)?,
            keys: self.keys.checked_add(more.keys)?,
            eps: self.eps.checked_add(more.eps)?,
        };
        let ok = fits(sum.pinned, more.pinned, limits.pinned)
            && fits(sum.keys.into(), more.keys.into(), limits.keys.into())
            && fits(sum.eps.into(), more.eps.into(), limits.eps.into());
        ok.then_some(sum)
    }

    /// Returns the amount without `less`, which was added before.
    pub fn without(&self, less: &Amount) -> Amount {
        Amount {
            pinned: self.pinned.saturating_sub(less.pinned),
            keys: self.keys.saturating_sub(less.keys),
            eps: self.eps.saturating_sub(less.eps),
        }
    }

    /// Returns whether no key and no endpoint is left; the auth key may then pass to another owner.
    pub fn is_drained(&self) -> bool {
        self.keys == 0 && self.eps == 0
    }
}

/// End time of a grant without an end.
pub const NEVER: u64 = u64::MAX;

/// Returns the end time of a grant with `lifetime` from `now` on; a `lifetime` of 0 has no end.
pub fn end(now: u64, lifetime: u64) -> u64 {
    match lifetime {
        0 => NEVER,
        lifetime => now.saturating_add(lifetime).min(NEVER - 1),
    }
}

/// Returns the time from `now` to `end`; 0 if `end` has passed or is [`NEVER`].
pub fn left(now: u64, end: u64) -> u64 {
    match end {
        NEVER => 0,
        end => end.saturating_sub(now),
    }
}

/// Why no grant authorizes a request. If several grants fail, the greatest reason is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Miss {
    /// No grant covers the task; the agent may supply one.
    #[default]
    Nothing,
    /// A grant covers the task, but has expired.
    Expired,
    /// A grant covers the task, but was revoked.
    Revoked,
    /// A grant covers the task, but its limit is reached.
    OverLimit,
}
