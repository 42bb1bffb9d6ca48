// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::spent::{Spent, SpentOwn, HALF};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn is_upper(byte: u8) -> bool {
    u32::from(byte) >= HALF
}

#[test]
fn each_value_comes_once_and_then_none() {
    let (mut spent, mut own) = (Spent::default(), SpentOwn::default());
    let mut had = BTreeSet::new();
    for round in 0..HALF {
        let random = round.wrapping_mul(2_654_435_761);
        let left = HALF - round;
        assert_eq!((spent.left(), own.left(&spent)), (left, left));
        let byte = spent.draw(random).unwrap();
        assert!(!is_upper(byte) && had.insert(byte));
        let byte = own.draw(&mut spent, random).unwrap();
        assert!(is_upper(byte) && had.insert(byte));
        // Nobody else has it.
        assert!(!spent.take(byte));
    }
    assert_eq!((spent.left(), own.left(&spent)), (0, 0));
    assert_eq!((spent.draw(0), own.draw(&mut spent, 0)), (None, None));
    assert!((0..=255).all(|byte| !spent.take(byte)));
}

#[test]
fn any_of_those_left_may_come() {
    let (mut spent, own) = (Spent::default(), SpentOwn::default());
    for byte in (0..=255).filter(|byte| byte % 3 != 0) {
        assert!(spent.take(byte));
    }
    let drawn: BTreeSet<_> = (0..spent.left()).map(|r| spent.clone().draw(r)).collect();
    let left = |upper| (0..=255u8).filter(move |b| b % 3 == 0 && is_upper(*b) == upper);
    assert_eq!(drawn, left(false).map(Some).collect());
    let draw = |random| own.clone().draw(&mut spent.clone(), random);
    let drawn: BTreeSet<_> = (0..own.left(&spent)).map(draw).collect();
    assert_eq!(drawn, left(true).map(Some).collect());
}

#[test]
fn what_is_for_ever_somebodys_is_never_reused() {
    let (mut spent, mut own) = (Spent::default(), SpentOwn::default());
    // The device chose it for somebody who does not reuse values.
    assert!(spent.take(200));
    while let Some(byte) = own.draw(&mut spent, 0) {
        assert_ne!(byte, 200);
    }
    assert_eq!(own.left(&spent), 0);
    // Another one has the rest again, and that no more than the first.
    let mut next = SpentOwn::default();
    assert_eq!(next.left(&spent), HALF - 1);
    while let Some(byte) = next.draw(&mut spent, 7) {
        assert_ne!(byte, 200);
    }
}

/// What happens to a hardware slot.
#[derive(Clone, Debug)]
enum Step {
    /// A key for ever.
    Shared(u32),
    /// One of an endpoint that reuses values.
    Own(usize, u32),
    /// The device chooses one, for ever or of such an endpoint.
    Chosen(Option<usize>, u8),
    /// An endpoint goes, and another one comes in its place.
    Renew(usize),
}

const ENDPOINTS: usize = 3;

/// Upper values that an endpoint that reuses them cannot have any more.
fn gone(had: &BTreeSet<u8>, ever: &BTreeSet<u8>) -> usize {
    had.union(ever).filter(|byte| is_upper(**byte)).count()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u32>().prop_map(Step::Shared),
        (0..ENDPOINTS, any::<u32>()).prop_map(|(of, random)| Step::Own(of, random)),
        (prop::option::of(0..ENDPOINTS), any::<u8>()).prop_map(|(of, byte)| Step::Chosen(of, byte)),
        (0..ENDPOINTS).prop_map(Step::Renew),
    ]
}

proptest! {
    #![proptest_config(super::config())]

    /// Whatever comes in which order: what is for ever has a value that nobody had, and what is reused one
    /// that this endpoint had not, and that is nobody's for ever. There is none only when all of the half
    /// are gone.
    #[test]
    fn none_comes_to_who_could_know_it(steps in prop::collection::vec(step(), 0..super::STEPS * 4)) {
        let mut spent = Spent::default();
        let mut own = [SpentOwn::default(); ENDPOINTS];
        let mut all = BTreeSet::new();
        let mut of: [BTreeSet<u8>; ENDPOINTS] = Default::default();
        let mut ever = BTreeSet::new();
        for step in steps {
            match step {
                Step::Shared(random) => match spent.draw(random) {
                    Some(byte) => prop_assert!(!is_upper(byte) && all.insert(byte) && ever.insert(byte)),
                    None => prop_assert_eq!(all.iter().filter(|b| !is_upper(**b)).count(), HALF as usize),
                },
                Step::Own(i, random) => match own[i].draw(&mut spent, random) {
                    Some(byte) => {
                        prop_assert!(is_upper(byte) && !ever.contains(&byte) && of[i].insert(byte));
                        all.insert(byte);
                    }
                    None => prop_assert_eq!(gone(&of[i], &ever), HALF as usize),
                },
                Step::Chosen(i, byte) => {
                    let new = spent.take(byte);
                    prop_assert_eq!(new, all.insert(byte));
                    if new {
                        ever.insert(byte);
                    }
                    if let (true, Some(i)) = (new, i) {
                        own[i].take(byte);
                        prop_assert!(of[i].insert(byte));
                    }
                }
                Step::Renew(i) => {
                    own[i] = SpentOwn::default();
                    of[i].clear();
                }
            }
        }
        for (own, of) in own.iter().zip(&of) {
            prop_assert_eq!(own.left(&spent) as usize, HALF as usize - gone(of, &ever));
        }
    }
}
