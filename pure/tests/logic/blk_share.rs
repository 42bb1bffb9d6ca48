// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::blk::share::{decide, fits, source, Limits, Source, Stage, Verdict};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    all: 40,
    of_source: 20,
    strangers: 12,
    strangers_of_source: 4,
};

fn at(n: u8) -> Source {
    source(&[10, 0, 0, n])
}

fn ask(lanes: &[(Source, Stage)], from: Source) -> Verdict {
    decide(lanes.iter().copied(), from, &LIMITS)
}

#[test]
fn source_of_an_ipv6_address_is_its_first_half() {
    let (mut a, mut b) = ([7; 16], [7; 16]);
    a[15] = 1;
    assert_eq!(source(&a), source(&b));
    b[7] = 1;
    assert_ne!(source(&a), source(&b));
}

#[test]
fn stranger_beyond_share_of_source_replaces_oldest_of_source() {
    let mut lanes = vec![(at(1), Stage::Stranger)];
    lanes.extend([(at(2), Stage::Stranger); 4]);
    assert_eq!(ask(&lanes, at(2)), Verdict::InsteadOf(1));
    assert_eq!(ask(&lanes, at(1)), Verdict::Accept);
}

#[test]
fn stranger_beyond_share_of_all_replaces_oldest_of_largest_source() {
    let mut lanes = vec![(at(9), Stage::Stranger), (at(8), Stage::Stranger)];
    for n in 1..=3 {
        lanes.extend(std::iter::repeat_n(
            (at(n), Stage::Stranger),
            if n == 2 { 4 } else { 3 },
        ));
    }
    assert_eq!(lanes.len(), LIMITS.strangers);
    let first = lanes.iter().position(|lane| lane.0 == at(2)).unwrap();
    assert_eq!(ask(&lanes, at(7)), Verdict::InsteadOf(first));
}

#[test]
fn request_of_a_flooding_source_is_refused_and_others_are_accepted() {
    let mut lanes = vec![(at(1), Stage::Ending); 4];
    assert_eq!(ask(&lanes, at(1)), Verdict::Refuse);
    assert_eq!(ask(&lanes, at(2)), Verdict::Accept);
    for n in 3..=4 {
        lanes.extend([(at(n), Stage::Ending); 4]);
    }
    lanes.push((at(5), Stage::Stranger));
    assert_eq!(ask(&lanes, at(5)), Verdict::Refuse);
    assert_eq!(ask(&lanes, at(6)), Verdict::Accept);
}

/// A source takes memory, 4 pages a connection, until it is refused.
#[test]
fn memory_of_one_source_is_at_most_a_third_and_of_the_first_connection_a_half() {
    for all in 0..200 {
        let mut own = 0;
        while fits(all - 4 * own, 4, own) {
            own += 1;
        }
        assert_eq!(own > 0, all >= 8, "{own} of {all}");
        assert!(own <= 1 || 3 * 4 * own <= all + 4, "{own} of {all}");
    }
}

/// A source that has taken its share leaves memory for the first connection of another source.
#[test]
fn memory_after_one_sources_share_fits_another_source() {
    for all in 12..200 {
        let mut own = 0;
        while fits(all - 4 * own, 4, own) {
            own += 1;
        }
        assert!(fits(all - 4 * own, 4, 0), "{own} of {all}");
    }
    assert!(!fits(usize::MAX - 1, usize::MAX / 2, usize::MAX));
}

fn stage() -> impl Strategy<Value = Stage> {
    prop_oneof![
        Just(Stage::Stranger),
        Just(Stage::Ending),
        Just(Stage::Client)
    ]
}

proptest! {
    /// Whatever three sources do, a fourth source without connections gets in while `Limits::all` is not
    /// reached, and replaces a stranger of the source that has most strangers.
    #[test]
    fn newcomer_without_connections_is_accepted(
        lanes in proptest::collection::vec((1..4u8, stage()), 0..40),
    ) {
        let lanes: Vec<_> = lanes.into_iter().map(|(n, stage)| (at(n), stage)).collect();
        match ask(&lanes, at(4)) {
            Verdict::Refuse => prop_assert!(false, "refused"),
            Verdict::Accept => {}
            Verdict::InsteadOf(index) => {
                let strangers = |of: Source| {
                    lanes.iter().filter(|lane| **lane == (of, Stage::Stranger)).count()
                };
                prop_assert_eq!(lanes[index].1, Stage::Stranger);
                let most = (1..4).map(|n| strangers(at(n))).max();
                prop_assert_eq!(Some(strangers(lanes[index].0)), most);
            }
        }
    }

    /// No sequence of requests takes a source beyond its shares.
    #[test]
    fn requests_of_one_source_stay_within_its_shares(steps in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut lanes: Vec<(Source, Stage)> = Vec::new();
        for step in steps {
            match step % 4 {
                0 => {
                    if let Some(lane) = lanes.iter_mut().find(|lane| lane.1 == Stage::Stranger) {
                        lane.1 = Stage::Client;
                    }
                }
                1 => {
                    if let Some(at) = lanes.iter().position(|lane| lane.1 == Stage::Ending) {
                        lanes.remove(at);
                    }
                }
                _ => match ask(&lanes, at(1)) {
                    Verdict::Refuse => {}
                    Verdict::Accept => lanes.push((at(1), Stage::Stranger)),
                    Verdict::InsteadOf(index) => {
                        lanes[index].1 = Stage::Ending;
                        lanes.push((at(1), Stage::Stranger));
                    }
                },
            }
            let count = |stage| lanes.iter().filter(|lane| lane.1 == stage).count();
            prop_assert!(count(Stage::Stranger) <= LIMITS.strangers_of_source);
            prop_assert!(count(Stage::Ending) <= LIMITS.strangers_of_source);
            prop_assert!(lanes.len() <= LIMITS.of_source);
        }
    }
}
