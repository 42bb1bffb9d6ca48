// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decisions, and what holds of all of them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::policy::{AgentPart, NamedKey, Who};

/// Network namespaces by their files.
#[derive(Debug, Default)]
struct Places(BTreeMap<PathBuf, u64>);

impl World for Places {
    fn netns(&self, path: &Path) -> Option<u64> {
        self.0.get(path).copied()
    }
}

fn key(n: u8) -> AuthKey {
    AuthKey::new(vec![n; 16]).unwrap()
}

fn places() -> Places {
    Places([(PathBuf::from("/n/1"), 11), (PathBuf::from("/n/2"), 12)].into())
}

fn who() -> impl Strategy<Value = Who> {
    let some = |n: usize| 0..n;
    let cgroups = prop_oneof![Just("/"), Just("/a"), Just("/a/b"), Just("/ab")];
    let netns = prop_oneof![Just("/n/1"), Just("/n/2"), Just("/n/gone")];
    (
        proptest::collection::vec(0..4u32, some(3)),
        proptest::collection::vec(0..4u32, some(3)),
        proptest::collection::vec(cgroups.prop_map(str::to_owned), some(3)),
        proptest::collection::vec(netns.prop_map(PathBuf::from), some(2)),
    )
        .prop_map(|(uids, gids, cgroups, netns)| Who {
            uids,
            gids,
            cgroups,
            netns,
        })
}

fn job() -> impl Strategy<Value = Job> {
    let per = prop_oneof![Just(Per::Process), Just(Per::User), Just(Per::Cgroup)];
    let gives = (per, 1..4u32, 1..9u32).prop_map(|(per, rights, keys)| Gives {
        per,
        rights: Rights::from_bits_truncate(rights),
        limits: Limits {
            keys: Some(keys),
            ..Limits::default()
        },
        lifetime: Duration::from_secs(60),
    });
    let keys = proptest::collection::vec(0..3usize, 1..3);
    (keys, who(), proptest::option::weighted(0.8, gives)).prop_map(|(keys, who, gives)| Job {
        name: "job".to_owned(),
        line: 1,
        keys,
        who,
        gives,
    })
}

fn policy() -> impl Strategy<Value = Policy> {
    proptest::collection::vec(job(), 0..6).prop_map(|jobs| Policy {
        agent: AgentPart::default(),
        keys: (0..3)
            .map(|n| NamedKey {
                name: format!("key{n}"),
                key: key(n),
            })
            .collect(),
        jobs,
    })
}

/// What a process is and wants; its key by number, of which the policy has 0 to 2.
type Process = (u8, u32, u32, u32, Vec<u32>, Option<String>, u64);

fn process() -> impl Strategy<Value = Process> {
    let cgroup = prop_oneof![
        Just("/"),
        Just("/a"),
        Just("/a/b/c"),
        Just("/ab"),
        Just("/a/bc")
    ];
    (
        0..4u8,
        1..4u32,
        0..4u32,
        0..4u32,
        proptest::collection::vec(0..4u32, 0..3),
        proptest::option::weighted(0.9, cgroup.prop_map(str::to_owned)),
        10..14u64,
    )
}

fn ask<'a>(key: &'a AuthKey, process: &Process) -> Ask<'a> {
    let (_, rights, uid, gid, groups, cgroup, netns) = process.clone();
    Ask {
        key,
        rights: Rights::from_bits_truncate(rights),
        uid,
        gid,
        groups,
        cgroup,
        netns,
    }
}

/// The same, said in another way: whom a job is about.
fn plainly_about(who: &Who, ask: &Ask<'_>) -> bool {
    let mut about = true;
    if !who.uids.is_empty() {
        about &= who.uids.contains(&ask.uid);
    }
    if !who.gids.is_empty() {
        about &= who.gids.contains(&ask.gid) || ask.groups.iter().any(|gid| who.gids.contains(gid));
    }
    if !who.cgroups.is_empty() {
        about &= ask.cgroup.as_ref().is_some_and(|path| {
            who.cgroups
                .iter()
                .any(|above| Path::new(path).starts_with(above))
        });
    }
    if !who.netns.is_empty() {
        about &= who
            .netns
            .iter()
            .any(|path| places().netns(path) == Some(ask.netns));
    }
    about
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_first_job_that_is_about_it_decides(policy in policy(), process in process()) {
        let key = key(process.0);
        let ask = ask(&key, &process);
        let decision = decide(&policy, &ask, &places());
        let known = usize::from(process.0);
        let first = policy
            .jobs
            .iter()
            .position(|job| job.keys.contains(&known) && plainly_about(&job.who, &ask));
        match (decision, first) {
            (Decision::Deny(Denial::UnknownKey), _) => prop_assert!(known > 2),
            (Decision::Deny(Denial::NoJob), first) => prop_assert_eq!(first, None),
            (Decision::Deny(Denial::Denied(at)), first) => {
                prop_assert_eq!(Some(at), first);
                prop_assert_eq!(&policy.jobs[at].gives, &None);
            }
            (Decision::Deny(Denial::Rights(at)), first) => {
                prop_assert_eq!(Some(at), first);
                let gives = policy.jobs[at].gives.as_ref().unwrap();
                prop_assert!(!gives.rights.contains(ask.rights));
            }
            (Decision::Allow { job, rights, limits, .. }, first) => {
                prop_assert_eq!(Some(job), first);
                let gives = policy.jobs[job].gives.as_ref().unwrap();
                prop_assert!(rights == gives.rights && rights.contains(ask.rights));
                prop_assert_eq!(limits, gives.limits);
            }
        }
    }

    /// Whoever an answer covers, the policy would have said yes to by the same job, had it asked
    /// first and were that the only one.
    #[test]
    fn an_answer_covers_nobody_that_the_job_is_not_about(
        mut policy in policy(),
        process in process(),
        other in process(),
    ) {
        let key = key(process.0);
        let first = ask(&key, &process);
        let Decision::Allow { job, looks, .. } = decide(&policy, &first, &places()) else {
            return Ok(());
        };
        prop_assert!(!looks.is_empty());
        let second = Ask { rights: first.rights, ..ask(&key, &other) };
        // How the kernel reads a grant that was made so.
        let below = |mine: &Option<String>, theirs: &Option<String>| match (mine, theirs) {
            (Some(mine), Some(theirs)) => Path::new(theirs).starts_with(mine),
            _ => false,
        };
        let covered = (!looks.contains(Looks::UID) || second.uid == first.uid)
            && (!looks.contains(Looks::GID) || second.gid == first.gid || second.groups.contains(&first.gid))
            && (!looks.contains(Looks::CGROUP) || below(&first.cgroup, &second.cgroup))
            && (!looks.contains(Looks::NETNS) || second.netns == first.netns);
        prop_assume!(covered);
        if looks.contains(Looks::PROCESS) {
            // The same process, which may have become all this since, but for its groups where the
            // kernel cannot look at these.
            prop_assert!(looks.contains(Looks::UID | Looks::NETNS));
            let groups = (first.gid, &first.groups) == (second.gid, &second.groups);
            prop_assume!(looks.contains(Looks::GID) || groups);
        }
        policy.jobs = vec![policy.jobs[job].clone()];
        let decision = decide(&policy, &second, &places());
        prop_assert!(matches!(decision, Decision::Allow { .. }), "{:?}", decision);
    }
}

#[test]
fn control_groups_are_not_prefixes_of_names() {
    assert!(is_below("/a/b", "/a") && is_below("/a", "/a") && is_below("/a", "/"));
    assert!(!is_below("/ab", "/a") && !is_below("/", "/a"));
}
