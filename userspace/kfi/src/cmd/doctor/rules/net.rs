// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rules of RDMA ports and their network devices.

use super::super::facts::{Discipline, Facts, Link, Port};
use super::Finding;

/// Packets that a queue must hold so that soft-RoCE's bursts are not dropped. One connection has up to
/// 64 operations of 1 MiB in flight, in packets of 1 KiB.
const QUEUE: u32 = 1000;
/// Largest packet of soft-RoCE that carries 1,024 bytes: the smallest payload worth using.
const MTU: u32 = 1024 + 80;

/// Judges the ports of RDMA devices and their network devices.
pub(super) fn ports(facts: &Facts) -> Vec<Finding> {
    let Some(ports) = &facts.ports else {
        let what = "the program rdma cannot be run";
        let finding = Finding::unknown("port", what);
        return vec![finding.mended_by("apt install iproute2")];
    };
    if ports.is_empty() {
        let mut links = facts.links.iter().flatten();
        let link = links.find(|link| link.is_up() && !link.is_loopback());
        let what = "there is no RDMA device, so no other host can be reached";
        let finding = Finding::warning("port", what);
        return vec![match link {
            Some(link) => with_soft_roce(facts, finding, "rxe0", &link.name),
            None => finding.checked_by("ip link show"),
        }];
    }
    ports.iter().flat_map(|port| judged(facts, port)).collect()
}

/// Adds the command that makes a device of soft-RoCE, if the kernel has soft-RoCE.
pub(super) fn with_soft_roce(
    facts: &Facts,
    mut finding: Finding,
    name: &str,
    netdev: &str,
) -> Finding {
    match facts.kernel.rxe {
        Some(false) => {
            finding.what += "; the kernel has no module rdma_rxe to make one in software";
            finding.checked_by(format!(
                "grep RDMA_RXE /boot/config-{}",
                facts.kernel.release
            ))
        }
        Some(true) | None => finding.mended_by(format!(
            "rdma link add {name} type rxe netdev {netdev}   # in software"
        )),
    }
}

fn judged(facts: &Facts, port: &Port) -> Vec<Finding> {
    let name = format!("{}/{}", port.device, port.port);
    let netdev = port.netdev.as_deref();
    let mut links = facts.links.iter().flatten();
    let link = netdev.and_then(|netdev| links.find(|link| link.name == netdev));
    let mut findings = vec![state(&name, port, link)];
    let Some(link) = link else { return findings };
    let netdev = &link.name;
    if link.addresses.is_empty() {
        let what = format!("{netdev} of {name} has no address");
        let check = format!(
            "ip address show dev {netdev}   # then: ip address add ADDRESS/LENGTH dev {netdev}"
        );
        findings.push(Finding::error("address", what).checked_by(check));
    }
    if link.mtu < MTU {
        let what = format!("{netdev} of {name} sends at most {} bytes", link.mtu);
        let mend = format!("ip link set {netdev} mtu 1500");
        findings.push(Finding::warning("mtu", what).mended_by(mend));
    }
    if port.soft {
        findings.push(queue(link));
    }
    findings
}

/// Judges the state of a port.
fn state(name: &str, port: &Port, link: Option<&Link>) -> Finding {
    if port.state == "ACTIVE" {
        return Finding::ok("port", format!("{name} is active"));
    }
    let what = format!("{name} is {}", port.state.to_lowercase());
    match link {
        Some(link) if !link.is_up() => {
            let mend = format!("ip link set {} up", link.name);
            Finding::error("port", what).mended_by(mend)
        }
        Some(link) if !link.has_carrier() => {
            let what = format!("{what}: {} has no carrier", link.name);
            Finding::error("port", what).checked_by(format!("ethtool {}", link.name))
        }
        _ => Finding::error("port", what).checked_by(format!("rdma link show {name}")),
    }
}

/// Judges the queue of a network device that carries soft-RoCE.
fn queue(link: &Link) -> Finding {
    let netdev = &link.name;
    let Some(disciplines) = &link.disciplines else {
        return Finding::unknown("queue", "the program tc cannot be run")
            .mended_by("apt install iproute2");
    };
    match disciplines.iter().find_map(|one| fault(link, one)) {
        Some(what) => Finding::warning("queue", what).mended_by(longer(netdev, disciplines)),
        None => Finding::ok("queue", format!("{netdev} drops no burst")),
    }
}

/// The fault of a queueing discipline.
fn fault(link: &Link, one: &Discipline) -> Option<String> {
    let (netdev, kind, options) = (&link.name, &*one.kind, &one.options);
    // These drop packets of a flow that fills the queue, whatever their limit.
    if ["fq_codel", "codel", "cake", "red", "pie", "fq_pie"].contains(&kind) {
        return Some(format!(
            "{netdev} queues by {kind}, which drops packets of a busy connection"
        ));
    }
    // The kernel's defaults: a connection is one flow.
    let limit = match kind {
        "pfifo" => options.limit.or(Some(link.queue)),
        "pfifo_fast" => Some(link.queue),
        "fq" => options.flow_limit.or(Some(100)),
        "sfq" => options.limit.or(Some(127)),
        _ => None,
    };
    let limit = limit.filter(|limit| *limit < QUEUE)?;
    Some(format!(
        "{netdev} queues {limit} packets by {kind} and drops the rest of a burst"
    ))
}

/// Returns the command that makes the queues longer.
fn longer(netdev: &str, disciplines: &[Discipline]) -> String {
    let root = disciplines.iter().find(|one| one.parent.is_none());
    let queues = disciplines
        .iter()
        .filter(|one| one.parent.is_some())
        .count();
    let commands = match root {
        // One queue at the root would replace the queues of the card. The class of queue 10 is 1:a.
        Some(root) if root.kind == "mq" && queues > 0 => format!(
            "tc qdisc replace dev {netdev} root handle 1: mq && for queue in $(seq {queues}); do \
             tc qdisc replace dev {netdev} parent 1:$(printf %x $queue) pfifo limit 10000; done"
        ),
        _ => format!("tc qdisc replace dev {netdev} root pfifo limit 10000"),
    };
    commands + "   # until the next boot"
}
