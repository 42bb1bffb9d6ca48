// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Accounting of the values of verbs keys.
//!
//! A verbs key is the device's index of a memory region plus, in the low eight bits, a byte that
//! the owner of the region chooses. Indices are reused soon. A value must not be, or a peer with an
//! old key would reach the memory behind the new one (P4).
//!
//! A [`Ledger`] accounts for the values of one scope, in epochs. In an epoch each value is drawn at
//! most once. The next epoch begins when the device offers only indices whose values are all drawn,
//! or were in use during the epoch: a key that lives long delays no epoch. In the next epoch, values
//! can be drawn again when they have rested: a fixed time has passed since the end of the last key
//! with one of them. The values of an index rest in two halves, so that the first half
//! rests while the second one is drawn. If no value has rested, there is none for the moment. A
//! strict user of the ledger gets no value that was drawn since the user joined.
//!
//! Nothing is stored for a value. The bytes of a half come in a secret order that a permutation
//! defines ([`Ledger::byte`]), so their number is enough ([`Half`]). Only the bytes that a device
//! chooses itself, out of order, need a bit each ([`Chosen`]).
//!
//! The ledger has one record for up to [`RECORDS`] indices. Further indices share records, and then
//! also the 256 values of a record. So the size is bounded for a device with random indices, too.

use super::scramble::Scramble;

/// Number of values of a half of a record.
pub const HALF: u8 = 128;

/// Number of values of a half that [`Ledger::draw_next`] leaves, or one less.
pub const FEW: u8 = 32;

/// Maximum number of records of a ledger. rxe has as many indices.
pub const RECORDS: u32 = 1 << 19;

/// Number of regions without a value in a row after which the values of the ledger count as drawn.
pub const TRIES: usize = 64;

/// Returns the number of the record that accounts for `key`.
pub const fn record_of(key: u32) -> u32 {
    (key >> 8) % RECORDS
}

/// Bytes of a record that a device has chosen itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chosen([u64; 4]);

impl Chosen {
    fn has(&self, byte: u8) -> bool {
        let word = self.0.get(usize::from(byte / 64));
        word.is_some_and(|word| word & (1 << (byte % 64)) != 0)
    }

    fn add(&mut self, byte: u8) {
        if let Some(word) = self.0.get_mut(usize::from(byte / 64)) {
            *word |= 1 << (byte % 64);
        }
    }

    /// Forgets the bytes of the half with `first`.
    fn forget(&mut self, first: u8) {
        for word in self.0.iter_mut().skip(usize::from(first / 64)).take(2) {
            *word = 0;
        }
    }
}

/// Account of the values of one half of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Half {
    /// Time of the last end of a key, in seconds.
    ended: u32,
    /// Low half of the number of the last renewal.
    born: u32,
    /// Number of positions drawn since the renewal.
    drawn: u8,
    /// Number of values that are in use. 255 stands for more, and then never changes.
    live: u8,
    /// [`KNOWN`], [`RENEWED`], [`CHOSEN`].
    flags: u8,
}

/// Flag of [`Half`]: a value was asked for.
const KNOWN: u8 = 1;
/// Flag of [`Half`]: the values were drawn before the last renewal.
const RENEWED: u8 = 2;
/// Flag of [`Half`]: a device has chosen a byte.
const CHOSEN: u8 = 4;

impl Half {
    fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    fn begin(&mut self) {
        self.live = self.live.saturating_add(1);
    }

    fn release(&mut self) {
        if self.live != u8::MAX {
            self.live = self.live.saturating_sub(1);
        }
    }

    /// Returns whether the half was renewed after the renewal with a number.
    ///
    /// Numbers are compared by their low halves. If the last renewal is very long ago, the answer
    /// is yes, and the values are not drawn.
    fn is_after(&self, number: u64) -> bool {
        // CAST: Keeps the low half.
        let after = self.born.wrapping_sub(number as u32);
        after != 0 && after <= u32::MAX / 2
    }
}

