// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failures while a durable write, or a write and a commit, opens its channel and is committed.
//!
//! Both ends are in one process, so one sweep covers the initiator's steps and the target's: the opening
//! of the channel, the commit, the answer, and the completion data. Each write must end with a documented
//! errno. The connection must stay, and a later durable write must succeed.

use super::{close_all, of_provider, MOST, PATIENCE};
use crate::fault::calls::memory::NO_SOCKET;
use crate::fault::inject::{Everywhere, Kind, Knobs};
use crate::fault::lab::{Lab, Link};
use crate::fault::state::{State, Watch};
use crate::fault::sweep::{next, Row};
use crate::harness::Env;
use crate::op::{self, iov, with_data, with_flags};
use crate::pair::{LOCAL, REMOTE};
use crate::raw::CallError;
use crate::sys::{patience, Errno, Map};
use crate::tests::pmem::Device;
use anyhow::{bail, ensure, Context, Result};
use kfabric_uapi::*;
use std::time::{Duration, Instant};

/// Bytes of a write: more than one stretch of the target's.
const LEN: u64 = 100_000;
/// Completion data of a write.
const DATA: u64 = 5;
/// Contexts of operations.
const WRITE: u64 = 1;
const RECEIVE: u64 = 2;
const PLAIN: u64 = 3;

/// How bytes are made durable.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// By a durable write.
    Write,
    /// By a plain write and a commit of its range.
    Commit,
}

/// Errnos of a durable write for which docs/design/pmem.md gives a reason that a failure explains, and
/// after which the connection stays.
const KNOWN: &[i32] = &[
    libc::EAGAIN,
    libc::ENOMEM,
    libc::EIO,
    libc::ECONNABORTED,
    libc::ETIMEDOUT,
    // rxe's queue pairs have sockets.
    libc::ENFILE,
    // The search of a route or a neighbour.
    libc::ENOBUFS,
];

/// The memory of both ends.
struct Memory {
    from: u64,
    /// Remote address and key of persistent memory.
    to: (u64, u64),
}

/// Maps the initiator's memory, whose bytes are 7, and the target's.
fn maps() -> Result<(Map, Map)> {
    let from = Map::anon(1 << 20)?;
    from.write(0, &vec![7; LEN as usize]);
    Ok((from, Device::Nvdimm.map()?))
}

/// Registers memory, and assigns a key to the persistent memory.
fn memory(lab: &Lab, from: &Map, there: &Map) -> Result<Memory> {
    let register = |map: &Map, flags| {
        lab.dev.call_region(&RegionReg {
            flags,
            domain: lab.domain,
            addr: map.addr(),
            len: map.len() as u64,
            access: LOCAL | REMOTE,
            ..Default::default()
        })
    };
    let region = register(there, KFI_REGION_PMEM | KFI_REGION_DYNAMIC_KEYS)?.handle;
    let slot = lab.dev.key_alloc(region, 1)?[0];
    let key = lab.dev.key_assign(slot, 0, LEN, REMOTE)?;
    Ok(Memory {
        from: register(from, 0)?.handle,
        to: (key.remote_addr, key.key),
    })
}

/// Sweeps one kind of failures of a durable write or a commit.
pub(super) fn sweep(
    form: Form,
    kind: Kind,
    env: &Env,
    knobs: &Knobs,
    quick: bool,
    row: &mut Row,
) -> Result<()> {
    let (from, there) = maps()?;
    knobs.choose(kind)?;
    let lab = Lab::open(env)?;
    let memory = memory(&lab, &from, &there)?;
    let mut watch = Watch::open()?;
    let (only, except) = of_provider(kind)?;
    let mut everywhere = Everywhere::new(kind, only, except)?;
    let mut nth = 1;
    while nth < MOST {
        let at = || format!("{} {nth}", kind.name());
        let before = watch.look()?;
        let link = lab.link().with_context(at)?;
        let receive = op::recv(RECEIVE, &[iov(memory.from, 0, 0)]);
        ensure!(lab.dev.submit(link.server, &[receive])? == (1, 0));
        there.write(0, &vec![0; LEN as usize]);
        everywhere.arm(nth)?;
        let end = write(&lab, &link, &memory, form, true).with_context(at)?;
        let happened = everywhere.disarm()?;
        // The device has refused the write itself: the endpoint acts as not connected.
        let unposted = kind == Kind::Device && end == Some(Errno(libc::ENOTCONN));
        match end {
            None => ensure!(
                (0..LEN as usize).all(|i| there.get(i) == 7),
                "{}: bytes are missing",
                at()
            ),
            Some(errno) => ensure!(unposted || KNOWN.contains(&errno.0), "{}: {errno}", at()),
        }
        if !unposted {
            stays(&lab, &link, &memory).with_context(|| format!("{}: {end:?}, then", at()))?;
        }
        close_all(&lab)?;
        leaves(&mut watch, &before).with_context(at)?;
        if !happened {
            ensure!(end.is_none(), "{}: {end:?}, though nothing failed", at());
            return Ok(());
        }
        row.count(kind, end);
        nth = next(nth, quick);
    }
    bail!("the sweep does not end");
}

