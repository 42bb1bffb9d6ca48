// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the policy says of a process that wants to use an auth key. Nothing but that: no clock, no
//! file, no state.
//!
//! Whether a job is about a process may be unknown, because something of the process is. Then the
//! decision is never more open than it would be if that were known, whatever it is: a job that denies
//! does deny, and a job that allows does not allow, and bounds what a later job allows.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kfauth::{AuthKey, Limits, Looks, Rights};

use crate::policy::{Gives, Job, Per, Policy};

/// A process, and what it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The auth key.
    pub key: &'a AuthKey,
    /// To do what.
    pub rights: Rights,
    /// Its effective uid.
    pub uid: u32,
    /// Its effective gid.
    pub gid: u32,
    /// Its supplementary groups, if all are known.
    pub groups: Option<Vec<u32>>,
    /// Its control group's path from the hierarchy's root, if known.
    pub cgroup: Option<Vec<u8>>,
    /// Cookie of its network namespace.
    pub netns: u64,
}

/// What a decision has to look up besides, and only where it comes to that.
pub trait World {
    /// The cookie of the network namespace that a file stands for; `None`: it cannot be told.
    fn netns(&self, path: &Path) -> Option<u64>;
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allow {
        /// The job that says so, by its place in [`Policy::jobs`].
        job: usize,
        /// For whom the answer is.
        looks: Looks,
        /// To do what: no less than was asked for.
        rights: Rights,
        /// How much.
        limits: Limits,
        /// For how long.
        lifetime: Duration,
    },
    /// No.
    Deny(Denial),
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The policy has no such auth key.
    UnknownKey,
    /// No job with this auth key is about such a process.
    NoJob,
    /// This job says no, by its place in [`Policy::jobs`].
    Denied(usize),
    /// This job allows something, but not all that was asked for.
    Rights(usize),
    /// This job says no to what was asked for, and cannot be told not to be about the process.
    Unknown(usize),
}

/// Decides. The first job that has the auth key and is about the process does; without any it is a
/// denial.
pub fn decide(policy: &Policy, ask: &Ask<'_>, world: &dyn World) -> Decision {
    let Some(key) = policy.find_key(ask.key) else {
        return Decision::Deny(Denial::UnknownKey);
    };
    let mut bound = Bound::default();
    for (at, job) in policy.jobs.iter().enumerate() {
        if !job.keys.contains(&key) {
            continue;
        }
        let about = is_about(job, ask, world);
        let gives = job.gives.as_ref();
        let fits = gives.filter(|gives| gives.rights.contains(ask.rights));
        let (gives, about) = match (about, fits) {
            (Some(false), _) => continue,
            (Some(true), None) if gives.is_none() => return Decision::Deny(Denial::Denied(at)),
            (Some(true), None) => return Decision::Deny(Denial::Rights(at)),
            (None, None) => return Decision::Deny(Denial::Unknown(at)),
            (about, Some(gives)) => (gives, about),
        };
        bound.meet(gives);
        if about.is_some() {
            return Decision::Allow {
                job: at,
                looks: looks(policy, key, at, gives, ask, world),
                rights: bound.rights,
                limits: bound.limits,
                lifetime: bound.lifetime,
            };
        }
    }
    Decision::Deny(Denial::NoJob)
}

/// What all jobs allow that are, or may be, about the process.
struct Bound {
    rights: Rights,
    limits: Limits,
    lifetime: Duration,
}

impl Default for Bound {
    fn default() -> Self {
        Self {
            rights: Rights::all(),
            limits: Limits::default(),
            lifetime: Duration::MAX,
        }
    }
}

impl Bound {
    /// Takes away what a job does not allow.
    fn meet(&mut self, gives: &Gives) {
        self.rights &= gives.rights;
        self.lifetime = self.lifetime.min(gives.lifetime);
        self.limits = Limits {
            pinned: least(self.limits.pinned, gives.limits.pinned),
            keys: least(self.limits.keys, gives.limits.keys),
            endpoints: least(self.limits.endpoints, gives.limits.endpoints),
        };
    }
}

/// The lower of two limits, of which none is no limit.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Whether one of some is true; `None`: it is not known.
fn any(all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut result = Some(false);
    for one in all {
        match one {
            Some(true) => return Some(true),
            Some(false) => {}
            None => result = None,
        }
    }
    result
}

