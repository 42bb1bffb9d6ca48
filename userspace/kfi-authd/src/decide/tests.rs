// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of decisions, and properties of all decisions.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::policy::{AgentPart, NamedKey, Who};

/// Network namespaces by file. A file that is not listed is a namespace of no process here; `None`
/// is an unknown one.
#[derive(Debug, Default)]
struct Places(BTreeMap<PathBuf, Option<u64>>);

impl World for Places {
    fn netns(&self, path: &Path) -> Option<u64> {
        self.0.get(path).copied().unwrap_or(Some(99))
    }
}

fn key(n: u8) -> AuthKey {
    AuthKey::new(vec![n; 16]).unwrap()
}

fn places() -> Places {
    Places(
        [
            (PathBuf::from("/n/1"), Some(11)),
            (PathBuf::from("/n/2"), Some(12)),
        ]
        .into(),
    )
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

/// Attributes and request of a process. The number of its key is one of 0 to 2 in the policy.
type Process = (u8, u32, u32, u32, Vec<u32>, String, u64);

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
        cgroup.prop_map(str::to_owned),
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
        groups: Some(groups),
        cgroup: Some(cgroup.into_bytes()),
        netns,
        apart: false,
    }
}

/// The path of a control group as text.
fn text(path: &Option<Vec<u8>>) -> Option<&str> {
    std::str::from_utf8(path.as_deref()?).ok()
}

