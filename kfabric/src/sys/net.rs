// SPDX-License-Identifier: GPL-2.0
//! A counted reference to a network namespace.
//!
//! C header: [`include/net/net_namespace.h`](srctree/include/net/net_namespace.h)

use core::ptr::NonNull;
use kernel::{
    bindings,
    prelude::*, //
};

use crate::{
    pure::addr::Address,
    sys,
    uapi::SockAddr, //
};

/// A network namespace. Devices and addresses are looked up in the namespace of the task that
/// opened the fabric.
///
/// # Invariants
///
/// The value owns a reference (`get_net()`).
pub struct Net(NonNull<bindings::net>);

// SAFETY: `struct net` is reference counted, and any thread may use it.
unsafe impl Send for Net {}
// SAFETY: `struct net` is reference counted, and threads may share it.
unsafe impl Sync for Net {}

impl Net {
    /// Returns the current task's namespace.
    pub fn current() -> Self {
        // SAFETY: The caller is in a system call of a task, which has an `nsproxy`.
        let net = unsafe { sys::kf_current_net() };
        // INVARIANT: The helper took a reference, which the value owns.
        // SAFETY: A task's namespace is never null.
        Self(unsafe { NonNull::new_unchecked(net) })
    }

    /// Returns the initial namespace, for kernel consumers without a task.
    pub fn init() -> Self {
        // SAFETY: The function has no preconditions.
        let net = unsafe { sys::kf_init_net() };
        // INVARIANT: The helper took a reference, which the value owns.
        // SAFETY: `init_net` is never null.
        Self(unsafe { NonNull::new_unchecked(net) })
    }

    /// Checks that the current task may listen at an address of this namespace.
    ///
    /// # Errors
    ///
    /// - `EACCES` if the port is one of the system's (`net.ipv4.ip_unprivileged_port_start`) and the
    ///   task lacks `CAP_NET_BIND_SERVICE` in the user namespace that owns this one.
    pub(crate) fn may_listen(&self, addr: &SockAddr) -> Result {
        // CAST: A `u32` fits.
        let raw = addr.data.get(..addr.len as usize).unwrap_or_default();
        let port = match Address::parse(raw) {
            Address::V4 { port, .. } | Address::V6 { port, .. } => port,
            _ => 0,
        };
        // SAFETY: By the type invariant the namespace is alive.
        if port != 0 && !unsafe { sys::kf_net_may_bind(self.as_ptr(), port) } {
            return Err(EACCES);
        }
        Ok(())
    }

    /// The C object, valid as long as `self`.
    pub fn as_ptr(&self) -> *mut bindings::net {
        self.0.as_ptr()
    }
}

/// The effective user of the task that made an object. A provider stores it without reading it.
#[derive(Clone, Copy)]
pub struct Owner(u32);

impl Owner {
    /// The user that the current task acts for.
    pub fn current() -> Self {
        // SAFETY: The function has no preconditions.
        Self(unsafe { sys::kf_current_euid() })
    }

    /// Returns whether this user is the current task's own, root of the host, or root of the user
    /// namespace that owns `net`. Such users are trusted not to take another user's address in
    /// `net`.
    pub fn is_trusted_in(self, net: &Net) -> bool {
        // SAFETY: `net` holds the namespace.
        self.0 == Self::current().0 || unsafe { sys::kf_net_is_root(net.as_ptr(), self.0) }
    }
}

impl Clone for Net {
    fn clone(&self) -> Self {
        // SAFETY: By the type invariant the namespace is alive.
        unsafe { sys::kf_get_net(self.0.as_ptr()) };
        // INVARIANT: `kf_get_net()` took the new value's reference.
        Self(self.0)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        // SAFETY: By the type invariant the value owns a reference.
        unsafe { sys::kf_put_net(self.0.as_ptr()) }
    }
}
