// SPDX-License-Identifier: MIT OR Apache-2.0

//! Properties of the intra-node provider alone: processes need no rights over each other, and
//! processes without a common network connect by a service name.

use super::refused;
use crate::buf::Buf;
use crate::harness::guest::{load, module_users};
use crate::harness::{Ctx, Test, SHM};
use crate::op::{self, iov};
use crate::pair::{accept_one, Opts, Pair, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{field_text, hints, to_sockaddr, Dev};
use crate::sys::{self, Map};
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("shm.rank_for_listener_on_this_host_is_first", ranks).on(SHM),
    Test::pair("shm.peers_without_ptrace_rights_exchange_data", no_ptrace).on(SHM),
    Test::pair("shm.name_shared_across_namespaces_connects", by_name).on(SHM),
    Test::alone("shm.name_in_use_or_empty_is_refused", names).on(SHM),
    Test::pair("shm.p02_key_over_other_domain_is_refused", other_domain).on(SHM),
    Test::pair("shm.sends_before_receives_wait_in_order", waits).on(SHM),
    Test::pair("shm.cancel_of_posted_receive_ends_it_alone", cancel).on(SHM),
    Test::pair("shm.transfer_of_64m_is_complete", large)
        .seconds(10)
        .on(SHM),
    Test::pair("shm.unload_in_use_is_refused", unload).on(SHM),
];

fn ranks(ctx: &mut Ctx) -> Result<()> {
    let dev = Dev::open()?;
    let to = |ip: IpAddr| InfoEntry {
        dest_addr: to_sockaddr(SocketAddr::new(ip, 7)),
        ..hints()
    };
    let first = |list: &[InfoEntry]| list.first().map(|e| field_text(&e.prov_name));
    let side = Side::open(ctx)?;
    let (pep, at) = side.listen(ctx.env.at(0), 0)?;
    let here = InfoEntry {
        dest_addr: to_sockaddr(at),
        ..hints()
    };
    let list = dev.getinfo(Some(&here))?;
    ensure!(
        first(&list).as_deref() == Some("kshm"),
        "to a listener: {:?}",
        first(&list)
    );
    // A host without a listener may be offered by another provider.
    side.dev.close(pep)?;
    let list = dev.getinfo(Some(&here))?;
    ensure!(
        first(&list).as_deref() != Some("kshm"),
        "without a listener: {:?}",
        first(&list)
    );
    let shm = |e: &InfoEntry| field_text(&e.prov_name) == "kshm";
    // An address of no host here (reserved for documentation).
    if let Ok(list) = dev.getinfo(Some(&to(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1))))) {
        ensure!(!list.iter().any(shm), "offered for a peer elsewhere");
    }
    let list = dev.getinfo(None)?;
    ensure!(list.iter().any(shm), "not offered without a peer");
    ensure!(
        first(&list).as_deref() != Some("kshm"),
        "it is preferred though the peer may be anywhere"
    );
    Ok(())
}

/// Two unprivileged users that cannot be debugged, under the strictest ptrace rule.
fn no_ptrace(ctx: &mut Ctx) -> Result<()> {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    // Value 3 cannot be lowered again; the guest is thrown away.
    std::fs::write(SCOPE, "3").context(SCOPE)?;
    ensure!(std::fs::read_to_string(SCOPE)?.trim() == "3", "{SCOPE}");
    let dev = Dev::open()?;
    sys::rights::become_user(2000 + u32::from(ctx.env.node))?;
    let side = Side::on(dev, &ctx.env)?;
    let pair = Pair::on(ctx, side, &Opts::default())?;
    let buf = Buf::new(64 << 10)?;
    buf.fill(u64::from(ctx.env.node));
    let region = pair.reg(&buf)?;
    let (_, mine) = pair.side.export(region, 0, buf.len() as u64, REMOTE)?;
    let theirs: (Remote, u32) = ctx.ctl.exchange(&(mine, std::process::id()))?;
    // The kernel's own single-copy call is refused here.
    let own = Map::anon(4096)?;
    let copied = sys::rights::process_vm(theirs.1 as i32, false, &own, theirs.0.addr, 8);
    ensure!(copied.is_err(), "process_vm_writev moved {copied:?} bytes");
    ctx.barrier("tried")?;
    if ctx.first() {
        pair.write(region, 0, 32 << 10, theirs.0.addr, theirs.0.key)?;
    } else {
        pair.read(
            region,
            32 << 10,
            32 << 10,
            theirs.0.addr + (32 << 10),
            theirs.0.key,
        )?;
    }
    ctx.barrier("done")
}

