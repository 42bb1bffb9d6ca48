// SPDX-License-Identifier: GPL-2.0
//! Block-backed exports: the block device, and the requests of a connection.

mod bdev;
mod device;
mod requests;

pub(super) use device::Device;
pub(super) use requests::{
    Io,
    PAGES, //
};
