// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::key_budget::{Budget, Terms};
use proptest::prelude::*;

const LIMIT: u32 = 1000;
const REST: u32 = 600;

fn terms(now: u32) -> Terms {
    Terms {
        now,
        rest: REST,
        limit: LIMIT,
    }
}

fn take_all(budget: &mut Budget, now: u32) -> u32 {
    // CAST: A small number.
    (0..10 * LIMIT)
        .take_while(|_| budget.take(&terms(now)))
        .count() as u32
}

#[test]
fn p04_budget_gives_its_limit_at_once_and_again_after_a_rest() {
    let mut budget = Budget::default();
    assert_eq!(take_all(&mut budget, 5), LIMIT);
    assert_eq!(take_all(&mut budget, 5 + REST / 2), LIMIT / 2);
    assert!(!budget.is_empty(&terms(5 + REST)));
    assert!(budget.is_empty(&terms(5 + 2 * REST)));
    assert_eq!(take_all(&mut budget, 10 * REST), LIMIT);
}

#[test]
fn value_given_back_can_be_taken_again() {
    let mut budget = Budget::default();
    for _ in 0..20 * LIMIT {
        assert!(budget.take(&terms(0)));
        budget.give_back();
    }
    assert_eq!(take_all(&mut budget, 0), LIMIT);
}

#[test]
fn budget_without_a_rest_has_no_limit() {
    let mut budget = Budget::default();
    let free = Terms {
        rest: 0,
        ..terms(7)
    };
    assert!((0..3 * LIMIT).all(|_| budget.take(&free)));
    // The administrator sets a rest: values that were drawn before count for that time at most.
    assert_eq!(take_all(&mut budget, 7 + REST), LIMIT);
}

#[test]
fn longest_rest_drains_nothing_in_a_day() {
    let never = |now| Terms {
        rest: u32::MAX,
        ..terms(now)
    };
    let mut budget = Budget::default();
    while budget.take(&never(0)) {}
    assert!(!(0..86_400).any(|now| budget.take(&never(now))));
}

proptest! {
    #![proptest_config(super::config())]

    /// Whatever a user does, it draws at most twice the limit within the time of a rest, and never fewer
    /// than the limit after a rest without draws.
    #[test]
    fn p04_budget_bounds_every_time_of_a_rest(
        waits in prop::collection::vec((0..400_u32, 0..900_u32), 1..60),
    ) {
        let mut budget = Budget::default();
        let (mut now, mut drawn) = (1_u32, Vec::new());
        for (wait, count) in waits {
            now += wait;
            let got = (0..count).take_while(|_| budget.take(&terms(now))).count();
            drawn.push((now, got));
            let window = drawn.iter().filter(|(at, _)| now - at < REST);
            let sum: usize = window.map(|(_, got)| got).sum();
            prop_assert!(sum <= 2 * LIMIT as usize, "{sum} in {REST} s");
        }
        prop_assert_eq!(take_all(&mut budget, now + REST), LIMIT);
    }
}
