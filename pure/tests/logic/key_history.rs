// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Every interleaving of assign, revoke, release and death on one key slot.
//!
//! Each actor does one operation the way the core does: single steps under the slot's lock, and the
//! provider's work, itself of several steps, outside of it. The test walks all interleavings. At
//! every step it checks which keys peers could use. At every end it checks that the results are
//! those of some order of indivisible operations. In that order, an operation that ended before
//! another began comes first.

use kfabric_pure::key::{AssignOutcome, Death, KeyError, KeySlot, State, Window};

/// The operation of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Assign,
    /// An assign whose provider fails.
    AssignFails,
    /// An assign whose key value cannot be returned; a [`Op::TakeBack`] follows.
    AssignUntold,
    /// Revokes this key, if the slot still has it.
    TakeBack(u64),
    /// An ordered assign: returns a key value, which a [`Op::Make`] assigns later.
    Order,
    /// An ordered assign with a [`Op::MakeFails`] later.
    OrderFails,
    /// An ordered assign with a [`Op::MakeOther`] later.
    OrderOther,
    /// An ordered assign that no worker accepted, so that the value was not returned.
    OrderRefused,
    /// Assigns the promised key.
    Make(u64),
    /// The provider fails to assign the promised key.
    MakeFails(u64),
    /// The provider assigns another value than the promised one; that key is revoked at once.
    MakeOther(u64),
    Revoke,
    Release,
    Die,
}

/// The result of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// An assign succeeded with this key.
    Key(u64),
    Done,
    Assigned,
    NotAssigned,
    /// The slot is freed, or is dying.
    Gone,
    ProviderFailed,
    /// A [`Op::TakeBack`] revoked this key.
    TookBack(u64),
    /// A [`Op::TakeBack`] failed: the slot had lost this key before.
    NotMine(u64),
    Busy,
}

impl From<KeyError> for Answer {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Assigned => Answer::Assigned,
            KeyError::Busy => Answer::Busy,
            KeyError::NotAssigned => Answer::NotAssigned,
            KeyError::Freed | KeyError::Dying => Answer::Gone,
            KeyError::Exhausted | KeyError::OutOfOrder => panic!("{error:?}"),
        }
    }
}

/// The next step of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Begin,
    /// Predicts the key value and promises it.
    Promise,
    /// The provider enables the key.
    HardwareOn,
    FinishAssign,
    /// The provider disables a key whose value is not the promised one.
    HardwareOther,
    /// The provider has assigned no key.
    FailAssign,
    /// The provider disables the key; then the operation ends with this answer.
    HardwareOff(Answer),
    FinishRevoke(Answer),
    /// Waits until another actor has freed the slot.
    WaitFreed,
    Ended,
}

#[derive(Clone)]
struct Actor {
    op: Op,
    next: Next,
    began: usize,
    ended: usize,
    answer: Option<Answer>,
}

impl Actor {
    fn new(op: Op) -> Self {
        Actor {
            op,
            next: Next::Begin,
            began: 0,
            ended: 0,
            answer: None,
        }
    }
}

#[derive(Clone)]
struct World {
    slot: KeySlot,
    /// The key that the hardware accepts.
    live: Option<u64>,
    /// Key values that were returned and not revoked since.
    told: Vec<u64>,
    /// Key values whose revocation was reported.
    revoked: Vec<u64>,
    last_value: u64,
    time: usize,
    actors: Vec<Actor>,
}

const WINDOW: Window = Window {
    offset: 0,
    len: 1,
    access: 1 << 12,
    once: false,
};

impl World {
    fn new(ops: &[Op], assigned_before: bool) -> Self {
        let mut world = World {
            slot: KeySlot::new(),
            live: None,
            told: vec![],
            revoked: vec![],
            last_value: 0,
            time: 1,
            actors: ops.iter().map(|op| Actor::new(*op)).collect(),
        };
        if assigned_before {
            world.slot.begin_assign(WINDOW).unwrap();
            assert_eq!(world.slot.assigned(0), Ok(AssignOutcome::Valid));
            world.live = Some(0);
            world.told.push(0);
        }
        world
    }

