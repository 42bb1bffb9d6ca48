// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy's decision on a request to use an auth key. Depends on the arguments alone: no clock,
//! no files, no state.
//!
//! An attribute of the process may be unknown, and with it whether a job is about the process. Then
//! the decision never allows more than it would for any value of the attribute. A job that denies
//! does deny. A job that allows does not allow by itself, but limits the terms of a later job.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kfauth::{AuthKey, Limits, Looks, Rights};

use crate::policy::{Gives, Job, Per, Policy};

/// A request to use an auth key, with the attributes of the requesting process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask<'a> {
    /// The auth key.
    pub key: &'a AuthKey,
    /// The requested rights.
    pub rights: Rights,
    /// Effective uid.
    pub uid: u32,
    /// Effective gid.
    pub gid: u32,
    /// Supplementary groups; `None` if unknown.
    pub groups: Option<Vec<u32>>,
    /// Path of the control group from the hierarchy's root; `None` if unknown.
    pub cgroup: Option<Vec<u8>>,
    /// Cookie of the network namespace.
    pub netns: u64,
    /// It is in another user namespace than the host's. There a process may leave its groups, and may
    /// become any user that its own user has been delegated (subuid(5)): that it is not in a group, or is
    /// not a user, is then its own choice.
    pub apart: bool,
}

/// Lookups that a decision makes only if it depends on them.
pub trait World {
    /// Returns the cookie of the network namespace that a file represents; `None` if it cannot be
    /// determined.
    fn netns(&self, path: &Path) -> Option<u64>;
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed.
    Allow {
        /// Index of the deciding job in [`Policy::jobs`].
        job: usize,
        /// Attributes that select the processes covered.
        looks: Looks,
        /// Rights, including all that were requested.
        rights: Rights,
        /// Limits of the grant.
        limits: Limits,
        /// Lifetime of the grant.
        lifetime: Duration,
    },
    /// The request is denied.
    Deny(Denial),
}

/// The reason of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The policy has no such auth key.
    UnknownKey,
    /// No job with this auth key is about the process.
    NoJob,
    /// The job with this index in [`Policy::jobs`] denies.
    Denied(usize),
    /// The job with this index does not allow all requested rights.
    Rights(usize),
    /// The job with this index would deny the request, and may be about the process.
    Unknown(usize),
}

/// Decides a request. The first job that has the auth key and is about the process decides. If
/// there is none, the request is denied.
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

/// The terms that all jobs allow that are, or may be, about the process.
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
    /// Reduces the terms to those that a job allows, too.
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

/// Returns the lower limit; `None` means no limit.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Whether any element is true; `None` if unknown.
fn any(all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut result = Some(false);
    for one in all {
        #[cfg(kfabric_seed_bug = "unknown-opens")]
        let one = one.or(Some(false));
        match one {
            Some(true) => return Some(true),
            Some(false) => {}
            None => result = None,
        }
    }
    result
}

/// Returns whether a job applies to a process: each list of the job that is not empty has an entry
/// that matches the process. `None` if unknown.
fn is_about(job: &Job, ask: &Ask<'_>, world: &dyn World) -> Option<bool> {
    let who = &job.who;
    // A choice of the process does not escape a job that denies.
    let sure = |is: bool| (is || !ask.apart || job.gives.is_some()).then_some(is);
    let uid = || match who.uids.is_empty() {
        true => Some(true),
        false => sure(who.uids.contains(&ask.uid)),
    };
    let gid = || {
        let groups = ask.groups.as_ref();
        let is_in = |gid: &u32| match ask.gid == *gid {
            true => Some(true),
            false => groups.and_then(|groups| sure(groups.contains(gid))),
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
    // Network namespaces come last: only they need a lookup on the system.
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

/// Whether a control group equals `above` or is below it.
fn is_below(path: &[u8], above: &[u8]) -> bool {
    let above = above.strip_suffix(b"/").unwrap_or(above);
    match path.strip_prefix(above) {
        Some(rest) => rest.is_empty() || rest.starts_with(b"/"),
        None => false,
    }
}

/// Selects the processes that an answer covers.
///
/// The answer never covers a process that the job is not about. It never covers a process that an
/// earlier job with the auth key may be about, because that job would decide. So the answer also
/// compares the attributes that the job names. If the kernel cannot compare an attribute that makes
/// the difference, the answer covers the requesting process alone. An answer for one process holds
/// for its present attributes: after a change of user or network namespace, the process needs
/// another answer.
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
    // The kernel compares the requester's effective group. If the job names another group of the
    // requester, a grant by group would cover all members of the effective group.
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

/// Whether a job is certainly not about any process that an answer for `looks` covers.
fn is_apart(job: &Job, looks: Looks, ask: &Ask<'_>, world: &dyn World) -> bool {
    let who = &job.who;
    let names = |look: Looks, named: bool| looks.contains(look) && named;
    if names(Looks::UID, !who.uids.is_empty()) && !who.uids.contains(&ask.uid) {
        return true;
    }
    // Groups do not separate processes: a process may have any other groups, too.
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
    /// The reason in words, for users and logs.
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
                "{} would deny it, and may be about it: an attribute of the process is unknown",
                job(at)
            ),
        }
    }
}

#[cfg(test)]
mod tests;
