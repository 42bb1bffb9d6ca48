// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Every interleaving of batches of assignments, and of revocations, on slots that they share.
//!
//! A batch has many slots in flight at once. It works as the core does (`Key::assign_many`): it
//! begins slots in order. At a busy slot it first ends the assignments that it began, and only then
//! waits. So no batch waits while others wait for it, and every run ends.
//!
//! An ordered batch (`Key::assign_ordered`) leaves its assignments to a worker. The worker makes
//! the keys of one job after the other and never waits.

use kfabric_pure::key::{AssignOutcome, Death, KeyError, KeySlot, State, Window};
use std::collections::{BTreeSet, VecDeque};

const WINDOW: Window = Window {
    offset: 0,
    len: 1,
    access: 1 << 12,
    once: false,
};

/// The work of an actor, over these slots in this order.
#[derive(Clone, Debug)]
enum Work {
    Assign(Vec<usize>),
    /// Promises keys, which the worker assigns later.
    Order(Vec<usize>),
    /// Revokes the keys; the actor skips busy slots first and waits for them later.
    Revoke(Vec<usize>),
    /// Closes this slot.
    Die(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    /// An assigner: the slots from `next` on have not begun; those from `done` to `next` have.
    Begin { done: usize, next: usize },
    /// An orderer: slot `next` has begun; the next step promises its key value.
    Promise { done: usize, next: usize },
    /// An assigner: the provider has made all keys; the next step settles slot `next`, up to `end`.
    /// `dead`: the first settled slot that was closed meanwhile.
    Settle {
        next: usize,
        end: usize,
        dead: Option<usize>,
    },
    /// An assigner: slot `next` was closed meanwhile; the next step revokes its key.
    EndDead {
        next: usize,
        end: usize,
        dead: usize,
    },
    /// An assigner: the next step begins to revoke the key of slot `next`, behind `dead`, up to
    /// `end`.
    TakeBack {
        next: usize,
        end: usize,
        dead: usize,
    },
    /// An assigner: the revocation of slot `next` has begun.
    EndTaken {
        next: usize,
        end: usize,
        dead: usize,
    },
    /// A closer: to begin, or to look again.
    Die,
    /// A closer: revokes the key.
    EndDie,
    /// A revoker at slot `next`: whether it waits, and whether it skipped a slot.
    Look { next: usize, wait: bool, left: bool },
    /// A revoker: revokes the key of slot `next`, then goes on.
    End { next: usize, wait: bool, left: bool },
    /// Ended: refused at this slot, or complete.
    Ended(Option<usize>),
}

/// Slots with promised key values, which a worker is to assign.
type Job = VecDeque<(usize, u64)>;

#[derive(Clone, Debug, Default)]
struct Worker {
    jobs: VecDeque<Job>,
    /// This slot was closed meanwhile; the next step revokes its key.
    dead: Option<usize>,
    /// The device fails every assignment.
    fails: bool,
}

#[derive(Clone)]
struct World {
    slots: Vec<KeySlot>,
    actors: Vec<(Work, At)>,
    /// By actor: the key value that each of its slots returned.
    told: Vec<Vec<Option<u64>>>,
    values: u64,
    worker: Worker,
}

impl World {
    fn new(slots: usize, work: &[Work]) -> Self {
        let start = |work: &Work| match work {
            Work::Assign(_) | Work::Order(_) => At::Begin { done: 0, next: 0 },
            Work::Revoke(_) => At::Look {
                next: 0,
                wait: false,
                left: false,
            },
            Work::Die(_) => At::Die,
        };
        let room = |work: &Work| match work {
            Work::Assign(over) | Work::Order(over) => vec![None; over.len()],
            _ => Vec::new(),
        };
        World {
            slots: vec![KeySlot::new(); slots],
            actors: work.iter().map(|w| (w.clone(), start(w))).collect(),
            told: work.iter().map(room).collect(),
            values: 0,
            worker: Worker::default(),
        }
    }

