// SPDX-License-Identifier: GPL-2.0
//! Addresses of devices, from which endpoints connect and on which listeners listen.

use kernel::prelude::*;

use crate::{
    device::Device,
    ib::device::Live, //
};
use kfabric::{
    sys::net::Net,
    uapi::SockAddr, //
};

/// Calls `each` with every address of `device` in `net`.
pub(crate) fn for_each(
    _live: &Live<'_>,
    device: &Device,
    net: &Net,
    mut each: impl FnMut(SockAddr) -> Result,
) -> Result {
    for port in device.ports() {
        for index in 0.. {
            match device.ib().gid_addr(port, index, net) {
                Ok(addr) => each(addr)?,
                Err(e) if e == ERANGE => break,
                Err(_) => {}
            }
        }
    }
    Ok(())
}
