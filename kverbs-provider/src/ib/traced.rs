// SPDX-License-Identifier: GPL-2.0
//! Coverage of callbacks for a fuzzer.
//!
//! With KCOV, the kernel records the code that a task executes itself. Kernel threads that work for
//! the task must enable the recording, which this module does. Without KCOV it does nothing.

/// While it exists, KCOV records the code that this thread executes, if a task has requested that.
pub(crate) struct Traced {
    #[cfg(CONFIG_KCOV)]
    begun: bool,
}

impl Traced {
    /// Begins the recording.
    ///
    /// Context: any.
    pub(crate) fn new() -> Self {
        Self {
            // SAFETY: The function has no preconditions.
            #[cfg(CONFIG_KCOV)]
            begun: unsafe { super::raw::kverbs_cov_start() },
        }
    }
}

#[cfg(CONFIG_KCOV)]
impl Drop for Traced {
    fn drop(&mut self) {
        if self.begun {
            // SAFETY: This thread began the recording in `new`, and recordings are nested.
            unsafe { super::raw::kverbs_cov_stop() }
        }
    }
}
