// SPDX-License-Identifier: MIT OR Apache-2.0

//! Classes of bugs that code of this kind had elsewhere, tried on ours.
//!
//! A test bears the name of the record whose class it is of. What it does is
//! what would bring the same mistake to light here: mostly under a kernel
//! whose checkers are on, where a use after free or a lock order is a fault by
//! itself, and always by what it asserts.

mod copies;
mod deputy;
mod frames;
mod inputs;
mod lifetime;
mod memory;
mod outputs;
pub(super) mod raw_cm;

use crate::harness::{Test, NETNS, ONE, SHM};
use crate::raw::{self, Dev};
use crate::sys;
use anyhow::{ensure, Result};
use std::os::fd::{AsFd, AsRawFd};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "classes.cve_2026_45910_endpoint_closed_while_retransmitting",
        lifetime::closed_while_retransmitting,
    )
    .seconds(60)
    .on(NETNS),
    Test::pair(
        "classes.cve_2025_68260_completion_against_teardown",
        lifetime::completion_against_teardown,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "classes.cve_2025_21892_operations_end_once_whatever_ends_them",
        lifetime::operations_end_once,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "classes.cve_2025_22085_device_renamed_and_removed_under_use",
        lifetime::renamed_and_removed,
    )
    .seconds(30)
    .on(NETNS),
    Test::alone(
        "classes.cve_2018_14734_cve_2023_2176_half_built_endpoint",
        lifetime::half_built,
    )
    .seconds(20),
    Test::alone(
        "classes.cve_2023_54201_refused_close_changes_nothing",
        lifetime::refused_close,
    )
    .seconds(8),
    Test::pair(
        "classes.cve_2026_23242_malformed_first_frames",
        frames::malformed_first_frames,
    )
    .seconds(10)
    .on(NETNS),
    Test::alone(
        "classes.cve_2026_23243_lengths_at_their_ends",
        inputs::lengths_at_their_ends,
    )
    .seconds(20),
    Test::alone(
        "classes.cve_2018_5332_counts_beyond_the_limits",
        inputs::counts_beyond_limits,
    ),
    Test::pair(
        "classes.cve_2014_8159_ranges_that_wrap",
        inputs::ranges_that_wrap,
    )
    .seconds(8)
    .on(NETNS | SHM),
    Test::alone(
        "classes.double_fetch_what_is_checked_is_what_is_used",
        inputs::fetched_once,
    )
    .seconds(15),
    Test::alone(
        "classes.cve_2026_46053_answers_that_cannot_be_written",
        outputs::answers_lost,
    )
    .seconds(20),
    Test::alone(
        "classes.cve_2025_22010_largest_region",
        memory::largest_region,
    )
    .seconds(40),
    Test::alone(
        "classes.cve_2018_5333_cve_2018_7492_pin_of_unmapped_pages",
        memory::unmapped_pages,
    )
    .seconds(8),
    Test::pair(
        "classes.cve_2025_40250_unwinding_leaves_others_alone",
        memory::unwinding,
    )
    .seconds(15)
    .on(NETNS | SHM),
    Test::alone(
        "classes.memlock_is_exact_with_many_threads",
        memory::memlock_of_threads,
    )
    .verbs()
    .seconds(15),
    Test::alone(
        "classes.p06_assigning_pins_and_registers_nothing",
        memory::assign_is_small,
    )
    .seconds(15)
    .on(ONE),
    Test::alone(
        "classes.cve_2016_4565_descriptor_inherited_by_the_privileged",
        deputy::inherited_descriptor,
    ),
    Test::pair(
        "classes.knem_xpmem_kill_while_the_peer_copies",
        copies::killed,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_fork_while_the_peer_copies",
        copies::forked,
    )
    .seconds(15)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_munmap_while_the_peer_copies",
        copies::unmapped,
    )
    .seconds(15)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_mremap_while_the_peer_copies",
        copies::moved,
    )
    .seconds(15)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_exec_while_the_peer_copies",
        copies::replaced,
    )
    .seconds(20)
    .on(NETNS | SHM),
];

/// How often to do what is done `stock` times on a kernel without checkers.
fn times(stock: u64) -> u64 {
    let slow = u64::from(sys::slowness());
    (stock / slow).max(2)
}

/// The objects that a file holds, as its fdinfo shows them: kind and handle, and what keys give.
fn held(dev: &Dev) -> Result<Vec<String>> {
    let path = format!("/proc/self/fdinfo/{}", dev.as_fd().as_raw_fd());
    let text = std::fs::read_to_string(path)?;
    let object = |line: &&str| line.contains(" on 0x");
    let named = |line: &str| match line.split_once(": ") {
        Some((name, _)) if !line.starts_with("key") => name.to_owned(),
        _ => line.to_owned(),
    };
    Ok(text.lines().filter(object).map(named).collect())
}

/// Checks that a call was taken, or refused for one of these reasons; whether it was taken.
fn taken<T>(result: raw::Result<T>, reasons: &[i32], what: &str) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(e) => {
            ensure!(reasons.contains(&e.errno.0), "{what}: {e}");
            Ok(false)
        }
    }
}
