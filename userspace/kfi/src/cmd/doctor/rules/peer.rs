// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of the path to a peer.

use std::net::IpAddr;

use kfabric::Errno;

use super::super::facts::{Facts, Link};
use super::super::path::{link_of, Answer, Request, Seen};
use super::net::with_soft_roce;
use super::{Finding, NOT_OPENED};

/// UDP port of RoCE v2 (IBTA volume 1, annex A17).
const ROCE_PORT: u16 = 4791;

/// Judges the path to a peer.
pub(in super::super) fn path(facts: &Facts, peer: IpAddr, seen: &Seen) -> Vec<Finding> {
    let own = match seen.own {
        Ok(own) => own,
        Err(errno) => return vec![unrouted(facts, peer, errno)],
    };
    if own == peer {
        return vec![Finding::ok("route", format!("{peer} is this host"))];
    }
    let devices = facts.ports.iter().flatten();
    let netdevs: Vec<&str> = devices.filter_map(|port| port.netdev.as_deref()).collect();
    let mut findings = Vec::new();
    let link = link_of(facts, own);
    match link {
        Some(link) if !netdevs.is_empty() && !netdevs.contains(&&*link.name) => {
            let netdev = &link.name;
            let what = format!("the route to {peer} uses {netdev}, which has no RDMA device");
            let finding = Finding::error("route", what);
            findings.push(with_soft_roce(
                facts,
                finding,
                &format!("rxe_{netdev}"),
                netdev,
            ));
        }
        _ => findings.push(Finding::ok("route", format!("to {peer} from {own}"))),
    }
    findings.push(reach(peer, seen));
    if let Some(link) = link {
        findings.extend(mtu(peer, link, seen));
    }
    findings.push(request(peer, seen));
    findings
}

/// Judges a host without a route to the peer.
fn unrouted(facts: &Facts, peer: IpAddr, errno: Errno) -> Finding {
    let finding = Finding::error("route", format!("no route to {peer}: {errno}"));
    if !matches!(errno, Errno::ENETUNREACH | Errno::EHOSTUNREACH) {
        return finding.checked_by(format!("ip route get {peer}"));
    }
    // The peer is on the network of an address of this host.
    let near = facts.links.iter().flatten().find_map(|link| {
        let mut networks = link.addresses.iter().filter_map(|address| {
            let own = address.local.parse().ok()?;
            let network = network(own, address.prefix)?;
            (Some(network) == self::network(peer, address.prefix)
                && own.is_ipv4() == peer.is_ipv4())
            .then(|| format!("{network}/{}", address.prefix))
        });
        networks.next().map(|network| (link, network))
    });
    match near {
        Some((link, _)) if !link.is_up() => {
            finding.mended_by(format!("ip link set {} up", link.name))
        }
        Some((link, network)) => {
            finding.mended_by(format!("ip route add {network} dev {}", link.name))
        }
        None => finding.checked_by(
            "ip route show   # then: ip route add PEER via ROUTER, or dev DEVICE without a router",
        ),
    }
}

/// The network of an address: the first `prefix` bits.
fn network(addr: IpAddr, prefix: u8) -> Option<IpAddr> {
    let prefix = u32::from(prefix);
    Some(match addr {
        IpAddr::V4(addr) => {
            let host = u32::MAX.checked_shr(prefix).unwrap_or(0);
            (prefix <= 32).then_some(())?;
            IpAddr::from((u32::from(addr) & !host).to_be_bytes())
        }
        IpAddr::V6(addr) => {
            let host = u128::MAX.checked_shr(prefix).unwrap_or(0);
            (prefix <= 128).then_some(())?;
            IpAddr::from((u128::from(addr) & !host).to_be_bytes())
        }
    })
}

fn reach(peer: IpAddr, seen: &Seen) -> Finding {
    match seen.short {
        Answer::Arrived => Finding::ok("peer", format!("{peer} answers")),
        Answer::Refused(errno) => {
            let what = format!("{peer} cannot be reached: {errno}");
            Finding::error("peer", what).checked_by(format!("ip route get {peer}"))
        }
        Answer::Silence | Answer::Unasked => {
            let what = format!("{peer} does not answer datagrams, or a firewall drops its answers");
            Finding::unknown("peer", what)
        }
    }
}

fn mtu(peer: IpAddr, link: &Link, seen: &Seen) -> Option<Finding> {
    let (netdev, length) = (&link.name, seen.length);
    match seen.long {
        Answer::Unasked => None,
        Answer::Arrived => Some(Finding::ok(
            "mtu",
            format!("packets of {length} bytes reach {peer}"),
        )),
        Answer::Silence | Answer::Refused(_) => {
            let what = format!(
                "packets of {length} bytes, which {netdev} with the MTU {} sends, do not reach {peer}",
                link.mtu
            );
            Some(match seen.fits {
                Some(fits) => Finding::error("mtu", what)
                    .mended_by(format!("ip link set {netdev} mtu {fits}")),
                // A firewall may drop the answers.
                None => {
                    let check = format!("ping -M do -s {} {peer}", length.saturating_sub(28));
                    Finding::unknown("mtu", what).checked_by(check)
                }
            })
        }
    }
}

fn request(peer: IpAddr, seen: &Seen) -> Finding {
    // This host cannot see whether the peer uses nftables, and which of its tables drops.
    let rules = format!("nft list ruleset   # on {peer}: must accept udp dport {ROCE_PORT}");
    match &seen.request {
        Request::Answered => Finding::ok("connect", format!("{peer} answers connection requests")),
        Request::Silence if seen.short == Answer::Arrived => {
            let what = format!(
                "{peer} answers datagrams, but no connection request: UDP port {ROCE_PORT} is closed between \
                 the hosts, or {peer} has no RDMA device at this address"
            );
            Finding::error("connect", what).checked_by(rules)
        }
        Request::Silence => {
            let what = format!("{peer} does not answer connection requests");
            Finding::error("connect", what).checked_by(rules)
        }
        Request::NoOffer => {
            let what = format!("no RDMA device reaches {peer}");
            Finding::error("connect", what).checked_by("rdma link show")
        }
        Request::NeedsGrant(errno) => {
            let what = format!("a connection needs a grant of an auth key: {errno}");
            Finding::unknown("connect", what).checked_by("kfi auth mode; kfi auth list")
        }
        Request::Failed(errno @ (Errno::EHOSTUNREACH | Errno::ENETUNREACH | Errno::EHOSTDOWN)) => {
            let what = format!("a connection request to {peer} fails: {errno}");
            Finding::error("connect", what).checked_by(format!("ip route get {peer}"))
        }
        Request::Failed(errno) => {
            let what = format!("a connection request to {peer} fails: {errno}");
            Finding::error("connect", what).checked_by("dmesg | grep -e kfabric -e kverbs")
        }
        Request::Broken(error) => {
            let what = format!("this host cannot send a connection request: {error}");
            Finding::unknown("connect", what).checked_by("dmesg | grep -e kfabric -e kverbs")
        }
        Request::Unsent => Finding::unknown("connect", NOT_OPENED),
    }
}