    fn enabled(&self, index: usize) -> bool {
        match self.actors[index].next {
            Next::Ended => false,
            Next::WaitFreed => self.slot.state() == State::Freed,
            // A busy slot: the actor waits, and looks again.
            Next::Begin => match (self.actors[index].op, self.slot.state()) {
                (Op::TakeBack(key), State::Revoking { value, .. }) => value != Some(key),
                (Op::TakeBack(key), State::Promised { value, .. }) => value != key,
                _ => true,
            },
            _ => true,
        }
    }

    fn step(&mut self, index: usize) {
        self.time += 1;
        let op = self.actors[index].op;
        let next = match self.actors[index].next {
            Next::Begin => {
                self.actors[index].began = self.time;
                self.begin(index, op)
            }
            Next::HardwareOn => {
                assert_eq!(self.live, None, "two keys at once");
                self.live = Some(match op {
                    Op::Make(value) => value,
                    _ => {
                        self.last_value += 1;
                        self.last_value
                    }
                });
                Next::FinishAssign
            }
            Next::Promise => {
                self.last_value += 1;
                let value = self.last_value;
                self.slot.promise(value).unwrap();
                let make = match op {
                    Op::Order => Op::Make(value),
                    Op::OrderFails => Op::MakeFails(value),
                    Op::OrderOther => Op::MakeOther(value),
                    _ => {
                        self.actors[index].next = Next::FailAssign;
                        return self.check();
                    }
                };
                self.told.push(value);
                let next = self.end(index, Answer::Key(value));
                let mut maker = Actor::new(make);
                maker.began = self.time;
                maker.next = match make {
                    Op::MakeFails(_) => Next::FailAssign,
                    _ => Next::HardwareOn,
                };
                self.actors.push(maker);
                next
            }
            Next::FinishAssign => {
                let value = self.live.unwrap();
                let assigned = match op {
                    Op::MakeOther(_) => {
                        assert_eq!(self.slot.assigned(value), Err(KeyError::OutOfOrder));
                        self.actors[index].next = Next::HardwareOther;
                        return self.check();
                    }
                    _ => self.slot.assigned(value).unwrap(),
                };
                match assigned {
                    AssignOutcome::Valid if matches!(op, Op::Make(_)) => {
                        self.end(index, Answer::Done)
                    }
                    AssignOutcome::RevokeNow if matches!(op, Op::Make(_)) => {
                        Next::HardwareOff(Answer::Done)
                    }
                    AssignOutcome::Valid => {
                        if op == Op::AssignUntold {
                            self.actors.push(Actor::new(Op::TakeBack(value)));
                        }
                        self.told.push(value);
                        self.end(index, Answer::Key(value))
                    }
                    AssignOutcome::RevokeNow => Next::HardwareOff(Answer::Gone),
                }
            }
            Next::HardwareOther => {
                assert!(self.live.is_some());
                self.live = None;
                Next::FailAssign
            }
            Next::FailAssign => {
                self.slot.assign_failed().unwrap();
                // The promised key never worked and never will.
                self.revoked.append(&mut self.told);
                self.end(index, Answer::ProviderFailed)
            }
            Next::HardwareOff(answer) => {
                assert!(self.live.is_some());
                self.live = None;
                Next::FinishRevoke(answer)
            }
            Next::FinishRevoke(answer) => {
                let generation = self.slot.generation();
                self.slot.revoked().unwrap();
                assert_eq!(self.slot.generation(), generation + 1);
                self.revoked.append(&mut self.told);
                self.end(index, answer)
            }
            Next::WaitFreed => self.end(index, Answer::Done),
            Next::Ended => unreachable!(),
        };
        self.actors[index].next = next;
        self.check();
    }