/// Account of the values of one record: the bytes below 128 and the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wear([Half; 2]);

impl Wear {
    /// Returns whether the record has [`Chosen`] bytes.
    pub fn has_chosen(&self) -> bool {
        self.0.iter().any(|half| half.has(CHOSEN))
    }

    fn half(&mut self, byte: u8) -> &mut Half {
        let [lower, upper] = &mut self.0;
        if byte < HALF {
            lower
        } else {
            upper
        }
    }

    /// Returns the second since which values of the record rest, `now` being the current one, or `None` if
    /// the record has values that are not drawn.
    ///
    /// The half that ended first decides: its values can be drawn first.
    pub fn resting_since(&self, now: u32) -> Option<u32> {
        let mut first = now;
        for half in &self.0 {
            if half.drawn < HALF {
                return None;
            }
            if half.live == 0 && age(now, half.ended) > age(now, first) {
                first = half.ended;
            }
        }
        Some(first)
    }

    /// Records the end of a key with `byte`, in second `now`. No peer can use the key any more.
    pub fn end(&mut self, byte: u8, now: u32) {
        let half = self.half(byte);
        half.release();
        half.ended = now;
    }
}

/// Terms of a draw.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Time of a clock that never goes back, in seconds.
    pub now: u32,
    /// Seconds from the end of a key to the next draw of its value.
    pub rest: u32,
    /// For a strict user: [`Ledger::joined`] at the time when the user joined.
    pub strict: Option<u64>,
}

/// Result of a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// A byte, and whether the value was drawn before.
    Value(u8, bool),
    /// The epoch's values of the record are drawn.
    Spent,
    /// The epoch's values of the record are drawn, and some have rested: they can be drawn in the next
    /// epoch.
    Rested,
    /// The epoch's values of the record have not rested yet.
    Resting,
    /// This one byte is drawn already, others of the record are not.
    Taken,
}

/// Returns the seconds from `then` to `now`. A clock that another processor has read a little later
/// gives 0.
fn age(now: u32, then: u32) -> u32 {
    match now.wrapping_sub(then) {
        age if age <= u32::MAX / 2 => age,
        _ => 0,
    }
}

/// Returns whether values rest no longer in second `now`, if they rest since second `since` for `rest`
/// seconds.
pub fn has_rested(now: u32, since: u32, rest: u32) -> bool {
    // Seconds are rounded down: only if the difference is greater, the time has passed. No time has always
    // passed.
    rest == 0 || age(now, since) > rest
}

/// The account of the values of one scope, without the records.
pub struct Ledger {
    secret: Scramble,
    /// Number of renewals of records, and of new records.
    renewals: u64,
    /// Number of renewals before the epoch.
    epoch: u64,
    /// Time at which the epoch began, in seconds.
    began: u32,
    /// Number of values for [`Ledger::worn`].
    worn: u64,
}

impl Ledger {
    /// Returns an empty ledger. `secret` defines the order of the bytes.
    pub fn new(secret: u128) -> Self {
        Self {
            secret: Scramble::new(secret),
            renewals: 0,
            epoch: 0,
            began: 0,
            worn: 0,
        }
    }

    /// Returns the number of values that were drawn, or are left over ([`FEW`]), since the last renewal of
    /// their halves. Values that a device has chosen itself do not count.
    pub fn worn(&self) -> u64 {
        self.worn
    }

    /// Returns the moment at which a strict user joins, for [`Terms::strict`].
    pub fn joined(&self) -> u64 {
        self.renewals
    }

    /// Returns the number of the epoch, for [`Ledger::advance`].
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Begins the next epoch in second `now`, unless `epoch` is over already. The caller has found that
    /// all values that it can have in `epoch` are drawn.
    pub fn advance(&mut self, epoch: u64, now: u32) {
        if self.epoch == epoch {
            self.began = now;
            // The next renewal has a number of its own.
            self.renewals += 1;
            self.epoch = self.renewals;
        }
    }

