// SPDX-License-Identifier: GPL-2.0
//! Indices of a device's regions that are out of use until their key values have rested.
//!
//! A device that hands out the lowest free index, or the last freed one, would offer an index without a value
//! for ever. So a region occupies the index: one with the shortest page list, in a protection domain that
//! no queue pair uses. The index comes back when its values have rested and the device has no other one to
//! offer, or no more may rest. All groups share the indices. The number is bounded, and each user's by
//! [`kfabric::pure::key_budget`]: no user is charged for them.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        new_mutex,
        Arc,
        Mutex, //
    }, //
};

use super::{
    device::{
        Device,
        Live, //
    },
    key_rest,
    mr::Mr,
    pd::Pd,
    raw,
    seconds, //
};
use crate::{
    key::key_values,
    stats, //
};
use kfabric::pure::key_ledger::has_rested;

/// The second since which the values of an index rest, and a number.
type Place = (u32, u64);

/// The contents of [`Resting`].
struct Regions {
    /// Those that rest for the longest time come first.
    list: RBTree<Place, Mr>,
    count: u32,
    next: u64,
    /// The device is being removed.
    closed: bool,
}

impl Regions {
    /// Removes the first region, if `wanted` returns true for the second since which its values rest.
    fn remove_first(&mut self, wanted: impl FnOnce(u32) -> bool) -> Option<RBTreeNode<Place, Mr>> {
        let place = *self.list.keys().next()?;
        if !wanted(place.0) {
            return None;
        }
        self.count -= 1;
        self.list.remove_node(&place)
    }
}

/// The regions of a device that occupy resting indices.
#[pin_data]
pub(super) struct Resting {
    #[pin]
    regions: Mutex<Regions>,
    #[pin]
    pd: Mutex<Option<Arc<Pd>>>,
}

/// The device's offer when an index shall be set aside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aside {
    /// An index without a value, which rests now.
    Done,
    /// Another index, or none.
    Missed,
    /// As many indices rest as may.
    Full,
}

impl Resting {
    /// Returns an empty list.
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            regions <- new_mutex!(Regions {
                list: RBTree::new(),
                count: 0,
                next: 0,
                closed: false,
            }, "kverbs_resting"),
            pd <- new_mutex!(None, "kverbs_resting_pd"),
        })
    }

    fn remove(&self, wanted: impl FnOnce(u32) -> bool) -> bool {
        let first = self.regions.lock().remove_first(wanted);
        // The region is deregistered here, without the lock.
        stats::RELEASED.add(u64::from(first.is_some()));
        first.is_some()
    }

    /// Frees all regions, and takes no more. Called when the device is removed. May sleep.
    pub(super) fn close(&self) {
        let list = {
            let mut regions = self.regions.lock();
            regions.closed = true;
            regions.count = 0;
            core::mem::replace(&mut regions.list, RBTree::new())
        };
        stats::RELEASED.add(list.values().count() as u64);
        drop(list);
        let pd = self.pd.lock().take();
        drop(pd);
    }
}

impl Device {
    /// Returns the number of indices that may rest: half of the device's at most, because other users of the
    /// device need some.
    pub(crate) fn max_resting(&self) -> u32 {
        // SAFETY: The function has no preconditions.
        let wanted = unsafe { raw::kverbs_resting_regions() };
        wanted.min(self.max_mr() / 2)
    }

    /// Returns the protection domain of the regions.
    fn resting_pd(self: &Arc<Self>, live: &Live<'_>) -> Result<Arc<Pd>> {
        if let Some(pd) = &*self.resting.pd.lock() {
            return Ok(pd.clone());
        }
        // UNACCOUNTED: The domain serves all programs until the device is removed.
        let pd = Arc::new(Pd::new(live, self, false)?, GFP_KERNEL)?;
        let mut place = self.resting.pd.lock();
        let first = place.get_or_insert_with(|| pd.clone()).clone();
        drop(place);
        // Another task may have been faster: its domain is used.
        drop(pd);
        Ok(first)
    }

    /// Takes the index that the device offers next out of use, if the index has no value. May sleep.
    pub(crate) fn set_aside(self: &Arc<Self>, live: &Live<'_>) -> Aside {
        let full = |regions: &Regions| regions.closed || regions.count >= self.max_resting();
        if full(&self.resting.regions.lock()) {
            return Aside::Full;
        }
        let made = self.resting_pd(live).and_then(|pd| Mr::fast(live, &pd, 1));
        // UNACCOUNTED: The index may rest for longer than the program lives.
        let (Ok(mr), Ok(node)) = (made, RBTreeNodeReservation::new(GFP_KERNEL)) else {
            return Aside::Missed;
        };
        let Some(since) = key_values::resting_since(mr.rkey()) else {
            return Aside::Missed;
        };
        let mut regions = self.resting.regions.lock();
        if full(&regions) {
            drop(regions);
            return Aside::Full;
        }
        regions.next += 1;
        regions.count += 1;
        let place = (since, regions.next);
        // Cannot replace an entry: the number is new.
        let _ = regions.list.insert(node.into_node(place, mr));
        stats::RESTING.add(1);
        Aside::Done
    }

    /// Sets the index aside of a key that has ended, if the index has no value left: probably the device offers
    /// it next. Otherwise the next search for a region finds it. May sleep.
    pub(super) fn catch(self: &Arc<Self>) {
        if let Ok(live) = self.enter() {
            self.set_aside(&live);
        }
    }

    /// Releases the index that rests for the longest time, if its values have rested. Returns whether
    /// there was one. May sleep.
    pub(crate) fn release_rested(&self) -> bool {
        let (now, rest) = (seconds(), key_rest());
        self.resting.remove(|since| has_rested(now, since, rest))
    }

    /// Releases the index that rests for the longest time, even if its values have not rested.
    fn release_any(&self) -> bool {
        self.resting.remove(|_| true)
    }

    /// Creates something that occupies one of the device's regions and needs no value of the host's ledger.
    /// If the device has no region left, an index that rests makes room. May sleep.
    pub(super) fn with_room<T>(&self, create: impl Fn() -> Result<T>) -> Result<T> {
        match create() {
            // Drivers have many errors for a device without a free region.
            Err(e) if ![EIO, ENODEV, ETIMEDOUT].contains(&e) && self.release_any() => create(),
            result => result,
        }
    }

    /// Frees the regions of resting indices when the device is removed, after all groups have ended.
    pub(crate) fn end_resting(&self) {
        self.resting.close();
    }
}
