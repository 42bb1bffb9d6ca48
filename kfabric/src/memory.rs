// SPDX-License-Identifier: GPL-2.0
//! Memory that regions cover: pinned and charged pages, pages of the kernel, persistent memory of
//! block devices, attached pages; and borrowed pages, which no region covers.

mod borrowed;
pub(crate) mod charge;
pub mod dax;
mod device_reg;
mod pages;
mod pin;
mod placeholder;

pub(crate) use self::borrowed::BorrowedPages;
pub use self::{
    borrowed::LentPiece,
    pages::{
        Lender,
        Memory,
        Segment,
        Segments, //
    }, //
};
