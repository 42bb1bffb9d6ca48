// SPDX-License-Identifier: GPL-2.0
//! The thin unsafe layer: devices, protection domains, queue pairs, memory regions and connection
//! identifiers of the RDMA core, as types that own the C objects.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)
//!
//! Rules for all of them:
//!
//! * A [`Device`](device::Device) keeps the C structure's memory, not its registration. Creating an
//!   object on a device takes a [`Live`](device::Live). It exists only while the device is
//!   registered, and [`Device::retire`](device::Device::retire) waits for it.
//! * Each object on a device must be dropped before `ib_client.remove` returns. The crate's
//!   resource list (`resource.rs`) does that; it is the one promise that this layer asks of the
//!   safe code above it.
//! * Creating and dropping objects may sleep. Posting does not, and may be called from any context.

pub(crate) mod charge;
pub(crate) mod client;
pub(crate) mod cm;
mod compat;
pub(crate) mod device;
pub(crate) mod dma;
pub(crate) mod ipoib;
pub(crate) mod memcg;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod persist;
pub(crate) mod qp;
pub(crate) mod raw;
pub(crate) mod reg_queue;
pub(crate) mod resting;
pub(crate) mod share;
pub(crate) mod sockaddr;
pub(crate) mod traced;
pub(crate) mod work;
pub(crate) mod wr;

/// The owner that the RDMA core shows for the provider's objects (`rdma resource show`).
pub(crate) const CALLER: &kernel::str::CStr = c"kverbs";

/// Returns a random number.
pub(crate) fn random() -> u32 {
    // SAFETY: The function has no preconditions.
    unsafe { raw::kverbs_random() }
}

/// Returns the time of a clock that never goes back, in seconds.
pub(crate) fn seconds() -> u32 {
    // SAFETY: The function has no preconditions.
    unsafe { raw::kverbs_seconds() }
}

/// Returns the administrator's choice for the revocation of keys (`revoke`).
pub(crate) fn revoke() -> raw::kverbs_revoke {
    // SAFETY: The function has no preconditions.
    unsafe { raw::kverbs_revoke() }
}

/// Returns the seconds from the end of a key to the next draw of its value (`key_rest_s`).
pub(crate) fn key_rest() -> u32 {
    // SAFETY: The function has no preconditions.
    unsafe { raw::kverbs_key_rest() }
}
