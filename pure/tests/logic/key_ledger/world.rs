// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A model of a device and of one user of a ledger, with an independent record of the draws.

use super::{terms, REST};
use kfabric_pure::key_ledger::{
    has_rested, record_of, search, Chosen, Draw, Ledger, Regions, Terms, Wear, TRIES,
};
use std::collections::{BTreeMap, BTreeSet};

/// How a device numbers new regions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Numbering {
    /// The next free index, and the first again after the last: rxe.
    Cyclic,
    Lowest,
    LastFreed,
    Random,
}

pub(super) const NUMBERINGS: [Numbering; 4] = [
    Numbering::Cyclic,
    Numbering::Lowest,
    Numbering::LastFreed,
    Numbering::Random,
];

/// A fault of the ledger's user or of the rules, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bug {
    /// An epoch ends before its values are drawn.
    EarlyEpoch,
    NoRest,
    /// The end of a key is recorded when the key is assigned.
    EarlyEnd,
    /// A value that was in a key is given back.
    GivenBack,
    /// No index is set aside, although the device offers the same ones again.
    NothingAside,
}

/// History of the values of one record.
#[derive(Clone)]
pub(super) struct Values {
    pub(super) uses: [u8; 256],
    ended: [u32; 256],
    /// `ended` before the last draw.
    before: [u32; 256],
    live: u32,
    /// The record was in use when an epoch began, or was not known, or keys kept its values from
    /// being drawn in an epoch. It may have fewer uses than the others from then on.
    late: bool,
    /// The values are counted in [`World::with_uses`].
    counted: bool,
}

/// A device, the user of a ledger, and an independent record of the draws.
pub(super) struct World {
    pub(super) numbering: Numbering,
    pub(super) free: BTreeSet<u32>,
    pub(super) stack: Vec<u32>,
    pub(super) size: u32,
    pub(super) next: u32,
    pub(super) random: u64,
    /// Indices that were set aside, by the second since which they rest and in the order in which they came.
    pub(super) aside: BTreeMap<(u32, u64), u32>,
    pub(super) bound: usize,
    /// Indices that a search of a strict user passes over.
    pub(super) skipped: Vec<u32>,
    /// Number of draws.
    pub(super) draws: u64,
    pub(super) ledger: Ledger,
    pub(super) wears: BTreeMap<u32, (Wear, Chosen)>,
    pub(super) terms: Terms,
    pub(super) bug: Option<Bug>,
    pub(super) had: BTreeMap<u32, Values>,
    /// Number of values with so many uses, of records that are neither late nor in use.
    pub(super) with_uses: [u64; 64],
    pub(super) tries: u64,
    /// Time at which the epoch began.
    pub(super) began: u32,
    /// Indices without a value are set aside.
    pub(super) sets_aside: bool,
    /// Each value is drawn once before one is drawn again. Not so if regions keep their index: 31 values
    /// of a half then rest without use.
    pub(super) by_turns: bool,
}

pub(super) type Region = (u32, Option<u8>);

impl World {
    pub(super) fn new(numbering: Numbering, size: u32, bound: usize, bug: Option<Bug>) -> Self {
        Self {
            numbering,
            free: (1..=size).collect(),
            stack: (1..=size).rev().collect(),
            size,
            next: 1,
            random: 88_172_645_463_325_252,
            aside: BTreeMap::new(),
            bound,
            skipped: Vec::new(),
            draws: 0,
            ledger: Ledger::new(0x1234_5678_9abc),
            wears: BTreeMap::new(),
            terms: terms(0),
            bug,
            had: BTreeMap::new(),
            with_uses: [0; 64],
            tries: 0,
            began: 0,
            sets_aside: numbering != Numbering::Cyclic && bug != Some(Bug::NothingAside),
            by_turns: true,
        }
    }

    pub(super) fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    pub(super) fn free(&mut self, index: u32) {
        self.stack.push(index);
        assert!(self.free.insert(index));
    }

    pub(super) fn count(&mut self, record: u32) {
        if !self.by_turns {
            return;
        }
        let values = self.had.get_mut(&record).unwrap();
        let counted = values.live == 0 && !values.late;
        if counted == values.counted {
            return;
        }
        values.counted = counted;
        for uses in values.uses {
            let count = &mut self.with_uses[usize::from(uses)];
            *count = if counted { *count + 1 } else { *count - 1 };
        }
    }

