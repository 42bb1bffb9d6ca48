// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tests and benchmarks that run inside guests, and their building blocks.
//!
//! * [`raw`]: `/dev/kfabric` call by call, without a library. Most tests check the kernel's answer
//!   to one exact call, invalid as often as valid, so they call it directly.
//! * [`pair`]: two connected endpoints, one on each node, in a few lines; [`lanes`]: many
//!   connections, for tests that end each of them.
//! * [`disk`]: kfblk's two ends.
//! * [`recipe`]: command lines of documents and man pages, and their execution.
//! * [`harness`]: runs the list on both nodes in lockstep, each test in a process of its own, and
//!   checks for leftovers.
//! * [`storm`]: everything at once, while resources are taken away.
//! * [`tests`]: the tests by topic; [`bench`]: the benchmarks; [`fault`]: every call with failures
//!   injected; [`fuzz`]: the fuzzer.
//! * [`profile`]: rxe devices that behave like other cards.
//! * [`pmcut_message`]: messages to the host about durable writes.
//! * [`wire`]: a peer that breaks every rule.
//!
//! `unsafe` is in [`sys`], and, for the fuzzer alone, in [`fuzz::os`] and [`fuzz::kcov`].

#![deny(unsafe_code)]

pub mod auth;
pub mod bench;
pub mod buf;
pub mod disk;
pub mod fault;
pub mod fuzz;
pub mod harness;
pub mod lanes;
pub mod op;
pub mod pair;
#[path = "../../xtask/src/pmcut/message.rs"]
pub mod pmcut_message;
pub mod profile;
pub mod raw;
pub mod recipe;
pub mod storm;
#[allow(unsafe_code)]
pub mod sys;
pub mod tests;
pub mod wire;
