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
    /// Bytes of the longest packet that the RDMA device sends.
    pub(super) length: u32,
    /// The answer to a datagram of this length.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Nothing was sent.
    Unsent,
    /// The peer's connection manager answered.
    Answered,
    /// There was no answer.
    Silence,
    /// No device offers to reach the peer.
    NoOffer,
    /// This host does not let the process connect without a grant of an auth key.
    NeedsGrant(Errno),
    /// The request failed, on this host or on the way.
    Failed(Errno),
    /// A call on this host failed without a number.
    Broken(String),
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
        length: 0,
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
        let mut ports = facts.ports.iter().flatten();
        let carries_rdma = ports.any(|port| port.netdev.as_deref() == Some(&link.name));
        seen.length = match carries_rdma {
            true => longest_packet(link.mtu),
            false => link.mtu,
        };
        seen.long = ask(own, peer, payload(peer, seen.length));
        if seen.long != Answer::Arrived {
            let mut smaller = USUAL.into_iter().filter(|mtu| *mtu < seen.length);
            seen.fits = smaller.find(|mtu| ask(own, peer, payload(peer, *mtu)) == Answer::Arrived);
        }
    }
    if facts.opened {
        seen.request = request(SocketAddr::new(peer, UNUSED_SERVICE), timeout);
    }
    seen
}

/// Bytes of the longest packet of soft-RoCE over a network device with the transmission unit `mtu`:
/// the largest InfiniBand MTU that leaves 80 bytes for headers (`RXE_MAX_HDR_LENGTH`). Hardware
/// chooses alike.
fn longest_packet(mtu: u32) -> u32 {
    const HEADERS: u32 = 80;
    let fits = |payload: &u32| payload + HEADERS <= mtu;
    let payload = [4096, 2048, 1024, 512].into_iter().find(fits);
    (payload.unwrap_or(256) + HEADERS).min(mtu)
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
    answer(peer, timeout).unwrap_or_else(|error| failed_here(&error))
}

/// The meaning of an error of a call on this host.
fn failed_here(error: &kfabric::Error) -> Request {
    match error.errno() {
        Some(errno) if needs_grant(errno) => Request::NeedsGrant(errno),
        // The agent of auth keys has not decided in time.
        Some(Errno::ETIMEDOUT) => Request::NeedsGrant(Errno::ETIMEDOUT),
        Some(errno) => Request::Failed(errno),
        None => Request::Broken(error.to_string()),
    }
}

/// Whether an error means that an auth key, or a grant of an auth key, is missing.
fn needs_grant(errno: Errno) -> bool {
    [
        Errno::EACCES,
        Errno::EDQUOT,
        Errno::ENOKEY,
        Errno::EKEYEXPIRED,
        Errno::EKEYREVOKED,
        Errno::EKEYREJECTED,
    ]
    .contains(&errno)
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
    let connected = endpoint.connect(peer, &[]);
    let answer = connected.and_then(|()| events.wait(timeout).and_then(Event::connected));
    Ok(match answer {
        Ok(_) => Request::Answered,
        Err(error) => match (error.errno(), &error) {
            (Some(Errno::ETIMEDOUT), _) => Request::Silence,
            (Some(Errno::ECONNREFUSED | Errno::ECONNRESET), kfabric::Error::Connect(_)) => {
                Request::Answered
            }
            _ => failed_here(&error),
        },
    })
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
    fn longest_packet_is_that_of_the_largest_mtu_of_infiniband_that_fits() {
        let lengths = [
            (1500, 1104),
            (4200, 4176),
            (4175, 2128),
            (9000, 4176),
            (1103, 592),
            (300, 300),
        ];
        for (mtu, length) in lengths {
            assert_eq!(longest_packet(mtu), length, "{mtu}");
        }
    }

    #[test]
    fn error_of_a_call_on_this_host_does_not_blame_the_peer() {
        use kfabric::Error;
        let open = |errno| Error::Open {
            path: "/dev/kfabric".into(),
            errno,
        };
        for errno in [
            Errno::ENOKEY,
            Errno::EACCES,
            Errno::EKEYREVOKED,
            Errno::ETIMEDOUT,
        ] {
            assert_eq!(failed_here(&open(errno)), Request::NeedsGrant(errno));
        }
        assert_eq!(
            failed_here(&open(Errno::ENOMEM)),
            Request::Failed(Errno::ENOMEM)
        );
        let resolve = Error::Resolve {
            name: "x".to_owned(),
            why: "y".to_owned(),
        };
        assert!(matches!(failed_here(&resolve), Request::Broken(_)));
    }

    #[test]
    fn datagram_of_a_larger_packet_than_the_link_takes_is_refused() {
        let host = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(ask(host, host, 65_530), Answer::Refused(Errno::EMSGSIZE));
    }
}
