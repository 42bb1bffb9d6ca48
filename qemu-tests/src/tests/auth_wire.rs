// SPDX-License-Identifier: MIT OR Apache-2.0

//! Auth keys between peers: both kernels prove that they have one, memory exported under one key is
//! unreachable under another, and the end of a grant ends its objects.

use super::auth::led;
use super::refused;
use crate::auth::{self, keyed, Agent, Enforced, KEY, OTHER};
use crate::buf::Buf;
use crate::harness::caps::REMOTE_ERRORS;
use crate::harness::{Ctx, Test, NETNS, SHM};
use crate::op::{self, iov};
use crate::pair::{key_entries, Remote, Side, LOCAL, REMOTE, WAIT};
use crate::raw::Event;
use crate::sys::{self, Errno};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::*;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::pair("auth.p07_peers_with_the_same_key_connect", same_key),
    Test::pair("auth.p07_peers_without_the_key_are_rejected", without).seconds(15),
    Test::pair("auth.p07_refusal_by_application_delivers_its_data", refusal),
    Test::pair("auth.p07_leaked_key_in_another_group_is_refused", leaked).needs(REMOTE_ERRORS),
    Test::pair("auth.p07_rank_through_seven_steps_connects", seven_steps).seconds(15),
    Test::pair(
        "auth.p07_namespaces_of_one_user_need_own_grants",
        namespaces,
    )
    .on(NETNS),
    Test::pair(
        "auth.p07_endpoint_and_ordered_keys_end_with_their_grant",
        own_keys,
    )
    .on(NETNS | SHM)
    .seconds(15)
    .needs(REMOTE_ERRORS),
    Test::pair(
        "auth.p07_grant_revoked_mid_transfer_ends_endpoint_and_keys",
        mid_transfer,
    )
    .on(NETNS | SHM)
    .seconds(15),
    Test::pair(
        "auth.p07_grant_revocation_returned_leaves_no_key_live",
        |ctx| led(ctx, has_ended),
    )
    .on(NETNS | SHM)
    .seconds(20),
];

/// Listens for peers with any of `keys`. Returns the port.
pub(super) fn listen(ctx: &Ctx, side: &Side, keys: &[&[u8]]) -> Result<(u64, u16)> {
    let (pep, at) = side.listen_under(ctx.env.at(0), 0, keys)?;
    Ok((pep, at.port()))
}

/// Returns an enabled endpoint with an auth key, or (empty) without.
pub(super) fn endpoint(
    side: &Side,
    cq: &crate::raw::Cq,
    key: &[u8],
    connreq: u64,
) -> Result<EpOpen> {
    endpoint_with(side, cq, key, connreq, 0)
}

fn endpoint_with(
    side: &Side,
    cq: &crate::raw::Cq,
    key: &[u8],
    connreq: u64,
    flags: u32,
) -> Result<EpOpen> {
    let ep = side.dev.ep_open(&EpOpen {
        flags,
        connreq,
        iov_limit: KFI_IOV_MAX as u32,
        ..keyed(side.domain.handle, key)
    })?;
    side.dev.bind(ep.handle, side.eq.handle, 0)?;
    side.dev
        .bind(ep.handle, cq.handle, KFI_TRANSMIT | KFI_RECV)?;
    side.dev.enable(ep.handle)?;
    Ok(ep)
}

/// Returns the result of connecting with an auth key.
pub(super) fn connect(
    ctx: &Ctx,
    side: &Side,
    cq: &crate::raw::Cq,
    key: &[u8],
    port: u16,
    data: &[u8],
) -> Result<(EpOpen, Event)> {
    let ep = endpoint(side, cq, key, 0)?;
    side.dev.connect(ep.handle, ctx.env.peer_at(port), data)?;
    let event = side.dev.eq_wait(&side.eq, WAIT).context("the outcome")?;
    Ok((ep, event))
}

