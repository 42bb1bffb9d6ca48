// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::key_budget::{Budget, Payer, Terms};
use proptest::prelude::*;
use std::collections::BTreeMap;

const LIMIT: u32 = 1000;
const REST: u32 = 600;

fn terms(now: u32) -> Terms {
    Terms { now, rest: REST }
}

fn budget(limit: u32) -> Budget {
    Payer { uid: 1, limit }.budget()
}

fn take_all(budget: &mut Budget, now: u32) -> u32 {
    // CAST: A small number.
    (0..10 * LIMIT)
        .take_while(|_| budget.take(&terms(now)))
        .count() as u32
}

#[test]
fn p04_budget_gives_its_limit_at_once_and_again_after_a_rest() {
    let mut budget = budget(LIMIT);
    assert_eq!(take_all(&mut budget, 5), LIMIT);
    assert_eq!(take_all(&mut budget, 5 + REST / 2), LIMIT / 2);
    assert!(!budget.is_empty(&terms(5 + REST)));
    assert!(budget.is_empty(&terms(5 + 2 * REST)));
    assert_eq!(take_all(&mut budget, 10 * REST), LIMIT);
}

#[test]
fn value_given_back_can_be_taken_again() {
    let mut budget = budget(LIMIT);
    for _ in 0..20 * LIMIT {
        assert!(budget.take(&terms(0)));
        budget.give_back();
    }
    assert_eq!(take_all(&mut budget, 0), LIMIT);
}

#[test]
fn budget_without_a_rest_has_no_limit() {
    let mut budget = budget(LIMIT);
    let free = Terms { now: 7, rest: 0 };
    assert!((0..3 * LIMIT).all(|_| budget.take(&free)));
    // The administrator sets a rest: values that were drawn before count for that time at most.
    assert_eq!(take_all(&mut budget, 7 + REST), LIMIT);
}

#[test]
fn longest_rest_drains_nothing_in_a_day() {
    let never = |now| Terms {
        rest: u32::MAX,
        now,
    };
    let mut budget = budget(LIMIT);
    while budget.take(&never(0)) {}
    assert!(!(0..86_400).any(|now| budget.take(&never(now))));
}

proptest! {
    #![proptest_config(super::config())]

    /// Whatever a user does on two kinds of devices, it draws of each at most twice the limit within the time
    /// of a rest, and never fewer than the limit after a rest without draws.
    #[test]
    fn p04_budgets_bound_every_time_of_a_rest(
        waits in prop::collection::vec((0..400_u32, 0..900_u32, any::<bool>()), 1..60),
    ) {
        let payer = |large: bool| Payer { uid: 1, limit: if large { 16 * LIMIT } else { LIMIT } };
        let mut accounts = BTreeMap::new();
        let mut take = |payer: Payer, now: u32, count: u32| {
            let account = accounts.entry(payer).or_insert_with(|| payer.budget());
            // CAST: A small number.
            (0..count).take_while(|_| account.take(&terms(now))).count() as u32
        };
        let (mut now, mut drawn) = (1_u32, Vec::new());
        for (wait, count, large) in waits {
            now += wait;
            let payer = payer(large);
            drawn.push((now, payer, take(payer, now, count)));
            let window = drawn.iter().filter(|(at, of, _)| now - at < REST && *of == payer);
            let sum: u32 = window.map(|(_, _, got)| got).sum();
            prop_assert!(sum <= 2 * payer.limit, "{sum} of {payer:?} in {REST} s");
        }
        for payer in [payer(false), payer(true)] {
            prop_assert_eq!(take(payer, now + REST, 2 * payer.limit), payer.limit);
        }
    }

    /// No payer lies between one and its next: a walk over all accounts misses none.
    #[test]
    fn payers_next_is_the_least_greater_one(uid in any::<u32>(), limit in any::<u32>(), to in any::<(u32, u32)>()) {
        let payer = Payer { uid, limit };
        let other = Payer { uid: to.0, limit: to.1 };
        prop_assume!(payer != Payer { uid: u32::MAX, limit: u32::MAX });
        prop_assert!(payer < payer.next());
        prop_assert!(other <= payer || other >= payer.next());
    }
}
