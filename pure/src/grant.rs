// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Whom a grant covers, how much it gives, and for how long.

/// What a grant may look at; the bits are the interface's.
pub mod what {
    /// The effective uid.
    pub const UID: u32 = 1;
    /// The effective gid and the supplementary groups.
    pub const GID: u32 = 2;
    /// The cgroup, and those it is in.
    pub const CGROUP: u32 = 4;
    /// The network namespace.
    pub const NETNS: u32 = 8;
    /// The process.
    pub const PROCESS: u32 = 16;
    /// All of them.
    pub const ALL: u32 = UID | GID | CGROUP | NETNS | PROCESS;
}

/// Rights that a grant may give; the bits are the interface's.
pub mod right {
    /// Endpoints.
    pub const EP: u32 = 1;
    /// Keys.
    pub const KEYS: u32 = 2;
    /// All of them.
    pub const ALL: u32 = EP | KEYS;
}

/// Who asks.
pub trait Asker {
    /// Its effective uid.
    fn uid(&self) -> u32;
    /// Whether it is in a group.
    fn in_group(&self, gid: u32) -> bool;
    /// Whether it is in a cgroup, or in one below it.
    fn in_cgroup(&self, id: u64) -> bool;
    /// Its network namespace.
    fn netns(&self) -> u64;
    /// Its process; 0: not known.
    fn process(&self) -> u64;
}

/// Whom a grant is for. A field counts if its bit is set in `what`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// [`what`] bits.
    pub what: u32,
    /// The user.
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
    /// Whether it says anything, and nothing that is not to be looked at.
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

    /// Whether all that it looks at is true of who asks.
    pub fn covers(&self, asker: &impl Asker) -> bool {
        let unless = |bit: u32| self.what & bit == 0;
        self.what != 0
            && (unless(what::UID) || asker.uid() == self.uid)
            && (unless(what::NETNS) || asker.netns() == self.netns)
            // What is not known is nobody's.
            && (unless(what::PROCESS) || (self.process != 0 && asker.process() == self.process))
            && (unless(what::GID) || asker.in_group(self.gid))
            && (unless(what::CGROUP) || asker.in_cgroup(self.cgroup))
    }
}

/// How much of each there may be at once; 0: as much as one likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in regions.
    pub pinned: u64,
    /// Keys.
    pub keys: u32,
    /// Endpoints.
    pub eps: u32,
}

/// How much of each there is, or is to be added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes in regions.
    pub pinned: u64,
    /// Keys.
    pub keys: u32,
    /// Endpoints.
    pub eps: u32,
}

impl Amount {
    /// With `more`; nothing where that is beyond the limits. What `more` has nothing of may be
    /// beyond them: a limit that was lowered stops only what it is about.
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

    /// Without `less`, which was added before.
    pub fn without(&self, less: &Amount) -> Amount {
        Amount {
            pinned: self.pinned.saturating_sub(less.pinned),
            keys: self.keys.saturating_sub(less.keys),
            eps: self.eps.saturating_sub(less.eps),
        }
    }

    /// Whether nothing is left that reaches the fabric: then the auth key may be another's.
    pub fn is_drained(&self) -> bool {
        self.keys == 0 && self.eps == 0
    }
}

/// The end of what has none.
pub const NEVER: u64 = u64::MAX;

/// When what lasts `lifetime` (0: without end) from `now` on is over.
pub fn end(now: u64, lifetime: u64) -> u64 {
    match lifetime {
        0 => NEVER,
        lifetime => now.saturating_add(lifetime).min(NEVER - 1),
    }
}

/// What is left at `now` of what ends at `end`; 0: it is over, or has no end.
pub fn left(now: u64, end: u64) -> u64 {
    match end {
        NEVER => 0,
        end => end.saturating_sub(now),
    }
}

/// Why the grants there are do not do, the best first: a later one does not make it worse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Miss {
    /// None covers who asks: the agent may know one.
    #[default]
    Nothing,
    /// One does, whose time is over.
    Expired,
    /// One does, which was revoked.
    Revoked,
    /// One does, but is used up.
    OverLimit,
}