pub(super) fn accept(
    side: &Side,
    cq: &crate::raw::Cq,
    key: &[u8],
    data: &[u8],
) -> Result<(EpOpen, Event)> {
    let request = side.event(KFI_CONNREQ)?;
    let ep = endpoint(side, cq, key, request.raw.connreq)?;
    side.dev.accept(ep.handle, data)?;
    side.event(KFI_CONNECTED)?;
    Ok((ep, request))
}

/// Connects under `key` at both ends; node 1 listens.
fn pair(ctx: &mut Ctx, side: &Side, cq: &crate::raw::Cq, key: &[u8]) -> Result<EpOpen> {
    let ep = if ctx.first() {
        let (pep, port) = listen(ctx, side, &[key])?;
        ctx.ctl.send(&port)?;
        let (ep, _) = accept(side, cq, key, &[])?;
        side.dev.close(pep)?;
        ep
    } else {
        let port: u16 = ctx.ctl.recv()?;
        let (ep, event) = connect(ctx, side, cq, key, port, &[])?;
        ensure!(event.raw.event == KFI_CONNECTED, "{:?}", event.raw);
        ep
    };
    ctx.barrier("connected")?;
    Ok(ep)
}

/// Peers that have one of the listener's auth keys connect, with the application's data both ways.
fn same_key(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let there = [0x5a_u8; KFI_AUTH_CM_DATA];
    if ctx.first() {
        let (_pep, port) = listen(ctx, &side, &[KEY, OTHER])?;
        ctx.ctl.send(&port)?;
        for (index, key) in [(2, OTHER), (1, KEY)] {
            let request = side.event(KFI_CONNREQ)?;
            ensure!(request.raw.auth_index == index, "{:?}", request.raw);
            ensure!(request.data == there, "{:?}", request.data);
            let not = if key == KEY { OTHER } else { KEY };
            for wrong in [not, &[]] {
                let want = EpOpen {
                    connreq: request.raw.connreq,
                    ..keyed(side.domain.handle, wrong)
                };
                refused(
                    side.dev.ep_open(&want),
                    libc::EKEYREJECTED,
                    "with another auth key",
                )?;
            }
            let ep = endpoint(&side, &cq, key, request.raw.connreq)?;
            side.dev.accept(ep.handle, &there)?;
            side.event(KFI_CONNECTED)?;
            ctx.barrier("one")?;
        }
        return ctx.barrier("done");
    }
    let port: u16 = ctx.ctl.recv()?;
    for key in [OTHER, KEY] {
        let ep = endpoint(&side, &cq, key, 0)?;
        ensure!(ep.cm_data_size as usize == KFI_AUTH_CM_DATA, "{ep:?}");
        let long = [0; KFI_AUTH_CM_DATA + 1];
        refused(
            side.dev.connect(ep.handle, ctx.env.peer_at(port), &long),
            libc::EINVAL,
            "too much data",
        )?;
        side.dev.connect(ep.handle, ctx.env.peer_at(port), &there)?;
        let up = side.event(KFI_CONNECTED)?;
        ensure!(up.data == there, "{:?}", up.data);
        ctx.barrier("one")?;
    }
    ctx.barrier("done")
}

/// Peers with another auth key, without a required one, or with one that is not expected, are
/// rejected with an errno of its own, and the listener's application gets no event of them.
fn without(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    if ctx.first() {
        let (_keyed, a) = listen(ctx, &side, &[KEY])?;
        let (_plain, b) = listen(ctx, &side, &[])?;
        ctx.ctl.send(&[a, b])?;
        ctx.barrier("tried")?;
        let none = side.dev.eq_read(side.eq.handle, 0);
        ensure!(
            none.is_err_and(|e| e.errno.0 == libc::EAGAIN),
            "the application heard of one"
        );
        return Ok(());
    }
    let [with_key, plain]: [u16; 2] = ctx.ctl.recv()?;
    let padded = [KEY, &[0]].concat();
    for (what, key, port) in [
        ("another auth key", OTHER, with_key),
        ("the auth key and a zero", &padded, with_key),
        ("no auth key", &[][..], with_key),
        ("an auth key where there is none", KEY, plain),
    ] {
        let data = b"application's";
        let (ep, event) = connect(ctx, &side, &cq, key, port, data)?;
        let raw = &event.raw;
        ensure!(
            raw.event == KFI_CONN_ERROR
                && raw.err as i32 == libc::EKEYREJECTED
                && event.data.is_empty(),
            "{what}: {raw:?}, {}",
            Errno(raw.err as i32)
        );
        side.dev.close(ep.handle)?;
    }
    ctx.barrier("tried")
}