    /// Returns the functions of the permutation's rounds: tables with entries of [`BITS`] bits, in
    /// turn of 16 and of 8 entries.
    ///
    /// One encrypted number defines all tables ([`mix`]). A byte is one of at most 128, which a peer can
    /// guess anyway: independent tables would hide nothing more.
    fn rounds(&self, record: u32, half: &Half) -> [u64; 6] {
        let of = u64::from(half.born) << 32 | u64::from(record % RECORDS);
        let number = self.secret.scramble(of);
        [1, 2, 3, 4, 5, 6].map(|n| mix(number, n))
    }

    /// Returns the byte, without its highest bit, at a position of a half's order.
    ///
    /// The permutation is a Feistel network with secret functions.
    fn byte(&self, record: u32, half: &Half, position: u8) -> u8 {
        let (mut left, mut right) = (position >> 4 & 7, position & 15);
        for (table, bits) in self.rounds(record, half).iter().zip(BITS) {
            (left, right) = (right, left ^ entry(*table, bits, right));
        }
        left << 4 | right
    }

    /// Returns the position of a byte in its half's order.
    fn position(&self, record: u32, half: &Half, byte: u8) -> u8 {
        let (mut left, mut right) = (byte >> 4 & 7, byte & 15);
        for (table, bits) in self.rounds(record, half).iter().zip(BITS).rev() {
            (left, right) = (right ^ entry(*table, bits, left), left);
        }
        left << 4 | right
    }

    fn number(&mut self) -> u32 {
        self.renewals += 1;
        // CAST: Keeps the low half.
        self.renewals as u32
    }

    fn know(&mut self, half: &mut Half) {
        if !half.has(KNOWN) {
            half.flags |= KNOWN;
            half.born = self.number();
        }
    }

    /// Returns whether the terms allow the values of a half that are not drawn yet.
    fn allows(&self, half: &Half, terms: &Terms) -> bool {
        let Some(joined) = terms.strict else {
            return true;
        };
        let few = self.renewals - joined <= u64::from(u32::MAX / 2);
        !half.has(RENEWED) || few && !half.is_after(joined)
    }

    /// Makes all values of a half available again, if the epoch and the terms allow it.
    fn renew(&mut self, half: &mut Half, terms: &Terms) -> Result<(), Draw> {
        if terms.strict.is_some() || half.live != 0 {
            return Err(Draw::Spent);
        }
        let is_drawn = half.is_after(self.epoch);
        if !has_rested(terms.now, half.ended, terms.rest) {
            let in_epoch = age(terms.now, half.ended) <= age(terms.now, self.began);
            let refused = match is_drawn || in_epoch {
                true => Draw::Spent,
                false => Draw::Resting,
            };
            return Err(refused);
        }
        if is_drawn {
            return Err(Draw::Rested);
        }
        self.worn = self.worn.saturating_sub(half.drawn.into());
        half.drawn = 0;
        half.flags |= RENEWED;
        half.born = self.number();
        Ok(())
    }

    /// Draws one of the bytes of a half that are not drawn yet.
    fn draw_left(
        &mut self,
        record: u32,
        half: &mut Half,
        first: u8,
        chosen: Option<&Chosen>,
        terms: &Terms,
    ) -> Option<Draw> {
        if !self.allows(half, terms) {
            return None;
        }
        while half.drawn < HALF {
            let byte = first | self.byte(record, half, half.drawn);
            half.drawn += 1;
            self.worn += 1;
            if chosen.is_none_or(|chosen| !chosen.has(byte)) {
                half.begin();
                return Some(Draw::Value(byte, half.has(RENEWED)));
            }
        }
        None
    }

