// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the path to a peer shows: route, answers to UDP datagrams, and the answer of the peer's
//! connection manager.
//!
//! The datagrams go to a port that no program uses, so a reachable peer answers each with "port
//! unreachable" (ICMP). The connection request goes to a service that no program offers, so a peer
//! whose RDMA port is reachable refuses it. No program of the peer notices either.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use kfabric::{Bind, Caps, Device, EndpointAttr, Errno, Event, Format, Hints};
use rustix::net::sockopt::{
    set_ip_mtu_discover, set_ipv6_mtu_discover, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery,
};

use super::facts::{Facts, Link};

/// First port of `traceroute(8)`, on which no program listens.
const UNUSED_PORT: u16 = 33434;
/// Port of the discard service (RFC 863), which exists over no RDMA transport.
const UNUSED_SERVICE: u16 = 9;
/// Datagrams to send until one is answered. A Linux host answers six at once, then one a second.
const TRIES: u32 = 2;
/// Usual maximum transmission units, largest first.
const USUAL: [u32; 4] = [9000, 4200, 1500, 1280];

/// What the path to a peer shows.
#[derive(Debug)]
pub(super) struct Seen {
    /// This host's address towards the peer, or why there is no route.
    pub(super) own: Result<IpAddr, Errno>,
    /// The answer to a short datagram.
    pub(super) short: Answer,
    /// The answer to a datagram as long as the network device allows.
    pub(super) long: Answer,
    /// The largest usual transmission unit whose datagrams are answered, if `long` is not.
    pub(super) fits: Option<u32>,
    /// The answer to a connection request.
    pub(super) request: Request,
}

/// The answer to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing was sent.
    Unasked,
    /// The peer answered.
    Arrived,
    /// There was no answer.
    Silence,
    /// The datagram was refused, on this host or on the way.
    Refused(Errno),
}

/// The answer to a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Nothing was sent.
    Unsent,
    /// The peer's connection manager answered.
    Answered,
    /// There was no answer.
    Silence,
    /// No device offers to reach the peer.
    NoOffer,
    /// A call on this host failed.
    Failed(Errno),
}

/// The network device that has an address.
pub(super) fn link_of(facts: &Facts, addr: IpAddr) -> Option<&Link> {
    let text = addr.to_string();
    let mut links = facts.links.iter().flatten();
    links.find(|link| link.addresses.iter().any(|known| known.local == text))
}

/// Looks at the path to a peer. A connection request is waited for up to `timeout`.
pub(super) fn look(facts: &Facts, peer: IpAddr, timeout: Duration) -> Seen {
    let mut seen = Seen {
        own: own(peer).map_err(|error| errno(&error)),
        short: Answer::Unasked,
        long: Answer::Unasked,
        fits: None,
        request: Request::Unsent,
    };
    let Ok(own) = seen.own else { return seen };
    if own == peer {
        return seen;
    }
    seen.short = ask(own, peer, 1);
    if let Some(link) = link_of(facts, own).filter(|_| seen.short == Answer::Arrived) {
        seen.long = ask(own, peer, payload(peer, link.mtu));
        if seen.long != Answer::Arrived {
            let mut smaller = USUAL.into_iter().filter(|mtu| *mtu < link.mtu);
            seen.fits = smaller.find(|mtu| ask(own, peer, payload(peer, *mtu)) == Answer::Arrived);
        }
    }
    if facts.opened {
        seen.request = request(SocketAddr::new(peer, UNUSED_SERVICE), timeout);
    }
    seen
}

/// Bytes of the datagram that fills a packet of `mtu` bytes.
fn payload(peer: IpAddr, mtu: u32) -> usize {
    let headers = match peer {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    };
    // The longest UDP datagram limits devices with a larger unit, such as the loopback device.
    (mtu.saturating_sub(headers) as usize).min(65_000)
}

fn errno(error: &Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno)
}

