// SPDX-License-Identifier: MIT OR Apache-2.0

//! Listening users: one port number may belong to one user over kshm and to another over verbs, and
//! system ports need a capability.

use crate::harness::{Ctx, Test, ONE, SHM};
use crate::pair::Side;
use crate::raw::{field_text, hints, to_sockaddr, Dev};
use crate::sys::{self, Ended};
use anyhow::{ensure, Context, Result};
use kfabric_uapi::InfoEntry;
use std::io::{pipe, PipeReader, PipeWriter, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// The topic's tests.
pub const TESTS: &[Test] = &[
    Test::alone("shm.p07_listener_of_another_user_is_not_preferred", foreign).on(SHM),
    Test::alone(
        "cm.p12_listen_at_system_port_without_capability_is_refused",
        system_port,
    )
    .on(SHM | ONE),
];

/// An unprivileged user.
const USER: u32 = 2001;
/// kverbs' rank for an address of this host.
const VERBS: u32 = 100;

/// Returns kshm's rank for a peer at `at`.
fn rank(dev: &Dev, at: SocketAddr) -> Result<u32> {
    let wanted = InfoEntry {
        dest_addr: to_sockaddr(at),
        ..hints()
    };
    let list = dev.getinfo(Some(&wanted))?;
    let shm = |entry: &&InfoEntry| field_text(&entry.prov_name) == "kshm";
    let ranks = list.iter().filter(shm).map(|entry| entry.rank);
    ranks.max().context("kshm is not offered")
}

/// Runs `f` as [`USER`] in a child, with a device file that root has opened. Returns the child's
/// id.
fn as_user(f: impl FnOnce(Dev) -> Result<()>) -> Result<i32> {
    let dev = Dev::open()?;
    let pid = sys::fork(|| {
        let done = (|| {
            sys::rights::become_user(USER)?;
            f(dev)
        })();
        if let Err(e) = &done {
            eprintln!("as another user: {e:#}");
        }
        i32::from(done.is_err())
    })?;
    Ok(pid)
}

fn ended_well(pid: i32) -> Result<()> {
    let ended = sys::wait_pid(pid, Duration::from_secs(20))?;
    ensure!(ended == Some(Ended::Exit(0)), "it ended with {ended:?}");
    Ok(())
}

/// kshm is preferred for listeners of the caller's own user and of root, and for no other: an
/// unprivileged user that listens over kshm at a verbs server's address and port attracts no peers.
fn foreign(ctx: &mut Ctx) -> Result<()> {
    let (listens, tell_port) = pipe()?;
    let (tell_end, done) = pipe()?;
    let env = ctx.env.clone();
    let pid = as_user(|dev| {
        let side = Side::on(dev, &env)?;
        let (_pep, at) = side.listen(env.at(0), 0)?;
        ensure!(
            rank(&side.dev, at)? > VERBS,
            "its own listener is not preferred"
        );
        write_port(&tell_port, at.port())?;
        read_port(&tell_end).map(drop)
    })?;
    // If the child fails, the pipe ends.
    drop(tell_port);
    let port = read_port(&listens)?;
    let dev = Dev::open()?;
    let foreign = rank(&dev, ctx.env.at(port));
    write_port(&done, 0)?;
    ended_well(pid)?;
    let foreign = foreign?;
    ensure!(foreign < VERBS, "another user's listener ranks {foreign}");
    // Root's own listener is preferred, for root and for other users.
    let side = Side::open(ctx)?;
    let (_pep, at) = side.listen(ctx.env.at(0), 0)?;
    ensure!(rank(&dev, at)? > VERBS, "root's listener is not preferred");
    let pid = as_user(|dev| {
        ensure!(rank(&dev, at)? > VERBS, "root's listener is not preferred");
        Ok(())
    })?;
    ended_well(pid)
}

/// A user without `CAP_NET_BIND_SERVICE` listens at no port below 1024, as with sockets.
fn system_port(ctx: &mut Ctx) -> Result<()> {
    // The nodes of one host share its ports.
    let port = 777 + u16::from(ctx.env.node);
    let env = ctx.env.clone();
    let pid = as_user(|dev| {
        let side = Side::on(dev, &env)?;
        let Err(e) = side.listen(env.at(port), 0) else {
            anyhow::bail!("the user listens at port {port}");
        };
        let errno = e.downcast_ref::<crate::raw::CallError>().map(|e| e.errno.0);
        ensure!(errno == Some(libc::EACCES), "port {port}: {e:#}");
        let free = side.listen(env.at(0), 0).context("any port")?;
        ensure!(free.1.port() >= 1024, "{}", free.1);
        Ok(())
    })?;
    ended_well(pid)?;
    let side = Side::open(ctx)?;
    side.listen(env.at(port), 0).context("as root")?;
    Ok(())
}

fn write_port(mut to: &PipeWriter, port: u16) -> Result<()> {
    Ok(to.write_all(&port.to_ne_bytes())?)
}

fn read_port(mut from: &PipeReader) -> Result<u16> {
    let mut bytes = [0; 2];
    from.read_exact(&mut bytes)?;
    Ok(u16::from_ne_bytes(bytes))
}
