// SPDX-License-Identifier: GPL-2.0
//! Protection domains, which separate one group's memory from another group's queue pairs.

use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicBool,
        AtomicUsize,
        Ordering, //
    }, //
};
use kernel::{
    error::from_err_ptr,
    prelude::*,
    sync::Arc, //
};

use super::{
    charge::{
        Charge,
        Kind, //
    },
    device::{
        Device,
        Live, //
    },
    raw,
    CALLER, //
};
use kfabric::base::fault;

/// A protection domain.
///
/// # Invariants
///
/// This object owns `ptr`, a protection domain on `device`.
pub(crate) struct Pd {
    ptr: NonNull<raw::ib_pd>,
    device: Arc<Device>,
    /// Charge for a program's protection domain.
    charge: Option<Charge>,
    /// Regions in the domain that peers may still reach although their keys were revoked.
    tainted: AtomicUsize,
    /// True if a queue pair that the driver did not destroy may still execute registrations.
    stuck: AtomicBool,
}

// SAFETY: Any thread may use the C object.
unsafe impl Send for Pd {}
// SAFETY: Any thread may use the C object; the fields that are read do not change.
unsafe impl Sync for Pd {}

impl Pd {
    /// Creates a protection domain. For a `program`, the domain and its objects ([`Pd::charge`])
    /// are charged. The domain never has the unsafe global key (`IB_PD_UNSAFE_GLOBAL_RKEY`).
    pub(crate) fn new(live: &Live<'_>, device: &Arc<Device>, program: bool) -> Result<Self> {
        let charge = match program {
            true => Some(Charge::new(live, device, Kind::Object)?),
            false => None,
        };
        Self::charged(live, device, charge)
    }

    /// Creates a protection domain in any task, for queue pairs that shall reach no memory of this one.
    /// The user of this domain is charged, if it belongs to a program.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's limit is reached.
    /// - An error of the device.
    pub(crate) fn beside(&self, live: &Live<'_>) -> Result<Self> {
        Self::charged(live, &self.device, self.charge_owner(0)?)
    }

    fn charged(_live: &Live<'_>, device: &Arc<Device>, charge: Option<Charge>) -> Result<Self> {
        // Without a local key for all memory, the domain has a region of the device.
        let ptr = device.with_room(|| {
            fault::device()?;
            // SAFETY: The device is registered, as `_live` proves; the name is static.
            from_err_ptr(unsafe { raw::__ib_alloc_pd(device.as_ptr(), 0, CALLER.as_char_ptr()) })
        })?;
        // INVARIANT: The protection domain was created above.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            device: device.clone(),
            charge,
            tainted: AtomicUsize::new(0),
            stuck: AtomicBool::new(false),
        })
    }

    /// Returns the C object.
    pub(super) fn as_ptr(&self) -> *mut raw::ib_pd {
        self.ptr.as_ptr()
    }

    /// Charges the current task's cgroup and user for one new object in the domain. Returns `None`
    /// if the domain does not belong to a program.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the cgroup's limit is reached.
    /// - `EDQUOT` if the user's limit is reached.
    pub(crate) fn charge(&self, live: &Live<'_>) -> Result<Option<Charge>> {
        match &self.charge {
            Some(_) => Charge::new(live, &self.device, Kind::Object).map(Some),
            None => Ok(None),
        }
    }

    /// Charges like [`Pd::charge`], for a memory region with a list of `pages` pages.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the cgroup's limit is reached.
    /// - `EDQUOT` if the user's limit is reached.
    pub(crate) fn charge_pages(&self, live: &Live<'_>, pages: u32) -> Result<Option<Charge>> {
        match &self.charge {
            Some(_) => Charge::of_pages(live, &self.device, pages).map(Some),
            None => Ok(None),
        }
    }

    /// Charges like [`Pd::charge`], for an object whose queues have space for `operations`.
    ///
    /// # Errors
    ///
    /// - `EAGAIN` if the cgroup's limit is reached.
    /// - `EDQUOT` if the user's limit is reached.
    pub(crate) fn charge_queues(&self, live: &Live<'_>, operations: u32) -> Result<Option<Charge>> {
        match &self.charge {
            Some(_) => Charge::of_queues(live, &self.device, Kind::Object, operations).map(Some),
            None => Ok(None),
        }
    }

    /// Charges the user of the domain for a queue pair whose queues have space for `operations`,
    /// in any task. Returns `None` if the domain does not belong to a program.
    ///
    /// No rdma cgroup is charged: the kernel charges only the cgroup of the current task.
    ///
    /// # Errors
    ///
    /// - `EDQUOT` if the user's limit is reached.
    pub(crate) fn charge_owner(&self, operations: u32) -> Result<Option<Charge>> {
        match &self.charge {
            Some(charge) => charge.queues_of_user(operations).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the domain's device.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns whether a region in the domain outlives its key. If so, no queue pair can be
    /// created.
    pub(super) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::SeqCst) != 0
    }

    /// Records that a region in the domain outlives its key.
    pub(super) fn taint(&self) {
        self.tainted.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that a region that outlived its key has ended.
    pub(super) fn untaint(&self) {
        self.tainted.fetch_sub(1, Ordering::SeqCst);
    }

    /// Records that a queue pair which the driver did not destroy may still execute registrations and
    /// invalidations of the domain's regions.
    pub(super) fn stick(&self) {
        self.stuck.store(true, Ordering::SeqCst);
    }

    /// Returns whether the domain's regions and their memory must stay for ever: a registration that is
    /// executed late could reach memory that is no longer theirs.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::SeqCst)
    }

    /// Returns the key for local access to memory mapped by [`dma`](super::dma).
    pub(crate) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: By the type invariant the protection domain is alive.
        unsafe { (*self.as_ptr()).local_dma_lkey }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant this object owns the protection domain. Each object in the
        // domain holds the `Arc` of this value, so none is left.
        unsafe { raw::ib_dealloc_pd_user(self.as_ptr(), core::ptr::null_mut()) };
    }
}
