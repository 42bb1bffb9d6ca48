// SPDX-License-Identifier: GPL-2.0 OR MIT
use std::collections::{HashSet, VecDeque};

use kfabric_pure::sendq::{Event, Scheduler, State};

const STATES: [State; 6] = [
    State::Shut,
    State::Flushing,
    State::Idle,
    State::Running,
    State::Away,
    State::Stalled,
];

const EVENTS: [Event; 10] = [
    Event::Open,
    Event::Stop,
    Event::Cut,
    Event::Post,
    Event::PostAway,
    Event::Drained,
    Event::Stall,
    Event::Receive,
    Event::Leave,
    Event::Return,
];

/// A state as four flags, whose rules do not mention each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flags {
    open: bool,
    driven: bool,
    away: bool,
    stalled: bool,
}

impl Flags {
    fn of(state: State) -> Self {
        Self {
            open: state.is_open(),
            driven: state.has_party() || state == State::Away,
            away: state == State::Away,
            stalled: state == State::Stalled,
        }
    }

    fn apply(&mut self, event: Event) {
        let is_free = self.open && !self.driven && !self.stalled;
        match event {
            Event::Open => self.open = true,
            Event::Stop => {
                (self.open, self.driven) = (false, true);
                (self.away, self.stalled) = (false, false);
            }
            Event::Cut => self.open = false,
            Event::Post => self.driven |= is_free,
            Event::PostAway => {
                self.driven |= is_free;
                self.away |= is_free;
            }
            Event::Drained => self.driven = false,
            Event::Stall => {
                self.stalled |= self.open;
                self.driven &= !self.open;
            }
            Event::Receive => {
                self.driven |= self.stalled;
                self.stalled = false;
            }
            Event::Leave => self.away = self.open,
            Event::Return => self.away = false,
        }
    }
}

/// Returns whether only the party that runs the queue makes this step.
fn is_of_party(event: Event) -> bool {
    matches!(
        event,
        Event::Cut | Event::Drained | Event::Stall | Event::Leave
    )
}

#[test]
fn every_transition_matches_four_independent_flags() {
    for state in STATES {
        for event in EVENTS {
            if is_of_party(event) && !state.has_party() {
                assert_eq!(state.after(event), None, "{state:?} {event:?}");
                continue;
            }
            let mut flags = Flags::of(state);
            flags.apply(event);
            let after = state.after(event).unwrap_or(state);
            assert_eq!(Flags::of(after), flags, "{state:?} {event:?}");
        }
    }
}

#[test]
fn flags_of_two_states_differ() {
    for (i, a) in STATES.into_iter().enumerate() {
        for b in STATES.into_iter().skip(i + 1) {
            assert_ne!(Flags::of(a), Flags::of(b));
        }
    }
}

/// A queue with its parties.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    state: u32,
    /// Parties inside the gate that run the queue.
    running: u32,
    /// Tasks outside of the gate that have not returned.
    away: u32,
}

/// Tasks that are outside of the gate at the same time, at most.
const AWAY_MAX: u32 = 3;

impl World {
    fn state(self) -> State {
        STATES[self.state as usize]
    }

    /// Returns the world after a party's step, or `None` if no party can make this step now.
    fn after(self, event: Event) -> Option<Self> {
        let possible = match event {
            Event::Return => self.away > 0,
            Event::PostAway | Event::Leave if self.away == AWAY_MAX => false,
            _ => !is_of_party(event) || self.running > 0,
        };
        if !possible {
            return None;
        }
        let before = self.state();
        let after = before.after(event);
        let has_effect = after.is_some();
        let mut next = self;
        if let Some(after) = after {
            next.state = STATES.iter().position(|state| *state == after)? as u32;
        }
        match event {
            Event::Open | Event::Cut => {}
            Event::Stop => next.running += u32::from(has_effect && !before.has_party()),
            Event::Post | Event::Receive => next.running += u32::from(has_effect),
            Event::PostAway => next.away += u32::from(has_effect),
            Event::Drained => next.running -= 1,
            Event::Stall => next.running -= u32::from(has_effect),
            Event::Leave => {
                next.running -= u32::from(has_effect);
                next.away += u32::from(has_effect);
            }
            Event::Return => {
                next.away -= 1;
                next.running += u32::from(has_effect);
            }
        }
        Some(next)
    }
}

#[test]
fn every_sequence_of_steps_has_one_party_at_most() {
    let first = World {
        state: 0,
        running: 0,
        away: 0,
    };
    let mut seen = HashSet::from([first]);
    let mut left = VecDeque::from([first]);
    while let Some(world) = left.pop_front() {
        assert_eq!(
            world.running,
            u32::from(world.state().has_party()),
            "{world:?}"
        );
        // A task that will return exists as long as the queue waits for it.
        assert!(world.state() != State::Away || world.away > 0, "{world:?}");
        for event in EVENTS {
            if let Some(next) = world.after(event) {
                if seen.insert(next) {
                    left.push_back(next);
                }
            }
        }
    }
    for state in STATES {
        assert!(seen.iter().any(|world| world.state() == state), "{state:?}");
    }
}

#[test]
fn scheduler_stores_each_state() {
    let scheduler = Scheduler::default();
    assert_eq!(scheduler.state(), State::Shut);
    let walk = [
        (Event::Open, State::Idle),
        (Event::PostAway, State::Away),
        (Event::Return, State::Running),
        (Event::Stall, State::Stalled),
        (Event::Stop, State::Flushing),
        (Event::Drained, State::Shut),
    ];
    for (event, after) in walk {
        let before = scheduler.state();
        assert_eq!(scheduler.apply(event), Some(before));
        assert_eq!(scheduler.state(), after);
    }
    assert_eq!(scheduler.apply(Event::Return), None);
    assert_eq!(scheduler.state(), State::Shut);
}