/// The application's own rejection of a proven peer arrives as such, with its data.
fn refusal(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    if ctx.first() {
        let (_pep, port) = listen(ctx, &side, &[KEY])?;
        ctx.ctl.send(&port)?;
        let request = side.event(KFI_CONNREQ)?;
        side.dev.reject(request.raw.connreq, b"not today")?;
        return ctx.barrier("refused");
    }
    let port: u16 = ctx.ctl.recv()?;
    let (_ep, event) = connect(ctx, &side, &cq, KEY, port, &[])?;
    ensure!(
        event.raw.err as i32 == libc::ECONNREFUSED && event.data == b"not today",
        "{event:?}"
    );
    ctx.barrier("refused")
}

/// A valid key of one protection group is useless to a peer of another on the same domain; the
/// device refuses it.
fn leaked(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let (mine, others) = (side.cq(0, 0)?, side.cq(0, 0)?);
    let ep = pair(ctx, &side, &mine, KEY)?;
    let other = pair(ctx, &side, &others, OTHER)?;
    let buf = Buf::new(8192)?;
    if ctx.first() {
        buf.clear(7);
        let region = side.dev.call_region(&RegionReg {
            flags: KFI_REGION_DYNAMIC_KEYS,
            domain: side.domain.handle,
            addr: buf.addr(),
            len: 8192,
            access: LOCAL | REMOTE,
            auth_key: KEY.as_ptr() as u64,
            auth_key_size: KEY.len() as u32,
            ..Default::default()
        })?;
        // One slot under the region's auth key, one under another.
        let mut slots = [0_u64; 2];
        for (i, key) in [KEY, OTHER].into_iter().enumerate() {
            side.dev.call(&mut KeyAlloc {
                region: region.handle,
                count: 1,
                handles: (&raw mut slots[i]) as u64,
                auth_key: key.as_ptr() as u64,
                auth_key_size: key.len() as u32,
                ..Default::default()
            })?;
        }
        let a = side.assign(slots[0], 0, 4096, REMOTE)?;
        let b = side.assign(slots[1], 4096, 4096, REMOTE)?;
        ctx.ctl.send(&[a, b])?;
        ctx.barrier("tried")?;
        // The first bytes of each page were written, under the page's own auth key.
        buf.check_value(0, 64, 9)?;
        buf.check_value(64, 4032, 7)?;
        buf.check_value(4096, 64, 9)?;
        buf.check_value(4096 + 64, 4032, 7)?;
        let mut call = KeyRevokeMany {
            scope: KFI_REVOKE_AUTH,
            count: OTHER.len() as u32,
            slots: OTHER.as_ptr() as u64,
            ..Default::default()
        };
        side.dev.call(&mut call)?;
        ensure!(call.revoked == 1, "{call:?}");
        let keys = side.dev.obj_list()?;
        let live: Vec<_> = keys
            .iter()
            .filter(|o| o.kind == KFI_TYPE_KEY && o.a != 0)
            .collect();
        ensure!(
            live.len() == 1 && live[0].handle == slots[0] && live[0].auth != 0,
            "{live:?}"
        );
        return ctx.barrier("done");
    }
    buf.clear(9);
    let region = side.reg(&buf, LOCAL)?.handle;
    let [a, b]: [Remote; 2] = ctx.ctl.recv()?;
    let piece = [iov(region, 0, 64)];
    let run = |ep: &EpOpen, cq: &crate::raw::Cq, to: &Remote| -> Result<i32> {
        side.dev
            .submit(ep.handle, &[op::write(1, &piece, to.addr, to.key)])?;
        Ok(cq.wait(WAIT)?.err as i32)
    };
    ensure!(
        run(&ep, &mine, &a)? == 0 && run(&other, &others, &b)? == 0,
        "under their own"
    );
    // Each refusal ends its connection.
    let crossed = [run(&ep, &mine, &b)?, run(&other, &others, &a)?];
    ensure!(crossed == [libc::EACCES; 2], "{crossed:?}");
    ctx.barrier("tried")?;
    ctx.barrier("done")
}

