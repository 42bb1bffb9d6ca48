// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent of kfabric's auth keys, `kfi-authd(8)`.
//!
//! [`policy`] is read from a file. [`decide`] decides by the policy alone. [`serve`] is the main
//! loop, which handles the kernel's upcalls, the socket ([`socket`]) and signals.

#![forbid(unsafe_code)]

mod answers;
pub mod decide;
pub mod log;
mod names;
pub mod notify;
mod pace;
pub mod policy;
mod requests;
pub mod serve;
pub mod socket;
mod work;