fn any(peer: IpAddr) -> SocketAddr {
    match peer {
        IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        IpAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
    }
}

/// This host's address towards the peer. Sends nothing.
fn own(peer: IpAddr) -> std::io::Result<IpAddr> {
    let socket = UdpSocket::bind(any(peer))?;
    socket.connect((peer, UNUSED_PORT))?;
    Ok(socket.local_addr()?.ip())
}

/// Sends datagrams of `bytes` bytes, never in fragments, until one is answered.
fn ask(own: IpAddr, peer: IpAddr, bytes: usize) -> Answer {
    match send(own, peer, bytes) {
        Ok(answer) => answer,
        Err(error) => Answer::Refused(errno(&error)),
    }
}

fn send(own: IpAddr, peer: IpAddr, bytes: usize) -> std::io::Result<Answer> {
    let socket = UdpSocket::bind((own, 0))?;
    match peer {
        IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?,
        IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)?,
    }
    socket.set_read_timeout(Some(Duration::from_millis(700)))?;
    socket.connect((peer, UNUSED_PORT))?;
    let content = vec![0; bytes];
    for _ in 0..TRIES {
        // An answer to the datagram before may be reported by the send.
        let sent = socket.send(&content);
        let heard = sent.and_then(|_| socket.recv(&mut [0; 1]));
        match heard {
            // A program that listens on the port after all.
            Ok(_) => return Ok(Answer::Arrived),
            Err(error) => match error.kind() {
                ErrorKind::ConnectionRefused => return Ok(Answer::Arrived),
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(Answer::Silence)
}

/// Sends a connection request over verbs.
fn request(peer: SocketAddr, timeout: Duration) -> Request {
    match answer(peer, timeout) {
        Ok(answer) => answer,
        Err(error) => match error.errno() {
            Some(Errno::ETIMEDOUT) | None => Request::Silence,
            Some(errno) => Request::Failed(errno),
        },
    }
}

fn answer(peer: SocketAddr, timeout: Duration) -> kfabric::Result<Request> {
    let device = Device::open()?;
    let hints = Hints::new()
        .caps(Caps::MSG)
        .provider("kverbs")
        .destination(&peer.ip().to_string(), peer.port());
    let infos = device.info(&hints)?;
    let Some(info) = infos.first() else {
        return Ok(Request::NoOffer);
    };
    let fabric = device.fabric(info)?;
    let domain = fabric.domain(info)?;
    let events = fabric.event_queue(0)?;
    let queue = domain.completion_queue(16, Format::Data)?;
    let attr = EndpointAttr {
        tx_size: 4,
        rx_size: 4,
        ..EndpointAttr::default()
    };
    let endpoint = domain.endpoint(&attr)?;
    endpoint.bind_event_queue(&events)?;
    endpoint.bind_completion_queue(&queue, Bind::TRANSMIT | Bind::RECV)?;
    endpoint.enable()?;
    endpoint.connect(peer, &[])?;
    match events.wait(timeout).and_then(Event::connected) {
        Ok(_) => Ok(Request::Answered),
        Err(kfabric::Error::Timeout { .. }) => Ok(Request::Silence),
        Err(kfabric::Error::Connect(failure)) => Ok(match failure.errno {
            Errno::ECONNREFUSED | Errno::ECONNRESET => Request::Answered,
            Errno::ETIMEDOUT => Request::Silence,
            errno => Request::Failed(errno),
        }),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagram_to_this_host_is_answered() {
        let host = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(own(host).unwrap(), host);
        assert_eq!(ask(host, host, 1), Answer::Arrived);
        assert_eq!(ask(host, host, payload(host, 1500)), Answer::Arrived);
    }

    #[test]
    fn datagram_of_a_larger_packet_than_the_link_takes_is_refused() {
        let host = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(ask(host, host, 65_530), Answer::Refused(Errno::EMSGSIZE));
    }
}
