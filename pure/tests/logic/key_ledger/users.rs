// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Users of one device who share a ledger: strict and plain ones, one after the other and interleaved.
//!
//! The checks know times in milliseconds, and ask for more than the rules of the ledger say: a plain user
//! is refused only while no half of a region that it can reach has rested.

use kfabric_pure::key_budget::{self, Budget, Payer};
use kfabric_pure::key_ledger::{
    has_rested, record_of, search, Chosen, Draw, Ledger, Regions, Terms, Wear, TRIES,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// How a device numbers new regions.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    /// The next free index, and the first again after the last. No index is set aside.
    Cyclic,
    Lowest,
    LastFreed,
    Random,
}

const ORDERS: [Order; 4] = [
    Order::Cyclic,
    Order::Lowest,
    Order::LastFreed,
    Order::Random,
];

/// Milliseconds for which a key takes at least.
const KEY_MS: u64 = 1;

/// What the checks know of a half of an index.
#[derive(Clone, Debug, Default)]
struct Half {
    /// Keys that are in use.
    live: u32,
    /// Time of the last end of a key.
    ended: Option<u64>,
    /// Values that were ever drawn.
    drawn: BTreeSet<u8>,
}

/// A group: a user of the ledger.
#[derive(Default)]
struct User {
    strict: Option<u64>,
    /// Indices that a search passes over.
    skipped: Vec<u32>,
    /// Values that were drawn by any user since this one joined.
    since: BTreeSet<(u32, u8)>,
}

/// A device, its ledger and users.
struct Shared {
    order: Order,
    free: Vec<u32>,
    next: u32,
    random: u64,
    ledger: Ledger,
    wears: BTreeMap<u32, (Wear, Chosen)>,
    halves: BTreeMap<(u32, bool), Half>,
    /// Time of the last end of each value.
    ends: BTreeMap<(u32, u8), u64>,
    users: Vec<Option<User>>,
    /// Indices that were set aside, by the second since which they rest and in the order in which they came.
    aside: BTreeMap<(u32, u64), u32>,
    /// Number of indices that can be set aside.
    bound: usize,
    /// Accounts of the users, which outlive their groups.
    budgets: Vec<Budget>,
    /// Values that a user may draw at once, or 0 for any number.
    limit: u32,
    /// Number of regions that the device was asked for.
    tries: u64,
    ms: u64,
    rest: u32,
}

/// A device, as one of its users sees it.
struct View<'a> {
    shared: &'a mut Shared,
    user: &'a mut User,
    at: usize,
}

type Region = (u32, Option<u8>);

impl Shared {
    fn new(order: Order, size: u32, users: usize, rest: u32) -> Self {
        Self {
            order,
            free: (0..size).rev().collect(),
            next: 0,
            random: 88_172_645_463_325_252,
            ledger: Ledger::new(0x1234_5678_9abc),
            wears: BTreeMap::new(),
            halves: BTreeMap::new(),
            ends: BTreeMap::new(),
            users: (0..users).map(|_| None).collect(),
            aside: BTreeMap::new(),
            bound: usize::MAX,
            budgets: vec![Payer { uid: 0, limit: 0 }.budget(); users],
            limit: 0,
            tries: 0,
            ms: 999_500,
            rest,
        }
    }

    /// Lets each user draw `limit` values at once.
    fn bound_draws(&mut self, limit: u32) {
        self.limit = limit;
        self.budgets.fill(Payer { uid: 0, limit }.budget());
    }

    fn terms(&self, user: &User) -> Terms {
        Terms {
            now: (self.ms / 1000) as u32,
            rest: self.rest,
            strict: user.strict,
        }
    }

    fn open(&mut self, at: usize, strict: bool) {
        self.close(at);
        self.users[at] = Some(User {
            strict: strict.then(|| self.ledger.joined()),
            ..User::default()
        });
    }

    fn close(&mut self, at: usize) {
        self.users[at] = None;
    }

    fn now(&self) -> u32 {
        (self.ms / 1000) as u32
    }

    fn sets_aside(&self) -> bool {
        self.order != Order::Cyclic
    }

    /// Returns the second since which an index rests, or `None` if it has values.
    fn resting_since(&self, index: u32) -> Option<u32> {
        let (wear, _) = self.wears.get(&record_of(index << 8))?;
        wear.resting_since(self.now())
    }

