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
        assert_eq!((spent.left(), own.left()), (HALF - round, HALF - round));
        let byte = spent.draw(random).unwrap();
        assert!(!is_upper(byte) && had.insert(byte));
        let byte = own.draw(random).unwrap();
        assert!(is_upper(byte) && had.insert(byte));
        // Nobody had it before.
        assert!(spent.take(byte));
    }
    assert_eq!((spent.left(), own.left()), (0, 0));
    assert_eq!((spent.draw(0), own.draw(0)), (None, None));
    assert!((0..=255).all(|byte| !spent.take(byte)));
}

#[test]
fn any_of_those_left_may_come() {
    let (mut spent, mut own) = (Spent::default(), SpentOwn::default());
    for byte in (0..=255).filter(|byte| byte % 3 != 0) {
        assert!(spent.take(byte));
        own.take(byte);
    }
    let drawn: BTreeSet<_> = (0..spent.left()).map(|r| spent.clone().draw(r)).collect();
    let left = |upper| (0..=255u8).filter(move |b| b % 3 == 0 && is_upper(*b) == upper);
    assert_eq!(drawn, left(false).map(Some).collect());
    let drawn: BTreeSet<_> = (0..own.left()).map(|r| own.clone().draw(r)).collect();
    assert_eq!(drawn, left(true).map(Some).collect());
}

/// What happens to a hardware slot.
#[derive(Clone, Debug)]
enum Step {
    /// A key of what is shared.
    Shared(u32),
    /// One of an endpoint's own.
    Own(usize, u32),
    /// The device chooses one, of what is shared or of an endpoint's own.
    Chosen(Option<usize>, u8),
    /// An endpoint goes, and another one comes in its place.
    Renew(usize),
}

const ENDPOINTS: usize = 3;

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

    /// Whatever comes in which order: what is shared, or chosen by the device, has a value that nobody
    /// had, and what is an endpoint's own one that this endpoint had not. There is none only when all of
    /// the half are gone.
    #[test]
    fn none_comes_to_who_could_know_it(steps in prop::collection::vec(step(), 0..super::STEPS * 4)) {
        let mut spent = Spent::default();
        let mut own = [SpentOwn::default(); ENDPOINTS];
        let mut all = BTreeSet::new();
        let mut of: [BTreeSet<u8>; ENDPOINTS] = Default::default();
        for step in steps {
            match step {
                Step::Shared(random) => match spent.draw(random) {
                    Some(byte) => prop_assert!(!is_upper(byte) && all.insert(byte)),
                    None => prop_assert_eq!(all.iter().filter(|b| !is_upper(**b)).count(), HALF as usize),
                },
                Step::Own(i, random) => match own[i].draw(random) {
                    Some(byte) => {
                        prop_assert!(is_upper(byte) && of[i].insert(byte));
                        prop_assert_eq!(spent.take(byte), all.insert(byte));
                    }
                    None => prop_assert_eq!(of[i].iter().filter(|b| is_upper(**b)).count(), HALF as usize),
                },
                Step::Chosen(i, byte) => {
                    let new = spent.take(byte);
                    prop_assert_eq!(new, all.insert(byte));
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
            let gone = of.iter().filter(|byte| is_upper(**byte)).count();
            prop_assert_eq!(own.left() as usize, HALF as usize - gone);
        }
    }
}