    fn begin(&mut self, index: usize, op: Op) -> Next {
        let begun = match op {
            Op::Assign | Op::AssignUntold => {
                self.slot.begin_assign(WINDOW).map(|()| Next::HardwareOn)
            }
            Op::AssignFails => self.slot.begin_assign(WINDOW).map(|()| Next::FailAssign),
            Op::Order | Op::OrderFails | Op::OrderOther | Op::OrderRefused => {
                self.slot.begin_assign(WINDOW).map(|()| Next::Promise)
            }
            Op::Make(_) | Op::MakeFails(_) | Op::MakeOther(_) => unreachable!("it has begun"),
            Op::Revoke => self
                .slot
                .begin_revoke()
                .map(|()| Next::HardwareOff(Answer::Done)),
            Op::TakeBack(value) => match self.slot.begin_take_back(value) {
                Err(KeyError::NotAssigned | KeyError::Freed) => {
                    Ok(self.end(index, Answer::NotMine(value)))
                }
                begun => begun.map(|()| Next::HardwareOff(Answer::TookBack(value))),
            },
            Op::Release => self.slot.release().map(|()| self.end(index, Answer::Done)),
            Op::Die => Ok(match self.slot.die() {
                Death::Freed => self.end(index, Answer::Done),
                Death::Revoke => Next::HardwareOff(Answer::Done),
                Death::Wait => Next::WaitFreed,
            }),
        };
        begun.unwrap_or_else(|error| self.end(index, error.into()))
    }

    fn end(&mut self, index: usize, answer: Answer) -> Next {
        self.actors[index].ended = self.time;
        self.actors[index].answer = Some(answer);
        Next::Ended
    }

    /// Checks the properties that hold at every moment.
    fn check(&self) {
        let state = self.slot.state();
        if let Some(live) = self.live {
            // P1, P3: a working key is known to the slot, and its revocation was not reported.
            assert!(self.slot.may_be_reachable(), "{live} works in {state:?}");
            assert!(!self.revoked.contains(&live));
        }
        if let State::Assigned { value, .. } = state {
            // An assigned key works.
            assert_eq!(self.live, Some(value));
        }
        assert!(self.told.len() <= 1);
    }
}

/// The slot, if every operation were indivisible.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Spec {
    Reserved,
    Assigned(u64),
    Freed,
}

impl Spec {
    /// Returns the state after `op`, if `answer` is the answer of `op` in this state.
    fn apply(self, op: Op, answer: Answer) -> Option<Spec> {
        let (expected, next) = match (op, self) {
            (Op::Die, _) => (Answer::Done, Spec::Freed),
            // An ordered key counts as assigned from its promise on, so making it changes nothing.
            (Op::Make(_), _) => (Answer::Done, self),
            (Op::MakeFails(key) | Op::MakeOther(key), Spec::Assigned(now)) if key == now => {
                (Answer::ProviderFailed, Spec::Reserved)
            }
            (Op::MakeFails(_) | Op::MakeOther(_), Spec::Freed) => (Answer::ProviderFailed, self),
            (Op::MakeFails(_) | Op::MakeOther(_), _) => return None,
            (Op::TakeBack(key), Spec::Assigned(now)) if key == now => {
                (Answer::TookBack(key), Spec::Reserved)
            }
            (Op::TakeBack(key), _) => (Answer::NotMine(key), self),
            (_, Spec::Freed) => (Answer::Gone, Spec::Freed),
            (
                Op::Assign | Op::AssignUntold | Op::Order | Op::OrderFails | Op::OrderOther,
                Spec::Reserved,
            ) => match answer {
                Answer::Key(key) => (answer, Spec::Assigned(key)),
                _ => return None,
            },
            (Op::AssignFails | Op::OrderRefused, Spec::Reserved) => {
                (Answer::ProviderFailed, Spec::Reserved)
            }
            (
                Op::Assign
                | Op::AssignUntold
                | Op::AssignFails
                | Op::Order
                | Op::OrderFails
                | Op::OrderOther
                | Op::OrderRefused,
                Spec::Assigned(_),
            ) => (Answer::Assigned, self),
            (Op::Revoke, Spec::Assigned(_)) => (Answer::Done, Spec::Reserved),
            (Op::Revoke, Spec::Reserved) => (Answer::NotAssigned, Spec::Reserved),
            (Op::Release, Spec::Reserved) => (Answer::Done, Spec::Freed),
            (Op::Release, Spec::Assigned(_)) => (Answer::Assigned, self),
        };
        (expected == answer).then_some(next)
    }
}