    /// Obtains an index from the device.
    fn offer(&mut self) -> Option<u32> {
        self.tries += 1;
        if self.free.is_empty() {
            return None;
        }
        let lowest = |from: u32| {
            let all = self.free.iter().enumerate();
            let above = all.clone().filter(|(_, index)| **index >= from);
            let first = above.min_by_key(|(_, index)| **index);
            let (at, _) = first.or_else(|| all.min_by_key(|(_, i)| **i)).unwrap();
            at
        };
        let at = match self.order {
            Order::Cyclic => lowest(self.next),
            Order::Lowest => lowest(0),
            Order::LastFreed => self.free.len() - 1,
            Order::Random => {
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                (self.random % self.free.len() as u64) as usize
            }
        };
        let index = self.free.remove(at);
        self.next = index + 1;
        Some(index)
    }

    /// Sets the index aside that the device offers next, if it has no value.
    fn set_aside(&mut self) -> bool {
        if self.aside.len() >= self.bound {
            return false;
        }
        let Some(index) = self.offer() else {
            return true;
        };
        match self.resting_since(index) {
            Some(since) => {
                self.aside.insert((since, self.tries), index);
            }
            None => self.free.push(index),
        }
        true
    }

    /// Frees the index of a key that has ended.
    fn freed(&mut self, index: u32) {
        self.free.push(index);
        if self.sets_aside() && self.resting_since(index).is_some() {
            self.set_aside();
        }
    }

    fn take(&mut self, at: usize) -> bool {
        let terms = key_budget::Terms {
            now: self.now(),
            rest: self.rest,
        };
        self.limit == 0 || self.budgets[at].take(&terms)
    }

    /// Assigns a key of a user.
    fn assign(&mut self, at: usize) -> Result<Option<(u32, u8)>, String> {
        let mut user = self.users[at].take().unwrap();
        let strict = user.strict.is_some();
        let mut view = View {
            shared: &mut *self,
            user: &mut user,
            at,
        };
        let found = search(&mut view, strict);
        self.free.append(&mut user.skipped);
        self.users[at] = Some(user);
        match found {
            Ok(Some((index, byte))) => {
                let key = (index, byte.unwrap());
                self.check(at, key)?;
                Ok(Some(key))
            }
            Ok(None) | Err(()) => {
                // Within a bound there may be values.
                if self.limit == 0 && self.bound == usize::MAX {
                    self.check_refusal(at)?;
                }
                Ok(None)
            }
        }
    }

    fn check(&mut self, at: usize, key: (u32, u8)) -> Result<(), String> {
        let half = self.halves.entry((key.0, key.1 < 128)).or_default();
        half.live += 1;
        half.drawn.insert(key.1);
        match self.ends.insert(key, u64::MAX) {
            Some(u64::MAX) => return Err(format!("{key:?} is in use")),
            Some(ended) if self.ms - ended < u64::from(self.rest) * 1000 => {
                return Err(format!("{key:?} has rested {} ms", self.ms - ended));
            }
            _ => {}
        }
        let user = self.users[at].as_ref().unwrap();
        if user.strict.is_some() && user.since.contains(&key) {
            return Err(format!("{key:?} comes again for a strict user"));
        }
        for user in self.users.iter_mut().flatten() {
            user.since.insert(key);
        }
        Ok(())
    }

