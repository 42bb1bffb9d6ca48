// SPDX-License-Identifier: MIT OR Apache-2.0

//! Addresses of listeners of the intra-node provider: a service name belongs to an auth key, and
//! the IPv6 wildcard address covers IPv4, too.

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
    Test::alone("shm.p07_name_taken_under_other_auth_key_stays_free", names).on(SHM),
    Test::alone(
        "shm.p12_name_with_many_listeners_reaches_each_by_its_key",
        many,
    )
    .on(SHM),
    Test::alone("shm.wildcard_ipv6_listener_covers_ipv4", dual).on(SHM),
];

/// Opens a side that connects to `name` with an auth key.
fn connect(ctx: &Ctx, name: SockAddr, key: &'static [u8]) -> Result<(Side, u64)> {
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
}

/// Programs listen at the name, but none under this auth key.
fn rejected(ctx: &Ctx, name: SockAddr, key: &'static [u8]) -> Result<()> {
    let (side, _) = connect(ctx, name, key)?;
    let no = side.event(KFI_CONN_ERROR)?;
    ensure!(
        no.raw.err as i32 == libc::EKEYREJECTED,
        "{key:?}: {:?}",
        no.raw
    );
    Ok(())
}

/// A listener that takes a name under a key of its own displaces no other listener.
fn names(ctx: &mut Ctx) -> Result<()> {
    const THIRD: &[u8] = b"a key without listener";
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
        refused(again, libc::EADDRINUSE, "a name in use")?;
    }
    for (at, pep, key) in &listening {
        let _peer = connect(ctx, name, key)?;
        let request = at.event(KFI_CONNREQ).with_context(|| format!("{key:?}"))?;
        ensure!(request.raw.object == *pep, "{:?}", request.raw);
    }
    rejected(ctx, name, THIRD)?;
    // One listener closes, and the others stay. The closed one can listen again.
    let (side, pep, _) = &listening[1];
    side.dev.close(*pep)?;
    rejected(ctx, name, &[])?;
    listen_at(side, name, &[]).context("a name that was given back")?;
    let _peer = connect(ctx, name, &[])?;
    side.event(KFI_CONNREQ)?;
    drop(listening);
    listen_at(&more, name, &refs(&[KEY, OTHER])).context("all have gone")?;
    Ok(())
}

/// Any number of listeners share a name under different auth keys, whatever they request.
fn many(ctx: &mut Ctx) -> Result<()> {
    const COUNT: usize = 300;
    const LAST: usize = KFI_PEP_AUTH_KEYS_MAX - 1;
    // These two byte strings are one auth key to peers that prove it.
    const TWICE: [&[u8]; 2] = [b"twice", b"twice\0"];
    const NEW: &[u8] = b"an unused key";
    let name = service(&format!("shm.many.{}", std::process::id()));
    let side = nameless(ctx.provider())?;
    let key = |at: usize, index: usize| -> &'static [u8] {
        format!("{index} of {at}").into_bytes().leak()
    };
    let mut peps = Vec::new();
    for at in 0..COUNT {
        let keys: Vec<_> = (0..=LAST).map(|index| key(at, index)).collect();
        peps.push(listen_at(&side, name, &refs(&keys))?);
    }
    for (at, index) in [(0, 0), (COUNT / 2, LAST / 2), (COUNT - 1, LAST)] {
        let _peer = connect(ctx, name, key(at, index))?;
        let request = side.event(KFI_CONNREQ)?;
        ensure!(request.raw.object == peps[at], "{at}: {:?}", request.raw);
        ensure!(
            request.raw.auth_index as usize == index + 1,
            "{:?}",
            request.raw
        );
    }
    // Nothing is left of a listener that is refused for one of several auth keys.
    let taken = listen_at(&side, name, &refs(&[NEW, key(1, LAST)]));
    refused(taken, libc::EADDRINUSE, "a name in use")?;
    for key in [NEW, &[]] {
        rejected(ctx, name, key)?;
    }
    for _ in 0..2 {
        let pep = listen_at(&side, name, &refs(&TWICE)).context("one auth key twice")?;
        let _peer = connect(ctx, name, TWICE[1])?;
        let request = side.event(KFI_CONNREQ)?;
        ensure!(request.raw.object == pep, "{:?}", request.raw);
        side.dev.close(pep)?;
        rejected(ctx, name, TWICE[0])?;
    }
    // A closed listener loses all its auth keys; its neighbours stay.
    side.dev.close(peps[1])?;
    for index in 0..=LAST {
        rejected(ctx, name, key(1, index))?;
    }
    let _peer = connect(ctx, name, key(2, 0))?;
    let request = side.event(KFI_CONNREQ)?;
    ensure!(request.raw.object == peps[2], "{:?}", request.raw);
    drop(side);
    let (peer, _) = connect(ctx, name, key(0, 0))?;
    let no = peer.event(KFI_CONN_ERROR)?;
    ensure!(no.raw.err as i32 == libc::ECONNREFUSED, "{:?}", no.raw);
    Ok(())
}

/// Wildcard addresses conflict as they do for sockets and rdma_cm.
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
    // An IPv4 listener keeps its port.
    let (pep, at) = side.listen(four(Ipv4Addr::LOCALHOST, 0), 0)?;
    let both = listen_at(&side, to_sockaddr(any(at.port())), &[]);
    refused(both, libc::EADDRINUSE, "all of IPv6")?;
    // If the system separates the two families, kshm separates them, too.
    std::fs::write(ONLY, "1").context(ONLY)?;
    let six = listen_at(&side, to_sockaddr(any(at.port())), &[]).context("IPv6 alone")?;
    side.dev.close(pep)?;
    let peer = to(at)?;
    let no = peer.event(KFI_CONN_ERROR)?;
    ensure!(no.raw.err as i32 == libc::ECONNREFUSED, "{:?}", no.raw);
    Ok(side.dev.close(six)?)
}