    /// Checks the draw of a value, and that it is the turn of the value.
    pub(super) fn check(&mut self, (index, byte): (u32, u8), chosen: bool) -> Result<(), String> {
        let record = record_of(index << 8);
        let now = self.terms.now;
        let late = self.ledger.epoch() > 0;
        self.had.entry(record).or_insert(Values {
            uses: [0; 256],
            ended: [0; 256],
            before: [0; 256],
            live: 0,
            late,
            counted: false,
        });
        self.count(record);
        let (values, at) = (&self.had[&record], usize::from(byte));
        let (uses, ended) = (values.uses[at], values.ended[at]);
        if ended == u32::MAX {
            return Err(format!("{index:#x} {byte} is in use"));
        }
        if uses > 0 && now - ended < REST {
            return Err(format!("{index:#x} {byte} has rested {} s", now - ended));
        }
        let less: u64 = self.with_uses[..usize::from(uses)].iter().sum();
        if less > 0 && !chosen {
            return Err(format!("{less} values had fewer than {uses} uses"));
        }
        let values = self.had.get_mut(&record).unwrap();
        values.live += 1;
        // The device does not know whose turn it is.
        values.late |= chosen;
        self.count(record);
        let values = self.had.get_mut(&record).unwrap();
        values.uses[at] = values.uses[at].saturating_add(1);
        values.before[at] = ended;
        values.ended[at] = u32::MAX;
        Ok(())
    }

    pub(super) fn ended(&mut self, (index, byte): (u32, u8), unused: bool) {
        let record = record_of(index << 8);
        let values = self.had.get_mut(&record).unwrap();
        values.live -= 1;
        let at = usize::from(byte);
        values.ended[at] = self.terms.now;
        if unused {
            values.uses[at] -= 1;
            values.ended[at] = values.before[at];
        }
        self.count(record);
    }

    /// Assigns a key.
    pub(super) fn assign(&mut self) -> Result<Option<(u32, u8)>, String> {
        if self.bug == Some(Bug::EarlyEpoch) {
            self.ledger.advance(self.ledger.epoch(), self.terms.now);
        }
        let strict = self.terms.strict.is_some();
        let found = search(self, strict);
        for index in std::mem::take(&mut self.skipped) {
            self.free(index);
        }
        let Some((index, byte)) = found.or_else(|e| match self.aside.is_empty() {
            true => Err(e),
            false => Ok(None),
        })?
        else {
            self.check_refusal(strict)?;
            return Ok(None);
        };
        let key = (index, byte.unwrap());
        self.check(key, false)?;
        if self.bug == Some(Bug::EarlyEnd) {
            self.end(key, false);
        }
        Ok(Some(key))
    }

    pub(super) fn end(&mut self, (index, byte): (u32, u8), unused: bool) {
        let now = self.terms.now;
        let record = record_of(index << 8);
        let (wear, _) = self.wears.get_mut(&record).unwrap();
        if unused {
            self.ledger.give_back(record, wear, byte);
        } else {
            wear.end(byte, now);
        }
    }

    /// Revokes a key, or closes a slot whose value was in no key.
    pub(super) fn revoke(&mut self, key: (u32, u8), unused: bool) {
        if self.bug != Some(Bug::EarlyEnd) {
            self.end(key, unused || self.bug == Some(Bug::GivenBack));
        }
        self.ended(key, unused);
        self.free(key.0);
    }

    /// Invalidates a key. Returns the next key of its region, or frees the region.
    pub(super) fn invalidate(&mut self, key: (u32, u8)) -> Result<Option<(u32, u8)>, String> {
        self.end(key, false);
        self.ended(key, false);
        let (index, byte) = key;
        let record = record_of(index << 8);
        let (wear, chosen) = self.wears.get_mut(&record).unwrap();
        let chosen = wear.has_chosen().then_some(chosen);
        let terms = self.terms;
        match self.ledger.draw_next(record, wear, byte, chosen, &terms) {
            Draw::Value(byte, _) => {
                self.check((index, byte), false)?;
                Ok(Some((index, byte)))
            }
            _ => {
                self.free(index);
                Ok(None)
            }
        }
    }

    /// Lets the device choose the byte of a key.
    pub(super) fn choose(&mut self, byte: u8) -> Result<Option<(u32, u8)>, String> {
        let Ok((index, _)) = self.fresh() else {
            return Ok(None);
        };
        let record = record_of(index << 8);
        let (wear, chosen) = self.wears.entry(record).or_default();
        match self.ledger.take(record, wear, chosen, byte, &self.terms) {
            Draw::Value(..) => {
                self.check((index, byte), true)?;
                Ok(Some((index, byte)))
            }
            _ => {
                self.free(index);
                Ok(None)
            }
        }
    }

