// SPDX-License-Identifier: GPL-2.0 OR MIT
use kfabric_pure::key_ledger::{
    record_of, search, Chosen, Draw, Ledger, Terms, Wear, FEW, HALF, RECORDS, TRIES,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use world::{cycles, Bug, Numbering, World, NUMBERINGS};

mod profiles;
mod users;
mod world;

const REST: u32 = 600;

fn terms(now: u32) -> Terms {
    Terms {
        now,
        rest: REST,
        strict: None,
    }
}

/// Draws all values of a record.
fn draw_all(ledger: &mut Ledger, record: u32, wear: &mut Wear, terms: &Terms) -> BTreeSet<u8> {
    let mut had = BTreeSet::new();
    while let Draw::Value(byte, _) = ledger.draw(record, wear, None, terms) {
        assert!(had.insert(byte), "{byte} came twice");
        wear.end(byte, terms.now);
    }
    had
}

#[test]
fn p04_record_gives_each_byte_once_then_again_after_epoch_and_rest() {
    let (mut ledger, mut wear) = (Ledger::new(7), Wear::default());
    let all: BTreeSet<u8> = (0..=255).collect();
    assert_eq!(draw_all(&mut ledger, 3, &mut wear, &terms(1000)), all);
    let mut draw = |ledger: &mut Ledger, now| ledger.draw(3, &mut wear, None, &terms(now));
    // Time alone does not bring a value back, and a new epoch alone does not.
    assert_eq!(draw(&mut ledger, 1000), Draw::Spent);
    assert_eq!(draw(&mut ledger, 10_000), Draw::Rested);
    let epoch = ledger.epoch();
    ledger.advance(epoch, 1001);
    assert_eq!(draw(&mut ledger, 1000 + REST), Draw::Resting);
    assert!(matches!(
        draw(&mut ledger, 1001 + REST),
        Draw::Value(_, true)
    ));
    // An epoch ends once, although several tasks have found its end.
    let next = ledger.epoch();
    ledger.advance(epoch, 1001 + REST);
    assert_eq!(ledger.epoch(), next);
}

#[test]
fn p04_value_in_use_keeps_its_half_from_renewal() {
    let (mut ledger, mut wear) = (Ledger::new(7), Wear::default());
    let Draw::Value(byte, false) = ledger.draw(0, &mut wear, None, &terms(0)) else {
        panic!("exhausted");
    };
    assert!(byte < HALF);
    assert_eq!(draw_all(&mut ledger, 0, &mut wear, &terms(0)).len(), 255);
    ledger.advance(ledger.epoch(), 1);
    let later = terms(100 * REST);
    let had = draw_all(&mut ledger, 0, &mut wear, &later);
    assert!(had.len() == usize::from(HALF) && had.iter().all(|byte| *byte >= HALF));
    ledger.advance(ledger.epoch(), 100 * REST);
    assert_eq!(ledger.draw(0, &mut wear, None, &later), Draw::Spent);
    wear.end(byte, 99 * REST - 2);
    assert!(matches!(
        ledger.draw(0, &mut wear, None, &later),
        Draw::Value(_, true)
    ));
}

/// A slot that keeps its region, and so its index: peers may know all bytes that it had before.
#[test]
fn p04_next_byte_of_the_same_region_is_one_of_32_at_least() {
    let mut ledger = Ledger::new(3);
    let mut wear = Wear::default();
    let mut had = BTreeSet::new();
    let Draw::Value(mut byte, false) = ledger.draw(7, &mut wear, None, &terms(0)) else {
        panic!("the first draw");
    };
    while had.insert(byte) {
        wear.end(byte, 0);
        match ledger.draw_next(7, &mut wear, byte, None, &terms(0)) {
            Draw::Value(next, false) => byte = next,
            other => {
                assert_eq!(other, Draw::Spent);
                break;
            }
        }
    }
    assert_eq!(had.len(), usize::from(HALF - FEW) + 1);
    // The next region with the index has bytes of the other half.
    let left = draw_all(&mut ledger, 7, &mut wear, &terms(0));
    assert_eq!(left.len(), usize::from(HALF));
    assert!(left.is_disjoint(&had));
}

/// The count of used-up values has those drawn and those left over, and is less after a renewal.
#[test]
fn used_up_values_are_those_drawn_and_left_over_until_their_renewal() {
    let (mut ledger, mut wear) = (Ledger::new(3), Wear::default());
    let Draw::Value(mut byte, false) = ledger.draw(7, &mut wear, None, &terms(0)) else {
        panic!("the first draw");
    };
    assert_eq!(ledger.worn(), 1);
    wear.end(byte, 0);
    let mut drawn = 1;
    while let Draw::Value(next, _) = ledger.draw_next(7, &mut wear, byte, None, &terms(0)) {
        drawn += 1;
        assert_eq!(ledger.worn(), drawn);
        wear.end(next, 0);
        byte = next;
    }
    assert_eq!(drawn, u64::from(HALF - FEW) + 1);
    assert_eq!(ledger.worn(), u64::from(HALF));
    draw_all(&mut ledger, 7, &mut wear, &terms(0));
    assert_eq!(ledger.worn(), 256);
    ledger.advance(ledger.epoch(), 1);
    let Draw::Value(byte, true) = ledger.draw(7, &mut wear, None, &terms(2 * REST)) else {
        panic!("after the rest");
    };
    assert_eq!(ledger.worn(), u64::from(HALF) + 1);
    ledger.give_back(7, &mut wear, byte);
    assert_eq!(ledger.worn(), u64::from(HALF));
}

/// While the upper half is drawn, the lower one rests.
#[test]
fn p04_half_that_ended_first_comes_first() {
    let (mut ledger, mut wear) = (Ledger::new(7), Wear::default());
    for now in 0..256 {
        let Draw::Value(byte, false) = ledger.draw(0, &mut wear, None, &terms(8 * now)) else {
            panic!("exhausted");
        };
        wear.end(byte, 8 * now);
    }
    ledger.advance(ledger.epoch(), 8 * 256);
    let had = draw_all(&mut ledger, 0, &mut wear, &terms(8 * 256));
    assert!(had.len() == usize::from(HALF) && had.iter().all(|byte| *byte < HALF));
}

#[test]
fn p04_longest_rest_means_never() {
    let (mut ledger, mut wear) = (Ledger::new(7), Wear::default());
    let never = |now| Terms {
        rest: u32::MAX,
        ..terms(now)
    };
    draw_all(&mut ledger, 0, &mut wear, &never(0));
    ledger.advance(ledger.epoch(), 1);
    assert_eq!(
        ledger.draw(0, &mut wear, None, &never(u32::MAX / 2)),
        Draw::Resting
    );
}

#[test]
fn byte_given_back_comes_again_and_a_used_one_does_not() {
    let (mut ledger, mut wear) = (Ledger::new(9), Wear::default());
    let draw = |ledger: &mut Ledger, wear: &mut Wear| match ledger.draw(5, wear, None, &terms(0)) {
        Draw::Value(byte, false) => byte,
        other => panic!("{other:?}"),
    };
    let first = draw(&mut ledger, &mut wear);
    let second = draw(&mut ledger, &mut wear);
    // Another device has an equal index, and has drawn since then.
    ledger.give_back(5, &mut wear, first);
    assert!(![first, second].contains(&draw(&mut ledger, &mut wear)));
    let (mut ledger, mut wear) = (Ledger::new(9), Wear::default());
    let first = draw(&mut ledger, &mut wear);
    ledger.give_back(5, &mut wear, first);
    assert_eq!(draw(&mut ledger, &mut wear), first);
}

/// Slots that are reserved and closed without a key, ten times as often as there are values.
#[test]
fn p04_reservations_without_a_key_exhaust_nothing() {
    let (mut ledger, mut wear) = (Ledger::new(1), Wear::default());
    for _ in 0..20 * u32::from(HALF) {
        let Draw::Value(byte, false) = ledger.draw(8, &mut wear, None, &terms(0)) else {
            panic!("exhausted");
        };
        ledger.give_back(8, &mut wear, byte);
    }
    assert_eq!(draw_all(&mut ledger, 8, &mut wear, &terms(0)).len(), 256);
}

#[test]
fn byte_chosen_by_the_device_is_taken_once_and_never_drawn() {
    let (mut ledger, mut wear, mut chosen) = (Ledger::new(2), Wear::default(), Chosen::default());
    let mut had = BTreeSet::new();
    for _ in 0..20 {
        let Draw::Value(byte, _) = ledger.draw(1, &mut wear, None, &terms(0)) else {
            panic!("exhausted");
        };
        wear.end(byte, 0);
        had.insert(byte);
    }
    for byte in (0..=255).step_by(5) {
        let took = ledger.take(1, &mut wear, &mut chosen, byte, &terms(0));
        assert_eq!(took == Draw::Value(byte, false), had.insert(byte));
        if matches!(took, Draw::Value(..)) {
            wear.end(byte, 0);
        }
        let again = ledger.take(1, &mut wear, &mut chosen, byte, &terms(0));
        assert_eq!(again, Draw::Taken, "the half has other values");
    }
    while let Draw::Value(byte, _) = ledger.draw(1, &mut wear, Some(&mut chosen), &terms(0)) {
        assert!(had.insert(byte), "{byte} came twice");
        wear.end(byte, 0);
    }
    assert_eq!(had.len(), 256);
    // In the next epoch the device may choose each again.
    ledger.advance(ledger.epoch(), 1);
    let took = ledger.take(1, &mut wear, &mut chosen, 5, &terms(REST));
    assert_eq!(took, Draw::Resting);
    let took = ledger.take(1, &mut wear, &mut chosen, 5, &terms(REST + 1));
    assert_eq!(took, Draw::Value(5, true));
    wear.end(5, REST + 1);
    let took = ledger.take(1, &mut wear, &mut chosen, 10, &terms(REST + 1));
    assert_eq!(took, Draw::Value(10, true));
}

#[test]
fn p04_strict_user_gets_no_value_drawn_since_it_joined() {
    let mut ledger = Ledger::new(3);
    let mut wears = [Wear::default(); 3];
    draw_all(&mut ledger, 0, &mut wears[0], &terms(0));
    let mut draw = |ledger: &mut Ledger, record: usize, now| {
        let wear = &mut wears[record];
        let Draw::Value(byte, again) = ledger.draw(record as u32, wear, None, &terms(now)) else {
            panic!("exhausted");
        };
        wear.end(byte, now);
        again
    };
    assert!(!draw(&mut ledger, 1, 0));
    ledger.advance(ledger.epoch(), 1);
    assert!(draw(&mut ledger, 0, 1000));
    // Some values were drawn before the user joined. The others are new to the user.
    let strict = Terms {
        strict: Some(ledger.joined()),
        ..terms(1_000_000)
    };
    for (record, left) in [(0, 127), (1, 255), (2, 256)] {
        let had = draw_all(&mut ledger, record, &mut wears[record as usize], &strict);
        assert_eq!(had.len(), left);
    }
    // Another user makes values of record 0 available again, for itself only.
    ledger.advance(ledger.epoch(), 1);
    let later = terms(2_000_000);
    assert!(matches!(
        ledger.draw(0, &mut wears[0], None, &later),
        Draw::Value(_, true)
    ));
    for (record, wear) in (0..).zip(&mut wears) {
        assert_eq!(ledger.draw(record, wear, None, &strict), Draw::Spent);
        for byte in [7, 207] {
            let took = ledger.take(record, wear, &mut Chosen::default(), byte, &strict);
            assert_eq!(took, Draw::Spent);
        }
    }
}

/// The order of the bytes differs between records and ledgers, and each byte follows each other one
/// about equally often.
#[test]
fn order_of_bytes_is_not_guessable_from_the_last_one() {
    let order = |secret, record: u32| -> Vec<u8> {
        let (mut ledger, mut wear) = (Ledger::new(secret), Wear::default());
        let draw = |_| match ledger.draw(record, &mut wear, None, &terms(0)) {
            Draw::Value(byte, false) => byte,
            other => panic!("{other:?}"),
        };
        (0..HALF).map(draw).collect()
    };
    assert_ne!(order(11, 1), order(11, 2));
    assert_ne!(order(11, 1), order(12, 1));
    let mut steps = [0_u32; HALF as usize];
    let records = if cfg!(miri) { 4 } else { 1000 };
    for record in 0..records {
        for pair in order(11, record).windows(2) {
            steps[usize::from(pair[1].wrapping_sub(pair[0]) % HALF)] += 1;
        }
    }
    assert_eq!(steps[0], 0);
    if !cfg!(miri) {
        let (low, high) = (steps[1..].iter().min(), steps[1..].iter().max());
        assert!(low > Some(&850) && high < Some(&1150), "{low:?} {high:?}");
    }
}

/// 10^7 keys in release builds, so many that all values are used: no refusal, no value before its
/// turn, and at most two regions of the device for a key.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and hours long there")]
fn p04_assign_and_revoke_for_ever_without_refusal_on_any_device() {
    let count = if cfg!(debug_assertions) { 1 } else { 40 };
    for numbering in NUMBERINGS {
        // A half of the values lasts for the time of a rest.
        let (size, rate) = (500 * count, 100 * count);
        let (bound, count) = (size as usize, 250_000 * count);
        let mut world = World::new(numbering, size, bound, None);
        let records = cycles(&mut world, count, rate);
        assert_eq!(records, Ok(size as usize), "{numbering:?}");
        let most = world.with_uses.iter().rposition(|count| *count > 0);
        assert!(most > Some(1), "{numbering:?}: no value came again");
        assert!(
            world.tries <= 2 * u64::from(count),
            "{numbering:?}: {} tries",
            world.tries
        );
    }
}

/// A device may have more indices than the ledger has records.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and hours long there")]
fn p04_random_indices_of_24_bits_keep_the_ledger_small() {
    let (mut ledger, mut wears) = (Ledger::new(5), BTreeMap::new());
    let (mut seen, mut random) = (BTreeSet::new(), 1_u64);
    let count = if cfg!(debug_assertions) {
        200_000
    } else {
        2_000_000
    };
    for _ in 0..count {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let index = (random >> 40) as u32;
        let wear: &mut Wear = wears.entry(record_of(index << 8)).or_default();
        let record = record_of(index << 8);
        let Draw::Value(byte, false) = ledger.draw(record, wear, None, &terms(0)) else {
            panic!("exhausted after {} keys", seen.len());
        };
        wear.end(byte, 0);
        assert!(seen.insert(index << 8 | u32::from(byte)), "came twice");
    }
    assert!(wears.len() <= RECORDS as usize);
    assert!(wears.keys().all(|record| *record < RECORDS));
    assert_eq!(size_of::<Wear>(), 24);
}

/// A device with few regions, faster than its values rest: the ledger refuses, at a bounded cost,
/// and serves again after the rest.
#[test]
fn p04_too_fast_user_is_refused_until_values_have_rested() {
    for numbering in NUMBERINGS {
        let mut world = World::new(numbering, 4, 4, None);
        assert_eq!(cycles(&mut world, 1024, 1024), Ok(4));
        world.terms.now = REST;
        for _ in 0..3 {
            let before = world.tries;
            assert_eq!(world.assign(), Ok(None), "{numbering:?}");
            assert!(world.tries - before <= 3 * TRIES as u64);
        }
        world.terms.now = 2 * REST;
        assert!(matches!(world.assign(), Ok(Some(_))), "{numbering:?}");
    }
}

/// Keys that are held through an epoch, at distances that meet every run of regions, and end just
/// before its end: the next epoch begins all the same.
#[test]
fn p04_keys_held_through_an_epoch_delay_nobody() {
    // A half of all values lasts longer than a rest.
    const RATE: u32 = 46;
    let mut world = World::new(Numbering::Cyclic, 256, 256, None);
    let (mut held, mut step) = (Vec::new(), 0);
    let mut assign = |world: &mut World| {
        world.terms.now = step / RATE;
        step += 1;
        let key = world.assign().unwrap();
        key.unwrap_or_else(|| panic!("refused at step {step}"))
    };
    for count in 0..6 * 65_536_u32 {
        let key = assign(&mut world);
        match count % 131_072 {
            60_000..60_256 if count % 32 == 0 => held.push(key),
            // Just before the end of the next epoch.
            128_000 => {
                world.revoke(key, false);
                held.drain(..).for_each(|key| world.revoke(key, false));
            }
            _ => world.revoke(key, false),
        }
    }
}

#[test]
fn p04_clock_read_before_the_end_of_a_key_renews_nothing() {
    let (mut ledger, mut wear) = (Ledger::new(7), Wear::default());
    draw_all(&mut ledger, 0, &mut wear, &terms(1000));
    ledger.advance(ledger.epoch(), 1001);
    assert_eq!(ledger.draw(0, &mut wear, None, &terms(999)), Draw::Spent);
}

#[test]
fn p04_strict_user_is_refused_for_ever_instead() {
    for numbering in [Numbering::Cyclic, Numbering::Lowest, Numbering::LastFreed] {
        let cyclic = numbering == Numbering::Cyclic;
        let mut world = World::new(numbering, if cyclic { 4 } else { 64 }, 3, None);
        world.terms.strict = Some(world.ledger.joined());
        assert_eq!(cycles(&mut world, 1024, 1024), Ok(4));
        world.terms.now = 1000 * REST;
        assert_eq!(world.assign(), Ok(None), "{numbering:?}");
    }
}

/// No more can be set aside, although the device has other indices: the one that rests for the longest time
/// serves the next key.
#[test]
fn p04_index_that_rests_for_the_longest_time_comes_first() {
    for numbering in [Numbering::Lowest, Numbering::LastFreed] {
        let mut world = World::new(numbering, 64, 3, None);
        assert_eq!(cycles(&mut world, 4 * 256, 256), Ok(4));
        world.terms.now = 5;
        assert_eq!(world.assign(), Ok(None), "{numbering:?}");
        world.terms.now = REST + 2;
        let (index, _) = world.assign().unwrap().unwrap();
        assert_eq!(index, 1, "{numbering:?}");
    }
}

/// Nothing can be set aside: the only index that the device offers serves keys again after its rest.
#[test]
fn p04_device_of_which_nothing_can_be_set_aside_serves_after_the_rest() {
    for numbering in [Numbering::Lowest, Numbering::LastFreed] {
        let mut world = World::new(numbering, 4, 0, None);
        assert_eq!(cycles(&mut world, 256, 256), Ok(1));
        assert_eq!(world.assign(), Ok(None), "{numbering:?}");
        world.terms.now = REST + 1;
        assert!(matches!(world.assign(), Ok(Some(_))), "{numbering:?}");
    }
}

/// kverbs does not know that the device counts up: when all values have rested, a search does not set aside
/// all indices.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and minutes long there")]
fn p04_unknown_device_that_counts_up_serves_after_64_rested_indices() {
    const SIZE: u32 = 500;
    let mut world = World::new(Numbering::Cyclic, SIZE, SIZE as usize, None);
    world.sets_aside = true;
    world.by_turns = false;
    assert_eq!(
        cycles(&mut world, 256 * SIZE, 256 * SIZE),
        Ok(SIZE as usize)
    );
    // Those that were found without a value while others had some.
    for index in std::mem::take(&mut world.aside).into_values() {
        world.free(index);
    }
    world.terms.now = 2 * REST;
    let before = world.tries;
    assert!(matches!(world.assign(), Ok(Some(_))));
    assert!(world.tries - before <= TRIES as u64);
}

/// No value has rested: a search tries the indices that the device offers, and none of those that rest.
#[test]
fn failing_search_draws_for_no_index_that_was_set_aside() {
    const SIZE: u32 = 80;
    let mut world = World::new(Numbering::Lowest, SIZE, 1000, None);
    world.by_turns = false;
    let keys = 256 * SIZE;
    assert_eq!(cycles(&mut world, keys, keys), Ok(SIZE as usize));
    world.terms.now = REST;
    // The first search finds the last index of all.
    for most in [1, 0] {
        world.draws = 0;
        assert_eq!(world.assign(), Ok(None));
        assert_eq!(world.draws, most);
    }
    // After the rest, each of them serves a key.
    world.terms.now = 2 * REST;
    for _ in 0..SIZE {
        assert!(matches!(world.assign(), Ok(Some(_))));
    }
}

/// A device that counts up, and rows of regions whose values all rest. An assignment tries [`TRIES`]
/// regions, and the next one goes on behind them.
#[test]
fn p04_row_of_resting_regions_refuses_one_assignment_for_each_64() {
    // CAST: A small constant.
    let row = TRIES as u32;
    for rows in 1..4 {
        let mut world = World::new(Numbering::Cyclic, 8 * row, 0, None);
        world.by_turns = false;
        // The values of the first regions are used, and an epoch begins: they rest.
        let (mut others, used) = (world.free.split_off(&(rows * row + 1)), rows * row);
        assert_eq!(
            cycles(&mut world, 256 * used, 256 * used),
            Ok(used as usize)
        );
        world.ledger.advance(world.ledger.epoch(), 1);
        world.terms.now = 2;
        world.free.append(&mut others);
        world.next = 1;
        for _ in 0..rows {
            let before = world.tries;
            assert_eq!(search(&mut world, false), Ok(None));
            assert_eq!(world.tries - before, u64::from(row));
        }
        let key = world.assign().unwrap().unwrap();
        assert_eq!(key.0, rows * row + 1);
    }
}

#[test]
fn planted_bugs_are_found() {
    for (bug, numbering) in [
        (Bug::EarlyEpoch, Numbering::Cyclic),
        (Bug::NoRest, Numbering::Cyclic),
        (Bug::EarlyEnd, Numbering::Cyclic),
        (Bug::GivenBack, Numbering::Lowest),
        (Bug::NothingAside, Numbering::Lowest),
    ] {
        let mut world = World::new(numbering, 8, 8, Some(bug));
        let long = vec![Step::Assign; 3];
        let found = cycles(&mut world, 3 * 2048, 3).and_then(|_| run(&mut world, &long));
        // One key lives for a long time.
        let found = found.and_then(|()| {
            let key = world.assign()?.ok_or("refused")?;
            for _ in 0..3 {
                cycles(&mut world, 7 * 256, 1)?;
            }
            world.revoke(key, false);
            cycles(&mut world, 2048, 2048)
        });
        assert!(found.is_err(), "{bug:?} is not found");
    }
}

/// An event of a device's user.
#[derive(Clone, Debug)]
enum Step {
    Assign,
    Revoke(prop::sample::Index),
    /// A slot is closed before its value was in a key.
    Unused(prop::sample::Index),
    /// So many keys, one after the other.
    Burst(u16),
    /// A key whose byte the device chooses.
    Chosen(u8),
    Wait(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Assign),
        2 => any::<prop::sample::Index>().prop_map(Step::Revoke),
        1 => any::<prop::sample::Index>().prop_map(Step::Unused),
        4 => (1..300_u16).prop_map(Step::Burst),
        1 => any::<u8>().prop_map(Step::Chosen),
        2 => (1..REST).prop_map(Step::Wait),
    ]
}

