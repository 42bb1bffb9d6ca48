// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Bounds of a list of kept regions: memory regions of a verbs device without an available key value.

/// Maximum number of regions in a list. With as many indices, a group on a device that always returns
/// the same regions has 2^20 values for the time of a rest.
pub const REGIONS: usize = 4096;

/// Maximum number of pages in the page lists of a list's regions: 256 for each of [`REGIONS`].
pub const PAGES: usize = REGIONS * 256;

/// Size of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    regions: usize,
    /// Sum of the lengths of page lists.
    pages: usize,
}

impl Size {
    /// Returns the size with one more region, of `pages` pages, or `None` if that exceeds a bound.
    pub fn with(self, pages: u32) -> Option<Self> {
        let more = Self {
            regions: self.regions.checked_add(1)?,
            // CAST: A `usize` has at least 32 bits.
            pages: self.pages.checked_add(pages as usize)?,
        };
        (more.regions <= REGIONS && more.pages <= PAGES).then_some(more)
    }

    /// Returns the size with one region, of `pages` pages, less.
    pub fn without(self, pages: u32) -> Self {
        Self {
            regions: self.regions.saturating_sub(1),
            // CAST: A `usize` has at least 32 bits.
            pages: self.pages.saturating_sub(pages as usize),
        }
    }
}