/// A second implementation of the question whether a job is about a process.
fn plainly_about(who: &Who, ask: &Ask<'_>) -> bool {
    let mut about = true;
    if !who.uids.is_empty() {
        about &= who.uids.contains(&ask.uid);
    }
    if !who.gids.is_empty() {
        about &= who.gids.contains(&ask.gid)
            || ask
                .groups
                .iter()
                .flatten()
                .any(|gid| who.gids.contains(gid));
    }
    if !who.cgroups.is_empty() {
        about &= text(&ask.cgroup).is_some_and(|path| {
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
    fn first_job_about_the_process_decides(policy in policy(), process in process()) {
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
            (Decision::Deny(Denial::Unknown(_)), _) => prop_assert!(false, "all is known"),
            (Decision::Allow { job, rights, limits, .. }, first) => {
                prop_assert_eq!(Some(job), first);
                let gives = policy.jobs[job].gives.as_ref().unwrap();
                prop_assert!(rights == gives.rights && rights.contains(ask.rights));
                prop_assert_eq!(limits, gives.limits);
            }
        }
    }

    /// Every process that an answer covers would be allowed by the same job, if that job were the
    /// only one of the policy.
    #[test]
    fn answer_covers_only_processes_that_the_job_is_about(
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
        // The kernel's interpretation of a grant with these attributes.
        let below = |mine: &Option<Vec<u8>>, theirs: &Option<Vec<u8>>| match (text(mine), text(theirs)) {
            (Some(mine), Some(theirs)) => Path::new(theirs).starts_with(mine),
            _ => false,
        };
        let covered = (!looks.contains(Looks::UID) || second.uid == first.uid)
            && (!looks.contains(Looks::GID) || second.gid == first.gid || second.groups.iter().flatten().any(|gid| *gid == first.gid))
            && (!looks.contains(Looks::CGROUP) || below(&first.cgroup, &second.cgroup))
            && (!looks.contains(Looks::NETNS) || second.netns == first.netns);
        prop_assume!(covered);
        if !looks.contains(Looks::PROCESS) {
            // No earlier job decides about the other process.
            let decision = decide(&policy, &second, &places());
            prop_assert!(
                matches!(decision, Decision::Allow { job: same, .. } if same == job),
                "{:?}", decision
            );
        }
        if looks.contains(Looks::PROCESS) {
            // The same process, which may have got these attributes since. Its groups are the same
            // if the kernel does not compare them.
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
fn cgroup_with_a_common_name_prefix_is_not_below() {
    assert!(is_below(b"/a/b", b"/a") && is_below(b"/a", b"/a") && is_below(b"/a", b"/"));
    assert!(!is_below(b"/ab", b"/a") && !is_below(b"/", b"/a"));
    assert!(is_below(b"/a/\xff", b"/a") && !is_below(b"/a\xff", b"/a"));
}

/// Attributes that are unknown: the groups, the control group, and the namespaces of two files.
fn unknown() -> impl Strategy<Value = [bool; 4]> {
    proptest::array::uniform4(proptest::bool::ANY)
}

/// Whether a limit is not above another one; `None` means no limit.
fn is_within<T: Ord>(one: Option<T>, other: Option<T>) -> bool {
    match (one, other) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(one), Some(other)) => one <= other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// With unknown attributes a process is allowed no more than with any values of these
    /// attributes.
    #[test]
    fn decide_attribute_unknown_never_opens_more(
        policy in policy(),
        process in process(),
        unknown in unknown(),
    ) {
        let key = key(process.0);
        let known = ask(&key, &process);
        let mut hidden = known.clone();
        let mut places = places();
        let [groups, cgroup, one, two] = unknown;
        if groups {
            hidden.groups = None;
        }
        if cgroup {
            hidden.cgroup = None;
        }
        for (path, hide) in [("/n/1", one), ("/n/2", two)] {
            if hide {
                places.0.insert(PathBuf::from(path), None);
            }
        }
        let Decision::Allow { looks, rights, limits, lifetime, .. } =
            decide(&policy, &hidden, &places)
        else {
            return Ok(());
        };
        let decision = decide(&policy, &known, &self::places());
        let Decision::Allow { rights: most, limits: at_most, lifetime: longest, looks: wide, .. } =
            decision
        else {
            prop_assert!(false, "open, but {:?} of {:?}", decision, known);
            return Ok(());
        };
        prop_assert!(most.contains(rights) && lifetime <= longest);
        prop_assert!(is_within(limits.keys, at_most.keys), "{:?} {:?}", limits, at_most);
        // The answer covers no more processes either: an unknown attribute may separate them.
        prop_assert!(
            looks.contains(Looks::PROCESS) || looks.contains(wide),
            "{:?} {:?}", looks, wide
        );
    }
}

/// A job about one kind of attribute, which denies or allows.
fn plain_job(name: &str, who: Who, gives: Option<Per>) -> Job {
    Job {
        name: name.to_owned(),
        line: 1,
        keys: vec![0],
        who,
        gives: gives.map(|per| Gives {
            per,
            rights: Rights::all(),
            limits: Limits::default(),
            lifetime: Duration::from_secs(60),
        }),
    }
}

/// A policy of two jobs: the given processes are denied, then user 1 is allowed.
fn denies_first(who: Who, per: Per) -> Policy {
    let one = Who {
        uids: vec![1],
        ..Who::default()
    };
    Policy {
        agent: AgentPart::default(),
        keys: vec![NamedKey {
            name: "key0".to_owned(),
            key: key(0),
        }],
        jobs: vec![
            plain_job("denied", who, None),
            plain_job("allowed", one, Some(per)),
        ],
    }
}

fn banned() -> Who {
    Who {
        gids: vec![3],
        ..Who::default()
    }
}

fn logins() -> Who {
    Who {
        cgroups: vec!["/logins".to_owned()],
        ..Who::default()
    }
}

/// User 1, in `/jobs`.
fn user_one(key: &AuthKey) -> Ask<'_> {
    Ask {
        key,
        rights: Rights::all(),
        uid: 1,
        gid: 1,
        groups: Some(vec![1]),
        cgroup: Some(b"/jobs".to_vec()),
        netns: 10,
        apart: false,
    }
}

#[test]
fn decide_deny_job_with_unknown_attribute_denies() {
    let key = key(0);
    let ask = user_one(&key);
    let unknown = Decision::Deny(Denial::Unknown(0));
    let groups = Ask {
        groups: None,
        ..ask.clone()
    };
    let policy = denies_first(banned(), Per::Process);
    assert!(matches!(
        decide(&policy, &ask, &places()),
        Decision::Allow { job: 1, .. }
    ));
    assert_eq!(decide(&policy, &groups, &places()), unknown);
    let cgroup = Ask {
        cgroup: None,
        ..ask.clone()
    };
    let policy = denies_first(logins(), Per::Process);
    assert!(matches!(
        decide(&policy, &ask, &places()),
        Decision::Allow { job: 1, .. }
    ));
    assert_eq!(decide(&policy, &cgroup, &places()), unknown);
    let netns = Who {
        netns: vec![PathBuf::from("/n/1")],
        ..Who::default()
    };
    let policy = denies_first(netns, Per::Process);
    assert!(matches!(
        decide(&policy, &ask, &places()),
        Decision::Allow { job: 1, .. }
    ));
    let nowhere = Places([(PathBuf::from("/n/1"), None)].into());
    assert_eq!(decide(&policy, &ask, &nowhere), unknown);
}

#[test]
fn looks_earlier_job_about_some_of_the_user_narrow_to_the_process() {
    let key = key(0);
    let ask = user_one(&key);
    let looks = |policy: &Policy, ask: &Ask<'_>| match decide(policy, ask, &places()) {
        Decision::Allow { looks, .. } => looks,
        other => panic!("{other:?}"),
    };
    let process = Looks::PROCESS | Looks::UID | Looks::NETNS;
    let policy = denies_first(banned(), Per::User);
    assert_eq!(looks(&policy, &ask), process);
    let policy = denies_first(logins(), Per::User);
    assert_eq!(looks(&policy, &ask), process | Looks::CGROUP);
    // Control groups beside each other, and different users, are separate.
    let policy = denies_first(logins(), Per::Cgroup);
    assert_eq!(looks(&policy, &ask), Looks::CGROUP | Looks::UID);
    let two = Who {
        uids: vec![2],
        ..Who::default()
    };
    let policy = denies_first(two, Per::User);
    assert_eq!(looks(&policy, &ask), Looks::UID);
    // Without the path, the answer cannot compare the control group.
    let hidden = Ask {
        cgroup: None,
        ..ask
    };
    assert_eq!(looks(&policy, &hidden), Looks::UID);
}

/// A choice of a process in a user namespace of its own neither opens a key that a job denies, nor closes one
/// that a job allows.
#[test]
fn decide_process_in_another_user_namespace_does_not_escape_denial() {
    let key = key(0);
    let ask = |uid, apart| Ask {
        key: &key,
        rights: Rights::all(),
        uid,
        gid: 7,
        groups: Some(Vec::new()),
        cgroup: Some(b"/a".to_vec()),
        netns: 11,
        apart,
    };
    let job = |who, gives| Job {
        name: "job".to_owned(),
        line: 1,
        keys: vec![0],
        who,
        gives,
    };
    let gives = Gives {
        per: Per::Process,
        rights: Rights::all(),
        limits: Limits::default(),
        lifetime: Duration::from_secs(60),
    };
    let anybody = job(Who::default(), Some(gives.clone()));
    let of = |who: Who| Policy {
        agent: AgentPart::default(),
        keys: vec![NamedKey {
            name: "key".to_owned(),
            key: key.clone(),
        }],
        jobs: vec![job(who, None), anybody.clone()],
    };
    let groups = of(Who {
        gids: vec![8],
        ..Who::default()
    });
    let users = of(Who {
        uids: vec![1000],
        ..Who::default()
    });
    for policy in [&groups, &users] {
        let decided = |apart| decide(policy, &ask(100_000, apart), &places());
        assert!(matches!(decided(false), Decision::Allow { job: 1, .. }));
        assert_eq!(decided(true), Decision::Deny(Denial::Unknown(0)));
    }
    // A job that allows others is not about it.
    let mut others = of(Who::default());
    others.jobs[0] = job(
        Who {
            uids: vec![1000],
            ..Who::default()
        },
        Some(Gives {
            lifetime: Duration::from_secs(1),
            ..gives
        }),
    );
    let decided = decide(&others, &ask(100_000, true), &places());
    assert!(
        matches!(decided, Decision::Allow { job: 1, lifetime, .. } if lifetime.as_secs() == 60)
    );
}
