// SPDX-License-Identifier: GPL-2.0
//! Fault injection for steps that the kernel's own fault injection cannot fail.
//!
//! The kernel's fault injection covers allocations and user copies. The functions here cover the
//! results of pins and devices; each such step calls one of them first. Without
//! `CONFIG_FAULT_INJECTION_DEBUG_FS` the calls are compiled out.

use kernel::{
    error::to_result,
    prelude::*, //
};

use crate::sys;

/// The attributes in debugfs; the drop removes them.
pub(crate) struct Attributes(());

impl Attributes {
    /// Creates the attributes. Once, at module load.
    pub(crate) fn new() -> Self {
        // SAFETY: This is called once, and the drop undoes it.
        unsafe { sys::kf_fault_init() };
        Self(())
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: `new` created the attributes; no object of the module is in use any more.
        unsafe { sys::kf_fault_exit() };
    }
}

/// Called before memory is pinned (`fail_kfabric_pin`).
///
/// # Errors
///
/// - `EFAULT` if a test injects the fault.
#[inline(always)]
pub(crate) fn pin() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: The function has no preconditions, in any context.
        return to_result(unsafe { sys::kf_fault_pin() });
    }
    Ok(())
}

/// Called before a request that a provider's device may refuse (`fail_kfabric_device`). Context:
/// any.
///
/// # Errors
///
/// - `EIO` if a test injects the fault.
#[inline(always)]
pub fn device() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: The function has no preconditions, in any context.
        return to_result(unsafe { sys::kf_fault_device() });
    }
    Ok(())
}

/// Called before a provider's device deregisters memory (`fail_kfabric_dereg`). Context: any.
///
/// # Errors
///
/// - `EIO` if a test injects the fault.
#[inline(always)]
pub fn dereg() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: The function has no preconditions, in any context.
        return to_result(unsafe { sys::kf_fault_dereg() });
    }
    Ok(())
}

/// Called before a wait for a provider's device (`fail_kfabric_answer`). May sleep.
///
/// # Errors
///
/// - `ETIMEDOUT`, after half a second, if a test injects the fault.
#[inline(always)]
pub fn answer() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: The function may sleep, which the caller allows.
        return to_result(unsafe { sys::kf_fault_answer() });
    }
    Ok(())
}

/// Called before a listener allocates places for spent cookies (`fail_kfabric_cookie`). Context:
/// any.
///
/// # Errors
///
/// - `ENOMEM` if a test injects the fault.
#[inline(always)]
pub fn cookie() -> Result {
    if cfg!(CONFIG_FAULT_INJECTION_DEBUG_FS) {
        // SAFETY: The function has no preconditions, in any context.
        return to_result(unsafe { sys::kf_fault_cookie() });
    }
    Ok(())
}