    /// Checks that no value was available to the user.
    fn check_refusal(&self, at: usize) -> Result<(), String> {
        let user = self.users[at].as_ref().unwrap();
        for index in self.free.iter().chain(self.aside.values()) {
            for lower in [true, false] {
                let default = Half::default();
                let half = self.halves.get(&(*index, lower)).unwrap_or(&default);
                let new = half.drawn.is_empty();
                // A ledger counts in seconds.
                let needed = match self.rest {
                    0 => 0,
                    rest => (u64::from(rest) + 1) * 1000,
                };
                let rested = half.live == 0 && half.ended.is_some_and(|e| self.ms - e >= needed);
                if new || user.strict.is_none() && rested {
                    return Err(format!(
                        "refused, but {index} {lower} is new {new}, rested {rested}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, key: (u32, u8)) {
        self.ms += KEY_MS;
        let now = self.now();
        let (wear, _) = self.wears.get_mut(&record_of(key.0 << 8)).unwrap();
        wear.end(key.1, now);
        let half = self.halves.get_mut(&(key.0, key.1 < 128)).unwrap();
        half.live -= 1;
        half.ended = Some(self.ms);
        self.ends.insert(key, self.ms);
    }

    fn revoke(&mut self, key: (u32, u8)) {
        self.end(key);
        self.freed(key.0);
    }

    /// Reserves a key of a user, and ends the slot before the value was in a key.
    fn unused(&mut self, at: usize) -> Result<(), String> {
        let ends = self.ends.clone();
        let users = self.users.iter();
        let since: Vec<_> = users
            .map(|user| user.as_ref().map(|user| user.since.clone()))
            .collect();
        let Some(key) = self.assign(at)? else {
            return Ok(());
        };
        let record = record_of(key.0 << 8);
        let (wear, _) = self.wears.get_mut(&record).unwrap();
        self.ledger.give_back(record, wear, key.1);
        self.budgets[at].give_back();
        let half = self.halves.get_mut(&(key.0, key.1 < 128)).unwrap();
        half.live -= 1;
        self.ends = ends;
        for (user, since) in self.users.iter_mut().zip(since) {
            if let (Some(user), Some(since)) = (user, since) {
                user.since = since;
            }
        }
        self.free.push(key.0);
        Ok(())
    }

    /// Invalidates a key. Returns the next key of its region, or frees the region.
    fn next(&mut self, at: usize, key: (u32, u8)) -> Result<Option<(u32, u8)>, String> {
        self.end(key);
        if !self.take(at) {
            self.freed(key.0);
            return Ok(None);
        }
        let user = self.users[at].as_ref().unwrap();
        let terms = self.terms(user);
        let record = record_of(key.0 << 8);
        let (wear, chosen) = self.wears.get_mut(&record).unwrap();
        let chosen = wear.has_chosen().then_some(chosen);
        match self.ledger.draw_next(record, wear, key.1, chosen, &terms) {
            Draw::Value(byte, _) => {
                self.check(at, (key.0, byte))?;
                Ok(Some((key.0, byte)))
            }
            _ => {
                self.budgets[at].give_back();
                self.freed(key.0);
                Ok(None)
            }
        }
    }

    /// Assigns and revokes up to `count` keys of a user, of one region for as long as it has values if
    /// `keeps`. Returns the number of keys.
    fn burst(&mut self, at: usize, count: usize, keeps: bool) -> Result<usize, String> {
        let mut last = None;
        for done in 0..count {
            let next = match last {
                Some(key) if keeps => self.next(at, key)?,
                Some(key) => {
                    self.revoke(key);
                    None
                }
                None => None,
            };
            last = match next {
                Some(key) => Some(key),
                None => self.assign(at)?,
            };
            if last.is_none() {
                return Ok(done);
            }
        }
        if let Some(key) = last {
            self.revoke(key);
        }
        Ok(count)
    }
}

impl Regions for View<'_> {
    type Region = Region;
    type Error = ();

    fn fresh(&mut self) -> Result<Region, ()> {
        self.shared.offer().map(|index| (index, None)).ok_or(())
    }

    fn draw(&mut self, region: &mut Region) -> Result<Draw, ()> {
        let shared = &mut *self.shared;
        if !shared.take(self.at) {
            shared.free.push(region.0);
            return Err(());
        }
        let terms = shared.terms(self.user);
        let record = record_of(region.0 << 8);
        let (wear, chosen) = shared.wears.entry(record).or_default();
        let chosen = wear.has_chosen().then_some(chosen);
        let drawn = shared.ledger.draw(record, wear, chosen, &terms);
        match drawn {
            Draw::Value(byte, _) => region.1 = Some(byte),
            _ => shared.budgets[self.at].give_back(),
        }
        Ok(drawn)
    }

    fn sets_aside(&self) -> bool {
        self.shared.sets_aside()
    }

    fn set_aside(&mut self, (index, _): Region) -> bool {
        let shared = &mut *self.shared;
        if shared.sets_aside() && shared.resting_since(index).is_none() {
            self.user.skipped.push(index);
            return self.user.skipped.len() < TRIES;
        }
        shared.free.push(index);
        !shared.sets_aside() || shared.set_aside()
    }

    fn release(&mut self) -> bool {
        let (now, rest) = (self.shared.now(), self.shared.rest);
        match self.shared.aside.first_key_value() {
            Some(((since, _), _)) if has_rested(now, *since, rest) => {
                let (_, index) = self.shared.aside.pop_first().unwrap();
                self.shared.free.push(index);
                true
            }
            _ => false,
        }
    }

    fn epoch(&self) -> u64 {
        self.shared.ledger.epoch()
    }

    fn advance(&mut self, epoch: u64) {
        let now = (self.shared.ms / 1000) as u32;
        self.shared.ledger.advance(epoch, now);
    }
}

/// Values of a device with 15 regions.
const ALL: usize = 15 * 256;

/// A strict user takes all values and ends. Then a plain one gets values as soon as they have rested.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and minutes long there")]
fn p04_plain_user_after_a_strict_one_gets_rested_values() {
    for order in ORDERS {
        for rest in [0, 5] {
            for last in [false, true] {
                let mut all = Shared::new(order, 15, 2, rest);
                all.open(0, true);
                assert_eq!(all.burst(0, ALL + 1, false), Ok(ALL), "{order:?}");
                let end = all.ms;
                if last {
                    all.ms += 1000 * u64::from(rest);
                }
                all.close(0);
                all.open(1, false);
                let mut had = 0;
                for _ in 0..3 {
                    had += all
                        .burst(1, ALL, false)
                        .unwrap_or_else(|e| panic!("{order:?} {rest} {last}, after {had}: {e}"));
                    all.ms += 1000;
                }
                let rested = (all.ms - end) / 1000 >= u64::from(rest);
                assert!(!rested || had > 0, "{order:?} {rest}: {had}");
                if rest == 0 {
                    assert_eq!(had, 3 * ALL, "{order:?}");
                }
            }
        }
    }
}

/// A strict user gets no value that any user has drawn since it joined. So it is refused although it has
/// drawn few values itself, until it joins anew. It begins no epoch: when the values of the epoch are drawn, a
/// strict user that joins is refused, too, until a plain one has begun the next epoch.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and minutes long there")]
fn p04_strict_user_is_refused_after_draws_of_others_until_it_joins_anew() {
    for order in ORDERS {
        let mut all = Shared::new(order, 15, 2, 0);
        all.open(0, true);
        assert_eq!(all.burst(0, 10, false), Ok(10), "{order:?}");
        all.open(1, false);
        // All values of the first epoch, and some of the next one.
        let drawn = ALL + ALL / 2;
        assert_eq!(all.burst(1, drawn, false), Ok(drawn), "{order:?}");
        all.close(1);
        assert_eq!(all.burst(0, 1, false), Ok(0), "{order:?}");
        all.open(0, true);
        let left = all.burst(0, ALL, false).unwrap();
        assert!((1..ALL).contains(&left), "{order:?}: {left}");
        // The values have rested: for a plain user only.
        all.open(0, true);
        assert_eq!(all.burst(0, 1, false), Ok(0), "{order:?}");
        all.close(0);
        all.open(1, false);
        assert_eq!(all.burst(1, 1, false), Ok(1), "{order:?}");
        all.open(0, true);
        assert_eq!(all.burst(0, 1, false), Ok(1), "{order:?}");
    }
}

/// P4: a user draws values as fast as it can, and begins anew all the time. It exhausts its own budget, and
/// no other user notices. After the rest, the first user has values again.
#[test]
#[cfg_attr(miri, ignore = "no unsafe code, and minutes long there")]
fn p04_user_who_draws_many_values_exhausts_its_own_budget_alone() {
    const ASIDE: usize = 64;
    const REST: u32 = 600;
    for (order, keeps, is_limited) in ORDERS
        .into_iter()
        .flat_map(|order| [(order, false), (order, true)])
        .flat_map(|(order, keeps)| [(order, keeps, true), (order, keeps, false)])
    {
        let name = format!("{order:?}, {keeps}, {is_limited}");
        let mut all = Shared::new(order, 100, 2, REST);
        all.bound = ASIDE;
        if is_limited {
            all.bound_draws(ASIDE as u32 * 32);
        }
        all.open(1, false);
        let (mut burnt, mut refused, mut most) = (0, 0, 0);
        for _ in 0..20 {
            all.open(0, false);
            burnt += all.burst(0, 2000, keeps).unwrap();
            all.close(0);
            let before = all.tries;
            refused += 100 - all.burst(1, 100, keeps).unwrap();
            most = most.max(all.tries - before);
        }
        // Without a limit, the other user is refused: this test can fail.
        assert_eq!(refused == 0, is_limited, "{name}: {refused}");
        if !is_limited {
            continue;
        }
        assert!(all.ms < 1_000_000 + 1000 * u64::from(REST), "{name}");
        assert!(burnt >= ASIDE * 32, "{name}: {burnt}");
        // Three regions at most for a key, and for each index that the first user has left without a value.
        assert!(most <= 3 * (100 + ASIDE as u64), "{name}: {most}");
        assert!(all.aside.len() <= ASIDE, "{name}");
        all.open(0, false);
        assert!(all.burst(0, 256, keeps).unwrap() < 256, "{name}");
        all.ms += 1000 * u64::from(REST + 1);
        assert_eq!(all.burst(0, 1000, keeps), Ok(1000), "{name}");
        assert_eq!(all.burst(1, 1000, keeps), Ok(1000), "{name}");
    }
}

/// An event on a device.
#[derive(Clone, Debug)]
enum Step {
    /// A user begins, in place of the one before.
    Open(usize, bool),
    Close(usize),
    /// A key that stays.
    Assign(usize),
    Revoke(prop::sample::Index),
    /// A user's key that was reserved only.
    Unused(usize),
    /// So many keys, one after the other, and whether they keep their region.
    Burst(usize, usize, bool),
    Wait(u64),
}

/// Number of users.
const USERS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..USERS, any::<bool>()).prop_map(|(at, strict)| Step::Open(at, strict)),
        1 => (0..USERS).prop_map(Step::Close),
        2 => (0..USERS).prop_map(Step::Assign),
        2 => any::<prop::sample::Index>().prop_map(Step::Revoke),
        1 => (0..USERS).prop_map(Step::Unused),
        6 => (0..USERS, 1..300_usize, any::<bool>())
            .prop_map(|(at, count, keeps)| Step::Burst(at, count, keeps)),
        3 => (1..9000_u64).prop_map(Step::Wait),
    ]
}

fn run(all: &mut Shared, steps: &[Step]) -> Result<(), String> {
    let mut live = Vec::new();
    for step in steps {
        match step {
            Step::Open(at, strict) => all.open(*at, *strict),
            Step::Close(at) => all.close(*at),
            Step::Assign(at) | Step::Unused(at) | Step::Burst(at, ..)
                if all.users[*at].is_none() => {}
            Step::Assign(at) => live.extend(all.assign(*at)?),
            Step::Revoke(at) => {
                if !live.is_empty() {
                    all.revoke(live.swap_remove(at.index(live.len())));
                }
            }
            Step::Unused(at) => all.unused(*at)?,
            Step::Burst(at, count, keeps) => {
                all.burst(*at, *count, *keeps)?;
            }
            Step::Wait(ms) => all.ms += ms,
        }
    }
    Ok(())
}

fn few() -> ProptestConfig {
    ProptestConfig {
        cases: if cfg!(debug_assertions) { 128 } else { 4096 },
        ..crate::config()
    }
}

proptest! {
    #![proptest_config(few())]

    /// In any order of events: no value before its rest, none twice for a strict user, and no refusal
    /// while a reachable half is new or has rested.
    #[test]
    #[cfg_attr(miri, ignore = "no unsafe code, and hours long there")]
    fn p04_users_of_one_device_are_refused_only_without_rested_values(
        steps in prop::collection::vec(step(), 0..crate::STEPS),
        order in prop::sample::select(ORDERS.to_vec()),
        size in 1..6_u32,
        rest in prop::sample::select(vec![0, 1, 5, 20]),
    ) {
        let mut all = Shared::new(order, size, USERS, rest);
        let result = run(&mut all, &steps);
        prop_assert_eq!(result, Ok(()));
    }
}
