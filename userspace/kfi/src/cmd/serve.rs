// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kfi serve`: the passive side of `kfi ping`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kfabric::{Errno, Region};
use serde_json::json;

use super::ping::plan::{Operation, Plan};
use super::{print, print_json};
use crate::cli::{ListenArgs, Serve as Args};
use crate::error::{During, Failure, Result};
use crate::say::{complain, stderr};
use crate::session::{Conn, Done, News, Node};
use crate::wire::{Kind, Msg, Service};

/// Maximum number of connections served at once.
const SEATS: usize = 128;
/// Maximum number of connections of one address.
const SEATS_OF_ONE: usize = 64;
/// First pause before trying again after an error of the system; doubled each time.
const PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before trying again.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// A server's service and limit.
#[derive(Clone, Copy)]
pub(super) struct Offered {
    /// The service.
    pub(super) service: Service,
    /// Maximum bytes of memory registered for one initiator.
    pub(super) memory: u64,
}

/// Runs `kfi serve`.
///
/// # Errors
///
/// If listening fails; with `--once`, also the failure of the connection.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let node = Node::at(&args.listen.common.select(), args.listen.address()?)?;
    let offered = Offered {
        service: Service::Ping,
        memory: args.max_memory,
    };
    let handle = |conn: Conn| client(conn, args.max_memory);
    listen_on(&node, &args.listen, offered, json, "serving", &handle)
}

/// The connections being served or accepted, by the peers' addresses; `None`: the address is not known.
#[derive(Default)]
struct Seats(Mutex<Vec<Option<IpAddr>>>);

/// A connection's place in [`Seats`].
struct Seat<'a> {
    seats: &'a Seats,
    of: Option<IpAddr>,
}

impl Seats {
    fn all(&self) -> MutexGuard<'_, Vec<Option<IpAddr>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a peer.
    ///
    /// # Errors
    ///
    /// The reason, for the peer: all places are taken, or its address has [`SEATS_OF_ONE`] already.
    fn take(&self, of: Option<IpAddr>) -> std::result::Result<Seat<'_>, &'static [u8]> {
        let mut all = self.all();
        if all.len() >= SEATS {
            return Err(b"busy: too many clients");
        }
        if all.iter().filter(|other| **other == of).count() >= SEATS_OF_ONE {
            return Err(b"busy: too many connections of one address");
        }
        all.push(of);
        Ok(Seat { seats: self, of })
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

/// Listens, and handles each connection on a thread of its own. A handler returns whether its
/// client has finished, which ends a server with `--once`.
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
        // If there is IPv6, listening on all IPv6 addresses includes all IPv4 addresses.
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
    let (listener, seats) = (&listener, Seats::default());
    let seats = &seats;
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
            // The failure may be temporary: wait, then go on.
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
        // Before it is accepted: a peer that does not go on would have all seats for as long as it is waited
        // for.
        let seat = match seats.take(request.peer.map(|peer| peer.ip())) {
            Ok(seat) => seat,
            Err(why) => {
                drop(request.reject(why));
                continue;
            }
        };
        let given = Arc::new(Mutex::new(Some(request)));
        let taken = given.clone();
        let spawned = std::thread::Builder::new().spawn_scoped(scope, move || {
            let request = taken.lock().unwrap_or_else(PoisonError::into_inner).take();
            let served = request.map(|request| listener.accept(request, wait).and_then(handle));
            // The failure of one client does not end the server.
            if let Some(Err(e)) = served {
                complain(&e);
            }
            drop(seat);
        });
        if let Err(source) = spawned {
            let request = given.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(request.map(|request| request.reject(b"busy: no thread for another client")));
            let what = "start a thread for a client".to_owned();
            complain(&Failure::Io { what, source });
        }
    })
}

/// Runs the tests that a client requests, until it disconnects.
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
                // Notifies the client if possible. The caller reports the failure in any case.
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
    // Messages use the connection's receive slots; one-sided operations need memory of their own.
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

/// Sends each message back.
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
                // The peer sends its next message after this answer, so the slot is not overwritten
                // too early.
                conn.repost(slot)?;
                came += 1;
            }
        }
    }
    Ok(came)
}

/// Takes messages, checks them, and notifies the peer of receives that are posted again.
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
            // Clears the slot, so that a missing message is detected, too.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_of_peers_that_are_not_accepted_yet_are_bounded() {
        let seats = Seats::default();
        let one = Some(IpAddr::from(Ipv4Addr::LOCALHOST));
        let mut taken: Vec<_> = (0..SEATS_OF_ONE).map(|_| seats.take(one).ok()).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(seats.take(one).is_err_and(|why| why.ends_with(b"address")));
        let other = Some(IpAddr::from(Ipv6Addr::LOCALHOST));
        taken.extend((SEATS_OF_ONE..SEATS).map(|n| match n % 2 {
            0 => seats.take(other).ok(),
            _ => seats.take(None).ok(),
        }));
        assert!(taken.iter().all(Option::is_some));
        assert!(seats
            .take(other)
            .is_err_and(|why| why.ends_with(b"clients")));
        taken.pop();
        assert!(seats.take(other).is_ok());
    }
}
