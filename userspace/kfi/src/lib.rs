// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the `kfi` command is made of.
//!
//! [`session`] makes connections with bounded waits and small control messages ([`wire`]); the
//! other modules are the commands. `kfi-demo` uses [`session`] too.

#![forbid(unsafe_code)]

pub mod cli;
pub mod cmd;
mod ending;
pub mod error;
mod replace;
pub mod say;
pub mod session;
pub mod stats;
pub mod wire;
