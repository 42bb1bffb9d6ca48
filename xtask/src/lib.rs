// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementation of `cargo xtask`, the project's daily tool.

pub mod bench;
pub mod build;
pub mod chroot;
pub mod context;
pub mod demo;
pub mod fault;
pub mod files;
pub mod fuzz;
pub mod guest;
pub mod hostfuzz;
pub mod ide;
pub mod install;
pub mod lint;
pub mod package;
pub mod pmcut;
pub mod progress;
pub mod report;
pub mod selftest;
pub mod setup;
pub mod soak;
pub mod test;
pub mod versions;
