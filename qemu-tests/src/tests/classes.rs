// SPDX-License-Identifier: MIT OR Apache-2.0

//! Classes of bugs that similar code had elsewhere, tried on kfabric.
//!
//! A test bears the name of the record of its class. It takes the steps that would bring the same mistake to
//! light here: mostly under a kernel with checkers, where a use after free or a wrong lock order is
//! an error by itself, and always by its own assertions.

mod copies;
mod deputy;
mod frames;
mod inputs;
mod lifetime;
mod memory;
mod outputs;
pub(super) mod raw_cm;

use crate::harness::caps::{IB_TRANSPORT, PINS_ONCE, REMOTE_ERRORS, SILENCE};
use crate::harness::{Test, NETNS, ONE, SHM};
use crate::raw::{self, Dev};
use crate::sys;
use anyhow::{ensure, Result};
use std::os::fd::{AsFd, AsRawFd};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair(
        "classes.cve_2026_45910_close_while_retransmitting_ends_cleanly",
        lifetime::closed_while_retransmitting,
    )
    .seconds(60)
    .on(NETNS)
    .needs(SILENCE),
    Test::pair(
        "classes.cve_2025_68260_completion_against_teardown_comes_once",
        lifetime::completion_against_teardown,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "classes.cve_2025_21892_ops_under_any_qp_error_complete_once",
        lifetime::operations_end_once,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "classes.cve_2025_22085_device_renamed_and_removed_in_use_gives_errnos",
        lifetime::renamed_and_removed,
    )
    .seconds(30)
    .on(NETNS),
    Test::alone(
        "classes.cve_2018_14734_cve_2023_2176_calls_on_half_built_endpoint_give_errnos",
        lifetime::half_built,
    )
    .seconds(20),
    Test::alone(
        "classes.cve_2023_54201_refused_close_changes_nothing",
        lifetime::refused_close,
    )
    .seconds(8),
    Test::pair(
        "classes.cve_2026_23242_malformed_first_frames_are_cut_or_refused",
        frames::malformed_first_frames,
    )
    .seconds(10)
    .on(NETNS)
    .needs(IB_TRANSPORT),
    Test::alone(
        "classes.cve_2026_23243_lengths_beyond_limits_are_refused",
        inputs::lengths_at_their_ends,
    )
    .seconds(20),
    Test::alone(
        "classes.cve_2018_5332_counts_beyond_limits_are_refused",
        inputs::counts_beyond_limits,
    ),
    Test::pair(
        "classes.cve_2014_8159_wrapping_ranges_are_refused",
        inputs::ranges_that_wrap,
    )
    .needs(REMOTE_ERRORS)
    .seconds(8)
    .on(NETNS | SHM),
    Test::alone(
        "classes.double_fetch_of_changing_op_uses_the_checked_value",
        inputs::fetched_once,
    )
    .seconds(15),
    Test::alone(
        "classes.cve_2026_46053_unwritable_answers_leave_nothing",
        outputs::answers_lost,
    )
    .seconds(20),
    Test::alone(
        "classes.cve_2025_22010_largest_region_registers_without_lockup",
        memory::largest_region,
    )
    .seconds(40),
    Test::alone(
        "classes.cve_2018_5333_cve_2018_7492_pin_of_unmapped_pages_leaves_none",
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
        "classes.memlock_under_many_threads_is_exact",
        memory::memlock_of_threads,
    )
    .needs(PINS_ONCE)
    .verbs()
    .seconds(15),
    Test::alone(
        "classes.p06_assigning_pins_and_registers_nothing",
        memory::assign_is_small,
    )
    .seconds(15)
    .on(ONE),
    Test::alone(
        "classes.cve_2016_4565_descriptor_inherited_by_root_gains_no_rights",
        deputy::inherited_descriptor,
    ),
    Test::pair(
        "classes.knem_xpmem_kill_while_peer_copies_ends_cleanly",
        copies::killed,
    )
    .seconds(20)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_fork_while_peer_copies_reaches_parent_only",
        copies::forked,
    )
    .seconds(15)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_munmap_while_peer_copies_reaches_old_pages_only",
        copies::unmapped,
    )
    .seconds(15)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_mremap_while_peer_copies_reaches_moved_pages",
        copies::moved,
    )
    .seconds(15)
    .on(NETNS | SHM),
    Test::pair(
        "classes.knem_xpmem_exec_while_peer_copies_reaches_old_pages_only",
        copies::replaced,
    )
    .seconds(20)
    .on(NETNS | SHM),
];

/// Scales a repetition count from a kernel without checkers to this kernel.
fn times(stock: u64) -> u64 {
    let slow = u64::from(sys::slowness());
    (stock / slow).max(2)
}

/// Returns the objects that a file holds, as fdinfo shows them: kind and handle, and the windows of
/// keys.
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

/// Checks that a call was accepted, or refused for one of these reasons. Returns whether it was
/// accepted.
fn taken<T>(result: raw::Result<T>, reasons: &[i32], what: &str) -> Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(e) => {
            ensure!(reasons.contains(&e.errno.0), "{what}: {e}");
            Ok(false)
        }
    }
}
