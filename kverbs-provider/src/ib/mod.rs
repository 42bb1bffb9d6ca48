// SPDX-License-Identifier: GPL-2.0
//! The thin unsafe layer: devices, protection domains, queue pairs, memory regions and connection
//! identifiers of the RDMA core, as types that own what they name.
//!
//! C headers: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h),
//! [`include/rdma/rdma_cm.h`](srctree/include/rdma/rdma_cm.h)
//!
//! What holds for all of them:
//!
//! * A [`Device`](device::Device) keeps the C structure's memory, not its registration. Making
//!   anything on a device takes a [`Live`](device::Live), which exists only while the device is
//!   registered and which [`Device::retire`](device::Device::retire) waits for.
//! * Whatever is made on a device must be dropped before `ib_client.remove` returns. The crate's
//!   resource list (`resource.rs`) does that; it is the one promise that this layer asks of the
//!   safe code above it.
//! * Making and dropping sleeps. Posting does not, and may be called from any context.

pub(crate) mod charge;
pub(crate) mod client;
pub(crate) mod cm;
mod compat;
pub(crate) mod device;
pub(crate) mod dma;
pub(crate) mod keyq;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod raw;
pub(crate) mod sockaddr;
pub(crate) mod traced;
pub(crate) mod work;
pub(crate) mod wr;

/// What the RDMA core shows as the owner of our objects (`rdma resource show`).
pub(crate) const CALLER: &kernel::str::CStr = c"kverbs";

/// A random number.
pub(crate) fn random() -> u32 {
    // SAFETY: No preconditions.
    unsafe { raw::kverbs_random() }
}
