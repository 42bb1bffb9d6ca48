// SPDX-License-Identifier: GPL-2.0
//! Charges to the rdma cgroup: what a program has of a device, as uverbs charges it.

use core::ptr::NonNull;
use kernel::{
    error::to_result,
    ffi::c_void,
    prelude::*,
    sync::Arc, //
};

use super::{
    device::{
        Device,
        Live, //
    },
    raw, //
};

/// What is charged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An opened device (`hca_handle`).
    Handle,
    /// A protection domain, queue or memory region (`hca_object`).
    Object,
}

/// A charge; dropping it gives it back. To be dropped, as what it is for, before `ib_client.remove`
/// returns.
///
/// # Invariants
///
/// `cgroup` was charged for one `kind` on `device`, and is held by that; `None`: there are no rdma cgroups.
pub(crate) struct Charge {
    cgroup: Option<NonNull<c_void>>,
    kind: Kind,
    device: Arc<Device>,
}

// SAFETY: A cgroup may be charged for and given back by any thread.
unsafe impl Send for Charge {}
// SAFETY: As above; nothing is done with a shared reference.
unsafe impl Sync for Charge {}

impl Charge {
    /// Charges the current task's cgroup.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: its limit (`rdma.max`). `ENOMEM`.
    pub(crate) fn new(_live: &Live<'_>, device: &Arc<Device>, kind: Kind) -> Result<Self> {
        let mut cgroup = core::ptr::null_mut();
        // SAFETY: The device is registered, as `_live` proves, and the place is ours.
        to_result(unsafe {
            raw::kverbs_cg_charge(device.as_ptr(), kind == Kind::Handle, &mut cgroup)
        })?;
        // INVARIANT: It was just charged.
        Ok(Self {
            cgroup: NonNull::new(cgroup),
            kind,
            device: device.clone(),
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(cgroup) = self.cgroup {
            let handle = self.kind == Kind::Handle;
            // SAFETY: By the type invariant.
            unsafe { raw::kverbs_cg_uncharge(self.device.as_ptr(), handle, cgroup.as_ptr()) };
        }
    }
}