    fn is_busy(&self, slot: usize) -> bool {
        matches!(
            self.slots[slot].state(),
            State::Assigning(_) | State::Promised { .. } | State::Revoking { .. }
        )
    }

    /// Returns whether the actor can take a step: each actor can, except a waiting one.
    fn enabled(&self, actor: usize) -> bool {
        let (work, at) = &self.actors[actor];
        match (work, at) {
            (_, At::Ended(_)) => false,
            (Work::Assign(over) | Work::Order(over), At::Begin { done, next })
                if done == next && *next < over.len() =>
            {
                !self.is_busy(over[*next])
            }
            (
                Work::Revoke(over),
                At::Look {
                    next, wait: true, ..
                },
            ) if *next < over.len() => !self.is_busy(over[*next]),
            (Work::Assign(over), At::TakeBack { next, .. }) => {
                let told = self.told[actor][*next];
                let state = self.slots[over[*next]].state();
                !matches!(state, State::Revoking { value, .. } if value == told)
                    && !matches!(state, State::Promised { value, .. } if Some(value) == told)
            }
            (Work::Die(slot), At::Die) => !self.is_busy(*slot) || !self.slots[*slot].is_dying(),
            _ => true,
        }
    }

    fn step(&mut self, actor: usize) {
        let (work, at) = self.actors[actor].clone();
        let next = match (&work, at) {
            (Work::Assign(over), At::Begin { done, next }) => self.begin(over, done, next),
            (Work::Order(over), At::Begin { done, next }) => self.order(actor, over, done, next),
            (Work::Order(over), At::Promise { done, next }) => {
                self.values += 1;
                self.told[actor][next] = Some(self.values);
                self.slots[over[next]].promise(self.values).unwrap();
                let next = next + 1;
                At::Begin { done, next }
            }
            (Work::Assign(over), At::Settle { next, end, dead }) => {
                self.values += 1;
                self.told[actor][next] = Some(self.values);
                match self.slots[over[next]].assigned(self.values).unwrap() {
                    AssignOutcome::Valid => Self::settled(next, end, dead),
                    AssignOutcome::RevokeNow => {
                        // Only the first one counts: it is where the batch ends.
                        let dead = dead.unwrap_or(next);
                        At::EndDead { next, end, dead }
                    }
                }
            }
            (Work::Assign(over), At::EndDead { next, end, dead }) => {
                self.slots[over[next]].revoked().unwrap();
                Self::settled(next, end, Some(dead))
            }
            (Work::Assign(over), At::TakeBack { next, end, dead }) => {
                let value = self.told[actor][next].take().unwrap();
                match self.slots[over[next]].begin_take_back(value) {
                    Ok(()) => At::EndTaken { next, end, dead },
                    Err(_) => Self::taken(next, end, dead),
                }
            }
            (Work::Assign(over), At::EndTaken { next, end, dead }) => {
                self.slots[over[next]].revoked().unwrap();
                Self::taken(next, end, dead)
            }
            (Work::Die(slot), At::Die) => match self.slots[*slot].die() {
                Death::Freed => At::Ended(None),
                Death::Revoke => At::EndDie,
                Death::Wait => At::Die,
            },
            (Work::Die(slot), At::EndDie) => {
                self.slots[*slot].revoked().unwrap();
                At::Ended(None)
            }
            (Work::Revoke(over), At::Look { next, wait, left }) => {
                let Some(slot) = over.get(next) else {
                    let again = At::Look {
                        next: 0,
                        wait: true,
                        left: false,
                    };
                    self.actors[actor].1 = if left { again } else { At::Ended(None) };
                    return;
                };
                match self.slots[*slot].begin_revoke() {
                    Ok(()) => At::End { next, wait, left },
                    Err(e) => At::Look {
                        next: next + 1,
                        wait,
                        left: left || e == KeyError::Busy,
                    },
                }
            }
            (Work::Revoke(over), At::End { next, wait, left }) => {
                self.slots[over[next]].revoked().unwrap();
                At::Look {
                    next: next + 1,
                    wait,
                    left,
                }
            }
            other => unreachable!("{other:?}"),
        };
        self.actors[actor].1 = next;
    }

