// SPDX-License-Identifier: GPL-2.0 OR MIT
use std::{
    panic::{catch_unwind, AssertUnwindSafe},
    sync::{
        atomic::{AtomicU32, Ordering},
        Arc,
    },
    thread,
};

use kfabric_pure::slot::{Handle, Slot};
use proptest::prelude::*;

fn never() {
    panic!("no reader is inside, so a retirer need not wait");
}

#[test]
fn a_value_lives_from_publish_to_retire() {
    let slot = Slot::new();
    assert!(slot.is_empty());
    assert_eq!(slot.with(1, |_| ()), None);
    let generation = slot.publish(Box::new(5u32)).unwrap();
    assert_eq!(generation, 1);
    assert!(!slot.is_empty());
    assert_eq!(slot.with(generation, |value| **value), Some(5));
    assert_eq!(
        slot.with_current(|current, value| (current, **value)),
        Some((1, 5))
    );
    assert_eq!(slot.with(2, |_| ()), None);
    assert_eq!(slot.retire(2, never), None);
    assert_eq!(slot.retire(generation, never), Some(Box::new(5)));
    assert_eq!(slot.retire(generation, never), None);
    assert_eq!(slot.with(generation, |_| ()), None);
    assert_eq!(slot.with_current(|_, _| ()), None);
    assert!(slot.is_empty());
}

#[test]
fn a_stale_generation_never_matches_a_newer_value() {
    let slot = Slot::new();
    let old = slot.publish("old").unwrap();
    assert_eq!(slot.retire(old, never), Some("old"));
    let new = slot.publish("new").unwrap();
    assert_ne!(old, new);
    assert_eq!(slot.with(old, |value| *value), None);
    assert_eq!(slot.retire(old, never), None);
    assert_eq!(slot.with(new, |value| *value), Some("new"));
}

#[test]
fn a_full_slot_gives_the_value_back() {
    let slot = Slot::new();
    slot.publish(1).unwrap();
    assert_eq!(slot.publish(2), Err(2));
}

#[test]
fn generations_end_and_are_never_reused() {
    let slot = Slot::starting_at(u32::MAX);
    assert!(!slot.is_exhausted());
    let last = slot.publish(1).unwrap();
    assert_eq!(last, u32::MAX);
    assert_eq!(slot.retire(last, never), Some(1));
    assert!(slot.is_exhausted());
    assert!(!slot.is_empty());
    assert_eq!(slot.publish(2), Err(2));
    assert_eq!(slot.with(0, |_| ()), None);
    assert_eq!(slot.with(last, |_| ()), None);
    assert_eq!(slot.with_current(|_, _| ()), None);
    assert_eq!(slot.retire(0, never), None);
    let dead = Slot::<u8>::starting_at(0);
    assert!(dead.is_exhausted());
    assert_eq!(dead.publish(1), Err(1));
}

#[test]
fn readers_may_nest() {
    let slot = Slot::new();
    let generation = slot.publish(7).unwrap();
    let sum = slot.with(generation, |outer| {
        slot.with(generation, |inner| outer + inner).unwrap()
    });
    assert_eq!(sum, Some(14));
    assert_eq!(slot.retire(generation, never), Some(7));
}

#[test]
fn a_reader_that_unwinds_leaves() {
    let slot = Slot::new();
    let generation = slot.publish(7).unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        slot.with(generation, |_| panic!("out"))
    }));
    assert!(result.is_err());
    assert_eq!(slot.retire(generation, never), Some(7));
}

#[test]
fn a_dropped_slot_drops_its_value() {
    let value = Arc::new(());
    let slot = Slot::new();
    slot.publish(value.clone()).unwrap();
    assert_eq!(Arc::strong_count(&value), 2);
    drop(slot);
    assert_eq!(Arc::strong_count(&value), 1);
}