/// Sweeps one kind while a domain registers its first persistent memory, and begins to listen for channels.
///
/// If the registration succeeds although an allocation has failed, durable writes must succeed.
pub(super) fn sweep_listener(
    kind: Kind,
    env: &Env,
    knobs: &Knobs,
    quick: bool,
    row: &mut Row,
) -> Result<()> {
    let (from, there) = maps()?;
    knobs.choose(kind)?;
    let mut watch = Watch::open()?;
    // The steps of the registration itself count, too.
    let (only, _) = of_provider(kind)?;
    let mut everywhere = Everywhere::new(kind, only, None)?;
    let mut nth = 1;
    while nth < MOST {
        let at = || format!("{} {nth}", kind.name());
        let before = watch.look()?;
        let lab = Lab::open(env)?;
        let link = lab.link().with_context(at)?;
        everywhere.arm(nth)?;
        let got = memory(&lab, &from, &there);
        let happened = everywhere.disarm()?;
        let mut end = None;
        let got = match got {
            Ok(memory) => memory,
            Err(e) => {
                let call = e.downcast_ref::<CallError>().map(|call| call.errno);
                let errno = call.ok_or(e)?;
                let known = errno.0 == kind.errno() || NO_SOCKET.contains(&errno.0);
                ensure!(known, "{}: {errno}", at());
                end = Some(errno);
                memory(&lab, &from, &there).with_context(at)?
            }
        };
        match write(&lab, &link, &got, Form::Write, false).with_context(at)? {
            None => {}
            // As if another service had the port: a later registration listens.
            Some(errno) if kind == Kind::Device && errno.0 == libc::EOPNOTSUPP => {
                end = Some(errno);
                let got = memory(&lab, &from, &there)?;
                let again = write(&lab, &link, &got, Form::Write, false)?;
                ensure!(again.is_none(), "{}: again: {again:?}", at());
            }
            Some(errno) => bail!("{}: {end:?}, then {errno}", at()),
        }
        close_all(&lab)?;
        drop(lab);
        leaves(&mut watch, &before).with_context(at)?;
        if !happened {
            ensure!(end.is_none(), "{}: {end:?}, though nothing failed", at());
            return Ok(());
        }
        row.count(kind, end);
        nth = next(nth, quick);
    }
    bail!("the sweep does not end");
}

/// Checks that the state becomes what it was. Work items end channels.
fn leaves(watch: &mut Watch, before: &State) -> Result<()> {
    let limit = Instant::now() + patience(Duration::from_secs(10));
    loop {
        let after = watch.look()?;
        if after == *before {
            return Ok(());
        }
        if Instant::now() >= limit {
            bail!("left behind: {}", after.since(before));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes bytes durable, with completion data or without. Returns the errno of a failed operation, after
/// which no completion data may have arrived.
fn write(lab: &Lab, link: &Link, memory: &Memory, form: Form, data: bool) -> Result<Option<Errno>> {
    let (addr, key) = memory.to;
    let iovs = [iov(memory.from, 0, LEN)];
    let (plain, mut asked) = match form {
        Form::Write => {
            let write = op::write(WRITE, &iovs, addr, key);
            (None, with_flags(write, KFI_COMMIT_COMPLETE))
        }
        Form::Commit => (
            Some(op::write(PLAIN, &iovs, addr, key)),
            op::commit(WRITE, addr, key, LEN),
        ),
    };
    if data {
        asked = with_data(asked, DATA);
    }
    let post = |entry| match lab.dev.submit(link.client, &[entry]) {
        Ok((1, 0)) => None,
        Ok((_, err)) => Some(Errno(err)),
        Err(e) => Some(e.errno),
    };
    let mut written = plain.is_none();
    if let Some(refused) = plain.and_then(post) {
        return Ok(Some(refused));
    }
    if let Some(refused) = post(asked) {
        // The write is over before the caller goes on. An endpoint that acts as not connected ends it.
        if !written && refused.0 != libc::ENOTCONN {
            let done = lab.cq.wait(PATIENCE)?;
            ensure!((done.context, done.err) == (PLAIN, 0), "{done:?}");
        }
        return Ok(Some(refused));
    }
    let (mut arrived, mut complete) = (false, false);
    while !complete || !written || arrived != data {
        let done = lab
            .cq
            .wait(PATIENCE)
            .context("an operation that never ends")?;
        match (done.context, done.err) {
            (RECEIVE, 0) => {
                ensure!(data && done.data == DATA, "a receive: {done:?}");
                arrived = true;
            }
            (PLAIN, 0) => written = true,
            (WRITE, 0) => complete = true,
            (WRITE, err) => {
                ensure!(!arrived, "data of an operation that failed with {err}");
                ensure!(written, "a commit that ended before its write");
                return Ok(Some(Errno(err as i32)));
            }
            _ => bail!("the connection has ended: {done:?}"),
        }
    }
    Ok(None)
}

/// Checks that the connection is there, and that a durable write succeeds again.
fn stays(lab: &Lab, link: &Link, memory: &Memory) -> Result<()> {
    let (addr, key) = memory.to;
    let plain = op::write(WRITE, &[iov(memory.from, 0, 8)], addr, key);
    ensure!(lab.dev.submit(link.client, &[plain])? == (1, 0));
    let done = lab.cq.wait(PATIENCE)?;
    ensure!((done.context, done.err) == (WRITE, 0), "{done:?}");
    let limit = Instant::now() + PATIENCE;
    loop {
        match write(lab, link, memory, Form::Write, false)? {
            None => return Ok(()),
            Some(errno) if errno.0 == libc::EAGAIN && Instant::now() < limit => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Some(errno) => bail!("the next durable write: {errno}"),
        }
    }
}