    fn order(&mut self, actor: usize, over: &[usize], done: usize, next: usize) -> At {
        let begun = over
            .get(next)
            .map(|slot| self.slots[*slot].begin_assign(WINDOW));
        match begun {
            Some(Ok(())) => return At::Promise { done, next },
            None if done == next => return At::Ended(None),
            _ => {}
        }
        if done < next {
            let told = &self.told[actor];
            let job = (done..next).filter_map(|n| Some((over[n], told[n]?)));
            self.worker.jobs.push_back(job.collect());
        }
        match begun {
            None => At::Ended(None),
            // The orderer looks again; if it has to wait then, no assignment of its own is in
            // flight.
            Some(Err(KeyError::Busy)) => At::Begin { done: next, next },
            Some(refused) => {
                let fine = [KeyError::Assigned, KeyError::Dying, KeyError::Freed];
                assert!(fine.contains(&refused.unwrap_err()), "{refused:?}");
                At::Ended(Some(next))
            }
        }
    }

    /// The worker assigns the next key, or revokes a key of a closed slot.
    fn work(&mut self) {
        if let Some(slot) = self.worker.dead.take() {
            return self.slots[slot].revoked().unwrap();
        }
        let job = self.worker.jobs.front_mut().unwrap();
        let (slot, value) = job.pop_front().unwrap();
        if job.is_empty() {
            self.worker.jobs.pop_front();
        }
        if self.worker.fails {
            return self.slots[slot].assign_failed().unwrap();
        }
        match self.slots[slot].assigned(value).unwrap() {
            AssignOutcome::Valid => {}
            AssignOutcome::RevokeNow => self.worker.dead = Some(slot),
        }
    }

    /// Returns the next state of an assigner that has settled slot `next`.
    fn settled(next: usize, end: usize, dead: Option<usize>) -> At {
        match (next + 1, dead) {
            (next, dead) if next < end => At::Settle { next, end, dead },
            (_, Some(dead)) => Self::taken(dead, end, dead),
            (next, None) => At::Begin { done: next, next },
        }
    }

    /// Returns the next state of an assigner that has revoked slot `next` again, or found it
    /// closed.
    fn taken(next: usize, end: usize, dead: usize) -> At {
        match next + 1 {
            next if next < end => At::TakeBack { next, end, dead },
            _ => At::Ended(Some(dead)),
        }
    }