    /// Draws a byte of a record. `chosen` are the record's chosen bytes, if it has some.
    pub fn draw(
        &mut self,
        record: u32,
        wear: &mut Wear,
        mut chosen: Option<&mut Chosen>,
        terms: &Terms,
    ) -> Draw {
        let [lower, upper] = &mut wear.0;
        for (half, first) in [(&mut *lower, 0), (&mut *upper, HALF)] {
            self.know(half);
            if let Some(drawn) = self.draw_left(record, half, first, chosen.as_deref(), terms) {
                return drawn;
            }
        }
        let mut halves = [(lower, 0), (upper, HALF)];
        let ages = halves
            .each_ref()
            .map(|(half, _)| age(terms.now, half.ended));
        if ages[1] > ages[0] {
            halves.reverse();
        }
        let mut refused = Draw::Spent;
        for (half, first) in halves {
            match self.renew(half, terms) {
                Ok(()) => {
                    if let Some(chosen) = chosen.as_deref_mut() {
                        chosen.forget(first);
                    }
                    if let Some(drawn) = self.draw_left(record, half, first, None, terms) {
                        return drawn;
                    }
                }
                Err(Draw::Spent) => {}
                Err(_) if refused == Draw::Rested => {}
                Err(why) => refused = why,
            }
        }
        refused
    }

    /// Draws the next byte of a record, for a region whose key with `byte` has just ended. The peers
    /// of that key may know the bytes that were drawn before. [`Draw::Spent`] if so few are left that
    /// a peer could guess the next one ([`FEW`]). Those then rest with the half: a device may give the
    /// index to the same slot again.
    pub fn draw_next(
        &mut self,
        record: u32,
        wear: &mut Wear,
        byte: u8,
        chosen: Option<&mut Chosen>,
        terms: &Terms,
    ) -> Draw {
        let half = wear.half(byte);
        if half.drawn > HALF - FEW {
            self.worn += u64::from(HALF.saturating_sub(half.drawn));
            half.drawn = HALF;
            return Draw::Spent;
        }
        self.draw(record, wear, chosen, terms)
    }

    /// Accounts for a byte that the device has chosen. [`Draw::Value`] means that it may be used,
    /// [`Draw::Spent`] or [`Draw::Rested`] that no byte of its half could be in this epoch.
    pub fn take(
        &mut self,
        record: u32,
        wear: &mut Wear,
        chosen: &mut Chosen,
        byte: u8,
        terms: &Terms,
    ) -> Draw {
        let half = wear.half(byte);
        self.know(half);
        if half.drawn > self.position(record, half, byte) || chosen.has(byte) {
            if half.drawn < HALF && self.allows(half, terms) {
                return Draw::Taken;
            }
            if let Err(refused) = self.renew(half, terms) {
                return refused;
            }
            chosen.forget(byte & HALF);
        } else if !self.allows(half, terms) {
            return Draw::Spent;
        }
        chosen.add(byte);
        half.flags |= CHOSEN;
        half.begin();
        Draw::Value(byte, half.has(RENEWED))
    }

    /// Takes back the byte of the last draw. It was in no key, and no caller has seen it.
    pub fn give_back(&mut self, record: u32, wear: &mut Wear, byte: u8) {
        let half = wear.half(byte);
        half.release();
        if let Some(last) = half.drawn.checked_sub(1) {
            if self.byte(record, half, last) == byte % HALF {
                half.drawn = last;
                self.worn = self.worn.saturating_sub(1);
            }
        }
    }
}

/// Number of bits that each round of [`Ledger::byte`] changes.
const BITS: [u8; 6] = [3, 4, 3, 4, 3, 4];

