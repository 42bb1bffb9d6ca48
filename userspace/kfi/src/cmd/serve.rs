// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi serve`: the passive side of `kfi ping`.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use kfabric::{Errno, Region};
use serde_json::json;

use super::ping::plan::{Operation, Plan};
use super::{print, print_json};
use crate::cli::{ListenArgs, Serve as Args};
use crate::error::{During, Failure, Result};
use crate::session::{Conn, Done, Listener, Node};
use crate::wire::{Kind, Msg, Service};

/// Runs it.
///
/// # Errors
///
/// What listening says; with `--once`, what went wrong on the connection.
pub fn run(args: &Args, json: bool) -> Result<()> {
    listen(&args.listen, Service::Ping, json, "serving", &client)
}

/// Listens and has each connection handled on a thread of its own. A handler says whether its
/// client is through, which ends a server that is to serve one.
pub(super) fn listen(
    args: &ListenArgs,
    service: Service,
    json: bool,
    what: &str,
    handle: &(dyn Fn(Conn) -> Result<bool> + Sync),
) -> Result<()> {
    let node = Node::at(&args.common.select(), args.address()?)?;
    listen_on(&node, args, service, json, what, handle)
}

/// As [`listen`], on a node that is open already.
pub(super) fn listen_on(
    node: &Node,
    args: &ListenArgs,
    service: Service,
    json: bool,
    what: &str,
    handle: &(dyn Fn(Conn) -> Result<bool> + Sync),
) -> Result<()> {
    let listener = match args.address()? {
        Some(address) => node.listen(address)?,
        // All of IPv6 includes all of IPv4, where there is IPv6.
        None => match node.listen((Ipv6Addr::UNSPECIFIED, args.port).into()) {
            Err(Failure::Fabric { source, .. }) if source.errno() != Some(Errno::EADDRINUSE) => {
                node.listen((Ipv4Addr::UNSPECIFIED, args.port).into())?
            }
            listener => listener?,
        },
    };
    let address = listener.local_addr()?;
    let providers = listener.providers();
    if json {
        let address = address.to_string();
        print_json(&json!({ "listening": address, "what": what, "providers": providers }))?;
    } else {
        print(&format!(
            "{what} on {address} by {}\n",
            providers.join(", ")
        ))?;
    }
    let wait = args.common.wait();
    std::thread::scope(|scope| loop {
        let Some(request) = listener.next_request(service, Duration::from_secs(3600))? else {
            continue;
        };
        let listener: &Listener<'_> = &listener;
        if args.once {
            if listener.accept(request, wait).and_then(handle)? {
                return Ok(());
            }
            continue;
        }
        scope.spawn(move || {
            // One client's fate is not the server's.
            if let Err(e) = listener.accept(request, wait).and_then(handle) {
                eprintln!("error: {e}");
            }
        });
    })
}

/// Serves one connection's tests until the client goes.
fn client(mut conn: Conn) -> Result<bool> {
    let mut last = false;
    loop {
        let msg = match conn.recv() {
            Ok(msg) => msg,
            Err(Failure::Gone { .. }) => return Ok(last),
            Err(e) => return Err(e),
        };
        if msg.kind != Kind::Test {
            let got = format!("{:?} instead of a test", msg.kind);
            return Err(Failure::Protocol { what: "serve", got });
        }
        let Some(plan) = Plan::decode(&msg) else {
            conn.send(&Msg::failed(Kind::Ready, Errno::EINVAL))?;
            continue;
        };
        match test(&mut conn, &plan) {
            Ok(through) => last = through,
            Err(Failure::Gone { .. }) => return Ok(last),
            Err(e) => {
                let errno = match &e {
                    Failure::Fabric { source, .. } => source.errno().unwrap_or(Errno::EIO),
                    _ => Errno::EIO,
                };
                // The client is told if it can be; what went wrong is reported in any case.
                let _ = conn
                    .send(&Msg::failed(Kind::Ready, errno))
                    .and_then(|()| conn.flush());
                return Err(e);
            }
        }
    }
}

fn test(conn: &mut Conn, plan: &Plan) -> Result<bool> {
    if plan.size as u64 > conn.domain.max_msg_size() {
        conn.send(&Msg::failed(Kind::Ready, Errno::EMSGSIZE))?;
        return Ok(false);
    }
    // Messages come in the connection's slots; one-sided operations need memory of their own.
    let region = match plan.operation {
        Operation::Send => None,
        _ => Some(plan.register(&conn.domain)?),
    };
    if let (Operation::Read, Some(region)) = (plan.operation, &region) {
        plan.fill(region, 0, 0);
    }
    let remote = region.as_ref().and_then(Region::remote).unwrap_or_default();
    conn.send(&Msg::new(Kind::Ready, &[remote.addr, remote.key]))?;
    let (came, wrong) = match (plan.operation, plan.bandwidth) {
        (Operation::Send, false) => (echo(conn, plan)?, 0),
        (Operation::Send, true) => sink(conn, plan)?,
        _ => (0, 0),
    };
    let done = conn.expect(Kind::Done)?;
    conn.send(&Msg::new(Kind::Done, &[came, wrong]))?;
    conn.flush()?;
    Ok(done.n[0] == 1)
}

/// Sends every message back.
fn echo(conn: &mut Conn, plan: &Plan) -> Result<u64> {
    let (mut came, mut answered) = (0, 0);
    while answered < plan.count {
        match conn.take()? {
            Done::Operation(completion) => {
                completion.ok().during("echo")?;
                answered += 1;
            }
            Done::Message { slot, len } => {
                let (region, range) = conn.slot(slot, len);
                conn.ep.send(region.segment(range), 0).during("send")?;
                // The peer sends the next message when it has the answer, so the slot is not
                // overwritten before.
                conn.repost(slot)?;
                came += 1;
            }
        }
    }
    Ok(came)
}

/// Takes messages, checks them, and tells the peer how many more there is room for.
fn sink(conn: &mut Conn, plan: &Plan) -> Result<(u64, u64)> {
    let (mut wrong, mut credit) = (0, 0);
    for came in 0..plan.count {
        let Done::Message { slot, len } = conn.take()? else {
            continue;
        };
        let (region, range) = conn.slot(slot, len);
        if plan.verify {
            let right = region.to_vec(range.start, len) == plan.pattern(came % plan.window as u64);
            wrong += u64::from(!right);
            // A message that does not come is noticed, too.
            region.fill(range.start, len, 0);
        }
        conn.repost(slot)?;
        credit += 1;
        let due = (plan.window as u64).div_ceil(2);
        if credit >= due && came + 1 < plan.count {
            conn.send(&Msg::new(Kind::Credit, &[credit]))?;
            credit = 0;
        }
    }
    Ok((plan.count, wrong))
}
