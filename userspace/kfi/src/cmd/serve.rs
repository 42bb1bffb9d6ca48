// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi serve`: the passive side of `kfi ping`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kfabric::{ConnRequest, Errno, Region};
use serde_json::json;

use super::ping::plan::{Operation, Plan};
use super::{print, print_json};
use crate::cli::{ListenArgs, Serve as Args};
use crate::error::{During, Failure, Result};
use crate::say::{complain, stderr};
use crate::session::{Conn, Done, Listener, News, Node};
use crate::wire::{Kind, Msg, Service};

/// Connections that are served at once.
const SEATS: usize = 128;
/// … of one address.
const SEATS_OF_ONE: usize = 64;
/// How long to wait before trying again what the system refused; twice as long each time, up to
const PAUSE: Duration = Duration::from_millis(100);
/// this.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a server offers.
#[derive(Clone, Copy)]
pub(super) struct Offered {
    /// Its service.
    pub(super) service: Service,
    /// Bytes of memory that one client may have registered for it.
    pub(super) memory: u64,
}

/// Runs it.
///
/// # Errors
///
/// What listening says; with `--once`, what went wrong on the connection.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let node = Node::at(&args.listen.common.select(), args.listen.address()?)?;
    let offered = Offered {
        service: Service::Ping,
        memory: args.max_memory,
    };
    let handle = |conn: Conn| client(conn, args.max_memory);
    listen_on(&node, &args.listen, offered, json, "serving", &handle)
}

/// The connections that are served, by their peers' addresses.
#[derive(Default)]
struct Seats(Mutex<Vec<IpAddr>>);

/// One of them.
struct Seat<'a> {
    seats: &'a Seats,
    of: IpAddr,
}

impl Seats {
    fn all(&self) -> MutexGuard<'_, Vec<IpAddr>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A seat for a peer; none: it has as many as it may have.
    fn take(&self, of: IpAddr) -> Option<Seat<'_>> {
        let mut all = self.all();
        if all.iter().filter(|other| **other == of).count() >= SEATS_OF_ONE {
            return None;
        }
        all.push(of);
        Some(Seat { seats: self, of })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut all = self.seats.all();
        if let Some(at) = all.iter().position(|of| *of == self.of) {
            all.swap_remove(at);
        }
    }
}

/// Listens on an open node and has each connection handled on a thread of its own. A handler says
/// whether its client is through, which ends a server that is to serve one.
pub(super) fn listen_on(
    node: &Node,
    args: &ListenArgs,
    offered: Offered,
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
    let (listener, seats, waiting) = (&listener, Seats::default(), AtomicUsize::new(0));
    let (seats, waiting) = (&seats, &waiting);
    let mut pause = PAUSE;
    std::thread::scope(|scope| loop {
        let request = match listener.next(
            offered.service,
            offered.memory,
            Duration::from_secs(3600),
        ) {
            Ok(News::Request(request)) => request,
            Ok(News::Lost { provider, errno }) => {
                stderr(&format!(
                    "{provider} does not listen on {address} any more: {errno}; trying again until it does\n"
                ));
                continue;
            }
            Ok(News::Back { provider }) => {
                stderr(&format!("{provider} listens on {address} again\n"));
                continue;
            }
            Ok(News::Nothing) => continue,
            // The system refuses, and may not for ever.
            Err(e) => {
                complain(&e);
                std::thread::sleep(pause);
                pause = (2 * pause).min(LONGEST_PAUSE);
                continue;
            }
        };
        pause = PAUSE;
        if args.once {
            if listener.accept(request, wait).and_then(handle)? {
                return Ok(());
            }
            continue;
        }
        if waiting.load(Ordering::Relaxed) >= SEATS {
            drop(request.reject(b"busy: too many clients"));
            continue;
        }
        waiting.fetch_add(1, Ordering::Relaxed);
        let given = Arc::new(Mutex::new(Some(request)));
        let taken = given.clone();
        let spawned = std::thread::Builder::new().spawn_scoped(scope, move || {
            let request = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            // One client's fate is not the server's.
            if let Some(Err(e)) = request.map(|r| seated(listener, seats, r, wait, handle)) {
                complain(&e);
            }
            waiting.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(source) = spawned {
            waiting.fetch_sub(1, Ordering::Relaxed);
            let request = given.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(request.map(|request| request.reject(b"busy: no thread for another client")));
            let what = "start a thread for a client".to_owned();
            complain(&Failure::Io { what, source });
        }
    })
}

/// Serves a client that has not too many connections already.
fn seated(
    listener: &Listener,
    seats: &Seats,
    request: ConnRequest,
    wait: Duration,
    handle: &(dyn Fn(Conn) -> Result<bool> + Sync),
) -> Result<bool> {
    let conn = listener.accept(request, wait)?;
    let peer = conn.ep.peer_addr().during("getname")?.ip();
    match seats.take(peer) {
        Some(_seat) => handle(conn),
        None => Err(Failure::Refused {
            what: "serve",
            why: format!("{peer} has {SEATS_OF_ONE} connections already"),
        }),
    }
}

/// Serves one connection's tests until the client goes.
fn client(mut conn: Conn, memory: u64) -> Result<bool> {
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
        if plan.bytes() > memory {
            conn.send(&Msg::failed(Kind::Ready, Errno::EMSGSIZE))?;
            continue;
        }
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