/// Returns the `n`-th number that follows from `number`: the output function of SplitMix64 (Steele et
/// al., 2014).
const fn mix(number: u64, n: u64) -> u64 {
    let z = number.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns an entry of a table.
fn entry(table: u64, bits: u8, number: u8) -> u8 {
    // CAST: Keeps the entry's bits.
    (table >> (bits * number)) as u8 & ((1 << bits) - 1)
}

/// The regions of a device, from which [`search`] selects one with a value.
pub trait Regions {
    /// A memory region.
    type Region;
    /// Error of the device, or of the memory for a record.
    type Error;

    /// Obtains a region from the device.
    fn fresh(&mut self) -> Result<Self::Region, Self::Error>;

    /// Draws a value for a region: [`Ledger::draw`].
    fn draw(&mut self, region: &mut Self::Region) -> Result<Draw, Self::Error>;

    /// Returns whether indices without a value are set aside, because the device may offer the same ones
    /// for ever otherwise.
    fn sets_aside(&self) -> bool;

    /// Frees a region without a value. If indices [are set aside](Regions::sets_aside), the device does not
    /// offer its index again before [`Regions::release`]. Returns false, and leaves the index to the device,
    /// if no more can be set aside.
    fn set_aside(&mut self, region: Self::Region) -> bool;

    /// Lets the device offer that index again which rests for the longest time. Returns false if none
    /// has rested.
    fn release(&mut self) -> bool;

    /// Returns the number of the ledger's epoch.
    fn epoch(&self) -> u64;

    /// Begins the next epoch: [`Ledger::advance`].
    fn advance(&mut self, epoch: u64);
}

/// Finds a region with a value. Returns `None` if no value is available now, or ever for a `strict`
/// user.
///
/// # Errors
///
/// - An error of the device or of a draw.
pub fn search<R: Regions>(regions: &mut R, strict: bool) -> Result<Option<R::Region>, R::Error> {
    match regions.sets_aside() {
        true => search_aside(regions, strict),
        false => search_cyclic(regions, strict),
    }
}

/// Finds a region with a value on a device that offers an index again only after all others.
fn search_cyclic<R: Regions>(regions: &mut R, strict: bool) -> Result<Option<R::Region>, R::Error> {
    // One pass more than needed, because another task may begin an epoch meanwhile.
    for _ in 0..3 {
        let epoch = regions.epoch();
        let mut resting = false;
        for _ in 0..TRIES {
            let mut region = regions.fresh()?;
            match regions.draw(&mut region)? {
                Draw::Value(..) => return Ok(Some(region)),
                Draw::Resting => resting = true,
                _ => {}
            }
            regions.set_aside(region);
        }
        if strict || resting {
            return Ok(None);
        }
        regions.advance(epoch);
    }
    Ok(None)
}

/// Maximum number of regions that a search obtains if it sets indices aside. The next search goes on.
pub const ROUNDS: usize = 16 * TRIES;

/// Finds a region with a value on a device that may offer the same indices again and again.
///
/// An index that was set aside comes again only if the device offers no other one, or no more can be set
/// aside: all values that can be had are drawn then, and the search is *short*. So is one that was offered
/// [`TRIES`] indices whose values have rested: the device counts its indices up.
fn search_aside<R: Regions>(regions: &mut R, strict: bool) -> Result<Option<R::Region>, R::Error> {
    let (mut is_short, mut rested) = (false, 0);
    for _ in 0..ROUNDS {
        let epoch = regions.epoch();
        let mut region = match regions.fresh() {
            Ok(region) => region,
            Err(_) if !strict && regions.release() => {
                is_short = true;
                continue;
            }
            Err(e) => return Err(e),
        };
        let mut drawn = regions.draw(&mut region)?;
        rested += usize::from(drawn == Draw::Rested);
        if drawn == Draw::Rested && (is_short || rested == TRIES) {
            regions.advance(epoch);
            drawn = regions.draw(&mut region)?;
        }
        if let Draw::Value(..) = drawn {
            return Ok(Some(region));
        }
        if regions.set_aside(region) {
            continue;
        }
        // If none rests, as many as may are none: the device offers the same index again.
        let again = drawn == Draw::Rested && !is_short;
        if strict || !regions.release() && !again {
            return Ok(None);
        }
        is_short = true;
    }
    Ok(None)
}
