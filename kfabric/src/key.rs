// SPDX-License-Identifier: GPL-2.0
//! Regions and keys (`fi_mr(3)`): memory of a domain, and the ranges that peers can access.
//!
//! - `region`: registered memory. A region may have a key of its own, so regions and keys are one
//!   layer.
//! - `slot`: the key slot, its key's assignment and revocation. `reserve` creates slots.
//! - `batch`: assignments of many keys. `ordered`: assignments that return the values at once, and
//!   `ordered_worker`, which makes them.
//! - `endpoint_keys`: the slots that are bound to an endpoint.

mod batch;
pub(crate) mod endpoint_keys;
mod ordered;
pub(crate) mod ordered_worker;
pub(crate) mod region;
mod reserve;
mod slot;

pub use self::{
    batch::Assignment,
    ordered_worker::Failures,
    region::Region,
    slot::{
        Key,
        CHAIN, //
    }, //
};
