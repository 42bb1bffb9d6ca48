// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers given so far, so that they can be revoked when a new policy does not allow them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kfauth::{AuthKey, Grant, Grants, Limits, Looks, Rights};

use crate::decide::{decide, Ask, Decision, World};
use crate::event;
use crate::policy::Policy;

/// Number of answers from which on those with ended grants are forgotten.
const MANY: usize = 4096;

/// An answer: the request and the terms.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    key: AuthKey,
    rights: Rights,
    uid: u32,
    gid: u32,
    groups: Option<Vec<u32>>,
    cgroup: Option<Vec<u8>>,
    netns: u64,
    apart: bool,
    gave: Terms,
    when: Instant,
}

/// The terms of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Attributes that select the processes covered.
    pub(crate) looks: Looks,
    /// Rights.
    pub(crate) rights: Rights,
    /// Limits.
    pub(crate) limits: Limits,
    /// Lifetime of the grant.
    pub(crate) lifetime: Duration,
}

/// The effect of a new policy on an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    /// The answer stays.
    Stays,
    /// The terms are reduced: to these limits, or to this lifetime from now on.
    Less(Option<Limits>, Option<Duration>),
    /// The grant is revoked, with the reason.
    Ends(String),
}

impl Given {
    /// Records an answer, given now.
    pub(crate) fn new(ask: &Ask<'_>, gave: Terms) -> Self {
        Self {
            key: ask.key.clone(),
            rights: ask.rights,
            uid: ask.uid,
            gid: ask.gid,
            groups: ask.groups.clone(),
            cgroup: ask.cgroup.clone(),
            netns: ask.netns,
            apart: ask.apart,
            gave,
            when: Instant::now(),
        }
    }

    /// Evaluates a policy for the recorded request.
    fn fate(&self, policy: &Policy, world: &dyn World, now: Instant) -> Fate {
        let ask = Ask {
            key: &self.key,
            rights: self.rights,
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
            cgroup: self.cgroup.clone(),
            netns: self.netns,
            apart: self.apart,
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

/// Answers by the numbers of their grants.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    all: BTreeMap<u64, Given>,
}

impl Answers {
    /// Records an answer.
    pub(crate) fn add(&mut self, grant: u64, given: Given) {
        self.all.insert(grant, given);
    }

    /// Adds all answers of `others`.
    pub(crate) fn join(&mut self, mut others: Self) {
        self.all.append(&mut others.all);
    }

    /// Whether answers with ended grants should be forgotten. `since` is the number that remained
    /// the last time.
    pub(crate) fn are_many(&self, since: usize) -> bool {
        self.all.len() >= since.saturating_mul(2).max(MANY)
    }

    /// Number of answers.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Forgets answers whose grants have ended. Returns the number of grants that are answers of a
    /// former daemon.
    fn forget(&mut self, grants: &[Grant]) -> usize {
        let live: BTreeSet<u64> = grants.iter().map(|grant| grant.id).collect();
        self.all.retain(|id, _| live.contains(id));
        let of_former = |grant: &&Grant| grant.answered && !self.all.contains_key(&grant.id);
        grants.iter().filter(of_former).count()
    }

    /// Forgets answers whose grants have ended. May take long.
    pub(crate) fn prune(&mut self, grants: &Grants) {
        if let Err(e) = grants.list().map(|list| self.forget(&list)) {
            event!(Warning, "grants cannot be listed: {e}");
        }
    }

    /// Revokes or reduces grants that the policy does not allow. May take long: waits for
    /// operations to end.
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

/// Answers that another thread looks through.
#[derive(Debug, Default)]
pub(crate) struct Looked(Arc<Mutex<Answers>>);

/// The thread's side of [`Looked`].
pub(crate) struct Look(Arc<Mutex<Answers>>);

/// A thread that panicked leaves those that it has not come to.
fn lock(answers: &Mutex<Answers>) -> MutexGuard<'_, Answers> {
    answers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Looked {
    /// Hands answers over to a thread, which may never be.
    pub(crate) fn begin(&self, answers: Answers) -> Look {
        *lock(&self.0) = answers;
        Look(self.0.clone())
    }

    /// Takes back the answers that a thread has left which was not started, or which panicked.
    pub(crate) fn left(&self) -> Answers {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Look {
    /// Looks through them; those that are left.
    pub(crate) fn run(self, look: impl FnOnce(&mut Answers)) -> Answers {
        let mut answers = lock(&self.0);
        look(&mut answers);
        std::mem::take(&mut *answers)
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
    fn looked_thread_that_never_was_or_panicked_loses_no_answer() {
        let key = AuthKey::new(vec![1; 16]).unwrap();
        let ask = Ask {
            key: &key,
            rights: Rights::all(),
            uid: 1,
            gid: 1,
            groups: None,
            cgroup: None,
            netns: 1,
            apart: false,
        };
        let gave = Terms {
            looks: Looks::UID,
            rights: Rights::all(),
            limits: Limits::default(),
            lifetime: Duration::from_secs(100),
        };
        let answers = || {
            let mut answers = Answers::default();
            for grant in 0..3 {
                answers.add(grant, Given::new(&ask, gave));
            }
            answers
        };
        let looked = Looked::default();
        drop(looked.begin(answers()));
        assert_eq!(looked.left().len(), 3);
        let look = looked.begin(answers());
        let panics = move || look.run(|_| panic!("in the midst of it"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(looked.left().len(), 3);
        let look = looked.begin(answers());
        assert_eq!(
            look.run(|answers| answers.all.retain(|id, _| *id != 1))
                .len(),
            2
        );
        assert_eq!(looked.left().len(), 0);
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
            apart: false,
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
