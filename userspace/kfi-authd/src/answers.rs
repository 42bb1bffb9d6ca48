// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the daemon has allowed, so that it is taken back if a new policy does not allow it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kfauth::{AuthKey, Grant, Grants, Limits, Looks, Rights};

use crate::decide::{decide, Ask, Decision, World};
use crate::event;
use crate::policy::Policy;

/// Answers from which on those are forgotten whose grants are gone.
const MANY: usize = 4096;

/// Who asked, for what, and what the answer gave.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    key: AuthKey,
    rights: Rights,
    uid: u32,
    gid: u32,
    groups: Option<Vec<u32>>,
    cgroup: Option<Vec<u8>>,
    netns: u64,
    gave: Terms,
    when: Instant,
}

/// What an answer gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// For whom.
    pub(crate) looks: Looks,
    /// To do what.
    pub(crate) rights: Rights,
    /// How much.
    pub(crate) limits: Limits,
    /// For how long.
    pub(crate) lifetime: Duration,
}

/// What is to become of an answer under another policy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// It stays.
    Stays,
    /// It gives less: these limits, or this time from now on.
    Less(Option<Limits>, Option<Duration>),
    /// It is taken back, and why.
    Ends(String),
}

impl Given {
    /// What `ask` was given.
    pub(crate) fn new(ask: &Ask<'_>, gave: Terms) -> Self {
        Self {
            key: ask.key.clone(),
            rights: ask.rights,
            uid: ask.uid,
            gid: ask.gid,
            groups: ask.groups.clone(),
            cgroup: ask.cgroup.clone(),
            netns: ask.netns,
            gave,
            when: Instant::now(),
        }
    }

    /// What a policy makes of it.
    fn fate(&self, policy: &Policy, world: &dyn World, now: Instant) -> Fate {
        let ask = Ask {
            key: &self.key,
            rights: self.rights,
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            cgroup: self.cgroup.clone(),
            netns: self.netns,
        };
        let decision = decide(policy, &ask, world);
        let why = || decision.why(policy);
        let Decision::Allow {
            looks,
            rights,
            limits,
            lifetime,
            ..
        } = &decision
        else {
            return Fate::Ends(why());
        };
        let gave = &self.gave;
        if !rights.contains(gave.rights) {
            return Fate::Ends(format!("{} gives fewer rights", why()));
        }
        if !gave.looks.contains(*looks) {
            return Fate::Ends(format!("{} answers for fewer processes", why()));
        }
        let passed = now.duration_since(self.when);
        let left = lifetime.saturating_sub(passed);
        if left.is_zero() {
            return Fate::Ends(format!("{} answers for a shorter time", why()));
        }
        let limits = (*limits != gave.limits).then_some(*limits);
        let left = (*lifetime < gave.lifetime).then_some(left);
        match (limits, left) {
            (None, None) => Fate::Stays,
            (limits, left) => Fate::Less(limits, left),
        }
    }
}

/// Answers by their grants.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    all: BTreeMap<u64, Given>,
}

impl Answers {
    /// Remembers one.
    pub(crate) fn add(&mut self, grant: u64, given: Given) {
        self.all.insert(grant, given);
    }

    /// Adds others.
    pub(crate) fn join(&mut self, mut others: Self) {
        self.all.append(&mut others.all);
    }

