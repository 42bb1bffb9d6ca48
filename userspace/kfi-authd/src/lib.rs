// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `kfi-authd` is made of: see kfi-authd(8).
//!
//! [`policy`] is read from a file, and [`decide`] asks nothing but it; [`serve`] is the loop around
//! them, which hears the kernel, the socket ([`socket`]) and signals.

#![forbid(unsafe_code)]

mod answers;
pub mod decide;
pub mod log;
mod names;
pub mod notify;
pub mod policy;
mod requests;
pub mod serve;
pub mod socket;
mod work;
