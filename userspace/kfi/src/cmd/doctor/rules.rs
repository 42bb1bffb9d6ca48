// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the facts mean: findings, each with the command that mends it.

use std::net::IpAddr;

use kfabric::{uapi, Errno};
use serde::Serialize;

use super::facts::{Facts, Link, Port, POLICY};
use super::path::{link_of, Answer, Request, Seen};
use crate::stats::bytes;

/// Locked memory in bytes that a small program needs: its queues' buffers and a few regions.
const MEMLOCK: u64 = 1 << 20;
/// Packets that a queue must hold so that soft-RoCE's bursts are not dropped. One connection has up to
/// 64 operations of 1 MiB in flight, in packets of 1 KiB.
const QUEUE: u32 = 1000;
/// Largest packet of soft-RoCE that carries 1,024 bytes: the smallest payload worth using.
const MTU: u32 = 1024 + 80;
/// UDP port of RoCE v2 (IBTA volume 1, annex A17).
const ROCE_PORT: u16 = 4791;

/// Reason of a check without an answer.
const NOT_OPENED: &str = "the device was not opened";

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Could not be checked.
    Unknown,
    /// Works, but not for everything or not well.
    Warning,
    /// Does not work.
    Error,
}

impl Level {
    /// The name that is printed.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    /// Name of the check.
    pub(super) check: &'static str,
    /// The severity.
    pub(super) level: Level,
    /// What was found.
    pub(super) what: String,
    /// The command that mends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mend: Option<String>,
}

impl Finding {
    fn new(check: &'static str, level: Level, what: impl Into<String>) -> Self {
        Self {
            check,
            level,
            what: what.into(),
            mend: None,
        }
    }

    /// A check that found nothing.
    pub(super) fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Ok, what)
    }

    /// A fault.
    pub(super) fn error(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Error, what)
    }

    fn warning(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Warning, what)
    }

    fn unknown(check: &'static str, what: impl Into<String>) -> Self {
        Self::new(check, Level::Unknown, what)
    }

    /// Adds the command that mends it.
    pub(super) fn mended_by(mut self, command: impl Into<String>) -> Self {
        self.mend = Some(command.into());
        self
    }
}

/// Judges a host.
pub(super) fn host(facts: &Facts) -> Vec<Finding> {
    let mut findings = modules(facts);
    findings.push(version(facts));
    findings.push(device(facts));
    findings.push(memlock(facts));
    findings.extend(ports(facts));
    findings.push(auth(facts));
    findings
}

fn modules(facts: &Facts) -> Vec<Finding> {
    let is_loaded = |name: &str| facts.loaded.contains(&name);
    if !is_loaded("kfabric") {
        let finding = Finding::error("module", "kfabric is not loaded");
        return vec![finding.mended_by("modprobe kfabric")];
    }
    let mut findings = Vec::new();
    let devices = facts.ports.as_ref().is_some_and(|ports| !ports.is_empty());
    if devices && !is_loaded("kverbs") {
        let what = "kverbs is not loaded, so no RDMA device is used";
        findings.push(Finding::error("module", what).mended_by("modprobe kverbs"));
    }
    if !is_loaded("kshm") {
        let what =
            "kshm is not loaded: processes of this host reach each other by RDMA devices alone";
        findings.push(Finding::warning("module", what).mended_by("modprobe kshm"));
    }
    if findings.is_empty() {
        let what = format!("loaded: {}", facts.loaded.join(", "));
        findings.push(Finding::ok("module", what));
    }
    findings
}

fn version(facts: &Facts) -> Finding {
    if let Some(abi) = facts.abi.filter(|abi| *abi != uapi::KFI_ABI_VERSION) {
        let own = uapi::KFI_ABI_VERSION;
        let what = format!("kfi speaks version {own} of the interface, the module version {abi}");
        return Finding::warning("version", what)
            .mended_by("apt install --only-upgrade kfabric-tools kfabric-dkms");
    }
    if !facts.stale.is_empty() {
        let what = format!(
            "the installed file differs from the loaded module: {}",
            facts.stale.join(", ")
        );
        let names = facts.loaded.join(" ");
        let mend = format!("modprobe -r {names} && modprobe -a {names}");
        return Finding::warning("version", what).mended_by(mend);
    }
    match facts.abi {
        Some(abi) => Finding::ok("version", format!("interface version {abi}")),
        None if facts.opened => Finding::unknown("version", "no provider makes an offer"),
        None => Finding::unknown("version", NOT_OPENED),
    }
}

