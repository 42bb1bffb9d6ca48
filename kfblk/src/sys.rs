// SPDX-License-Identifier: GPL-2.0
//! Thin layer to C: `helpers.h`.

mod block;
mod counts;
mod raw;
mod registration;
mod work_queue;

use kernel::{
    error::to_result,
    ffi::c_uint,
    prelude::*, //
};
use kfabric::{
    pure::blk::Name,
    sys::net::Net,
    uapi::SockAddr, //
};

pub(crate) use block::{
    Block,
    Verdict, //
};
pub(crate) use counts::QueueCounts;

pub(crate) use raw::*;
pub(crate) use raw::{
    kfblk_counts as Counts,
    kfblk_order as Order,
    kfblk_shape as Shape, //
};
pub(crate) use registration::{
    Configfs,
    Major, //
};
pub(crate) use work_queue::{
    disks,
    exports,
    ports,
    requests,
    WorkQueues, //
};

/// Parses a socket address.
///
/// # Errors
///
/// - `EINVAL` if the text is not an address.
pub(crate) fn parse_addr(net: &Net, addr: &Name, port: &Name) -> Result<SockAddr> {
    let mut out = SockAddr::default();
    // SAFETY: The texts are C strings. `data` can hold the longest address.
    to_result(unsafe {
        kfblk_parse_addr(
            net.as_ptr(),
            addr.bytes().as_ptr().cast(),
            port.bytes().as_ptr().cast(),
            out.data.as_mut_ptr(),
            &mut out.len,
        )
    })?;
    Ok(out)
}

/// Returns random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    // SAFETY: The buffer has `N` bytes.
    unsafe { kfblk_random(out.as_mut_ptr().cast(), N) };
    out
}

/// Returns the number of pages that can be allocated without a shortage for the host.
pub(crate) fn spare_pages() -> usize {
    // SAFETY: No preconditions.
    unsafe { kfblk_spare_pages() }
}

/// Reschedules if necessary, in a long loop. May sleep.
///
/// # Errors
///
/// - `EINTR` if the task is being killed.
pub(crate) fn breathe() -> Result {
    // SAFETY: The caller may sleep, as the documentation requires.
    match unsafe { kfblk_breathe() } {
        true => Err(EINTR),
        false => Ok(()),
    }
}

/// Returns the number of processors.
pub(crate) fn cpus() -> u32 {
    // SAFETY: No preconditions.
    unsafe { kfblk_cpus() }
}

/// `enum kfblk_log`: kinds of log lines, each with a rate limit of its own.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Log {
    /// A disk's connection is lost or reconnected.
    Disk = KFBLK_LOG_DISK,
    /// An initiator connects to an export, or disconnects.
    Client = KFBLK_LOG_CLIENT,
    /// An initiator is refused.
    Refusal = KFBLK_LOG_REFUSAL,
    /// A port loses its device.
    Port = KFBLK_LOG_PORT,
    /// A disk has replaced connections that worked.
    Renewal = KFBLK_LOG_RENEWAL,
}

impl Log {
    /// Returns whether the rate limit permits another line of this kind.
    pub(crate) fn may(self) -> bool {
        // SAFETY: The variants are those of the C enumeration.
        unsafe { kfblk_may_log(self as c_uint) }
    }
}

/// Writes the host's name to `name`.
pub(crate) fn node_name(name: &mut [u8; 64]) {
    // SAFETY: The length is that of the buffer.
    unsafe { kfblk_node_name(name.as_mut_ptr(), name.len() as c_uint) }
}
