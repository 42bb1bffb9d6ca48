// SPDX-License-Identifier: GPL-2.0
//! Levels of completion that writes reach on a device, by its driver.
//!
//! `docs/design/pmem.md` has the reasons.

use crate::ib::{
    device::Device,
    persist,
    raw, //
};
use kfabric::uapi::{
    KFI_REACH_ASSISTED,
    KFI_REACH_NATIVE,
    KFI_REACH_NO, //
};

/// Returns whether a driver acknowledges a write only after the bytes are in the target's memory.
///
/// The responder of rxe copies the bytes with the processor and then acknowledges them. Hardware
/// may acknowledge bytes that it has yet to place. siw completes a write when TCP has the bytes.
fn places_before_acknowledging(driver: raw::rdma_driver_id) -> bool {
    driver == raw::rdma_driver_id_RDMA_DRIVER_RXE
}

/// Returns how writes become visible on a device: `KFI_REACH_*`.
pub(crate) fn visible(device: &Device) -> u32 {
    if places_before_acknowledging(device.driver()) {
        KFI_REACH_NATIVE
    } else {
        KFI_REACH_NO
    }
}

/// Returns whether writes can become durable on a device, once the administrator allows it.
pub(crate) fn can_be_durable(device: &Device) -> bool {
    places_before_acknowledging(device.driver()) && persist::is_supported()
}

/// Returns how writes become durable on a device: `KFI_REACH_*`, if the administrator allows it. The
/// target's kernel writes the bytes back, so they must be in memory before the commit.
pub(crate) fn durable(device: &Device) -> u32 {
    if persist::is_allowed() && can_be_durable(device) {
        KFI_REACH_ASSISTED
    } else {
        KFI_REACH_NO
    }
}