    /// Whether those are to be forgotten whose grants are gone, `since` of which were left the last
    /// time.
    pub(crate) fn are_many(&self, since: usize) -> bool {
        self.all.len() >= since.saturating_mul(2).max(MANY)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Forgets those whose grants are gone; how many answers there are of which nothing is known.
    fn forget(&mut self, grants: &[Grant]) -> usize {
        let live: BTreeSet<u64> = grants.iter().map(|grant| grant.id).collect();
        self.all.retain(|id, _| live.contains(id));
        let of_former = |grant: &&Grant| grant.answered && !self.all.contains_key(&grant.id);
        grants.iter().filter(of_former).count()
    }

    /// Forgets those whose grants are gone. May take long.
    pub(crate) fn prune(&mut self, grants: &Grants) {
        if let Err(e) = grants.list().map(|list| self.forget(&list)) {
            event!(Warning, "grants cannot be listed: {e}");
        }
    }

    /// Takes back, or lessens, what a policy does not give. May take long: ends what was opened.
    pub(crate) fn revise(&mut self, policy: &Policy, world: &dyn World, grants: &Grants) {
        match grants.list().map(|list| self.forget(&list)) {
            Ok(0) => {}
            Ok(n) => event!(
                Notice,
                "{n} answers of a former daemon stay as they are: kfi auth revoke --answered"
            ),
            Err(e) => event!(Warning, "grants cannot be listed: {e}"),
        }
        self.all.retain(|id, given| {
            let now = Instant::now();
            match given.fate(policy, world, now) {
                Fate::Stays => true,
                Fate::Less(limits, left) => {
                    let changed = grants.change(*id, limits.as_ref(), left.map(Some));
                    match changed {
                        Ok(()) => event!(Info, "change grant={id}: the new policy gives less"),
                        Err(e) => event!(Warning, "grant {id} cannot be changed: {e}"),
                    }
                    given.gave.limits = limits.unwrap_or(given.gave.limits);
                    if let Some(left) = left {
                        given.gave.lifetime = left + now.duration_since(given.when);
                    }
                    true
                }
                Fate::Ends(why) => {
                    match grants.revoke(*id) {
                        Ok(()) => event!(Notice, "revoke grant={id}: {why}"),
                        Err(e) => event!(Warning, "grant {id} cannot be revoked: {e}"),
                    }
                    false
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{AgentPart, Gives, Job, NamedKey, Per, Who};
    use std::path::Path;

    struct Nowhere;

    impl World for Nowhere {
        fn netns(&self, _: &Path) -> Option<u64> {
            None
        }
    }

    fn policy(who: Who, gives: Option<Gives>) -> Policy {
        Policy {
            agent: AgentPart::default(),
            keys: vec![NamedKey {
                name: "one".to_owned(),
                key: AuthKey::new(vec![1; 16]).unwrap(),
            }],
            jobs: vec![Job {
                name: "job".to_owned(),
                line: 1,
                keys: vec![0],
                who,
                gives,
            }],
        }
    }

    fn gives() -> Gives {
        Gives {
            per: Per::User,
            rights: Rights::all(),
            limits: Limits::default(),
            lifetime: Duration::from_secs(100),
        }
    }

    #[test]
    fn fate_stricter_policy_takes_back_or_lessens() {
        let key = AuthKey::new(vec![1; 16]).unwrap();
        let ask = Ask {
            key: &key,
            rights: Rights::ENDPOINTS,
            uid: 1,
            gid: 1,
            groups: Some(Vec::new()),
            cgroup: Some(b"/a".to_vec()),
            netns: 1,
        };
        let gave = Terms {
            looks: Looks::UID,
            rights: Rights::all(),
            limits: Limits::default(),
            lifetime: Duration::from_secs(100),
        };
        let given = Given::new(&ask, gave);
        let now = given.when + Duration::from_secs(10);
        let fate = |policy: &Policy| given.fate(policy, &Nowhere, now);
        let anybody = Who::default;
        let ends = |policy: &Policy| matches!(fate(policy), Fate::Ends(_));
        assert_eq!(fate(&policy(anybody(), Some(gives()))), Fate::Stays);
        assert!(ends(&policy(anybody(), None)));
        let others = Who {
            uids: vec![2],
            ..Who::default()
        };
        assert!(ends(&policy(others, Some(gives()))));
        let fewer = Gives {
            rights: Rights::ENDPOINTS,
            ..gives()
        };
        assert!(ends(&policy(anybody(), Some(fewer))));
        let alone = Gives {
            per: Per::Process,
            ..gives()
        };
        assert!(ends(&policy(anybody(), Some(alone))));
        let over = Gives {
            lifetime: Duration::from_secs(10),
            ..gives()
        };
        assert!(ends(&policy(anybody(), Some(over))));
        let limits = Limits {
            keys: Some(3),
            ..Limits::default()
        };
        let less = Gives {
            limits,
            lifetime: Duration::from_secs(50),
            ..gives()
        };
        let left = Duration::from_secs(40);
        assert_eq!(
            fate(&policy(anybody(), Some(less))),
            Fate::Less(Some(limits), Some(left))
        );
    }
}
