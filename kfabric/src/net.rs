// SPDX-License-Identifier: GPL-2.0
//! A counted reference to a network namespace.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use core::ptr::NonNull;
use kernel::bindings;

use crate::sys;

/// A network namespace. Devices and addresses are looked up in the one of whoever opened a
/// fabric.
///
/// # Invariants
///
/// Holds a reference (`get_net()`).
pub struct Net(NonNull<bindings::net>);

// SAFETY: `struct net` is reference counted and used from any thread.
unsafe impl Send for Net {}
// SAFETY: As above.
unsafe impl Sync for Net {}

impl Net {
    /// The current task's.
    pub fn current() -> Self {
        // SAFETY: Called from a task's system call, which has an `nsproxy`.
        let net = unsafe { sys::kf_current_net() };
        // INVARIANT: The helper took a reference for us; a namespace is never null.
        // SAFETY: As just said.
        Self(unsafe { NonNull::new_unchecked(net) })
    }

    /// The initial one, for consumers in the kernel that belong to no task.
    pub fn init() -> Self {
        // SAFETY: No preconditions.
        let net = unsafe { sys::kf_init_net() };
        // INVARIANT: The helper took a reference for us.
        // SAFETY: `init_net` is never null.
        Self(unsafe { NonNull::new_unchecked(net) })
    }

    /// The C object, valid as long as `self`.
    pub fn as_ptr(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }
}

impl Clone for Net {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariant the namespace is alive.
        unsafe { sys::kf_get_net(self.0.as_ptr()) };
        // INVARIANT: That took the new one's reference.
        Self(self.0)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: By the type invariant we hold a reference.
        unsafe { sys::kf_put_net(self.0.as_ptr()) }
    }
}
