// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Every interleaving of batches of assignments, and of revocations, on slots that they share.
//!
//! A batch has many slots under way at once. It does as the core does (`Key::assign_many`): it
//! begins slots in order; at one where something else is under way it first ends those that it
//! began, and only then waits. So nobody waits while others wait for it, and every run ends.

use kfabric_pure::key::{AssignOutcome, Grant, KeyError, KeySlot, State};
use std::collections::BTreeSet;

const GRANT: Grant = Grant {
    offset: 0,
    len: 1,
    access: 1 << 12,
};

/// What an actor does, over these slots in this order.
#[derive(Clone, Debug)]
enum Work {
    Assign(Vec<usize>),
    /// Ends what has a key; what is under way it comes back to, and waits for.
    Revoke(Vec<usize>),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    /// An assigner: its slots from here on are to begin; those from `done` up to here have begun.
    Begin { done: usize, next: usize },
    /// An assigner: the chain is done; this one is to settle next, up to `end`.
    Settle { next: usize, end: usize },
    /// A revoker: at this slot; whether it waits, and what it left.
    Look { next: usize, wait: bool, left: bool },
    /// A revoker: ends the key of this slot, then goes on.
    End { next: usize, wait: bool, left: bool },
    /// Refused at this slot, or through.
    Ended(Option<usize>),
}

#[derive(Clone)]
struct World {
    slots: Vec<KeySlot>,
    actors: Vec<(Work, At)>,
    values: u64,
}

impl World {
    fn new(slots: usize, work: &[Work]) -> Self {
        let start = |work: &Work| match work {
            Work::Assign(_) => At::Begin { done: 0, next: 0 },
            Work::Revoke(_) => At::Look {
                next: 0,
                wait: false,
                left: false,
            },
        };
        World {
            slots: vec![KeySlot::new(); slots],
            actors: work.iter().map(|w| (w.clone(), start(w))).collect(),
            values: 0,
        }
    }

    fn is_busy(&self, slot: usize) -> bool {
        matches!(
            self.slots[slot].state(),
            State::Assigning(_) | State::Revoking { .. }
        )
    }

    /// Whether it can go on: all can but one who waits.
    fn enabled(&self, actor: usize) -> bool {
        let (work, at) = &self.actors[actor];
        match (work, at) {
            (_, At::Ended(_)) => false,
            (Work::Assign(over), At::Begin { done, next })
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
            _ => true,
        }
    }

    fn step(&mut self, actor: usize) {
        let (work, at) = self.actors[actor].clone();
        let next = match (&work, at) {
            (Work::Assign(over), At::Begin { done, next }) => self.begin(over, done, next),
            (Work::Assign(over), At::Settle { next, end }) => {
                self.values += 1;
                let outcome = self.slots[over[next]].assigned(self.values);
                assert_eq!(outcome, Ok(AssignOutcome::Valid));
                match next + 1 {
                    next if next < end => At::Settle { next, end },
                    next => At::Begin { done: next, next },
                }
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

    fn begin(&mut self, over: &[usize], done: usize, next: usize) -> At {
        let settle = At::Settle {
            next: done,
            end: next,
        };
        let Some(slot) = over.get(next) else {
            return if done < next { settle } else { At::Ended(None) };
        };
        match self.slots[*slot].begin_assign(GRANT) {
            Ok(()) => At::Begin {
                done,
                next: next + 1,
            },
            // It ends what it has, and then looks again.
            Err(_) if done < next => settle,
            Err(e) => {
                assert_eq!(e, KeyError::Assigned);
                At::Ended(Some(next))
            }
        }
    }
}

/// Walks all states that can be reached; returns the ends.
fn walk(world: World, seen: &mut BTreeSet<String>, ends: &mut Vec<World>) {
    let name = format!("{:?} {:?}", world.slots, world.actors);
    if !seen.insert(name) {
        return;
    }
    let able: Vec<_> = (0..world.actors.len())
        .filter(|actor| world.enabled(*actor))
        .collect();
    if able.is_empty() {
        let through = |at: &At| matches!(at, At::Ended(_));
        assert!(
            world.actors.iter().all(|(_, at)| through(at)),
            "they wait for each other: {:?}",
            world.actors
        );
        ends.push(world);
        return;
    }
    for actor in able {
        let mut next = world.clone();
        next.step(actor);
        walk(next, seen, ends);
    }
}

fn ends(slots: usize, work: &[Work]) -> Vec<World> {
    let mut ends = Vec::new();
    walk(World::new(slots, work), &mut BTreeSet::new(), &mut ends);
    assert!(!ends.is_empty());
    ends
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and long there")]
fn batches_in_opposite_orders_end() {
    let (up, down) = (Work::Assign(vec![0, 1, 2]), Work::Assign(vec![2, 1, 0]));
    for world in ends(3, &[up, down]) {
        // Each slot has one key, whoever gave it.
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
