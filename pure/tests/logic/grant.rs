// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the tasks that a grant covers, and of its arithmetic.

use kfabric_pure::grant::{end, left, what, Amount, Asker, Limits, Miss, Rule, NEVER};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Task {
    uid: u32,
    groups: Vec<u32>,
    cgroups: Vec<u64>,
    netns: u64,
    process: u64,
}

impl Asker for Task {
    fn uid(&self) -> u32 {
        self.uid
    }
    fn in_group(&self, gid: u32) -> bool {
        self.groups.contains(&gid)
    }
    fn in_cgroup(&self, id: u64) -> bool {
        self.cgroups.contains(&id)
    }
    fn netns(&self) -> u64 {
        self.netns
    }
    fn process(&self) -> u64 {
        self.process
    }
}

fn task() -> impl Strategy<Value = Task> {
    let few = 0..4_u64;
    (
        0..4_u32,
        prop::collection::vec(0..4_u32, 0..3),
        prop::collection::vec(few.clone(), 0..3),
        few.clone(),
        few,
    )
        .prop_map(|(uid, groups, cgroups, netns, process)| Task {
            uid,
            groups,
            cgroups,
            netns,
            process,
        })
}

fn rule() -> impl Strategy<Value = Rule> {
    (0..64_u32, 0..4_u32, 0..4_u32, 0..4_u64, 0..4_u64, 0..4_u64).prop_map(
        |(what, uid, gid, cgroup, netns, process)| Rule {
            what,
            uid,
            gid,
            cgroup,
            netns,
            process,
        },
    )
}

proptest! {
    #![proptest_config(crate::config())]

    /// A rule covers exactly the tasks that have every property that it names.
    #[test]
    fn covers_what_it_names(rule in rule(), task in task()) {
        let named = |bit: u32, is: bool| rule.what & bit == 0 || is;
        let expected = rule.what != 0
            && named(what::UID, task.uid == rule.uid)
            && named(what::GID, task.groups.contains(&rule.gid))
            && named(what::CGROUP, task.cgroups.contains(&rule.cgroup))
            && named(what::NETNS, task.netns == rule.netns)
            && named(what::PROCESS, rule.process != 0 && task.process == rule.process);
        prop_assert_eq!(rule.covers(&task), expected);
    }

    /// A rule with more conditions covers no more tasks.
    #[test]
    fn more_conditions_cover_less(rule in rule(), task in task(), more in 0..32_u32) {
        let narrower = Rule { what: rule.what | more, ..rule };
        if rule.what != 0 && narrower.covers(&task) {
            prop_assert!(rule.covers(&task));
        }
    }

    /// Amounts stay within the limits and add up, in any sequence of additions and removals.
    #[test]
    fn amounts_add_up(
        limits in (0..9_u64, 0..9_u32, 0..9_u32),
        steps in prop::collection::vec((0..4_u64, 0..3_u32, 0..3_u32, any::<bool>()), 0..64),
    ) {
        let limits = Limits { pinned: limits.0, keys: limits.1, eps: limits.2 };
        let (mut now, mut there) = (Amount::default(), Vec::new());
        for (pinned, keys, eps, take) in steps {
            if take {
                if let Some(last) = there.pop() {
                    now = now.without(&last);
                }
                continue;
            }
            let more = Amount { pinned, keys, eps };
            let before = now;
            match now.with(&more, &limits) {
                Some(sum) => {
                    now = sum;
                    there.push(more);
                }
                None => prop_assert_eq!(now, before),
            }
            let within = |is: u64, limit: u64| limit == 0 || is <= limit;
            prop_assert!(within(now.pinned, limits.pinned));
            prop_assert!(within(now.keys.into(), limits.keys.into()));
            prop_assert!(within(now.eps.into(), limits.eps.into()));
        }
        for last in there.drain(..) {
            now = now.without(&last);
        }
        prop_assert_eq!(now, Amount::default());
    }

    /// A lifetime has an end, which is never [`NEVER`].
    #[test]
    fn ends(now in any::<u64>(), lifetime in any::<u64>()) {
        let end = end(now, lifetime);
        prop_assert_eq!(end == NEVER, lifetime == 0);
        if lifetime != 0 && now < u64::MAX / 2 && lifetime < u64::MAX / 2 {
            prop_assert_eq!(left(now, end), lifetime);
            prop_assert_eq!(left(end, end), 0);
        }
    }
}

#[test]
fn a_rule_names_something_and_says_nothing_else() {
    let uid = Rule {
        what: what::UID,
        uid: 7,
        ..Rule::default()
    };
    assert!(uid.is_valid());
    assert!(!Rule::default().is_valid());
    assert!(!Rule { what: 32, ..uid }.is_valid());
    assert!(!Rule { gid: 1, ..uid }.is_valid());
    assert!(!Rule { process: 1, ..uid }.is_valid());
}

#[test]
fn an_overflow_is_beyond_every_limit() {
    let full = Amount {
        pinned: u64::MAX,
        keys: u32::MAX,
        eps: u32::MAX,
    };
    for more in [(1, 0, 0), (0, 1, 0), (0, 0, 1)] {
        let (pinned, keys, eps) = more;
        let more = Amount { pinned, keys, eps };
        assert_eq!(full.with(&more, &Limits::default()), None);
    }
}

#[test]
fn a_lowered_limit_stops_only_what_it_is_about() {
    let now = Amount {
        pinned: 10,
        keys: 3,
        eps: 0,
    };
    let limits = Limits {
        pinned: 5,
        ..Limits::default()
    };
    let key = Amount {
        keys: 1,
        ..Amount::default()
    };
    assert!(now.with(&key, &limits).is_some());
    let page = Amount {
        pinned: 1,
        ..Amount::default()
    };
    assert!(now.with(&page, &limits).is_none());
}

#[test]
fn the_most_precise_reason_wins() {
    let mut all = [Miss::OverLimit, Miss::Nothing, Miss::Revoked, Miss::Expired];
    all.sort();
    assert_eq!(
        all,
        [Miss::Nothing, Miss::Expired, Miss::Revoked, Miss::OverLimit]
    );
}
