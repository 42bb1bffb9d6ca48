// SPDX-License-Identifier: GPL-2.0
//! A protection domain: what keeps one group's memory from another group's queue pairs.

use core::ptr::NonNull;
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
use kfabric::fault;

/// A protection domain.
///
/// # Invariants
///
/// `ptr` is a protection domain of ours on `device`.
pub(crate) struct Pd {
    ptr: NonNull<raw::ib_pd>,
    device: Arc<Device>,
    /// Of a program's.
    charge: Option<Charge>,
}

// SAFETY: The C object may be used by any thread.
unsafe impl Send for Pd {}
// SAFETY: As above; what is read of it does not change.
unsafe impl Sync for Pd {}

impl Pd {
    /// Makes one; with `program`, what is made in it is charged ([`Pd::charge`]), and itself. It never has
    /// the unsafe global key (`IB_PD_UNSAFE_GLOBAL_RKEY`).
    pub(crate) fn new(live: &Live<'_>, device: &Arc<Device>, program: bool) -> Result<Self> {
        let charge = match program {
            true => Some(Charge::new(live, device, Kind::Object)?),
            false => None,
        };
        fault::device()?;
        // SAFETY: The device is registered, as `live` proves; the name is static.
        let ptr = unsafe { raw::__ib_alloc_pd(device.as_ptr(), 0, CALLER.as_char_ptr()) };
        let ptr = from_err_ptr(ptr)?;
        // INVARIANT: It was just made.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
            device: device.clone(),
            charge,
        })
    }

    /// The C object.
    pub(super) fn as_ptr(&self) -> *mut raw::ib_pd {
        self.ptr.as_ptr()
    }

    /// Charges the current task's cgroup for one object that is to be made in it; `None` if it is not a
    /// program's.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: the cgroup's limit.
    pub(crate) fn charge(&self, live: &Live<'_>) -> Result<Option<Charge>> {
        match &self.charge {
            Some(_) => Charge::new(live, &self.device, Kind::Object).map(Some),
            None => Ok(None),
        }
    }

    /// The device it is on.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The key for local access to memory mapped by [`dma`](super::dma).
    pub(crate) fn local_dma_lkey(&self) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { (*self.as_ptr()).local_dma_lkey }
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: By the type invariant it is ours; whatever is on it holds the `Arc` that this
        // is in, so nothing is.
        unsafe { raw::ib_dealloc_pd_user(self.as_ptr(), core::ptr::null_mut()) };
    }
}