/// Returns a service name as an address.
pub(super) fn service(name: &str) -> SockAddr {
    let mut out = SockAddr {
        len: 28,
        ..SockAddr::default()
    };
    out.data[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    out.data[2..2 + name.len()].copy_from_slice(name.as_bytes());
    out
}

/// Listens for peers with any of `keys`, or (none) for peers without.
pub(super) fn listen_at(
    side: &Side,
    addr: SockAddr,
    keys: &[AuthKeyRef],
) -> crate::raw::Result<u64> {
    let mut call = PepOpen {
        size: std::mem::size_of::<PepOpen>() as u32,
        fabric: side.fabric,
        eq: side.eq.handle,
        addr,
        auth_keys: match keys {
            [] => 0,
            keys => keys.as_ptr() as u64,
        },
        auth_key_count: keys.len() as u32,
        ..PepOpen::default()
    };
    side.dev.call(&mut call)?;
    side.dev.listen(call.handle, 0)?;
    Ok(call.handle)
}

fn connect_to(side: &Side, ep: u64, addr: SockAddr) -> crate::raw::Result<()> {
    side.dev.call(&mut Connect {
        size: std::mem::size_of::<Connect>() as u32,
        ep,
        addr,
        ..Connect::default()
    })
}

/// Opens a side without an address of its own.
pub(super) fn nameless(provider: &str) -> Result<Side> {
    let dev = Dev::open()?;
    let fabric = dev.fabric_open(provider, "shm")?;
    let domain = dev.domain_open(fabric, "shm")?;
    let eq = dev.eq_open(fabric, 0)?;
    Ok(Side {
        dev,
        fabric,
        domain,
        eq,
    })
}

/// Node 2 is like a container: it shares neither network, mounts, names nor users with node 1.
fn by_name(ctx: &mut Ctx) -> Result<()> {
    let name = service("shm.by_name");
    if ctx.first() {
        let side = Side::open(ctx)?;
        listen_at(&side, name, &[])?;
        let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
        ctx.ctl.send(&at.port())?;
        let cq = side.cq(0, 0)?;
        accept_one(&side, &Opts::default(), &cq)?;
        let buf = Buf::new(4096)?;
        let region = side.reg(&buf, LOCAL | REMOTE)?.handle;
        let (_, remote) = side.export(region, 0, 4096, REMOTE)?;
        ctx.ctl.send(&remote)?;
        ctx.barrier("written")?;
        ensure!(
            buf.get(0) == 0x5a && buf.get(4095) == 0x5a,
            "other bytes than were written"
        );
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    let flags = libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    sys::rights::unshare(flags)?;
    let side = nameless(ctx.provider())?;
    let cq = side.cq(0, 0)?;
    // Node 1's address is unknown here.
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    side.dev.connect(ep, ctx.env.peer_at(port), &[])?;
    let no = side.event(KFI_CONN_ERROR)?;
    ensure!(no.raw.err as i32 == libc::EHOSTUNREACH, "{:?}", no.raw);
    side.dev.close(ep)?;
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    connect_to(&side, ep, name)?;
    side.event(KFI_CONNECTED)?;
    let buf = Buf::new(4096)?;
    (0..4096).for_each(|i| buf.set(i, 0x5a));
    let region = side.reg(&buf, LOCAL)?.handle;
    let remote: Remote = ctx.ctl.recv()?;
    let piece = [iov(region, 0, 4096)];
    side.dev
        .submit(ep, &[op::write(1, &piece, remote.addr, remote.key)])?;
    let done = cq.wait(WAIT)?;
    ensure!(done.err == 0, "{done:?}");
    ctx.barrier("written")?;
    ctx.barrier("done")
}

fn names(ctx: &mut Ctx) -> Result<()> {
    let side = nameless(ctx.provider())?;
    let name = service(&format!("shm.names.{}", std::process::id()));
    let pep = listen_at(&side, name, &[])?;
    refused(
        listen_at(&side, name, &[]),
        libc::EADDRINUSE,
        "a name that is taken",
    )?;
    side.dev.close(pep)?;
    let pep = listen_at(&side, name, &[]).context("a name that was given back")?;
    side.dev.close(pep)?;
    refused(
        listen_at(&side, service(""), &[]),
        libc::EINVAL,
        "an empty name",
    )?;
    // The listener is closed.
    let cq = side.cq(0, 0)?;
    let ep = side.endpoint(&Opts::default(), &cq, 0)?.handle;
    connect_to(&side, ep, name)?;
    let no = side.event(KFI_CONN_ERROR)?;
    ensure!(no.raw.err as i32 == libc::ECONNREFUSED, "{:?}", no.raw);
    Ok(())
}

/// Uses the right key over the wrong connection: to another domain of the same process.
fn other_domain(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(8192)?;
    if ctx.first() {
        let other = nameless(ctx.provider())?;
        let region = other.reg(&buf, LOCAL | REMOTE)?.handle;
        let (_, remote) = other.export(region, 0, 8192, REMOTE)?;
        ctx.ctl.send(&remote)?;
        ctx.barrier("tried")?;
        ensure!((0..8192).all(|i| buf.get(i) == 0), "it was written to");
        return ctx.barrier("done");
    }
    let remote: Remote = ctx.ctl.recv()?;
    let region = pair.reg(&buf)?;
    pair.post(op::write(1, &[iov(region, 0, 8)], remote.addr, remote.key))?;
    let err = pair.wait_err()?;
    ensure!(err == libc::EACCES, "errno {err}");
    ctx.barrier("tried")?;
    ctx.barrier("done")
}

/// Messages wait for receives, in order, as many as the transmit queue holds.
fn waits(ctx: &mut Ctx) -> Result<()> {
    const N: u64 = 16;
    let opts = Opts {
        tx_size: N as u32,
        ..Opts::default()
    };
    let pair = Pair::with(ctx, &opts)?;
    let buf = Buf::new(4096 * N as usize)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        for i in 0..N {
            buf.set(i as usize * 4096, i as u8 + 1);
            pair.post(op::send(i, &[iov(region, i * 4096, 4096)]))?;
        }
        let more = pair.post(op::send(N, &[iov(region, 0, 1)]));
        refused(more, libc::EAGAIN, "one more than there is room for")?;
        ensure!(pair.cq.read().is_none(), "a message went nowhere");
        ctx.barrier("posted")?;
        for i in 0..N {
            pair.wait_context(i)?;
        }
        return ctx.barrier("done");
    }
    ctx.barrier("posted")?;
    for i in 0..N {
        pair.post(op::recv(i, &[iov(region, i * 4096, 4096)]))?;
        let e = pair.wait_context(i)?;
        ensure!(e.len == 4096, "{e:?}");
        ensure!(
            buf.get(i as usize * 4096) == i as u8 + 1,
            "message {i} is another"
        );
    }
    ctx.barrier("done")
}

fn cancel(ctx: &mut Ctx) -> Result<()> {
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(4096)?;
    let region = pair.reg(&buf)?;
    if ctx.first() {
        for i in [7, 8, 9] {
            pair.post(op::recv(i, &[iov(region, 0, 64)]))?;
        }
        pair.dev().cancel(pair.ep, 8)?;
        let e = pair.wait_any(WAIT)?;
        ensure!(e.context == 8 && e.err as i32 == libc::ECANCELED, "{e:?}");
        refused(pair.dev().cancel(pair.ep, 8), libc::ENOENT, "once more")?;
        ctx.barrier("cancelled")?;
        pair.wait_context(7)?;
        pair.wait_context(9)?;
        return ctx.barrier("done");
    }
    ctx.barrier("cancelled")?;
    for i in [1, 2] {
        pair.post(op::send(i, &[iov(region, 0, 64)]))?;
        pair.wait_context(i)?;
    }
    ctx.barrier("done")
}

/// Moves large memory both ways and as a message, in whatever pieces the pages lie.
fn large(ctx: &mut Ctx) -> Result<()> {
    const LEN: usize = 64 << 20;
    let pair = Pair::new(ctx)?;
    let buf = Buf::new(LEN + 4096)?;
    // Not at the start of a page.
    let at = 100 + u64::from(ctx.env.node);
    let region = pair.reg(&buf)?;
    let word = |i: u64, seed: u64| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
    let set = |seed: u64| {
        (0..LEN as u64 / 4096).for_each(|i| buf.set((at + i * 4096) as usize, word(i, seed) as u8))
    };
    let check = |seed: u64, what: &str| -> Result<()> {
        for i in 0..LEN as u64 / 4096 {
            let got = buf.get((at + i * 4096) as usize);
            ensure!(got == word(i, seed) as u8, "{what}: page {i}: {got}");
        }
        Ok(())
    };
    let (_, mine) = pair.side.export(region, at, LEN as u64, REMOTE)?;
    let theirs: Remote = ctx.ctl.exchange(&mine)?;
    if ctx.first() {
        set(1);
        pair.write(region, at, LEN as u64, theirs.addr, theirs.key)?;
        ctx.barrier("written")?;
        ctx.barrier("changed")?;
        pair.read(region, at, LEN as u64, theirs.addr, theirs.key)?;
        check(2, "read")?;
        ctx.barrier("read")?;
        set(3);
        pair.post(op::send(5, &[iov(region, at, LEN as u64)]))?;
        pair.wait_context(5)?;
    } else {
        ctx.barrier("written")?;
        check(1, "written")?;
        set(2);
        ctx.barrier("changed")?;
        ctx.barrier("read")?;
        pair.post(op::recv(6, &[iov(region, at, LEN as u64)]))?;
        pair.wait_context(6)?;
        check(3, "sent")?;
    }
    ctx.barrier("done")
}

fn unload(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    ctx.barrier("open")?;
    if ctx.first() {
        ensure!(module_users("kshm") > Some(0), "{:?}", module_users("kshm"));
        if sys::unload_module("kshm").is_ok() {
            let _ = load("kshm");
            bail!("it was unloaded in use");
        }
    }
    ctx.barrier("refused")?;
    drop(side);
    ctx.barrier("closed")?;
    if ctx.first() {
        sys::unload_module("kshm").context("out of use")?;
        let none = Dev::open()?.fabric_open("kshm", "");
        load("kshm")?;
        refused(none, libc::ENOENT, "a provider that is gone")?;
    }
    ctx.barrier("loaded")?;
    drop(Side::open(ctx)?);
    ctx.barrier("done")
}
