// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the policy says of a process that wants to use an auth key. Nothing but that: no clock, no
//! file, no state.

use std::path::Path;
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
    /// Its supplementary groups, as far as known.
    pub groups: Vec<u32>,
    /// Its control group's path from the hierarchy's root, if known.
    pub cgroup: Option<String>,
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
}

/// Decides. The first job that has the auth key and is about the process does; without any it is a
/// denial.
pub fn decide(policy: &Policy, ask: &Ask<'_>, world: &dyn World) -> Decision {
    let Some(key) = policy.find_key(ask.key) else {
        return Decision::Deny(Denial::UnknownKey);
    };
    let about = |job: &Job| job.keys.contains(&key) && is_about(job, ask, world);
    let Some(at) = policy.jobs.iter().position(about) else {
        return Decision::Deny(Denial::NoJob);
    };
    let job = &policy.jobs[at];
    let Some(gives) = &job.gives else {
        return Decision::Deny(Denial::Denied(at));
    };
    if !gives.rights.contains(ask.rights) {
        return Decision::Deny(Denial::Rights(at));
    }
    Decision::Allow {
        job: at,
        looks: looks(job, gives, ask),
        rights: gives.rights,
        limits: gives.limits,
        lifetime: gives.lifetime,
    }
}

/// Whether a job is about a process: one of each kind that the job names.
fn is_about(job: &Job, ask: &Ask<'_>, world: &dyn World) -> bool {
    let who = &job.who;
    let group = |gid: &u32| ask.gid == *gid || ask.groups.contains(gid);
    let cgroup = |above: &String| {
        ask.cgroup
            .as_deref()
            .is_some_and(|path| is_below(path, above))
    };
    let netns = |path: &std::path::PathBuf| world.netns(path) == Some(ask.netns);
    (who.uids.is_empty() || who.uids.contains(&ask.uid))
        && (who.gids.is_empty() || who.gids.iter().any(group))
        && (who.cgroups.is_empty() || who.cgroups.iter().any(cgroup))
        && (who.netns.is_empty() || who.netns.iter().any(netns))
}

/// Whether a control group is another one or below it.
fn is_below(path: &str, above: &str) -> bool {
    match path.strip_prefix(above.trim_end_matches('/')) {
        Some(rest) => rest.is_empty() || rest.starts_with('/'),
        None => false,
    }
}

/// For whom an answer is. Never for a process that the job is not about: what the job names is
/// looked at too, and where the kernel cannot look at that, the answer is for the process alone. One
/// for a process is for that one as it is: if it becomes another user's, or goes elsewhere, it asks
/// again.
fn looks(job: &Job, gives: &Gives, ask: &Ask<'_>) -> Looks {
    const PROCESS: Looks = Looks::PROCESS.union(Looks::UID).union(Looks::NETNS);
    // The kernel takes the effective group of who asks. A job that is about another of its groups
    // would have the answer cover all members of that one.
    let group = job.who.gids.contains(&ask.gid);
    let mut looks = match gives.per {
        _ if !group && !job.who.gids.is_empty() => PROCESS,
        Per::Process => PROCESS,
        Per::User => Looks::UID,
        Per::Cgroup => Looks::CGROUP,
    };
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
        }
    }
}

#[cfg(test)]
mod tests;
