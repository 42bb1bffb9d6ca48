// SPDX-License-Identifier: GPL-2.0
//! The current task: preemption, scheduling and signals; and random numbers.

use core::marker::PhantomData;

use super::raw::*;

/// While this guard lives, no other task runs on this processor.
pub(crate) struct NoPreempt(PhantomData<*mut ()>);

impl NoPreempt {
    /// Disables preemption. Context: any; the caller must not sleep until the drop.
    pub(crate) fn new() -> Self {
        // SAFETY: No preconditions; the drop enables preemption again.
        unsafe { kshm_preempt_disable() };
        Self(PhantomData)
    }
}

impl Drop for NoPreempt {
    fn drop(&mut self) {
        // SAFETY: `new` disabled preemption on this processor, so the task has stayed here.
        unsafe { kshm_preempt_enable() };
    }
}

/// Lets other tasks run. May sleep.
pub(crate) fn cond_resched() {
    // SAFETY: The caller may sleep.
    unsafe { kshm_cond_resched() }
}

/// Returns whether the task is being killed.
pub(crate) fn killed() -> bool {
    // SAFETY: No preconditions.
    unsafe { kshm_fatal_signal_pending() }
}

/// Returns a random number.
pub(crate) fn random() -> u128 {
    let mut secret = 0u128;
    // SAFETY: The variable is writable and of that size; any bytes are a valid number.
    unsafe { kshm_random((&raw mut secret).cast(), size_of::<u128>()) };
    secret
}