    fn begin(&mut self, over: &[usize], done: usize, next: usize) -> At {
        let settle = At::Settle {
            next: done,
            end: next,
            dead: None,
        };
        let Some(slot) = over.get(next) else {
            return if done < next { settle } else { At::Ended(None) };
        };
        match self.slots[*slot].begin_assign(WINDOW) {
            Ok(()) => At::Begin {
                done,
                next: next + 1,
            },
            // The assigner ends its own assignments and then looks again.
            Err(_) if done < next => settle,
            Err(e) => {
                let fine = [KeyError::Assigned, KeyError::Dying, KeyError::Freed];
                assert!(fine.contains(&e), "{e:?}");
                At::Ended(Some(next))
            }
        }
    }
}

/// Walks all reachable states and collects the final ones.
fn walk(world: World, seen: &mut BTreeSet<String>, ends: &mut Vec<World>) {
    let name = format!(
        "{:?} {:?} {:?} {:?}",
        world.slots, world.actors, world.told, world.worker
    );
    if !seen.insert(name) {
        return;
    }
    let able: Vec<_> = (0..world.actors.len())
        .filter(|actor| world.enabled(*actor))
        .collect();
    let working = world.worker.dead.is_some() || !world.worker.jobs.is_empty();
    if able.is_empty() && !working {
        let through = |at: &At| matches!(at, At::Ended(_));
        assert!(
            world.actors.iter().all(|(_, at)| through(at)),
            "they wait for each other: {:?}",
            world.actors
        );
        ends.push(world);
        return;
    }
    if working {
        let mut next = world.clone();
        next.work();
        walk(next, seen, ends);
    }
    for actor in able {
        let mut next = world.clone();
        next.step(actor);
        walk(next, seen, ends);
    }
}

fn ends(slots: usize, work: &[Work]) -> Vec<World> {
    ends_of(World::new(slots, work))
}

/// As [`ends`], with a device that fails every ordered assignment.
fn ends_of_failing(slots: usize, work: &[Work]) -> Vec<World> {
    let mut world = World::new(slots, work);
    world.worker.fails = true;
    ends_of(world)
}

fn ends_of(world: World) -> Vec<World> {
    let mut ends = Vec::new();
    walk(world, &mut BTreeSet::new(), &mut ends);
    assert!(!ends.is_empty());
    ends
}

fn is_settled(slot: &KeySlot) -> bool {
    matches!(
        slot.state(),
        State::Assigned { .. } | State::Reserved | State::Freed
    )
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn batches_in_opposite_orders_end() {
    let (up, down) = (Work::Assign(vec![0, 1, 2]), Work::Assign(vec![2, 1, 0]));
    for world in ends(3, &[up, down]) {
        // Each slot has one key, whichever batch assigned it.
        for slot in &world.slots {
            assert!(matches!(slot.state(), State::Assigned { .. }));
        }
        assert_eq!(world.values, 3);
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn batches_in_a_ring_end() {
    let ring = [vec![0, 1], vec![1, 2], vec![2, 0]].map(Work::Assign);
    for world in ends(3, &ring) {
        assert_eq!(world.values, 3);
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn a_slot_twice_in_a_batch_is_refused() {
    for world in ends(2, &[Work::Assign(vec![0, 1, 0])]) {
        assert_eq!(world.actors[0].1, At::Ended(Some(2)));
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn batches_and_revocations_end() {
    let work = [
        Work::Assign(vec![0, 1, 2]),
        Work::Assign(vec![2, 0]),
        Work::Revoke(vec![1, 0, 2]),
    ];
    for world in ends(3, &work) {
        for slot in &world.slots {
            let settled = matches!(slot.state(), State::Assigned { .. } | State::Reserved);
            assert!(settled, "left in {:?}", slot.state());
        }
    }
    let both = [Work::Revoke(vec![0, 1]), Work::Revoke(vec![1, 0])];
    let all = [Work::Assign(vec![0, 1]), both[0].clone(), both[1].clone()];
    ends(2, &all);
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn a_close_in_the_middle_of_batches_ends() {
    let work = [
        Work::Assign(vec![0, 1, 2]),
        Work::Assign(vec![2, 1]),
        Work::Die(1),
    ];
    for world in ends(3, &work) {
        assert_eq!(world.slots[1].state(), State::Freed);
        // A slot has a key only if its value was returned, and the key has that value.
        for (i, slot) in world.slots.iter().enumerate() {
            let told = world
                .actors
                .iter()
                .zip(&world.told)
                .flat_map(|(actor, told)| {
                    let Work::Assign(over) = &actor.0 else {
                        return Vec::new();
                    };
                    let upto = match actor.1 {
                        At::Ended(Some(upto)) => upto,
                        _ => over.len(),
                    };
                    let of = |n: &usize| over[*n] == i;
                    (0..upto).filter(of).filter_map(|n| told[n]).collect()
                });
            let told: Vec<u64> = told.collect();
            match slot.state() {
                State::Assigned { value, .. } => assert_eq!(told, [value]),
                State::Reserved => assert_eq!(told, []),
                _ => {}
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn a_close_with_batches_and_revocations_ends() {
    let work = [
        Work::Assign(vec![0, 1, 2]),
        Work::Revoke(vec![2, 1, 0]),
        Work::Die(1),
        Work::Die(0),
    ];
    for world in ends(3, &work) {
        for slot in &world.slots[..2] {
            assert_eq!(slot.state(), State::Freed);
        }
        let settled = matches!(
            world.slots[2].state(),
            State::Assigned { .. } | State::Reserved
        );
        assert!(settled, "left in {:?}", world.slots[2].state());
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn orders_in_opposite_orders_end() {
    let (up, down) = (Work::Order(vec![0, 1, 2]), Work::Order(vec![2, 1, 0]));
    for world in ends(3, &[up.clone(), down.clone()]) {
        for slot in &world.slots {
            assert!(matches!(slot.state(), State::Assigned { .. }));
        }
        assert_eq!(world.values, 3);
    }
    // The same beside an assigner that waits for the device and owns slots meanwhile.
    for world in ends(3, &[up.clone(), Work::Assign(vec![2, 1, 0])]) {
        assert_eq!(world.values, 3);
    }
    for world in ends_of_failing(3, &[up, down]) {
        for slot in &world.slots {
            assert_eq!(slot.state(), State::Reserved);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn orders_in_a_ring_end() {
    let ring = [vec![0, 1], vec![1, 2], vec![2, 0]].map(Work::Order);
    for world in ends(3, &ring) {
        assert_eq!(world.values, 3);
    }
    // A slot that is in the order twice has its key by then.
    for world in ends(2, &[Work::Order(vec![0, 1, 0])]) {
        assert_eq!(world.actors[0].1, At::Ended(Some(2)));
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn orders_batches_and_revocations_end() {
    let work = [
        Work::Order(vec![0, 1, 2]),
        Work::Assign(vec![2, 0]),
        Work::Revoke(vec![1, 0, 2]),
    ];
    for world in ends(3, &work).iter().chain(&ends_of_failing(3, &work)) {
        assert!(world.slots.iter().all(is_settled), "{:?}", world.slots);
        assert!(world.slots.iter().all(|s| s.state() != State::Freed));
    }
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn a_close_in_the_middle_of_orders_ends() {
    let work = [
        Work::Order(vec![0, 1, 2]),
        Work::Order(vec![2, 1]),
        Work::Die(1),
    ];
    for world in ends(3, &work) {
        assert_eq!(world.slots[1].state(), State::Freed);
        for (i, slot) in world.slots.iter().enumerate() {
            // A slot has a key only if its value was returned, and the key has that value.
            let told = |(work, told): (&(Work, At), &Vec<Option<u64>>)| match &work.0 {
                Work::Order(over) => {
                    let at = over.iter().position(|slot| *slot == i)?;
                    told[at]
                }
                _ => None,
            };
            let told: Vec<u64> = world
                .actors
                .iter()
                .zip(&world.told)
                .filter_map(told)
                .collect();
            match slot.state() {
                State::Assigned { value, .. } => assert_eq!(told, [value]),
                State::Freed => assert_eq!(i, 1),
                // The orderer of this slot ended at the closed one.
                state => assert_eq!((state, told), (State::Reserved, vec![])),
            }
        }
    }
    for world in ends_of_failing(3, &work) {
        assert!(world.slots.iter().all(is_settled));
        assert!(world
            .slots
            .iter()
            .all(|s| !matches!(s.state(), State::Assigned { .. })));
    }
}

/// The close of an endpoint ends all keys that are bound to it, also those in flight.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn all_that_is_bound_ends_with_the_endpoint() {
    let work = [
        Work::Order(vec![0, 1]),
        Work::Assign(vec![1, 2]),
        Work::Revoke(vec![2, 0]),
        Work::Die(0),
        Work::Die(1),
        Work::Die(2),
    ];
    for world in ends(3, &work).iter().chain(&ends_of_failing(3, &work)) {
        for slot in &world.slots {
            assert_eq!(slot.state(), State::Freed);
        }
    }
}
