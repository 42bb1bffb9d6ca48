// SPDX-License-Identifier: GPL-2.0
//! The keys of a group by their values, for peers' commits.
//!
//! A fast registration changes only the low byte of a region's key. So an entry has the other bytes,
//! and an assignment that uses the slot's region again does not change the index.
//!
//! An entry may be out of date: the slot decides, with its lock, whether it has the key. A slot has
//! one entry at most, and the memory for this entry is allocated with the slot.
//!
//! Locking: the lock of a slot, then the lock of the index. A search holds only the latter, and not
//! while it looks at a slot.

use core::ptr;
use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNodeReservation, //
    },
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::slot::KeySlot;
use kfabric::pure::key_ledger::record_of;

/// Position of an entry: a key without its low byte, and the address of the slot.
type Position = (u32, usize);

/// The entry of a slot.
pub(super) enum Entry {
    /// Memory for the entry, which is not in the index.
    Outside(RBTreeNodeReservation<Position, Arc<KeySlot>>),
    /// The entry is in the index, with this key without its low byte.
    Inside(u32),
    /// The slot has ended, or no peer can commit.
    Ended,
}

impl Entry {
    /// Allocates the entry of a new slot, if peers can commit by its keys.
    pub(super) fn new(commits: bool) -> Result<Self> {
        if !commits {
            return Ok(Self::Ended);
        }
        Ok(Self::Outside(RBTreeNodeReservation::new(
            GFP_KERNEL_ACCOUNT,
        )?))
    }
}

/// The keys of a group.
#[pin_data]
pub(super) struct Index {
    #[pin]
    tree: Mutex<RBTree<Position, Arc<KeySlot>>>,
}

impl Index {
    /// Returns an empty index.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            tree <- new_mutex!(RBTree::new(), "kverbs_key_index"),
        })
    }

    /// Moves the `entry` of `slot` to the place of `key`.
    ///
    /// Locking: the caller holds the slot's lock.
    #[inline(always)]
    pub(super) fn set(&self, entry: &mut Entry, slot: &Arc<KeySlot>, key: u32) {
        match entry {
            Entry::Ended => {}
            Entry::Inside(record) if *record == record_of(key) => {}
            _ => self.change(entry, slot, record_of(key)),
        }
    }

    #[cold]
    fn change(&self, entry: &mut Entry, slot: &Arc<KeySlot>, record: u32) {
        let address = ptr::from_ref::<KeySlot>(slot).addr();
        let mut tree = self.tree.lock();
        let room = match core::mem::replace(entry, Entry::Ended) {
            Entry::Outside(room) => room,
            // Cannot fail: the entry is in the index.
            Entry::Inside(old) => match tree.remove_node(&(old, address)) {
                Some(node) => node.into_reservation(),
                None => return,
            },
            Entry::Ended => return,
        };
        // Cannot replace an entry: the slot has no other one.
        let _ = tree.insert(room.into_node((record, address), slot.clone()));
        *entry = Entry::Inside(record);
    }

    /// Removes the `entry` of `slot` for good.
    ///
    /// Locking: the caller holds the slot's lock, and owns a reference to the slot.
    pub(super) fn remove(&self, entry: &mut Entry, slot: &KeySlot) {
        let address = ptr::from_ref(slot).addr();
        if let Entry::Inside(record) = core::mem::replace(entry, Entry::Ended) {
            let node = self.tree.lock().remove_node(&(record, address));
            drop(node);
        }
    }

    /// Calls `act` with the slots that may have the key `value`, until it returns a result. Holds no
    /// lock meanwhile.
    pub(super) fn find<T>(
        &self,
        value: u64,
        mut act: impl FnMut(&KeySlot) -> Option<T>,
    ) -> Option<T> {
        let record = record_of(u32::try_from(value).ok()?);
        let mut next = (record, 0);
        loop {
            let (address, slot) = {
                let tree = self.tree.lock();
                let cursor = tree.cursor_lower_bound(&next)?;
                let ((found, address), slot) = cursor.current();
                if *found != record {
                    return None;
                }
                (*address, slot.clone())
            };
            let done = act(&slot);
            if done.is_some() {
                return done;
            }
            next = (record, address.checked_add(1)?);
        }
    }
}
