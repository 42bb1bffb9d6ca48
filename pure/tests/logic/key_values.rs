// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::key_values::{Issued, IssuedOwn, HALF};
use proptest::prelude::*;
use std::collections::BTreeSet;

fn is_upper(byte: u8) -> bool {
    u32::from(byte) >= HALF
}

#[test]
fn each_value_comes_once_and_then_none() {
    let (mut issued, mut own) = (Issued::default(), IssuedOwn::default());
    let mut had = BTreeSet::new();
    for round in 0..HALF {
        let random = round.wrapping_mul(2_654_435_761);
        let left = HALF - round;
        assert_eq!((issued.left(), own.left(&issued)), (left, left));
        let byte = issued.draw(random).unwrap();
        assert!(!is_upper(byte) && had.insert(byte));
        let byte = own.draw(&mut issued, random).unwrap();
        assert!(is_upper(byte) && had.insert(byte));
        // The byte is issued to no other owner.
        assert!(!issued.take(byte));
    }
    assert_eq!((issued.left(), own.left(&issued)), (0, 0));
    assert_eq!((issued.draw(0), own.draw(&mut issued, 0)), (None, None));
    assert!((0..=255).all(|byte| !issued.take(byte)));
}

#[test]
fn any_of_those_left_may_come() {
    let (mut issued, own) = (Issued::default(), IssuedOwn::default());
    for byte in (0..=255).filter(|byte| byte % 3 != 0) {
        assert!(issued.take(byte));
    }
    let drawn: BTreeSet<_> = (0..issued.left()).map(|r| issued.clone().draw(r)).collect();
    let left = |upper| (0..=255u8).filter(move |b| b % 3 == 0 && is_upper(*b) == upper);
    assert_eq!(drawn, left(false).map(Some).collect());
    let draw = |random| own.clone().draw(&mut issued.clone(), random);
    let drawn: BTreeSet<_> = (0..own.left(&issued)).map(draw).collect();
    assert_eq!(drawn, left(true).map(Some).collect());
}

#[test]
fn what_is_for_ever_somebodys_is_never_reused() {
    let (mut issued, mut own) = (Issued::default(), IssuedOwn::default());
    // The device chose the byte for an owner that does not reuse values.
    assert!(issued.take(200));
    while let Some(byte) = own.draw(&mut issued, 0) {
        assert_ne!(byte, 200);
    }
    assert_eq!(own.left(&issued), 0);
    // Another endpoint may have the rest again, but no more than the first one.
    let mut next = IssuedOwn::default();
    assert_eq!(next.left(&issued), HALF - 1);
    while let Some(byte) = next.draw(&mut issued, 7) {
        assert_ne!(byte, 200);
    }
}

#[test]
fn byte_given_back_comes_again_and_others_stay_issued() {
    let (mut issued, mut own) = (Issued::default(), IssuedOwn::default());
    while issued.draw(0).is_some() && own.draw(&mut issued, 0).is_some() {}
    assert_eq!((issued.left(), own.left(&issued)), (0, 0));
    // Neither type gives back bytes of the other half.
    issued.give_back(200);
    own.give_back(77);
    assert_eq!((issued.left(), own.left(&issued)), (0, 0));
    issued.give_back(77);
    own.give_back(200);
    assert_eq!((issued.left(), own.left(&issued)), (1, 1));
    assert_eq!((issued.draw(9), issued.draw(9)), (Some(77), None));
    // No owner that does not reuse values obtains the byte, although it was in no key.
    assert!(!issued.take(200));
    assert_eq!(own.draw(&mut issued, 9), Some(200));
    assert_eq!(own.draw(&mut issued, 9), None);
}

/// Slots that are reserved and closed without a key, ten times as often as there are values.
#[test]
fn p04_reservations_without_a_key_exhaust_nothing() {
    let (mut issued, mut own) = (Issued::default(), IssuedOwn::default());
    for random in 0..10 * HALF {
        let byte = issued.draw(random).unwrap();
        issued.give_back(byte);
        let byte = own.draw(&mut issued, random).unwrap();
        own.give_back(byte);
    }
    assert_eq!((issued.left(), own.left(&issued)), (HALF, HALF));
}

