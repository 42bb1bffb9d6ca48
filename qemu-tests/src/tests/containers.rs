// SPDX-License-Identifier: MIT OR Apache-2.0

//! Containers over the intra-node provider: two unprivileged users in namespaces of their own of
//! every kind, which share only a service name and, in one case, an auth key. With the key they
//! write to each other's memory and talk over rings.

use super::refused;
use super::shm::{listen_at, nameless, service};
use crate::auth::{self, add, grant, keyed, Enforced, KEY, OTHER};
use crate::buf::Buf;
use crate::harness::guest::until;
use crate::harness::{Ctx, Test, SHM};
use crate::op::{self, iov};
use crate::pair::{Remote, Side, LOCAL, REMOTE, WAIT};
use crate::raw::{self, Cq, Event};
use crate::sys::{self, Ended, Map};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::fs::{set_permissions, Permissions};
use std::mem::offset_of;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] =
    &[Test::pair("shm.p07_containers_sharing_an_auth_key_connect", containers).on(SHM)];

const DEVICE: &str = "/dev/kfabric";

/// Returns the user of a node's container.
fn user(node: u8) -> u32 {
    3000 + u32::from(node)
}

/// Both nodes may use one auth key, the second another one as well.
fn containers(ctx: &mut Ctx) -> Result<()> {
    let mut admin = None;
    if ctx.first() {
        let enforced = Enforced::new()?;
        for (node, key) in [(1, KEY), (2, KEY), (2, OTHER)] {
            add(
                enforced.dev(),
                &GrantAdd {
                    match_: KFI_MATCH_UID,
                    uid: user(node),
                    ..grant(key)
                },
            )?;
        }
        // A container's runtime provides the device.
        set_permissions(DEVICE, Permissions::from_mode(0o666)).context(DEVICE)?;
        admin = Some(enforced);
    }
    ctx.barrier("granted")?;
    let pid = sys::fork(|| status(enter(ctx)))?;
    let ended = sys::wait_pid(pid, Duration::from_secs(60))?;
    if admin.is_some() {
        set_permissions(DEVICE, Permissions::from_mode(0o660))?;
    }
    ensure!(ended == Some(Ended::Exit(0)), "the container: {ended:?}");
    Ok(())
}

/// Returns a process's exit status.
fn status(result: Result<()>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("{e:#}");
            1
        }
    }
}

/// Becomes the node's user, and enters the container: only children have new process ids.
fn enter(ctx: &mut Ctx) -> Result<()> {
    sys::rights::become_user(user(ctx.env.node))?;
    sys::rights::unshare(
        libc::CLONE_NEWUSER
            | libc::CLONE_NEWPID
            | libc::CLONE_NEWNET
            | libc::CLONE_NEWNS
            | libc::CLONE_NEWIPC
            | libc::CLONE_NEWUTS
            | libc::CLONE_NEWCGROUP,
    )?;
    let pid = sys::fork(|| {
        status(match ctx.first() {
            true => serve(ctx),
            false => ask(ctx),
        })
    })?;
    let ended = sys::wait_pid(pid, Duration::from_secs(50))?;
    ensure!(ended == Some(Ended::Exit(0)), "within: {ended:?}");
    Ok(())
}

const NAME: &str = "shm.containers";

/// Opens an enabled endpoint under an auth key, which asks for rings.
fn endpoint(side: &Side, cq: &Cq, key: &[u8], connreq: u64) -> Result<u64> {
    let ep = side.dev.ep_open(&EpOpen {
        flags: KFI_EP_RINGS,
        connreq,
        ..keyed(side.domain.handle, key)
    })?;
    side.dev.bind(ep.handle, side.eq.handle, 0)?;
    side.dev
        .bind(ep.handle, cq.handle, KFI_TRANSMIT | KFI_RECV)?;
    side.dev.enable(ep.handle)?;
    Ok(ep.handle)
}

fn memory(side: &Side, buf: &Buf, access: u64) -> Result<RegionReg> {
    Ok(side.dev.call_region(&RegionReg {
        domain: side.domain.handle,
        addr: buf.addr(),
        len: 4096,
        access,
        auth_key: KEY.as_ptr() as u64,
        auth_key_size: KEY.len() as u32,
        ..Default::default()
    })?)
}

/// Returns the state of an endpoint's rings.
fn asked(side: &Side, ep: u64) -> Result<EpRings> {
    let mut call = EpRings {
        ep,
        ..Default::default()
    };
    side.dev.call(&mut call)?;
    Ok(call)
}

fn wake(side: &Side, ep: u64) -> raw::Result<()> {
    side.dev.call(&mut EpWake {
        ep,
        ..Default::default()
    })
}

/// One end of a pair of rings.
struct Rings<'a> {
    side: &'a Side,
    cq: &'a Cq,
    ep: u64,
    status: Map,
    shared: Map,
    /// Offset of the ring that this end writes, and of the other ring.
    mine: usize,
    theirs: usize,
}

impl<'a> Rings<'a> {
    fn of(side: &'a Side, cq: &'a Cq, ep: u64) -> Result<Self> {
        let call = asked(side, ep)?;
        ensure!(call.state == KFI_RINGS_SHARED, "no rings: {call:?}");
        let fd = sys::own_fd(call.fd);
        let page = call.page_size as usize;
        let map = |len, prot, at| Map::raw(fd.as_fd(), len, prot, libc::MAP_SHARED, at);
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let mine = call.side as usize * KFI_RING_SIZE;
        Ok(Self {
            side,
            cq,
            ep,
            status: map(page, libc::PROT_READ, 0)?,
            shared: map(call.map_size as usize, both, page as i64)?,
            mine,
            theirs: KFI_RING_SIZE - mine,
        })
    }