    /// Checks that no value was available when the ledger refused.
    pub(super) fn check_refusal(&self, strict: bool) -> Result<(), String> {
        let full = self.sets_aside && self.aside.len() >= self.bound;
        let reachable: Vec<_> = match full {
            false => self.free.iter().chain(self.aside.values()).collect(),
            _ if strict => Vec::new(),
            _ => self.aside.values().collect(),
        };
        let unused = |values: &Values| values.uses.contains(&0);
        // One value that rests delays the next epoch, and with it all others.
        let rests = |values: &Values| {
            let rests = |ended: &u32| self.terms.now <= ended.saturating_add(REST);
            values.live != 0 || values.ended.iter().any(rests)
        };
        let values = |index: &&u32| self.had.get(&record_of(**index << 8));
        let mut reachable = reachable.iter().map(values);
        let wrong = match strict {
            true => reachable.any(|had| had.is_none_or(unused)),
            false => {
                let had: Vec<_> = reachable.collect();
                let unused = had.iter().any(|had| had.is_none_or(unused));
                unused || !had.is_empty() && !had.iter().flatten().any(|had| rests(had))
            }
        };
        match wrong {
            true => Err("refused although there are values".to_string()),
            false => Ok(()),
        }
    }
}

impl Regions for World {
    type Region = Region;
    type Error = String;

    fn fresh(&mut self) -> Result<Region, String> {
        self.tries += 1;
        let index = match self.numbering {
            Numbering::Cyclic => {
                let at = self.free.range(self.next..).next();
                at.or_else(|| self.free.first()).copied()
            }
            Numbering::Lowest => self.free.first().copied(),
            Numbering::LastFreed => loop {
                match self.stack.pop() {
                    Some(index) if self.free.contains(&index) => break Some(index),
                    Some(_) => {}
                    None => break None,
                }
            },
            Numbering::Random => {
                let from = 1 + (self.random() % u64::from(self.size)) as u32;
                let at = self.free.range(from..).next();
                at.or_else(|| self.free.first()).copied()
            }
        };
        let index = index.ok_or("no region is left")?;
        self.free.remove(&index);
        self.next = index + 1;
        Ok((index, None))
    }

    fn draw(&mut self, region: &mut Region) -> Result<Draw, String> {
        self.draws += 1;
        let record = record_of(region.0 << 8);
        let (wear, chosen) = self.wears.entry(record).or_default();
        let chosen = wear.has_chosen().then_some(chosen);
        let mut terms = self.terms;
        if self.bug == Some(Bug::NoRest) {
            terms.rest = 0;
        }
        let drawn = self.ledger.draw(record, wear, chosen, &terms);
        if let Draw::Value(byte, _) = drawn {
            region.1 = Some(byte);
        }
        Ok(drawn)
    }

    fn sets_aside(&self) -> bool {
        self.sets_aside
    }

    fn set_aside(&mut self, (index, _): Region) -> bool {
        let (wear, _) = &self.wears[&record_of(index << 8)];
        match wear.resting_since(self.terms.now) {
            Some(since) if self.sets_aside && self.aside.len() < self.bound => {
                self.aside.insert((since, self.tries), index);
                true
            }
            Some(_) => {
                self.free(index);
                !self.sets_aside
            }
            None => {
                self.skipped.push(index);
                self.skipped.len() < TRIES
            }
        }
    }

    fn release(&mut self) -> bool {
        let now = self.terms.now;
        match self.aside.first_key_value() {
            Some(((since, _), _)) if has_rested(now, *since, self.terms.rest) => {
                let (_, index) = self.aside.pop_first().unwrap();
                self.free(index);
                true
            }
            _ => false,
        }
    }

    fn epoch(&self) -> u64 {
        self.ledger.epoch()
    }

    fn advance(&mut self, epoch: u64) {
        self.ledger.advance(epoch, self.terms.now);
        if !self.by_turns {
            return;
        }
        let all = self.had.values().flat_map(|values| values.uses);
        let most = all.max().unwrap_or(0);
        let began = std::mem::replace(&mut self.began, self.terms.now);
        let records: Vec<_> = self.had.keys().copied().collect();
        for record in records {
            let values = self.had.get_mut(&record).unwrap();
            let halves = values.uses.chunks(128).zip(values.ended.chunks(128));
            let kept = halves.into_iter().any(|(uses, ended)| {
                let behind = uses.iter().any(|uses| *uses < most);
                behind && ended.iter().any(|ended| *ended >= began)
            });
            values.late |= values.live != 0 || kept;
            self.count(record);
        }
    }
}

/// Assigns and revokes `count` keys, `rate` in a second. Returns the number of records.
pub(super) fn cycles(world: &mut World, count: u32, rate: u32) -> Result<usize, String> {
    for step in 0..count {
        world.terms.now = step / rate;
        let key = world.assign()?;
        let key = key.ok_or_else(|| format!("refused at step {step}"))?;
        world.revoke(key, false);
    }
    Ok(world.wears.len())
}