/// Two network namespaces have users with the same uid: a grant by namespace admits one of them.
fn namespaces(ctx: &mut Ctx) -> Result<()> {
    let mode = if ctx.first() {
        Some(Enforced::new()?)
    } else {
        None
    };
    ctx.barrier("enforced")?;
    let side = Side::open(ctx)?;
    let ns = std::os::fd::OwnedFd::from(std::fs::File::open("/proc/self/ns/net")?);
    for node in [1, 2] {
        let mut id = None;
        if ctx.env.node == node {
            let admin = crate::raw::Dev::open()?;
            let made = auth::add(
                &admin,
                &GrantAdd {
                    match_: KFI_MATCH_NETNS | KFI_MATCH_UID,
                    netns_fd: auth::number(&ns),
                    ..auth::grant(KEY)
                },
            )?;
            id = Some((admin, made));
        }
        ctx.barrier("granted")?;
        let got = auth::endpoint(&side.dev, side.domain.handle, KEY);
        match &id {
            Some(_) => side.dev.close(got?.handle)?,
            None => refused(got, libc::ENOKEY, "in the other namespace")?,
        }
        ctx.barrier("tried")?;
        if let Some((admin, made)) = id {
            auth::revoke(&admin, made)?;
        }
        ctx.barrier("revoked")?;
    }
    drop(mode);
    Ok(())
}

/// If grants are required, endpoint-scoped and ordered keys have the endpoint's auth key, are valid
/// on it alone, are charged, and are revoked with the grant, even if they were just ordered.
fn own_keys(ctx: &mut Ctx) -> Result<()> {
    let mode = if ctx.first() {
        Some(Enforced::new()?)
    } else {
        None
    };
    let id = match &mode {
        Some(mode) => auth::add(mode.dev(), &auth::to_root(KEY))?,
        None => 0,
    };
    ctx.barrier("enforced")?;
    let result = keys_of_own(ctx, mode.as_ref(), id);
    let after = ctx.barrier("over");
    drop(mode);
    result.and(after)
}

