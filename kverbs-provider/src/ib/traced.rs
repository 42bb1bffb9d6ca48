// SPDX-License-Identifier: GPL-2.0
//! Callbacks in sight of a fuzzer.
//!
//! A kernel with KCOV shows a task what it runs itself. What the kernel's threads run on its behalf
//! has to be offered, which is done here. Without KCOV there is nothing of this.

/// While it lives, what this thread runs is seen by whoever asked for it.
pub(crate) struct Traced {
    #[cfg(CONFIG_KCOV)]
    begun: bool,
}

impl Traced {
    /// Begins; in any context.
    pub(crate) fn new() -> Self {
        Self {
            // SAFETY: No preconditions.
            #[cfg(CONFIG_KCOV)]
            begun: unsafe { super::raw::kverbs_cov_start() },
        }
    }
}

#[cfg(CONFIG_KCOV)]
impl Drop for Traced {
    fn drop(&mut self) {
        if self.begun {
            // SAFETY: It was begun, by this thread, and ends before anything around it.
            unsafe { super::raw::kverbs_cov_stop() }
        }
    }
}
