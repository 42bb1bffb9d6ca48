// SPDX-License-Identifier: GPL-2.0
//! Addresses of devices, from which endpoints connect and on which listeners listen.

use kernel::prelude::*;

use crate::{
    device::Device,
    ib::{
        device::Live,
        ipoib::Ipoib,
        sockaddr, //
    },
};
use kfabric::{
    pure::gid::{
        Addresses,
        Link, //
    },
    sys::net::Net,
    uapi::SockAddr, //
};

/// Calls `each` with every address of `device` in `net`.
pub(crate) fn for_each(
    live: &Live<'_>,
    device: &Device,
    net: &Net,
    mut each: impl FnMut(SockAddr) -> Result,
) -> Result {
    for port in device.ports() {
        let Some(link) = device.ib().link(port) else {
            continue;
        };
        let ipoib = match link {
            Link::InfiniBand => Some(Ipoib::read(net)?),
            Link::Roce { .. } => None,
            Link::Iwarp => {
                Ipoib::of_port(live, port, net)?
                    .all()
                    .try_for_each(&mut each)?;
                continue;
            }
        };
        for index in 0.. {
            let gid = match device.ib().gid(port, index, net) {
                Ok(gid) => gid,
                Err(e) if e == ERANGE => break,
                Err(_) => continue,
            };
            match (gid.addresses(link), &ipoib) {
                (Addresses::Own(host), _) => each(sockaddr::of(host))?,
                (Addresses::Ipoib(gid), Some(ipoib)) => ipoib.over(gid).try_for_each(&mut each)?,
                _ => {}
            }
        }
    }
    Ok(())
}
