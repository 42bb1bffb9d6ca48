// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::spent::Spent;
use proptest::prelude::*;
use std::collections::BTreeSet;

#[test]
fn each_value_comes_once_and_then_none() {
    let mut spent = Spent::new();
    let mut had = BTreeSet::new();
    for round in 0..256u32 {
        assert_eq!(spent.left(), 256 - round);
        let byte = spent.draw(round.wrapping_mul(2_654_435_761)).unwrap();
        assert!(had.insert(byte));
    }
    assert_eq!(spent.left(), 0);
    assert_eq!(spent.draw(0), None);
    assert!((0..=255).all(|byte| !spent.take(byte)));
}

#[test]
fn any_of_those_left_may_come() {
    let mut spent = Spent::new();
    for byte in (0..=255).filter(|byte| byte % 3 != 0) {
        assert!(spent.take(byte));
    }
    let drawn: BTreeSet<_> = (0..spent.left()).map(|r| spent.clone().draw(r)).collect();
    let left: BTreeSet<_> = (0..=255).filter(|b| b % 3 == 0).map(Some).collect();
    assert_eq!(drawn, left);
}

proptest! {
    #![proptest_config(super::config())]

    /// Taking and drawing in any order behaves as a set does.
    #[test]
    fn it_is_a_set(steps in prop::collection::vec(any::<(bool, u32)>(), 0..super::STEPS * 2)) {
        let mut spent = Spent::new();
        let mut had = BTreeSet::new();
        for (take, number) in steps {
            if take {
                let byte = number as u8;
                prop_assert_eq!(spent.take(byte), had.insert(byte));
            } else {
                match spent.draw(number) {
                    Some(byte) => prop_assert!(had.insert(byte)),
                    None => prop_assert_eq!(had.len(), 256),
                }
            }
            prop_assert_eq!(spent.left() as usize, 256 - had.len());
        }
    }
}