/// Returns whether some order of the operations in `left` explains their answers.
fn explainable(spec: Spec, left: &[&Actor], end: Spec) -> bool {
    if left.is_empty() {
        return spec == end;
    }
    left.iter().enumerate().any(|(index, actor)| {
        // An operation may be next only if no other one ended before it began.
        let first = left.iter().all(|other| other.ended >= actor.began);
        let Some(next) = spec.apply(actor.op, actor.answer.unwrap()) else {
            return false;
        };
        let mut rest = left.to_vec();
        rest.remove(index);
        first && explainable(next, &rest, end)
    })
}

fn check_history(world: &World, start: Spec) {
    let end = match world.slot.state() {
        State::Reserved => Spec::Reserved,
        State::Assigned { value, .. } => Spec::Assigned(value),
        State::Freed => Spec::Freed,
        state => panic!("left in {state:?}"),
    };
    assert_eq!(world.live.is_some(), matches!(end, Spec::Assigned(_)));
    for actor in &world.actors {
        // Only an actor that met another operation in flight may get `Busy`.
        if actor.answer == Some(Answer::Busy) {
            assert!(world
                .actors
                .iter()
                .any(|other| other.began < actor.began && actor.ended < other.ended));
        }
    }
    let effective: Vec<_> = world
        .actors
        .iter()
        .filter(|actor| actor.answer != Some(Answer::Busy))
        .collect();
    let answers = || -> Vec<_> {
        world
            .actors
            .iter()
            .map(|actor| (actor.op, actor.began, actor.ended, actor.answer))
            .collect()
    };
    assert!(explainable(start, &effective, end), "{:?}", answers());
}

/// Walks every interleaving and returns their number.
fn walk(world: &World, start: Spec) -> usize {
    let mut count = 0;
    for index in 0..world.actors.len() {
        if world.enabled(index) {
            let mut next = world.clone();
            next.step(index);
            count += walk(&next, start);
        }
    }
    if count == 0 {
        assert!(
            world.actors.iter().all(|actor| actor.next == Next::Ended),
            "deadlock"
        );
        check_history(world, start);
        return 1;
    }
    count
}

const OPS: [Op; 10] = [
    Op::Assign,
    Op::AssignFails,
    Op::AssignUntold,
    Op::Revoke,
    Op::Release,
    Op::Die,
    Op::Order,
    Op::OrderFails,
    Op::OrderOther,
    Op::OrderRefused,
];

fn walk_both(ops: &[Op]) -> usize {
    walk(&World::new(ops, false), Spec::Reserved) + walk(&World::new(ops, true), Spec::Assigned(0))
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and minutes long there")]
fn every_pair_of_operations() {
    for first in OPS {
        for second in OPS {
            walk_both(&[first, second]);
        }
    }
}

/// All multisets of three: the order of actors does not matter.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and hours long there")]
fn every_three_operations() {
    let mut count = 0;
    for (a, first) in OPS.iter().enumerate() {
        for (b, second) in OPS.iter().enumerate().skip(a) {
            for third in OPS.iter().skip(b) {
                count += walk_both(&[*first, *second, *third]);
            }
        }
    }
    assert!(count > 1_000, "only {count} interleavings");
}

#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and hours long there")]
fn every_four_operations() {
    let mut count = 0;
    for (a, first) in OPS.iter().enumerate() {
        for (b, second) in OPS.iter().enumerate().skip(a) {
            for (c, third) in OPS.iter().enumerate().skip(b) {
                for fourth in OPS.iter().skip(c) {
                    count += walk_both(&[*first, *second, *third, *fourth]);
                }
            }
        }
    }
    assert!(count > 10_000, "only {count} interleavings");
}