/// An event of a hardware slot.
#[derive(Clone, Debug)]
enum Step {
    /// A key whose byte is never reused.
    Shared(u32),
    /// A key of an endpoint that reuses values.
    Own(usize, u32),
    /// A key whose byte the device chooses, never reused or of such an endpoint.
    Chosen(Option<usize>, u8),
    /// A slot, of such an endpoint or not, is reserved and closed without a key.
    Unused(Option<usize>, u32),
    /// An endpoint is closed and another one takes its place.
    Renew(usize),
}

const ENDPOINTS: usize = 3;

/// Returns how many upper values are no longer available to an endpoint that reuses them.
fn gone(had: &BTreeSet<u8>, ever: &BTreeSet<u8>) -> usize {
    had.union(ever).filter(|byte| is_upper(**byte)).count()
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any::<u32>().prop_map(Step::Shared),
        (0..ENDPOINTS, any::<u32>()).prop_map(|(of, random)| Step::Own(of, random)),
        (prop::option::of(0..ENDPOINTS), any::<u8>()).prop_map(|(of, byte)| Step::Chosen(of, byte)),
        (prop::option::of(0..ENDPOINTS), any::<u32>()).prop_map(|(of, r)| Step::Unused(of, r)),
        (0..ENDPOINTS).prop_map(Step::Renew),
    ]
}

proptest! {
    #![proptest_config(super::config())]

    /// In any order of events, a byte that is never reused was never issued before. A reused byte
    /// was never issued to the same endpoint, nor to an owner that does not reuse values. Issuing
    /// fails only if the half is exhausted.
    #[test]
    fn none_comes_to_who_could_know_it(steps in prop::collection::vec(step(), 0..super::STEPS * 4)) {
        let mut issued = Issued::default();
        let mut own = [IssuedOwn::default(); ENDPOINTS];
        let mut all = BTreeSet::new();
        let mut of: [BTreeSet<u8>; ENDPOINTS] = Default::default();
        let mut ever = BTreeSet::new();
        for step in steps {
            match step {
                Step::Shared(random) => match issued.draw(random) {
                    Some(byte) => prop_assert!(!is_upper(byte) && all.insert(byte) && ever.insert(byte)),
                    None => prop_assert_eq!(all.iter().filter(|b| !is_upper(**b)).count(), HALF as usize),
                },
                Step::Own(i, random) => match own[i].draw(&mut issued, random) {
                    Some(byte) => {
                        prop_assert!(is_upper(byte) && !ever.contains(&byte) && of[i].insert(byte));
                        all.insert(byte);
                    }
                    None => prop_assert_eq!(gone(&of[i], &ever), HALF as usize),
                },
                Step::Chosen(i, byte) => {
                    let new = issued.take(byte);
                    prop_assert_eq!(new, all.insert(byte));
                    if new {
                        ever.insert(byte);
                    }
                    if let (true, Some(i)) = (new, i) {
                        own[i].take(byte);
                        prop_assert!(of[i].insert(byte));
                    }
                }
                Step::Unused(None, random) => {
                    let left = issued.left();
                    if let Some(byte) = issued.draw(random) {
                        prop_assert!(!all.contains(&byte));
                        issued.give_back(byte);
                    }
                    prop_assert_eq!(issued.left(), left);
                }
                Step::Unused(Some(i), random) => {
                    let left = own[i].left(&issued);
                    if let Some(byte) = own[i].draw(&mut issued, random) {
                        prop_assert!(!ever.contains(&byte) && !of[i].contains(&byte));
                        own[i].give_back(byte);
                        // From now on only endpoints that reuse values can obtain the byte.
                        all.insert(byte);
                    }
                    prop_assert_eq!(own[i].left(&issued), left);
                }
                Step::Renew(i) => {
                    own[i] = IssuedOwn::default();
                    of[i].clear();
                }
            }
        }
        for (own, of) in own.iter().zip(&of) {
            prop_assert_eq!(own.left(&issued) as usize, HALF as usize - gone(of, &ever));
        }
    }
}
