// SPDX-License-Identifier: MIT OR Apache-2.0

//! Where the intra-node provider listens: a service name is one of an auth key, and all addresses of
//! IPv6 are those of IPv4, too.

use super::refused;
use super::shm::{listen_at, nameless, service};
use crate::auth::{refs, KEY, OTHER};
use crate::harness::{Ctx, Test, SHM};
use crate::pair::{Opts, Side};
use crate::raw::{field_text, hints, to_sockaddr};
use crate::sys;
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("shm.p07_names_are_of_an_auth_key", names).on(SHM),
    Test::alone("shm.all_of_ipv6_is_all_of_ipv4", dual).on(SHM),
];

/// Whoever takes a name with a key of its own takes it from nobody.
fn names(ctx: &mut Ctx) -> Result<()> {
    const THIRD: &[u8] = b"nobody listens with it";
    let name = service(&format!("shm.keyed.{}", std::process::id()));
    let mut listening = Vec::new();
    for keys in [&[OTHER][..], &[], &[KEY]] {
        let side = nameless(ctx.provider())?;
        let pep = listen_at(&side, name, &refs(keys)).with_context(|| format!("{keys:?}"))?;
        listening.push((side, pep, keys.first().copied().unwrap_or_default()));
    }
    let more = nameless(ctx.provider())?;
    for keys in [&[KEY][..], &[], &[THIRD, OTHER]] {
        let again = listen_at(&more, name, &refs(keys));
        refused(again, libc::EADDRINUSE, "a name that somebody has")?;
    }
    let connect = |key| -> Result<(Side, u64)> {
        let side = nameless(ctx.provider())?;
        let cq = side.cq(0, 0)?;
        let opts = Opts {
            auth_key: key,
            ..Opts::default()
        };
        let ep = side.endpoint(&opts, &cq, 0)?.handle;
        side.dev.call(&mut Connect {
            size: std::mem::size_of::<Connect>() as u32,
            ep,
            addr: name,
            ..Connect::default()
        })?;
        Ok((side, ep))
    };
    for (at, pep, key) in &listening {
        let (_side, _ep) = connect(key)?;
        let request = at.event(KFI_CONNREQ).with_context(|| format!("{key:?}"))?;
        ensure!(request.raw.object == *pep, "{:?}", request.raw);
    }
    let outcome = |key, errno| -> Result<()> {
        let (side, _) = connect(key)?;
        let no = side.event(KFI_CONN_ERROR)?;
        ensure!(no.raw.err as i32 == errno, "{key:?}: {:?}", no.raw);
        Ok(())
    };
    outcome(THIRD, libc::EKEYREJECTED)?;
    // One goes, and the others stay; what went can come back.
    let (side, pep, _) = &listening[1];
    side.dev.close(*pep)?;
    outcome(&[], libc::EKEYREJECTED)?;
    listen_at(side, name, &[]).context("a name that was given back")?;
    let (_side, _ep) = connect(&[])?;
    side.event(KFI_CONNREQ)?;
    drop(listening);
    listen_at(&more, name, &refs(&[KEY, OTHER])).context("all have gone")?;
    Ok(())
}

/// As sockets do, and rdma_cm.
fn dual(ctx: &mut Ctx) -> Result<()> {
    const ONLY: &str = "/proc/sys/net/ipv6/bindv6only";
    sys::rights::unshare(libc::CLONE_NEWNET)?;
    crate::harness::guest::run("ip", &["link", "set", "lo", "up"])?;
    let side = nameless(ctx.provider())?;
    let any = |port| SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
    let four = |ip, port| SocketAddr::new(IpAddr::V4(ip), port);
    let (pep, at) = side.listen(any(0), 0)?;
    let port = at.port();
    for ip in [Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST] {
        let taken = listen_at(&side, to_sockaddr(four(ip, port)), &[]);
        refused(taken, libc::EADDRINUSE, "an address of IPv4")?;
    }
    let here = to_sockaddr(four(Ipv4Addr::LOCALHOST, port));
    let list = side.dev.getinfo(Some(&InfoEntry {
        dest_addr: here,
        ..hints()
    }))?;
    let first = list.first().map(|e| field_text(&e.prov_name));
    ensure!(first.as_deref() == Some("kshm"), "{first:?}");
    let to = |addr| -> Result<Side> {
        let side = nameless(ctx.provider())?;
        let cq = side.cq(0, 0)?;
        let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
        side.dev.connect(ep, addr, &[])?;
        Ok(side)
    };
    for ip in [
        IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(Ipv6Addr::LOCALHOST),
    ] {
        let _peer = to(SocketAddr::new(ip, port))?;
        side.event(KFI_CONNREQ).with_context(|| format!("{ip}"))?;
    }
    side.dev.close(pep)?;
    // Who listens there by IPv4 keeps it.
    let (pep, at) = side.listen(four(Ipv4Addr::LOCALHOST, 0), 0)?;
    let both = listen_at(&side, to_sockaddr(any(at.port())), &[]);
    refused(both, libc::EADDRINUSE, "all of IPv6")?;
    // Where the two are apart they are here, too.
    std::fs::write(ONLY, "1").context(ONLY)?;
    let six = listen_at(&side, to_sockaddr(any(at.port())), &[]).context("IPv6 alone")?;
    side.dev.close(pep)?;
    let peer = to(at)?;
    let no = peer.event(KFI_CONN_ERROR)?;
    ensure!(no.raw.err as i32 == libc::ECONNREFUSED, "{:?}", no.raw);
    Ok(side.dev.close(six)?)
}
