// SPDX-License-Identifier: GPL-2.0
//! Waiting until other parties have left.

use kernel::{
    bindings,
    ffi::c_int,
    prelude::*,
    types::Opaque, //
};

use super::raw::*;

/// Wait queue of tasks that wait until other parties have left.
///
/// # Invariants
///
/// Initialised.
#[pin_data]
pub(crate) struct Exits {
    #[pin]
    head: Opaque<bindings::wait_queue_head>,
}

// SAFETY: The C object contains its own lock.
unsafe impl Send for Exits {}
// SAFETY: As above.
unsafe impl Sync for Exits {}

impl Exits {
    /// Returns a wait queue without waiters.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: The slot is valid for writes, and pinned from then on.
            head <- Opaque::ffi_init(|head| unsafe { kshm_wait_init(head) }),
        })
    }

    /// Wakes the waiters after a party has left. Context: any.
    pub(crate) fn wake(&self) {
        // SAFETY: By the type invariant it is initialised.
        unsafe { kshm_wait_wake(self.head.get()) }
    }

    /// Calls `look`. As long as its condition does not hold, `look` calls its argument, which
    /// sleeps until the next wake since the last check. May sleep.
    pub(crate) fn wait<R>(&self, look: impl FnOnce(&mut dyn FnMut()) -> R) -> R {
        let entry = Opaque::<bindings::wait_queue_entry>::uninit();
        let head = self.head.get();
        // SAFETY: The entry is on this stack and does not move until the end of this function.
        unsafe { bindings::init_wait_entry(entry.get(), 0) };
        let mut ready = false;
        let result = look(&mut || {
            if ready {
                // SAFETY: The caller may sleep.
                unsafe { bindings::schedule() };
            }
            ready = true;
            // CAST: A small constant.
            let state = bindings::TASK_UNINTERRUPTIBLE as c_int;
            // SAFETY: Both are initialised.
            unsafe { bindings::prepare_to_wait(head, entry.get(), state) };
        });
        if ready {
            // SAFETY: As above; the call removes the entry from the list before the entry is
            // dropped.
            unsafe { bindings::finish_wait(head, entry.get()) };
        }
        result
    }
}
