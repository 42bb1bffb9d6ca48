// SPDX-License-Identifier: GPL-2.0
//! Worn regions: those without an available key value, which a group keeps.
//!
//! If they were freed, a device that reuses the last freed region first would return the same ones
//! for ever. The oldest one is used again first.

use kernel::prelude::*;

use crate::{
    ib::mr::Mr,
    limits::FAST_PAGES, //
};

/// Maximum number of regions that a group keeps. With as many indices, a group on a device
/// that always returns the same regions has 2^20 values for the time of a rest.
const REGIONS: usize = 4096;

/// Maximum number of pages in the page lists of all kept regions: those of [`REGIONS`] reserves.
/// CAST: A `usize` has at least 32 bits.
const PAGES: usize = REGIONS * FAST_PAGES as usize;

/// A kept region.
pub(super) struct Kept {
    pub(super) mr: Mr,
    /// The length of its page list.
    pub(super) pages: u32,
}

/// The kept regions of a group, the oldest first.
pub(super) struct Worn {
    list: KVec<Kept>,
    /// Sum of the lengths of page lists.
    pages: usize,
}

impl Worn {
    /// Returns an empty list.
    pub(super) fn new() -> Self {
        Self {
            list: KVec::new(),
            pages: 0,
        }
    }

    /// Returns the number of regions.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns region number `at`.
    pub(super) fn get_mut(&mut self, at: usize) -> Option<&mut Kept> {
        self.list.get_mut(at)
    }

    /// Adds a region, as number `at` if there are as many. Returns the region if there are too many
    /// regions or pages, or if there is no memory.
    pub(super) fn insert(&mut self, at: usize, kept: Kept) -> Result<(), Kept> {
        // CAST: A `usize` has at least 32 bits.
        let pages = self.pages.saturating_add(kept.pages as usize);
        let full = self.list.len() >= REGIONS || pages > PAGES;
        if full || self.list.reserve(1, GFP_KERNEL_ACCOUNT).is_err() {
            return Err(kept);
        }
        let at = at.min(self.list.len());
        // Cannot fail: the capacity was reserved above.
        let _ = self.list.insert_within_capacity(at, kept);
        self.pages = pages;
        Ok(())
    }

    /// Removes region number `at`.
    pub(super) fn remove(&mut self, at: usize) -> Option<Kept> {
        let kept = self.list.remove(at).ok()?;
        // CAST: A `usize` has at least 32 bits.
        self.pages -= kept.pages as usize;
        Some(kept)
    }

    /// Removes all regions.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.pages = 0;
    }
}