/// Readers clone, retirers compete, publishers refill: every value is retired exactly once, and no
/// reader gets a value of another generation.
#[test]
fn many_threads_one_slot() {
    const ROUNDS: u32 = if cfg!(miri) { 6 } else { 3000 };
    let slot = Arc::new(Slot::<Arc<u32>>::new());
    let taken = Arc::new(AtomicU32::new(0));
    let done = Arc::new(AtomicU32::new(0));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (slot, done) = (slot.clone(), done.clone());
            thread::spawn(move || {
                let mut generation = 1;
                while done.load(Ordering::Relaxed) == 0 {
                    let read = slot.with(generation, |value| value.clone());
                    match read {
                        // Each value is the number of its generation.
                        Some(value) => assert_eq!(*value, generation),
                        None => {
                            let now = slot.with_current(|current, value| (current, **value));
                            if let Some((current, value)) = now {
                                assert_eq!(current, value);
                                generation = current;
                            }
                            thread::yield_now();
                        }
                    }
                }
            })
        })
        .collect();
    let retirers: Vec<_> = (0..2)
        .map(|_| {
            let (slot, taken, done) = (slot.clone(), taken.clone(), done.clone());
            thread::spawn(move || {
                while done.load(Ordering::Relaxed) == 0 {
                    if let Some(generation) = slot.with_current(|current, _| current) {
                        if let Some(value) = slot.retire(generation, thread::yield_now) {
                            assert_eq!(*value, generation);
                            taken.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    thread::yield_now();
                }
            })
        })
        .collect();
    for round in 1..=ROUNDS {
        let mut value = Arc::new(round);
        loop {
            match slot.publish(value) {
                Ok(generation) => {
                    assert_eq!(generation, round);
                    break;
                }
                Err(back) => value = back,
            }
            thread::yield_now();
        }
    }
    while !slot.is_empty() {
        thread::yield_now();
    }
    done.store(1, Ordering::Relaxed);
    for thread in readers.into_iter().chain(retirers) {
        thread.join().unwrap();
    }
    assert_eq!(taken.load(Ordering::Relaxed), ROUNDS);
}

proptest! {
    #![proptest_config(crate::config())]

    #[test]
    fn handles_survive_packing(raw: u64, index: u32, generation: u32) {
        prop_assert_eq!(Handle::unpack(raw).pack(), raw);
        let handle = Handle { index, generation };
        prop_assert_eq!(Handle::unpack(handle.pack()), handle);
        prop_assert_eq!(handle.pack() >> 32, u64::from(generation));
    }

    /// A sequence of steps agrees with `Option<(generation, value)>`.
    #[test]
    fn agrees_with_a_model(
        start in prop_oneof![1..5u32, (u32::MAX - 3)..=u32::MAX],
        steps in prop::collection::vec((0..3u8, 0..4u32), 0..64),
    ) {
        let slot = Slot::starting_at(start);
        let mut next = start;
        let mut live: Option<(u32, usize)> = None;
        for (count, (step, offset)) in steps.into_iter().enumerate() {
            // Guesses near the current generation: stale, right and not yet used.
            let guess = next.wrapping_add(offset).wrapping_sub(2);
            let expected = live.filter(|(generation, _)| *generation == guess);
            match step {
                0 => {
                    let can = live.is_none() && next != 0;
                    let result = slot.publish(count);
                    prop_assert_eq!(result, if can { Ok(next) } else { Err(count) });
                    if can {
                        live = Some((next, count));
                    }
                }
                1 => prop_assert_eq!(
                    slot.with(guess, |value| *value),
                    expected.map(|(_, value)| value)
                ),
                _ => {
                    prop_assert_eq!(slot.retire(guess, never), expected.map(|(_, value)| value));
                    if expected.is_some() {
                        live = None;
                        next = next.wrapping_add(1);
                    }
                }
            }
            prop_assert_eq!(slot.is_exhausted(), next == 0);
            prop_assert_eq!(slot.is_empty(), live.is_none() && next != 0);
        }
    }
}