fn keys_of_own(ctx: &mut Ctx, mode: Option<&Enforced>, id: u64) -> Result<()> {
    let side = Side::open(ctx)?;
    let cqs = [side.cq(0, 0)?, side.cq(0, 0)?];
    let buf = Buf::new(16384)?;
    let Some(mode) = mode else {
        buf.clear(9);
        let local = keyed_region(&side, &buf, LOCAL)?.handle;
        let port: u16 = ctx.ctl.recv()?;
        let mut eps = Vec::new();
        for cq in &cqs {
            let (ep, event) = connect(ctx, &side, cq, KEY, port, &[])?;
            ensure!(event.raw.event == KFI_CONNECTED, "{:?}", event.raw);
            eps.push(ep.handle);
            // The other side may get the event later, but must not get the next request before it.
            ctx.barrier("connected")?;
        }
        let list: Vec<(usize, Remote, i32)> = ctx.ctl.recv()?;
        for (at, to, want) in list {
            let piece = [iov(local, 0, 64)];
            side.dev
                .submit(eps[at], &[op::write(1, &piece, to.addr, to.key)])?;
            let got = cqs[at].wait(WAIT)?.err as i32;
            ensure!(got == want, "on {at}: {} not {}", Errno(got), Errno(want));
        }
        return ctx.barrier("tried");
    };
    let dev = &side.dev;
    let (pep, port) = listen(ctx, &side, &[KEY])?;
    ctx.ctl.send(&port)?;
    let mut eps = Vec::new();
    for (cq, flags) in cqs.iter().zip([KFI_EP_OWN_KEYS, 0]) {
        let request = side.event(KFI_CONNREQ)?;
        let ep = endpoint_with(&side, cq, KEY, request.raw.connreq, flags)?;
        dev.accept(ep.handle, &[])?;
        side.event(KFI_CONNECTED)?;
        eps.push(ep.handle);
        ctx.barrier("connected")?;
    }
    dev.close(pep)?;
    let region = keyed_region(&side, &buf, LOCAL | REMOTE)?.handle;
    let own = dev.key_alloc_for(region, eps[0], 1)?[0];
    let common = dev.key_alloc(region, 1)?[0];
    let order = |slot: u64, offset: u64| -> Result<Remote> {
        let mut entry = [KeyEntry {
            slot,
            offset,
            length: 4096,
            access: REMOTE,
            ..Default::default()
        }];
        ensure!(dev.key_assign_ordered(&mut entry, 0, 0)? == (1, 0));
        let [KeyEntry {
            remote_addr, key, ..
        }] = entry;
        Ok(Remote {
            addr: remote_addr,
            key,
            len: 4096,
        })
    };
    let (of_one, of_both) = (order(own, 0)?, order(common, 4096)?);
    // A slot bound to an endpoint has the endpoint's auth key, and accepts no other.
    let mut slot = 0_u64;
    refused(
        dev.call(&mut KeyAlloc {
            region,
            ep: eps[0],
            count: 1,
            handles: (&raw mut slot) as u64,
            auth_key: OTHER.as_ptr() as u64,
            auth_key_size: OTHER.len() as u32,
            ..Default::default()
        }),
        libc::EINVAL,
        "another auth key on it",
    )?;
    let used = auth::list(mode.dev())?;
    let used = used.iter().find(|grant| grant.id == id).context("it")?;
    // A peer on the same machine has two more under the same grant.
    let eps = match ctx.env.topology.is_one_kernel() {
        true => 4,
        false => 2,
    };
    ensure!((used.eps, used.keys) == (eps, 2), "{used:?}");
    // An ordered key is valid before a message that this node posts, but the control line between
    // the nodes is not ordered with it.
    for slot in [own, common] {
        crate::harness::guest::until("the key", WAIT, || {
            let all = dev.obj_list()?;
            Ok(all
                .iter()
                .any(|o| o.handle == slot && o.a != 0)
                .then_some(()))
        })?;
    }
    ctx.ctl
        .send(&[(0, of_one, 0), (1, of_both, 0), (1, of_one, libc::EACCES)])?;
    ctx.barrier("tried")?;
    buf.check_value(0, 64, 9)?;
    buf.check_value(4096, 64, 9)?;
    // Order many keys, and revoke the grant.
    let slots = dev.key_alloc(region, 64)?;
    let mut entries = key_entries(&slots, 4096, REMOTE);
    ensure!(dev.key_assign_ordered(&mut entries, 0, 0)? == (64, 0));
    auth::revoke(mode.dev(), id)?;
    // When the call has returned, the keys that the worker was just assigning are revoked, too.
    let all = dev.obj_list()?;
    let live = |o: &&ObjInfo| o.kind == KFI_TYPE_KEY && o.a != 0;
    ensure!(!all.iter().any(|o| live(&o)), "{:?}", all.iter().find(live));
    refused(
        dev.key_assign(own, 0, 4096, REMOTE),
        libc::EKEYREVOKED,
        "another key",
    )
}

/// Registers a region under the auth key.
fn keyed_region(side: &Side, buf: &Buf, access: u64) -> Result<RegionReg> {
    Ok(side.dev.call_region(&RegionReg {
        flags: KFI_REGION_DYNAMIC_KEYS,
        domain: side.domain.handle,
        addr: buf.addr(),
        len: buf.len() as u64,
        access,
        auth_key: KEY.as_ptr() as u64,
        auth_key_size: KEY.len() as u32,
        ..Default::default()
    })?)
}

