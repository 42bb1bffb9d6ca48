// SPDX-License-Identifier: GPL-2.0
//! Sources of key values. [`kfabric::pure::key_ledger`] says when a value is drawn again: after all
//! others of its ledger, and [`rest`](ib::key_rest) seconds after its end.
//!
//! All groups draw from one ledger of the host, which outlives groups and devices: a peer with an old
//! key may connect to the group that takes the old one's place. When a peer of rxe repeats a read that
//! succeeded before, rxe also compares value and address alone, and not the group. Only a group with an
//! address base of its own has a ledger of its own
//! ([`KeyValues::Own`](kfabric::provider::KeyValues::Own)).
//!
//! Each user of programs has a budget of values ([`kfabric::pure::key_budget`]): one user cannot draw all that
//! others need. It has an account for each limit of a device. The accounts are part of the ledger, and outlive
//! groups.
//!
//! A value is drawn when a slot reserves it. If the slot ends before the value was in a key or was
//! returned to a caller, the value is given back: reservations exhaust nothing.
//!
//! A ledger takes 32 bytes for each index of the device that had a key, up to 16 MiB. If indices
//! are far apart, an index takes 128 bytes. An index with a full registration takes 64 more, up to
//! 32 MiB.
//!
//! A task that owns the lock of a ledger does not allocate: memory reclaim may depend on another
//! task that waits for the lock.

