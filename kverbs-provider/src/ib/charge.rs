// SPDX-License-Identifier: GPL-2.0
//! Charges for a program's device objects: to the rdma cgroup, as uverbs does, and to the user's
//! share.

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
    raw,
    share::{
        self,
        Share, //
    }, //
};

/// The resource of the rdma cgroup that is charged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An opened device (`hca_handle`).
    Handle,
    /// A protection domain, queue or memory region (`hca_object`).
    Object,
}

/// A charge; dropping it uncharges. Like the charged object, it must be dropped before
/// `ib_client.remove` returns.
///
/// # Invariants
///
/// `cgroup` was charged for one `kind` on `device`, and the charge keeps it alive. It is `None` if
/// the kernel has no rdma cgroups, or if only a user is charged.
pub(crate) struct Charge {
    cgroup: Option<NonNull<c_void>>,
    kind: Kind,
    device: Arc<Device>,
    share: Share,
}

// SAFETY: Any thread may charge and uncharge a cgroup.
unsafe impl Send for Charge {}
// SAFETY: Any thread may charge and uncharge a cgroup; a shared reference has no operations.
unsafe impl Sync for Charge {}

impl Charge {
    /// Charges the current task's cgroup and user for an object without queues.
    ///
    /// # Errors
    ///
    /// The errors of [`Charge::of_queues`].
    pub(crate) fn new(live: &Live<'_>, device: &Arc<Device>, kind: Kind) -> Result<Self> {
        Self::of_queues(live, device, kind, 0)
    }

    /// Returns the bytes counted for an object whose queues have space for `operations`.
    fn bytes(operations: u32) -> usize {
        // CAST: A `usize` has at least 32 bits.
        let queues = (operations as usize).saturating_mul(share::OPERATION);
        queues.saturating_add(share::OBJECT)
    }

    /// Charges the current task's cgroup and user for a memory region with a list of `pages` pages.
    ///
    /// # Errors
    ///
    /// The errors of [`Charge::of_queues`].
    pub(crate) fn of_pages(live: &Live<'_>, device: &Arc<Device>, pages: u32) -> Result<Self> {
        // CAST: A `usize` has at least 32 bits.
        let list = (pages as usize).saturating_mul(share::PAGE);
        Self::of_bytes(
            live,
            device,
            Kind::Object,
            share::OBJECT.saturating_add(list),
        )
    }

    /// Charges the user of this charge, and no cgroup, for a queue pair and a completion queue with
    /// space for `operations`. The caller may be any task.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's limit is reached.
    /// - `ENOMEM` if there is no memory.
    pub(crate) fn queues_of_user(&self, operations: u32) -> Result<Self> {
        let bytes = Self::bytes(operations).saturating_add(share::OBJECT);
        // INVARIANT: No cgroup is charged.
        Ok(Self {
            cgroup: None,
            kind: Kind::Object,
            device: self.device.clone(),
            share: self.share.more(bytes)?,
        })
    }

    /// Charges the current task's cgroup and user for an object whose queues have space for
    /// `operations`.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the cgroup's limit (`rdma.max`) is reached.
    /// - `EDQUOT` if the user's limit (`user_mib`) is reached.
    /// - `ENOMEM` if there is no memory.
    pub(crate) fn of_queues(
        live: &Live<'_>,
        device: &Arc<Device>,
        kind: Kind,
        operations: u32,
    ) -> Result<Self> {
        Self::of_bytes(live, device, kind, Self::bytes(operations))
    }

    fn of_bytes(_live: &Live<'_>, device: &Arc<Device>, kind: Kind, bytes: usize) -> Result<Self> {
        let share = Share::new(bytes)?;
        let mut cgroup = core::ptr::null_mut();
        // SAFETY: The device is registered, as `_live` proves, and `cgroup` is a local variable.
        to_result(unsafe {
            raw::kverbs_cg_charge(device.as_ptr(), kind == Kind::Handle, &mut cgroup)
        })?;
        // INVARIANT: The cgroup was charged above.
        Ok(Self {
            cgroup: NonNull::new(cgroup),
            kind,
            device: device.clone(),
            share,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(cgroup) = self.cgroup {
            let handle = self.kind == Kind::Handle;
            // SAFETY: By the type invariant `cgroup` was charged for this kind on this device.
            unsafe { raw::kverbs_cg_uncharge(self.device.as_ptr(), handle, cgroup.as_ptr()) };
        }
    }
}