fn device(facts: &Facts) -> Finding {
    let path = facts.device.display();
    let Some(node) = &facts.node else {
        let finding = Finding::error("device", format!("{path} does not exist"));
        return match facts
            .number
            .as_deref()
            .and_then(|number| number.split_once(':'))
        {
            Some((major, minor)) => finding.mended_by(format!("mknod {path} c {major} {minor}")),
            None => finding.mended_by("modprobe kfabric"),
        };
    };
    let group = &node.group;
    match facts.refused {
        None if !facts.opened => Finding::unknown("device", "the module is not loaded"),
        None if group != "rdma" || node.mode != 0o660 => {
            let what = format!(
                "{path} has the group {group} and the mode {:o}, and not rdma and 660",
                node.mode
            );
            let mend = format!("chgrp rdma {path} && chmod 660 {path}");
            Finding::warning("device", what).mended_by(mend)
        }
        None => Finding::ok("device", format!("{path} is open to the group rdma")),
        Some(Errno::EACCES | Errno::EPERM) if group == "rdma" => {
            let user = &facts.caller.user;
            let what = format!("{user} may not open {path}: not a member of the group rdma");
            Finding::error("device", what)
                .mended_by(format!("adduser {user} rdma   # then log in again"))
        }
        Some(Errno::EACCES | Errno::EPERM) => {
            let what = format!("{path} belongs to the group {group}, not to rdma");
            let mend = format!("chgrp rdma {path} && chmod 660 {path}");
            Finding::error("device", what).mended_by(mend)
        }
        Some(errno) => {
            let what = format!("{path} cannot be opened: {errno}");
            Finding::error("device", what).mended_by("dmesg | grep kfabric")
        }
    }
}

fn memlock(facts: &Facts) -> Finding {
    let caller = &facts.caller;
    let Some(limit) = caller.memlock.filter(|_| !caller.unlimited) else {
        return Finding::ok("memlock", "unlimited");
    };
    if limit >= MEMLOCK {
        return Finding::ok("memlock", bytes(limit));
    }
    let user = &caller.user;
    let what = format!(
        "{user} may lock {} of memory, and registration locks it",
        bytes(limit)
    );
    let finding = match limit {
        0 => Finding::error("memlock", what),
        _ => Finding::warning("memlock", what),
    };
    finding.mended_by(format!(
        "echo '{user} - memlock unlimited' >/etc/security/limits.d/kfabric.conf   # then log in again"
    ))
}

/// Judges the ports of RDMA devices and their network devices.
fn ports(facts: &Facts) -> Vec<Finding> {
    let Some(ports) = &facts.ports else {
        let what = "the program rdma cannot be run";
        let finding = Finding::unknown("port", what);
        return vec![finding.mended_by("apt install iproute2")];
    };
    if ports.is_empty() {
        let mut links = facts.links.iter().flatten();
        let link = links.find(|link| link.is_up() && !link.is_loopback());
        let netdev = link.map_or("eth0", |link| &link.name);
        let what = "there is no RDMA device, so no other host can be reached";
        let mend = format!("rdma link add rxe0 type rxe netdev {netdev}   # in software");
        return vec![Finding::warning("port", what).mended_by(mend)];
    }
    ports.iter().flat_map(|port| judged(facts, port)).collect()
}