    /// Writes a message, and wakes the other end.
    fn tell(&self, text: &[u8]) -> Result<()> {
        self.shared.write(self.mine + KFI_RING_DATA, text);
        self.shared.store32(self.mine, text.len() as u32);
        Ok(wake(self.side, self.ep)?)
    }

    /// Resets the alarm before the other end is informed that this end sleeps.
    fn lie_down(&self) {
        self.cq.map().store32(ALARM, 0);
    }

    /// Sleeps until woken, and takes the message.
    fn hear(&self, text: &[u8]) -> Result<()> {
        let woken = sys::poll_in(self.cq.fd.as_fd(), sys::patience(WAIT))?;
        ensure!(woken, "it is not woken");
        let len = self.shared.load32(self.theirs) as usize;
        let mut got = vec![0; text.len()];
        self.shared.read(self.theirs + KFI_RING_DATA, &mut got);
        ensure!(len == text.len() && got == text, "{len} bytes: {got:?}");
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.status.load32(0) != 0
    }
}

/// Offset of a queue's alarm.
const ALARM: usize = offset_of!(CqRing, alarm);

fn serve(ctx: &mut Ctx) -> Result<()> {
    ensure!(std::process::id() == 1, "the first of its container");
    let side = nameless(ctx.provider())?;
    let cq = side.cq(0, 0)?;
    refused(
        auth::endpoint(&side.dev, side.domain.handle, OTHER),
        libc::ENOKEY,
        "an auth key that is not this user's",
    )?;
    listen_at(&side, service(NAME), &auth::refs(&[KEY]))?;
    let buf = Buf::new(4096)?;
    let region = memory(&side, &buf, LOCAL | REMOTE)?;
    ctx.barrier("listens")?;
    // Peers without the key cause no event.
    let request = side.event(KFI_CONNREQ)?;
    ensure!(request.data == b"has it", "{request:?}");
    let ep = endpoint(&side, &cq, KEY, request.raw.connreq)?;
    side.dev.accept(ep, &[])?;
    side.event(KFI_CONNECTED)?;
    ctx.ctl.send(&Remote {
        addr: region.remote_addr,
        key: region.key,
        len: 4096,
    })?;
    ctx.barrier("written")?;
    buf.check_value(0, 4096, 0x5a)?;
    let rings = Rings::of(&side, &cq, ep)?;
    rings.lie_down();
    ctx.barrier("sleeps")?;
    rings.hear(b"from one container")?;
    ctx.barrier("sleeps there")?;
    rings.tell(b"from the other")?;
    ctx.barrier("heard")?;
    ensure!(!rings.has_ended(), "it has ended by itself");
    side.dev.close(ep)?;
    ensure!(rings.has_ended(), "the rings outlive the connection");
    ctx.barrier("closed")
}

fn ask(ctx: &mut Ctx) -> Result<()> {
    ensure!(std::process::id() == 1, "the first of its container");
    let side = nameless(ctx.provider())?;
    let cq = side.cq(0, 0)?;
    refused(
        auth::endpoint(&side.dev, side.domain.handle, &[]),
        libc::ENOKEY,
        "no auth key",
    )?;
    ctx.barrier("listens")?;
    let connect = |key: &[u8], data: &[u8]| -> Result<(u64, Event)> {
        let ep = endpoint(&side, &cq, key, 0)?;
        side.dev.call(&mut Connect {
            ep,
            addr: service(NAME),
            param: data.as_ptr() as u64,
            param_len: data.len() as u32,
            ..Default::default()
        })?;
        Ok((ep, side.dev.eq_wait(&side.eq, WAIT)?))
    };
    let (ep, no) = connect(OTHER, b"has another")?;
    ensure!(
        no.raw.event == KFI_CONN_ERROR && no.raw.err as i32 == libc::EKEYREJECTED,
        "{no:?}"
    );
    let none = asked(&side, ep)?;
    ensure!(
        none.state != KFI_RINGS_SHARED && none.fd == -1,
        "rings with a peer under another key: {none:?}"
    );
    refused(
        wake(&side, ep),
        libc::ENOTCONN,
        "waking a peer under another key",
    )?;
    side.dev.close(ep)?;
    let (ep, yes) = connect(KEY, b"has it")?;
    ensure!(yes.raw.event == KFI_CONNECTED, "{yes:?}");
    let buf = Buf::new(4096)?;
    buf.clear(0x5a);
    let region = memory(&side, &buf, LOCAL)?;
    let remote: Remote = ctx.ctl.recv()?;
    let piece = [iov(region.handle, 0, 4096)];
    side.dev
        .submit(ep, &[op::write(1, &piece, remote.addr, remote.key)])?;
    let done = cq.wait(WAIT)?;
    ensure!(done.err == 0, "{done:?}");
    ctx.barrier("written")?;
    let rings = Rings::of(&side, &cq, ep)?;
    ctx.barrier("sleeps")?;
    rings.tell(b"from one container")?;
    rings.lie_down();
    ctx.barrier("sleeps there")?;
    rings.hear(b"from the other")?;
    ctx.barrier("heard")?;
    ctx.barrier("closed")?;
    until("the shutdown event", WAIT, || {
        Ok(rings.has_ended().then_some(()))
    })
}
