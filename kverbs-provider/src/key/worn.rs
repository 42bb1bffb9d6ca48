// SPDX-License-Identifier: GPL-2.0
//! Worn regions: those without an available key value, which a group keeps.
//!
//! If they were freed, a device that reuses the last freed region first would return the same ones
//! for ever. The oldest one is used again first.
//!
//! Reserves of slots and regions of wide keys have lists of their own, each with its bounds: one kind's
//! list does not fill the other's.

use kernel::prelude::*;

use crate::{
    ib::mr::Mr,
    limits::FAST_PAGES, //
};
use kfabric::pure::kept::{
    self,
    Size, //
};

// As many pages as the reserves of a full list have.
// CAST: A `usize` has at least 32 bits.
const _: () = assert!(kept::PAGES == kept::REGIONS * FAST_PAGES as usize);

/// A kept region.
pub(super) struct Kept {
    pub(super) mr: Mr,
    /// The length of its page list.
    pub(super) pages: u32,
}

/// The kept regions of one kind, the oldest first.
struct List {
    regions: KVec<Kept>,
    size: Size,
}

/// The kept regions of a group.
pub(super) struct Worn {
    reserves: List,
    wide: List,
}

/// Returns whether a page list of `pages` pages is that of a wide key's region.
pub(super) fn is_wide(pages: u32) -> bool {
    pages > FAST_PAGES
}

impl Kept {
    /// Returns whether the region serves a key that needs a page list of `pages` pages. A wide key is
    /// charged by its page list, so only a region of this length serves it.
    pub(super) fn serves(&self, pages: u32) -> bool {
        match is_wide(pages) {
            true => self.pages == pages,
            false => self.pages >= pages,
        }
    }
}

impl List {
    fn new() -> Self {
        Self {
            regions: KVec::new(),
            size: Size::default(),
        }
    }
}

impl Worn {
    /// Returns empty lists.
    pub(super) fn new() -> Self {
        Self {
            reserves: List::new(),
            wide: List::new(),
        }
    }

    /// Returns the list of the regions with page lists of `pages` pages.
    fn list(&mut self, pages: u32) -> &mut List {
        match is_wide(pages) {
            true => &mut self.wide,
            false => &mut self.reserves,
        }
    }

    /// Returns the number of regions.
    pub(super) fn len(&self) -> usize {
        self.reserves.regions.len() + self.wide.regions.len()
    }

    /// Returns the number of regions of the kind that has page lists of `pages` pages.
    pub(super) fn len_of(&mut self, pages: u32) -> usize {
        self.list(pages).regions.len()
    }

    /// Returns region number `at` of the kind that has page lists of `pages` pages.
    pub(super) fn get_mut(&mut self, at: usize, pages: u32) -> Option<&mut Kept> {
        self.list(pages).regions.get_mut(at)
    }

    /// Adds a region, as number `at` of its kind if there are as many. Returns the region if there are
    /// too many regions or pages, or if there is no memory.
    pub(super) fn insert(&mut self, at: usize, kept: Kept) -> Result<(), Kept> {
        let list = self.list(kept.pages);
        let size = match list.size.with(kept.pages) {
            Some(size) if list.regions.reserve(1, GFP_KERNEL_ACCOUNT).is_ok() => size,
            _ => return Err(kept),
        };
        let at = at.min(list.regions.len());
        // Cannot fail: the capacity was reserved above.
        let _ = list.regions.insert_within_capacity(at, kept);
        list.size = size;
        Ok(())
    }

    /// Removes region number `at` of the kind that has page lists of `pages` pages.
    pub(super) fn remove(&mut self, at: usize, pages: u32) -> Option<Kept> {
        let list = self.list(pages);
        let kept = list.regions.remove(at).ok()?;
        list.size = list.size.without(kept.pages);
        Some(kept)
    }

    /// Removes all regions.
    pub(super) fn clear(&mut self) {
        for list in [&mut self.reserves, &mut self.wide] {
            list.regions.clear();
            list.size = Size::default();
        }
    }
}