fn judged(facts: &Facts, port: &Port) -> Vec<Finding> {
    let name = format!("{}/{}", port.device, port.port);
    let netdev = port.netdev.as_deref();
    let mut links = facts.links.iter().flatten();
    let link = netdev.and_then(|netdev| links.find(|link| link.name == netdev));
    let mut findings = Vec::new();
    if port.state == "ACTIVE" {
        findings.push(Finding::ok("port", format!("{name} is active")));
    } else {
        let what = format!("{name} is {}", port.state.to_lowercase());
        let mend = netdev.map_or_else(
            || format!("rdma link show {name}"),
            |netdev| format!("ip link set {netdev} up"),
        );
        findings.push(Finding::error("port", what).mended_by(mend));
    }
    let Some(link) = link else { return findings };
    let netdev = &link.name;
    if link.addresses.is_empty() {
        let what = format!("{netdev} of {name} has no address");
        let mend = format!("ip address add ADDRESS/LENGTH dev {netdev}");
        findings.push(Finding::error("address", what).mended_by(mend));
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

/// Judges the queue of a network device that carries soft-RoCE.
fn queue(link: &Link) -> Finding {
    let netdev = &link.name;
    let Some(disciplines) = &link.disciplines else {
        return Finding::unknown("queue", "the program tc cannot be run")
            .mended_by("apt install iproute2");
    };
    let mend = format!("tc qdisc replace dev {netdev} root pfifo limit 10000");
    for one in disciplines {
        let kind = &one.kind;
        // These drop packets of a flow that fills the queue, whatever their limit.
        if ["fq_codel", "codel", "cake", "red", "pie", "fq_pie"].contains(&&**kind) {
            let what =
                format!("{netdev} queues by {kind}, which drops packets of a busy connection");
            return Finding::warning("queue", what).mended_by(mend);
        }
        let limit = match &**kind {
            "pfifo" => one.options.limit.or(Some(link.queue)),
            "pfifo_fast" => Some(link.queue),
            _ => None,
        };
        if let Some(limit) = limit.filter(|limit| *limit < QUEUE) {
            let what = format!("{netdev} queues {limit} packets and drops the rest of a burst");
            return Finding::warning("queue", what).mended_by(mend);
        }
    }
    Finding::ok("queue", format!("{netdev} drops no burst"))
}

fn auth(facts: &Facts) -> Finding {
    let Some(auth) = &facts.auth else {
        let what = match facts.opened {
            true => "only an administrator sees mode and agent",
            false => NOT_OPENED,
        };
        return Finding::unknown("auth", what);
    };
    let start = "systemctl start kfi-authd";
    match (auth.agent, auth.enforce) {
        (true, _) => Finding::ok("auth", "an agent runs"),
        (false, true) if auth.grants == 0 => {
            let what = "grants are required, and there is neither a grant nor an agent";
            Finding::error("auth", what).mended_by(start)
        }
        (false, true) => {
            let what = format!(
                "grants are required, no agent runs, and {} grants are installed: other uses are refused",
                auth.grants
            );
            Finding::warning("auth", what).mended_by(start)
        }
        (false, false) if auth.policy => {
            let what = format!("{POLICY} exists, but no agent runs");
            Finding::warning("auth", what).mended_by(start)
        }
        (false, false) => Finding::ok("auth", "grants are not required"),
    }
}

/// Judges the path to a peer.
pub(super) fn path(facts: &Facts, peer: IpAddr, seen: &Seen) -> Vec<Finding> {
    let devices = facts.ports.iter().flatten();
    let netdevs: Vec<&str> = devices.filter_map(|port| port.netdev.as_deref()).collect();
    let own = match seen.own {
        Ok(own) => own,
        Err(errno) => {
            let netdev = netdevs.first().unwrap_or(&"eth0");
            let what = format!("no route to {peer}: {errno}");
            let mend = format!("ip route add {peer} dev {netdev}");
            return vec![Finding::error("route", what).mended_by(mend)];
        }
    };
    if own == peer {
        return vec![Finding::ok("route", format!("{peer} is this host"))];
    }
    let mut findings = Vec::new();
    let link = link_of(facts, own);
    match link {
        Some(link) if !netdevs.is_empty() && !netdevs.contains(&&*link.name) => {
            let netdev = &link.name;
            let what = format!("the route to {peer} uses {netdev}, which has no RDMA device");
            let mend =
                format!("rdma link add rxe_{netdev} type rxe netdev {netdev}   # in software");
            findings.push(Finding::error("route", what).mended_by(mend));
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

fn reach(peer: IpAddr, seen: &Seen) -> Finding {
    match seen.short {
        Answer::Arrived => Finding::ok("peer", format!("{peer} answers")),
        Answer::Refused(errno) => {
            let what = format!("{peer} cannot be reached: {errno}");
            Finding::error("peer", what).mended_by(format!("ip route get {peer}"))
        }
        Answer::Silence | Answer::Unasked => {
            let what = format!("{peer} does not answer datagrams, or a firewall drops its answers");
            Finding::unknown("peer", what)
        }
    }
}

fn mtu(peer: IpAddr, link: &Link, seen: &Seen) -> Option<Finding> {
    let (netdev, own) = (&link.name, link.mtu);
    match seen.long {
        Answer::Unasked => None,
        Answer::Arrived => Some(Finding::ok(
            "mtu",
            format!("packets of {own} bytes reach {peer}"),
        )),
        Answer::Silence | Answer::Refused(_) => {
            let what = format!("packets of {own} bytes, the MTU of {netdev}, do not reach {peer}");
            let finding = Finding::error("mtu", what);
            Some(match seen.fits {
                Some(fits) => finding.mended_by(format!("ip link set {netdev} mtu {fits}")),
                None => finding.mended_by(format!("ip link set {netdev} mtu 1280")),
            })
        }
    }
}

fn request(peer: IpAddr, seen: &Seen) -> Finding {
    let open =
        format!("nft insert rule inet filter input udp dport {ROCE_PORT} accept   # on {peer}");
    match seen.request {
        Request::Answered => Finding::ok("connect", format!("{peer} answers connection requests")),
        Request::Silence if seen.short == Answer::Arrived => {
            let what = format!(
                "{peer} answers datagrams, but no connection request: UDP port {ROCE_PORT} is closed between \
                 the hosts, or {peer} has no RDMA device at this address"
            );
            Finding::error("connect", what).mended_by(open)
        }
        Request::Silence => {
            let what = format!("{peer} does not answer connection requests");
            Finding::error("connect", what).mended_by(open)
        }
        Request::NoOffer => {
            let what = format!("no RDMA device reaches {peer}");
            Finding::error("connect", what).mended_by("rdma link show")
        }
        Request::Failed(errno) => {
            let what = format!("a connection request to {peer} fails: {errno}");
            Finding::error("connect", what).mended_by(format!("ip route get {peer}"))
        }
        Request::Unsent => Finding::unknown("connect", "the device cannot be opened"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Address, Auth, Caller, Discipline, Node, Options};
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    /// A host without a finding.
    fn well() -> Facts {
        Facts {
            loaded: vec!["kverbs", "kshm", "kfabric"],
            node: Some(Node {
                mode: 0o660,
                group: "rdma".to_owned(),
            }),
            device: "/dev/kfabric".into(),
            number: Some("10:250".to_owned()),
            opened: true,
            abi: Some(uapi::KFI_ABI_VERSION),
            caller: Caller {
                user: "alice".to_owned(),
                memlock: Some(8 << 20),
                unlimited: false,
            },
            ports: Some(vec![Port {
                device: "rxe0".to_owned(),
                port: 1,
                state: "ACTIVE".to_owned(),
                netdev: Some("eth0".to_owned()),
                soft: true,
            }]),
            links: Some(vec![Link {
                name: "eth0".to_owned(),
                flags: vec!["UP".to_owned()],
                mtu: 4200,
                queue: 1000,
                addresses: vec![Address {
                    local: OWN.to_string(),
                }],
                disciplines: Some(vec![Discipline {
                    kind: "noqueue".to_owned(),
                    options: Options::default(),
                }]),
            }]),
            auth: Some(Auth {
                enforce: false,
                agent: false,
                grants: 0,
                policy: false,
            }),
            ..Facts::default()
        }
    }

    fn reachable() -> Seen {
        Seen {
            own: Ok(OWN),
            short: Answer::Arrived,
            long: Answer::Arrived,
            fits: None,
            request: Request::Answered,
        }
    }

    fn worst(findings: &[Finding]) -> &Finding {
        findings.iter().max_by_key(|finding| finding.level).unwrap()
    }

    /// Checks the worst finding of a host that differs from a well one.
    fn host_with(change: impl FnOnce(&mut Facts), level: Level, check: &str, mend: &str) {
        let mut facts = well();
        change(&mut facts);
        let findings = host(&facts);
        let found = worst(&findings);
        assert_eq!((found.level, found.check), (level, check), "{found:?}");
        let command = found.mend.as_deref().unwrap_or_default();
        assert!(command.starts_with(mend), "{command}");
    }

    fn path_with(change: impl FnOnce(&mut Seen), check: &str, mend: &str) {
        let mut seen = reachable();
        change(&mut seen);
        let findings = path(&well(), PEER, &seen);
        let found = worst(&findings);
        assert_eq!(
            (found.level, found.check),
            (Level::Error, check),
            "{found:?}"
        );
        let command = found.mend.as_deref().unwrap_or_default();
        assert!(command.starts_with(mend), "{command}");
    }

    #[test]
    fn well_host_and_path_have_no_finding() {
        assert_eq!(worst(&host(&well())).level, Level::Ok);
        assert_eq!(worst(&path(&well(), PEER, &reachable())).level, Level::Ok);
    }

    #[test]
    fn each_fault_of_a_host_is_found_with_its_command() {
        use Level::{Error, Warning};
        host_with(|f| f.loaded.clear(), Error, "module", "modprobe kfabric");
        host_with(
            |f| f.loaded = vec!["kshm", "kfabric"],
            Error,
            "module",
            "modprobe kverbs",
        );
        host_with(|f| f.stale.push("kshm"), Warning, "version", "modprobe -r ");
        host_with(|f| f.abi = Some(99), Warning, "version", "apt install ");
        host_with(
            |f| f.node = None,
            Error,
            "device",
            "mknod /dev/kfabric c 10 250",
        );
        host_with(
            |f| (f.opened, f.refused) = (false, Some(Errno::EACCES)),
            Error,
            "device",
            "adduser alice rdma",
        );
        host_with(
            |f| f.node.as_mut().unwrap().group = "root".to_owned(),
            Warning,
            "device",
            "chgrp rdma /dev/kfabric",
        );
        host_with(
            |f| f.caller.memlock = Some(0),
            Error,
            "memlock",
            "echo 'alice - memlock",
        );
        host_with(
            |f| f.ports.as_mut().unwrap()[0].state = "DOWN".to_owned(),
            Error,
            "port",
            "ip link set eth0 up",
        );
        host_with(
            |f| f.ports = Some(Vec::new()),
            Warning,
            "port",
            "rdma link add rxe0 type rxe netdev eth0",
        );
        host_with(
            |f| f.links.as_mut().unwrap()[0].addresses.clear(),
            Error,
            "address",
            "ip address add ",
        );
        host_with(
            |f| f.auth.as_mut().unwrap().enforce = true,
            Error,
            "auth",
            "systemctl start kfi-authd",
        );
    }

    #[test]
    fn short_queue_is_found_whatever_its_kind() {
        for (kind, limit) in [
            ("fq_codel", Some(10_240)),
            ("pfifo", Some(10)),
            ("pfifo_fast", None),
        ] {
            let change = |facts: &mut Facts| {
                let link = &mut facts.links.as_mut().unwrap()[0];
                link.queue = 10;
                link.disciplines = Some(vec![Discipline {
                    kind: kind.to_owned(),
                    options: Options { limit },
                }]);
            };
            host_with(
                change,
                Level::Warning,
                "queue",
                "tc qdisc replace dev eth0 ",
            );
        }
    }

    #[test]
    fn each_fault_of_a_path_is_found_with_its_command() {
        path_with(
            |s| s.own = Err(Errno::ENETUNREACH),
            "route",
            "ip route add 192.0.2.2 dev eth0",
        );
        path_with(
            |s| (s.long, s.fits) = (Answer::Silence, Some(1500)),
            "mtu",
            "ip link set eth0 mtu 1500",
        );
        path_with(
            |s| s.request = Request::Silence,
            "connect",
            "nft insert rule ",
        );
        path_with(
            |s| s.short = Answer::Refused(Errno::EHOSTUNREACH),
            "peer",
            "ip route get 192.0.2.2",
        );
    }

    #[test]
    fn module_without_a_provider_is_loaded_and_makes_no_offer() {
        let facts = Facts {
            loaded: vec!["kfabric"],
            abi: None,
            ports: Some(Vec::new()),
            ..well()
        };
        let findings = host(&facts);
        let of = |check| findings.iter().find(|f| f.check == check).unwrap();
        assert_eq!(of("device").level, Level::Ok);
        assert_eq!(of("version").what, "no provider makes an offer");
        assert_eq!(of("module").mend.as_deref(), Some("modprobe kshm"));
    }

    #[test]
    fn fact_that_cannot_be_read_is_unknown() {
        let facts = Facts {
            ports: None,
            auth: None,
            ..well()
        };
        let findings = host(&facts);
        let unknown: Vec<&str> = findings
            .iter()
            .filter(|finding| finding.level == Level::Unknown)
            .map(|finding| finding.check)
            .collect();
        assert_eq!(unknown, ["port", "auth"]);
    }
}
