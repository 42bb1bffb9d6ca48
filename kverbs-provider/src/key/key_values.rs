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
    ib,
    stats, //
};
use kfabric::{
    provider::KeyValues,
    pure::key_ledger::{
        self,
        record_of,
        Chosen,
        Draw,
        Terms,
        Wear, //
    }, //
};

/// Number of records in one allocation of 128 bytes.
const CHUNK: u32 = 4;

/// The contents of a ledger.
struct Book {
    ledger: key_ledger::Ledger,
    /// Records, in units of [`CHUNK`].
    wears: RBTree<u32, [Wear; CHUNK as usize]>,
    /// Bytes that the device has chosen, by record.
    chosen: RBTree<u32, Chosen>,
}

/// A ledger of key values, with its records.
#[pin_data]
pub(crate) struct Ledger {
    flags: Flags,
    /// The book's epoch, readable without its lock.
    epoch: AtomicU64,
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
}

impl Ledger {
    fn new(flags: Flags) -> Result<Arc<Self>> {
        let random = || u128::from(ib::random());
        let secret = random() << 96 | random() << 64 | random() << 32 | random();
        Arc::pin_init(
            pin_init!(Self {
                flags,
                epoch: AtomicU64::new(0),
                book <- new_mutex!(Book {
                    ledger: key_ledger::Ledger::new(secret),
                    wears: RBTree::new(),
                    chosen: RBTree::new(),
                }, "kverbs_key_values"),
            }),
            flags,
        )
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
    key: u32,
    again: bool,
    fate: Fate,
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

    /// Gives the value back. It was in no key, and no caller has seen it.
    pub(crate) fn unused(mut self) {
        self.fate = Fate::Unused;
    }

    /// Records the end of the key, and draws the next value of its index from `values`, from which
    /// this one was drawn.
    pub(crate) fn next(&mut self, values: &Values) -> Draw {
        // CAST: Keeps the low byte.
        let byte = self.key as u8;
        // Cannot fail or allocate: the draw has created the record.
        let draw = self.ledger.with(self.key, false, |page| {
            let terms = values.terms();
            page.wear.end(byte, terms.now);
            page.ledger
                .draw_next(page.record, page.wear, byte, page.chosen, &terms)
        });
        match draw.unwrap_or(Draw::Spent) {
            Draw::Value(byte, again) => {
                count(again);
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
        if fate == Fate::Recorded {
            return;
        }
        // Cannot fail or allocate: the draw has created the record.
        let _ = self.ledger.with(self.key, false, |page| {
            if fate == Fate::Ended {
                page.wear.end(byte, ib::seconds());
            } else {
                page.ledger.give_back(page.record, page.wear, byte);
            }
        });
    }
}

/// Counts a draw.
fn count(again: bool) {
    stats::USED.add(1);
    stats::REUSED.add(u64::from(again));
}

/// Source of the values of a group's keys.
pub(crate) struct Values {
    ledger: Arc<Ledger>,
    /// Moment from which the group gets no value twice, if it is strict.
    strict: Option<u64>,
    /// True if a draw found no value.
    refused: AtomicBool,
}

impl Values {
    /// Returns the source for a group.
    pub(crate) fn new(wanted: KeyValues) -> Result<Self> {
        let shared = match wanted {
            KeyValues::Own => None,
            _ => SHARED.lock().clone(),
        };
        let ledger = match shared {
            Some(ledger) => ledger,
            None => Ledger::new(GFP_KERNEL_ACCOUNT)?,
        };
        let strict = (wanted != KeyValues::Again).then(|| ledger.book.lock().ledger.joined());
        Ok(Self {
            ledger,
            strict,
            refused: AtomicBool::new(false),
        })
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
        count(again);
        Ok(Value {
            ledger: self.ledger.clone(),
            key: key & !0xff | u32::from(byte),
            again,
            fate: Fate::Ended,
        })
    }

    /// Draws a value for a key with the index of `key`.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory for the record.
    pub(crate) fn draw(&self, key: u32) -> Result<Result<Value, Draw>> {
        let draw = self.ledger.with(key, false, |page| {
            page.ledger
                .draw(page.record, page.wear, page.chosen, &self.terms())
        })?;
        Ok(self.drawn(key, draw))
    }

    /// Records the use of `key`, which the device chose.
    ///
    /// # Errors
    ///
    /// - `ENOMEM` if there is no memory for the record.
    pub(crate) fn take(&self, key: u32) -> Result<Result<Value, Draw>> {
        let draw = self.ledger.with(key, true, |page| match page.chosen {
            // CAST: Keeps the low byte.
            Some(chosen) => {
                page.ledger
                    .take(page.record, page.wear, chosen, key as u8, &self.terms())
            }
            None => Draw::Spent,
        })?;
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
