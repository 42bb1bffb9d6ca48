// SPDX-License-Identifier: MIT OR Apache-2.0

//! The tests and benchmarks that run inside guests, and what they are made of.
//!
//! * [`raw`]: `/dev/kfabric` call by call, nothing in between. Most tests ask
//!   what the kernel does with one exact call, a wrong one as often as a right
//!   one, so they speak to it directly.
//! * [`pair`]: two connected endpoints, one on each node, in a few lines;
//!   [`lanes`]: many, for what ends each of them.
//! * [`disk`]: kfblk's two ends.
//! * [`harness`]: runs the list on both nodes in lockstep, each test in a
//!   process of its own, and looks for what it left behind.
//! * [`storm`]: everything at once, and everything taken away.
//! * [`tests`]: the tests by topic; [`bench`]: the benchmarks; [`fault`]: every call with
//!   failures injected; [`fuzz`]: the fuzzer.
//! * [`wire`]: a peer that keeps to no rule.
//!
//! `unsafe` is in [`sys`], and in [`fuzz::os`] and [`fuzz::kcov`] what only the
//! fuzzer needs.

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
pub mod raw;
pub mod storm;
#[allow(unsafe_code)]
pub mod sys;
pub mod tests;
pub mod wire;
