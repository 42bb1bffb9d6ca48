// SPDX-License-Identifier: GPL-2.0
//! Places where a test can make something fail that is not the kernel's to fail.
//!
//! The kernel's own fault injection reaches allocations and user copies. What a pin or a device
//! may answer it cannot reach; such places ask here first. On a kernel without
//! `CONFIG_FAULT_INJECTION_DEBUG_FS` the question is compiled out.

use kernel::{
    error::to_result,
    prelude::*, //
};

use crate::sys;

/// The attributes in debugfs; dropping it takes them away.
pub(crate) struct Attributes(());

impl Attributes {
    /// Makes them. Once, at module load.
    pub(crate) fn new() -> Self {
        // SAFETY: Called once, and undone by drop.
        unsafe { sys::kf_fault_init() };
        Self(())
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: `new` made them; nothing of the module is in use any more.
        unsafe { sys::kf_fault_exit() };
    }
}

/// Memory is about to be pinned (`fail_kfabric_pin`).
///
/// # Errors
///
/// `EFAULT`: a test wants it to fail.
#[inline(always)]
pub(crate) fn pin() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: No preconditions. Any context.
        return to_result(unsafe { sys::kf_fault_pin() });
    }
    Ok(())
}

/// A provider's device is about to be asked for something that it may refuse
/// (`fail_kfabric_device`). Any context.
///
/// # Errors
///
/// `EIO`: a test wants it to be refused.
#[inline(always)]
pub fn device() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: No preconditions. Any context.
        return to_result(unsafe { sys::kf_fault_device() });
    }
    Ok(())
}

/// A provider's device is about to be waited for (`fail_kfabric_answer`). May sleep.
///
/// # Errors
///
/// `ETIMEDOUT`, half a second later: a test wants it to be silent.
#[inline(always)]
pub fn answer() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: No preconditions but that it may sleep here, which the caller says.
        return to_result(unsafe { sys::kf_fault_answer() });
    }
    Ok(())
}