/// Whether a job is about a process: one of each kind that the job names. `None`: it is not known.
fn is_about(job: &Job, ask: &Ask<'_>, world: &dyn World) -> Option<bool> {
    let who = &job.who;
    let uid = || Some(who.uids.is_empty() || who.uids.contains(&ask.uid));
    let gid = || {
        let groups = ask.groups.as_ref();
        let is_in = |gid: &u32| match ask.gid == *gid {
            true => Some(true),
            false => groups.map(|groups| groups.contains(gid)),
        };
        match who.gids.is_empty() {
            true => Some(true),
            false => any(who.gids.iter().map(is_in)),
        }
    };
    let cgroup = || {
        let is_in = |above: &String| Some(is_below(ask.cgroup.as_deref()?, above.as_bytes()));
        match who.cgroups.is_empty() {
            true => Some(true),
            false => any(who.cgroups.iter().map(is_in)),
        }
    };
    let netns = || {
        let is_in = |path: &PathBuf| Some(world.netns(path)? == ask.netns);
        match who.netns.is_empty() {
            true => Some(true),
            false => any(who.netns.iter().map(is_in)),
        }
    };
    // What takes a look at the system comes last, if it comes to that.
    let kinds: [&dyn Fn() -> Option<bool>; 4] = [&uid, &gid, &cgroup, &netns];
    let mut about = Some(true);
    for kind in kinds {
        match kind() {
            Some(true) => {}
            Some(false) => return Some(false),
            None => about = None,
        }
    }
    about
}

/// Whether a control group is another one or below it.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    let above = above.strip_suffix(b"/").unwrap_or(above);
    match path.strip_prefix(above) {
        Some(rest) => rest.is_empty() || rest.starts_with(b"/"),
        None => false,
    }
}

/// For whom an answer is.
///
/// Never for a process that the job is not about, or that an earlier job with the auth key may be
/// about, so that it decides: what the job names is looked at too, and where the kernel cannot look at
/// what tells them apart, the answer is for the process alone. One for a process is for that one as it
/// is: if it becomes another user's, or goes elsewhere, it asks again.
fn looks(
    policy: &Policy,
    key: usize,
    at: usize,
    gives: &Gives,
    ask: &Ask<'_>,
    world: &dyn World,
) -> Looks {
    const PROCESS: Looks = Looks::PROCESS.union(Looks::UID).union(Looks::NETNS);
    let job = &policy.jobs[at];
    let earlier = policy.jobs.iter().take(at);
    let earlier: Vec<_> = earlier.filter(|job| job.keys.contains(&key)).collect();
    // The kernel takes the effective group of who asks. A job that is about another of its groups
    // would have the answer cover all members of that one.
    let group = job.who.gids.contains(&ask.gid);
    let named = |mut looks: Looks| {
        let named = [
            (Looks::UID, !job.who.uids.is_empty()),
            (Looks::GID, group),
            (Looks::CGROUP, !job.who.cgroups.is_empty()),
            (Looks::NETNS, !job.who.netns.is_empty()),
        ];
        for (look, named) in named {
            looks.set(look, looks.contains(look) || named);
        }
        looks
    };
    let wide = match gives.per {
        _ if !group && !job.who.gids.is_empty() => None,
        Per::Process => None,
        Per::User => Some(Looks::UID),
        Per::Cgroup => ask.cgroup.as_ref().map(|_| Looks::CGROUP),
    };
    let wide = wide.map(named);
    if let Some(wide) = wide.filter(|wide| {
        let mut earlier = earlier.iter();
        earlier.all(|job| is_apart(job, *wide, ask, world))
    }) {
        return wide;
    }
    let elsewhere = earlier.iter().any(|job| !job.who.cgroups.is_empty());
    let mut looks = named(PROCESS);
    looks.set(
        Looks::CGROUP,
        looks.contains(Looks::CGROUP) || elsewhere && ask.cgroup.is_some(),
    );
    looks
}

/// Whether a job is certainly about none of those whom an answer for `looks` covers.
fn is_apart(job: &Job, looks: Looks, ask: &Ask<'_>, world: &dyn World) -> bool {
    let who = &job.who;
    let names = |look: Looks, named: bool| looks.contains(look) && named;
    if names(Looks::UID, !who.uids.is_empty()) && !who.uids.contains(&ask.uid) {
        return true;
    }
    // Groups keep nobody apart: a process may be in any others besides.
    if let Some(path) = ask.cgroup.as_deref() {
        let apart = |other: &String| {
            let other = other.as_bytes();
            !is_below(path, other) && !is_below(other, path)
        };
        if names(Looks::CGROUP, !who.cgroups.is_empty()) && who.cgroups.iter().all(apart) {
            return true;
        }
    }
    let apart = |path: &PathBuf| world.netns(path).is_some_and(|other| other != ask.netns);
    names(Looks::NETNS, !who.netns.is_empty()) && who.netns.iter().all(apart)
}

impl Decision {
    /// Why, in words, for people and logs.
    pub fn why(&self, policy: &Policy) -> String {
        let job = |at: &usize| {
            let job = &policy.jobs[*at];
            format!("job {} (line {})", job.name, job.line)
        };
        match self {
            Self::Allow { job: at, .. } => job(at),
            Self::Deny(Denial::UnknownKey) => "the policy has no such auth key".to_owned(),
            Self::Deny(Denial::NoJob) => "no job of the policy is about it".to_owned(),
            Self::Deny(Denial::Denied(at)) => format!("{} denies it", job(at)),
            Self::Deny(Denial::Rights(at)) => {
                format!("{} does not give all of these rights", job(at))
            }
            Self::Deny(Denial::Unknown(at)) => format!(
                "{} says no, and may be about it: what it goes by is not known of the process",
                job(at)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
