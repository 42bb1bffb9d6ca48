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
        self,
        Addresses,
        Link,
        Read, //
    },
    sys::net::Net,
    uapi::SockAddr, //
};

/// Calls `each` with every address of `device` in `net`, and its port.
pub(crate) fn for_each(
    live: &Live<'_>,
    device: &Device,
    net: &Net,
    mut each: impl FnMut(u32, SockAddr) -> Result,
) -> Result {
    let ib = device.ib();
    let mut ipoib = None;
    for port in device.ports() {
        match ib.link(port) {
            Some(Link::InfiniBand) if ipoib.is_none() => ipoib = Some(Ipoib::read(net)?),
            Some(Link::Iwarp) => Ipoib::of_port(live, port, net)?
                .all()
                .try_for_each(|addr| each(port, addr))?,
            _ => {}
        }
    }
    let tables = device.ports().filter_map(|port| match ib.link(port)? {
        Link::Iwarp => None,
        link => Some((port, link)),
    });
    let read = |port, index| match ib.gid(port, index, net) {
        Ok(gid) => Read::Entry(gid),
        Err(e) if e == ERANGE => Read::End,
        Err(_) => Read::Empty,
    };
    gid::for_each(tables, read, |port, addresses| match (addresses, &ipoib) {
        (Addresses::Own(host), _) => each(port, sockaddr::of(host)),
        (Addresses::Ipoib(gid), Some(ipoib)) => {
            ipoib.over(gid).try_for_each(|addr| each(port, addr))
        }
        _ => Ok(()),
    })
}