fn run(world: &mut World, steps: &[Step]) -> Result<(), String> {
    let mut live: Vec<((u32, u8), bool)> = Vec::new();
    for step in steps {
        match step {
            // The device needs a region for other keys.
            Step::Assign | Step::Chosen(_) if world.free.len() <= 1 => {}
            Step::Assign => live.extend(world.assign()?.map(|key| (key, false))),
            Step::Chosen(byte) => live.extend(world.choose(*byte)?.map(|key| (key, true))),
            Step::Revoke(at) | Step::Unused(at) => {
                if !live.is_empty() {
                    let (key, chosen) = live.swap_remove(at.index(live.len()));
                    let unused = matches!(step, Step::Unused(_)) && !chosen;
                    world.revoke(key, unused);
                }
            }
            Step::Burst(count) => {
                for _ in 0..*count {
                    if world.free.is_empty() && world.aside.is_empty() {
                        break;
                    }
                    match world.assign()? {
                        Some(key) => world.revoke(key, false),
                        None => break,
                    }
                }
            }
            Step::Wait(s) => world.terms.now += s,
        }
    }
    Ok(())
}

/// A case has up to 60,000 keys.
fn few() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(debug_assertions) { 64 } else { 1024 },
        ..super::config()
    }
}

proptest! {
    #![proptest_config(few())]

    /// In any order of events, on any device, no value comes before its turn or before its rest,
    /// and the ledger refuses only if no value is available.
    #[test]
    #[cfg_attr(miri, ignore = "no unsafe code, and hours long there")]
    fn p04_no_value_comes_before_its_turn(
        steps in prop::collection::vec(step(), 0..super::STEPS),
        numbering in prop::sample::select(NUMBERINGS.to_vec()),
        size in 1..6_u32,
    ) {
        let mut world = World::new(numbering, size, size as usize, None);
        let result = run(&mut world, &steps);
        prop_assert_eq!(result, Ok(()));
    }
}
