// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parts of the `kfi` command.
//!
//! [`session`] makes connections, with bounded waits and small control messages ([`wire`]). The
//! other modules implement the commands. `kfi-demo` also uses [`session`].

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