use core::sync::atomic::{
    AtomicBool,
    AtomicU32,
    AtomicU64,
    Ordering, //
};
use kernel::{
    alloc::Flags,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use crate::{
    ib::{
        self,
        share::limited_user, //
    },
    stats::DomainCounts, //
};
use kfabric::{
    base::errno::edquot,
    provider::{
        KeyCounts,
        KeyValues, //
    },
    pure::{
        key_budget::{
            self,
            Budget,
            Payer, //
        },
        key_ledger::{
            self,
            record_of,
            Chosen,
            Draw,
            Terms,
            Wear,
            HALF,
            RECORDS, //
        }, //
    }, //
};

/// Number of records in one allocation of 128 bytes.
const CHUNK: u32 = 4;

/// Maximum number of accounts that the opening or closing of one looks at, to remove those of no use.
const OLD: usize = 16;

/// Number of values that a group uses before it reports that most are used up. Less would make consumers
/// connect all the time: kfblk's 32 slots have 194 values each in their own regions.
const LASTS: u64 = 32 * 194;

/// The least payer.
const FIRST: Payer = Payer { uid: 0, limit: 0 };

/// The account of a user, for the values of all devices with one limit.
struct Account {
    budget: Budget,
    /// Number of the user's groups.
    groups: usize,
}

/// Returns the terms of all accounts.
fn budget_terms() -> key_budget::Terms {
    key_budget::Terms {
        now: ib::seconds(),
        rest: ib::key_rest(),
    }
}

/// The accounts of a ledger's users.
type Accounts = RBTree<Payer, Account>;

/// Takes a value from a user's budget. Returns false if none is left.
fn pay(accounts: &mut Accounts, payer: Option<&Payer>) -> bool {
    match payer.and_then(|payer| accounts.get_mut(payer)) {
        Some(account) => account.budget.take(&budget_terms()),
        None => true,
    }
}

/// Returns a value to a user's budget.
fn refund(accounts: &mut Accounts, payer: Option<&Payer>) {
    if let Some(account) = payer.and_then(|payer| accounts.get_mut(payer)) {
        account.budget.give_back();
    }
}

/// Removes accounts that no group needs and that have drained, among the next few from that of `from`.
/// Returns the payer from which to go on.
fn sweep(accounts: &mut Accounts, from: Payer) -> Payer {
    let (mut from, terms) = (from, budget_terms());
    for _ in 0..OLD {
        let Some(payer) = accounts.cursor_lower_bound(&from).map(|at| *at.current().0) else {
            return FIRST;
        };
        let is_old = accounts
            .get_mut(&payer)
            .is_some_and(|account| account.groups == 0 && account.budget.is_empty(&terms));
        if is_old {
            accounts.remove(&payer);
        }
        from = payer.next();
    }
    from
}

/// The contents of a ledger.
struct Book {
    ledger: key_ledger::Ledger,
    /// Records, in units of [`CHUNK`].
    wears: RBTree<u32, [Wear; CHUNK as usize]>,
    /// Bytes that the device has chosen, by record.
    chosen: RBTree<u32, Chosen>,
    accounts: Accounts,
    /// The payer from which the next sweep of accounts goes on.
    swept: Payer,
}

/// A ledger of key values, with its records.
#[pin_data]
pub(crate) struct Ledger {
    flags: Flags,
    /// The book's epoch, readable without its lock.
    epoch: AtomicU64,
    /// Number of values in use.
    live: AtomicU32,
    #[pin]
    book: Mutex<Book>,
}

kernel::sync::global_lock! {
    // SAFETY: `Memory::new` initialises the lock at module load, before the client is registered.
    unsafe(uninit) static SHARED: Mutex<Option<Arc<Ledger>>> = None;
}

/// Owns the ledger of the host. Dropping it frees the ledger.
pub(crate) struct Memory(());

impl Memory {
    /// Creates the ledger of the host.
    ///
    /// # Safety
    ///
    /// The caller calls this function once, at module load, before the client is registered.
    #[expect(unsafe_code, reason = "a global lock is initialised so")]
    pub(crate) unsafe fn new() -> Result<Self> {
        // SAFETY: The caller calls `new` once, before any use of the lock.
        unsafe { SHARED.init() };
        // UNACCOUNTED: The ledger serves all programs until the module unloads.
        let ledger = Ledger::new(GFP_KERNEL)?;
        *SHARED.lock() = Some(ledger);
        Ok(Self(()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let ledger = SHARED.lock().take();
        drop(ledger);
    }
}

/// The records of one key.
struct Page<'a> {
    ledger: &'a mut key_ledger::Ledger,
    record: u32,
    wear: &'a mut Wear,
    chosen: Option<&'a mut Chosen>,
    accounts: &'a mut Accounts,
}

impl Page<'_> {
    /// Draws by `draw`, and lets `payer` pay for a value.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's budget is exhausted.
    fn draw(mut self, payer: Option<&Payer>, draw: impl FnOnce(&mut Self) -> Draw) -> Result<Draw> {
        if !pay(self.accounts, payer) {
            return Err(edquot());
        }
        let drawn = draw(&mut self);
        if !matches!(drawn, Draw::Value(..)) {
            refund(self.accounts, payer);
        }
        Ok(drawn)
    }
}

/// Returns the second since which all values of a key's index rest in the ledger of the host, or `None` if
/// some are not drawn.
pub(crate) fn resting_since(key: u32) -> Option<u32> {
    let ledger = SHARED.lock().clone()?;
    ledger.resting_since(key)
}

impl Ledger {
    fn new(flags: Flags) -> Result<Arc<Self>> {
        let random = || u128::from(ib::random());
        let secret = random() << 96 | random() << 64 | random() << 32 | random();
        Arc::pin_init(
            pin_init!(Self {
                flags,
                epoch: AtomicU64::new(0),
                live: AtomicU32::new(0),
                book <- new_mutex!(Book {
                    ledger: key_ledger::Ledger::new(secret),
                    wears: RBTree::new(),
                    chosen: RBTree::new(),
                    accounts: RBTree::new(),
                    swept: FIRST,
                }, "kverbs_key_values"),
            }),
            flags,
        )
    }

    /// Opens the account of a user for one more group.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory for the account.
    fn open(&self, payer: &Payer) -> Result {
        let account = Account {
            budget: payer.budget(),
            groups: 0,
        };
        // UNACCOUNTED: The account may outlive the program, which must not get a new one.
        let node = RBTreeNode::new(*payer, account, GFP_KERNEL)?;
        let mut guard = self.book.lock();
        let book = &mut *guard;
        book.swept = sweep(&mut book.accounts, book.swept);
        if book.accounts.get(payer).is_none() {
            // Cannot replace an entry, because the lookup found none.
            let _ = book.accounts.insert(node);
        }
        if let Some(account) = book.accounts.get_mut(payer) {
            account.groups += 1;
        }
        Ok(())
    }

    /// Ends a group of a user. The account stays as long as values of it count.
    fn close(&self, payer: &Payer) {
        let mut guard = self.book.lock();
        let book = &mut *guard;
        if let Some(account) = book.accounts.get_mut(payer) {
            account.groups -= 1;
        }
        book.swept = sweep(&mut book.accounts, book.swept);
    }

    /// Returns the number of values that count in a user's budget.
    fn spent(&self, payer: &Payer) -> u64 {
        let mut book = self.book.lock();
        let account = book.accounts.get_mut(payer);
        account.map_or(0, |account| account.budget.used(&budget_terms()))
    }

    fn resting_since(&self, key: u32) -> Option<u32> {
        let record = record_of(key);
        let book = self.book.lock();
        let wear = book
            .wears
            .get(&(record / CHUNK))?
            .get((record % CHUNK) as usize)?;
        // Under the lock, so no recorded end is later.
        wear.resting_since(ib::seconds())
    }

    /// Calls `act` with the records of `key`; with `chooses`, also with the chosen bytes.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory for a record.
    fn with<R>(&self, key: u32, chooses: bool, act: impl FnOnce(Page<'_>) -> R) -> Result<R> {
        let record = record_of(key);
        let (chunk, at) = (record / CHUNK, (record % CHUNK) as usize);
        let (mut wears, mut chosen) = (None, None);
        loop {
            let is_new = {
                let mut guard = self.book.lock();
                let book = &mut *guard;
                if let Some(all) = book.wears.get_mut(&chunk) {
                    let wear = all.get_mut(at).ok_or(EINVAL)?;
                    let known = match chooses || wear.has_chosen() {
                        true => book.chosen.get_mut(&record),
                        false => None,
                    };
                    if known.is_some() || !chooses {
                        return Ok(act(Page {
                            ledger: &mut book.ledger,
                            record,
                            wear,
                            chosen: known,
                            accounts: &mut book.accounts,
                        }));
                    }
                    // Cannot replace an entry, because the lookup found none.
                    if let Some(chosen) = chosen.take() {
                        let _ = book.chosen.insert(chosen);
                        continue;
                    }
                    false
                } else if let Some(wears) = wears.take() {
                    // Cannot replace an entry, because the lookup found none.
                    let _ = book.wears.insert(wears);
                    continue;
                } else {
                    true
                }
            };
            if is_new {
                wears = Some(RBTreeNode::new(chunk, Default::default(), self.flags)?);
            }
            if chooses && chosen.is_none() {
                chosen = Some(RBTreeNode::new(record, Chosen::default(), self.flags)?);
            }
        }
    }
}

/// A key value that is in use. Dropping it records the end of the key.
pub(crate) struct Value {
    ledger: Arc<Ledger>,
    counts: Arc<DomainCounts>,
    key: u32,
    again: bool,
    fate: Fate,
    /// The account of the user who drew the value.
    payer: Option<Payer>,
    /// True if the value's index is set aside when it has no value left.
    caught: bool,
}

/// What the drop of a [`Value`] records.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The key has ended.
    Ended,
    /// No key had the value.
    Unused,
    /// The end is recorded already.
    Recorded,
}

impl Value {
    /// Returns the byte that the owner of the region sets.
    pub(crate) fn byte(&self) -> u8 {
        // CAST: Keeps the low byte.
        self.key as u8
    }

    /// Returns the draw of the value.
    pub(crate) fn draw(&self) -> Draw {
        Draw::Value(self.byte(), self.again)
    }

    /// Records the end of the key. Returns whether its index has to be set aside.
    pub(crate) fn end(mut self) -> bool {
        let fate = core::mem::replace(&mut self.fate, Fate::Recorded);
        // CAST: Keeps the low byte.
        let byte = self.key as u8;
        // Cannot fail or allocate: the draw has created the record.
        let is_worn = self.ledger.with(self.key, false, |page| {
            let now = ib::seconds();
            if fate != Fate::Recorded {
                page.wear.end(byte, now);
            }
            page.wear.resting_since(now).is_some()
        });
        let is_worn = is_worn.unwrap_or(false);
        self.counts.end(is_worn);
        self.caught && is_worn
    }

    /// Gives the value back. It was in no key, and no caller has seen it.
    pub(crate) fn unused(mut self) {
        self.fate = Fate::Unused;
    }

    /// Records the end of the key, and draws the next value of its index from `values`, from which
    /// this one was drawn. A user whose budget is exhausted gets none.
    pub(crate) fn next(&mut self, values: &Values) -> Draw {
        // CAST: Keeps the low byte.
        let byte = self.key as u8;
        // Cannot fail or allocate: the draw has created the record.
        let draw = self.ledger.with(self.key, false, |page| {
            let terms = values.terms();
            page.wear.end(byte, terms.now);
            page.draw(values.payer.as_ref(), |page| {
                let chosen = page.chosen.as_deref_mut();
                let draw = page
                    .ledger
                    .draw_next(page.record, page.wear, byte, chosen, &terms);
                values.note_draws(page.ledger);
                draw
            })
        });
        match draw.and_then(|draw| draw).unwrap_or(Draw::Spent) {
            Draw::Value(byte, again) => {
                self.counts.draw(again);
                self.key = self.key & !0xff | u32::from(byte);
                self.again = again;
                Draw::Value(byte, again)
            }
            why => {
                self.fate = Fate::Recorded;
                why
            }
        }
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        // CAST: Keeps the low byte.
        let byte = self.key as u8;
        let fate = self.fate;
        self.ledger.live.fetch_sub(1, Ordering::Relaxed);
        if fate == Fate::Recorded {
            return;
        }
        if fate == Fate::Unused {
            self.counts.give_back(self.again);
        }
        // Cannot fail or allocate: the draw has created the record.
        let _ = self.ledger.with(self.key, false, |page| {
            if fate == Fate::Ended {
                page.wear.end(byte, ib::seconds());
            } else {
                page.ledger.give_back(page.record, page.wear, byte);
                refund(page.accounts, self.payer.as_ref());
            }
        });
    }
}

/// Source of the values of a group's keys.
pub(crate) struct Values {
    ledger: Arc<Ledger>,
    counts: Arc<DomainCounts>,
    /// True if other groups draw from the ledger.
    shared: bool,
    /// True if indices without a value are set aside.
    sets_aside: bool,
    /// Moment from which the group gets no value twice, if it is strict.
    strict: Option<u64>,
    /// True if a draw found no value.
    refused: AtomicBool,
    /// The account of the program's user, if the user has a limit.
    payer: Option<Payer>,
    /// Number of the device's regions whose values the ledger tells apart.
    regions: u32,
    /// True if 7/8 of the values are used up.
    worn: AtomicBool,
}

impl Values {
    /// Returns the source for a group of the domain with `counts`, on a device with `regions` regions.
    /// `payer` pays for values. With `sets_aside`, indices without a value are set aside.
    pub(crate) fn new(
        wanted: KeyValues,
        payer: Option<Payer>,
        counts: Arc<DomainCounts>,
        sets_aside: bool,
        regions: u32,
    ) -> Result<Self> {
        let shared = match wanted {
            KeyValues::Own => None,
            _ => SHARED.lock().clone(),
        };
        let is_shared = shared.is_some();
        let ledger = match shared {
            Some(ledger) => ledger,
            None => Ledger::new(GFP_KERNEL_ACCOUNT)?,
        };
        let strict = (wanted != KeyValues::Again).then(|| ledger.book.lock().ledger.joined());
        if let Some(payer) = &payer {
            ledger.open(payer)?;
        }
        Ok(Self {
            ledger,
            counts,
            shared: is_shared,
            sets_aside,
            strict,
            refused: AtomicBool::new(false),
            payer,
            // A device that reports no number of regions has no limit.
            regions: match regions {
                0 => RECORDS,
                _ => regions.min(RECORDS),
            },
            worn: AtomicBool::new(false),
        })
    }

    /// Returns whether other groups draw from the ledger.
    pub(crate) fn are_shared(&self) -> bool {
        self.shared
    }

    /// Returns whether indices without a value are set aside.
    pub(crate) fn sets_aside(&self) -> bool {
        self.sets_aside
    }

    /// Returns the counts of the group's domain. The user who pays, and one without limits, also see how many
    /// values count in the budget. May sleep.
    pub(crate) fn counts(&self) -> KeyCounts {
        let asks = limited_user();
        let seen = |payer: &&Payer| asks.is_none_or(|uid| uid == payer.uid);
        let payer = self.payer.as_ref().filter(seen);
        self.counts
            .read(payer.map_or(0, |payer| self.ledger.spent(payer)))
    }

    /// Returns whether the group gets no value twice.
    pub(crate) fn is_strict(&self) -> bool {
        self.strict.is_some()
    }

    /// Returns whether the group is strict and has found no value. A new group would have some.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_strict() && self.refused.load(Ordering::Relaxed)
    }

    /// Records that the group has found no value.
    pub(crate) fn note_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// Returns whether the group has values of its own, and 7/8 of those that it can draw are used up.
    pub(crate) fn is_worn(&self) -> bool {
        self.worn.load(Ordering::Relaxed)
    }

    /// Records that 7/8 of the values are used up. Without effect if other groups draw them.
    pub(crate) fn note_worn(&self) {
        self.worn.store(!self.shared, Ordering::Relaxed);
    }

    /// Records whether most of the group's values are used up: those of 7/8 of the regions that no slot
    /// of the group has. If other users have most of the regions, the limit is an eighth of all regions
    /// and [`LASTS`].
    fn note_draws(&self, ledger: &key_ledger::Ledger) {
        let live = self.ledger.live.load(Ordering::Relaxed);
        let free = self.regions.saturating_sub(live);
        let limit = (free - free / 8).max(self.regions / 8);
        if ledger.worn() >= (u64::from(limit) * 2 * u64::from(HALF)).max(LASTS) {
            self.note_worn();
        }
    }

    /// Returns the terms of a draw. Called under the ledger's lock, so no recorded end is later.
    fn terms(&self) -> Terms {
        Terms {
            now: ib::seconds(),
            rest: ib::key_rest(),
            strict: self.strict,
        }
    }

    fn drawn(&self, key: u32, draw: Draw) -> Result<Value, Draw> {
        let Draw::Value(byte, again) = draw else {
            return Err(draw);
        };
        self.counts.draw(again);
        self.ledger.live.fetch_add(1, Ordering::Relaxed);
        Ok(Value {
            ledger: self.ledger.clone(),
            counts: self.counts.clone(),
            key: key & !0xff | u32::from(byte),
            again,
            fate: Fate::Ended,
            payer: self.payer,
            caught: self.shared && self.sets_aside,
        })
    }

    /// Draws a value for a key with the index of `key`.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's budget is exhausted.
    /// - `ENOMEM` if there is no memory for the record.
    pub(crate) fn draw(&self, key: u32) -> Result<Result<Value, Draw>> {
        let draw = self.ledger.with(key, false, |page| {
            page.draw(self.payer.as_ref(), |page| {
                let terms = self.terms();
                let chosen = page.chosen.as_deref_mut();
                let draw = page.ledger.draw(page.record, page.wear, chosen, &terms);
                self.note_draws(page.ledger);
                draw
            })
        })??;
        Ok(self.drawn(key, draw))
    }

    /// Records the use of `key`, which the device chose.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's budget is exhausted.
    /// - `ENOMEM` if there is no memory for the record.
    pub(crate) fn take(&self, key: u32) -> Result<Result<Value, Draw>> {
        let draw = self.ledger.with(key, true, |page| {
            page.draw(self.payer.as_ref(), |page| {
                match page.chosen.as_deref_mut() {
                    // CAST: Keeps the low byte.
                    Some(chosen) => {
                        page.ledger
                            .take(page.record, page.wear, chosen, key as u8, &self.terms())
                    }
                    None => Draw::Spent,
                }
            })
        })??;
        Ok(self.drawn(key, draw))
    }

    /// Returns the number of the ledger's epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.ledger.epoch.load(Ordering::Relaxed)
    }

    /// Begins the ledger's next epoch, unless `epoch` is over already.
    pub(crate) fn advance(&self, epoch: u64) {
        let mut book = self.ledger.book.lock();
        book.ledger.advance(epoch, ib::seconds());
        let now = book.ledger.epoch();
        self.ledger.epoch.store(now, Ordering::Relaxed);
    }
}

impl Drop for Values {
    fn drop(&mut self) {
        if let Some(payer) = &self.payer {
            self.ledger.close(payer);
        }
    }
}
