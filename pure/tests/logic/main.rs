// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Tests of the kernel-free logic: examples, properties, hostile input.
//!
//! One program, so that it links once. Interleavings are in `../loom.rs`.

#![cfg(not(loom))]

use proptest::test_runner::Config;

mod addr;
mod atomic;
mod blk;
mod blk_device;
mod blk_dirty;
mod blk_share;
mod commit;
mod copysize;
mod cqring;
mod gate;
mod gid;
mod grant;
mod hold;
mod info;
mod key;
mod key_batch;
mod key_budget;
mod key_history;
mod key_ledger;
mod pairs;
mod parts;
mod persist;
mod pipe;
mod proof;
mod range;
mod rights;
mod ring;
mod scramble;
mod sendq;
mod slot;
mod turns;
mod versions;
mod wire;
mod written;

/// Maximum number of steps of a generated sequence.
const STEPS: usize = if cfg!(miri) { 24 } else { 200 };

/// Number of cases per property. Miri is a thousand times slower, and has no files to write to.
fn config() -> Config {
    Config {
        cases: if cfg!(miri) { 4 } else { 1024 },
        failure_persistence: None,
        ..Config::default()
    }
}