/// When the call that revokes a grant has returned, no key of it is still being revoked, neither by
/// the delayed worker nor by its owner.
fn has_ended(ctx: &Ctx) -> Result<()> {
    const KEYS: u32 = 512;
    let mode = Enforced::new()?;
    let side = Side::of(&ctx.env)?;
    let buf = Buf::new(4096)?;
    for round in 0..12 {
        let id = auth::add(mode.dev(), &auth::to_root(KEY))?;
        let region = keyed_region(&side, &buf, LOCAL | REMOTE)?.handle;
        let slots = side.dev.key_alloc(region, KEYS)?;
        for slot in &slots {
            side.assign(*slot, 0, 4096, REMOTE)?;
        }
        let left = std::thread::scope(|scope| -> Result<Vec<String>> {
            let owner = scope.spawn(|| {
                for slot in slots.iter().rev() {
                    let _ = side.dev.key_revoke(*slot);
                }
            });
            std::thread::sleep(Duration::from_millis(round));
            auth::revoke(mode.dev(), id)?;
            let listed = side.dev.obj_list()?;
            owner.join().map_err(|_| anyhow::anyhow!("panicked"))?;
            let keys = listed.iter().filter(|object| object.kind == KFI_TYPE_KEY);
            let states = keys.map(|object| crate::raw::field_text(&object.name));
            Ok(states
                .filter(|state| !state.starts_with("closed"))
                .collect())
        })?;
        ensure!(left.is_empty(), "round {round}: {left:?}");
        for slot in slots {
            side.dev.close(slot)?;
        }
        side.dev.close(region)?;
        crate::harness::guest::until("the grant's end", WAIT, || {
            Ok(auth::list(mode.dev())?.is_empty().then_some(()))
        })?;
    }
    Ok(())
}

/// The seven steps: the job manager has keys, starts ranks and passes them theirs. A rank opens an
/// endpoint, and the kernel asks the agent. If the agent allows it, the endpoint is opened, with
/// its keys, and the peer's kernel demands proof. If the agent denies it, the open fails.
fn seven_steps(ctx: &mut Ctx) -> Result<()> {
    let here = ctx.first() || !ctx.env.topology.is_one_kernel();
    let mode = if here { Some(Enforced::new()?) } else { None };
    let manager = if here { Some(Agent::open()?) } else { None };
    ctx.barrier("enforced")?;
    let served = match manager {
        Some(agent) => Some(sys::fork(move || {
            sys::die_with_parent();
            loop {
                let Ok(question) = agent.wait(Duration::from_secs(1)) else {
                    continue;
                };
                if question.key == KEY {
                    let _ = agent.allow(question.raw.id);
                } else {
                    let _ = agent.deny(question.raw.id);
                }
            }
        })?),
        None => None,
    };
    let result = rank(ctx);
    let after = ctx.barrier("over");
    if let Some(pid) = served {
        sys::kill(pid, libc::SIGKILL)?;
        sys::wait_pid(pid, Duration::from_secs(10))?;
    }
    drop(mode);
    result.and(after)
}

fn rank(ctx: &mut Ctx) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    refused(
        auth::endpoint(&side.dev, side.domain.handle, OTHER),
        libc::EACCES,
        "another job's key",
    )?;
    refused(
        auth::endpoint(&side.dev, side.domain.handle, &[]),
        libc::ENOKEY,
        "no key",
    )?;
    let ep = pair(ctx, &side, &cq, KEY)?;
    let buf = Buf::new(4096)?;
    let region = side.dev.call_region(&RegionReg {
        domain: side.domain.handle,
        addr: buf.addr(),
        len: 4096,
        access: LOCAL | REMOTE,
        auth_key: KEY.as_ptr() as u64,
        auth_key_size: KEY.len() as u32,
        ..Default::default()
    })?;
    let own = Remote {
        addr: region.remote_addr,
        key: region.key,
        len: 4096,
    };
    ctx.ctl.send(&own)?;
    let peer: Remote = ctx.ctl.recv()?;
    buf.clear(ctx.env.node);
    ctx.barrier("filled")?;
    if ctx.first() {
        let piece = [iov(region.handle, 0, 4096)];
        side.dev
            .submit(ep.handle, &[op::write(1, &piece, peer.addr, peer.key)])?;
        ensure!(cq.wait(WAIT)?.err == 0);
    }
    ctx.barrier("written")?;
    buf.check_value(0, 4096, 1)
}

