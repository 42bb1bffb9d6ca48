// SPDX-License-Identifier: GPL-2.0 OR MIT
use std::{cell::Cell, collections::VecDeque};

use kfabric_pure::hold::{Held, Released, Taken, Waiting};
use proptest::prelude::*;

fn held(room: usize) -> Held<Box<[Option<Waiting>]>> {
    Held::new((0..room).map(|_| None).collect())
}

fn waiting(slot: u32, until: u64) -> Waiting {
    Waiting { slot, until }
}

/// Releases operations to a device that accepts all. Returns the slots, and whether the flag was
/// set.
fn release(
    held: &mut Held<Box<[Option<Waiting>]>>,
    most: usize,
    resumed: u64,
) -> (Released, Vec<u32>, bool) {
    let mut gone = Vec::new();
    let noted = Cell::new(false);
    let post = |slot| {
        gone.push(slot);
        Taken::All
    };
    let released = held.release(most, || resumed, || noted.set(true), post);
    (released, gone, noted.get())
}

#[test]
fn each_goes_when_it_may() {
    let mut all = held(4);
    for (slot, until) in [(3, 1), (0, 1), (2, 2)] {
        all.push(waiting(slot, until)).unwrap();
    }
    assert_eq!(release(&mut all, 9, 0), (Released::Later, vec![], true));
    assert_eq!(release(&mut all, 1, 1), (Released::Some, vec![3], false));
    assert_eq!(release(&mut all, 9, 1), (Released::Later, vec![0], true));
    assert!(!all.is_empty());
    assert_eq!(release(&mut all, 9, 2), (Released::All, vec![2], false));
    assert!(all.is_empty());
    assert_eq!(release(&mut all, 9, 2), (Released::All, vec![], false));
}

/// The cells of the queue are reused while operations are deferred all the time.
#[test]
fn room_comes_back() {
    let mut all = held(2);
    all.push(waiting(0, 0)).unwrap();
    for i in 0..100 {
        let next = waiting(1 - i % 2, u64::from(i) + 1);
        all.push(next).unwrap();
        assert_eq!(all.push(next), Err(next));
        let gone = vec![i % 2];
        let later = (Released::Later, gone, true);
        assert_eq!(release(&mut all, 9, u64::from(i)), later);
        assert!(!all.is_empty());
    }
}

/// A resume just before the flag is set does not look; so `release` has to look again.
#[test]
fn looks_again() {
    let mut all = held(2);
    all.push(waiting(7, 1)).unwrap();
    let resumed = Cell::new(0);
    let released = all.release(9, || resumed.get(), || resumed.set(1), |_| Taken::All);
    assert_eq!(released, Released::All);
}

#[test]
fn nothing_overtakes_what_was_refused() {
    for taken in [Taken::Part, Taken::Nothing] {
        let mut all = held(3);
        for slot in 0..3 {
            all.push(waiting(slot, 0)).unwrap();
        }
        let mut gone = Vec::new();
        let post = |slot| {
            gone.push(slot);
            if slot == 1 {
                taken
            } else {
                Taken::All
            }
        };
        let released = all.release(9, || 0, || (), post);
        assert_eq!(released, Released::Refused(taken));
        assert_eq!(gone, [0, 1]);
        // A part of operation 1 was accepted, so another completion reports it; all others remain.
        let left: Vec<_> = std::iter::from_fn(|| all.pop()).collect();
        let first = if taken == Taken::Part { 2 } else { 1 };
        assert_eq!(left, (first..3).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(super::config())]

    /// In any sequence of posts and resumes, all operations are released in order, none before its
    /// time, and none stays without the flag.
    #[test]
    fn all_go_in_order(
        room in 1..6usize,
        steps in prop::collection::vec((any::<bool>(), 1..4usize), 0..super::STEPS),
    ) {
        let mut all = held(room);
        let mut model = VecDeque::new();
        let (mut holds, mut resumed) = (0u64, 0u64);
        for (i, (hold, most)) in (0u32..).zip(steps) {
            if hold {
                holds += 1;
                let one = waiting(i, holds);
                if all.push(one).is_ok() {
                    model.push_back(one);
                } else {
                    prop_assert_eq!(model.len(), room);
                }
                continue;
            }
            resumed = holds.min(resumed + 1);
            let (released, gone, noted) = release(&mut all, most, resumed);
            for slot in gone {
                let first = model.pop_front();
                prop_assert!(first.is_some_and(|f| f.slot == slot && f.until <= resumed));
            }
            match released {
                Released::All => prop_assert!(model.is_empty() && all.is_empty()),
                Released::Later => {
                    prop_assert!(noted && model.front().is_some_and(|f| f.until > resumed));
                }
                other => prop_assert_eq!(other, Released::Some),
            }
        }
        let left: Vec<_> = model.iter().map(|one| one.slot).collect();
        prop_assert_eq!(release(&mut all, room + 1, holds), (Released::All, left, false));
    }
}