/// Revokes the grant of a rank that is being written to: the rank's endpoint and keys end, and the
/// rank and its peer get an event.
fn mid_transfer(ctx: &mut Ctx) -> Result<()> {
    let mode = if ctx.first() {
        Some(Enforced::new()?)
    } else {
        None
    };
    ctx.barrier("enforced")?;
    let admin = crate::raw::Dev::open()?;
    let me = auth::pidfd(std::process::id() as i32)?;
    let id = auth::add(
        &admin,
        &GrantAdd {
            match_: KFI_MATCH_PROCESS,
            pidfd: auth::number(&me),
            ..auth::grant(KEY)
        },
    )?;
    let result = written_to(ctx, &admin, id);
    let after = ctx.barrier("over");
    if mode.is_none() {
        // On a machine of its own no other node revokes it.
        let _ = auth::revoke(&admin, id);
    }
    drop(mode);
    result.and(after)
}

fn written_to(ctx: &mut Ctx, admin: &crate::raw::Dev, id: u64) -> Result<()> {
    let side = Side::open(ctx)?;
    let cq = side.cq(0, 0)?;
    let ep = pair(ctx, &side, &cq, KEY)?;
    let buf = Buf::new(64 << 10)?;
    let reg = |access| {
        side.dev.call_region(&RegionReg {
            domain: side.domain.handle,
            addr: buf.addr(),
            len: 64 << 10,
            access,
            auth_key: KEY.as_ptr() as u64,
            auth_key_size: KEY.len() as u32,
            ..Default::default()
        })
    };
    if ctx.first() {
        let region = reg(LOCAL | REMOTE)?;
        ctx.ctl.send(&Remote {
            addr: region.remote_addr,
            key: region.key,
            len: 64 << 10,
        })?;
        ctx.barrier("running")?;
        std::thread::sleep(Duration::from_millis(100));
        auth::revoke(admin, id)?;
        let down = side.event(KFI_SHUTDOWN)?;
        ensure!(
            down.raw.object == ep.handle && down.raw.err as i32 == libc::EKEYREVOKED,
            "{:?}",
            down.raw
        );
        // No byte is written any more.
        buf.clear(0);
        ctx.barrier("ended")?;
        buf.check_value(0, 64 << 10, 0)?;
        refused(
            auth::endpoint(&side.dev, side.domain.handle, KEY),
            libc::ENOKEY,
            "afterwards",
        )?;
        return Ok(());
    }
    buf.clear(3);
    let region = reg(LOCAL)?;
    let to: Remote = ctx.ctl.recv()?;
    let piece = [iov(region.handle, 0, 64 << 10)];
    let post = || {
        side.dev
            .submit(ep.handle, &[op::write(1, &piece, to.addr, to.key)])
    };
    post()?;
    ensure!(cq.wait(WAIT)?.err == 0);
    ctx.barrier("running")?;
    let err = loop {
        match post() {
            Ok(_) => {}
            Err(e) if e.errno.0 == libc::ENOTCONN => break 0,
            Err(e) => return Err(e.into()),
        }
        let done = cq.wait(WAIT)?;
        if done.err != 0 {
            break done.err as i32;
        }
    };
    let down = side.event(KFI_SHUTDOWN)?;
    ensure!(down.raw.object == ep.handle, "{:?}, {err}", down.raw);
    ctx.barrier("ended")?;
    Ok(())
}
